"""Tests: one entry of `tests` (or `defaultTest`) with its files loaded, and the two merged into a test case."""

from collections.abc import Mapping

from geval_cli.config.assertion_specs import read_assertions, read_test_options
from geval_cli.config.assertion_values import read_json_schema
from geval_cli.config.place import Place
from geval_cli.config.provider_specs import read_provider
from geval_cli.config.schema import TestOptionsSpec, TestSpec
from geval_cli.config.source_file import is_file_reference
from geval_cli.config.suite import TestCase
from geval_cli.config.validation import Fields, Reading, build_spec, read_fields
from geval_cli.records import JsonValue

_TEXT_FIELDS = ("input", "output", "expected_output", "context", "retrieval_context")
# Without validation, so that the validators of what a config does not have are never built.
_NO_OPTIONS = TestOptionsSpec.model_construct()
_NO_DEFAULT = TestSpec.model_construct(options=_NO_OPTIONS)


def read_test(value: JsonValue, place: Place, what: str, reading: Reading) -> TestSpec | None:
    """One test, its files loaded, with a problem for each mistake in it.

    A test with mistakes comes without the parts that are wrong, so that the rest of it can be checked too; None when
    nothing sensible is left. Whoever collects the problems sees to it that such a test is never run.

    Args:
        value: as it stands in the file, env values filled in.
        place: where.
        what: how messages call it: "a test" or "defaultTest".
        reading: takes the problems.
    """
    if is_file_reference(value):
        hint = "`tests: file://...` names one file for all tests"
        reading.report("a single test cannot be a file", place.value(), hint)
        return None
    fields = read_fields(TestSpec, value, place, what, reading, nullable=("output", "evaluation_schema"))
    if fields is None:
        return None
    _load_texts(fields, reading)
    read_json_schema("evaluation_schema", fields, reading)
    if "assertions" in fields.values:
        found = read_assertions(_as_list(fields.values["assertions"]), fields.child("assertions"), reading)
        fields.values["assertions"] = found
    if "options" in fields.values:
        options = read_test_options(fields.values["options"], fields.child("options"), reading)
        fields.values["options"] = options or _NO_OPTIONS
    elif "options" not in fields.written:
        fields.values["options"] = _NO_OPTIONS
    if "provider" in fields.values:
        _read_answerer(fields, what, reading)
    spec = build_spec(TestSpec, fields, reading)
    if "vars" in fields.written and not isinstance(fields.values.get("vars"), dict):
        return None  # every variable would be missed where there is only one mistake
    return spec


def merge_test(
    index: int, test: TestSpec, default: TestSpec | None, overrides: Mapping[str, JsonValue]
) -> TestCase:
    """The test case: what the test says, then `defaultTest`; `overrides` are vars that win over both.

    Assertions of the default come first; vars and metadata are merged key by key.
    """
    below = default or _NO_DEFAULT
    own, given = test.model_fields_set, below.model_fields_set | test.model_fields_set

    def pick(name: str) -> JsonValue:
        return getattr(test if name in own else below, name)

    return TestCase(
        index=index,
        place=test.place,
        description=pick("description"),
        vars={**below.vars, **test.vars, **overrides},
        input=pick("input"),
        has_output="output" in given,
        output=pick("output"),
        expected_output=pick("expected_output"),
        context=pick("context"),
        retrieval_context=pick("retrieval_context"),
        assertions=(*below.assertions, *test.assertions),
        threshold=pick("threshold"),
        provider=test.provider,
        options=test.options,
        default_options=below.options,
        metadata={**below.metadata, **test.metadata},
        evaluation_schema=pick("evaluation_schema"),
        evaluation_parsing=pick("evaluation_parsing"),
        schema_place=_schema_place(test, below),
    )


def _read_answerer(fields: Fields, what: str, reading: Reading) -> None:
    place = fields.child("provider")
    answerer = None
    if what == "defaultTest":
        hint = "who answers belongs under `providers`, who judges under `options` of defaultTest"
        reading.report(
            "`provider` of defaultTest does not say what it does", fields.place.key("provider"), hint
        )
    else:
        answerer = read_provider(fields.values["provider"], place, reading)
    if answerer is None:
        fields.drop("provider")
    else:
        fields.values["provider"] = answerer


def _schema_place(test: TestSpec, below: TestSpec) -> Place:
    owner = next((spec for spec in (test, below) if "evaluation_schema" in spec.model_fields_set), None)
    return test.place if owner is None else owner.place.child("evaluation_schema")


def _as_list(value: JsonValue) -> JsonValue:
    return list(value) if isinstance(value, tuple) else value


def _load_texts(fields: Fields, reading: Reading) -> None:
    """Put the texts of files in the place of their names: in the test's own fields, and in the values of `vars`."""
    for name in _TEXT_FIELDS:
        if name in fields.values:
            _load_field(name, fields, reading)
    variables = fields.values.get("vars")
    if isinstance(variables, dict) and any(map(is_file_reference, variables.values())):
        at = fields.child("vars")
        fields.values["vars"] = {key: reading.text(entry, at.value(key)) for key, entry in variables.items()}


def _load_field(name: str, fields: Fields, reading: Reading) -> None:
    value, place = fields.values[name], fields.child(name)
    if isinstance(value, tuple):
        fields.values[name] = tuple(
            reading.text(item, place.value(index)) if is_file_reference(item) else item
            for index, item in enumerate(value)
        )
        if any(
            text is None and item is not None for text, item in zip(fields.values[name], value, strict=True)
        ):
            fields.drop(name)
    elif is_file_reference(value):
        text = reading.text(value, place.value())
        if text is None:
            fields.drop(name)
        else:
            fields.values[name] = text
