"""Correct the difference of two runs with human labels: `geval compare --labels`, and gates on true differences.

A judge that prefers longer answers, for example, reports gains that are not real. Labels of some outputs estimate the
judge's error, and its difference is corrected by it. docs/trust.md says how to draw the outputs to label.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct, to_builtins
from msgspec.structs import replace
from rich.console import Console

from geval_cli.engine.gates import is_tagged
from geval_cli.errors import ConfigError, Problem, UsageError
from geval_cli.extras.compare.comparison import EarlierRun, Pairing
from geval_cli.extras.compare.matching import ColumnMatch, match_columns
from geval_cli.extras.trust.documents import (
    Quote,
    ReportDocument,
    Section,
    Table,
    carry_over_text,
    markdown_of,
    print_document,
)
from geval_cli.extras.trust.labels import Label, LabelFile, draw_notes
from geval_cli.extras.trust.matching import (
    JudgedItem,
    Labels,
    Match,
    judged_items,
    marks_of,
    match_in_runs,
    read_given,
)
from geval_cli.extras.trust.options import CorrectOptions
from geval_cli.extras.trust.statistics.estimate import (
    LEAST_LABELLED,
    MARGIN,
    CarryOver,
    Item,
    TrueDifference,
    carry_over_of,
    infer_difference,
    infer_shift,
)
from geval_cli.extras.trust.statistics.plain import Estimate
from geval_cli.numbers import format_difference, format_p, plural
from geval_cli.records import CaseResult, GateResult, JsonValue, RunRecord, RunSummary, Status
from geval_cli.report.report import RunReport
from geval_cli.runs.stored import open_reports
from geval_cli.statistics.intervals import Interval
from geval_cli.statistics.paired import (
    SIGNIFICANCE,
    DifferenceVerdict,
    PairedSample,
    PairedTest,
    holm,
    verdict_of,
)
from geval_cli.suite.gates import Gate


class Design(StrEnum):
    """The kind of labels that a correction is based on."""

    SAME_TESTS = "same tests"
    DIFFERENT_TESTS = "different tests"


class SignAgreement(StrEnum):
    """The agreement of judge and labels on which run is better; unclear if one of them shows no difference."""

    SAME = "same sign"
    OTHER = "other sign"
    UNCLEAR = "unclear"


class CorrectedRow(Struct, frozen=True):
    """The difference of one metric in one pair of columns, later minus earlier.

    Attributes:
        design: whether the labels are of both outputs of the same tests, or of outputs of different tests.
        judge: the judge's own difference over all pairs. Neither its interval nor `judge_p`, its p-value, accounts for
            errors of the judge.
        corrected: the estimated difference if all outputs had human labels; without an interval if `why` gives a
            reason.
        p: p-value of the null hypothesis of no difference; `p_adjusted` is adjusted for all rows by Holm's method.
        margin: the largest difference that does not matter; None if every difference matters.
        margin_interval: the 90 % interval that is compared with the margin.
        weights: the weight of the judge's scores, 0..1: one for their differences, or one for each run.
        labelled: number of labelled outputs of each run; `tests` is the number of tests (or clusters) with labels in
            each.
        equal: number of labelled pairs of identical texts, whose difference is 0 whatever the judge says.
        errored: number of pairs that the judge could not score; `unused` is the number of labels outside scored pairs.
        alone: number of labels of only one output of a pair, not used because most labelled tests have labels of both.
        carry_over: whether a calibration from the earlier run's labels holds for the later run's.
    """

    metric: str
    column: str
    design: Design
    judge: Estimate
    judge_p: float
    corrected: Estimate
    se: float | None
    p: float | None
    p_adjusted: float | None
    verdict: DifferenceVerdict
    signs: SignAgreement
    weights: tuple[float, ...]
    labelled: tuple[int, int]
    tests: tuple[int, int]
    pairs: int
    equal: int
    errored: int
    unused: int
    alone: int
    carry_over: CarryOver | None = None
    margin: float | None = None
    margin_interval: Interval | None = None
    why: str = ""


class CorrectedComparison(Struct, frozen=True):
    """Two runs compared with the help of labels; `unmatched` labels have no output in either run."""

    labels: str
    a: str | None
    b: str | None
    rows: tuple[CorrectedRow, ...]
    matched: int
    unmatched: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON form."""
        found: dict[str, JsonValue] = to_builtins(self)
        return {"schema_version": 1, "kind": "corrected_comparison", **found}

    @property
    def sentence(self) -> str:
        """The answer in a sentence: the judge's difference, and how the labels correct it."""
        return _sentence(self.rows, str)

    @property
    def figures(self) -> Table:
        """The judge's difference and the corrected one, row by row."""
        return _figures(self.rows)[0]

    def print(self, console: Console) -> None:
        """Print the answer in a sentence, then the figures."""
        print_document(_document(self), console)

    def to_markdown(self) -> str:
        """Return the answer and the figures as Markdown."""
        return markdown_of(_document(self))


