"""Rank the columns of a run by the comparisons of its `pairwise` assertions. Pure.

Each pair is in the results of both of its outputs, and counts once: also where one of them has an error instead, since
another pair of it could not be judged. Of one test at a time the pairs are held.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import EXPECTED_OUTPUT, PAIRS
from geval_cli.engine.columns import column_labels
from geval_cli.metrics import with_members
from geval_cli.records import AssertionResult, CaseResult, Column, JsonValue, RankedColumn, RunSummary
from geval_cli.statistics.ranking import Comparisons, PlayerStrength

_PAIRWISE = "pairwise"
_EXPECTED = -1
"""Stands for the expected output where others have the index of their column."""
_OUTCOMES = ("win", "tie", "loss")

_Met = tuple[int, int, int, int]
"""A repeat of a test, which of its comparisons of one name, and the columns, the lower one first."""


class _Pair(Struct, frozen=True):
    """The outcome of a pair, seen from the lower column; `consistent` is None where no judge was asked."""

    outcome: str
    share: float
    consistent: bool | None


class _Ranked(Struct):
    """The comparisons of one metric."""

    outcomes: dict[int, list[int]] = field(default_factory=dict)
    comparisons: Comparisons = field(default_factory=Comparisons)
    consistent: int = 0
    asked: int = 0

    def add_test(self, pairs: Mapping[_Met, _Pair]) -> None:
        shares: dict[tuple[int, int], list[float]] = {}
        for (_, _, first, second), pair in pairs.items():
            shares.setdefault((first, second), []).append(pair.share)
            place = _OUTCOMES.index(pair.outcome)
            self._of(first)[place] += 1
            self._of(second)[2 - place] += 1
            if pair.consistent is not None:
                self.asked += 1
                self.consistent += pair.consistent
        self.comparisons.add_test(shares)

    def _of(self, column: int) -> list[int]:
        return self.outcomes.setdefault(column, [0, 0, 0])


class RankingSums(Struct):
    """Takes in the results of a run, test by test, and ranks its `columns` at the end."""

    columns: tuple[Column, ...]
    _metrics: dict[str, _Ranked] = field(default_factory=dict)
    _test: int | None = None
    _of_test: dict[str, dict[_Met, _Pair]] = field(default_factory=dict)

    def passing(self, results: Iterable[CaseResult]) -> Iterator[CaseResult]:
        """Yield `results`, and take each of them in on its way."""
        for result in results:
            self.add(result)
            yield result

    def add(self, result: CaseResult) -> None:
        """Take in the next result."""
        if result.test_index != self._test:
            self._end_test()
            self._test = result.test_index
        count: dict[str, int] = {}
        for item, _ in with_members(result.assertions):
            if item.type != _PAIRWISE or item.metric is None:
                continue
            number = count[item.metric] = count.get(item.metric, 0) + 1
            for column, pair in _pairs_of(item):
                if column in (_EXPECTED, *range(len(self.columns))) and column != result.column:
                    met, seen = _from_lower(result.column, column, pair)
                    of_metric = self._of_test.setdefault(item.metric, {})
                    of_metric.setdefault((result.repeat_index, number, *met), seen)

    def with_rankings(self, summary: RunSummary) -> RunSummary:
        """Return `summary` with a ranking for each metric of pairs. To be asked for when all results are in."""
        self._end_test()
        found = sorted(self._metrics.items())
        fixed = {name for name, _ in found if name in summary.metrics and summary.metrics[name].is_half}
        return replace(
            summary,
            metrics={
                name: replace(metric, interval=None) if name in fixed else metric
                for name, metric in summary.metrics.items()
            },
            rankings={name: self._ranking(ranked) for name, ranked in found},
            order_consistency={
                name: ranked.consistent / ranked.asked if ranked.asked else None for name, ranked in found
            },
        )

    def _end_test(self) -> None:
        for name, pairs in self._of_test.items():
            self._metrics.setdefault(name, _Ranked()).add_test(pairs)
        self._of_test = {}

    def _ranking(self, ranked: _Ranked) -> tuple[RankedColumn, ...]:
        """Return the columns that were compared, the best first; without ratings in their order, where none are."""
        labels = {_EXPECTED: EXPECTED_OUTPUT, **dict(enumerate(column_labels(self.columns)))}
        ratings = ranked.comparisons.ratings()
        entries = [
            _entry(labels[column], outcomes, None if ratings is None else ratings[column])
            for column, outcomes in sorted(ranked.outcomes.items())
        ]
        return tuple(sorted(entries, key=lambda entry: -(entry.rating or 0.0)))


def _entry(label: str, outcomes: Sequence[int], rating: PlayerStrength | None) -> RankedColumn:
    wins, ties, losses = outcomes
    low, high = (None, None) if rating is None or rating.interval is None else rating.interval
    return RankedColumn(
        label=label,
        rating=None if rating is None else rating.value,
        low=low,
        high=high,
        wins=wins,
        ties=ties,
        losses=losses,
    )


def _from_lower(own: int, other: int, pair: _Pair) -> tuple[tuple[int, int], _Pair]:
    if own < other:
        return (own, other), pair
    outcome = _OUTCOMES[2 - _OUTCOMES.index(pair.outcome)]
    return (other, own), _Pair(outcome, 1 - pair.share, pair.consistent)


def _pairs_of(result: AssertionResult) -> Iterator[tuple[int, _Pair]]:
    """Yield the pairs of a result as it is stored; what has another form came from elsewhere, and is passed over."""
    pairs = result.detail.get(PAIRS) or ()
    for item in pairs if isinstance(pairs, list | tuple) else ():
        found = _pair(item)
        if found is not None:
            yield found


def _pair(item: JsonValue) -> tuple[int, _Pair] | None:
    if not isinstance(item, Mapping) or item.get("outcome") not in _OUTCOMES:
        return None
    column, share, consistent = item.get("column"), item.get("share"), item.get("consistent")
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        return None
    if not isinstance(column, int | None) or not isinstance(consistent, bool | None):
        return None
    pair = _Pair(item["outcome"], float(share), consistent)
    return (_EXPECTED if column is None else column), pair
