"""One verdict from several assertions: of a test case, or of an assert-set. Pure."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from geval_cli.judge.scoring import passes
from geval_cli.metrics import weighted_mean
from geval_cli.records import AssertionResult, Status


class Verdict(Struct, frozen=True):
    """The verdict of several assertions: `score` is their weighted mean, None when one errored or none counted."""

    status: Status
    score: float | None


def verdict_of(assertions: Sequence[AssertionResult], threshold: float | None) -> Verdict:
    """Return one verdict from all assertions; with a `threshold` the weighted score decides instead of all-must-pass.

    An assertion with weight 0 is there for its metric: whether it passes decides nothing. That it could not be judged
    does, as ever.
    """
    statuses = {item.status for item in assertions if item.weight or item.status is Status.ERROR}
    score = None if Status.ERROR in statuses else weighted_score(assertions)
    if threshold is not None:
        return Verdict(_by_threshold(statuses, score, threshold), score)
    for status in (Status.FAILED, Status.ERROR, Status.PASSED):
        if status in statuses:
            return Verdict(status, score)
    is_measured = any(item.score is not None for item in assertions)
    return Verdict(Status.PASSED if is_measured else Status.NOT_EVALUATED, None)


def weighted_score(assertions: Iterable[AssertionResult]) -> float | None:
    """sum(weight * score) / sum(weight) over the assertions that have a score; None when no weight is left."""
    return weighted_mean([(item.weight, item.score) for item in assertions if item.score is not None])


def _by_threshold(statuses: set[Status], score: float | None, threshold: float) -> Status:
    if Status.ERROR in statuses:
        return Status.ERROR
    if score is None:
        return Status.NOT_EVALUATED
    return Status.PASSED if passes(score, threshold) else Status.FAILED
