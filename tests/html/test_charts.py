"""Drawings: well formed and within their box whatever the figures, with the same figures in words."""

# ruff: noqa: RUF001 - names of columns are in several scripts

import itertools
import re
import tracemalloc
from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.sample_columns import FIGURES
from support.sample_run import COLUMNS, make_case, make_judged

from geval_cli.extras.compare.comparison import ComparedRow, RowDelta, RowKind
from geval_cli.extras.html.charts import (
    BINS,
    DOTS_MAX,
    FURTHER_MAX,
    METRICS_MAX,
    SCORE,
    Histogram,
    PairedScore,
    RunFigures,
    ScoreRange,
    Spread,
    TrendPoint,
    Verdicts,
    difference_intervals,
    leaderboard,
    repeat_spreads,
    repeat_verdicts,
    run_charts,
    score_histograms,
    score_scatter,
    sorted_differences,
    trend,
)
from geval_cli.extras.html.drawing import (
    WIDTH,
    AxisScale,
    Chart,
    MarkFilter,
    legend,
    round_scale,
    score_scale,
)
from geval_cli.extras.trust.charts import chance_of_good, score_against_label
from geval_cli.extras.trust.labels import LabelledOutput
from geval_cli.records import CaseResult, ColumnSummary, Latency, MetricStat, Stat, Status
from geval_cli.statistics.intervals import Interval
from geval_cli.statistics.paired import DifferenceVerdict

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '</svg><script>alert(1)</script>"\x00\x1b[31m\u202e&amp;'
NAMES = ("x" * 200, "要約 有給休暇 日本語 × モデル", "شلوم שלום מודל", HOSTILE, "plain")


def link(choice: MarkFilter) -> str:
    """An address that says the whole choice."""
    values = (choice.column, choice.metric, choice.low, choice.high)
    return "?" + "&".join("" if value is None else str(value) for value in values)


def column(label: str, rate: float | None = 0.5, **changes: Any) -> ColumnSummary:
    stat = Stat() if rate is None else Stat(rate, (max(rate - 0.1, 0), min(rate + 0.1, 1)), 40, 40)
    return ColumnSummary("p", "m", label, passed=20, failed=20, pass_rate=stat, **changes)


def figures_of(scores: Iterable[float | None], metric: str = "tone", columns: int = 1) -> RunFigures:
    """Figures of one case for each score, in each of the columns."""
    cases = [
        case_of(number, index, score, metric)
        for number, score in enumerate(scores)
        for index in range(columns)
    ]
    return RunFigures.of(cases)


def case_of(test: int, index: int, score: float | None, metric: str = "tone") -> CaseResult:
    judged = make_judged(Status.PASSED, score, metric=metric, threshold=0.5)
    named = {} if score is None else {metric: score}
    return replace(make_case(test, score=score, assertions=(judged,), named_scores=named), column=index)


def parse(chart: Chart) -> ElementTree.Element:
    """The markup as XML, which refuses anything that is not closed or escaped."""
    return ElementTree.fromstring(chart.markup)


def words(chart: Chart) -> str:
    """Everything that the drawing says, with what screen readers hear."""
    root = parse(chart)
    return " ".join([*root.itertext(), *(item.get("aria-label", "") for item in root.iter())])


def check(chart: Chart) -> None:
    """A drawing is well formed, holds nothing that acts, and stays within its box; without one there is a reason."""
    assert re.fullmatch(r"[a-z0-9-]+", chart.name)
    assert chart.title
    assert chart.description
    assert "\x00" not in chart.description + chart.markup
    if not chart.markup:
        assert chart.description.startswith(("No", "Nothing"))
        return
    root = parse(chart)
    for item in root.iter():
        tag = item.tag.removeprefix(SVG)
        assert tag not in {"script", "style", "foreignObject", "image"}
        assert not any(name.startswith("on") or name == "style" for name in item.attrib)
    if root.tag == f"{SVG}svg":
        check_box(root)


