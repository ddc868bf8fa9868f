"""Figures of published data, to six decimals: SummEval with gpt-4-0314, and UniEval's own table.

The data may not be part of this repository; where it does not lie beside it, these tests are skipped.
"""

from functools import cache
from typing import Any

import numpy as np
import pytest
from support.judged_data import summaries, unieval

from geval_cli.extras.trust.agreement import Agreement, MetricAgreement, agree
from geval_cli.extras.trust.options import AgreeOptions
from geval_cli.extras.trust.statistics.agreement import best_threshold

TOLERANCE = 1e-6


@cache
def found() -> Agreement:
    return agree(summaries())


def metric(name: str) -> MetricAgreement:
    return next(item for item in found().metrics if item.metric == name)


def near(*values: float) -> Any:
    return pytest.approx(values, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "n", "dataset", "summary", "documents", "system"),
    [
        ("coherence", 1200, (0.424026, 0.443928, 0.369396), (0.450940, 0.392516), 98, (0.783217, 0.696970)),
        ("consistency", 1198, (0.617201, 0.554815, 0.520169), (0.602859, 0.575921), 78, (0.851140, 0.717578)),
        ("fluency", 1200, (0.601054, 0.499822, 0.452431), (0.536527, 0.500849), 97, (0.979021, 0.909091)),
        ("relevance", 1200, (0.455090, 0.421591, 0.356743), (0.432527, 0.378424), 81, (0.943865, 0.830868)),
    ],
)
def test_correlations_at_three_levels(
    name: str,
    n: int,
    dataset: tuple[float, ...],
    summary: tuple[float, ...],
    documents: int,
    system: tuple[float, ...],
) -> None:
    item = metric(name)
    level = item.dataset
    assert (level.pearson.value, level.spearman.value, level.kendall.value) == near(*dataset)
    assert item.document_level is not None
    assert item.system is not None
    by_document = item.document_level
    assert (by_document.spearman.value, by_document.kendall.value) == near(*summary)
    assert (by_document.documents, by_document.skipped) == (documents, 100 - documents)
    assert (item.system.spearman.value, item.system.kendall.value) == near(*system)
    assert (item.n, item.clusters, item.system.systems, item.errored) == (n, 100, 12, 1200 - n)
    assert level.spearman.n == n


def test_documents_that_are_skipped_would_pull_the_mean_down() -> None:
    """Counted as 0, as some scripts do, consistency would be .470230."""
    level = metric("consistency").document_level
    assert level is not None
    assert level.spearman.value is not None
    assert level.documents is not None
    assert level.spearman.value * level.documents / 100 == pytest.approx(0.470230, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "interval"), [("coherence", (0.391121, 0.493821)), ("consistency", (0.492318, 0.611619))]
)
def test_intervals(name: str, interval: tuple[float, float]) -> None:
    assert metric(name).dataset.spearman.interval == near(*interval)


@pytest.mark.parametrize(
    ("name", "alpha", "with_judge", "ceiling", "judge", "share"),
    [
        ("coherence", 0.574386, 0.359259, 0.738255, 0.429216, 58),
        ("consistency", 0.814564, 0.687740, 0.786748, 0.556280, 71),
        ("fluency", 0.612295, 0.489650, 0.633634, 0.488563, 77),
        ("relevance", 0.447255, 0.244300, 0.579738, 0.401966, 69),
    ],
)
def test_people_among_themselves(
    name: str, alpha: float, with_judge: float, ceiling: float, judge: float, share: int
) -> None:
    people = metric(name).people
    assert people is not None
    assert (people.alpha.value, people.alpha_with_judge.value) == near(alpha, with_judge)
    assert (people.ceiling.value, people.judge.value) == near(ceiling, judge)
    assert people.share.value is not None
    assert round(100 * people.share.value) == share
    assert people.alpha.n == 1200


def test_quadratic_kappa_with_each_expert() -> None:
    people = metric("coherence").people
    assert people is not None
    assert tuple(item.value for item in people.kappas.values()) == near(0.353950, 0.314853, 0.150531)


@pytest.mark.parametrize(
    ("name", "counts", "kappa"),
    [("coherence", (453, 530, 29, 188), 0.172248), ("consistency", (1016, 80, 23, 79), 0.559688)],
)
def test_verdicts(name: str, counts: tuple[int, ...], kappa: float) -> None:
    verdicts = metric(name).verdicts
    found_counts = verdicts.counts
    assert (
        found_counts.true_pass,
        found_counts.false_pass,
        found_counts.false_fail,
        found_counts.true_fail,
    ) == counts
    assert verdicts.kappa.value == pytest.approx(kappa, abs=TOLERANCE)


