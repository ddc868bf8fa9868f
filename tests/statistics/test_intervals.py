"""Goldens of the interval come from a second program; errors over clusters from matrices."""

import math
import statistics
from collections.abc import Iterable
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cluster_errors import cr2_of

from geval_cli.extras.trust.statistics.plain import Estimate, clustered_estimate, mixed_estimate
from geval_cli.statistics.intervals import (
    ClusteredMean,
    ClusterSums,
    Interval,
    RunningMean,
    mean_interval,
    share_interval,
)

SCORES = st.lists(st.floats(0, 1), min_size=2, max_size=20)
CLUSTERS = st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=2, max_size=8)


def clustered(*numbers: tuple[int, float]) -> ClusteredMean:
    mean = ClusteredMean()
    for cluster, value in numbers:
        mean.add(cluster, value)
    return mean


def of_clusters(values: Iterable[Iterable[float]]) -> ClusteredMean:
    return clustered(*((cluster, value) for cluster, row in enumerate(values) for value in row))


def running(scores: Iterable[float]) -> RunningMean:
    mean = RunningMean()
    for score in scores:
        mean.add(score)
    return mean


def interval_of(values: Iterable[Iterable[float]], level: float = 0.95) -> Interval:
    interval = of_clusters(values).interval(level)
    assert interval is not None
    return interval


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1], [1], [1], [0], [1]], (0.228717, 0.981803)),
        ([[1], [1], [1]], (0.139452, 1)),
        ([[0], [0], [0]], (0, 0.860548)),
        ([[0.5], [0.75], [1], [1], [1], [0.25]], (0.356954, 0.941905)),
        ([[0.7]] * 5, (0.425458, 0.880271)),
        ([[0], [0.25], [0.5], [0.75], [1]] * 4, (0.336050, 0.663950)),
        ([[1, 1, 0], [1, 1, 1], [1, 1, 0], [0, 1, 0]], (0.209100, 0.938002)),
    ],
)
def test_intervals_of_few_scores(values: list[list[float]], expected: Interval) -> None:
    assert interval_of(values) == pytest.approx(expected, abs=1e-6)
    if all(len(row) == 1 for row in values):
        scores = [row[0] for row in values]
        assert running(scores).interval() == pytest.approx(expected, abs=1e-6)
        if set(scores) <= {0, 1}:
            assert share_interval(sum(scores), len(scores)) == pytest.approx(expected, abs=1e-6)


def test_differences_of_scores_have_their_interval_within_minus_1_and_1() -> None:
    found = mean_interval(0.0075, 0.010897**2, 20, level=0.9, lowest=-1)
    assert found == pytest.approx((-0.080598, 0.095482), abs=1e-6)
    worst = clustered(*enumerate([-1.0] * 5))
    assert worst.interval(lowest=-1) == pytest.approx((-1, 2 * 0.606567 - 1), abs=1e-6)
    assert worst.interval() is None


@given(CLUSTERS, st.floats(0.5, 0.99))
def test_an_interval_lies_in_the_range_of_scores_around_their_mean(
    values: list[list[float]], level: float
) -> None:
    low, high = interval_of(values, level)
    mean = of_clusters(values).mean
    assert mean is not None
    assert 0 <= low <= mean + 1e-12
    assert mean - 1e-12 <= high <= 1


@given(CLUSTERS, st.lists(st.floats(0.5, 0.999), min_size=2, max_size=4))
def test_a_higher_level_has_a_wider_interval(values: list[list[float]], levels: list[float]) -> None:
    for lower, higher in pairwise(interval_of(values, level) for level in sorted(levels)):
        assert higher[0] <= lower[0] + 1e-9
        assert lower[1] <= higher[1] + 1e-9


@given(CLUSTERS)
def test_bad_and_good_are_treated_alike(values: list[list[float]]) -> None:
    low, high = interval_of([[1 - value for value in row] for row in values])
    assert interval_of(values) == pytest.approx((1 - high, 1 - low), abs=1e-6)


@given(CLUSTERS.flatmap(lambda rows: st.tuples(st.just(rows), st.permutations(rows))))
def test_the_order_of_tests_does_not_matter(rows: tuple[list[list[float]], list[list[float]]]) -> None:
    before, after = rows
    assert interval_of(after) == pytest.approx(interval_of(before), abs=1e-6)


@given(CLUSTERS, st.integers(2, 5))
def test_more_tests_of_the_same_kind_are_surer(values: list[list[float]], times: int) -> None:
    fewer, more = interval_of(values), interval_of(values * times)
    assert more[1] - more[0] < fewer[1] - fewer[0]


@given(SCORES, st.integers(2, 5))
def test_repeating_answers_that_do_not_differ_makes_nothing_surer(scores: list[float], repeats: int) -> None:
    again = of_clusters([score] * repeats for score in scores)
    assert again.interval() == pytest.approx(interval_of([score] for score in scores), abs=1e-6)
    assert again.mean == pytest.approx(statistics.fmean(scores))


