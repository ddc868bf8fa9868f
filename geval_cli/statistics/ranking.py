"""Ratings of players from comparisons in pairs (Bradley-Terry), with intervals. Plain Python, pure.

The probability that i is preferred to j is 1 / (1 + exp(theta_j - theta_i)). A tie counts as half a win for each. In
each pair that met, half a win is added for either side: a player who won every comparison has a finite rating then.
Ratings are shown as in chess: 1500 + 400 / ln 10 * theta, where the mean of theta is 0.

Source: Bradley and Terry, "Rank Analysis of Incomplete Block Designs", 1952.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from random import Random

from msgspec import Struct, field

from geval_cli.statistics.intervals import Interval

Pair = tuple[int, int]
Wins = Mapping[Pair, float]
"""How often the first of a pair was preferred to the second, by pair; each pair that met has an entry either way."""

MEAN_RATING = 1500.0
_POINTS = 400 / math.log(10)
_PRIOR = 0.5
_RESAMPLES = 1000
_MIN_TESTS = 5
"""Resamples of fewer tests do not keep their level: three tests' intervals hold the truth in 87 of 100 cases."""
_SEED = 20_240_607
_LOW, _HIGH = 0.025, 0.975
_MAX_STEPS = 100
_EXACT, _NEAR = 1e-12, 1e-7
"""The last step of theta for ratings that are shown, and for those that only make an interval."""
_HALVINGS = 40
_FEW_TRIALS = 20
_DRAWS_WORTH_A_BINOMIAL = 30


class PlayerStrength(Struct, frozen=True):
    """The strength of one player; `interval` is its 95 % interval.

    The interval is None of fewer than five tests, and where all tests went alike.
    """

    value: float
    interval: Interval | None = None


_Met = tuple[Pair, float, int]
"""The lower player and the higher one, the sum of the shares of the lower, and how often they met."""


class Comparisons(Struct):
    """Comparisons in pairs, test by test; players are known by numbers. Tests that went alike are only counted."""

    _tests: Counter[tuple[_Met, ...]] = field(default_factory=Counter)

    def add_test(self, results: Mapping[Pair, Sequence[float]]) -> None:
        """Take in a test: for each pair of different players the shares of its first one, each 0..1 and 0.5 for a tie.

        A pair stands in one order only.
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
        """The number of tests in which anybody met."""
        return self._tests.total()

    def ratings(self) -> dict[int, PlayerStrength] | None:
        """Return the rating of each player who met another; None when the pairs that met do not connect them all.

        Intervals are percentiles of 1,000 resamples of the tests, always the same ones.
        """
        met = self._met()
        players = sorted({player for pair in met for player in pair})
        theta = strengths(_with_prior(_sums(self._tests), met), players)
        if theta is None:
            return None
        if self.tests < _MIN_TESTS:
            return {player: PlayerStrength(_points(value)) for player, value in theta.items()}
        resampled = [
            strengths(_with_prior(_sums(sample), met), players, start=theta, tolerance=_NEAR) or theta
            for sample in self._resamples()
        ]
        return {
            player: PlayerStrength(_points(value), _percentiles([sample[player] for sample in resampled]))
            for player, value in theta.items()
        }

    def _met(self) -> set[Pair]:
        return {pair for test in self._tests for pair, _, _ in test}

    def _resamples(self) -> Iterator[Mapping[tuple[_Met, ...], int]]:
        """Yield so many tests, drawn with replacement, again and again."""
        random, kinds = Random(_SEED), sorted(self._tests.items())
        cumulated = list(accumulate(count for _, count in kinds))
        for _ in range(_RESAMPLES):
            if len(kinds) * _DRAWS_WORTH_A_BINOMIAL < self.tests:
                yield _multinomial(random, kinds, self.tests)
            else:
                names = [kind for kind, _ in kinds]
                yield Counter(random.choices(names, cum_weights=cumulated, k=self.tests))


def strengths(
    wins: Wins,
    players: Sequence[int],
    *,
    start: Mapping[int, float] | None = None,
    tolerance: float = _EXACT,
) -> dict[int, float] | None:
    """Return theta of each player by maximum likelihood, with mean 0; None when not all are connected.

    Args:
        wins: with the half wins that are added.
        players: all who are in `wins`.
        start: a guess at theta.
        tolerance: Newton's method ends with a step shorter than this.
    """
    if not _are_connected(wins, players):
        return None
    places = {player: place for place, player in enumerate(players)}
    placed = {(places[winner], places[loser]): count for (winner, loser), count in wins.items()}
    theta = [0.0 if start is None else start[player] for player in players]
    likelihood = _likelihood(placed, theta)
    for _ in range(_MAX_STEPS):
        step = _newton_step(placed, theta)
        theta, likelihood = _climbed(placed, theta, step, likelihood)
        if max(map(abs, step), default=0.0) < tolerance:
            break
    mean = math.fsum(theta) / len(theta)
    return {player: value - mean for player, value in zip(players, theta, strict=True)}


def _climbed(
    wins: Wins, theta: Sequence[float], step: Sequence[float], likelihood: float
) -> tuple[list[float], float]:
    """Return theta after a step, and its likelihood; the step is halved as long as that would fall."""
    size = 1.0
    for _ in range(_HALVINGS):
        moved = [value + size * change for value, change in zip(theta, step, strict=True)]
        found = _likelihood(wins, moved)
        # Equal is enough: near the top, a step is smaller than what floats can tell.
        if found >= likelihood - abs(likelihood) * _EXACT:
            return moved, found
        size /= 2
    return list(theta), likelihood


def _newton_step(wins: Wins, theta: Sequence[float]) -> list[float]:
    """Return the step of Newton's method; the last player stays where it is, as only differences count."""
    size = len(theta) - 1
    gradient = [0.0] * (size + 1)
    curvature = [[0.0] * (size + 1) for _ in range(size + 1)]
    for (winner, loser), count in wins.items():
        surprise = _sigmoid(theta[loser] - theta[winner])
        gradient[winner] += count * surprise
        gradient[loser] -= count * surprise
        weight = count * surprise * (1 - surprise)
        curvature[winner][winner] += weight
        curvature[loser][loser] += weight
        curvature[winner][loser] -= weight
        curvature[loser][winner] -= weight
    return [*_solved([row[:size] for row in curvature[:size]], gradient[:size]), 0.0]


