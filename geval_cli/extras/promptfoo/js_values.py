"""Values with JavaScript's behaviour in templates: truth, equality, arithmetic and members."""

import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from functools import partial
from operator import ge, gt, le, lt
from typing import Any

from jinja2 import ChainableUndefined, Undefined

from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.templating.js_text import js_string

JS_SPACE = " \t\n\r\v\f\u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""JavaScript's whitespace."""

MAX_SAFE_INTEGER = 2**53
"""Beyond this, JavaScript's numbers, which are floats, skip integers, so no int is used either."""

# ECMAScript: keys that are array indexes come first in an object, in the order of numbers; 2**32 - 2 is the last.
_LAST_INDEX, _INDEX_DIGITS = 2**32 - 1, 10
_BASED_NUMBER = compile_later(r"0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+")
_DECIMAL_NUMBER = compile_later(r"[+-]?(Infinity|(\d+(?:\.\d*)?|\.\d+)([eE][+-]?\d+)?)", re.ASCII)
_NOTHING = frozenset({"null", "undefined"})


class JsArray(list[Any]):
    """A list that is true even when it is empty, and whose text is its entries with commas between them."""

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return js_text(self)


class JsObject(dict[str, Any]):
    """A mapping that is true even when it is empty, and whose text is `[object Object]`."""

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return "[object Object]"


class JsUndefined(ChainableUndefined):
    """JavaScript's undefined: prints as nothing, equals null, and all its members are undefined too."""

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, Undefined)

    __hash__ = Undefined.__hash__


class _NotANumber(float):
    """NaN, which is false in JavaScript but true in Python."""

    def __bool__(self) -> bool:
        return False


UNDEFINED = JsUndefined()
NAN = _NotANumber(math.nan)


