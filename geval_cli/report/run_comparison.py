"""Two runs compared with numbers: how far each metric moved, whether that is shown, and which tests flipped. Pure."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from geval_cli.engine.columns import column_name
from geval_cli.errors import UsageError
from geval_cli.metrics import with_members
from geval_cli.records import (
    SCHEMA_VERSION,
    AssertionResult,
    CaseResult,
    Column,
    Delta,
    JsonValue,
    RunRecord,
    Status,
)
from geval_cli.report.matching import (
    Alike,
    ColumnMatch,
    MatchedBy,
    match_columns,
    require_kinship,
)
from geval_cli.report.numbers import plural
from geval_cli.report.paired_cases import (
    PASS_RATE,
    SCORE,
    ComparedCase,
    CountedCases,
    EarlierRun,
    Kind,
    Measure,
    PairedSample,
    PartnerFinder,
    compared_case,
    is_same_rating,
    values_of,
)
from geval_cli.report.report import RunReport, case_number, case_title
from geval_cli.report.sanitize import one_line, sanitize
from geval_cli.statistics.paired import PairedTest, Verdict, benjamini_hochberg, holm, mcnemar_mid_p

DETECTED = 0.05
"""The difference for which the number of tests is given, unless another one is asked for."""
ADJUSTMENTS: Mapping[str, Callable[[Sequence[float]], list[float]]] = {"holm": holm, "bh": benjamini_hochberg}
_TITLE_WIDTH, _REASON_WIDTH, _NAMES_SHOWN = 120, 200, 5


class ComparisonOptions(Struct, frozen=True):
    """The way in which two runs are compared.

    Attributes:
        detect: the difference for which the number of tests is computed, above 0.
        adjust: a name of `ADJUSTMENTS`.
        columns: pairs of columns, each as `OLD=NEW`.
        cluster: a name in the tests' metadata: tests of equal values are one cluster; None: each test is one.
    """

    detect: float = DETECTED
    adjust: str = "holm"
    columns: tuple[str, ...] = ()
    cluster: str | None = None


class ComparedRun(Struct, frozen=True):
    """One side; `errored` of its `cases` could not be judged. `name` is what it was called by, `title` its name."""

    id: str
    name: str
    config_path: str
    started_at: str
    tests: int
    cases: int
    errored: int
    title: str | None = None


class RowDelta(Delta, frozen=True):
    """The mean difference of a row, later minus earlier; `sd` and `dz` are those of `PairedTest`."""

    sd: float | None = None
    dz: float | None = None


class Flip(Struct, frozen=True):
    """A case that passed in one run and failed in the other; `assertion` is the first one that decided otherwise."""

    test: str
    number: str
    was: Status = field(name="from")
    became: Status = field(name="to")
    assertion: str | None = None
    reason: str | None = None


class ComparedRow(Struct, frozen=True):
    """A metric, the score or the pass rate in one pair of columns; `a` and `b` are the means.

    `flipped`, `fixed` and `broken` are of the pass rate only; `mcnemar_mid_p` where every test is one pair.
    """

    metric: str
    kind: Kind
    column: str
    a: float
    b: float
    delta: RowDelta
    verdict: Verdict
    flipped: tuple[Flip, ...] = ()
    fixed: int | None = None
    broken: int | None = None
    mcnemar_mid_p: float | None = None


_KEYS_HINT = "a new run with the config, or `geval judge` of the old one, tells them apart"
_NOTHING_COMPARED = "nothing was judged in both runs, so there is nothing to compare"


class ComparedColumns(Struct, frozen=True):
    """Two columns that were compared, and how they found each other."""

    a: str
    b: str
    by: MatchedBy


class RunComparison(Struct, frozen=True):
    """Run `a` compared with the later run `b`; the fields are the keys of its JSON document.

    `paired`, `only_a` and `only_b` count tests. `overall` is the pass rate of all columns together, where there are
    several: one figure about the run as a whole, so its p is not adjusted for the rows.
    `warnings` say why marks may not be comparable, `notes` the rest.
    """

    schema_version: int
    kind: str
    a: ComparedRun
    b: ComparedRun
    paired: int
    only_a: int
    only_b: int
    adjust: str
    detect: float
    columns: tuple[ComparedColumns, ...]
    rows: tuple[ComparedRow, ...]
    overall: ComparedRow | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class NamedRun(Struct, frozen=True):
    """A run, and the name by which it was asked for."""

    name: str
    report: RunReport


class _Row(Struct):
    """The sums of one row while pairs come."""

    sample: PairedSample = field(default_factory=PairedSample)
    flipped: list[Flip] = field(default_factory=list)


def compare(
    a: NamedRun, b: NamedRun, options: ComparisonOptions, earlier: EarlierRun | None = None
) -> RunComparison:
    """Return the comparison of `a` with the later run `b`; `earlier` is `a` where it was read before.

    Raises:
        UsageError: the two have too few tests in common, or the options name what there is not.
        StoreError: results cannot be read.
    """
    earlier = earlier or EarlierRun(a.report)
    match = match_columns(a.report.columns, b.report.columns, options.columns)
    comparing = _Comparing(earlier, match, options.cluster)
    for result in b.report.results():
        comparing.add(result)
    tests = comparing.tests
    paired, alike = len(tests.partners), tests.alike()
    sides = _side(a, len(tests.earlier), earlier), _side(b, len(tests.later), comparing)
    require_kinship(len(tests.earlier), len(tests.later), paired, (a.name, b.name))
    if not comparing.rows:
        hint = "name columns that belong together with --column OLD=NEW"
        raise UsageError("the two runs have no column in common", hint=hint)
    if options.cluster is not None and not comparing.has_clusters:
        raise UsageError(
            f"no test has the metadata `{options.cluster}`", hint="--cluster names metadata of tests"
        )
    rows = _rows(comparing, match, options)
    return RunComparison(
        schema_version=SCHEMA_VERSION,
        kind="compare",
        a=sides[0],
        b=sides[1],
        paired=paired,
        only_a=sides[0].tests - paired,
        only_b=sides[1].tests - paired,
        adjust=options.adjust,
        detect=options.detect,
        columns=tuple(
            ComparedColumns(column_name(pair.before), column_name(pair.after), pair.by)
            for pair in match.pairs
        ),
        rows=rows,
        overall=_overall(comparing, match, options),
        warnings=tuple(_warnings(comparing, alike, a.report.run, b.report.run)),
        notes=(
            *_notes(comparing, match, sides),
            *_paired_by_order(alike),
            *([] if rows else [_NOTHING_COMPARED]),
        ),
    )


class _Comparing(CountedCases):
    """The sums of a comparison while the cases of the later run come."""

    def __init__(self, earlier: EarlierRun, match: ColumnMatch, cluster: str | None) -> None:
        super().__init__()
        self.earlier = earlier
        self.has_clusters = False
        self.rows: dict[tuple[int, Measure], _Row] = {}
        self.overall = PairedSample()
        self.differing: dict[str, Counter[str]] = {}
        self._finder = PartnerFinder(earlier, match.partners())
        self.tests = self._finder.tests
        self._cluster = cluster
        self._clusters: dict[object, int] = {}
        self._measures: dict[str, Measure] = {}

    def add(self, result: CaseResult) -> None:
        """Take in the next case of the later run."""
        self.count(result)
        before = self._finder.find(result)
        if before is None:
            return
        cluster, after = self._cluster_of(result), compared_case(result)
        metrics = (name for name in result.named_scores if name in before.named_scores)
        for measure in (PASS_RATE, SCORE, *map(self._measure, metrics)):
            row = self._row(result.column, measure)
            values = values_of(measure, before, after)
            if values is None:
                continue
            same = is_same_rating(measure, before, after)
            row.sample.add(cluster, values, same=same)
            if measure is PASS_RATE:
                self.overall.add(cluster, values, same=same)
                if values[0] != values[1]:
                    row.flipped.append(_flip(before, result))
        self._note_judges(before, after)

    def _measure(self, name: str) -> Measure:
        """Return the measure of a metric; there are few, and many cases."""
        found = self._measures.get(name)
        if found is None:
            found = self._measures[name] = Measure(Kind.METRIC, name)
        return found

    def _row(self, column: int, measure: Measure) -> _Row:
        key = column, measure
        found = self.rows.get(key)
        if found is None:
            found = self.rows[key] = _Row()
        return found

    def _cluster_of(self, result: CaseResult) -> int:
        if self._cluster is None:
            return result.test_index
        value = result.metadata.get(self._cluster)
        self.has_clusters = self.has_clusters or value is not None
        # A test without the value is a cluster of its own.
        name = ("test", str(result.test_index)) if value is None else ("value", str(value))
        return self._clusters.setdefault(name, len(self._clusters))

    def _note_judges(self, before: ComparedCase, after: ComparedCase) -> None:
        """Count the cases in which a metric was judged in another way."""
        for name, new in after.judgements.items():
            old = before.judgements.get(name)
            for part in [] if old is None else old.differences(new):
                self.differing.setdefault(part, Counter())[name] += 1


def _side(named: NamedRun, tests: int, counted: CountedCases) -> ComparedRun:
    run = named.report.run
    return ComparedRun(
        id=run.id,
        name=named.name,
        config_path=run.config_path,
        started_at=run.started_at,
        tests=tests,
        cases=counted.cases,
        errored=counted.errored,
        title=run.title,
    )


def turned_assertion(before: Sequence[Status], after: CaseResult) -> tuple[int, AssertionResult] | None:
    """Return the first assertion that decided otherwise than before, and its place; None when none can be told.

    `before` are the earlier statuses, each set followed by its members, which is how places are counted.
    """
    later = [item for item, _ in with_members(after.assertions)]
    if len(later) != len(before):
        return None
    changed = [
        (place, item)
        for place, (old, item) in enumerate(zip(before, later, strict=True))
        if item.status is after.status and old is not item.status
    ]
    # The member of a set that turned says more than the set.
    return next((found for found in changed if not found[1].assertions), None) or next(iter(changed), None)


def _flip(before: ComparedCase, after: CaseResult) -> Flip:
    turned = turned_assertion(before.statuses, after)
    flipped = None if turned is None else turned[1]
    name = None if flipped is None else sanitize(" ".join(filter(None, (flipped.type, flipped.metric))))
    reason = None if flipped is None or not flipped.reason else one_line(flipped.reason, _REASON_WIDTH)
    title = case_title(after, _TITLE_WIDTH)
    return Flip(title, case_number(after), before.status, after.status, name, reason)


def _rows(comparing: _Comparing, match: ColumnMatch, options: ComparisonOptions) -> tuple[ComparedRow, ...]:
    """Return the rows that have pairs, column by column, with p-values adjusted for all of them."""
    labels = {pair.after.index: pair.label for pair in match.pairs}
    order = {kind: place for place, kind in enumerate(Kind)}
    found = sorted(
        ((key, row, test) for key, row in comparing.rows.items() if (test := row.sample.test()) is not None),
        key=lambda item: (item[0][0], order[item[0][1].kind], item[0][1].name),
    )
    adjusted = ADJUSTMENTS[options.adjust]([test.p for _, _, test in found])
    return tuple(
        _row(measure, labels[column], row, test, (p, options.detect))
        for ((column, measure), row, test), p in zip(found, adjusted, strict=True)
    )


def _overall(comparing: _Comparing, match: ColumnMatch, options: ComparisonOptions) -> ComparedRow | None:
    """Return the pass rate of all columns together; None where there is only one, or nothing was judged."""
    test = comparing.overall.test() if len(match.pairs) > 1 else None
    return None if test is None else _plain_row(PASS_RATE, "", test, (test.p, options.detect))


def _plain_row(measure: Measure, label: str, test: PairedTest, adjusted: tuple[float, float]) -> ComparedRow:
    p_adjusted, detect = adjusted
    delta = test.as_delta(p_adjusted, needed_tests=test.needed_tests(detect))
    return ComparedRow(
        metric=measure.name,
        kind=measure.kind,
        column=label,
        a=test.before,
        b=test.after,
        delta=RowDelta(**asdict(delta), sd=test.sd, dz=test.dz),
        verdict=test.verdict(p_adjusted),
    )


def _row(
    measure: Measure, label: str, row: _Row, test: PairedTest, adjusted: tuple[float, float]
) -> ComparedRow:
    plain = _plain_row(measure, label, test, adjusted)
    if measure is not PASS_RATE:
        return plain
    broken = sum(item.became is Status.FAILED for item in row.flipped)
    fixed = len(row.flipped) - broken
    mid_p = mcnemar_mid_p(broken, fixed) if row.sample.has_single_pairs else None
    # What broke comes first: that is what people look for.
    flipped = sorted(row.flipped, key=lambda item: item.became is not Status.FAILED)
    return replace(plain, flipped=tuple(flipped), fixed=fixed, broken=broken, mcnemar_mid_p=mid_p)


def _warnings(comparing: _Comparing, alike: Alike, a: RunRecord, b: RunRecord) -> Iterator[str]:
    for part, metrics in comparing.differing.items():
        yield f"not comparable: different {part} in {_listed(sorted(metrics))}"
    yield from _wrong_pairs(alike)
    both = a.prompt_version and b.prompt_version
    if both and a.prompt_version != b.prompt_version and "prompt version" not in comparing.differing:
        yield "not comparable: the judges' prompts are of another version"


def _wrong_pairs(alike: Alike) -> Iterator[str]:
    """Yield why pairs may be wrong, and what to do about it."""
    if alike.miscounted:
        tests = plural(alike.miscounted, "test")
        yield (
            f"perhaps wrong pairs: {tests} that say the same, and not as many in both runs; give each test a "
            "description of its own"
        )
    if alike.unknown:
        yield f"perhaps wrong pairs: {_unknown(alike, alike.unknown)}, and not as many in both runs; {_KEYS_HINT}"


def _unknown(alike: Alike, count: int) -> str:
    return f"{plural(count, 'test')} that the results of {alike.without_keys} do not tell apart"


def _notes(
    comparing: _Comparing, match: ColumnMatch, sides: tuple[ComparedRun, ComparedRun]
) -> Iterator[str]:
    earlier = comparing.earlier
    for name, own, other in (
        ("A", earlier.metrics, comparing.metrics),
        ("B", comparing.metrics, earlier.metrics),
    ):
        if lacking := sorted(own - other):
            yield f"only {name} has {plural(len(lacking), 'metric')}: {_listed(lacking)}"
    in_rows = {measure.name for _, measure in comparing.rows if measure.kind is Kind.METRIC}
    if unpaired := sorted((earlier.metrics & comparing.metrics) - in_rows):
        yield f"no pair of cases has a score in both runs: {_listed(unpaired)}"
    for pair in match.pairs:
        if pair.by is MatchedBy.PLACE:
            yield f"paired by place: {_columns([pair.before])} -> {_columns([pair.after])}"
    for name, columns in (("A", match.only_before), ("B", match.only_after)):
        if columns:
            yield f"only {name} has {plural(len(columns), 'column')}: {_columns(columns)}"
    if earlier.repeats != comparing.repeats:
        yield (
            f"A has {plural(earlier.repeats, 'repeat')} and B {comparing.repeats:,}:"
            " repeats that only one of them has are left out"
        )
    if sides[0].errored or sides[1].errored:
        counts = (
            f"{side.errored:,} of {side.cases:,} cases in {name}"
            for side, name in zip(sides, "AB", strict=True)
        )
        yield f"left out as errors: {', '.join(counts)}"


def _paired_by_order(alike: Alike) -> Iterator[str]:
    if alike.by_order:
        yield f"paired by their order: {_unknown(alike, alike.by_order)}; {_KEYS_HINT}"


def _columns(columns: Sequence[Column]) -> str:
    return _listed([column_name(item) for item in columns])


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(one_line(name, 60) for name in names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN:,} more"


def comparison_to_json(found: RunComparison) -> dict[str, JsonValue]:
    """Return the JSON form of a comparison."""
    data: dict[str, JsonValue] = msgspec.to_builtins(found)
    return data


def comparison_from_json(data: JsonValue) -> RunComparison:
    """Return a comparison from its JSON form.

    Raises:
        ValueError: it is none that this geval can read.
    """
    return msgspec.convert(data, RunComparison)
