"""The figures of columns are computed here once more, from all scores at once, with numpy and scipy."""

import random
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.cluster_errors import cr2_of
from support.sample_run import make_case, make_judged

from geval_cli.engine.aggregate import Tally, with_clustered_intervals
from geval_cli.engine.columns import ColumnSums, baseline_index, column_labels, columns_named
from geval_cli.engine.gates import judge_gates
from geval_cli.records import CaseResult, Column, ColumnSummary, Delta, ErrorInfo, Role, Status, Usage
from geval_cli.statistics.paired import NO_MARGINS, Margins
from geval_cli.suite.gates import Gate, Statistic

COLUMNS = (Column(0, "short", "small"), Column(1, "long", "small"), Column(2, "short", "large"))
Scores = Sequence[Sequence[Sequence[float | None]]]
"""Of each test, of each column, of each repeat; None is an error."""


def case(test: int, column: int, repeat: int, score: float | None, **changes: object) -> CaseResult:
    """A case that passes from 0.5 on; its one metric is `tone`."""
    if score is None:
        status, scores = Status.ERROR, {}
    else:
        status, scores = (Status.PASSED if score >= 0.5 else Status.FAILED), {"tone": score}
    values: dict[str, object] = {
        "repeat_index": repeat,
        "score": score,
        "named_scores": scores,
        "assertions": (make_judged(status, score, metric="tone"),),
        **changes,
    }
    return make_case(test, COLUMNS[column], status, **values)


def cases(scores: Scores) -> Iterator[CaseResult]:
    for test, of_columns in enumerate(scores):
        for column, of_repeats in enumerate(of_columns):
            for repeat, score in enumerate(of_repeats):
                yield case(test, column, repeat, score)


def summed(results: Iterable[CaseResult], *, baseline: int = 0) -> tuple[ColumnSummary, ...]:
    sums = ColumnSums(COLUMNS, baseline)
    for result in results:
        sums.add(result)
    return sums.summaries()


def drawn(tests: int, repeats: int, seed: int = 1, errors: float = 0.0) -> list[list[list[float | None]]]:
    """Scores in steps of a quarter, which repeats of a test share in part."""
    draw = random.Random(seed)

    def score(ease: float) -> float | None:
        if draw.random() < errors:
            return None
        return round(4 * min(max(draw.gauss(ease, 0.2), 0), 1)) / 4

    found = []
    for _ in range(tests):
        ease = draw.random()
        found.append(
            [[score(ease + 0.05 * column) for _ in range(repeats)] for column in range(len(COLUMNS))]
        )
    return found


def tone_delta(column: ColumnSummary) -> Delta:
    assert column.vs_first is not None
    return column.vs_first.metrics["tone"].delta


@pytest.mark.parametrize(
    ("tests", "repeats", "errors"), [(40, 1, 0.0), (40, 3, 0.0), (25, 4, 0.3), (12, 2, 0.5)]
)
def test_means_and_rates_are_those_of_an_independent_computation(
    tests: int, repeats: int, errors: float
) -> None:
    np, stats = pytest.importorskip("numpy"), pytest.importorskip("scipy.stats")

    def score_interval(mean: float, variance: float, groups: int, freedom: float) -> tuple[float, float]:
        largest = mean * (1 - mean)
        worth = largest / (((groups - 1) * variance + largest / groups) / groups)
        t = stats.t.ppf(0.975, freedom)
        centre = (mean + t**2 / (2 * worth)) / (1 + t**2 / worth)
        half = t / (1 + t**2 / worth) * np.sqrt(largest / worth + t**2 / (4 * worth**2))
        return centre - half, centre + half

    scores = drawn(tests, repeats, errors=errors)
    for index, column in enumerate(summed(cases(scores))):
        known = [[score for score in test[index] if score is not None] for test in scores]
        known = [of_test for of_test in known if of_test]
        stat = column.metrics["tone"]
        n = sum(map(len, known))
        mean = sum(map(sum, known)) / n
        error, freedom = cr2_of(known)
        expected = score_interval(mean, error**2, len(known), freedom)
        assert (stat.value, stat.n, stat.clusters) == (pytest.approx(mean, abs=1e-9), n, len(known))
        assert stat.interval == pytest.approx(expected, abs=1e-9)
        assert (column.errored, stat.errored) == (tests * repeats - stat.n,) * 2

        passes = [[score >= 0.5 for score in of_test] for of_test in known]
        rate = sum(map(sum, passes)) / n
        error, freedom = cr2_of(passes)
        expected = score_interval(rate, error**2, len(passes), freedom)
        assert column.pass_rate.value == pytest.approx(rate, abs=1e-12)
        assert column.pass_rate.interval == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("tests", "repeats", "errors"), [(40, 1, 0.0), (30, 3, 0.2)])
