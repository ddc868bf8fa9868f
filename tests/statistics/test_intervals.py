"""The expected figures come from tables in textbooks, and from R's binom::binom.wilson and qt."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geval_cli.statistics.intervals import ClusteredMean, RunningMean, t_quantile, wilson_interval


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


@pytest.mark.parametrize(
    ("n", "quantile"),
    [
        (2, 12.706204736174694),
        (3, 4.302652729749462),
        (6, 2.5705818356363146),
        (7, 2.4469118511449786),
        (11, 2.228138851986274),
        (12, 2.200985160091639),
        (13, 2.1788128296672284),
        (50, 2.0095752371292392),
        (121, 1.9799304050824402),
        (201, 1.9718962236339088),
        (202, 1.971836506779859),
        (203, 1.9717773846699893),
        (1000, 1.9623414611334493),
        (100_001, 1.9599877075346095),
    ],
)
def test_quantiles_of_students_t_are_those_of_scipy(n: int, quantile: float) -> None:
    assert t_quantile(n - 1) == pytest.approx(quantile, abs=1e-9)


def clustered(*numbers: tuple[int, float]) -> ClusteredMean:
    mean = ClusteredMean()
    for cluster, value in numbers:
        mean.add(cluster, value)
    return mean


UNEVEN = (
    *((0, score) for score in (0.25, 0.5, 0.5)),
    *((1, score) for score in (0.75, 1.0)),
    *((2, score) for score in (0.0, 0.25, 0.125, 0.5)),
    (3, 1.0),
)
FOUR_TESTS = tuple(enumerate((0.2, 0.9, 0.4, 0.7)))
NEGATIVE = ((0, -0.9), (0, -0.8), (1, -1.0), (1, -0.7), (2, -0.75))


@pytest.mark.parametrize(
    ("numbers", "mean", "error", "interval"),
    [
        (UNEVEN, 0.4875, 0.16589404248897344, (0.0, 1.0)),
        (FOUR_TESTS, 0.55, 0.15545631755148026, (0.05526861657528087, 1.0)),
        (NEGATIVE, -0.83, 0.02400000000000002, (-0.933263665513987, -0.7267363344860127)),
    ],
)
def test_clustered_intervals_are_those_of_statsmodels(
    numbers: tuple[tuple[int, float], ...], mean: float, error: float, interval: tuple[float, float]
) -> None:
    """OLS on a constant with cov_type cluster, use_t, and the correction G / (G - 1)."""
    found = clustered(*numbers)

    assert found.mean == pytest.approx(mean, abs=1e-9)
    assert found.standard_error() == pytest.approx(error, abs=1e-9)
    assert found.interval() == pytest.approx(interval, abs=1e-9)
    assert found.n == len(numbers)


def test_the_mean_of_negative_numbers_may_leave_the_range_of_scores() -> None:
    running = RunningMean()
    for value in (-0.9, -0.8, -1.0, -0.7, -0.75):
        running.add(value)
    assert running.mean == pytest.approx(-0.83)
    interval = running.interval()
    assert interval is not None
    assert interval[0] < -0.83 < interval[1] < 0


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20), st.integers(2, 5))
def test_repeating_answers_that_do_not_differ_makes_nothing_surer(scores: list[float], repeats: int) -> None:
    once = clustered(*enumerate(scores))
    again = clustered(*((test, score) for test, score in enumerate(scores) for _ in range(repeats)))

    assert again.interval() == pytest.approx(once.interval(), abs=1e-6)
    assert again.mean == pytest.approx(once.mean)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_clusters_of_one_are_single_numbers(scores: list[float]) -> None:
    running = RunningMean()
    for score in scores:
        running.add(score)
    assert clustered(*enumerate(scores)).interval() == pytest.approx(running.interval(), abs=1e-6)


PASSES = ((0, 1), (0, 1), (0, 0), (1, 1), (1, 1), (1, 1), (2, 0), (2, 0), (2, 1), (3, 1), (3, 0), (3, 1))


UNLIKE = ((0, 1), (0, 1), (0, 0), (1, 1), (1, 1), (1, 1), (2, 0), (2, 0), (2, 0), (3, 1), (3, 0), (3, 1))


@pytest.mark.parametrize(
    ("numbers", "interval"),
    [
        (UNLIKE, (0.264764129419289, 0.8447883536863359)),
        (
            tuple((test, passed) for test, passed in enumerate((1, 0, 1)) for _ in range(3)),
            (0.2076596008020477, 0.9385080552796038),
        ),
        (PASSES, (0.3906220888727995, 0.8618799089087871)),
        (tuple((test, 1) for test in range(4) for _ in range(3)), (0.5101091635454025, 1.0)),
        (tuple((test, 0) for test in range(4) for _ in range(3)), (0.0, 0.4898908364545974)),
        (((0, 1), (0, 1)), (0.20654931437723745, 1.0)),
    ],
)
def test_the_interval_of_a_share_counts_clusters(
    numbers: tuple[tuple[int, float], ...], interval: tuple[float, float]
) -> None:
    """statsmodels' proportion_confint(method="wilson") of the effective number."""
    assert clustered(*numbers).share_interval() == pytest.approx(interval, abs=1e-9)


@given(st.lists(st.booleans(), min_size=1))
def test_the_share_of_single_cases_is_wilsons(passed: list[bool]) -> None:
    found = clustered(*((test, float(value)) for test, value in enumerate(passed))).share_interval()
    assert found == wilson_interval(sum(passed), len(passed))


@pytest.mark.parametrize(
    ("scores", "lowest", "highest"),
    [((0.9, 1.5), False, False), ((-0.1, 1.0), False, False), ((0.1, 0.9), True, True)],
)
def test_only_an_interval_of_scores_is_cut(scores: tuple[float, ...], lowest: bool, highest: bool) -> None:
    interval = clustered(*enumerate(scores)).interval()
    assert interval is not None
    assert (interval[0] >= 0, interval[1] <= 1) == (lowest, highest)


def test_open_clusters_are_clusters() -> None:
    assert [clustered(*((test, 0.5) for test in range(count))).clusters for count in range(4)] == [0, 1, 2, 3]


def test_a_large_mean_loses_no_digits() -> None:
    """Milliseconds since 1970, say: what differs is far behind the first digits."""
    near = clustered((0, 0.25), (1, 0.75), (2, 1.5))
    far = clustered((0, 1e12 + 0.25), (1, 1e12 + 0.75), (2, 1e12 + 1.5))
    assert far.standard_error() == pytest.approx(near.standard_error(), rel=1e-9)


def test_one_cluster_has_a_mean_and_no_interval() -> None:
    one = clustered((0, 0.5), (0, 0.7))
    assert (one.mean, one.interval(), one.standard_error()) == (pytest.approx(0.6), None, None)
    assert (clustered().mean, clustered().interval(), clustered().share_interval()) == (None, None, None)
