"""The unbiased estimators are held against going through all choices of k of the tries."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geval_cli.statistics.intervals import ClusteredMean, mean_share, pass_at_k, pass_hat_k


@pytest.mark.parametrize("tries", range(1, 7))
def test_chances_are_the_shares_of_all_choices_of_k_tries(tries: int) -> None:
    for passed in range(tries + 1):
        outcomes = [True] * passed + [False] * (tries - passed)
        for k in range(1, tries + 1):
            chosen = list(combinations(outcomes, k))
            assert pass_at_k(passed, tries, k) == pytest.approx(sum(map(any, chosen)) / len(chosen))
            assert pass_hat_k(passed, tries, k) == pytest.approx(sum(map(all, chosen)) / len(chosen))


def test_fewer_tries_than_k_say_nothing() -> None:
    assert pass_at_k(2, 2, 3) is None
    assert pass_hat_k(0, 0, 1) is None


def test_many_tries_are_no_trouble() -> None:
    assert pass_at_k(1, 5_000, 2_500) == pytest.approx(0.5)
    assert pass_hat_k(4_999, 5_000, 2_500) == pytest.approx(0.5)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=30))
def test_with_one_try_it_is_the_pass_rate_with_its_interval(passes: list[int]) -> None:
    clustered = ClusteredMean()
    for test, passed in enumerate(passes):
        for repeat in range(3):
            clustered.add(test, float(repeat < passed))

    shares = [(pass_at_k(passed, 3, 1), 1) for passed in passes]
    mean, interval, tests = mean_share(shares)  # type: ignore[arg-type]

    assert mean == pytest.approx(clustered.mean)
    assert interval == pytest.approx(clustered.interval())
    assert tests == len(passes)


@pytest.mark.parametrize("shares", [[], [(0.5, 1)]])
def test_fewer_than_two_tests_have_no_interval(shares: list[tuple[float, int]]) -> None:
    assert mean_share(shares)[1] is None


def test_all_of_a_few_tests_are_no_proof() -> None:
    mean, interval, _ = mean_share([(1.0, 20)])

    assert mean == 1.0
    assert interval is not None
    assert interval == pytest.approx((0.8203, 1.0), abs=1e-4)
