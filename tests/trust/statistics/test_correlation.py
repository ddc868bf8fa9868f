"""Correlations and their intervals, against scipy, statsmodels and simulation."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats
from soak.coverage import coverage_of_jackknife

from geval_cli.extras.trust.statistics.agreement import (
    CORRELATIONS,
    Numbers,
    dataset_level,
    fold,
    jackknife,
    kendall,
    partial_spearman,
    pearson,
    spearman,
    summary_level,
    system_level,
)
from geval_cli.extras.trust.statistics.plain import Estimate

EXACT = 1e-9
ORACLES: dict[str, Callable[[Numbers, Numbers], float]] = {
    "pearson": lambda x, y: float(stats.pearsonr(x, y).statistic),
    "spearman": lambda x, y: float(stats.spearmanr(x, y).statistic),
    "kendall": lambda x, y: float(stats.kendalltau(x, y).statistic),
}


def array(*values: float) -> Numbers:
    return np.array(values, dtype=np.float64)


def samples() -> list[tuple[Numbers, Numbers]]:
    """Pairs without ties, with many ties, of two points, of large and of tiny numbers, and perfect ones."""
    draw = np.random.default_rng(5)
    smooth = draw.normal(size=(2, 60))
    coarse = draw.integers(1, 6, size=(2, 200)).astype(np.float64)
    return [
        (smooth[0], smooth[1] + smooth[0]),
        (coarse[0], coarse[0] + coarse[1]),
        (array(1, 2), array(2, 1)),
        (array(0, 0, 1), array(0, 1, 1)),
        (1e9 + coarse[0], 1e-9 * coarse[1]),
        (smooth[0], smooth[0]),
        (coarse[0], -coarse[0]),
    ]


@pytest.mark.parametrize("kind", CORRELATIONS)
@pytest.mark.parametrize("number", range(len(samples())))
def test_correlations_are_those_of_scipy(kind: str, number: int) -> None:
    x, y = samples()[number]
    assert CORRELATIONS[kind](x, y) == pytest.approx(ORACLES[kind](x, y), abs=EXACT)


@pytest.mark.parametrize("kind", CORRELATIONS)
@pytest.mark.parametrize(
    ("x", "y"),
    [
        (array(), array()),
        (array(1), array(2)),
        (array(1, 1, 1), array(1, 2, 3)),
        (array(1, 2, 3), array(0.1, 0.1, 0.1)),
        (array(2, 2), array(2, 2)),
    ],
)
def test_what_is_not_defined_is_none_and_warns_nobody(kind: str, x: Numbers, y: Numbers) -> None:
    assert CORRELATIONS[kind](x, y) is None
    assert dataset_level(CORRELATIONS[kind], x, y, [str(row) for row in range(len(x))]).value is None


def test_partial_spearman_is_the_correlation_of_the_residuals_of_ranks() -> None:
    from statsmodels.regression.linear_model import OLS

    draw = np.random.default_rng(2)
    x, y, given = draw.integers(0, 9, size=(3, 150)).astype(np.float64)
    y, x = y + given, x + given + 0.5 * y
    design = np.column_stack([np.ones(150), stats.rankdata(given)])
    left = [OLS(stats.rankdata(side), design).fit().resid for side in (x, y)]
    expected = stats.pearsonr(*left).statistic
    assert partial_spearman(x, y, given) == pytest.approx(expected, abs=EXACT)
    assert partial_spearman(x, y, np.zeros(150)) is None
    assert partial_spearman(x, y, x) is None


def test_the_jackknife_is_the_textbooks() -> None:
    draw = np.random.default_rng(3)
    x = draw.normal(size=60)
    y = x + draw.normal(size=60)
    clusters = [f"doc {row // 5}" for row in range(60)]
    found = dataset_level(pearson, x, y, clusters)
    names = np.array(clusters)
    without = np.arctanh([np.corrcoef(x[names != name], y[names != name])[0, 1] for name in set(clusters)])
    error = math.sqrt(11 / 12 * ((without - without.mean()) ** 2).sum())
    centre, t = math.atanh(np.corrcoef(x, y)[0, 1]), stats.t.ppf(0.975, 11)
    expected = (math.tanh(centre - t * error), math.tanh(centre + t * error))
    assert found.interval == pytest.approx(expected, abs=EXACT)
    assert (found.n, found.clusters) == (60, 12)


def test_the_jackknife_of_a_mean_of_single_items_is_students_t() -> None:
    values = np.random.default_rng(4).normal(size=30)
    found = jackknife(
        lambda kept: float(values[kept].mean()), [str(row) for row in range(30)], is_correlation=False
    )
    expected = stats.t.interval(0.95, 29, values.mean(), stats.sem(values))
    assert found.interval == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize(("clusters", "has_interval"), [(1, False), (9, False), (10, True), (200, True)])
def test_few_clusters_give_a_correlation_without_an_interval(clusters: int, has_interval: bool) -> None:
    draw = np.random.default_rng(6)
    x = draw.normal(size=400)
    y = x + draw.normal(size=400)
    found = dataset_level(spearman, x, y, [str(row % clusters) for row in range(400)])
    assert (found.value is not None, found.interval is not None) == (True, has_interval)


def test_a_perfect_correlation_has_no_interval() -> None:
    x = np.arange(40.0)
    assert dataset_level(spearman, x, x, [str(row) for row in range(40)]) == Estimate(1.0, None, 40, 40)


def test_one_cluster_that_carries_everything_leaves_no_interval() -> None:
    x, y = np.zeros(20), np.arange(20.0)
    x[0] = 1
    assert dataset_level(spearman, x, y, [str(row) for row in range(20)]).interval is None


def test_many_clusters_are_folded_by_their_names_alone() -> None:
    names = [f"doc {number}" for number in range(5000)]
    groups = fold(names)
    assert len(set(groups.tolist())) == 200
    of_name = dict(zip(names, groups.tolist(), strict=True))
    again = fold(names[::-1] * 2)
    pairs = {(of_name[name], group) for name, group in zip(names[::-1] * 2, again.tolist(), strict=True)}
    assert len(pairs) == 200  # the same clusters are together, whatever their order
    draw = np.random.default_rng(8)
    x = draw.normal(size=5000)
    y = x + draw.normal(size=5000)
    found = dataset_level(pearson, x, y, names)
    assert found.clusters == 5000
    assert found.value is not None
    assert found.interval is not None
    # Of independent pairs, Fisher's own interval.
    expected = [math.tanh(math.atanh(found.value) + sign * 1.96 / math.sqrt(4997)) for sign in (-1, 1)]
    assert found.interval == pytest.approx(tuple(expected), abs=0.006)


class TestLevels:
    def test_documents_with_a_constant_side_are_skipped_and_counted(self) -> None:
        x = array(1, 2, 3, 1, 1, 1, 3, 2, 1, 5)
        y = array(1, 2, 3, 1, 2, 3, 1, 2, 3, 5)
        documents = ["a"] * 3 + ["b"] * 3 + ["c"] * 3 + ["d"]
        found = summary_level(spearman, x, y, documents, documents)
        assert (found.estimate.value, found.used, found.skipped, found.estimate.n) == (0.0, 2, 2, 6)

    def test_nothing_but_constant_documents(self) -> None:
        found = summary_level(spearman, array(1, 1), array(1, 2), ["a", "a"], ["a", "a"])
        assert (found.estimate.value, found.used, found.skipped) == (None, 0, 1)

    def test_documents_that_spread_over_clusters_have_no_interval(self) -> None:
        draw = np.random.default_rng(9)
        x, y = draw.normal(size=(2, 60))
        documents = [str(row // 4) for row in range(60)]
        by_system = [str(row % 4) for row in range(60)]
        assert summary_level(kendall, x, y, documents, documents).estimate.interval is not None
        assert summary_level(kendall, x, y, documents, by_system).estimate.interval is None

    def test_systems_are_compared_by_their_means(self) -> None:
        draw = np.random.default_rng(10)
        x, y = draw.normal(size=(2, 80))
        systems = [f"s{row % 5}" for row in range(80)]
        names = np.array(systems)
        means = [[side[names == name].mean() for name in sorted(set(systems))] for side in (x, y)]
        found = system_level(pearson, x, y, systems, [str(row // 5) for row in range(80)])
        assert found.value == pytest.approx(stats.pearsonr(*means).statistic, abs=EXACT)


def test_the_interval_covers_the_truth() -> None:
    """A small version of the simulation in tests/soak/coverage.py, with a fixed seed."""
    assert 0.90 <= coverage_of_jackknife(20, trials=100, seed=1) <= 0.97
