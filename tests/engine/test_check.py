from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.specs import TEMPLATES, assertion, case, suite

from geval_cli.assertions.base import Assertion, JudgeDefaults, MergedTest
from geval_cli.assertions.judges import DEFAULT_JUDGE
from geval_cli.engine.check import Checked, check_plan
from geval_cli.engine.plan import Plan
from geval_cli.errors import ConfigError, Severity
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.source.access import TRUSTED, Access, untrusted_access
from geval_cli.specs.base import PromptSpec, ProviderSpec, TestOptionsSpec

CRITERIA = assertion("g-eval", criteria="good")
GRADER = ProviderSpec(id="openai:grader")


def check(
    tests: list[MergedTest],
    *,
    prompt: str = "{{ x }}",
    providers: tuple[ProviderSpec, ...] | None = None,
    grader: ProviderSpec | None = None,
) -> Checked:
    chosen = (ProviderSpec(id="echo", label="echo"),) if providers is None else providers
    built = suite(tests, prompts=(PromptSpec(id="p", label="p", raw=prompt),), providers=chosen)
    return check_plan(Plan(built), TEMPLATES, JudgeDefaults(grader=grader))


def test_a_sound_suite_has_no_problems() -> None:
    checked = check([case(0, vars={"x": 1}), case(1, vars={"x": 2})])
    assert (checked.problems, checked.tests) == ((), 2)


def test_an_undefined_variable_names_the_test_and_the_names_that_exist() -> None:
    [problem] = check(
        [case(0, description="greeting", vars={"name": "Ada"})], prompt="Hi {{ nmae }}"
    ).problems
    assert problem.message == "undefined variable `nmae` (in prompt `p` for test 1 (greeting))"
    assert (problem.hint, problem.notes) == ("did you mean `name`?", ("defined here: name",))


@pytest.mark.parametrize("default", ["file://default.yaml", "[]", "{vars: [a]}"])
def test_a_default_test_that_cannot_be_read_leaves_variables_open(tmp_path: Path, default: str) -> None:
    tests = "[{vars: {q: x}, assert: [{type: contains, value: '{{ language }}'}]}]"
    path = tmp_path / "config.yaml"
    path.write_text(f"prompts: ['{{{{ q }}}} in {{{{ language }}}}']\nproviders: echo\ntests: {tests}\n")
    with pytest.raises(ConfigError) as without:
        prepare(RunRequest(path, {}), is_going_to_run=False)
    assert [item.message[:18] for item in without.value.problems] == ["undefined variable"] * 2
    path.write_text(f"{path.read_text()}defaultTest: {default}\n")
    with pytest.raises(ConfigError) as caught:
        prepare(RunRequest(path, {}), is_going_to_run=False)
    [problem] = caught.value.problems
    assert "undefined" not in problem.message


def test_the_same_mistake_in_many_tests_is_one_problem() -> None:
    [problem] = check([case(index, vars={"y": 1}) for index in range(100)]).problems
    assert problem.message == "undefined variable `x` (in prompt `p` for test 1)"
    assert problem.notes[-1] == "the same in 99 more tests"


def test_of_very_many_problems_the_rest_is_counted() -> None:
    tests = [case(index, vars={"x": 1, "output": "mine"}) for index in range(3)]
    tests += [
        case(index, description=f"number {index}", vars={"x": 1}, assertions=(named(index),))
        for index in range(1_500)
    ]
    problems = check(tests).problems
    assert len(problems) == 1_001
    assert problems[-1].message == "501 more errors in the tests, not shown"
    assert problems[-1].severity is Severity.ERROR


class CountedTests:
    read = 0

    def __iter__(self) -> Iterator[MergedTest]:
        for index in range(20):
            self.read += 1
            yield case(index, vars={"x": index})


@pytest.mark.parametrize(("access", "count"), [(TRUSTED, 0), (untrusted_access([Path()]), 1)])
def test_a_suite_of_a_stranger_has_a_bound(
    monkeypatch: pytest.MonkeyPatch, access: Access, count: int
) -> None:
    """A million tests take 58 kB in a packed sheet."""
    monkeypatch.setattr("geval_cli.engine.check.MOST_UNTRUSTED_TESTS", 3)
    tests = CountedTests()
    built = replace(suite([], providers=(ProviderSpec(id="echo", label="echo"),)), tests=tests, access=access)
    problems = check_plan(Plan(built), TEMPLATES, JudgeDefaults()).problems
    assert [problem.message for problem in problems] == [
        "the suite has more than 3 tests, which --untrusted does not allow"
    ][:count]
    assert tests.read == (4 if count else 20)


def named(index: int) -> Assertion:
    return assertion("contains", value=f"{{{{ undefined_{index} }}}}")


def test_a_test_without_output_needs_a_provider() -> None:
    [problem] = check([case(0, vars={"x": 1})], providers=()).problems
    assert (
        problem.message
        == "nothing to judge in test 1: there is no provider to call, and the test has no `output`"
    )


def test_an_output_beside_providers_is_a_warning() -> None:
    [problem] = check([case(0, vars={"x": 1, "output": "mine"})]).problems
    assert problem.severity is Severity.WARNING
    assert problem.message.startswith("`vars.output` is not judged in test 1")
    assert (
        check([case(0, vars={"x": 1, "output": "mine"})], providers=(ProviderSpec(id="none"),)).problems == ()
    )


def test_every_judge_is_found_once() -> None:
    own = assertion("g-eval", criteria="c", provider=ProviderSpec(id="openai:own"))
    by_test = TestOptionsSpec(provider=ProviderSpec(id="openai:test"))
    by_default = TestOptionsSpec(provider=ProviderSpec(id="openai:default"))
    tests = [
        case(0, vars={"x": 1}, assertions=(CRITERIA, CRITERIA)),
        case(1, vars={"x": 1}, assertions=(own,)),
        case(2, vars={"x": 1}, assertions=(CRITERIA,), options=by_test, default_options=by_default),
        case(3, vars={"x": 1}, assertions=(CRITERIA,), default_options=by_default),
    ]
    found = [judge.id for judge in check(tests).judges]
    assert found == [DEFAULT_JUDGE.id, "openai:own", "openai:test", "openai:default"]


def test_the_grader_stands_between_the_test_and_the_defaults() -> None:
    by_test = TestOptionsSpec(provider=ProviderSpec(id="openai:test"))
    by_default = TestOptionsSpec(provider=ProviderSpec(id="openai:default"))
    tests = [
        case(0, vars={"x": 1}, assertions=(CRITERIA,), default_options=by_default),
        case(1, vars={"x": 1}, assertions=(CRITERIA,), options=by_test),
    ]
    checked = check(tests, grader=GRADER)
    assert [judge.id for judge in checked.judges] == ["openai:grader", "openai:test"]
    assert checked.own_judges == 1


def test_criteria_that_render_to_nothing_are_a_problem() -> None:
    [problem] = check(
        [case(0, vars={"x": 1, "c": " "}, assertions=(assertion("g-eval", criteria="{{ c }}"),))]
    ).problems
    assert problem.message == "the criteria is empty (in test 1)"


def test_a_parameter_that_the_test_lacks_is_found_before_anything_is_sent() -> None:
    spec = assertion("g-eval", criteria="c", evaluation_params=("actual_output", "expected_output"))
    [problem] = check([case(0, vars={"x": 1}, assertions=(spec,))]).problems
    assert problem.message == "test 1 has no expected_output, which evaluation_params lists"
