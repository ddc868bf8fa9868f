"""Turns the tests of a promptfoo config into test cases, with scenarios, `defaultTest` and variables expanded."""

import base64
import mimetypes
from collections.abc import Iterator, Mapping
from itertools import count, product
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import MergedTest
from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.engine.conversation import CONVERSATION_ID
from geval_cli.engine.plan import is_chosen, prompt_names, provider_names
from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.extras.promptfoo.env import (
    existing_files,
    file_keys,
    program_reference,
    warn_of_gone,
    with_file_contents,
)
from geval_cli.extras.promptfoo.prompts import ConfigPart
from geval_cli.extras.promptfoo.providers import read_answerer
from geval_cli.extras.promptfoo.test_rows import TestRow, iterate_rows
from geval_cli.records import JsonValue
from geval_cli.source.access import open_regular
from geval_cli.source.files import (
    CODE_SUFFIXES,
    FILE_PREFIX,
    MAX_TEXT_BYTES,
    NamedFile,
    find_files,
    is_file_reference,
    is_wildcard,
    open_problem,
    split_part,
)
from geval_cli.source.problems import hint_among, sort_problems
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import PromptSpec, ProviderSpec, TestOptionsSpec, describe_value, spellings
from geval_cli.specs.promptfoo import PromptfooTestOptions
from geval_cli.suite.schema import TestSpec
from geval_cli.suite.tests import MAX_PROBLEMS, merge_test, read_test
from geval_cli.suite.validation import LoadContext, read_spec
from geval_cli.templating.js_text import js_json, js_number

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
    """Return a list of assertions, including nested ones, with numbers as JavaScript writes them: `1.0` as `1`."""
    if not isinstance(value, list):
        return value
    return [_written(item) if isinstance(item, dict) else item for item in value]


def _written(assertion: dict[str, JsonValue]) -> dict[str, JsonValue]:
    kind = assertion.get("type")
    found = dict(assertion)
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


def _warn_of_numbers(value: JsonValue, place: SourcePath, reading: LoadContext) -> None:
    """Warn of numbers in YAML that are looked for in another form: 007 or 1.0 may be a code or a version."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            _warn_of_numbers(item, place.child(index), reading)
    elif isinstance(value, int | float) and not isinstance(value, bool) and place.has():
        number, at = js_number(value), place.value()
        if at is not None and at.file.endswith((".yaml", ".yml")) and at.length != len(number):
            message = f"`value` is the number {number}, which is not how it is written"
            reading.warn(message, at, "put quotes around it to keep it as it is")


def report_assertions(value: JsonValue, place: SourcePath, reading: LoadContext) -> None:
    """Report keys that would change an assertion's verdict but are not supported by its type."""
    if not isinstance(value, list):
        return
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            continue
        kind = str(item.get("type", "")).removeprefix("not-")
        model = ASSERTION_TYPES.get(kind)
        if kind in _ON_TEXT:
            _warn_of_numbers(item.get("value"), place.child(index, "value"), reading)
        for key in _ASSERTION_KEYS:
            if key in item and model is not None and key not in spellings(model):
                reading.report(
                    f"`{key}` of an assertion is not supported", place.child(index).key(key), _HINT
                )
        report_assertions(item.get("assert"), place.child(index, "assert"), reading)


_TEST_LEVEL = ("prompts", "providers", "assertScoringFunction")
_TEST_KEYS = frozenset({*spellings(TestSpec), *_TEST_LEVEL, "providerOutput"}) - {"description"}
_KEYS_SHOWN = 4
_FOUND_OUT = {"params", "file_params", "output_replaces_answer", "made_vars"}
_UNUSED_OPTIONS = frozenset({"runSerially", "repeat", "id"})


