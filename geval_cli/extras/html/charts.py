"""The drawings of one run, of two compared runs, and of one suite's runs over time; and the data they are made of.

Results come one by one in the order of the store (test, repeat, column) and are not kept: for each column and metric
there are two dozen counts, and for one test at a time its scores.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from msgspec import Struct, field

from geval_cli.extras.compare.comparison import ComparedRow, RowWords, ScoredCase, is_rate
from geval_cli.extras.html import drawing as svg
from geval_cli.extras.html.drawing import (
    TITLE_WIDTH,
    AxisScale,
    Chart,
    FigureTable,
    Links,
    MarkFilter,
    NamedRow,
)
from geval_cli.numbers import (
    fixed,
    format_cost,
    format_difference,
    format_duration,
    format_score,
    format_share,
    plural,
)
from geval_cli.records import ColumnSummary, JsonValue, Stat, Status
from geval_cli.report.case_view import title_of
from geval_cli.report.columns import PASS_RATE, mean_text, ranking, share_text
from geval_cli.report.sanitize import one_line
from geval_cli.statistics.intervals import Interval

BINS = 20
"""The number of steps of scores from 0 to 1; each includes its lower end, and the last one also 1."""
DUST = 1e-10
"""Scores this close to a round one count as that, so that rounding errors do not move them to another step."""
SCORE = "score"
"""The name for the score of a whole case, used if no assertion has a metric."""
METRICS_MAX = 24
"""How many metrics are counted: the first ones that results have. Names may come from a model, hence a limit."""
FURTHER_MAX = 24
_SPREADS_KEPT = 12
_THRESHOLDS_MAX = 100
_JUDGED = frozenset({Status.PASSED, Status.FAILED})


class CountedAssertion(Protocol):
    """The part of an assertion's result that is counted."""

    @property
    def type(self) -> str: ...
    @property
    def metric(self) -> str | None: ...
    @property
    def threshold(self) -> float | None: ...
    @property
    def assertions(self) -> Sequence["CountedAssertion"]: ...


class ChartedCase(ScoredCase, Protocol):
    """The part of a case's result that is counted; a `CaseResult` has it."""

    @property
    def vars(self) -> Mapping[str, JsonValue]: ...
    @property
    def assertions(self) -> Sequence[CountedAssertion]: ...


class Histogram(Struct):
    """Counts of scores: below 0, `BINS` equal steps of 0..1, above 1."""

    counts: list[int] = field(default_factory=lambda: [0] * (BINS + 2))
    n: int = 0
    total: float = 0.0

    def add(self, score: float) -> None:
        """Add a score; NaN and infinite ones are skipped."""
        if not math.isfinite(score):
            return
        self.n += 1
        self.total += score
        self.counts[_bin(score)] += 1

    @property
    def mean(self) -> float | None:
        """Return the mean of all scores; None if there are none."""
        return self.total / self.n if self.n else None

    def bins(self) -> Iterator[tuple[float | None, float | None, int]]:
        """Yield the lower end, the upper end and the count of each step that has a score.

        A step includes its lower end but not its upper end; only the step that ends at 1 includes 1 as well. None means
        that there is no end: below 0, and above 1.
        """
        for number, count in enumerate(self.counts):
            if number == 0:
                ends: tuple[float | None, float | None] = (None, 0.0)
            elif number > BINS:
                ends = (math.nextafter(1.0, 2.0), None)
            else:
                ends = ((number - 1) / BINS, number / BINS)
            if count:
                yield *ends, count


def _bin(score: float) -> int:
    if score < -DUST:
        return 0
    if score > 1 + DUST:
        return BINS + 1
    return min(int(max(score + DUST, 0) * BINS), BINS - 1) + 1


class Verdicts(Struct):
    """The numbers of a column's tests by the verdicts of their repeats."""

    passed: int = 0
    mixed: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        """Return how many tests were judged at least twice."""
        return self.passed + self.mixed + self.failed


class Spread(Struct, frozen=True, order=True):
    """The scores of one test's repeats in one column, in ascending order; `width` is the highest minus the lowest."""

    width: float
    test_index: int
    column: int
    title: str
    scores: tuple[float, ...]


class RunFigures:
    """The figures of a run that its drawings are made of, besides its summary.

    Attributes:
        scores: by metric, then by column; of the whole case under `SCORE`.
        thresholds: the thresholds of its assertions, by metric.
        verdicts: by column, of tests with several repeats.
        left_out: metrics that are not counted, the first `FURTHER_MAX` of them.
    """

    def __init__(self) -> None:
        self.scores: dict[str, dict[int, Histogram]] = {}
        self.thresholds: dict[str, Counter[float]] = {}
        self.verdicts: dict[int, Verdicts] = {}
        self.left_out: set[str] = set()
        self._spreads: list[Spread] = []
        self._test: int | None = None
        self._repeats: dict[int, list[ChartedCase]] = {}

    @classmethod
    def of(cls, results: Iterable[ChartedCase]) -> "RunFigures":
        """Return the figures of results in the order of the store."""
        found = cls()
        for result in results:
            found.add(result)
        found.finish()
        return found

    def add(self, result: ChartedCase) -> None:
        """Add the next result."""
        if result.test_index != self._test:
            self.finish()
            self._test = result.test_index
        self._repeats.setdefault(result.column, []).append(result)
        if result.score is not None:
            self._histogram(SCORE, result.column).add(result.score)
        for name, score in result.named_scores.items():
            if name != SCORE and (name in self.scores or len(self.scores) <= METRICS_MAX):
                self._histogram(name, result.column).add(score)
            elif len(self.left_out) < FURTHER_MAX:
                self.left_out.add(name)
        for assertion in result.assertions:
            self._note_thresholds(assertion)

    def finish(self) -> None:
        """Add the repeats of the last test."""
        for column, cases in self._repeats.items():
            if len(cases) > 1:
                self._note_repeats(column, cases)
        self._repeats = {}

    def spreads(self) -> list[Spread]:
        """Return the tests whose repeats are furthest apart, widest first; none whose repeats are equal."""
        return sorted(self._spreads, key=lambda item: (-item.width, item.test_index, item.column))

    def _histogram(self, name: str, column: int) -> Histogram:
        return self.scores.setdefault(name, {}).setdefault(column, Histogram())

    def _note_thresholds(self, assertion: CountedAssertion) -> None:
        # The threshold of a negated assertion belongs to its positive form, so it does not apply to the score.
        if assertion.metric and assertion.threshold is not None and not assertion.type.startswith("not-"):
            known = self.thresholds.setdefault(assertion.metric, Counter())
            if assertion.threshold in known or len(known) < _THRESHOLDS_MAX:
                known[assertion.threshold] += 1
        for member in assertion.assertions:
            self._note_thresholds(member)

    def _note_repeats(self, column: int, cases: Sequence[ChartedCase]) -> None:
        judged = [case.status is Status.PASSED for case in cases if case.status in _JUDGED]
        if len(judged) > 1:
            verdicts = self.verdicts.setdefault(column, Verdicts())
            if all(judged):
                verdicts.passed += 1
            elif any(judged):
                verdicts.mixed += 1
            else:
                verdicts.failed += 1
        known = (case.score for case in cases if case.score is not None)
        scores = tuple(sorted(filter(math.isfinite, known)))
        if len(scores) > 1 and scores[-1] > scores[0]:
            first = cases[0]
            spread = Spread(
                scores[-1] - scores[0],
                first.test_index,
                column,
                title_of(first.description, first.vars, TITLE_WIDTH),
                scores,
            )
            keep = heapq.heappush if len(self._spreads) < _SPREADS_KEPT else heapq.heappushpop
            keep(self._spreads, spread)