@given(SCORES)
def test_clusters_of_one_are_single_numbers(scores: list[float]) -> None:
    assert interval_of([score] for score in scores) == pytest.approx(running(scores).interval(), abs=1e-6)


@given(st.floats(0.01, 0.99), st.integers(2, 40))
def test_scores_that_differ_by_rounding_are_equal(score: float, count: int) -> None:
    near = [score if place % 2 else math.nextafter(score, 1) for place in range(count)]
    assert running(near).interval() == pytest.approx(running([score] * count).interval(), abs=1e-9)
    ones = [1.0 if place % 2 else math.nextafter(1, 0) for place in range(count)]
    assert running(ones).interval() == pytest.approx(running([1.0] * count).interval(), abs=1e-9)


def test_many_scores_are_known_to_a_hair() -> None:
    low, high = mean_interval(0.5, 0.25 / 10_000_000, 10_000_000) or (0, 1)
    assert (low, high) == pytest.approx((0.5 - 0.00031, 0.5 + 0.00031), abs=1e-5)


@pytest.mark.parametrize("values", [[], [[0.5]], [[0.5, 0.7]]])
def test_fewer_than_two_tests_have_no_interval(values: list[list[float]]) -> None:
    mean = of_clusters(values)
    assert (mean.interval(), mean.standard_error()) == (None, None)
    assert share_interval(mean.clusters, mean.clusters) is None
    assert mean.mean == (pytest.approx(statistics.fmean(values[0])) if values else None)


@pytest.mark.parametrize("scores", [(0.9, 1.5), (-0.1, 1.0)])
def test_numbers_that_are_no_scores_have_no_interval(scores: tuple[float, ...]) -> None:
    assert clustered(*enumerate(scores)).interval() is None
    assert running(scores).interval() is None


def test_nothing_has_no_mean() -> None:
    assert (RunningMean().mean, RunningMean().deviation, running([0.5]).deviation) == (None, None, None)
    assert (RunningMean().interval(), running([0.5]).interval()) == (None, None)
    assert running([0.25, 0.75]).deviation == pytest.approx(math.sqrt(0.125))


@given(st.integers(2, 400), st.floats(0.5, 0.999))
def test_none_and_all_have_intervals_that_end_exactly_at_0_and_1(count: int, level: float) -> None:
    none, every = (mean_interval(mean, 0.0, count, level=level) for mean in (0.0, 1.0))
    assert none is not None
    assert every is not None
    assert (none[0], every[1]) == (0.0, 1.0)
    assert none[1] == pytest.approx(1 - every[0], abs=1e-9)


@given(st.lists(st.floats(0, 1), min_size=2))
def test_mean_and_deviation_as_of_the_whole_list(scores: list[float]) -> None:
    found = running(scores)
    assert found.mean == pytest.approx(statistics.fmean(scores), abs=1e-12)
    assert found.deviation == pytest.approx(statistics.stdev(scores), abs=1e-9)


UNEVEN = ((0.25, 0.5, 0.5), (0.75, 1.0), (0.0, 0.25, 0.125, 0.5), (1.0,))
NEGATIVE = ((-0.9, -0.8), (-1.0, -0.7), (-0.75,))
OF_FOUR_SIZES = ((0.5,), (0.0, 0.25), (-0.25, 0.5, 0.0), (0.25, 1.0, 0.5, -0.5, 0.25, 0.0))


@pytest.mark.parametrize(
    ("values", "mean", "error", "freedom"),
    [
        (((0.2,), (0.9,), (0.4,), (0.7,)), 0.55, 0.15545631755148026, 3),
        (OF_FOUR_SIZES, 0.208333, 0.055191, 2.088608),
        (UNEVEN, 0.4875, *cr2_of(UNEVEN)),
        (NEGATIVE, -0.83, *cr2_of(NEGATIVE)),
    ],
)
def test_clustered_errors_allow_for_clusters_of_any_size(
    values: tuple[tuple[float, ...], ...], mean: float, error: float, freedom: float
) -> None:
    found = of_clusters(values)
    sums = ClusterSums.of(
        [value for row in values for value in row], [place for place, row in enumerate(values) for _ in row]
    )

    assert (found.mean, found.standard_error()) == pytest.approx((mean, error), abs=1e-6)
    assert (found.freedom, sums.freedom) == pytest.approx((freedom, freedom), abs=1e-6)
    assert math.sqrt(sums.variance) == pytest.approx(error, abs=1e-6)
    assert found.n == sums.n == sum(map(len, values))


@pytest.mark.parametrize("sizes", [[20] * 15, [200] + [5] * 14, [1, 2, 4, 8, 16, 32, 64] * 2])
@pytest.mark.parametrize("shape", [(2, 2), (0.5, 0.5), (9, 1)])
def test_intervals_contain_the_truth_whatever_the_sizes_of_clusters(
    sizes: list[int], shape: tuple[float, float]
) -> None:
    """A document of 200 outputs beside some of five: intervals of equal clusters miss the truth in half of the runs."""
    random, runs, held = np.random.default_rng(7), 200, 0
    truth = shape[0] / sum(shape)
    for _ in range(runs):
        chances = random.beta(*shape, len(sizes))
        rows = [
            (random.random(size) < chance).astype(float).tolist()
            for size, chance in zip(sizes, chances, strict=True)
        ]
        low, high = interval_of(rows)
        held += low <= truth <= high
    assert held / runs >= 0.9