def compare(
    labels: Labels,
    a: str | RunReport,
    b: str | RunReport,
    *,
    options: CorrectOptions = CorrectOptions(),  # noqa: B008 - frozen
    allow_unmatched: bool = False,
    home: Path | None = None,
) -> CorrectedComparison:
    """Return the difference of run `b` from the earlier run `a` in each labelled metric, corrected by human labels.

    Labels of both outputs of the same tests correct the judge's differences; labels on different tests correct each
    run's mean. The design that most labelled tests have is used, and every row says which one it is.

    Args:
        labels: a file of labels of outputs of `a`, `b` or both, or its rows.
        a: the earlier run: its id, `latest~1`, a results file, or its report.
        b: the later run, likewise.
        options: the columns to compare, the clusters and the margins.
        allow_unmatched: skip labels whose output is in neither run.
        home: where runs are stored, if one is an id; None for GEVAL_HOME, or `.geval` in the current folder.

    Raises:
        ConfigError: a row is invalid, unmatched or ambiguous; all problems at once.
        UsageError: an unknown run or column, or no labelled metric that both runs judged.

    Source: Angelopoulos, Duchi and Zrnic, "PPI++: Efficient prediction-powered inference", 2023.
    """
    with open_reports([run for run in (a, b) if isinstance(run, str)], home, os.environ) as (reports, _):
        opened = iter(reports)
        before, after = (next(opened) if isinstance(run, str) else run for run in (a, b))
        return correct(labels, EarlierRun(before), after, options, allow_unmatched=allow_unmatched)


def correct(
    labels: Labels,
    earlier: EarlierRun,
    later: RunReport,
    options: CorrectOptions,
    *,
    allow_unmatched: bool = False,
) -> CorrectedComparison:
    """Return the comparison of two runs when the earlier one is already loaded; see `compare`."""
    given = read_given(labels)
    found = labelled_pairs(given.labels, earlier, later, options, allow_unmatched=allow_unmatched)
    metrics = list(dict.fromkeys(label.metric for label in given.labels))
    rows = [
        row
        for pair in found.columns.pairs
        for metric in metrics
        if (row := _row(found, metric, pair.after.index, pair.label, options.margins.of(metric))) is not None
    ]
    if not rows:
        hint = (
            "label outputs of both runs, ideally both outputs of a test: geval estimate SHEET --draw "
            "30 --of A,B"
        )
        raise UsageError(
            f"the labels cannot be compared: no metric has labels in both runs ({', '.join(metrics)})",
            hint=hint,
        )
    adjusted = iter(holm([row.p for row in rows if row.p is not None]))
    rows = [row if row.p is None else _decided(row, next(adjusted)) for row in rows]
    return CorrectedComparison(
        labels=given.path,
        a=earlier.report.run.id or None,
        b=later.run.id or None,
        rows=tuple(rows),
        matched=len(given.labels) - found.unmatched,
        unmatched=found.unmatched,
        notes=tuple(_notes(found, rows, given)),
    )


class ScoredText(Struct, frozen=True, gc=False):
    """The parts of an earlier output that are compared; those of the whole run are held in memory."""

    id: str
    output_sha256: str
    scores: Mapping[str, float | None]


class ScoredPair(Struct, frozen=True, gc=False):
    """The outputs of one test in both runs: ids, whether the texts are identical, and scores on shared metrics."""

    column: int
    cluster: str
    before: str
    after: str
    is_equal: bool
    scores: dict[str, tuple[float | None, float | None]]


