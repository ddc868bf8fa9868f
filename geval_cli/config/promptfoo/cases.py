"""The tests of a promptfoo config as test cases: scenarios, `defaultTest` and combinations of variables worked in."""

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.config.place import Place
from geval_cli.config.problems import sort_problems
from geval_cli.config.promptfoo.prompts import ConfigPart
from geval_cli.config.promptfoo.test_reading import ReadTest, read_row
from geval_cli.config.promptfoo.test_rows import TestRow, iterate_rows
from geval_cli.config.promptfoo.variables import expanded, names_program
from geval_cli.config.suite import TestCase
from geval_cli.config.test_source import MAX_PROBLEMS
from geval_cli.config.test_specs import merge_test
from geval_cli.config.validation import Reading
from geval_cli.config.wanted import describe_value
from geval_cli.errors import ConfigError, Problem, Severity
from geval_cli.records import JsonValue

CONVERSATION_ID = "conversationId"
"""The key of `metadata` that keeps conversations apart."""


class Scenario(Struct, frozen=True):
    """Tests that are run once for each of `settings`."""

    settings: tuple[ConfigPart, ...]
    tests: tuple[ConfigPart, ...]
    place: Place
    index: int


class PromptfooTests(Struct, frozen=True):
    """The tests of a suite; each pass reads files anew and yields equal tests. `whole` is where the config begins."""

    tests: tuple[ConfigPart, ...]
    scenarios: tuple[Scenario, ...]
    default: ReadTest
    reading: Reading
    overrides: Mapping[str, JsonValue]
    whole: Place
    expands: bool = True

    def __iter__(self) -> Iterator[TestCase]:
        reading = self.reading.with_problems([])
        yield from self._cases(reading)
        errors = [problem for problem in reading.problems if problem.severity is Severity.ERROR]
        if errors:
            raise ConfigError(sort_problems(map(reading.env.hide, errors)))

    def problems(self) -> list[Problem]:
        """What one pass finds, warnings too, of which a pass for tests says nothing."""
        reading = self.reading.with_problems([])
        for _ in self._cases(reading):
            pass
        return [reading.env.hide(problem) for problem in reading.problems]

    def _cases(self, reading: Reading) -> Iterator[TestCase]:
        index = 0
        for test in self._read_tests(reading):
            for case in self._of_test(test, reading):
                yield replace(case, index=index)
                index += 1
            if len(reading.problems) >= MAX_PROBLEMS:
                reading.report(f"more than {MAX_PROBLEMS:,} problems: nothing is checked behind them", None)
                return

    def _read_tests(self, reading: Reading) -> Iterator[ReadTest]:
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
        if is_empty and not reading.problems:
            yield from filter(
                None, [read_row(TestRow({}, self.whole, reading.files.base_dir), "a test", reading)]
            )

    def _of_test(self, test: ReadTest, reading: Reading) -> Iterator[TestCase]:
        default, directions = self.default.spec, test.directions.over(self.default.directions)
        if test.directions.disable_default_asserts:
            default = default.model_copy(update={"assertions": ()})
        merged = merge_test(0, test.spec, default, self.overrides_below(test))
        if merged.has_output:
            directions = directions.model_copy(update={"output_replaces_answer": True})
        expands = self.expands and not directions.disable_var_expansion
        for variables in expanded(merged.vars, merged.place, reading, expands=expands):
            made = {name: str(value) for name, value in variables.items() if names_program(value)}
            own = directions.model_copy(update={"made_vars": made}) if made else directions
            yield replace(merged, vars=variables, directions=own)

    def overrides_below(self, test: ReadTest) -> dict[str, JsonValue]:
        """Variables of the command line, which are defaults here: what a test says itself wins."""
        return {name: value for name, value in self.overrides.items() if name not in test.spec.vars}


def read_scenarios(parts: list[ConfigPart], reading: Reading) -> tuple[Scenario, ...]:
    """The scenarios of a config, their files not yet read."""
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


def parts_of(value: JsonValue, place: Place, around: ConfigPart) -> tuple[ConfigPart, ...]:
    """The entries of a list, or the one thing that stands where a list may stand."""
    if value is None:
        return ()
    if isinstance(value, list):
        return tuple(ConfigPart(item, place.child(index), around.folder) for index, item in enumerate(value))
    return (ConfigPart(value, place, around.folder),)


def _scenario_tests(scenario: Scenario, reading: Reading) -> Iterator[ReadTest]:
    for setting in iterate_rows(scenario.settings, reading):
        below = read_row(setting, "an entry of a scenario's config", reading)
        for row in iterate_rows(scenario.tests, reading):
            test = read_row(row, "a test", reading)
            if below is not None and test is not None:
                yield _in_conversation(test.over(below), scenario)


def _in_conversation(test: ReadTest, scenario: Scenario) -> ReadTest:
    """The test with a conversation of its scenario's own, unless it names one itself."""
    own = {CONVERSATION_ID: f"__scenario_{scenario.index}__", **test.spec.metadata}
    return replace(test, spec=test.spec.model_copy(update={"metadata": own}))
