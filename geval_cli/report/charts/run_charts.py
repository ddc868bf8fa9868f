"""The drawings of one run: columns ranked, metrics by column, scores, cost and latency, repeats. Pure."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from geval_cli.numbers import fixed, format_cost, format_score
from geval_cli.records import ColumnSummary, Stat
from geval_cli.report.charts.drawing import (
    LEFT,
    RIGHT,
    WIDTH,
    Chart,
    Choice,
    FigureTable,
    Links,
    Scale,
    across,
    dot,
    drawing,
    element,
    escape,
    hit_area,
    line,
    mark,
    percent,
    plain,
    rect,
    round_scale,
    score_scale,
    text,
    unit_scale,
    upwards,
)
from geval_cli.report.charts.figures import BINS, SCORE, Histogram, RunFigures, Spread, Verdicts
from geval_cli.report.columns import PASS_RATE, duration_text, mean_text, share_text
from geval_cli.report.numbers import plural
from geval_cli.report.sanitize import one_line

COLUMNS_MAX = 30
"""Columns that are drawn; those beyond are counted in words."""
METRICS_MAX = 20
"""Metrics that are drawn."""
_LINKED_HISTOGRAMS_MAX = 40
"""Above it a histogram is one link and its steps are none: a page must stay light."""
_NAME = 60
_ROW, _LAST = 34.0, 40.0
_SCORES_ROW, _BAR = 56.0, 34.0
_THRESHOLDS_DRAWN = 12
_DISC = 8.0
_HEAT_LEVELS = 10


def run_charts(columns: Sequence[ColumnSummary], figures: RunFigures, links: Links) -> Iterator[Chart]:
    """Yield the drawings of a run; those that cannot say anything of this run are left out.

    Args:
        columns: of the run's summary.
        figures: of its results.
        links: addresses of choices of results.
    """
    if not columns:
        return
    yield leaderboard(columns, links)
    if any(column.cost_usd != 0 for column in columns):
        yield cost_chart(columns, links)
    if any(column.latency_ms.median is not None for column in columns):
        yield latency_chart(columns, links)
    if any(column.metrics for column in columns):
        yield heat_table(columns, links)
    metrics = [name for name in figures.scores if name != SCORE][:METRICS_MAX]
    for number, name in enumerate(metrics or [SCORE], start=1):
        yield score_histograms(f"scores-{number}", name, columns, figures, links)
    if figures.verdicts:
        yield repeat_verdicts(columns, figures.verdicts)
    if spreads := figures.spreads():
        yield repeat_spreads(columns, spreads)


def leaderboard(columns: Sequence[ColumnSummary], links: Links) -> Chart:
    """Return the pass rates with their intervals, the best first; columns without one stand last."""
    ranked = sorted(enumerate(columns), key=lambda item: _rank(item[1].pass_rate))
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
    said = _leader_text(judged) + _left_out(len(ranked), COLUMNS_MAX, "column")
    scale = unit_scale(12, RIGHT)
    shown = ranked[:COLUMNS_MAX]
    floor = 8 + _ROW * len(shown)
    rows = [
        _leader_row(8 + _ROW * row, scale, index, column, links) for row, (index, column) in enumerate(shown)
    ]
    axis = across(scale, floor, 8, "pass rate; bar: 95 % interval over tests", percent)
    return Chart(name, title, said, drawing(name, title, said, floor + _LAST, axis, *rows), figures)


def _rank(stat: Stat) -> tuple[bool, float]:
    return stat.value is None, -(stat.value or 0.0)


def _leader_text(judged: Sequence[ColumnSummary]) -> str:
    best, last = judged[0], judged[-1]
    if best is last:
        return f"{name_of(best)} passed {share_text(best.pass_rate)} of {plural(best.pass_rate.n, 'case')}."
    return (
        f"Highest: {name_of(best)} with {share_text(best.pass_rate)};"
        f" lowest: {name_of(last)} with {share_text(last.pass_rate)}."
    )


def _leader_row(top: float, scale: Scale, index: int, column: ColumnSummary, links: Links) -> str:
    stat, middle = column.pass_rate, top + 24
    said = share_text(stat)
    parts = [
        text(12, top + 13, name_of(column), room=WIDTH - 120),
        text(RIGHT, top + 13, said, anchor="end", kind="is-strong"),
    ]
    if stat.value is not None:
        if stat.interval is not None:
            low, high = map(scale.at, stat.interval)
            parts.append(rect(low, middle - 4, high - low, 8, "chart-interval", 4))
        parts.append(dot(scale.at(stat.value), middle, 5))
    parts.append(hit_area(0, top, WIDTH, _ROW))
    label = f"{name_of(column)}: {said} of {plural(stat.n, 'case')}, {plural(stat.clusters, 'test')}"
    choice = Choice(column=index)
    return mark("".join(parts), label, href=links(choice))


def heat_table(columns: Sequence[ColumnSummary], links: Links) -> Chart:
    """Return the mean of each metric in each column as a table with coloured cells."""
    names = list(dict.fromkeys(name for column in columns for name in column.metrics))
    title, name = "Metrics by column", "heat"
    shown, drawn = columns[:COLUMNS_MAX], names[:METRICS_MAX]
    heads = "".join(element("th", escape(one_line(item, _NAME)), scope="col") for item in (PASS_RATE, *drawn))
    rows = "".join(_heat_row(index, column, drawn, links) for index, column in enumerate(shown))
    said = (
        "Means of each metric; the darker a cell, the higher."
        + _left_out(len(columns), COLUMNS_MAX, "column")
        + _left_out(len(names), METRICS_MAX, "metric")
    )
    corner = element("th", "Column", scope="col")
    table = element(
        "table",
        element("caption", escape(f"{title}. {said}"), class_="visually-hidden"),
        element("thead", element("tr", corner, heads)),
        element("tbody", rows),
        class_="heat",
    )
    frame = element("div", table, class_="heat-frame", role="region", aria_label=title, tabindex="0")
    return Chart(name, title, said, frame, is_wide=True)


def _heat_row(index: int, column: ColumnSummary, names: Sequence[str], links: Links) -> str:
    cells = [_heat_cell(column.pass_rate, share_text(column.pass_rate), Choice(column=index), links)]
    for name in names:
        stat = column.metrics.get(name, Stat())
        cells.append(_heat_cell(stat, mean_text(stat), Choice(column=index, metric=name), links))
    head = element("th", escape(name_of(column)), scope="row")
    return element("tr", head, *cells)


def _heat_cell(stat: Stat, said: str, choice: Choice, links: Links) -> str:
    if stat.value is None:
        return element("td", "none", class_="is-muted")
    level = round(min(max(stat.value, 0.0), 1.0) * _HEAT_LEVELS)
    value, _, interval = said.partition(" ")
    content = escape(value) + element("span", escape(f"{interval} n {stat.n:,}"), class_="heat-interval")
    return element("td", element("a", content, href=links(choice)), class_=f"heat-{level}")


def score_histograms(
    name: str, metric: str, columns: Sequence[ColumnSummary], figures: RunFigures, links: Links
) -> Chart:
    """Return how often each score was given, a row for each column, with the threshold where there is one."""
    found = figures.scores.get(metric, {})
    thresholds = sorted(figures.thresholds.get(metric, ()))
    title = "Scores" if metric == SCORE else f"Scores: {one_line(metric, _NAME)}"
    rows = [(index, column, found.get(index, Histogram())) for index, column in enumerate(columns)]
    table = FigureTable(
        ("column", "scores", "mean", "counts by score"),
        tuple(
            (name_of(column), f"{counts.n:,}", _mean(counts), _counts_text(counts))
            for _, column, counts in rows
        ),
    )
    if not any(counts.n for *_, counts in rows):
        return Chart(name, title, "No case has a score.", figures=table)
    limits = f" Threshold {_limits(thresholds)}." if thresholds else ""
    said = f"{_means_text(rows)}{limits}{_left_out(len(rows), COLUMNS_MAX, 'column')}"
    outside = any(counts.counts[0] or counts.counts[-1] for *_, counts in rows)
    scale = unit_scale(32, WIDTH - 32) if outside else unit_scale(12, RIGHT)
    top = 18.0 if thresholds else 6.0
    shown = rows[:COLUMNS_MAX]
    floor = top + _SCORES_ROW * len(shown)
    has_links = len(rows) * max(len(figures.scores), 1) <= _LINKED_HISTOGRAMS_MAX
    drawn = [
        _histogram_row(
            top + _SCORES_ROW * row,
            scale,
            item,
            Choice(item[0], None if metric == SCORE else metric),
            links,
            has_links=has_links,
        )
        for row, item in enumerate(shown)
    ]
    axis = across(scale, floor, top, "score; height: how many, row by row", plain)
    cuts = [
        line(scale.at(value), bottom - _BAR, scale.at(value), bottom, "chart-threshold")
        for value in thresholds[:_THRESHOLDS_DRAWN]
        for bottom in (top + _SCORES_ROW * (row + 1) for row in range(len(shown)))
    ]
    if cuts:
        cuts.append(_threshold_name(scale, thresholds))
    return Chart(name, title, said, drawing(name, title, said, floor + _LAST, axis, *drawn, *cuts), table)


_HistogramRow = tuple[int, ColumnSummary, Histogram]


def _histogram_row(
    top: float, scale: Scale, row: _HistogramRow, choice: Choice, links: Links, *, has_links: bool
) -> str:
    _, column, counts = row
    floor = top + _SCORES_ROW
    most = max(counts.counts) or 1
    # The mean stands first, so that a long name cannot push it out.
    parts = [
        text(12, top + 12, name_of(column), room=WIDTH - 100),
        text(RIGHT, top + 12, f"mean {_mean(counts)}", anchor="end", kind="is-muted"),
        line(scale.start, floor, scale.end, floor, "chart-axis"),
    ]
    whole = f"{name_of(column)}: mean {_mean(counts)} of {plural(counts.n, 'score')}"
    for low, high, count in counts.bins():
        start, end = _bin_ends(scale, low, high)
        height = max(_BAR * count / most, 1.5)
        bar = rect(start + 0.5, floor - height, end - start - 1, height, "chart-bar", 1)
        if has_links:
            step = Choice(choice.column, choice.metric, None, low, high)
            label = f"{name_of(column)}: {plural(count, 'score')} {_bin_text(low, high)}"
            bar = mark(bar + hit_area(start, floor - _BAR, end - start, _BAR), label, href=links(step))
        parts.append(bar)
    if has_links:
        return "".join(parts)
    parts.append(hit_area(0, top, WIDTH, _SCORES_ROW))
    return mark("".join(parts), whole, href=links(choice))


def _bin_ends(scale: Scale, low: float | None, high: float | None) -> tuple[float, float]:
    """Return where a step begins and ends; those beyond 0 and 1 stand a little apart."""
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


def _threshold_name(scale: Scale, thresholds: Sequence[float]) -> str:
    place = scale.at(thresholds[-1])
    anchor = "start" if place < WIDTH / 2 else "end"
    said = f"threshold {_limits(thresholds)}"
    return text(place + (4 if anchor == "start" else -4), 11, said, anchor=anchor, kind="is-threshold")


def _limits(thresholds: Sequence[float]) -> str:
    low, high = format_score(thresholds[0]), format_score(thresholds[-1])
    return low if low == high else f"{low} to {high}"


def _mean(counts: Histogram) -> str:
    return "none" if counts.mean is None else format_score(counts.mean)


def _means_text(rows: Sequence[_HistogramRow]) -> str:
    """Return the highest and the lowest mean in words."""
    scored = sorted((counts.mean, name_of(column)) for _, column, counts in rows if counts.mean is not None)
    (low, last), (high, best) = scored[0], scored[-1]
    if len(scored) == 1:
        return f"Mean: {format_score(high)}."
    return f"Highest mean: {best}, {format_score(high)}; lowest: {last}, {format_score(low)}."


def _counts_text(counts: Histogram) -> str:
    return "; ".join(f"{_bin_text(low, high)}: {count:,}" for low, high, count in counts.bins()) or "none"


class _Price(Struct, frozen=True):
    """A price that is paid for a pass rate: its name, one for each column, and how it is written."""

    name: str
    title: str
    axis: str
    values: Sequence[float | None]
    say: Callable[[float | None], str]


def cost_chart(columns: Sequence[ColumnSummary], links: Links) -> Chart:
    """Return pass rates against what the answers of a case cost."""
    costs = [_cost_of_case(column) for column in columns]
    return _tradeoff(
        columns, _Price("cost", "Pass rate and cost", "cost of a case", costs, _cost_text), links
    )


def latency_chart(columns: Sequence[ColumnSummary], links: Links) -> Chart:
    """Return pass rates against the median latency of an answer."""
    latencies = [column.latency_ms.median for column in columns]
    title = "Pass rate and latency"
    return _tradeoff(columns, _Price("latency", title, "median latency", latencies, duration_text), links)


def _cost_of_case(column: ColumnSummary) -> float | None:
    cases = column.passed + column.failed + column.errored + column.not_evaluated
    return None if column.cost_usd is None or not cases else column.cost_usd / cases


def _cost_text(cost: float | None) -> str:
    return "unknown" if cost is None else format_cost(cost) if cost >= 0 else f"-{format_cost(-cost)}"


def _tradeoff(columns: Sequence[ColumnSummary], price: _Price, links: Links) -> Chart:
    """Return pass rates (upwards) against a price of any kind; higher and further left is better."""
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
        said += f" Not drawn, as one of the two is not known: {plural(lacking, 'column')}."
    said += _left_out(len(placed), COLUMNS_MAX, "column")
    wide, high = (
        round_scale([item[2] for item in placed], LEFT, RIGHT),
        _rates_scale([item[1] for item in placed]),
    )
    places = _apart([(wide.at(value), high.at(rate)) for _, _, value, rate in placed[:COLUMNS_MAX]])
    marks, legend = [], []
    for row, (place, (index, column, value, _)) in enumerate(zip(places, placed, strict=False)):
        marks.append(_tradeoff_mark(index, column, place, high, say(value), links))
        legend.append(_legend_row(240 + 17 * row, index + 1, name_of(column)))
    axes = across(wide, 190, 22, price.axis, lambda value: say(value) if value else "0", 5)
    axes += upwards(high, LEFT, RIGHT, "pass rate; line: 95 % interval", percent)
    height = 232 + 17 * len(legend)
    return Chart(name, title, said, drawing(name, title, said, height, axes, *marks, *legend), figures)


def _apart(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return places of which each is moved a little to the right as long as it lies on one before it."""
    found: list[tuple[float, float]] = []
    for x, y in places:
        free = x
        while any(math.dist((free, y), other) < 2 * _DISC for other in found) and free < RIGHT:
            free += 2
        found.append((free, y))
    return found


