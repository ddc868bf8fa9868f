"""Sum up a run from its events and results: figures, notices and flaky tests. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.events import ModelCalled, Noticed, RunEvent
from geval_cli.metrics import with_members
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    FlakyTest,
    MetricSummary,
    Role,
    RunSummary,
    Status,
    Usage,
)
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
        for metric, (score, errored) in metric_scores(result, members).items():
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


def metric_scores(
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


_NOTICES_MAX = 100


class Notices(Struct):
    """Texts that the user should know, each once and at most 100."""

    _texts: dict[str, None] = field(default_factory=dict)
    _left_out: set[tuple[str, str]] = field(default_factory=set)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._texts)

    def add(self, event: RunEvent) -> None:
        """Take note of an event, if it says something."""
        if isinstance(event, Noticed):
            self.say(event.message)
        elif isinstance(event, ModelCalled) and event.dropped:
            self._add_dropped(event)

    def say(self, text: str) -> None:
        """Add a text of one's own."""
        if len(self._texts) < _NOTICES_MAX:
            self._texts[text] = None

    def _add_dropped(self, event: ModelCalled) -> None:
        """The gateway tells what a server does not take when the server says so; an answer from the cache is silent."""
        new = [name for name in event.dropped if (event.provider_id, name) not in self._left_out]
        self._left_out.update((event.provider_id, name) for name in new)
        if new and event.usage.cached_requests and event.usage.cached_requests == event.usage.requests:
            names = ", ".join(f"`{name}`" for name in new)
            self.say(
                f"{event.provider_id} does not take {names}; its answers in the cache were given without"
            )


FLAKY_MAX = 100
"""So many flaky tests are named; all are counted."""

_VERDICTS = frozenset({Status.PASSED, Status.FAILED})


class _Repeats(Struct):
    """The repeats of one test in one column."""

    first: CaseResult
    passed: int = 0
    judged: int = 0
    scores: RunningMean = field(default_factory=RunningMean)

    def add(self, result: CaseResult) -> None:
        if result.status in _VERDICTS:
            self.judged += 1
            self.passed += result.status is Status.PASSED
        if result.score is not None:
            self.scores.add(result.score)

    @property
    def is_flaky(self) -> bool:
        return 0 < self.passed < self.judged

    def flaky_test(self) -> FlakyTest:
        return FlakyTest(
            test_index=self.first.test_index,
            column=self.first.column,
            description=self.first.description,
            passed=self.passed,
            judged=self.judged,
            mean=self.scores.mean,
            deviation=self.scores.deviation,
        )


def flaky_tests(results: Iterable[CaseResult]) -> tuple[tuple[FlakyTest, ...], int]:
    """Return the first hundred tests that both passed and failed, and how many there are in all.

    `results` come test by test, as the store gives them; of one test at a time, its repeats are held.
    """
    named: list[FlakyTest] = []
    count = 0
    for _, of_test in groupby(results, key=lambda result: result.test_index):
        columns: dict[int, _Repeats] = {}
        for result in of_test:
            columns.setdefault(result.column, _Repeats(result)).add(result)
        flaky = [repeats.flaky_test() for _, repeats in sorted(columns.items()) if repeats.is_flaky]
        count += len(flaky)
        named.extend(flaky[: FLAKY_MAX - len(named)])
    return tuple(named), count
