"""`--require "spearman >= 0.4"`: conditions on a judge's agreement, which hold when the whole interval does."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from geval_cli.errors import ExitCode, UsageError
from geval_cli.records import Status
from geval_cli.source.problems import did_you_mean
from geval_cli.statistics.intervals import Estimate
from geval_cli.suite.gates import GATE, Comparison, Condition

if TYPE_CHECKING:  # it needs numpy, and estimates do not
    from geval_cli.extras.trust.agreement_records import MetricAgreement

_LEVELS = {"dataset": "dataset", "summary": "document_level", "system": "system"}
_CORRELATIONS = ("pearson", "spearman", "kendall")
_EXAMPLE = "write it as `spearman >= 0.4` or `coherence.kappa >= 0.6`"


def _of_people(name: str) -> "Callable[[MetricAgreement], Estimate | None]":
    return lambda item: None if item.people is None else getattr(item.people, name)


_OTHERS: "Mapping[str, Callable[[MetricAgreement], Estimate | None]]" = {
    "kappa": lambda item: item.verdicts.kappa,
    "shift": lambda item: item.bias.shift,
    "length": lambda item: item.bias.length,
    "alpha": _of_people("alpha_with_judge"),
    "ceiling": _of_people("share"),
}
STATISTICS = (*_CORRELATIONS, *_OTHERS)


class GateOutcome(Struct, frozen=True):
    """The result of a gate on one metric: `failed` it is not shown to hold, `error` nothing can be said.

    Attributes:
        bound: the end of the interval that was compared with the limit.
        note: why it failed, or why there is nothing.
    """

    gate: str
    metric: str
    status: Status
    bound: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Requirement(Condition):
    """A condition on a statistic, of one metric or of all of them."""

    text: str
    metric: str | None
    level: str
    statistic: str
    comparison: Comparison
    limit: float

    @classmethod
    def parse(cls, text: str, statistics: Sequence[str] = STATISTICS) -> "Requirement":
        """Return the gate that `text` says: `[METRIC.][LEVEL.]STATISTIC >= NUMBER`.

        Raises:
            UsageError: it is no gate, or of an unknown statistic.
        """
        found = GATE.match(text)
        if found is None or found["tags"] is not None or found["against"] is not None:
            raise UsageError(f"`{text}` is no requirement", hint=_EXAMPLE)
        rest, _, statistic = found["subject"].rpartition(".")
        if statistic not in statistics:
            near = did_you_mean(statistic, statistics)
            hint = f"did you mean `{near}`?" if near else f"known: {', '.join(statistics)}"
            raise UsageError(f"`{text}` requires an unknown statistic, `{statistic}`", hint=hint)
        metric, _, level = rest.rpartition(".")
        if level not in _LEVELS:
            metric, level = rest, "dataset"
        comparison: Comparison = found["comparison"]  # type: ignore[assignment]  # one of the four, by the pattern
        limit = float(found["limit"]) / (100 if found["percent"] else 1)
        metric = metric.strip().strip("\"'")
        return cls(text.strip(), metric or None, level, statistic, comparison, limit)

    def outcomes(self, metrics: "Sequence[MetricAgreement]") -> Iterator[GateOutcome]:
        """Yield the outcome for each metric that the gate is about.

        Raises:
            UsageError: there is no such metric.
        """
        return self.decide({item.metric: self._estimate(item) for item in metrics})

    def decide(self, estimates: Mapping[str, Estimate | None]) -> Iterator[GateOutcome]:
        """Yield the outcome for each metric that the gate is about, of its estimates by metric.

        Raises:
            UsageError: there is no such metric.
        """
        if self.metric is not None and self.metric not in estimates:
            near = did_you_mean(self.metric, estimates)
            hint = f"did you mean `{near}`?" if near else f"labelled: {', '.join(estimates)}"
            raise UsageError(f"`{self.text}` is about `{self.metric}`, which nobody labelled", hint=hint)
        for metric, estimate in estimates.items():
            if self.metric in (None, metric):
                yield self._outcome(metric, estimate)

    def _outcome(self, metric: str, estimate: Estimate | None) -> GateOutcome:
        if estimate is None or estimate.value is None:
            return GateOutcome(self.text, metric, Status.ERROR, None, "it is not defined for these labels")
        if estimate.interval is None:
            note = f"it is {estimate.value:.2f}, but too few independent outputs are labelled for an interval"
            return GateOutcome(self.text, metric, Status.ERROR, None, note)
        low, high = estimate.interval
        bound, _ = self.worst_and_best(low, high)
        note = f"it is {estimate.value:.2f}, 95 % interval {low:.2f} to {high:.2f}"
        return GateOutcome(
            self.text, metric, Status.PASSED if self.holds(bound) else Status.FAILED, bound, note
        )

    def _estimate(self, item: "MetricAgreement") -> Estimate | None:
        if self.statistic in _OTHERS:
            return _OTHERS[self.statistic](item)
        level = getattr(item, _LEVELS[self.level])
        found: Estimate | None = None if level is None else getattr(level, self.statistic)
        return found


def gates_exit_code(gates: Sequence[GateOutcome]) -> ExitCode:
    """Return 1 where a gate failed, else 3 where nothing could be said of one, else 0."""
    statuses = {gate.status for gate in gates}
    if Status.FAILED in statuses:
        return ExitCode.FAILED
    return ExitCode.NOT_JUDGED if Status.ERROR in statuses else ExitCode.OK
