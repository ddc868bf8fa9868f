"""Read a judge's score by human labels: its chance to be good, and whether it is clear. Pure, plain Python.

Runs use it, so nothing here needs a library. How it is found from labels is in
`extras.trust.statistics.calibration_fit`.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

from msgspec import Struct

_DUST = 1e-9
"""Scores that differ by less are one: the way a score was computed must not move it over a threshold."""


_DIGITS = 12
"""Of a weighted score: the last ones are rounding, which would break ties."""


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


class JudgeWeight(Struct, frozen=True):
    """How much one judge of a jury counts, and how it uses the scale, as found from labels.

    Attributes:
        judge: its name.
        key: of the criterion that it rated by, as if it judged alone; None where the run does not say.
        parts: the key part by part, each as a hash.
        n: labelled outputs that it scored.
        r: Pearson's correlation of its scores with the mean human labels; None where its scores are all equal.
        weight: 0 or more: r^2 / (1 - r^2), and 0 for a judge that does not follow people.
        mean, sd: of its scores of the labelled outputs, 0..1.
    """

    judge: str
    key: str | None
    parts: Mapping[str, str]
    n: int
    r: float | None
    weight: float
    mean: float
    sd: float

    @property
    def counts(self) -> bool:
        """Return whether the judge has a say."""
        return self.weight > 0 and self.sd > 0


def weighted_score(judges: Sequence[JudgeWeight], scores: Sequence[float | None]) -> float | None:
    """Return the score, 0..1, of a jury whose judges are weighted by how well they follow people.

    It is the weighted mean of standardised scores, moved so that a jury whose judges all say 0 gets 0, and one whose
    judges all say 1 gets 1. Where a judge broke (None), the weights of the others grow in proportion. None where no
    judge that counts gave a score.
    """
    heard = [
        (one, score) for one, score in zip(judges, scores, strict=True) if one.counts and score is not None
    ]
    total = math.fsum(one.weight for one, _ in heard)
    if not total:
        return None
    found = math.fsum(one.weight * (score - one.mean) / one.sd for one, score in heard) / total
    counted = [one for one in judges if one.counts]
    whole = math.fsum(one.weight for one in counted)
    lowest = math.fsum(-one.weight * one.mean / one.sd for one in counted) / whole
    width = math.fsum(one.weight / one.sd for one in counted) / whole
    return min(1.0, max(0.0, round((found - lowest) / width, _DIGITS)))


def heard_shares(judges: Sequence[JudgeWeight], scores: Sequence[float | None]) -> list[float]:
    """Return each judge's share of the weight, 0..1: of those that gave a score the shares add up to 1."""
    heard = [
        one.weight if one.counts and score is not None else 0.0
        for one, score in zip(judges, scores, strict=True)
    ]
    total = math.fsum(heard)
    return [weight / total if total else 0.0 for weight in heard]


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
        passes = self.pass_from is not None and score >= self.pass_from - _DUST
        fails = self.fail_below is not None and score < self.fail_below - _DUST
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
        while blocks and blocks[-1][3] / blocks[-1][2] >= block[3] / block[2] - _DUST:
            low, _, *before = blocks.pop()
            block = (low, score, before[0] + block[2], before[1] + block[3], int(before[2]) + block[4])
        blocks.append(block)
    return tuple(ScoreBand(low, high, total / mass, n) for low, high, mass, total, n in blocks)
