"""Two independent samples: how far their means and their distributions differ, and who tells their members apart.

`paired` compares two measurements of the same tests; here nothing is paired, such as conversations of simulated
users and of real ones. Plain Python, pure.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import cache

from msgspec import Struct

from geval_cli.extras.trust.statistics.plain import Estimate
from geval_cli.statistics.intervals import ClusteredMean, Interval, mean_interval

_HALVINGS = 50
_LEAST_P = 1e-12
_CONFIDENCE = 0.95
_STEPS = 200
"""Of an integral by Simpson's rule; even."""


class Sample(Struct, frozen=True):
    """Values that are at least 0, each with the name of its cluster."""

    values: Sequence[float]
    clusters: Sequence[Hashable]

    def moments(self) -> ClusteredMean:
        """Return its mean, with what its standard error is computed from."""
        numbers = {name: number for number, name in enumerate(dict.fromkeys(self.clusters))}
        found = ClusteredMean()
        for number, value in sorted(
            (numbers[cluster], value) for cluster, value in zip(self.clusters, self.values, strict=True)
        ):
            found.add(number, value)
        return found


class MeanDifference(Struct, frozen=True):
    """The means of two samples and their difference, first minus second.

    Attributes:
        first: the mean of the first sample with its 95 % interval.
        second: that of the other one.
        value: the difference; None where a sample is empty.
        interval: its 95 % interval; None where a sample has fewer than two clusters.
        p: two-sided p-value of "no difference"; None as for `interval`.
    """

    first: Estimate
    second: Estimate
    value: float | None = None
    interval: Interval | None = None
    p: float | None = None


def mean_difference(first: Sample, second: Sample, *, highest: float | None = None) -> MeanDifference:
    """Return the difference of two means, with an interval made of those of the means.

    Each mean has the interval of `mean_interval`, on the scale from 0 to `highest`. With m the means, l and u their
    bounds and d = m1 - m2, the difference lies in d - sqrt((m1 - l1)^2 + (u2 - m2)^2) to
    d + sqrt((u1 - m1)^2 + (m2 - l2)^2). `p` is the level at which that interval begins to exclude 0.

    Args:
        first: the one sample.
        second: the other.
        highest: the largest possible value; None for the largest one that was seen, where nothing bounds them.

    Source: Newcombe, "Interval estimation for the difference between independent proportions", 1998, method 10;
    Zou and Donner, "Construction of confidence limits about effect measures", 2008, for any means.
    """
    seen = max((*first.values, *second.values), default=0.0)
    scale = (seen if highest is None else highest) or 1.0
    moments = [sample.moments() for sample in (first, second)]
    means = [found.mean for found in moments]
    errors = [found.standard_error() for found in moments]

    def bounds(place: int, level: float) -> Interval | None:
        mean = means[place]
        error = errors[place]
        clusters = moments[place].clusters
        if mean is None or error is None:
            return None
        found = mean_interval(mean / scale, (error / scale) ** 2, clusters, level=level)
        return None if found is None else (found[0] * scale, found[1] * scale)

    one, other = (
        Estimate(mean, bounds(place, _CONFIDENCE), found.n, found.clusters)
        for place, (mean, found) in enumerate(zip(means, moments, strict=True))
    )
    m1, m2 = means
    if m1 is None or m2 is None:
        return MeanDifference(one, other)
    value = m1 - m2
    if None in errors:
        return MeanDifference(one, other, value)

    def interval(level: float) -> Interval:
        (l1, u1), (l2, u2) = (bounds(place, level) or (0.0, 0.0) for place in (0, 1))
        return value - math.hypot(m1 - l1, u2 - m2), value + math.hypot(u1 - m1, m2 - l2)

    return MeanDifference(one, other, value, interval(_CONFIDENCE), level_excluding(0.0, value, interval))


def level_excluding(null: float, value: float, interval: Callable[[float], Interval]) -> float:
    """Return the smallest alpha at which the interval of a `value`, at level 1 - alpha, leaves `null` out: its p-value.

    It is at least 1e-12, below which the quantiles are no longer exact.
    """
    if math.isclose(value, null, abs_tol=1e-12):
        return 1.0
    low, high = math.log(_LEAST_P), 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        bottom, top = interval(1 - math.exp(middle))
        low, high = (low, middle) if not bottom <= null <= top else (middle, high)
    return math.exp(high)


