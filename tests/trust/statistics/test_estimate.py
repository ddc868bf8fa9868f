"""True figures from a few labels: published data, hand-made cases, and how often intervals hold."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import stats
from soak.coverage import coverage_of_rates
from support.judged_data import summaries

from geval_cli.extras.trust.statistics.estimate import (
    ErrorRates,
    Inference,
    Item,
    infer_difference,
    infer_mean,
    infer_rate,
    infer_shift,
    rogan_gladen,
)
from geval_cli.extras.trust.weighted_draw import infer_by_shares

TOLERANCE = 1e-6


def infer_by_equal_shares(items: Sequence[Item]) -> Inference | None:
    return infer_by_shares(items, [float(item.human is not None) for item in items], is_rate=True)


def consistency(*, is_rate: bool) -> Inference:
    """The first ten documents labelled, each output a cluster of its own."""
    rows = [row for row in summaries() if row["metric"] == "consistency" and row["score"] is not None]
    first = set(list(dict.fromkeys(row["doc"] for row in rows))[:10])

    def item(row: dict[str, object]) -> Item:
        marks, score = row["labels"], row["score"]
        assert isinstance(marks, dict)
        assert isinstance(score, float)
        human = (sum(marks.values()) / 3 - 1) / 4
        judged = score
        if is_rate:
            human, judged = float(human >= 0.75 - 1e-9), float(score >= 0.75)
        return Item(judged, human if row["doc"] in first else None, str(row["id"]))

    found = (infer_rate if is_rate else infer_mean)([item(row) for row in rows])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("is_rate", "value", "interval", "weight"),
    [
        (False, 0.885468, (0.840211, 0.919141), 0.400631),
        (True, 0.846603, (0.789969, 0.903236), 0.407158),
    ],
)
def test_published_data(is_rate: bool, value: float, interval: tuple[float, float], weight: float) -> None:
    found = consistency(is_rate=is_rate)
    assert found.estimate.interval == pytest.approx(interval, abs=TOLERANCE)
    assert (found.estimate.value, found.weight) == pytest.approx((value, weight), abs=TOLERANCE)
    assert (found.estimate.n, found.outputs) == (119, 1198)


def test_rogan_and_gladen() -> None:
    found = rogan_gladen(0.4, 1000, ErrorRates(passed_good=180, good=200, failed_bad=140, bad=200))
    assert found is not None
    assert found.value == pytest.approx(0.166667, abs=TOLERANCE)
    assert found.interval == pytest.approx((0.056351, 0.262733), abs=TOLERANCE)


@pytest.mark.parametrize(
    "rates",
    [
        ErrorRates(passed_good=5, good=10, failed_bad=5, bad=10),
        ErrorRates(passed_good=0, good=0, failed_bad=5, bad=10),
        ErrorRates(passed_good=5, good=10, failed_bad=0, bad=0),
        ErrorRates(passed_good=1, good=10, failed_bad=1, bad=10),
    ],
)
def test_a_judge_that_knows_nothing_corrects_nothing(rates: ErrorRates) -> None:
    assert rogan_gladen(0.4, 100, rates) is None


def test_without_unlabelled_outputs_it_is_the_mean_of_the_labels() -> None:
    marks = np.random.default_rng(2).random(40)
    found = infer_mean([Item(0.5, float(mark), str(place)) for place, mark in enumerate(marks)])
    assert found is not None
    assert found.weight == 0
    assert found.estimate.value == pytest.approx(marks.mean(), abs=1e-12)
    assert found.estimate.interval == pytest.approx(found.labels.interval, abs=1e-9)


def test_a_judge_that_is_always_right_counts_nearly_as_labels() -> None:
    draw = np.random.default_rng(3).random(1000)
    items = [Item(float(x), float(x) if place < 100 else None, str(place)) for place, x in enumerate(draw)]
    found = infer_mean(items)
    assert found is not None
    assert found.weight > 0.8
    assert found.estimate.value == pytest.approx(draw.mean(), abs=0.01)
    assert found.estimate.interval is not None
    low, high = found.estimate.interval
    assert found.labels.interval is not None
    assert high - low < 0.5 * (found.labels.interval[1] - found.labels.interval[0])


def test_a_judge_that_runs_against_people_is_left_out() -> None:
    draw = np.random.default_rng(4).random(400)
    items = [Item(float(1 - x), float(x) if place < 80 else None, str(place)) for place, x in enumerate(draw)]
    found = infer_mean(items)
    assert found is not None
    assert found.weight == 0
    assert found.estimate.value == pytest.approx(draw[:80].mean(), abs=1e-12)


def test_a_judge_that_always_says_the_same_is_left_out() -> None:
    items = [Item(1.0, float(place % 4 > 0) if place < 40 else None, str(place)) for place in range(200)]
    found = infer_rate(items)
    assert found is not None
    assert found.weight == 0
    assert found.judge == 1
    # With two good and two bad pseudo-labels.
    assert found.estimate.value == pytest.approx((30 + 2) / 44)


def test_labels_of_one_cluster_are_no_independent_evidence() -> None:
    """The same labels, ten times each: the interval must not become narrower for it."""
    draw = np.random.default_rng(6)
    truth = draw.random(30)
    once = [Item(0.5, float(mark), str(place)) for place, mark in enumerate(truth)]
    often = [Item(0.5, float(mark), str(place)) for place, mark in enumerate(truth) for _ in range(10)]
    one, ten = infer_mean(once), infer_mean(often)
    assert one is not None
    assert ten is not None
    assert ten.estimate.interval == pytest.approx(one.estimate.interval, abs=1e-9)
    assert (ten.estimate.n, ten.estimate.clusters) == (300, 30)


@pytest.mark.parametrize("infer", [infer_rate, infer_by_equal_shares])
@pytest.mark.parametrize("times", [2, 4, 10])
@pytest.mark.parametrize("groups", [2, 3, 8, 15, 30])
@pytest.mark.parametrize("good", [0.5, 0.9, 1.0])
def test_repeated_labels_are_no_evidence_for_a_rate_either(
    infer: Callable[[Sequence[Item]], Inference | None], times: int, groups: int, good: float
) -> None:
    """Judge and people say the same of all outputs of a test: more of them make no interval much narrower."""
    draw = random.Random(7)
    truth = [float(draw.random() < good) for _ in range(4 * groups)]

    def width(count: int) -> float:
        found = infer(
            [
                Item(mark, mark if place < groups else None, str(place))
                for place, mark in enumerate(truth)
                for _ in range(count)
            ]
        )
        assert found is not None
        assert found.estimate.interval is not None
        return found.estimate.interval[1] - found.estimate.interval[0]

    assert width(times) >= 0.95 * width(1)


@pytest.mark.parametrize("infer", [infer_rate, infer_by_equal_shares])
def test_one_cluster_says_nothing_about_a_rate(infer: Callable[[Sequence[Item]], Inference | None]) -> None:
    found = infer([Item(float(place % 3 > 0), float(place % 2), "one") for place in range(30)])
    assert found is not None
    low, high = found.estimate.interval or (0.0, 1.0)
    assert high - low > 0.9


@pytest.mark.parametrize(("groups", "size", "good"), [(2, 16, 0.5), (4, 16, 0.8), (8, 4, 0.8), (30, 4, 0.95)])
def test_few_groups_of_similar_labels_cover_the_rate(groups: int, size: int, good: float) -> None:
    """Nine of ten labels of a group are that of the group; coverage was 0.48, 0.59, 0.87 and 0.86."""
    draw, trials, held = random.Random(2), 120, 0
    for _ in range(trials):
        items = []
        for group in range(2 * groups):
            shared = draw.random() < good
            for _ in range(size):
                mark = shared if draw.random() < 0.9 else draw.random() < good
                judged = mark == (draw.random() < 0.85)
                items.append(Item(float(judged), float(mark) if group < groups else None, str(group)))
        found = infer_rate(items)
        assert found is not None
        low, high = found.estimate.interval or (0.0, 1.0)
        held += low <= good <= high
    assert held >= 0.92 * trials


def test_one_label_has_no_interval_and_none_no_figure() -> None:
    items = [Item(0.4, None, "a"), Item(0.6, 1.0, "b"), Item(0.1, None, "c")]
    found = infer_mean(items)
    assert found is not None
    assert (found.estimate.value, found.estimate.interval) == (1.0, None)
    assert infer_mean(items[:1]) is None
    assert infer_rate([]) is None


def test_figures_stay_within_what_is_possible() -> None:
    items = [Item(1.0, 1.0 if place < 5 else None, str(place)) for place in range(50)]
    found = infer_mean(items)
    assert found is not None
    assert found.estimate.value == 1.0
    rate = infer_rate(items)
    assert rate is not None
    assert rate.estimate.interval is not None
    assert 0 <= rate.estimate.interval[0] < 1
    assert rate.estimate.interval[1] <= 1


@pytest.mark.parametrize(("labels", "good"), [(30, 0.85), (100, 0.6)])
def test_intervals_contain_the_truth_as_often_as_they_say(labels: int, good: float) -> None:
    """A small form of `make soak PARTS=intervals`."""
    covered, _ = coverage_of_rates(labels, 400, good=good, trials=200, seed=1)
    assert covered >= 0.92


def test_intervals_of_published_data_hold_and_are_narrower_than_by_labels_alone() -> None:
    """A hundred random labels of consistency, again and again; the judge alone is off by five points."""
    rows = [row for row in summaries() if row["metric"] == "consistency" and row["score"] is not None]
    people = [float(sum(row["labels"].values()) / 3 >= 4 - 1e-9) for row in rows]
    judged = [float(row["score"] >= 0.75) for row in rows]
    truth, draw = sum(people) / len(people), random.Random(5)
    assert truth == pytest.approx(0.867279, abs=TOLERANCE)
    held, width, alone = 0, 0.0, 0.0
    for _ in range(100):
        read = set(draw.sample(range(len(rows)), 100))
        items = [
            Item(judged[place], people[place] if place in read else None, str(place))
            for place in range(len(rows))
        ]
        found = infer_rate(items)
        assert found is not None
        assert found.estimate.interval is not None
        assert found.labels.interval is not None
        low, high = found.estimate.interval
        held += low <= truth <= high
        width, alone = width + high - low, alone + found.labels.interval[1] - found.labels.interval[0]
    assert held >= 91
    assert width < 0.95 * alone


class TestDifferences:
    """Two runs of 80 tests; `labelled` of the first or of the last ones."""

    def sides(self, seed: int, first: int, last: int) -> tuple[list[Item], list[Item]]:
        draw = np.random.default_rng(seed)
        quality = draw.random((2, 80))
        judged = np.clip(quality + draw.normal(0, 0.2, (2, 80)) + [[0.0], [0.2]], 0, 1)
        return tuple(
            [
                Item(float(judged[run, n]), float(quality[run, n]) if is_read(n) else None, str(n))
                for n in range(80)
            ]
            for run, is_read in enumerate((lambda n: n < first, lambda n: n >= 80 - last))
        )  # type: ignore[return-value]

    def pairs(self, before: list[Item], after: list[Item]) -> list[Item]:
        return [
            Item(
                new.judged - old.judged,
                None if old.human is None or new.human is None else new.human - old.human,
                old.cluster,
            )
            for old, new in zip(before, after, strict=True)
        ]

    def test_of_labels_of_everything_are_the_paired_t_test(self) -> None:
        before, after = self.sides(1, 80, 80)
        marks = np.array([[item.human for item in side] for side in (before, after)])
        expected = stats.ttest_rel(marks[1], marks[0])
        for found in (infer_difference(self.pairs(before, after)), infer_shift(before, after)):
            assert found is not None
            assert found.value == pytest.approx(marks[1].mean() - marks[0].mean())
            assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
            assert found.interval == pytest.approx(tuple(expected.confidence_interval(0.95)), abs=1e-9)

    def test_a_flattered_judge_is_set_right_and_labels_on_different_tests_say_it_too(self) -> None:
        before, after = self.sides(2, 40, 80)
        paired = infer_difference(self.pairs(before, after))
        apart = infer_shift(
            before,
            [
                Item(item.judged, item.human if n >= 40 else None, item.cluster)
                for n, item in enumerate(after)
            ],
        )
        for found in (paired, apart):
            assert found is not None
            assert found.judge > 0.09
            assert found.interval is not None
            assert found.interval[0] < 0 < found.interval[1]

    def test_the_error_of_different_tests_is_that_of_the_influences(self) -> None:
        """By leaving each test out of what it is in, weights held: the jackknife of a linear statistic is the same."""
        before, after = self.sides(3, 30, 50)
        found = infer_shift(before, after)
        assert found is not None
        weights = found.weights

        def theta(items: list[Item], weight: float, without: str) -> float:
            kept = [item for item in items if item.cluster != without]
            rest = [item.judged for item in kept if item.human is None]
            read = [item.human - weight * item.judged for item in kept if item.human is not None]
            return weight * float(np.mean(rest)) + float(np.mean(read))

        moved = [
            theta(after, weights[1], str(n)) - theta(before, weights[0], str(n)) - found.value
            for n in range(80)
        ]
        assert found.se == pytest.approx(np.sqrt(np.square(moved).sum()), rel=0.05)
        assert found.freedom == 29

    @pytest.mark.parametrize(("count", "has_interval"), [(1, False), (14, False), (15, True)])
    def test_few_labels_have_a_figure_and_no_interval(self, count: int, has_interval: bool) -> None:
        before, after = self.sides(4, count, count)
        both = infer_difference(
            [*self.pairs(before[:count], before[:count][::-1]), *self.pairs(before[count:], after[count:])]
        )
        for found in (both, infer_shift(before, after)):
            assert found is not None
            assert (found.se is not None, found.interval is not None, found.p is not None) == (
                has_interval,
            ) * 3

    def test_nothing_is_known_without_labels_or_from_labels_that_all_say_the_same(self) -> None:
        before, after = self.sides(5, 0, 40)
        assert infer_shift(before, after) is None
        assert infer_difference(self.pairs(before, after)) is None
        same = [Item(item.judged, 1.0 if n < 40 else None, item.cluster) for n, item in enumerate(before)]
        for found in (infer_shift(same, after), infer_difference(same)):
            assert found is not None
            assert found.interval is None

    def test_repeats_of_a_test_are_no_further_tests(self) -> None:
        pairs = self.pairs(*self.sides(6, 80, 80))
        once, often = infer_difference(pairs), infer_difference([pair for pair in pairs for _ in range(5)])
        assert once is not None
        assert often is not None
        assert often.interval == pytest.approx(once.interval, abs=1e-9)
        assert often.clusters == (80, 80)


@pytest.mark.parametrize(("labels", "margin"), [(30, 0.1), (60, 0.05), (100, 0.05)])
def test_a_true_difference_of_the_margin_is_rarely_within_it(labels: int, margin: float) -> None:
    """Few outputs became worse, and some samples of labels hold one of them or none; 0.10 to 0.14 were within it."""
    draw, trials, wrong = random.Random(5), 150, 0
    for _ in range(trials):
        items = []
        for test in range(2 * labels):
            moved = -float(draw.random() < margin)
            judged = moved if draw.random() < 0.9 else draw.choice([-1.0, 0.0, 1.0])
            items.append(Item(judged, moved if test < labels else None, str(test)))
        found = infer_difference(items)
        low, high = (None if found is None else found.bounds(0.05)) or (-1.0, 1.0)
        wrong += -margin <= low and high <= margin
    assert wrong <= 0.085 * trials
