"""Estimate a run's true mean and pass rate from a few labels: `geval estimate`, `geval_cli.extras.trust.estimate`.

People read only the labelled outputs; the judge's scores of all outputs make the estimate more precise. The estimate is
biased unless the labels are a random sample of the run's outputs, so the command also draws that sample.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, to_builtins

from geval_cli.errors import UsageError
from geval_cli.extras.trust.documents import (
    ESTIMATE,
    ReportDocument,
    Section,
    Table,
    carry_over_text,
    estimate_cells,
    of_run,
    share_cells,
)
from geval_cli.extras.trust.labels import LabelFile, draw_notes
from geval_cli.extras.trust.matching import (
    JudgedLabel,
    Labels,
    Match,
    by_output,
    chosen_metrics,
    hint_of,
    judged_items,
    judged_labels,
    marks_of,
    match_labels,
    passed_at,
    read_given,
    threshold_of,
)
from geval_cli.extras.trust.options import EstimateOptions, GateOutcome, Requirement
from geval_cli.extras.trust.statistics.estimate import CarryOver, ErrorRates, Inference, rogan_gladen
from geval_cli.extras.trust.statistics.plain import Estimate
from geval_cli.extras.trust.true_figures import (
    ScoredOutput,
    documents_in,
    scored_outputs,
    shares_in,
    true_figures,
)
from geval_cli.extras.trust.weighted_draw import is_weighted
from geval_cli.judge.estimate import passes
from geval_cli.numbers import fixed, format_share, format_share_interval, plural
from geval_cli.records import CaseResult, JsonValue
from geval_cli.report.report import RunReport
from geval_cli.runs.stored import open_report
from geval_cli.statistics.intervals import ClusteredMean

METHODS = ("ppi", "rogan-gladen")
STATISTICS = ("true_mean", "true_pass_rate")
ADVISED = 30


class MetricEstimate(Struct, frozen=True):
    """The estimated true figures of one metric.

    Attributes:
        mean: mean label if all outputs had one; None with `rogan-gladen`.
        pass_rate: share of good outputs if all had a label.
        judge_mean, judge_pass_rate: the judge's own figures; None if it scored nothing. `judge_mean` is also None with
            `rogan-gladen`.
        labels_mean, labels_pass_rate: from the labels alone; None with `rogan-gladen`.
        weight_of_mean, weight_of_rate: how much the judge's scores count beside the labels, 0..1.
        labelled: outputs with a label; `outputs`: of the run, with a score; `errored`: outputs that the judge failed
        on.
        carry_over: whether the calibration that the run uses holds for these labels; None if it uses none.
        notes: what to know before using the figures.
    """

    metric: str
    mean: Estimate | None
    pass_rate: Estimate | None
    judge_mean: float | None
    judge_pass_rate: float | None
    labels_mean: Estimate | None
    labels_pass_rate: Estimate | None
    weight_of_mean: float | None
    weight_of_rate: float | None
    threshold: float
    labelled: int
    outputs: int
    errored: int
    carry_over: CarryOver | None = None
    notes: tuple[str, ...] = ()


class Estimated(Struct, frozen=True):
    """The result of `geval estimate`; `unmatched` labels have no output in the run."""

    labels: str
    run: str | None
    method: str
    matched: int
    unmatched: int
    metrics: tuple[MetricEstimate, ...]
    gates: tuple[GateOutcome, ...] = ()

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON document of `geval estimate --json`."""
        found: dict[str, JsonValue] = to_builtins(self)
        return {"schema_version": 1, "kind": "estimate", **found}


def estimate(
    labels: Labels,
    run: str | RunReport | Sequence[CaseResult] = "latest",
    *,
    options: EstimateOptions = EstimateOptions(),  # noqa: B008 - frozen
    require: Sequence[str] = (),
    allow_unmatched: bool = False,
    home: Path | None = None,
) -> Estimated:
    """Return an estimate of a run's mean and pass rate as if people had labelled all of its outputs.

    Args:
        labels: a file of labels, or its rows, of a random sample of the run's outputs.
        run: its id or `latest`, its report, or its results.
        options: how the figures are estimated.
        require: gates such as `coherence.true_pass_rate >= 80%`, which hold when the whole interval does.
        allow_unmatched: leave out labels whose output is not in the run.
        home: where runs are stored, if `run` is an id; None for GEVAL_HOME, or `.geval` in the current folder.

    Raises:
        ConfigError: a row is broken or unmatched; all problems at once.
        UsageError: the run, metric, method or gate is unknown, or the labels do not suit the method.
    """
    if isinstance(run, str):
        with open_report(run, home, os.environ) as (report, _):
            return estimate(labels, report, options=options, require=require, allow_unmatched=allow_unmatched)
    results = run.results if isinstance(run, RunReport) else lambda: iter(run)
    run_id = run.run.id if isinstance(run, RunReport) else ""
    options.check()
    if options.method not in METHODS:
        hint = hint_of(options.method, METHODS)
        raise UsageError(f"there is no method `{options.method}`", hint=hint)
    gates = [Requirement.parse(text, STATISTICS) for text in require]
    given = read_given(labels)
    if options.method == "ppi":
        found = match_labels(
            given.labels, judged_items(results()), run_id=run_id, allow_unmatched=allow_unmatched
        )
        estimates = tuple(_from_draw(found.matches, results, options, unlabelled=given.unlabelled))
        matched, unmatched = len(by_output(found.matches)), len(found.unmatched)
    else:
        estimates = tuple(_from_elsewhere(given, results, options))
        matched, unmatched = len(given.labels), 0
    return Estimated(
        labels=given.path,
        run=run_id or None,
        method=options.method,
        matched=matched,
        unmatched=unmatched,
        metrics=estimates,
        gates=tuple(
            outcome
            for gate in gates
            for outcome in gate.decide(
                {
                    item.metric: item.mean if gate.statistic == "true_mean" else item.pass_rate
                    for item in estimates
                }
            )
        ),
    )


