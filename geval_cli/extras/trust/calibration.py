"""Calibrate a judge's scores on human labels: `geval calibrate` and `geval_cli.extras.trust.calibrate`.

Labels and scores become a calibration for each metric, in a file that a config may name; the fitting itself is in
`extras.trust.statistics.calibration_fit`.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from geval_cli.errors import ConfigError, Problem, UsageError
from geval_cli.extras.juries import JudgeWeight
from geval_cli.extras.trust.calibrated import CALIBRATION_VERSION, other_parts
from geval_cli.extras.trust.charts import calibration_chart
from geval_cli.extras.trust.documents import (
    ESTIMATE,
    ReportDocument,
    Section,
    Table,
    estimate_cells,
    figure_text,
    of_run,
)
from geval_cli.extras.trust.juries import JuryAgreement, JuryScores, jury_agreement, jury_scores, jury_section
from geval_cli.extras.trust.matching import (
    JudgedLabel,
    Labels,
    Match,
    judged_labels,
    score_notes,
    threshold_of,
)
from geval_cli.extras.trust.options import CalibrateOptions
from geval_cli.extras.trust.statistics.agreement import (
    Confusion,
    Mask,
    Numbers,
    confusion,
    threshold_candidates,
)
from geval_cli.extras.trust.statistics.calibration_fit import ALPHA as BAND_ALPHA
from geval_cli.extras.trust.statistics.calibration_fit import (
    MIN_ISOTONIC,
    FitPlan,
    HeldOutCheck,
    Labelled,
    Objective,
    balanced_accuracy,
    cross_check,
    fit,
    labels_for_bands,
    labels_per_class,
)
from geval_cli.extras.trust.statistics.plain import Calibration, Estimate, Logistic
from geval_cli.judge.estimate import passes
from geval_cli.numbers import fixed, format_share, format_threshold, plural
from geval_cli.records import CaseResult, JsonValue
from geval_cli.report.json_file import json_text
from geval_cli.report.report import RunReport
from geval_cli.report.safe_file import SafeFile
from geval_cli.runs.stored import open_report
from geval_cli.specs.base import CALIBRATED

_DIGITS = 6


class Candidate(Struct, frozen=True):
    """A threshold with its verdicts on the labels; `value` is that of the objective, higher is better.

    `mcc` is the Matthews correlation coefficient, at the given prevalence of good outputs if there is one. `threshold`
    is
    None for verdicts that no single threshold reproduces.
    """

    threshold: float | None
    counts: Confusion
    balanced_accuracy: float | None
    mcc: float | None
    value: float | None


class MetricCalibration(Struct, frozen=True):
    """The calibration of one metric, and how good it is.

    Attributes:
        calibration: what a run uses.
        present: the current threshold; None if it does not reproduce the run's verdicts, because tests have several or
            because more than the score decides.
        candidates: all thresholds, lowest first; `at_present` has the current verdicts.
        checked: performance on held-out labels; None if all labels are in one group.
        errored: labelled outputs that the judge failed on; they are left out.
        notes: what to know before using it.
        summary: one sentence, to follow the metric's name.
        jury: set if `calibration` is about a jury's weighted score: whether that score agrees with human labels better
            than the best single judge does, on held-out labels.
        points: (score, share of good outputs, labels) for plots; not in the JSON.
    """

    metric: str
    calibration: Calibration
    present: float | None
    at_present: Candidate
    candidates: tuple[Candidate, ...]
    checked: HeldOutCheck | None
    errored: int
    notes: tuple[str, ...]
    summary: str
    jury: JuryAgreement | None = None
    points: tuple[tuple[float, float, int], ...] = ()

    @property
    def title(self) -> str:
        """Return the metric's name, marked if the calibration is about the weighted score of its jury."""
        return self.metric if self.jury is None else f"{self.metric}, judges weighted"


