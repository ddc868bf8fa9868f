"""Estimate true figures of a run, or of the difference of two, from few labels and all scores of a judge.

A judge errs, so its own mean has an unknown bias, which the labels estimate. The method is prediction-powered inference
(PPI++) with clustered standard errors. Plain Python, pure.
"""

import math
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from geval_cli.extras.trust.statistics.plain import Estimate, chance_at, clustered_estimate, rising_blocks
from geval_cli.statistics.intervals import ClusterSums, Interval, mean_interval, t_quantile, two_sided_p
from geval_cli.statistics.paired import SIGNIFICANCE

_Z = 1.959963984540054
_PSEUDO_LABELS = (1.0, 1.0, 0.0, 0.0)
"""Added to the labels of a rate: without them, a few labels that agree give too narrow an interval."""
_DUST = 1e-15
_ROUNDING = 1e-12


class Item(Struct, frozen=True):
    """One output: the judge's value, the human one (None if it is not labelled), and its cluster."""

    judged: float
    human: float | None
    cluster: str


class Inference(Struct, frozen=True):
    """An estimate for a whole run.

    Attributes:
        estimate: with its 95 % interval; from `n` labels in `clusters` clusters.
        judge: the judge's own figure over all outputs; it has no interval, since its error is bias, not chance.
        labels: the estimate from the labels alone.
        weight: the weight of the judge's values (lambda): 0 to ignore them, 1 to treat them as labels.
        outputs: number of outputs of the run.
    """

    estimate: Estimate
    judge: float
    labels: Estimate
    weight: float
    outputs: int


def infer_mean(items: Sequence[Item]) -> Inference | None:
    """Return the estimated mean label of all outputs, 0..1; None without any label.

    Source: Angelopoulos, Duchi and Zrnic, "PPI++: Efficient prediction-powered inference", 2023.
    """
    return _inferred(items, is_rate=False)


def infer_rate(items: Sequence[Item]) -> Inference | None:
    """Return the estimated share of all outputs whose label is 1 (good, passes), where values are 1 or 0.

    Four pseudo-clusters, two good and two bad, are added, after Agresti and Coull, "Approximate is better than exact",
    1998; simulations show that they help here. Each has one label, or several if the labels of a cluster are alike.
    """
    return _inferred(items, is_rate=True)


def _inferred(items: Sequence[Item], *, is_rate: bool) -> Inference | None:
    labelled = [(item.human, item) for item in items if item.human is not None]
    marks = [human for human, _ in labelled]
    clusters = [item.cluster for _, item in labelled]
    if not labelled:
        return None
    alone = clustered_estimate(marks, clusters)
    added: list[Item] = []
    if is_rate:
        others = [item.judged for item in items if item.human is None]
        middle = _mean(others or [item.judged for _, item in labelled])
        each = labels_per_cluster(marks, clusters)
        added = [
            Item(middle, mark, f"\0{number}")
            for number, mark in enumerate(_PSEUDO_LABELS)
            for _ in range(each)
        ]
    found = _correct([*items, *added])
    groups = len({*clusters, *(item.cluster for item in added)})
    interval = None
    if found is not None and groups > 1:
        if is_rate:  # the pseudo-labels replace the correction that `mean_interval` makes
            spread = t_quantile(0.975, found.freedom) * math.sqrt(found.variance)
            interval = (max(0.0, found.value - spread), min(1.0, found.value + spread))
        else:
            interval = mean_interval(found.value, found.variance, groups, freedom=found.freedom)
    return Inference(
        Estimate(
            None if found is None else min(1.0, max(0.0, found.value)),
            interval,
            len(labelled),
            len(set(clusters)),
        ),
        _mean([item.judged for item in items]),
        alone,
        0.0 if found is None else found.weight,
        len(items),
    )


def labels_per_cluster(marks: Sequence[float], clusters: Sequence[str]) -> int:
    """Return how many labels say as much as one independent label: 1 if the labels within a cluster are independent.

    It is the number of labels by the effective number of `mean_interval`, at most the mean size of a cluster if labels
    do not vary, and all of them for a single cluster.
    """
    n, groups, share = len(marks), len(set(clusters)), _mean(marks)
    largest = share * (1 - share)
    if groups == 1 or largest <= _ROUNDING:
        return n // groups
    shrunk = ((groups - 1) * ClusterSums.of(marks, clusters).variance + largest / groups) / groups
    return min(n, max(1, math.floor(n * shrunk / largest + _ROUNDING)))


