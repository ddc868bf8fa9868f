"""Measure inter-rater agreement: correlations, kappa, alpha, the best threshold and the alt-test, with intervals.

Intervals account for clusters. Pure; needs numpy and scipy. Nothing is random, so intervals are reproducible. Undefined
values are None, never 0 or NaN.
"""

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy import stats

from geval_cli.extras.trust.statistics.plain import MIN_CLUSTERS, Estimate
from geval_cli.statistics.intervals import ClusterSums

Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]
Codes = NDArray[np.intp]
Correlation = Callable[[Numbers, Numbers], float | None]

MAX_GROUPS = 200
"""Up to this many clusters are left out one by one; more are left out in this many groups."""
_CONFIDENCE_QUANTILE = 0.975
_CERTAIN = 1 - 1e-12
"""A correlation of 1 has no Fisher transform."""


def pearson(x: Numbers, y: Numbers, shares: Numbers | None = None) -> float | None:
    """Return Pearson's r; None for fewer than two pairs, or if one side is constant.

    Pairs are weighted by `shares`, if given.
    """
    if shares is not None:
        counted = shares > 0
        x = x[counted]
        y = y[counted]
        shares = shares[counted] / shares.sum()
    if len(x) < 2 or _is_constant(x) or _is_constant(y):  # noqa: PLR2004 - a line needs two points
        return None
    if shares is None:
        dx, dy = x - x.mean(), y - y.mean()
        products = dx, dy
    else:
        dx, dy = x - shares @ x, y - shares @ y
        products = shares * dx, shares * dy
    r = float(products[0] @ dy / math.sqrt(float(products[0] @ dx) * float(products[1] @ dy)))
    return min(1.0, max(-1.0, r))


def spearman(x: Numbers, y: Numbers, shares: Numbers | None = None) -> float | None:
    """Return Spearman's rho with average ranks for ties; None as for `pearson`.

    Pairs are weighted by `shares`, if given.
    """
    if shares is None:
        return pearson(stats.rankdata(x), stats.rankdata(y))
    return pearson(_weighted_ranks(x, shares), _weighted_ranks(y, shares), shares)


def _weighted_ranks(values: Numbers, shares: Numbers) -> Numbers:
    """Return the weighted mid-rank of each value: the total share of smaller values plus half that of equal ones."""
    _, place = np.unique(values, return_inverse=True)
    of_value = np.bincount(place, weights=shares)
    return np.asarray((np.cumsum(of_value) - of_value / 2)[place], dtype=np.float64)


def kendall(x: Numbers, y: Numbers) -> float | None:
    """Return Kendall's tau-b; None as for `pearson`."""
    if len(x) < 2 or _is_constant(x) or _is_constant(y):  # noqa: PLR2004
        return None
    # The p-value is not used; the exact one is slow, and the asymptotic one is undefined for two pairs.
    method = "asymptotic" if len(x) > 2 else "exact"  # noqa: PLR2004
    return float(stats.kendalltau(x, y, method=method).statistic)


CORRELATIONS: dict[str, Correlation] = {"pearson": pearson, "spearman": spearman, "kendall": kendall}


def partial_spearman(x: Numbers, y: Numbers, given: Numbers) -> float | None:
    """Return the partial Spearman correlation of x and y controlling for `given`; None if it is undefined."""
    xy, xg, yg = spearman(x, y), spearman(x, given), spearman(y, given)
    if xy is None or xg is None or yg is None:
        return None
    rest = (1 - xg**2) * (1 - yg**2)
    return (xy - xg * yg) / math.sqrt(rest) if rest > 1 - _CERTAIN else None


