"""The cases of two runs in pairs, and what changed from one to the other. Pure.

Of the earlier run only scores and verdicts are held; the later one is read case by case.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.engine.content_keys import words_of
from geval_cli.json_codec import encode_json
from geval_cli.metrics import with_members
from geval_cli.records import AssertionResult, CaseResult, Column, JsonValue, Status
from geval_cli.report.matching import (
    MatchedBy,
    TestName,
    TestPairs,
    match_columns,
    name_by,
)
from geval_cli.report.report import RunReport
from geval_cli.statistics.paired import PairedDifferences, PairedTest
from geval_cli.store.run_pages import StoredVerdict

_Key = tuple[object, ...]
_CRITERION = ("dimension", "criteria", "evaluation_steps", "score_range")
_JUDGED = frozenset({Status.PASSED, Status.FAILED})


class Change(StrEnum):
    """A change of a case's verdict, in the order in which people want to see it."""

    NEWLY_FAILED = "newly failed"
    NEWLY_ERROR = "newly error"
    FIXED = "fixed"
    OTHER = "changed otherwise"
    SAME = "same verdict"


CHANGE_ORDER = tuple(Change)


# gc=False: a comparison holds tens of thousands of these, and none refers to itself.
class Pair(Struct, frozen=True, gc=False):
    """One case in both runs."""

    before: StoredVerdict
    after: StoredVerdict

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
        """The later score minus the earlier one; None when one of them is missing."""
        if self.before.score is None or self.after.score is None:
            return None
        return self.after.score - self.before.score


class Comparison(Struct, frozen=True):
    """Which cases two runs share, sorted by what changed, the largest changes of score first.

    Attributes:
        columns_by: how prompt x provider found its partner: "label", or "place" when one of them did not by label.
        only_before: cases of the earlier run that have no partner.
        only_after: cases of the later run that have no partner.
    """

    pairs: tuple[Pair, ...]
    columns_by: str
    only_before: int
    only_after: int

    def counts(self) -> Mapping[Change, int]:
        """Return the number of pairs for each change."""
        found = Counter(pair.change for pair in self.pairs)
        return {change: found[change] for change in CHANGE_ORDER}


def verdict_of(result: CaseResult) -> StoredVerdict:
    """Return the verdict of a result, as `RunPages.verdicts` reads it."""
    said = words_of(result.turns)
    return StoredVerdict(
        result.test_index,
        result.repeat_index,
        result.column,
        result.status,
        result.score,
        result.description,
        vars=encode_json(result.vars).decode(),
        named_scores=result.named_scores,
        words=encode_json(said).decode() if said else "[]",
        test_key=result.test_key,
    )


def compare_runs(
    before: Sequence[StoredVerdict],
    after: Sequence[StoredVerdict],
    *,
    before_columns: Sequence[Column],
    after_columns: Sequence[Column],
) -> Comparison:
    """Return the cases of two runs in pairs; results of each run must be sorted by test, repeat and column."""
    match = match_columns(before_columns, after_columns)
    partners, tests = match.partners(), _partners_of_tests(before, after)
    earlier = {(item.test_index, item.repeat_index, item.column): item for item in before}
    pairs = []
    for verdict in after:
        test, column = tests.get(verdict.test_index), partners.get(verdict.column)
        partner = None
        if test is not None and column is not None:
            partner = earlier.get((test, verdict.repeat_index, column))
        if partner is not None:
            pairs.append(Pair(partner, verdict))
    pairs.sort(key=_importance)
    columns_by = (
        MatchedBy.PLACE if any(pair.by is MatchedBy.PLACE for pair in match.pairs) else MatchedBy.LABEL
    )
    return Comparison(tuple(pairs), columns_by, len(before) - len(pairs), len(after) - len(pairs))


def _importance(pair: Pair) -> _Key:
    place = (pair.after.test_index, pair.after.repeat_index, pair.after.column)
    return CHANGE_ORDER.index(pair.change), -abs(pair.score_delta or 0.0), *place


def _partners_of_tests(before: Iterable[StoredVerdict], after: Iterable[StoredVerdict]) -> Mapping[int, int]:
    """Return for each later test that has a partner the index of the earlier one."""
    found = TestPairs(_names_of_verdicts(before))
    for index, name in _names_of_verdicts(after).items():
        found.add(index, name)
    return found.partners