def _rates_scale(columns: Sequence[ColumnSummary]) -> Scale:
    """Return a vertical scale of whole tenths that holds all pass rates with their intervals."""
    ends = [
        end for column in columns for end in column.pass_rate.interval or (column.pass_rate.value or 0.0,)
    ]
    low, high = math.floor(10 * min(ends)), math.ceil(10 * max(ends))
    return Scale(low / 10, max(high, low + 1) / 10, 190, 22)


def _tradeoff_mark(
    index: int, column: ColumnSummary, place: tuple[float, float], high: Scale, price: str, links: Links
) -> str:
    x, y = place
    interval = column.pass_rate.interval
    whisker = (
        "" if interval is None else line(x, high.at(interval[0]), x, high.at(interval[1]), "chart-whisker")
    )
    number = text(x, y + 4, str(index + 1), anchor="middle", kind="is-on-dot")
    label = f"{index + 1}: {name_of(column)}, {price}, {share_text(column.pass_rate)}"
    choice = Choice(column=index)
    return mark(f"{whisker}{dot(x, y, _DISC)}{number}", label, href=links(choice))


def _legend_row(y: float, number: int, said: str) -> str:
    return text(LEFT - 8, y, f"{number}", anchor="end", kind="is-strong") + text(
        LEFT, y, said, room=RIGHT - LEFT
    )


