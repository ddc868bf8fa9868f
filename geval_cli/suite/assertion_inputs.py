"""Values of an assertion's keys as inputs show them, and back: what is shown and not changed reads as it was."""

import math
import re
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from geval_cli.records import JsonValue
from geval_cli.source.edit.yaml_style import write_yaml
from geval_cli.source.yaml_source import read_yaml
from geval_cli.suite.draft_fields import are_lines, read_lines

InputKind = Literal[
    "text", "texts", "number", "numbers", "flag", "choice", "pairs", "checklist", "assertions", "yaml"
]
"""How a key is shown.

texts: one a line. numbers: separated by commas. pairs: names, each with a text. checklist: a list of mappings with the
keys of `CHECKLIST_KEYS`. assertions: those of a set, which have forms of their own.
"""

CHECKLIST_KEYS: Mapping[str, JsonValue] = {"item": "", "weight": "", "required": False, "evidence": True}
"""The keys of an item of a checklist in its form, with what an absent one means; the weight is text."""


class FormValue(Struct, frozen=True):
    """The value of a key of an assertion, in the kind in which it can be shown without loss."""

    kind: InputKind
    value: JsonValue


def form_value(kind: InputKind, value: JsonValue) -> FormValue:
    """Return a value in its kind; in another one where that cannot show it: nothing may be lost by looking."""
    is_scalar = isinstance(value, str) or _is_number(value)
    match kind, value:
        case "flag", bool():
            return FormValue(kind, value)
        case (("text" | "choice"), str()):
            return FormValue(kind, value)
        case (("text" | "number"), _) if is_scalar:
            return FormValue(kind, str(value))
        case (("texts" | "text"), list()) if value and are_lines(value):
            return FormValue("texts", "\n".join(value))
        case "texts", str():
            return FormValue("text", value)
        case "numbers", list() if all(map(_is_number, value)):
            return FormValue(kind, ", ".join(map(str, value)))
        case "pairs", dict() if all(isinstance(item, str) for item in value.values()):
            return FormValue(kind, [[str(name), item] for name, item in value.items()])
        case "checklist", list() if all(map(_is_checklist_item, value)):
            return FormValue(kind, [_checklist_row(item) for item in value])
    return FormValue("yaml", write_yaml(value).removesuffix("...\n").rstrip("\n"))


def _is_checklist_item(item: JsonValue) -> bool:
    if isinstance(item, str):
        return "\n" not in item
    return (
        isinstance(item, dict)
        and set(item) <= set(CHECKLIST_KEYS)
        and isinstance(item.get("item"), str)
        and "\n" not in item["item"]
        and _is_number(item.get("weight", 1))
        and all(isinstance(item.get(key, True), bool) for key in ("required", "evidence"))
    )


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _checklist_row(item: JsonValue) -> dict[str, JsonValue]:
    written = {"item": item} if isinstance(item, str) else item
    row = {**CHECKLIST_KEYS, **written}
    return {**row, "weight": str(row["weight"])}


def _checklist(rows: list[JsonValue], old: JsonValue) -> list[JsonValue] | None:
    """Return the items of rows; those that were there before keep what a row does not show."""
    before = [item for item in old if _is_checklist_item(item)] if isinstance(old, list) else []
    known = {item: part for part in before for item in [_checklist_row(part)["item"]]}
    is_as_long = len(before) == len(rows)
    found = []
    for number, row in enumerate(rows):
        if isinstance(row, dict) and str(row.get("item", "")).strip():
            part = known.get(row["item"], before[number] if is_as_long else "")
            found.append(_checklist_item({**CHECKLIST_KEYS, **row}, part))
    return found or None


def _checklist_item(row: dict[str, JsonValue], old: JsonValue) -> JsonValue:
    shown = _checklist_row(old)
    entries: dict[str, JsonValue] = dict(old) if isinstance(old, dict) else {"item": old}
    for key, absent in CHECKLIST_KEYS.items():
        if row[key] == shown[key]:
            continue
        if row[key] == absent:
            entries.pop(key, None)
        else:
            entries[key] = _number(str(row[key])) if key == "weight" else row[key]
    return entries if isinstance(old, dict) or len(entries) > 1 else entries["item"]


def read_input(kind: InputKind, value: JsonValue, old: JsonValue) -> JsonValue:
    """Return the value of an input; None for an empty one. What reads as the old value is the old value."""
    if isinstance(value, str) and not value.strip():
        return None
    if isinstance(value, str) and form_value(kind, old) == FormValue(kind, value):
        return old
    match kind, value:
        case (("number" | "numbers"), str()):
            parts = [_number(part.strip()) for part in value.split(",")]
            return parts if kind == "numbers" else parts[0] if len(parts) == 1 else value
        case "texts", str():
            return read_lines(value)
        case "yaml", str():
            return read_yaml(value, "").value
        case "checklist", list():
            return _checklist(value, old)
        case "pairs", list():
            pairs = {
                str(name).strip(): str(item) for name, item in value if str(name).strip() or str(item).strip()
            }
            return pairs or None
    return value


def _number(text: str) -> JsonValue:
    """Return a number as it is written; anything else stays text, which the check of the suite complains about."""
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        return text
    return int(text) if re.fullmatch(r"[-+]?[0-9]+", text) else number
