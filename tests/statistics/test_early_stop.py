"""When samples are enough. The oracle counts every way in which the samples that are left could come out."""

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geval_cli.judge.estimate import normalise_rating, passes
from geval_cli.statistics.early_stop import StopRule, batch_ends, decide

ONE_TO_FIVE = tuple(map(float, range(1, 6)))


def rule(
    threshold: float = 0.7, stop_error: float = 0.02, scale: tuple[float, ...] = ONE_TO_FIVE
) -> StopRule:
    return StopRule(scale, scale[0] + threshold * (scale[-1] - scale[0]), stop_error)


@pytest.mark.parametrize(
    ("upto", "ends"),
    [
        (2, (2,)),
        (3, (2, 3)),
        (8, (2, 4, 8)),
        (10, (2, 4, 8, 10)),
        (20, (2, 4, 8, 14, 20)),
        (21, (2, 4, 8, 14, 20, 21)),
        (100, (2, 4, 8, 14, 20, 30, 45, 68, 100)),
    ],
)
def test_batches_end_at(upto: int, ends: tuple[int, ...]) -> None:
    assert batch_ends(upto) == ends


@pytest.mark.parametrize(
    ("ratings", "left", "p"), [([4, 4], 18, 0.883876), ([4, 4, 4, 3], 16, 0.562287)], ids=str
)
def test_golden_probabilities(ratings: list[float], left: int, p: float) -> None:
    found = decide(rule(), ratings, left).p_pass
    assert found is not None
    assert round(found, 6) == p


def counted(of: StopRule, ratings: list[float], left: int) -> float:
    """The same probability by the urn itself: sample after sample, each drawn as likely as what was drawn before."""
    median, width = sorted(ratings)[len(ratings) // 2], of.scale[-1] - of.scale[0]
    weights = {rating: 2 ** -((4 * abs(rating - median) / width) ** 2.1) for rating in of.scale}
    urn = {rating: ratings.count(rating) + weights[rating] / sum(weights.values()) for rating in of.scale}
    total, chance = len(ratings) + left, 0.0
    for drawn in product(of.scale, repeat=left):
        likely, seen = 1.0, dict(urn)
        for rating in drawn:
            likely *= seen[rating] / sum(seen.values())
            seen[rating] += 1
        if (sum(ratings) + sum(drawn)) / total >= of.least_mean - 1e-9:
            chance += likely
    return chance


SOME = st.lists(st.sampled_from(ONE_TO_FIVE), min_size=1, max_size=6)


@settings(max_examples=30, deadline=None)
@given(SOME, st.integers(1, 4), st.sampled_from([0.3, 0.5, 0.7, 0.75, 0.8]))
def test_the_probability_is_that_of_the_urn(ratings: list[float], left: int, threshold: float) -> None:
    found = decide(rule(threshold), ratings, left)
    expected = counted(rule(threshold), ratings, left)
    assert found.p_pass == pytest.approx(expected, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(SOME, st.integers(0, 14), st.floats(0.01, 0.99))
def test_it_is_certain_exactly_where_the_rest_cannot_turn_the_verdict_round(
    ratings: list[float], left: int, threshold: float
) -> None:
    found = decide(rule(threshold, stop_error=0), ratings, left)

    def verdict(rest: float) -> bool:
        mean = math.fsum([*ratings, *[rest] * left]) / (len(ratings) + left)
        return passes(normalise_rating(mean, (1, 5)), threshold)

    worst, best = verdict(1), verdict(5)
    assert found.stops == found.is_certain == (worst == best)
    if found.stops:
        assert found.p_pass == float(worst)


@settings(max_examples=100, deadline=None)
@given(SOME, st.integers(1, 14), st.sampled_from([0.31, 0.52, 0.7, 0.83]))
def test_a_higher_threshold_is_never_likelier_to_be_passed(
    ratings: list[float], left: int, threshold: float
) -> None:
    lower, higher = (decide(rule(value), ratings, left).p_pass for value in (threshold, threshold + 0.1))
    assert lower is not None
    assert higher is not None
    assert higher <= lower + 1e-12


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(ONE_TO_FIVE), min_size=1, max_size=7), st.integers(1, 14))
def test_on_a_reflected_scale_passing_and_failing_change_places(ratings: list[float], left: int) -> None:
    if len(ratings) % 2 == 0:
        ratings = ratings[:-1]  # the upper median of an even number is the lower one of its reflection
    of = rule(0.71)  # no mean of so few samples lies exactly there
    reflected = StopRule(ONE_TO_FIVE, 6 - of.least_mean)
    one, other = decide(of, ratings, left), decide(reflected, [6 - rating for rating in ratings], left)
    assert one.stops == other.stops
    assert one.p_pass == pytest.approx(1 - (other.p_pass or 0.0), abs=1e-9)


@given(st.permutations([2.0, 3.0, 4.0, 4.0, 5.0]), st.integers(0, 10))
def test_the_order_of_samples_makes_no_difference(ratings: list[float], left: int) -> None:
    assert decide(rule(), ratings, left) == decide(rule(), sorted(ratings), left)


def test_the_width_of_the_scale_counts_and_not_its_numbers() -> None:
    wide = StopRule(tuple(map(float, range(0, 101, 25))), 70.0)
    assert decide(wide, [75, 75, 75, 50], 16).p_pass == pytest.approx(0.562287, abs=1e-6)


@pytest.mark.parametrize("odd", [3.5, 4.25])
def test_a_rating_between_two_of_the_scale_counts_as_it_is(odd: float) -> None:
    found = decide(rule(), [odd, odd, 4], 2)
    assert found.p_pass is not None
    assert decide(rule(), [4, 4, 4], 2).p_pass != found.p_pass


def test_a_scale_too_fine_to_be_added_up_stops_at_certainty_alone() -> None:
    fine = StopRule(tuple(index / 100 for index in range(1001)), 7.0)
    assert decide(fine, [9.0, 9.0], 18).p_pass is None
    assert not decide(fine, [9.0, 9.0], 18).stops
    assert decide(fine, [9.0] * 18, 2).stops


def test_without_a_readable_sample_there_is_nothing_to_stop_at() -> None:
    assert not decide(rule(), [], 18).stops
    assert decide(rule(), [], 0).stops
