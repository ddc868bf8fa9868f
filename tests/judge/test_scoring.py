import pytest
from hypothesis import given
from hypothesis import strategies as st

from geval_cli.errors import JudgeRangeError
from geval_cli.judge.estimate import (
    Distribution,
    distribution_of,
    mean_of_samples,
    nearest_to,
    normalise_rating,
    passes,
    strict_score,
)
from geval_cli.judge.metric import default_step, format_number


@pytest.mark.parametrize(
    ("rating", "score_range", "score"),
    [
        (9, (0, 10), 0.9),
        (1, (1, 5), 0),
        (5, (1, 5), 1),
        (4, (1, 5), 0.75),
        (0, (-5, 5), 0.5),
        (0.25, (0, 1), 0.25),
    ],
)
def test_a_rating_is_mapped_onto_zero_to_one(rating, score_range, score):
    assert normalise_rating(rating, score_range) == pytest.approx(score)


@pytest.mark.parametrize("rating", [10.001, -0.001, float("nan"), float("inf")])
def test_a_rating_outside_the_range_is_an_error_and_not_clamped(rating):
    with pytest.raises(JudgeRangeError):
        normalise_rating(rating, (0, 10))


def test_float_dust_beyond_an_end_is_no_error():
    assert normalise_rating(5 + 1e-15, (1, 5)) == 1
    assert normalise_rating(1 - 1e-15, (1, 5)) == 0


@given(st.floats(-100, 100), st.floats(0.01, 100), st.floats(0, 1), st.floats(0, 1))
def test_a_higher_rating_never_has_a_lower_score(low, width, first, second):
    scores = [normalise_rating(low + share * width, (low, low + width)) for share in sorted((first, second))]

    assert 0 <= scores[0] <= scores[1] <= 1


def test_equal_passes_and_float_dust_does_not_decide():
    assert passes(0.7, 0.7)
    assert passes(0.1 + 0.2, 0.3)
    assert passes(0.3 - 1e-12, 0.3)
    assert passes(0.7 - 4e-10, 0.7)
    assert not passes(0.6999, 0.7)
    assert not passes(0.7 - 2e-9, 0.7)


def test_the_mean_of_a_distribution_is_the_papers_formula():
    # Liu et al. 2023: the sum of p(s) * s.
    masses = {1: 0.05, 2: 0.1, 3: 0.2, 4: 0.4, 5: 0.25}

    assert Distribution(masses, 1.0).mean() == pytest.approx(3.7)


def test_what_is_not_covered_is_left_out_of_the_mean():
    found = Distribution({8: 0.3, 10: 0.3}, 0.6)

    assert found.mean() == pytest.approx(9)
    assert found.shares == pytest.approx({8: 0.5, 10: 0.5})


def test_an_empty_distribution_has_no_mean():
    with pytest.raises(ValueError, match="no mean"):
        Distribution().mean()
    assert Distribution().shares == {}
    assert Distribution({3: 0.0}).shares == {}
    assert distribution_of([]).coverage == 0


def test_samples_give_their_mean_and_their_distribution():
    assert mean_of_samples([4, 4, 5, 3]) == 4
    assert distribution_of([4, 4, 5, 3]).shares == {3: 0.25, 4: 0.5, 5: 0.25}
    assert nearest_to([2, 5, 4, 4], 3.75) == 2


@given(st.lists(st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0]), min_size=1, max_size=50))
def test_mean_and_distribution_of_samples_agree(ratings):
    assert distribution_of(ratings).mean() == pytest.approx(mean_of_samples(ratings), abs=1e-9)


@pytest.mark.parametrize(("share", "score"), [(0.51, 1), (0.5, 0), (0.49, 0), (1, 1), (0, 0)])
def test_strict_mode_needs_more_than_half(share, score):
    assert strict_score(Distribution({1.0: share, 0.0: 1 - share}, 1.0)) == score


@pytest.mark.parametrize(
    ("score_range", "step"), [((0, 10), 1), ((1, 3), 1), ((0, 2), 1), ((0, 1), 0.1), ((0, 1.5), 0.15)]
)
def test_the_step_is_one_or_a_tenth_of_a_short_range(score_range, step):
    assert default_step(score_range) == pytest.approx(step)


@pytest.mark.parametrize(
    ("number", "text"),
    [(8.0, "8"), (-0.0, "0"), (7.5, "7.5"), (0.1 + 0.2, "0.3"), (1e12, "1000000000000"), (100, "100")],
)
def test_numbers_are_written_as_people_write_them(number, text):
    assert format_number(number) == text