def check_box(root: ElementTree.Element) -> None:
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    assert width == WIDTH
    assert root.attrib["role"] == ("group" if root.find(f".//{SVG}a") is not None else "img")
    assert root.find(f"{SVG}title") is not None
    assert root.find(f"{SVG}desc") is not None
    for item in root.iter():
        for x, y in corners(item):
            assert -0.1 <= x <= width + 0.1, ElementTree.tostring(item)
            assert -0.1 <= y <= height + 0.1, ElementTree.tostring(item)


def corners(item: ElementTree.Element) -> list[tuple[float, float]]:
    """The ends of a mark, and where a text begins."""

    def number(name: str) -> float:
        return float(item.attrib[name])

    match item.tag.removeprefix(SVG):
        case "rect":
            x, y = number("x"), number("y")
            return [(x, y), (x + number("width"), y + number("height"))]
        case "circle":
            x, y, radius = number("cx"), number("cy"), number("r")
            return [(x - radius, y - radius), (x + radius, y + radius)]
        case "line":
            return [(number("x1"), number("y1")), (number("x2"), number("y2"))]
        case "text":
            return [(number("x"), number("y"))]
        case "path":
            assert re.fullmatch(r"M-?[\d.]+ -?[\d.]+(L-?[\d.]+ -?[\d.]+)*Z?", item.attrib["d"])
            points = re.findall(r"(-?[\d.]+) (-?[\d.]+)", item.attrib["d"])
            return [(float(x), float(y)) for x, y in points]
    return []


ODD_RUNS: dict[str, tuple[tuple[ColumnSummary, ...], RunFigures]] = {
    "no column": ((), RunFigures()),
    "nothing judged": ((column("a", None), column("b", None)), RunFigures()),
    "one column, one point": ((column("a", 1.0),), figures_of([1.0])),
    "all equal": ((column("a"), column("b")), figures_of([0.5] * 9, columns=2)),
    "no score": ((column("a"),), figures_of([None, None])),
    "thirty columns": (
        tuple(column(f"c{number}", number / 40) for number in range(33)),
        figures_of([0.1, 0.9], columns=33),
    ),
    "twenty metrics": (
        (column("a", metrics={f"m{number}": MetricStat(0.5, (0.4, 0.6), 3, 3) for number in range(25)}),),
        RunFigures.of(case_of(0, 0, 0.5, f"m{number}") for number in range(40)),
    ),
    "odd names": (tuple(column(name) for name in NAMES), figures_of([0.2, 0.8], HOSTILE, len(NAMES))),
    "scores beyond 0 and 1": (
        (column("a", metrics={"tone": MetricStat(7.0, (-2.0, 16.0), 4, 4)}),),
        figures_of([-3.0, 1.5, 20.0, 0.5]),
    ),
    "costs unknown, negative, huge": (
        (column("a", cost_usd=None), column("b", cost_usd=-2.0), column("c", cost_usd=1e12)),
        RunFigures(),
    ),
    "latency 0 and huge": (
        (column("a", latency_ms=Latency(0.0, 0.0)), column("b", latency_ms=Latency(9e9, 9e9))),
        RunFigures(),
    ),
    "no interval": ((replace(column("a"), pass_rate=Stat(0.5, None, 1, 1)),), RunFigures()),
    "sample": (FIGURES, figures_of([0.3, 0.6], "clarity", len(FIGURES))),
}


@pytest.mark.parametrize("name", ODD_RUNS)
def test_drawings_of_odd_runs_are_sane(name: str) -> None:
    columns, figures = ODD_RUNS[name]
    charts = list(run_charts(columns, figures, link))
    assert bool(charts) == bool(columns)
    assert len({chart.name for chart in charts}) == len(charts)
    for chart in charts:
        check(chart)


