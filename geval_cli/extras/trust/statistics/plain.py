"""Apply calibrations to scores and estimate means of clustered values. Plain Python, since runs use it."""

import math
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import repeat

from msgspec import Struct

from geval_cli.extras.juries import JudgeWeight
from geval_cli.statistics.intervals import ClusteredMean

DUST = 1e-9
"""Scores that differ by less are equal: how a score was computed must not move it over a threshold."""
SCORE_DIGITS = 9
"""Scores are rounded to this many decimals, as for verdicts of runs, so that rounding errors break no ties."""


class ScoreBand(Struct, frozen=True):
    """The scores from `low` to `high`, of `n` labels, that share one probability `p` of being good."""

    low: float
    high: float
    p: float
    n: int


class Logistic(Struct, frozen=True):
    """A logistic curve: the probability of being good is 1 / (1 + exp(-(slope * score + intercept)))."""

    slope: float
    intercept: float

    def at(self, score: float) -> float:
        """Return the probability at a score."""
        exponent = self.slope * score + self.intercept
        if exponent >= 0:
            return 1 / (1 + math.exp(-exponent))
        odds = math.exp(exponent)  # the other form would overflow
        return odds / (1 + odds)


class Calibration(Struct, frozen=True):
    """The meaning of one metric's scores, estimated from labels.

    Attributes:
        key: key of the criterion that the scores were rated by; None if nothing ties them to a judge.
        parts: the parts of the key, each as a hash, so that a difference can be named.
        n: number of labels with a score; `good` of them are good, and they are from `clusters` independent clusters.
        good_at: lowest mean label of a good output, 0..1.
        objective: what `threshold` is optimised for.
        threshold: lowest score that passes.
        curve: the probability of being good: constant blocks with linear interpolation between them, or a logistic
            curve.
        alpha: largest share of bad outputs that are a clear pass, and of good ones that are a clear fail; None if there
            are too few labels to tell what is clear.
        pass_from: lowest score that is a clear pass; None if no score is.
        fail_below: lower scores are a clear fail; None if no score is.
        judge: name of the judge.
        judges: weights of the judges of a weighted jury; empty for any other score.
    """

    metric: str
    key: str | None
    parts: Mapping[str, str]
    n: int
    good: int
    clusters: int
    good_at: float
    objective: str
    threshold: float
    curve: tuple[ScoreBand, ...] | Logistic
    alpha: float | None = None
    pass_from: float | None = None
    fail_below: float | None = None
    judge: str | None = None
    judges: tuple[JudgeWeight, ...] = ()

    def p_pass(self, score: float) -> float:
        """Return the probability, 0..1, that the human label of an output with this score is good."""
        return self.curve.at(score) if isinstance(self.curve, Logistic) else chance_at(self.curve, score)

    def is_borderline(self, score: float) -> bool | None:
        """Return whether a score is neither a clear pass nor a clear fail; None if that is unknown."""
        if self.alpha is None:
            return None
        passes = self.pass_from is not None and score >= self.pass_from - DUST
        fails = self.fail_below is not None and score < self.fail_below - DUST
        return not (passes or fails)


def chance_at(blocks: tuple[ScoreBand, ...], score: float) -> float:
    """Return the probability at `score`: linear between blocks, which are in ascending order, and constant outside."""
    place = bisect_left(blocks, score, key=lambda block: block.high)
    if place == len(blocks):
        return blocks[-1].p
    here = blocks[place]
    if place == 0 or score >= here.low:
        return here.p
    before = blocks[place - 1]
    return before.p + (here.p - before.p) * (score - before.high) / (here.low - before.high)


def rising_blocks(
    points: Iterable[tuple[float, float]], weights: Iterable[float] | None = None
) -> tuple[ScoreBand, ...]:
    """Return the isotonic regression of labels on scores, computed by pooling adjacent violators.

    `points` are pairs of a score and a label. Without `weights`, all labels weigh the same.

    Source: Ayer et al., "An empirical distribution function for sampling with incomplete information", 1955.
    """
    sums: dict[float, tuple[float, float, int]] = {}
    for (score, mark), weight in zip(points, repeat(1.0) if weights is None else weights, strict=False):
        mass, total, n = sums.get(score, (0.0, 0.0, 0))
        sums[score] = mass + weight, total + weight * mark, n + 1
    blocks: list[tuple[float, float, float, float, int]] = []
    for score, (mass, total, n) in sorted(sums.items()):
        block = (score, score, mass, total, n)
        while blocks and blocks[-1][3] / blocks[-1][2] >= block[3] / block[2] - DUST:
            low, _, *before = blocks.pop()
            block = (low, score, before[0] + block[2], before[1] + block[3], int(before[2]) + block[4])
        blocks.append(block)
    return tuple(ScoreBand(low, high, total / mass, n) for low, high, mass, total, n in blocks)


MIN_CLUSTERS = 10
"""With fewer clusters, the interval of a correlation covers too little to be shown."""


class Estimate(Struct, frozen=True):
    """A statistic of `n` items in `clusters` independent clusters, with its 95 % interval; None where undefined."""

    value: float | None
    interval: tuple[float, float] | None = None
    n: int = 0
    clusters: int = 0

    def times(self, factor: float) -> "Estimate":
        """Return the estimate in another unit, such as ratings instead of scores; `factor` must be positive."""
        value = None if self.value is None else self.value * factor
        interval = None if self.interval is None else (self.interval[0] * factor, self.interval[1] * factor)
        return Estimate(value, interval, self.n, self.clusters)


def clustered_estimate(
    values: Iterable[float], clusters: Sequence[Hashable], *, lowest: float = 0.0
) -> Estimate:
    """Return the mean of values with its 95 % interval for clustered data (`mean_interval`).

    `clusters` has the cluster of each value, and `lowest` is the lower end of their range.
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(clusters))}
    numbered = [(numbers[cluster], value) for cluster, value in zip(clusters, values, strict=True)]
    sums = ClusteredMean()
    for number, value in sorted(numbered, key=lambda pair: pair[0]):
        sums.add(number, value)
    return Estimate(sums.mean, sums.interval(lowest=lowest), sums.n, sums.clusters)


def mixed_estimate(parts: Sequence[tuple[float, Estimate]], clusters: int) -> Estimate:
    """Return the weighted mean over strata, each with its share of the whole, with its 95 % interval.

    With w the shares, m the means and l and u their bounds, it is sum(w m) - sqrt(sum((w (m - l))^2)) to sum(w m) +
    sqrt(sum((w (u - m))^2)): a stratum of which little is known widens the interval in proportion to its share.

    Args:
        parts: the share of each stratum and the estimate of its mean; the shares add up to 1.
        clusters: number of independent clusters of all items.

    Source: Zou and Donner, "Construction of confidence limits about effect measures", 2008.
    """
    n = sum(part.n for _, part in parts)
    means = [(share, part.value) for share, part in parts if part.value is not None]
    if len(means) < len(parts):
        return Estimate(None, None, n, clusters)
    value = math.fsum(share * mean for share, mean in means)
    intervals = [part.interval for _, part in parts if part.interval is not None]
    if len(intervals) < len(parts):
        return Estimate(value, None, n, clusters)
    down, up = (
        math.hypot(
            *(share * (found[end] - mean) for (share, mean), found in zip(means, intervals, strict=True))
        )
        for end in (0, 1)
    )
    return Estimate(value, (value - down, value + up), n, clusters)
