"""Quantiles of numbers that are not kept, beside those of the sorted numbers themselves."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geval_cli.statistics.intervals import Quantiles

NUMBERS = st.one_of(st.floats(1e-6, 1e9), st.sampled_from([-3.0, 0.0, 0.5, 1.0, 1.01, 250.0]))


def quantiles_of(numbers: list[float]) -> Quantiles:
    found = Quantiles()
    for number in numbers:
        found.add(number)
    return found


@given(
    numbers=st.lists(NUMBERS, min_size=1, max_size=40),
    share=st.sampled_from([0, 0.1, 0.25, 0.5, 0.95, 0.99, 1]),
)
def test_a_quantile_is_off_by_half_a_per_cent_at_most(numbers: list[float], share: float) -> None:
    rank = max(math.ceil(share * len(numbers)), 1)
    exact = max(sorted(numbers)[rank - 1], 0.0)

    found = quantiles_of(numbers)

    assert found.n == len(numbers)
    assert found.at(share) == pytest.approx(exact, rel=0.005, abs=0)


def test_of_nothing_there_is_no_quantile() -> None:
    assert Quantiles().at(0.5) is None


def test_however_many_numbers_take_a_few_thousand_places() -> None:
    found = quantiles_of([10 ** (place / 1000) for place in range(-3000, 9000)])
    assert len(found._buckets) < 3000


def test_no_number_is_above_all_of_them() -> None:
    assert quantiles_of([0.0, 1.0, 2.0]).at(1.5) is None