def _names_of_verdicts(verdicts: Iterable[StoredVerdict]) -> dict[int, TestName]:
    names: dict[int, TestName] = {}
    for item in verdicts:
        name = name_by(item, names.get(item.test_index))
        if name is not None:
            names[item.test_index] = name
    return names


class Kind(StrEnum):
    """The kinds of values that are compared."""

    PASS_RATE = "pass_rate"
    SCORE = "score"
    METRIC = "metric"


class Measure(Struct, frozen=True):
    """A value that cases have: whether they passed, their score, or that of a metric."""

    kind: Kind
    name: str


PASS_RATE = Measure(Kind.PASS_RATE, "pass_rate")
SCORE = Measure(Kind.SCORE, "score")


class Judgement(Struct, frozen=True, gc=False):
    """By whom and by what a metric of one case was judged. Empty texts: the results do not say."""

    judge: str
    prompt_version: str
    criterion: tuple[object, ...]
    criterion_key: str
    rating_key: str

    def differences(self, later: "Judgement") -> list[str]:
        """Return the parts of `later` that were judged in another way, in words."""
        parts = {
            "judge": self.judge != later.judge,
            "prompt version": self.prompt_version != later.prompt_version,
            "criteria or steps": self.criterion != later.criterion,
        }
        found = [part for part, differs in parts.items() if differs]
        if self.criterion_key and later.criterion_key:
            # The keys know all that decides a rating, and nothing else: they overrule what looks different.
            return (found or ["judge's settings"]) if self.criterion_key != later.criterion_key else []
        return found


class ComparedCase(Struct, frozen=True, gc=False):
    """The part of a case that is compared.

    Attributes:
        statuses: of its assertions, each set followed by its members.
        judgements: by metric, of the first assertion of each that a model judged.
        rating_keys: of all assertions; None where one has none, and equality is not known.
    """

    status: Status
    score: float | None
    named_scores: Mapping[str, float]
    statuses: tuple[Status, ...]
    judgements: Mapping[str, Judgement]
    rating_keys: tuple[str, ...] | None


class CountedCases:
    """The metrics and counts of a run, as far as its cases came.

    Attributes:
        metrics: the names of all scores.
        errored: how many cases could not be judged, of how many `cases`.
        repeats: how often each test was run.
    """

    def __init__(self) -> None:
        self.metrics: set[str] = set()
        self.cases = self.errored = self.repeats = 0

    def count(self, result: CaseResult) -> None:
        """Take in the next case."""
        self.metrics.update(result.named_scores)
        self.cases += 1
        self.errored += result.status is Status.ERROR
        self.repeats = max(self.repeats, result.repeat_index + 1)


class EarlierRun(CountedCases):
    """The earlier run, whose cases can be looked up by their place.

    Attributes:
        report: where it was read.
        tests: its tests by their index.
    """

    def __init__(self, report: RunReport) -> None:
        super().__init__()
        self.report = report
        self.tests: dict[int, TestName] = {}
        self._found: dict[tuple[int, int, int], ComparedCase] = {}
        shared: dict[Judgement, Judgement] = {}
        for result in report.results():
            self.count(result)
            name = name_by(result, self.tests.get(result.test_index))
            if name is not None:
                self.tests[result.test_index] = name
            place = (result.test_index, result.repeat_index, result.column)
            self._found[place] = compared_case(result, shared)

    def case(self, test_index: int, repeat_index: int, column: int) -> ComparedCase | None:
        """Return the case in a place; None where there is none."""
        return self._found.get((test_index, repeat_index, column))

    def pairs(
        self, results: Iterable[CaseResult], partners: Mapping[int, int]
    ) -> Iterator[tuple[ComparedCase, CaseResult]]:
        """Yield the cases of a later run that have a partner; `partners` are the earlier columns by the later ones."""
        finder = PartnerFinder(self, partners)
        for result in results:
            earlier = finder.find(result)
            if earlier is not None:
                yield earlier, result


class PartnerFinder:
    """Finds the cases of an earlier run for those of a later one, which come one after the other.

    Args:
        earlier: the earlier run.
        columns: its columns by those of the later run.

    Attributes:
        tests: the tests of both runs in pairs, as far as they came.
    """

    def __init__(self, earlier: EarlierRun, columns: Mapping[int, int]) -> None:
        self.tests = TestPairs(earlier.tests)
        self._earlier = earlier
        self._columns = columns

    def find(self, result: CaseResult) -> ComparedCase | None:
        """Return the case of an equal test in the same repeat and column; None where there is none."""
        index = result.test_index
        name = name_by(result, self.tests.later.get(index))
        if name is not None:
            self.tests.add(index, name)
        test, column = self.tests.partners.get(index), self._columns.get(result.column)
        if test is None or column is None:
            return None
        return self._earlier.case(test, result.repeat_index, column)


