"""How far a judge and people agree beyond order: kappa, alpha, the ceiling, verdicts and the alt-test.

Pure; needs numpy and scipy. Marks are a matrix, annotators x items, NaN where somebody gave none.
"""

import math
import warnings
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy import stats

from geval_cli.statistics.correlation import Numbers, encode, spearman

Marks = NDArray[np.float64]
Verdicts = NDArray[np.bool_]

EPSILONS = {"expert": 0.2, "skilled": 0.15, "crowd": 0.1}
"""How much worse than an annotator a judge may be, since it costs less; by who the annotators are."""
MIN_ANNOTATORS, MIN_ITEMS = 3, 30
_FALSE_DISCOVERY_RATE = 0.05
_WINNING_SHARE = 0.5
_SIGNIFICANCE = 0.05
_DIGITS = 12
_DUST = 1e-9
"""Differences that rounding makes; ties must stay ties."""

_TINY = 1e-12


def quadratic_kappa(x: Numbers, y: Numbers, shares: Numbers | None = None) -> float | None:
    """Return Cohen's kappa with quadratic weights of ratings at equal distances; None when both are one constant.

    It is one minus the mean squared difference over the one that chance would give, so categories need no list. Items
    count by `shares`, if given.

    Source: Cohen, "Weighted kappa", 1968.
    """
    if not len(x):
        return None
    mx, my = (np.average(side, weights=shares) for side in (x, y))
    by_chance = float(np.average((x - mx) ** 2 + (y - my) ** 2, weights=shares) + (mx - my) ** 2)
    return 1 - float(np.average((x - y) ** 2, weights=shares)) / by_chance if by_chance > _DUST else None


def cohen_kappa(x: Verdicts, y: Verdicts) -> float | None:
    """Return Cohen's kappa of two verdicts on the same items; None when both are one constant."""
    return quadratic_kappa(x.astype(np.float64), y.astype(np.float64))


def ordinal_alpha(marks: Marks) -> float | None:
    """Return Krippendorff's alpha for ordinal marks; None when no item has two marks, or all marks are equal.

    The ordinal distance of two values is that of their mean ranks among all marks that have a partner, so this is the
    alpha of squared differences of ranks. Unlike a matrix of all pairs of values it stays small when a judge's scores
    are all different.

    Source: Krippendorff, "Computing Krippendorff's alpha-reliability", 2011.
    """
    pairable = marks[:, (~np.isnan(marks)).sum(axis=0) > 1]
    is_given = ~np.isnan(pairable)
    given = pairable[is_given]
    if not len(given) or bool((given == given[0]).all()):
        return None
    ranks = np.zeros(pairable.shape)
    ranks[is_given] = stats.rankdata(given)
    ranks[is_given] -= ranks[is_given].mean()  # squares of distances from the mean lose no digits
    counts = is_given.sum(axis=0)
    within = counts * (ranks**2).sum(axis=0) - ranks.sum(axis=0) ** 2
    observed = float((within / (counts - 1)).sum()) / len(given)
    expected = float((ranks**2).sum()) / (len(given) - 1)
    return 1 - observed / expected


def means_of_others(marks: Marks, annotator: int) -> Numbers:
    """Return the mean of the other annotators' marks for each item; NaN where nobody else gave one."""
    others = np.delete(marks, annotator, axis=0)
    counts = (~np.isnan(others)).sum(axis=0)
    with np.errstate(invalid="ignore"):
        return np.where(counts > 0, np.nansum(others, axis=0) / np.maximum(counts, 1), np.nan)


class Ceiling(Struct, frozen=True):
    """How well one person predicts the others, and the judge the same others: mean Spearman over the annotators."""

    people: float
    judge: float