_HEAT_LEVELS = 5
_DOT = 5.0
_NUMBER = (15.0, 11.0)
"""The width and the height of the number on a dot."""
_FLOOR = 190.0
_LINKED_HISTOGRAMS_MAX = 40
"""With more columns and metrics, each histogram is a single link, to keep the page light."""
_SCORES_ROW, _BAR = 60.0, 34.0
_THRESHOLDS_DRAWN = 12


def run_charts(columns: Sequence[ColumnSummary], figures: RunFigures, links: Links) -> Iterator[Chart]:
    """Yield the drawings of a run, without those that cannot say anything about this run.

    Args:
        columns: of the run's summary.
        figures: of its results.
        links: returns the address of a selection of results.
    """
    if not columns:
        return
    # The wide drawing comes first, so that all others fill their columns without a gap.
    if any(column.metrics for column in columns):
        yield heat_table(columns, links)
    yield leaderboard(columns, links)
    if any(column.cost_usd_generated != 0 for column in columns):
        yield cost_chart(columns, links)
    if any(column.latency_ms.median is not None for column in columns):
        yield latency_chart(columns, links)
    all_metrics = [name for name in figures.scores if name != SCORE]
    constant = {name: mean for name in all_metrics if (mean := _only_score(figures.scores[name])) is not None}
    metrics = sorted((name for name in all_metrics if name not in constant), key=partial(_dullness, figures))
    for number, name in enumerate(metrics[: svg.METRICS_MAX] or [SCORE][len(constant) :], start=1):
        yield score_histograms(f"scores-{number}", name, columns, figures, links)
    if constant:
        means = [f"{one_line(name, svg.NAME_WIDTH)} {format_score(mean)}" for name, mean in constant.items()]
        said = f"Nothing varies: {svg.listed(means, 12)}."
        yield Chart("scores-constant", "The same score everywhere", said)
    if further := [*metrics[svg.METRICS_MAX :], *sorted(figures.left_out)]:
        is_cut = len(figures.left_out) == FURTHER_MAX  # further ones are unknown
        said = f"Not drawn: {svg.listed(further)}{', or further ones' if is_cut else ''}."
        yield Chart("scores-further", "Further metrics", said)
    if figures.verdicts:
        yield repeat_verdicts(columns, figures.verdicts, links)
    if spreads := figures.spreads():
        yield repeat_spreads(columns, spreads, links)


def _only_score(columns: Mapping[int, Histogram]) -> float | None:
    """Return the score of a metric that never varies; None if it varies."""
    scored = [counts for counts in columns.values() if counts.n]
    bins = {place for counts in scored for place in counts.bins()}
    means = {format_score(counts.mean) for counts in scored if counts.mean is not None}
    is_one = len(means) == 1 and len({low for low, _, _ in bins}) == 1
    return scored[0].mean if is_one else None


def _dullness(figures: RunFigures, metric: str) -> tuple[float, float]:
    """Return the sort key of a metric: most scores below the threshold first, then largest difference of columns."""
    scored = [counts for counts in figures.scores[metric].values() if counts.n]
    limit = min(figures.thresholds.get(metric, ()), default=None)
    below = sum(
        count
        for counts in scored
        for low, _, count in counts.bins()
        if limit is not None and (low is None or low < limit)
    )
    means = [counts.mean for counts in scored if counts.mean is not None]
    return -below / max(sum(counts.n for counts in scored), 1), min(means, default=0) - max(means, default=0)


def score_histograms(
    name: str, metric: str, columns: Sequence[ColumnSummary], figures: RunFigures, links: Links
) -> Chart:
    """Return a chart of how often each score was given, a row per column, with the threshold if there is one."""
    found = figures.scores.get(metric, {})
    thresholds = sorted(figures.thresholds.get(metric, ()))
    title = "Scores" if metric == SCORE else f"Scores: {one_line(metric, svg.NAME_WIDTH)}"
    rows = [(index, column, found.get(index, Histogram())) for index, column in enumerate(columns)]
    table = FigureTable(
        ("column", "scores", "mean", "counts by score"),
        tuple(
            (
                name_of(column),
                f"{counts.n:,}",
                format_score(counts.mean),
                "; ".join(f"{_bin_text(low, high)}: {count:,}" for low, high, count in counts.bins())
                or "none",
            )
            for _, column, counts in rows
        ),
    )
    if not any(counts.n for *_, counts in rows):
        return Chart(name, title, "No case has a score.", figures=table)
    limits = f" Threshold {_limits(thresholds)}." if thresholds else ""
    said = f"{_means_text(rows)}{limits}{svg.left_out(len(rows), svg.COLUMNS_MAX, 'column')}"
    outside = any(counts.counts[0] or counts.counts[-1] for *_, counts in rows)
    said += " Scores below 0 or above 1 are at the ends." if outside else ""
    scale = svg.unit_scale(32, svg.WIDTH - 32) if outside else svg.unit_scale(12, svg.RIGHT)
    top = 18.0 if thresholds else 6.0
    shown = rows[: svg.COLUMNS_MAX]
    places, floor = svg.named_rows((name_of(item[1]) for item in shown), top, _SCORES_ROW, svg.WIDTH - 100)
    has_links = len(rows) * max(len(figures.scores), 1) <= _LINKED_HISTOGRAMS_MAX
    drawn = [
        _histogram_row(
            place,
            scale,
            item,
            MarkFilter(item[0], None if metric == SCORE else metric),
            links,
            has_links=has_links,
        )
        for place, item in zip(places, shown, strict=True)
    ]
    axis = svg.across(scale, floor, top, "score; height: how many, row by row", svg.plain)
    cuts = [
        svg.line(scale.at(value), bottom - _BAR, scale.at(value), bottom, "chart-threshold")
        for value in thresholds[:_THRESHOLDS_DRAWN]
        for bottom in (place.top + place.height for place in places)
    ]
    if cuts:
        cuts.append(_threshold_name(scale, thresholds))
    return Chart(name, title, said, table, floor + svg.LAST, [axis, *drawn, *cuts])


