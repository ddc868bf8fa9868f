"""How well a judge agrees with people: `geval agree` and `geval_cli.extras.trust.agree`.

Here labels and scores become numbers, and numbers the record whose JSON the command writes; the statistics themselves
are in `statistics.correlation` and `statistics.agreement`. What the judge could not judge is counted and left out.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from geval_cli.errors import UsageError
from geval_cli.extras.trust.agreement_records import Bias, Level, MetricAgreement, People, Verdicts
from geval_cli.extras.trust.gates import GateOutcome, Requirement
from geval_cli.extras.trust.juries import JuryAgreement, jury_agreement, jury_scores
from geval_cli.extras.trust.labelling import labels_kept_for
from geval_cli.extras.trust.labels import GOOD_AT, LabelFile, LabelledOutput, Scale
from geval_cli.extras.trust.matching import Pair, assign_clusters, inexact_note, pair_labels, read_given
from geval_cli.records import CaseResult, JsonValue
from geval_cli.report.numbers import plural
from geval_cli.report.report import RunReport
from geval_cli.runs.results_file import open_report
from geval_cli.source.problems import did_you_mean
from geval_cli.statistics import agreement as statistics
from geval_cli.statistics.agreement import EPSILONS, AltTest, Ceiling
from geval_cli.statistics.correlation import (
    CORRELATIONS,
    MIN_CLUSTERS,
    Mask,
    Numbers,
    dataset_level,
    jackknife,
    partial_spearman,
    summary_level,
    system_level,
)
from geval_cli.statistics.intervals import Estimate

_ROUNDING = 1e-9
_MOST_ANNOTATORS = 20
"""More people than this who label a few items each are a crowd; each one's own figures would say little."""


class Agreement(Struct, frozen=True):
    """The result of `geval agree`.

    Attributes:
        labels: the file; `run`: the run's id, None where the scores stood beside the labels.
        matched: labels with an output; `unmatched` have none; `unlabelled` rows wait for their label.
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
        from_metrics = [_metric_json(item) for item in self.metrics]
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name != "metrics"}
        return {"schema_version": 1, "kind": "agree", **_plain(values), "metrics": from_metrics}


class Options(Struct, frozen=True):
    """How agreement is computed.

    Attributes:
        good: mean labels from here on are good, 0..1.
        threshold: scores from here on pass; None for the verdicts of the run, or `good` where there are none.
        cluster: a column of the labels or a key of the tests' metadata; None for `doc`, else the test.
        annotators: who they are, a key of `EPSILONS`.
    """

    good: float = GOOD_AT
    threshold: float | None = None
    cluster: str | None = None
    annotators: str = "expert"


def agree(
    labels: LabelFile | Path | str | Iterable[Mapping[str, JsonValue]] | None,
    run: str | RunReport | Iterable[CaseResult] | None = None,
    *,
    options: Options = Options(),  # noqa: B008 - frozen
    require: Sequence[str] = (),
    allow_unmatched: bool = False,
    home: Path | None = None,
) -> Agreement:
    """Return how well the judge of a run agrees with people.

    Args:
        labels: a file of labels, or its rows; None for those that are kept for the run, which `run` names.
        run: the run that was labelled: its id, `latest`, a results file, its report, or its results; None when the
            labels have a `score`.
        options: how it is computed.
        require: gates such as `spearman >= 0.4`, which hold when the whole interval does.
        allow_unmatched: leave out labels whose output is not in the run.
        home: where runs are stored, if `run` is an id; None for GEVAL_HOME, or `.geval` here.

    Raises:
        ConfigError: a row is broken or unmatched; all problems at once.
        UsageError: no scores, or an unknown run, cluster, kind of annotators or gate.
    """
    if isinstance(run, str):
        with open_report(run, home, os.environ) as (report, _):
            given = labels_kept_for(report.run.id, home) if labels is None else labels
            return agree(given, report, options=options, require=require, allow_unmatched=allow_unmatched)
    if labels is None:
        raise UsageError(
            "labels are kept for stored runs only", hint="name the run by its id, or give labels"
        )
    run_id, results = (run.run.id, run.results()) if isinstance(run, RunReport) else ("", run)
    file = read_given(labels)
    _check(options)
    gates = [Requirement.parse(text) for text in require]
    pairs, unmatched = pair_labels(file, results, run_id=run_id, allow_unmatched=allow_unmatched)
    clustered_by = assign_clusters(pairs, options.cluster)
    by_metric: dict[str, list[Pair]] = {}
    for pair in pairs:
        by_metric.setdefault(pair.label.metric, []).append(pair)
    metrics = tuple(_metric(name, members, options) for name, members in by_metric.items())
    return Agreement(
        labels=file.path,
        run=run_id or None,
        judges=tuple(dict.fromkeys(item.judge for item in metrics if item.judge)),
        annotators=file.annotators,
        matched=len(pairs),
        unmatched=unmatched,
        unlabelled=file.unlabelled,
        clustered_by=clustered_by,
        metrics=metrics,
        gates=tuple(outcome for gate in gates for outcome in gate.outcomes(metrics)),
    )


def _check(options: Options) -> None:
    if options.annotators not in EPSILONS:
        near = did_you_mean(options.annotators, EPSILONS)
        hint = f"did you mean `{near}`?" if near else f"known: {', '.join(EPSILONS)}"
        raise UsageError(f"annotators cannot be `{options.annotators}`", hint=hint)
    for name, value in (("good", options.good), ("threshold", options.threshold)):
        if value is not None and not 0 <= value <= 1:
            raise UsageError(
                f"`{name}` must lie from 0 to 1, found {value:g}",
                hint="labels and scores are brought to 0..1",
            )


class _Data(Struct, frozen=True):
    """One metric's outputs that the judge could score, as arrays."""

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