def test_differences_are_those_of_tests_that_both_columns_have(
    tests: int, repeats: int, errors: float
) -> None:
    np, stats = pytest.importorskip("numpy"), pytest.importorskip("scipy.stats")
    scores = drawn(tests, repeats, seed=2, errors=errors)
    for index, column in enumerate(summed(cases(scores))[1:], start=1):
        pairs = [
            [
                np.mean([score for score in test[place] if score is not None] or [np.nan])
                for place in (0, index)
            ]
            for test in scores
        ]
        before, after = np.array([pair for pair in pairs if not np.isnan(pair).any()]).T
        delta = tone_delta(column)
        assert (delta.value, delta.n, delta.clusters) == (
            pytest.approx((after - before).mean(), abs=1e-9),
            len(before),
            len(before),
        )
        wanted = stats.ttest_rel(after, before)
        assert delta.p == pytest.approx(wanted.pvalue, abs=1e-9)
        assert delta.interval == pytest.approx(tuple(wanted.confidence_interval()), abs=1e-9)


def test_means_of_different_tests_are_never_subtracted() -> None:
    """The second column lost the hard tests: its mean is higher, and no test differs."""
    scores: Scores = [[[0.9], [0.9], [0.9]]] * 6 + [[[0.1], [None], [0.1]]] * 6
    first, second, third = summed(cases(scores))

    assert second.metrics["tone"].value == 0.9
    assert first.metrics["tone"].value == pytest.approx(0.5)
    assert (second.errored, second.metrics["tone"].errored) == (6, 6)
    assert (tone_delta(second).value, tone_delta(second).clusters, tone_delta(second).p) == (0.0, 6, 1.0)
    assert tone_delta(third).clusters == 12
    assert second.vs_first is not None
    assert second.vs_first.metrics["tone"].verdict == "undecided"


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (["a", "b"], ["a", "b"], "identical"),
        (["a", "b"], ["a", "c"], "undecided"),
        (["a", None], ["a", None], "undecided"),
        ([None, None], [None, None], "undecided"),
    ],
)
def test_equal_scores_are_identical_only_when_the_same_was_rated(
    first: list[str | None], second: list[str | None], verdict: str
) -> None:
    def rated(test: int, column: int, key: str | None) -> CaseResult:
        detail = {} if key is None else {"rating_key": f"sha256:{key}"}
        judged = make_judged(Status.PASSED, 0.75, metric="tone", detail=detail)
        return case(test, column, 0, 0.75, assertions=(judged,))

    results = [
        rated(test, column, keys[test]) for test in range(2) for column, keys in enumerate((first, second))
    ]
    comparison = summed(results)[1].vs_first

    assert comparison is not None
    assert comparison.pass_rate is not None
    assert comparison.pass_rate.verdict == verdict
    assert comparison.metrics["tone"].verdict == verdict
    assert comparison.metrics["tone"].delta.p == 1.0


@pytest.mark.parametrize(("output", "verdict"), [("yes", "identical"), ("sure", "undecided")])
def test_what_no_judge_rated_is_identical_where_the_output_is(output: str, verdict: str) -> None:
    judged = make_judged(Status.PASSED, 1.0, metric="tone", detail={"rating_key": "sha256:a"})
    plain = make_judged(Status.PASSED, 1.0, metric="words", type="contains", threshold=None)
    results = [
        case(
            test,
            column,
            0,
            1.0,
            assertions=(judged, plain),
            named_scores={"tone": 1.0, "words": 1.0},
            output=output if column else "yes",
        )
        for test in range(2)
        for column in range(2)
    ]
    comparison = summed(results)[1].vs_first

    assert comparison is not None
    assert comparison.pass_rate is not None
    assert comparison.pass_rate.verdict == verdict
    assert comparison.metrics["words"].verdict == verdict
    # The same figures in every test are one row, whatever was measured.
    assert {name: item.same_as for name, item in comparison.metrics.items()} == {
        "tone": "pass_rate",
        "words": "pass_rate",
    }


def test_columns_that_differ_by_less_than_the_margin_are_equivalent() -> None:
    numbers = random.Random(3)
    results = [
        case(test, column, 0, 0.7 + numbers.uniform(-0.01, 0.01)) for test in range(60) for column in range(3)
    ]
    for margins, verdict in (
        (NO_MARGINS, "undecided"),
        (Margins(0.05), "equivalent"),
        (Margins(0.001), "undecided"),
    ):
        sums = ColumnSums(COLUMNS, 0, margins)
        for result in results:
            sums.add(result)
        found = [column.vs_first for column in sums.summaries()[1:]]
        assert {item.metrics["tone"].verdict for item in found if item is not None} == {verdict}


