"""Measure how well a judge agrees with human labels: `geval agree` and `geval_cli.extras.trust.agree`.

This module turns labels and scores into arrays, and the resulting figures into the record that the command writes as
JSON; the statistics themselves are in `extras.trust.statistics.agreement`. Outputs that the judge failed on are
counted and left out.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from geval_cli.errors import UsageError
from geval_cli.extras.trust.charts import agreement_charts
from geval_cli.extras.trust.documents import (
    ESTIMATE,
    Quote,
    ReportDocument,
    Section,
    Table,
    estimate_cells,
    figure_text,
    with_interval,
)
from geval_cli.extras.trust.juries import JuryAgreement, jury_agreement, jury_scores, jury_section
from geval_cli.extras.trust.labelling import labels_kept_for
from geval_cli.extras.trust.labels import LabelledOutput, Scale
from geval_cli.extras.trust.matching import (
    JudgedLabel,
    Labels,
    hint_of,
    judged_labels,
    score_notes,
    threshold_of,
)
from geval_cli.extras.trust.options import AgreeOptions, GateOutcome, Requirement
from geval_cli.extras.trust.statistics import agreement as statistics
from geval_cli.extras.trust.statistics.agreement import (
    CORRELATIONS,
    EPSILONS,
    AltTest,
    Ceiling,
    Confusion,
    Mask,
    Numbers,
    Verdicts,
    dataset_level,
    jackknife,
    partial_spearman,
    summary_level,
    system_level,
)
from geval_cli.extras.trust.statistics.plain import MIN_CLUSTERS, Estimate, clustered_estimate
from geval_cli.numbers import fixed, format_share, format_threshold, plural
from geval_cli.records import CaseResult, JsonValue
from geval_cli.report.report import RunReport
from geval_cli.runs.stored import open_report


class CorrelationLevel(Struct, frozen=True):
    """Three correlations between scores and labels.

    Attributes:
        documents: number averaged over; summary level only. `skipped`: those left out because scores or labels were
            constant.
        systems: number of systems whose means were compared; system level only.
    """

    pearson: Estimate
    spearman: Estimate
    kendall: Estimate
    documents: int | None = None
    skipped: int | None = None
    systems: int | None = None


class AnnotatorAgreement(Struct, frozen=True):
    """Agreement among the annotators, and of the judge with them.

    Attributes:
        alpha: Krippendorff's alpha, ordinal.
        alpha_with_judge: the same, with the judge as one more annotator.
        kappas: quadratic-weighted kappa of the judge with each annotator, the judge's rating rounded (half to even).
        ceiling: mean rho of each annotator with the mean of the others.
        judge: mean rho of the judge with the same means; `share` is this as a share of the ceiling.
    """

    alpha: Estimate
    alpha_with_judge: Estimate
    kappas: Mapping[str, Estimate]
    ceiling: Estimate
    judge: Estimate
    share: Estimate


class VerdictCounts(Struct, frozen=True):
    """Confusion matrices of the judge's verdicts: as run, and at the threshold with the highest MCC.

    Attributes:
        good_at: outputs with a mean label of at least this are good, 0..1.
        threshold: scores of at least this pass; None if no single threshold reproduces the verdicts, because the run's
            tests have several or because more than the score decides.
        kappa: Cohen's kappa of the judge's verdicts with the human ones.
        better_threshold: the one with the highest Matthews correlation coefficient (MCC); None if no threshold
        separates
            good from bad.
    """

    good_at: float
    threshold: float | None
    counts: Confusion
    kappa: Estimate
    mcc: float | None
    better_threshold: float | None
    better_counts: Confusion | None
    better_mcc: float | None


class Bias(Struct, frozen=True):
    """The judge's bias.

    Attributes:
        shift: mean score minus mean label, both 0..1; `shift_ratings` is the same on the labels' scale.
        length: partial Spearman correlation of scores with the number of words, controlling for labels; no value if the
            outputs' texts are unknown.
    """

    shift: Estimate
    shift_ratings: Estimate
    length: Estimate


class MetricAgreement(Struct, frozen=True):
    """Agreement of a judge with human labels on one metric.

    Attributes:
        judge: the model, if the run records it.
        n: outputs with a label and a score; `errored`: labelled outputs that the judge failed on.
        people: None with one annotator or without scores; `alt_test` is None with too few annotators or items.
        notes: what is missing, and why.
        summary: one sentence for readers who are not interested in statistics.
        jury: the jury compared with its best judge; None if a single judge gave the scores.
        points: the outputs, for plots; not in the JSON.
    """

    metric: str
    judge: str | None
    n: int
    errored: int
    annotators: int
    documents: int
    clusters: int
    scale: Scale
    dataset: CorrelationLevel
    document_level: CorrelationLevel | None
    system: CorrelationLevel | None
    people: AnnotatorAgreement | None
    verdicts: VerdictCounts
    bias: Bias
    alt_test: AltTest | None
    notes: tuple[str, ...]
    summary: str
    jury: JuryAgreement | None = None
    points: tuple[LabelledOutput, ...] = ()


_ROUNDING = 1e-9
_MOST_ANNOTATORS = 20
"""Most annotators with a kappa of their own; in a larger crowd each labels too few items for it to mean much."""


class Agreement(Struct, frozen=True):
    """The result of `geval agree`.

    Attributes:
        labels: the file; `run`: the run's id, None if the scores came with the labels.
        matched: labels with an output; `unmatched`: labels without one; `unlabelled`: rows that have no label yet.
        clustered_by: what outputs are grouped by for the intervals.
    """

    labels: str
    run: str | None
    judges: tuple[str, ...]
    annotators: tuple[str, ...]
    matched: int
    unmatched: int
    unlabelled: int
    clustered_by: str
    metrics: tuple[MetricAgreement, ...]
    gates: tuple[GateOutcome, ...] = ()

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON document of `geval agree --json`."""
        from_metrics = []
        for item in self.metrics:
            fields = {name: getattr(item, name) for name in item.__struct_fields__ if name != "points"}
            found: dict[str, JsonValue] = _plain(fields)
            found["levels"] = {
                "dataset": found.pop("dataset"),
                "summary": found.pop("document_level"),
                "system": found.pop("system"),
            }
            from_metrics.append(found)
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name != "metrics"}
        return {"schema_version": 1, "kind": "agree", **_plain(values), "metrics": from_metrics}