class Calibrated(Struct, frozen=True):
    """The result of `geval calibrate`.

    Attributes:
        labels: the file; `run`: the run's id, None if the scores came with the labels.
        matched: labels with an output; `unmatched`: labels without one.
        clustered_by: what outputs are grouped by.
    """

    labels: str
    run: str | None
    matched: int
    unmatched: int
    clustered_by: str
    prevalence: float | None
    metrics: tuple[MetricCalibration, ...]

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON document of `geval calibrate --json`."""
        found: dict[str, JsonValue] = to_builtins(self)
        for item, written in zip(self.metrics, found["metrics"], strict=True):
            written.pop("points")
            written["calibration"] = _entry(item.calibration, self.prevalence)
        return {"schema_version": 1, "kind": "calibrate", **found}

    def to_file(self) -> dict[str, JsonValue]:
        """Return the content of the calibration file that a config names."""
        entries = [_entry(item.calibration, self.prevalence) for item in self.metrics]
        return {"calibration_version": CALIBRATION_VERSION, "entries": entries}


def _entry(found: Calibration, prevalence: float | None) -> dict[str, JsonValue]:
    """Return a calibration as an entry of its file; probabilities are rounded to six digits."""
    curve = found.curve
    given: dict[str, JsonValue] = {
        name: getattr(found, name) for name in found.__struct_fields__ if name not in ("curve", "judges")
    }
    if isinstance(curve, Logistic):
        given["logistic"] = [curve.slope, curve.intercept]
    else:
        given["p_pass"] = [[block.low, block.high, round(block.p, _DIGITS), block.n] for block in curve]
    if prevalence is not None:
        given["prevalence"] = prevalence
    if found.judge is None:
        del given["judge"]
    if found.judges:
        given["judges"] = to_builtins(found.judges)
    return given


MIN_LABELS = 10
ADVISED = 50
"""Recommended number of good labels, and of bad ones: they give balanced accuracy to about ±8 points."""
_ROUGHLY = 0.1
"""Half-width of the widest interval of balanced accuracy that is still useful."""
_DUST = 1e-9
_SAYS_NOTHING = 0.5
"""The score of every output when the remaining labels give no judge a weight; it is uninformative."""


def calibrate(
    labels: Labels,
    run: str | RunReport | Iterable[CaseResult] | None = None,
    *,
    options: CalibrateOptions = CalibrateOptions(),  # noqa: B008 - frozen
    allow_unmatched: bool = False,
    home: Path | None = None,
) -> Calibrated:
    """Return the calibration of a run's judge on human labels.

    Args:
        labels: a file of labels, or its rows.
        run: the run that was labelled: its id or `latest`, its report, or its results; None if the labels have a
            `score`. Without a run the judge is unknown, so runs will reject the calibration.
        options: how it is computed.
        allow_unmatched: leave out labels whose output is not in the run.
        home: where runs are stored, if `run` is an id; None for GEVAL_HOME, or `.geval` in the current folder.

    Raises:
        ConfigError: a row is broken or unmatched, or a metric cannot be calibrated; all problems at once.
        UsageError: there are no scores, or the run, cluster or metric is unknown, or an option is out of range.
    """
    if isinstance(run, str):
        with open_report(run, home, os.environ) as (report, _):
            return calibrate(labels, report, options=options, allow_unmatched=allow_unmatched)
    options.check()
    if options.prevalence is not None and not 0 < options.prevalence < 1:
        hint = "give the share of good outputs, for example 0.9"
        raise UsageError(f"`prevalence` must be between 0 and 1, found {options.prevalence:g}", hint=hint)
    if options.costs is not None and not all(0 < cost < float("inf") for cost in options.costs):
        raise UsageError(
            "both costs must be positive numbers", hint="write false pass : false fail, for example 3:1"
        )
    given = judged_labels(labels, run, cluster=options.cluster, allow_unmatched=allow_unmatched)
    chosen = given.by_metric(options.only)
    problems = [problem for name, members in chosen.items() for problem in _problems(name, members, options)]
    if problems:
        raise ConfigError(problems)
    return Calibrated(
        labels=given.file.path,
        run=given.run_id or None,
        matched=len(given.pairs),
        unmatched=given.unmatched,
        clustered_by=given.clustered_by,
        prevalence=options.prevalence,
        metrics=tuple(
            replace(item, notes=(*item.notes, *given.notes_of(name)))
            for name, members in chosen.items()
            for item in _of_metric(name, members, options)
        ),
    )


def _problems(metric: str, pairs: Sequence[JudgedLabel], options: CalibrateOptions) -> Iterator[Problem]:
    """Yield the reasons why a metric cannot be calibrated: too few labels, all good or all bad, or several criteria."""
    place = pairs[0].label.place.value("metric")
    scored = [pair for pair in pairs if pair.score is not None]
    good = sum(_is_good(pair, options) for pair in scored)
    if len(scored) < MIN_LABELS:
        hint = f"label at least {MIN_LABELS}; {ADVISED} good and {ADVISED} bad ones are advised"
        yield Problem(
            f"`{metric}` has {plural(len(scored), 'label')} with a score, too few to calibrate", place, hint
        )
    elif good in (0, len(scored)):
        which, other = ("good", "bad") if good else ("bad", "good")
        hint = f"label {other} outputs too, or set what is good with --good"
        yield Problem(f"all {good or len(scored)} labels of `{metric}` are {which}", place, hint)
    odd = next((pair.score for pair in scored if not 0 <= (pair.score or 0.0) <= 1), None)
    if odd is not None:
        hint = "calibrate a metric that is scored from 0 to 1"
        yield Problem(f"`{metric}` has scores outside 0 to 1, such as {odd:g}", place, hint)
    place = pairs[0].label.place.value("metric")
    found = [match.item.criteria.get(metric, ()) for match in _whole(metric, scored)]
    if any(len(of_case) > 1 for of_case in found):
        hint = "give each assertion its own metric"
        yield Problem(f"`{metric}` is the mean of several assertions of a test", place, hint)
        return
    keys = {key.key: key for of_case in found for key in of_case if key is not None}
    if len(keys) > 1:
        first, *others = keys.values()
        parts = {name for key in others for name in first.parts if key.parts.get(name) != first.parts[name]}
        hint = (
            "calibrate a run in which all outputs are rated the same way, or leave other metrics out with "
            "--only METRIC"
        )
        yield Problem(f"`{metric}` was rated with {other_parts(parts)} in part of this run", place, hint)


def _is_good(pair: JudgedLabel, options: CalibrateOptions) -> bool:
    return passes(pair.label.human, options.good)


def _of_metric(
    name: str, pairs: Sequence[JudgedLabel], options: CalibrateOptions
) -> Iterator[MetricCalibration]:
    """Yield the calibration of a metric's score and, for a jury, also that of its score with weighted judges.

    For a score that is weighted already, only the latter, with weights fitted to these labels.
    """
    scored = [pair for pair in pairs if pair.score is not None]
    scores = np.array([pair.score for pair in scored], dtype=np.float64)
    jury = jury_scores(name, scored)
    is_weighted = bool(scored[0].match and scored[0].match.item.combined.get(name) == CALIBRATED)
    weights = () if jury is None else jury.weights(np.ones(len(scored), dtype=bool))
    has_weights = jury is not None and any(one.counts for one in weights)
    if not (is_weighted and has_weights):
        own = _calibration(name, pairs, scored, scores, options)
        cannot_reach_minimum = jury is not None and not has_weights
        yield replace(own, notes=(*own.notes, _NO_WEIGHTS)) if cannot_reach_minimum else own
    if jury is not None and has_weights:
        yield _jury_calibration(name, pairs, scored, jury, options)


_NO_WEIGHTS = (
    "no judge of the jury agrees with the human labels, so there are no weights for `combine: calibrated`"
)


def _jury_calibration(
    name: str,
    pairs: Sequence[JudgedLabel],
    scored: Sequence[JudgedLabel],
    jury: JuryScores,
    options: CalibrateOptions,
) -> MetricCalibration:
    """Return the calibration of a jury's score with weighted judges; the weights are checked on held-out labels."""
    everything = np.ones(len(scored), dtype=bool)
    rows = ~np.isnan(jury.weighted(everything))  # elsewhere only judges without a weight gave a score
    jury = jury.take(rows)
    scored = [pair for pair, is_there in zip(scored, rows, strict=True) if is_there]
    everything = everything[rows]

    def rescored(kept: Mask) -> Numbers:
        found = jury.weighted(kept)
        return np.where(np.isnan(found), _SAYS_NOTHING, found)

    item = _calibration(name, pairs, scored, jury.weighted(everything), options, rescored)
    found = replace(item.calibration, key=None, parts={}, judges=jury.weights(everything))
    notes = [*item.notes, *_judge_notes(found.judges)]
    agreement = jury_agreement(jury, jury.held_back(), "weights from other labels")
    return replace(item, calibration=found, jury=agreement, notes=tuple(notes))


