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

from geval_cli.config.promptfoo.js_text import js_json
from geval_cli.templating.js_values import (
    JsArray,
    JsObject,
    js_compare,
    js_member,
    js_number_of,
    js_text,
    parse_json,
)

_UNRESERVED = "!'()*~-_."  # what encodeURIComponent leaves as it is
_TAG = re.compile(r"<[^>]*>")
_DECIMAL = 10
_WORD = re.compile(r"\w+", re.ASCII)


def _default(value: Any, fallback: Any = "", or_false: Any = False) -> Any:
    if or_false:
        return value or fallback
    return fallback if isinstance(value, Undefined) else value


def _dump(value: Any, indent: Any = 0) -> str:
    return "" if isinstance(value, Undefined) else js_json(value, int(js_number_of(indent)))


def _length(value: Any) -> int | None:
    if isinstance(value, bool | int | float):
        return None
    return 0 if value is None or isinstance(value, Undefined) else len(value)


def _join(value: Any, separator: Any = "", attribute: Any = None) -> str:
    items = _items(value)
    if attribute is not None:
        items = [js_member(item, attribute) for item in items]
    return js_text(separator).join(map(js_text, items))


def _replace(value: Any, old: Any, new: Any = "", most: Any = None) -> Any:
    if value is None or isinstance(value, Undefined | list | dict):
        return value
    text, count = js_text(value), -1 if most is None else int(most)
    return text.replace(js_text(old), js_text(new), count)


def _first(value: Any) -> Any:
    items = _items(value)
    return items[0] if items else None


def _last(value: Any) -> Any:
    items = _items(value)
    return items[-1] if items else None


def _list(value: Any) -> JsArray:
    if isinstance(value, Mapping):
        return JsArray(JsObject(key=key, value=item) for key, item in value.items())
    return JsArray(_items(value))


def _reverse(value: Any) -> Any:
    return js_text(value)[::-1] if isinstance(value, str) else JsArray(reversed(_items(value)))


def _round(value: Any, places: Any = 0, method: Any = None) -> float:
    factor = 10 ** int(js_number_of(places))
    number = js_number_of(value) * factor
    if math.isnan(number):
        return math.nan
    # Halves go up, as in JavaScript, also below zero.
    whole = {"ceil": math.ceil, "floor": math.floor}.get(js_text(method), lambda x: math.floor(x + 0.5))(
        number
    )
    return float(whole / factor)


def _sort(value: Any, reverse: Any = False, case_sensitive: Any = False, attribute: Any = None) -> JsArray:
    def key_of(item: Any) -> Any:
        found = item if attribute is None else js_member(item, attribute)
        return found.lower() if isinstance(found, str) and not case_sensitive else found

    def order(left: Any, right: Any) -> int:
        first, second = key_of(left), key_of(right)
        return -1 if js_compare(first, "lt", second) else int(js_compare(first, "gt", second))

    return JsArray(sorted(_items(value), key=cmp_to_key(order), reverse=bool(reverse)))


def _dictsort(value: Any, case_sensitive: Any = False, by: Any = "key") -> JsArray:
    position = 1 if js_text(by) == "value" else 0
    pairs = [JsArray([key, item]) for key, item in (value.items() if isinstance(value, Mapping) else ())]
    return JsArray(_sort(pairs, False, case_sensitive, position))


def _sum(value: Any, attribute: Any = None, start: Any = 0) -> Any:
    items = _items(value) if attribute is None else [js_member(item, attribute) for item in _items(value)]
    return sum(map(js_number_of, items), js_number_of(start))


def _groupby(value: Any, attribute: Any) -> JsObject:
    groups: dict[str, JsArray] = {}
    for item in _items(value):
        groups.setdefault(js_text(js_member(item, attribute)), JsArray()).append(item)
    return JsObject(groups)


def _batch(value: Any, count: Any, fill: Any = None) -> JsArray:
    items, size = _items(value), max(1, int(js_number_of(count)))
    rows = [JsArray(items[start : start + size]) for start in range(0, len(items), size)]
    if rows and fill is not None:
        rows[-1].extend([fill] * (size - len(rows[-1])))
    return JsArray(rows)


