"""Bradley-Terry ratings from pairwise comparisons, with intervals, and the ranking of a run's columns.

The probability that i is preferred to j is 1 / (1 + exp(theta_j - theta_i)). A tie counts as half a win for each side.
For each pair that was compared, half a win is added to both sides, so that a player who won every comparison has a
finite rating. Ratings are shown on the Elo scale: 1500 + 400 / ln 10 * theta, with a mean theta of 0.

Source: Bradley and Terry, "Rank Analysis of Incomplete Block Designs", 1952.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import mul
from random import Random

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import EXPECTED_OUTPUT, PAIRS
from geval_cli.engine.columns import column_labels
from geval_cli.metrics import with_members
from geval_cli.records import AssertionResult, CaseResult, Column, JsonValue, RankedColumn, RunSummary
from geval_cli.statistics.intervals import Interval

Pair = tuple[int, int]
Wins = Mapping[Pair, float]
"""How often the first of a pair was preferred to the second; each compared pair has an entry in both orders."""

MEAN_RATING = 1500.0
_POINTS = 400 / math.log(10)
_PRIOR = 0.5
_RESAMPLES = 1000
_MIN_TESTS = 5
"""Intervals from fewer tests are too narrow: with three tests, only 87 of 100 contain the true value."""
_SEED = 20_240_607
_LOW, _HIGH = 0.025, 0.975
_MAX_STEPS = 100
_EXACT, _NEAR = 1e-12, 1e-4
"""Convergence tolerances (last step of theta): for ratings that are shown, and for those that only form an interval.

Newton's method converges quadratically: after a step of 1e-4, the error is about 1e-8.
"""
_ALIKE = 1e-7
_HALVINGS = 40
_FEW_TRIALS = 20
_DRAWS_WORTH_A_BINOMIAL = 30


class PlayerStrength(Struct, frozen=True):
    """The strength of one player, with its 95 % interval.

    The interval is None with fewer than five tests, and if all tests had the same outcome.
    """

    value: float
    interval: Interval | None = None


_Game = tuple[int, int, float, float]
"""The indexes of two players, the lower first, and how often the first won and lost, added half wins included."""

_Met = tuple[Pair, float, int]
"""A pair of players (lower index first), the sum of the first one's shares, and the number of comparisons."""


class Comparisons(Struct):
    """Pairwise comparisons by test; players are numbers. Tests with equal outcomes are stored once, with a count."""

    _tests: Counter[tuple[_Met, ...]] = field(default_factory=Counter)

    def add_test(self, results: Mapping[Pair, Sequence[float]]) -> None:
        """Add a test: for each compared pair, the shares of its first player, each 0..1 (0.5 for a tie).

        Each pair appears in one order only.
        """
        met = []
        for (first, second), shares in results.items():
            ordered = shares if first < second else [1 - share for share in shares]
            if ordered:
                met.append(((min(first, second), max(first, second)), math.fsum(ordered), len(ordered)))
        if met:
            self._tests[tuple(sorted(met))] += 1

    @property
    def tests(self) -> int:
        """The number of tests with at least one comparison."""
        return self._tests.total()

    def ratings(self) -> dict[int, PlayerStrength] | None:
        """Return the rating of each player that was compared; None if the compared pairs do not connect all players.

        Intervals are percentiles of 1,000 bootstrap resamples of the tests, with a fixed seed.
        """
        kinds = sorted(self._tests.items())
        pairs = sorted({pair for kind, _ in kinds for pair, _, _ in kind})
        players = sorted({player for pair in pairs for player in pair})
        if not _are_connected(pairs, players):
            return None
        places = {player: place for place, player in enumerate(players)}
        won, met = ([[0.0] * len(kinds) for _ in pairs] for _ in range(2))
        for number, (kind, _) in enumerate(kinds):
            for pair, share, count in kind:
                place = bisect_left(pairs, pair)
                won[place][number] += share
                met[place][number] += count

        def games(counts: Sequence[int]) -> list[_Game]:
            """Return the games for these numbers of tests, with half a win added to both sides of each pair."""
            found = []
            for (first, second), shares, sizes in zip(pairs, won, met, strict=True):
                share = sum(map(mul, counts, shares))
                lost = sum(map(mul, counts, sizes)) - share
                found.append((places[first], places[second], share + _PRIOR, lost + _PRIOR))
            return found

        theta = _maximum(games([count for _, count in kinds]), [0.0] * len(players), _EXACT)
        if self.tests < _MIN_TESTS:
            return {player: PlayerStrength(_points(theta[place])) for player, place in places.items()}
        resampled = [_maximum(games(counts), theta, _NEAR) for counts in self._resamples()]
        return {
            player: PlayerStrength(
                _points(theta[place]), _percentiles([sample[place] for sample in resampled])
            )
            for player, place in places.items()
        }

    def _resamples(self) -> Iterator[Sequence[int]]:
        """Yield bootstrap resamples of the tests without end: how many of each kind were drawn."""
        random = Random(_SEED)
        counts = [count for _, count in sorted(self._tests.items())]
        cumulated = list(accumulate(counts))
        numbers = range(len(counts))
        for _ in range(_RESAMPLES):
            if len(counts) * _DRAWS_WORTH_A_BINOMIAL < self.tests:
                yield _multinomial(random, counts, self.tests)
            else:
                drawn = Counter(random.choices(numbers, cum_weights=cumulated, k=self.tests))
                yield [drawn[number] for number in numbers]