_VERDICT_WORDS = (("passed", "all repeats pass"), ("mixed", "mixed"), ("failed", "all fail"))


def repeat_verdicts(columns: Sequence[ColumnSummary], verdicts: Mapping[int, Verdicts]) -> Chart:
    """Return for each column how many tests had equal verdicts in all repeats, and how many did not."""
    name, title = "repeats", "Repeats: equal verdicts"
    rows = [(column, verdicts.get(index, Verdicts())) for index, column in enumerate(columns)]
    figures = FigureTable(
        ("column", "tests", *(said for _, said in _VERDICT_WORDS)),
        tuple(
            (name_of(column), f"{item.total:,}", f"{item.passed:,}", f"{item.mixed:,}", f"{item.failed:,}")
            for column, item in rows
        ),
    )
    mixed, tests = sum(item.mixed for _, item in rows), sum(item.total for _, item in rows)
    said = f"The repeats of {mixed:,} of {plural(tests, 'test')} had different verdicts, counted column by column."
    said += _left_out(len(rows), COLUMNS_MAX, "column")
    scale = unit_scale(12, RIGHT)
    shown = rows[:COLUMNS_MAX]
    floor = 28 + _ROW * len(shown)
    drawn = [_verdict_row(28 + _ROW * row, scale, column, item) for row, (column, item) in enumerate(shown)]
    axis = across(scale, floor, 28, "share of tests", percent)
    return Chart(
        name, title, said, drawing(name, title, said, floor + _LAST, axis, _verdict_legend(), *drawn), figures
    )


