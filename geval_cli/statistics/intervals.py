"""The uncertainty of a number: one confidence interval for all means of scores, over cases or over clusters. Pure.

Also what it takes: Student's t distribution, and quantiles of a stream of numbers that are not kept.
"""

import math
from collections.abc import Hashable, Iterable
from functools import lru_cache
from math import comb
from statistics import NormalDist

from msgspec import Struct, field

_GROWTH = 1.01
"""Each bucket is one per cent wider than the one before, so a quantile is off by at most half a per cent."""


class Quantiles(Struct):
    """Counts in buckets that widen as the numbers grow: a few thousand buckets, however many numbers there are.

    Source of the idea: Masson, Rim and Lee, "DDSketch: a fast and fully-mergeable quantile sketch", 2019.
    """

    n: int = 0
    _zeros: int = 0
    _buckets: dict[int, int] = field(default_factory=dict)

    def add(self, value: float) -> None:
        """Add a number; negative ones count as 0."""
        self.n += 1
        if value <= 0:
            self._zeros += 1
            return
        bucket = math.ceil(math.log(value, _GROWTH))
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    def at(self, share: float) -> float | None:
        """Return the number that `share` (0..1) of all numbers do not exceed; None if there are no numbers."""
        if not self.n:
            return None
        rank = max(math.ceil(share * self.n), 1)
        seen = self._zeros
        if rank <= seen:
            return 0.0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if rank <= seen:
                return 2 * _GROWTH**bucket / (_GROWTH + 1)  # the middle of the bucket, in relative terms
        return None


_STIRLING_FROM = 1000.0
_MAX_STEPS = 10_000
_TINY = 1e-300
_ROUNDING = 1e-12


def two_sided_p(t: float, freedom: float) -> float:
    """Return the share of Student's t distribution at least as far from 0 as `t`; `freedom` is above 0."""
    if math.isinf(t):
        return 0.0
    squared = t * t
    return _incomplete_beta(freedom / (freedom + squared), squared / (freedom + squared), freedom / 2)


@lru_cache(maxsize=4096)
def t_quantile(share: float, freedom: float) -> float:
    """Return the value below which `share` (above 0, below 1) of Student's t distribution lies."""
    if share < 0.5:  # noqa: PLR2004  # by symmetry
        return -t_quantile(1 - share, freedom)
    # Newton's method from the normal quantile, which is nearer to 0: the tail is convex, so no step overshoots.
    # Only rounding causes a step back.
    t = NormalDist().inv_cdf(share)
    tail = 1 - share
    step = math.inf
    while step > _ROUNDING * t:
        power = (freedom + 1) / 2 * math.log1p(t * t / freedom)
        density = math.exp(-power - _log_beta_half(freedom / 2)) / math.sqrt(freedom)
        step = (two_sided_p(t, freedom) / 2 - tail) / density
        t += step
    return t


def _log_beta_half(a: float) -> float:
    """Return the logarithm of B(a, 1/2)."""
    if a > _STIRLING_FROM:
        # A difference of two large logarithms would lose digits; the series of the difference does not.
        return math.log(math.pi) / 2 - (math.log(a) / 2 - 1 / (8 * a) + 1 / (192 * a**3))
    return math.lgamma(a) + math.log(math.pi) / 2 - math.lgamma(a + 0.5)


