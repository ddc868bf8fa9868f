"""Agreement of judges and people, against scikit-learn, krippendorff, statsmodels and the definitions."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from support.cluster_errors import cr2

from geval_cli.extras.trust.statistics.agreement import (
    Confusion,
    Marks,
    Numbers,
    alt_test,
    best_threshold,
    ceiling,
    clustered_mean,
    cohen_kappa,
    confusion,
    effective_votes,
    means_of_others,
    ordinal_alpha,
    quadratic_kappa,
    spearman,
    threshold_candidates,
)

EXACT = 1e-9
NAN = float("nan")


def array(*values: float) -> Numbers:
    return np.array(values, dtype=np.float64)


def ratings(*shape: int, seed: int = 1) -> Numbers:
    return np.random.default_rng(seed).integers(1, 6, size=shape).astype(np.float64)


class TestKappa:
    def test_with_quadratic_weights(self) -> None:
        from sklearn.metrics import cohen_kappa_score

        x, y = ratings(2, 300)
        y = np.rint((x + y) / 2)
        expected = cohen_kappa_score(x.astype(int), y.astype(int), weights="quadratic", labels=range(1, 6))
        assert quadratic_kappa(x, y) == pytest.approx(expected, abs=EXACT)

    def test_of_verdicts(self) -> None:
        from sklearn.metrics import cohen_kappa_score

        x, y = ratings(2, 300) > 3
        assert cohen_kappa(x, y) == pytest.approx(cohen_kappa_score(x, y), abs=EXACT)

    @pytest.mark.parametrize(
        ("x", "y", "expected"),
        [
            (array(), array(), None),
            (array(3, 3), array(3, 3), None),
            (array(3, 3), array(4, 4), 0.0),
            (array(1, 5), array(1, 5), 1.0),
            (array(1, 5), array(5, 1), -1.0),
            (array(2), array(4), 0.0),
        ],
    )
    def test_of_little(self, x: Numbers, y: Numbers, expected: float | None) -> None:
        assert quadratic_kappa(x, y) == expected


class TestAlpha:
    @pytest.mark.parametrize("missing", [0.0, 0.5])
    def test_is_that_of_the_library(self, missing: float) -> None:
        import krippendorff

        marks = np.rint((ratings(4, 80) + ratings(80, seed=2)) / 2)
        marks[np.random.default_rng(3).random(marks.shape) < missing] = NAN
        expected = krippendorff.alpha(reliability_data=marks, level_of_measurement="ordinal")
        assert ordinal_alpha(marks) == pytest.approx(expected, abs=EXACT)

    def test_of_a_judge_whose_scores_are_all_different_is_that_of_the_library_too(self) -> None:
        import krippendorff

        marks = np.vstack([ratings(2, 60), np.random.default_rng(6).random(60) * 4 + 1])
        expected = krippendorff.alpha(reliability_data=marks, level_of_measurement="ordinal")
        assert ordinal_alpha(marks) == pytest.approx(expected, abs=EXACT)

    def test_of_many_items_takes_little_memory(self) -> None:
        """A matrix of all pairs of values would have 40,000 rows and columns."""
        marks = np.random.default_rng(7).random((2, 20_000))
        assert ordinal_alpha(marks) == pytest.approx(0, abs=0.05)

    def test_of_two_who_agree_is_one(self) -> None:
        assert ordinal_alpha(np.array([[1.0, 2, 3], [1, 2, 3]])) == 1.0

    @pytest.mark.parametrize(
        "marks",
        [
            [[1.0, 2, 3]],
            [[2.0, 2, 2], [2, 2, 2]],
            [[1.0, NAN], [NAN, 2]],
            [[NAN, NAN], [NAN, NAN]],
            [[1.0, 1, 3], [1, 1, NAN]],
        ],
    )
    def test_is_not_defined_without_two_marks_of_an_item_that_could_differ(
        self, marks: list[list[float]]
    ) -> None:
        assert ordinal_alpha(np.array(marks)) is None


class TestCeiling:
    def test_is_the_mean_over_annotators(self) -> None:
        truth = ratings(60)
        marks = np.clip(truth + np.random.default_rng(4).integers(-1, 2, size=(3, 60)), 1, 5)
        judge = truth + np.random.default_rng(5).normal(size=60)
        found = ceiling(judge, marks)
        others = [(marks.sum(axis=0) - own) / 2 for own in marks]
        people = [stats.spearmanr(own, rest).statistic for own, rest in zip(marks, others, strict=True)]
        judged = [stats.spearmanr(judge, rest).statistic for rest in others]
        assert found is not None
        assert (found.people, found.judge) == pytest.approx((np.mean(people), np.mean(judged)), abs=EXACT)

    def test_leaves_out_what_the_judge_or_the_annotator_did_not_mark(self) -> None:
        marks = np.array([[1.0, 2, 3, 4, NAN, 5], [2, 2, 3, 5, 1, NAN], [1, 3, NAN, 4, 2, 4]])
        judge = array(1, 2, 3, NAN, 2, 5)
        found = ceiling(judge, marks)
        keep = ~np.isnan(judge)
        again = ceiling(judge[keep], marks[:, keep])
        assert found == again
        assert found is not None
        own, rest = marks[0][[0, 1, 2, 5]], array(1.5, 2.5, 3, 4)
        assert means_of_others(marks, 0)[[0, 1, 2, 5]].tolist() == rest.tolist()
        assert spearman(own, rest) == 1.0

    @pytest.mark.parametrize(
        "marks", [[[1.0, 2, 3]], [[1.0, 2, 3], [2, 2, 2]], [[1.0, NAN, NAN], [NAN, 2, 3]]]
    )
    def test_is_not_defined_for_one_annotator_or_constant_ones(self, marks: list[list[float]]) -> None:
        assert ceiling(array(1, 2, 3), np.array(marks)) is None


class TestVerdicts:
    def test_counts_and_mcc(self) -> None:
        from sklearn.metrics import confusion_matrix, matthews_corrcoef

        passed, good = ratings(2, 200) > 3
        found = confusion(passed, good)
        ((tn, fp), (fn, tp)) = confusion_matrix(good, passed)
        assert found == Confusion(tp, fp, fn, tn)
        assert found.mcc == pytest.approx(matthews_corrcoef(good, passed), abs=EXACT)
        assert (found.bad, found.good) == (fp + tn, tp + fn)

    def test_every_candidate_is_what_its_threshold_does(self) -> None:
        scores, good = ratings(100) / 5, ratings(100, seed=9) > 3
        found = threshold_candidates(scores, good)
        assert [round(item.threshold, 9) for item in found] == [0.3, 0.5, 0.7, 0.9]
        for item in found:
            assert item.confusion == confusion(scores >= item.threshold, good)

    def test_the_best_threshold_has_the_highest_mcc(self) -> None:
        from sklearn.metrics import matthews_corrcoef

        draw = np.random.default_rng(11)
        scores = draw.random(300)
        good = scores + draw.normal(size=300) * 0.3 > 0.6
        best = best_threshold(scores, good, present=0.5)
        tried = [matthews_corrcoef(good, scores >= cut) for cut in np.linspace(0, 1, 80)]
        assert best is not None
        assert best.mcc is not None
        assert best.mcc >= max(tried) - EXACT

    @pytest.mark.parametrize(("present", "threshold"), [(0.0, 0.15), (0.2, 0.15), (0.8, 0.85), (0.5, 0.15)])
    def test_of_equal_ones_the_nearest_to_the_present_is_taken(
        self, present: float, threshold: float
    ) -> None:
        """Cut above the lowest or below the highest score, the verdicts are equally good."""
        scores, good = array(0.1, 0.2, 0.8, 0.9), np.array([False, True, False, True])
        best = best_threshold(scores, good, present=present)
        assert best is not None
        assert best.threshold == pytest.approx(threshold)

    @pytest.mark.parametrize(
        ("scores", "good"), [([], []), ([0.5, 0.5], [True, False]), ([0.1, 0.9], [True, True])]
    )
    def test_nothing_to_tell_apart(self, scores: list[float], good: list[bool]) -> None:
        assert best_threshold(np.array(scores), np.array(good, dtype=bool), present=0.5) is None


class TestClusteredMean:
    @pytest.mark.parametrize("of_one_size", [True, False])
    def test_allows_for_clusters_of_any_size(self, of_one_size: bool) -> None:
        draw = np.random.default_rng(12)
        groups = np.arange(120) % 15 if of_one_size else draw.integers(0, 15, size=120)
        values = draw.normal(size=120) + groups / 10
        found = clustered_mean(values, [str(group) for group in groups])

        assert (found.error, found.freedom) == pytest.approx(cr2(values, groups), abs=EXACT)
        assert (found.mean, found.clusters) == (pytest.approx(values.mean()), 15)
        assert of_one_size == (found.freedom == 14)

    def test_of_single_items_is_the_usual_t_test(self) -> None:
        values = np.random.default_rng(13).normal(size=25)
        found = clustered_mean(values, [str(row) for row in range(25)])
        usual = stats.ttest_1samp(values, 0.2)
        assert found.p_below(0.2) == pytest.approx(
            stats.ttest_1samp(values, 0.2, alternative="less").pvalue, abs=EXACT
        )
        assert (found.mean - 0.2) / found.error == pytest.approx(usual.statistic, abs=EXACT)

    def test_without_any_spread(self) -> None:
        same = clustered_mean(np.zeros(10), [str(row) for row in range(10)])
        assert (same.p_below(0.2), same.p_above(0.0), same.t) == (2**-10, 1.0, None)
        assert clustered_mean(np.ones(3), ["a"] * 3).p_below(2) is None


class TestAlternativeAnnotators:
    @staticmethod
    def panel(items: int = 60, annotators: int = 3) -> tuple[Numbers, Marks, list[str]]:
        truth = ratings(items, seed=20)
        noise = np.random.default_rng(21).integers(-1, 2, size=(annotators, items))
        return truth, np.clip(truth + noise, 1, 5), [str(row) for row in range(items)]

    def test_a_judge_who_knows_the_truth_passes(self) -> None:
        truth, marks, clusters = self.panel()
        found = alt_test(truth, marks, clusters, epsilon=0.2)
        assert found is not None
        assert (found.omega, found.passed, found.annotators, found.items) == (1.0, True, 3, 60)
        assert found.rho > found.constant_rho

    @pytest.mark.parametrize(("documents", "passes"), [(2, False), (4, False), (20, True)])
    def test_few_documents_prove_nothing_even_if_the_judge_wins_everywhere(
        self, documents: int, passes: bool
    ) -> None:
        """People differ by one from the truth, which the judge gives: in each document alike, so without any spread."""
        truth = np.tile([1.0, 5.0], 30)
        marks = np.vstack([truth + np.where(truth > 3, -1, 1), truth, truth])
        found = alt_test(truth, marks, [str(row // 2 % documents) for row in range(60)], epsilon=0.2)
        assert found is not None
        assert found.passed is passes

    def test_a_judge_who_always_says_the_same_is_no_better_than_a_constant(self) -> None:
        _, marks, clusters = self.panel()
        found = alt_test(np.full(60, 3.0), marks, clusters, epsilon=0.2)
        assert found is not None
        assert found.rho <= found.constant_rho + EXACT
        assert not found.passed

    def test_by_the_definition(self) -> None:
        """W as in the paper, item by item, and scipy's t-test where each item is a cluster."""
        truth, marks, clusters = self.panel(items=40)
        judge = np.clip(truth + np.random.default_rng(22).integers(-2, 3, size=40), 1, 5)
        marks[0, 3] = judge[5] = NAN
        wins, p_values = [], []
        for annotator in range(3):
            scored = []
            for item in range(40):
                others = [
                    marks[k, item] for k in range(3) if k != annotator and not math.isnan(marks[k, item])
                ]
                own, mine = marks[annotator, item], judge[item]
                if math.isnan(own) or math.isnan(mine) or not others:
                    continue
                far_judge = math.sqrt(sum((mine - other) ** 2 for other in others) / len(others))
                far_own = math.sqrt(sum((own - other) ** 2 for other in others) / len(others))
                scored.append((far_judge <= far_own, far_own <= far_judge))
            judge_wins, own_wins = np.array(scored, dtype=float).T
            wins.append(judge_wins.mean())
            p_values.append(stats.ttest_1samp(own_wins - judge_wins, 0.1, alternative="less").pvalue)
        rejected = stats.false_discovery_control(p_values, method="by") <= 0.05
        found = alt_test(judge, marks, clusters, epsilon=0.1)
        assert found is not None
        assert found.rho == pytest.approx(np.mean(wins), abs=EXACT)
        assert found.winners == tuple(rejected.tolist())
        assert found.omega == pytest.approx(rejected.mean(), abs=EXACT)

    @pytest.mark.parametrize(("items", "annotators"), [(29, 3), (60, 2), (60, 1), (0, 3)])
    def test_too_few(self, items: int, annotators: int) -> None:
        truth, marks, clusters = self.panel(items, annotators)
        assert alt_test(truth, marks, clusters, epsilon=0.2) is None

    def test_an_annotator_of_few_items_is_left_out(self) -> None:
        truth, marks, clusters = self.panel(annotators=4)
        marks[3, 20:] = NAN
        found = alt_test(truth, marks, clusters, epsilon=0.2)
        assert found is not None
        assert found.annotators == 3

    def test_one_cluster_proves_nothing(self) -> None:
        truth, marks, _ = self.panel()
        found = alt_test(truth, marks, ["one document"] * 60, epsilon=0.2)
        assert found is not None
        assert (found.omega, found.passed) == (0.0, False)