def encode(names: Sequence[str]) -> Codes:
    """Return an integer code for each name, counted from 0 in the order of first appearance."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.intp)


def fold(names: Sequence[str], most: int = MAX_GROUPS) -> Codes:
    """Return the group of each cluster: its own, or one of `most` by a hash of its name if there are more clusters."""
    if len(set(names)) <= most:
        return encode(names)
    hashed = {
        name: str(int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:8]) % most)
        for name in set(names)
    }
    return encode([hashed[name] for name in names])


def jackknife(
    statistic: Callable[[Mask], float | None],
    clusters: Sequence[str],
    *,
    is_correlation: bool = True,
    n: int | None = None,
) -> Estimate:
    """Return a statistic with its 95 % interval from a delete-one-cluster jackknife.

    Args:
        statistic: computed from the items that a mask keeps.
        clusters: cluster name of each item; more than `MAX_GROUPS` clusters are left out in groups.
        is_correlation: whether the statistic lies within -1..1: the interval is then computed on Fisher's z scale, and
            only for at least `MIN_CLUSTERS` clusters; otherwise for at least two.
        n: number of items that count, if it is not all of them.

    Source: Efron and Stein, "The jackknife estimate of variance", 1981; Student's t with G - 1 degrees of freedom for G
    groups.
    """
    everything = np.ones(len(clusters), dtype=bool)
    value = statistic(everything)
    found = len(set(clusters))
    bare = Estimate(value, None, len(clusters) if n is None else n, found)
    if value is None or found < (MIN_CLUSTERS if is_correlation else 2):
        return bare
    left_out = leave_one_out(statistic, clusters)
    return replace_interval(bare, jackknife_interval(value, left_out, is_correlation=is_correlation))


def leave_one_out(statistic: Callable[[Mask], float | None], clusters: Sequence[str]) -> list[float | None]:
    """Return the statistic without each cluster in turn; above `MAX_GROUPS` clusters, without each group of them."""
    groups = fold(clusters)
    return [statistic(groups != group) for group in range(int(groups.max()) + 1)]


def jackknife_error(left_out: Numbers) -> float:
    """Return the jackknife standard error of a statistic from its leave-one-out values."""
    return math.sqrt((len(left_out) - 1) / len(left_out) * float(((left_out - left_out.mean()) ** 2).sum()))


def jackknife_interval(
    value: float, left_out: Sequence[float | None], *, is_correlation: bool = True
) -> tuple[float, float] | None:
    """Return the 95 % interval around `value` from leave-one-out values; None if one of them is undefined.

    It is also None for fewer than two values, if a correlation is 1 or -1, which has no Fisher transform, and if a
    correlation never changes, so that nothing shows how uncertain it is.
    """
    known = [item for item in left_out if item is not None]
    if len(known) < len(left_out) or len(known) < 2:  # noqa: PLR2004 - a spread needs two
        return None
    if is_correlation and max(abs(item) for item in (value, *known)) > _CERTAIN:
        return None
    numbers = np.array(known)
    if is_correlation and numbers.max() - numbers.min() <= _TINY:
        return None
    if is_correlation:
        value = math.atanh(value)
        numbers = np.arctanh(numbers)
    count = len(known)
    spread = float(stats.t.ppf(_CONFIDENCE_QUANTILE, count - 1)) * jackknife_error(numbers)
    low, high = value - spread, value + spread
    return (math.tanh(low), math.tanh(high)) if is_correlation else (low, high)


def replace_interval(estimate: Estimate, interval: tuple[float, float] | None) -> Estimate:
    """Return the estimate with another interval."""
    return Estimate(estimate.value, interval, estimate.n, estimate.clusters)


def dataset_level(correlation: Correlation, x: Numbers, y: Numbers, clusters: Sequence[str]) -> Estimate:
    """Return the correlation over all pairs, with its interval."""
    return jackknife(lambda kept: correlation(x[kept], y[kept]), clusters)


class DocumentMean(Struct, frozen=True):
    """A mean over documents with one value each: `used` of them have one; `skipped` ones have a constant side."""

    estimate: Estimate
    used: int
    skipped: int


def summary_level(
    correlation: Correlation, x: Numbers, y: Numbers, documents: Sequence[str], clusters: Sequence[str]
) -> DocumentMean:
    """Return the mean over documents of the correlation within each document, as in the G-Eval paper on SummEval.

    Documents with a constant side have no correlation and are skipped. There is no interval if a document spans
    clusters.
    """
    codes = encode(documents)
    order = np.argsort(codes, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    found = [(correlation(x[rows], y[rows]), rows) for rows in members]
    values = np.array([value for value, _ in found if value is not None])
    used = [rows for value, rows in found if value is not None]
    homes = [{clusters[row] for row in rows} for rows in used]
    n = sum(map(len, used))
    skipped = len(found) - len(used)
    if not used:
        return DocumentMean(Estimate(None), 0, skipped)
    if any(len(home) > 1 for home in homes):
        value = float(values.mean())
        return DocumentMean(Estimate(value, None, n, len(set(clusters))), len(used), skipped)

    def mean(kept: Mask) -> float | None:
        return float(values[kept].mean()) if kept.any() else None

    return DocumentMean(jackknife(mean, [next(iter(home)) for home in homes], n=n), len(used), skipped)


def system_level(
    correlation: Correlation, x: Numbers, y: Numbers, systems: Sequence[str], clusters: Sequence[str]
) -> Estimate:
    """Return the correlation between the systems' mean scores and mean labels."""
    codes = encode(systems)
    count = int(codes.max()) + 1

    def of_means(kept: Mask) -> float | None:
        sizes = np.bincount(codes[kept], minlength=count)
        there = sizes > 0
        means = [np.bincount(codes[kept], side[kept], count)[there] / sizes[there] for side in (x, y)]
        # The order of summation changes the last digits, which must not break a tie of two systems.
        return correlation(np.round(means[0], 12), np.round(means[1], 12))

    return jackknife(of_means, clusters)