def agree(
    labels: Labels | None,
    run: str | RunReport | Iterable[CaseResult] | None = None,
    *,
    options: AgreeOptions = AgreeOptions(),  # noqa: B008 - frozen
    require: Sequence[str] = (),
    allow_unmatched: bool = False,
    home: Path | None = None,
) -> Agreement:
    """Return how well the judge of a run agrees with human labels.

    Args:
        labels: a file of labels, or its rows; None for those stored with the run, which `run` must then name.
        run: the run that was labelled: its id, `latest`, a results file, its report, or its results; None if the
            labels have a `score`.
        options: how agreement is computed.
        require: gates such as `spearman >= 0.4`, which hold when the whole interval does.
        allow_unmatched: leave out labels whose output is not in the run.
        home: where runs are stored, if `run` is an id; None for GEVAL_HOME, or `.geval` in the current folder.

    Raises:
        ConfigError: a row is broken or unmatched; all problems at once.
        UsageError: there are no scores, or the run, cluster, kind of annotators or gate is unknown.
    """
    if isinstance(run, str):
        with open_report(run, home, os.environ) as (report, _):
            kept = labels_kept_for(report.run.id, home=home) if labels is None else labels
            return agree(kept, report, options=options, require=require, allow_unmatched=allow_unmatched)
    if labels is None:
        raise UsageError(
            "labels are kept for stored runs only", hint="give the run's id, or a file of labels"
        )
    options.check()
    if options.annotators not in EPSILONS:
        message = f"annotators cannot be `{options.annotators}`"
        raise UsageError(message, hint=hint_of(options.annotators, EPSILONS))
    gates = [Requirement.parse(text, STATISTICS) for text in require]
    given = judged_labels(labels, run, cluster=options.cluster, allow_unmatched=allow_unmatched)
    found = {name: _metric(name, members, options) for name, members in given.by_metric().items()}
    metrics = tuple(replace(item, notes=(*item.notes, *given.notes_of(name))) for name, item in found.items())
    return Agreement(
        labels=given.file.path,
        run=given.run_id or None,
        judges=tuple(dict.fromkeys(item.judge for item in metrics if item.judge)),
        annotators=given.file.annotators,
        matched=len(given.pairs),
        unmatched=given.unmatched,
        unlabelled=given.file.unlabelled,
        clustered_by=given.clustered_by,
        metrics=metrics,
        gates=tuple(
            outcome
            for gate in gates
            for outcome in gate.decide({item.metric: _required(gate, item) for item in metrics})
        ),
    )