def strengths(wins: Wins, players: Sequence[int]) -> dict[int, float] | None:
    """Return the maximum likelihood theta of each player, with mean 0; None if the players are not all connected.

    Args:
        wins: the wins, with the added half wins.
        players: all players in `wins`.
    """
    if not _are_connected(wins, players):
        return None
    places = {player: place for place, player in enumerate(players)}
    placed = {(places[winner], places[loser]): count for (winner, loser), count in wins.items()}
    games = [(one, two, count, placed[two, one]) for (one, two), count in placed.items() if one < two]
    return dict(zip(players, _maximum(games, [0.0] * len(players), _EXACT), strict=True))


def _maximum(games: Sequence[_Game], start: Sequence[float], tolerance: float) -> list[float]:
    """Return theta by Newton's method, which stops after a step shorter than `tolerance`."""
    theta = list(start)
    slope = _slope(games, start)
    for _ in range(_MAX_STEPS):
        # The last player stays where it is, as only differences count.
        step = [*_solved(slope.curvature[:-1], slope.gradient[:-1]), 0.0]
        size = 1.0
        for _ in range(_HALVINGS):
            moved = [value + size * change for value, change in zip(theta, step, strict=True)]
            found = _slope(games, moved)
            # Equal is enough: near the top, a step is smaller than what floats can tell.
            if found.likelihood >= slope.likelihood - abs(slope.likelihood) * _EXACT:
                theta, slope = moved, found
                break
            size /= 2
        if max(map(abs, step), default=0.0) < tolerance:
            break
    mean = math.fsum(theta) / len(theta)
    return [value - mean for value in theta]


class _Slope(Struct):
    """The log-likelihood at some theta, its gradient, and the upper half of its Hessian."""

    likelihood: float
    gradient: list[float]
    curvature: list[list[float]]


def _slope(games: Sequence[_Game], theta: Sequence[float]) -> _Slope:
    likelihood = 0.0
    gradient = [0.0] * len(theta)
    curvature = [[0.0] * len(theta) for _ in theta]
    for one, two, won, lost in games:
        lead = theta[one] - theta[two]
        small = math.exp(-abs(lead))
        likelier = 1 / (1 + small)
        wins, loses = (likelier, small * likelier) if lead >= 0 else (small * likelier, likelier)
        likelihood -= (won + lost) * math.log1p(small) + (lost * lead if lead >= 0 else -won * lead)
        surprise = won * loses - lost * wins
        gradient[one] += surprise
        gradient[two] -= surprise
        weight = (won + lost) * wins * loses
        curvature[one][one] += weight
        curvature[two][two] += weight
        curvature[one][two] -= weight
    return _Slope(likelihood, gradient, curvature)


def _solved(matrix: list[list[float]], values: list[float]) -> list[float]:
    """Solve matrix * x = values for a symmetric positive definite matrix, of which only the upper half is read."""
    size = len(values)
    for column in range(size):
        upper = matrix[column]
        pivot = upper[column] or math.ulp(0.0)
        for row in range(column + 1, size):
            factor = upper[row] / pivot
            if factor:
                reduced = matrix[row]
                for place in range(row, size):
                    reduced[place] -= factor * upper[place]
                values[row] -= factor * values[column]
    found = [0.0] * size
    for row in reversed(range(size)):
        known = sum(map(mul, matrix[row][row + 1 : size], found[row + 1 :]))
        found[row] = (values[row] - known) / (matrix[row][row] or math.ulp(0.0))
    return found


