"""Compare two runs: which of their cases belong together, how far figures moved, and what to show of that.

Everything that compares two runs reads from here: the terminal, the page, the gates on a baseline, and the list of
runs. Of the earlier run only scores and verdicts are held in memory; the later one is read case by case.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from geval_cli.assertions.base import verdict_of
from geval_cli.engine.columns import column_name, margins_of, measure_keys
from geval_cli.engine.gates import holds_error, is_tagged
from geval_cli.errors import ConfigError, Problem, UsageError
from geval_cli.extras.compare.matching import (
    AmbiguousTests,
    ColumnMatch,
    MatchedBy,
    TestName,
    TestPairs,
    match_columns,
    name_by,
    name_of_test,
    require_kinship,
)
from geval_cli.extras.run_pages import StoredVerdict
from geval_cli.json_codec import encode_json
from geval_cli.metrics import with_members
from geval_cli.numbers import estimated, format_p, format_score, format_share, format_threshold, plural
from geval_cli.plugins import extra
from geval_cli.records import (
    SCHEMA_VERSION,
    AssertionResult,
    CaseResult,
    Column,
    Delta,
    GateResult,
    JsonValue,
    RunRecord,
    RunStatus,
    RunSummary,
    Status,
)
from geval_cli.report.case_view import assertion_name, case_number, case_title
from geval_cli.report.columns import DeltaWords, too_few_text
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import one_line, sanitize
from geval_cli.runs.baseline import THIS_RUN, baseline_name
from geval_cli.runs.requests import PreparedRun
from geval_cli.runs.stored import is_results_file, named_report
from geval_cli.source.access import TRUSTED
from geval_cli.source.files import FILE_PREFIX, PARQUET_SUFFIX, is_file_reference
from geval_cli.source.problems import did_you_mean
from geval_cli.statistics.intervals import Interval
from geval_cli.statistics.paired import (
    SIGNIFICANCE,
    DifferenceVerdict,
    Margins,
    PairedSample,
    PairedTest,
    RowDecision,
    decide,
)
from geval_cli.store.runs import RunStore
from geval_cli.suite.gates import Gate, Statistic

DETECTED = 0.05
"""The difference for which the number of tests is computed, unless another one is requested."""
_TITLE_WIDTH, _REASON_WIDTH, _NAME_WIDTH, _NAMES_SHOWN = 120, 200, 60, 5
NOT_ASKED = "stop-when"
"""The type of the single assertion of a case that was skipped."""
_BY_RIVALS = frozenset({"select-best", "max-score", "pairwise"})
_EXPECTED = "expected_output"
_CRITERION = ("dimension", "criteria", "evaluation_steps", "score_range")
_JUDGED = frozenset({Status.PASSED, Status.FAILED})
_Place = tuple[int, int, int]
"""The test index, repeat index and column index of a case."""
EarlierT = TypeVar("EarlierT")
LaterT = TypeVar("LaterT", CaseResult, StoredVerdict)


class ScoredCase(Protocol):
    """The place, status and scores of a case, wherever they were read from."""

    @property
    def test_index(self) -> int: ...
    @property
    def repeat_index(self) -> int: ...
    @property
    def column(self) -> int: ...
    @property
    def description(self) -> str | None: ...
    @property
    def status(self) -> Status: ...
    @property
    def score(self) -> float | None: ...
    @property
    def named_scores(self) -> Mapping[str, float]: ...


class RowKind(StrEnum):
    """The kinds of values that are compared."""

    PASS_RATE = "pass_rate"
    SCORE = "score"
    METRIC = "metric"


class Measure(Struct, frozen=True):
    """A value of cases: whether they passed, their score, or the score of a metric."""

    kind: RowKind
    name: str


PASS_RATE = Measure(RowKind.PASS_RATE, "pass_rate")
SCORE = Measure(RowKind.SCORE, "score")


class Judgement(Struct, frozen=True, gc=False):
    """Which judge rated a metric of one case, and by which criterion. Empty texts: the results do not say."""

    judge: str
    prompt_version: str
    criterion: tuple[object, ...]
    criterion_key: str
    rating_key: str

    def differences(self, later: "Judgement") -> list[str]:
        """Return in words what differs in the way `later` was judged."""
        parts = {
            "judge": self.judge != later.judge,
            "prompt version": self.prompt_version != later.prompt_version,
            "criteria or steps": self.criterion != later.criterion,
        }
        found = [part for part, differs in parts.items() if differs]
        if self.criterion_key and later.criterion_key:
            # The keys cover all that decides a rating, and nothing else, so they overrule apparent differences.
            return (found or ["judge's settings"]) if self.criterion_key != later.criterion_key else []
        return found


class ComparedCase(Struct, frozen=True, gc=False):
    """The part of a case that is compared.

    Attributes:
        statuses: of its assertions, each set followed by its members.
        judgements: by metric, of the first assertion of each that a model judged.
        measured: by metric, and under None for all assertions, a hash of what was measured (`measure_keys`); no
            entry where that is unknown.
        setup: the prompt and provider that produced the output, and the types and thresholds of the assertions.
        verdict: the stored verdict, if other columns of the run influenced it; None if it is `status`.
    """

    test_index: int
    repeat_index: int
    column: int
    description: str | None
    status: Status
    score: float | None
    named_scores: Mapping[str, float]
    statuses: tuple[Status, ...] = ()
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    measured: Mapping[str | None, int] = field(default_factory=dict)
    setup: "CaseSetup | None" = None
    verdict: Status | None = None

    @property
    def as_stored(self) -> "ComparedCase":
        """The case with the verdict that its page shows."""
        return self if self.verdict is None else replace(self, status=self.verdict)


class CaseSetup(Struct, frozen=True, gc=False):
    """How a case came about, apart from its test: what a change of the config may change."""

    prompt: int
    provider: str
    types: tuple[str, ...]
    thresholds: tuple[tuple[str, float | None], ...]


def _is_skipped(case: ComparedCase) -> bool:
    return case.setup is not None and case.setup.types == (NOT_ASKED,)


class Change(StrEnum):
    """A change of a case's verdict, in the order in which people want to see them."""

    NEWLY_FAILED = "newly failed"
    NEWLY_ERROR = "new error"
    FIXED = "fixed"
    OTHER = "other change"
    SAME = "same verdict"


CHANGE_ORDER = tuple(Change)


# gc=False: a comparison holds tens of thousands of these, and none refers to itself.
class Pair(Struct, frozen=True, gc=False):
    """One case in both runs."""

    before: ScoredCase
    after: ScoredCase

    @property
    def change(self) -> Change:
        """Return the change of the verdict."""
        old, new = self.before.status, self.after.status
        if old is new:
            return Change.SAME
        if new is Status.FAILED:
            return Change.NEWLY_FAILED
        if new is Status.ERROR:
            return Change.NEWLY_ERROR
        return Change.FIXED if new is Status.PASSED else Change.OTHER

    @property
    def score_delta(self) -> float | None:
        """The later score minus the earlier one; None if one of them is missing."""
        if self.before.score is None or self.after.score is None:
            return None
        return self.after.score - self.before.score


class CasePairs(Struct, frozen=True):
    """The cases that two runs share, sorted by what changed, the largest changes of score first.

    Attributes:
        columns_by: how columns (prompt x provider) were matched: "label", or "place" if one did not match by label.
        only_before: the number of cases of the earlier run without a partner.
        only_after: the number of cases of the later run without a partner.
    """

    pairs: tuple[Pair, ...]
    columns_by: str
    only_before: int
    only_after: int

    def counts(self) -> Mapping[Change, int]:
        """Return the number of pairs for each change."""
        found = Counter(pair.change for pair in self.pairs)
        return {change: found[change] for change in CHANGE_ORDER}