_OTHERS: Mapping[str, Callable[[MetricAgreement], Estimate | None]] = {
    "kappa": lambda item: item.verdicts.kappa,
    "shift": lambda item: item.bias.shift,
    "length": lambda item: item.bias.length,
    "alpha": lambda item: None if item.people is None else item.people.alpha_with_judge,
    "ceiling": lambda item: None if item.people is None else item.people.share,
}
STATISTICS = ("pearson", "spearman", "kendall", *_OTHERS)
"""The statistics that `--require` accepts."""


def _required(gate: Requirement, item: MetricAgreement) -> Estimate | None:
    if gate.statistic in _OTHERS:
        return _OTHERS[gate.statistic](item)
    level = {"dataset": item.dataset, "summary": item.document_level, "system": item.system}[gate.level]
    found: Estimate | None = None if level is None else getattr(level, gate.statistic)
    return found


class _Data(Struct, frozen=True):
    """One metric's labelled outputs as arrays."""

    score: Numbers
    human: Numbers
    marks: NDArray[np.float64]
    annotators: tuple[str, ...]
    clusters: list[str]
    documents: list[str]
    systems: list[str] | None
    words: Numbers | None

    def estimate(self, statistic: Callable[[Mask], float | None], *, is_correlation: bool = True) -> Estimate:
        return jackknife(statistic, self.clusters, is_correlation=is_correlation)


def _data(pairs: Sequence[JudgedLabel]) -> _Data:
    names = tuple(dict.fromkeys(name for pair in pairs for name in pair.label.marks))
    systems = [pair.system for pair in pairs if pair.system is not None]
    words = [pair.words for pair in pairs if pair.words is not None]
    return _Data(
        score=np.array([np.nan if pair.score is None else pair.score for pair in pairs], dtype=np.float64),
        human=np.array([pair.label.human for pair in pairs], dtype=np.float64),
        marks=np.array([[pair.label.marks.get(name, np.nan) for pair in pairs] for name in names]),
        annotators=names,
        clusters=[pair.cluster for pair in pairs],
        documents=[str(pair.document) for pair in pairs],
        systems=systems if len(systems) == len(pairs) else None,
        words=np.array(words, dtype=np.float64) if len(words) == len(pairs) else None,
    )


