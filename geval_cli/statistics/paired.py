"""Two measurements of the same tests: how much they differ, and whether the difference is significant. Pure Python.

A difference is "after minus before" of one pair. Pairs of one test (its repeats, or its metrics when they are pooled)
form a cluster: they add little new information, so every error is computed over clusters. Every comparison of two
columns or two runs goes through here: `PairedDifferences` or `PairedSample` for each row, then `decide` for all rows
together.
"""

import math
from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import StrEnum
from itertools import product
from statistics import NormalDist
from typing import Generic, TypeVar

from msgspec import Struct, field

from geval_cli.records import Delta
from geval_cli.statistics.intervals import (
    ClusterSums,
    Interval,
    RunningMean,
    mean_interval,
    t_quantile,
    two_sided_p,
)

SIGNIFICANCE = 0.05
"""A difference is significant if its adjusted p-value is at most this."""
_POWER = 0.8
_CONFIDENCE = 1 - SIGNIFICANCE / 2
_FEW_CLUSTERS = 10
"""Below this many clusters, p comes from all 2^G sign flips: the t distribution needs more to be reliable."""
_DIFFERING = 4
"""From this many clusters with a difference on, their spread says something about future ones."""
_ROUNDING = 1e-12
_BINARY = frozenset({0, 1})
_NOISE = 1e-9
"""Scores are computed with floats; a smaller difference than this counts as none."""
_HALVINGS = 60
KeyT = TypeVar("KeyT", bound=Hashable)


class DifferenceVerdict(StrEnum):
    """The finding about one difference, where higher is better."""

    BETTER = "better"
    WORSE = "worse"
    UNDECIDED = "undecided"
    EQUIVALENT = "equivalent"
    IDENTICAL = "identical"

    @property
    def is_clear(self) -> bool:
        """Return whether a difference was found."""
        return self in (DifferenceVerdict.BETTER, DifferenceVerdict.WORSE)