class CountedCases:
    """The metrics and counts of a run, over the cases seen so far.

    Attributes:
        metrics: the names of all scores.
        errored: how many of the `cases` could not be judged.
        unscored: how many failed and have no score, since another of their assertions is an error.
        repeats: how often each test was run.
        relative: the metrics that compare outputs of one run with each other, and are therefore left out.
    """

    def __init__(self) -> None:
        self.metrics: set[str] = set()
        self.relative: set[str] = set()
        self.cases = self.errored = self.unscored = self.repeats = 0

    def counted(self, result: CaseResult) -> CaseResult:
        """Count the next case, and return it without the verdicts that depend on other columns."""
        found = without_rivals(result)
        if found is not result:
            self.relative.update(item.metric or item.type for item in result.assertions if is_by_rivals(item))
        self.metrics.update(found.named_scores)
        self.cases += 1
        self.errored += found.status is Status.ERROR
        self.unscored += found.status is Status.FAILED and found.score is None and holds_error(found)
        self.repeats = max(self.repeats, found.repeat_index + 1)
        return found


def is_by_rivals(item: AssertionResult) -> bool:
    """Return whether a verdict depends on the outputs of other columns, and so changes when one of them does."""
    kind = item.type.removeprefix("not-")
    return kind in _BY_RIVALS and item.detail.get("against") != _EXPECTED


def without_rivals(result: CaseResult) -> CaseResult:
    """Return a case without verdicts that depend on other columns; its status and score follow from the rest."""
    if not any(item.type.removeprefix("not-") in _BY_RIVALS for item in result.assertions):
        return result
    own = tuple(item for item in result.assertions if not is_by_rivals(item))
    if len(own) == len(result.assertions):
        return result
    verdict = verdict_of(own, None)
    # A threshold of the test decides the case, whatever single assertions say: a case may have passed although one of
    # them failed, or failed although all of them passed.
    status = verdict.status
    if result.status is Status.PASSED and status is Status.FAILED:
        status = Status.PASSED
    elif result.status is Status.FAILED and status is Status.PASSED:
        has_lost = any(item.status is Status.FAILED for item in result.assertions if is_by_rivals(item))
        status = status if has_lost else Status.FAILED
    metrics = {item.metric for item, _ in with_members(own)}
    gone = {item.metric for item in result.assertions if is_by_rivals(item)} - metrics
    return replace(
        result,
        assertions=own,
        status=status,
        score=verdict.score,
        named_scores={name: score for name, score in result.named_scores.items() if name not in gone},
    )


class EarlierRun(CountedCases):
    """The earlier run, of which only what is compared is held in memory.

    Attributes:
        report: the report that it was read from.
        tests: its tests by index.
    """

    def __init__(self, report: RunReport) -> None:
        super().__init__()
        self.report = report
        self.tests: dict[int, TestName] = {}
        self._cases: dict[_Place, ComparedCase] = {}
        shared: dict[object, object] = {}
        for result in report.results():
            _note_name(result, self.tests)
            self.counted(result)
            self._cases[place_of(result)] = compared_case(result, shared)

    def pairing(self, match: ColumnMatch) -> "Pairing[ComparedCase]":
        """Return a `Pairing` that finds its cases for those of a later run."""
        return Pairing(self._cases, self.tests, match)


class Pairing(Generic[EarlierT]):
    """Finds the cases of an earlier run for those of a later one.

    Args:
        earlier: the cases of the earlier run by their place.
        tests: the names of its tests by index.
        match: the columns of both runs.

    Attributes:
        tests: the tests of both runs in pairs, as far as they have been seen.
    """

    def __init__(
        self, earlier: Mapping[_Place, EarlierT], tests: Mapping[int, TestName], match: ColumnMatch
    ) -> None:
        self.tests = TestPairs(tests)
        self._earlier = earlier
        self._columns = match.partners()

    def of(self, later: Iterable[LaterT]) -> Iterator[tuple[EarlierT | None, LaterT]]:
        """Yield each later case, test by test as it comes, with the earlier one of an equal test, repeat and column."""
        # A case without a key may tell less about its test than the next one, so such cases wait for the whole test.
        waiting: list[LaterT] = []
        name: TestName | None = None
        for case in later:
            index = case.test_index
            if waiting and waiting[0].test_index != index:
                yield from self._found(waiting, name)
                waiting, name = [], None
            name = name_by(case, name or self.tests.later.get(index)) or name
            waiting.append(case)
            if name is None or name.key is not None:
                yield from self._found(waiting, name)
                waiting, name = [], None
        yield from self._found(waiting, name)

    def _found(
        self, cases: Sequence[LaterT], name: TestName | None
    ) -> Iterator[tuple[EarlierT | None, LaterT]]:
        """Yield the cases of one test with their partners; `name` is what is newly known about the test."""
        if name is not None:
            self.tests.add(cases[0].test_index, name)
        for case in cases:
            test, column = self.tests.partners.get(case.test_index), self._columns.get(case.column)
            place = None if test is None or column is None else (test, case.repeat_index, column)
            yield None if place is None else self._earlier.get(place), case


def _note_name(case: CaseResult | StoredVerdict, names: dict[int, TestName]) -> None:
    """Store in `names`, by index, what a case tells about its test, if that is more than what is known."""
    name = name_by(case, names.get(case.test_index))
    if name is not None:
        names[case.test_index] = name


def paired_cases(before: Sequence[LaterT], after: Sequence[LaterT], match: ColumnMatch) -> CasePairs:
    """Return the cases of two runs in pairs; the cases of each run must be ordered by test."""
    tests: dict[int, TestName] = {}
    for item in before:
        _note_name(item, tests)
    found = Pairing({place_of(item): item for item in before}, tests, match).of(after)
    pairs = [Pair(old, new) for old, new in found if old is not None]
    return _case_pairs(pairs, match, len(before), len(after))


def _case_pairs(pairs: list[Pair], match: ColumnMatch, before: int, after: int) -> CasePairs:
    """Return the pairs in order; `before` and `after` are the numbers of cases of the runs."""
    pairs.sort(
        key=lambda pair: (
            CHANGE_ORDER.index(pair.change),
            -abs(pair.score_delta or 0.0),
            *place_of(pair.after),
        )
    )
    by_place = any(pair.by is MatchedBy.PLACE for pair in match.pairs)
    columns_by = MatchedBy.PLACE if by_place else MatchedBy.LABEL
    return CasePairs(tuple(pairs), columns_by, before - len(pairs), after - len(pairs))


def place_of(case: ScoredCase) -> _Place:
    """Return the test, the repeat and the column of a case."""
    return case.test_index, case.repeat_index, case.column


def values_of(measure: Measure, before: ScoredCase, after: ScoredCase) -> tuple[float, float] | None:
    """Return both values of a pair, or None unless both cases were judged."""
    match measure.kind:
        case RowKind.PASS_RATE:
            if before.status not in _JUDGED or after.status not in _JUDGED:
                return None
            return float(before.status is Status.PASSED), float(after.status is Status.PASSED)
        case RowKind.SCORE:
            earlier, later = before.score, after.score
        case RowKind.METRIC:
            earlier, later = before.named_scores.get(measure.name), after.named_scores.get(measure.name)
    return None if earlier is None or later is None else (earlier, later)


def is_same_rating(
    measure: Measure, before: ComparedCase, after: ComparedCase, changed: Mapping[str, set[str]]
) -> bool:
    """Return whether both values measure equal texts in the same way, as far as results and configs tell.

    `changed` are the assertions that differ (see `_changed_assertions`): code may give the same reason as before.
    """
    name = measure.name if measure.kind is RowKind.METRIC else None
    if changed and (name is None or any(name in names for names in changed.values())):
        return False
    old = before.measured.get(name)
    return old is not None and old == after.measured.get(name)