def _metric(name: str, pairs: Sequence[JudgedLabel], options: AgreeOptions) -> MetricAgreement:
    scored = [pair for pair in pairs if pair.score is not None]
    scale = pairs[0].label.scale
    data, everything = _data(scored), _data(pairs)
    passed, threshold = _passed(scored, name, options)
    verdicts = _verdicts(data, passed, threshold, options)
    alt = None
    if len(data.annotators) >= statistics.MIN_ANNOTATORS:
        epsilon = EPSILONS[options.annotators]
        alt = statistics.alt_test(data.score, data.marks, data.clusters, epsilon=epsilon)
    has_people = len(everything.annotators) > 1
    jury = jury_scores(name, scored)
    how = next((pair.match.item.combined.get(name) for pair in scored if pair.match is not None), None)
    distance = data.score - data.human
    words = data.words
    length = Estimate(None, None, 0, 0)
    if words is not None and len(words):
        length = data.estimate(lambda kept: partial_spearman(data.score[kept], words[kept], data.human[kept]))

    shift = clustered_estimate(distance.tolist(), data.clusters, lowest=-1)
    bias = Bias(shift, shift.times(scale[1] - scale[0]), length)
    return MetricAgreement(
        metric=name,
        judge=next((pair.match.item.judges.get(name) for pair in scored if pair.match), None),
        n=len(scored),
        errored=len(pairs) - len(scored),
        annotators=len(everything.annotators),
        documents=len(set(data.documents)),
        clusters=len(set(data.clusters)),
        scale=scale,
        dataset=_level(
            {
                kind: dataset_level(correlation, data.score, data.human, data.clusters)
                for kind, correlation in CORRELATIONS.items()
            }
        ),
        document_level=_by_document(data),
        system=_by_system(data),
        people=_people(data, everything, scale) if has_people and scored else None,
        verdicts=verdicts,
        bias=bias,
        alt_test=alt,
        notes=(
            *_notes(data, everything, alt, len(pairs) - len(scored)),
            *score_notes(name, scored),
            *([_CALIBRATED] if any(pair.match and name in pair.match.item.p_pass for pair in scored) else ()),
        ),
        summary=_sentence(name, verdicts, len(scored)),
        jury=None if jury is None else jury_agreement(jury, data.score, how or "mean"),
        points=tuple(
            LabelledOutput(
                pair.label.human,
                pair.score or 0.0,
                passed=bool(is_passed),
                words=pair.words,
            )
            for pair, is_passed in zip(scored, passed, strict=True)
        ),
    )


_CALIBRATED = (
    "the run uses a calibration: on the labels that it was made from, figures are too good; use other labels"
)


def _by_document(data: _Data) -> CorrelationLevel | None:
    """Return the mean correlation within documents; None if no document has more than one output."""
    if len(set(data.documents)) == len(data.documents):
        return None
    found = {
        kind: summary_level(correlation, data.score, data.human, data.documents, data.clusters)
        for kind, correlation in CORRELATIONS.items()
    }
    some = found["spearman"]
    estimates = {kind: mean.estimate for kind, mean in found.items()}
    return replace(_level(estimates), documents=some.used, skipped=some.skipped)


def _by_system(data: _Data) -> CorrelationLevel | None:
    """Return the correlation of systems' means; None for fewer than three systems, where it would say nothing."""
    systems = data.systems
    if systems is None or len(set(systems)) < 3:  # noqa: PLR2004
        return None
    found = {
        kind: system_level(correlation, data.score, data.human, systems, data.clusters)
        for kind, correlation in CORRELATIONS.items()
    }
    return replace(_level(found), systems=len(set(systems)))


def _level(found: Mapping[str, Estimate]) -> CorrelationLevel:
    return CorrelationLevel(found["pearson"], found["spearman"], found["kendall"])


def _people(data: _Data, everything: _Data, scale: Scale) -> AnnotatorAgreement:
    marks, judge = everything.marks, everything.score
    with_judge = np.vstack([marks, judge])
    low, high = scale
    rating = np.rint(low + data.score * (high - low))
    known: dict[bytes, Ceiling | None] = {}

    def limits(kept: Mask) -> Ceiling | None:
        key = kept.tobytes()
        if key not in known:
            known[key] = statistics.ceiling(data.score[kept], data.marks[:, kept])
        return known[key]

    def share(kept: Mask) -> float | None:
        found = limits(kept)
        return found.judge / found.people if found is not None and found.people > 0 else None

    return AnnotatorAgreement(
        alpha=everything.estimate(lambda kept: statistics.ordinal_alpha(marks[:, kept])),
        alpha_with_judge=everything.estimate(lambda kept: statistics.ordinal_alpha(with_judge[:, kept])),
        kappas={
            name: _kappa_with(rating, low + own * (high - low), data.clusters)
            for name, own in list(zip(data.annotators, data.marks, strict=True))[:_MOST_ANNOTATORS]
        },
        ceiling=data.estimate(lambda kept: None if (found := limits(kept)) is None else found.people),
        judge=data.estimate(lambda kept: None if (found := limits(kept)) is None else found.judge),
        share=data.estimate(share, is_correlation=False),
    )


