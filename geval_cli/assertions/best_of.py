"""select-best, max-score: of all outputs of a test, the one passes that a judge chooses, or that scores highest."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from msgspec.structs import replace
from pydantic import Field

from geval_cli.assertions.base import (
    Amount,
    Assertion,
    CheckContext,
    ModelGradedAssertion,
    Outcome,
    RowMember,
    Tools,
    ValueRules,
    check_texts,
)
from geval_cli.assertions.graded.judges import JudgeClient, Question, check_own_prompt, own_prompt
from geval_cli.errors import Problem, UnjudgeableError
from geval_cli.judge.calls import reply_schema
from geval_cli.judge.prompt import Block
from geval_cli.judge.replies.verdicts import parse_choice
from geval_cli.judge.scoring import passes
from geval_cli.numbers import format_score, format_score_beside, format_threshold
from geval_cli.records import AssertionResult, Purpose

_COMPARING = ("select-best", "max-score")
_LEAST_COMPARED = 2
_SCHEMA: Mapping[str, Any] = reply_schema({"reason": {"type": "string"}, "best": {"type": "integer"}})


class MaxScoreRules(ValueRules):
    """How the scores of one output become one number."""

    method: Literal["average", "sum"] = Field("average", description="The weighted mean or the weighted sum.")
    weights: dict[str, Amount] = Field(
        default_factory=dict, description="The weight of each assertion type; 1 by default."
    )
    threshold: Amount | None = Field(None, description="The lowest score with which the best output passes.")


class MaxScoreAssertion(Assertion):
    """max-score: the output whose other assertions have the highest score passes."""

    value_form = (MaxScoreRules, "the rules of a max-score")
    compares_outputs = True

    value: MaxScoreRules = Field(
        default_factory=MaxScoreRules,
        description="How to combine the scores: {method, weights, threshold}.",
    )

    def check(self, context: CheckContext) -> list[Problem]:
        """Return a problem where there are no other assertions, whose scores could be compared."""
        if any(not other.compares_outputs for other in context.test.assertions):
            return []
        message = "max-score compares the scores of other assertions, and there are none"
        return [Problem(message, self.place.value("type"), "add the assertions that score the outputs")]

    async def judge_row(self, members: Sequence[RowMember], tools: Tools) -> Sequence[Outcome]:
        """Pass the output with the highest score, the first of several, in the order of `members`.

        Raises:
            UnjudgeableError: there are fewer than two outputs.
        """
        del tools
        check_is_comparable(members)
        scores = [total_score(member.assertions, self.value) for member in members]
        highest = max(scores)
        reaches = self.value.threshold is None or passes(highest, self.value.threshold)
        best = scores.index(highest) if reaches else -1
        return [
            Outcome.of(place == best, _reason(score, highest, self.value, chosen=place == best), total=score)
            for place, score in enumerate(scores)
        ]


def total_score(assertions: Sequence[AssertionResult], rules: MaxScoreRules) -> float:
    """Return the weighted mean, or sum, of the scores; types without a weight of their own weigh 1."""
    weighed = [
        (rules.weights.get(result.type, 1.0), result.score or 0.0)
        for result in assertions
        if result.type.removeprefix("not-") not in _COMPARING
    ]
    total = sum(weight * score for weight, score in weighed)
    weights = sum(weight for weight, _ in weighed)
    if rules.method == "sum":
        return total
    return total / weights if weights else 0.0


def _reason(score: float, highest: float, rules: MaxScoreRules, *, chosen: bool) -> str:
    if chosen:
        return f"the highest score in the row: {format_score(score)}"
    if rules.threshold is not None and not passes(highest, rules.threshold):
        own = format_score_beside(score, rules.threshold)
        return f"no output in the row reaches {format_threshold(rules.threshold)}; this one has {own}"
    own, best = format_score_beside(score, highest), format_score_beside(highest, score)
    return f"the score is {own}; the highest in the row is {best}"


class SelectBestAssertion(ModelGradedAssertion):
    """select-best: a judge picks the output of a test that best meets the criterion."""

    value_form = "text"
    compares_outputs = True

    value: str = Field(description="The criterion; a template, may be file://.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the criterion and of the user's own prompt in one test."""
        problems: list[Problem] = []
        check_texts(self.value, self.place.child("value"), context, problems)
        check_own_prompt(self, context, ("criteria", "outputs"), problems)
        return problems

    async def judge_row(self, members: Sequence[RowMember], tools: Tools) -> Sequence[Outcome]:
        """Pass the output that the judge chose, in the order of `members`.

        Raises:
            JudgeError, ProviderError: no choice could be had.
            UnjudgeableError: there are fewer than two outputs.
        """
        check_is_comparable(members)
        subject = members[0].subject
        criterion = tools.templates.render(self.value, subject.test.variables)
        outputs = [member.subject.text for member in members]
        blocks = [Block(f"Output {number}", text) for number, text in enumerate(outputs, 1)]
        question = Question(
            "best",
            (Block("Criterion", criterion), *blocks),
            {"criteria": criterion, "outputs": outputs},
            _SCHEMA,
            purpose=Purpose.CHOICE,
        )
        # Prompts in promptfoo's manner count outputs from 0.
        first = 0 if own_prompt(self, subject.test) is not None else 1
        judge = JudgeClient(self, subject, tools)
        read = partial(parse_choice, count=len(outputs), first=first)
        best, reason = await judge.ask(question, read)
        why = f": {reason}" if reason else ""
        outcomes = [
            Outcome.of(place == best, f"{'chosen' if place == best else 'not chosen'} for {criterion!r}{why}")
            for place in range(len(outputs))
        ]
        return [replace(outcome, latency_ms=judge.latency_ms) for outcome in outcomes]


def check_is_comparable(members: Sequence[RowMember]) -> None:
    """Raise UnjudgeableError unless there are several outputs to compare.

    Raises:
        UnjudgeableError: fewer than two outputs could be had.
    """
    if len(members) < _LEAST_COMPARED:
        raise UnjudgeableError(
            "this test has fewer than two outputs to compare",
            hint="see the errors of the other cases of the test",
        )
