"""Sums: assertions to a case, cases to a run. Pure; the rules are GEVAL.md, section 4."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from geval_cli.judge.scoring import passes
from geval_cli.records import AssertionResult, CaseResult, MetricSummary, Role, RunSummary, Status, Usage


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """How a case stands: `score` is the weighted mean of its assertions, None when one errored or none counted."""

    status: Status
    score: float | None


def judge_case(assertions: Sequence[AssertionResult], threshold: float | None) -> CaseVerdict:
    """One verdict from all assertions; with a `threshold` the weighted score decides instead of all-must-pass."""
    statuses = {assertion.status for assertion in assertions}
    score = None if Status.ERROR in statuses else weighted_score(assertions)
    if threshold is not None:
        return CaseVerdict(_by_threshold(statuses, score, threshold), score)
    for status in (Status.FAILED, Status.ERROR, Status.PASSED):
        if status in statuses:
            return CaseVerdict(status, score)
    return CaseVerdict(Status.NOT_EVALUATED, None)


def weighted_score(assertions: Iterable[AssertionResult]) -> float | None:
    """sum(weight * score) / sum(weight) over the assertions that have a score; None when no weight is left."""
    scored = [(assertion.weight, assertion.score) for assertion in assertions if assertion.score is not None]
    total = sum(weight for weight, _ in scored)
    return sum(weight * score for weight, score in scored) / total if total else None


def named_scores(assertions: Iterable[AssertionResult]) -> dict[str, float]:
    """The weighted mean score of each metric within one case."""
    by_metric: dict[str, list[AssertionResult]] = {}
    for assertion in assertions:
        if assertion.metric is not None:
            by_metric.setdefault(assertion.metric, []).append(assertion)
    means = {metric: weighted_score(members) for metric, members in by_metric.items()}
    return {metric: mean for metric, mean in means.items() if mean is not None}


@dataclass(slots=True)
class Tally:
    """Counts case results as they come; `summary` can be asked for at any time. Memory does not grow with cases.

    `bugs` counts the results that a bug in geval, and not the model or the judge, made an error.
    """

    counts: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(Status, 0))
    usage: dict[Role, Usage] = field(default_factory=lambda: {role: Usage() for role in Role})
    bugs: int = 0
    _scores: dict[str, tuple[float, int, int]] = field(default_factory=dict)

    def add(self, result: CaseResult) -> None:
        """Count one result."""
        self.counts[result.status] += 1
        self.bugs += _is_spoilt_by_bug(result)
        for role, usage in result.usage.items():
            self.usage[role] = self.usage[role] + usage
        for metric, (score, errored) in _metric_scores(result).items():
            total, scored, errors = self._scores.get(metric, (0.0, 0, 0))
            self._scores[metric] = (total + (score or 0.0), scored + (score is not None), errors + errored)

    def summary(self) -> RunSummary:
        """The sums so far."""
        passed, failed = self.counts[Status.PASSED], self.counts[Status.FAILED]
        return RunSummary(
            total=sum(self.counts.values()),
            passed=passed,
            failed=failed,
            errored=self.counts[Status.ERROR],
            not_evaluated=self.counts[Status.NOT_EVALUATED],
            pass_rate=passed / (passed + failed) if passed + failed else None,
            metrics={
                metric: MetricSummary(total / scored if scored else None, scored, errored)
                for metric, (total, scored, errored) in sorted(self._scores.items())
            },
            usage=dict(self.usage),
        )


def _is_spoilt_by_bug(result: CaseResult) -> bool:
    errors = [result.error, *(assertion.error for assertion in result.assertions)]
    return any(error is not None and error.is_bug for error in errors)


def _by_threshold(statuses: set[Status], score: float | None, threshold: float) -> Status:
    if Status.ERROR in statuses:
        return Status.ERROR
    if score is None:
        return Status.NOT_EVALUATED
    return Status.PASSED if passes(score, threshold) else Status.FAILED


def _metric_scores(result: CaseResult) -> Mapping[str, tuple[float | None, int]]:
    """For each metric of a case: its score (None when nothing was scored) and how many assertions errored."""
    metrics = {assertion.metric for assertion in result.assertions if assertion.metric is not None}
    return {
        metric: (
            result.named_scores.get(metric),
            sum(1 for item in result.assertions if item.metric == metric and item.status is Status.ERROR),
        )
        for metric in metrics
    }