def _from_draw(
    matches: Sequence[Match],
    results: Callable[[], Iterator[CaseResult]],
    options: EstimateOptions,
    *,
    unlabelled: int,
) -> Iterator[MetricEstimate]:
    """Yield the estimates for a run from labels of a sample of its own outputs."""
    marks = marks_of(matches)
    notes = tuple(
        draw_notes(
            [match.label for match in matches], unlabelled, "outputs were drawn at random from this run"
        )
    )
    for metric in chosen_metrics([match.label.metric for match in matches], options.only):
        of_metric = [match for match in matches if match.label.metric == metric]
        outputs = scored_outputs(metric, judged_items(results()), documents_in(of_metric))
        shares = shares_in(of_metric, metric, outputs)
        more = () if shares is None else tuple(_weight_notes(shares))
        yield _by_inference(metric, outputs, marks[metric], shares, options, (*notes, *more))


def _weight_notes(shares: Mapping[str, float]) -> Iterator[str]:
    yield "labels are weighted by the probability with which `geval label --next` drew their outputs"
    if unused := sum(not share for share in shares.values()):
        yield f"not used: {plural(unused, 'label')} of outputs that were not drawn"


def _by_inference(
    metric: str,
    outputs: Sequence[ScoredOutput],
    marks: Mapping[str, float],
    shares: Mapping[str, float] | None,
    options: EstimateOptions,
    notes: tuple[str, ...],
) -> MetricEstimate:
    found = true_figures(
        outputs, marks, good=options.good, threshold=options.threshold, margin=options.margin, shares=shares
    )
    mean, rate = found.mean, found.rate
    return MetricEstimate(
        metric=metric,
        mean=None if mean is None else mean.estimate,
        pass_rate=None if rate is None else rate.estimate,
        judge_mean=found.judged_mean,
        judge_pass_rate=found.judged_rate,
        labels_mean=None if mean is None else mean.labels,
        labels_pass_rate=None if rate is None else rate.labels,
        weight_of_mean=None if mean is None else mean.weight,
        weight_of_rate=None if rate is None else rate.weight,
        threshold=found.threshold,
        labelled=found.labelled,
        outputs=found.outputs,
        errored=found.errored,
        carry_over=found.carry_over,
        notes=(*_notes(rate, found.labelled, found.errored), *notes),
    )


def _notes(found: Inference | None, labelled: int, errored: int) -> Iterator[str]:
    if errored:
        yield f"not counted: {plural(errored, 'output')} of the run that could not be judged"
    if labelled < ADVISED:
        yield f"{plural(labelled, 'label')}: use at least {ADVISED}; 100 give narrow intervals"
    if found is not None and found.weight == 0 and labelled < found.outputs:
        yield "the judge's scores do not track human labels, so only the labels count"


