"""Assertions: the spec that `type` asks for, with the short forms of g-eval's keys written out."""

import json
from collections.abc import Callable, Mapping

from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.config.assertion_schema import ASSERTION_SPECS, AssertSetSpec, IsJsonAssertionSpec
from geval_cli.config.assertion_values import NULLABLE_VALUES, read_json_schema, read_value
from geval_cli.config.place import Place
from geval_cli.config.problems import did_you_mean
from geval_cli.config.provider_specs import read_provider
from geval_cli.config.rubric_specs import read_rubric
from geval_cli.config.schema import TestOptionsSpec
from geval_cli.config.spec import RubricPromptSpec
from geval_cli.config.unsupported_types import advice_on
from geval_cli.config.validation import Fields, Reading, build_spec, read_fields
from geval_cli.config.wanted import describe_value
from geval_cli.records import JsonValue

_NEGATION = "not-"


def read_assertions(value: JsonValue, place: Place, reading: Reading) -> tuple[AssertionSpec, ...]:
    """The assertions of a list, in its order; those with problems are left out."""
    if not isinstance(value, list):
        hint = "put `- ` before each assertion" if isinstance(value, dict) else ""
        reading.report(
            f"`assert` must be a list of assertions, found {describe_value(value)}", place.value(), hint
        )
        return ()
    found = [read_assertion(item, place.child(index), reading) for index, item in enumerate(value)]
    return tuple(assertion for assertion in found if assertion is not None)


def read_assertion(value: JsonValue, place: Place, reading: Reading) -> AssertionSpec | None:
    """One assertion, as the spec class that its type has in `ASSERTION_SPECS`; None with a problem for each mistake."""
    if not isinstance(value, dict):
        hint = f"write `type: {value}`" if isinstance(value, str) and _is_known(value) else ""
        reading.report(f"an assertion must be a mapping, found {describe_value(value)}", place.value(), hint)
        return None
    kind = _read_type(value, place, reading)
    if kind is None:
        return None
    base = kind.removeprefix(_NEGATION)
    model = ASSERTION_SPECS[base]
    article = "an" if base[0] in "aeiou" else "a"
    nullable = ("value",) if model in NULLABLE_VALUES else ()
    fields = read_fields(model, value, place, f"{article} {base} assertion", reading, nullable=nullable)
    if fields is None:
        return None
    _write_out(fields, reading)
    if model is IsJsonAssertionSpec:
        read_json_schema("value", fields, reading)
    elif model is AssertSetSpec:
        _read_members(fields, reading)
    else:
        read_value(model, fields, reading)
    return build_spec(model, fields, reading)


def read_test_options(value: JsonValue, place: Place, reading: Reading) -> TestOptionsSpec | None:
    """`options` of a test, with their short forms written out."""
    fields = read_fields(TestOptionsSpec, value, place, "the options of a test", reading)
    if fields is None:
        return None
    _write_out(fields, reading)
    return build_spec(TestOptionsSpec, fields, reading)


def _read_members(fields: Fields, reading: Reading) -> None:
    """The assertions of a set, in the place of what is written."""
    written = fields.values.get("assertions")
    if written is None:
        return
    place = fields.child("assertions")
    members = read_assertions(list(written) if isinstance(written, tuple) else written, place, reading)
    for member in members:
        if isinstance(member, AssertSetSpec):
            hint = "write its assertions into the outer set, or beside it"
            reading.report("an assert-set cannot hold another assert-set", member.place.value("type"), hint)
        if member.base_type in ("select-best", "max-score"):
            message = f"{member.base_type} compares whole outputs and cannot stand in an assert-set"
            reading.report(message, member.place.value("type"), "write it beside the set")
    if written == ():
        hint = "add assertions, or leave the set out"
        reading.report("an assert-set needs at least one assertion", place.value(), hint)
    fields.values["assertions"] = members


def _is_known(kind: str) -> bool:
    return kind.removeprefix(_NEGATION) in ASSERTION_SPECS


def _read_type(value: Mapping[str, JsonValue], place: Place, reading: Reading) -> str | None:
    kinds = ", ".join(ASSERTION_SPECS)
    notes = (f"known types: {kinds}", "with `not-` before a type the verdict is inverted")
    if "type" not in value:
        named = next((key for key in value if _is_known(key)), None)
        hint = f"write `type: {named}`" if named else "add `type`"
        reading.report("an assertion needs `type`", place.value(), hint, notes=notes)
        return None
    kind = value["type"]
    if not isinstance(kind, str):
        reading.report(f"`type` must be text, found {describe_value(kind)}", place.value("type"), notes=notes)
        return None
    if _is_known(kind):
        return kind
    advice = advice_on(kind.removeprefix(_NEGATION))
    if advice is not None:
        reading.report(f"geval has no assertion type `{kind}`", place.value("type"), advice)
        return None
    prefix = _NEGATION if kind.startswith(_NEGATION) else ""
    near = did_you_mean(kind.removeprefix(_NEGATION), ASSERTION_SPECS)
    hint = f"did you mean `{prefix}{near}`?" if near else ""
    reading.report(f"unknown assertion type `{kind}`", place.value("type"), hint, notes=notes)
    return None


def _write_out(fields: Fields, reading: Reading) -> None:
    """Replace short forms by what they stand for; values that turn out wrong are reported and taken out."""
    for name, read in _READERS.items():
        if name in fields.values:
            value = read(fields.values[name], fields.child(name), reading)
            if value is None:
                fields.drop(name)
            else:
                fields.values[name] = value


def _read_texts(value: JsonValue, place: Place, reading: Reading) -> JsonValue:
    """A text or several, each of which may be a file; other kinds pass, for the spec to refuse."""
    if not isinstance(value, tuple):
        return reading.text(value, place.value(), is_for_models=True)
    texts = [reading.text(item, place.value(index), is_for_models=True) for index, item in enumerate(value)]
    return tuple(text for text, item in zip(texts, value, strict=True) if text is not None or item is None)


def _read_rubric_prompt(value: JsonValue, place: Place, reading: Reading) -> JsonValue:
    if isinstance(value, list | tuple) and value and all(isinstance(item, dict) for item in value):
        # A chat, whose texts are templates.
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict):
        return reading.text(value, place.value(), is_for_models=True)
    fields = read_fields(RubricPromptSpec, value, place, "a rubricPrompt", reading)
    if fields is None:
        return None
    for name, entry in list(fields.values.items()):
        text = reading.text(entry, fields.child(name).value(), is_for_models=True)
        if text is None:
            return None
        fields.values[name] = text
    return build_spec(RubricPromptSpec, fields, reading)


_READERS: dict[str, Callable[[JsonValue, Place, Reading], JsonValue]] = {
    "criteria": _read_texts,
    "rubric": read_rubric,
    "provider": read_provider,
    "rubric_prompt": _read_rubric_prompt,
}
