"""How often the intervals of a judge's agreement contain the truth, by simulation.

Documents differ in how good their outputs are and in how a judge takes them, so pairs of one document are no
independent evidence. The true rho is that of a large draw from the same world.
"""

from functools import cache

import numpy as np

from geval_cli.statistics.correlation import Numbers, dataset_level, spearman

OUTPUTS = 12
_TRUTH_FROM = 40_000
_TRIALS = 2_000
_BOUNDS = {20: (0.90, 0.97), 30: (0.90, 0.97), 50: (0.90, 0.97)}


def draw_world(random: np.random.Generator, documents: int) -> tuple[Numbers, Numbers, list[str]]:
    """Return scores, labels and documents: ratings from 1 to 5 with a part that belongs to the document."""
    quality = random.normal(size=(documents, 1)) * 0.6 + random.normal(size=(documents, OUTPUTS))
    bias = random.normal(size=(documents, 1)) * 0.7
    judge = np.clip(np.rint(3 + quality * 0.8 + bias + random.normal(size=quality.shape)), 1, 5)
    human = np.clip(np.rint(9 + 3 * quality + random.normal(size=quality.shape) * 1.5) / 3, 1, 5)
    names = [str(number) for number in range(documents) for _ in range(OUTPUTS)]
    return judge.ravel(), human.ravel(), names


@cache
def true_rho() -> float:
    """Return the rho of the whole world, from a draw so large that its own error does not matter."""
    judge, human, _ = draw_world(np.random.default_rng(0), _TRUTH_FROM)
    found = spearman(judge, human)
    assert found is not None
    return found


def coverage_of_jackknife(documents: int, *, trials: int, seed: int) -> float:
    """Return the share of intervals that contain the true rho."""
    random, covered = np.random.default_rng(seed), 0
    for _ in range(trials):
        judge, human, names = draw_world(random, documents)
        interval = dataset_level(spearman, judge, human, names).interval
        covered += interval is not None and interval[0] <= true_rho() <= interval[1]
    return covered / trials


def run(seed: int) -> bool:
    """Print the coverage for several numbers of documents, and return whether all are within bounds."""
    is_good = True
    for documents, (low, high) in _BOUNDS.items():
        found = coverage_of_jackknife(documents, trials=_TRIALS, seed=seed + documents)
        is_good &= low <= found <= high
        print(
            f"{documents} documents: {found:.3f} of 95 % intervals contain the truth ({low:.2f} to {high:.2f})"
        )
    return is_good