def test_leaderboard_has_the_best_first_and_the_same_figures_in_words() -> None:
    columns = (column("low", 0.25), column("none", None), column("high", 0.75))
    chart = leaderboard(columns, link)
    assert chart.figures is not None
    assert [row[0] for row in chart.figures.rows] == ["high", "low", "none"]
    assert chart.description == "Highest: high with 75 % [65–85]; lowest: low with 25 % [15–35]."
    for row in chart.figures.rows:
        assert row[1] in words(chart)
    assert [item.get("href") for item in parse(chart).iter(f"{SVG}a")] == ["?2&&&", "?0&&&", "?1&&&"]


def test_columns_with_equal_pass_rates_have_the_order_of_the_table() -> None:
    means = {"low": 0.2, "high": 0.8, "middle": 0.5}
    columns = [
        replace(column(name, 0.5), metrics={"tone": MetricStat(mean, None, 3, 3)})
        for name, mean in means.items()
    ]
    chart = leaderboard(columns, link)
    assert chart.figures is not None
    assert [row[0] for row in chart.figures.rows] == ["high", "middle", "low"]


def test_equal_figures_have_no_best() -> None:
    columns = (column("a"), column("b"))
    assert leaderboard(columns, link).description == "All 2 columns: 50 % [40–60]."
    histograms = score_histograms("scores-1", "tone", columns, figures_of([0.2, 1.4], columns=2), link)
    assert histograms.description.startswith("All means: 0.80. Threshold 0.50. Scores below 0 or above 1 are")


def test_interval_and_value_lie_where_their_numbers_say() -> None:
    [interval] = parse(leaderboard((column("a", 0.5),), link)).findall(
        f".//{SVG}rect[@class='chart-interval']"
    )
    [value] = parse(leaderboard((column("a", 0.5),), link)).findall(f".//{SVG}circle")
    start, wide = float(interval.attrib["x"]), float(interval.attrib["width"])
    middle = float(value.attrib["cx"])
    assert start + wide / 2 == pytest.approx(middle, abs=0.2)
    assert wide == pytest.approx(0.2 * (350 - 12), abs=0.2)


def test_histogram_counts_every_score_once_and_a_bar_leads_to_its_scores() -> None:
    scores = [0.0, 0.05, 0.35, 0.349999999999, 0.5, 0.999, 1.0, 1.2, -0.1]
    columns, figures = (column("a"),), figures_of(scores)
    chart = score_histograms("scores-1", "tone", columns, figures, link)
    hrefs = [item.get("href", "") for item in parse(chart).iter(f"{SVG}a")]
    assert hrefs == [
        "?0&tone&&0.0",
        "?0&tone&0.0&0.05",
        "?0&tone&0.05&0.1",
        "?0&tone&0.35&0.4",
        "?0&tone&0.5&0.55",
        "?0&tone&0.95&1.0",
        "?0&tone&1.0000000000000002&",
    ]
    assert chart.figures is not None
    counts = [int(text) for text in re.findall(r": (\d+)", chart.figures.rows[0][3])]
    assert counts == [1, 1, 1, 2, 1, 2, 1]
    assert "Threshold 0.50." in chart.description


def test_round_scores_stay_in_their_step() -> None:
    for step in range(BINS + 1):
        counts = Histogram()
        counts.add(step / BINS)
        counts.add(sum([1 / BINS] * step))
        [(low, high, count)] = counts.bins()
        assert count == 2
        assert low == min(step, BINS - 1) / BINS
        assert high == min(step + 1, BINS) / BINS


def test_thresholds_of_negated_assertions_are_not_those_of_the_scores() -> None:
    inner = make_judged(Status.PASSED, 0.4, metric="tone", threshold=0.25)
    negated = make_judged(Status.PASSED, 0.4, metric="tone", threshold=0.9, type="not-g-eval")
    outer = make_judged(Status.PASSED, 0.4, metric=None, assertions=(inner,))
    figures = RunFigures.of([make_case(assertions=(outer, negated), named_scores={"tone": 0.4})])
    assert figures.thresholds == {"tone": {0.25: 1}}


