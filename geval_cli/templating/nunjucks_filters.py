"""The filters and tests of nunjucks where Jinja2 lacks them or means something else by their names."""

import html
import math
import random
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cmp_to_key
from typing import Any
from urllib.parse import quote

from jinja2 import Undefined

from geval_cli.patterns import compile_later
from geval_cli.templating.js_members import js_member
from geval_cli.templating.js_text import js_json
from geval_cli.templating.js_values import (
    JS_SPACE,
    NAN,
    UNDEFINED,
    JsArray,
    JsObject,
    js_add,
    js_calculate,
    js_compare,
    js_length,
    js_number_of,
    js_object,
    js_part,
    js_primitive_text,
    js_same,
    js_text,
    parse_json,
)

_UNRESERVED = "!'()*~-_."  # what encodeURIComponent leaves as it is
_TAG = compile_later(r"</?[a-z][a-z0-9]*\b[^>]*>|<!--.*?-->", re.IGNORECASE | re.DOTALL | re.ASCII)
_WORD = compile_later(r"\w+", re.ASCII)
_FLOAT = compile_later(r"[-+]?(?:Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)", re.ASCII)
_LINE_EDGES = compile_later(r"^ +| +$", re.MULTILINE)
_HIGHEST_BASE = 36
_HEX = 16
_DEFAULT_WIDTH, _DEFAULT_LENGTH, _DEFAULT_INDENT = 80, 255, 4
_MOST_INDENT = 10  # of JSON

_SURROUNDED = compile_later(r"(?P<before>\(|<|&lt;)?(?P<word>.*?)(?P<after>\.|,|\)|&gt;)?", re.DOTALL)
_HTTP_ADDRESS = compile_later(r"https?://.*")
_MAIL_ADDRESS = compile_later(
    r"[\w.!#$%&'*+\-/=?^`{|}~]+@[a-z\d\-]+(?:\.[a-z\d\-]+)+", re.IGNORECASE | re.ASCII
)
_COMMON_DOMAIN = compile_later(r"\.(?:org|net|com)(?::|/|$)")


def _is_nothing(value: Any) -> bool:
    return value is None or value is False or isinstance(value, Undefined)


def _text(value: Any) -> str:
    """Return a value as the text that filters work on: empty for null, undefined and false."""
    return "" if _is_nothing(value) else js_text(value)


def _whole(value: Any, otherwise: int) -> int:
    """Return a whole number; `otherwise` for 0 and for values that are no number."""
    number = js_number_of(value)
    return int(number) or otherwise if math.isfinite(number) else otherwise


def _default(value: Any, fallback: Any = UNDEFINED, or_false: Any = False) -> Any:
    if or_false:
        return value or fallback
    return fallback if isinstance(value, Undefined) else value


def _dump(value: Any, indent: Any = 0) -> Any:
    if isinstance(value, Undefined) or callable(value):
        return UNDEFINED
    if isinstance(indent, str):
        return js_json(_without_undefined(value), indent[:_MOST_INDENT])
    number = js_number_of(indent)
    return js_json(_without_undefined(value), min(int(number), _MOST_INDENT) if number > 0 else 0)


def _without_undefined(value: Any) -> Any:
    """As JSON has it: members that are undefined are left out, entries that are become null."""
    if isinstance(value, Mapping):
        return {key: _without_undefined(item) for key, item in value.items() if not _is_no_json(item)}
    if isinstance(value, list):
        return [None if _is_no_json(item) else _without_undefined(item) for item in value]
    return value


def _is_no_json(value: Any) -> bool:
    return isinstance(value, Undefined) or callable(value)


def _length(value: Any) -> Any:
    if _is_nothing(value):
        return 0
    return len(value) if isinstance(value, Mapping) else js_member(value, "length")


def _join(value: Any, separator: Any = "", attribute: Any = None) -> str:
    if isinstance(value, str):
        return value  # an error there; the letters one by one are what nobody means
    items = _items(value)
    if attribute:
        items = [] if isinstance(value, Mapping) else [js_member(item, attribute) for item in items]
    return (js_primitive_text(separator) if separator else "").join(map(js_text, items))


