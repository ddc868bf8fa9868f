"""Calibration held against scikit-learn and scipy, and against figures of published data."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from support.judged_data import summaries

from geval_cli.extras.trust.statistics.calibration_fit import (
    FitPlan,
    HeldOutCheck,
    Labelled,
    Objective,
    balanced_accuracy,
    check,
    choose_threshold,
    class_weights,
    clear_scores,
    cross_check,
    fit,
    labels_for_bands,
    labels_per_class,
    platt,
)
from geval_cli.extras.trust.statistics.plain import Calibration, Logistic, ScoreBand, chance_at, rising_blocks

EXACT = 1e-9
SEEDS = range(12)


def world(seed: int, n: int = 150) -> tuple[Any, Any]:
    """Scores on a scale of some steps, and labels that follow them."""
    draw = np.random.default_rng(seed)
    steps = int(draw.integers(2, 40))
    scores = np.round(draw.random(n) * steps) / steps
    return scores, draw.random(n) < 0.15 + 0.7 * scores


def blank(**changes: Any) -> Calibration:
    given = {"metric": "m", "key": None, "parts": {}, "n": 1, "good": 1, "clusters": 1, "good_at": 0.75}
    return Calibration(**{**given, "objective": "mcc", "threshold": 0.5, "curve": (), **changes})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("prevalence", [None, 0.9])
def test_isotonic_regression_is_that_of_scikit_learn(seed: int, prevalence: float | None) -> None:
    from sklearn.isotonic import IsotonicRegression

    scores, good = world(seed)
    weights = class_weights(good, prevalence)
    given = None if prevalence is None else weights.tolist()
    blocks = rising_blocks(zip(scores.tolist(), good.tolist(), strict=True), given)
    oracle = IsotonicRegression(out_of_bounds="clip").fit(scores, good.astype(float), weights)
    asked = np.linspace(-0.2, 1.2, 141)
    ours = [chance_at(blocks, float(score)) for score in asked]
    assert ours == pytest.approx(oracle.predict(asked), abs=EXACT)
    assert sum(block.n for block in blocks) == len(scores)
    assert all(before.p < after.p for before, after in pairwise(blocks))


@pytest.mark.parametrize("seed", SEEDS)
def test_platt_scaling_is_logistic_regression_on_his_targets(seed: int) -> None:
    from sklearn.linear_model import LogisticRegression

    scores, good = world(seed, 60)
    found = platt(scores, good, np.ones(len(scores)))
    high, low = (good.sum() + 1) / (good.sum() + 2), 1 / ((~good).sum() + 2)
    targets = np.where(good, high, low)
    twice, truth = np.concatenate([scores, scores])[:, None], np.repeat([1, 0], len(scores))
    oracle = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-14, max_iter=500).fit(
        twice, truth, np.concatenate([targets, 1 - targets])
    )
    assert found.slope == pytest.approx(oracle.coef_[0][0], abs=1e-7)
    assert found.intercept == pytest.approx(oracle.intercept_[0], abs=1e-7)
    asked = np.linspace(0, 1, 11)
    assert [found.at(score) for score in asked] == pytest.approx(
        oracle.predict_proba(asked[:, None])[:, 1], abs=EXACT
    )


def test_a_judge_whose_scores_run_against_people_says_nothing() -> None:
    scores = np.linspace(0, 1, 40)
    found = platt(scores, scores < 0.5, np.ones(40))
    assert (found.slope, round(found.at(0.9), 9)) == (0.0, 0.5)
    (only,) = rising_blocks(zip(scores.tolist(), (scores < 0.5).tolist(), strict=True))
    assert (only.p, only.n) == (0.5, 40)


def test_a_steep_logistic_curve_does_not_overflow() -> None:
    curve = Logistic(5000.0, -2500.0)
    assert (curve.at(0.0), curve.at(0.5), curve.at(1.0)) == (0.0, 0.5, 1.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_threshold_has_the_highest_mcc(seed: int) -> None:
    from sklearn.metrics import balanced_accuracy_score, matthews_corrcoef

    scores, good = world(seed)
    distinct = np.unique(scores)
    tried = (distinct[1:] + distinct[:-1]) / 2
    values = [matthews_corrcoef(good, scores >= threshold) for threshold in tried]
    found = choose_threshold(scores, good, Objective(), present=0.5)
    assert found is not None
    assert found.confusion.mcc == pytest.approx(max(values), abs=EXACT)
    assert Objective().value(found.confusion) == pytest.approx(max(values), abs=EXACT)
    ties = tried[np.isclose(values, max(values), atol=EXACT)]
    assert abs(found.threshold - 0.5) == pytest.approx(min(abs(ties - 0.5)), abs=EXACT)
    assert balanced_accuracy(found.confusion) == pytest.approx(
        balanced_accuracy_score(good, scores >= found.threshold), abs=EXACT
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("costs", "prevalence"), [((3.0, 1.0), None), ((1.0, 5.0), None), ((3.0, 1.0), 0.9)])
def test_the_threshold_has_the_lowest_cost(
    seed: int, costs: tuple[float, float], prevalence: float | None
) -> None:
    scores, good = world(seed)
    weights = class_weights(good, prevalence)
    distinct = np.unique(scores)

    def cost(threshold: float) -> float:
        passed = scores >= threshold
        return float(
            costs[0] * weights[passed & ~good].sum() + costs[1] * weights[~passed & good].sum()
        ) / len(scores)

    found = choose_threshold(scores, good, Objective(costs, prevalence), present=0.5)
    assert found is not None
    assert cost(found.threshold) == pytest.approx(
        min(map(cost, (distinct[1:] + distinct[:-1]) / 2)), abs=EXACT
    )


def test_mcc_at_another_prevalence_is_that_of_weighted_labels() -> None:
    from sklearn.metrics import matthews_corrcoef

    scores, good = world(3)
    found = choose_threshold(scores, good, Objective(prevalence=0.9), present=0.5)
    assert found is not None
    oracle = matthews_corrcoef(good, scores >= found.threshold, sample_weight=class_weights(good, 0.9))
    assert Objective(prevalence=0.9).value(found.confusion) == pytest.approx(oracle, abs=EXACT)


def test_of_equal_thresholds_the_nearest_to_the_present_one_is_taken() -> None:
    scores = np.array([0.0, 0.25, 0.5, 0.75])
    good = np.array([False, True, False, True])
    for present, expected in ((0.0, 0.125), (1.0, 0.625), (0.375, 0.125)):
        found = choose_threshold(scores, good, Objective(), present=present)
        assert found is not None
        assert found.threshold == expected


def test_one_score_or_one_class_has_no_threshold() -> None:
    same, good = np.full(10, 0.5), np.arange(10) % 2 == 0
    assert choose_threshold(same, good, Objective(), present=0.5) is None
    assert choose_threshold(np.linspace(0, 1, 10), np.full(10, True), Objective(), present=0.5) is None


def test_labels_that_bands_and_advice_need() -> None:
    assert labels_for_bands(0.1) == 9
    assert labels_for_bands(0.05) == 19
    assert labels_per_class(0.1) == 31


@pytest.mark.parametrize(("bad", "is_there"), [(8, False), (9, True)])
def test_bands_need_nine_of_each_class(bad: int, is_there: bool) -> None:
    good = np.array([False] * bad + [True] * 20)
    assert (clear_scores(good.astype(float), good, 0.1) is not None) is is_there


@pytest.mark.parametrize("seed", SEEDS)
def test_bands_by_their_definition(seed: int) -> None:
    scores, good = world(seed)
    found = clear_scores(scores, good, 0.1)
    assert found is not None
    bad, fine = scores[~good], scores[good]
    passing = [t for t in np.unique(scores) if ((bad >= t).sum() + 1) / (len(bad) + 1) <= 0.1]
    failing = [t for t in np.unique(scores) if ((fine < t).sum() + 1) / (len(fine) + 1) <= 0.1]
    assert found == (min(passing, default=None), max(failing, default=None))


def test_errors_of_clear_scores_are_as_rare_as_promised() -> None:
    """Over many draws at most one in ten bad outputs is a clear pass, and of good ones a clear fail."""
    draw, passed, failed = np.random.default_rng(8), [], []
    for _ in range(300):
        good = draw.random(160) < 0.5
        scores = np.round(np.clip(draw.normal(0.35 + 0.3 * good, 0.2), 0, 1), 2)
        band = clear_scores(scores[:80], good[:80], 0.1)
        assert band is not None
        later, truth = scores[80:], good[80:]
        passed.append((later[~truth] >= (2.0 if band[0] is None else band[0])).mean())
        failed.append((later[truth] < (-1.0 if band[1] is None else band[1])).mean())
    assert 0.05 <= np.mean(passed) <= 0.105
    assert 0.05 <= np.mean(failed) <= 0.105


@pytest.mark.parametrize(
    ("band", "expected"),
    [
        ({"pass_from": 0.8, "fail_below": 0.4}, [False, True, True, False]),
        ({"pass_from": None, "fail_below": 0.4}, [False, True, True, True]),
        ({"pass_from": 0.3, "fail_below": 0.9}, [False, False, False, False]),
        ({"alpha": None}, [None, None, None, None]),
    ],
)
def test_what_is_borderline(band: dict[str, Any], expected: list[bool | None]) -> None:
    found = blank(**{"alpha": 0.1, **band})
    assert [found.is_borderline(score) for score in (0.2, 0.4, 0.7, 0.8)] == expected


def test_a_score_that_rounding_moved_is_the_same_score() -> None:
    found = blank(alpha=0.1, pass_from=0.3, fail_below=0.3)
    assert found.is_borderline(0.1 + 0.2) is False
    assert found.is_borderline(0.3 - 1e-12) is False


def test_between_blocks_the_chance_rises_in_a_line() -> None:
    blocks = (ScoreBand(0.0, 0.25, 0.1, 5), ScoreBand(0.75, 1.0, 0.9, 5))
    assert [chance_at(blocks, score) for score in (-1, 0.1, 0.25, 0.5, 0.75, 2)] == pytest.approx(
        [0.1, 0.1, 0.1, 0.5, 0.9, 0.9]
    )


def halves(metric: str) -> tuple[Labelled, Labelled]:
    """Outputs of the first fifty documents, and those of the others."""
    rows = [row for row in summaries() if row["metric"] == metric]
    first = set(list(dict.fromkeys(row["doc"] for row in rows))[:50])

    def part(is_first: bool) -> Labelled:
        kept = [row for row in rows if (row["doc"] in first) is is_first and row["score"] is not None]
        return Labelled(
            np.array([row["score"] for row in kept]),
            np.array([sum(row["labels"].values()) >= 12 for row in kept]),
            [row["doc"] for row in kept],
        )

    return part(True), part(False)


def calibrated(metric: str) -> tuple[Calibration, HeldOutCheck]:
    learnt, held = halves(metric)
    found = fit(learnt, blank(), FitPlan(Objective(), present=0.75))
    return found, check(found, held, present=0.75, base=float(learnt.good.mean()))


@pytest.mark.parametrize(
    ("metric", "threshold", "accuracy", "present"),
    [("coherence", 0.9375, 0.613333, 0.546667), ("fluency", 0.3125, 0.9, 0.891667)],
)
def test_thresholds_of_published_data(metric: str, threshold: float, accuracy: float, present: float) -> None:
    found, checked = calibrated(metric)
    assert found.threshold == threshold
    assert checked.accuracy.value == pytest.approx(accuracy, abs=1e-6)
    assert checked.present_accuracy.value == pytest.approx(present, abs=1e-6)


def test_mcc_of_published_data() -> None:
    _, checked = calibrated("coherence")
    assert checked.counts.mcc == pytest.approx(0.336632, abs=1e-6)
    assert checked.present_counts.mcc == pytest.approx(0.277093, abs=1e-6)


@pytest.mark.parametrize(
    ("metric", "brier", "base", "score"),
    [("coherence", 0.214099, 0.241775, 0.428984), ("fluency", 0.066920, 0.094, 0.081094)],
)
def test_brier_scores_of_published_data(metric: str, brier: float, base: float, score: float) -> None:
    _, checked = calibrated(metric)
    found = (checked.brier.value, checked.base_brier.value, checked.score_brier.value)
    assert found == pytest.approx((brier, base, score), abs=1e-6)


def test_the_curve_of_published_data() -> None:
    found, _ = calibrated("coherence")
    assert isinstance(found.curve, tuple)
    assert [(block.low, block.high, block.n) for block in found.curve] == [
        (0, 0, 39),
        (0.25, 0.875, 158),
        (1, 1, 403),
    ]
    assert [block.p for block in found.curve] == pytest.approx([0.076923, 0.139241, 0.526055], abs=1e-6)


@pytest.mark.parametrize(
    ("metric", "pass_from", "clear"),
    [
        ("fluency", 0.875, 0.785),
        ("coherence", None, 0.18),
        ("relevance", None, 0.17),
        ("consistency", None, 0.11),
    ],
)
def test_clear_scores_of_published_data(metric: str, pass_from: float | None, clear: float) -> None:
    found, checked = calibrated(metric)
    assert checked.clear is not None
    assert found.pass_from == pass_from
    assert checked.clear.value == pytest.approx(clear, abs=5e-3)
    if pass_from is not None:
        assert checked.bad_passed is not None
        assert checked.good_failed is not None
        assert (found.fail_below, checked.clear.value) == (0.75, 0.785)
        assert checked.bad_passed.value == pytest.approx(0.0806, abs=5e-5)
        assert checked.good_failed.value == pytest.approx(0.0855, abs=5e-5)


def test_labels_are_held_back_by_whole_clusters() -> None:
    """A judge that knows nothing: within a cluster all labels are equal, so a leak would look like skill."""
    draw = np.random.default_rng(5)
    clusters = [str(number // 8) for number in range(240)]
    scores = np.repeat(draw.random(30), 8)
    good = np.repeat(draw.random(30) < 0.5, 8)
    labelled = Labelled(scores, good, clusters)
    checked = cross_check(labelled, blank(), FitPlan(Objective(), present=0.5))
    assert checked is not None
    assert checked.accuracy.value is not None
    assert checked.accuracy.value < 0.7
    assert (checked.accuracy.n, checked.accuracy.clusters) == (240, 30)
    assert checked.counts.good + checked.counts.bad == 240


def test_one_cluster_cannot_be_held_back() -> None:
    scores, good = world(1, 20)
    assert cross_check(Labelled(scores, good, ["a"] * 20), blank(), FitPlan(Objective(), present=0.5)) is None


def test_weights_have_the_share_that_was_asked_for() -> None:
    good = np.arange(40) % 4 == 0
    weights = class_weights(good, 0.9)
    assert weights[good].sum() / weights.sum() == pytest.approx(0.9)
    assert class_weights(good, None).tolist() == [1.0] * 40
    assert math.isclose(weights.sum(), 40)
