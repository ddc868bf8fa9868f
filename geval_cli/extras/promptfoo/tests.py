"""The tests of a promptfoo config as test cases: scenarios, `defaultTest` and combinations of variables worked in."""

import base64
import mimetypes
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.assertions.base import MergedTest
from geval_cli.engine.conversation import CONVERSATION_ID
from geval_cli.engine.plan import is_chosen, prompt_names, provider_names
from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.extras.promptfoo.paths import program_reference
from geval_cli.extras.promptfoo.prompts import ConfigPart
from geval_cli.extras.promptfoo.test_entries import ReadTest, read_row
from geval_cli.extras.promptfoo.test_rows import TestRow, iterate_rows
from geval_cli.records import JsonValue
from geval_cli.source.access import open_regular
from geval_cli.source.files import (
    CODE_SUFFIXES,
    FILE_PREFIX,
    MAX_TEXT_BYTES,
    NamedFile,
    existing_files,
    is_file_reference,
    is_wildcard,
    open_problem,
    split_part,
)
from geval_cli.source.problems import hint_among, sort_problems
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import PromptSpec, ProviderSpec, describe_value
from geval_cli.suite.tests import MAX_PROBLEMS, merge_test
from geval_cli.suite.validation import LoadContext
from geval_cli.templating.js_text import js_json

_DOCUMENTS = frozenset({".yaml", ".yml"})
_MEDIA = ("image/", "audio/", "video/")
MAX_COMBINATIONS = 100_000
"""How many tests the lists of one test may become; more is a slip, and would fill the memory."""


