"""select-best and max-score: cases that are judged together."""

import asyncio
from collections.abc import Mapping

import pytest
from support.graded import SpeakingJudge, graded_tools
from support.specs import assertion, case, suite

from geval_cli.assertions.base import Assertion, JudgeDefaults, MergedTest, Tools
from geval_cli.engine.case import ComparisonGroups, JobContext
from geval_cli.engine.check import check_plan
from geval_cli.engine.plan import Plan
from geval_cli.errors import BudgetError, ProviderTimeoutError
from geval_cli.extras.comparisons import MaxScoreRules, total_score
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    Choice,
    ModelRequest,
    ModelResponse,
    Role,
    Status,
    Usage,
)
from geval_cli.specs.base import PromptSpec, ProviderSpec
from geval_cli.templating import Templates

Answers = Mapping[str, str | Exception]
A, B, C = (ProviderSpec(id=f"openai:{name}", label=name) for name in "abc")
SELECT = assertion("select-best", value="the best")
MAX = assertion("max-score")


def plan_of(*assertions: Assertion, tests: int = 1, repeats: int = 1) -> Plan:
    cases = [case(index, vars={"x": index}, assertions=assertions) for index in range(tests)]
    prompts = (PromptSpec(id="p", label="P", raw="{{ x }}"),)
    return Plan(suite(cases, prompts=prompts, providers=(A, B, C)), repeats, is_in_rows=True)


def done(plan: Plan, answers: Answers, tools: Tools) -> list[CaseResult]:
    """What the groups give out, in their order."""

    async def generate(spec: ProviderSpec, request: ModelRequest) -> ModelResponse:
        answer = answers[spec.label]
        if isinstance(answer, Exception):
            raise answer
        return ModelResponse((Choice(answer),), Usage(1))

    async def run() -> list[CaseResult]:
        groups = ComparisonGroups(JobContext(generate, tools), lambda job: plan.cases_of(job.test))
        [queue] = plan.queues
        return [result for job in queue for result in await groups.run(job)]

    return asyncio.run(run())


def seen(results: list[CaseResult]) -> dict[str, tuple[Status, float | None]]:
    return {item.provider.label: (item.status, item.score) for item in results}


ANSWERS = {"a": "one", "b": "two", "c": "three"}


def test_the_chosen_output_passes_and_the_others_fail() -> None:
    judge = SpeakingJudge(['{"reason": "it is funny", "best": 2}'])
    results = done(plan_of(SELECT), ANSWERS, graded_tools(judge=judge))
    assert seen(results) == {"a": (Status.FAILED, 0), "b": (Status.PASSED, 1), "c": (Status.FAILED, 0)}
    assert len(judge.requests) == 1
    for text in ("the best", "one", "two", "three"):
        assert text in judge.prompts[0]
    assert "it is funny" in results[1].assertions[0].reason


def test_what_the_choice_cost_is_counted_once() -> None:
    results = done(plan_of(SELECT), ANSWERS, graded_tools('{"best": 1}'))
    assert [item.usage[Role.JUDGE].requests for item in results] == [1, 0, 0]


def test_the_winner_keeps_its_own_score_and_the_results_stand_in_the_configs_order() -> None:
    word = assertion("contains-any", value=["two", "three"])
    results = done(plan_of(SELECT, word), ANSWERS, graded_tools('{"best": 1}'))
    assert seen(results)["a"] == (Status.FAILED, 0.0)
    assert seen(results)["b"] == (Status.FAILED, 0.0)
    assert [item.type for item in results[0].assertions] == ["select-best", "contains-any"]
    won = done(plan_of(word, SELECT), ANSWERS, graded_tools('{"best": 2}'))
    assert seen(won)["b"] == (Status.PASSED, 1.0)


def test_each_test_and_repeat_is_a_row_of_its_own() -> None:
    judge = SpeakingJudge(['{"best": 1}', '{"best": 2}', '{"best": 3}', '{"best": 1}'])
    results = done(plan_of(SELECT, tests=2, repeats=2), ANSWERS, graded_tools(judge=judge))
    assert [item.column for item in results if item.status is Status.PASSED] == [0, 1, 2, 0]
    assert len(results) == 12


def test_an_output_that_never_came_is_not_compared() -> None:
    broken = ProviderTimeoutError("too slow", provider_id="openai:a")
    judge = SpeakingJudge(['{"best": 2}'])
    results = done(plan_of(SELECT), {**ANSWERS, "a": broken}, graded_tools(judge=judge))
    assert seen(results) == {"a": (Status.ERROR, None), "b": (Status.FAILED, 0), "c": (Status.PASSED, 1)}
    assert "Output 3" not in judge.prompts[0]


PAIRS_OF_TWO = ['{"winner": "1"}', '{"winner": "2"}']