class PairedTest(Struct, frozen=True):
    """The comparison of paired values.

    Attributes:
        n: the number of pairs.
        clusters: the number of independent groups of pairs, usually tests.
        before: mean of the earlier values.
        after: mean of the later values.
        delta: mean difference, after minus before.
        se: cluster-robust standard error of `delta`; None for fewer than two clusters.
        freedom: degrees of freedom of `se`; clusters - 1 if all have equally many pairs.
        interval: 95 % interval of `delta`, for values in 0..1 within -1..1; None where `se` is None, where all
            differences are equal, and where it would be all of -1..1.
        p: two-sided p-value of "no difference"; 1 if all differences are 0.
        sd: standard deviation of the differences; None for fewer than two pairs.
        dz: `delta` in units of `sd`; None if `sd` is 0 or None.
        differing: the number of clusters with a difference other than 0.
        identical: whether every pair was declared the same thing measured twice, and all differences are 0.
        in_range: whether all values are in 0..1, so that no mean difference is outside -1..1.
        shifts: the sum of the mean differences of clusters that fell (without its sign), and of those that rose, if
            all values are 0 or 1; else None.
        figures: equal for comparisons of equal values by equal clusters.
    """

    n: int
    clusters: int
    before: float
    after: float
    delta: float
    se: float | None
    freedom: float
    interval: Interval | None
    p: float
    sd: float | None
    dz: float | None
    differing: int
    identical: bool
    in_range: bool
    shifts: tuple[float, float] | None
    figures: int

    @property
    def flips(self) -> tuple[int, int] | None:
        """How many pairs fell from 1 to 0, and how many rose; None unless every cluster is one pair of 0 and 1."""
        if self.shifts is None or self.n > self.clusters:
            return None
        return round(self.shifts[0]), round(self.shifts[1])

    def bounds(self, level: float) -> Interval | None:
        """Return the one-sided lower and upper bounds of `delta`, each wrong with a probability of `level`.

        For zeros and ones, they are exact (`drop_limit`), unless many clusters of several pairs differ; for scores in
        0..1, they are the ends of `mean_interval`, and for zeros and ones in clusters of different sizes the outer ones
        of both; all others are Student's t. None if nothing can be said.
        """
        exact = None
        # A cluster of which only some pairs differ varies less than a whole one.
        if self.shifts is not None and (self.n == self.clusters or self.differing < _FEW_CLUSTERS):
            fell, rose = self.shifts
            exact = (
                -drop_limit(fell, rose, self.clusters, level),
                drop_limit(rose, fell, self.clusters, level),
            )
            if self.freedom == self.clusters - 1:
                return exact
        if self.se is None or not (self.in_range or self.se):
            return None
        if self.in_range:
            found = mean_interval(
                self.delta, self.se**2, self.clusters, level=1 - 2 * level, lowest=-1.0, freedom=self.freedom
            )
            # `exact` counts clusters: it does not know that those that differ may be the largest.
            return (min(exact[0], found[0]), max(exact[1], found[1])) if exact and found else found
        width = t_quantile(1 - level, self.freedom) * self.se
        return self.delta - width, self.delta + width

    def detectable(self, level: float = SIGNIFICANCE) -> float | None:
        """Return the smallest true difference that this many tests detect with 80 % power at `level`.

        None if the spread is unknown because too few clusters differ, if p cannot be that small, or if it is above 1.
        """
        if not self.se or self.differing < _DIFFERING or self.clusters < least_clusters(level):
            return None
        found = detectable_quantile(self.freedom, level) * self.se
        return None if self.in_range and found > 1 else found

    def needed_tests(self, delta: float, level: float = SIGNIFICANCE) -> int | None:
        """Return how many tests would detect a true difference of `delta` with 80 % power at `level`.

        None if the spread is unknown, or if `delta` is 0. The spread is that of whole tests: `se` times the root of
        their number, which is `sd` if every test is one pair. So repeats within a test count for what they contributed.
        """
        if not self.se or self.differing < _DIFFERING or abs(delta) < _NOISE:
            return None
        variance = self.se**2 * self.clusters / delta**2

        def wanted(tests: int) -> float:
            return detectable_quantile(tests - 1, level) ** 2 * variance * (1 - _ROUNDING)

        # Fewer tests have fewer degrees of freedom, which takes more tests: use the freedom of the answer itself.
        low, high = 1, max(2, math.ceil(variance))
        while high < wanted(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if middle >= wanted(middle) else (middle, high)
        return max(high, least_clusters(level))


class PairedDifferences(Struct):
    """Pairs of values that come cluster by cluster and are not kept: memory does not grow with their number.

    The standard error and its degrees of freedom are those of `ClusterSums`.
    """

    _before: float = 0.0
    _spread: RunningMean = field(default_factory=RunningMean)
    _first: float | None = None
    _closed: ClusterSums = field(default_factory=ClusterSums)
    _first_sums: list[float] = field(default_factory=list)
    _cluster: int | None = None
    _open: list[float] = field(default_factory=lambda: [0, 0.0, 0.0])
    """For the current cluster: pairs, the sum of the differences minus the first one, and the sum of their sizes."""
    _clusters: int = 0
    _differing: int = 0
    _lowest: float = math.inf
    _highest: float = -math.inf
    _same: bool = True
    _within_unit: bool = True
    _shifts: list[float] | None = field(default_factory=lambda: [0.0, 0.0])
    _figures: int = 0

    @property
    def n(self) -> int:
        """Return the number of pairs so far."""
        return self._spread.n

    def add(self, cluster: int, before: float, after: float, *, same: bool = False) -> None:
        """Add a pair; those of one cluster come one after another.

        Args:
            cluster: number of the cluster; different from that of the cluster before.
            before: the earlier value.
            after: the later value.
            same: whether both values measure the very same thing, such as the same text by the same judge.
        """
        difference = after - before
        if abs(difference) < _NOISE:
            difference = 0.0
        if self._first is None:
            self._first = difference  # sums of distances from it lose no digits to a large mean
        if cluster != self._cluster:
            self._close()
            self._cluster = cluster
            self._clusters += 1
            if len(self._first_sums) < _FEW_CLUSTERS:
                self._first_sums.append(0.0)
        self._before += before
        self._spread.add(difference)
        self._open[0] += 1
        self._open[1] += difference - self._first
        self._open[2] += abs(difference)
        self._lowest, self._highest = min(self._lowest, difference), max(self._highest, difference)
        self._same = self._same and same
        self._within_unit = self._within_unit and 0 <= before <= 1 and 0 <= after <= 1
        if before not in _BINARY or after not in _BINARY:
            self._shifts = None
        if self._clusters == len(self._first_sums):
            self._first_sums[-1] += difference
        self._figures = hash((self._figures, cluster, round(before, 9), round(after, 9)))

    def _close(self) -> None:
        count, total, size = self._open
        if count:
            self._closed.add(int(count), total)
            self._differing += size > 0
            if self._shifts is not None:
                mean = total / count + (self._first or 0.0)
                self._shifts[mean > 0] += abs(mean)
        self._open = [0, 0.0, 0.0]
        self._cluster = None

    def result(self) -> PairedTest | None:
        """Return the comparison of all pairs so far; None if there are none."""
        self._close()
        if self._first is None:
            return None
        n, clusters = self.n, self._clusters
        centred = self._closed.total / n
        delta = self._first + centred
        varies = self._highest - self._lowest > _ROUNDING * max(abs(self._lowest), abs(self._highest))
        # Differences that do not vary are equal except for rounding, which must not count as a spread.
        se = (math.sqrt(self._closed.variance) if varies else 0.0) if clusters > 1 else None
        freedom = self._closed.freedom if clusters > 1 else 0.0
        sd = self._spread.deviation if varies else (0.0 if n > 1 else None)
        interval: Interval | None = None
        if se:
            wide = t_quantile(_CONFIDENCE, freedom) * se
            interval = delta - wide, delta + wide
            if self._within_unit:  # the mean of such differences cannot lie outside of -1..1
                interval = max(-1.0, interval[0]), min(1.0, interval[1])
                interval = None if interval == (-1.0, 1.0) else interval  # such an interval says nothing
        mean_before = self._before / n
        return PairedTest(
            n=n,
            clusters=clusters,
            before=mean_before,
            after=mean_before + delta,
            delta=delta,
            se=se,
            freedom=freedom,
            interval=interval,
            p=self._p(delta, se, freedom),
            sd=sd,
            dz=delta / sd if sd else None,
            differing=self._differing,
            identical=self._same and self._lowest == self._highest == 0,
            in_range=self._within_unit,
            shifts=None if self._shifts is None else (self._shifts[0], self._shifts[1]),
            figures=self._figures,
        )

    def _p(self, delta: float, se: float | None, freedom: float) -> float:
        if not delta:
            return 1.0
        if self._clusters < _FEW_CLUSTERS:
            return sign_flip_p(self._first_sums)
        if not se:
            return float(2.0 ** (1 - self._clusters))  # the share of sign flips that keep all signs equal
        return two_sided_p(delta / se, freedom)


class PairedSample(Struct):
    """The pairs of one row, a few bytes each, so that clusters need not come one after another."""

    clusters: "array[int]" = field(default_factory=lambda: array("q"))
    before: "array[float]" = field(default_factory=lambda: array("d"))
    after: "array[float]" = field(default_factory=lambda: array("d"))
    same: bool = True

    def add(self, cluster: int, values: tuple[float, float], *, same: bool) -> None:
        """Add a pair; `same` as in `PairedDifferences.add`."""
        self.clusters.append(cluster)
        self.before.append(values[0])
        self.after.append(values[1])
        self.same = self.same and same

    def test(self) -> PairedTest | None:
        """Return the comparison of all pairs; None if there are none."""
        differences = PairedDifferences()
        for place in sorted(range(len(self.clusters)), key=self.clusters.__getitem__):
            differences.add(self.clusters[place], self.before[place], self.after[place], same=self.same)
        return differences.result()


class Margins(Struct, frozen=True):
    """The largest differences that do not matter: one for all rows, and others for single rows by name."""

    default: float | None = None
    by_name: Mapping[str, float] = {}

    def of(self, name: str) -> float | None:
        """Return the margin of the pass rate (`pass_rate`), the `score` or a metric; None if there is none."""
        return self.by_name.get(name, self.default)

    @classmethod
    def read(cls, value: object) -> "Margins":
        """Return the margins of a config: a number, or a mapping of names to numbers.

        Raises:
            ValueError: it is neither, or a number is not between 0 and 1; the message is its name, if any.
        """
        named = value if isinstance(value, Mapping) else {"": value}
        for name, margin in named.items():
            if isinstance(margin, bool) or not isinstance(margin, int | float) or not 0 < margin < 1:
                raise ValueError(str(name))
        if isinstance(value, Mapping):
            return cls(None, {str(name): float(margin) for name, margin in value.items()})
        return cls(float(named[""]))  # type: ignore[arg-type]  # a number, as was checked

    def with_given(self, given: Sequence[str]) -> "Margins":
        """Return the margins, overridden by those of `--margin`: each is `0.05` for all rows, or `METRIC=0.05`.

        Raises:
            ValueError: one is not a number between 0 and 1; the message is its text.
        """
        default = self.default
        by_name = dict(self.by_name)
        for text in sorted(given, key=lambda text: "=" in text):
            # A number alone replaces all margins of the config
            name, _, number = text.rpartition("=")
            try:
                margin = float(number)
            except ValueError:
                raise ValueError(text) from None
            if not 0 < margin < 1:
                raise ValueError(text)
            if name:
                by_name[name] = margin
            else:
                default, by_name = margin, {}
        return Margins(default, by_name)


NO_MARGINS = Margins()


class RowDecision(Struct, Generic[KeyT], frozen=True):
    """The finding about one difference, given all that are tested together.

    Attributes:
        names: the rows that have these figures; the first one stands for all.
        p: its p-value, adjusted for all differences.
        level: the largest unadjusted p-value that would have been significant.
        family: the number of differences among which the 5 % are still to be divided, which gives `level`.
        margin: the largest difference that does not matter; None if every difference does.
    """

    test: PairedTest
    names: tuple[KeyT, ...]
    p: float
    level: float
    family: int
    margin: float | None
    verdict: DifferenceVerdict

    @property
    def least_tests(self) -> int | None:
        """Return the number of tests that it takes to show anything at this level; None if there are enough."""
        least = least_clusters(self.level)
        return least if self.test.clusters < least else None

    def as_delta(self, *, detect: float | None = None) -> Delta:
        """Return the difference as a record.

        Args:
            detect: the true difference for which the needed number of tests is given; None for the one that was found,
                or its distance from the margin.
        """
        test = self.test
        wanted = detect
        if wanted is None:  # how far the difference is from where it would be decided
            wanted = test.delta if self.margin is None else abs(test.delta) - self.margin
        return Delta(
            value=test.delta,
            interval=test.interval,
            n=test.n,
            clusters=test.clusters,
            se=test.se,
            p=test.p,
            p_adjusted=self.p,
            mde=test.detectable(self.level),
            needed_tests=test.needed_tests(wanted, self.level),
            differing=test.differing,
            family=self.family,
            least_tests=self.least_tests,
            margin=self.margin,
            margin_interval=None if self.margin is None else test.bounds(SIGNIFICANCE),
        )


def decide(
    tests: Mapping[KeyT, PairedTest],
    *,
    group: Callable[[KeyT], Hashable],
    adjust: str = "holm",
    margin: Callable[[KeyT], float | None] = lambda _: None,
) -> list[RowDecision[KeyT]]:
    """Return the finding about each difference, in the order of `tests`.

    Rows of one group that have equal figures in every test count as one: otherwise, a suite with one metric would pay
    three times for its pass rate, its score and its metric.

    Args:
        tests: the comparisons by the names of their rows.
        group: returns the group of a row, such as its column; equal figures are only looked for within a group.
        adjust: a name in `ADJUSTMENTS`.
        margin: returns the largest difference of a row that does not matter.
    """
    rows: dict[Hashable, list[KeyT]] = {}
    for name, test in tests.items():
        rows.setdefault((group(name), test.n, test.clusters, test.figures), []).append(name)
    names = list(rows.values())
    values = [tests[same[0]].p for same in names]
    adjusted = ADJUSTMENTS[adjust](values)
    decided = sum(p <= SIGNIFICANCE for p in adjusted)
    rank = {index: place for place, index in enumerate(sorted(range(len(values)), key=values.__getitem__))}
    found = []
    for index, (same, p) in enumerate(zip(names, adjusted, strict=True)):
        test = tests[same[0]]
        # Holm divides by the number not yet decided; Benjamini and Hochberg multiply by the number that will be.
        if adjust == "holm":
            family = len(names) - min(rank[index], decided)
            level = SIGNIFICANCE / family
        else:
            family = len(names)
            level = SIGNIFICANCE * min(decided + (rank[index] >= decided), family) / family
        least = min((item for item in map(margin, same) if item is not None), default=None)
        if test.identical:
            verdict = DifferenceVerdict.IDENTICAL
        else:
            verdict = verdict_of(test.delta, p, least, None if least is None else test.bounds(SIGNIFICANCE))
        found.append(
            RowDecision(
                test=test, names=tuple(same), p=p, level=level, family=family, margin=least, verdict=verdict
            )
        )
    return found


def verdict_of(
    delta: float, adjusted_p: float, margin: float | None, margin_interval: Interval | None
) -> DifferenceVerdict:
    """Return the finding about a difference; with a margin, its 90 % interval counts too."""
    is_shown = adjusted_p <= SIGNIFICANCE and delta != 0
    if margin is not None:
        low, high = margin_interval or (-math.inf, math.inf)
        if -margin <= low and high <= margin:
            return DifferenceVerdict.EQUIVALENT
        is_shown = is_shown and (low > margin or high < -margin)
    if not is_shown:
        return DifferenceVerdict.UNDECIDED
    return DifferenceVerdict.BETTER if delta > 0 else DifferenceVerdict.WORSE


def detectable_quantile(freedom: float, level: float = SIGNIFICANCE) -> float:
    """Return by how many standard errors a true difference must exceed 0 to be detected with 80 % power."""
    return t_quantile(1 - level / 2, freedom) + t_quantile(_POWER, freedom)


def least_clusters(level: float) -> int:
    """Return from how many clusters on a p-value of at most `level` is possible."""
    return min(_FEW_CLUSTERS, math.ceil(1 - math.log2(level) - _ROUNDING))


def drop_limit(fell: float, rose: float, n: int, level: float) -> float:
    """Return the upper limit of the share of tests that break minus the share of those fixed, of n pairs of 0 and 1.

    Of the tests, `fell` broke and `rose` were fixed; a test of several pairs may count as a fraction, which is rounded.

    It is below the true one with a probability of at most `level`, for any n and any shares (`benchmarks simulations`),
    and never lower if more broke or fewer were fixed. Without fixed tests, it is Clopper and Pearson's limit of the
    share that breaks. With some, it is Tango's score limit as if one more test had broken, without which it would be
    too low in up to 6 % of samples instead of 5 %; or Clopper and Pearson's if that is lower.

    Sources: Clopper and Pearson, "The use of confidence or fiducial limits", 1934; Tango, "Equivalence test and
    confidence interval for the difference in proportions for the paired-sample design", 1998.
    """
    broken, fixed = math.ceil(fell - _NOISE), math.floor(rose + _NOISE)
    exact = 1.0 if broken == n else _solved(lambda share: _binomial_tail(broken, n, share) - level, 0.0, 1.0)
    if not fixed:
        return exact
    z = NormalDist().inv_cdf(1 - level)
    score = _solved(lambda drop: _tango(broken + 1, fixed, n, drop) + z, (broken - fixed) / n, 1.0)
    return min(exact, score)


def _tango(broken: int, fixed: int, n: int, drop: float) -> float:
    """Return the score statistic of a true `drop`: by how many standard errors the observed drop is larger."""
    linear = (2 * n - broken + fixed) * drop - broken - fixed
    root = linear**2 + 8 * n * fixed * drop * (1 - drop)
    share = (math.sqrt(max(root, 0.0)) - linear) / (4 * n)  # the likeliest share of fixed tests for this drop
    variance = n * (2 * share + drop * (1 - drop))
    distance = broken - fixed - n * drop
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance)