def test_metrics_without_end_are_cut_off() -> None:
    figures = RunFigures.of([make_case(named_scores={f"m{number}": 0.5 for number in range(500)})])
    assert len(figures.scores) == METRICS_MAX + 1
    assert figures.left_out
    [further] = [item for item in run_charts((column("a"),), figures, link) if item.name == "scores-further"]
    assert further.description == "Not drawn: m24, m25, m26 and 21 more, or further ones."
    assert len(figures.left_out) == FURTHER_MAX


def test_repeats_are_counted_by_test_and_column() -> None:
    passed, failed, broken = Status.PASSED, Status.FAILED, Status.ERROR
    tests = [(passed, passed), (passed, failed), (failed, failed), (passed, broken), (broken, broken)]
    cases = [
        make_case(test, status=status, score=0.2 + 0.5 * repeat, repeat_index=repeat)
        for test, statuses in enumerate(tests)
        for repeat, status in enumerate(statuses)
    ]
    figures = RunFigures.of([*cases, make_case(9, COLUMNS[1], score=0.1)])
    found = figures.verdicts[0]
    assert (found.passed, found.mixed, found.failed, found.total) == (1, 1, 1, 3)
    assert list(figures.verdicts) == [0]
    spreads = figures.spreads()
    assert [(item.test_index, item.scores) for item in spreads] == [(test, (0.2, 0.7)) for test in range(5)]


def test_widest_spreads_are_kept_of_many() -> None:
    cases = [
        make_case(test, score=repeat * ((test * 7) % 100) / 100, repeat_index=repeat)
        for test in range(100)
        for repeat in (0, 1)
    ]
    widths = [item.width for item in RunFigures.of(cases).spreads()]
    assert widths == [number / 100 for number in range(99, 87, -1)]


PAIRS = {
    "none": [],
    "one": [PairedScore(0.5, 0.5, "a")],
    "all equal": [PairedScore(0.5, 0.5, "a")] * 30,
    "hostile": [PairedScore(0.1, 0.9, HOSTILE, "/a?b=1&c=2"), PairedScore(0.9, 0.1, "x" * 900)],
    "beyond 0 and 1": [PairedScore(-4.0, 12.0, "a"), PairedScore(3.0, 0.5, "b")],
    "many": [
        PairedScore((number % 101) / 100, (number % 37) / 36, f"t{number}") for number in range(DOTS_MAX * 5)
    ],
}


@pytest.mark.parametrize("name", PAIRS)
def test_drawings_of_pairs_are_sane(name: str) -> None:
    for draw in (score_scatter, sorted_differences):
        chart = draw("pairs-1", HOSTILE, PAIRS[name])
        check(chart)
        assert chart.markup.count("<circle") <= DOTS_MAX * 2
    if len(PAIRS[name]) > DOTS_MAX:
        assert (
            "400 bars drawn, evenly chosen of 2,000."
            in sorted_differences("pairs-1", "score", PAIRS[name]).description
        )


def test_scatter_counts_what_changed() -> None:
    pairs = [
        PairedScore(0.2, 0.8, "up"),
        PairedScore(0.8, 0.2, "down"),
        PairedScore(0.5, 0.5, "same", "/case"),
    ]
    chart = score_scatter("pairs-1", "score", pairs)
    assert chart.description == "Of 3 cases, 1 scored higher, 1 lower and 1 the same."
    up, down, same = parse(chart).findall(f".//{SVG}circle")
    assert "is-better" in up.attrib["class"]
    assert "is-worse" in down.attrib["class"]
    assert "is-" not in same.attrib["class"].replace("is-clear", "")
    assert [item.get("href") for item in parse(chart).iter(f"{SVG}a")] == ["/case"]
    differences = sorted_differences("pairs-2", "score", pairs)
    assert differences.description == "From -0.60 to +0.60; half of the cases are at 0.00 or below."