class LabelledPairs(Struct, frozen=True):
    """The paired outputs of two runs, and the labels of each run; `matches` are by run."""

    pairs: list[ScoredPair]
    columns: ColumnMatch
    matches: tuple[Sequence[Match], Sequence[Match]]
    unmatched: int

    def difference(self, metric: str, column: int | None = None) -> "MetricDifference":
        """Return the difference of one metric, in one of the later run's columns or in all of them."""
        pairs = [item for item in self.pairs if metric in item.scores and column in (None, item.column)]
        before, after = (marks_of(matches).get(metric, {}) for matches in self.matches)
        sample = PairedSample()
        both = list[Item]()
        sides = (list[Item](), list[Item]())
        clusters: dict[str, int] = {}
        paired, single = set[str](), (set[str](), set[str]())
        used = equal = alone = 0
        for pair in pairs:
            (old, new) = pair.scores[metric]
            marks = (before.get(pair.before), after.get(pair.after))
            if old is None or new is None:
                continue
            sample.add(clusters.setdefault(pair.cluster, len(clusters)), (old, new), same=False)
            used += sum(mark is not None for mark in marks)
            if pair.is_equal:  # a label of the text is a label of both outputs
                said = [mark for mark in marks if mark is not None]
                marks = (sum(said) / len(said),) * 2 if said else marks
                equal += bool(said)
            moved = None if marks[0] is None or marks[1] is None else marks[1] - marks[0]
            if moved is not None:
                paired.add(pair.cluster)
            for seen, mark in zip(single, marks, strict=True):
                if mark is not None and moved is None:
                    seen.add(pair.cluster)
                    alone += 1
            both.append(Item(new - old, moved, pair.cluster))
            for side, score, mark in zip(sides, (old, new), marks, strict=True):
                side.append(Item(score, mark, pair.cluster))
        is_same = len(paired) >= len((single[0] | single[1]) - paired)
        if len(paired) < LEAST_LABELLED <= min(len(paired | seen) for seen in single):
            is_same = False  # only all labels together suffice for an interval
        return MetricDifference(
            design=Design.SAME_TESTS if is_same else Design.DIFFERENT_TESTS,
            found=infer_difference(both) if is_same else infer_shift(*sides),
            judge=sample.test(),
            sides=sides,
            pairs=len(both),
            equal=equal,
            errored=len(pairs) - len(both),
            unused=len(before) + len(after) - used,
            alone=alone if is_same else 0,
        )


class MetricDifference(Struct, frozen=True):
    """The difference of one metric over pairs, estimated from labels; `sides` are scores and labels of each run."""

    design: Design
    found: TrueDifference | None
    judge: PairedTest | None
    sides: tuple[list[Item], list[Item]]
    pairs: int
    equal: int
    errored: int
    unused: int
    alone: int

    @property
    def why(self) -> str:
        """The reason why there is no interval; "" if there is one."""
        if self.found is None:
            return "one of the two runs has no labelled outputs"
        if self.found.se is not None:
            return ""
        if min(self.found.clusters) < LEAST_LABELLED:
            of_each = " of each run" if self.design is Design.DIFFERENT_TESTS else ""
            return f"at least {LEAST_LABELLED} labelled tests{of_each} are needed"
        return "they are all equal, which says nothing about the other tests"


def labelled_pairs(
    labels: Sequence[Label],
    earlier: EarlierRun,
    later: RunReport,
    options: CorrectOptions,
    *,
    allow_unmatched: bool,
    takes: Callable[[CaseResult], bool] = lambda result: True,
) -> LabelledPairs:
    """Return the pairs of two runs with the labels of their outputs.

    Of the later run, only results for which `takes` is true are paired. Labels with a weight are not used.

    Raises:
        ConfigError: a label has no output in either run or does not say in which, or all labels have weights.
        UsageError: the options name columns or a cluster key that do not exist.
    """
    plain = [label for label in labels if label.weight is None]
    if labels and not plain:
        hint = "label a plain draw of both runs: geval label A,B --draw 30"
        message = "labels that `geval label --next` drew cannot correct a difference of two runs"
        raise ConfigError([Problem(message, labels[0].location, hint)])
    labels = plain
    places: dict[tuple[int, int, int], ScoredText] = {}
    match = match_columns(earlier.report.columns, later.columns, options.columns)
    pairs: list[ScoredPair] = []

    def before() -> Iterator[JudgedItem]:
        for result in earlier.report.results():
            for item in judged_items([result]):
                place = result.test_index, result.repeat_index, result.column
                places[place] = ScoredText(item.id, item.output_sha256, item.scores)
                yield item

    def after() -> Iterator[JudgedItem]:
        for old, result in Pairing(places, earlier.tests, match).of(later.results()):
            for new in judged_items([result]):
                yield new
                if old is not None and takes(result):
                    pairs.append(_pair(result, old, new, options.cluster))

    runs = (earlier.report.run.id, before()), (later.run.id, after())
    one, other = match_in_runs(labels, runs, allow_unmatched=allow_unmatched)
    if options.cluster is not None and not any(pair.cluster.startswith("value ") for pair in pairs):
        raise UsageError(
            f"no test has the metadata `{options.cluster}`", hint="use a key of the tests' metadata"
        )
    return LabelledPairs(pairs, match, (one.matches, other.matches), len(one.unmatched))