def _is_constant(values: Numbers) -> bool:
    return bool((values == values[0]).all())


Marks = NDArray[np.float64]
Verdicts = NDArray[np.bool_]

EPSILONS = {"expert": 0.2, "skilled": 0.15, "crowd": 0.1}
"""How much worse than an annotator a judge may be, since it costs less, by the kind of annotators."""
MIN_ANNOTATORS, MIN_ITEMS = 3, 30
_FALSE_DISCOVERY_RATE = 0.05
_WINNING_SHARE = 0.5
_SIGNIFICANCE = 0.05
_DIGITS = 12
_DUST = 1e-9
"""The size of rounding differences; ties must stay ties."""

_TINY = 1e-12


def quadratic_kappa(x: Numbers, y: Numbers, shares: Numbers | None = None) -> float | None:
    """Return Cohen's kappa with quadratic weights for equidistant ratings; None if both sides are the same constant.

    It is one minus the ratio of the observed to the expected mean squared difference, so no list of categories is
    needed. Items are weighted by `shares`, if given.

    Source: Cohen, "Weighted kappa", 1968.
    """
    if not len(x):
        return None
    mx, my = (np.average(side, weights=shares) for side in (x, y))
    by_chance = float(np.average((x - mx) ** 2 + (y - my) ** 2, weights=shares) + (mx - my) ** 2)
    return 1 - float(np.average((x - y) ** 2, weights=shares)) / by_chance if by_chance > _DUST else None


def cohen_kappa(x: Verdicts, y: Verdicts) -> float | None:
    """Return Cohen's kappa of two verdicts on the same items; None if both are the same constant."""
    return quadratic_kappa(x.astype(np.float64), y.astype(np.float64))


def ordinal_alpha(marks: Marks) -> float | None:
    """Return Krippendorff's alpha for ordinal labels; None if no item has two labels, or all labels are equal.

    The ordinal distance of two values is the distance of their average ranks among all pairable labels, so this is the
    interval alpha of the ranks. Unlike a coincidence matrix, it stays small if all of a judge's scores differ.

    Source: Krippendorff, "Computing Krippendorff's alpha-reliability", 2011.
    """
    pairable = marks[:, (~np.isnan(marks)).sum(axis=0) > 1]
    is_given = ~np.isnan(pairable)
    given = pairable[is_given]
    if not len(given) or bool((given == given[0]).all()):
        return None
    ranks = np.zeros(pairable.shape)
    ranks[is_given] = stats.rankdata(given)
    ranks[is_given] -= ranks[is_given].mean()  # centred, so that the squares lose no precision
    counts = is_given.sum(axis=0)
    within = counts * (ranks**2).sum(axis=0) - ranks.sum(axis=0) ** 2
    observed = float((within / (counts - 1)).sum()) / len(given)
    expected = float((ranks**2).sum()) / (len(given) - 1)
    return 1 - observed / expected


def means_of_others(marks: Marks, annotator: int) -> Numbers:
    """Return the mean label of the other annotators for each item; NaN if nobody else labelled it."""
    others = np.delete(marks, annotator, axis=0)
    counts = (~np.isnan(others)).sum(axis=0)
    with np.errstate(invalid="ignore"):
        return np.where(counts > 0, np.nansum(others, axis=0) / np.maximum(counts, 1), np.nan)


