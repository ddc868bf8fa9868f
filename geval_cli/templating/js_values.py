"""Values as templates of JavaScript see them: what is true, what is equal, how they are written and add up."""

import json
import math
import re
from collections.abc import Callable, Mapping
from operator import ge, gt, le, lt
from typing import Any

from jinja2 import ChainableUndefined, Undefined

from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.templating.js_text import js_string

JS_SPACE = " \t\n\r\v\f\u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""JavaScript's white space."""

MAX_SAFE_INTEGER = 2**53
"""Beyond it a number of JavaScript, which is a float, skips whole numbers, so nothing here is an int any more."""

# ECMAScript: keys that are array indexes come first in an object, in the order of numbers; 2**32 - 2 is the last.
_LAST_INDEX, _INDEX_DIGITS = 2**32 - 1, 10
_BASED_NUMBER = compile_later(r"0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+")
_DECIMAL_NUMBER = compile_later(r"[+-]?(Infinity|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)", re.ASCII)
_NOTHING = frozenset({"null", "undefined"})


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
    """JavaScript's undefined: printed as nothing, with members that are undefined too, equal to null."""

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, Undefined)

    __hash__ = Undefined.__hash__


class _NotANumber(float):
    """NaN, which counts as false in JavaScript, and as true in Python."""

    def __bool__(self) -> bool:
        return False


UNDEFINED = JsUndefined()
NAN = _NotANumber(math.nan)