def _judgements_of(assertions: Iterable[AssertionResult]) -> dict[str, Judgement]:
    """Return the judgement of each metric of a case that a model judged."""
    found: dict[str, Judgement] = {}
    for item in assertions:
        if item.metric is None or not ("judge" in item.detail or "criterion_key" in item.detail):
            continue
        said = item.detail.get
        judgement = Judgement(
            _text(said("judge")),
            _text(said("prompt_version")),
            () if "criterion_key" in item.detail else tuple([_hashable(said(name)) for name in _CRITERION]),
            _text(said("criterion_key")),
            _text(said("rating_key")),
        )
        earlier = found.get(item.metric)
        if earlier is not None:  # several assertions share the metric: equal only if all of them are
            keys = earlier.rating_key, judgement.rating_key
            judgement = replace(earlier, rating_key=" ".join(keys) if all(keys) else "")
        found[item.metric] = judgement
    return found


def _hashable(value: JsonValue) -> object:
    if value is None or isinstance(value, str):  # nearly all are, and there are many
        return value
    if isinstance(value, list | tuple):
        plain = tuple(value)
        try:
            hash(plain)
        except TypeError:
            return tuple(map(_hashable, plain))
        return plain
    return encode_json(value) if isinstance(value, Mapping) else value


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def compared_case(result: CaseResult, shared: dict[object, object] | None = None) -> ComparedCase:
    """Return the part of a case to compare, without what other columns decided; `shared` deduplicates equal parts."""
    verdict = result.status
    result = without_rivals(result)
    assertions = [item for item, _ in with_members(result.assertions)]
    judgements = _judgements_of(assertions)
    if shared is not None:
        judgements = {name: shared.setdefault(item, item) for name, item in judgements.items()}  # type: ignore[misc]
    by_metric: dict[str | None, list[AssertionResult]] = {None: assertions}
    for item in assertions:
        if item.metric in result.named_scores:
            by_metric.setdefault(item.metric, []).append(item)
    things = ((name, measure_keys(result, items)) for name, items in by_metric.items())
    thresholds = tuple([(item.metric or item.type, item.threshold) for item in assertions])
    types = tuple([item.type for item in assertions])
    if shared is not None:
        thresholds = shared.setdefault(thresholds, thresholds)  # type: ignore[assignment]
        types = shared.setdefault(types, types)  # type: ignore[assignment]
    setup = CaseSetup(hash(result.prompt.rendered), result.provider.id, types, thresholds)
    return ComparedCase(
        test_index=result.test_index,
        repeat_index=result.repeat_index,
        column=result.column,
        description=result.description,
        status=result.status,
        score=result.score,
        named_scores=result.named_scores,
        statuses=tuple(item.status for item in assertions),
        judgements=judgements,
        measured={name: hash(found) for name, found in things if found is not None},
        setup=setup,
        verdict=None if verdict is result.status else verdict,
    )


class ComparisonOptions(Struct, frozen=True):
    """How two runs are compared.

    Attributes:
        detect: the difference for which the number of tests is computed, above 0.
        adjust: a name of `ADJUSTMENTS`.
        columns: pairs of columns, each as `OLD=NEW`.
        cluster: a key of the tests' metadata: tests with equal values form one cluster; None: each test is one.
        margins: the largest differences that do not matter; None: those of the later run's config.
        given_margins: margins that override these, in the syntax of `--margin`.
    """

    detect: float = DETECTED
    adjust: str = "holm"
    columns: tuple[str, ...] = ()
    cluster: str | None = None
    margins: Margins | None = None
    given_margins: tuple[str, ...] = ()


class ComparedRun(Struct, frozen=True):
    """One of the two runs; `errored` of its `cases` could not be judged.

    `name` is how the user referred to it, `title` is its own name.
    """

    id: str
    name: str
    config_path: str
    started_at: str
    tests: int
    cases: int
    errored: int
    title: str | None = None


class RowDelta(Delta, frozen=True):
    """The mean difference of a row, later minus earlier; `sd` and `dz` are as in `PairedTest`."""

    sd: float | None = None
    dz: float | None = None


class Flip(Struct, frozen=True):
    """A case that passed in one run and failed in the other; `assertion` is the first whose verdict flipped with it."""

    test: str
    number: str
    was: Status = field(name="from")
    became: Status = field(name="to")
    assertion: str | None = None
    reason: str | None = None


class ComparedRow(Struct, frozen=True):
    """A metric, the score or the pass rate in one pair of columns; `a` and `b` are the means.

    `same` are further measures with the same figures in every test: they share one row, and count once. `flipped`,
    `fixed` and `broken` are set for the pass rate only; `mcnemar_mid_p` only if every test is one pair.
    """

    metric: str
    kind: RowKind
    column: str
    a: float
    b: float
    delta: RowDelta
    verdict: DifferenceVerdict
    flipped: tuple[Flip, ...] = ()
    fixed: int | None = None
    broken: int | None = None
    mcnemar_mid_p: float | None = None
    same: tuple[str, ...] = ()


_KEYS_HINT = "tell them apart with a new run of the config, or `geval judge` of the old one"
_NOTHING_COMPARED = "nothing was judged in both runs, so there is nothing to compare"


class ComparedColumns(Struct, frozen=True):
    """Two columns that were compared, and how they were matched."""

    a: str
    b: str
    by: MatchedBy


class RunComparison(Struct, frozen=True):
    """Run `a` compared with the later run `b`; the fields are the keys of its JSON document.

    `headline` sums up the rows in a sentence, `verdict` in a word (`mixed`: some are better and some worse), and
    `changes` is what differs in the configs.
    `paired`, `only_a` and `only_b` count tests. `overall` is the pass rate of all columns together, if there are
    several: one figure about the run as a whole, so its p is not adjusted for the rows.
    `warnings` say why figures may not be comparable, `notes` the rest. `drift` says whether the judge or the outputs
    moved, if both runs had the same anchors judged: its `finding`, the `text`, and each metric's shift.
    """

    schema_version: int
    kind: str
    verdict: str
    headline: str
    changes: tuple[str, ...]
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
    drift: JsonValue = None


THIS_PULL_REQUEST = "this pull request"
"""The name of the later run in a comment, beside that of its baseline."""


class NamedRun(Struct, frozen=True):
    """A run, and the name by which it was requested."""

    name: str
    report: RunReport


class _Row(Struct):
    """The running sums of one row."""

    sample: PairedSample = field(default_factory=PairedSample)
    flipped: list[Flip] = field(default_factory=list)


def compare(
    a: NamedRun, b: NamedRun, options: ComparisonOptions, earlier: EarlierRun | None = None
) -> RunComparison:
    """Return the comparison of `a` with the later run `b`; `earlier` is `a` if it was read before.

    Raises:
        UsageError: the two have too few tests in common, or the options name something that does not exist.
        StoreError: results cannot be read.
    """
    earlier = earlier or EarlierRun(a.report)
    match = match_columns(a.report.columns, b.report.columns, options.columns)
    return _compared(a, b, options, _Comparing(earlier, match, options.cluster))


def compare_with_cases(a: NamedRun, b: NamedRun) -> tuple[RunComparison, CasePairs]:
    """Return the comparison of `a` with the later run `b`, and their cases in pairs; each run is read once.

    Raises:
        UsageError: as in `compare`.
        StoreError: results cannot be read.
    """
    match = match_columns(a.report.columns, b.report.columns)
    options = ComparisonOptions()
    pairs: list[Pair] = []
    comparing = _Comparing(EarlierRun(a.report), match, options.cluster, pairs)
    found = _compared(a, b, options, comparing)
    return found, _case_pairs(pairs, match, comparing.earlier.cases, comparing.cases)


