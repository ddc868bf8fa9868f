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
from support.cluster_errors import cr2

from geval_cli.extras.compare.comparison import mcnemar_mid_p
from geval_cli.statistics.paired import (
    DifferenceVerdict,
    Margins,
    PairedDifferences,
    PairedSample,
    PairedTest,
    RowDecision,
    benjamini_hochberg,
    decide,
    drop_limit,
    holm,
    least_clusters,
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


def decided(test: PairedTest, *, among: int = 1, margin: float | None = None) -> RowDecision[int]:
    """Return what is shown of a difference that is looked at together with others, which show nothing."""
    others = {
        place: compared((test, *(random.Random(place).random() for _ in "ab")) for test in range(20))
        for place in range(1, among)
    }
    found = decide({0: test, **others}, group=lambda place: place, margin=lambda _: margin)
    return found[0]


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
    """CR2 in its general form, by matrices: of a design that is a column of ones, and of independent errors."""
    numbers = random.Random(seed)
    groups = [numbers.gauss(0.1, 0.3) for _ in range(23)]
    pairs = [
        (cluster, before, before + mean + numbers.gauss(0, 0.2) + offset)
        for cluster, mean in enumerate(groups)
        for before in [numbers.random() for _ in range(numbers.randint(1, 6))]
    ]
    found = compared(pairs)
    differences = np.array([after - before for _, before, after in pairs])
    places = np.array([cluster for cluster, _, _ in pairs])
    error, freedom = cr2(differences, places)
    tolerance = 1e-9 * max(1.0, offset)
    assert found.delta == pytest.approx(differences.mean(), abs=tolerance)
    assert found.se == pytest.approx(error, abs=1e-9)
    assert found.freedom == pytest.approx(freedom, abs=1e-9)
    t = found.delta / error
    assert found.p == pytest.approx(2 * stats.t.sf(abs(t), freedom), abs=1e-9)
    spread = stats.t.ppf(0.975, freedom) * error
    assert found.interval == pytest.approx((found.delta - spread, found.delta + spread), abs=tolerance)
    one_sided = stats.t.ppf(0.99, freedom) * error
    assert found.bounds(0.01) == pytest.approx(
        (found.delta - one_sided, found.delta + one_sided), abs=tolerance
    )
    assert found.sd == pytest.approx(differences.std(ddof=1), abs=1e-9)


def test_clusters_of_several_sizes_have_a_robust_error_and_few_degrees_of_freedom() -> None:
    clusters = [[0.5], [0, 0.25], [-0.25, 0.5, 0], [0.25, 1, 0.5, -0.5, 0.25, 0]]
    found = compared((place, 0.0, change) for place, changes in enumerate(clusters) for change in changes)
    assert (found.delta, found.se, found.freedom) == pytest.approx((0.208333, 0.055191, 2.088608), abs=1e-6)


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


@pytest.mark.parametrize("rows", [1, 4, 10])
def test_detectable_difference_and_needed_tests(rows: int) -> None:
    numbers = random.Random(11)
    found = compared((test, numbers.random(), numbers.random()) for test in range(100))
    assert found.sd is not None
    level = 0.05 / rows

    def quantile(freedom: int) -> float:
        return float(stats.t.ppf(1 - level / 2, freedom) + stats.t.ppf(0.8, freedom))

    detectable = found.detectable(level)
    assert detectable is not None
    assert detectable == pytest.approx(quantile(99) * found.sd / 10, abs=1e-9)
    needed = found.needed_tests(0.05, level)
    assert needed is not None
    enough, less = ((quantile(tests - 1) * found.sd / 0.05) ** 2 for tests in (needed, needed - 1))
    assert enough <= needed
    assert less > needed - 1
    assert found.needed_tests(-0.05, level) == needed
    assert found.needed_tests(detectable, level) == 100
    assert found.needed_tests(0.0) is None
    decision = decided(found, among=rows)
    assert decision.as_delta(detect=0.05).mde == pytest.approx(detectable)
    assert decision.as_delta(detect=0.05).needed_tests == needed


@pytest.mark.parametrize("differing", [3, 4])
def test_too_few_tests_that_differ_say_nothing_of_the_spread(differing: int) -> None:
    found = compared((test, 1.0, 0.0 if test < differing else 1.0) for test in range(200))
    assert (found.differing, found.clusters) == (differing, 200)
    assert (found.detectable() is None) is (found.needed_tests(0.05) is None) is (differing < 4)


def test_no_detectable_difference_is_above_one_and_few_tests_need_enough_of_them() -> None:
    wild = compared((test, float(test % 2), float(test in {0, 3, 4})) for test in range(6))
    assert (wild.differing, wild.detectable(0.05)) == (4, None)
    assert wild.needed_tests(0.9, 0.05) is not None
    # By flips of signs, less than six tests never reach 0.05, and less than seven never a third of it.
    assert [least_clusters(0.05 / rows) for rows in (1, 2, 3, 4, 10, 1000)] == [6, 7, 7, 8, 9, 10]
    numbers = random.Random(3)
    few = compared((test, numbers.random(), numbers.random()) for test in range(6))
    assert decided(few).least_tests is None
    third = decided(few, among=3)
    assert (third.least_tests, third.family, few.detectable(third.level)) == (7, 3, None)


def test_no_differences_prove_nothing() -> None:
    found = compared((test, 0.5, 0.5) for test in range(40))

    assert (found.delta, found.p, found.interval) == (0, 1.0, None)
    assert decided(found).verdict is DifferenceVerdict.UNDECIDED
    assert found.detectable() is found.needed_tests(0.05) is found.dz is None
    # Though so many tests without a difference leave little room for one.
    low, high = found.bounds(0.05) or (-1, 1)
    assert -0.05 < low < 0 < high < 0.05


def test_what_floats_make_of_equal_scores_is_no_difference() -> None:
    found = compared((test, 0.3, 0.1 + 0.2 + 1e-12 * test) for test in range(40))
    assert (found.delta, found.p, found.differing) == (0, 1.0, 0)
    assert found.needed_tests(1e-12) is None


def test_the_same_thing_judged_twice_is_identical_unless_it_scored_otherwise() -> None:
    same = compared(((test, 0.5, 0.5) for test in range(3)), same=True)
    assert decided(same).verdict is DifferenceVerdict.IDENTICAL
    other = compared([(0, 0.5, 0.5), (1, 0.5, 0.6)], same=True)
    assert decided(other).verdict is DifferenceVerdict.UNDECIDED
    partly = PairedDifferences()
    partly.add(0, 0.5, 0.5, same=True)
    partly.add(1, 0.5, 0.5)
    found = partly.result()
    assert found is not None
    assert decided(found).verdict is DifferenceVerdict.UNDECIDED


@pytest.mark.parametrize(("tests", "p"), [(4, 0.125), (5, 0.0625), (20, 2.0**-19)])
def test_equal_differences_count_flips_of_signs(tests: int, p: float) -> None:
    # 0.3 - 0.4 and 0.6 - 0.7 differ in their last digits, which is no spread.
    found = compared((test, *((0.4, 0.3) if test % 2 else (0.7, 0.6))) for test in range(tests))

    assert found.p == pytest.approx(p, rel=1e-9)
    assert found.interval is None
    assert decided(found).verdict is (DifferenceVerdict.WORSE if p <= 0.05 else DifferenceVerdict.UNDECIDED)


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
    assert found.se is found.interval is found.bounds(0.05) is found.detectable() is None
    assert decided(found).verdict is DifferenceVerdict.UNDECIDED
    assert PairedDifferences().result() is None


def test_a_verdict_needs_an_adjusted_p_of_at_most_five_per_cent() -> None:
    numbers = random.Random(1)
    better = compared((test, 0.2, 0.2 + numbers.random()) for test in range(30))
    worse = compared((test, 0.2 + numbers.random(), 0.2) for test in range(30))
    assert [decided(found).verdict for found in (better, worse)] == [
        DifferenceVerdict.BETTER,
        DifferenceVerdict.WORSE,
    ]
    close = compared((test, 0.5, 0.56 + 0.1 * numbers.choice([-1.2, 1.0])) for test in range(30))
    assert 0.01 < close.p < 0.05
    assert [decided(close, among=rows).verdict for rows in (1, 8)] == [
        DifferenceVerdict.BETTER,
        DifferenceVerdict.UNDECIDED,
    ]


def test_a_margin_is_held_against_two_one_sided_tests() -> None:
    numbers = random.Random(4)
    found = compared((test, 0.5, 0.5 + numbers.gauss(0.025, 0.02)) for test in range(200))
    low, high = found.bounds(0.05) or (-1, 1)
    assert 0 < low < found.delta < high < 0.05
    assert decided(found).verdict is DifferenceVerdict.BETTER
    assert decided(found, margin=high + 0.001).verdict is DifferenceVerdict.EQUIVALENT
    assert decided(found, margin=high - 0.001).verdict is DifferenceVerdict.UNDECIDED
    assert decided(found, margin=low - 0.001).verdict is DifferenceVerdict.BETTER
    delta = decided(found, margin=0.05).as_delta()
    assert (delta.margin, delta.margin_interval) == (0.05, (low, high))


@pytest.mark.parametrize("value", [0, 1, -0.1, "0.05", True, None, {"tone": 2}, {"tone": "x"}, [0.05]])
def test_margins_are_numbers_between_zero_and_one(value: object) -> None:
    with pytest.raises(ValueError, match=r"^(tone)?$"):
        Margins.read(value)
    assert Margins.read({"tone": 0.1}).of("tone") == 0.1
    assert Margins.read({"tone": 0.1}).of("right") is None
    assert Margins.read(0.1).of("right") == 0.1


def changed(broken: int, fixed: int, n: int) -> PairedTest:
    return compared(
        (test, float(not broken <= test < broken + fixed), float(test >= broken)) for test in range(n)
    )


@given(st.integers(2, 120), st.data())
def test_the_limit_of_a_drop_grows_with_what_breaks_and_falls_with_what_is_fixed(
    n: int, data: st.DataObject
) -> None:
    broken = data.draw(st.integers(0, n - 1))
    fixed = data.draw(st.integers(0, n - 1 - broken))
    level = data.draw(st.sampled_from([0.05, 0.005]))
    limit = drop_limit(broken, fixed, n, level)
    assert limit >= (broken - fixed) / n
    assert drop_limit(broken + 1, fixed, n, level) >= limit - 1e-9
    assert drop_limit(broken, fixed + 1, n, level) <= limit + 1e-9


@pytest.mark.parametrize(("broken", "n"), [(0, 200), (1, 200), (7, 30), (29, 30), (30, 30), (4000, 9000)])
def test_without_fixed_tests_the_limit_of_a_drop_is_that_of_clopper_and_pearson(broken: int, n: int) -> None:
    exact = stats.beta.ppf(0.95, broken + 1, n - broken) if broken < n else 1.0
    assert drop_limit(broken, 0, n, 0.05) == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("level", [0.05, 0.005])
@pytest.mark.parametrize("n", [5, 20, 38, 61])
def test_the_limit_of_a_drop_is_too_low_as_rarely_as_it_says(n: int, level: float) -> None:
    """All outcomes are gone through, for many true shares of tests that break and that get fixed."""
    limits = {
        (broken, fixed): drop_limit(broken, fixed, n, level)
        for broken in range(n + 1)
        for fixed in range(n + 1 - broken)
    }
    counts = np.array(list(limits))
    found = np.array(list(limits.values()))
    for drop in (-0.2, -0.02, 0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4):
        for fixed in sorted(
            {max(0.0, -drop) + more for more in (0.0, 0.01, 0.05, 0.2)} | {(1 - abs(drop)) / 2}
        ):
            if 2 * fixed + drop > 1 + 1e-9:
                continue
            chances = [max(fixed + drop, 0.0), fixed, max(0.0, 1 - 2 * fixed - drop)]
            columns = np.column_stack([counts, n - counts.sum(axis=1)])
            likely = stats.multinomial.pmf(columns, n, np.array(chances) / sum(chances))
            assert likely[found < drop - 1e-9].sum() <= max(level, 0.0055), (drop, fixed)


def test_bounds_of_verdicts_are_exact_and_mirror_when_both_sides_are_swapped() -> None:
    for broken, fixed, n in ((0, 0, 200), (3, 0, 50), (2, 5, 40), (9, 9, 30)):
        test, mirrored = changed(broken, fixed, n), changed(fixed, broken, n)
        assert test.flips == (broken, fixed)
        low, high = test.bounds(0.05) or (0, 0)
        assert (low, high) == (-drop_limit(broken, fixed, n, 0.05), drop_limit(fixed, broken, n, 0.05))
        assert mirrored.bounds(0.05) == pytest.approx((-high, -low), abs=1e-12)
    assert changed(0, 0, 200).bounds(0.05) == pytest.approx((-0.0148670, 0.0148670), abs=1e-6)


@pytest.mark.parametrize("repeats", [1, 2, 3, 10])
@pytest.mark.parametrize(
    ("broken", "fixed", "n"), [(0, 0, 34), (0, 0, 100), (2, 0, 100), (1, 3, 50), (5, 4, 200)]
)
def test_repeats_that_always_agree_are_no_evidence(broken: int, fixed: int, n: int, repeats: int) -> None:
    found = compared(
        (test, float(not broken <= test < broken + fixed), float(test >= broken))
        for test in range(n)
        for _ in range(repeats)
    )
    assert found.bounds(0.05) == pytest.approx(changed(broken, fixed, n).bounds(0.05) or (0, 0), abs=1e-12)


def test_a_test_that_breaks_in_part_counts_in_part() -> None:
    """Four tests lose half of their repeats, which is no more than two whole tests."""
    found = compared((test, 1.0, float(test >= 4 or pair)) for test in range(100) for pair in range(2))
    assert found.flips is None
    assert found.bounds(0.05) == pytest.approx(changed(2, 0, 100).bounds(0.05) or (0, 0), abs=1e-12)


@pytest.mark.parametrize("others", [40, 119])
@pytest.mark.parametrize(("large", "differing"), [(2, 1), (5, 1), (5, 9), (100, 1), (100, 9), (100, 0)])
def test_bounds_of_verdicts_count_how_large_the_clusters_are_that_differ(
    large: int, differing: int, others: int
) -> None:
    """One document has more pairs than all others, and it is among those that break."""
    pairs = [(0, 1.0, float(not differing))] * large
    found = compared([*pairs, *((test, 1.0, float(test >= differing)) for test in range(1, others + 1))])
    low, high = found.bounds(0.05) or (0, 0)
    exact = -drop_limit(differing, 0, others + 1, 0.05), drop_limit(0, differing, others + 1, 0.05)

    assert low <= found.delta <= high
    assert low <= exact[0]
    assert exact[1] <= high
    for margin in (0.02, 0.05, 0.1):
        decision = decided(found, margin=margin)
        assert decision.verdict is not DifferenceVerdict.EQUIVALENT or abs(found.delta) < margin


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("n", [20, 34, 58, 59, 100])
@pytest.mark.parametrize("drop", [0.02, 0.05, 0.1])
def test_a_drop_of_the_margin_is_rarely_called_equivalent(drop: float, n: int, repeats: int) -> None:
    """Without errors of the other kind: by how many tests break, with their chances."""
    wrong = 0.0
    for broken in range(10):
        found = compared((test, 1.0, float(test >= broken)) for test in range(n) for _ in range(repeats))
        if decided(found, margin=drop).verdict is DifferenceVerdict.EQUIVALENT:
            wrong += float(stats.binom.pmf(broken, n, drop))
    assert wrong <= 0.05


SCORES = st.lists(
    st.tuples(*[st.integers(0, 8).map(lambda eighths: eighths / 8)] * 2), min_size=2, max_size=30
)


@given(SCORES, st.randoms(use_true_random=False))
def test_swapping_mirrors_and_the_order_of_tests_changes_nothing(
    scores: list[tuple[float, float]], shuffled: random.Random
) -> None:
    found = compared((test, *pair) for test, pair in enumerate(scores))
    mirrored = compared((test, after, before) for test, (before, after) in enumerate(scores))
    others = list(scores)
    shuffled.shuffle(others)
    permuted = compared((test, *pair) for test, pair in enumerate(others))

    assert mirrored.p == pytest.approx(found.p, abs=1e-9)
    assert mirrored.delta == pytest.approx(-found.delta, abs=1e-12)
    low, high = found.bounds(0.05) or (0, 0)
    assert mirrored.bounds(0.05) == pytest.approx((-high, -low), abs=1e-9)
    assert permuted.bounds(0.05) == pytest.approx((low, high), abs=1e-9)
    assert permuted.p == pytest.approx(found.p, abs=1e-9)
    assert permuted.detectable() == pytest.approx(found.detectable(), abs=1e-9)


def test_rows_with_equal_figures_in_every_test_are_one() -> None:
    numbers = random.Random(7)
    pairs = [(test, numbers.random(), numbers.random()) for test in range(30)]
    tests = {
        ("one", "pass"): compared(pairs),
        ("one", "right"): compared((test, before, after + 1e-12) for test, before, after in pairs),
        ("one", "tone"): compared((test, after, before) for test, before, after in pairs),
        ("two", "pass"): compared(pairs),
    }
    found = decide(tests, group=lambda key: key[0])
    assert [item.names for item in found] == [
        (("one", "pass"), ("one", "right")),
        (("one", "tone"),),
        (("two", "pass"),),
    ]
    assert {item.p for item in found} == {min(1.0, 3 * item.test.p) for item in found}


def test_the_level_is_what_holm_leaves() -> None:
    def row(change: float) -> PairedTest:
        numbers = random.Random(str(change))
        return compared((test, 0.5, 0.5 + numbers.gauss(change, 0.1)) for test in range(40))

    tests = {place: row(change) for place, change in enumerate([0.3, 0.0, 0.2, 0.001])}
    found = decide(tests, group=lambda place: place)
    assert [item.verdict for item in found] == ["better", "undecided", "better", "undecided"]
    assert [item.family for item in found] == [4, 2, 3, 2]
    assert [item.level for item in found] == pytest.approx([0.05 / family for family in (4, 2, 3, 2)])


def test_a_sample_takes_clusters_in_any_order() -> None:
    numbers = random.Random(2)
    pairs = [(numbers.randrange(9), numbers.random(), numbers.random()) for _ in range(60)]
    sample = PairedSample()
    for cluster, before, after in pairs:
        sample.add(cluster, (before, after), same=False)
    found, wanted = sample.test(), compared(sorted(pairs, key=lambda pair: pair[0]))
    assert found is not None
    assert (found.delta, found.se, found.freedom) == (wanted.delta, wanted.se, wanted.freedom)


@pytest.mark.parametrize("delta", [0.02, 0.06, 0.2, -0.06])
def test_more_tests_are_those_that_would_show_on_which_side_of_the_margin_a_difference_is(
    delta: float,
) -> None:
    found = compared((test, 0.4, 0.4 + delta + (0.15 if test % 2 else -0.15)) for test in range(20))
    decision = decided(found, margin=0.05)

    assert decision.as_delta().needed_tests == found.needed_tests(abs(delta) - 0.05, decision.level)
    assert decided(found).as_delta().needed_tests == found.needed_tests(delta, decision.level)
    assert decision.as_delta(detect=0.1).needed_tests == found.needed_tests(0.1, decision.level)