def as_js(value: JsonValue) -> Any:
    """`value` with its lists and mappings as JavaScript has them."""
    if isinstance(value, Mapping):
        return js_object({key: as_js(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return JsArray(as_js(item) for item in value)
    return value


def js_object(members: Mapping[str, Any]) -> JsObject:
    """Return an object with its members in JavaScript's order: whole numbers first, by their size."""
    numbers = sorted((key for key in members if _is_array_index(key)), key=int)
    if not numbers:
        return JsObject(members)
    return JsObject({**{key: members[key] for key in numbers}, **members})


def _is_array_index(key: str) -> bool:
    is_number = key.isascii() and key.isdigit() and (key == "0" or key[0] != "0")
    return is_number and len(key) <= _INDEX_DIGITS and int(key) < _LAST_INDEX


def is_in_first_plane(text: str) -> bool:
    """Return whether every character is a single UTF-16 unit."""
    return text.isascii() or max(text, default="") <= "\uffff"


def js_length(text: str) -> int:
    """Return the length in UTF-16 units."""
    return len(text) if is_in_first_plane(text) else len(text.encode("utf-16-le", "surrogatepass")) // 2


def js_part(text: str, start: int, end: int) -> str:
    """Return the UTF-16 units from `start` up to `end`; half a character is written as the sign for that."""
    if is_in_first_plane(text):
        return text[start:end]
    return text.encode("utf-16-le", "surrogatepass")[2 * start : 2 * end].decode("utf-16-le", "replace")


def js_text(value: Any) -> str:
    """Return `value` as a template writes it."""
    if isinstance(value, Undefined):
        return ""
    if isinstance(value, list | tuple):
        return ",".join(js_text(item) for item in value)
    if callable(value):
        return ""
    return js_string(value)


def js_primitive_text(value: Any) -> str:
    """`String(value)`: as `js_text`, but null and undefined are written out."""
    if value is None:
        return "null"
    return "undefined" if isinstance(value, Undefined) else js_text(value)


def js_number_of(value: Any) -> float:
    """Return `value` as a number; NaN for a value that is no number."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float):
        return value
    if value is None:
        return 0
    if isinstance(value, Undefined | Mapping) or callable(value):
        return NAN
    text = js_text(value).strip(JS_SPACE)
    if not text:
        return 0
    based = _BASED_NUMBER.fullmatch(text)
    if based:
        return int(text, 0)
    found = _DECIMAL_NUMBER.fullmatch(text)
    if not found:
        return NAN
    number = float(text)
    return int(number) if number.is_integer() and abs(number) <= MAX_SAFE_INTEGER else number


def js_add(left: Any, right: Any) -> Any:
    """`left + right`: a sum of numbers, else texts one behind the other."""
    if all(value is None or isinstance(value, bool | int | float | Undefined) for value in (left, right)):
        return _rounded(js_number_of(left) + js_number_of(right))
    return js_primitive_text(left) + js_primitive_text(right)


def js_calculate(operator: str, left: Any, right: Any) -> Any:
    """`left operator right` for numbers and what can be read as one; NaN where that has no result."""
    if operator == "+":
        return js_add(left, right)
    first, second = js_number_of(left), js_number_of(right)
    try:
        return _rounded(_OPERATIONS[operator](first, second))
    except OverflowError:  # of a power of whole numbers
        return -math.inf if first < 0 and second % 2 else math.inf
    except (ZeroDivisionError, ValueError):
        return NAN


def _rounded(number: float) -> float:
    """Return a result as JavaScript has it: beyond 2**53 no number is exact."""
    if isinstance(number, int) and abs(number) > MAX_SAFE_INTEGER:
        try:
            return float(number)
        except OverflowError:
            return math.inf if number > 0 else -math.inf
    return NAN if math.isnan(number) else number


def _divided(first: float, second: float) -> float:
    if second != 0:
        return first / second
    if first == 0 or math.isnan(first):
        return NAN
    return math.copysign(math.inf, first) * math.copysign(1, second)


def _floor_divided(first: float, second: float) -> float:
    quotient = _divided(first, second)
    return math.floor(quotient) if math.isfinite(quotient) else quotient


def _power(first: float, second: float) -> float:
    if abs(first) == 1 and not math.isfinite(second):
        return NAN
    if first == 0 and second < 0:
        return math.inf
    return math.pow(first, second)


_OPERATIONS: dict[str, Callable[[float, float], float]] = {
    "-": lambda first, second: first - second,
    "*": lambda first, second: first * second,
    "/": _divided,
    "//": _floor_divided,
    "%": math.fmod,
    "**": _power,
}


def js_compare(left: Any, operator: str, right: Any) -> bool:
    """`left operator right`; `is` and `isnot` are `===` and `!==`."""
    match operator:
        case "eq" | "ne":
            return js_equal(left, right) is (operator == "eq")
        case "is" | "isnot":
            return js_same(left, right) is (operator == "is")
        case "in" | "notin":
            return _is_in(left, right) is (operator == "in")
    first, second = _primitive(left), _primitive(right)
    if isinstance(first, str) and isinstance(second, str):
        if not is_in_first_plane(first + second):  # texts are ordered by their UTF-16 units
            first, second = (text.encode("utf-16-be", "surrogatepass") for text in (first, second))
    else:
        first, second = js_number_of(first), js_number_of(second)
    return bool(_ORDERS[operator](first, second))


_ORDERS: dict[str, Callable[[Any, Any], bool]] = {"lt": lt, "lteq": le, "gt": gt, "gteq": ge}


def js_same(left: Any, right: Any) -> bool:
    """`left === right`: of one kind and equal; lists and objects only if they are the same one."""
    kind = kind_of(left)
    if kind != kind_of(right):
        return False
    return left is right if kind == "object" else kind in {"null", "undefined"} or bool(left == right)


def js_equal(left: Any, right: Any) -> bool:
    """`left == right`: null is undefined, and what is of two kinds is compared as numbers."""
    kinds = {kind_of(left), kind_of(right)}
    if kinds & _NOTHING or len(kinds) == 1:
        return kinds <= _NOTHING or js_same(left, right)
    if "object" in kinds:
        return js_equal(_primitive(left), _primitive(right))
    return bool(js_number_of(left) == js_number_of(right))


def kind_of(value: Any) -> str:
    """Return the type of a value, as `typeof` tells them apart, but for null, which has a word of its own."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "null" if value is None else "undefined" if isinstance(value, Undefined) else "object"


def _primitive(value: Any) -> Any:
    return js_text(value) if kind_of(value) == "object" else value


def _is_in(item: Any, container: Any) -> bool:
    if isinstance(container, str | Mapping):
        return js_primitive_text(item) in container
    return isinstance(container, list | tuple) and any(js_same(item, entry) for entry in container)


def parse_json(text: Any) -> Any:
    """Parse a JSON text; a value of another type stays as it is.

    Raises:
        ValueError: the text is no JSON.
    """
    return as_js(json.loads(text)) if isinstance(text, str) else text