def ceiling(judge: Numbers, marks: Marks) -> Ceiling | None:
    """Return the ceiling that people set; None of fewer than two annotators, or where a correlation is undefined.

    Items that the judge gave no score are left out of both sides.
    """
    found = []
    for annotator, own in enumerate(marks):
        others = np.round(means_of_others(marks, annotator), _DIGITS)
        here = ~np.isnan(own) & ~np.isnan(others) & ~np.isnan(judge)
        found.append((spearman(own[here], others[here]), spearman(judge[here], others[here])))
    people = [person for person, _ in found if person is not None]
    judged = [rho for _, rho in found if rho is not None]
    if len(marks) < 2 or len(people) < len(found) or len(judged) < len(found):  # noqa: PLR2004 - one has no others
        return None
    return Ceiling(math.fsum(people) / len(people), math.fsum(judged) / len(judged))


class Confusion(Struct, frozen=True):
    """Counts of verdicts: `false_pass` are bad outputs that pass, `false_fail` good ones that fail."""

    true_pass: int
    false_pass: int
    false_fail: int
    true_fail: int

    @property
    def bad(self) -> int:
        """All bad outputs."""
        return self.false_pass + self.true_fail

    @property
    def good(self) -> int:
        """All good outputs."""
        return self.true_pass + self.false_fail

    @property
    def mcc(self) -> float | None:
        """Matthews' correlation; None where all are good or bad, or all pass or fail."""
        tp, fp, fn, tn = self.true_pass, self.false_pass, self.false_fail, self.true_fail
        product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
        return (tp * tn - fp * fn) / math.sqrt(product) if product else None


def confusion(passed: Verdicts, good: Verdicts) -> Confusion:
    """Return the counts of the judge's verdicts against people's."""
    return Confusion(
        int((passed & good).sum()),
        int((passed & ~good).sum()),
        int((~passed & good).sum()),
        int((~passed & ~good).sum()),
    )


class Threshold(Struct, frozen=True):
    """A threshold and the verdicts that it makes."""

    threshold: float
    confusion: Confusion

    @property
    def mcc(self) -> float | None:
        """Matthews' correlation of these verdicts."""
        return self.confusion.mcc


def threshold_candidates(scores: Numbers, good: Verdicts) -> list[Threshold]:
    """Return a threshold halfway between each two neighbouring scores, lowest first, with the verdicts it makes.

    Each makes other verdicts than the one before, and none passes or fails everything.
    """
    distinct, places = np.unique(scores, return_inverse=True)
    goods = np.bincount(places, good, len(distinct))
    bads = np.bincount(places, ~good, len(distinct))
    # From the end: how many good and bad outputs have this score or a higher one.
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
    """Return the threshold with the highest Matthews correlation; None when no threshold tells anything apart.

    Args:
        scores: of the judge.
        good: whether people find the output good.
        present: the threshold of today; of equally good ones the nearest to it is taken, then the lower one.
    """
    candidates = [(item.mcc, item) for item in threshold_candidates(scores, good)]
    known = [(mcc, item) for mcc, item in candidates if mcc is not None]
    if not known:
        return None
    best = max(mcc for mcc, _ in known)
    ties = [item for mcc, item in known if mcc > best - _DUST]
    return min(ties, key=lambda item: abs(item.threshold - present))


class ClusterRobustMean(Struct, frozen=True):
    """A mean, its standard error over clusters, and its degrees of freedom."""

    mean: float
    error: float
    freedom: int

    def p_below(self, bound: float) -> float | None:
        """Return the p-value of the claim that the true mean lies below `bound`; None of one cluster."""
        return None if self.freedom < 1 else self._p(bound - self.mean)

    def p_above(self, bound: float) -> float | None:
        """Return the p-value of the claim that the true mean lies above `bound`; None of one cluster."""
        return None if self.freedom < 1 else self._p(self.mean - bound)

    @property
    def t(self) -> float | None:
        """The mean over its error; None where that is 0."""
        return self.mean / self.error if self.error > _DUST else None

    def _p(self, distance: float) -> float:
        if self.error <= _DUST:  # no cluster differs from another: the claim holds in all of them, or in none
            return 0.0 if distance > _DUST else 1.0
        return float(stats.t.sf(distance / self.error, self.freedom))