def expanded(
    variables: Mapping[str, JsonValue], place: SourcePath, reading: LoadContext, *, expands: bool
) -> Iterator[dict[str, JsonValue]]:
    """Yield the variables of each test that one entry of `tests` expands to, files loaded.

    A list multiplies the tests only if its first member is a text; any other list is one value. The first variable
    changes slowest.

    Args:
        variables: as they are written.
        place: of the test.
        reading: takes the problems; its folder is what names of files are relative to.
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
    """`value`, or a reference to each file that fits its wildcards."""
    if not is_file_reference(value) or not is_wildcard(value) or "{{" in value:
        return [value]
    try:
        files = _existing(value, name, place, reading)
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
    """Return whether a loaded variable is the name of the program that makes it."""
    if not is_file_reference(value):
        return False
    path, _ = split_part(value.removeprefix(FILE_PREFIX))
    return Path(path).suffix.lower() in CODE_SUFFIXES and Path(path).is_absolute()


def _encoded(path: Path, kind: str, asked_at: Location | None, reading: LoadContext) -> str:
    """Images as a data URL, sound and film in base64 alone, as promptfoo puts them into prompts."""
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
    """Tests that are run once for each of `settings`."""

    settings: tuple[ConfigPart, ...]
    tests: tuple[ConfigPart, ...]
    place: SourcePath
    index: int


class PromptfooTests(Struct, frozen=True):
    """The tests of a suite; each pass reads files anew and yields equal tests. `whole` is where the config begins.

    `prompts` and `providers` have the names by which a test may choose some of them.
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

    def __iter__(self) -> Iterator[MergedTest]:
        reading = self.reading.with_problems([])
        yield from self._cases(reading, [])
        if reading.problems:
            raise ConfigError(sort_problems(map(reading.env.hide, reading.problems)))

    def problems(self) -> list[Problem]:
        """Return the problems of one pass, with warnings, which a pass for tests leaves out."""
        reading, warnings = self.reading.with_problems([]), list[Problem]()
        for _ in self._cases(reading, warnings):
            pass
        return [*map(reading.env.hide, reading.problems), *warnings]

    def written(self) -> Iterator[JsonValue]:
        """Yield every test as it is written, and the variables of the files that one names in place of `vars`."""
        reading = self.reading.with_problems([])
        scenarios = [part for item in self.scenarios for part in (*item.settings, *item.tests)]
        for row in iterate_rows((*self.tests, *scenarios), reading):
            yield row.value
            reading.problems.clear()  # the check tells them
            if isinstance(row.value, dict) and isinstance(row.value.get("vars"), str | list):
                test = read_row(row, "a test", reading)
                yield {} if test is None else test.spec.vars

    def _cases(self, reading: LoadContext, warnings: list[Problem]) -> Iterator[MergedTest]:
        index = 0
        self._check_choices(self.default, reading)
        for test in self._read_tests(reading):
            self._check_choices(test, reading)
            for case in self._of_test(test, reading):
                yield replace(case, index=index)
                index += 1
            reading.put_warnings_aside(warnings)
            if len(reading.problems) >= MAX_PROBLEMS:
                reading.report(f"more than {MAX_PROBLEMS:,} problems: nothing after them is checked", None)
                break
        reading.put_warnings_aside(warnings)

    def _check_choices(self, test: ReadTest, reading: LoadContext) -> None:
        """Report prompts and providers that a test chooses and that do not exist: it would not be run, silently."""
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
        for scenario in self.scenarios:
            for test in _scenario_tests(scenario, reading):
                is_empty = False
                yield test
        if is_empty and not reading.errors:
            yield from filter(
                None, [read_row(TestRow({}, self.whole, reading.files.base_dir), "a test", reading)]
            )

    def _of_test(self, test: ReadTest, reading: LoadContext) -> Iterator[MergedTest]:
        default, promptfoo = self.default.spec, test.promptfoo.over(self.default.promptfoo)
        if test.promptfoo.disable_default_asserts:
            default = default.model_copy(update={"assertions": ()})
        merged = merge_test(0, test.spec, default, self.overrides_below(test))
        if merged.has_output:
            promptfoo = promptfoo.model_copy(update={"output_replaces_answer": True})
        expands = self.expands and not promptfoo.disable_var_expansion
        for variables in expanded(merged.vars, merged.place, reading, expands=expands):
            made = {name: str(value) for name, value in variables.items() if names_program(value)}
            own = promptfoo.model_copy(update={"made_vars": made}) if made else promptfoo
            yield replace(merged, vars=variables, promptfoo=own)

    def overrides_below(self, test: ReadTest) -> dict[str, JsonValue]:
        """Return the command line's variables as defaults: a test's own variables win."""
        return {name: value for name, value in self.overrides.items() if name not in test.spec.vars}


def read_scenarios(parts: list[ConfigPart], reading: LoadContext) -> tuple[Scenario, ...]:
    """Return the scenarios of a config, their files not yet read."""
    found = []
    for index, part in enumerate(parts):
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
        found.append(Scenario(settings, tests, place, index))
    return tuple(found)


def parts_of(value: JsonValue, place: SourcePath, around: ConfigPart) -> tuple[ConfigPart, ...]:
    """Return the entries of a list, or the one thing that is where a list may be."""
    if value is None:
        return ()
    if isinstance(value, list):
        return tuple(ConfigPart(item, place.child(index), around.folder) for index, item in enumerate(value))
    return (ConfigPart(value, place, around.folder),)


def _scenario_tests(scenario: Scenario, reading: LoadContext) -> Iterator[ReadTest]:
    for setting in iterate_rows(scenario.settings, reading):
        below = read_row(setting, "an entry of a scenario's config", reading)
        for row in iterate_rows(scenario.tests, reading):
            test = read_row(row, "a test", reading)
            if below is not None and test is not None:
                yield _in_conversation(test.over(below), scenario)


def _in_conversation(test: ReadTest, scenario: Scenario) -> ReadTest:
    """Return the test with a conversation of its scenario's own, unless it names one itself."""
    own = {CONVERSATION_ID: f"__scenario_{scenario.index}__", **test.spec.metadata}
    return replace(test, spec=test.spec.model_copy(update={"metadata": own}))
