"""Chances of scores by human labels, and estimates from clustered values: plain Python, since runs use them."""

import math
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import repeat

from msgspec import Struct

from geval_cli.extras.juries import JudgeWeight
from geval_cli.statistics.intervals import ClusteredMean

DUST = 1e-9
"""Scores that differ by less are one: the way a score was computed must not move it over a threshold."""


class ScoreBand(Struct, frozen=True):
    """Scores from `low` to `high`, of `n` labels, that have one chance `p` of being good."""

    low: float
    high: float
    p: float
    n: int


class Logistic(Struct, frozen=True):
    """The chance of being good as 1 / (1 + exp(-(slope * score + intercept)))."""

    slope: float
    intercept: float

    def at(self, score: float) -> float:
        """Return the chance at a score."""
        exponent = self.slope * score + self.intercept
        if exponent >= 0:
            return 1 / (1 + math.exp(-exponent))
        odds = math.exp(exponent)  # the other form would overflow
        return odds / (1 + odds)


class Calibration(Struct, frozen=True):
    """The meaning of one metric's scores, as found from labels.

    Attributes:
        key: of the criterion that the scores were rated by; None where nothing ties them to a judge.
        parts: the key part by part, each as a hash, so that a difference can be named.
        n: labels with a score, `good` of them good, in `clusters` independent groups.
        good_at: mean labels from here on are good, 0..1.
        objective: what `threshold` is best for.
        threshold: scores from here on pass.
        curve: the chance of being good: blocks with straight lines between them, or a logistic curve.
        alpha: the share of bad outputs that may be a clear pass, and of good ones that may be a clear fail; None
            where there are too few labels to say what is clear.
        pass_from: scores from here on are a clear pass; None where no score is.
        fail_below: scores below are a clear fail.
        judge: its name.
        judges: for the score of a jury whose judges are weighted: their weights; else empty.
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
        """Return the chance, 0..1, that people find an output with this score good."""
        return self.curve.at(score) if isinstance(self.curve, Logistic) else chance_at(self.curve, score)

    def is_borderline(self, score: float) -> bool | None:
        """Return whether a score is neither a clear pass nor a clear fail; None where that is not known."""
        if self.alpha is None:
            return None
        passes = self.pass_from is not None and score >= self.pass_from - DUST
        fails = self.fail_below is not None and score < self.fail_below - DUST
        return not (passes or fails)


def chance_at(blocks: tuple[ScoreBand, ...], score: float) -> float:
    """Return the height at `score` of blocks in rising order: straight lines between them, level outside."""
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
    """Return the rising steps that are nearest to pairs of a score and a label, by pooling adjacent violators.

    All labels weigh the same where there are no `weights`.

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


class Estimate(Struct, frozen=True):
    """A statistic of `n` items in `clusters` independent groups, with its 95 % interval; None where undefined."""

    value: float | None
    interval: tuple[float, float] | None = None
    n: int = 0
    clusters: int = 0

    def times(self, factor: float) -> "Estimate":
        """Return it in another unit, such as ratings for scores; `factor` is above 0."""
        value = None if self.value is None else self.value * factor
        interval = None if self.interval is None else (self.interval[0] * factor, self.interval[1] * factor)
        return Estimate(value, interval, self.n, self.clusters)


def clustered_estimate(
    values: Iterable[float], clusters: Sequence[Hashable], *, lowest: float = 0.0
) -> Estimate:
    """Return the mean of values, each with the name of its cluster, with its 95 % interval (`mean_interval`)."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(clusters))}
    numbered = [(numbers[cluster], value) for cluster, value in zip(clusters, values, strict=True)]
    sums = ClusteredMean()
    for number, value in sorted(numbered, key=lambda pair: pair[0]):
        sums.add(number, value)
    return Estimate(sums.mean, sums.interval(lowest=lowest), sums.n, sums.clusters)


def mixed_estimate(parts: Sequence[tuple[float, Estimate]], clusters: int) -> Estimate:
    """Return the mean over kinds of items of which each has a share of the whole, with its 95 % interval.

    With w the shares, m the means and l and u their bounds it is sum(w m) - sqrt(sum((w (m - l))^2)) to
    sum(w m) + sqrt(sum((w (u - m))^2)): a kind of which little is known makes the whole unsure by its share.

    Args:
        parts: the share of each kind, and the mean of its items; the shares add up to 1.
        clusters: independent groups of all items.

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