def _judge_notes(judges: Sequence[JudgeWeight]) -> Iterator[str]:
    if any(one.key is None for one in judges):
        yield (
            "the criteria of each judge are unknown (its steps have changed), so runs would reject these weights; "
            "choose a newer run with --run"
        )
    silent = sum(not one.counts for one in judges)
    if silent:
        yield f"{silent:,} of {len(judges):,} judges get no weight: their scores do not track human labels"


def _calibration(
    name: str,
    pairs: Sequence[JudgedLabel],
    items: Sequence[JudgedLabel],
    scores: Numbers,
    options: CalibrateOptions,
    rescored: Callable[[Mask], Numbers] | None = None,
) -> MetricCalibration:
    """Return the calibration of `scores`, one for each of `items`.

    `rescored` recomputes the scores from a subset of the labels; None if they do not depend on labels.
    """
    # The criterion of all scores; None if a result does not record it.
    whole = _whole(name, items)
    keys = [key for match in whole for key in match.item.criteria.get(name, ())]
    key = keys[0] if keys and len(keys) == len(whole) and None not in keys else None
    used = [pair.match.item.thresholds.get(name) for pair in items if pair.match is not None]
    plan = FitPlan(
        Objective(options.costs, options.prevalence),
        threshold_of(used, options.good, options.threshold),
        is_isotonic=len(items) >= MIN_ISOTONIC,
    )
    verdicts = scores >= plan.present - _DUST
    if rescored is None:  # otherwise the run's verdicts are not about these scores
        verdicts = np.array([pair.passed_at(options.threshold, plan.present) for pair in items], dtype=bool)
    labelled = Labelled(
        scores,
        np.array([_is_good(pair, options) for pair in items]),
        [pair.cluster for pair in items],
        None if rescored else verdicts,
    )
    blank = Calibration(
        metric=name,
        key=None if key is None else key.key,
        parts={} if key is None else key.parts,
        n=len(items),
        good=int(labelled.good.sum()),
        clusters=len(set(labelled.clusters)),
        good_at=options.good,
        objective=plan.objective.name,
        threshold=plan.present,
        curve=(),
        judge=next((pair.match.item.judges.get(name) for pair in items if pair.match), None),
    )
    found = fit(labelled, blank, plan)
    candidates = tuple(
        _candidate(item.threshold, item.confusion, plan.objective)
        for item in threshold_candidates(labelled.scores, labelled.good)
    )
    present = plan.present if (verdicts == (scores >= plan.present - _DUST)).all() else None
    at_present = _candidate(present, confusion(verdicts, labelled.good), plan.objective)
    item = MetricCalibration(
        metric=name,
        calibration=found,
        present=present,
        at_present=at_present,
        candidates=candidates,
        checked=cross_check(labelled, blank, plan, rescored),
        errored=len(pairs) - len(items),
        notes=(
            *_notes(found, labelled, len(pairs) - len(items), has_run=items[0].match is not None),
            *score_notes(name, items),
        ),
        summary="",
        points=tuple(_points(labelled)),
    )
    chosen = confusion(scores >= found.threshold - _DUST, labelled.good)
    return replace(item, summary=_sentence(item, chosen))