def _compared(a: NamedRun, b: NamedRun, options: ComparisonOptions, comparing: "_Comparing") -> RunComparison:
    earlier, match, tests = comparing.earlier, comparing.match, comparing.tests
    comparing.changed = _changed_assertions((a.report.run, b.report.run))
    comparing.take(b.report.results())
    paired = len(tests.partners)
    alike = tests.alike()
    sides = _side(a, len(tests.earlier), earlier), _side(b, len(tests.later), comparing)
    require_kinship(len(tests.earlier), len(tests.later), paired, (a.name, b.name))
    if not comparing.rows:
        hint = "pair columns with --column OLD=NEW"
        raise UsageError("the two runs have no column in common", hint=hint)
    if options.cluster is not None and not comparing.has_clusters:
        raise UsageError(
            f"no test has the metadata `{options.cluster}`", hint="use a key of the tests' metadata"
        )
    margins = options.margins
    if margins is None:
        margins = margins_of(b.report.run)
    margins = margins.with_given(options.given_margins)
    named = {measure.name for _, measure in comparing.rows}
    for text in options.given_margins:
        name = text.rpartition("=")[0]
        if name and name not in named:
            near = did_you_mean(name, named)
            hint = f"did you mean `{near}`?" if near else f"compared are {_listed(sorted(named))}"
            raise UsageError(f"--margin {text}: `{name}` is not compared", hint=hint)
    rows = _rows(comparing, match, options, margins)
    overall = _overall(comparing, match, options, margins)
    verdict, said = headline(rows, paired, overall, has_groups=options.cluster is not None)
    # Whether the judge or the outputs moved; None unless both runs had their anchors judged.
    drift: dict[str, JsonValue] | None = None
    if a.report.run.anchors is not None and b.report.run.anchors is not None:
        differs = any(row.verdict.is_clear for row in rows)
        drift = extra("drift").between_runs(a.report.run, b.report.run, differs=differs)
    is_steady = drift is None or drift["finding"] in _STEADY
    told = () if drift is None else (drift["text"],)
    return RunComparison(
        schema_version=SCHEMA_VERSION,
        kind="compare",
        verdict=verdict,
        headline=said,
        changes=tuple(_changes(comparing, match, sides, paired, (a.report, b.report))),
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
        overall=overall,
        warnings=(
            *(() if is_steady else told),
            *_unfinished((a, b), sides),
            *_warnings(comparing, alike, a.report.run, b.report.run),
        ),
        notes=(
            *(told if is_steady else ()),
            *_notes(comparing, match, sides),
            *(
                [f"paired by their order: {_unknown(alike, alike.by_order)}; {_KEYS_HINT}"]
                if alike.by_order
                else []
            ),
            *([] if rows else [_NOTHING_COMPARED]),
        ),
        drift=drift,
    )


_STEADY = frozenset({"no drift", "the outputs moved"})


class _Comparing(CountedCases):
    """The running sums of a comparison while the later run is read; `pairs`, if given, collects the case pairs."""

    def __init__(
        self, earlier: EarlierRun, match: ColumnMatch, cluster: str | None, pairs: list[Pair] | None = None
    ) -> None:
        super().__init__()
        self.earlier = earlier
        self.match = match
        self.has_clusters = False
        self.changed: Mapping[str, set[str]] = {}
        self.rows: dict[tuple[int, Measure], _Row] = {}
        self.overall = PairedSample()
        self.differing: dict[str, Counter[str]] = {}
        self.prompts: set[int] = set()
        self.providers: dict[int, tuple[str, str]] = {}
        self.judges: dict[str, tuple[str, str]] = {}
        self.thresholds: dict[str, tuple[float | None, float | None]] = {}
        self.other_assertions = 0
        self._pairing = earlier.pairing(match)
        self.tests = self._pairing.tests
        self._pairs = pairs
        self._shared: dict[object, object] = {}
        self._cluster = cluster
        self._clusters: dict[object, int] = {}
        self._measures: dict[str, Measure] = {}

    def take(self, results: Iterable[CaseResult]) -> None:
        """Add the cases of the later run."""
        for before, result in self._pairing.of(results):
            found = self.counted(result)
            if before is not None:
                self._add(before, found, compared_case(result, self._shared))

    def _add(self, before: ComparedCase, result: CaseResult, after: ComparedCase) -> None:
        if self._cluster is None:
            cluster = result.test_index
        else:
            value = result.metadata.get(self._cluster)
            self.has_clusters = self.has_clusters or value is not None
            # A test without the value is a cluster of its own.
            name = ("test", str(result.test_index)) if value is None else ("value", str(value))
            cluster = self._clusters.setdefault(name, len(self._clusters))
        if self._pairs is not None:
            self._pairs.append(Pair(before.as_stored, after.as_stored))
        metrics = (name for name in result.named_scores if name in before.named_scores)
        for measure in (PASS_RATE, SCORE, *map(self._measure, metrics)):
            row = self._row(result.column, measure)
            values = values_of(measure, before, after)
            if values is None:
                continue
            same = is_same_rating(measure, before, after, self.changed)
            row.sample.add(cluster, values, same=same)
            if measure is PASS_RATE:
                self.overall.add(cluster, values, same=same)
                if values[0] != values[1]:
                    row.flipped.append(_flip(before, result))
        # An error cuts the list of verdicts short, and a skipped case has none.
        if Status.ERROR not in {before.status, after.status} and not (
            _is_skipped(before) or _is_skipped(after)
        ):
            self._note_setup(before, after)

    def _measure(self, name: str) -> Measure:
        """Return the measure of a metric; cached, since there are few metrics and many cases."""
        found = self._measures.get(name)
        if found is None:
            found = self._measures[name] = Measure(RowKind.METRIC, name)
        return found

    def _row(self, column: int, measure: Measure) -> _Row:
        key = column, measure
        found = self.rows.get(key)
        if found is None:
            found = self.rows[key] = _Row()
        return found

    def _note_setup(self, before: ComparedCase, after: ComparedCase) -> None:
        """Note what differs between two cases besides the answer of the model."""
        for name, new in after.judgements.items():
            old = before.judgements.get(name)
            for part in [] if old is None else old.differences(new):
                self.differing.setdefault(part, Counter())[name] += 1
            if old is not None and old.judge != new.judge:
                self.judges.setdefault(name, (old.judge, new.judge))
        old_setup, new_setup = before.setup, after.setup
        if old_setup is None or new_setup is None or old_setup == new_setup:
            return
        if old_setup.prompt != new_setup.prompt:
            self.prompts.add(after.column)
        if old_setup.provider != new_setup.provider:
            self.providers.setdefault(after.column, (old_setup.provider, new_setup.provider))
        if (old_setup.types, old_setup.thresholds) != (new_setup.types, new_setup.thresholds):
            pairs = list(zip(old_setup.thresholds, new_setup.thresholds, strict=False))
            if old_setup.types != new_setup.types or any(a[0] != b[0] for a, b in pairs):
                self.other_assertions += 1
                return
            for (name, low), (_, high) in pairs:
                if low != high:
                    self.thresholds.setdefault(name, (low, high))


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
    """Return the first assertion whose verdict flipped, and its place; None if that cannot be determined.

    `before` are the earlier statuses, each set followed by its members, which is also how places are counted.
    """
    later = [item for item, _ in with_members(after.assertions)]
    if len(later) != len(before):
        return None
    changed = [
        (place, item)
        for place, (old, item) in enumerate(zip(before, later, strict=True))
        if item.status is after.status and old is not item.status
    ]
    # A member of a set that flipped says more than the set.
    return next((found for found in changed if not found[1].assertions), None) or next(iter(changed), None)


def turned_reason(before: CaseResult, after: CaseResult) -> tuple[str, str] | None:
    """Return the assertion that flipped the verdict, and the reason that it gave when it did not pass."""
    earlier = [item for item, _ in with_members(before.assertions)]
    turned = turned_assertion([item.status for item in earlier], after)
    if turned is None:
        return None
    place, item = turned
    failed = earlier[place] if item.status is Status.PASSED else item
    return assertion_name(item), failed.reason or ""