_HistogramRow = tuple[int, ColumnSummary, Histogram]


def _histogram_row(
    place: NamedRow,
    scale: AxisScale,
    row: _HistogramRow,
    choice: MarkFilter,
    links: Links,
    *,
    has_links: bool,
) -> str:
    _, column, counts = row
    floor = place.top + place.height
    most = max(counts.counts) or 1
    words = place.name(down=12) + svg.text(
        svg.RIGHT, place.top + 12, f"mean {format_score(counts.mean)}", anchor="end", kind="is-muted"
    )
    parts = [svg.line(scale.start, floor, scale.end, floor, "chart-axis")]
    whole = f"{name_of(column)}: mean {format_score(counts.mean)} of {plural(counts.n, 'score')}"
    for low, high, count in counts.bins():
        start, end = _bin_ends(scale, low, high)
        height = max(_BAR * count / most, 1.5)
        bar = svg.rect(start + 0.5, floor - height, end - start - 1, height, "chart-bar", 1)
        if has_links:
            step = MarkFilter(choice.column, choice.metric, low, high)
            label = f"{name_of(column)}: {plural(count, 'score')} {_bin_text(low, high)}"
            bar = svg.mark(
                bar + svg.hit_area(start, floor - _BAR, end - start, _BAR), label, href=links(step)
            )
        parts.append(bar)
    if has_links:
        return words + "".join(parts)
    parts.append(svg.hit_area(0, place.top, svg.WIDTH, place.height))
    return words + svg.mark("".join(parts), whole, href=links(choice))


def _bin_ends(scale: AxisScale, low: float | None, high: float | None) -> tuple[float, float]:
    """Return where a step begins and ends; those below 0 and above 1 are set a little apart."""
    step = (scale.end - scale.start) / BINS
    if low is None:
        return scale.start - step - 4, scale.start - 4
    if high is None:
        return scale.end + 4, scale.end + 4 + step
    return scale.at(low), scale.at(high)


def _bin_text(low: float | None, high: float | None) -> str:
    if low is None:
        return "below 0"
    if high is None:
        return "above 1"
    return f"from {fixed(low, 2)} to {'' if high == 1 else 'below '}{fixed(high, 2)}"


def _threshold_name(scale: AxisScale, thresholds: Sequence[float]) -> str:
    place = scale.at(thresholds[-1])
    anchor = "start" if place < svg.WIDTH / 2 else "end"
    said = f"threshold {_limits(thresholds)}"
    return svg.text(place + (4 if anchor == "start" else -4), 11, said, anchor=anchor, kind="is-threshold")


def _limits(thresholds: Sequence[float]) -> str:
    low = format_score(thresholds[0])
    high = format_score(thresholds[-1])
    return low if low == high else f"{low} to {high}"


def _means_text(rows: Sequence[_HistogramRow]) -> str:
    """Return the highest and the lowest mean in words."""
    scored = sorted((counts.mean, name_of(column)) for _, column, counts in rows if counts.mean is not None)
    (low, last) = scored[0]
    (high, best) = scored[-1]
    if len(scored) == 1:
        return f"Mean: {format_score(high)}."
    if format_score(high) == format_score(low):
        return f"All means: {format_score(high)}."
    return f"Highest mean: {best}, {format_score(high)}; lowest: {last}, {format_score(low)}."


_VERDICT_WORDS = (("passed", "all repeats pass"), ("mixed", "mixed"), ("failed", "all fail"))


def repeat_verdicts(
    columns: Sequence[ColumnSummary], verdicts: Mapping[int, Verdicts], links: Links
) -> Chart:
    """Return a chart of how many tests of each column had equal verdicts in all repeats, and how many did not."""
    name, title = "repeats", "Repeats: equal verdicts"
    rows = [(index, column, verdicts.get(index, Verdicts())) for index, column in enumerate(columns)]
    figures = FigureTable(
        ("column", "tests", *(said for _, said in _VERDICT_WORDS)),
        tuple(
            (name_of(column), f"{item.total:,}", f"{item.passed:,}", f"{item.mixed:,}", f"{item.failed:,}")
            for _, column, item in rows
        ),
    )
    mixed, tests = sum(item.mixed for *_, item in rows), sum(item.total for *_, item in rows)
    said = f"The repeats of {mixed:,} of {plural(tests, 'test')} had different verdicts, counted column by column."
    said += svg.left_out(len(rows), svg.COLUMNS_MAX, "column")
    scale = svg.unit_scale(12, svg.RIGHT)
    shown = rows[: svg.COLUMNS_MAX]
    kinds, top = svg.legend([(f"chart-bar is-{kind}", word) for kind, word in _VERDICT_WORDS], 0)
    places, floor = svg.named_rows((name_of(item[1]) for item in shown), top + 8, svg.ROW, svg.WIDTH - 120)
    drawn = [_verdict_row(place, scale, item, links) for place, item in zip(places, shown, strict=True)]
    axis = svg.across(scale, floor, top + 8, "share of tests", svg.percent)
    return Chart(name, title, said, figures, floor + svg.LAST, [axis, kinds, *drawn])


