"""Two independent samples: intervals that hold, distances, and comparisons of members that are in several."""

import math
from random import Random

import numpy as np
import pytest

from geval_cli.extras.conversations.two_samples import (
    ComparedPair,
    Sample,
    crossed_share,
    distribution_gap,
    level_excluding,
    mean_difference,
)
from geval_cli.extras.trust.statistics.plain import clustered_estimate
from geval_cli.statistics.intervals import mean_interval


def sample(values: list[float], per_cluster: int = 1) -> Sample:
    return Sample(values, [n // per_cluster for n in range(len(values))])


def test_many_shares_have_newcombes_interval() -> None:
    """With his 56 of 70 and 48 of 80, ten times as many: what is added for few clusters no longer matters."""
    one = sample([1.0] * 560 + [0.0] * 140)
    other = sample([1.0] * 480 + [0.0] * 320)
    found = mean_difference(one, other, highest=1.0)
    # By his method 10: 0.2 - sqrt((0.8 - l1)^2 + (u2 - 0.6)^2) with Wilson's bounds.
    assert found.interval == pytest.approx((0.15429, 0.24462), abs=5e-4)
    assert found.p is not None
    assert found.p < 1e-6
    assert (found.first.value, found.second.value, found.value) == pytest.approx((0.8, 0.6, 0.2))


def test_the_interval_is_made_of_those_of_the_means() -> None:
    one, other = sample([0.2, 0.4, 0.9, 0.5, 0.5, 0.1], 2), sample([0.0, 0.0, 1.0, 0.25])
    found = mean_difference(one, other, highest=1.0)
    first, second = (clustered_estimate(each.values, each.clusters) for each in (one, other))
    assert (found.first, found.second) == (first, second)
    assert first.value is not None
    assert second.value is not None
    assert first.interval is not None
    assert second.interval is not None
    assert found.interval == pytest.approx(
        (
            first.value
            - second.value
            - math.hypot(first.value - first.interval[0], second.interval[1] - second.value),
            first.value
            - second.value
            + math.hypot(first.interval[1] - first.value, second.value - second.interval[0]),
        )
    )
    turned = mean_difference(other, one, highest=1.0)
    assert turned.interval == pytest.approx((-found.interval[1], -found.interval[0]))  # type: ignore[index]
    assert turned.p == pytest.approx(found.p)


def test_values_without_a_bound_are_scaled_by_the_largest() -> None:
    one, other = [3.0, 4.0, 5.0, 9.0], [1.0, 2.0, 2.0, 2.0]
    found = mean_difference(sample(one), sample(other))
    tenfold = mean_difference(sample([10 * item for item in one]), sample([10 * item for item in other]))
    assert tenfold.interval == pytest.approx([10 * end for end in found.interval or ()])
    assert tenfold.p == pytest.approx(found.p)


def test_p_is_the_level_at_which_the_interval_excludes_0() -> None:
    one, other = sample([0.9, 0.8, 0.7, 0.9, 1.0]), sample([0.2, 0.6, 0.1, 0.5])
    found = mean_difference(one, other, highest=1.0)
    assert found.p is not None
    assert (found.p <= 0.05) == (found.interval is not None and found.interval[0] > 0)
    assert level_excluding(0.0, 1.0, lambda level: (1 - level / (1 - 0.03), 2.0)) == pytest.approx(0.03)
    assert level_excluding(0.5, 0.5, lambda level: (0.0, 1.0)) == 1


@pytest.mark.parametrize(
    ("one", "other", "value", "p"),
    [
        ([], [1.0], None, None),
        ([1.0], [0.0, 0.0], 1.0, None),
        ([0.0, 0.0], [0.0, 0.0, 0.0], 0.0, 1.0),
        ([1.0, 1.0], [1.0, 1.0], 0.0, 1.0),
    ],
)
def test_what_little_says(one: list[float], other: list[float], value: float | None, p: float | None) -> None:
    found = mean_difference(sample(one), sample(other))
    assert (found.value, found.p) == (value, p)
    assert (found.interval is None) == (p is None)


def test_two_constant_samples_of_two_prove_nothing() -> None:
    """Two of 3 and two of 5 have no spread at all, which a t-test takes for certainty."""
    found = mean_difference(sample([3.0, 3.0]), sample([5.0, 5.0]))
    assert found.p is not None
    assert found.p > 0.05


def test_the_distance_is_that_of_kolmogorov_and_smirnov() -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(3)
    for _ in range(20):
        one = random.integers(0, 6, random.integers(1, 30)).astype(float).tolist()
        other = random.integers(1, 8, random.integers(1, 30)).astype(float).tolist()
        found = distribution_gap(sample(one), sample(other))
        assert found is not None
        assert found.value == pytest.approx(stats.ks_2samp(one, other).statistic)
        assert abs(found.first - found.second) == pytest.approx(found.value)
        assert found.first == sum(item <= found.at for item in one) / len(one)
        assert found.interval[0] <= found.value <= found.interval[1]
    assert distribution_gap(sample([]), sample([1.0])) is None
    few = distribution_gap(sample([0.0] * 100, 10), sample([1.0] * 100, 10))
    many = distribution_gap(sample([0.0] * 100), sample([1.0] * 100))
    assert few is not None
    assert many is not None
    assert few.interval[0] < many.interval[0]


def test_the_error_of_both_distributions_is_exceeded_in_5_percent() -> None:
    """Of the two bounds, each at its worst, drawn a hundred thousand times."""
    random = np.random.default_rng(1)
    for n, m in ((25, 25), (40, 10)):
        one, other = ([0.0] * n, [1.0] * m)
        found = distribution_gap(sample(one), sample(other))
        assert found is not None
        worst = sum(np.sqrt(np.log(2 / random.random(100_000)) / (2 * size)) for size in (n, m))
        assert (worst > 1 - found.interval[0]).mean() == pytest.approx(0.05, abs=0.003)


def test_comparisons_of_single_members_are_as_independent_as_their_pairs() -> None:
    shares = [1.0, 0.5, 1.0, 0.0, 1.0]
    found = crossed_share([ComparedPair(n, n, share) for n, share in enumerate(shares)])
    assert found == clustered_estimate(shares, range(5))


def test_comparisons_of_the_same_members_say_little_more() -> None:
    """Ten conversations against ten: a hundred comparisons are no hundred conversations."""
    random = Random(2)
    looks = [[random.gauss(0, 1) for _ in range(10)] for _ in "ab"]
    crossed = [ComparedPair(i, j, float(looks[0][i] < looks[1][j])) for i in range(10) for j in range(10)]
    found = crossed_share(crossed)
    shares = [item.share for item in crossed]
    alone = clustered_estimate(shares, range(100))
    assert found.clusters == 10
    assert found.interval is not None
    assert alone.interval is not None
    assert found.interval[1] - found.interval[0] > 2 * (alone.interval[1] - alone.interval[0])


@pytest.mark.parametrize("shares", [[], [1.0]])
def test_one_comparison_has_no_interval(shares: list[float]) -> None:
    found = crossed_share([ComparedPair(n, n, share) for n, share in enumerate(shares)])
    assert (found.interval, found.n) == (None, len(shares))


def test_a_judge_that_is_always_half_right_has_an_interval_around_half() -> None:
    found = crossed_share([ComparedPair(n, n, 0.5) for n in range(20)])
    assert found.interval == mean_interval(0.5, 0.0, 20)
    assert found.interval is not None
    assert found.interval[0] < 0.5 < found.interval[1]
