"""Figures of a run that its drawings need and its summary lacks: counts of scores, thresholds, spread of repeats.

Results come one by one in the order of the store (test, repeat, column) and are not kept: of each column and metric
there are two dozen counts, and of one test at a time its scores.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct, field

from geval_cli.records import JsonValue, Status
from geval_cli.report.case_view import title_of
from geval_cli.report.charts.drawing import TITLE_WIDTH
from geval_cli.report.comparison import ScoredCase

BINS = 20
"""Of scores from 0 to 1; each holds its lower end, and the last one 1 as well."""
DUST = 1e-10
"""Scores this near to a round one count as that: the way they were computed must not move them into another step."""
SCORE = "score"
"""Stands for the score of a whole case where no assertion has a metric."""
METRICS_MAX = 24
"""Metrics that are counted: the first ones that results have. Names may come from a model, so there must be an end."""
FURTHER_MAX = 24
_SPREADS_KEPT = 12
_THRESHOLDS_MAX = 100
_JUDGED = frozenset({Status.PASSED, Status.FAILED})


class CountedAssertion(Protocol):
    """The part of an assertion's result that is counted."""

    @property
    def type(self) -> str: ...
    @property
    def metric(self) -> str | None: ...
    @property
    def threshold(self) -> float | None: ...
    @property
    def assertions(self) -> Sequence["CountedAssertion"]: ...


class DrawnCase(ScoredCase, Protocol):
    """The part of a case's result that is counted; a `CaseResult` has it."""

    @property
    def vars(self) -> Mapping[str, JsonValue]: ...
    @property
    def assertions(self) -> Sequence[CountedAssertion]: ...


class Histogram(Struct):
    """Counts of scores: below 0, `BINS` equal steps of 0..1, above 1."""

    counts: list[int] = field(default_factory=lambda: [0] * (BINS + 2))
    n: int = 0
    total: float = 0.0

    def add(self, score: float) -> None:
        """Take in a score; what is no number is passed over."""
        if not math.isfinite(score):
            return
        self.n += 1
        self.total += score
        self.counts[_bin(score)] += 1

    @property
    def mean(self) -> float | None:
        """Return the mean of all scores; None of nothing."""
        return self.total / self.n if self.n else None

    def bins(self) -> Iterator[tuple[float | None, float | None, int]]:
        """Yield the lower end, the upper end and the count of each step that holds a score.

        A score is at its lower end or above, and below its upper end; the step that ends at 1 holds 1 as well. None
        stands for no end: below 0, and above 1.
        """
        for number, count in enumerate(self.counts):
            if number == 0:
                ends: tuple[float | None, float | None] = (None, 0.0)
            elif number > BINS:
                ends = (math.nextafter(1.0, 2.0), None)
            else:
                ends = ((number - 1) / BINS, number / BINS)
            if count:
                yield *ends, count


def _bin(score: float) -> int:
    if score < -DUST:
        return 0
    if score > 1 + DUST:
        return BINS + 1
    return min(int(max(score + DUST, 0) * BINS), BINS - 1) + 1


class Verdicts(Struct):
    """Tests of a column by the verdicts of their repeats."""

    passed: int = 0
    mixed: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        """Return how many tests were judged at least twice."""
        return self.passed + self.mixed + self.failed


class Spread(Struct, frozen=True, order=True):
    """The scores of one test's repeats in one column, in rising order; `width` is from the lowest to the highest."""

    width: float
    test_index: int
    column: int
    title: str
    scores: tuple[float, ...]


class RunFigures:
    """The figures of a run that its drawings are made of, beside its summary.

    Attributes:
        scores: by metric, then by column; of the whole case under `SCORE`.
        thresholds: by metric, the thresholds that its assertions have.
        verdicts: by column, of tests with several repeats.
        left_out: metrics that are not counted, the first `FURTHER_MAX` of them.
    """

    def __init__(self) -> None:
        self.scores: dict[str, dict[int, Histogram]] = {}
        self.thresholds: dict[str, Counter[float]] = {}
        self.verdicts: dict[int, Verdicts] = {}
        self.left_out: set[str] = set()
        self._spreads: list[Spread] = []
        self._test: int | None = None
        self._repeats: dict[int, list[DrawnCase]] = {}

    @classmethod
    def of(cls, results: Iterable[DrawnCase]) -> "RunFigures":
        """Return the figures of results in the order of the store."""
        found = cls()
        for result in results:
            found.add(result)
        found.finish()
        return found

    def add(self, result: DrawnCase) -> None:
        """Take in the next result."""
        if result.test_index != self._test:
            self.finish()
            self._test = result.test_index
        self._repeats.setdefault(result.column, []).append(result)
        if result.score is not None:
            self._histogram(SCORE, result.column).add(result.score)
        for name, score in result.named_scores.items():
            if name != SCORE and (name in self.scores or len(self.scores) <= METRICS_MAX):
                self._histogram(name, result.column).add(score)
            elif len(self.left_out) < FURTHER_MAX:
                self.left_out.add(name)
        for assertion in result.assertions:
            self._note_thresholds(assertion)

    def finish(self) -> None:
        """Take in the repeats of the last test."""
        for column, cases in self._repeats.items():
            if len(cases) > 1:
                self._note_repeats(column, cases)
        self._repeats = {}

    def spreads(self) -> list[Spread]:
        """Return the tests whose repeats are furthest apart, the widest first; none whose repeats are equal."""
        return sorted(self._spreads, key=lambda item: (-item.width, item.test_index, item.column))

    def _histogram(self, name: str, column: int) -> Histogram:
        return self.scores.setdefault(name, {}).setdefault(column, Histogram())

    def _note_thresholds(self, assertion: CountedAssertion) -> None:
        # The threshold of a negated assertion is that of its positive form, so it stands beside no score.
        if assertion.metric and assertion.threshold is not None and not assertion.type.startswith("not-"):
            known = self.thresholds.setdefault(assertion.metric, Counter())
            if assertion.threshold in known or len(known) < _THRESHOLDS_MAX:
                known[assertion.threshold] += 1
        for member in assertion.assertions:
            self._note_thresholds(member)

    def _note_repeats(self, column: int, cases: Sequence[DrawnCase]) -> None:
        judged = [case.status is Status.PASSED for case in cases if case.status in _JUDGED]
        if len(judged) > 1:
            verdicts = self.verdicts.setdefault(column, Verdicts())
            if all(judged):
                verdicts.passed += 1
            elif any(judged):
                verdicts.mixed += 1
            else:
                verdicts.failed += 1
        known = (case.score for case in cases if case.score is not None)
        scores = tuple(sorted(filter(math.isfinite, known)))
        if len(scores) > 1 and scores[-1] > scores[0]:
            first = cases[0]
            spread = Spread(
                scores[-1] - scores[0],
                first.test_index,
                column,
                title_of(first.description, first.vars, TITLE_WIDTH),
                scores,
            )
            keep = heapq.heappush if len(self._spreads) < _SPREADS_KEPT else heapq.heappushpop
            keep(self._spreads, spread)