def _flip(before: ComparedCase, after: CaseResult) -> Flip:
    turned = turned_assertion(before.statuses, after)
    flipped = None if turned is None else turned[1]
    name = None if flipped is None else sanitize(" ".join(filter(None, (flipped.type, flipped.metric))))
    reason = None if flipped is None or not flipped.reason else one_line(flipped.reason, _REASON_WIDTH)
    title = case_title(after, _TITLE_WIDTH)
    return Flip(title, case_number(after), before.status, after.status, name, reason)


_RowKey = tuple[int, Measure]
"""The index of the later run's column, and what is measured."""


def _rows(
    comparing: _Comparing, match: ColumnMatch, options: ComparisonOptions, margins: Margins
) -> tuple[ComparedRow, ...]:
    """Return the rows that have pairs, column by column, with p-values adjusted for all of them."""
    labels = {pair.after.index: pair.label for pair in match.pairs}
    order = {kind: place for place, kind in enumerate(RowKind)}
    keys = sorted(comparing.rows, key=lambda key: (key[0], order[key[1].kind], key[1].name))
    tests = {key: test for key in keys if (test := comparing.rows[key].sample.test()) is not None}
    decided = decide(
        tests, group=lambda key: key[0], adjust=options.adjust, margin=lambda key: margins.of(key[1].name)
    )
    return tuple(_row(item, labels[item.names[0][0]], comparing, options.detect) for item in decided)


def _row(decision: RowDecision[_RowKey], label: str, comparing: _Comparing, detect: float) -> ComparedRow:
    key, *others = decision.names
    test = decision.test
    plain = ComparedRow(
        metric=key[1].name,
        kind=key[1].kind,
        column=label,
        a=test.before,
        b=test.after,
        delta=RowDelta(**asdict(decision.as_delta(detect=detect)), sd=test.sd, dz=test.dz),
        verdict=decision.verdict,
        same=tuple(measure.name for _, measure in others),
    )
    row = comparing.rows.get(key)
    if key[1] is not PASS_RATE or row is None:
        return plain
    broken = sum(item.became is Status.FAILED for item in row.flipped)
    fixed = len(row.flipped) - broken
    mid_p = mcnemar_mid_p(broken, fixed) if test.flips is not None else None
    # Broken tests come first, because people look for them.
    flipped = sorted(row.flipped, key=lambda item: item.became is not Status.FAILED)
    return replace(plain, flipped=tuple(flipped), fixed=fixed, broken=broken, mcnemar_mid_p=mid_p)


def _overall(
    comparing: _Comparing, match: ColumnMatch, options: ComparisonOptions, margins: Margins
) -> ComparedRow | None:
    """Return the pass rate of all columns together; None if there is only one, or nothing was judged."""
    test = comparing.overall.test() if len(match.pairs) > 1 else None
    if test is None:
        return None
    key: _RowKey = (-1, PASS_RATE)
    (decision,) = decide({key: test}, group=lambda _: None, margin=lambda _: margins.of(PASS_RATE.name))
    return _row(decision, "", comparing, options.detect)


def headline(
    rows: Sequence[ComparedRow],
    paired: int,
    overall: ComparedRow | None = None,
    names: tuple[str, str] = ("A", "B"),
    quoted: Callable[[str], str] = str,
    *,
    has_groups: bool = False,
) -> tuple[str, str]:
    """Return what the rows say together, as a word and as a sentence that names the worst and the best row.

    `overall` is the pass rate of all columns together, which may show what no single column shows. `names` are what the
    sentence calls the two runs; `quoted` escapes a name from the config where it would be markup. With `has_groups`,
    clusters are not tests.
    """
    a, b = names
    this = b[:1].upper() + b[1:]
    if not rows:
        return DifferenceVerdict.UNDECIDED, "Nothing was judged in both runs, so nothing is decided"
    several = len({row.column for row in rows}) > 1
    by_change = sorted(rows, key=lambda row: row.delta.value or 0.0)
    counts = Counter(row.verdict for row in rows)
    lowest, highest = by_change[0], by_change[-1]
    worst = next((row for row in by_change if row.verdict is DifferenceVerdict.WORSE), None)
    best = next((row for row in reversed(by_change) if row.verdict is DifferenceVerdict.BETTER), None)
    together = overall if overall is not None and overall.verdict.is_clear else None
    overall_change = "" if together is None else RowWords(together).moved(quoted, several=False)
    # Errors and tests that were not evaluated are paired, but not part of any figure; a metric may be of few tests.
    rates = list(filter(is_rate, rows)) or rows
    judged = min(row.delta.n if has_groups else row.delta.clusters for row in rates)
    tests = plural(min(paired, judged), "test")

    def said(row: ComparedRow) -> str:
        return RowWords(row).moved(quoted, several=several)

    if worst is not None or best is not None:
        words = {row.verdict.value for row in (worst, best, together) if row is not None}
        if worst is not None and best is not None:
            sentence = (
                f"{this} is worse than {a} in {counts[DifferenceVerdict.WORSE]:,} of {len(rows):,} figures and better"
                f" in {counts[DifferenceVerdict.BETTER]:,}: worst is {said(worst)}, best is {said(best)}"
            )
            if together is not None:
                sentence += f"; {together.verdict} over all columns: {overall_change}"
            return words.pop() if len(words) == 1 else "mixed", sentence
        shown, other = (worst, highest) if worst is not None else (best, lowest)
        assert shown is not None  # there are better or worse ones
        count = counts[shown.verdict]
        everywhere = {2: "both"}.get(count, f"all {count:,}")
        among = f"{everywhere if count == len(rows) else f'{count:,} of {len(rows):,}'} figures"
        among += f"{':' if count == 1 else ', most in'} {said(shown)}"
        if together is not None:
            sentence = (
                f"{this} is {together.verdict} than {a} over all columns: {overall_change}"
                f"; {'also ' if shown.verdict == together.verdict else ''}{shown.verdict} in {among}"
            )
        elif len(rows) == 1:
            sentence = f"{this} is {shown.verdict} than {a}: {said(shown)}"
        else:
            sentence = f"{this} is {shown.verdict} than {a} in {among}"
            if other is not shown:
                sentence += f"; {'best' if worst is not None else 'worst'} is {said(other)}, {other.verdict}"
        return words.pop() if len(words) == 1 else "mixed", sentence
    if counts[DifferenceVerdict.IDENTICAL] == len(rows):
        return DifferenceVerdict.IDENTICAL, f"{this} is the same as {a}: every figure is identical in {tests}"
    if counts[DifferenceVerdict.UNDECIDED] == 0:
        margin = max(row.delta.margin or 0.0 for row in rows)
        return (
            DifferenceVerdict.EQUIVALENT,
            f"{this} differs from {a} by less than {margin:g} in every figure, over {tests}",
        )
    if together is not None:
        return together.verdict, (
            f"{this} is {together.verdict} than {a} over all columns: {overall_change};"
            " no single column shows a clear difference"
        )
    undecided = [row for row in rows if row.verdict is DifferenceVerdict.UNDECIDED]
    if all(row.delta.least_tests for row in undecided):
        return (
            DifferenceVerdict.UNDECIDED,
            f"Too few tests to tell {a} and {b} apart: {too_few_text(undecided[0].delta)}",
        )
    if not any(row.delta.differing for row in rows):
        return DifferenceVerdict.UNDECIDED, f"No figure changed from {a} to {b} in any of {tests}"
    if len(rows) == 1:
        return (
            DifferenceVerdict.UNDECIDED,
            f"No clear difference between {a} and {b} in {tests}: {said(rows[0])}{_though_clear_alone(rows, rows)}",
        )
    return DifferenceVerdict.UNDECIDED, (
        f"No clear difference between {a} and {b} in {tests}: worst is {said(lowest)}, best is {said(highest)}"
        f"{_though_clear_alone([lowest, highest], rows)}"
    )


