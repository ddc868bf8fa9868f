"""Ratings of players from comparisons in pairs (Bradley-Terry), with intervals. Plain Python, pure.

The probability that i is preferred to j is 1 / (1 + exp(theta_j - theta_i)). A tie counts as half a win for each. In
each pair that met, half a win is added for either side: a player who won every comparison has a finite rating then.
Ratings are shown as in chess: 1500 + 400 / ln 10 * theta, where the mean of theta is 0.

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
_EXACT, _NEAR = 1e-12, 1e-4
"""The last step of theta for ratings that are shown, and for those that only make an interval.

Newton's steps end as squares: after one of 1e-4 about 1e-8 is missing.
"""
_ALIKE = 1e-7
_HALVINGS = 40
_FEW_TRIALS = 20
_DRAWS_WORTH_A_BINOMIAL = 30


class PlayerStrength(Struct, frozen=True):
    """The strength of one player; `interval` is its 95 % interval.

    The interval is None of fewer than five tests, and where all tests went alike.
    """

    value: float
    interval: Interval | None = None


_Game = tuple[int, int, float, float]
"""The places of two players, the lower one first, and how often the first won and lost, the half wins included."""

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
            """Return the games of so many tests of each kind; half a win more for either side of each pair."""
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
        """Yield how many of so many tests, drawn with replacement, are of each kind, again and again."""
        random, counts = Random(_SEED), [count for _, count in sorted(self._tests.items())]
        cumulated, numbers = list(accumulate(counts)), range(len(counts))
        for _ in range(_RESAMPLES):
            if len(counts) * _DRAWS_WORTH_A_BINOMIAL < self.tests:
                yield _multinomial(random, counts, self.tests)
            else:
                drawn = Counter(random.choices(numbers, cum_weights=cumulated, k=self.tests))
                yield [drawn[number] for number in numbers]


def strengths(wins: Wins, players: Sequence[int]) -> dict[int, float] | None:
    """Return theta of each player by maximum likelihood, with mean 0; None when not all are connected.

    Args:
        wins: with the half wins that are added.
        players: all who are in `wins`.
    """
    if not _are_connected(wins, players):
        return None
    places = {player: place for place, player in enumerate(players)}
    placed = {(places[winner], places[loser]): count for (winner, loser), count in wins.items()}
    games = [(one, two, count, placed[two, one]) for (one, two), count in placed.items() if one < two]
    return dict(zip(players, _maximum(games, [0.0] * len(players), _EXACT), strict=True))


def _maximum(games: Sequence[_Game], start: Sequence[float], tolerance: float) -> list[float]:
    """Return theta by Newton's method, which ends with a step shorter than `tolerance`."""
    theta, slope = list(start), _slope(games, start)
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
    """The logarithm of the likelihood at some theta, and its derivatives; of the curvature only the upper half."""

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
    """Return x of matrix * x = values for a symmetric positive definite matrix, of which the upper half is read."""
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
    """Return how often each kind, of which there are `counts`, comes in `trials` draws, without drawing one by one."""
    found, left, weight = [], trials, sum(counts)
    for count in counts:
        drawn = left if count == weight else _binomial(random, left, count / weight)
        found.append(drawn)
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