def _kappa_with(rating: Numbers, own: Numbers, clusters: Sequence[str]) -> Estimate:
    here: list[int] = np.flatnonzero(~np.isnan(own)).tolist()
    mine, theirs = rating[here], own[here]
    return jackknife(
        lambda kept: statistics.quadratic_kappa(mine[kept], theirs[kept]), [clusters[row] for row in here]
    )


def _passed(pairs: Sequence[JudgedLabel], metric: str, options: AgreeOptions) -> tuple[Verdicts, float]:
    """Return the judge's verdicts, and the threshold that comes closest to reproducing them."""
    used = [pair.match.item.thresholds.get(metric) for pair in pairs if pair.match is not None]
    threshold = threshold_of(used, options.good, options.threshold)
    return np.array([pair.passed_at(options.threshold, threshold) for pair in pairs], dtype=bool), threshold


def _verdicts(data: _Data, passed: Verdicts, threshold: float, options: AgreeOptions) -> VerdictCounts:
    good = data.human >= options.good
    better = statistics.best_threshold(data.score, good, present=threshold)
    counts = statistics.confusion(passed, good)
    makes_them = bool((passed == (data.score >= threshold - _ROUNDING)).all())
    return VerdictCounts(
        good_at=options.good,
        threshold=threshold if makes_them else None,
        counts=counts,
        kappa=data.estimate(lambda kept: statistics.cohen_kappa(passed[kept], good[kept])),
        mcc=counts.mcc,
        better_threshold=None if better is None else better.threshold,
        better_counts=None if better is None else better.confusion,
        better_mcc=None if better is None else better.mcc,
    )


def _notes(data: _Data, everything: _Data, alt: AltTest | None, errored: int) -> Iterable[str]:
    if errored:
        yield f"the judge failed on {plural(errored, 'labelled output')}, excluded throughout"
    clusters = len(set(data.clusters))
    if clusters < MIN_CLUSTERS:
        groups = plural(clusters, "independent group of outputs", "independent groups of outputs")
        yield f"no intervals: {groups}; at least {MIN_CLUSTERS} are needed"
    if len(everything.annotators) == 1:
        yield "one annotator: agreement between people is unknown, so there is no ceiling and no alt-test"
    elif alt is None:
        least = f"{statistics.MIN_ANNOTATORS} annotators, each with {statistics.MIN_ITEMS} outputs"
        yield f"no alt-test: it needs at least {least} that others labelled too"
    if len(everything.annotators) > 1 and len(data.score):
        lack = statistics.lack_of_ceiling(data.score, data.marks)
        if lack is not None:
            yield f"no ceiling: one annotator {lack}"
    if len(data.human) and (data.human == data.human[0]).all():
        yield "all labels are equal, so there is no correlation"
    if len(data.score) and (data.score == data.score[0]).all():
        yield "all scores are equal, so there is no correlation"
    if data.words is None:
        yield "output texts are missing, so length bias was not checked"


def _sentence(metric: str, verdicts: VerdictCounts, n: int) -> str:
    counts, better = verdicts.counts, verdicts.better_counts
    if not n:
        return f"For `{metric}`, the judge gave no score to any labelled output."
    if not counts.bad:
        return f"For `{metric}`, people find all {n:,} outputs good, so nothing shows whether this judge sees bad ones."
    said = f"For `{metric}`, the judge passes {counts.false_pass:,} of {counts.bad:,} bad outputs"
    if counts.good:
        said += f" and fails {counts.false_fail:,} of {counts.good:,} good ones"
    is_better = (verdicts.better_mcc or 0.0) > max(0.0, verdicts.mcc or 0.0) + _ROUNDING
    if better is None or verdicts.better_threshold is None or not is_better:
        return f"{said}; no other threshold separates them better."
    new = f"a threshold of {format_threshold(verdicts.better_threshold)} would pass {better.false_pass:,}"
    return f"{said}; {new} and fail {better.false_fail:,}."