class PairedSample(Struct):
    """The pairs of one row: few bytes each, so that clusters need not come one after another."""

    clusters: "array[int]" = field(default_factory=lambda: array("q"))
    before: "array[float]" = field(default_factory=lambda: array("d"))
    after: "array[float]" = field(default_factory=lambda: array("d"))
    same: bool = True

    def add(self, cluster: int, values: tuple[float, float], *, same: bool) -> None:
        """Take in a pair; `same` as in `PairedDifferences.add`."""
        self.clusters.append(cluster)
        self.before.append(values[0])
        self.after.append(values[1])
        self.same = self.same and same

    def test(self) -> PairedTest | None:
        """Return the comparison of all pairs; None of no pair."""
        differences = PairedDifferences()
        for place in sorted(range(len(self.clusters)), key=self.clusters.__getitem__):
            differences.add(self.clusters[place], self.before[place], self.after[place], same=self.same)
        return differences.result()

    @property
    def has_single_pairs(self) -> bool:
        """Return whether every cluster is one pair."""
        return len(set(self.clusters)) == len(self.clusters)


def values_of(measure: Measure, before: ComparedCase, after: ComparedCase) -> tuple[float, float] | None:
    """Return both values of a pair; None unless both were judged."""
    match measure.kind:
        case Kind.PASS_RATE:
            if before.status not in _JUDGED or after.status not in _JUDGED:
                return None
            return float(before.status is Status.PASSED), float(after.status is Status.PASSED)
        case Kind.SCORE:
            earlier, later = before.score, after.score
        case Kind.METRIC:
            earlier, later = before.named_scores.get(measure.name), after.named_scores.get(measure.name)
    return None if earlier is None or later is None else (earlier, later)


def is_same_rating(measure: Measure, before: ComparedCase, after: ComparedCase) -> bool:
    """Return whether both values rate equal texts by equal criteria, as far as results say."""
    if measure.kind is Kind.METRIC:
        old, new = before.judgements.get(measure.name), after.judgements.get(measure.name)
        return bool(old and new and old.rating_key and old.rating_key == new.rating_key)
    return before.rating_keys is not None and before.rating_keys == after.rating_keys


def _judgements_of(assertions: Iterable[AssertionResult]) -> dict[str, Judgement]:
    """Return by whom and by what each metric of a case was judged."""
    found: dict[str, Judgement] = {}
    for item in assertions:
        if item.metric is None or not ("judge" in item.detail or "criterion_key" in item.detail):
            continue
        judgement = _judgement(item)
        earlier = found.get(item.metric)
        if earlier is not None:  # several assertions share the metric: equal only if all of them are
            keys = earlier.rating_key, judgement.rating_key
            judgement = replace(earlier, rating_key=" ".join(keys) if all(keys) else "")
        found[item.metric] = judgement
    return found


def _rating_keys_of(assertions: Iterable[AssertionResult]) -> tuple[str, ...] | None:
    """Return the rating keys of all assertions; None where one has none."""
    keys = [_text(item.detail.get("rating_key")) for item in assertions]
    return tuple(keys) if keys and all(keys) else None


def _judgement(item: AssertionResult) -> Judgement:
    said = item.detail.get
    return Judgement(
        _text(said("judge")),
        _text(said("prompt_version")),
        () if "criterion_key" in item.detail else tuple([_hashable(said(name)) for name in _CRITERION]),
        _text(said("criterion_key")),
        _text(said("rating_key")),
    )


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


def compared_case(result: CaseResult, shared: dict[Judgement, Judgement] | None = None) -> ComparedCase:
    """Return the part of a case that is compared; judgements that many cases have are `shared`."""
    assertions = [item for item, _ in with_members(result.assertions)]
    judgements = _judgements_of(assertions)
    if shared is not None:
        judgements = {name: shared.setdefault(item, item) for name, item in judgements.items()}
    return ComparedCase(
        result.status,
        result.score,
        result.named_scores,
        tuple(item.status for item in assertions),
        judgements,
        _rating_keys_of(assertions),
    )
