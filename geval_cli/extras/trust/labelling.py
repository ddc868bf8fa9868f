"""Outputs of a run that people label: which ones, their labels as rows, and people's word beside the judge's."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from msgspec import Struct, field

from geval_cli.errors import UsageError
from geval_cli.extras.trust.charts import label_charts
from geval_cli.extras.trust.labels import (
    DRAW_COLUMN,
    GOOD_AT,
    UNIT_SCALE,
    LabelFile,
    LabelledOutput,
    Scale,
    draw,
    labels_from_rows,
    read_labels,
)
from geval_cli.extras.trust.matching import JudgedItem, hint_of, judged_items, match_labels, scores_of
from geval_cli.judge.scoring import passes
from geval_cli.records import CaseResult, JsonValue
from geval_cli.report.charts.drawing import Chart, Links
from geval_cli.report.criteria import Criterion, MetricCriteria
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import one_line, output_digest, value_text
from geval_cli.store.labels import RunLabels, StoredLabel
from geval_cli.store.runs import RunStore
from geval_cli.store.state import open_runs

_DIGITS = 12
_WORDS = {1.0: "pass", 0.0: "fail"}


class Output(Struct, frozen=True):
    """One output to label on one metric, without its text.

    Attributes:
        id: of the result; `test_index`, `repeat_index` and `column` find it in the run.
        output_sha256: of the text, as labels name it.
    """

    id: str
    test_index: int
    repeat_index: int
    column: int
    metric: str
    output_sha256: str


class Sheet(Struct, frozen=True):
    """The outputs to label, in the order in which they are shown, and the criteria of each metric."""

    outputs: tuple[Output, ...]
    criteria: Mapping[str, Criterion]


class LabelChoice(Struct, frozen=True):
    """A choice among the outputs of a run.

    Attributes:
        metrics: which ones; empty for all that a model judged, or all there are where none did.
        count: how many outputs are drawn at random; None for all, in the order of the run.
        seed: of the draw.
    """

    metrics: tuple[str, ...] = ()
    count: int | None = None
    seed: int = 0


def outputs_to_label(results: Iterable[CaseResult], choice: LabelChoice) -> Sheet:
    """Return what is to be labelled of a run. Goes through it once and keeps no texts.

    Raises:
        UsageError: nothing in it has a metric, or not one that is chosen.
    """
    found: dict[str, list[Output]] = {}
    criteria = MetricCriteria()
    scored: dict[str, frozenset[str]] = {}
    for result in results:
        if result.output is None:
            continue
        digest = output_digest(result.output)
        place = (result.id, result.test_index, result.repeat_index, result.column)
        criteria.add(result)
        scores = scores_of(result)
        found[result.id] = [Output(*place, metric, digest) for metric in scores]
        scored[result.id] = frozenset(metric for metric, score in scores.items() if score is not None)
    known = {item.metric for items in found.values() for item in items}
    metrics = _checked_metrics(choice.metrics, known) or criteria.chosen(known)
    named = {name: [item for item in items if item.metric in metrics] for name, items in found.items()}
    order = [name for name, items in named.items() if items]
    if choice.count is not None:  # labels of what the judge could not judge are compared with nothing
        order = draw((name for name in order if scored[name] & metrics), choice.count, seed=choice.seed)
    return Sheet(tuple(item for name in order for item in named[name]), criteria.criteria)


def _checked_metrics(wanted: Sequence[str], known: set[str]) -> set[str]:
    if not known:
        hint = "give an assertion a `metric`; a g-eval with a `dimension` has one"
        raise UsageError("no output of this run has a metric to label", hint=hint)
    for name in wanted:
        if name not in known:
            hint = hint_of(name, sorted(known), "the run has")
            raise UsageError(f"no output of this run has the metric `{name}`", hint=hint)
    return set(wanted)


class Given(Struct, frozen=True):
    """One person's word on one output; None as `label`: nothing yet. `annotator` is "" for nobody in particular.

    `draw` names the random draw that the output is from; "" for none.
    """

    label: float | None = None
    scale: Scale = UNIT_SCALE
    annotator: str = ""
    note: str = ""
    draw: str = ""


def label_row(item: JudgedItem, metric: str, run_id: str, given: Given) -> dict[str, JsonValue]:
    """Return a label as a line of a file of labels has it: the ends of 0 to 1 are written as `fail` and `pass`."""
    document = item.metadata.get("doc")
    row: dict[str, JsonValue] = {
        "id": item.id,
        "metric": metric,
        "label": _written(given.label, given.scale),
        "scale": None if given.scale == UNIT_SCALE else [_whole(end) for end in given.scale],
        "annotator": given.annotator or None,
        "note": given.note.strip() or None,
        DRAW_COLUMN: given.draw or None,
        "run_id": run_id,
        "output_sha256": item.output_sha256,
        "test_key": item.test_key,
        "prompt": item.prompt[1] or None,
        "provider": item.provider[1] or None,
        "repeat": item.repeat,
        "doc": document if isinstance(document, str | int) and not isinstance(document, bool) else None,
    }
    return {key: value for key, value in row.items() if value is not None or key == "label"}


def _written(label: float | None, scale: Scale) -> JsonValue:
    if label is None:
        return None
    return _WORDS.get(label, label) if scale == UNIT_SCALE else _whole(label)


def _whole(value: float) -> float:
    return int(value) if float(value).is_integer() else value


def stored_label(row: Mapping[str, JsonValue]) -> StoredLabel:
    """Return a row of `label_row` as it is stored."""
    return StoredLabel(row["id"], row["metric"], row.get("annotator") or "", row["output_sha256"], dict(row))


def kept_labels(labels: RunLabels, run_id: str) -> LabelFile:
    """Return the labels that are kept for a run.

    Raises:
        UsageError: there are none.
    """
    rows = [item.row for item in labels.of_run(run_id)]
    if not rows:
        hint = f"make them with `geval label {run_id}`, or name a file of labels"
        raise UsageError(f"no labels are kept for run {run_id}", hint=hint)
    return labels_from_rows(rows, f"labels kept for {run_id}")


def removed_run(runs: RunStore, name: str) -> str | None:
    """Return the id of a run that was removed and whose labels are kept; None for a run that is there.

    Raises:
        UsageError: there is no such run, and no labels of one, or of several.
    """
    try:
        runs.find(name)
    except UsageError:
        found = runs.labels().runs(name) if name else []
        if len(found) != 1:
            raise
        return found[0]
    return None


def labels_kept_for(run_id: str, home: Path | None) -> LabelFile:
    """Return the labels that the state in `home` keeps for a run.

    Raises:
        UsageError: there are none.
    """
    with open_runs(home, os.environ) as runs:
        return kept_labels(runs.labels(), run_id)


def scales_of(
    metrics: Iterable[str], kept: Iterable[StoredLabel], asked: Scale | None = None
) -> dict[str, Scale]:
    """Return the scale of each metric: that of the labels that are kept, else the one that is asked for, else 0..1.

    Raises:
        UsageError: labels on another scale than the one asked for are kept.
    """
    known: dict[str, Scale] = {}
    for label in kept:
        low, high = label.row.get("scale") or UNIT_SCALE
        known.setdefault(label.metric, (float(low), float(high)))
    for name in (name for name in dict.fromkeys(metrics) if name in known):
        if asked not in (None, known[name]):
            low, high = known[name]
            hint = f"use --scale {low:g},{high:g}; one metric has one scale"
            raise UsageError(f"labels of `{name}` from {low:g} to {high:g} are kept for this run", hint=hint)
    return {name: known.get(name, asked or UNIT_SCALE) for name in metrics}


def rows_of_sheet(
    sheet: Sheet,
    kept: Iterable[StoredLabel],
    *,
    run_id: str,
    scales: Mapping[str, Scale],
    fetch: Callable[[Output], CaseResult],
    drawn: str = "",
) -> Iterator[dict[str, JsonValue]]:
    """Yield the rows of a sheet: labels that are kept, and a row with the text of each output that has none yet.

    Nothing in it says what the judge found.
    """
    labels: dict[tuple[str, str], list[StoredLabel]] = {}
    for label in kept:
        labels.setdefault((label.case_id, label.metric), []).append(label)
    for item in sheet.outputs:
        here = labels.get((item.id, item.metric), [])
        valid = [label for label in here if label.output_sha256 == item.output_sha256]
        yield from (label.row for label in valid)
        if valid:
            continue
        result = fetch(item)
        [judged] = judged_items([result])
        row = label_row(judged, item.metric, run_id, Given(scale=scales[item.metric], draw=drawn))
        given = {"description": result.description} if result.description else {}
        yield {
            **row,
            **given,
            **({"vars": dict(result.vars)} if result.vars else {}),
            **({"test": result.asked.texts} if result.asked else {}),
            "output": result.output,
        }


def labels_to_keep(
    path: Path, report: RunReport, *, annotator: str, allow_unmatched: bool
) -> list[StoredLabel]:
    """Return the labels of a file, each about an output of a run; `annotator` gave those that name nobody.

    Raises:
        ConfigError: the file is broken, or a label has no output in the run.
    """
    file = read_labels(path)
    items = judged_items(report.results())
    found = match_labels(file.labels, items, run_id=report.run.id, allow_unmatched=allow_unmatched)
    kept = []
    for match in found.matches:
        low, high = match.label.scale
        for name, mark in match.label.marks.items():
            said = round(low + mark * (high - low), _DIGITS)
            note = match.label.notes.get(name, "")
            given = Given(said, match.label.scale, name or annotator, note)
            row = label_row(match.item, match.label.metric, report.run.id, given)
            doc = {} if match.label.doc is None else {"doc": match.label.doc}
            kept.append(stored_label({**row, **doc, **match.label.columns}))
    return kept


def parts_to_read(result: CaseResult) -> Iterator[tuple[str, str]]:
    """Yield what stands above an output, title and text: what the model was asked, and the variables not in it."""
    prompt = result.prompt.rendered
    if prompt.strip():
        yield "asked", prompt
    for name, text in (result.asked.texts if result.asked else {}).items():
        if text.strip() and text not in prompt:
            yield name.replace("_", " "), text
    for name, value in result.vars.items():
        text = value_text(value)
        if name != "output" and text.strip() and text not in prompt:
            yield one_line(name, 60), text


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


class LabelledRun(Struct, frozen=True):
    """People's labels of a run beside its judges' verdicts; `outputs` by metric."""

    outputs: Mapping[str, Sequence[LabelledOutput]]

    def means(self) -> dict[str, dict[str, float]]:
        """Return the mean label of each output, 0..1, by metric and the output's id."""
        return {
            metric: {output.id: output.label for output in outputs}
            for metric, outputs in self.outputs.items()
        }

    def charts(self, links: Links) -> Iterator[Chart]:
        """Yield the drawings of labels beside scores."""
        return label_charts(self.outputs, links)


def beside_judge(results: Iterable[CaseResult], kept: Sequence[StoredLabel]) -> LabelledRun:
    """Return of each labelled metric the outputs that have the judge's score too, with the mean of all people.

    Labels of other texts than those of `results` are left out, and so are metrics that nothing is left of.
    """
    by_metric: dict[str, dict[str, list[Reviewed]]] = {label.metric: {} for label in kept}
    for row in review(results, kept):
        if row.score is not None:
            by_metric[row.metric].setdefault(row.id, []).append(row)
    return LabelledRun(
        {
            metric: [
                LabelledOutput(
                    id=first.id,
                    label=fmean(row.human for row in (first, *others)),
                    score=first.score or 0.0,
                    threshold=first.threshold,
                    passed=first.passed,
                )
                for first, *others in outputs.values()
            ]
            for metric, outputs in by_metric.items()
            if outputs
        }
    )