def as_js(value: JsonValue) -> Any:
    """Convert lists and mappings, at any depth, to their JavaScript counterparts."""
    if isinstance(value, Mapping):
        return js_object({key: as_js(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return JsArray(as_js(item) for item in value)
    return value


def js_object(members: Mapping[str, Any]) -> JsObject:
    """Return an object with its members in JavaScript's order: array indexes first, in ascending order."""
    numbers = sorted((key for key in members if _is_array_index(key)), key=int)
    if not numbers:
        return JsObject(members)
    return JsObject({**{key: members[key] for key in numbers}, **members})


def _is_array_index(key: str) -> bool:
    is_number = key.isascii() and key.isdigit() and (key == "0" or key[0] != "0")
    return is_number and len(key) <= _INDEX_DIGITS and int(key) < _LAST_INDEX


def is_in_first_plane(text: str) -> bool:
    """Return whether every character is a single UTF-16 code unit."""
    return text.isascii() or max(text, default="") <= "\uffff"


def js_length(text: str) -> int:
    """Return the length in UTF-16 code units."""
    return len(text) if is_in_first_plane(text) else len(text.encode("utf-16-le", "surrogatepass")) // 2


def js_part(text: str, start: int, end: int) -> str:
    """Return the UTF-16 code units from `start` to before `end`; half a surrogate pair becomes U+FFFD."""
    if is_in_first_plane(text):
        return text[start:end]
    return text.encode("utf-16-le", "surrogatepass")[2 * start : 2 * end].decode("utf-16-le", "replace")


def js_text(value: Any) -> str:
    """Return `value` as a template prints it."""
    if isinstance(value, Undefined):
        return ""
    if isinstance(value, list | tuple):
        return ",".join(js_text(item) for item in value)
    if callable(value):
        return ""
    return js_string(value)


def js_primitive_text(value: Any) -> str:
    """Return `String(value)`: like `js_text`, but null and undefined are spelled out."""
    if value is None:
        return "null"
    return "undefined" if isinstance(value, Undefined) else js_text(value)


def js_number_of(value: Any) -> float:
    """Convert `value` to a number as JavaScript does; NaN if that is impossible."""
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
    """Return `left + right`: the sum of numbers, otherwise the concatenated texts."""
    if all(value is None or isinstance(value, bool | int | float | Undefined) for value in (left, right)):
        return _rounded(js_number_of(left) + js_number_of(right))
    return js_primitive_text(left) + js_primitive_text(right)


def js_calculate(operator: str, left: Any, right: Any) -> Any:
    """Return `left operator right`, with operands converted to numbers; NaN if there is no result."""
    if operator == "+":
        return js_add(left, right)
    first, second = js_number_of(left), js_number_of(right)
    try:
        return _rounded(_OPERATIONS[operator](first, second))
    except OverflowError:  # from a power of integers
        return -math.inf if first < 0 and second % 2 else math.inf
    except (ZeroDivisionError, ValueError):
        return NAN


def _rounded(number: float) -> float:
    """Return a result as a JavaScript number: a whole number beyond 2**53 becomes a float."""
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
    """Return `left operator right`; `is` and `isnot` are `===` and `!==`."""
    match operator:
        case "eq" | "ne":
            return js_equal(left, right) is (operator == "eq")
        case "is" | "isnot":
            return js_same(left, right) is (operator == "is")
        case "in" | "notin":
            return _is_in(left, right) is (operator == "in")
    first, second = _primitive(left), _primitive(right)
    if isinstance(first, str) and isinstance(second, str):
        if not is_in_first_plane(first + second):  # text is ordered by UTF-16 code units
            first, second = (text.encode("utf-16-be", "surrogatepass") for text in (first, second))
    else:
        first, second = js_number_of(first), js_number_of(second)
    return bool(_ORDERS[operator](first, second))


_ORDERS: dict[str, Callable[[Any, Any], bool]] = {"lt": lt, "lteq": le, "gt": gt, "gteq": ge}


def js_same(left: Any, right: Any) -> bool:
    """Return `left === right`: same type and equal; for lists and objects, the same object."""
    kind = kind_of(left)
    if kind != kind_of(right):
        return False
    return left is right if kind == "object" else kind in {"null", "undefined"} or bool(left == right)


def js_equal(left: Any, right: Any) -> bool:
    """Return `left == right`: null equals undefined, and values of different types are compared as numbers."""
    kinds = {kind_of(left), kind_of(right)}
    if kinds & _NOTHING or len(kinds) == 1:
        return kinds <= _NOTHING or js_same(left, right)
    if "object" in kinds:
        return js_equal(_primitive(left), _primitive(right))
    return bool(js_number_of(left) == js_number_of(right))


def kind_of(value: Any) -> str:
    """Return the type of a value, similar to `typeof`: text, boolean, number, null, undefined or object."""
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
    """Parse JSON text; return a value of another type unchanged.

    Raises:
        ValueError: the text is not JSON.
    """
    return as_js(json.loads(text)) if isinstance(text, str) else text


# Limits on what a method may build, since a template may come from an untrusted config.
_MOST_REPEATED = 1_000_000
_MOST_ENTRIES = 100_000
_MOST_PLACES = 100  # ECMAScript's limit for `toFixed`
_NOT_FIXED = 1e21  # from here on `toFixed` writes exponents
_NUMERALS = "0123456789abcdefghijklmnopqrstuvwxyz"
# The largest float has 309 digits before the point, and up to 100 follow it; the default of 28 would round them.
_DIGITS = Context(prec=500)
_STANDS_FOR = compile_later(r"\$([$&`'])")


def js_member(value: Any, name: Any) -> Any:
    """Return a member of a JavaScript value: an entry, `length` or a method; undefined if it has no such member."""
    if isinstance(value, Mapping):
        return value.get(name if isinstance(name, str) else js_primitive_text(name), UNDEFINED)
    if isinstance(value, str | list):
        if name == "length":
            return js_length(value) if isinstance(value, str) else len(value)
        place = js_number_of(name) if _is_place(name) else -1
        if place >= 0:
            found = _part(value, int(place), int(place) + 1) if place == int(place) else ""
            return found[0] if len(found) else UNDEFINED
    method = _methods_of(value).get(name) if isinstance(name, str) else None
    return UNDEFINED if method is None else partial(method, value)


def _is_place(name: Any) -> bool:
    is_digits = isinstance(name, str) and name.isascii() and name.isdigit() and str(int(name)) == name
    return is_digits or (isinstance(name, int | float) and not isinstance(name, bool) and math.isfinite(name))


def _methods_of(value: Any) -> Mapping[str, Callable[..., Any]]:
    if isinstance(value, str):
        return _TEXT_METHODS
    return _LIST_METHODS if isinstance(value, list) else _NUMBER_METHODS if kind_of(value) == "number" else {}


def _part(value: Any, start: int, end: int) -> Any:
    return js_part(value, start, end) if isinstance(value, str) else JsArray(value[start:end])


def _place(value: Any, otherwise: int = 0) -> int:
    """Convert an argument to an integer as JavaScript does for indexes; NaN counts as 0."""
    number = otherwise if isinstance(value, Undefined) else js_number_of(value)
    # As JavaScript converts an index: NaN counts as 0.
    if math.isnan(number):
        return 0
    return int(number) if math.isfinite(number) else int(math.copysign(MAX_SAFE_INTEGER, number))


def _clamped(position: Any, length: int, otherwise: int = 0) -> int:
    place = _place(position, otherwise)
    return max(0, length + place) if place < 0 else min(place, length)


def _slice(value: Any, start: Any = 0, end: Any = UNDEFINED) -> Any:
    length = js_member(value, "length")
    return _part(value, _clamped(start, length), _clamped(end, length, length))


def _substring(text: str, start: Any = 0, end: Any = UNDEFINED) -> str:
    length = js_length(text)
    places = (_place(start), _place(end, length))
    first, last = sorted(min(max(place, 0), length) for place in places)
    return js_part(text, first, last)


def _substr(text: str, start: Any = 0, count: Any = UNDEFINED) -> str:
    length = js_length(text)
    first = _clamped(start, length)
    return js_part(text, first, first + max(0, _place(count, length)))


def _at(value: Any, place: Any = 0) -> Any:
    index = _place(place)
    length = js_member(value, "length")
    return js_member(value, index + length if index < 0 else index)


def _split(text: str, separator: Any = UNDEFINED, most: Any = UNDEFINED) -> JsArray:
    if isinstance(separator, Undefined):
        parts = [text]
    elif separator == "":
        parts = [js_part(text, place, place + 1) for place in range(js_length(text))]
    else:
        parts = text.split(js_primitive_text(separator))
    return JsArray(parts[: _place(most, len(parts))])


def _index(value: Any, item: Any = UNDEFINED, start: Any = 0) -> int:
    length = js_member(value, "length")
    first = min(max(_place(start), 0), length) if isinstance(value, str) else _clamped(start, length)
    if isinstance(value, str):
        found = _part(value, first, length).find(js_primitive_text(item))
        return -1 if found < 0 else first + js_length(_part(value, first, length)[:found])
    return next((place for place in range(first, length) if js_same(value[place], item)), -1)


def _last_index(value: Any, item: Any = UNDEFINED) -> int:
    if isinstance(value, str):
        found = value.rfind(js_primitive_text(item))
        return -1 if found < 0 else js_length(value[:found])
    return next((place for place in reversed(range(len(value))) if js_same(value[place], item)), -1)


def _includes(items: list[Any], item: Any = UNDEFINED, start: Any = 0) -> bool:
    found = items[_clamped(start, len(items)) :]
    return any(js_same(entry, item) or (entry != entry and item != item) for entry in found)  # noqa: PLR0124


def _repeated(text: str, count: Any = 0) -> str:
    times = _place(count)
    if times < 0:
        raise ValueError("the repeat count must not be negative")
    if len(text) * times > _MOST_REPEATED:
        raise ValueError(f"repeated text may have at most {_MOST_REPEATED:,} characters")
    return text * times


def _replaced(text: str, old: Any = UNDEFINED, new: Any = UNDEFINED) -> str:
    before, found, after = text.partition(js_primitive_text(old))
    is_there = found or not js_primitive_text(old)
    return before + _inserted(js_primitive_text(new), found, before, after) + after if is_there else text


def _replaced_all(text: str, old: Any = UNDEFINED, new: Any = UNDEFINED) -> str:
    searched, given = js_primitive_text(old), js_primitive_text(new)
    if len(text) + text.count(searched) * len(given) > _MOST_REPEATED:
        raise ValueError(f"replaced text may have at most {_MOST_REPEATED:,} characters")
    return text.replace(searched, given)


def _inserted(new: str, found: str, before: str, after: str) -> str:
    """Return the replacement of `found`, with `$&`, `` $` ``, `$'` and `$$` expanded."""
    if "$" not in new:
        return new
    stands_for = {"$": "$", "&": found, "`": before, "'": after}
    made = _STANDS_FOR.sub(lambda sign: stands_for[sign[1]], new)
    if len(made) > _MOST_REPEATED:
        raise ValueError(f"replaced text may have at most {_MOST_REPEATED:,} characters")
    return made


def _concatenated(items: list[Any], *others: Any) -> JsArray:
    made = JsArray(items)
    for other in others:
        made.extend(other if isinstance(other, list) else [other])
    if len(made) > _MOST_ENTRIES:
        raise ValueError(f"a list may have at most {_MOST_ENTRIES:,} entries")
    return made


def _pushed(items: list[Any], *others: Any) -> int:
    items.extend(others)  # safe, since a list belongs to one rendering
    return len(items)


def _reversed(items: list[Any]) -> list[Any]:
    items.reverse()
    return items


def _joined(items: list[Any], separator: Any = UNDEFINED) -> str:
    between = "," if isinstance(separator, Undefined) else js_primitive_text(separator)
    if len(items) * len(between) > _MOST_REPEATED:
        raise ValueError(f"joined text may have at most {_MOST_REPEATED:,} characters")
    return between.join(map(js_text, items))


def _padding(text: str, width: Any, fill: Any) -> str:
    missing = max(0, _place(width) - js_length(text))
    sign = " " if isinstance(fill, Undefined) else js_primitive_text(fill)
    return js_part(_repeated(sign, missing), 0, missing)


def _fixed(number: float, places: Any = 0) -> str:
    digits = _place(places)
    if not 0 <= digits <= _MOST_PLACES:
        raise ValueError(f"toFixed takes 0 to {_MOST_PLACES} places")
    if not math.isfinite(number) or abs(number) >= _NOT_FIXED:
        return js_text(number)
    # The float's exact value, not its shortest notation; halves are rounded away from zero.
    exact = Decimal(number).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP, _DIGITS)
    return f"{exact if exact or number < 0 else abs(exact):f}" if number else f"{0:.{digits}f}"


def _in_base(number: float, base: Any = 10) -> str:
    radix = _place(base, 10)
    if radix == 10 or not isinstance(number, int):  # noqa: PLR2004
        return js_text(number)
    if not 2 <= radix <= len(_NUMERALS):  # noqa: PLR2004
        raise ValueError(f"toString takes a base of 2 to {len(_NUMERALS)}")
    left, digits = abs(number), ""
    while left or not digits:
        left, digit = divmod(left, radix)
        digits = _NUMERALS[digit] + digits
    return "-" * (number < 0) + digits


def _for_people(number: float) -> str:
    """Return a number in the format of en-US: 1,234.568."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "∞" if number > 0 else "-∞"
    rounded = Decimal(number).quantize(
        Decimal("0.001"), ROUND_HALF_EVEN if isinstance(number, int) else ROUND_HALF_UP, _DIGITS
    )
    whole, _, fraction = f"{rounded:,f}".partition(".")
    fraction = fraction.rstrip("0")
    return f"{whole}.{fraction}" if fraction else whole


_TEXT_METHODS: dict[str, Callable[..., Any]] = {
    "toUpperCase": str.upper,
    "toLowerCase": str.lower,
    "toLocaleUpperCase": lambda text, *locales: text.upper(),
    "toLocaleLowerCase": lambda text, *locales: text.lower(),
    "trim": lambda text: text.strip(JS_SPACE),
    "trimStart": lambda text: text.lstrip(JS_SPACE),
    "trimEnd": lambda text: text.rstrip(JS_SPACE),
    "toString": str,
    "valueOf": str,
    "at": _at,
    "charAt": lambda text, place=0: (
        js_part(text, _place(place), _place(place) + 1) if _place(place) >= 0 else ""
    ),
    "concat": lambda text, *others: text + "".join(map(js_primitive_text, others)),
    "endsWith": lambda text, end=UNDEFINED: text.endswith(js_primitive_text(end)),
    "includes": lambda text, part=UNDEFINED, start=0: _index(text, part, start) >= 0,
    "indexOf": _index,
    "lastIndexOf": _last_index,
    "padEnd": lambda text, width=0, fill=UNDEFINED: text + _padding(text, width, fill),
    "padStart": lambda text, width=0, fill=UNDEFINED: _padding(text, width, fill) + text,
    "repeat": _repeated,
    "replace": _replaced,
    "replaceAll": _replaced_all,
    "slice": _slice,
    "split": _split,
    "startsWith": lambda text, part=UNDEFINED, start=0: _slice(text, max(0, _place(start))).startswith(
        js_primitive_text(part)
    ),
    "substr": _substr,
    "substring": _substring,
}

_LIST_METHODS: dict[str, Callable[..., Any]] = {
    "at": _at,
    "concat": _concatenated,
    "includes": _includes,
    "indexOf": _index,
    "join": _joined,
    "lastIndexOf": _last_index,
    "pop": lambda items: items.pop() if len(items) else UNDEFINED,
    "push": _pushed,
    "reverse": _reversed,
    "shift": lambda items: items.pop(0) if len(items) else UNDEFINED,
    "slice": _slice,
    "toString": js_text,
}

_NUMBER_METHODS: dict[str, Callable[..., Any]] = {
    "toFixed": _fixed,
    "toLocaleString": lambda number, *locales: _for_people(number),
    "toString": _in_base,
    "valueOf": lambda number: number,
}
