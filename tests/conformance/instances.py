"""Instances of SDKs' reply types, made up from the types: every optional field filled, each union's member in turn."""

import datetime
import json
import types
from collections.abc import Mapping
from enum import Enum
from random import Random
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typing_extensions import TypeAliasType

_DEEPEST = 9


def made_up(model: type[BaseModel], chance: Random) -> Any:
    """JSON that is an instance of a model, by the names of the wire; `chance` takes members of unions and literals."""
    return json.loads(json.dumps(_of_model(model, chance, 0)))


def _of_model(model: type[BaseModel], chance: Random, depth: int) -> dict[str, Any]:
    found = {}
    for name, field in model.model_fields.items():
        if depth > _DEEPEST and not field.is_required():
            continue
        found[_alias(model, name, field)] = _of(field.annotation, chance, depth + 1)
    return found


def _alias(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    written = field.serialization_alias or field.alias
    generator = model.model_config.get("alias_generator")
    return written or (generator(name) if callable(generator) else name)


def _of(kind: Any, chance: Random, depth: int) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, TypeAliasType):
        return _of(kind.__value__, chance, depth)
    if isinstance(origin, TypeAliasType):
        return _of(origin.__value__[arguments], chance, depth)
    if origin is Annotated:
        return _of(arguments[0], chance, depth)
    if origin in (Union, types.UnionType):
        members = [item for item in arguments if item is not type(None) and _name(item) != "Unset"]
        if depth > _DEEPEST and len(members) < len(arguments):
            return None
        return _of(chance.choice(members), chance, depth)
    if origin is Literal:
        return chance.choice(arguments)
    if origin in (list, tuple, set) or (origin is not None and origin.__name__ in {"Sequence", "Iterable"}):
        return (
            []
            if depth > _DEEPEST
            else [_of(arguments[0], chance, depth + 1) for _ in range(chance.randint(1, 2))]
        )
    if origin is dict or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return {"made": _of(arguments[1], chance, depth + 1)}
    if isinstance(kind, TypeVar):
        return "made"
    if isinstance(kind, type):
        return _of_class(kind, chance, depth)
    return "made"


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", "")


_PLAIN: dict[type, Any] = {
    bool: True,
    int: 1,
    float: 0.5,
    str: "made",
    bytes: "bWFkZQ==",
    datetime.datetime: "2026-01-02T03:04:05Z",
    dict: {"made": 1},
    list: [],
}


def _of_class(kind: type, chance: Random, depth: int) -> Any:
    if issubclass(kind, BaseModel):
        return _of_model(kind, chance, depth)
    if issubclass(kind, Enum):
        return chance.choice([item.value for item in kind] or ["made"])
    return _PLAIN.get(kind, "made")