class DistributionGap(Struct, frozen=True):
    """How far two distributions are apart: the distance of Kolmogorov and Smirnov.

    Attributes:
        value: the largest difference, 0..1, of the shares of both that are at most some number.
        interval: of the true distance, at 95 %.
        at: that number.
        first: the share of the first sample that is at most this.
        second: that of the second one.
    """

    value: float
    interval: Interval
    at: float
    first: float
    second: float


def distribution_gap(first: Sample, second: Sample) -> DistributionGap | None:
    """Return the distance of two distributions; None where a sample is empty.

    The interval rests on the bound of Dvoretzky, Kiefer and Wolfowitz with Massart's constant (1990) on the error of
    either sample, which are independent, with n^2 / sum of n_g^2 in place of n for values in clusters of n_g: it holds
    for any distribution, and mostly for more than 95 %.
    """
    if not first.values or not second.values:
        return None
    one, other = sorted(first.values), sorted(second.values)
    found = max(
        (
            (abs(a - b), -at, a, b)
            for at in {*one, *other}
            for a, b in [(bisect_right(one, at) / len(one), bisect_right(other, at) / len(other))]
        ),
    )
    value, minus_at, a, b = found
    slack = _error_of_both(_worth(first), _worth(second))
    return DistributionGap(value, (max(0.0, value - slack), min(1.0, value + slack)), -minus_at, a, b)


def _worth(sample: Sample) -> float:
    sizes = Counter(sample.clusters).values()
    return len(sample.values) ** 2 / sum(size**2 for size in sizes)


@cache  # equal for all measures of the same conversations
def _error_of_both(n: float, m: float) -> float:
    """Return what the sum of the errors of two distributions exceeds with a chance of at most 5 %.

    The error of n values exceeds x with a chance of at most min(1, 2 exp(-2 n x^2)); that of the sum is an integral.
    """
    least, other = (math.sqrt(math.log(2) / (2 * size)) for size in (n, m))

    def chance(total: float) -> float:
        width = total - least - other
        if width <= 0:
            return 1.0
        step = width / _STEPS
        inner = math.fsum(
            (1 if place in (0, _STEPS) else 4 if place % 2 else 2)
            * 8 * m * y * math.exp(-2 * m * y**2) * 2 * math.exp(-2 * n * (total - y) ** 2)
            for place in range(_STEPS + 1)
            for y in [other + place * step]
        )  # fmt: skip
        return 2 * math.exp(-2 * m * (total - least) ** 2) + inner * step / 3

    low = least + other
    high = 2 * (least + other) + 4
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) > 1 - _CONFIDENCE else (low, middle)
    return high


class ComparedPair(Struct, frozen=True):
    """How a member of the first sample fared against one of the second: `share` is 0..1; with their clusters."""

    first: Hashable
    second: Hashable
    share: float


def crossed_share(compared: Sequence[ComparedPair]) -> Estimate:
    """Return the mean share of comparisons across two samples, with its 95 % interval.

    A member may be in several comparisons, which then tell little that is new, on both sides: the squared error is the
    sum of those by the clusters of either side, less that by pairs of clusters, and never less than either. The
    interval is that of `mean_interval` for as many clusters as the smaller side has.

    Source: Cameron, Gelbach and Miller, "Robust inference with multiway clustering", 2011.
    """
    shares = [item.share for item in compared]
    first, second, crossed = (
        Sample(shares, [of(item) for item in compared]).moments()
        for of in (lambda item: item.first, lambda item: item.second, lambda item: (item.first, item.second))
    )
    mean = first.mean
    clusters = min(first.clusters, second.clusters)
    if mean is None or clusters < 2:  # noqa: PLR2004
        return Estimate(mean, None, len(shares), clusters)
    one, other, both = ((found.standard_error() or 0.0) ** 2 for found in (first, second, crossed))
    variance = max(one, other, one + other - both)
    return Estimate(mean, mean_interval(mean, variance, clusters), len(shares), clusters)
