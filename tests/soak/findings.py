"""Simulated comparisons: how often equal systems are told apart by chance, and unequal ones rightly."""

import math
import random

from geval_cli.statistics.paired import PairedDifferences, detectable_quantile

_RUNS = 10_000
_SEED = 2_026
"""Fixed before the first simulation, so that no lucky one was picked."""


def run() -> bool:
    """Simulate ten thousand comparisons of each kind, and print and judge the share that finds a difference."""
    rows = [
        ("equal, 20 tests", 20, 1, 0.0, (0.038, 0.060)),
        ("equal, 50 tests of 5 repeats", 50, 5, 0.0, (0.038, 0.060)),
        ("equal, 9 tests: signs are flipped", 9, 2, 0.0, (0.030, 0.060)),
        ("detectable, 100 tests", 100, 1, None, (0.75, 0.85)),
        ("detectable, 30 tests of 3 repeats", 30, 3, None, (0.75, 0.85)),
    ]
    good = True
    for name, tests, repeats, delta, (low, high) in rows:
        shown = shown_differences(runs=_RUNS, tests=tests, repeats=repeats, true_delta=delta, seed=_SEED)
        good &= low <= shown <= high
        print(f"{name}: a difference is shown in {shown:.4f} of the runs; {low} to {high} expected")
    return good


def shown_differences(*, runs: int, tests: int, repeats: int, true_delta: float | None, seed: int) -> float:
    """Return the share of simulated comparisons with p <= .05; a delta of None is the detectable one of such runs.

    Each test adds its own difference between the two systems, which all of its repeats share.
    """
    own, noise = 0.3, 0.2
    spread = math.sqrt(own**2 + 2 * noise**2 / repeats)
    delta = detectable_quantile(tests - 1) * spread / math.sqrt(tests) if true_delta is None else true_delta
    numbers, shown = random.Random(seed), 0
    for _ in range(runs):
        pairs = PairedDifferences()
        for test in range(tests):
            gap = numbers.gauss(delta, own)
            for _ in range(repeats):
                pairs.add(test, numbers.gauss(0.5, noise), numbers.gauss(0.5, noise) + gap)
        found = pairs.result()
        assert found is not None
        shown += found.p <= 0.05
    return shown / runs
