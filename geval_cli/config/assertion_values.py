"""The `value` of assertions: files put in the place of their names, mappings read as the spec that they stand for."""

import json
from collections.abc import Callable
from pathlib import PurePosixPath

from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.config.assertion_schema import (
    EqualsAssertionSpec,
    FinishReasonAssertionSpec,
    IsJsonAssertionSpec,
    LevenshteinAssertionSpec,
    MeteorAssertionSpec,
    SqlAssertionSpec,
    SqlRulesSpec,
    TextAssertionSpec,
    TextListAssertionSpec,
    TextMetricAssertionSpec,
    ToolCallF1Spec,
    WordCountAssertionSpec,
    WordRangeSpec,
    XmlAssertionSpec,
    XmlRulesSpec,
)
from geval_cli.config.graded_schema import (
    ClosedQaSpec,
    ContextRecallSpec,
    FactualitySpec,
    LlmRubricSpec,
    MaxScoreRulesSpec,
    MaxScoreSpec,
    SearchRubricSpec,
    SelectBestSpec,
    SimilarSpec,
)
from geval_cli.config.place import Place
from geval_cli.config.source_file import is_file_reference
from geval_cli.config.spec import Spec
from geval_cli.config.validation import Fields, Reading, read_spec
from geval_cli.config.yaml_source import read_yaml
from geval_cli.errors import ConfigError
from geval_cli.records import JsonValue

_DOCUMENTS = frozenset({".json", ".yaml", ".yml"})
_PROGRAMS = frozenset({".py", ".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".rb"})


def read_value(model: type[AssertionSpec], fields: Fields, reading: Reading) -> None:
    """Write out `value` in `fields`; what turns out wrong is reported and taken out."""
    read = _READERS.get(model)
    if read is None or fields.values.get("value") is None:
        return
    value = read(fields.values["value"], fields.child("value"), reading)
    if value is None:
        fields.drop("value")
    else:
        fields.values["value"] = value


def read_json_schema(name: str, fields: Fields, reading: Reading) -> None:
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
    """The mapping that a YAML text is; the text itself when it is something else, for whoever checks schemas."""
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


def _document(reference: str, place: Place, reading: Reading) -> JsonValue:
    try:
        return reading.files.document(reference, place.value()).value
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return None


def _file_content(reference: str, place: Place, reading: Reading) -> JsonValue:
    """What the file holds: data for JSON and YAML, else text without the space around it."""
    suffix = PurePosixPath(reference).suffix.lower().partition(":")[0]
    if suffix in _PROGRAMS:
        hint = "write what is expected, or check it in a `python` or `javascript` assertion"
        reading.report("a program cannot be the `value` of this assertion", place.value(), hint)
        return None
    if suffix in _DOCUMENTS:
        return _document(reference, place, reading)
    text = reading.text(reference, place.value())
    return text.strip() if isinstance(text, str) else text


def _read_text(value: JsonValue, place: Place, reading: Reading) -> JsonValue:
    return _file_content(value, place, reading) if is_file_reference(value) else value


def _read_texts(value: JsonValue, place: Place, reading: Reading) -> JsonValue:
    if not isinstance(value, tuple | list):
        found = _read_text(value, place, reading)
        return tuple(found) if isinstance(found, list) else found
    items = [_read_text(item, place.child(index), reading) for index, item in enumerate(value)]
    if any(item is None and written is not None for item, written in zip(items, value, strict=True)):
        return None
    return tuple(items)


def _read_json(value: JsonValue, place: Place, reading: Reading) -> JsonValue:
    if isinstance(value, list):
        items = _read_texts(value, place, reading)
        return None if items is None else list(items)
    return _read_text(value, place, reading)


def _rules(
    model: type[Spec], what: str, value: JsonValue, place: Place, reading: Reading
) -> Spec | JsonValue:
    return read_spec(model, value, place, what, reading) if isinstance(value, dict) else value


def _read_sql(value: JsonValue, place: Place, reading: Reading) -> JsonValue:
    return _rules(SqlRulesSpec, "the rules of an SQL assertion", value, place, reading)


def _read_xml(value: JsonValue, place: Place, reading: Reading) -> JsonValue:
    return _rules(XmlRulesSpec, "the rules of an XML assertion", value, place, reading)


def _read_words(value: JsonValue, place: Place, reading: Reading) -> JsonValue:
    found = _rules(WordRangeSpec, "a range of words", value, place, reading)
    if isinstance(found, WordRangeSpec):
        low, high = found.min, found.max
        if low is None and high is None:
            reading.report("a range of words needs `min`, `max` or both", place.value(), "add one of them")
            return None
        if low is not None and high is not None and low > high:
            message = f"`min` ({low}) must not be above `max` ({high})"
            reading.report(message, place.value("min"), "exchange them")
            return None
    return found


def _read_max_score(value: JsonValue, place: Place, reading: Reading) -> JsonValue:
    return _rules(MaxScoreRulesSpec, "the rules of a max-score", value, place, reading)


_READERS: dict[type[AssertionSpec], Callable[[JsonValue, Place, Reading], JsonValue]] = {
    TextAssertionSpec: _read_text,
    LevenshteinAssertionSpec: _read_text,
    FinishReasonAssertionSpec: _read_text,
    TextListAssertionSpec: _read_texts,
    TextMetricAssertionSpec: _read_texts,
    ToolCallF1Spec: _read_texts,
    MeteorAssertionSpec: _read_texts,
    EqualsAssertionSpec: _read_json,
    SqlAssertionSpec: _read_sql,
    XmlAssertionSpec: _read_xml,
    WordCountAssertionSpec: _read_words,
    LlmRubricSpec: _read_json,
    SearchRubricSpec: _read_json,
    FactualitySpec: _read_text,
    ClosedQaSpec: _read_text,
    ContextRecallSpec: _read_text,
    SimilarSpec: _read_texts,
    SelectBestSpec: _read_text,
    MaxScoreSpec: _read_max_score,
}

NULLABLE_VALUES: frozenset[type[AssertionSpec]] = frozenset({IsJsonAssertionSpec, EqualsAssertionSpec})
"""The kinds for which a `value` of null is a value and not an oversight."""
