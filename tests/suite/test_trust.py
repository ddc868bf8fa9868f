"""A stranger's tests must stay what they were when they were checked."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

import pytest
from support.specs import suite

from geval_cli.assertions.base import Assertion, MergedTest
from geval_cli.errors import ConfigError
from geval_cli.source.source_map import SourcePath
from geval_cli.source.yaml_source import read_yaml
from geval_cli.specs.base import ToolSet
from geval_cli.specs.promptfoo import FilteredProviderSpec, NamedPromptSpec
from geval_cli.suite.trust import WatchedTests, code_of_suite, code_of_test, document_trust_problems


@dataclass
class Source:
    """Tests that may be others each time."""

    tests: list[MergedTest]

    def __iter__(self) -> Iterator[MergedTest]:
        yield from self.tests


def case(index: int = 0, **changes: object) -> MergedTest:
    return MergedTest(index, SourcePath.nowhere(), None, **changes)  # type: ignore[arg-type]


def told(watched: WatchedTests) -> bool:
    """Whether reading the tests once more ends with what is wrong with them."""
    with pytest.raises(ConfigError) as caught:
        list(watched)
    return "has changed since it was checked" in caught.value.problems[0].message


def asserting(metric: str) -> MergedTest:
    return case(assertions=(Assertion(type="contains", metric=metric),))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (case(vars={"x": "a"}), case(vars={"x": "b"})),
        (case(vars={"x": PurePosixPath("a")}), case(vars={"x": PurePosixPath("b")})),
        (case(metadata={"a": 2}), case(metadata={"a": 1})),
        (asserting("a"), asserting("b")),
        (asserting("a"), case()),
    ],
)
def test_a_test_that_has_changed_is_not_run(before: MergedTest, now: MergedTest) -> None:
    source = Source([before])
    watched = WatchedTests(source)
    assert [list(watched), list(watched)] == [[before], [before]]
    source.tests = [now]
    assert told(watched)


def test_tests_that_come_or_go_after_they_were_checked_are_not_run() -> None:
    source = Source([case(0), case(1)])
    watched = WatchedTests(source)
    list(watched)
    for others in ([case(0), case(1), case(2)], [case(0)]):
        source.tests = others
        assert told(watched)


def test_what_was_read_in_part_is_checked_where_it_goes_on() -> None:
    source = Source([case(0), case(1)])
    watched = WatchedTests(source)
    next(iter(watched))
    assert len(list(watched)) == 2


@pytest.mark.parametrize(
    ("text", "count"),
    [("env: {KEY: x}", 1), ("env: {}", 0), ("tests: []", 0), ("null", 0), ("[env]", 0), ("env", 0)],
)
def test_a_config_may_set_no_environment_values(text: str, count: int) -> None:
    found = list(document_trust_problems(read_yaml(text, "suite.yaml")))
    assert ["`env` sets" in problem.message for problem in found] == [True] * count


@pytest.mark.parametrize(
    ("raw", "made_by", "names"),
    [
        ("prompt.py", "file:///x/prompt.py", ["prompt.py"]),
        ("", "exec:prompt.sh", ["exec:prompt.sh"]),
        ("text", "", []),
    ],
)
def test_a_prompt_that_a_program_makes_is_code_by_the_name_that_the_config_gives(
    raw: str, made_by: str, names: list[str]
) -> None:
    prompt = NamedPromptSpec(id="p", label="p", raw=raw, made_by=made_by)
    assert [part.what for part in code_of_suite(suite([], prompts=(prompt,)))] == names


@pytest.mark.parametrize(
    ("test", "code"),
    [
        (case(), []),
        (case(tools=ToolSet(SourcePath.nowhere())), []),
        (case(tools=ToolSet(SourcePath.nowhere(), named_functions=True)), ["tools"]),
        (case(provider=FilteredProviderSpec(id="echo")), []),
        (case(provider=FilteredProviderSpec(id="echo", transform="output.trim()")), ["transform"]),
        (asserting("a"), []),
    ],
)
def test_tools_that_are_functions_and_transforms_of_a_provider_are_code(
    test: MergedTest, code: list[str]
) -> None:
    assert [part.what for part in code_of_test(test)] == code
