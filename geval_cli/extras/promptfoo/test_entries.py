"""One test of a promptfoo config: what it shares with geval's own tests, and its further options."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.errors import ConfigError
from geval_cli.extras.promptfoo.paths import file_keys, with_file_contents
from geval_cli.extras.promptfoo.providers import read_answerer
from geval_cli.extras.promptfoo.test_rows import TestRow
from geval_cli.records import JsonValue
from geval_cli.source.files import find_files
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import ProviderSpec, TestOptionsSpec, describe_value, spellings
from geval_cli.specs.promptfoo import PromptfooTestOptions
from geval_cli.suite.schema import TestSpec
from geval_cli.suite.tests import read_test
from geval_cli.suite.validation import LoadContext, read_spec
from geval_cli.templating.js_text import js_number

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
    """Return a list of assertions, those in groups too, with `1.0` as the text `1`."""
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


_ASSERTION_KEYS = ("contextTransform",)
_HINT = "write the assertions for the original output"


def report_assertions(value: JsonValue, place: SourcePath, reading: LoadContext) -> None:
    """Problems for keys of assertions that change the verdict, where their type does not know them."""
    if not isinstance(value, list):
        return
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            continue
        model = ASSERTION_TYPES.get(str(item.get("type", "")).removeprefix("not-"))
        for key in _ASSERTION_KEYS:
            if key in item and model is not None and key not in spellings(model):
                reading.report(
                    f"`{key}` of an assertion is not supported", place.child(index).key(key), _HINT
                )
        report_assertions(item.get("assert"), place.child(index, "assert"), reading)


_TEST_LEVEL = ("prompts", "providers", "assertScoringFunction")
_FOUND_OUT = {"params", "file_params", "output_replaces_answer", "made_vars"}
_UNUSED_OPTIONS = frozenset({"runSerially", "repeat", "id"})


class ReadTest(Struct, frozen=True):
    """A test as specs: what geval's own dialect has too, and the options that only promptfoo has."""

    spec: TestSpec = field(default_factory=TestSpec)
    promptfoo: PromptfooTestOptions = field(default_factory=PromptfooTestOptions)

    def over(self, below: "ReadTest") -> "ReadTest":
        """This test upon another: vars, metadata and options are merged, assertions of the lower one come first."""
        given = self.spec.model_fields_set - {"vars", "metadata", "assertions", "options", "place"}
        merged = below.spec.model_copy(
            update={
                **{name: getattr(self.spec, name) for name in given},
                "vars": {**below.spec.vars, **self.spec.vars},
                "metadata": {**below.spec.metadata, **self.spec.metadata},
                "assertions": (*below.spec.assertions, *self.spec.assertions),
                "options": _merged_options(below.spec.options, self.spec.options),
                "place": self.spec.place,
            }
        )
        return ReadTest(merged, self.promptfoo.over(below.promptfoo))


def read_row(row: TestRow, what: str, reading: LoadContext) -> ReadTest | None:
    """Return the specs of one row, with a problem for each mistake; None when nothing sensible is left.

    Args:
        row: as it is written.
        what: how messages call it: "a test" or "defaultTest".
        reading: takes the problems.
    """
    if not isinstance(row.value, dict):
        reading.report(f"{what} must be a mapping, found {describe_value(row.value)}", row.place.value())
        return None
    value = dict(row.value)
    variables = _variables(value.pop("vars", None), row, reading)
    if "providerOutput" in value:
        value["output"] = value.pop("providerOutput")
    if row.number and not value.get("description"):
        value["description"] = f"Row #{row.number}"
    answerer = _take_provider(value, row.place, what, reading)
    promptfoo = _take_options(value, row.place, reading)
    report_assertions(value.get("assert"), row.place.child("assert"), reading)
    if "assert" in value:
        value["assert"] = with_written_numbers(value["assert"])
    spec = read_test(value, row.place, what, reading)
    if spec is None or promptfoo is None:
        return None
    own = {} if answerer is None else {"provider": answerer}
    return ReadTest(spec.model_copy(update={"vars": variables, **own}), promptfoo)