def test_counted_dots_lead_to_all_pairs_and_to_each_once() -> None:
    scores = [place / 100 for place in range(101)] + [0.02, 0.06, 0.1 + 0.2, 1 - 1e-12, 0.5 - 1e-13]
    pairs = [PairedScore(one, other, "") for one in scores for other in scores[::9]]
    ranges: list[tuple[ScoreRange, ScoreRange]] = []

    def link_to(before: ScoreRange, after: ScoreRange) -> str:
        ranges.append((before, after))
        return "/compare"

    chart = score_scatter("pairs-1", "score", pairs, link_to)
    said = [item.get("aria-label", "") for item in parse(chart).iter(f"{SVG}a")]
    for label, (before, after) in zip(said, ranges, strict=True):
        fitting = sum(before.holds(pair.before) and after.holds(pair.after) for pair in pairs)
        assert label.startswith(f"{fitting:,} case"), label
    fits = [sum(one.holds(pair.before) and two.holds(pair.after) for one, two in ranges) for pair in pairs]
    assert set(fits) == {1}


def row_of(column: str, value: float, interval: Interval | None, n: int, verdict: str) -> ComparedRow:
    delta = RowDelta(value, interval, n)
    return ComparedRow("tone", RowKind.METRIC, column, 0.5, 0.5 + value, delta, DifferenceVerdict(verdict))


def test_intervals_are_drawn_around_zero() -> None:
    rows = [
        row_of("tone", 0.1, (0.02, 0.18), 40, "better"),
        row_of(HOSTILE, -0.5, None, 1, "undecided"),
        *(row_of(f"m{number}", 0.0, (-0.1, 0.1), 9, "undecided") for number in range(40)),
    ]
    chart = difference_intervals("intervals-1", "tone", rows, lambda row: None)
    check(chart)
    assert chart.description.startswith(
        "Clear differences, corrected for everything compared: 1 of 42. 12 further differences not drawn."
    )
    assert "tone: +0.10 [+0.02, +0.18] of 40 pairs, better" in words(chart)
    check(difference_intervals("intervals-1", HOSTILE, [], lambda row: None))


def point(
    value: float | None, *, when: str = "2026-11-02T08:30:00+00:00", is_partial: bool = False
) -> TrendPoint:
    return TrendPoint(
        when, value, None if value is None else (value - 0.1, value + 0.1), 40, is_partial, "r", "/runs/r"
    )


@pytest.mark.parametrize(
    "points",
    [
        [],
        [point(None)],
        [point(0.5)],
        [point(0.5), point(None), point(0.5, is_partial=True)],
        [point(5.0), point(-3.0, when="no time")],
        [point(number / 40) for number in range(40)],
    ],
)
def test_trends_are_sane(points: list[TrendPoint]) -> None:
    for is_share in (False, True):
        check(trend("trend-1", "tone", points, is_share=is_share))


@pytest.mark.parametrize("count", [*range(1, 13), 30])
def test_days_under_a_trend_do_not_overlap(count: int) -> None:
    days = [f"2026-11-{number + 1:02}" for number in range(count)]
    chart = trend("trend-1", "tone", [point(0.5, when=f"{day}T08:30:00+00:00") for day in days])
    spans = []
    for item in parse(chart).iter(f"{SVG}text"):
        if item.text in days:
            right = float(item.attrib["x"]) + (0 if item.attrib["text-anchor"] == "end" else 32)
            spans.append((right - 64, right, item.text))  # as wide as ten digits in the chart's font
    assert {days[0], days[-1]} <= {day for _, _, day in spans}
    assert all(before[1] + 4 < after[0] for before, after in itertools.pairwise(spans))