def _whole(metric: str, pairs: Sequence[JudgedLabel]) -> list[Match]:
    """Return the outputs that all judges of a jury scored, or all outputs if there are none.

    A judge that failed leaves no record of its criterion.
    """
    matches = [pair.match for pair in pairs if pair.match is not None]
    return [
        match for match in matches if all(vote.score is not None for vote in match.item.votes.get(metric, ()))
    ] or matches


def _candidate(threshold: float | None, counts: Confusion, objective: Objective) -> Candidate:
    prevalence = objective.prevalence
    mcc = counts.mcc if prevalence is None else Objective(prevalence=prevalence).value(counts)
    return Candidate(threshold, counts, balanced_accuracy(counts), mcc, objective.value(counts))


def _points(labelled: Labelled) -> Iterator[tuple[float, float, int]]:
    """Yield each score with the share of good outputs among those that have it, and their number."""
    for score in np.unique(labelled.scores):
        here = labelled.good[labelled.scores == score]
        yield float(score), float(here.mean()), len(here)


def _notes(found: Calibration, labelled: Labelled, errored: int, *, has_run: bool) -> Iterator[str]:
    bad = found.n - found.good
    if errored:
        yield f"left out: {plural(errored, 'labelled output')} that could not be judged"
    if found.key is None:
        why = "the run did not record its criteria" if has_run else "the scores do not come from a run"
        yield (
            f"{why}, so the criteria are unknown and runs would reject this calibration; "
            "choose a newer run with --run"
        )
    if min(found.good, bad) < ADVISED:
        rough = labels_per_class(_ROUGHLY)
        yield (
            f"{found.good:,} good and {bad:,} bad labels: {rough} of each give balanced accuracy to "
            f"±{_ROUGHLY:g}; {ADVISED} are recommended"
        )
    if (labelled.scores == labelled.scores[0]).all():
        yield "all scores are equal, so no threshold separates good from bad; the current one stays"
    elif not (confusion(labelled.scores >= found.threshold - _DUST, labelled.good).mcc or 0.0) > 0:
        yield "at no threshold do its verdicts agree with human labels better than chance: do not let this judge decide"
    if isinstance(found.curve, Logistic):
        yield f"under {MIN_ISOTONIC} labels: P(pass) is a logistic curve (Platt)"
    needed = labels_for_bands(BAND_ALPHA)
    if found.alpha is None:
        least = labelled.groups
        apart = " of different tests or documents" if least < min(found.good, bad) else ""
        yield (
            f"no score is called clear or borderline: that needs {needed} good and {needed} bad labels{apart}, not"
            f" {least}"
        )
    elif found.pass_from is None:
        most = format_share(BAND_ALPHA)
        yield f"no score is a clear pass: even the highest is given to over {most} of the bad outputs"
    elif found.fail_below is not None and found.pass_from <= found.fail_below:
        yield "no score is borderline: good and bad outputs lie apart"


