"""People's word on outputs of a run beside the judge's."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from msgspec import Struct, field

from geval_cli.extras.trust.labels.file import GOOD_AT, labels_from_rows
from geval_cli.extras.trust.labels.matching import JudgedItem, judged_items
from geval_cli.extras.trust.labels.sheet import LabelledOutput, MetricLabels
from geval_cli.judge.scoring import passes
from geval_cli.records import CaseResult, JsonValue
from geval_cli.report.sanitize import value_text
from geval_cli.store.labels import StoredLabel

_EXCERPT = 1000


class Reviewed(Struct, frozen=True):
    """A judge and one person on one output.

    Attributes:
        label: as it was given; `human` is it on 0..1, `score` the judge's; None where it broke.
        differ: how far apart they are, 0..1.
        passed: the judge's verdict, whatever its score; None where it gave none.
        is_flipped: whether one finds the output good and the other does not; None without a verdict of the judge.
    """

    id: str
    metric: str
    annotator: str
    label: JsonValue
    human: float
    score: float | None
    threshold: float
    passed: bool | None
    differ: float | None
    is_flipped: bool | None
    note: str
    output: str = field(default="")

    @property
    def order(self) -> tuple[int, float]:
        """Flipped verdicts first, then the widest differences, then what the judge could not judge."""
        if self.differ is None:
            return 2, 0.0
        return (0 if self.is_flipped else 1), -self.differ


def review(results: Iterable[CaseResult], kept: Iterable[StoredLabel]) -> list[Reviewed]:
    """Return what people and the judge said, disagreements first. Labels of other texts than the run's are left out."""
    labels: dict[str, list[StoredLabel]] = {}
    for label in kept:
        labels.setdefault(label.case_id, []).append(label)
    rows: list[Reviewed] = []
    for result in results:
        if result.id not in labels:
            continue
        for item in judged_items([result]):
            here = [given for given in labels[result.id] if given.output_sha256 == item.output_sha256]
            rows += [_reviewed(given, item, result) for given in here if given.metric in item.scores]
    return sorted(rows, key=lambda row: row.order)


def _reviewed(label: StoredLabel, item: JudgedItem, result: CaseResult) -> Reviewed:
    [read] = labels_from_rows([label.row]).labels
    human, score, passed = read.human, item.scores[label.metric], item.verdicts.get(label.metric)
    threshold = item.thresholds.get(label.metric, GOOD_AT)
    differ = None if score is None else abs(score - human)
    return Reviewed(
        id=label.case_id,
        metric=label.metric,
        annotator=label.annotator,
        label=label.row["label"],
        human=human,
        score=score,
        threshold=threshold,
        passed=passed,
        differ=differ,
        is_flipped=None if passed is None else passed != passes(human, GOOD_AT),
        note=label.row.get("note") or "",
        output=value_text(result.output)[:_EXCERPT],
    )


def labels_by_metric(results: Iterable[CaseResult], kept: Sequence[StoredLabel]) -> list[MetricLabels]:
    """Return of each labelled metric the outputs that have the judge's score too, with the mean of all people.

    Labels of other texts than those of `results` are left out, and so are metrics that nothing is left of.
    """
    by_metric: dict[str, dict[str, list[Reviewed]]] = {label.metric: {} for label in kept}
    for row in review(results, kept):
        if row.score is not None:
            by_metric[row.metric].setdefault(row.id, []).append(row)
    return [
        MetricLabels(metric, GOOD_AT, [_labelled(rows) for rows in outputs.values()])
        for metric, outputs in by_metric.items()
        if outputs
    ]


def _labelled(rows: Sequence[Reviewed]) -> LabelledOutput:
    first = rows[0]
    return LabelledOutput(
        id=first.id,
        label=fmean(row.human for row in rows),
        score=first.score or 0.0,
        threshold=first.threshold,
        passed=first.passed,
    )
