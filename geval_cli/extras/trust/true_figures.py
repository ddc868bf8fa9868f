"""Estimate the true mean and pass rate of a metric from some labels and all scores, and decide gates on them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from msgspec import Struct

from geval_cli.engine.gates import is_tagged
from geval_cli.errors import ConfigError, Problem, Severity
from geval_cli.extras.trust.labels import GOOD_AT, LabelFile, read_labels
from geval_cli.extras.trust.matching import (
    JudgedItem,
    Match,
    document_of,
    hint_of,
    judged_items,
    labelled_outputs,
    marks_of,
    match_labels,
    passed_at,
    threshold_of,
)
from geval_cli.extras.trust.options import interval_beside
from geval_cli.extras.trust.statistics.estimate import (
    MARGIN,
    CarryOver,
    Inference,
    Item,
    infer_mean,
    infer_rate,
    residuals_carry_over,
)
from geval_cli.extras.trust.weighted_draw import infer_by_shares, shares_of_labels
from geval_cli.judge.estimate import passes
from geval_cli.numbers import format_share, plural
from geval_cli.records import CaseResult, GateResult, Status
from geval_cli.suite.gates import Gate, Statistic
from geval_cli.suite.suite import ConfiguredFile, LoadedSuite


class ScoredOutput(Struct, frozen=True):
    """The judge's score and verdict on one output, None where it failed, with the threshold that the run used.

    `p_pass` is the probability of being good according to the run's calibration. `cluster` is the output's document,
    else its test.
    """

    id: str
    test: str
    cluster: str
    score: float | None
    threshold: float | None
    passed: bool | None = None
    p_pass: float | None = None


class TrueFigures(Struct, frozen=True):
    """The estimated figures of one metric if all outputs had human labels; None if none has.

    Attributes:
        judged_mean, judged_rate: the judge's own figures.
        threshold: lowest score that passes.
        labelled: number of outputs with a label and a score.
        outputs: number of outputs with a score; on `errored` others the judge failed.
        carry_over: whether the run's calibration holds for the labels; None if the run has none.
    """

    mean: Inference | None
    rate: Inference | None
    judged_mean: float | None
    judged_rate: float | None
    threshold: float
    labelled: int
    outputs: int
    errored: int
    carry_over: CarryOver | None = None


def scored_outputs(
    metric: str, items: Iterable[JudgedItem], documents: Mapping[int, str] = MappingProxyType({})
) -> list[ScoredOutput]:
    """Return the outputs of a run that a metric judged or should have judged.

    `documents` are those that labels name, by test number; they take precedence over the metadata.
    """

    def cluster(item: JudgedItem) -> str:
        document = documents.get(item.test_index, document_of(item.metadata))
        return f"test {item.test_index}" if document is None else f"doc {document}"

    return [
        ScoredOutput(
            id=item.id,
            test=f"test {item.test_index}",
            cluster=cluster(item),
            score=item.scores[metric],
            threshold=item.thresholds.get(metric),
            passed=item.verdicts.get(metric),
            p_pass=item.p_pass.get(metric),
        )
        for item in items
        if metric in item.scores
    ]


def true_figures(
    outputs: Sequence[ScoredOutput],
    marks: Mapping[str, float],
    *,
    good: float,
    threshold: float | None = None,
    margin: float = MARGIN,
    shares: Mapping[str, float] | None = None,
) -> TrueFigures:
    """Return the estimated figures of one metric.

    Args:
        outputs: all outputs of the run.
        marks: the mean human label, 0..1, by output id, of a random sample of the outputs.
        good: lowest mean label of a good output.
        threshold: lowest score that passes; None for the run's own verdicts.
        margin: largest error of a calibration that does not matter.
        shares: relative weight of each label, by output id; None if all labels have the same weight.
    """
    limit = threshold_of((item.threshold for item in outputs), good, threshold)
    scored = [(item, item.score) for item in outputs if item.score is not None]
    items = [Item(score, marks.get(item.id), item.cluster) for item, score in scored]
    verdicts = [
        Item(
            float(passed_at(item.score, item.passed, threshold, limit)),
            None if (human := marks.get(item.id)) is None else float(passes(human, good)),
            item.cluster,
        )
        for item, _ in scored
    ]
    audited = [
        (item.human - chance, item.cluster, item.human, output.id)
        for item, (output, _) in zip(verdicts, scored, strict=True)
        if item.human is not None and (chance := output.p_pass) is not None
    ]
    if shares is None:
        mean = infer_mean(items)
        rate = infer_rate(verdicts)
        carry_over = residuals_carry_over(
            [residual for residual, *_ in audited],
            [cluster for _, cluster, *_ in audited],
            margin,
            marks=[mark for _, _, mark, _ in audited],
        )
    else:
        counted = [shares.get(item.id, 0.0) for item, _ in scored]
        mean, rate = (
            infer_by_shares(figures, counted, is_rate=figures is verdicts) for figures in (items, verdicts)
        )
        carry_over = None  # auditing a calibration takes a simple random sample
    return TrueFigures(
        mean=mean,
        rate=rate,
        judged_mean=_mean([item.judged for item in items]),
        judged_rate=_mean([item.judged for item in verdicts]),
        threshold=limit,
        labelled=sum(item.human is not None for item in items),
        outputs=len(scored),
        errored=len(outputs) - len(scored),
        carry_over=carry_over,
    )


def documents_in(matches: Iterable[Match]) -> dict[int, str]:
    """Return the documents of labelled tests, by test number; empty unless all labels name one."""
    found = {match.item.test_index: match.label.doc for match in matches}
    return {test: doc for test, doc in found.items() if doc is not None} if None not in found.values() else {}


def shares_in(
    matches: Iterable[Match], metric: str, outputs: Sequence[ScoredOutput]
) -> dict[str, float] | None:
    """Return the relative weight of each label of a metric, by output; None if all have the same weight.

    Raises:
        ConfigError: labels that a draw was made after are missing.
    """
    count = sum(output.score is not None for output in outputs)
    return shares_of_labels(labelled_outputs(matches)[metric], count)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


_ADD = "add `labels: FILE` to the config; draw outputs to label with `geval estimate sheet.jsonl --draw 100`"


def read_suite_labels(suite: LoadedSuite) -> tuple[LabelFile | None, list[Problem]]:
    """Return the labels that a config names, and the problems with them or with the gates that need them."""
    gates = [gate for gate in suite.gates if gate.needs_labels]
    if suite.labels is None:
        return None, [
            Problem(f"the gate `{gate.text}` needs human labels", gate.place.value(), _ADD) for gate in gates
        ]
    try:
        labels = _read(suite.labels, suite)
    except ConfigError as error:
        place = suite.labels.place.value()
        return None, [replace(item, location=item.location or place) for item in error.problems]
    problems = [*_unlabelled(gates, labels)]
    if gates and labels.unlabelled:
        rows = plural(labels.unlabelled, "row has", "rows have")
        hint = "label every row: labels of only some of the drawn outputs are not a random sample"
        where = suite.labels.place.value()
        problems.append(Problem(f"{rows} no label yet", where, hint, severity=Severity.WARNING))
    if not gates:
        hint = "add a gate such as `METRIC.true_pass_rate >= 80%`, or leave `labels` out"
        where = suite.labels.place.value()
        problems.append(Problem("no gate uses the labels", where, hint, severity=Severity.WARNING))
    return labels, problems


def _read(named: ConfiguredFile, suite: LoadedSuite) -> LabelFile:
    place = named.place.value()
    if suite.access.is_outside(named.path):
        raise ConfigError([suite.access.outside_problem(named.path, place)])
    if not named.path.is_file():
        raise ConfigError(
            [Problem(f"there is no file `{named.path}`", place, "it is relative to the config")]
        )
    return read_labels(named.path, suite.access)


def _unlabelled(gates: Sequence[Gate], labels: LabelFile) -> Iterator[Problem]:
    labelled = dict.fromkeys(label.metric for label in labels.labels)
    for gate in gates:
        if gate.metric is not None and gate.metric not in labelled:
            hint = hint_of(gate.metric, labelled, "labelled")
            message = f"the gate `{gate.text}` is about `{gate.metric}`, which has no labels"
            yield Problem(message, gate.place.value(), hint)


def judge_true_figures(
    gates: Sequence[Gate],
    labels: LabelFile | None,
    results: Callable[[], Iterator[CaseResult]],
    run_id: str,
) -> dict[str, GateResult]:
    """Return the results of gates on true figures, by the gate's text.

    A gate holds only if the whole interval satisfies it.
    """
    return {gate.text: _judged(gate, labels, results, run_id) for gate in gates}


def _judged(
    gate: Gate, labels: LabelFile | None, results: Callable[[], Iterator[CaseResult]], run_id: str
) -> GateResult:
    if labels is None or gate.metric is None:
        return _unknown(gate, "there are no labels")
    of_metric = [label for label in labels.labels if label.metric == gate.metric]
    try:
        # Labels of other outputs, such as those of an earlier prompt, say nothing about these.
        matched = match_labels(of_metric, judged_items(results()), run_id=run_id, allow_unmatched=True)
    except ConfigError as error:
        first = error.problems[0]
        return _unknown(gate, f"no label belongs to an output of this run: {first.message}")
    chosen = (item for item in results() if all(is_tagged(item.metadata, *tag) for tag in gate.tags))
    outputs = scored_outputs(gate.metric, judged_items(chosen), documents_in(matched.matches))
    try:
        shares = shares_in(matched.matches, gate.metric, outputs)
    except ConfigError as error:
        return _unknown(gate, error.problems[0].message)
    found = true_figures(outputs, marks_of(matched.matches)[gate.metric], good=GOOD_AT, shares=shares)
    is_mean = gate.statistic is Statistic.TRUE_MEAN
    return _held(
        gate,
        found.mean if is_mean else found.rate,
        f"{found.labelled:,} of {plural(len(of_metric), 'label')}",
    )


def _unknown(gate: Gate, note: str) -> GateResult:
    return GateResult(gate.text, Status.ERROR, None, note)


def _held(gate: Gate, found: Inference | None, counted: str) -> GateResult:
    if found is None:
        return _unknown(gate, f"{counted} are of outputs of this run")
    estimate = found.estimate
    if estimate.value is None or estimate.interval is None:
        return _unknown(gate, f"{counted}: too few for an interval")
    low, high = estimate.interval
    worst, best = gate.worst_and_best(low, high)
    is_share = gate.statistic is Statistic.TRUE_PASS_RATE
    between = interval_beside((low, high), gate.limit, is_share=is_share)
    judge = format_share(found.judge) if is_share else f"{found.judge:.2f}"
    said = f"{counted}, 95 % interval {between}; the judge alone says {judge}"
    if gate.holds(worst):
        return GateResult(gate.text, Status.PASSED, estimate.value, said)
    if gate.holds(best):
        said = f"undecided, more labels would tell: {said}"
    return GateResult(gate.text, Status.FAILED, estimate.value, said)