RECORDED = Path(__file__).resolve().parents[4] / "shared" / "data" / "geval_gpt4_samples.jsonl"


@pytest.mark.skipif(not RECORDED.exists(), reason=f"the recordings are not at {RECORDED}")
def test_twenty_samples_of_one_judge_are_worth_little_more_than_one_vote() -> None:
    items = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    scores = np.array([[(float(text) - 1) / 4 for text in item["responses"]] for item in items]).T
    errors = scores - np.array([(item["human_relevance"] - 1) / 4 for item in items])
    covariance = np.cov(errors)
    shared = (covariance.sum() - covariance.trace()) / 380 / (covariance.trace() / 20)
    assert shared == pytest.approx(0.853523, abs=1e-6)
    assert effective_votes(errors) == pytest.approx(1.161647, abs=1e-6)


@pytest.mark.parametrize(("count", "r"), [(2, 0.0), (6, 0.42), (3, 1.0)])
def test_votes_of_equally_good_judges_follow_their_correlation(count: int, r: float) -> None:
    errors = np.random.default_rng(5).normal(size=(count, 400))
    white = np.linalg.solve(np.linalg.cholesky(np.cov(errors)), errors)
    wanted = np.full((count, count), r) + (1 - r) * np.eye(count)
    values, vectors = np.linalg.eigh(wanted)
    correlated = vectors @ np.diag(np.sqrt(np.clip(values, 0, None))) @ vectors.T @ white
    votes = count / (1 + (count - 1) * r)
    assert effective_votes(correlated) == pytest.approx(votes)
    assert effective_votes(0.3 * correlated) == pytest.approx(votes)


def test_what_raters_themselves_are_unsure_of_is_no_error_that_judges_share() -> None:
    drawn = np.random.default_rng(6).normal(size=(5, 200))
    *rows, raters = np.linalg.solve(np.linalg.cholesky(np.cov(drawn)), drawn)
    own = np.array(rows)
    assert effective_votes(own + raters) == pytest.approx(1.6)  # 4 of a correlation of a half
    assert effective_votes(own + raters, noise=1.0) == pytest.approx(4)
    assert effective_votes(own[:1]) is None
    assert effective_votes(own[:, :1]) is None
    assert effective_votes(np.zeros((3, 10))) is None