def _marks(pairs: Sequence[Pair]) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    names = tuple(dict.fromkeys(name for pair in pairs for name in pair.label.marks))
    return names, np.array([[pair.label.marks.get(name, np.nan) for pair in pairs] for name in names])


def _data(pairs: Sequence[Pair]) -> _Data:
    names, marks = _marks(pairs)
    systems = [pair.system for pair in pairs if pair.system is not None]
    words = [pair.words for pair in pairs if pair.words is not None]
    return _Data(
        score=np.array([np.nan if pair.score is None else pair.score for pair in pairs], dtype=np.float64),
        human=np.array([pair.label.human for pair in pairs], dtype=np.float64),
        marks=marks,
        annotators=names,
        clusters=[pair.cluster for pair in pairs],
        documents=[str(pair.document) for pair in pairs],
        systems=systems if len(systems) == len(pairs) else None,
        words=np.array(words, dtype=np.float64) if len(words) == len(pairs) else None,
    )


def _metric(name: str, pairs: Sequence[Pair], options: Options) -> MetricAgreement:
    scored = [pair for pair in pairs if pair.score is not None]
    scale = pairs[0].label.scale
    data, everything = _data(scored), _data(pairs)
    verdicts = _verdicts(data, scored, name, options)
    alt = _alt_test(data, options)
    has_people = len(everything.annotators) > 1
    return MetricAgreement(
        metric=name,
        judge=next((pair.match.item.judges.get(name) for pair in scored if pair.match), None),
        n=len(scored),
        errored=len(pairs) - len(scored),
        annotators=len(everything.annotators),
        documents=len(set(data.documents)),
        clusters=len(set(data.clusters)),
        scale=scale,
        dataset=_dataset(data),
        document_level=_by_document(data),
        system=_by_system(data),
        people=_people(data, everything, scale) if has_people and scored else None,
        verdicts=verdicts,
        bias=_bias(data, scale),
        alt_test=alt,
        notes=(
            *_notes(data, everything, alt, len(pairs) - len(scored)),
            *filter(None, [inexact_note(name, (pair.match for pair in scored))]),
        ),
        summary=_sentence(name, verdicts, len(scored)),
        jury=_jury(name, scored, data.score),
        points=tuple(
            LabelledOutput(
                pair.label.human,
                pair.score or 0.0,
                passed=pair.passed_at(options.threshold, verdicts.threshold),
                words=pair.words,
            )
            for pair in scored
        ),
    )


def _jury(metric: str, pairs: Sequence[Pair], scores: Numbers) -> JuryAgreement | None:
    found = jury_scores(metric, pairs)
    how = next((pair.match.item.combined.get(metric) for pair in pairs if pair.match is not None), None)
    return None if found is None else jury_agreement(found, scores, how or "mean")


def _dataset(data: _Data) -> Level:
    found = {
        kind: dataset_level(correlation, data.score, data.human, data.clusters)
        for kind, correlation in CORRELATIONS.items()
    }
    return _level(found)


def _by_document(data: _Data) -> Level | None:
    """Return the mean over documents; None where each has one output, so that nothing is in order within it."""
    if len(set(data.documents)) == len(data.documents):
        return None
    found = {
        kind: summary_level(correlation, data.score, data.human, data.documents, data.clusters)
        for kind, correlation in CORRELATIONS.items()
    }
    some = found["spearman"]
    estimates = {kind: mean.estimate for kind, mean in found.items()}
    return replace(_level(estimates), documents=some.used, skipped=some.skipped)


def _by_system(data: _Data) -> Level | None:
    """Return the correlation of systems' means; None of fewer than three, which are always in some order."""
    systems = data.systems
    if systems is None or len(set(systems)) < 3:  # noqa: PLR2004
        return None
    found = {
        kind: system_level(correlation, data.score, data.human, systems, data.clusters)
        for kind, correlation in CORRELATIONS.items()
    }
    return replace(_level(found), systems=len(set(systems)))