def test_shares_are_written_as_everywhere() -> None:
    chart = trend("trend-1", "pass rate", [point(0.81), point(2 / 3), point(0.9999)], is_share=True)
    assert chart.figures is not None
    assert [row[2] for row in chart.figures.rows] == ["81 %", "67 %", ">99.9 %"]
    assert chart.description.startswith("3 runs: 81 % on ")
    assert "2026-11-02 08:30: 67 % of n 40" in words(chart)


def test_long_lines_and_addresses_are_whole() -> None:
    chart = trend("trend-1", "tone", [point(number / 100) for number in range(90)])
    band, course = (item.attrib["d"] for item in parse(chart).iter(f"{SVG}path"))
    assert (band.count("L"), course.count("L")) == (179, 89)
    name = "é & <b>" * 100
    histograms = score_histograms("scores-1", name, (column("a"),), figures_of([0.5], name), link)
    [mark] = parse(histograms).iter(f"{SVG}a")
    assert mark.attrib["href"] == f"?0&{name}&0.5&0.55"


def test_unfinished_runs_are_hollow_and_said_so() -> None:
    chart = trend("trend-1", "tone", [point(0.5), point(0.7, is_partial=True)])
    assert chart.description == (
        "2 runs: 0.50 on 2026-11-02 08:30, 0.70 on 2026-11-02 08:30. Hollow: runs that did not finish."
    )
    assert [("is-hollow" in item.attrib["class"]) for item in parse(chart).iter(f"{SVG}circle")] == [
        False,
        True,
    ]
    assert "did not finish" in words(chart)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [LabelledOutput(0.5, 0.5)],
        [LabelledOutput(number / 9, 1 - number / 9) for number in range(10)] * 30,
    ],
)
def test_drawings_of_labels_are_sane(points: list[LabelledOutput]) -> None:
    check(score_against_label("people-1", HOSTILE, points, threshold=0.5, good_at=0.75))
    shares = [(item.score, item.label, 1) for item in points]
    check(chance_of_good("calibration-1", HOSTILE, shares, curve=lambda score: score**2, threshold=0.5))


def test_labels_say_how_far_the_judge_is_off() -> None:
    points = [LabelledOutput(0.5, 0.75), LabelledOutput(0.25, 0.5)]
    chart = score_against_label("people-1", "tone", points)
    assert chart.description == "2 labelled outputs; the judge's scores are 0.25 higher on average."
    curve = chance_of_good("calibration-1", "tone", [(0.5, 1.0, 2), (0.5, 0.0, 1), (0.75, 1.0, 4)])
    assert curve.figures is not None
    assert curve.figures.rows == (("0.50", "67 %", "3"), ("0.75", "100 %", "4"))


def test_dots_of_labels_lead_to_all_outputs_and_to_each_once() -> None:
    values = [place / 40 for place in range(41)] + [0.1 + 0.2, 1e-12, 1 - 1e-12]
    points = [LabelledOutput(label, score) for label in values[::3] for score in values]
    choices: list[MarkFilter] = []

    def link_to(choice: MarkFilter) -> str:
        choices.append(choice)
        return "/"

    def holds(choice: MarkFilter, point: LabelledOutput) -> bool:
        scores = ScoreRange(choice.low, choice.high)
        return scores.holds(point.score) and ScoreRange(choice.label_low, choice.label_high).holds(
            point.label
        )

    shares = [(point.score, 1.0, 1) for point in points]
    for draw in (
        lambda: score_against_label("people-1", "tone", points, links=link_to),
        lambda: chance_of_good("calibration-1", "tone", shares, links=link_to),
    ):
        choices.clear()
        chart = draw()
        check(chart)
        said = [item.get("aria-label", "") for item in parse(chart).iter(f"{SVG}a")]
        for label, choice in zip(said, choices, strict=True):
            fitting = sum(holds(choice, point) for point in points)
            assert re.search(rf"\b{fitting} output", label), label
        assert {sum(holds(choice, point) for choice in choices) for point in points} == {1}


LONG = "with sources, step by step, in the words of the customer × a model with a long name (local)"


