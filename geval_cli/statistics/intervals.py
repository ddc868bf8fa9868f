"""How sure a number is: 95 % intervals for a share and for a mean, of cases, of clusters and of repeats. Pure."""

import math
from collections.abc import Iterable
from functools import cache
from math import comb
from statistics import NormalDist

from msgspec import Struct

Interval = tuple[float, float]
"""The lower and the upper bound."""

_CONFIDENCE_QUANTILE = 0.975
_Z = NormalDist().inv_cdf(_CONFIDENCE_QUANTILE)
_EXACT_UP_TO = 200
"""Degrees of freedom; above, a series in their inverse is as good and quicker."""
_HALVINGS = 60


class Estimate(Struct, frozen=True):
    """A statistic of `n` items in `clusters` independent groups, with its 95 % interval; None where undefined."""

    value: float | None
    interval: tuple[float, float] | None = None
    n: int = 0
    clusters: int = 0


def wilson_interval(passed: float, judged: float) -> Interval | None:
    """Wilson's score interval for the share `passed` of `judged`, within 0..1; None when nothing was judged.

    Unlike the usual mean plus or minus an error, it stays within 0..1 and says something for 0 and for all of a few.

    Source: Wilson, E. B., "Probable inference, the law of succession, and statistical inference", 1927.
    """
    if not judged:
        return None
    share, z_squared = passed / judged, _Z**2
    centre = share + z_squared / (2 * judged)
    spread = _Z * math.sqrt(share * (1 - share) / judged + z_squared / (4 * judged**2))
    scale = 1 + z_squared / judged
    # Exactly 0 and 1 at the ends, where rounding would leave a tiny remainder.
    low = 0.0 if passed == 0 else max(0.0, (centre - spread) / scale)
    high = 1.0 if passed == judged else min(1.0, (centre + spread) / scale)
    return low, high