def _sentence(item: MetricCalibration, after: Confusion) -> str:
    """Return a sentence that compares the chosen threshold's verdicts, `after`, with the current ones."""
    found, before = item.calibration, item.at_present.counts
    chosen = format_threshold(found.threshold)
    said = (
        f"{after.false_pass:,} of {after.bad:,} bad outputs pass and fails {after.false_fail:,} of"
        f" {after.good:,} good ones"
    )
    if item.present is None:
        return (
            f"the threshold {chosen} lets {said}; the run's own verdicts: {before.false_pass:,} and"
            f" {before.false_fail:,}."
        )
    today = format_threshold(item.present)
    if found.threshold == item.present:
        return f"the threshold {today} stays: it lets {said}."
    if after == before:
        return f"the threshold {chosen} makes the same verdicts as {today} today: it lets {said}."
    return (
        f"the threshold {chosen} lets {said}; {today} today: {before.false_pass:,} and {before.false_fail:,}."
    )


def is_for_configs(path: Path) -> bool:
    """Return whether a file given with `-o` is a calibration file for configs, judging by its ending."""
    return path.name.lower().endswith(".cal.json")


def write_calibration(path: Path, found: Calibrated) -> None:
    """Write the calibration file for configs, one line for each key of an entry, which makes for readable diffs.

    Raises:
        OutputError: the file cannot be written.
    """
    content = found.to_file()
    entries = (
        ",\n".join(f"      {json_text(name)}: {json_text(value)}" for name, value in entry.items())
        for entry in content["entries"]
    )
    listed = ",\n".join(f"    {{\n{lines}\n    }}" for lines in entries)
    version = json_text(content["calibration_version"])
    with SafeFile(path) as file:
        file.write(f'{{\n  "calibration_version": {version},\n  "entries": [\n{listed}\n  ]\n}}\n')