def _verdict_row(
    place: NamedRow, scale: AxisScale, row: tuple[int, ColumnSummary, Verdicts], links: Links
) -> str:
    index, column, item = row
    share = f"{item.mixed:,} of {item.total:,} mixed"
    parts = [place.name(), svg.text(svg.RIGHT, place.top + 13, share, anchor="end", kind="is-muted")]
    start = 0
    for kind, said in _VERDICT_WORDS:
        count = getattr(item, kind)
        if count:
            left = scale.at(start / item.total)
            right = scale.at((start + count) / item.total)
            bar = svg.rect(left + 0.5, place.last_line + 19, right - left - 1, 10, f"chart-bar is-{kind}", 2)
            choice = MarkFilter(index, repeats=kind)
            parts.append(
                svg.mark(bar, f"{name_of(column)}: {plural(count, 'test')}, {said}", href=links(choice))
            )
        start += count
    return "".join(parts)


def repeat_spreads(columns: Sequence[ColumnSummary], spreads: Sequence[Spread], links: Links) -> Chart:
    """Return a chart of the tests whose repeats scored furthest apart, with a dot for each repeat."""
    name, title = "spreads", "Repeats: widest spread of scores"
    rows = [
        (item, f"#{item.test_index + 1} {item.title}".strip(), column_name(columns, item.column))
        for item in spreads
    ]
    figures = FigureTable(
        ("test", "column", "spread", "scores"),
        tuple(
            (test, column, format_score(item.width), " ".join(map(format_score, item.scores[:20])))
            for item, test, column in rows
        ),
    )
    widest = rows[0]
    ends = " to ".join(format_score(widest[0].scores[end]) for end in (0, -1))
    said = f"Widest: {widest[1]} in {widest[2]}, from {ends}."
    scale = svg.score_scale([score for item in spreads for score in item.scores], 12, svg.RIGHT)
    drawn, top = [], 8.0
    for row in rows:
        part, top = _spread_row(top, scale, *row, links)
        drawn.append(part)
    axis = svg.across(scale, top, 8, "score; a dot for each repeat", svg.plain)
    return Chart(name, title, said, figures, top + svg.LAST, [axis, *drawn])


def _spread_row(
    top: float, scale: AxisScale, item: Spread, test: str, column: str, links: Links
) -> tuple[str, float]:
    """Return a row, and where it ends."""
    low = scale.at(item.scores[0])
    high = scale.at(item.scores[-1])
    titles, names = svg.wrapped(test, svg.RIGHT - 12), svg.wrapped(column, svg.RIGHT - 12)
    middle = top + svg.LINE * (len(titles) + len(names)) + 11
    dots = (svg.dot(scale.at(score), middle, 4, "chart-dot is-clear") for score in dict.fromkeys(item.scores))
    words = svg.text_lines(12, top + 13, titles)
    words += svg.text_lines(12, top + 13 + svg.LINE * len(titles), names, kind="is-muted")
    parts = [svg.rect(low, middle - 2, high - low, 4, "chart-interval", 2), *dots]
    parts.append(svg.hit_area(0, top, svg.WIDTH, middle + 8 - top))
    said = f"{test}, {column}: {', '.join(map(format_score, item.scores[:20]))}"
    choice = MarkFilter(item.column, test=item.test_index)
    return words + svg.mark("".join(parts), said, href=links(choice)), middle + 10


def leaderboard(columns: Sequence[ColumnSummary], links: Links) -> Chart:
    """Return a chart of the pass rates with their intervals, best first; columns without one come last."""
    ranked = [(place, columns[place]) for place in ranking(columns)]
    figures = FigureTable(
        ("column", "pass rate [95 %]", "judged", "tests"),
        tuple(
            (
                name_of(column),
                share_text(column.pass_rate),
                f"{column.pass_rate.n:,}",
                f"{column.pass_rate.clusters:,}",
            )
            for _, column in ranked
        ),
    )
    title, name = "Pass rate by column", "leaderboard"
    judged = [column for _, column in ranked if column.pass_rate.value is not None]
    if not judged:
        return Chart(name, title, "Nothing was judged, so there is no pass rate.", figures=figures)
    said = _leader_text(judged) + svg.left_out(len(ranked), svg.COLUMNS_MAX, "column")
    scale = svg.unit_scale(12, svg.RIGHT)
    shown = ranked[: svg.COLUMNS_MAX]
    places, floor = svg.named_rows((name_of(column) for _, column in shown), 8, svg.ROW, svg.WIDTH - 120)
    rows = [
        _leader_row(place, scale, index, column, links)
        for place, (index, column) in zip(places, shown, strict=True)
    ]
    axis = svg.across(scale, floor, 8, "pass rate; bar: 95 % interval over tests", svg.percent)
    return Chart(name, title, said, figures, floor + svg.LAST, [axis, *rows])


def _leader_text(judged: Sequence[ColumnSummary]) -> str:
    best, last = judged[0], judged[-1]
    if best is last:
        return f"{name_of(best)} passed {share_text(best.pass_rate)} of {plural(best.pass_rate.n, 'case')}."
    if best.pass_rate.value == last.pass_rate.value:
        return f"All {plural(len(judged), 'column')}: {share_text(best.pass_rate)}."
    return (
        f"Highest: {name_of(best)} with {share_text(best.pass_rate)};"
        f" lowest: {name_of(last)} with {share_text(last.pass_rate)}."
    )


def _leader_row(row: NamedRow, scale: AxisScale, index: int, column: ColumnSummary, links: Links) -> str:
    stat = column.pass_rate
    middle = row.last_line + 24
    said = share_text(stat)
    # The link contains no text: its label says more, and screen readers would read the text twice.
    words = row.name() + svg.text(svg.RIGHT, row.top + 13, said, anchor="end", kind="is-strong")
    parts = []
    if stat.value is not None:
        if stat.interval is not None:
            low, high = map(scale.at, stat.interval)
            parts.append(svg.rect(low, middle - 4, high - low, 8, "chart-interval", 4))
        parts.append(svg.dot(scale.at(stat.value), middle, 5))
    parts.append(svg.hit_area(0, row.top, svg.WIDTH, row.height))
    label = f"{name_of(column)}: {said} of {plural(stat.n, 'case')}, {plural(stat.clusters, 'test')}"
    return words + svg.mark("".join(parts), label, href=links(MarkFilter(column=index)))