def _verdict_legend() -> str:
    parts = []
    for (kind, said), x in zip(_VERDICT_WORDS, (12.0, 130.0, 205.0), strict=True):
        parts.append(rect(x, 5, 12, 10, f"chart-{kind}", 2) + text(x + 17, 14, said, kind="is-muted"))
    return "".join(parts)


def _verdict_row(top: float, scale: Scale, column: ColumnSummary, item: Verdicts) -> str:
    share = f"{item.mixed:,} of {item.total:,} mixed"
    parts = [
        text(12, top + 13, name_of(column), room=WIDTH - 120),
        text(RIGHT, top + 13, share, anchor="end", kind="is-muted"),
    ]
    start = 0
    for kind, said in _VERDICT_WORDS:
        count = getattr(item, kind)
        if count:
            left, right = scale.at(start / item.total), scale.at((start + count) / item.total)
            bar = rect(left + 0.5, top + 19, right - left - 1, 10, f"chart-{kind}", 2)
            parts.append(mark(bar, f"{name_of(column)}: {plural(count, 'test')}, {said}"))
        start += count
    return "".join(parts)


def repeat_spreads(columns: Sequence[ColumnSummary], spreads: Sequence[Spread]) -> Chart:
    """Return the tests whose repeats scored furthest apart, a dot for each repeat."""
    name, title = "spreads", "Repeats: widest spread of scores"
    rows = [
        (item, f"#{item.test_index + 1} {item.title}".strip(), _column_name(columns, item.column))
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
    scale = score_scale([score for item in spreads for score in item.scores], 12, RIGHT)
    floor = 8 + _ROW * len(rows)
    drawn = [_spread_row(8 + _ROW * row, scale, *item) for row, item in enumerate(rows)]
    axis = across(scale, floor, 8, "score; a dot for each repeat", plain)
    return Chart(name, title, said, drawing(name, title, said, floor + _LAST, axis, *drawn), figures)


def _spread_row(top: float, scale: Scale, item: Spread, test: str, column: str) -> str:
    low, high = scale.at(item.scores[0]), scale.at(item.scores[-1])
    dots = (dot(scale.at(score), top + 24, 4, "chart-dot is-clear") for score in dict.fromkeys(item.scores))
    parts = [
        text(12, top + 13, test, room=WIDTH - 150),
        text(RIGHT, top + 13, column, anchor="end", kind="is-muted", room=120),
        rect(low, top + 22, high - low, 4, "chart-interval", 2),
        *dots,
    ]
    said = f"{test}, {column}: {', '.join(map(format_score, item.scores[:20]))}"
    return mark("".join(parts), said)


def name_of(column: ColumnSummary) -> str:
    """Return the label of a column on one line."""
    return one_line(column.label, _NAME) or "column"


def _column_name(columns: Sequence[ColumnSummary], index: int) -> str:
    return name_of(columns[index]) if index < len(columns) else f"column {index + 1}"


def _left_out(total: int, most: int, noun: str) -> str:
    return f" {plural(total - most, f'further {noun}')} not drawn." if total > most else ""
