"""The true mean and the true pass rate of a metric, from labels of some outputs and the judge's scores of all."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from geval_cli.extras.trust.labels.matching import JudgedItem
from geval_cli.statistics.estimate import Inference, Item, infer_mean, infer_rate

_DUST = 1e-9


class ScoredOutput(Struct, frozen=True):
    """The judge's score and verdict on one output, None where it broke, with the threshold that the run decided by."""

    id: str
    test: str
    score: float | None
    threshold: float | None
    passed: bool | None = None

    def is_passed(self, given: float | None, limit: float) -> bool:
        """Return the verdict of the run; by the score where a threshold is `given`, or the run has no verdict."""
        if given is None and self.passed is not None:
            return self.passed
        return (self.score or 0.0) >= limit - _DUST


class TrueFigures(Struct, frozen=True):
    """The figures of one metric, as if people had read all outputs; None where nobody read any.

    Attributes:
        judged_mean, judged_rate: the judge's own figures.
        threshold: scores from here on pass.
        labelled: outputs with a label and a score; `outputs` have a score, and on `errored` the judge broke.
    """

    mean: Inference | None
    rate: Inference | None
    judged_mean: float | None
    judged_rate: float | None
    threshold: float
    labelled: int
    outputs: int
    errored: int


def scored_outputs(metric: str, items: Iterable[JudgedItem]) -> list[ScoredOutput]:
    """Return the outputs of a run that a metric judged, or should have."""
    return [
        ScoredOutput(
            item.id,
            f"test {item.test_index}",
            item.scores[metric],
            item.thresholds.get(metric),
            item.verdicts.get(metric),
        )
        for item in items
        if metric in item.scores
    ]


def threshold_of(outputs: Sequence[ScoredOutput], good: float, given: float | None = None) -> float:
    """Return the threshold to pass: as given, else that of the run; `good` where it has none or several."""
    if given is not None:
        return given
    used = {item.threshold for item in outputs}
    (only,) = used if len(used) == 1 else (None,)
    return good if only is None else only


def true_figures(
    outputs: Sequence[ScoredOutput],
    marks: Mapping[str, float],
    *,
    good: float,
    threshold: float | None = None,
) -> TrueFigures:
    """Return the figures of one metric.

    Args:
        outputs: all of the run.
        marks: people's mean label, 0..1, by the id of an output; a random draw of them.
        good: mean labels from here on are good.
        threshold: scores from here on pass; None for the run's own verdicts.
    """
    limit = threshold_of(outputs, good, threshold)
    scored = [(item, item.score) for item in outputs if item.score is not None]
    items = [Item(score, marks.get(item.id), item.test) for item, score in scored]
    verdicts = [
        Item(float(item.is_passed(threshold, limit)), _verdict(marks.get(item.id), good), item.test)
        for item, _ in scored
    ]
    return TrueFigures(
        mean=infer_mean(items),
        rate=infer_rate(verdicts),
        judged_mean=_mean([item.judged for item in items]),
        judged_rate=_mean([item.judged for item in verdicts]),
        threshold=limit,
        labelled=sum(item.human is not None for item in items),
        outputs=len(scored),
        errored=len(outputs) - len(scored),
    )


def _verdict(human: float | None, good: float) -> float | None:
    return None if human is None else float(human >= good - _DUST)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