class ReadTest(Struct, frozen=True):
    """A test as specs: one for what geval's own dialect has too, one for options that only promptfoo has."""

    spec: TestSpec = field(default_factory=TestSpec)
    promptfoo: PromptfooTestOptions = field(default_factory=PromptfooTestOptions)

    def over(self, below: "ReadTest") -> "ReadTest":
        """Merge this test over another: vars, metadata and options are merged, and `below`'s assertions come first."""
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
    """Return the specs of one row, with a problem for each mistake; None if it cannot be used.

    Args:
        row: the row as written.
        what: the name for messages: "a test" or "defaultTest".
        reading: collects the problems.
    """
    if not isinstance(row.value, dict):
        reading.report(f"{what} must be a mapping, found {describe_value(row.value)}", row.place.value())
        return None
    value = dict(row.value)
    if what == "a test" and value.keys() - {"description"} and value.keys().isdisjoint(_TEST_KEYS):
        message = (
            f"this is no test: none of its keys (`{'`, `'.join(list(value)[:_KEYS_SHOWN])}`) is one of a test"
        )
        reading.report(message, row.place.value(), "put variables under `vars`")
        return None
    variables = _variables(value.pop("vars", None), row, reading)
    given = value.pop("providerOutput", None)
    if given and what == "defaultTest":
        message = "`providerOutput` of defaultTest is the output of scenarios only, as in promptfoo"
        reading.warn(message, row.place.key("providerOutput"), "write it in each test")
    elif given:  # for an empty one, promptfoo calls the model
        value["output"] = given
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
    """Return the provider that a test names. The `provider` of defaultTest is a judge, which its options override."""
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
    """Remove promptfoo's options from `value` and return them; unknown options become model parameters."""
    found: dict[str, Any] = {key: value.pop(key) for key in _TEST_LEVEL if key in value}
    options = value.get("options")
    if isinstance(options, dict):
        judged = spellings(TestOptionsSpec)
        known = spellings(PromptfooTestOptions).keys() - _FOUND_OUT
        # Old spellings are renamed first, so that each ends up in the right part below.
        # `postprocess` is the old name of `transform`, and is ignored next to it.
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
    # A single name becomes a list of one.
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
        # Variables from YAML or JSON files; later ones win, and a wildcard may match none.
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
            if files:
                warn_of_gone(str(name), row.folder, reading, location)
            else:
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


_DOCUMENTS = frozenset({".yaml", ".yml"})
_MEDIA = ("image/", "audio/", "video/")
MAX_COMBINATIONS = 100_000
"""How many tests the lists of one test may expand to; more is a mistake, and would fill the memory."""


def expanded(
    variables: Mapping[str, JsonValue], place: SourcePath, reading: LoadContext, *, expands: bool
) -> Iterator[dict[str, JsonValue]]:
    """Yield the variables of each test that an entry of `tests` expands to, with files loaded.

    A list multiplies the tests only if its first member is text; any other list is a single value. The first variable
    changes slowest.

    Args:
        variables: the variables as written.
        place: the place of the test.
        reading: collects the problems; file names are relative to its folder.
        expands: whether lists and wildcards multiply tests at all.
    """
    choices = {name: _choices(value, name, place, reading, expands) for name, value in variables.items()}
    count = 1
    for values in choices.values():
        count *= len(values)
    if count > MAX_COMBINATIONS:
        hint = "use fewer values, or several tests"
        reading.report(f"the lists in `vars` make {count:,} tests out of one", place.value("vars"), hint)
        return
    loaded = {
        name: [_loaded(value, name, place, reading) for value in values] for name, values in choices.items()
    }
    for combination in product(*loaded.values()):
        yield dict(zip(loaded, combination, strict=True))


def _choices(
    value: JsonValue, name: str, place: SourcePath, reading: LoadContext, expands: bool
) -> list[JsonValue]:
    if expands and isinstance(value, list) and value and isinstance(value[0], str):
        return [item for entry in value for item in _files_of(entry, name, place, reading)]
    return _files_of(value, name, place, reading) if expands else [value]


def _files_of(value: JsonValue, name: str, place: SourcePath, reading: LoadContext) -> list[JsonValue]:
    """Return `value`, or a reference to each file that its wildcard matches."""
    if not is_file_reference(value) or not is_wildcard(value) or "{{" in value:
        return [value]
    try:
        files = _existing(value, name, place, reading)
        warn_of_gone(value, reading.files.base_dir, reading, _location(place, name))
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return []
    return [f"file://{file.path.absolute()}" for file in files]


def _loaded(value: JsonValue, name: str, place: SourcePath, reading: LoadContext) -> JsonValue:
    if not is_file_reference(value) or "{{" in value:
        return value
    try:
        file = _existing(value, name, place, reading)[0]
        asked_at = _location(place, name)
        if file.suffix in CODE_SUFFIXES:
            return program_reference(file, asked_at)
        if file.suffix in _DOCUMENTS:
            return js_json(reading.files.document_at(file.path, asked_at).value)
        kind = mimetypes.guess_type(file.path.name)[0] or ""
        if kind.startswith(_MEDIA) and file.suffix != ".svg":
            return _encoded(file.path, kind, asked_at, reading)
        return reading.files.text_at(file.path, asked_at).strip()
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return None


def _existing(value: str, name: str, place: SourcePath, reading: LoadContext) -> list[NamedFile]:
    return existing_files(value, reading.files.base_dir, reading.files.access, _location(place, name))