def _incomplete_beta(x: float, rest: float, a: float) -> float:
    """Return the regularized incomplete beta function I_x(a, 1/2), where `rest` is 1 - x in full precision.

    Source: Press et al., "Numerical Recipes", chapter 6.4: Lentz's evaluation of the continued fraction.
    """
    if rest <= 0:
        return 1.0
    if x <= 0:
        return 0.0
    # log1p loses no digits of log(x) where x = 1 - rest is near 1.
    front = math.exp(
        a * (math.log1p(-rest) if rest < x else math.log(x)) + math.log(rest) / 2 - _log_beta_half(a)
    )
    if x < (a + 1) / (a + 2.5):
        return front * _beta_fraction(x, a, 0.5) / a
    return 1 - front * _beta_fraction(rest, 0.5, a) / 0.5


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function."""
    c = 1.0
    d = 1 / _off_zero(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, _MAX_STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _off_zero(1 + term * d)
            c = _off_zero(1 + term / c)
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:  # noqa: PLR2004  # it has converged
            break
    return fraction


def _off_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


Interval = tuple[float, float]
"""The lower and the upper bound."""


def mean_interval(
    mean: float,
    variance: float,
    clusters: int,
    *,
    level: float = 0.95,
    lowest: float = 0.0,
    freedom: float | None = None,
) -> Interval | None:
    """Return the interval of a mean of values that all lie in `lowest`..1; None for fewer than two clusters.

    It is Wilson's interval with an effective number of values, n_e = m (1 - m) / v', and with Student's t in place of
    z. v' is `variance` shrunk by one more cluster of the largest variance that the mean m allows: a few values that
    agree say little about future ones, which the usual mean plus or minus t standard errors ignores. At 95 %, it covers
    91 to 100 % of the means of passes and ratings from two tests on, but no more than 65 % where scores just below 1
    hide rare bad ones (`python -m benchmarks simulations means`).

    Args:
        mean: the mean of the values.
        variance: the square of its standard error, such as `ClusterSums.variance`.
        clusters: the number of independent groups of values, such as tests.
        level: the confidence level.
        lowest: -1 for differences of scores, which are mapped to 0..1 and back.
        freedom: degrees of freedom of `variance`; G - 1 unless clusters differ in size.

    Source of the score interval: Wilson, E. B., "Probable inference, the law of succession, and statistical
    inference", 1927; of the effective number: Kish, L., "Survey Sampling", 1965.
    """
    if clusters < 2:  # noqa: PLR2004  # nothing varies
        return None
    width = 1 - lowest
    share = min(1.0, max(0.0, (mean - lowest) / width))
    largest = share * (1 - share)
    if largest > _ROUNDING:
        shrunk = ((clusters - 1) * variance / width**2 + largest / clusters) / clusters
        worth = largest / shrunk
    else:
        worth = float(clusters)
    low, high = _wilson(share, worth, t_quantile((1 + level) / 2, freedom or clusters - 1))
    return lowest + width * low, lowest + width * high


def share_interval(passed: float, judged: int) -> Interval | None:
    """Return the 95 % interval of the share `passed` of `judged` independent cases; None for fewer than two."""
    if judged < 2:  # noqa: PLR2004
        return None
    share = passed / judged
    return mean_interval(share, share * (1 - share) / (judged - 1), judged)


def _wilson(share: float, n: float, z: float) -> Interval:
    centre = share + z**2 / (2 * n)
    scale = 1 + z**2 / n
    spread = z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    low = max(0.0, (centre - spread) / scale)
    high = min(1.0, (centre + spread) / scale)
    # Exactly 0 and 1 at the ends, where rounding would leave a tiny remainder.
    return min(low, share), max(high, share)


class RunningMean(Struct):
    """The mean and the spread of a stream of numbers, which are not kept.

    Source: Welford, B. P., "Note on a method for calculating corrected sums of squares and products", 1962.
    """

    n: int = 0
    _mean: float = 0.0
    _squares: float = 0.0
    _lowest: float = math.inf
    _highest: float = -math.inf

    def add(self, value: float) -> None:
        """Add a number."""
        self.n += 1
        self._lowest, self._highest = min(self._lowest, value), max(self._highest, value)
        # Welford's update: the distances to the old and the new mean, so that no large squares cancel out.
        distance = value - self._mean
        self._mean += distance / self.n
        self._squares += distance * (value - self._mean)

    @property
    def mean(self) -> float | None:
        """Return the mean so far; None if there are no numbers."""
        return self._mean if self.n else None

    @property
    def deviation(self) -> float | None:
        """Return the sample standard deviation; None for fewer than two numbers."""
        return math.sqrt(max(self._squares, 0.0) / (self.n - 1)) if self.n > 1 else None

    def interval(self, level: float = 0.95) -> Interval | None:
        """Return the interval of the mean of scores; None for fewer than two, or if a number is outside 0..1."""
        deviation = self.deviation
        if deviation is None or self._lowest < 0 or self._highest > 1:
            return None
        return mean_interval(self._mean, deviation**2 / self.n, self.n, level=level)


class ClusterSums(Struct):
    """Sums over clusters by their size, from which the uncertainty of a mean follows; the clusters are not kept.

    The squared standard error is CR2, which is right on average for clusters of any size: the sum over clusters of
    (sum of (x - mean))^2 / (1 - n_g / n) / n^2. A t-test with it has Bell and McCaffrey's degrees of freedom. If all
    clusters have the same size, that is the usual correction G / (G - 1) with G - 1 degrees of freedom.

    Source: Bell and McCaffrey, "Bias reduction in standard errors for linear regression with multi-stage samples",
    2002.
    """

    n: int = 0
    clusters: int = 0
    _sizes: dict[int, list[float]] = field(default_factory=dict)
    """By the size of a cluster: the number of clusters, the sum of their sums, and of the squared sums."""

    @classmethod
    def of(cls, values: Iterable[float], clusters: Iterable[Hashable]) -> "ClusterSums":
        """Return the sums of the distances of values from their mean; each value has the name of its cluster."""
        known = list(values)
        mean = math.fsum(known) / len(known) if known else 0.0
        totals: dict[Hashable, tuple[int, float]] = {}
        for value, name in zip(known, clusters, strict=True):
            count, total = totals.get(name, (0, 0.0))
            totals[name] = count + 1, total + value - mean
        found = cls()
        for count, total in totals.values():
            found.add(count, total)
        return found

    def add(self, size: int, total: float) -> None:
        """Add a cluster with the sum of its numbers; 0 is near their mean, so that the squares lose no digits."""
        self.n += size
        self.clusters += 1
        sums = self._sizes.setdefault(size, [0, 0.0, 0.0])
        sums[0] += 1
        sums[1] += total
        sums[2] += total**2

    @property
    def total(self) -> float:
        """Return the sum of all numbers."""
        return math.fsum(sums[1] for sums in self._sizes.values())

    @property
    def variance(self) -> float:
        """Return the squared standard error of the mean; 0 for fewer than two clusters."""
        if self.clusters <= 1:
            return 0.0
        mean, total = self.total / self.n, 0.0
        for size, (count, sums, squares) in self._sizes.items():
            # The sum of (sum - size * mean)^2, multiplied out: the mean is known only at the end.
            spread = squares - 2 * size * mean * sums + count * (size * mean) ** 2
            total += max(spread, 0.0) / (1 - size / self.n)
        return total / self.n**2

    @property
    def freedom(self) -> float:
        """Return the degrees of freedom of the variance; there must be two clusters."""
        if len(self._sizes) == 1:
            return self.clusters - 1
        n = self.n
        worth = {size: size**2 / (1 - size / n) for size in self._sizes}
        counts = {size: sums[0] for size, sums in self._sizes.items()}
        pairs = math.fsum(counts[size] * worth[size] for size in worth) ** 2
        own = math.fsum(counts[size] * worth[size] ** 2 for size in worth)
        squares = math.fsum(counts[size] * size**2 for size in worth)
        return n**2 / (squares + (pairs - own) / n**2)


class ClusteredMean(Struct):
    """The mean of a stream of clustered numbers, and its uncertainty; neither numbers nor clusters are kept.

    The cases of one test are a cluster: its repeats, and its answers in other columns, are not additional tests, so
    they make an interval no narrower than their differences allow.
    """

    n: int = 0
    _first: float = 0.0
    _lowest: float = math.inf
    _highest: float = -math.inf
    _cluster: int | None = None
    _open_sum: float = 0.0
    _open_count: int = 0
    _closed: ClusterSums = field(default_factory=ClusterSums)

    def add(self, cluster: int, value: float) -> None:
        """Add a number; those of one cluster come one after another."""
        if not self.n:
            self._first = value  # sums of distances from it lose no digits to a large mean
        if cluster != self._cluster:
            self._close()
            self._cluster = cluster
        self.n += 1
        self._lowest, self._highest = min(self._lowest, value), max(self._highest, value)
        self._open_sum += value - self._first
        self._open_count += 1

    @property
    def mean(self) -> float | None:
        """Return the mean so far; None if there are no numbers."""
        return self._first + (self._closed.total + self._open_sum) / self.n if self.n else None

    @property
    def clusters(self) -> int:
        """Return the number of clusters so far."""
        return self._closed.clusters + (1 if self._open_count else 0)

    @property
    def freedom(self) -> float | None:
        """Return the degrees of freedom of the standard error; None for fewer than two clusters."""
        self._close()
        return self._closed.freedom if self.clusters > 1 else None

    def interval(self, level: float = 0.95, *, lowest: float = 0.0) -> Interval | None:
        """Return the interval of the mean (`mean_interval`).

        None for fewer than two clusters, or if a number is outside the range `lowest`..1 (-1..1 for differences).
        """
        mean, error = self.mean, self.standard_error()
        if mean is None or error is None or self._lowest < lowest or self._highest > 1:
            return None
        return mean_interval(
            mean, error**2, self.clusters, level=level, lowest=lowest, freedom=self._closed.freedom
        )

    def standard_error(self) -> float | None:
        """Return the standard error of the mean; None for fewer than two clusters."""
        self._close()
        return math.sqrt(self._closed.variance) if self.clusters > 1 else None

    def _close(self) -> None:
        if self._open_count:
            self._closed.add(self._open_count, self._open_sum)
        self._open_sum, self._open_count, self._cluster = 0.0, 0, None


def pass_at_k(passed: int, judged: int, k: int) -> float | None:
    """Return the unbiased estimate (0..1) of the chance that at least one of `k` tries passes; None for fewer tries.

    Source: Chen et al., "Evaluating Large Language Models Trained on Code" (HumanEval), 2021: 1 - C(n - c, k) / C(n, k)
    for c of n tries that passed.
    """
    return None if judged < k else 1 - comb(judged - passed, k) / comb(judged, k)


def pass_hat_k(passed: int, judged: int, k: int) -> float | None:
    """Return the unbiased estimate (0..1) of the chance that all of `k` tries pass; None for fewer tries.

    Source: Yao et al., "tau-bench: A Benchmark for Tool-Agent-User Interaction in Real-World Domains", 2024:
    C(c, k) / C(n, k) for c of n tries that passed.
    """
    return None if judged < k else comb(passed, k) / comb(judged, k)


def mean_share(shares: Iterable[tuple[float, int]]) -> tuple[float | None, Interval | None, int]:
    """Return the mean of one share per test, its 95 % interval, and the number of tests.

    Args:
        shares: pairs of a share (0..1) and the number of tests that have it.
    """
    counted = list(shares)
    tests = sum(count for _, count in counted)
    if not tests:
        return None, None, 0
    mean = sum(share * count for share, count in counted) / tests
    squares = sum(count * (share - mean) ** 2 for share, count in counted)
    variance = squares / (tests - 1) / tests if tests > 1 else 0.0
    return mean, mean_interval(mean, variance, tests), tests