class RunningMean(Struct):
    """The mean and the spread of numbers that come one by one and are not kept.

    Source: Welford, B. P., "Note on a method for calculating corrected sums of squares and products", 1962.
    """

    n: int = 0
    _mean: float = 0.0
    _squares: float = 0.0
    _lowest: float = math.inf
    _highest: float = -math.inf

    def add(self, value: float) -> None:
        """Take in the next number."""
        self.n += 1
        self._lowest, self._highest = min(self._lowest, value), max(self._highest, value)
        # Welford's update: the distances to the old and the new mean, so that no large squares cancel out.
        distance = value - self._mean
        self._mean += distance / self.n
        self._squares += distance * (value - self._mean)

    @property
    def mean(self) -> float | None:
        """The mean so far; None of nothing."""
        return self._mean if self.n else None

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation; None of fewer than two numbers."""
        return math.sqrt(max(self._squares, 0.0) / (self.n - 1)) if self.n > 1 else None

    def interval(self) -> Interval | None:
        """Return the 95 % interval of the mean by Student's t; None of fewer than two numbers.

        It assumes that the tests are a sample of those that could have been written. Of numbers that all lie within
        0..1, as scores do, the interval is cut to that range: their mean cannot lie outside.
        """
        deviation = self.deviation
        if deviation is None:
            return None
        spread = t_quantile(self.n - 1) * deviation / math.sqrt(self.n)
        return _around(self._mean, spread, in_range=self._lowest >= 0 and self._highest <= 1)


class ClusteredMean(Struct):
    """The mean of numbers that come cluster by cluster, and how sure it is; neither numbers nor clusters are kept.

    The cases of one test are a cluster: its repeats, and its answers in other columns, are no further tests, so
    they make an interval no narrower than their differences allow.

    Source of the standard error: Liang and Zeger, "Longitudinal data analysis using generalized linear models", 1986,
    with the correction G / (G - 1) for G clusters.
    """

    n: int = 0
    _first: float = 0.0
    _lowest: float = math.inf
    _highest: float = -math.inf
    _cluster: int | None = None
    _open_sum: float = 0.0
    _open_count: int = 0
    _closed: int = 0
    _sums: float = 0.0
    _sum_squares: float = 0.0
    _sums_by_counts: float = 0.0
    _count_squares: float = 0.0

    def add(self, cluster: int, value: float) -> None:
        """Take in the next number; those of one cluster come one after another."""
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
        """The mean so far; None of nothing."""
        return self._first + (self._sums + self._open_sum) / self.n if self.n else None

    @property
    def clusters(self) -> int:
        """Return the number of clusters so far."""
        return self._closed + (1 if self._open_count else 0)

    def interval(self) -> Interval | None:
        """Return the 95 % interval of the mean by Student's t over clusters; None of fewer than two of them.

        Of numbers that all lie within 0..1 the interval is cut to that range.
        """
        mean, error = self.mean, self.standard_error()
        if mean is None or error is None:
            return None
        spread = t_quantile(self.clusters - 1) * error
        return _around(mean, spread, in_range=self._lowest >= 0 and self._highest <= 1)

    def standard_error(self) -> float | None:
        """Return the standard error of the mean; None of fewer than two clusters."""
        self._close()
        if self._closed <= 1:
            return None
        mean = self._sums / self.n
        # The sum over clusters of (sum - count * mean)^2, multiplied out: the mean is known only at the end.
        squares = self._sum_squares - 2 * mean * self._sums_by_counts + mean**2 * self._count_squares
        return math.sqrt(max(squares, 0.0) * self._closed / (self._closed - 1)) / self.n

    def share_interval(self) -> Interval | None:
        """Return the 95 % interval of a share, of numbers that are all 0 or 1: Wilson's, with their effective number.

        Numbers of one cluster that agree are worth less than as many independent ones: n is divided by how much
        larger their variance is. Where all agree, that cannot be told, and each cluster counts once.

        Source: Kish, L., "Survey Sampling", 1965, on the effective sample size.
        """
        share, error = self.mean, self.standard_error()
        if share is None or self.clusters == self.n:
            return None if share is None else wilson_interval(round(share * self.n), self.n)
        if error is None or share in {0.0, 1.0}:
            return wilson_interval(share * self.clusters, self.clusters)
        # Without the correction for few clusters, as Wilson's own variance has none: else equal repeats would cost.
        variance = error**2 * (self.clusters - 1) / self.clusters
        worth = min(self.n, share * (1 - share) / variance) if variance else self.n
        return wilson_interval(share * worth, worth)

    def _close(self) -> None:
        if self._open_count:
            self._closed += 1
            self._sums += self._open_sum
            self._sum_squares += self._open_sum**2
            self._sums_by_counts += self._open_sum * self._open_count
            self._count_squares += self._open_count**2
        self._open_sum, self._open_count, self._cluster = 0.0, 0, None


def _around(mean: float, spread: float, *, in_range: bool) -> Interval:
    low, high = mean - spread, mean + spread
    return (max(low, 0.0), min(high, 1.0)) if in_range else (low, high)


@cache
def t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, good to nine decimals.

    Sources: Abramowitz and Stegun, "Handbook of Mathematical Functions": 26.7.3 and 26.7.4 for few degrees of
    freedom, solved by halving; the series 26.7.5 for many.
    """
    if freedom > _EXACT_UP_TO:
        return _t_series(freedom)
    low, high = _Z, 13.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _share_within(middle, freedom) < 2 * _CONFIDENCE_QUANTILE - 1:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _share_within(t: float, freedom: int) -> float:
    """Return the share of Student's distribution between -t and t."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = freedom % 2
    term, total = (cosine, 0.0) if is_odd else (1.0, 0.0)
    for power in range(is_odd, freedom - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total


def _t_series(freedom: int) -> float:
    z = _Z
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / float(freedom) ** power for power, term in enumerate(terms))


def pass_at_k(passed: int, judged: int, k: int) -> float | None:
    """Return the unbiased estimate (0..1) of the chance that at least one of `k` tries passes; None of fewer tries.

    Source: Chen et al., "Evaluating Large Language Models Trained on Code" (HumanEval), 2021: 1 - C(n - c, k) / C(n, k)
    for c of n tries that passed.
    """
    return None if judged < k else 1 - comb(judged - passed, k) / comb(judged, k)


def pass_hat_k(passed: int, judged: int, k: int) -> float | None:
    """Return the unbiased estimate (0..1) of the chance that all of `k` tries pass; None of fewer tries.

    Source: Yao et al., "tau-bench: A Benchmark for Tool-Agent-User Interaction in Real-World Domains", 2024:
    C(c, k) / C(n, k) for c of n tries that passed.
    """
    return None if judged < k else comb(passed, k) / comb(judged, k)


def mean_share(shares: Iterable[tuple[float, int]], cases: int) -> tuple[float | None, Interval | None, int]:
    """Return the mean of one share for each test, its 95 % interval, and how many tests there are.

    The interval is Wilson's with the effective number of cases, as `ClusteredMean.share_interval` has it; None of fewer
    than two tests.

    Args:
        shares: pairs of a share (0..1) and the number of tests that have it.
        cases: how many cases the shares were computed from; no interval is narrower than that of so many.
    """
    counted = list(shares)
    tests = sum(count for _, count in counted)
    if not tests:
        return None, None, 0
    mean = sum(share * count for share, count in counted) / tests
    if tests == 1:
        return mean, None, 1
    variance = sum(count * (share - mean) ** 2 for share, count in counted) / tests**2
    if mean in {0.0, 1.0}:
        worth = float(tests)
    else:
        worth = min(cases, mean * (1 - mean) / variance) if variance else float(cases)
    return mean, wilson_interval(mean * worth, worth), tests