def _from_elsewhere(
    given: LabelFile, results: Callable[[], Iterator[CaseResult]], options: EstimateOptions
) -> Iterator[MetricEstimate]:
    """Yield estimates of a run's pass rates, corrected by the judge's error rates on labels of other outputs."""
    if is_weighted(given.labels):
        raise UsageError(
            "--method rogan-gladen needs labels that were drawn with equal chances, not by `geval label --next`",
            hint="leave --method out: the run that they were drawn from is estimated by their weights",
        )
    if not given.has_scores:
        hint = "add the judge's scores as `score`, or for labels of this run drop --method rogan-gladen"
        raise UsageError(f"{given.path} has no judge scores, so the judge's error rate is unknown", hint=hint)
    labelled = judged_labels(given, None, cluster=None, allow_unmatched=False).pairs
    for metric in chosen_metrics([label.metric for label in given.labels], options.only):
        outputs = scored_outputs(metric, judged_items(results()))
        scored = [(item, item.score) for item in outputs if item.score is not None]
        if not scored:
            raise UsageError(
                f"no output of the run has a score of `{metric}`", hint="check that it is the right run"
            )
        threshold = threshold_of((item.threshold for item in outputs), options.good, options.threshold)
        rates = _error_rates([pair for pair in labelled if pair.label.metric == metric], threshold, options)
        passed = ClusteredMean()
        for item, _ in scored:
            verdict = passed_at(item.score, item.passed, options.threshold, threshold)
            passed.add(int(item.test.removeprefix("test ")), float(verdict))
        share = passed.mean or 0.0
        found = rogan_gladen(share, _worth(passed), rates)
        notes = list(_notes(None, rates.good + rates.bad, len(outputs) - len(scored)))
        if found is None:
            notes.append("on these labels the judge is no better than chance (or all are good, or bad)")
        yield MetricEstimate(
            metric=metric,
            mean=None,
            pass_rate=found,
            judge_mean=None,
            judge_pass_rate=share,
            labels_mean=None,
            labels_pass_rate=None,
            weight_of_mean=None,
            weight_of_rate=None,
            threshold=threshold,
            labelled=rates.good + rates.bad,
            outputs=len(scored),
            errored=len(outputs) - len(scored),
            notes=tuple(notes),
        )


def _error_rates(pairs: Sequence[JudgedLabel], threshold: float, options: EstimateOptions) -> ErrorRates:
    """Return how often the judge is right on labelled outputs; those of one document or test are a cluster."""
    right = {True: ClusteredMean(), False: ClusteredMean()}
    scored = sorted((pair.cluster, pair.score, pair.label.human) for pair in pairs if pair.score is not None)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(name for name, *_ in scored))}
    counts = dict.fromkeys(right, 0)
    for name, score, human in scored:
        is_good = passes(human, options.good)
        is_right = passes(score, threshold) == is_good
        right[is_good].add(numbers[name], float(is_right))
        counts[is_good] += is_right
    good, bad = right[True], right[False]
    return ErrorRates(counts[True], good.n, counts[False], bad.n, (_worth(good), _worth(bad)), len(numbers))


def _worth(passed: ClusteredMean) -> float:
    """Return the effective sample size of clustered outputs, from the standard error of their mean."""
    share = passed.mean or 0.0
    error = passed.standard_error()
    if passed.clusters == passed.n or not error:
        return float(passed.clusters)
    variance = error**2 * (passed.clusters - 1) / passed.clusters
    return min(float(passed.n), share * (1 - share) / variance)


def estimate_document(found: Estimated) -> ReportDocument:
    """Return the estimates as a report document."""
    return ReportDocument(
        "True figures of a run",
        lambda quote: (
            f"Labels: {quote(found.labels)}{of_run(found.run, quote)}, {found.matched:,} used; method {found.method}."
        ),
        list(map(_section, found.metrics)),
        found.to_json(),
        found.gates,
    )


def _section(item: MetricEstimate) -> Section:
    figures = {
        "pass rate": item.pass_rate,
        "pass rate, labels alone": item.labels_pass_rate,
        "mean": item.mean,
        "mean, labels alone": item.labels_mean,
    }
    rows = [
        (name, *(share_cells if name.startswith("pass rate") else estimate_cells)(value))
        for name, value in figures.items()
        if value is not None
    ]
    outputs = f"{item.outputs:,}"
    alone = "-" if item.judge_pass_rate is None else format_share(item.judge_pass_rate)
    rows.insert(2, ("pass rate, judge alone", alone, "-", outputs, "-"))
    if item.judge_mean is not None:
        rows.append(("mean, judge alone", fixed(item.judge_mean, 3), "-", outputs, "-"))
    return Section(
        item.metric,
        lambda quote: _sentence(item),
        tables=[Table(("figure", *ESTIMATE), rows)],
        texts=[]
        if item.carry_over is None
        else [carry_over_text("the run's calibration", "its labels", item.carry_over)],
        notes=item.notes,
    )


def _sentence(item: MetricEstimate) -> str:
    counted = f"{plural(item.labelled, 'label')}, {plural(item.outputs, 'output')}"
    rate = item.pass_rate
    if rate is None or rate.value is None or item.judge_pass_rate is None:
        return f"the true pass rate is unknown ({counted})"
    between = ""
    if rate.interval is not None:
        between = f" (95 % interval {format_share_interval(rate.interval)})"
    return (
        f"{format_share(rate.value)} of the outputs are good{between}; the judge alone says"
        f" {format_share(item.judge_pass_rate)} ({counted})"
    )