def _are_connected(pairs: Iterable[Pair], players: Sequence[int]) -> bool:
    neighbours: dict[int, set[int]] = {player: set() for player in players}
    for one, two in pairs:
        neighbours[one].add(two)
        neighbours[two].add(one)
    waiting = list(players[:1])
    reached = set(waiting)
    while waiting:
        new = neighbours[waiting.pop()] - reached
        reached |= new
        waiting += new
    return bool(players) and len(reached) == len(players)


def _multinomial(random: Random, counts: Sequence[int], trials: int) -> list[int]:
    """Return how often each kind, weighted by `counts`, is drawn in `trials` draws, without drawing one by one."""
    found, left, weight = [], trials, sum(counts)
    for count in counts:
        drawn = left if count == weight else _binomial(random, left, count / weight)
        found.append(drawn)
        left, weight = left - drawn, weight - count
    return found


def _binomial(random: Random, trials: int, probability: float) -> int:
    """Draw an exact binomial number of successes, in a number of steps that grows with the logarithm of `trials`.

    The median of `trials` uniform numbers follows a beta distribution; the search continues in the half that contains
    the probability. Source: Devroye, "Non-Uniform Random Variate Generation", 1986, chapter X.4.
    """
    successes = 0
    while trials > _FEW_TRIALS:
        middle = trials // 2 + 1
        drawn = random.betavariate(middle, trials + 1 - middle)
        if drawn <= probability:
            successes += middle
            trials -= middle
            probability = (probability - drawn) / (1 - drawn)
        else:
            trials = middle - 1
            probability = probability / drawn
    return successes + sum(random.random() < probability for _ in range(trials))


def _percentiles(values: list[float]) -> Interval | None:
    ordered = sorted(values)
    if ordered[-1] - ordered[0] < _ALIKE:  # all tests went alike, which says nothing about further ones
        return None
    return _points(_quantile(ordered, _LOW)), _points(_quantile(ordered, _HIGH))


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _points(theta: float) -> float:
    return MEAN_RATING + _POINTS * theta


_PAIRWISE = "pairwise"
_EXPECTED = -1
"""Stands for the expected output, which has no column index."""
_OUTCOMES = ("win", "tie", "loss")
_Meeting = tuple[int, int, int, int]
"""The repeat of a test, the index among comparisons of the same name, and the two columns, the lower first."""


class _Pair(Struct, frozen=True):
    """The outcome of a pair, from the lower column's side; `consistent` is None if no judge compared it."""

    outcome: str
    share: float
    consistent: bool | None


class _Ranked(Struct):
    """The comparisons of one metric."""

    outcomes: dict[int, list[int]] = field(default_factory=dict)
    comparisons: Comparisons = field(default_factory=Comparisons)
    consistent: int = 0
    asked: int = 0

    def add_test(self, pairs: Mapping[_Meeting, _Pair]) -> None:
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
    """Collects the results of a run, test by test, and ranks its `columns` at the end."""

    columns: tuple[Column, ...]
    _metrics: dict[str, _Ranked] = field(default_factory=dict)
    _test: int | None = None
    _of_test: dict[str, dict[_Meeting, _Pair]] = field(default_factory=dict)

    def add(self, result: CaseResult) -> None:
        """Add a result."""
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
                    if result.column < column:
                        met, seen = (result.column, column), pair
                    else:
                        outcome = _OUTCOMES[2 - _OUTCOMES.index(pair.outcome)]
                        met = (column, result.column)
                        seen = _Pair(outcome, 1 - pair.share, pair.consistent)
                    of_metric = self._of_test.setdefault(item.metric, {})
                    of_metric.setdefault((result.repeat_index, number, *met), seen)

    def with_rankings(self, summary: RunSummary) -> RunSummary:
        """Return `summary` with a ranking for each pairwise metric. Call it after all results were added."""
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
        """Return the compared columns, best first; in column order if they have no ratings."""
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


def _pairs_of(result: AssertionResult) -> Iterator[tuple[int, _Pair]]:
    """Yield the pairs of a stored result; entries of another form were not written by geval and are skipped."""
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