def _pair(result: CaseResult, old: ScoredText, new: JudgedItem, cluster: str | None) -> ScoredPair:
    group = None if cluster is None else result.metadata.get(cluster)
    return ScoredPair(
        column=result.column,
        cluster=f"test {result.test_index}" if group is None else f"value {group}",
        before=old.id,
        after=new.id,
        is_equal=old.output_sha256 == new.output_sha256,
        scores={
            metric: (old.scores[metric], score)
            for metric, score in new.scores.items()
            if metric in old.scores
        },
    )


def judge_true_differences(
    gates: Sequence[Gate],
    labels: LabelFile | None,
    earlier: EarlierRun | None,
    run: RunRecord,
    results: Callable[[], Iterator[CaseResult]],
) -> dict[str, GateResult]:
    """Return the results of gates on the true difference from a baseline, by the gate's text."""
    later = RunReport(run, RunSummary(), results)
    return {gate.text: _judged(gate, labels, earlier, later) for gate in gates}


def _judged(gate: Gate, labels: LabelFile | None, earlier: EarlierRun | None, later: RunReport) -> GateResult:
    """Return the result of a gate; unless the gate must be proven, it fails only if a drop is shown."""
    if labels is None or earlier is None or gate.metric is None:
        return GateResult(gate.text, Status.ERROR, None, "there are no labels, or no baseline")
    try:
        # Labels of other outputs, such as those of an earlier prompt, say nothing about these.
        found = labelled_pairs(
            [label for label in labels.labels if label.metric == gate.metric],
            earlier,
            later,
            CorrectOptions(),
            allow_unmatched=True,
            takes=lambda result: all(is_tagged(result.metadata, *tag) for tag in gate.tags),
        ).difference(gate.metric)
    except ConfigError as error:
        note = f"the labels cannot be used: {error.problems[0].message}"
        return GateResult(gate.text, Status.ERROR, None, note)
    true, judge = found.found, found.judge
    bounds = None if true is None else true.bounds(SIGNIFICANCE / gate.family)
    if true is None or judge is None or bounds is None:
        return GateResult(gate.text, Status.ERROR, None, f"the labels cannot decide: {found.why}")
    worst, best = gate.worst_and_best(*bounds)
    holds = gate.holds(best) if gate.passes_until_disproved else gate.holds(worst)
    shared = f", 5 % shared by {gate.family} gates" if gate.family > 1 else ""
    note = (
        f"{_counted(found.design, true.clusters)}, one-sided {100 * (1 - SIGNIFICANCE / gate.family):.3g} % bounds"
        f" {gate.said(bounds[0])} and {gate.said(bounds[1])}{shared}; the judge alone says {gate.said(judge.delta)}"
    )
    if gate.holds(best) and not gate.holds(worst):
        note = f"undecided, more labels would tell: {note}"
    return GateResult(gate.text, Status.PASSED if holds else Status.FAILED, true.value, note)


def _counted(design: Design, tests: tuple[int, int]) -> str:
    if design is Design.SAME_TESTS:
        return f"human labels on {plural(tests[0], 'test')}"
    return f"human labels on {plural(tests[0], 'test')} of A and {tests[1]:,} of B"


