"""The expected figures come from tables in textbooks, and from R's binom::binom.wilson and qt."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geval_cli.engine.statistics import RunningMean, wilson_interval


@pytest.mark.parametrize(
    ("passed", "judged", "low", "high"),
    [
        (8, 10, 0.49016, 0.94332),
        (0, 10, 0.0, 0.27753),
        (10, 10, 0.72247, 1.0),
        (1, 1, 0.20654, 1.0),
        (50, 100, 0.40383, 0.59617),
    ],
)
def test_wilson_interval(passed: int, judged: int, low: float, high: float) -> None:
    assert wilson_interval(passed, judged) == pytest.approx((low, high), abs=1e-5)


def test_nothing_judged_has_no_interval() -> None:
    assert wilson_interval(0, 0) is None


@given(st.integers(1, 10_000).flatmap(lambda judged: st.tuples(st.integers(0, judged), st.just(judged))))
def test_the_share_lies_within_its_interval(counts: tuple[int, int]) -> None:
    passed, judged = counts
    interval = wilson_interval(passed, judged)

    assert interval is not None
    assert 0 <= interval[0] <= passed / judged <= interval[1] <= 1


@pytest.mark.parametrize(
    ("n", "quantile"),
    [(2, 12.7062), (5, 2.7764), (11, 2.2281), (12, 2.2010), (31, 2.0423), (121, 1.9799), (100_001, 1.96)],
)
def test_interval_of_a_mean_follows_students_t(n: int, quantile: float) -> None:
    scores = [10.0] * (n // 2) + [11.0] * (n - n // 2)
    running = RunningMean()
    for score in scores:
        running.add(score)
    spread = quantile * statistics.stdev(scores) / math.sqrt(n)

    mean = statistics.mean(scores)
    assert running.interval() == pytest.approx((mean - spread, mean + spread), rel=2e-4)


@pytest.mark.parametrize(
    ("scores", "expected"), [((0.0, 1.0), (0.0, 1.0)), ((0.0, 2.0), (-11.7062, 13.7062))]
)
def test_scores_have_an_interval_within_their_range(
    scores: tuple[float, float], expected: tuple[float, float]
) -> None:
    running = RunningMean()
    for score in scores:
        running.add(score)

    assert running.interval() == pytest.approx(expected)


def test_one_score_has_no_interval() -> None:
    running = RunningMean()
    running.add(0.5)

    assert (running.mean, running.deviation, running.interval()) == (0.5, None, None)


def test_nothing_has_no_mean() -> None:
    assert RunningMean().mean is None


@given(st.lists(st.floats(0, 1), min_size=2))
def test_mean_and_deviation_as_of_the_whole_list(scores: list[float]) -> None:
    running = RunningMean()
    for score in scores:
        running.add(score)

    assert running.mean == pytest.approx(statistics.fmean(scores), abs=1e-12)
    assert running.deviation == pytest.approx(statistics.stdev(scores), abs=1e-9)