def _solved(matrix: list[list[float]], values: list[float]) -> list[float]:
    """Return x of matrix * x = values for a symmetric positive definite matrix, by elimination."""
    size = len(values)
    for column in range(size):
        pivot = matrix[column][column] or math.ulp(0.0)
        for row in range(column + 1, size):
            factor = matrix[row][column] / pivot
            if factor:
                for place in range(column, size):
                    matrix[row][place] -= factor * matrix[column][place]
                values[row] -= factor * values[column]
    found = [0.0] * size
    for row in reversed(range(size)):
        known = math.fsum(matrix[row][place] * found[place] for place in range(row + 1, size))
        found[row] = (values[row] - known) / (matrix[row][row] or math.ulp(0.0))
    return found


def _likelihood(wins: Wins, theta: Sequence[float]) -> float:
    return -math.fsum(
        count * _log1p_exp(theta[loser] - theta[winner]) for (winner, loser), count in wins.items()
    )


def _log1p_exp(value: float) -> float:
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))


def _sigmoid(value: float) -> float:
    if value >= 0:
        return 1 / (1 + math.exp(-value))
    small = math.exp(value)
    return small / (1 + small)


def _are_connected(wins: Wins, players: Sequence[int]) -> bool:
    neighbours: dict[int, set[int]] = {player: set() for player in players}
    for winner, loser in wins:
        neighbours[winner].add(loser)
        neighbours[loser].add(winner)
    waiting = list(players[:1])
    reached = set(waiting)
    while waiting:
        new = neighbours[waiting.pop()] - reached
        reached |= new
        waiting += new
    return bool(players) and len(reached) == len(players)


def _sums(tests: Mapping[tuple[_Met, ...], int]) -> dict[Pair, float]:
    wins: dict[Pair, float] = {}
    for test, count in tests.items():
        for (first, second), share, met in test:
            wins[first, second] = wins.get((first, second), 0.0) + count * share
            wins[second, first] = wins.get((second, first), 0.0) + count * (met - share)
    return wins


def _with_prior(wins: Wins, met: set[Pair]) -> dict[Pair, float]:
    """Return the wins with half a win more either way for each pair that met in any test, in this sample or not."""
    return {
        way: wins.get(way, 0.0) + _PRIOR
        for first, second in sorted(met)
        for way in ((first, second), (second, first))
    }


def _multinomial(
    random: Random, kinds: Sequence[tuple[tuple[_Met, ...], int]], trials: int
) -> dict[tuple[_Met, ...], int]:
    """Return how often each kind comes in `trials` draws, without drawing one by one."""
    found, left, weight = {}, trials, sum(count for _, count in kinds)
    for kind, count in kinds:
        drawn = left if count == weight else _binomial(random, left, count / weight)
        found[kind] = drawn
        left, weight = left - drawn, weight - count
    return found


def _binomial(random: Random, trials: int, probability: float) -> int:
    """Return the number of successes: exact, in steps that grow with the logarithm of `trials`.

    The middle one of `trials` uniform numbers follows a beta distribution; the half on whose side the probability lies
    is looked at again. Source: Devroye, "Non-Uniform Random Variate Generation", 1986, chapter X.4.
    """
    successes = 0
    while trials > _FEW_TRIALS:
        middle = trials // 2 + 1
        drawn = random.betavariate(middle, trials + 1 - middle)
        if drawn <= probability:
            successes, trials = successes + middle, trials - middle
            probability = (probability - drawn) / (1 - drawn)
        else:
            trials, probability = middle - 1, probability / drawn
    return successes + sum(random.random() < probability for _ in range(trials))


def _percentiles(values: list[float]) -> Interval | None:
    ordered = sorted(values)
    if ordered[-1] - ordered[0] < _NEAR:  # all tests went alike, which says nothing about further ones
        return None
    return _points(_quantile(ordered, _LOW)), _points(_quantile(ordered, _HIGH))


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _points(theta: float) -> float:
    return MEAN_RATING + _POINTS * theta