def _though_clear_alone(shown: Sequence[ComparedRow], rows: Sequence[ComparedRow]) -> str:
    """Return why figures are undecided although their own intervals exclude 0; "" if there are none."""
    clear = [
        row.delta
        for row in shown
        if row.delta.interval is not None and not row.delta.interval[0] <= 0 <= row.delta.interval[1]
    ]
    tests = [format_p(found.p_adjusted) for found in clear if found.p_adjusted is not None]
    if not tests:
        return ""
    why = f"after correction for {len(rows):,} comparisons" if len(rows) > 1 else "by the exact test"
    return f"; {why} {'neither is' if len(tests) > 1 else 'it is not'} clear (p {' and '.join(tests)})"


def is_rate(row: ComparedRow) -> bool:
    """Return whether the figures of a row are shares of cases, so that its change is in percentage points."""
    return row.kind is RowKind.PASS_RATE


class RowWords(Struct, frozen=True):
    """A row in words and figures, as the terminal, Markdown, pages and drawings show it.

    Attributes:
        detect: the difference for which a number of tests is given; 0 for none.
    """

    row: ComparedRow
    detect: float = 0.0

    @property
    def difference(self) -> DeltaWords:
        """The change in words, independent of what it is a change of."""
        return DeltaWords(self.row.delta, is_rate(self.row))

    @property
    def name(self) -> str:
        """The name of the figure: `pass rate = score = right` if their figures are the same."""
        first = {RowKind.PASS_RATE: "pass rate", RowKind.SCORE: "score"}.get(self.row.kind, self.row.metric)
        names = [first, *self.row.same]
        shown = [one_line(name, _NAME_WIDTH) for name in names[:_NAMES_SHOWN]]
        more = [] if len(shown) == len(names) else [f"{len(names) - len(shown):,} more"]
        return " = ".join([*shown, *more])

    @property
    def before(self) -> str:
        """The earlier figure: `81 %` for a pass rate, `0.81` for scores."""
        return self._level(self.row.a)

    @property
    def after(self) -> str:
        """The later figure."""
        return self._level(self.row.b)

    @property
    def change(self) -> str:
        """The difference with its unit."""
        return self.difference.change

    @property
    def interval(self) -> str:
        """The 95 % interval of the change, `[-0.02, +0.16]`; "" without one."""
        bounds = self.difference.bounds
        return f"[{', '.join(bounds)}]" if bounds else ""

    @property
    def p(self) -> str:
        """The p-value."""
        return self.difference.p

    @property
    def tests(self) -> int:
        """The number of tests that the row covers."""
        return self.row.delta.clusters

    @property
    def power(self) -> str:
        """The differences that this many tests would detect; "" for figures that are the same in every test."""
        is_same = self.row.verdict is DifferenceVerdict.IDENTICAL
        return "" if is_same else self.difference.power(self.detect)

    @property
    def verdict(self) -> DifferenceVerdict:
        """The finding about the row."""
        return self.row.verdict

    def moved(self, quoted: Callable[[str], str], *, several: bool) -> str:
        """Return `relevance 0.75 to 0.45 (-0.30, 95 % CI -0.36 to -0.24)`, or `relevance at 0.75 in both`."""
        name = self.name if self.name in {"pass rate", "score"} else quoted(self.name)
        name += f" of {quoted(one_line(self.row.column, _NAME_WIDTH))}" if several else ""
        if not self.row.delta.differing:
            return f"{name} at {self.after} in both"
        difference = self.difference
        change = difference.shift(self.row.delta.value or 0.0) + (" points" if difference.is_share else "")
        if difference.bounds:
            change += f", 95 % CI {' to '.join(difference.bounds)}"
        return f"{name} {self.before} to {self.after} ({change})"

    def _level(self, value: float) -> str:
        return format_share(value) if is_rate(self.row) else format_score(value)


def _changes(
    comparing: _Comparing,
    match: ColumnMatch,
    sides: tuple[ComparedRun, ComparedRun],
    paired: int,
    reports: tuple[RunReport, RunReport],
) -> Iterator[str]:
    """Yield what differs between the configs of two runs, as far as results and configs tell."""
    runs = reports[0].run, reports[1].run
    pairs = {pair.after.index: pair for pair in match.pairs}
    prompts = dict.fromkeys(pairs[column].after.prompt_label for column in sorted(comparing.prompts))
    if prompts:
        named = f" {_listed(list(filter(None, prompts)))}" if len(match.pairs) > 1 and any(prompts) else ""
        yield f"the text of the prompt{named}" if len(prompts) == 1 else f"the text of the prompts{named}"
    models = dict.fromkeys(comparing.providers[column] for column in sorted(comparing.providers))
    for old, new in models:
        yield f"the model: {one_line(old, _NAME_WIDTH)} to {one_line(new, _NAME_WIDTH)}"
    if settings := _other_settings(runs, {old for old, _ in models}):
        yield f"the settings of {_listed(settings)}"
    judges: dict[tuple[str, str], list[str]] = {}
    for name, judge in sorted(comparing.judges.items()):
        judges.setdefault(judge, []).append(name)
    for (old, new), names in judges.items():
        yield f"the judge of {_listed(names)}: {one_line(old, _NAME_WIDTH)} to {one_line(new, _NAME_WIDTH)}"
    for part, metrics in comparing.differing.items():
        if part != "judge":
            yield f"the {part} of {_listed(sorted(metrics))}"
    for name, (low, high) in sorted(comparing.thresholds.items())[:_NAMES_SHOWN]:
        old, new = ("none" if item is None else format_threshold(item) for item in (low, high))
        yield f"the threshold of {one_line(name, _NAME_WIDTH)}: {old} to {new}"
    if comparing.other_assertions:
        yield f"the assertions of {plural(comparing.other_assertions, 'case')}"
    rejudged = {name for metrics in comparing.differing.values() for name in metrics}
    for which in _changed_transforms(runs):
        yield f"the output transform of {which}"
    if files := _changed_files(runs):
        yield f"the content of {_listed(sorted(files))}"
    for keys, changed in comparing.changed.items():
        if keys != _FILES and changed - rejudged:
            yield f"the {keys} of {_listed(sorted(changed - rejudged))}"
    words = ("removed", runs[1], reports[1], sides[1]), ("added", runs[0], reports[0], sides[0])
    for side, (word, other, report, held) in zip(sides, words, strict=True):
        count = side.tests - paired
        is_whole = other.status is RunStatus.COMPLETED and not _is_part(report, held)
        # An incomplete run may not have got to these tests; one that was judged again has no outputs for them.
        if count and is_whole and other.judged_from is None:
            yield f"{plural(count, 'test')} {word}"


def _other_settings(runs: tuple[RunRecord, RunRecord], replaced: set[str]) -> list[str]:
    """Return the providers that both configs have, but with different settings."""
    old, new = (_providers_of(run.config) for run in runs)
    return sorted(name for name in old.keys() & new.keys() if name not in replaced and old[name] != new[name])


_TOLD = frozenset({"threshold", "metric", "provider", "assert", *_CRITERION})
"""Keys of an assertion whose changes can be seen in the results."""
_VALUE, _FILES = "value", "files"
_SAID = ("description", "vars", "input", "images", "audio", "turns")


def _changed_assertions(runs: tuple[RunRecord, RunRecord]) -> dict[str, set[str]]:
    """Return the assertions in both configs that differ, each by its metric or type, under what differs in them."""
    old, new = (_assertions_of(run.config) for run in runs)
    changed_files = _changed_files(runs)
    found: dict[str, set[str]] = {}
    for test in old.keys() & new.keys():
        before, after = old[test], new[test]
        if [item.get("type") for item in before] != [item.get("type") for item in after]:
            continue
        for one, other in zip(before, after, strict=True):
            differing = {key for key in {*one, *other} - _TOLD if one.get(key) != other.get(key)}
            if differing:
                what = _VALUE if _VALUE in differing else "assertion settings"
            elif changed_files and any(map(changed_files.__contains__, _files_in(other))):
                what = _FILES
            else:
                continue
            found.setdefault(what, set()).add(str(other.get("metric") or other.get("type")))
    return dict(sorted(found.items(), reverse=True))


