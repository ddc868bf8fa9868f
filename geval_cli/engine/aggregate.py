"""Sums over the cases of a run. Pure; how assertions make a case is in `assertions.verdict`."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.metrics import with_members
from geval_cli.records import AssertionResult, CaseResult, MetricSummary, Role, RunSummary, Status, Usage
from geval_cli.statistics.intervals import ClusteredMean, Interval, RunningMean, wilson_interval


class Tally(Struct):
    """Counts case results as they come; `summary` can be asked for at any time. Memory does not grow with cases.

    `bugs` counts the results that a bug in geval, and not the model or the judge, made an error. `has_clusters`:
    some tests have several cases, so that intervals take the results test by test (`with_clustered_intervals`), in
    which order they do not come here.
    """

    counts: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(Status, 0))
    usage: dict[Role, Usage] = field(default_factory=lambda: {role: Usage() for role in Role})
    bugs: int = 0
    has_clusters: bool = False
    _scores: dict[str, RunningMean] = field(default_factory=dict)
    _errors: dict[str, int] = field(default_factory=dict)

    def add(self, result: CaseResult) -> None:
        """Count one result."""
        members = [item for item, _ in with_members(result.assertions)]
        self.counts[result.status] += 1
        self.has_clusters = self.has_clusters or result.column > 0 or result.repeat_index > 0
        self.bugs += _is_spoilt_by_bug(result, members)
        for role, usage in result.usage.items():
            self.usage[role] = self.usage[role] + usage
        for metric, (score, errored) in _metric_scores(result, members).items():
            mean = self._scores.setdefault(metric, RunningMean())
            if score is not None:
                mean.add(score)
            self._errors[metric] = self._errors.get(metric, 0) + errored

    def summary(self) -> RunSummary:
        """Return the sums so far."""
        passed, failed = self.counts[Status.PASSED], self.counts[Status.FAILED]
        return RunSummary(
            total=sum(self.counts.values()),
            passed=passed,
            failed=failed,
            errored=self.counts[Status.ERROR],
            not_evaluated=self.counts[Status.NOT_EVALUATED],
            pass_rate=passed / (passed + failed) if passed + failed else None,
            metrics={
                metric: MetricSummary(scores.mean, scores.n, self._errors[metric], self._interval(scores))
                for metric, scores in sorted(self._scores.items())
            },
            usage=dict(self.usage),
            pass_interval=None if self.has_clusters else wilson_interval(passed, passed + failed),
        )

    def _interval(self, scores: RunningMean) -> Interval | None:
        return None if self.has_clusters else scores.interval()


def with_clustered_intervals(summary: RunSummary, results: Iterable[CaseResult]) -> RunSummary:
    """Return `summary` with intervals that take each test once, however many cases it has.

    `results` come test by test, as the store gives them.
    """
    passed, metrics = ClusteredMean(), {name: ClusteredMean() for name in summary.metrics}
    for result in results:
        if result.status in {Status.PASSED, Status.FAILED}:
            passed.add(result.test_index, float(result.status is Status.PASSED))
        for name, score in result.named_scores.items():
            if name in metrics:
                metrics[name].add(result.test_index, score)
    found = {
        name: replace(metric, interval=metrics[name].interval()) for name, metric in summary.metrics.items()
    }
    return replace(summary, metrics=found, pass_interval=passed.share_interval())


def _is_spoilt_by_bug(result: CaseResult, members: Sequence[AssertionResult]) -> bool:
    errors = [result.error, *[item.error for item in members]]
    return any(error is not None and error.is_bug for error in errors)


def _metric_scores(
    result: CaseResult, members: Sequence[AssertionResult]
) -> Mapping[str, tuple[float | None, int]]:
    """For each metric of a case: its score (None when nothing was scored) and how many assertions errored."""
    metrics = {item.metric for item in members if item.metric is not None}
    return {
        metric: (
            result.named_scores.get(metric),
            sum(1 for item in members if item.metric == metric and item.status is Status.ERROR),
        )
        for metric in metrics
    }
