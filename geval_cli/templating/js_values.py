"""Values as templates of JavaScript see them: what is true, what is equal, which members they have, how they add up."""

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from jinja2 import ChainableUndefined, Undefined

from geval_cli.config.promptfoo.js_text import js_string
from geval_cli.records import JsonValue

_MOST_REPEATED = 1_000_000


class JsArray(list[Any]):
    """A list that counts as true even when it is empty, and is written with commas between its entries."""

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return js_text(self)


class JsObject(dict[str, Any]):
    """A mapping that counts as true even when it is empty, and is written as JavaScript writes an object."""

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return "[object Object]"


class JsUndefined(ChainableUndefined):
    """What is not there: written as nothing, with members that are not there either, equal to null."""

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, Undefined)

    __hash__ = Undefined.__hash__


def as_js(value: JsonValue) -> Any:
    """`value` with its lists and mappings as JavaScript has them."""
    if isinstance(value, Mapping):
        return JsObject((key, as_js(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return JsArray(as_js(item) for item in value)
    return value


def js_text(value: Any) -> str:
    """What a template writes for `value`."""
    if isinstance(value, Undefined):
        return ""
    if isinstance(value, list | tuple):
        return ",".join(js_text(item) for item in value)
    if callable(value):
        return ""
    return js_string(value)


def js_number_of(value: Any) -> float:
    """`value` as a number; NaN for what is none."""
    if value is None or value == "" or value is False:
        return 0
    if isinstance(value, bool | int | float):
        return value
    try:
        number = float(str(value).strip().replace("_", "x") or 0)
    except ValueError:
        return math.nan
    return int(number) if number.is_integer() else number


def js_add(left: Any, right: Any) -> Any:
    """`left + right`: a sum of numbers, else texts one behind the other."""
    if all(isinstance(value, bool | int | float) or value is None for value in (left, right)):
        return js_number_of(left) + js_number_of(right)
    return js_text(left) + js_text(right)


def js_calculate(operator: str, left: Any, right: Any) -> Any:
    """`left operator right` for numbers and what can be read as one; NaN where that has no result."""
    if operator == "+":
        return js_add(left, right)
    first, second = js_number_of(left), js_number_of(right)
    try:
        match operator:
            case "-":
                return first - second
            case "*":
                return first * second
            case "/":
                return first / second
            case "//":
                return math.floor(first / second)
            case "%":
                return math.fmod(first, second)
            case _:
                return float(first) ** float(second)
    except (ZeroDivisionError, ValueError, OverflowError):
        return math.nan


def js_compare(left: Any, operator: str, right: Any) -> bool:
    """`left operator right`, where a number and a text that reads as it are equal, and null and undefined too."""
    match operator:
        case "eq":
            return _is_equal(left, right)
        case "ne":
            return not _is_equal(left, right)
        case "in":
            return _is_in(left, right)
        case "notin":
            return not _is_in(left, right)
    if not (isinstance(left, str) and isinstance(right, str)):
        left, right = js_number_of(left), js_number_of(right)
    if operator in {"lt", "lteq"}:
        return bool(left < right or (operator == "lteq" and left == right))
    return bool(left > right or (operator == "gteq" and left == right))


def js_member(value: Any, name: Any) -> Any:
    """A member of a JavaScript value: an entry, `length`, or a method; None when it has no such member."""
    if isinstance(value, Mapping):
        return value.get(name if isinstance(name, str) else js_text(name))
    if isinstance(value, str | list):
        if name == "length":
            return len(value)
        position = int(name) if isinstance(name, str) and name.isdigit() else name
        if isinstance(position, int) and not isinstance(position, bool):
            return value[position] if 0 <= position < len(value) else None
    methods = (
        _TEXT_METHODS
        if isinstance(value, str)
        else _LIST_METHODS
        if isinstance(value, list)
        else _NUMBER_METHODS
    )
    method = methods.get(name) if isinstance(name, str) else None
    return None if method is None else partial(method, value)


def _is_equal(left: Any, right: Any) -> bool:
    left, right = (None if isinstance(value, Undefined) else value for value in (left, right))
    if left is None or right is None:
        return left is right
    if isinstance(left, str) != isinstance(right, str) and not isinstance(left, list | dict):
        return (
            bool(js_number_of(left) == js_number_of(right)) and js_text(right) != "" and js_text(left) != ""
        )
    return bool(left == right)


def _is_in(item: Any, container: Any) -> bool:
    if isinstance(container, str):
        return js_text(item) in container
    if isinstance(container, Mapping):
        return js_text(item) in container
    return isinstance(container, list | tuple | range) and item in container


def _clamped(position: Any, length: int) -> int:
    place = int(js_number_of(position))
    return max(0, length + place) if place < 0 else min(place, length)


def _slice(value: Any, start: Any = 0, end: Any = None) -> Any:
    length = len(value)
    part = value[_clamped(start, length) : length if end is None else _clamped(end, length)]
    return JsArray(part) if isinstance(value, list) else part


def _substring(text: str, start: Any = 0, end: Any = None) -> str:
    length = len(text)
    places = sorted(max(0, _clamped(place, length)) for place in (start, length if end is None else end))
    return text[places[0] : places[1]]


def _split(text: str, separator: Any = None, most: Any = None) -> JsArray:
    parts = [text] if separator is None else list(text) if separator == "" else text.split(js_text(separator))
    return JsArray(parts if most is None else parts[: int(most)])


def _index(value: Any, item: Any) -> int:
    if isinstance(value, str):
        return value.find(js_text(item))
    return value.index(item) if item in value else -1


def _repeated(text: str, count: int) -> str:
    if len(text) * count > _MOST_REPEATED:
        raise ValueError(f"a repeated text may have at most {_MOST_REPEATED:,} characters")
    return text * count


def _replaced_all(text: str, old: str, new: str) -> str:
    if len(text) + text.count(old) * len(new) > _MOST_REPEATED:
        raise ValueError(f"a replaced text may have at most {_MOST_REPEATED:,} characters")
    return text.replace(old, new)


def _joined(items: list[Any], separator: str) -> str:
    if len(items) * len(separator) > _MOST_REPEATED:
        raise ValueError(f"a joined text may have at most {_MOST_REPEATED:,} characters")
    return separator.join(map(js_text, items))


def _padding(text: str, width: Any, fill: str) -> str:
    missing = max(0, int(js_number_of(width)) - len(text))
    return _repeated(fill, missing)[:missing]


_TEXT_METHODS: dict[str, Callable[..., Any]] = {
    "toUpperCase": str.upper,
    "toLowerCase": str.lower,
    "trim": str.strip,
    "trimStart": str.lstrip,
    "trimEnd": str.rstrip,
    "toString": str,
    "charAt": lambda text, place=0: text[int(place) : int(place) + 1],
    "concat": lambda text, *others: text + "".join(map(js_text, others)),
    "endsWith": lambda text, end: text.endswith(js_text(end)),
    "includes": lambda text, part: js_text(part) in text,
    "indexOf": _index,
    "padEnd": lambda text, width, fill=" ": text + _padding(text, width, fill),
    "padStart": lambda text, width, fill=" ": _padding(text, width, fill) + text,
    "repeat": lambda text, count: _repeated(text, int(count)),
    "replace": lambda text, old, new: text.replace(js_text(old), js_text(new), 1),
    "replaceAll": lambda text, old, new: _replaced_all(text, js_text(old), js_text(new)),
    "slice": _slice,
    "split": _split,
    "startsWith": lambda text, start: text.startswith(js_text(start)),
    "substring": _substring,
}
_LIST_METHODS: dict[str, Callable[..., Any]] = {
    "concat": lambda items, *others: JsArray(
        [*items, *(entry for other in others for entry in (other if isinstance(other, list) else [other]))]
    ),
    "includes": lambda items, item: item in items,
    "indexOf": _index,
    "join": lambda items, separator=",": _joined(items, js_text(separator)),
    "reverse": lambda items: JsArray(reversed(items)),
    "slice": _slice,
    "toString": js_text,
}
_NUMBER_METHODS: dict[str, Callable[..., Any]] = {
    "toFixed": lambda number, places=0: f"{js_number_of(number):.{int(places)}f}",
    "toString": js_text,
}


def parse_json(text: Any) -> Any:
    """What a JSON text says; what is no text stays as it is.

    Raises:
        ValueError: the text is no JSON.
    """
    return as_js(json.loads(text)) if isinstance(text, str) else text