def heat_table(columns: Sequence[ColumnSummary], links: Links) -> Chart:
    """Return a table with coloured cells of the mean of each metric in each column."""
    names = list(dict.fromkeys(name for column in columns for name in column.metrics))
    title, name = "Metrics by column", "heat"
    shown, drawn = columns[: svg.COLUMNS_MAX], names[: svg.METRICS_MAX]
    heads = "".join(
        svg.element("th", svg.escape(one_line(item, svg.NAME_WIDTH)), scope="col")
        for item in (PASS_RATE, *drawn)
    )
    rows = "".join(_heat_row(index, column, drawn, links) for index, column in enumerate(shown))
    said = (
        "The mean of each metric; a stronger colour is a higher mean."
        + svg.left_out(len(columns), svg.COLUMNS_MAX, "column")
        + svg.left_out(len(names), svg.METRICS_MAX, "metric")
    )
    corner = svg.element("th", "Column", scope="col")
    table = svg.element(
        "table",
        svg.element("caption", svg.escape(f"{title}. {said}"), class_="visually-hidden"),
        svg.element("thead", svg.element("tr", corner, heads)),
        svg.element("tbody", rows),
        class_="table is-tight heat",
    )
    frame = svg.element("div", table, class_="table-frame", role="region", aria_label=title, tabindex="0")
    return Chart(name, title, said, marks=[frame], is_wide=True)


def _heat_row(index: int, column: ColumnSummary, names: Sequence[str], links: Links) -> str:
    cells = [_heat_cell(column.pass_rate, share_text(column.pass_rate), MarkFilter(column=index), links)]
    for name in names:
        stat = column.metrics.get(name, Stat())
        cells.append(_heat_cell(stat, mean_text(stat), MarkFilter(column=index, metric=name), links))
    head = svg.element("th", svg.escape(name_of(column)), scope="row")
    return svg.element("tr", head, *cells)


def _heat_cell(stat: Stat, said: str, choice: MarkFilter, links: Links) -> str:
    if stat.value is None:
        return svg.element("td", "none", class_="is-muted")
    level = round(min(max(stat.value, 0.0), 1.0) * _HEAT_LEVELS)
    value, bracket, interval = said.partition(" [")
    content = svg.escape(value) + svg.element(
        "span", svg.escape(f"{bracket}{interval} n {stat.n:,}"), class_="heat-interval"
    )
    return svg.element("td", svg.element("a", content, href=links(choice)), class_=f"heat-{level}")


class _ColumnPrice(Struct, frozen=True):
    """A price of a pass rate (cost or latency): its name, its value for each column, and how to format it."""

    name: str
    title: str
    axis: str
    values: Sequence[float | None]
    say: Callable[[float | None], str]


def cost_chart(columns: Sequence[ColumnSummary], links: Links) -> Chart:
    """Return a chart of pass rates against the cost of a case's answers when they were generated."""
    costs = [_cost_of_case(column) for column in columns]
    return _tradeoff(
        columns, _ColumnPrice("cost", "Pass rate and cost", "cost of a case", costs, format_cost), links
    )


def latency_chart(columns: Sequence[ColumnSummary], links: Links) -> Chart:
    """Return a chart of pass rates against the median latency of an answer."""
    latencies = [column.latency_ms.median for column in columns]
    title = "Pass rate and latency"
    return _tradeoff(
        columns, _ColumnPrice("latency", title, "median latency", latencies, format_duration), links
    )


def _cost_of_case(column: ColumnSummary) -> float | None:
    cases = column.passed + column.failed + column.errored + column.not_evaluated
    cost = column.cost_usd_generated
    return None if cost is None or not cases else cost / cases


def _tradeoff(columns: Sequence[ColumnSummary], price: _ColumnPrice, links: Links) -> Chart:
    """Return a chart of pass rates (vertical) against a price of any kind; higher and further left is better."""
    name, title, say = price.name, price.title, price.say
    figures = FigureTable(
        ("column", price.axis, "pass rate [95 %]"),
        tuple(
            (name_of(item), say(value) or "unknown", share_text(item.pass_rate))
            for item, value in zip(columns, price.values, strict=True)
        ),
    )
    placed = [
        (index, columns[index], value, rate)
        for index, value in enumerate(price.values)
        if value is not None and (rate := columns[index].pass_rate.value) is not None
    ]
    if not placed:
        return Chart(
            name, title, f"No column has both a pass rate and a known {price.axis}.", figures=figures
        )
    best = max(placed, key=lambda item: (item[3], -item[2]))
    said = f"Highest pass rate: {name_of(best[1])} with {share_text(best[1].pass_rate)} at {say(best[2])}."
    if lacking := len(columns) - len(placed):
        said += f" Not drawn because one of the two is unknown: {plural(lacking, 'column')}."
    said += svg.left_out(len(placed), svg.COLUMNS_MAX, "column")
    wide = svg.round_scale([item[2] for item in placed], svg.LEFT, svg.RIGHT)
    high = _rates_scale([item[1] for item in placed])
    places = [(wide.at(value), high.at(rate)) for _, _, value, rate in placed[: svg.COLUMNS_MAX]]
    numbers = _number_places(places)
    rows, end = svg.named_rows(
        (name_of(item[1]) for item in placed[: svg.COLUMNS_MAX]),
        _FLOOR + 37,
        17,
        svg.RIGHT - svg.LEFT,
    )
    marks = []
    for row, place, number, (index, column, value, _) in zip(rows, places, numbers, placed, strict=False):
        marks.append(_tradeoff_mark(index, column, place, high, say(value), links))
        marks.append(svg.text(*number, str(index + 1), anchor="middle", kind="is-strong"))
        marks.append(svg.text(svg.LEFT - 8, row.top + 13, f"{index + 1}", anchor="end", kind="is-strong"))
        marks.append(row.name(svg.LEFT))
    axes = svg.across(wide, _FLOOR, 22, price.axis, lambda value: say(value) if value else "0", 5)
    axes += svg.upwards(high, svg.LEFT, svg.RIGHT, "pass rate; line: 95 % interval", svg.percent)
    return Chart(name, title, said, figures, end + 5, [axes, *marks])


