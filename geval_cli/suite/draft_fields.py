"""The fields in which an editor shows the parts of a suite: keys of the file as texts, and texts back to values."""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeGuard

import yaml
from msgspec import Struct

from geval_cli.errors import ConfigError, Problem, UsageError
from geval_cli.records import JsonValue
from geval_cli.source.edit.targets import TargetValue, Written
from geval_cli.source.edit.yaml_edit import EditableText
from geval_cli.source.edit.yaml_layout import read_tree
from geval_cli.source.edit.yaml_style import same, write_yaml
from geval_cli.source.files import is_file_reference
from geval_cli.source.json_source import read_json
from geval_cli.source.yaml_source import read_yaml
from geval_cli.specs.type_messages import describe_value


class FieldKind(StrEnum):
    """The kind of a field: how its text is read as a value. lines: one text, or a list with one text a line."""

    TEXT = "text"
    JSON = "json"
    MAPPING = "mapping"
    LIST = "list"
    LINES = "lines"


class FieldSpec(Struct, frozen=True):
    """A field: its name, how it is written, and the spellings of its key, the preferred one first."""

    name: str
    kind: FieldKind = FieldKind.TEXT
    also: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.also)

    def key_in(self, entries: Mapping[str, TargetValue]) -> str:
        """Return a mapping's spelling of the key; the preferred spelling when it has none."""
        return next((key for key in self.spellings if key in entries), self.name)


SUITE_FIELDS = (FieldSpec("description"),)
DEFAULT_TEST = FieldSpec("defaultTest", FieldKind.MAPPING, ("default_test",))
_PROMPT_FIELDS = (
    FieldSpec("id"),
    FieldSpec("label"),
    FieldSpec("evaluation_mode", also=("evaluationMode",)),
    FieldSpec("evaluation_criteria", also=("evaluationCriteria",)),
    FieldSpec("evaluation_parsing", also=("evaluationParsing",)),
    FieldSpec("expected_schema", FieldKind.JSON, ("expectedSchema",)),
)
_PROVIDER_FIELDS = (FieldSpec("id"), FieldSpec("label"))
_TEST_FIELDS = (
    FieldSpec("description"),
    FieldSpec("vars", FieldKind.MAPPING),
    FieldSpec("input"),
    FieldSpec("turns", FieldKind.LIST),
    FieldSpec("images", FieldKind.LINES),
    FieldSpec("expected_output", also=("expectedOutput",)),
    FieldSpec("evaluation_schema", FieldKind.JSON, ("evaluationSchema",)),
    FieldSpec("evaluation_parsing", also=("evaluationParsing",)),
    FieldSpec("assert", FieldKind.LIST, ("assertions",)),
)
LIST_FIELDS: Mapping[str, tuple[FieldSpec, ...]] = {
    "prompts": _PROMPT_FIELDS,
    "providers": _PROVIDER_FIELDS,
    "tests": _TEST_FIELDS,
}
"""The fields of an item of each list of a suite."""

DEFAULT_TEST_PART = "default_test"
ITEM_FIELDS: Mapping[str, tuple[FieldSpec, ...]] = {**LIST_FIELDS, DEFAULT_TEST_PART: _TEST_FIELDS}
BODIES = ("raw", "system", "messages")
"""The keys of a prompt that one field shows: what it says."""


class FieldError(Exception):
    """The text of a field has no valid value; the lines and columns of `problem` are those of the field."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def shown_field(
    spec: FieldSpec, entries: Mapping[str, JsonValue], source: EditableText, path: Sequence[str | int]
) -> str:
    """Return the text that a field shows of the mapping at `path`; empty for an absent key."""
    key = spec.key_in(entries)
    if key not in entries:
        return ""
    return shown_value(spec.kind, entries[key], source, (*path, key))


def shown_value(kind: FieldKind, value: JsonValue, source: EditableText, path: Sequence[str | int]) -> str:
    """Return a value as its field shows it; of YAML, the very lines of the file."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if kind is FieldKind.LINES and are_lines(value):
        return "\n".join(value)
    if kind in (FieldKind.MAPPING, FieldKind.LIST, FieldKind.LINES):
        return source.source(*path) or _yaml_lines(value)
    return json.dumps(value, ensure_ascii=False, indent=2)


def are_lines(value: JsonValue) -> TypeGuard[list[str]]:
    """Return whether a value is a list of texts that can be shown one a line, none or many."""
    return isinstance(value, list) and all(
        isinstance(item, str) and item == item.strip() != "" and "\n" not in item for item in value
    )


def read_lines(text: str) -> list[str]:
    """Return what is written one a line."""
    return [line.strip() for line in text.split("\n") if line.strip()]


def read_field(kind: FieldKind, text: str, old: JsonValue) -> TargetValue:
    """Parse a text that is not empty as the field's value.

    Args:
        kind: how it is written.
        text: what is in the field.
        old: the value that the field had; a schema that was JSON text stays text.

    Raises:
        FieldError: it is broken, or of another kind than the field needs.
    """
    if kind is FieldKind.TEXT:
        return text
    if kind is FieldKind.JSON:
        return _read_json_field(text, old)
    if kind is FieldKind.LINES:
        lines = read_lines(text)
        return lines[0] if len(lines) == 1 and not isinstance(old, list) else lines
    return _read_yaml_field(kind, text.rstrip(), old)


def _read_json_field(text: str, old: JsonValue) -> JsonValue:
    if is_file_reference(text.strip()):
        return text.strip()
    try:
        value = read_json(text, "").value
    except ConfigError as error:
        raise FieldError(error.problems[0]) from error
    if isinstance(old, str) and not is_file_reference(old):
        return text
    return old if same(value, old) else value


def _read_yaml_field(kind: FieldKind, text: str, old: JsonValue) -> TargetValue:
    if is_file_reference(text):
        return text
    try:
        value = read_yaml(text, "").value
    except ConfigError as error:
        raise FieldError(error.problems[0]) from error
    expected, what = (
        (dict, "a mapping: `name: value` lines") if kind is FieldKind.MAPPING else (list, "a list")
    )
    if not isinstance(value, expected):
        hint = "put `- ` before each of them" if kind is FieldKind.LIST else "write one `name: value` a line"
        raise FieldError(Problem(f"this must be {what}, found {describe_value(value)}", None, hint))
    tree = read_tree(text)
    stands_alone = not tree.is_flow and not any(part.anchor for part in tree.walk()) and "\t" not in text
    lead = text[: tree.start]
    if not stands_alone or not _are_comments(lead):
        return old if same(value, old) else value
    # Comments above the first entry go along where they are at its margin.
    return Written(value, text.lstrip("\n") if lead.endswith("\n") and lead.strip() else text[tree.start :])


def _are_comments(text: str) -> bool:
    return all(line.strip()[:1] in ("", "#") for line in text.split("\n"))


def _yaml_lines(value: JsonValue) -> str:
    try:
        return write_yaml(value).rstrip("\n")
    except (UsageError, yaml.YAMLError):  # half of a surrogate pair
        return json.dumps(value, indent=2)