def _plain(value: object) -> JsonValue:
    """Return a value as JSON; for an alt-test, including its properties `beats_constant` and `passed`."""
    if isinstance(value, AltTest):
        return {**_fields(value), "beats_constant": value.beats_constant, "passed": value.passed}
    if isinstance(value, Struct):
        return _fields(value)
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _fields(value: Struct) -> dict[str, JsonValue]:
    return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}


def agreement_document(found: Agreement) -> ReportDocument:
    """Return the agreement as a report document."""
    return ReportDocument(
        "Agreement with people",
        lambda quote: _about(found, quote),
        [
            _overview(found.metrics),
            *map(_section, found.metrics),
            *(jury_section(item.metric, item.jury) for item in found.metrics if item.jury is not None),
        ],
        found.to_json(),
        found.gates,
    )


def _overview(metrics: Sequence[MetricAgreement]) -> Section:
    """Return an overview of all metrics: a sentence and a row for each, and notes on what is missing."""
    notes: dict[str, list[str]] = {}
    for item in metrics:
        for note in item.notes:
            notes.setdefault(note, []).append(item.metric)
    named = {
        note: "" if len(about) == len(metrics) else f" ({', '.join(about)})" for note, about in notes.items()
    }
    header = ("metric", "n", "rho [95 %]", "tau", "r", "of ceiling", "kappa", "shift", "alt-test")
    rows = [_overview_row(item) for item in metrics]
    narrow = [0, 1, 2, 5, 6, 7]
    return Section(
        "All metrics",
        lambda quote: " ".join(_said(item, quote) for item in metrics),
        tables=[Table(header, [row[:-1] for row in rows])],
        brief=[
            Table(header, [row[:-1] for row in rows], least=140),
            Table(
                ["metric", "n", "rho [95 %]", "ceil.", "kappa", "shift", "alt-test"],
                [[*(row[place] for place in narrow), row[-1]] for row in rows],
            ),
        ],
        notes=[f"{note}{where}" for note, where in named.items()],
        is_overview=True,
    )


def _overview_row(item: MetricAgreement) -> list[str]:
    share = None if item.people is None else item.people.share.value
    shift = figure_text(item.bias.shift.value)
    test = item.alt_test
    won = "" if test is None else f"{sum(test.winners)} of {len(test.winners)}"
    return [
        item.metric,
        f"{item.n:,}",
        with_interval(item.dataset.spearman),
        figure_text(item.dataset.kendall.value),
        figure_text(item.dataset.pearson.value),
        "-" if share is None else format_share(share),
        figure_text(item.verdicts.kappa.value),
        shift if shift.startswith("-") else f"+{shift}",
        "-" if test is None else f"{'passes' if test.passed else 'no'} ({won}; {_beside_constant(test)})",
        "-" if test is None else f"{'passes' if test.passed else 'no'} {won.replace(' of ', '/')}",
    ]


def _beside_constant(test: AltTest) -> str:
    sign = "<" if test.beats_constant else ">=" if test.constant_rho >= test.rho else "~"
    return f"one constant rating {fixed(test.constant_rho, 2)} {sign} {fixed(test.rho, 2)}"


def _said(item: MetricAgreement, quote: Quote) -> str:
    return f"For {quote(item.metric)}, {item.summary.removeprefix(f'For `{item.metric}`, ')}"