@pytest.mark.parametrize(
    ("spec", "replies"),
    [
        (assertion("select-best", value="the best"), ['{"reason": "it is funny", "best": 2}']),
        (assertion("pairwise", criteria="the better one"), PAIRS_OF_TWO),
        (assertion("max-score"), []),
    ],
    ids=["select-best", "pairwise", "max-score"],
)
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_comparison_says_how_many_outputs_it_leaves_out(
    spec: Assertion, replies: list[str], is_broken: bool
) -> None:
    broken = ProviderTimeoutError("too slow", provider_id="openai:a")
    answers = {**ANSWERS, "a": broken} if is_broken else ANSWERS
    judge = SpeakingJudge(replies * (1 if is_broken else 3))
    results = done(plan_of(assertion("contains", value="t"), spec), answers, graded_tools(judge=judge))
    reasons = [item.assertions[-1].reason or "" for item in results if item.provider.label != "a"]
    said = "(1 output with an error not compared)"
    assert [said in reason for reason in reasons] == [is_broken] * 2, reasons


def test_a_score_that_could_not_be_had_is_left_out_with_a_word() -> None:
    judge = SpeakingJudge([ProviderTimeoutError("too slow", provider_id="openai:j"), "Score: 4", "Score: 5"])
    graded = assertion("g-eval", value="funny", evaluation_steps=["Is it funny?"])
    results = done(plan_of(graded, MAX), ANSWERS, graded_tools(judge=judge))
    assert [item.status for item in results] == [Status.ERROR, Status.FAILED, Status.PASSED]
    assert results[2].assertions[-1].reason == (
        "the highest score in the row: 0.50 (1 output with an error not compared)"
    )


def test_pairs_with_one_text_leave_no_column_out() -> None:
    broken = ProviderTimeoutError("too slow", provider_id="openai:a")
    spec = assertion("pairwise", criteria="the better one", against="b")
    results = done(plan_of(spec), {**ANSWERS, "a": broken}, graded_tools(judge=SpeakingJudge(PAIRS_OF_TWO)))
    assert all("not compared" not in (a.reason or "") for item in results for a in item.assertions)


def test_fewer_than_two_outputs_and_a_broken_judge_are_errors() -> None:
    broken = ProviderTimeoutError("too slow", provider_id="openai:a")
    alone = done(plan_of(SELECT), {**ANSWERS, "a": broken, "b": broken}, graded_tools('{"best": 1}'))
    assert {item.status for item in alone} == {Status.ERROR}
    unreadable = done(plan_of(SELECT), ANSWERS, graded_tools("Reply 1b48: bananas"))
    assert {item.status for item in unreadable} == {Status.ERROR}
    [error] = {item.assertions[0].error.type for item in unreadable if item.assertions[0].error}
    assert error == "JudgeParseError"


def test_a_row_that_the_budget_cuts_short_gives_no_results() -> None:
    with pytest.raises(BudgetError):
        done(plan_of(SELECT), ANSWERS, graded_tools(BudgetError("used up")))


@pytest.mark.parametrize(
    ("value", "status_of_c"),
    [({}, Status.PASSED), ({"threshold": 0.9}, Status.FAILED), ({"method": "sum"}, Status.PASSED)],
)
def test_the_highest_score_passes(value: dict[str, object], status_of_c: Status) -> None:
    has_t = assertion("contains", value="t", weight=0)
    has_e = assertion("contains", value="three", weight=0)
    has_x = assertion("contains", value="x", weight=0)
    results = done(
        plan_of(has_t, has_e, has_x, assertion("max-score", value=value)), ANSWERS, graded_tools("")
    )
    assert {item.provider.label: item.status for item in results} == {
        "a": Status.FAILED,
        "b": Status.FAILED,
        "c": status_of_c,
    }
    assert results[2].assertions[-1].detail["total"] == pytest.approx(2 if "method" in value else 2 / 3)


def test_weights_by_type_count_and_the_first_of_equals_wins() -> None:
    rubric = assertion("starts-with", value="o")
    word = assertion("contains", value="t")
    weighed = assertion("max-score", value={"weights": {"starts-with": 3}})
    results = done(plan_of(rubric, word, weighed), ANSWERS, graded_tools(""))
    assert [item.assertions[-1].status for item in results] == [
        Status.PASSED,
        Status.FAILED,
        Status.FAILED,
    ]
    assert results[0].assertions[-1].detail["total"] == 0.75
    equal = done(plan_of(assertion("word-count", value=1), MAX), ANSWERS, graded_tools(""))
    assert [item.status for item in equal] == [Status.PASSED, Status.FAILED, Status.FAILED]