def _changed_files(runs: tuple[RunRecord, RunRecord]) -> set[str]:
    """Return the files that both configs name, but with different content."""
    return {name for name, digest in runs[0].files.items() if runs[1].files.get(name, digest) != digest}


def _changed_transforms(runs: tuple[RunRecord, RunRecord]) -> Iterator[str]:
    """Yield which tests of both configs have another transform of their outputs."""
    old, new = (_transforms_of(run.config) for run in runs)
    changed = [name for name in old.keys() & new.keys() if old[name] != new[name]]
    if _ALL_TESTS in changed:
        yield "all tests"
    elif changed:
        yield plural(len(changed), "test")


def _files_in(written: JsonValue) -> Iterator[str]:
    """Yield the names of files in an assertion, without those of the assertions in it and without function names."""
    if isinstance(written, str):
        if is_file_reference(written):
            name = written.removeprefix(FILE_PREFIX)
            yield from (name, name.rpartition(":")[0])
    elif isinstance(written, Mapping | list):
        items = (
            [item for key, item in written.items() if key != "assert"]
            if isinstance(written, Mapping)
            else written
        )
        for item in items:
            yield from _files_in(item)


def _assertions_of(config: JsonValue) -> dict[str, list[dict[str, JsonValue]]]:
    """Return the assertions that a config has for all tests, and those of each test by its content."""
    found: dict[str, list[dict[str, JsonValue]]] = {}
    for said, test in _tests_of(config):
        found.setdefault(said, []).extend(_with_those_within(test.get("assert")))
    return found


_ALL_TESTS = ""


def _transforms_of(config: JsonValue) -> dict[str, JsonValue]:
    """Return the output transform that a config has for all tests (`_ALL_TESTS`), and for each test by its content."""
    options = ((said, test.get("options")) for said, test in _tests_of(config))
    return {
        said: own.get("transform", own.get("postprocess")) if isinstance(own, dict) else None
        for said, own in options
    }


def _tests_of(config: JsonValue) -> Iterator[tuple[str, dict[str, JsonValue]]]:
    """Yield what a config has for all tests, under `_ALL_TESTS`, and each test under its content."""
    config = config if isinstance(config, dict) else {}
    default = config.get("defaultTest")
    yield _ALL_TESTS, default if isinstance(default, dict) else {}
    tests = config.get("tests")
    for test in tests if isinstance(tests, list) else []:
        if isinstance(test, dict):
            yield encode_json([*map(test.get, _SAID)]).decode(), test


def _with_those_within(written: JsonValue) -> Iterator[dict[str, JsonValue]]:
    for item in written if isinstance(written, list) else []:
        if isinstance(item, dict):
            yield item
            yield from _with_those_within(item.get("assert"))


def _providers_of(config: JsonValue) -> dict[str, JsonValue]:
    listed = config.get("providers") if isinstance(config, dict) else None
    found: dict[str, JsonValue] = {}
    for item in listed if isinstance(listed, list) else []:
        if isinstance(item, dict) and isinstance(name := item.get("label", item.get("id")), str):
            found[name] = {key: value for key, value in item.items() if key not in {"id", "label"}}
    return found


def _is_part(report: RunReport, side: ComparedRun) -> bool:
    """Return whether only a part of a run's cases was read: its file may hold only those that failed."""
    return side.cases < report.summary.total


def _unfinished(named: tuple[NamedRun, NamedRun], sides: tuple[ComparedRun, ComparedRun]) -> Iterator[str]:
    later = named[1].name
    names = ("the baseline", later) if later in (THIS_RUN, THIS_PULL_REQUEST) else ("A", "B")
    for name, report, side in zip(names, (item.report for item in named), sides, strict=True):
        run, total = report.run, report.summary.total
        if _is_part(report, side):
            yield f"{name} has only {side.cases:,} of the {plural(total, 'case')} of its run; only these are compared"
        if run.status is not RunStatus.COMPLETED:
            verb = "is still" if run.status is RunStatus.RUNNING else "was"
            yield f"{name} {verb} {run.status}: only tests that it had finished are compared"


def _warnings(comparing: _Comparing, alike: AmbiguousTests, a: RunRecord, b: RunRecord) -> Iterator[str]:
    for part, metrics in comparing.differing.items():
        yield f"not comparable: different {part} in {_listed(sorted(metrics))}"
    # Why pairs may be wrong, and what to do about it.
    if alike.miscounted:
        tests = plural(alike.miscounted, "test")
        yield (
            f"pairs may be wrong: {tests} with identical content, and different numbers of them in the two runs;"
            " give each test its own description"
        )
    if alike.unknown:
        yield (
            f"pairs may be wrong: {_unknown(alike, alike.unknown)}, and different numbers of them in the two runs;"
            f" {_KEYS_HINT}"
        )
    both = a.prompt_version and b.prompt_version
    if both and a.prompt_version != b.prompt_version and "prompt version" not in comparing.differing:
        yield "not comparable: the judges' prompts are from another version"