def calibration_document(found: Calibrated) -> ReportDocument:
    """Return the calibration as a report document."""
    count = f"{found.matched:,} labels, {found.unmatched:,} unmatched"
    return ReportDocument(
        "Calibration of a judge",
        lambda quote: (
            f"Labels: {quote(found.labels)}{of_run(found.run, quote)}; {count}. Outputs are grouped by"
            f" {quote(found.clustered_by)}."
        ),
        [section for item in found.metrics for section in _sections(item, found.prevalence)],
        found.to_json(),
    )


_CANDIDATES = ("threshold", "bad pass", "good fail", "bal. acc.", "MCC", "")
_MOST_ROWS = 40
"""Most thresholds of a metric shown on a terminal; scores that are means of samples can yield hundreds."""


def _sections(item: MetricCalibration, prevalence: float | None) -> Iterator[Section]:
    found = item.calibration
    tables = [Table(_CANDIDATES, [_candidate_row(item, one) for one in _with_today(item)])]
    if isinstance(found.curve, tuple):
        blocks = [(f"{one.low:g}", f"{one.high:g}", fixed(one.p, 3), f"{one.n:,}") for one in found.curve]
        tables.append(Table(("from score", "to score", "P(pass)", "labels"), blocks))
    else:
        formula = f"1 / (1 + exp(-({found.curve.slope:.4g} * score {found.curve.intercept:+.4g})))"
        tables.append(Table(("P(pass)",), [(formula,)]))
    if item.checked is not None:
        tables.append(Table(("figure", *ESTIMATE), list(_figure_rows(item.checked))))
    shown = [_candidate_row(item, one) for one in _shown(item)]
    narrow = [(row[0], row[1], row[2], row[5]) for row in shown]
    left_out = len(_with_today(item)) - len(shown)
    yield Section(
        item.title,
        lambda quote: item.summary,
        plots=[calibration_chart(found.metric, item.points, found.p_pass, found.threshold)],
        tables=tables,
        brief=[
            Table(_CANDIDATES, shown, least=76),
            Table((*_CANDIDATES[:3], ""), narrow),
        ],
        texts=[
            *_texts(item, prevalence),
            *([f"{left_out:,} more thresholds: --json, or -o FILE"] if left_out > 0 else []),
        ],
        notes=item.notes,
    )
    if item.jury is not None:
        yield jury_section(item.metric, item.jury, found.judges)


def _with_today(item: MetricCalibration) -> list[Candidate]:
    """Return all candidates in the order of their thresholds, the current one included.

    Verdicts that no single threshold reproduces come first.
    """
    is_there = any(one.threshold == item.present for one in item.candidates)
    return sorted(
        [*item.candidates, *([] if is_there else [item.at_present])],
        key=lambda one: -1.0 if one.threshold is None else one.threshold,
    )