def test_names_are_whole_in_as_many_lines_as_they_need() -> None:
    columns = (column(LONG), column("b"), column("語" * 70))
    verdicts = {0: Verdicts(1, 1, 1)}
    spreads = [Spread(0.5, 3, 0, LONG, (0.2, 0.7))]
    drawn = [
        *run_charts(columns, figures_of([0.5, 0.7], columns=3), link),
        repeat_verdicts(columns, verdicts, link),
        repeat_spreads(columns, spreads, link),
        difference_intervals(
            "intervals-1", "tone", [row_of(LONG, 0.1, (0.0, 0.2), 4, "better")], lambda row: None
        ),
    ]
    for chart in drawn:
        check(chart)
        if chart.name == "heat":
            continue
        texts = ["".join(item.itertext()) for item in parse(chart).iter(f"{SVG}text")]
        assert not any("…" in text for text in texts), chart.name
        assert LONG in " ".join(texts), chart.name
        assert max(map(len, texts)) < 60, "a line runs out of the drawing"


def test_a_legend_takes_the_rows_it_needs() -> None:
    markup, end = legend([(f"chart-bar is-{number}", "a kind of mark") for number in range(7)], 10)
    places = [float(found) for found in re.findall(r'<text x="([\d.]+)"', markup)]
    assert end > 40
    assert max(places) < WIDTH - 60


@pytest.mark.parametrize("values", [[], [0.0], [1e-12], [3.0, 7.0], [-2.0], [-1e9, 1e9], [0.1 + 0.2]])
def test_round_scales_hold_their_values(values: list[float]) -> None:
    for scale in (round_scale(values, 10, 300), score_scale(values, 300, 10)):
        assert scale.low < scale.high
        assert all(scale.low - 1e-6 <= value <= scale.high + 1e-6 for value in values)
        assert 2 <= len(scale.ticks()) <= 7


def test_values_beyond_a_scale_lie_at_its_ends() -> None:
    scale = AxisScale(0.0, 2.0, 10.0, 110.0)
    assert [scale.at(value) for value in (-1.0, 0.0, 1.0, 2.0, 9.0)] == [10.0, 10.0, 60.0, 110.0, 110.0]


FINITE = st.floats(-50, 50, allow_nan=False)
SHARES = st.one_of(st.none(), st.floats(0, 1))


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.text(max_size=90), SHARES), min_size=1, max_size=9),
    st.lists(FINITE, max_size=30),
    st.text(max_size=90),
)
def test_drawings_of_any_figures_are_sane(
    named: list[tuple[str, float | None]], scores: list[float], metric: str
) -> None:
    columns = tuple(column(name, rate, cost_usd=number) for number, (name, rate) in enumerate(named))
    for chart in run_charts(columns, figures_of(scores, metric, len(columns)), link):
        check(chart)
    pairs = [PairedScore(score, scores[-1], metric) for score in scores]
    check(score_scatter("pairs-1", metric, pairs))
    check(sorted_differences("differences-1", metric, pairs))


def test_figures_take_no_more_room_for_more_results() -> None:
    def room(tests: int) -> int:
        cases = (make_case(test, score=test % 7 / 7, named_scores={"tone": 0.5}) for test in range(tests))
        tracemalloc.start()
        figures = RunFigures.of(cases)
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert figures.scores["tone"][0].n == tests
        return used

    room(10)
    assert room(2_000) < room(200) + 20_000


def test_a_whole_case_counts_under_its_score() -> None:
    charts = {
        chart.name: chart
        for chart in run_charts((column("a"),), RunFigures.of([make_case(score=0.25)]), link)
    }
    assert charts["scores-1"].title == "Scores"
    assert [item.get("href") for item in parse(charts["scores-1"]).iter(f"{SVG}a")] == ["?0&&0.25&0.3"]
    assert RunFigures.of([make_case(score=0.25)]).scores[SCORE][0].mean == 0.25