def _take_provider(
    value: dict[str, JsonValue], place: SourcePath, what: str, reading: LoadContext
) -> ProviderSpec | None:
    """Return the provider that a test names. `provider` of defaultTest is a judge, below that of its options."""
    if value.get("provider") is None:
        value.pop("provider", None)
        return None
    provider = value.pop("provider")
    options = value.get("options")
    if what == "defaultTest":
        own = options if isinstance(options, dict) else {}
        value["options"] = {"provider": provider, **own}
        return None
    return read_answerer(provider, place.child("provider"), reading)


def _take_options(
    value: dict[str, JsonValue], place: SourcePath, reading: LoadContext
) -> PromptfooTestOptions | None:
    """Remove and return promptfoo's options from `value`; unknown options are parameters of the model's requests."""
    found: dict[str, Any] = {key: value.pop(key) for key in _TEST_LEVEL if key in value}
    options = value.get("options")
    if isinstance(options, dict):
        judged, known = spellings(TestOptionsSpec), spellings(PromptfooTestOptions).keys() - _FOUND_OUT
        # Old spellings first, so that each is sorted into the right part below.
        # `postprocess` is the old name of `transform`, beside which it counts for nothing.
        renamed = {key: entry for key, entry in options.items() if key != "postprocess"}
        options = {"transform": options["postprocess"], **renamed} if "postprocess" in options else renamed
        rest = {key: entry for key, entry in options.items() if key not in judged}
        value["options"] = {key: entry for key, entry in options.items() if key in judged}
        found |= {key: entry for key, entry in rest.items() if key in known}
        params = {
            key: entry for key, entry in rest.items() if key not in known and key not in _UNUSED_OPTIONS
        }
        for key in params:
            reading.warn(f"`{key}` is sent to the model as a parameter", place.child("options").key(key))
        if rest.get("repeat") not in (None, 1):
            hint = "use `--repeat N` to run every test N times"
            reading.warn("`repeat` of a single test is not used", place.child("options").key("repeat"), hint)
        found["params"] = with_file_contents(params, place.child("options"), reading.files.base_dir, reading)
        found["file_params"] = file_keys(params)
    elif options is None:
        value.pop("options", None)
    # A single name is a list of one.
    for key in ("prompts", "providers"):
        if isinstance(found.get(key), str):
            found[key] = [found[key]]
    at = place.child("options") if isinstance(options, dict) else place
    return read_spec(PromptfooTestOptions, found, at, "the options of a test", reading)


def _variables(value: JsonValue, row: TestRow, reading: LoadContext) -> dict[str, JsonValue]:
    place = row.place.child("vars")
    if value is None:
        return {}
    if isinstance(value, str | list):
        # The variables of YAML or JSON files, later ones winning; wildcards may fit none.
        variables: dict[str, JsonValue] = {}
        location = row.place.value("vars")
        for name in value if isinstance(value, list) else [value]:
            try:
                files = (
                    find_files(name, row.folder, reading.files.access, location)
                    if isinstance(name, str)
                    else []
                )
            except ConfigError as error:
                reading.problems.extend(error.problems)
                continue
            if not files:
                reading.warn(f"no variables file matches `{name}`", location, f"relative to {row.folder}")
            for file in files:
                variables |= _mapping_in(file.path, row, reading)
        return variables
    if not isinstance(value, dict):
        reading.report(f"`vars` must be a mapping, found {describe_value(value)}", place.value())
        return {}
    if isinstance(value.get("assert"), list):
        hint = "unindent it to the level of `vars`"
        reading.warn("`assert` is inside `vars`, where it checks nothing", place.key("assert"), hint)
    return dict(value)


def _mapping_in(path: Path, row: TestRow, reading: LoadContext) -> Mapping[str, JsonValue]:
    location = row.place.value("vars")
    try:
        content = reading.files.document_at(path, location).value
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return {}
    if isinstance(content, dict):
        return content
    reading.report(f"`{path}` must contain a mapping of variables, found {describe_value(content)}", location)
    return {}


def _merged_options(below: TestOptionsSpec, above: TestOptionsSpec) -> TestOptionsSpec:
    given = {name: getattr(above, name) for name in above.model_fields_set - {"place"}}
    return below.model_copy(update={**given, "place": above.place if given else below.place})