def names_program(value: JsonValue) -> bool:
    """Return whether a loaded variable is a reference to the program that makes its value."""
    if not is_file_reference(value):
        return False
    path, _ = split_part(value.removeprefix(FILE_PREFIX))
    return Path(path).suffix.lower() in CODE_SUFFIXES and Path(path).is_absolute()


def _encoded(path: Path, kind: str, asked_at: Location | None, reading: LoadContext) -> str:
    """Return an image as a data URL, and audio or video as plain base64, as promptfoo does in prompts."""
    try:
        with open_regular(path, reading.files.access) as stream:
            content = stream.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise ConfigError([open_problem(path, error, asked_at)]) from error
    if len(content) > MAX_TEXT_BYTES:
        raise ConfigError([Problem(f"`{path}` is larger than 16 MB", asked_at, "use a smaller file")])
    text = base64.b64encode(content).decode()
    return f"data:{kind};base64,{text}" if kind.startswith("image/") else text


def _location(place: SourcePath, name: str) -> Location | None:
    return place.value("vars", name)


class Scenario(Struct, frozen=True):
    """Tests that run once for each entry of `settings`."""

    settings: tuple[ConfigPart, ...]
    tests: tuple[ConfigPart, ...]
    place: SourcePath


class PromptfooTests(Struct, frozen=True):
    """The tests of a suite. Each iteration reads files anew and yields equal tests.

    `prompts` and `providers` have the names by which a test may choose some of them; `whole` is the place of the
    config; `given` is the output of the scenarios' tests that have none.
    """

    tests: tuple[ConfigPart, ...]
    scenarios: tuple[Scenario, ...]
    default: ReadTest
    reading: LoadContext
    overrides: Mapping[str, JsonValue]
    whole: SourcePath
    prompts: tuple[PromptSpec, ...]
    providers: tuple[ProviderSpec, ...]
    expands: bool = True
    given: JsonValue = None

    def __iter__(self) -> Iterator[MergedTest]:
        reading = self.reading.with_problems([])
        yield from self._cases(reading, {})
        if reading.problems:
            raise ConfigError(sort_problems(map(reading.env.hide, reading.problems)))

    def problems(self) -> list[Problem]:
        """Return the problems of all tests, including warnings, which iteration leaves out."""
        reading = self.reading.with_problems([])
        warnings = dict[tuple[str, int], Problem]()
        for _ in self._cases(reading, warnings):
            pass
        return [*map(reading.env.hide, reading.problems), *warnings.values()]

    def written(self) -> Iterator[JsonValue]:
        """Yield every test as written; if its `vars` name files, yield their variables as well."""
        reading = self.reading.with_problems([])
        scenarios = [part for item in self.scenarios for part in (*item.settings, *item.tests)]
        for row in iterate_rows((*self.tests, *scenarios), reading):
            yield row.value
            reading.problems.clear()  # the check reports them
            if isinstance(row.value, dict) and isinstance(row.value.get("vars"), str | list):
                test = read_row(row, "a test", reading)
                yield {} if test is None else test.spec.vars

    def _cases(self, reading: LoadContext, warnings: dict[tuple[str, int], Problem]) -> Iterator[MergedTest]:
        index = 0
        self._check_choices(self.default, reading)
        for test in self._read_tests(reading):
            self._check_choices(test, reading)
            for case in self._of_test(test, reading):
                yield replace(case, index=index)
                index += 1
            reading.hold_back_warnings(warnings)
            if len(reading.problems) >= MAX_PROBLEMS:
                reading.report(f"more than {MAX_PROBLEMS:,} problems: nothing after them is checked", None)
                break
        reading.hold_back_warnings(warnings)

    def _check_choices(self, test: ReadTest, reading: LoadContext) -> None:
        """Report prompts and providers that a test chooses but that do not exist: it would silently not run."""
        chosen = {"prompts": test.promptfoo.prompts, "providers": test.promptfoo.providers}
        for key, wanted in chosen.items():
            if not wanted:
                continue
            if key == "prompts":
                known = {prompt.label: prompt_names(prompt) for prompt in self.prompts}
            else:
                known = {provider.title: provider_names(provider) for provider in self.providers}
            place = test.spec.place.child(key)
            for index, name in enumerate(wanted):
                if not any(is_chosen(own, [name]) for own in known.values()):
                    message = f"there is no {key.removesuffix('s')} `{name}`"
                    reading.report(message, place.value(index) or place.value(), hint_among(name, known))

    def _read_tests(self, reading: LoadContext) -> Iterator[ReadTest]:
        is_empty = True
        for row in iterate_rows(self.tests, reading):
            is_empty = False
            test = read_row(row, "a test", reading)
            if test is not None:
                yield test
        numbers = count()
        for scenario in self.scenarios:
            for test, number in _scenario_tests(scenario, reading, numbers):
                is_empty = False
                yield self._in_conversation(test, number)
        if is_empty and not reading.errors:
            yield from filter(
                None, [read_row(TestRow({}, self.whole, reading.files.base_dir), "a test", reading)]
            )

    def _in_conversation(self, test: ReadTest, number: int) -> ReadTest:
        """Put a test of a scenario into a conversation of its entry, unless one is named, and give it its output."""
        metadata = {
            CONVERSATION_ID: f"__scenario_{number}__",
            **self.default.spec.metadata,
            **test.spec.metadata,
        }
        given = {"output": self.given} if self.given and "output" not in test.spec.model_fields_set else {}
        return replace(test, spec=test.spec.model_copy(update={"metadata": metadata, **given}))

    def _of_test(self, test: ReadTest, reading: LoadContext) -> Iterator[MergedTest]:
        default = self.default.spec
        promptfoo = test.promptfoo.over(self.default.promptfoo)
        if test.promptfoo.disable_default_asserts:
            default = default.model_copy(update={"assertions": ()})
        merged = merge_test(0, test.spec, default, self.overrides_below(test))
        if merged.has_output:
            promptfoo = promptfoo.model_copy(update={"output_replaces_answer": True})
        expands = self.expands and not promptfoo.disable_var_expansion
        if not expands:
            promptfoo = promptfoo.model_copy(update={"disable_var_expansion": True})
        elif merged.transform_vars is not None:
            _warn_of_lists(merged, reading)
        for variables in expanded(merged.vars, merged.place, reading, expands=expands):
            made = {name: str(value) for name, value in variables.items() if names_program(value)}
            own = promptfoo.model_copy(update={"made_vars": made}) if made else promptfoo
            yield replace(merged, vars=variables, promptfoo=own)

    def overrides_below(self, test: ReadTest) -> dict[str, JsonValue]:
        """Return the command line's variables as defaults: a test's own variables override them."""
        return {name: value for name, value in self.overrides.items() if name not in test.spec.vars}


