"""pairwise: outputs compared two by two in both orders, and the ranking of their columns."""

import asyncio
import math
import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from support.graded import graded_tools
from support.scripted_judge import ScriptedJudge, prompt_of, weighed_reply
from support.specs import assertion, case, suite

from geval_cli.assertions.base import Assertion, JudgeDefaults, MergedTest, Tools
from geval_cli.engine.case import ComparisonGroups, JobContext
from geval_cli.engine.check import check_plan
from geval_cli.engine.columns import row_columns
from geval_cli.engine.plan import Plan
from geval_cli.errors import BudgetError, ProviderTimeoutError
from geval_cli.extras.rankings import RankingSums
from geval_cli.judge.metric import Judge
from geval_cli.records import (
    CaseResult,
    Choice,
    MetricSummary,
    ModelRequest,
    ModelResponse,
    RankedColumn,
    RunSummary,
    Status,
    Usage,
    case_result_from_json,
    to_json,
)
from geval_cli.specs.base import PromptSpec, ProviderSpec
from geval_cli.templating import Templates

A, B, C = (ProviderSpec(id=f"openai:{name}", label=name) for name in "abc")
PROMPTS = (PromptSpec(id="p", label="P", raw="Say {{ x }}"),)
PAIRWISE = assertion("pairwise", criteria="More helpful")
_TEXT = re.compile(r"Output ([12]):\n<<<BEGIN [^>]*>>>\n(.*?)\n<<<END", re.DOTALL)

Answer = str | Exception | ModelResponse


def plan_of(*assertions: Assertion, tests: int = 1, repeats: int = 1, **fields: Any) -> Plan:
    cases = [case(index, vars={"x": index}, assertions=assertions, **fields) for index in range(tests)]
    return Plan(suite(cases, prompts=PROMPTS, providers=(A, B, C)), repeats, is_in_rows=True)


def shown(request: ModelRequest) -> list[str]:
    """The two texts that the judge is shown, in their order."""
    return [text for _, text in _TEXT.findall(prompt_of(request))]


def by_length(request: ModelRequest) -> str:
    first, second = map(len, shown(request))
    winner = "tie" if first == second else "1" if first > second else "2"
    return f'{{"reason": "the longer one", "winner": "{winner}"}}'


def done(
    plan: Plan, says: Callable[[ModelRequest], Answer], outputs: Mapping[str, str | Exception]
) -> tuple[list[CaseResult], ScriptedJudge]:
    """The results of all jobs, and the judge, who says which of two outputs is better."""
    judge = ScriptedJudge(says)

    async def generate(spec: ProviderSpec, request: ModelRequest) -> ModelResponse:
        output = outputs[spec.label]
        if isinstance(output, Exception):
            raise output
        return ModelResponse((Choice(output),), Usage(1))

    async def run() -> list[CaseResult]:
        context = JobContext(generate, tools_of(judge), columns=row_columns(plan.columns))
        groups = ComparisonGroups(context, lambda job: plan.cases_of(job.test))
        [queue] = plan.queues
        return [result for job in queue for result in await groups.run(job)]

    return asyncio.run(run()), judge


def tools_of(judge: Judge) -> Tools:
    return replace(graded_tools(""), judge_for=lambda spec: judge)


def seen(results: Sequence[CaseResult]) -> dict[str, tuple[str, float | None]]:
    return {item.provider.label: (item.status.value, item.score) for item in results}


def ranking(plan: Plan, results: Sequence[CaseResult]) -> tuple[Sequence[RankedColumn], float | None]:
    """The one ranking of the results as they are when they are read from a store."""
    sums = RankingSums(plan.columns)
    for result in results:
        sums.add(case_result_from_json(to_json(result)))
    summary = sums.with_rankings(RunSummary())
    [(name, entries)] = summary.rankings.items()
    return entries, summary.order_consistency[name]


OUTPUTS = {"a": "one", "b": "three words here", "c": "two words"}
TIMEOUT = ProviderTimeoutError("too slow", provider_id="openai:a")


