"""Two measurements of the same tests: how far they differ, and whether that is shown. Plain Python, pure.

A difference is "after minus before" of one pair. Pairs of one test (its repeats, or its metrics when they are pooled)
form a cluster: they tell little that is new, so every error is computed over clusters.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from itertools import product

from msgspec import Struct, field

from geval_cli.records import Delta
from geval_cli.statistics.intervals import ClusteredMean, Interval, RunningMean
from geval_cli.statistics.students_t import t_quantile, two_sided_p

SIGNIFICANCE = 0.05
"""A difference counts as shown when its adjusted p-value is at most this."""
_POWER = 0.8
_CONFIDENCE = 1 - SIGNIFICANCE / 2
_FEW_CLUSTERS = 10
"""Below this many, p comes from all 2^G flips of signs: the t distribution needs more to be trusted."""
_TINY = 1e-300
_ROUNDING = 1e-12


class Verdict(StrEnum):
    """The finding about one difference, where higher is better."""

    BETTER = "better"
    WORSE = "worse"
    UNDECIDED = "undecided"
    IDENTICAL = "identical"


class PairedTest(Struct, frozen=True):
    """The comparison of paired values.

    Attributes:
        n: pairs.
        clusters: independent groups of pairs, usually tests.
        before: mean of the earlier values.
        after: mean of the later values.
        delta: mean difference, after minus before.
        se: cluster-robust standard error of `delta`; None of fewer than two clusters.
        interval: 95 % interval of `delta`, for values of 0..1 within -1..1; None as for `se`, and where all differences
            are equal.
        p: two-sided p-value of "no difference"; 1 where all differences are 0.
        sd: standard deviation of the differences; None of fewer than two pairs.
        dz: `delta` in units of `sd`; None where that is 0.
        mde: the smallest true difference that this many tests show with a chance of 80 %; None as for `interval`.
        identical: every pair was declared the same thing measured twice, and all differences are 0.
        in_range: all values lie in 0..1, so that no mean difference lies outside of -1..1.
    """

    n: int
    clusters: int
    before: float
    after: float
    delta: float
    se: float | None
    interval: Interval | None
    p: float
    sd: float | None
    dz: float | None
    mde: float | None
    identical: bool
    in_range: bool = False

    def bounds(self, level: float) -> tuple[float, float] | None:
        """Return the one-sided lower and upper bound of `delta`, each wrong with a chance of `level`.

        None where nothing can be said.
        """
        if self.se:
            width = t_quantile(1 - level, self.clusters - 1) * self.se
            low, high = self.delta - width, self.delta + width
            return (max(-1.0, low), min(1.0, high)) if self.in_range else (low, high)
        # Equal differences that are not 0: enough of them refute, by flips of signs, all that lies beyond them.
        if self.delta and 2.0**-self.clusters <= level:
            return self.delta, self.delta
        return None

    def as_delta(self, p_adjusted: float, *, needed_tests: int | None) -> Delta:
        """Return the record of the difference, with its p-value as adjusted for all differences that are shown."""
        return Delta(
            value=self.delta,
            interval=self.interval,
            n=self.n,
            clusters=self.clusters,
            se=self.se,
            p=self.p,
            p_adjusted=p_adjusted,
            mde=self.mde,
            needed_tests=needed_tests,
        )

    def needed_tests(self, delta: float) -> int | None:
        """Return how many tests would show a true difference of `delta` with a chance of 80 %.

        None where the differences do not vary or `delta` is 0. The spread is that of whole tests, `se` times the root
        of their number, which is `sd` when every test is one pair; so repeats within a test count for what they gave.
        """
        if self.mde is None or not delta:
            return None
        return math.ceil((self.mde / delta) ** 2 * self.clusters - _ROUNDING)

    def verdict(self, adjusted_p: float) -> Verdict:
        """Return what is shown, given the p-value adjusted for all differences that are looked at together."""
        if self.identical:
            return Verdict.IDENTICAL
        if adjusted_p > SIGNIFICANCE or not self.delta:
            return Verdict.UNDECIDED
        return Verdict.BETTER if self.delta > 0 else Verdict.WORSE


class PairedDifferences(Struct):
    """Pairs of values that come cluster by cluster and are not kept: memory does not grow with their number.

    The test is a paired t-test with standard errors that are robust to clusters, on G - 1 degrees of freedom:
    se^2 = G / (G - 1) * sum over clusters of (sum of (d - mean))^2 / n^2.

    Source: Liang and Zeger, "Longitudinal data analysis using generalized linear models", 1986.
    """

    _before: float = 0.0
    _differences: ClusteredMean = field(default_factory=ClusteredMean)
    _spread: RunningMean = field(default_factory=RunningMean)
    _first_sums: list[float] = field(default_factory=list)
    _cluster: int | None = None
    _lowest: float = math.inf
    _highest: float = -math.inf
    _same: bool = True
    _within_unit: bool = True

    @property
    def n(self) -> int:
        """Return the number of pairs so far."""
        return self._spread.n

    def add(self, cluster: int, before: float, after: float, *, same: bool = False) -> None:
        """Take in the next pair; those of one cluster come one after another.

        Args:
            cluster: number of the cluster, another one than that of the cluster before.
            before: the earlier value.
            after: the later value.
            same: both values measure the very same thing, such as the same text by the same judge.
        """
        difference = after - before
        self._before += before
        self._differences.add(cluster, difference)
        self._spread.add(difference)
        self._lowest, self._highest = min(self._lowest, difference), max(self._highest, difference)
        self._same = self._same and same
        self._within_unit = self._within_unit and 0 <= before <= 1 and 0 <= after <= 1
        if cluster != self._cluster:
            self._cluster = cluster
            if len(self._first_sums) < _FEW_CLUSTERS:
                self._first_sums.append(0.0)
        if self._differences.clusters == len(self._first_sums):
            self._first_sums[-1] += difference

    def result(self) -> PairedTest | None:
        """Return the comparison of all pairs so far; None of no pair."""
        delta = self._differences.mean
        if delta is None:
            return None
        clusters = self._differences.clusters
        varies = self._highest - self._lowest > _ROUNDING * max(abs(self._lowest), abs(self._highest))
        # Differences that do not vary are equal but for rounding, which must not pass for a spread.
        se = self._differences.standard_error() if varies else (0.0 if clusters > 1 else None)
        sd = self._spread.deviation if varies else (0.0 if self.n > 1 else None)
        interval: Interval | None = None
        if se:
            wide = t_quantile(_CONFIDENCE, clusters - 1) * se
            interval = delta - wide, delta + wide
            if self._within_unit:  # the mean of such differences cannot lie outside of -1..1
                interval = max(-1.0, interval[0]), min(1.0, interval[1])
        mean_before = self._before / self.n
        return PairedTest(
            n=self.n,
            clusters=clusters,
            before=mean_before,
            after=mean_before + delta,
            delta=delta,
            se=se,
            interval=interval,
            p=self._p(delta, se, clusters),
            sd=sd,
            dz=delta / sd if sd else None,
            mde=detectable_quantile(clusters - 1) * se if se else None,
            identical=self._same and self._lowest == self._highest == 0,
            in_range=self._within_unit,
        )

    def _p(self, delta: float, se: float | None, clusters: int) -> float:
        if not delta:
            return 1.0
        if clusters < _FEW_CLUSTERS:
            return sign_flip_p(self._first_sums)
        if not se:
            return float(2.0 ** (1 - clusters))  # the share of flips that keep all signs equal
        return two_sided_p(delta / se, clusters - 1)


def detectable_quantile(freedom: int) -> float:
    """Return by how many standard errors a difference must exceed 0 to be shown with a chance of 80 %."""
    return t_quantile(_CONFIDENCE, freedom) + t_quantile(_POWER, freedom)


def sign_flip_p(sums: Sequence[float]) -> float:
    """Return the exact two-sided p-value that the sums of clusters are symmetric around 0.

    All 2^G assignments of signs are gone through, so it is for few clusters. Source: Fisher, "The Design of
    Experiments", 1935.
    """
    if not sums:
        return 1.0
    # Half of the assignments suffice: the others mirror them.
    first, *others = sums
    limit = abs(math.fsum(sums)) - _ROUNDING * math.fsum(map(abs, sums))
    flips = product((1.0, -1.0), repeat=len(others))
    extreme = sum(
        abs(first + math.fsum(sign * item for sign, item in zip(signs, others, strict=True))) >= limit
        for signs in flips
    )
    return float(extreme / 2 ** len(others))


def mcnemar_mid_p(broken: int, fixed: int) -> float:
    """Return the two-sided mid-p value that tests break as often as they get fixed; 1 where none does.

    It is nearer to its nominal level than the exact p-value.

    Source: McNemar, "Note on the sampling error of the difference between correlated proportions", 1947; Fagerland,
    Lydersen and Laake, "The McNemar test for binary matched-pairs data", 2013.
    """
    tail, last = _half_binomial_tail(min(broken, fixed), broken + fixed)
    return min(1.0, 2 * tail - last)


def _half_binomial_tail(successes: int, n: int) -> tuple[float, float]:
    """Return P(X <= successes) and P(X = successes) of n throws of a fair coin."""
    log = math.lgamma(n + 1) - math.lgamma(successes + 1) - math.lgamma(n - successes + 1) - n * math.log(2)
    last = term = total = math.exp(log)
    for k in range(successes, 0, -1):
        term *= k / (n - k + 1)
        if term < total * _TINY:
            break
        total += term
    return total, last


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values adjusted so that any false finding among them has a chance of at most the level; same order.

    Source: Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    adjusted, highest = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, values[index] * (len(values) - rank)))
        adjusted[index] = highest
    return adjusted


def benjamini_hochberg(values: Sequence[float]) -> list[float]:
    """Return p-values adjusted so that at most that share of the findings is expected to be false; same order.

    Source: Benjamini and Hochberg, "Controlling the false discovery rate", 1995.
    """
    adjusted, lowest = [0.0] * len(values), 1.0
    order = sorted(range(len(values)), key=values.__getitem__)
    for rank in range(len(values), 0, -1):
        index = order[rank - 1]
        lowest = min(lowest, values[index] * len(values) / rank)
        adjusted[index] = lowest
    return adjusted