def _warn_of_lists(test: MergedTest, reading: LoadContext) -> None:
    """Warn of variables that make several tests of one before `transformVars` gets them."""
    for name, value in test.vars.items():
        if isinstance(value, list) and value and isinstance(value[0], str):
            message = (
                f"`transformVars` gets each value of the list `{name}` by itself; promptfoo gives it the list"
            )
            hint = "set `disableVarExpansion: true` in the test's options if it is to get the list"
            reading.warn(message, test.place.value("vars", name) or test.place.value(), hint)


def read_scenarios(parts: list[ConfigPart], reading: LoadContext) -> tuple[Scenario, ...]:
    """Return the scenarios of a config, without reading their files."""
    found = []
    for part in parts:
        value, place = part.value, part.place
        if not isinstance(value, dict):
            message = f"a scenario must be a mapping of `config` and `tests`, found {describe_value(value)}"
            reading.report(message, place.value())
            continue
        for key in value.keys() - {"config", "tests", "description"}:
            reading.warn(
                f"unknown key `{key}` in a scenario", place.key(key), "known: description, config, tests"
            )
        settings = parts_of(value.get("config"), place.child("config"), part) or (replace(part, value={}),)
        tests = parts_of(value.get("tests"), place.child("tests"), part) or (replace(part, value={}),)
        found.append(Scenario(settings, tests, place))
    return tuple(found)


def parts_of(value: JsonValue, place: SourcePath, around: ConfigPart) -> tuple[ConfigPart, ...]:
    """Return the entries of a list, or a single value as the only entry."""
    if value is None:
        return ()
    if isinstance(value, list):
        return tuple(ConfigPart(item, place.child(index), around.folder) for index, item in enumerate(value))
    return (ConfigPart(value, place, around.folder),)


def _scenario_tests(
    scenario: Scenario, reading: LoadContext, numbers: Iterator[int]
) -> Iterator[tuple[ReadTest, int]]:
    """Yield the tests of a scenario, each with the number of its entry of `config` among those of all scenarios."""
    for setting in iterate_rows(scenario.settings, reading):
        below = read_row(setting, "an entry of a scenario's config", reading)
        number = next(numbers)
        for row in iterate_rows(scenario.tests, reading):
            test = read_row(row, "a test", reading)
            if below is not None and test is not None:
                yield test.over(below), number