def _unknown(alike: AmbiguousTests, count: int) -> str:
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
    if relative := sorted(earlier.relative | comparing.relative):
        yield f"left out because they depend on other columns of the run: {_listed(relative)}"
    in_rows = {measure.name for _, measure in comparing.rows if measure.kind is RowKind.METRIC}
    if unpaired := sorted((earlier.metrics & comparing.metrics) - in_rows):
        yield f"no pair of cases has a score in both runs: {_listed(unpaired)}"
    for pair in match.pairs:
        if pair.by is MatchedBy.PLACE:
            yield f"paired by position: {_columns([pair.before])} -> {_columns([pair.after])}"
    for name, columns in (("A", match.only_before), ("B", match.only_after)):
        if columns:
            verb = "is" if len(columns) == 1 else "are"
            yield f"{plural(len(columns), 'column')} of {name} {verb} not compared: {_columns(columns)}"
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
    if earlier.unscored or comparing.unscored:
        a, b = (f"{side.unscored:,} of {side.cases:,} cases in" for side in (earlier, comparing))
        yield f"failed, and left out of scores because of an error in another assertion: {a} A, {b} B"


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
        ValueError: this version of geval cannot read it.
    """
    return msgspec.convert(data, RunComparison)


_FLIPS_KEPT = 100
"""A summary is read whenever runs are listed, so it has only the first flips; `geval compare` shows all of them."""


class Baseline(Struct, frozen=True):
    """The earlier run that a run is compared with, read before anything is sent."""

    name: str
    earlier: EarlierRun


def open_baseline(prepared: PreparedRun, runs: RunStore, run_id: str) -> Baseline | None:
    """Return the run to compare a prepared run (with the id `run_id`) with; None if there is none.

    Raises:
        UsageError: there is no such run or file, it is the run itself, or its tests are not those of the suite.
        ConfigError: a gate is on a metric that it does not have, or the config may not read the file.
        StoreError: stored runs cannot be read.
    """
    request, suite = prepared.request, prepared.suite
    name = baseline_name(request, suite, prepared.plan.columns)
    if name is None:
        return None
    if request.baseline is None and is_results_file(name) and suite.access.is_outside(Path(name)):
        raise ConfigError([suite.access.outside_problem(Path(name), None)])
    if request.baseline is None and suite.access.is_untrusted and Path(name).suffix.lower() == PARQUET_SUFFIX:
        raise ConfigError([extra("Parquet files").refuse_parquet(Path(name), None)])
    report = named_report(name, runs, TRUSTED if request.baseline is not None else suite.access)
    if report.run.id == run_id:
        hint = "the latest run is the one being resumed: give the baseline as a run's id or `latest~1`"
        raise UsageError(f"the baseline {name} is this run itself", hint=hint)
    earlier = EarlierRun(report)
    tests = TestPairs(earlier.tests)
    for test in suite.tests:
        tests.add(test.index, name_of_test(test))
    # Programs may make variables, and results without keys have only the result: then the comparison itself checks.
    is_known = not suite.rules.tells_programs or all(name.key for name in earlier.tests.values())
    if is_known and tests.later:
        counts = len(tests.earlier), len(tests.later), len(tests.partners)
        require_kinship(*counts, ("the baseline", THIS_RUN))
    problems = [
        Problem(
            f"the baseline {name} has no score of `{gate.metric}` for the gate `{gate.text}`",
            gate.place.value(),
            f"its metrics: {', '.join(sorted(earlier.metrics))}" if earlier.metrics else "it has no metrics",
        )
        for gate in suite.gates
        if gate.needs_baseline and gate.metric is not None and gate.metric not in earlier.metrics
    ]
    if problems:
        raise ConfigError(problems)
    return Baseline(name, earlier)


def compared_with(
    baseline: Baseline, run: RunRecord, results: Callable[[], Iterator[CaseResult]], margins: Margins
) -> dict[str, JsonValue]:
    """Return the JSON form of the comparison; if there is nothing to compare, one with an `error`."""
    earlier = NamedRun(baseline.name, baseline.earlier.report)
    later = NamedRun(THIS_RUN, RunReport(run, RunSummary(), results))
    try:
        found = compare(earlier, later, ComparisonOptions(margins=margins), baseline.earlier)
        rows = tuple(replace(row, flipped=row.flipped[:_FLIPS_KEPT]) for row in found.rows)
        return comparison_to_json(replace(found, rows=rows))
    except UsageError as error:
        return {"kind": "compare", "error": error.message}


class _Difference(Struct):
    """The pairs that one gate covers."""

    gate: Gate
    sample: PairedSample = field(default_factory=PairedSample)

    @property
    def measure(self) -> Measure:
        if self.gate.metric is not None:
            return Measure(RowKind.METRIC, self.gate.metric)
        return PASS_RATE if self.gate.statistic is Statistic.PASS_RATE_DELTA else SCORE


def judge_differences(
    gates: Sequence[Gate],
    baseline: Baseline | None,
    results: Iterable[CaseResult],
    run: RunRecord,
) -> dict[str, GateResult]:
    """Return the results of gates on differences from the baseline, by their text."""
    found = [_Difference(gate) for gate in gates]
    if baseline is not None and found:
        match = match_columns(baseline.earlier.report.columns, run.columns)
        changed = _changed_assertions((baseline.earlier.report.run, run))
        for before, result in baseline.earlier.pairing(match).of(results):
            if before is None:
                continue
            after = compared_case(result)
            for item in found:
                if not all(is_tagged(result.metadata, *tag) for tag in item.gate.tags):
                    continue
                values = values_of(item.measure, before, after)
                if values is not None:
                    same = is_same_rating(item.measure, before, after, changed)
                    item.sample.add(result.test_index, values, same=same)
    return {item.gate.text: judge_difference(item.gate, item.sample.test()) for item in found}


def judge_difference(gate: Gate, test: PairedTest | None) -> GateResult:
    """Return the result of a gate: unless something must be shown, it is broken only if a drop is shown."""
    if test is None:
        return GateResult(gate.text, Status.ERROR, None, "no case was judged in both runs")
    level = SIGNIFICANCE / gate.family
    bounds = test.bounds(level)
    is_broken, is_shown = _finding_of(gate, bounds, is_same=test.identical)
    holds = not is_broken if gate.passes_until_disproved else is_shown
    note = _certainty(gate, test, bounds)
    if not (is_broken or is_shown):
        note = f"undecided: {note}{_need(gate, test, level)}"
    return GateResult(gate.text, Status.PASSED if holds else Status.FAILED, test.delta, note)


def _finding_of(gate: Gate, bounds: Interval | None, *, is_same: bool = False) -> tuple[bool, bool]:
    """Return whether a gate is shown to be broken, and whether it is shown to hold; `is_same`: nothing has changed."""
    if gate.is_equivalence:
        is_broken = bounds is not None and (bounds[0] > gate.limit or bounds[1] < -gate.limit)
        return is_broken, is_same or (
            bounds is not None and -gate.limit <= bounds[0] and bounds[1] <= gate.limit
        )
    worst, best = (None, None) if bounds is None else gate.worst_and_best(*bounds)
    is_broken = best is not None and not gate.holds(best)
    return is_broken, (is_same and gate.holds(0.0)) or (worst is not None and gate.holds(worst))


def _certainty(gate: Gate, test: PairedTest, bounds: tuple[float, float] | None) -> str:
    counted = f"n={test.n}"
    if test.flips is not None:
        counted += ", {:,} broken and {:,} fixed".format(*test.flips)
    if test.identical:
        return f"{counted}, the same texts and judge"
    if bounds is None:
        return f"{counted}, no interval"
    low, high = bounds
    if gate.is_equivalence:
        return f"{counted}, 90 % interval {gate.said(low)} to {gate.said(high)}"
    level = 100 * (1 - SIGNIFICANCE / gate.family)
    shared = f", 5 % shared by {gate.family} gates" if gate.family > 1 else ""
    return f"{counted}, one-sided {level:.3g} % bounds {gate.said(low)} and {gate.said(high)}{shared}"


def _need(gate: Gate, test: PairedTest, level: float) -> str:
    """Return how many more tests would probably decide, if differences stay as they are."""
    limit = math.copysign(gate.limit, test.delta) if gate.is_equivalence else gate.limit
    # A gate looks in one direction, which is equivalent to a two-sided test at twice the level.
    needed = test.needed_tests(test.delta - limit, 2 * level)
    if needed is None:
        return ""
    # Bounds of few tests, or of few that differ, are wider than those of the t-test.
    fewest = test.clusters + 1
    more = bisect_left(
        range(fewest, fewest + _MOST_SEARCHED),
        True,
        key=lambda count: any(_finding_of(gate, _of_size(test, count).bounds(level))),
    )
    count = max(more + 1, needed - test.clusters)
    return f"; {estimated(count)} more {'test' if count == 1 else 'tests'} would tell"


def _of_size(test: PairedTest, clusters: int) -> PairedTest:
    """Return a comparison of another number of clusters with the same differences in the same proportions."""
    ratio = clusters / test.clusters
    return replace(
        test,
        n=round(test.n * ratio),
        clusters=clusters,
        se=None if test.se is None else test.se / math.sqrt(ratio),
        freedom=test.freedom + clusters - test.clusters,
        differing=round(test.differing * ratio),
        shifts=None if test.shifts is None else (test.shifts[0] * ratio, test.shifts[1] * ratio),
    )


_MOST_SEARCHED = 10_000
_TINY = 1e-300


def mcnemar_mid_p(broken: int, fixed: int) -> float:
    """Return the two-sided mid-p value that tests break as often as they get fixed; 1 if none does either.

    It is nearer to its nominal level than the exact p-value.

    Source: McNemar, "Note on the sampling error of the difference between correlated proportions", 1947; Fagerland,
    Lydersen and Laake, "The McNemar test for binary matched-pairs data", 2013.
    """
    tail, last = _half_binomial_tail(min(broken, fixed), broken + fixed)
    return min(1.0, 2 * tail - last)


def _half_binomial_tail(successes: int, n: int) -> tuple[float, float]:
    """Return P(X <= successes) and P(X = successes) for n tosses of a fair coin."""
    log = math.lgamma(n + 1) - math.lgamma(successes + 1) - math.lgamma(n - successes + 1) - n * math.log(2)
    last = term = total = math.exp(log)
    for k in range(successes, 0, -1):
        term *= k / (n - k + 1)
        if term < total * _TINY:
            break
        total += term
    return total, last