def _row(
    found: LabelledPairs, metric: str, column: int, label: str, margin: float | None
) -> CorrectedRow | None:
    item = found.difference(metric, column)
    true, judge = item.found, item.judge
    if true is None or judge is None:
        return None
    return CorrectedRow(
        metric=metric,
        column=label,
        design=item.design,
        judge=Estimate(judge.delta, judge.interval, judge.n, judge.clusters),
        judge_p=judge.p,
        corrected=Estimate(true.value, true.interval, sum(true.labelled), min(true.clusters)),
        se=true.se,
        p=true.p,
        p_adjusted=None,
        verdict=DifferenceVerdict.UNDECIDED,
        signs=SignAgreement.UNCLEAR,
        weights=true.weights,
        labelled=true.labelled,
        tests=true.clusters,
        pairs=item.pairs,
        equal=item.equal,
        errored=item.errored,
        unused=item.unused,
        alone=item.alone,
        carry_over=carry_over_of(*item.sides, MARGIN if margin is None else margin),
        margin=margin,
        margin_interval=None if margin is None else true.bounds(SIGNIFICANCE),
        why=item.why,
    )


def _decided(row: CorrectedRow, p: float) -> CorrectedRow:
    """Return a row with its verdict, given the p-value adjusted for all rows."""
    verdict = verdict_of(row.corrected.value or 0.0, p, row.margin, row.margin_interval)
    signs = SignAgreement.UNCLEAR
    if verdict.is_clear and row.judge_p <= SIGNIFICANCE:
        is_better = (row.judge.value or 0.0) > 0
        signs = (
            SignAgreement.SAME if is_better == (verdict is DifferenceVerdict.BETTER) else SignAgreement.OTHER
        )
    return replace(row, p_adjusted=p, verdict=verdict, signs=signs)


def _notes(found: LabelledPairs, rows: Sequence[CorrectedRow], given: LabelFile) -> Iterator[str]:
    matches = [match.label for side in found.matches for match in side]
    yield from draw_notes(matches, given.unlabelled, "tests were drawn at random")
    if weighted := sum(label.weight is not None for label in given.labels):
        yield f"not used: {plural(weighted, 'label')} that `geval label --next` drew"
    if lacking := len({label.metric for label in given.labels} - {row.metric for row in rows}):
        yield f"not compared: {plural(lacking, 'labelled metric')} without labels in both runs"
    people = [{name for match in side for name in match.label.marks} for side in found.matches]
    if any(row.design is Design.DIFFERENT_TESTS for row in rows) and not people[0] & people[1]:
        yield "A and B were labelled by different people: if some are stricter, that is part of the difference"
    if len(rows) > 1:
        yield f"p is adjusted for {len(rows)} rows (Holm)"
    everyone = len(people[0] | people[1])
    who = "the annotator" if everyone == 1 else f"all {everyone} annotators"
    yield f"an error that {who} would make again is not in the interval"
    if errored := max(row.errored for row in rows):
        yield f"left out: {plural(errored, 'pair')} that the judge did not score in both runs"
    if unused := max(row.unused for row in rows):
        yield f"not used: {plural(unused, 'label')} of outputs that are in no scored pair"
    if alone := max(row.alone for row in rows):
        yield f"not used: {plural(alone, 'label')} of one output alone, since most tests have labels of both"
    if found.unmatched:
        yield f"not used: {plural(found.unmatched, 'label')} without an output in either run"


def _named(
    rows: Sequence[CorrectedRow],
) -> tuple[tuple[str, ...], list[tuple[tuple[str, ...], CorrectedRow]]]:
    """Return the headers of the columns that name a row, and each row with its names."""
    if len({row.column for row in rows}) > 1:
        return ("column", "metric"), [((row.column, row.metric), row) for row in rows]
    return ("metric",), [((row.metric,), row) for row in rows]


def _figures(rows: Sequence[CorrectedRow]) -> list[Table]:
    """Return the figures for a terminal, widest table first."""
    first, named = _named(rows)
    brief = [
        (*names, _change(row.judge), _with_interval(row.corrected), _p(row), _tests(row), _finding(row))
        for names, row in named
    ]
    header = (*first, "judge", "by labels [95 %]", "p", "labelled", "")
    shown: list[Table] = []
    for left_out in (
        set(),
        {"p", "labelled"},
        {"p", "labelled", "judge"},
    ):  # names are never cut on a narrow terminal
        kept = [place for place, name in enumerate(header) if name not in left_out]
        cells = [[row[place] for place in kept] for row in (header, *brief)]
        width = sum(max(map(len, column)) + 3 for column in zip(*cells, strict=True))
        shown.append(Table(cells[0], cells[1:], least=0 if "judge" in left_out else width))
    return shown