def _shown(item: MetricCalibration) -> list[Candidate]:
    """Return the candidates that fit on a terminal, always including the chosen and the current threshold."""
    everything = _with_today(item)
    if len(everything) <= _MOST_ROWS:
        return everything
    kept = {item.calibration.threshold, item.present}
    step = -(-len(everything) // (_MOST_ROWS - len(kept)))
    return [one for place, one in enumerate(everything) if place % step == 0 or one.threshold in kept]


def _candidate_row(item: MetricCalibration, one: Candidate) -> tuple[str, ...]:
    """Return a table row for a threshold; the last cell marks the chosen and the current one."""
    counts, marks = one.counts, []
    if one.threshold == item.calibration.threshold:
        marks.append("chosen")
    if one.threshold == item.present:
        marks.append("today")
    return (
        "as run" if one.threshold is None else format_threshold(one.threshold),
        f"{counts.false_pass:,} of {counts.bad:,}",
        f"{counts.false_fail:,} of {counts.good:,}",
        "-" if one.balanced_accuracy is None else fixed(one.balanced_accuracy, 3),
        "-" if one.mcc is None else fixed(one.mcc, 3),
        ", ".join(marks),
    )


def _texts(item: MetricCalibration, prevalence: float | None) -> Iterator[str]:
    """Yield P(pass) at some scores, which scores are clear, and the performance on held-out labels."""
    found, checked = item.calibration, item.checked
    said = ", ".join(f"{fixed(found.p_pass(score), 2)} at {score:g}" for score in (0.0, 0.25, 0.5, 0.75, 1.0))
    yield f"P(pass): {said}"
    if found.alpha is not None:
        passes = "no score" if found.pass_from is None else f"from {format_threshold(found.pass_from)}"
        fails = "no score" if found.fail_below is None else f"below {format_threshold(found.fail_below)}"
        yield f"clear pass: {passes}; clear fail: {fails}; the rest is borderline"
    if checked is None or checked.accuracy.value is None or checked.present_accuracy.value is None:
        yield "not checked: all labels are in one group, so none could be held out"
        return
    where = "on held-out labels"
    if prevalence is not None:
        where += f", weighted to {format_share(prevalence)} good outputs"
    today = "as run" if item.present is None else f"at {format_threshold(item.present)}"
    yield (
        f"{where}: {_percents(checked.accuracy)} of verdicts right"
        f" ({_percents(checked.present_accuracy)} {today}),"
        f" Brier {figure_text(checked.brier.value, 3)} ({figure_text(checked.base_brier.value, 3)} without a judge)"
    )
    if checked.clear is not None and checked.clear.value is not None:
        passed = f", {_percents(checked.bad_passed)} of bad a clear pass" if checked.bad_passed else ""
        failed = f", {_percents(checked.good_failed)} of good a clear fail" if checked.good_failed else ""
        yield f"{where}: {_percents(checked.clear)} of scores clear{passed}{failed}"


def _percents(share: Estimate) -> str:
    return "-" if share.value is None else format_share(share.value)


def _figure_rows(checked: HeldOutCheck) -> Iterator[tuple[str, ...]]:
    """Yield the figures on held-out labels, with names that readers know."""
    named: dict[str, Estimate | None] = {
        "right verdicts": checked.accuracy,
        "correct verdicts at today's threshold": checked.present_accuracy,
        "error of P(pass) (Brier)": checked.brier,
        "the same, if all got the share of good outputs": checked.base_brier,
        "the same, if the score were the chance": checked.score_brier,
        "clear scores": checked.clear,
        "bad outputs that were a clear pass": checked.bad_passed,
        "good outputs that were a clear fail": checked.good_failed,
    }
    for name, estimate in named.items():
        if estimate is not None:
            yield (name, *estimate_cells(estimate))
