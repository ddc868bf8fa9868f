"""Numbers as the `value` of assertions on text: they are compared as JavaScript writes them."""

from geval_cli.config.promptfoo.js_text import js_number
from geval_cli.records import JsonValue

_ON_TEXT = frozenset(
    {
        "contains",
        "contains-all",
        "contains-any",
        "ends-with",
        "equals",
        "icontains",
        "icontains-all",
        "icontains-any",
        "regex",
        "starts-with",
    }
)


def with_written_numbers(value: JsonValue) -> JsonValue:
    """A list of assertions, those in groups too, with `1.0` as the text `1`."""
    if not isinstance(value, list):
        return value
    return [_written(item) if isinstance(item, dict) else item for item in value]


def _written(assertion: dict[str, JsonValue]) -> dict[str, JsonValue]:
    kind, found = assertion.get("type"), dict(assertion)
    if isinstance(kind, str) and kind.removeprefix("not-") in _ON_TEXT:
        found["value"] = _text(assertion.get("value"), in_list=not kind.endswith("equals"))
    if "assert" in found:
        found["assert"] = with_written_numbers(found["assert"])
    return {key: entry for key, entry in found.items() if key in assertion}


def _text(value: JsonValue, *, in_list: bool) -> JsonValue:
    if isinstance(value, list) and in_list:
        return [_text(item, in_list=False) for item in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return js_number(value) if is_number else value
