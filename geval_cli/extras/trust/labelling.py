"""Choose outputs of one or two runs for labelling, turn labels into rows, and compare them with the judge."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean

from msgspec import Struct, field

from geval_cli.errors import UsageError
from geval_cli.extras.compare.comparison import EarlierRun, Pairing
from geval_cli.extras.compare.matching import match_columns
from geval_cli.extras.html.drawing import Chart, Links
from geval_cli.extras.run_pages import MetricCriteria, ShownCriterion
from geval_cli.extras.trust.charts import label_charts
from geval_cli.extras.trust.labels import (
    DRAW_COLUMN,
    GOOD_AT,
    UNIT_SCALE,
    LabelFile,
    LabelledOutput,
    Scale,
    draw,
    draw_name,
    labels_from_rows,
    read_labels,
)
from geval_cli.extras.trust.matching import (
    JudgedItem,
    document_of,
    hint_of,
    judged_items,
    match_in_runs,
    scores_of,
)
from geval_cli.extras.trust.weighted_draw import (
    Stratum,
    UnlabelledOutput,
    chances,
    draw_spread,
    number_of_next,
    sizes,
    spread_of,
)
from geval_cli.extras.trust.weighted_draw import draw_name as next_name
from geval_cli.judge.estimate import passes
from geval_cli.metrics import with_members
from geval_cli.records import CaseResult, JsonValue
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import one_line, output_digest, value_text
from geval_cli.store.runs import RunLabels, RunStore, StoredLabel
from geval_cli.store.state import open_runs

_DIGITS = 12
_NOTHING_SCORED = "no output of this run has a score that labels could be compared with"
_TELLING = frozenset({"run_id", "prompt", "provider"})
"""Keys of a row that identify the run of an output."""
_WORDS = {1.0: "pass", 0.0: "fail"}


class Output(Struct, frozen=True):
    """An output to label on one metric, without its text.

    Attributes:
        id: id of the result; `test_index`, `repeat_index` and `column` locate it in the run.
        output_sha256: hash of the text, as labels refer to it.
        run: id of the run.
    """

    id: str
    test_index: int
    repeat_index: int
    column: int
    metric: str
    output_sha256: str
    run: str = ""


class Sheet(Struct, frozen=True):
    """The outputs to label, in the order in which they are shown, with the criteria of each metric.

    Attributes:
        is_blind: whether the outputs are of two runs, and nothing shown may reveal which run an output is from.
        draws: the name of the draw by metric.
        weights: 1 / the chance of being drawn, by output id, where chances were unequal.
    """

    outputs: tuple[Output, ...]
    criteria: Mapping[str, ShownCriterion]
    is_blind: bool = False
    draws: Mapping[str, str] = {}
    weights: Mapping[str, float] = {}


class LabelChoice(Struct, frozen=True):
    """A selection of the outputs of a run.

    Attributes:
        metrics: metrics to label; empty for all that a model judged, or for all there are if none was judged by a
            model.
        count: number of outputs to draw at random (of two runs: tests); None for all, in the order of the run.
        seed: random seed of the draw.
        kept: existing labels; None for a draw that ignores them. With them, outputs without a label are drawn, the most
            informative ones more often.
    """

    metrics: tuple[str, ...] = ()
    count: int | None = None
    seed: int = 0
    kept: Sequence[StoredLabel] | None = None


def outputs_to_label(results: Iterable[CaseResult], choice: LabelChoice, run_id: str = "") -> Sheet:
    """Return the outputs of a run to label. Reads the results once and keeps no texts.

    Raises:
        UsageError: no output has a metric, or a chosen metric does not exist; or a draw is requested and no output has
            a score.
    """
    found: dict[str, list[Output]] = {}
    criteria = MetricCriteria()
    scored: dict[str, frozenset[str]] = {}
    seen: dict[str, tuple[Stratum, Mapping[str, UnlabelledOutput]]] = {}
    for result in results:
        if result.output is None:
            continue
        criteria.add(result)
        found[result.id] = _outputs(result, run_id)
        scored[result.id] = _scored(result)
        if choice.kept is not None:
            seen[result.id] = _candidates_of(result)
    known = {item.metric for items in found.values() for item in items}
    metrics = _checked_metrics(choice.metrics, known) or criteria.chosen(known)
    named = {name: [item for item in items if item.metric in metrics] for name, items in found.items()}
    order = [name for name, items in named.items() if items]
    if choice.kept is not None:
        return _next_outputs({name: named[name] for name in order}, seen, choice, criteria.criteria)
    if choice.count is not None:  # a label without a score has nothing to compare with
        order = draw((name for name in order if scored[name] & metrics), choice.count, seed=choice.seed)
        if not order:
            raise UsageError(_NOTHING_SCORED, hint="see why with `geval show`, then `geval judge RUN`")
    return Sheet(tuple(item for name in order for item in named[name]), criteria.criteria)


def _candidates_of(result: CaseResult) -> tuple[Stratum, dict[str, UnlabelledOutput]]:
    """Return the stratum of an output, and for each scored metric what predicts its label."""
    [item] = judged_items([result])
    spreads: dict[str, float] = {}
    for assertion, _ in with_members(result.assertions):
        if assertion.metric is not None:
            spreads[assertion.metric] = max(spreads.get(assertion.metric, 0.0), spread_of(assertion))
    found = {
        metric: UnlabelledOutput(
            score, item.thresholds.get(metric), item.p_pass.get(metric), spreads.get(metric, 0.0)
        )
        for metric, score in item.scores.items()
        if score is not None
    }
    document = document_of(result.metadata)
    name = f"test {result.test_index}" if document is None else str(document)
    return Stratum(name, result.column, fmean(one.score for one in found.values()) if found else 0.0), found


def _next_outputs(
    named: Mapping[str, list[Output]],
    seen: Mapping[str, tuple[Stratum, Mapping[str, UnlabelledOutput]]],
    choice: LabelChoice,
    criteria: Mapping[str, ShownCriterion],
) -> Sheet:
    """Return outputs without a label, drawn so that their labels are most informative.

    Raises:
        UsageError: all outputs have labels, none has a score, or some are labelled on only part of the metrics.
    """
    digests = {(item.id, item.metric): item.output_sha256 for items in named.values() for item in items}
    valid = [
        label
        for label in choice.kept or ()
        if digests.get((label.case_id, label.metric)) == label.output_sha256
    ]
    marks: dict[str, dict[str, list[float]]] = {}
    for label in valid:
        [read] = labels_from_rows([label.row]).labels
        marks.setdefault(label.metric, {}).setdefault(label.case_id, []).append(read.human)
    labelled = {name for of_metric in marks.values() for name in of_metric}
    for name in labelled:
        lacking = [item.metric for item in named[name] if name not in marks.get(item.metric, {})]
        if lacking:
            raise UsageError(
                f"outputs such as {name} have labels, but none for `{lacking[0]}`",
                hint=f"draw for one metric at a time: --metric {lacking[0]}",
            )
    names = [
        name
        for name, items in named.items()
        if name not in labelled and any(i.metric in seen[name][1] for i in items)
    ]
    if not any(i.metric in seen[name][1] for name, items in named.items() for i in items):
        raise UsageError(_NOTHING_SCORED, hint="see why with `geval show`, then `geval judge RUN`")
    if not names:
        raise UsageError(
            "all outputs of this run that a judge scored have labels",
            hint="see what they say: geval agree --run RUN",
        )
    metrics = dict.fromkeys(item.metric for name in names for item in named[name])
    total = dict.fromkeys(names, 0.0)
    for metric in metrics:
        here = [name for name in names if metric in seen[name][1]]
        known = [
            (seen[name][1][metric].score, fmean(found))
            for name, found in marks.get(metric, {}).items()
            if metric in seen[name][1]
        ]
        for name, size in zip(here, sizes([seen[name][1][metric] for name in here], known), strict=True):
            total[name] += size
    number = number_of_next(label.row.get(DRAW_COLUMN) for label in valid)
    random = Random(f"geval label --next {choice.seed} {number}")
    wanted = chances(list(total.values()), min(choice.count or 0, len(names)))
    drawn = draw_spread(wanted, [seen[name][0] for name in names], random)
    random.shuffle(drawn)  # so that the first half is a random half, too
    return Sheet(
        tuple(item for place in drawn for item in named[names[place]]),
        criteria,
        draws={metric: next_name(number, len(marks.get(metric, {})), choice.seed) for metric in metrics},
        weights={names[place]: round(1 / wanted[place], 6) for place in drawn},
    )


def pairs_to_label(a: RunReport, b: RunReport, choice: LabelChoice) -> Sheet:
    """Return both outputs of tests of two runs, in an order that does not reveal which run is which.

    Only metrics that the judge scored in both runs are included. Of identical texts only one is shown: its label counts
    for both.

    Raises:
        UsageError: the runs have no test or metric in common, or a chosen metric does not exist.
    """
    places: dict[tuple[int, int, int], tuple[list[Output], frozenset[str]]] = {}
    for result in a.results():
        if result.output is not None:
            place = result.test_index, result.repeat_index, result.column
            places[place] = _outputs(result, a.run.id), _scored(result)
    criteria = MetricCriteria()
    tests: dict[int, list[list[list[Output]]]] = {}
    pairing = Pairing(places, EarlierRun(a).tests, match_columns(a.columns, b.columns))
    for before, result in pairing.of(b.results()):
        if before is None or result.output is None:
            continue
        criteria.add(result)
        both = before[1] & _scored(result)
        pair = [
            [item for item in outputs if item.metric in both]
            for outputs in (before[0], _outputs(result, b.run.id))
        ]
        if both:
            tests.setdefault(result.test_index, []).append(pair)
    if not tests:
        raise UsageError(
            "no test is judged by the same metric in both runs", hint="check that these are the right runs"
        )
    known = {item.metric for pairs in tests.values() for pair in pairs for item in pair[0]}
    metrics = _checked_metrics(choice.metrics, known) or criteria.chosen(known)
    numbers = [number for number, pairs in tests.items() if any(_of(pair[0], metrics) for pair in pairs)]
    order = numbers if choice.count is None else draw(numbers, choice.count, seed=choice.seed)
    outputs: list[Output] = []
    for pair in (pair for number in order for pair in tests[number]):
        texts = {items[0].output_sha256: _of(items, metrics) for items in pair}
        for digest in draw(texts, seed=choice.seed):
            outputs += texts[digest]
    return Sheet(tuple(outputs), criteria.criteria, is_blind=True)


def _outputs(result: CaseResult, run_id: str) -> list[Output]:
    digest = output_digest(result.output)
    place = (result.id, result.test_index, result.repeat_index, result.column)
    return [Output(*place, metric, digest, run_id) for metric in scores_of(result)]


def _of(items: Iterable[Output], metrics: set[str]) -> list[Output]:
    return [item for item in items if item.metric in metrics]


def _scored(result: CaseResult) -> frozenset[str]:
    return frozenset(metric for metric, score in scores_of(result).items() if score is not None)


def _checked_metrics(wanted: Sequence[str], known: set[str]) -> set[str]:
    if not known:
        hint = "give an assertion a `metric`; a g-eval with a `dimension` has one"
        raise UsageError("no output of this run has a metric to label", hint=hint)
    for name in wanted:
        if name not in known:
            hint = hint_of(name, sorted(known), "the run has")
            raise UsageError(f"no output of this run has the metric `{name}`", hint=hint)
    return set(wanted)


class GivenLabel(Struct, frozen=True):
    """A label that one annotator gave to one output.

    Attributes:
        label: on `scale`; None if there is no label yet.
        annotator: name of the annotator; "" if unnamed.
        draw: name of the random draw that the output is from; "" for none.
        weight: 1 / the chance of being drawn, for a draw with unequal chances.
    """

    label: float | None = None
    scale: Scale = UNIT_SCALE
    annotator: str = ""
    note: str = ""
    draw: str = ""
    weight: float | None = None


def label_row(item: JudgedItem, metric: str, run_id: str, given: GivenLabel) -> dict[str, JsonValue]:
    """Return a label as a row of a label file. On the scale 0 to 1, 0 and 1 are written as `fail` and `pass`."""
    row: dict[str, JsonValue] = {
        "id": item.id,
        "metric": metric,
        "label": _written(given.label, given.scale),
        "scale": None if given.scale == UNIT_SCALE else [_whole(end) for end in given.scale],
        "annotator": given.annotator or None,
        "note": given.note.strip() or None,
        DRAW_COLUMN: given.draw or None,
        "weight": given.weight,
        "run_id": run_id or None,
        "output_sha256": item.output_sha256,
        "test_key": item.test_key,
        "prompt": item.prompt[1] or None,
        "provider": item.provider[1] or None,
        "repeat": item.repeat,
        "doc": document_of(item.metadata),
    }
    return {key: value for key, value in row.items() if value is not None or key == "label"}


def _written(label: float | None, scale: Scale) -> JsonValue:
    if label is None:
        return None
    return _WORDS.get(label, label) if scale == UNIT_SCALE else _whole(label)


def _whole(value: float) -> float:
    return int(value) if float(value).is_integer() else value


def stored_label(row: Mapping[str, JsonValue], earlier: StoredLabel | None = None) -> StoredLabel:
    """Return a row from `label_row` in its stored form.

    `earlier` is the label that it replaces. If both are of the same text and the row has no weight, it takes over the
    draw and weight of `earlier`: changing a label does not change the chance with which the output was drawn.
    """
    if earlier is not None and earlier.output_sha256 == row["output_sha256"] and "weight" not in row:
        row = {**row, **{name: earlier.row[name] for name in (DRAW_COLUMN, "weight") if name in earlier.row}}
    return StoredLabel(row["id"], row["metric"], row.get("annotator") or "", row["output_sha256"], dict(row))


def kept_labels(labels: RunLabels, *run_ids: str) -> LabelFile:
    """Return the labels stored for one or more runs.

    Raises:
        UsageError: there are none.
    """
    rows = [item.row for run_id in run_ids for item in labels.of_run(run_id)]
    if not rows:
        hint = f"make them with `geval label {','.join(run_ids)}`, or pass a file of labels"
        raise UsageError(f"no labels are kept for run {' or '.join(run_ids)}", hint=hint)
    return labels_from_rows(rows, f"labels kept for {' and '.join(run_ids)}")


def removed_run(runs: RunStore, name: str) -> str | None:
    """Return the id of a removed run whose labels are still stored; None for a run that exists.

    Raises:
        UsageError: no run matches, and the name matches the labels of no run or of more than one.
    """
    try:
        runs.find(name)
    except UsageError:
        found = runs.labels().runs(name) if name else []
        if len(found) != 1:
            raise
        return found[0]
    return None


def labels_kept_for(*run_ids: str, home: Path | None) -> LabelFile:
    """Return the labels stored in `home` for one or more runs.

    Raises:
        UsageError: there are none.
    """
    with open_runs(home, os.environ) as runs:
        return kept_labels(runs.labels(), *run_ids)


def scales_of(
    metrics: Iterable[str], kept: Iterable[StoredLabel], asked: Scale | None = None
) -> dict[str, Scale]:
    """Return the scale of each metric: that of its stored labels, else the requested one, else 0..1.

    Raises:
        UsageError: labels are stored on a scale other than the requested one.
    """
    known: dict[str, Scale] = {}
    for label in kept:
        low, high = label.row.get("scale") or UNIT_SCALE
        known.setdefault(label.metric, (float(low), float(high)))
    for name in (name for name in dict.fromkeys(metrics) if name in known):
        if asked not in (None, known[name]):
            low, high = known[name]
            hint = f"use --scale {low:g},{high:g}: a metric has only one scale"
            raise UsageError(f"labels of `{name}` from {low:g} to {high:g} are kept for this run", hint=hint)
    return {name: known.get(name, asked or UNIT_SCALE) for name in metrics}


def rows_of_sheet(
    sheet: Sheet,
    kept: Iterable[StoredLabel],
    *,
    scales: Mapping[str, Scale],
    fetch: Callable[[Output], CaseResult],
    drawn: str = "",
    annotator: str = "",
) -> Iterator[dict[str, JsonValue]]:
    """Yield the rows of a sheet: stored labels, and a row with the text of each output that has none yet.

    The rows do not reveal the judge's scores. `annotator` is who will fill in the sheet; "" for anyone.
    """
    labels: dict[tuple[str, str, str], list[StoredLabel]] = {}
    for label in kept:
        labels.setdefault((label.row.get("run_id", ""), label.case_id, label.metric), []).append(label)
    for item in sheet.outputs:
        here = labels.get((item.run, item.id, item.metric), [])
        valid = [label for label in here if label.output_sha256 == item.output_sha256]
        yield from (label.row for label in valid)
        if valid:
            continue
        result = fetch(item)
        [judged] = judged_items([result])
        given = GivenLabel(
            scale=scales[item.metric],
            annotator=annotator,
            draw=sheet.draws.get(item.metric, drawn),
            weight=sheet.weights.get(item.id),
        )
        row = label_row(judged, item.metric, item.run, given)
        if sheet.is_blind:
            row = {key: value for key, value in row.items() if key not in _TELLING}
        yield {
            **row,
            **({"description": result.description} if result.description else {}),
            **({"vars": dict(result.vars)} if result.vars else {}),
            **({"test": result.asked.texts} if result.asked else {}),
            "output": result.output,
        }


def draw_sheet(
    run: RunReport | Sequence[CaseResult], count: int, seed: int = 0, *, only: Sequence[str] = ()
) -> list[dict[str, JsonValue]]:
    """Return rows to label, of randomly drawn outputs; the same seed gives the same rows.

    Each output has a row for each metric that a model judged, or for each metric in `only`. The judge's score is left
    out, since it would bias the annotator.

    Raises:
        UsageError: no output is judged, or none by a metric in `only`.
    """
    run_id, results = (run.run.id, run.results) if isinstance(run, RunReport) else ("", lambda: iter(run))
    choice = _draw_choice(count, seed, only)
    return _drawn_rows(outputs_to_label(results(), choice, run_id), {run_id: results}, seed)


def draw_pairs(
    a: RunReport, b: RunReport, count: int, seed: int = 0, *, only: Sequence[str] = ()
) -> list[dict[str, JsonValue]]:
    """Return rows to label, of both runs' outputs of randomly drawn tests.

    The two outputs of a test come in random order, and their rows do not say which run they are from.

    Raises:
        UsageError: no test is judged in both runs, or none by a metric in `only`.
    """
    sheet = pairs_to_label(a, b, _draw_choice(count, seed, only))
    return _drawn_rows(sheet, {a.run.id: a.results, b.run.id: b.results}, seed)


def _draw_choice(count: int, seed: int, only: Sequence[str]) -> LabelChoice:
    if count < 1:
        raise UsageError(
            f"--draw must be a number of at least 1, found {count}", hint="for example --draw 100"
        )
    return LabelChoice(tuple(only), count, seed)


def _drawn_rows(
    sheet: Sheet, runs: Mapping[str, Callable[[], Iterable[CaseResult]]], seed: int
) -> list[dict[str, JsonValue]]:
    """Return the rows of a sheet, on the scale that the judge used."""
    wanted = {(item.run, item.id) for item in sheet.outputs}
    found = {
        (name, result.id): result
        for name, results in runs.items()
        for result in results()
        if (name, result.id) in wanted
    }
    if not found:
        raise UsageError("no output of this run is judged", hint="choose another run with --run")
    scales: dict[str, Scale] = {}
    for item in judged_items(found.values()):
        for metric in item.scores:
            scales.setdefault(metric, item.ranges.get(metric, UNIT_SCALE))
    return list(
        rows_of_sheet(
            sheet,
            (),
            scales=scales,
            fetch=lambda item: found[item.run, item.id],
            drawn=draw_name(seed),
        )
    )


def labels_to_keep(
    path: Path, reports: Sequence[RunReport], *, annotator: str, allow_unmatched: bool
) -> dict[str, list[StoredLabel]]:
    """Return the labels of a file by run, each matched to an output; `annotator` is the name for unnamed ones.

    Raises:
        ConfigError: the file is invalid, or a label has no output in any of the runs.
    """
    runs = [(report.run.id, judged_items(report.results())) for report in reports]
    found = match_in_runs(read_labels(path).labels, runs, allow_unmatched=allow_unmatched)
    kept: dict[str, list[StoredLabel]] = {}
    for (run_id, _), matching in zip(runs, found, strict=True):
        stored = kept.setdefault(run_id, [])
        for match in matching.matches:
            low, high = match.label.scale
            for name, mark in match.label.marks.items():
                said = round(low + mark * (high - low), _DIGITS)
                note = match.label.notes.get(name, "")
                given = GivenLabel(said, match.label.scale, name or annotator, note)
                row = label_row(match.item, match.label.metric, run_id, given)
                more = {"doc": match.label.doc, "weight": match.label.weight}
                told = {key: value for key, value in more.items() if value is not None}
                stored.append(stored_label({**row, **told, **match.label.columns}))
    return kept


def parts_to_read(result: CaseResult, *, is_blind: bool = False) -> Iterator[tuple[str, str]]:
    """Yield title and text of what is shown above an output: the prompt, and texts and variables not in it.

    With `is_blind` the prompt is left out, since it might reveal which of two runs the output is from.
    """
    prompt = "" if is_blind else result.prompt.rendered
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
    """The judge's score and one annotator's label of the same output.

    Attributes:
        label: as given; `human` is the same label on 0..1.
        score: the judge's score; None where it failed.
        differ: absolute difference between score and label, 0..1.
        passed: the judge's verdict, whatever its score; None where it gave none.
        is_flipped: whether judge and annotator disagree on whether the output is good; None without a verdict.
    """

    id: str
    metric: str
    annotator: str
    label: JsonValue
    human: float
    score: float | None
    threshold: float | None
    passed: bool | None
    differ: float | None
    is_flipped: bool | None
    note: str
    output: str = field(default="")

    @property
    def order(self) -> tuple[int, float]:
        """Sort key: flipped verdicts first, then the largest differences, then outputs the judge failed on."""
        if self.differ is None:
            return 2, 0.0
        return (0 if self.is_flipped else 1), -self.differ


def review(results: Iterable[CaseResult], kept: Iterable[StoredLabel]) -> list[Reviewed]:
    """Return labels beside the judge's scores, disagreements first; labels of outdated texts are left out."""
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
    human = read.human
    score = item.scores[label.metric]
    passed = item.verdicts.get(label.metric)
    threshold = item.thresholds.get(label.metric)
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
    """The human labels of a run with its judges' verdicts; `outputs` by metric."""

    outputs: Mapping[str, Sequence[LabelledOutput]]

    def means(self) -> dict[str, dict[str, float]]:
        """Return the mean label of each output, 0..1, by metric and output id."""
        return {
            metric: {output.id: output.label for output in outputs}
            for metric, outputs in self.outputs.items()
        }

    def charts(self, links: Links) -> Iterator[Chart]:
        """Yield the charts of labels against scores."""
        return label_charts(self.outputs, links)


def beside_judge(results: Iterable[CaseResult], kept: Sequence[StoredLabel]) -> LabelledRun:
    """Return, for each labelled metric, the outputs that also have a judge's score, with their mean label.

    Labels of texts other than those in `results` are left out, as are metrics that have no outputs left.
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
