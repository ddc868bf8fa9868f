"""assert-set: several assertions that count as one, with a threshold, a weight and a metric of its own."""

from pydantic import AliasChoices, Field

from geval_cli.assertions.base import Assertion, Subject, Tools
from geval_cli.assertions.outcome import Outcome, verdict_of
from geval_cli.numbers import format_score_beside, format_threshold
from geval_cli.records import AssertionResult, Status
from geval_cli.specs.base import Score


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
        """Judge all members side by side. Without a threshold each of them must pass."""
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
