"""`--require "spearman >= 0.4"`: conditions on figures about a judge, which hold when the whole interval does."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from geval_cli.errors import UsageError
from geval_cli.extras.trust.matching import hint_of
from geval_cli.records import Status
from geval_cli.statistics.intervals import Estimate
from geval_cli.suite.gates import GATE, Comparison, Condition

_LEVELS = ("dataset", "summary", "system")
_EXAMPLE = "write it as `spearman >= 0.4` or `coherence.kappa >= 0.6`"


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
    def parse(cls, text: str, statistics: Sequence[str]) -> "Requirement":
        """Return the gate that `text` says: `[METRIC.][LEVEL.]STATISTIC >= NUMBER`.

        Raises:
            UsageError: it is no gate, or of an unknown statistic.
        """
        found = GATE.match(text)
        if found is None or found["tags"] is not None or found["against"] is not None:
            name = statistics[-1]
            hint = (
                _EXAMPLE
                if "spearman" in statistics
                else f"write it as `{name} >= 80%` or `coherence.{name} >= 0.8`"
            )
            raise UsageError(f"`{text}` is not a requirement", hint=hint)
        rest, _, statistic = found["subject"].rpartition(".")
        if statistic not in statistics:
            message = f"`{text}` requires an unknown statistic, `{statistic}`"
            raise UsageError(message, hint=hint_of(statistic, statistics))
        metric, _, level = rest.rpartition(".")
        if level not in _LEVELS:
            metric, level = rest, "dataset"
        comparison: Comparison = found["comparison"]  # type: ignore[assignment]  # one of the four, by the pattern
        limit = float(found["limit"]) / (100 if found["percent"] else 1)
        metric = metric.strip().strip("\"'")
        return cls(text.strip(), metric or None, level, statistic, comparison, limit)

    def decide(self, estimates: Mapping[str, Estimate | None]) -> Iterator[GateOutcome]:
        """Yield the outcome for each metric that the gate is about, of its estimates by metric.

        Raises:
            UsageError: there is no such metric.
        """
        if self.metric is not None and self.metric not in estimates:
            message = f"`{self.text}` is about `{self.metric}`, which has no labels"
            raise UsageError(message, hint=hint_of(self.metric, estimates, "labelled"))
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