def test_one_test_has_no_interval_and_no_verdict() -> None:
    first, second, _ = summed(cases([[[0.2, 0.2, 0.4], [0.9, 0.9, 0.8], [1.0]]]))

    assert first.pass_rate.value == 0.0
    assert (first.pass_rate.interval, first.metrics["tone"].interval) == (None, None)
    assert (first.pass_rate.n, first.pass_rate.clusters) == (3, 1)
    assert second.vs_first is not None
    assert second.vs_first.pass_rate is not None
    assert second.vs_first.pass_rate.verdict is None
    assert second.vs_first.pass_rate.delta == Delta(1.0, None, 1, 1)


def test_few_tests_have_the_exact_p_of_flipped_signs() -> None:
    scores: Scores = [[[0.0], [0.25 + 0.05 * test], [0.0]] for test in range(6)]
    comparison = summed(cases(scores))[1].vs_first

    assert comparison is not None
    assert comparison.metrics["tone"].delta.p == 2 / 2**6


def test_p_values_are_corrected_for_all_rows() -> None:
    results = list(cases([[[0.0], [0.5 + 0.05 * test], [0.25 * (test % 2)]] for test in range(8)]))
    second, third = summed(results)[1:]
    rows = [
        item.delta
        for column in (second, third)
        for item in (column.vs_first.pass_rate, column.vs_first.metrics["tone"])  # type: ignore[union-attr]
        if item is not None
    ]

    assert [delta.p for delta in rows] == [2 / 2**8, 2 / 2**8, 1.0, 0.125]
    assert [delta.p_adjusted for delta in rows] == [4 * 2 / 2**8, 4 * 2 / 2**8, 1.0, 0.25]
    assert second.vs_first is not None
    assert second.vs_first.metrics["tone"].verdict == "better"


def test_more_tests_are_needed_when_more_is_compared() -> None:
    scores = drawn(30, 1, seed=5)
    alone = [[of_test[0], of_test[1], []] for of_test in scores]
    few, many = (tone_delta(summed(cases(found))[1]) for found in (alone, scores))

    assert few.p == many.p
    assert few.needed_tests is not None
    assert many.needed_tests is not None
    assert few.needed_tests < many.needed_tests


@pytest.mark.parametrize("baseline", [0, 1, 2])
def test_any_column_may_be_the_one_to_compare_with(baseline: int) -> None:
    columns = summed(cases(drawn(12, 1)), baseline=baseline)

    labels = column_labels(COLUMNS)
    for index, column in enumerate(columns):
        found = None if column.vs_first is None else column.vs_first.baseline
        assert found == (None if index == baseline else labels[baseline])


@given(st.randoms(use_true_random=False))
def test_the_order_of_cases_within_a_test_does_not_matter(shuffle: random.Random) -> None:
    tests = [list(cases([of_test])) for of_test in drawn(6, 3, errors=0.1)]
    tests = [[replace(item, test_index=number) for item in of_test] for number, of_test in enumerate(tests)]
    wanted = summed(item for of_test in tests for item in of_test)
    for of_test in tests:
        shuffle.shuffle(of_test)

    assert summed(item for of_test in tests for item in of_test) == wanted


@pytest.mark.parametrize("copies", [2, 5])
def test_repeated_answers_make_no_interval_narrower(copies: int) -> None:
    once = drawn(15, 1, seed=3)
    often = [[of_column * copies for of_column in of_test] for of_test in once]
    for single, repeated in zip(summed(cases(once)), summed(cases(often)), strict=True):
        assert repeated.pass_rate.value == single.pass_rate.value
        assert repeated.pass_rate.interval == pytest.approx(single.pass_rate.interval)
        assert repeated.metrics["tone"].interval == pytest.approx(single.metrics["tone"].interval)
        if repeated.vs_first is not None:
            assert tone_delta(repeated).p == pytest.approx(tone_delta(single).p)
            assert tone_delta(repeated).interval == pytest.approx(tone_delta(single).interval)


@pytest.mark.parametrize(
    "scores",
    [
        [[[1.0, 1.0, 1.0, None]], [[0.0, None, None, None]]],
        [[[1.0, None, None]], [[0.2, 0.2, 0.2]], [[0.3, 0.3, 0.2]]],
        drawn(12, 3, errors=0.4),
    ],
)
def test_the_figures_of_a_column_are_those_of_its_run_and_gates(scores: Scores) -> None:
    """Also where errors leave tests with different numbers of scores."""
    results = [replace(item, column=0) for item in cases(scores) if item.column == 0]
    tally = Tally()
    for item in results:
        tally.add(item)
    whole = with_clustered_intervals(tally.summary(), results)
    column = summed(results)[0]
    gates = judge_gates(
        [
            Gate("tone.mean >= 0", Statistic.MEAN, ">=", 0, metric="tone"),
            Gate("pass_rate >= 0", Statistic.PASS_RATE, ">=", 0),
        ],
        results,
        max_errors=None,
    )

    found, mean = column.metrics["tone"], whole.metrics["tone"]
    assert (found.n, found.errored) == (mean.n, mean.errored)
    assert found.value == pytest.approx(mean.mean, abs=1e-12) == pytest.approx(gates[0].actual, abs=1e-12)
    assert found.interval == pytest.approx(mean.interval, abs=1e-12)
    rate = column.pass_rate
    assert (
        rate.value == pytest.approx(whole.pass_rate, abs=1e-12) == pytest.approx(gates[1].actual, abs=1e-12)
    )
    assert rate.interval == pytest.approx(whole.pass_interval, abs=1e-12)