class Ceiling(Struct, frozen=True):
    """How well an annotator, and the judge, predict the other annotators: mean Spearman's rho over annotators."""

    people: float
    judge: float


def ceiling(judge: Numbers, marks: Marks) -> Ceiling | None:
    """Return the human ceiling; None for fewer than two annotators, or if a correlation is undefined.

    Items without a judge's score are left out of both sides.
    """
    sides = _beside_others(judge, marks)
    found = [(spearman(own, others), spearman(score, others)) for own, others, score in sides]
    people = [person for person, _ in found if person is not None]
    judged = [rho for _, rho in found if rho is not None]
    if len(marks) < 2 or len(people) < len(found) or len(judged) < len(found):  # noqa: PLR2004 - a single annotator has no others
        return None
    return Ceiling(math.fsum(people) / len(people), math.fsum(judged) / len(judged))


def _beside_others(judge: Numbers, marks: Marks) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """Yield each annotator's labels, the others' mean labels and the judge's scores, of items that have all three."""
    for annotator, own in enumerate(marks):
        others = np.round(means_of_others(marks, annotator), _DIGITS)
        here = ~np.isnan(own) & ~np.isnan(others) & ~np.isnan(judge)
        yield own[here], others[here], judge[here]


def lack_of_ceiling(judge: Numbers, marks: Marks) -> str | None:
    """Return what one annotator did that leaves the ceiling undefined; None if there is no such annotator."""
    for own, others, score in _beside_others(judge, marks):
        if len(own) < 2:  # noqa: PLR2004 - a line needs two points
            return "shares fewer than two outputs with other annotators"
        if _is_constant(own):
            return "gave the same label to all outputs that others labelled too"
        if _is_constant(others):
            return "labelled only outputs to which the others gave the same mean label"
        if _is_constant(score):
            return "shares with others only outputs to which the judge gave the same score"
    return None


class Confusion(Struct, frozen=True):
    """A confusion matrix: `false_pass` counts bad outputs that pass, `false_fail` good ones that fail."""

    true_pass: int
    false_pass: int
    false_fail: int
    true_fail: int

    @property
    def bad(self) -> int:
        """The number of bad outputs."""
        return self.false_pass + self.true_fail

    @property
    def good(self) -> int:
        """The number of good outputs."""
        return self.true_pass + self.false_fail

    @property
    def mcc(self) -> float | None:
        """The Matthews correlation coefficient; None if all are good or all bad, or all pass or all fail."""
        tp, fp, fn, tn = self.true_pass, self.false_pass, self.false_fail, self.true_fail
        product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
        return (tp * tn - fp * fn) / math.sqrt(product) if product else None


def confusion(passed: Verdicts, good: Verdicts) -> Confusion:
    """Return the confusion matrix of the judge's verdicts against the human ones."""
    return Confusion(
        int((passed & good).sum()),
        int((passed & ~good).sum()),
        int((~passed & good).sum()),
        int((~passed & ~good).sum()),
    )


class Threshold(Struct, frozen=True):
    """A threshold and the confusion matrix of its verdicts."""

    threshold: float
    confusion: Confusion

    @property
    def mcc(self) -> float | None:
        """The Matthews correlation coefficient of these verdicts."""
        return self.confusion.mcc


def threshold_candidates(scores: Numbers, good: Verdicts) -> list[Threshold]:
    """Return a threshold halfway between each two neighbouring scores, lowest first, with its confusion matrix.

    Each gives other verdicts than the one before, and none passes or fails all outputs.
    """
    distinct, places = np.unique(scores, return_inverse=True)
    goods = np.bincount(places, good, len(distinct))
    bads = np.bincount(places, ~good, len(distinct))
    # Cumulated from the end: the number of good and bad outputs with this score or a higher one.
    passing_good, passing_bad = goods[::-1].cumsum()[::-1], bads[::-1].cumsum()[::-1]
    all_good, all_bad = int(goods.sum()), int(bads.sum())
    return [
        Threshold(
            float((distinct[place - 1] + distinct[place]) / 2),
            Confusion(
                int(passing_good[place]),
                int(passing_bad[place]),
                all_good - int(passing_good[place]),
                all_bad - int(passing_bad[place]),
            ),
        )
        for place in range(1, len(distinct))
    ]