DOWN = ProviderTimeoutError("too slow", provider_id="openai:j")
PASSES, FAILS = assertion("contains", value="t"), assertion("contains", value="z")
AT_REST = {
    "human": assertion("human"),
    "passes": PASSES,
    "fails": FAILS,
    "weight 0": assertion("human", weight=0),
}
RUBRIC = assertion("llm-rubric", value="funny")


@pytest.mark.parametrize("name", AT_REST)
@pytest.mark.parametrize("replies", [["2"], [DOWN]], ids=["chosen", "judge down"])
def test_a_compared_case_has_the_worst_verdict_of_all_its_assertions(
    name: str, replies: list[str | Exception]
) -> None:
    judge = SpeakingJudge([f'{{"best": {reply}}}' if isinstance(reply, str) else reply for reply in replies])
    answers = {"a": "ton", "b": "two", "c": "three"}
    results = done(plan_of(AT_REST[name], SELECT), answers, graded_tools(judge=judge))
    for result in results:
        statuses = {item.status for item in result.assertions}
        worst = (Status.FAILED, Status.ERROR, Status.PASSED, Status.NOT_EVALUATED)
        assert result.status is next(status for status in worst if status in statuses)
        assert (result.score is None) == (Status.ERROR in statuses)


def test_a_loser_beside_a_broken_judge_fails_and_a_winner_is_an_error() -> None:
    judge = SpeakingJudge([DOWN, DOWN, DOWN, '{"best": 2}'])
    results = done(plan_of(RUBRIC, SELECT), ANSWERS, graded_tools(judge=judge))
    assert seen(results) == {
        "a": (Status.FAILED, None),
        "b": (Status.ERROR, None),
        "c": (Status.FAILED, None),
    }


GOOD, POOR = '{"reason": "", "pass": true, "score": 0.9}', '{"reason": "", "pass": true, "score": 0.2}'


@pytest.mark.parametrize(
    ("others", "replies", "totals"),
    [
        ((PASSES, assertion("human")), [], {"a": 0.0, "b": 1.0, "c": 1.0}),
        ((FAILS, RUBRIC), [DOWN, GOOD, POOR], {"a": None, "b": 0.45, "c": 0.1}),
        ((assertion("human"),), [], {"a": None, "b": None, "c": None}),
    ],
    ids=["not evaluated", "failed beside an error", "no score at all"],
)
def test_what_was_not_scored_counts_for_no_highest_score(
    others: tuple[Assertion, ...], replies: list[str | Exception], totals: dict[str, float | None]
) -> None:
    results = done(plan_of(*others, MAX), ANSWERS, graded_tools(judge=SpeakingJudge(replies)))
    found = {item.provider.label: item.assertions[-1].detail.get("total") for item in results}
    assert found == {name: total if total is None else pytest.approx(total) for name, total in totals.items()}


@pytest.mark.parametrize("method", ["sum", "average"])
def test_rounding_makes_no_score_the_highest(method: str) -> None:
    def total(*scores: float) -> float:
        results = [
            AssertionResult(type="bleu", metric=None, status=Status.PASSED, score=one) for one in scores
        ]
        return total_score(results, MaxScoreRules(method=method))

    assert total(0.3, 0.0) == total(0.1, 0.2)


def problems_of(tests: list[MergedTest], *providers: ProviderSpec) -> list[str]:
    prompts = (PromptSpec(id="p", label="P", raw="{{ x }}"),)
    checked = check_plan(
        Plan(suite(tests, prompts=prompts, providers=providers)), Templates(), JudgeDefaults()
    )
    return [problem.message for problem in checked.problems]


def test_a_row_of_one_and_scores_of_nothing_are_problems() -> None:
    [alone] = problems_of([case(vars={"x": 1}, assertions=(SELECT,))], A)
    assert "only one" in alone
    [nothing] = problems_of([case(vars={"x": 1}, assertions=(MAX, SELECT))], A, B)
    assert "scores of other assertions" in nothing


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            assertion("select-best", value="x", transform="output"),
            "select-best compares whole outputs and cannot",
        ),
        (assertion("not-select-best", value="x", transform="output"), "select-best compares whole outputs"),
        (assertion("max-score", transform="output"), "max-score compares whole outputs and cannot"),
        (assertion("max-score", value={"weights": {"llm_rubric": 2}}), "names the unknown type `llm_rubric`"),
        (
            assertion("max-score", value={"weights": {"not-contain": 2}}),
            "names the unknown type `not-contain`",
        ),
        (assertion("max-score", value={"weights": {"not-contains": 2, "bleu": 1}}), None),
    ],
)
def test_what_a_comparison_would_ignore_is_a_problem(spec: Assertion, said: str | None) -> None:
    found = problems_of([case(vars={"x": 1}, assertions=(PASSES, spec))], A, B)
    assert [said in problem for problem in found if said] == [True] * len(found), found
    assert len(found) == (said is not None)