def clustered_mean(values: Numbers, clusters: Sequence[str]) -> ClusterRobustMean:
    """Return the mean of values and its error; se² = G/(G-1) * sum over clusters of (sum of distances)² / n²."""
    codes, mean = encode(clusters), float(values.mean())
    sums = np.bincount(codes, values - mean)
    count = len(sums)
    squares = float((sums**2).sum()) * count / (count - 1) if count > 1 else 0.0
    return ClusterRobustMean(mean, math.sqrt(squares) / len(values), count - 1)


def effective_votes(errors: Numbers, noise: float = 0.0) -> float | None:
    """Return how many independent judges a jury is worth: k * tr(C) / sum(C), C the covariance of its judges' errors.

    Args:
        errors: score minus label, a row for each judge.
        noise: the variance of the mean label itself, which all errors share and which is no fault of the judges.
    """
    count, items = errors.shape
    if count < 2 or items < 2:  # noqa: PLR2004 - a covariance is of two, from two on
        return None
    shared = np.cov(errors) - noise
    total, own = float(shared.sum()), float(np.trace(shared))
    return count * own / total if total > _TINY and own > _TINY else None


class AltTest(Struct, frozen=True):
    """The outcome of the alternative annotator test: may a judge stand in for an annotator?

    Attributes:
        epsilon: by how much its chance to win may be lower.
        omega: the share of annotators that it may stand in for; it wins from one half on.
        rho: the mean chance that it is at least as near to the others as an annotator is.
        winners: for each annotator, whether the judge may stand in.
        constant: the best rating that could always be given, 0..1, and `constant_rho`, `constant_omega` of it.
        gain: how much more often the judge wins than that, with `gain_t` over clusters and its p-value.
        annotators: how many had enough items; `items`: the fewest of one of them.
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
        """Return whether the judge is shown to be better than always giving the same rating."""
        return self.gain_p is not None and self.gain_p < _SIGNIFICANCE

    @property
    def passed(self) -> bool:
        """Return whether the judge may stand in for annotators, and does it by looking at the outputs."""
        return self.omega >= _WINNING_SHARE and self.beats_constant


class _Wins(Struct, frozen=True):
    """Of one annotator's items: where the candidate is at least as near to the others, and where the annotator is."""

    items: NDArray[np.intp]
    candidate: Numbers
    annotator: Numbers


def alt_test(judge: Numbers, marks: Marks, clusters: Sequence[str], *, epsilon: float) -> AltTest | None:
    """Return the alternative annotator test, over clusters, beside the same for the best constant rating.

    Args:
        judge: its scores, NaN where it broke; on the scale of the marks.
        marks: annotators x items.
        clusters: of the items; their differences are not independent within one.
        epsilon: the cost of people, see `EPSILONS`.

    Returns:
        None with fewer than three annotators of thirty items each.

    Source: Calderon, Reichart and Dror, "The alternative annotator test for LLM-as-a-judge", 2025; the t-test over
    clusters and the constant rating are ours.
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
    """Return for each annotator whether the candidate is shown to be less than `epsilon` worse."""
    found = []
    for item in wins:
        mean = clustered_mean(item.annotator - item.candidate, [clusters[row] for row in item.items])
        p = mean.p_below(epsilon)
        found.append(1.0 if p is None else p)
    adjusted = stats.false_discovery_control(found, method="by")
    return tuple(bool(p <= _FALSE_DISCOVERY_RATE) for p in adjusted)


def _gain(wins: Sequence[_Wins], rivals: Sequence[_Wins], clusters: Sequence[str]) -> ClusterRobustMean:
    """Return the mean over items of how much oftener the candidate wins than its rival."""
    sums, counts = np.zeros(len(clusters)), np.zeros(len(clusters))
    for item, rival in zip(wins, rivals, strict=True):
        sums[item.items] += item.candidate - rival.candidate
        counts[item.items] += 1
    rows: list[int] = np.flatnonzero(counts).tolist()
    return clustered_mean(sums[rows] / counts[rows], [clusters[row] for row in rows])
