"""Read the `value` of assertions: files in place of their names, mappings as specs."""

import json
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

from geval_cli.assertions.base import Assertion, ValueRules
from geval_cli.errors import ConfigError
from geval_cli.records import JsonValue
from geval_cli.source.files import is_file_reference
from geval_cli.source.source_map import SourcePath
from geval_cli.source.yaml_source import read_yaml
from geval_cli.suite.validation import Fields, LoadContext, read_spec

_DOCUMENTS = frozenset({".json", ".yaml", ".yml"})
_PROGRAMS = frozenset({".py", ".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".rb"})


def read_value(model: type[Assertion], fields: Fields, reading: LoadContext) -> None:
    """Write out `value` in `fields`; what turns out wrong is reported and taken out."""
    form = model.value_form
    if form is None or fields.values.get("value") is None:
        return
    if form == "schema":
        read_json_schema("value", fields, reading)
        return
    written, place = fields.values["value"], fields.child("value")
    if isinstance(form, tuple):
        rules, what = form
        value = _read_rules(rules, written, place, what, reading) if isinstance(written, dict) else written
    else:
        value = _READERS[form](written, place, reading)
    if value is None:
        fields.drop("value")
    else:
        fields.values["value"] = value


def read_json_schema(name: str, fields: Fields, reading: LoadContext) -> None:
    """Put a schema in the place of the file or the YAML text that it is written in, in any field of a config."""
    value = fields.values.get(name)
    if not isinstance(value, str):
        return
    if is_file_reference(value):
        found = _document(value, fields.child(name), reading)
        if found is None:
            fields.drop(name)
        else:
            fields.values[name] = found
    elif value.strip():
        fields.values[name] = _written_as_yaml(value)


def _written_as_yaml(text: str) -> JsonValue:
    """Parse a YAML text as a mapping; return the text itself when it is something else, for the check of schemas."""
    if _is_json(text):
        return text
    try:
        found = read_yaml(text, "value").value
    except ConfigError:
        return text
    return found if isinstance(found, dict | bool) else text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _document(reference: str, place: SourcePath, reading: LoadContext) -> JsonValue:
    try:
        return reading.files.document(reference, place.value()).value
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return None


def _file_content(reference: str, place: SourcePath, reading: LoadContext) -> JsonValue:
    """Return the content of the file: data for JSON and YAML, else text without the space around it."""
    suffix = PurePosixPath(reference).suffix.lower().partition(":")[0]
    if suffix in _PROGRAMS:
        hint = "write what is expected, or check it in a `python` or `javascript` assertion"
        reading.report("a program cannot be the `value` of this assertion", place.value(), hint)
        return None
    if suffix in _DOCUMENTS:
        return _document(reference, place, reading)
    text = reading.text(reference, place.value())
    return text.strip() if isinstance(text, str) else text


def _read_text(value: JsonValue, place: SourcePath, reading: LoadContext) -> JsonValue:
    return _file_content(value, place, reading) if is_file_reference(value) else value


def _read_texts(value: JsonValue, place: SourcePath, reading: LoadContext) -> JsonValue:
    if not isinstance(value, tuple | list):
        found = _read_text(value, place, reading)
        return tuple(found) if isinstance(found, list) else found
    items = [_read_text(item, place.child(index), reading) for index, item in enumerate(value)]
    if any(item is None and written is not None for item, written in zip(items, value, strict=True)):
        return None
    return tuple(items)


def _read_data(value: JsonValue, place: SourcePath, reading: LoadContext) -> JsonValue:
    if isinstance(value, list):
        items = _read_texts(value, place, reading)
        return None if items is None else list(items)
    return _read_text(value, place, reading)


_READERS: Mapping[str, Callable[[JsonValue, SourcePath, LoadContext], JsonValue]] = {
    "text": _read_text,
    "texts": _read_texts,
    "data": _read_data,
}


def _read_rules(
    model: type[ValueRules], value: JsonValue, place: SourcePath, what: str, reading: LoadContext
) -> ValueRules | None:
    found = read_spec(model, value, place, what, reading)
    problems = found.problems() if found is not None else ()
    reading.problems.extend(problems)
    return None if problems else found