def test_every_pair_is_asked_in_both_orders_and_a_share_of_wins_is_the_score() -> None:
    plan = plan_of(PAIRWISE)
    results, judge = done(plan, by_length, OUTPUTS)
    assert seen(results) == {
        "a": ("not_evaluated", 0),
        "b": ("not_evaluated", 1),
        "c": ("not_evaluated", 0.5),
    }
    asked = [tuple(shown(request)) for request in judge.requests]
    texts = [OUTPUTS[name] for name in "abc"]
    assert sorted(asked) == sorted((first, second) for first in texts for second in texts if first != second)
    for request in judge.requests:
        prompt = prompt_of(request)
        assert "More helpful" in prompt
        assert "Say 0" in prompt
        assert "openai:" not in prompt
    [own] = results[2].assertions
    assert own.metric == "more-helpful"
    assert (own.detail["wins"], own.detail["ties"], own.detail["losses"]) == (1, 0, 1)
    assert "preferred to a; not preferred to b" in (own.reason or "")
    entries, consistency = ranking(plan, results)
    assert [(entry.label, entry.wins, entry.losses) for entry in entries] == [
        ("b", 2, 0),
        ("c", 1, 1),
        ("a", 0, 2),
    ]
    assert consistency == 1


def test_a_judge_that_always_names_the_first_finds_ties_only() -> None:
    plan = plan_of(PAIRWISE, tests=3)
    results, _ = done(plan, lambda request: '{"reason": "first", "winner": "1"}', OUTPUTS)
    assert {(item.status, item.score) for item in results} == {(Status.NOT_EVALUATED, 0.5)}
    entries, consistency = ranking(plan, results)
    assert [(entry.wins, entry.ties, entry.losses, entry.rating) for entry in entries] == [
        (0, 6, 0, 1500)
    ] * 3
    assert consistency == 0


def test_with_a_threshold_it_gates_and_without_one_it_only_ranks() -> None:
    gated = assertion("pairwise", criteria="longer", threshold=0.5)
    results, _ = done(plan_of(gated), by_length, OUTPUTS)
    assert seen(results) == {"a": ("failed", 0), "b": ("passed", 1), "c": ("passed", 0.5)}
    assert {item.assertions[0].threshold for item in results} == {0.5}


def test_its_score_counts_beside_others_as_that_of_any_assertion() -> None:
    word = assertion("contains", value="words", weight=3)
    results, _ = done(plan_of(word, PAIRWISE), by_length, OUTPUTS)
    assert seen(results) == {"a": ("failed", 0), "b": ("passed", 1), "c": ("passed", 0.875)}
    lenient, _ = done(plan_of(word, PAIRWISE, threshold=0.9), by_length, OUTPUTS)
    assert seen(lenient) == {"a": ("failed", 0), "b": ("passed", 1), "c": ("failed", 0.875)}
    best = assertion("max-score")
    chosen, _ = done(plan_of(assertion("word-count", value={"min": 1}), PAIRWISE, best), by_length, OUTPUTS)
    assert seen(chosen) == {"a": ("passed", 0.5), "b": ("failed", 0), "c": ("failed", 0)}


def test_against_a_column_the_others_are_compared_with_it_and_it_is_never_gated() -> None:
    plan = plan_of(assertion("pairwise", criteria="longer", against="c", threshold=0.8))
    results, judge = done(plan, by_length, OUTPUTS)
    assert len(judge.requests) == 4
    assert seen(results) == {"a": ("failed", 0), "b": ("passed", 1), "c": ("not_evaluated", 0.5)}
    entries, _ = ranking(plan, results)
    assert [entry.label for entry in entries] == ["b", "c", "a"]


def test_against_the_expected_output_each_is_compared_alone() -> None:
    spec = assertion("pairwise", criteria="longer", against="expected_output")
    plan = plan_of(spec, expected_output="two words")
    results, judge = done(plan, by_length, OUTPUTS)
    assert len(judge.requests) == 4  # that of c is the very same text
    assert seen(results) == {
        "a": ("not_evaluated", 0),
        "b": ("not_evaluated", 1),
        "c": ("not_evaluated", 0.5),
    }
    assert "(the same text)" in (results[2].assertions[0].reason or "")
    entries, consistency = ranking(plan, results)
    assert {entry.label: (entry.wins, entry.ties, entry.losses) for entry in entries} == {
        "a": (0, 0, 1),
        "b": (1, 0, 0),
        "c": (0, 1, 0),
        "expected_output": (1, 1, 1),
    }
    assert consistency == 1
    alone = Plan(suite([plan.suite.tests[0]], prompts=PROMPTS, providers=(A,)), is_in_rows=True)  # type: ignore[index]
    assert not problems_of(alone)
    assert seen(done(alone, by_length, OUTPUTS)[0]) == {"a": ("not_evaluated", 0)}


