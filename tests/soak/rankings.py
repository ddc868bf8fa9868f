"""How often the intervals of a ranking contain the true strengths, and whether the order is right, by simulation.

Judges are fair, and tests differ: in some the stronger model wins more surely than in others.
"""

import math
from random import Random
from statistics import fmean

from geval_cli.extras.rankings import Comparisons

THETA = (0.6, 0.0, -0.6)
_TRIALS = 400
_TESTS = (50, 100, 200)
_BOUNDS = (0.90, 0.98)
_POINTS = 400 / math.log(10)


def simulated(random: Random, tests: int) -> Comparisons:
    """Return the comparisons of three models whose log odds of winning are the differences of `THETA`."""
    comparisons = Comparisons()
    for _ in range(tests):
        results = {}
        for first, second in ((0, 1), (0, 2), (1, 2)):
            chance = 1 / (1 + math.exp(THETA[second] - THETA[first]))
            results[first, second] = [float(random.random() < chance)]
        comparisons.add_test(results)
    return comparisons


def coverage(tests: int, *, trials: int, seed: int) -> tuple[float, float]:
    """Return the share of intervals that contain the truth, and that of rankings in the right order."""
    random = Random(seed)
    covered, ordered = [], []
    for _ in range(trials):
        ratings = simulated(random, tests).ratings()
        assert ratings is not None
        values = [ratings[player].value for player in range(3)]
        ordered.append(values == sorted(values, reverse=True))
        for player, theta in enumerate(THETA):
            interval = ratings[player].interval
            truth = 1500 + _POINTS * theta
            covered.append(interval is not None and interval[0] <= truth <= interval[1])
    return fmean(covered), fmean(ordered)


def run(seed: int) -> bool:
    """Print the coverage for several numbers of tests, and return whether all are within bounds."""
    low, high = _BOUNDS
    is_good = True
    for tests in _TESTS:
        covered, ordered = coverage(tests, trials=_TRIALS, seed=seed + tests)
        is_good &= low <= covered <= high
        print(
            f"{tests} tests: {covered:.3f} of 95 % intervals contain the truth ({low:.2f} to {high:.2f})",
            end="; ",
        )
        print(f"{ordered:.3f} of rankings are in the right order")
    return is_good