def best_threshold(scores: Numbers, good: Verdicts, *, present: float) -> Threshold | None:
    """Return the threshold with the highest Matthews correlation coefficient; None if it is undefined for all.

    Args:
        scores: of the judge.
        good: whether the human label is good.
        present: the current threshold; of equally good ones, the nearest to it is chosen, then the lower one.
    """
    candidates = [(item.mcc, item) for item in threshold_candidates(scores, good)]
    known = [(mcc, item) for mcc, item in candidates if mcc is not None]
    if not known:
        return None
    best = max(mcc for mcc, _ in known)
    ties = [item for mcc, item in known if mcc > best - _DUST]
    return min(ties, key=lambda item: abs(item.threshold - present))


class ClusterRobustMean(Struct, frozen=True):
    """A mean with its cluster-robust standard error and degrees of freedom."""

    mean: float
    error: float
    freedom: float
    clusters: int

    def p_below(self, bound: float) -> float | None:
        """Return the one-sided p-value for the true mean being below `bound`; None for a single cluster."""
        return None if self.clusters <= 1 else self._p(bound - self.mean)

    def p_above(self, bound: float) -> float | None:
        """Return the one-sided p-value for the true mean being above `bound`; None for a single cluster."""
        return None if self.clusters <= 1 else self._p(self.mean - bound)

    @property
    def t(self) -> float | None:
        """The t statistic of the mean; None if the standard error is 0."""
        return self.mean / self.error if self.error > _DUST else None

    def _p(self, distance: float) -> float:
        # If all clusters are equal, p is the share of sign flips that keep all signs equal.
        if self.error <= _DUST:
            return float(2.0**-self.clusters) if distance > _DUST else 1.0
        return float(stats.t.sf(distance / self.error, self.freedom))


def clustered_mean(values: Numbers, clusters: Sequence[str]) -> ClusterRobustMean:
    """Return the mean of values with its cluster-robust standard error (`ClusterSums`)."""
    mean = float(values.mean())
    sums = ClusterSums.of(values.tolist(), clusters)
    freedom = sums.freedom if sums.clusters > 1 else 0.0
    return ClusterRobustMean(mean, math.sqrt(sums.variance), freedom, sums.clusters)


def effective_votes(errors: Numbers, noise: float = 0.0) -> float | None:
    """Return the effective number of independent judges in a jury: k * tr(C) / sum(C), with the error covariance C.

    It is None for fewer than two judges or outputs, or if the sum or the trace is not positive.

    Args:
        errors: score minus label, a row for each judge.
        noise: sampling variance of the mean label, which all errors share and for which the judges are not to blame.
    """
    count, items = errors.shape
    if count < 2 or items < 2:  # noqa: PLR2004 - a covariance needs two of each
        return None
    shared = np.cov(errors) - noise
    total = float(shared.sum())
    own = float(np.trace(shared))
    return count * own / total if total > _TINY and own > _TINY else None


class AltTest(Struct, frozen=True):
    """The outcome of the alternative annotator test: may a judge replace an annotator?

    Attributes:
        epsilon: by how much its advantage probability may be lower than an annotator's.
        omega: the winning rate: the share of annotators that the judge may replace; it wins from one half on.
        rho: the average advantage probability: the mean probability of being at least as close to the others as an
            annotator is.
        winners: for each annotator, whether the judge may replace them.
        constant: the best constant rating, 0..1; `constant_rho` and `constant_omega` are the figures for it.
        gain: how much more often the judge wins than the constant rating, with its cluster-robust `gain_t` and
            one-sided p-value `gain_p`.
        annotators: number of annotators with enough items.
        items: the smallest number of items of one of them.
    """

    epsilon: float
    omega: float
    rho: float
    winners: tuple[bool, ...]
    constant: float
    constant_rho: float
    constant_omega: float
    gain: float
    gain_t: float | None
    gain_p: float | None
    annotators: int
    items: int

    @property
    def beats_constant(self) -> bool:
        """Return whether the judge is significantly better than the best constant rating."""
        return self.gain_p is not None and self.gain_p < _SIGNIFICANCE

    @property
    def passed(self) -> bool:
        """Return whether the judge may replace annotators and also beats the best constant rating."""
        return self.omega >= _WINNING_SHARE and self.beats_constant


