"""Gates judged: one pass over the results of a run, a handful of sums for each gate. Pure."""

from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from geval_cli.config.gates import Gate, Statistic
from geval_cli.engine.quantiles import Quantiles
from geval_cli.engine.statistics import ClusteredMean, RunningMean
from geval_cli.records import CaseResult, GateResult, Status, Usage

_QUANTILES = {Statistic.LATENCY_P50: 0.5, Statistic.LATENCY_P95: 0.95, Statistic.LATENCY_P99: 0.99}

_LATENCIES = {Statistic.LATENCY_MEAN, *_QUANTILES}

ALL_PASS = Gate("failures <= 0", Statistic.FAILURES, "<=", 0)
"""What decides a run that nobody set a gate for."""


def judge_gates(
    gates: Sequence[Gate], results: Iterable[CaseResult], *, max_errors: int | None
) -> tuple[GateResult, ...]:
    """How each gate stands, and last whether there were more errors than `max_errors` allows (None: not asked).

    A gate that nothing could be counted for is an error, never passed. Too many errors are an error too: nothing was
    found to be bad, but not all was judged.
    """
    sums = [_Sums(gate) for gate in gates]
    errored = 0
    for result in results:
        errored += result.status is Status.ERROR
        for item in sums:
            item.add(result)
    found = [item.result() for item in sums]
    if max_errors is not None:
        status = Status.PASSED if errored <= max_errors else Status.ERROR
        note = "allowed by --max-errors" if max_errors else "--max-errors N allows some"
        found.append(GateResult(f"errors <= {max_errors}", status, float(errored), note))
    return tuple(found)


class _Sums(Struct):
    """What one gate needs of the results that its tags select."""

    gate: Gate
    cases: int = 0
    failed: int = 0
    errored: int = 0
    scores: ClusteredMean = field(default_factory=ClusteredMean)
    judged: ClusteredMean = field(default_factory=ClusteredMean)
    finished: ClusteredMean = field(default_factory=ClusteredMean)
    latencies: Quantiles = field(default_factory=Quantiles)
    latency: RunningMean = field(default_factory=RunningMean)
    usage: Usage = field(default_factory=Usage)

    def add(self, result: CaseResult) -> None:
        if not all(_has_tag(result, name, value) for name, value in self.gate.tags):
            return
        if self.gate.metric is None:
            self._count(result.status, result)
            if result.score is not None:
                self.scores.add(result.test_index, result.score)
        else:
            self._add_metric(result, self.gate.metric)
        for usage in result.usage.values():
            self.usage += usage
        if (
            result.latency_ms and not result.cached
        ):  # what the cache answers says nothing about the model's pace
            self.latencies.add(result.latency_ms)
            self.latency.add(result.latency_ms)

    def _add_metric(self, result: CaseResult, metric: str) -> None:
        """Count the assertions of the metric as one: it is as bad as the worst of them."""
        statuses = {item.status for item in result.assertions if item.metric == metric}
        if metric in result.named_scores:
            self.scores.add(result.test_index, result.named_scores[metric])
        for status in (Status.FAILED, Status.ERROR, Status.PASSED):
            if status in statuses:
                self._count(status, result)
                return

    def _count(self, status: Status, result: CaseResult) -> None:
        self.cases += 1
        self.failed += status is Status.FAILED
        self.errored += status is Status.ERROR
        has_passed = float(status is Status.PASSED)
        if status in {Status.PASSED, Status.FAILED}:
            self.judged.add(result.test_index, has_passed)
        if status is not Status.NOT_EVALUATED:
            self.finished.add(result.test_index, has_passed)

    def result(self) -> GateResult:
        """How the gate stands."""
        actual, note = self._actual()
        if actual is None:
            return GateResult(self.gate.text, Status.ERROR, None, self._nothing())
        if self.gate.holds(actual):
            return GateResult(self.gate.text, Status.PASSED, actual, note)
        # Too many errors are no verdict on the answers.
        status = Status.ERROR if self.gate.statistic is Statistic.ERRORS else Status.FAILED
        return GateResult(self.gate.text, status, actual, note)

    def _nothing(self) -> str:
        if self.gate.metric is not None:
            return f"no case has a score of {self.gate.metric}"
        if self.gate.tags and not self.cases:
            return "no case has these tags"
        if self.gate.statistic is Statistic.COST:
            return "a price is unknown"
        return "no answer was timed" if self.gate.statistic in _LATENCIES else "there is nothing to count"

    def _actual(self) -> tuple[float | None, str]:
        """What is compared with the limit, and a note on how sure it is."""
        match self.gate.statistic:
            case Statistic.MEAN:
                return self.scores.mean, _interval_note(self.scores.interval(), self.scores.n)
            case Statistic.PASS_RATE:
                return _share(self.judged)
            case Statistic.PASSED:
                return _share(self.finished)
            case Statistic.FAILURES:
                return self._counted(self.failed)
            case Statistic.ERRORS:
                return self._counted(self.errored)
            case Statistic.COST:
                return self.usage.cost_usd, ""
            case Statistic.LATENCY_MEAN:
                return self.latency.mean, f"n={self.latency.n}"
        return self.latencies.at(_QUANTILES[self.gate.statistic]), f"n={self.latencies.n}"

    def _counted(self, count: int) -> tuple[float | None, str]:
        if not self.cases:
            return None, ""
        if self.gate.is_share:
            return count / self.cases, f"{count:,} of {self.cases:,}"
        return float(count), f"of {self.cases:,}"


def errors_are_gated(gates: Iterable[Gate]) -> bool:
    """Whether one of the gates says how many errors of the whole run are allowed."""
    return any(item.statistic is Statistic.ERRORS and not item.metric and not item.tags for item in gates)


def passed_gate(share: float) -> Gate:
    """The gate that `--fail-under SHARE` stands for; errors count as not passed."""
    return Gate(f"passed >= {share:g}", Statistic.PASSED, ">=", share)


def _has_tag(result: CaseResult, name: str, value: str) -> bool:
    if name not in result.metadata:
        return False
    found = result.metadata[name]
    texts = [_tag_text(item) for item in found] if isinstance(found, list | tuple) else [_tag_text(found)]
    return value in texts


def _tag_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _share(cases: ClusteredMean) -> tuple[float | None, str]:
    return cases.mean, _interval_note(cases.share_interval(), cases.n)


def _interval_note(interval: tuple[float, float] | None, n: int) -> str:
    if interval is None:
        return f"n={n}"
    low, high = interval
    return f"n={n}, 95 % interval {low:.2f} to {high:.2f}"