def test_the_sentence_names_the_threshold_that_lets_fewer_bad_outputs_pass() -> None:
    item = metric("coherence")
    assert item.verdicts.better_threshold == 0.9375
    assert item.verdicts.better_counts is not None
    assert item.verdicts.better_counts.false_pass == 396
    assert item.summary == (
        "For `coherence`, the judge passes 530 of 718 bad outputs and fails 29 of 482 good ones; a threshold of 0.9375"
        " would pass 396 and fail 52."
    )


@pytest.mark.parametrize(("name", "threshold"), [("coherence", 0.9375), ("fluency", 0.3125)])
def test_the_threshold_of_the_first_fifty_documents(name: str, threshold: float) -> None:
    rows = [row for row in summaries() if row["metric"] == name][:600]
    scores = np.array([row["score"] for row in rows])
    good = np.array([sum(row["labels"].values()) >= 12 for row in rows])
    best = best_threshold(scores, good, present=0.75)
    assert best is not None
    assert best.threshold == threshold


@pytest.mark.parametrize(
    ("name", "shift", "length"),
    [
        ("coherence", 0.995694, 0.0961),
        ("consistency", 0.133695, 0.0346),
        ("fluency", -0.323472, 0.0355),
        ("relevance", 0.929722, -0.0292),
    ],
)
def test_bias(name: str, shift: float, length: float) -> None:
    bias = metric(name).bias
    assert bias.shift_ratings.value == pytest.approx(shift, abs=TOLERANCE)
    assert bias.shift.value == pytest.approx(shift / 4, abs=TOLERANCE)
    assert bias.length.value == pytest.approx(length, abs=5e-5)


@pytest.mark.parametrize(
    ("name", "omega", "rho", "constant", "constant_omega", "constant_rho"),
    [
        ("coherence", 1 / 3, 0.576944, 3, 2 / 3, 0.6747),
        ("consistency", 1, 0.888425, 5, 1, 0.8703),
        ("fluency", 0, 0.726944, 5, 1, 0.8897),
        ("relevance", 1 / 3, 0.598611, 4, 1, 0.7767),
    ],
)
def test_alternative_annotators(
    name: str, omega: float, rho: float, constant: int, constant_omega: float, constant_rho: float
) -> None:
    test = metric(name).alt_test
    assert test is not None
    assert (test.epsilon, test.omega, test.rho) == near(0.2, omega, rho)
    assert 1 + 4 * test.constant == pytest.approx(constant)
    assert (test.constant_omega, test.constant_rho) == pytest.approx((constant_omega, constant_rho), abs=5e-5)
    assert test.beats_constant is (name == "consistency")
    assert test.passed is (name == "consistency")


def test_the_gain_over_the_best_constant_rating() -> None:
    test = metric("consistency").alt_test
    assert test is not None
    assert test.gain == pytest.approx(0.018086, abs=TOLERANCE)
    assert test.gain_t == pytest.approx(2.392, abs=5e-4)


@pytest.mark.parametrize(
    ("file", "name", "scale", "expected"),
    [
        ("topical_chat.jsonl", "naturalness", (1, 3), (0.443666, 0.513986, 0.373973)),
        ("qags_cnndm.jsonl", "consistency", (0, 1), (0.681681, 0.662255, 0.531636)),
    ],
)
def test_unieval(file: str, name: str, scale: tuple[float, float], expected: tuple[float, ...]) -> None:
    (item,) = agree(unieval(file, name, scale)).metrics
    level = item.dataset
    assert (level.pearson.value, level.spearman.value, level.kendall.value) == near(*expected)
    assert item.people is None
    assert item.alt_test is None


def test_the_kind_of_annotators_sets_the_bar() -> None:
    rows = [row for row in summaries() if row["metric"] == "coherence"][:360]
    found_at = {
        kind: agree(rows, options=AgreeOptions(annotators=kind)).metrics[0].alt_test
        for kind in ("expert", "crowd")
    }
    assert found_at["expert"] is not None
    assert found_at["crowd"] is not None
    assert found_at["crowd"].epsilon == 0.1
    assert found_at["crowd"].omega <= found_at["expert"].omega