def _document(found: CorrectedComparison) -> ReportDocument:
    rows = found.rows
    first, named = _named(rows)
    whole = [
        (
            *names,
            _with_interval(row.judge),
            _with_interval(row.corrected),
            _p(row),
            f"{_tests(row)}, {row.design}",
            " and ".join(f"{weight:.2f}" for weight in row.weights),
            _finding(row),
        )
        for names, row in named
    ]
    texts = []
    if equal := max(row.equal for row in rows):
        texts.append(f"{plural(equal, 'labelled pair')} of equal texts: 0 apart, whatever the judge says")
    audits = [(names, row.carry_over) for names, row in named if row.carry_over is not None]
    if len(rows) == 1:
        texts += [carry_over_text("the correction by A's labels", "B's labels", audit) for _, audit in audits]
        audits = []
    figures = Section(
        "Figures",
        tables=[
            Table((*first, "judge", "by labels", "p", "labels", "weight of the judge", "finding"), whole)
        ],
        brief=_figures(rows),
        texts=texts,
        notes=found.notes,
        is_overview=True,
    )
    carried = Section(
        "The correction by A's labels on B",
        tables=[
            Table(
                (*first, "B's labels differ by [90 %]", "margin", "finding"),
                [
                    (*names, _with_interval(audit.residual), f"{audit.margin:g}", audit.verdict.value)
                    for names, audit in audits
                ],
            )
        ],
    )
    return ReportDocument(
        "Two runs, corrected by human labels",
        None,
        [figures, carried] if audits else [figures],
        found.to_json(),
        answer=lambda quote: _sentence(rows, quote),
    )


def _p(row: CorrectedRow) -> str:
    return "-" if row.p_adjusted is None else format_p(row.p_adjusted)


def _change(estimate: Estimate) -> str:
    return format_difference(estimate.value or 0.0)


def _with_interval(estimate: Estimate) -> str:
    if estimate.interval is None:
        return _change(estimate)
    return f"{_change(estimate)} [{', '.join(map(format_difference, estimate.interval))}]"


def _tests(row: CorrectedRow) -> str:
    tests = row.tests[:1] if row.design is Design.SAME_TESTS else row.tests
    return f"{'+'.join(f'{count:,}' for count in tests)} of {row.pairs:,}"


def _finding(row: CorrectedRow) -> str:
    if row.why:
        return "no interval"
    return row.verdict.value if row.signs is not SignAgreement.OTHER else f"{row.verdict.value}, other sign"


def _sentence(rows: Sequence[CorrectedRow], quote: Quote) -> str:
    """Return what judge and labels say and whether they agree; of several rows, the most surprising one in full."""
    order = (SignAgreement.OTHER, SignAgreement.SAME, SignAgreement.UNCLEAR).index
    oddest = min(
        rows, key=lambda row: (order(row.signs) if not row.why else 3, -abs(row.corrected.value or 0.0))
    )
    said = _of_row(oddest, quote, several=len({row.column for row in rows}) > 1)
    if len(rows) == 1:
        return said
    shown = sum(row.verdict.is_clear for row in rows)
    other = sum(row.signs is SignAgreement.OTHER for row in rows)
    turned = f", {other} of them against the judge" if other else ""
    return f"Human labels show {shown} of {len(rows)} differences{turned}. {said}"


def _of_row(row: CorrectedRow, quote: Quote, *, several: bool) -> str:
    name = quote(row.metric) + (f" ({quote(row.column)})" if several else "")
    judge = f"the judge shows {_change(row.judge)}"
    if row.judge_p > SIGNIFICANCE:
        judge = f"the judge shows no clear difference ({_change(row.judge)})"
    count = _counted(row.design, row.tests)
    if row.corrected.interval is None:
        return f"{name}: {judge}; {count} cannot correct it: {row.why}"
    low, high = map(format_difference, row.corrected.interval)
    put = f"{_change(row.corrected)} (95 % CI {low} to {high})"
    if row.verdict is DifferenceVerdict.EQUIVALENT:
        return f"{name}: {judge}; {count} put it at {put}, less than {row.margin:g} either way"
    if row.verdict is DifferenceVerdict.UNDECIDED:
        return f"{name}: {judge}; {count} put it at {put}, which shows no difference"
    if row.signs is SignAgreement.SAME:
        return f"{name}: {judge}, and {count} confirm it: {put}"
    return f"{name}: {judge}, but {count} put it at {put}"