def _number_places(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return where to put the number of each dot: beside it, below numbers that are already there.

    Only numbers move; a dot stays where its figures put it, even on top of another one.
    """
    found: dict[int, tuple[float, float]] = {}
    width, height = _NUMBER
    for index, (x, y) in sorted(enumerate(places), key=lambda item: item[1][1]):
        beside = x + _DOT + 7 if x < svg.RIGHT - width else x - _DOT - 7
        top = y + 4
        while any(abs(beside - left) < width and abs(top - other) < height for left, other in found.values()):
            top += 1
            if top > _FLOOR - 4:  # no room below: start another pile beside this one
                beside, top = beside + width, y + 4
        found[index] = beside, top
    return [found[index] for index in range(len(places))]


def _rates_scale(columns: Sequence[ColumnSummary]) -> AxisScale:
    """Return a vertical scale in whole tenths that includes all pass rates with their intervals."""
    ends = [
        end for column in columns for end in column.pass_rate.interval or (column.pass_rate.value or 0.0,)
    ]
    low = math.floor(10 * min(ends))
    high = math.ceil(10 * max(ends))
    return AxisScale(low / 10, max(high, low + 1) / 10, _FLOOR, 22)


def _tradeoff_mark(
    index: int, column: ColumnSummary, place: tuple[float, float], high: AxisScale, price: str, links: Links
) -> str:
    x, y = place
    interval = column.pass_rate.interval
    whisker = (
        ""
        if interval is None
        else svg.line(x, high.at(interval[0]), x, high.at(interval[1]), "chart-whisker")
    )
    label = f"{index + 1}: {name_of(column)}, {price}, {share_text(column.pass_rate)}"
    return svg.mark(f"{whisker}{svg.dot(x, y, _DOT)}", label, href=links(MarkFilter(column=index)))


def name_of(column: ColumnSummary) -> str:
    """Return the label of a column on one line."""
    return one_line(column.label, svg.NAME_WIDTH) or "column"


def column_name(columns: Sequence[ColumnSummary], index: int) -> str:
    """Return the label of a column by its index, or its number if the summary lacks it."""
    return name_of(columns[index]) if index < len(columns) else f"column {index + 1}"


DOTS_MAX = 400
"""How many pairs are drawn one by one; if there are more, pairs at equal places are counted and drawn together."""
ROWS_MAX = 30
_CELLS = 25
_SORTED_TOP, _SORTED_END = 22.0, 190.0
_EQUAL = 0.005
"""Scores that differ by less look equal in every table."""


_LEAST_LIMIT = 0.05
"""A scale of differences reaches at least this far, so that a drawing does not exaggerate tiny ones."""


class PairedScore(Struct, frozen=True):
    """The scores of one case in an earlier and a later run, with its title and the address of its page."""

    before: float
    after: float
    title: str
    href: str | None = None

    @property
    def difference(self) -> float:
        """Return the later score minus the earlier one."""
        return self.after - self.before


class ScoreRange(Struct, frozen=True):
    """Scores of at least `low` and below `high`; None means no end."""

    low: float | None = None
    high: float | None = None

    def holds(self, score: float | None) -> bool:
        """Return whether a score is in the range, allowing for rounding errors at its ends."""
        if score is None:
            return False
        return (self.low is None or score >= self.low - DUST) and (
            self.high is None or score < self.high - DUST
        )


PairLinks = Callable[[ScoreRange, ScoreRange], str]
"""Returns the address of the page with the cases whose earlier and later scores are in these ranges."""


def score_scatter(
    name: str, what: str, pairs: Sequence[PairedScore], links: PairLinks | None = None
) -> Chart:
    """Return a chart of later scores (vertical) against earlier ones: what is above the diagonal got better.

    Args:
        name: of the drawing.
        what: which scores they are.
        pairs: of all cases that have a score in both runs.
        links: returns the address of the pairs that are drawn as one dot.
    """
    title = f"Before and after: {one_line(what, svg.NAME_WIDTH)}"
    if not pairs:
        return Chart(name, title, "No case has a score in both runs.")
    better, worse, equal = _counts(pairs)
    said = (
        f"Of {plural(len(pairs), 'case')}, {better:,} scored higher, {worse:,} lower and {equal:,} the same."
    )
    values = [value for pair in pairs for value in (pair.before, pair.after)]
    wide, high, axes = svg.square(values, "score before", "score after; above the line: better")
    figures = FigureTable(
        ("cases", "higher", "lower", "the same"), ((_n(len(pairs)), _n(better), _n(worse), _n(equal)),)
    )
    dots = (
        _single_dots(pairs, wide, high) if len(pairs) <= DOTS_MAX else _counted_dots(pairs, wide, high, links)
    )
    kinds, end = svg.legend(
        [*_CHANGES, ("chart-bar", "the same"), ("chart-diagonal", "no change")], svg.END + 36
    )
    return Chart(name, title, said, figures, end, [axes, *dots, kinds])


_CHANGES = (("chart-bar is-better", "higher"), ("chart-bar is-worse", "lower"))


def _single_dots(pairs: Sequence[PairedScore], wide: AxisScale, high: AxisScale) -> list[str]:
    return [
        svg.mark(
            svg.dot(
                wide.at(pair.before), high.at(pair.after), 4, f"chart-dot is-clear {_kind(pair.difference)}"
            ),
            _pair_text(pair),
            href=pair.href,
        )
        for pair in pairs
    ]


def _counted_dots(
    pairs: Sequence[PairedScore], wide: AxisScale, high: AxisScale, links: PairLinks | None
) -> list[str]:
    """Return a dot for each cell of a fine grid, whose area shows the number of pairs in it."""
    counts = Counter((_cell(pair.before, wide), _cell(pair.after, high)) for pair in pairs)
    most = max(counts.values())
    step = (wide.high - wide.low) / _CELLS
    found = []
    for (x, y), count in sorted(counts.items()):
        before, after = wide.low + x * step, high.low + y * step
        said = f"{plural(count, 'case')} near {format_score(before)} before and {format_score(after)} after"
        spot = svg.counted_dot(wide.at(before), high.at(after), count, most, _kind(after - before))
        href = None if links is None else links(_range_of(x, wide), _range_of(y, high))
        found.append(svg.mark(spot, said, href=href))
    return found


def _cell(value: float, scale: AxisScale) -> int:
    """Return the number of the cell of a value; each cell includes its lower end."""
    return math.floor((value - scale.low + DUST) / (scale.high - scale.low) * _CELLS + 0.5)


def _range_of(cell: int, scale: AxisScale) -> ScoreRange:
    """Return the scores of a cell; the first and the last one are open-ended."""
    step = (scale.high - scale.low) / _CELLS
    low, high = (round(scale.low + (cell + half) * step, 9) for half in (-0.5, 0.5))
    return ScoreRange(low if cell else None, high if cell < _CELLS else None)


def _kind(difference: float) -> str:
    return "" if abs(difference) < _EQUAL else "is-better" if difference > 0 else "is-worse"


def _counts(pairs: Sequence[PairedScore]) -> tuple[int, int, int]:
    better = sum(pair.difference >= _EQUAL for pair in pairs)
    worse = sum(pair.difference <= -_EQUAL for pair in pairs)
    return better, worse, len(pairs) - better - worse


def _pair_text(pair: PairedScore) -> str:
    said = f"{format_score(pair.before)} before, {format_score(pair.after)} after"
    return f"{one_line(pair.title, svg.TITLE_WIDTH)}: {said}"


def sorted_differences(name: str, what: str, pairs: Sequence[PairedScore]) -> Chart:
    """Return a chart of the differences of all pairs from the worst to the best; of many pairs, evenly chosen ones."""
    title = f"Paired differences: {one_line(what, svg.NAME_WIDTH)}"
    if not pairs:
        return Chart(name, title, "No case has a score in both runs.")
    ranked = sorted(pairs, key=lambda pair: pair.difference)
    ends = [format_difference(ranked[place].difference) for place in (0, len(ranked) // 2, -1)]
    said = f"From {ends[0]} to {ends[2]}; half of the cases are at {ends[1]} or below."
    shown = (
        ranked
        if len(ranked) <= DOTS_MAX
        else [ranked[len(ranked) * place // DOTS_MAX] for place in range(DOTS_MAX)]
    )
    if len(shown) < len(ranked):
        said += f" {plural(len(shown), 'bar')} drawn, evenly chosen of {len(ranked):,}."
    high = _symmetric([pair.difference for pair in shown], _SORTED_END, _SORTED_TOP)
    step = (svg.RIGHT - svg.LEFT) / len(shown)
    bars = [_difference_bar(pair, svg.LEFT + step * place, step, high) for place, pair in enumerate(shown)]
    axes = svg.upwards(high, svg.LEFT, svg.RIGHT, "after minus before", svg.signed, 5)
    zero = svg.line(svg.LEFT, high.at(0), svg.RIGHT, high.at(0), "chart-axis")
    foot = svg.text(
        (svg.LEFT + svg.RIGHT) / 2,
        _SORTED_END + 16,
        f"{plural(len(ranked), 'case')}, sorted",
        kind="is-muted",
        anchor="middle",
    )
    better, worse, equal = _counts(pairs)
    figures = FigureTable(
        ("lowest", "middle", "highest", "higher", "lower", "the same"),
        ((*ends, _n(better), _n(worse), _n(equal)),),
    )
    kinds, end = svg.legend(_CHANGES, _SORTED_END + 20)
    return Chart(name, title, said, figures, end, [axes, *bars, zero, foot, kinds])


def _difference_bar(pair: PairedScore, x: float, step: float, high: AxisScale) -> str:
    top, bottom = sorted((high.at(0), high.at(pair.difference)))
    bar = svg.rect(x, top, max(step - 0.5, 0.5), max(bottom - top, 1), f"chart-bar {_kind(pair.difference)}")
    return svg.mark(bar, f"{format_difference(pair.difference)}, {_pair_text(pair)}", href=pair.href)


def _symmetric(values: Sequence[float], start: float, end: float) -> AxisScale:
    """Return a scale with 0 in its middle that includes all values."""
    limit = max(svg.round_scale([max(map(abs, values), default=0.0)], 0, 1).high, _LEAST_LIMIT)
    return AxisScale(-limit, limit, start, end)


def difference_intervals(
    name: str, what: str, rows: Sequence[ComparedRow], link: Callable[[ComparedRow], str | None]
) -> Chart:
    """Return a chart of a figure's mean differences, row by row; an interval that contains 0 shows no difference.

    Each interval is for one difference alone, while verdicts are corrected for all that were tested. Differences of
    shares are in percentage points.

    Args:
        name: of the drawing.
        what: the figure.
        rows: of it, one for each column.
        link: returns the address of the cases of a row's column.
    """
    title = f"Mean differences: {one_line(what, svg.NAME_WIDTH)}"
    if not rows:
        return Chart(name, title, "Nothing was judged in both runs.")
    decided = sum(row.verdict.is_clear for row in rows)
    said = f"Clear differences, corrected for everything compared: {decided:,} of {len(rows):,}."
    said += svg.left_out(len(rows), ROWS_MAX, "difference")
    shown = rows[:ROWS_MAX]
    ends = [end for row in shown for end in (row.delta.value or 0.0, *(row.delta.interval or ()))]
    scale = _symmetric(ends, 20, svg.WIDTH - 20)
    names = [one_line(row.column, svg.NAME_WIDTH) for row in rows]
    places, floor = svg.named_rows(names[:ROWS_MAX], 8, svg.ROW, svg.WIDTH - 150)
    drawn = [
        _interval_row(place, scale, row, label, link(row))
        for place, row, label in zip(places, shown, names, strict=False)
    ]
    is_share = is_rate(rows[0])
    axis = svg.across(
        scale,
        floor,
        8,
        f"{'points, ' if is_share else ''}after minus before; bar: 95 % interval",
        (lambda value: svg.signed(100 * value)) if is_share else svg.signed,
        5,
    )
    zero = svg.line(scale.at(0), 8, scale.at(0), floor, "chart-zero")
    words = [RowWords(row) for row in rows]
    figures = FigureTable(
        ("column", "difference", "95 % interval", "pairs", "verdict"),
        tuple(
            (label, one.change, one.interval, f"{one.row.delta.n:,}", one.verdict.value)
            for label, one in zip(names, words, strict=True)
        ),
    )
    kinds, end = svg.legend(_VERDICTS, floor + 36)
    return Chart(name, title, said, figures, end, [axis, zero, *drawn, kinds])


_VERDICTS = (
    ("chart-bar is-better", "better"),
    ("chart-bar is-worse", "worse"),
    ("chart-bar", "not clear"),
)


def _interval_row(place: NamedRow, scale: AxisScale, row: ComparedRow, name: str, href: str | None) -> str:
    words = RowWords(row)
    said = f"{words.change} {words.interval}".strip()
    kind = f"is-{row.verdict}" if row.verdict.is_clear else ""
    middle = place.last_line + 24
    texts = place.name() + svg.text(svg.RIGHT, place.top + 13, said, anchor="end", kind="is-strong")
    parts = []
    if row.delta.interval is not None:
        low, high = map(scale.at, row.delta.interval)
        parts.append(svg.rect(low, middle - 4, high - low, 8, f"chart-interval {kind}", 4))
    parts += [
        svg.dot(scale.at(row.delta.value or 0.0), middle, 5, f"chart-dot {kind}"),
        svg.hit_area(0, place.top, svg.WIDTH, place.height),
    ]
    label = f"{name}: {said} of {plural(row.delta.n, 'pair')}, {row.verdict}"
    return texts + svg.mark("".join(parts), label, href=href)


class TrendPoint(Struct, frozen=True):
    """The value of one run, with its 95 % interval; a partial run is drawn hollow.

    Attributes:
        when: when the run began, ISO 8601.
        value: None if the run has none.
        n: the number of values that it is the mean of.
    """

    when: str
    value: float | None
    interval: Interval | None
    n: int
    is_partial: bool
    run_id: str
    href: str | None = None


def trend(name: str, title: str, points: Sequence[TrendPoint], *, is_share: bool = False) -> Chart:
    """Return a chart of the values of runs, oldest first and evenly spaced, with a band of their intervals.

    Args:
        name: of the drawing.
        title: what was measured.
        points: oldest first.
        is_share: whether the values are shares, shown in per cent.
    """
    say = format_share if is_share else format_score
    title = one_line(title, svg.NAME_WIDTH)
    figures = FigureTable(
        ("run", "began", "value", "95 % interval", "n", "note"),
        tuple(
            (
                point.run_id,
                _day(point.when),
                "none" if point.value is None else say(point.value),
                " to ".join(map(say, point.interval or ())),
                _n(point.n),
                _note(point),
            )
            for point in points
        ),
    )
    known = [(place, point, point.value) for place, point in enumerate(points) if point.value is not None]
    if not known:
        return Chart(name, title, "No run has a value.", figures=figures)
    first, last = known[0], known[-1]
    said = f"{plural(len(known), 'run')}: {say(first[2])} on {_day(first[1].when)}"
    said += f", {say(last[2])} on {_day(last[1].when)}." if last is not first else "."
    if any(point.is_partial for point in points):
        said += " Hollow: runs that did not finish."
    ends = [end for _, point, value in known for end in point.interval or (value,)]
    high = svg.score_scale(ends, 170, 22)
    wide = AxisScale(0, max(len(points) - 1, 1), svg.LEFT + 10, svg.RIGHT - 10)
    axes = svg.upwards(
        high,
        svg.LEFT,
        svg.RIGHT,
        "pass rate; band: 95 % interval" if is_share else "mean; band: 95 % interval",
        svg.percent if is_share else svg.plain,
    )
    parts = [axes, _band(known, wide, high), _dates(points, wide)]
    parts.append(svg.path([(wide.at(place), high.at(value)) for place, _, value in known], "chart-line"))
    parts += [_trend_dot(point, wide.at(place), high.at(value), say(value)) for place, point, value in known]
    return Chart(name, title, said, figures, 206, [*parts])


_Known = Sequence[tuple[int, TrendPoint, float]]


def _band(known: _Known, wide: AxisScale, high: AxisScale) -> str:
    """Return the area between the ends of the intervals; a run without an interval is a point of it."""
    upper = [
        (wide.at(place), high.at((point.interval or (value, value))[1])) for place, point, value in known
    ]
    lower = [
        (wide.at(place), high.at((point.interval or (value, value))[0])) for place, point, value in known
    ]
    if len(known) > 1:
        return svg.path([*upper, *reversed(lower)], "chart-band", is_closed=True)
    return svg.line(upper[0][0], upper[0][1], lower[0][0], lower[0][1], "chart-whisker")


def _trend_dot(point: TrendPoint, x: float, y: float, said: str) -> str:
    kind = "chart-dot is-hollow" if point.is_partial else "chart-dot"
    label = f"{_day(point.when)}: {said} of n {point.n:,}{', ' + _note(point) if point.is_partial else ''}"
    return svg.mark(svg.dot(x, y, 4, kind) + svg.hit_area(x - 9, 22, 18, 148), label, href=point.href)


_DAY_WIDTH = 72
"""The width of a day under the axis, including the gap to the next one."""


def _dates(points: Sequence[TrendPoint], wide: AxisScale) -> str:
    """Return the days of at most four runs under the axis, each day once, and without overlaps."""
    parts = [svg.line(svg.LEFT, 170, svg.RIGHT, 170, "chart-axis")]
    last, days = len(points) - 1, set[str]()
    free, end = 0.0, wide.at(last) - _DAY_WIDTH  # the last day ends below its run
    for place in sorted({round(last * share / 3) for share in range(4)}):
        x = wide.at(place)
        day = _day(points[place].when)[:10]
        parts.append(svg.line(x, 170, x, 174, "chart-axis"))
        has_room = place in {0, last} or free <= x - _DAY_WIDTH / 2 <= end - _DAY_WIDTH
        if has_room and day not in days:
            parts.append(
                svg.text(x, 186, day, kind="is-muted", anchor="end" if place == last > 0 else "middle")
            )
            free = x + _DAY_WIDTH / 2
            days.add(day)
    parts.append(
        svg.text(
            (svg.LEFT + svg.RIGHT) / 2,
            200,
            "runs by when they began (UTC)",
            kind="is-muted",
            anchor="middle",
        )
    )
    return "".join(parts)


def _moment(when: str) -> datetime | None:
    try:
        return datetime.fromisoformat(when).astimezone(UTC)
    except ValueError:
        return None


def _day(when: str) -> str:
    found = _moment(when)
    return one_line(when, 20) if found is None else f"{found:%Y-%m-%d %H:%M}"


def _note(point: TrendPoint) -> str:
    return "did not finish" if point.is_partial else ""


def _n(count: int) -> str:
    return f"{count:,}"