def _weight(marks: Sequence[float], judged: Sequence[float], others: Sequence[float]) -> float:
    """Return lambda, clipped to 0..1: the weight of the judge's values that minimises the variance."""
    n = len(marks)
    everything = [*judged, *others]
    if n < 2 or not others:  # noqa: PLR2004 - a covariance needs two
        return 0.0
    centre, mean = _mean(judged), _mean(everything)
    level = _mean(marks)
    covariance = math.fsum(
        (human - level) * (score - centre) for human, score in zip(marks, judged, strict=True)
    ) / (n - 1)
    variance = math.fsum((score - mean) ** 2 for score in everything) / (len(everything) - 1)
    if variance <= _DUST:
        return 0.0
    return min(1.0, max(0.0, covariance / ((1 + n / len(others)) * variance)))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


LEAST_LABELLED = 15
"""The fewest labelled tests for the interval of a difference: with fewer, its coverage is too low."""
LEAST_AUDITED = 20
"""The fewest labelled tests that can show that a correction carries over."""
MARGIN = 0.05
"""A mean residual of a calibration up to this size does not matter, unless another margin is given."""
_GROUPS = 200
"""The number of groups in a jackknife: more clusters than this are grouped."""


class TrueDifference(Struct, frozen=True):
    """The estimated change of the mean label from one run to another if all outputs had human labels.

    Attributes:
        value: later minus earlier, -1..1.
        se: its standard error; None for too few labels, or for labels that do not vary and so say nothing about the
            rest.
        freedom: degrees of freedom of Student's t.
        judge: the judge's own difference over all pairs.
        weights: the weight of the judge's scores (lambda), 0..1: one for their differences, or one for each run.
        labelled: number of labelled outputs in each run; they are of the same tests if there is one weight.
        clusters: number of clusters (tests, or other groups) with labels in each run.
        is_binary: whether all labels are pass or fail.
    """

    value: float
    se: float | None
    freedom: float
    judge: float
    weights: tuple[float, ...]
    labelled: tuple[int, int]
    clusters: tuple[int, int]
    is_binary: bool = False

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval."""
        return self._interval(SIGNIFICANCE / 2)

    @property
    def p(self) -> float | None:
        """The two-sided p-value of no difference; None without a standard error."""
        return None if self.se is None else two_sided_p(self.value / self.se, self.freedom)

    def bounds(self, alpha: float) -> Interval | None:
        """Return the one-sided lower and upper confidence bounds, each at level 1 - `alpha`.

        Differences of pass and fail may be rare but large, and so in few labels: `mean_interval` allows for that.
        """
        if self.se is None or not self.is_binary:
            return self._interval(alpha)
        return mean_interval(
            self.value,
            self.se**2,
            min(self.clusters),
            level=1 - 2 * alpha,
            lowest=-1.0,
            freedom=self.freedom,
        )

    def _interval(self, alpha: float) -> Interval | None:
        if self.se is None:
            return None
        spread = t_quantile(1 - alpha, self.freedom) * self.se
        return max(-1.0, self.value - spread), min(1.0, self.value + spread)


def infer_difference(pairs: Sequence[Item]) -> TrueDifference | None:
    """Return the difference of two runs from labels of both outputs of the same tests; None without any label.

    Args:
        pairs: for each pair, the later minus the earlier score of the judge, and likewise for the human labels.

    Source: Angelopoulos, Duchi and Zrnic, "PPI++: Efficient prediction-powered inference", 2023, applied to
    differences.
    """
    found = _correct(pairs)
    if found is None:
        return None
    count, se = len(set(found.clusters)), None
    if count >= LEAST_LABELLED and found.varies:
        se = math.sqrt(found.variance) or None
    return TrueDifference(
        value=found.value,
        se=se,
        freedom=found.freedom if count > 1 else 0,
        judge=_mean([pair.judged for pair in pairs]),
        weights=(found.weight,),
        labelled=(len(found.clusters), len(found.clusters)),
        clusters=(count, count),
        is_binary=_are_whole(pairs),
    )


def infer_shift(before: Sequence[Item], after: Sequence[Item]) -> TrueDifference | None:
    """Return the difference of two runs from labels on different tests; None if one of them has no label.

    Each run has its own weight. Clusters of the same name are the same test in both runs, so their covariance is
    accounted for: the variance is that of each test's total influence on the difference.

    Source: as for `infer_difference`; influence functions as in van der Vaart, "Asymptotic Statistics", 1998.
    """
    earlier, later = _correct(before), _correct(after)
    if earlier is None or later is None:
        return None
    clusters = (len(set(earlier.clusters)), len(set(later.clusters)))
    se = None
    if min(clusters) >= LEAST_LABELLED and earlier.varies and later.varies:
        moved = later.influences()
        for name, influence in earlier.influences().items():
            moved[name] = moved.get(name, 0.0) - influence
        count = len({*earlier.clusters, *later.clusters})
        se = math.sqrt(math.fsum(value**2 for value in moved.values()) * count / (count - 1)) or None
    return TrueDifference(
        value=later.value - earlier.value,
        se=se,
        freedom=min(earlier.freedom, later.freedom) if min(clusters) > 1 else 0,
        judge=_mean([item.judged for item in after]) - _mean([item.judged for item in before]),
        weights=(earlier.weight, later.weight),
        labelled=(len(earlier.clusters), len(later.clusters)),
        clusters=clusters,
        is_binary=_are_whole([*before, *after]),
    )


def _are_whole(items: Sequence[Item]) -> bool:
    return all(item.human in (None, -1.0, 0.0, 1.0) for item in items)


class _Corrected(Struct):
    """A mean corrected by labels.

    Attributes:
        differences: of the labelled items, label minus weighted score.
        others: scores of the unlabelled items.
        varies: whether the labels are not all equal.
    """

    value: float
    weight: float
    differences: list[float]
    clusters: list[str]
    others: list[float]
    other_clusters: list[str]
    varies: bool

    @property
    def variance(self) -> float:
        """The squared standard error, clustered separately over labelled and unlabelled items."""
        of_rest = self.weight**2 * ClusterSums.of(self.others, self.other_clusters).variance
        return of_rest + ClusterSums.of(self.differences, self.clusters).variance

    @property
    def freedom(self) -> float:
        """The degrees of freedom of the variance: those of the labelled items, of which there are fewest."""
        return ClusterSums.of(self.differences, self.clusters).freedom

    def influences(self) -> dict[str, float]:
        """Return the influence of each cluster on the mean."""
        found: dict[str, float] = {}
        for values, clusters, factor in (
            (self.others, self.other_clusters, self.weight),
            (self.differences, self.clusters, 1.0),
        ):
            centre = _mean(values) if values else 0.0
            for value, cluster in zip(values, clusters, strict=True):
                found[cluster] = found.get(cluster, 0.0) + factor * (value - centre) / len(values)
        return found


def _correct(items: Sequence[Item]) -> _Corrected | None:
    labelled = [(item.human, item) for item in items if item.human is not None]
    rest = [item for item in items if item.human is None]
    if not labelled:
        return None
    marks = [human for human, _ in labelled]
    others = [item.judged for item in rest]
    weight = _weight(marks, [item.judged for _, item in labelled], others)
    differences = [human - weight * item.judged for human, item in labelled]
    return _Corrected(
        value=(weight * _mean(others) if others else 0.0) + _mean(differences),
        weight=weight,
        differences=differences,
        clusters=[item.cluster for _, item in labelled],
        others=others,
        other_clusters=[item.cluster for item in rest],
        varies=max(marks) - min(marks) > _ROUNDING,
    )


class CarriesOver(StrEnum):
    """The conclusion on whether a correction that was made elsewhere holds here."""

    YES = "carries over"
    NO = "does not"
    UNCLEAR = "unclear"


class CarryOver(Struct, frozen=True):
    """The mean error of a calibration on labels that it was not fitted to.

    Attributes:
        residual: mean of label minus calibrated score, with its 90 % interval; lying within ± `margin` is an
            equivalence test at 5 %.
    """

    residual: Estimate
    margin: float
    verdict: CarriesOver


def carry_over_of(before: Sequence[Item], after: Sequence[Item], margin: float) -> CarryOver | None:
    """Return whether a calibration by the labels of one run holds for those of another; None for too few labels.

    The calibration is an isotonic regression of labels on scores. Its own uncertainty is included: the standard error
    of the residual is a jackknife over the tests that have a label in either run.
    """
    fitted = [(item.judged, item.human, item.cluster) for item in before if item.human is not None]
    judged = [(item.judged, item.human, item.cluster) for item in after if item.human is not None]
    if not judged or len({cluster for *_, cluster in fitted}) < LEAST_LABELLED:
        return None

    def residual(left_out: set[str]) -> float | None:
        curve = rising_blocks((score, mark) for score, mark, cluster in fitted if cluster not in left_out)
        values = [
            mark - chance_at(curve, score) for score, mark, cluster in judged if cluster not in left_out
        ]
        return _mean(values) if values else None

    clusters = sorted({cluster for *_, cluster in (*fitted, *judged)})
    groups = [set(clusters[place::_GROUPS]) for place in range(min(_GROUPS, len(clusters)))]
    without = [value for group in groups if (value := residual(group)) is not None]
    centre = _mean(without)
    variance = math.fsum((value - centre) ** 2 for value in without) * (len(without) - 1) / len(without)
    counts = len(judged), len({cluster for *_, cluster in judged})
    return carry_over(residual(set()) or 0.0, variance, counts, margin, marks=[mark for _, mark, _ in judged])


def residuals_carry_over(
    residuals: Sequence[float], clusters: Sequence[str], margin: float, *, marks: Sequence[float]
) -> CarryOver | None:
    """Return whether labels agree with a calibration that is taken as exact; None without residuals."""
    if not residuals:
        return None
    counts = len(residuals), len(set(clusters))
    return carry_over(
        _mean(residuals), ClusterSums.of(residuals, clusters).variance, counts, margin, marks=marks
    )


def carry_over(
    mean: float, variance: float, counts: tuple[int, int], margin: float, *, marks: Sequence[float]
) -> CarryOver:
    """Return whether a mean residual, label minus calibrated score, is small enough.

    Labels that are pass or fail are rarely wrong but then by much, which a small sample may miss: pseudo-residuals of
    1, 1, -1 and -1 are added to them.

    Args:
        mean: mean of residuals within -1..1.
        variance: its squared standard error.
        counts: number of labels and of clusters.
        margin: largest mean residual that does not matter.
        marks: the labels.
    """
    n, clusters = counts
    centre, more = mean, 0
    if all(mark in (0.0, 1.0) for mark in marks):
        more = len(_PSEUDO_LABELS)
        share = clusters / (clusters + more)
        centre = mean * share
        variance = variance * share**2 + more / (clusters + more) ** 2
    interval, verdict = None, CarriesOver.UNCLEAR
    if clusters > 1:
        interval = mean_interval(centre, variance, clusters + more, level=0.9, lowest=-1)
    if interval is not None and (interval[0] > margin or interval[1] < -margin):
        verdict = CarriesOver.NO
    elif interval is not None and clusters >= LEAST_AUDITED and max(map(abs, interval)) <= margin:
        verdict = CarriesOver.YES
    return CarryOver(Estimate(mean, interval, n, clusters), margin, verdict)


class ErrorRates(Struct, frozen=True):
    """How often a judge is right according to labels: on `good` outputs, and on `bad` ones.

    `worth` is how many independent outputs the good and the bad ones are worth, from `clusters` clusters; None if all
    are independent.
    """

    passed_good: int
    good: int
    failed_bad: int
    bad: int
    worth: tuple[float, float] | None = None
    clusters: int | None = None


def rogan_gladen(share: float, n: float, rates: ErrorRates) -> Estimate | None:
    """Return the true pass rate from the judge's pass rate and its error rates; None if it is no better than chance.

    It is also None without outputs, or without good or bad labels. The interval becomes very wide if the judge is
    hardly better than chance.

    Args:
        share: share of outputs that the judge passes.
        n: effective number of independent outputs behind it.
        rates: how often the judge is right according to labels, with at least one good and one bad output.

    Source: Rogan and Gladen, "Estimating prevalence from the results of a screening test", 1978; the interval by Lang
    and Reiczigel, "Confidence limits for prevalence of disease adjusted for estimated sensitivity and specificity",
    2014.
    """
    if not rates.good or not rates.bad or not n:
        return None
    gain = rates.failed_bad / rates.bad + rates.passed_good / rates.good - 1
    if gain <= _DUST:
        return None
    value = (share + rates.failed_bad / rates.bad - 1) / gain
    more = n + _Z**2
    p = (n * share + _Z**2 / 2) / more
    good, bad = rates.worth or (rates.good, rates.bad)
    of_bad, of_good = bad + 2, good + 2
    q0 = (rates.failed_bad / rates.bad * bad + 1) / of_bad
    q1 = (rates.passed_good / rates.good * good + 1) / of_good
    v0, v1 = q0 * (1 - q0) / of_bad, q1 * (1 - q1) / of_good
    known = q0 + q1 - 1
    if known <= _DUST:
        return None
    centre = (p + q0 - 1) / known
    shift = 2 * _Z**2 * (centre * v1 - (1 - centre) * v0)
    spread = _Z * math.sqrt(p * (1 - p) / more + (1 - centre) ** 2 * v0 + centre**2 * v1) / known
    low = centre + shift - spread
    high = centre + shift + spread
    labels = rates.good + rates.bad
    return Estimate(
        min(1.0, max(0.0, value)),
        (min(1.0, max(0.0, low)), max(0.0, min(1.0, high))),
        labels,
        labels if rates.clusters is None else rates.clusters,
    )
