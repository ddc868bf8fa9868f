"""The criteria that the judges of a run were given, metric by metric: people who label its outputs read it."""

from collections.abc import Mapping

from msgspec import Struct

from geval_cli.judge.dimensions import DIMENSIONS
from geval_cli.metrics import with_members
from geval_cli.records import AssertionResult, CaseResult, JsonValue


class ShownCriterion(Struct, frozen=True):
    """The words that told a judge where to look; empty where the run does not say."""

    text: str = ""
    steps: tuple[str, ...] = ()


class MetricCriteria:
    """Collects the criteria of each metric from the results of a run.

    Attributes:
        criteria: by metric, of the first assertion that says any.
        judged: metrics that a model judged.
    """

    def __init__(self) -> None:
        self.criteria: dict[str, ShownCriterion] = {}
        self.judged: set[str] = set()

    def add(self, result: CaseResult) -> None:
        """Learn what the assertions of one result say."""
        for assertion, _ in with_members(result.assertions):
            if assertion.metric is not None:
                self._learn(assertion.metric, assertion)

    def chosen(self, known: set[str]) -> set[str]:
        """Return the metrics of `known` that a model judged; all of them where it judged none."""
        return known & self.judged or known

    def _learn(self, metric: str, assertion: AssertionResult) -> None:
        detail: Mapping[str, JsonValue] = assertion.detail
        if "judge" in detail or assertion.type.endswith("g-eval"):
            self.judged.add(metric)
        if metric in self.criteria and self.criteria[metric].text:
            return
        dimension, written = str(detail.get("dimension")), detail.get("criteria")
        if isinstance(written, list | tuple):
            written = "\n".join(map(str, written))
        text = DIMENSIONS[dimension].definition if dimension in DIMENSIONS else str(written or "")
        steps = detail.get("evaluation_steps") or ()
        self.criteria[metric] = ShownCriterion(text, tuple(map(str, steps)))