def _slice(value: Any, count: Any, fill: Any = None) -> JsArray:
    items, slices = _items(value), max(1, int(js_number_of(count)))
    size, extra = divmod(len(items), slices)
    found, start = JsArray(), 0
    for index in range(slices):
        end = start + size + (index < extra)
        part = JsArray(items[start:end])
        if fill is not None and index >= extra:
            part.append(fill)
        found.append(part)
        start = end
    return found


def _truncate(value: Any, length: Any = 255, kill_words: Any = False, end: Any = "...") -> str:
    text, most = js_text(value), int(js_number_of(length))
    if len(text) <= most:
        return text
    cut = text[:most]
    if not kill_words:
        space = text.rfind(" ", 0, most + 1)
        cut = text[: space if space != -1 else most]
    return cut + js_text(end)


def _indent(value: Any, width: Any = 4, first: Any = False) -> str:
    step, text = " " * int(js_number_of(width)), js_text(value)
    lines = text.split("\n")
    return "\n".join(step + line if index or first else line for index, line in enumerate(lines))


def _title(value: Any) -> str:
    return " ".join(map(_capitalize, js_text(value).split(" ")))


def _capitalize(value: Any) -> str:
    text = js_text(value).lower()
    return text[:1].upper() + text[1:]


def _center(value: Any, width: Any = 80) -> str:
    text, size = js_text(value), int(js_number_of(width))
    if len(text) >= size:
        return text
    spaces = size - len(text)
    return " " * (spaces // 2 - spaces % 2) + text + " " * (spaces // 2)


def _urlencode(value: Any) -> str:
    if isinstance(value, Mapping):
        return "&".join(f"{_encoded(key)}={_encoded(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "&".join(f"{_encoded(pair[0])}={_encoded(pair[1])}" for pair in value)
    return _encoded(value)


def _encoded(value: Any) -> str:
    return quote(js_text(value), safe=_UNRESERVED)


def _escape(value: Any) -> str:
    return html.escape(js_text(value), quote=False).replace('"', "&quot;").replace("'", "&#39;")


def _striptags(value: Any, keep_breaks: Any = False) -> str:
    text = _TAG.sub("", js_text(value)).strip()
    if keep_breaks:
        lines = [re.sub(r"[ \t]+", " ", line).strip() for line in text.split("\n")]
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
    return re.sub(r"\s+", " ", text)


def _int(value: Any, fallback: Any = 0, base: Any = 10) -> Any:
    found = re.match(r"\s*[-+]?[0-9a-zA-Z]+" if base != _DECIMAL else r"\s*[-+]?\d+", js_text(value))
    try:
        return int(found[0], int(base)) if found else fallback
    except ValueError:
        return fallback


def _float(value: Any, fallback: Any = 0) -> Any:
    found = re.match(r"\s*[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", js_text(value))
    return float(found[0]) if found else fallback


def _select(value: Any, keep: bool, test: Any = "truthy", argument: Any = None) -> JsArray:
    check = TESTS.get(js_text(test), TESTS["truthy"])
    return JsArray(
        item
        for item in _items(value)
        if bool(check(item) if argument is None else check(item, argument)) is keep
    )


def _select_by(value: Any, attribute: Any, keep: bool) -> JsArray:
    return JsArray(item for item in _items(value) if bool(js_member(item, attribute)) is keep)


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
    "lower": lambda value: js_text(value).lower(),
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
    "trim": lambda value: js_text(value).strip(),
    "truncate": _truncate,
    "upper": lambda value: js_text(value).upper(),
    "urlencode": _urlencode,
    "urlize": js_text,
    "wordcount": lambda value: len(_WORD.findall(js_text(value))) or None,
}
"""All that a template may use; Jinja2's own filters are not there, since promptfoo does not have them."""

TESTS: dict[str, Callable[..., Any]] = {
    "callable": callable,
    "defined": lambda value: not isinstance(value, Undefined),
    "divisibleby": lambda value, by: js_number_of(value) % js_number_of(by) == 0,
    "eq": lambda value, other: value == other,
    "equalto": lambda value, other: value == other,
    "even": lambda value: js_number_of(value) % 2 == 0,
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
    "ne": lambda value, other: value != other,
    "none": lambda value: value is None,
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "odd": lambda value: js_number_of(value) % 2 == 1,
    "sameas": lambda value, other: value is other or value == other,
    "string": lambda value: isinstance(value, str),
    "truthy": bool,
    "undefined": lambda value: isinstance(value, Undefined),
    "upper": lambda value: js_text(value).upper() == value,
}