def test_chances_of_several_tries_are_of_tests_with_enough_of_them() -> None:
    tests: Scores = [[[1.0, 1.0, 0.0]], [[1.0, None, None]], [[0.0, 0.0, 0.0]]]
    column = summed(cases(tests))[0]

    assert list(column.pass_at_k) == list(column.pass_hat_k) == ["2", "3"]
    assert column.pass_at_k["2"].value == pytest.approx(0.5)
    assert column.pass_hat_k["2"].value == pytest.approx((1 / 3) / 2)
    assert (column.pass_at_k["3"].value, column.pass_hat_k["3"].value) == (0.5, 0.0)
    assert (column.pass_at_k["3"].n, column.pass_at_k["3"].clusters) == (6, 2)


def test_without_repeats_there_are_no_chances_of_several_tries() -> None:
    assert summed(cases([[[1.0]], [[0.0]]]))[0].pass_at_k == {}


def test_cost_latency_and_tokens_are_of_the_answers() -> None:
    used = {Role.GENERATION: Usage(1, 10, 5, 0, 0.25), Role.JUDGE: Usage(3, 99, 9, 0, 0.5)}
    answered = [
        case(
            test,
            0,
            0,
            1.0,
            latency_ms=1000.0 * (test + 1),
            usage=used,
            cached=test > 99,
            cost_usd_generated=0.5,
        )
        for test in range(120)
    ]
    failed = case(120, 0, 0, None, latency_ms=9e9, usage=used, error=ErrorInfo("ProviderError", "no"))
    column, other, _ = summed([*answered, failed])

    assert column.cost_usd == pytest.approx(121 * 0.25)
    assert column.usage == {
        "generation": Usage(121, 1210, 605, 0, 30.25),
        "judge": Usage(363, 11979, 1089, 0, 60.5),
    }
    assert column.cost_usd_generated == pytest.approx(120 * 0.5)
    # Of all answers: those from the cache took what they took when they were generated.
    assert column.latency_ms.median == pytest.approx(60_000, rel=0.006)
    assert column.latency_ms.p95 == pytest.approx(114_000, rel=0.006)
    assert (other.latency_ms.median, other.latency_ms.p95, other.pass_rate.value) == (None, None, None)


def test_an_unknown_price_is_no_price_of_0() -> None:
    used = {Role.GENERATION: Usage(1, 10, 5, 0, None)}
    assert summed([case(0, 0, 0, 1.0, usage=used)])[0].cost_usd is None


def test_memory_does_not_grow_with_the_tests() -> None:
    def peak(tests: int) -> int:
        sums = ColumnSums(COLUMNS)
        tracemalloc.start()
        for test in range(tests):
            for column in range(3):
                sums.add(case(test, column, 0, (test * 7 + column) % 5 / 4))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(50)
    assert peak(800) < peak(100) + 10_000


@pytest.mark.parametrize(
    ("columns", "labels"),
    [
        (COLUMNS, ["short × small", "long × small", "short × large"]),  # noqa: RUF001
        (COLUMNS[:2], ["short", "long"]),
        (COLUMNS[::2], ["small", "large"]),
        (COLUMNS[:1], ["small"]),
        ((Column(0, "p", "m"), Column(1, "p", "m")), ["m [1]", "m [2]"]),
        ((Column(0, "", "m"), Column(1, "p", "")), ["m", "p"]),
    ],
)
def test_labels_tell_columns_apart(columns: tuple[Column, ...], labels: list[str]) -> None:
    assert column_labels(columns) == labels


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("long", [1]),
        ("large", [2]),
        ("short", [0, 2]),
        ("short x large", [2]),
        ("short × large", [2]),  # noqa: RUF001
        ("short | large", [2]),
        ("Large", []),
        ("", []),
    ],
)
def test_a_column_is_named_by_its_label_or_a_part_that_only_it_has(name: str, found: list[int]) -> None:
    assert columns_named(COLUMNS, name) == found
    assert baseline_index(COLUMNS, name) == (found[0] if len(found) == 1 else 0)
