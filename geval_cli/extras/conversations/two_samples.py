"""Statistics of two independent samples: differences of means and distributions, and how well members are told apart.

`paired` compares two measurements of the same tests; here nothing is paired, as with conversations of simulated and of
real users. Plain Python without side effects.
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
"""The number of steps of Simpson's rule; even."""


class Sample(Struct, frozen=True):
    """Values of at least 0, each with the name of its cluster."""

    values: Sequence[float]
    clusters: Sequence[Hashable]

    def moments(self) -> ClusteredMean:
        """Return the mean, with the sums from which its standard error is computed."""
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
        second: the mean of the second sample, likewise.
        value: the difference; None if a sample is empty.
        interval: its 95 % interval; None if a sample has fewer than two clusters.
        p: two-sided p-value of "no difference"; None in the same cases as `interval`.
    """

    first: Estimate
    second: Estimate
    value: float | None = None
    interval: Interval | None = None
    p: float | None = None


def mean_difference(first: Sample, second: Sample, *, highest: float | None = None) -> MeanDifference:
    """Return the difference of two means, with an interval combined from those of the means (MOVER).

    Each mean has the interval of `mean_interval`, on the scale from 0 to `highest`. With m the means, l and u their
    bounds and d = m1 - m2, the difference lies in d - sqrt((m1 - l1)^2 + (u2 - m2)^2) to
    d + sqrt((u1 - m1)^2 + (m2 - l2)^2). `p` is the level at which that interval begins to exclude 0.

    Args:
        first: the first sample.
        second: the second sample.
        highest: the largest possible value; None for unbounded values, for which the largest observed one is used.

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
        freedom = moments[place].freedom
        found = mean_interval(mean / scale, (error / scale) ** 2, clusters, level=level, freedom=freedom)
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
    """Return the p-value: the smallest alpha at which the interval of `value`, at level 1 - alpha, excludes `null`.

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
    """The Kolmogorov-Smirnov distance between two distributions.

    Attributes:
        value: the largest difference, 0..1, between the shares of both that are at most some number.
        interval: of the true distance, at 95 %.
        at: that number.
        first: the share of the first sample that is at most this number.
        second: the share of the second sample.
    """

    value: float
    interval: Interval
    at: float
    first: float
    second: float


def distribution_gap(first: Sample, second: Sample) -> DistributionGap | None:
    """Return the distance between two distributions; None if a sample is empty.

    The interval is based on the Dvoretzky-Kiefer-Wolfowitz bound with Massart's constant (1990) on the error of each
    sample, which are independent. For values in clusters of sizes n_g, n^2 / sum of n_g^2 replaces n. It holds for any
    distribution, mostly with more than 95 % coverage.
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
    """Return the bound that the sum of the errors of two distributions exceeds with a probability of at most 5 %.

    The error of n values exceeds x with a probability of at most min(1, 2 exp(-2 n x^2)); that of the sum is an
    integral.
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
    """The outcome of a member of the first sample against one of the second: `share` is 0..1; with their clusters."""

    first: Hashable
    second: Hashable
    share: float


def crossed_share(compared: Sequence[ComparedPair]) -> Estimate:
    """Return the mean share of comparisons across two samples, with its 95 % interval.

    Comparisons that share a member, on either side, are not independent: the variance is the sum of those by the
    clusters of each side, minus that by pairs of clusters, and at least as large as each. The interval is that of
    `mean_interval` for as many clusters, and degrees of freedom, as the smaller side has.

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
    freedom = min(first.freedom or 1.0, second.freedom or 1.0)
    return Estimate(mean, mean_interval(mean, variance, clusters, freedom=freedom), len(shares), clusters)
