"""assert-set: several assertions that count as one, with a threshold, a weight and a metric of its own."""

from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools
from geval_cli.assertions.verdict import verdict_of
from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.config.assertion_schema import AssertSetSpec
from geval_cli.errors import Problem
from geval_cli.numbers import format_score_beside
from geval_cli.records import AssertionResult, Status


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Nothing of its own; the registry checks the members."""
    return []


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """Judge all members side by side. Without a threshold each of them must pass."""
    assert isinstance(spec, AssertSetSpec)
    results = tuple(await tools.judge_each(spec.assertions, subject))
    verdict = verdict_of(results, spec.threshold)
    return Outcome(
        status=verdict.status,
        score=verdict.score,
        reason=_reason(results, verdict.score, spec.threshold),
        threshold=spec.threshold,
        assertions=results,
    )


def _reason(results: tuple[AssertionResult, ...], score: float | None, threshold: float | None) -> str:
    errored = [result for result in results if result.status is Status.ERROR]
    failed = [result for result in results if result.status is Status.FAILED and result.weight]
    if errored:
        return f"{len(errored)} of {len(results)} assertions of the set could not be judged"
    if threshold is not None and score is not None:
        return (
            f"the score of the set is {format_score_beside(score, threshold)}; the threshold is {threshold:g}"
        )
    if failed:
        return f"{failed[0].type}: {failed[0].reason or 'failed'}"
    return f"all {len(results)} assertions of the set pass"
