"""One verdict from several assertions: of a test case, or of an assert-set. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from geval_cli.judge.scoring import passes
from geval_cli.records import AssertionResult, Status


class Verdict(Struct, frozen=True):
    """How several assertions stand together: `score` is their weighted mean, None when one errored or none counted."""

    status: Status
    score: float | None


def verdict_of(assertions: Sequence[AssertionResult], threshold: float | None) -> Verdict:
    """One verdict from all assertions; with a `threshold` the weighted score decides instead of all-must-pass.

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
    return _weighted_mean([(item.weight, item.score) for item in assertions if item.score is not None])


def named_scores(assertions: Iterable[AssertionResult]) -> dict[str, float]:
    """The weighted mean score of each metric within one case; members of a set count with the set's weight too.

    A metric that only assertions with weight 0 have is their plain mean. Parts of an assertion do not count for its
    own metric once more.
    """
    by_metric: dict[str, list[tuple[float, float]]] = {}
    for metric, weight, score in _measured(assertions):
        by_metric.setdefault(metric, []).append((weight, score))
    means = {}
    for metric, scored in by_metric.items():
        weighted = _weighted_mean(scored)
        means[metric] = sum(score for _, score in scored) / len(scored) if weighted is None else weighted
    return means


def _measured(
    assertions: Iterable[AssertionResult], weight: float = 1.0, outer: frozenset[str] = frozenset()
) -> Iterator[tuple[str, float, float]]:
    """Metric, weight and score of every result that has them; `outer` are the metrics that are already counted."""
    for result in assertions:
        own = frozenset() if result.metric is None else frozenset({result.metric})
        counted = result.score is not None
        if result.metric is not None and result.score is not None and not own <= outer:
            yield result.metric, weight * result.weight, result.score
        yield from _measured(result.assertions, weight * result.weight, outer | own if counted else outer)


def with_members(
    assertions: Iterable[AssertionResult], weight: float = 1.0
) -> Iterator[tuple[AssertionResult, float]]:
    """Every assertion with its weight, each set followed by its members."""
    for result in assertions:
        yield result, weight * result.weight
        yield from with_members(result.assertions, weight * result.weight)


def _weighted_mean(scored: Sequence[tuple[float, float]]) -> float | None:
    total = sum(weight for weight, _ in scored)
    return sum(weight * score for weight, score in scored) / total if total else None


def _by_threshold(statuses: set[Status], score: float | None, threshold: float) -> Status:
    if Status.ERROR in statuses:
        return Status.ERROR
    if score is None:
        return Status.NOT_EVALUATED
    return Status.PASSED if passes(score, threshold) else Status.FAILED
