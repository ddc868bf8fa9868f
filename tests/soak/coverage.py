"""How often the intervals of a judge's agreement, and of true pass rates, contain the truth, by simulation.

Documents differ in how good their outputs are and in how a judge takes them, so pairs of one document are no
independent evidence. The true rho is that of a large draw from the same world.
"""

from functools import cache

import numpy as np

from geval_cli.extras.trust.statistics.agreement import Numbers, dataset_level, spearman
from geval_cli.extras.trust.statistics.estimate import Item, infer_rate

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


RATE_BOUNDS = (0.92, 0.985)


def coverage_of_rates(
    labels: int, outputs: int, *, good: float, trials: int, seed: int
) -> tuple[float, float]:
    """Return the share of intervals of a true pass rate that contain it, and the share of those by labels alone.

    The judge passes nine of ten good outputs and four of ten bad ones, so its own rate is far off.
    """
    random, covered, alone = np.random.default_rng(seed), 0, 0
    for _ in range(trials):
        truth = random.random(outputs) < good
        judged = np.where(truth, random.random(outputs) < 0.9, random.random(outputs) < 0.4)
        read = set(random.choice(outputs, labels, replace=False).tolist())
        items = [
            Item(float(judged[place]), float(truth[place]) if place in read else None, str(place))
            for place in range(outputs)
        ]
        found = infer_rate(items)
        assert found is not None
        covered += _contains(found.estimate.interval, good)
        alone += _contains(found.labels.interval, good)
    return covered / trials, alone / trials


def _contains(interval: tuple[float, float] | None, value: float) -> bool:
    return interval is not None and interval[0] <= value <= interval[1]


def run_rates(seed: int) -> bool:
    """Print the coverage of true pass rates, and return whether all are within bounds."""
    is_good, (low, high) = True, RATE_BOUNDS
    for good in (0.3, 0.6, 0.85):
        for labels in (30, 50, 100):
            found, alone = coverage_of_rates(labels, 600, good=good, trials=1_000, seed=seed + labels)
            is_good &= low <= found <= high
            print(
                f"{labels} labels, {good:.0%} good: {found:.3f} of 95 % intervals contain the truth"
                f" ({low} to {high}); by labels alone {alone:.3f}"
            )
    return is_good


def run(seed: int) -> bool:
    """Print the coverage for several numbers of documents, and return whether all are within bounds."""
    is_good = True
    for documents, (low, high) in _BOUNDS.items():
        found = coverage_of_jackknife(documents, trials=_TRIALS, seed=seed + documents)
        is_good &= low <= found <= high
        print(
            f"{documents} documents: {found:.3f} of 95 % intervals contain the truth ({low:.2f} to {high:.2f})"
        )
    return is_good & run_rates(seed)