def test_a_single_cluster_says_nothing_of_others() -> None:
    assert (ClusterSums.of([0.2, 0.9], ["a", "a"]).variance, ClusterSums().variance) == (0.0, 0.0)
    assert (clustered((0, 0.2), (0, 0.9)).standard_error(), clustered((0, 0.2)).freedom) == (None, None)


def test_each_value_has_a_cluster() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ClusterSums.of([0.2, 0.9], ["a"])


def test_open_clusters_are_clusters() -> None:
    assert [clustered(*((test, 0.5) for test in range(count))).clusters for count in range(4)] == [0, 1, 2, 3]


def test_a_large_mean_loses_no_digits() -> None:
    """Milliseconds since 1970, say: what differs is far behind the first digits."""
    near = clustered((0, 0.25), (1, 0.75), (2, 1.5))
    far = clustered((0, 1e12 + 0.25), (1, 1e12 + 0.75), (2, 1e12 + 1.5))
    assert far.standard_error() == pytest.approx(near.standard_error(), rel=1e-9)


@pytest.mark.parametrize("mean", [0.0, 0.3, 1.0])
def test_two_tests_have_an_interval_and_one_has_none(mean: float) -> None:
    assert mean_interval(mean, mean * (1 - mean), 2) is not None
    assert mean_interval(mean, 0.0, 1) is None
    assert (share_interval(mean, 1), share_interval(2 * mean, 2) is None) == (None, False)


@pytest.mark.parametrize("dust", [1e-15, 1e-13])
def test_a_mean_that_leaves_the_range_by_rounding_has_the_interval_of_its_end(dust: float) -> None:
    assert mean_interval(1 + dust, 0.0, 5) == mean_interval(1.0, 0.0, 5)
    assert mean_interval(-dust, 0.0, 5) == mean_interval(0.0, 0.0, 5)
    assert mean_interval(-1 - dust, 0.0, 5, lowest=-1) == mean_interval(-1.0, 0.0, 5, lowest=-1)


def test_fewer_degrees_of_freedom_are_less_sure() -> None:
    usual = mean_interval(0.6, 0.01, 20)
    assert usual is not None
    assert mean_interval(0.6, 0.01, 20, freedom=19) == usual
    few = mean_interval(0.6, 0.01, 20, freedom=3.5)
    assert few is not None
    assert few[0] < usual[0] - 0.03
    assert usual[1] + 0.03 < few[1]


def test_an_estimate_in_another_unit_keeps_its_number_of_items() -> None:
    assert Estimate(0.5, (0.25, 0.75), 8, 4).times(4) == Estimate(2, (1, 3), 8, 4)
    assert Estimate(0.5, None, 1, 1).times(4) == Estimate(2, None, 1, 1)
    assert Estimate(None).times(4) == Estimate(None, None, 0, 0)


def test_a_mean_of_kinds_is_as_sure_as_the_kind_that_weighs() -> None:
    """Twenty good outputs that stand for 95 % of all are twenty, however many bad ones are labelled beside them."""
    good, bad = (
        clustered_estimate([value] * count, range(count)) for value, count in ((1.0, 20), (0.0, 200))
    )
    found = mixed_estimate([(0.95, good), (0.05, bad)], 220)
    assert (found.value, found.n, found.clusters) == (pytest.approx(0.95), 220, 220)
    assert found.interval is not None
    assert good.interval is not None
    assert bad.interval is not None
    assert found.interval[0] == pytest.approx(0.95 - math.hypot(0.95 * (1 - good.interval[0]), 0.0))
    assert found.interval[1] == pytest.approx(0.95 + 0.05 * bad.interval[1])
    assert mixed_estimate([(1.0, good)], 20) == good
    one = clustered_estimate([0.5], ["a"])
    assert mixed_estimate([(0.5, good), (0.5, one)], 21) == Estimate(0.75, None, 21, 21)
    assert mixed_estimate([(0.5, good), (0.5, Estimate(None))], 20) == Estimate(None, None, 20, 20)


@given(CLUSTERS, st.randoms(use_true_random=False))
def test_clusters_may_be_named_in_any_order(values: list[list[float]], chance: Random) -> None:
    pairs = [(f"test {cluster}", value) for cluster, row in enumerate(values) for value in row]
    chance.shuffle(pairs)
    found = clustered_estimate([value for _, value in pairs], [name for name, _ in pairs])

    sums = of_clusters(values)
    assert found.value == pytest.approx(sums.mean, abs=1e-12)
    assert found.interval == pytest.approx(sums.interval(), abs=1e-6)
    assert (found.n, found.clusters) == (len(pairs), len(values))