def _level(found: Mapping[str, Estimate]) -> Level:
    return Level(found["pearson"], found["spearman"], found["kendall"])


def _people(data: _Data, everything: _Data, scale: Scale) -> People:
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

    return People(
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


def _verdicts(data: _Data, pairs: Sequence[Pair], metric: str, options: Options) -> Verdicts:
    threshold = options.threshold
    if threshold is None:
        used = {pair.match.item.thresholds.get(metric) for pair in pairs if pair.match is not None}
        (only,) = used if len(used) == 1 else (None,)
        threshold = options.good if only is None else only
    good = data.human >= options.good
    passed = np.array([pair.passed_at(options.threshold, threshold) for pair in pairs], dtype=bool)
    better = statistics.best_threshold(data.score, good, present=threshold)
    counts = statistics.confusion(passed, good)
    return Verdicts(
        good_at=options.good,
        threshold=threshold,
        counts=counts,
        kappa=data.estimate(lambda kept: statistics.cohen_kappa(passed[kept], good[kept])),
        mcc=counts.mcc,
        better_threshold=None if better is None else better.threshold,
        better_counts=None if better is None else better.confusion,
        better_mcc=None if better is None else better.mcc,
    )


def _bias(data: _Data, scale: Scale) -> Bias:
    distance, words = data.score - data.human, data.words
    width = scale[1] - scale[0]
    length = Estimate(None, None, 0, 0)
    if words is not None and len(words):
        length = data.estimate(lambda kept: partial_spearman(data.score[kept], words[kept], data.human[kept]))

    def shift(by: float) -> Estimate:
        return data.estimate(
            lambda kept: float(distance[kept].mean()) * by if kept.any() else None, is_correlation=False
        )

    return Bias(shift(1.0), shift(width), length)


def _alt_test(data: _Data, options: Options) -> AltTest | None:
    if len(data.annotators) < statistics.MIN_ANNOTATORS:
        return None
    return statistics.alt_test(data.score, data.marks, data.clusters, epsilon=EPSILONS[options.annotators])


def _notes(data: _Data, everything: _Data, alt: AltTest | None, errored: int) -> Iterable[str]:
    if errored:
        yield f"the judge broke on {plural(errored, 'labelled output')}, left out of everything"
    clusters = len(set(data.clusters))
    if clusters < MIN_CLUSTERS:
        groups = plural(clusters, "independent group of outputs", "independent groups of outputs")
        yield f"no intervals: {groups}, and {MIN_CLUSTERS} are needed"
    if len(everything.annotators) == 1:
        yield "one annotator: nobody knows how far people agree, so there is no ceiling and no alt-test"
    elif alt is None:
        least = f"{statistics.MIN_ANNOTATORS} annotators with {statistics.MIN_ITEMS} outputs each"
        yield f"no alt-test: it needs {least}, which others labelled too"
    if len(data.human) and (data.human == data.human[0]).all():
        yield "all labels are equal: no correlation is defined"
    if len(data.score) and (data.score == data.score[0]).all():
        yield "all scores are equal: no correlation is defined"
    if data.words is None:
        yield "no texts of outputs: nothing is said about a bias by length"


def _sentence(metric: str, verdicts: Verdicts, n: int) -> str:
    counts, better = verdicts.counts, verdicts.better_counts
    if not n:
        return f"On {metric} the judge gave no score to any labelled output."
    if not counts.bad:
        return f"On {metric} people find all {n:,} outputs good, so nothing shows whether this judge sees bad ones."
    said = f"On {metric} this judge lets {counts.false_pass:,} of {counts.bad:,} bad outputs pass"
    if counts.good:
        said += f" and fails {counts.false_fail:,} of {counts.good:,} good ones"
    is_better = (verdicts.better_mcc or 0.0) > max(0.0, verdicts.mcc or 0.0) + _ROUNDING
    if better is None or verdicts.better_threshold is None or not is_better:
        return f"{said}; no other threshold tells them apart better."
    new = f"a threshold of {verdicts.better_threshold:.2f} would let {better.false_pass:,} pass"
    return f"{said}; {new} and fail {better.false_fail:,}."


def _metric_json(item: MetricAgreement) -> dict[str, JsonValue]:
    fields = {name: getattr(item, name) for name in item.__struct_fields__ if name != "points"}
    found: dict[str, JsonValue] = _plain(fields)
    found["levels"] = {
        "dataset": found.pop("dataset"),
        "summary": found.pop("document_level"),
        "system": found.pop("system"),
    }
    return found


def _plain(value: object) -> JsonValue:
    """Return records as JSON; a test also says whether it is passed, which is a property."""
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
