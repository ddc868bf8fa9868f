"""The expected figures come from published ratings and from scipy and statsmodels, and rates from simulated runs."""

import json
import math
import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from soak.findings import shown_differences

from geval_cli.statistics.paired import (
    PairedDifferences,
    PairedTest,
    Verdict,
    benjamini_hochberg,
    detectable_quantile,
    holm,
    mcnemar_mid_p,
    sign_flip_p,
)

RATINGS = Path(__file__).resolve().parents[3] / "shared" / "data" / "summeval_gpt4_rts.jsonl"
needs_ratings = pytest.mark.skipif(not RATINGS.is_file(), reason="../shared is not there")
Pairs = Iterable[tuple[int, float, float]]


def compared(pairs: Pairs, *, same: bool = False) -> PairedTest:
    differences = PairedDifferences()
    for cluster, before, after in pairs:
        differences.add(cluster, before, after, same=same)
    result = differences.result()
    assert result is not None
    return result


@pytest.fixture(scope="module")
def rating() -> dict[tuple[str, str], dict[str, float]]:
    """Return the scores 0..1 of a dimension and a system by document."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for line in RATINGS.read_text("utf-8").splitlines():
        item = json.loads(line)
        if item["score_audited"] is not None:
            found[item["dimension"], item["system_id"]][item["doc_id"]] = (item["score_audited"] - 1) / 4
    return found


@needs_ratings
@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("fluency", (0.068750, 0.047120, (-0.024745, 0.162245), 0.147715, 14, 27, 0.043559)),
        ("relevance", (-0.112500, 0.044999, (-0.201788, -0.023212), 0.014061, 25, 14, 0.080690)),
    ],
)
def test_published_ratings_of_two_systems(
    rating: dict[tuple[str, str], dict[str, float]], metric: str, expected: tuple[object, ...]
) -> None:
    before, after = rating[metric, "M11"], rating[metric, "M20"]
    pairs = [(before[doc], after[doc]) for doc in before]
    found = compared((number, *pair) for number, pair in enumerate(pairs))
    broken = sum(old >= 0.75 > new for old, new in pairs)
    fixed = sum(new >= 0.75 > old for old, new in pairs)

    delta, se, interval, p, *flips, mid_p = expected
    assert (found.n, found.clusters) == (100, 100)
    assert (found.delta, found.se, found.p) == pytest.approx((delta, se, p), abs=1e-6)
    assert found.interval == pytest.approx(interval, abs=1e-6)
    assert [broken, fixed] == flips
    assert mcnemar_mid_p(broken, fixed) == pytest.approx(mid_p, abs=1e-6)


@needs_ratings
def test_metrics_of_one_document_are_one_cluster(rating: dict[tuple[str, str], dict[str, float]]) -> None:
    dimensions = sorted({dimension for dimension, _ in rating})
    pairs = [
        (number, rating[dimension, "M14"][doc], rating[dimension, "M15"][doc])
        for number, doc in enumerate(rating[dimensions[0], "M14"])
        for dimension in dimensions
    ]
    found = compared(pairs)
    naive = compared((number, *pair[1:]) for number, pair in enumerate(pairs))

    assert (found.n, found.clusters, naive.clusters) == (400, 100, 400)
    assert (found.delta, found.se, naive.se) == pytest.approx((-0.000625, 0.018167, 0.011062), abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_standard_error_is_that_of_a_regression_with_clusters(seed: int, offset: float) -> None:
    import statsmodels.api as sm

    numbers = random.Random(seed)
    groups = [numbers.gauss(0.1, 0.3) for _ in range(23)]
    pairs = [
        (cluster, before, before + mean + numbers.gauss(0, 0.2) + offset)
        for cluster, mean in enumerate(groups)
        for before in [numbers.random() for _ in range(numbers.randint(1, 6))]
    ]
    found = compared(pairs)
    differences = np.array([after - before for _, before, after in pairs])
    fit = sm.OLS(differences, np.ones(len(pairs))).fit(
        cov_type="cluster",
        # Its own correction, G / (G - 1) * (n - 1) / (n - 1), is the same for one parameter.
        cov_kwds={"groups": np.array([cluster for cluster, _, _ in pairs])},
        use_t=True,
    )
    tolerance = 1e-9 * max(1.0, offset)
    assert found.delta == pytest.approx(fit.params[0], abs=tolerance)
    assert found.se == pytest.approx(fit.bse[0], abs=1e-9)
    assert found.p == pytest.approx(fit.pvalues[0], abs=1e-9)
    assert found.interval == pytest.approx(tuple(fit.conf_int()[0]), abs=tolerance)
    assert found.bounds(0.05) == pytest.approx(tuple(fit.conf_int(0.1)[0]), abs=tolerance)
    assert found.sd == pytest.approx(differences.std(ddof=1), abs=1e-9)


def test_one_pair_a_test_is_the_paired_t_test() -> None:
    numbers = random.Random(5)
    before, after = ([numbers.random() for _ in range(40)] for _ in range(2))
    oracle = stats.ttest_rel(after, before)
    found = compared(zip(range(40), before, after, strict=True))

    assert found.p == pytest.approx(oracle.pvalue, abs=1e-9)
    assert found.interval == pytest.approx(tuple(oracle.confidence_interval()), abs=1e-9)
    assert (found.before, found.after) == pytest.approx((np.mean(before), np.mean(after)), abs=1e-12)
    assert found.dz == pytest.approx(oracle.statistic / math.sqrt(40), abs=1e-9)


def test_few_clusters_flip_signs() -> None:
    numbers = random.Random(9)
    pairs = [(cluster, numbers.random(), numbers.random() + 0.5) for cluster in range(9) for _ in range(3)]
    sums = [sum(after - before for place, before, after in pairs if place == cluster) for cluster in range(9)]
    oracle = stats.permutation_test(
        (sums,), np.sum, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    )
    assert compared(pairs).p == pytest.approx(oracle.pvalue, abs=1e-9)
    assert compared(pairs).clusters == 9


@pytest.mark.parametrize(
    ("sums", "p"), [([], 1.0), ([0.3], 1.0), ([0.3, 0.1], 0.5), ([0.1] * 6, 2 / 64), ([0.1, 0.2, -0.3], 1.0)]
)
def test_sign_flip(sums: list[float], p: float) -> None:
    assert sign_flip_p(sums) == pytest.approx(p, abs=1e-12)


@given(st.integers(0, 80), st.integers(0, 80))
def test_mcnemar_is_that_of_statsmodels_and_scipy(broken: int, fixed: int) -> None:
    from statsmodels.stats.contingency_tables import mcnemar

    binomial = stats.binom(broken + fixed, 0.5)
    fewer = min(broken, fixed)
    exact = mcnemar([[7, broken], [fixed, 3]], exact=True).pvalue if broken + fixed else 1.0
    assert exact == pytest.approx(min(1.0, 2 * binomial.cdf(fewer)), abs=1e-9)  # the two oracles agree
    mid_p = 2 * binomial.cdf(fewer) - binomial.pmf(fewer) if broken + fixed else 1.0
    assert mcnemar_mid_p(broken, fixed) == pytest.approx(min(1.0, mid_p), abs=1e-9)


def test_mcnemar_of_many_flips() -> None:
    exact, last = stats.binomtest(9_800, 20_000).pvalue, stats.binom(20_000, 0.5).pmf(9_800)
    assert mcnemar_mid_p(9_800, 10_200) == pytest.approx(exact - last, rel=1e-9)
    assert mcnemar_mid_p(0, 20_000) == 0.0


@settings(max_examples=25)  # statsmodels takes a tenth of a second for each
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_adjusted_p_values_are_those_of_statsmodels(values: list[float]) -> None:
    from statsmodels.stats.multitest import multipletests

    assert holm(values) == pytest.approx(multipletests(values, method="holm")[1], abs=1e-9)
    assert benjamini_hochberg(values) == pytest.approx(multipletests(values, method="fdr_bh")[1], abs=1e-9)


def test_nothing_to_adjust() -> None:
    assert holm([]) == benjamini_hochberg([]) == []


def test_detectable_difference_and_needed_tests() -> None:
    numbers = random.Random(11)
    found = compared((test, numbers.random(), numbers.random()) for test in range(100))
    assert found.mde is not None
    assert found.sd is not None
    quantile = stats.t.ppf(0.975, 99) + stats.t.ppf(0.8, 99)
    assert detectable_quantile(99) == pytest.approx(quantile, abs=1e-9)
    assert found.mde == pytest.approx(quantile * found.sd / 10, abs=1e-9)
    assert found.needed_tests(0.05) == math.ceil((quantile * found.sd / 0.05) ** 2)
    assert found.needed_tests(-0.05) == found.needed_tests(0.05)
    assert found.needed_tests(found.mde) == 100
    assert found.needed_tests(0.0) is None


def test_no_differences_prove_nothing() -> None:
    found = compared((test, 0.5, 0.5) for test in range(40))

    assert (found.delta, found.p, found.interval, found.bounds(0.05)) == (0, 1.0, None, None)
    assert found.verdict(found.p) is Verdict.UNDECIDED
    assert found.mde is found.needed_tests(0.05) is found.dz is None


def test_the_same_thing_judged_twice_is_identical_unless_it_scored_otherwise() -> None:
    same = compared(((test, 0.5, 0.5) for test in range(3)), same=True)
    assert same.verdict(same.p) is Verdict.IDENTICAL
    other = compared([(0, 0.5, 0.5), (1, 0.5, 0.6)], same=True)
    assert other.verdict(other.p) is Verdict.UNDECIDED
    partly = PairedDifferences()
    partly.add(0, 0.5, 0.5, same=True)
    partly.add(1, 0.5, 0.5)
    found = partly.result()
    assert found is not None
    assert found.verdict(found.p) is Verdict.UNDECIDED


@pytest.mark.parametrize(("tests", "p", "bound"), [(4, 0.125, None), (5, 0.0625, -0.1), (20, 2.0**-19, -0.1)])
def test_equal_differences_count_flips_of_signs(tests: int, p: float, bound: float | None) -> None:
    # 0.3 - 0.4 and 0.6 - 0.7 differ in their last digits, which is no spread.
    found = compared((test, *((0.4, 0.3) if test % 2 else (0.7, 0.6))) for test in range(tests))

    assert found.p == pytest.approx(p, rel=1e-9)
    assert found.interval is None
    assert found.bounds(0.05) == (pytest.approx((bound, bound)) if bound else None)
    assert found.verdict(found.p) is (Verdict.WORSE if p <= 0.05 else Verdict.UNDECIDED)


def test_scores_cannot_differ_by_more_than_one() -> None:
    found = compared((test, 1.0, 1.0 if test < 2 else 0.0) for test in range(12))
    assert found.interval is not None
    assert found.interval[0] == -1.0
    ratings = compared((test, 5.0, 5.0 if test < 2 else 4.0) for test in range(12))
    assert ratings.interval is not None
    assert ratings.interval[0] < -1


def test_one_test_says_nothing() -> None:
    found = compared([(0, 0.2, 0.9), (0, 0.3, 0.8)])

    assert (found.n, found.clusters, found.p) == (2, 1, 1.0)
    assert found.se is found.interval is found.bounds(0.05) is found.mde is None
    assert found.verdict(found.p) is Verdict.UNDECIDED
    assert PairedDifferences().result() is None


def test_a_verdict_needs_an_adjusted_p_of_at_most_five_per_cent() -> None:
    numbers = random.Random(1)
    found = compared((test, 0.2, 0.2 + numbers.random()) for test in range(30))
    assert [found.verdict(p) for p in (0.05, 0.0500001)] == [Verdict.BETTER, Verdict.UNDECIDED]
    worse = compared((test, 0.2 + numbers.random(), 0.2) for test in range(30))
    assert worse.verdict(worse.p) is Verdict.WORSE


@pytest.mark.parametrize(("tests", "repeats"), [(20, 1), (50, 5)])
def test_equal_systems_are_rarely_told_apart(tests: int, repeats: int) -> None:
    """Few runs here; `make soak PARTS=findings` simulates ten thousand."""
    shown = shown_differences(runs=600, tests=tests, repeats=repeats, true_delta=0.0, seed=20_260)
    assert 0.03 <= shown <= 0.075


def test_the_detectable_difference_is_detected_four_times_in_five() -> None:
    shown = shown_differences(runs=400, tests=100, repeats=1, true_delta=None, seed=4_711)
    assert 0.72 <= shown <= 0.87