class _Wins(Struct, frozen=True):
    """For one annotator's items, where the candidate, and where the annotator, is at least as close to the others."""

    items: NDArray[np.intp]
    candidate: Numbers
    annotator: Numbers


def alt_test(judge: Numbers, marks: Marks, clusters: Sequence[str], *, epsilon: float) -> AltTest | None:
    """Return the alternative annotator test, by clusters, with the same test for the best constant rating.

    Args:
        judge: the judge's scores on the scale of the labels; NaN where it failed.
        marks: labels, annotators x items.
        clusters: cluster of each item; differences within a cluster are not independent.
        epsilon: the allowance for the cost of human annotators, see `EPSILONS`.

    Returns:
        None for fewer than three annotators with at least thirty items each.

    Source: Calderon, Reichart and Dror, "The alternative annotator test for LLM-as-a-judge", 2025; the t-test over
    clusters and the constant rating are our additions.
    """
    wins = _all_wins(judge, marks, ~np.isnan(judge))
    if len(wins) < MIN_ANNOTATORS:
        return None
    constants = np.unique(marks[~np.isnan(marks)])
    rivals = [_all_wins(np.full(len(judge), rating), marks, ~np.isnan(judge)) for rating in constants]
    rhos = [_mean_wins(rival) for rival in rivals]
    best = int(np.argmax(rhos))
    winners = _winners(wins, clusters, epsilon)
    gain = _gain(wins, rivals[best], clusters)
    return AltTest(
        epsilon=epsilon,
        omega=sum(winners) / len(winners),
        rho=_mean_wins(wins),
        winners=winners,
        constant=float(constants[best]),
        constant_rho=rhos[best],
        constant_omega=sum(_winners(rivals[best], clusters, epsilon)) / len(winners),
        gain=gain.mean,
        gain_t=gain.t,
        gain_p=gain.p_above(0.0),
        annotators=len(wins),
        items=min(len(item.items) for item in wins),
    )


def _all_wins(candidate: Numbers, marks: Marks, scored: Verdicts) -> list[_Wins]:
    found = []
    for annotator, own in enumerate(marks):
        others = np.delete(marks, annotator, axis=0)
        items = np.flatnonzero(scored & ~np.isnan(own) & (~np.isnan(others)).any(axis=0))
        if len(items) < MIN_ITEMS:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            of_candidate = np.nanmean((others[:, items] - candidate[items]) ** 2, axis=0)
            of_annotator = np.nanmean((others[:, items] - own[items]) ** 2, axis=0)
        found.append(
            _Wins(
                items,
                (of_candidate <= of_annotator + _DUST).astype(np.float64),
                (of_annotator <= of_candidate + _DUST).astype(np.float64),
            )
        )
    return found


def _mean_wins(wins: Sequence[_Wins]) -> float:
    return math.fsum(float(item.candidate.mean()) for item in wins) / len(wins)


def _winners(wins: Sequence[_Wins], clusters: Sequence[str], epsilon: float) -> tuple[bool, ...]:
    """Return for each annotator whether the candidate is significantly less than `epsilon` worse.

    The false discovery rate is controlled by the Benjamini-Yekutieli procedure.
    """
    found = []
    for item in wins:
        mean = clustered_mean(item.annotator - item.candidate, [clusters[row] for row in item.items])
        p = mean.p_below(epsilon)
        found.append(1.0 if p is None else p)
    adjusted = stats.false_discovery_control(found, method="by")
    return tuple(bool(p <= _FALSE_DISCOVERY_RATE) for p in adjusted)


def _gain(wins: Sequence[_Wins], rivals: Sequence[_Wins], clusters: Sequence[str]) -> ClusterRobustMean:
    """Return the mean over items of how much more often the candidate wins than its rival."""
    sums, counts = np.zeros(len(clusters)), np.zeros(len(clusters))
    for item, rival in zip(wins, rivals, strict=True):
        sums[item.items] += item.candidate - rival.candidate
        counts[item.items] += 1
    rows: list[int] = np.flatnonzero(counts).tolist()
    return clustered_mean(sums[rows] / counts[rows], [clusters[row] for row in rows])
