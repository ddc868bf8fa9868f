"""Assertions that contain others or wait for a person: assert-set, human."""

from pydantic import AliasChoices, Field

from geval_cli.assertions.base import Assertion, Outcome, Subject, Tools, verdict_of
from geval_cli.numbers import format_score_beside, format_threshold
from geval_cli.records import AssertionResult, Status
from geval_cli.specs.base import Score


class HumanAssertion(Assertion):
    """human: a note for a human reviewer; stored with the result, not evaluated."""

    value: str | None = Field(None, description="What the reviewer should look at.")

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Return an outcome that is not evaluated."""
        return Outcome.not_evaluated("a person has to judge this")


class AssertSet(Assertion):
    """assert-set: a group of assertions that counts as one."""

    assertions: tuple[Assertion, ...] = Field(
        validation_alias=AliasChoices("assert", "assertions"),
        description="The assertions of the set; sets don't nest.",
    )
    threshold: Score | None = Field(
        None,
        description=(
            "If set, the weighted mean score of the set must reach it; single assertions don't decide."
        ),
    )

    @property
    def members(self) -> tuple[Assertion, ...]:
        return self.assertions

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Judge all members concurrently. Without a threshold, each of them must pass."""
        results = tuple(await tools.judge_each(self.assertions, subject))
        verdict = verdict_of(results, self.threshold)
        return Outcome(
            status=verdict.status,
            score=verdict.score,
            reason=_reason(results, verdict.score, self.threshold),
            threshold=self.threshold,
            assertions=results,
        )


def _reason(results: tuple[AssertionResult, ...], score: float | None, threshold: float | None) -> str:
    errored = [result for result in results if result.status is Status.ERROR]
    failed = [result for result in results if result.status is Status.FAILED and result.weight]
    if failed and threshold is None:
        return f"{failed[0].type}: {failed[0].reason or 'failed'}"
    if errored:
        return f"{len(errored)} of {len(results)} assertions in the set could not be judged"
    if threshold is not None and score is not None:
        own = format_score_beside(score, threshold)
        return f"the score of the set is {own}; the threshold is {format_threshold(threshold)}"
    passed = sum(result.status is Status.PASSED for result in results)
    if not passed:
        return "no assertion in the set was evaluated"
    if passed == len(results):
        return f"all {passed} assertions in the set pass" if passed > 1 else "the assertion in the set passes"
    return f"{passed} of {len(results)} assertions in the set pass, and the others decide nothing"
