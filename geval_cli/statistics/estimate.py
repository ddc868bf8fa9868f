"""The true mean and the true pass rate of a run from a few labels and all scores of its judge. Pure, plain Python.

A judge errs, so its own mean is off by an unknown amount; the labels say by how much. The method is prediction-powered
inference (PPI++), with errors over clusters.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from geval_cli.statistics.intervals import ClusteredMean, Estimate, t_quantile

_Z = 1.959963984540054
_PSEUDO_LABELS = (1.0, 1.0, 0.0, 0.0)
"""Added to the labels of a rate: without them, a few labels that agree would make an interval that is too narrow."""
_DUST = 1e-15


class Item(Struct, frozen=True):
    """One output: the judge's figure, people's (None: not labelled), and the group that it belongs to."""

    judged: float
    human: float | None
    cluster: str


class Inference(Struct, frozen=True):
    """A figure of a whole run.

    Attributes:
        estimate: with its 95 % interval; `n` labels, in so many clusters.
        judge: the judge's own figure over all outputs, without an interval: what it lacks is no chance.
        labels: the figure of the labels alone.
        weight: how much the judge's figures count (lambda), 0: not at all, 1: as if they were labels.
        outputs: of the run.
    """

    estimate: Estimate
    judge: float
    labels: Estimate
    weight: float
    outputs: int


def infer_mean(items: Sequence[Item]) -> Inference | None:
    """Return the mean that labels of all outputs would have, 0..1; None without any label.

    Source: Angelopoulos, Duchi and Zrnic, "PPI++: Efficient prediction-powered inference", 2023.
    """
    return _inferred(items, is_rate=False)


def infer_rate(items: Sequence[Item]) -> Inference | None:
    """Return the share that labels of all outputs would have, of figures that are 1 (good, passes) or 0.

    Four pseudo-labels, two good and two bad, are added, after Agresti and Coull, "Approximate is better than exact",
    1998; that they help here is shown by simulation.
    """
    return _inferred(items, is_rate=True)


def _inferred(items: Sequence[Item], *, is_rate: bool) -> Inference | None:
    labelled = [(item.human, item) for item in items if item.human is not None]
    rest = [item for item in items if item.human is None]
    if not labelled:
        return None
    marks = [human for human, _ in labelled]
    judged = [item.judged for _, item in labelled]
    clusters = [item.cluster for _, item in labelled]
    alone = _mean_of(marks, clusters, is_rate=is_rate)
    if is_rate:
        middle = _mean([item.judged for item in rest] or judged)
        marks += _PSEUDO_LABELS
        judged += [middle] * len(_PSEUDO_LABELS)
        clusters += [f"\0{number}" for number in range(len(_PSEUDO_LABELS))]
    others = [item.judged for item in rest]
    weight = _weight(marks, judged, others)
    found = weight * _mean(others) if others else 0.0
    differences = [human - weight * score for human, score in zip(marks, judged, strict=True)]
    found += _mean(differences)
    groups = len(set(clusters))
    interval = None
    if groups > 1:
        of_rest = _squared_error(others, [item.cluster for item in rest]) if weight and others else 0.0
        error = math.sqrt(weight**2 * of_rest + _squared_error(differences, clusters))
        spread = t_quantile(groups - 1) * error
        interval = (max(0.0, found - spread), min(1.0, found + spread))
    return Inference(
        Estimate(
            min(1.0, max(0.0, found)), interval, len(labelled), len({item.cluster for _, item in labelled})
        ),
        _mean([item.judged for item in items]),
        alone,
        weight,
        len(items),
    )


def _weight(marks: Sequence[float], judged: Sequence[float], others: Sequence[float]) -> float:
    """Return lambda, cut to 0..1: the part of the judge's figures that makes the error least."""
    n = len(marks)
    everything = [*judged, *others]
    if n < 2 or not others:  # noqa: PLR2004 - no covariance of one
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


def _squared_error(values: Sequence[float], clusters: Sequence[str]) -> float:
    """Return the squared standard error of a mean over clusters; 0 of one cluster."""
    mean = _mean(values)
    sums: dict[str, float] = {}
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + value - mean
    count = len(sums)
    squares = math.fsum(total**2 for total in sums.values())
    return squares * count / (count - 1) / len(values) ** 2 if count > 1 else 0.0


def _mean_of(values: Sequence[float], clusters: Sequence[str], *, is_rate: bool) -> Estimate:
    numbers = {name: number for number, name in enumerate(dict.fromkeys(clusters))}
    sums = ClusteredMean()
    for number, value in sorted(
        (numbers[cluster], value) for cluster, value in zip(clusters, values, strict=True)
    ):
        sums.add(number, value)
    return Estimate(sums.mean, sums.share_interval() if is_rate else sums.interval(), sums.n, sums.clusters)


class ErrorRates(Struct, frozen=True):
    """How often a judge is right, from labels: of `good` outputs, and of `bad` ones."""

    passed_good: int
    good: int
    failed_bad: int
    bad: int


def rogan_gladen(share: float, n: float, rates: ErrorRates) -> Estimate | None:
    """Return the true pass rate from the judge's and from how often it errs elsewhere; None where it knows nothing.

    It explodes where the judge is hardly better than chance: the interval then says so.

    Args:
        share: of outputs that the judge passes.
        n: how many independent outputs that is worth.
        rates: of labels, with at least one good and one bad output.

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
    of_bad, of_good = rates.bad + 2, rates.good + 2
    q0, q1 = (rates.failed_bad + 1) / of_bad, (rates.passed_good + 1) / of_good
    v0, v1 = q0 * (1 - q0) / of_bad, q1 * (1 - q1) / of_good
    known = q0 + q1 - 1
    if known <= _DUST:
        return None
    centre = (p + q0 - 1) / known
    shift = 2 * _Z**2 * (centre * v1 - (1 - centre) * v0)
    spread = _Z * math.sqrt(p * (1 - p) / more + (1 - centre) ** 2 * v0 + centre**2 * v1) / known
    low, high = centre + shift - spread, centre + shift + spread
    labels = rates.good + rates.bad
    return Estimate(
        min(1.0, max(0.0, value)), (min(1.0, max(0.0, low)), max(0.0, min(1.0, high))), labels, labels
    )
