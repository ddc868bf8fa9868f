"""Types and values in plain words: what a key takes, what was found instead, and what the writer probably meant."""

import json
import re
import types
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from geval_cli.numbers import percent_hint, share_of_percentage
from geval_cli.records import JsonValue
from geval_cli.source.problems import did_you_mean
from geval_cli.source.secrets import mask_text
from geval_cli.specs.base import Spec

_MAX_SHOWN = 40
_SIMPLE = {str: "text", bool: "true or false", int: "a whole number", float: "a number", dict: "a mapping"}
_YES = frozenset({"yes", "on", "y", "true"})
_NO = frozenset({"no", "off", "n", "false"})
_COUNTS = {2: "two", 3: "three", 4: "four"}


def expected_text(annotation: Any) -> str:
    """Return a field's type in words, for use after "must be": `a number from 0 to 1`, `text or a list of texts`."""
    options = [_option_text(option) for option in _options(annotation)]
    texts = list(dict.fromkeys(options))
    if "a number" in texts and "a whole number" in texts:
        texts.remove("a whole number")
    comma = "," if any(" or " in text for text in texts) and len(texts) > 1 else ""
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])}{comma} or {texts[-1]}"


def describe_value(value: JsonValue) -> str:
    """Return a value in words, for use after "found": `the text "high"`, `the number 7`, `an empty list`."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"the number {_shorten(str(value))}"
    if isinstance(value, str):
        text = json.dumps(_shorten(mask_text(value)), ensure_ascii=False)
        return f"the text {text}" if value else "an empty text"
    if isinstance(value, dict):
        return "a mapping"
    return f"a list with {_entries(len(value))}" if value else "an empty list"


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def mismatch_hint(annotation: Any, value: JsonValue) -> str:
    """Return a hint for the writer of `value`, or ""."""
    bases = [_unwrap(option) for option in _options(annotation)]
    choices = [choice for base, _ in bases if get_origin(base) is Literal for choice in get_args(base)]
    kinds = {base for base, _ in bases}
    if isinstance(value, str):
        if choices:
            near = did_you_mean(value, [str(choice) for choice in choices])
            return f"did you mean `{near}`?" if near else ""
        if bool in kinds and value.lower() in _YES | _NO:
            return f"write `{'true' if value.lower() in _YES else 'false'}`"
        if kinds & {int, float} and _is_number(value):
            return "remove the quotes"
        share = share_of_percentage(value) if float in kinds else None
        return "" if share is None else f"write {share:g}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if str in kinds:
            return "put quotes around it"
        if value > 1 and any(_is_share(base, limits) for base, limits in bases):
            if percent_hint(value):
                return f"scores run from 0 to 1: {percent_hint(value)} for {value:g} %"
            return "scores run from 0 to 1; if you meant the rating scale: 7 of 10 is 0.7"
    if isinstance(value, bool) and str in kinds:
        return "put quotes around it"
    return ""


def annotation_at(info: FieldInfo, path: tuple[str | int, ...]) -> Any:
    """Return the annotation of what is at `path` inside a field: the item type of its list, for an index."""
    annotation: Any = info
    for part in path:
        for option in _options(annotation):
            base, _ = _unwrap(option)
            if isinstance(part, str) and get_origin(base) is dict:
                annotation = get_args(base)[1]
                break
            if isinstance(part, int) and get_origin(base) in (tuple, list):
                arguments = get_args(base)
                annotation = arguments[min(part, len(arguments) - 1)]
                annotation = arguments[0] if annotation is Ellipsis else annotation
                break
        else:
            return annotation
    return annotation


@cache
def tuple_fields(model: type[Spec]) -> frozenset[str]:
    """Return the fields that take a tuple, which YAML can only write as a list."""
    return frozenset(
        name
        for name, info in model.model_fields.items()
        if any(get_origin(_unwrap(option)[0]) is tuple for option in _options(info))
    )


def limits_of(metadata: list[Any]) -> dict[str, float]:
    """Return the bounds in a field's metadata, by their JSON Schema names."""
    limits: dict[str, float] = {}
    for part in metadata:
        # A pydantic Field inside Annotated keeps its bounds in a list of its own.
        for bound in part.metadata if isinstance(part, FieldInfo) else [part]:
            match bound:
                case Ge(ge=value):
                    limits["minimum"] = value  # type: ignore[assignment]
                case Gt(gt=value):
                    limits["exclusiveMinimum"] = value  # type: ignore[assignment]
                case Le(le=value):
                    limits["maximum"] = value  # type: ignore[assignment]
                case Lt(lt=value):
                    limits["exclusiveMaximum"] = value  # type: ignore[assignment]
    return limits


def field_options(annotation: Any) -> list[tuple[Any, dict[str, float]]]:
    """Return the alternatives that a field or annotation allows, each with its bounds; None is left out."""
    return [_unwrap(option) for option in _options(annotation)]


def _options(annotation: Any) -> list[Any]:
    if isinstance(annotation, FieldInfo):
        inner = annotation.annotation
        if annotation.metadata and get_origin(inner) not in (Union, types.UnionType):
            return [Annotated[inner, *annotation.metadata]]
        return _options(inner)
    if get_origin(annotation) in (Union, types.UnionType):
        return [option for part in get_args(annotation) for option in _options(part)]
    return [] if annotation is type(None) else [annotation]


def _unwrap(annotation: Any) -> tuple[Any, dict[str, float]]:
    if get_origin(annotation) is Annotated:
        base, *metadata = get_args(annotation)
        return base, limits_of(metadata)
    return annotation, {}


def _option_text(option: Any) -> str:
    base, limits = _unwrap(option)
    origin, arguments = get_origin(base), get_args(base)
    if origin is Literal:
        named = [f"`{choice}`" for choice in arguments]
        return named[0] if len(named) == 1 else f"one of {', '.join(named)}"
    if origin is dict or (isinstance(base, type) and issubclass(base, BaseModel)):
        return "a mapping"
    if origin in (tuple, list):
        if origin is tuple and Ellipsis not in arguments:
            return (
                f"a list of {_COUNTS.get(len(arguments), len(arguments))} {expected_text(arguments[0])[2:]}s"
            )
        return _list_text(expected_text(arguments[0]))
    simple = _SIMPLE.get(base, "a value")
    low, above, high = limits.get("minimum"), limits.get("exclusiveMinimum"), limits.get("maximum")
    if low is not None:
        bounds_text = f" from {low} to {high}" if high is not None else f" of at least {low}"
    elif above is not None:
        bounds_text = f" above {above}" + (f" and at most {high}" if high is not None else "")
    else:
        bounds_text = f" of at most {high}" if high is not None else ""
    return simple + bounds_text


def _list_text(item: str) -> str:
    if item.startswith("one of "):
        return f"a list with any of {item.removeprefix('one of ')}"
    plurals = {
        "text": "texts",
        "a mapping": "mappings",
        "a number": "numbers",
        "a whole number": "whole numbers",
        "a value": "values",
        "true or false": "booleans",
    }
    return "a list of " + re.sub("|".join(plurals), lambda found: plurals[found[0]], item)


def _is_share(base: Any, limits: dict[str, float]) -> bool:
    return base is float and limits.get("minimum") == 0 and limits.get("maximum") == 1


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"
