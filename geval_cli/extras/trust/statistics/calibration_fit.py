"""Fit a calibration to labels: a threshold, the probability of being good, and clear scores. Pure.

Needs numpy. Nothing is random: labels are split into folds by the order of their clusters.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from geval_cli.extras.trust.statistics.agreement import (
    Codes,
    Confusion,
    Numbers,
    Threshold,
    Verdicts,
    confusion,
    encode,
    threshold_candidates,
)
from geval_cli.extras.trust.statistics.plain import (
    Calibration,
    Estimate,
    Logistic,
    clustered_estimate,
    mixed_estimate,
    rising_blocks,
)

ALPHA = 0.1
"""The share of bad outputs that may be a clear pass, and of good ones that may be a clear fail."""
MIN_ISOTONIC = 100
"""With fewer labels, a logistic curve with its two parameters is closer to the truth than a free one."""
FOLDS = 10
_Z = 1.959963984540054
_DUST = 1e-9
_STEPS, _HALVINGS = 100, 40
_ENOUGH = 1e-13


class Objective(Struct, frozen=True):
    """The objective of a threshold: the Matthews correlation coefficient, or the cost of false passes and fails.

    `costs` are those of a false pass and of a false fail. `prevalence` is the share of good outputs where the judge
    will be used; None for that of the labels.
    """

    costs: tuple[float, float] | None = None
    prevalence: float | None = None

    @property
    def name(self) -> str:
        """`mcc`, or the two costs."""
        return "mcc" if self.costs is None else f"cost {self.costs[0]:g}:{self.costs[1]:g}"

    def value(self, counts: Confusion) -> float | None:
        """Return the quality of verdicts, higher is better; None if it is undefined."""
        good = counts.good / (counts.good + counts.bad) if self.prevalence is None else self.prevalence
        if not counts.good or not counts.bad:
            return None
        false_pass = (1 - good) * counts.false_pass / counts.bad
        false_fail = good * counts.false_fail / counts.good
        if self.costs is not None:
            return -(self.costs[0] * false_pass + self.costs[1] * false_fail)
        true_pass = good - false_fail
        true_fail = 1 - good - false_pass
        passing = true_pass + false_pass
        product = passing * (1 - passing) * good * (1 - good)
        return (true_pass * true_fail - false_pass * false_fail) / math.sqrt(product) if product > 0 else None


def choose_threshold(
    scores: Numbers, good: Verdicts, objective: Objective, *, present: float
) -> Threshold | None:
    """Return the best threshold halfway between two neighbouring scores; None if the objective is undefined for all.

    Of equally good ones, the nearest to the `present` threshold is chosen, then the lower one.
    """
    found = [(objective.value(item.confusion), item) for item in threshold_candidates(scores, good)]
    known = [(value, item) for value, item in found if value is not None]
    if not known:
        return None
    best = max(value for value, _ in known)
    ties = [item for value, item in known if value > best - _DUST]
    return min(ties, key=lambda item: (round(abs(item.threshold - present), 12), item.threshold))


def platt(scores: Numbers, good: Verdicts, weights: Numbers) -> Logistic:
    """Return the logistic curve fitted to the labels (Platt scaling), with smoothed targets.

    A decreasing curve is replaced by a constant: a judge whose scores run against the human labels carries no
    information.

    Source: Platt, "Probabilistic outputs for support vector machines", 1999, fitted by Newton's method as in Lin, Lin
    and Weng, 2007.
    """
    number, others = int(good.sum()), int((~good).sum())
    targets = np.where(good, (number + 1) / (number + 2), 1 / (others + 2))
    mean = float((targets * weights).sum() / weights.sum())
    level = Logistic(0.0, math.log(mean / (1 - mean)))
    if len(scores) and (scores == scores[0]).all():
        return level
    slope, intercept = _newton(scores, targets, weights, level.intercept)
    return Logistic(slope, intercept) if slope > 0 else level


def _newton(scores: Numbers, targets: Numbers, weights: Numbers, start: float) -> tuple[float, float]:
    design = np.column_stack([scores, np.ones(len(scores))])

    def loss(at: Numbers) -> float:
        margin = design @ at
        return float((weights * (np.logaddexp(0, margin) - targets * margin)).sum())

    found = np.array([0.0, start])
    for _ in range(_STEPS):
        chance = 1 / (1 + np.exp(-(design @ found)))
        gradient = design.T @ (weights * (chance - targets))
        curvature = (design.T * (weights * chance * (1 - chance))) @ design
        step = np.linalg.solve(curvature + 1e-12 * np.eye(2), gradient)
        here, share = loss(found), 1.0
        for _ in range(_HALVINGS):
            if loss(found - share * step) <= here:
                break
            share /= 2
        found = found - share * step
        if float(np.abs(step).max()) < _ENOUGH:
            break
    return float(found[0]), float(found[1])


def clear_scores(scores: Numbers, good: Verdicts, alpha: float) -> tuple[float | None, float | None] | None:
    """Return the lowest score that is a clear pass, and the score below which an output is a clear fail.

    On average over outputs like the labelled ones, at most `alpha` of the bad outputs are a clear pass, and at most
    `alpha` of the good ones a clear fail. None if there are too few labels; one side is None if no score is clear.

    Source: Vovk, "Conditional validity of inductive conformal predictors", 2012: split conformal prediction for each
    class separately (Mondrian).
    """
    bad_scores = np.sort(scores[~good])
    good_scores = np.sort(scores[good])
    if min(len(bad_scores), len(good_scores)) < labels_for_bands(alpha):
        return None
    distinct = np.unique(scores)
    bad_above = len(bad_scores) - np.searchsorted(bad_scores, distinct - _DUST)
    good_below = np.searchsorted(good_scores, distinct - _DUST)
    passing = distinct[(bad_above + 1) / (len(bad_scores) + 1) <= alpha + _DUST]
    failing = distinct[(good_below + 1) / (len(good_scores) + 1) <= alpha + _DUST]
    return (
        float(passing[0]) if len(passing) else None,
        float(failing[-1]) if len(failing) else None,
    )


def labels_for_bands(alpha: float) -> int:
    """Return the number of labels per class that are needed to tell which scores are clear: 9 for an alpha of 0.1."""
    return math.ceil(1 / alpha - _DUST) - 1


def labels_per_class(half_width: float, specificity: float = 0.8, sensitivity: float = 0.8) -> int:
    """Return the number of good, and of bad, labels for a balanced accuracy with an interval of ± `half_width`."""
    spread = sensitivity * (1 - sensitivity) + specificity * (1 - specificity)
    return round(_Z**2 * spread / (4 * half_width**2))


def class_weights(good: Verdicts, prevalence: float | None) -> Numbers:
    """Return a weight for each label, so that good ones have the share `prevalence`; all 1 if it is None."""
    weights = np.ones(len(good))
    share = float(good.mean())
    if prevalence is not None and 0 < share < 1:
        weights[good], weights[~good] = prevalence / share, (1 - prevalence) / (1 - share)
    return weights


class Labelled(Struct, frozen=True):
    """Scores and human verdicts of labelled outputs, with the cluster of each.

    `passed` are the current verdicts, which may depend on more than the score; None for those of the current threshold.
    """

    scores: Numbers
    good: Verdicts
    clusters: Sequence[str]
    passed: Verdicts | None = None

    @property
    def groups(self) -> int:
        """The number of clusters with good outputs, or with bad ones if those are fewer."""
        return min(len(set(_named(self.clusters, rows))) for rows in (self.good, ~self.good))

    def take(self, rows: Verdicts) -> "Labelled":
        """Return the outputs that the mask selects, without `passed`."""
        return Labelled(self.scores[rows], self.good[rows], _named(self.clusters, rows))


class FitPlan(Struct, frozen=True):
    """How a calibration is made: the objective, the current threshold, and the kind of curve."""

    objective: Objective
    present: float
    is_isotonic: bool = True


def fit(labelled: Labelled, blank: Calibration, plan: FitPlan) -> Calibration:
    """Return `blank` with the threshold, curve and clear scores that fit the labels.

    If no threshold separates the labels, the current one is kept.
    """
    scores, good = labelled.scores, labelled.good
    chosen = choose_threshold(scores, good, plan.objective, present=plan.present)
    weights = class_weights(good, plan.objective.prevalence)
    # Labels of one cluster are alike: few clusters cannot show how rare a high score of a bad output is elsewhere.
    clear = clear_scores(scores, good, ALPHA) if labelled.groups >= labels_for_bands(ALPHA) else None
    return replace(
        blank,
        threshold=plan.present if chosen is None else chosen.threshold,
        curve=rising_blocks(zip(scores.tolist(), good.tolist(), strict=True), weights.tolist())
        if plan.is_isotonic
        else platt(scores, good, weights),
        alpha=None if clear is None else ALPHA,
        pass_from=None if clear is None else clear[0],
        fail_below=None if clear is None else clear[1],
    )


class HeldOutCheck(Struct, frozen=True):
    """The performance of a calibration on held-out labels.

    Confusion matrices count the labels as they are; with a given prevalence of good outputs, overall shares and means
    are reweighted to it.

    Attributes:
        counts: confusion matrix at its threshold; `present_counts` at the current one.
        accuracy: share of correct verdicts; balanced accuracy is the mean of the shares for good and for bad outputs.
        brier: Brier score: the mean squared difference of the probability from 1 (good) or 0 (bad); `base_brier` with
            the share of good labels as the probability of every output, `score_brier` with the score itself as the
            probability.
        clear: share of outputs with a clear score; None without a band.
        bad_passed: share of bad outputs that are a clear pass; `good_failed` is the share of good ones that are a clear
            fail.
    """

    counts: Confusion
    present_counts: Confusion
    accuracy: Estimate
    present_accuracy: Estimate
    balanced_accuracy: float | None
    present_balanced_accuracy: float | None
    brier: Estimate
    base_brier: Estimate
    score_brier: Estimate
    clear: Estimate | None = None
    bad_passed: Estimate | None = None
    good_failed: Estimate | None = None


def check(found: Calibration, held: Labelled, *, present: float, base: float) -> HeldOutCheck:
    """Return the performance of `found` on other labels.

    `base` is the share of good ones among the labels that it was fitted to.
    """
    return _checked(held, _said(found, held.scores, present=present, base=base))


def folds_of(clusters: Sequence[str]) -> Codes | None:
    """Return the fold of each item, by its cluster: at most ten folds; None for a single cluster."""
    codes = encode(clusters)
    count = min(FOLDS, int(codes.max()) + 1) if len(codes) else 0
    return codes % count if count > 1 else None


def cross_check(
    labelled: Labelled,
    blank: Calibration,
    plan: FitPlan,
    rescored: Callable[[Verdicts], Numbers] | None = None,
) -> HeldOutCheck | None:
    """Return the cross-validated performance of calibrations, fold by fold; None for a single cluster.

    Args:
        labelled: all labels.
        blank: what is the same in all calibrations.
        plan: how they are made.
        rescored: returns the scores of all outputs, derived from the labels that a mask selects; None for fixed scores.
    """
    folds = folds_of(labelled.clusters)
    if folds is None:
        return None
    said = np.zeros((len(_COLUMNS), len(folds)))
    for fold in range(int(folds.max()) + 1):
        held = folds == fold
        scored = labelled if rescored is None else replace(labelled, scores=rescored(~held))
        rest = scored.take(~held)
        made = fit(rest, blank, plan)
        weights = class_weights(rest.good, plan.objective.prevalence)
        base = float(weights[rest.good].sum() / weights.sum())
        said[:, held] = _said(made, scored.scores[held], present=plan.present, base=base)
    if labelled.passed is not None:
        said[_COLUMNS.index("present")] = labelled.passed
    return _checked(labelled, said, plan.objective.prevalence)


_COLUMNS = ("passed", "present", "chance", "base", "clear pass", "clear fail")


def _said(found: Calibration, scores: Numbers, *, present: float, base: float) -> NDArray[np.float64]:
    """Return what a calibration says of scores, one row for each of `_COLUMNS`; NaN where it says nothing."""
    nowhere = np.full(len(scores), np.nan)
    has_band = found.alpha is not None
    pass_from = math.inf if found.pass_from is None else found.pass_from
    fail_below = -math.inf if found.fail_below is None else found.fail_below
    return np.vstack(
        [
            scores >= found.threshold - _DUST,
            scores >= present - _DUST,
            np.array([found.p_pass(score) for score in scores.tolist()]),
            np.full(len(scores), base),
            scores >= pass_from - _DUST if has_band else nowhere,
            scores < fail_below - _DUST if has_band else nowhere,
        ]
    ).astype(np.float64)


def _checked(held: Labelled, said: NDArray[np.float64], prevalence: float | None = None) -> HeldOutCheck:
    good = held.good
    truth = held.good.astype(np.float64)
    passed, present, chance, base, clear_pass, clear_fail = said
    counts, before = confusion(passed > 0, good), confusion(present > 0, good)
    known = ~np.isnan(clear_pass)

    def plain(values: Numbers, rows: Verdicts) -> Estimate:
        return clustered_estimate(values[rows].tolist(), _named(held.clusters, rows))

    def share(values: Numbers, rows: Verdicts) -> Estimate | None:
        return plain(values, rows) if rows.any() else None

    everything = np.ones(len(good), dtype=bool)

    def mean(values: Numbers, rows: Verdicts = everything) -> Estimate:
        if prevalence is None:
            return plain(values, rows)
        sides = ((prevalence, plain(values, rows & good)), (1 - prevalence, plain(values, rows & ~good)))
        return mixed_estimate(sides, len(set(_named(held.clusters, rows))))

    def mean_square(chances: Numbers) -> Estimate:
        return mean((chances - truth) ** 2)

    return HeldOutCheck(
        counts=counts,
        present_counts=before,
        accuracy=mean((passed == truth).astype(np.float64)),
        present_accuracy=mean((present == truth).astype(np.float64)),
        balanced_accuracy=balanced_accuracy(counts),
        present_balanced_accuracy=balanced_accuracy(before),
        brier=mean_square(chance),
        base_brier=mean_square(base),
        score_brier=mean_square(held.scores),
        clear=mean(np.maximum(clear_pass, clear_fail), known) if known.any() else None,
        bad_passed=share(clear_pass, known & ~good),
        good_failed=share(clear_fail, known & good),
    )


def _named(clusters: Sequence[str], rows: Verdicts) -> list[str]:
    places: list[int] = np.flatnonzero(rows).tolist()
    return [clusters[place] for place in places]


def balanced_accuracy(counts: Confusion) -> float | None:
    """Return the mean of sensitivity and specificity; None without good or without bad outputs."""
    if not counts.good or not counts.bad:
        return None
    return (counts.true_pass / counts.good + counts.true_fail / counts.bad) / 2
