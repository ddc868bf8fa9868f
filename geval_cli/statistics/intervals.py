"""How sure a number is: one confidence interval for every mean of scores, whether of cases or clusters. Pure."""

import math
from collections.abc import Hashable, Iterable, Sequence
from math import comb

from msgspec import Struct

from geval_cli.statistics.students_t import t_quantile

Interval = tuple[float, float]
"""The lower and the upper bound."""

_ROUNDING = 1e-12


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


def mean_interval(
    mean: float,
    variance: float,
    clusters: int,
    *,
    level: float = 0.95,
    lowest: float = 0.0,
    freedom: float | None = None,
) -> Interval | None:
    """Return the interval of a mean of values that all lie in `lowest`..1; None of fewer than two clusters.

    It is Wilson's interval with an effective number of values, n_e = m (1 - m) / v', and with Student's t in place of
    z. v' is `variance` shrunk by one more cluster of the largest variance that the mean m allows: few values that
    agree say little about those to come, which the usual mean plus or minus t standard errors does not know. At 95 % it
    covers 91 to 100 % of the means of passes and ratings from two tests on; but no more than 65 % where scores just
    short of 1 hide rare bad ones (`python -m benchmarks simulations means`).

    Args:
        mean: of the values.
        variance: the square of its standard error, with the correction G / (G - 1) for G clusters.
        clusters: independent groups of values, such as tests.
        level: of the confidence.
        lowest: -1 for differences of scores, which are mapped to 0..1 and back.
        freedom: degrees of freedom of `variance`; G - 1 unless clusters are of different sizes.

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
    """Return the 95 % interval of the share `passed` of `judged` independent cases; None of fewer than two."""
    if judged < 2:  # noqa: PLR2004
        return None
    share = passed / judged
    return mean_interval(share, share * (1 - share) / (judged - 1), judged)


def _wilson(share: float, n: float, z: float) -> Interval:
    centre, scale = share + z**2 / (2 * n), 1 + z**2 / n
    spread = z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    low, high = max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
    # Exactly 0 and 1 at the ends, where rounding would leave a tiny remainder.
    return min(low, share), max(high, share)


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

    def interval(self, level: float = 0.95) -> Interval | None:
        """Return the interval of the mean of scores; None of fewer than two, and of numbers that leave 0..1."""
        deviation = self.deviation
        if deviation is None or self._lowest < 0 or self._highest > 1:
            return None
        return mean_interval(self._mean, deviation**2 / self.n, self.n, level=level)


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

    def interval(self, level: float = 0.95, *, lowest: float = 0.0) -> Interval | None:
        """Return the interval of the mean (`mean_interval`).

        None of fewer than two clusters, and of numbers that leave the range `lowest`..1 (-1..1 for differences).
        """
        mean, error = self.mean, self.standard_error()
        if mean is None or error is None or self._lowest < lowest or self._highest > 1:
            return None
        return mean_interval(mean, error**2, self.clusters, level=level, lowest=lowest)

    def standard_error(self) -> float | None:
        """Return the standard error of the mean; None of fewer than two clusters."""
        self._close()
        if self._closed <= 1:
            return None
        mean = self._sums / self.n
        # The sum over clusters of (sum - count * mean)^2, multiplied out: the mean is known only at the end.
        squares = self._sum_squares - 2 * mean * self._sums_by_counts + mean**2 * self._count_squares
        return math.sqrt(max(squares, 0.0) * self._closed / (self._closed - 1)) / self.n

    def _close(self) -> None:
        if self._open_count:
            self._closed += 1
            self._sums += self._open_sum
            self._sum_squares += self._open_sum**2
            self._sums_by_counts += self._open_sum * self._open_count
            self._count_squares += self._open_count**2
        self._open_sum, self._open_count, self._cluster = 0.0, 0, None


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
    if any(part.value is None for _, part in parts):
        return Estimate(None, None, n, clusters)
    value = math.fsum(share * (part.value or 0.0) for share, part in parts)
    bounds = [(share, part.value or 0.0, part.interval) for share, part in parts]
    if any(found is None for *_, found in bounds):
        return Estimate(value, None, n, clusters)
    down, up = (
        math.hypot(*(share * (found[end] - mean) for share, mean, found in bounds if found is not None))
        for end in (0, 1)
    )
    return Estimate(value, (value - down, value + up), n, clusters)


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


def mean_share(shares: Iterable[tuple[float, int]]) -> tuple[float | None, Interval | None, int]:
    """Return the mean of one share for each test, its 95 % interval, and how many tests there are.

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
