"""Bradley-Terry: ratings against goldens and the equations of their likelihood, intervals by simulation."""

import math
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from soak.rankings import coverage

from geval_cli.extras.rankings import Comparisons, PlayerStrength, strengths

Games = Mapping[tuple[int, int], tuple[int, int]]


def ratings_of(games: Games, ties: int = 0) -> dict[int, PlayerStrength] | None:
    """The ratings of players who won so many against each other, each comparison in a test of its own."""
    comparisons = Comparisons()
    for pair, (won, lost) in games.items():
        for share, count in ((1.0, won), (0.0, lost), (0.5, ties)):
            for _ in range(count):
                comparisons.add_test({pair: [share]})
    return comparisons.ratings()


GOLDENS: list[tuple[Games, list[float]]] = [
    ({(0, 1): (7, 3)}, [1566.198644, 1433.801356]),
    ({(0, 1): (6, 4), (1, 2): (7, 3), (0, 2): (8, 2)}, [1591.595186, 1523.023019, 1385.381795]),
    ({(0, 1): (10, 0)}, [1764.443859, 1235.556141]),
]


@pytest.mark.parametrize(("games", "expected"), GOLDENS)
def test_ratings_are_those_of_the_maximum_likelihood(games: Games, expected: list[float]) -> None:
    found = ratings_of(games)
    assert found is not None
    assert [found[player].value for player in sorted(found)] == pytest.approx(expected, abs=1e-6)


def test_a_pair_is_the_same_from_either_side_and_a_tie_is_half_a_win_for_each() -> None:
    turned = ratings_of({(1, 0): (3, 7)})
    assert turned == ratings_of({(0, 1): (7, 3)})
    tied = ratings_of({(0, 1): (0, 0)}, ties=4)
    assert tied is not None
    assert [rating.value for rating in tied.values()] == [1500, 1500]
    halves, whole = Comparisons(), Comparisons()
    halves.add_test({(0, 1): [0.5, 0.5, 1.0]})
    whole.add_test({(0, 1): [1.0, 0.0, 1.0]})
    assert halves.ratings() == whole.ratings()


@pytest.mark.parametrize(("won", "has_interval"), [(1, False), (2, False), (3, False), (4, True)])
def test_fewer_than_five_tests_have_no_interval(won: int, has_interval: bool) -> None:
    found = ratings_of({(0, 1): (won, 1)})
    assert found is not None
    assert [rating.interval is not None for rating in found.values()] == [has_interval] * 2


def test_players_that_nothing_connects_have_no_ranking() -> None:
    assert ratings_of({(0, 1): (3, 1), (2, 3): (1, 3)}) is None
    assert Comparisons().ratings() is None
    joined = ratings_of({(0, 1): (3, 1), (2, 3): (1, 3), (1, 2): (1, 1)})
    assert joined is not None
    assert sorted(joined, key=lambda player: -joined[player].value) == [0, 3, 1, 2]


def test_intervals_need_tests_that_differ() -> None:
    for games in ({(0, 1): (1, 0)}, {(0, 1): (10, 0)}):
        found = ratings_of(games)
        assert found is not None
        assert {rating.interval for rating in found.values()} == {None}
    varied = ratings_of({(0, 1): (7, 3)})
    assert varied is not None
    low, high = varied[0].interval or (0, 0)
    assert 1400 < low < varied[0].value < high < 1800
    assert varied == ratings_of({(0, 1): (7, 3)})  # the resamples are always the same ones


@given(
    st.dictionaries(
        st.sampled_from([(0, 1), (1, 2), (0, 2), (2, 3), (1, 3)]),
        st.tuples(st.floats(0.5, 1e5), st.floats(0.5, 1e5)),
        min_size=1,
    )
)
def test_at_the_maximum_wins_are_what_the_ratings_expect(
    games: dict[tuple[int, int], tuple[float, float]],
) -> None:
    wins = {
        way: count for (a, b), (won, lost) in games.items() for way, count in (((a, b), won), ((b, a), lost))
    }
    players = sorted({player for pair in wins for player in pair})
    theta = strengths(wins, players)
    if theta is None:
        return
    assert math.fsum(theta.values()) == pytest.approx(0, abs=1e-9)
    for player in players:
        won = sum(count for (winner, _), count in wins.items() if winner == player)
        expected = sum(
            (count + wins[other, own]) / (1 + math.exp(theta[other] - theta[own]))
            for (own, other), count in wins.items()
            if own == player
        )
        assert won == pytest.approx(expected, rel=1e-6)


def test_many_tests_are_no_trouble() -> None:
    comparisons, random = Comparisons(), Random(1)
    for _ in range(50_000):
        comparisons.add_test({(0, 1): [float(random.random() < 0.6)]})
    found = comparisons.ratings()
    assert found is not None
    interval = found[0].interval
    assert interval is not None
    # The standard error of half the log odds, in points.
    error = 400 / math.log(10) / 2 / math.sqrt(50_000 * 0.24)
    assert interval[1] - interval[0] == pytest.approx(2 * 1.96 * error, rel=0.1)


def test_intervals_contain_the_true_strengths() -> None:
    """A small version of the simulation in tests/soak/rankings.py, with a fixed seed."""
    covered, ordered = coverage(40, trials=12, seed=4)
    assert 0.86 <= covered <= 1
    assert ordered >= 0.9