def test_a_lost_order_is_an_error_of_both_cases_and_of_no_other() -> None:
    def says(request: ModelRequest) -> Answer:
        if shown(request) == [OUTPUTS["b"], OUTPUTS["a"]]:
            return "I would rather not."
        return by_length(request)

    plan = plan_of(PAIRWISE)
    results, _ = done(plan, says, OUTPUTS)
    assert seen(results) == {"a": ("error", None), "b": ("error", None), "c": ("not_evaluated", 0.5)}
    errors = [result.assertions[0].error for result in results[:2]]
    assert [error.type for error in errors if error] == ["JudgeParseError"] * 2
    assert "the comparison with `b`: no winner" in errors[0].message if errors[0] else False
    # What could be judged is in the ranking.
    entries, _ = ranking(plan, results)
    assert {entry.label: (entry.wins, entry.losses) for entry in entries} == {
        "a": (0, 1),
        "b": (1, 0),
        "c": (1, 1),
    }


def test_an_output_that_never_came_is_compared_with_none() -> None:
    results, _ = done(plan_of(PAIRWISE), by_length, {**OUTPUTS, "a": TIMEOUT})
    assert seen(results) == {"a": ("error", None), "b": ("not_evaluated", 1), "c": ("not_evaluated", 0)}
    alone, _ = done(plan_of(PAIRWISE), by_length, {**OUTPUTS, "a": TIMEOUT, "b": TIMEOUT})
    assert {item.status for item in alone} == {Status.ERROR}
    against = plan_of(assertion("pairwise", criteria="longer", against="a"))
    lost, _ = done(against, by_length, {**OUTPUTS, "a": TIMEOUT})
    assert {item.status for item in lost} == {Status.ERROR}
    error = lost[1].assertions[0].error
    assert error is not None
    assert "no output of `a`" in error.message


def test_a_budget_that_is_used_up_leaves_the_whole_row_undone() -> None:
    def says(request: ModelRequest) -> Answer:
        return BudgetError("used up") if shown(request)[0] == OUTPUTS["c"] else "unreadable"

    with pytest.raises(BudgetError):
        done(plan_of(PAIRWISE), says, OUTPUTS)


def weighed(first: float, tie: float = 0.0) -> ModelResponse:
    shares = {"1": first, "2": 1 - first - tie, "tie": tie}
    shown_shares = dict(sorted(((k, v) for k, v in shares.items() if v), key=lambda item: -item[1]))
    return weighed_reply('{"reason": "x", "winner": "', shown_shares, '"}')


def test_token_probabilities_make_a_soft_win() -> None:
    def says(request: ModelRequest) -> Answer:
        return weighed(0.9) if shown(request)[0] == OUTPUTS["b"] else weighed(0.2, tie=0.2)

    plan = plan_of(PAIRWISE, tests=1)
    two = Plan(suite([plan.suite.tests[0]], prompts=PROMPTS, providers=(A, B)), is_in_rows=True)  # type: ignore[index]
    results, judge = done(two, says, OUTPUTS)
    # b first: 0.9; b second: 0.6 and half of 0.2.
    assert seen(results) == {
        "a": ("not_evaluated", pytest.approx(0.2)),
        "b": ("not_evaluated", pytest.approx(0.8)),
    }
    assert results[0].assertions[0].detail["scored_by"] == "logprobs"
    assert all(request.want_logprobs for request in judge.requests)
    entries, _ = ranking(two, results)
    best = 1500 + 200 / math.log(10) * math.log(1.3 / 0.7)
    assert entries[0].rating == pytest.approx(best)
    single = plan_of(assertion("pairwise", criteria="x", scoring="single"))
    hard, judge = done(single, says, OUTPUTS)
    assert hard[1].assertions[0].detail["scored_by"] == "single"
    assert not any(request.want_logprobs for request in judge.requests)


def test_a_judge_that_must_give_probabilities_and_does_not_is_an_error() -> None:
    results, _ = done(plan_of(assertion("pairwise", criteria="x", scoring="logprobs")), by_length, OUTPUTS)
    assert {item.status for item in results} == {Status.ERROR}
    error = results[0].assertions[0].error
    assert error is not None
    assert "gives no token probabilities" in error.message


def test_repeats_are_comparisons_of_their_own_in_one_test() -> None:
    plan = plan_of(PAIRWISE, tests=2, repeats=2)
    results, judge = done(plan, by_length, OUTPUTS)
    assert len(judge.requests) == 2 * 2 * 6
    assert {request.repeat_index for request in judge.requests} == {0, 1}
    entries, _ = ranking(plan, results)
    assert [(entry.wins, entry.losses) for entry in entries] == [(8, 0), (4, 4), (0, 8)]