def _replace(value: Any, old: Any, new: Any = UNDEFINED, most: Any = UNDEFINED) -> Any:
    if not _is_text_or_number(value) or not _is_text_or_number(old):
        return value
    text, searched, given = js_text(value), js_text(old), js_primitive_text(new)
    if not searched:
        return given + given.join(text) + given
    count = -1 if isinstance(most, Undefined) else int(js_number_of(most))
    return text.replace(searched, given, count)


def _is_text_or_number(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _first(value: Any) -> Any:
    return js_member(value, 0)


def _last(value: Any) -> Any:
    return js_member(value, js_member(value, "length") - 1) if isinstance(value, str | list) else UNDEFINED


def _list(value: Any) -> JsArray:
    if isinstance(value, Mapping):
        return JsArray(JsObject(key=key, value=item) for key, item in value.items())
    return JsArray(_items(value))


def _reverse(value: Any) -> Any:
    if isinstance(value, str):
        return value[::-1]
    return JsArray(reversed(_entries(value)))


def _round(value: Any, places: Any = 0, method: Any = None) -> float:
    factor = 10 ** _whole(places, 0)
    number = js_number_of(value) * factor
    if not math.isfinite(number):
        return NAN if math.isnan(number) else number
    # Halves go up, as in JavaScript, also below zero.
    whole = {"ceil": math.ceil, "floor": math.floor}.get(js_text(method), lambda x: math.floor(x + 0.5))(
        number
    )
    return float(whole / factor)


def _sort(value: Any, reverse: Any = False, case_sensitive: Any = False, attribute: Any = None) -> JsArray:
    def key_of(item: Any) -> Any:
        for name in js_text(attribute).split(".") if attribute else ():
            item = js_member(item, name)
        return item

    def order(left: Any, right: Any) -> int:
        first, second = key_of(left), key_of(right)
        if not case_sensitive and isinstance(first, str) and isinstance(second, str):
            first, second = first.lower(), second.lower()
        above = js_compare(first, "gt", second) - js_compare(first, "lt", second)
        return -above if reverse else above

    items = _entries(value)
    there = [item for item in items if not isinstance(item, Undefined)]
    return JsArray(sorted(there, key=cmp_to_key(order)) + [UNDEFINED] * (len(items) - len(there)))


def _dictsort(value: Any, case_sensitive: Any = False, by: Any = "key") -> JsArray:
    position = 1 if js_text(by) == "value" else 0

    def order(left: JsArray, right: JsArray) -> int:
        first, second = left[position], right[position]
        if not case_sensitive:
            first, second = (item.upper() if isinstance(item, str) else item for item in (first, second))
        return 1 if js_compare(first, "gt", second) else -(not js_same(first, second))

    pairs = [JsArray([key, item]) for key, item in (value.items() if isinstance(value, Mapping) else ())]
    return JsArray(sorted(pairs, key=cmp_to_key(order)))


def _sum(value: Any, attribute: Any = None, start: Any = 0) -> Any:
    total: Any = 0
    for item in _entries(value):
        total = js_add(total, js_member(item, attribute) if attribute else item)
    return js_add(start, total)


def _groupby(value: Any, attribute: Any) -> JsObject:
    groups: dict[str, JsArray] = {}
    for item in _entries(value):
        found = item
        for name in js_text(attribute).split("."):
            found = js_member(found, name)
        groups.setdefault(js_primitive_text(found), JsArray()).append(item)
    return js_object(groups)


def _batch(value: Any, count: Any, fill: Any = None) -> JsArray:
    items = _entries(value)
    size = max(1, _whole(count, 1))
    rows = [JsArray(items[start : start + size]) for start in range(0, len(items), size)]
    if rows and fill:
        rows[-1].extend([fill] * (size - len(rows[-1])))
    return JsArray(rows)


def _slice(value: Any, count: Any, fill: Any = None) -> JsArray:
    items, slices = _items(value), max(1, _whole(count, 1))
    size, extra = divmod(len(items), slices)
    found, start = JsArray(), 0
    for index in range(slices):
        end = start + size + (index < extra)
        part = JsArray(items[start:end])
        if fill and index >= extra:
            part.append(fill)
        found.append("".join(part) if isinstance(value, str) else part)
        start = end
    return found


def _truncate(value: Any, length: Any = 0, kill_words: Any = False, end: Any = None) -> Any:
    if _is_text_or_number(value) and not isinstance(value, str):
        return value
    text, most = _text(value), _whole(length, _DEFAULT_LENGTH)
    if js_length(text) <= most:
        return text
    cut = js_part(text, 0, most)
    if not kill_words:
        # A space right behind the cut counts too.
        space = js_part(text, 0, most + 1).rfind(" ")
        cut = cut if space < 0 else cut[:space]
    return cut + ("..." if end is None or isinstance(end, Undefined) else js_text(end))


def _indent(value: Any, width: Any = 0, first: Any = False) -> str:
    step, text = " " * _whole(width, _DEFAULT_INDENT), _text(value)
    lines = text.split("\n") if text else []
    return "\n".join(step + line if index or first else line for index, line in enumerate(lines))


def _title(value: Any) -> str:
    return " ".join(map(_capitalize, _text(value).split(" ")))


def _capitalize(value: Any) -> str:
    text = _text(value).lower()
    return text[:1].upper() + text[1:]


def _center(value: Any, width: Any = 0) -> str:
    text, size = _text(value), _whole(width, _DEFAULT_WIDTH)
    spaces = size - (len(value) if isinstance(value, list) else js_length(text))
    if spaces <= 0 or isinstance(value, int | float):
        return text
    before = math.ceil(spaces / 2 - spaces % 2)
    return " " * before + text + " " * math.ceil(spaces / 2)


def _urlencode(value: Any) -> str:
    if isinstance(value, Mapping):
        return "&".join(f"{_encoded(key)}={_encoded(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "&".join(f"{_encoded(js_member(pair, 0))}={_encoded(js_member(pair, 1))}" for pair in value)
    return _encoded(value) if isinstance(value, str) else ""


def _encoded(value: Any) -> str:
    return quote(js_primitive_text(value), safe=_UNRESERVED)


def _escape(value: Any) -> str:
    text = html.escape(js_text(value), quote=False).replace('"', "&quot;").replace("'", "&#39;")
    return text.replace("\\", "&#92;").replace("`", "&#96;")


def _striptags(value: Any, keep_breaks: Any = False) -> str:
    text = _TAG.sub("", _text(value)).strip(JS_SPACE)
    if keep_breaks:
        text = re.sub(" +", " ", _LINE_EDGES.sub("", text)).replace("\r\n", "\n")
        return re.sub(r"\n{3,}", "\n\n", text)
    return re.sub(f"[{JS_SPACE}]+", " ", text)


def _int(value: Any, fallback: Any = UNDEFINED, base: Any = 10) -> Any:
    """Return the whole number that a text begins with."""
    text, radix = js_primitive_text(value).strip(JS_SPACE), _whole(base, 10)
    sign, digits = ("-" if text.startswith("-") else ""), text.lstrip("+-")
    if len(text) - len(digits) > 1 or not 1 < radix <= _HIGHEST_BASE:
        return fallback
    if radix in {10, _HEX} and digits[:2] in {"0x", "0X"}:
        digits, radix = digits[2:], _HEX if base is UNDEFINED or radix == _HEX else radix
    count = next((place for place, sign in enumerate(digits) if not _is_digit(sign, radix)), len(digits))
    return int(sign + digits[:count], radix) if count else fallback


def _is_digit(sign: str, base: int) -> bool:
    return sign.isascii() and sign.isalnum() and int(sign, _HIGHEST_BASE) < base


def _float(value: Any, fallback: Any = UNDEFINED) -> Any:
    found = _FLOAT.match(js_primitive_text(value).strip(JS_SPACE))
    return float(found[0]) if found else fallback


def _select(value: Any, keep: bool, test: Any = "truthy", argument: Any = None) -> JsArray:
    check = TESTS.get(js_text(test), TESTS["truthy"])
    return JsArray(
        item
        for item in _entries(value)
        if bool(check(item) if argument is None else check(item, argument)) is keep
    )


def _select_by(value: Any, attribute: Any, keep: bool) -> JsArray:
    return JsArray(item for item in _entries(value) if bool(js_member(item, attribute)) is keep)


def _urlize(value: Any, length: Any = UNDEFINED, no_follow: Any = False) -> str:
    most = js_number_of(length)
    rel = ' rel="nofollow"' if no_follow is True else ""
    shown = len(js_text(value)) if not math.isfinite(most) else max(0, int(most))
    return "".join(_linked(word, shown, rel) for word in re.split(r"(\s+)", js_text(value)))


def _linked(word: str, shown: int, rel: str) -> str:
    """Return a word as a link where it is an address; the sign around an address is dropped, as nunjucks does."""
    found = _SURROUNDED.fullmatch(word)
    address = found["word"] if found else word
    if _HTTP_ADDRESS.fullmatch(address):
        return f'<a href="{address}"{rel}>{address[:shown]}</a>'
    if address.startswith("www."):
        return f'<a href="http://{address}"{rel}>{address[:shown]}</a>'
    if _MAIL_ADDRESS.fullmatch(address):
        return f'<a href="mailto:{address}">{address}</a>'
    if _COMMON_DOMAIN.search(address):
        return f'<a href="http://{address}"{rel}>{address[:shown]}</a>'
    return word


def _entries(value: Any) -> list[Any]:
    """Return what filters of lists work on; nunjucks gives them nothing of an object."""
    return [] if isinstance(value, Mapping) else _items(value)


def _items(value: Any) -> list[Any]:
    if value is None or isinstance(value, Undefined | bool | int | float):
        return []
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, Iterable) else []


FILTERS: dict[str, Callable[..., Any]] = {
    "abs": lambda value: abs(js_number_of(value)),
    "batch": _batch,
    "capitalize": _capitalize,
    "center": _center,
    "d": _default,
    "default": _default,
    "dictsort": _dictsort,
    "dump": _dump,
    "e": _escape,
    "escape": _escape,
    "first": _first,
    "float": _float,
    "forceescape": _escape,
    "groupby": _groupby,
    "indent": _indent,
    "int": _int,
    "join": _join,
    "last": _last,
    "length": _length,
    "list": _list,
    "load": parse_json,
    "lower": lambda value: _text(value).lower(),
    "nl2br": lambda value: re.sub(r"\r\n|\n", "<br />\n", js_text(value)),
    "random": lambda value: random.choice(_items(value)) if _items(value) else None,
    "reject": lambda value, test="truthy", argument=None: _select(value, False, test, argument),
    "rejectattr": lambda value, attribute: _select_by(value, attribute, False),
    "replace": _replace,
    "reverse": _reverse,
    "round": _round,
    "safe": lambda value: "" if value is None or isinstance(value, Undefined) else js_text(value),
    "select": lambda value, test="truthy", argument=None: _select(value, True, test, argument),
    "selectattr": lambda value, attribute: _select_by(value, attribute, True),
    "slice": _slice,
    "sort": _sort,
    "string": js_text,
    "striptags": _striptags,
    "sum": _sum,
    "title": _title,
    "trim": lambda value: js_text(value).strip(JS_SPACE),
    "truncate": _truncate,
    "upper": lambda value: _text(value).upper(),
    "urlencode": _urlencode,
    "urlize": _urlize,
    "wordcount": lambda value: len(_WORD.findall(_text(value))) or None,
}
"""All that a template may use; Jinja2's own filters are not there, since promptfoo does not have them."""

TESTS: dict[str, Callable[..., Any]] = {
    "callable": lambda value: callable(value) and not isinstance(value, Undefined),
    "defined": lambda value: not isinstance(value, Undefined),
    "divisibleby": lambda value, by: js_calculate("%", value, by) == 0,
    "eq": js_same,
    "equalto": js_same,
    "even": lambda value: js_calculate("%", value, 2) == 0,
    "falsy": lambda value: not value,
    "ge": lambda value, other: js_compare(value, "gteq", other),
    "greaterthan": lambda value, other: js_compare(value, "gt", other),
    "gt": lambda value, other: js_compare(value, "gt", other),
    "iterable": lambda value: isinstance(value, str | list),
    "le": lambda value, other: js_compare(value, "lteq", other),
    "lessthan": lambda value, other: js_compare(value, "lt", other),
    "lower": lambda value: js_text(value).lower() == value,
    "lt": lambda value, other: js_compare(value, "lt", other),
    "mapping": lambda value: isinstance(value, dict),
    "ne": lambda value, other: not js_same(value, other),
    "none": lambda value: value is None,
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "odd": lambda value: js_calculate("%", value, 2) == 1,
    "sameas": js_same,
    "string": lambda value: isinstance(value, str),
    "truthy": bool,
    "undefined": lambda value: isinstance(value, Undefined),
    "upper": lambda value: js_text(value).upper() == value,
}
