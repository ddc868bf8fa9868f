"""The types of official SDKs made strict: no unknown keys, no coercion, lists checked to their last item."""

import json
import types
from collections.abc import Mapping
from functools import cache
from typing import (
    Annotated,
    Any,
    ForwardRef,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict, is_typeddict

_FORBIDDING = ConfigDict(extra="forbid", strict=True)


def problems_of(body: Any, kind: Any) -> list[str]:
    """Why `body`, as JSON has it, is not of a type: a TypedDict of parameters, or a pydantic model; [] when it is."""
    body = json.loads(json.dumps(body))
    if not is_typeddict(kind):
        return _model_problems(body, kind)
    try:
        _adapter(kind).validate_python(body)
    except ValidationError as error:
        return _problems(error, body)
    return []


def _problems(error: ValidationError, body: Any) -> list[str]:
    """One line for each key of the body; of a union's complaints, of which there are many, the value alone."""
    by_key: dict[Any, list[Any]] = {}
    for item in error.errors():
        by_key.setdefault(item["loc"][0], []).append(item)
    return [
        f"{'.'.join(map(str, items[0]['loc']))}: {items[0]['msg']}"
        if len(items) == 1
        else f"{key}: is none of its types: {json.dumps(body.get(key))[:300]}"
        for key, items in by_key.items()
    ]


def _model_problems(body: Any, model: type[BaseModel]) -> list[str]:
    """SDKs' models may pass over keys that they do not know: what was read must be all that was written."""
    try:
        read = model.model_validate_json(json.dumps(body))
    except ValidationError as error:
        return _problems(error, body)
    again = json.loads(read.model_dump_json(by_alias=True, exclude_unset=True))
    return list(_differences(body, again, ""))


def _differences(written: Any, read: Any, path: str) -> list[str]:
    if isinstance(written, Mapping) and isinstance(read, Mapping):
        lost = [f"{path}.{key}: unknown" for key in written.keys() - read.keys()]
        both = written.keys() & read.keys()
        return [
            *lost,
            *(line for key in both for line in _differences(written[key], read[key], f"{path}.{key}")),
        ]
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        pairs = enumerate(zip(written, read, strict=True))
        return [line for index, (one, other) in pairs for line in _differences(one, other, f"{path}.{index}")]
    return [] if written == read else [f"{path}: {written!r} was read as {read!r}"]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(_strict(kind, {}))


def _strict(kind: Any, made: dict[Any, Any]) -> Any:
    """The same type with TypedDicts that forbid other keys, and with lists for all that pydantic reads lazily."""
    if is_typeddict(kind):
        if kind not in made:
            made[kind] = Any  # where a type holds itself, its inside is not looked at again
            hints = get_type_hints(kind, include_extras=True)
            fields = {}
            for name, hint in hints.items():
                # Python itself does not see `Required` in annotations that are texts.
                mark = get_origin(hint)
                is_required = mark is Required or (mark is not NotRequired and name in kind.__required_keys__)
                strict = _strict(get_args(hint)[0] if mark in (Required, NotRequired) else hint, made)
                fields[name] = Required[strict] if is_required else NotRequired[strict]
            made[kind] = TypedDict(kind.__name__, fields)  # type: ignore[operator]
            made[kind].__pydantic_config__ = _FORBIDDING
        return made[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _strict(arguments[0], made)
    if origin in (Union, types.UnionType):
        return Union[tuple(_strict(item, made) for item in arguments)]  # noqa: UP007 - made from a list
    if origin is Literal or isinstance(kind, ForwardRef | str):
        return kind
    if origin is dict or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return dict[str, _strict(arguments[1], made)]  # type: ignore[misc]
    if origin is not None and len(arguments) >= 1 and origin is not type:
        return list[_strict(arguments[0], made)]  # type: ignore[misc]
    return kind