def test_prompts_that_differ_are_not_shown() -> None:
    """A judge that saw in what words each output was asked for could tell the prompts apart."""
    prompts = (PROMPTS[0], PromptSpec(id="q", label="Q", raw="As a pirate: {{ x }}"))
    tests = [case(0, vars={"x": "the sea"}, assertions=(PAIRWISE,))]
    plan = Plan(suite(tests, prompts=prompts, providers=(A,)), is_in_rows=True)
    _, judge = done(plan, by_length, OUTPUTS)
    assert judge.requests == []  # one model gave both the same answer

    outputs = iter(["short", "and longer"])
    plan = Plan(suite(tests, prompts=prompts, providers=(A,)), is_in_rows=True)
    judge = ScriptedJudge(by_length)

    async def generate(spec: ProviderSpec, request: ModelRequest) -> ModelResponse:
        return ModelResponse((Choice(next(outputs)),), Usage(1))

    async def run() -> None:
        context = JobContext(generate, tools_of(judge), columns=row_columns(plan.columns))
        groups = ComparisonGroups(context, lambda job: plan.cases_of(job.test))
        [queue] = plan.queues
        for job in queue:
            await groups.run(job)

    asyncio.run(run())
    assert len(judge.requests) == 2
    for request in judge.requests:
        assert "x: the sea" in prompt_of(request)
        assert "pirate" not in prompt_of(request)


def test_a_fair_judge_ranks_models_of_known_strength() -> None:
    """Outputs are as long as they are good; noise is in the outputs, so both orders agree."""
    random = Random(5)
    strengths = {"a": 10.0, "b": 12.0, "c": 14.0}
    plan = plan_of(PAIRWISE, tests=30)
    sums = RankingSums(plan.columns)
    for job_test in range(30):
        lengths = {name: max(1, round(random.gauss(mean, 3))) for name, mean in strengths.items()}
        one = Plan(suite([plan.suite.tests[job_test]], prompts=PROMPTS, providers=(A, B, C)), is_in_rows=True)  # type: ignore[index]
        results, _ = done(one, by_length, {name: "x" * length for name, length in lengths.items()})
        for result in results:
            sums.add(result)
    fixed = MetricSummary(0.5, 90, 0, interval=(0.4, 0.6))
    name = results[0].assertions[0].metric
    assert name is not None
    others = {name: fixed, "tone": fixed}
    summary = sums.with_rankings(RunSummary(metrics=others))
    # The mean over all columns is a half by design, so an interval would say nothing.
    assert {metric: found.interval for metric, found in summary.metrics.items()} == {
        name: None,
        "tone": fixed.interval,
    }
    [entries] = summary.rankings.values()
    assert [entry.label for entry in entries] == ["c", "b", "a"]
    assert all(
        entry.low < entry.rating < entry.high
        for entry in entries
        if entry.rating and entry.low and entry.high
    )
    assert entries[0].low is not None


def problems_of(plan: Plan) -> list[str]:
    return [problem.message for problem in check_plan(plan, Templates(), JudgeDefaults()).problems]


def planned(*providers: ProviderSpec, test: MergedTest | None = None, **keys: Any) -> Plan:
    spec = assertion(keys.pop("type", "pairwise"), **{"criteria": "x", **keys})
    return Plan(
        suite(
            [replace(test or case(vars={"x": 1}), assertions=(spec,))], prompts=PROMPTS, providers=providers
        )
    )


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (planned(A), "pairwise compares outputs, but test 1 has only one"),
        (planned(A, B, against="d"), "there is no prompt, provider or column called `d`"),
        (planned(A, B, against="P"), "`against: P` matches 2 columns, but must match one"),
        (
            planned(A, B, against="expected_output"),
            "test 1 has no expected_output for pairwise to compare with",
        ),
        (planned(A, against="expected_output"), "test 1 has no expected_output for pairwise to compare with"),
        (planned(A, B, type="not-pairwise"), "there is no `not-pairwise`"),
        (
            planned(A, B, transform="output.trim()"),
            "pairwise compares whole outputs and cannot have a `transform`",
        ),
        (planned(A, B, criteria=" "), "pairwise has no criteria"),
        (planned(A, B, criteria="{{ nobody }}"), "undefined variable `nobody`"),
    ],
)
def test_mistakes_are_told_before_anything_is_asked(plan: Plan, problem: str) -> None:
    assert problem in " ".join(problems_of(plan))