def _binomial_tail(successes: int, n: int, share: float) -> float:
    """Return P(X <= successes) for n trials that each succeed with a probability of `share`, between 0 and 1."""
    # The other tail may be the smaller one, and its first term is not lost to rounding.
    if successes >= n * share:
        return 1.0 - (_binomial_tail(n - successes - 1, n, 1 - share) if successes < n else 0.0)
    log = math.lgamma(n + 1) - math.lgamma(successes + 1) - math.lgamma(n - successes + 1)
    term = total = math.exp(log + successes * math.log(share) + (n - successes) * math.log1p(-share))
    for k in range(successes, 0, -1):
        term *= k / (n - k + 1) * (1 - share) / share
        total += term
        if term <= total * _ROUNDING:
            break
    return total


def _solved(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a decreasing function that is positive at `low` crosses 0, between `low` and `high`."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return high


def sign_flip_p(sums: Sequence[float]) -> float:
    """Return the exact two-sided p-value of the hypothesis that the sums of clusters are symmetric around 0.

    All 2^G assignments of signs are enumerated, so it is for few clusters. Source: Fisher, "The Design of
    Experiments", 1935.
    """
    if not sums:
        return 1.0
    # Half of the assignments are enough: the others mirror them.
    first, *others = sums
    limit = abs(math.fsum(sums)) - _ROUNDING * math.fsum(map(abs, sums))
    flips = product((1.0, -1.0), repeat=len(others))
    extreme = sum(
        abs(first + math.fsum(sign * item for sign, item in zip(signs, others, strict=True))) >= limit
        for signs in flips
    )
    return float(extreme / 2 ** len(others))


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values adjusted so that the chance of any false finding is at most the level; same order.

    Source: Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    adjusted, highest = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, values[index] * (len(values) - rank)))
        adjusted[index] = highest
    return adjusted


def benjamini_hochberg(values: Sequence[float]) -> list[float]:
    """Return p-values adjusted so that the expected share of false findings is at most the level; same order.

    Source: Benjamini and Hochberg, "Controlling the false discovery rate", 1995.
    """
    adjusted, lowest = [0.0] * len(values), 1.0
    order = sorted(range(len(values)), key=values.__getitem__)
    for rank in range(len(values), 0, -1):
        index = order[rank - 1]
        lowest = min(lowest, values[index] * len(values) / rank)
        adjusted[index] = lowest
    return adjusted


ADJUSTMENTS: Mapping[str, Callable[[Sequence[float]], list[float]]] = {"holm": holm, "bh": benjamini_hochberg}
"""The ways to adjust p-values, by name."""