def _section(item: MetricAgreement) -> Section:
    return Section(
        item.metric,
        lambda quote: _said(item, quote),
        plots=agreement_charts(
            item.metric,
            item.points,
            item.verdicts.counts,
            threshold=item.verdicts.threshold,
            good_at=item.verdicts.good_at,
        ),
        tables=[
            Table(
                ("statistic", *ESTIMATE),
                [(name, *estimate_cells(estimate)) for name, estimate in statistics_of(item)],
            ),
            Table(_VERDICT_HEADER, list(_verdict_rows(item))),
        ],
        texts=[text for text in (_alt_test_text(item), *item.notes) if text],
        is_detail=True,
    )


def statistics_of(item: MetricAgreement) -> Iterator[tuple[str, Estimate]]:
    """Yield every statistic of a metric with its name, in reading order."""
    levels: dict[str, CorrelationLevel | None] = {
        "all outputs": item.dataset,
        "within documents": item.document_level,
        "systems": item.system,
    }
    for name, level in levels.items():
        if level is not None:
            yield f"Spearman's rho, {name}", level.spearman
            yield f"Kendall's tau-b, {name}", level.kendall
            yield f"Pearson's r, {name}", level.pearson
    if item.people is not None:
        yield "ceiling: one person with the others", item.people.ceiling
        yield "judge with the same others", item.people.judge
        yield "judge's share of the ceiling", item.people.share
        yield "Krippendorff's alpha of people", item.people.alpha
        yield "Krippendorff's alpha with the judge", item.people.alpha_with_judge
        for name, estimate in item.people.kappas.items():
            yield f"quadratic kappa with {name}", estimate
    yield "Cohen's kappa of verdicts", item.verdicts.kappa
    yield "shift of scores (0 to 1)", item.bias.shift
    yield "shift in ratings", item.bias.shift_ratings
    yield "rho with length, labels held fixed", item.bias.length


def _verdict_rows(item: MetricAgreement) -> Iterator[tuple[str, ...]]:
    verdicts = item.verdicts
    found: list[tuple[float | None, Confusion]] = [(verdicts.threshold, verdicts.counts)]
    if verdicts.better_threshold is not None and verdicts.better_counts is not None:
        found.append((verdicts.better_threshold, verdicts.better_counts))
    for threshold, counts in found:
        numbers = (counts.true_pass, counts.false_pass, counts.false_fail, counts.true_fail)
        mcc = "-" if counts.mcc is None else fixed(counts.mcc, 3)
        name = "as run" if threshold is None else format_threshold(threshold)
        yield (name, *(f"{number:,}" for number in numbers), mcc)


_VERDICT_HEADER = ("threshold", "good, passes", "bad, passes", "good, fails", "bad, fails", "MCC")


def _alt_test_text(item: MetricAgreement) -> str:
    test = item.alt_test
    if test is None:
        return ""
    said = "passes" if test.passed else "does not pass"
    won = f"it may stand in for {sum(test.winners)} of {len(test.winners)} annotators (epsilon {test.epsilon:g})"
    control = f"always giving {item.scale[0] + test.constant * (item.scale[1] - item.scale[0]):g}"
    shown = (
        "is shown to be better than that" if test.beats_constant else "is not shown to be better than that"
    )
    return (
        f"Alternative annotator test: the judge {said}; {won}. It is as close to the others as an annotator for"
        f" {format_share(test.rho)} of the labels, {control} for {format_share(test.constant_rho)}; the judge {shown}."
    )


def _about(found: Agreement, quote: Quote) -> str:
    judges = ", ".join(map(quote, found.judges)) or ("unknown" if found.run else "scores of the file")
    run = "" if found.run is None else f" Run {quote(found.run)}, {found.unmatched:,} labels unmatched."
    people = plural(len(found.annotators), "annotator")
    groups = plural(
        max(item.documents for item in found.metrics),
        found.clustered_by if found.clustered_by == "test" else "document",
    )
    waiting = f" {plural(found.unlabelled, 'row')} without a label." if found.unlabelled else ""
    return (
        f"Judge: {judges}.{run} {plural(found.matched, 'label')} of {people}, {groups}.{waiting}"
        f" Intervals group outputs by {quote(found.clustered_by)}."
    )
