"""The drawings of a run's columns by their summary: ranked, metric by metric, against cost and latency. Pure."""

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from geval_cli.numbers import format_cost, plural
from geval_cli.records import ColumnSummary, Stat
from geval_cli.report.charts.drawing import (
    LEFT,
    RIGHT,
    WIDTH,
    AxisScale,
    Chart,
    FigureTable,
    Links,
    MarkFilter,
    NamedRow,
    across,
    dot,
    drawing,
    element,
    escape,
    hit_area,
    line,
    mark,
    named_rows,
    percent,
    rect,
    round_scale,
    text,
    unit_scale,
    upwards,
)
from geval_cli.report.columns import PASS_RATE, duration_text, mean_text, share_text
from geval_cli.report.sanitize import one_line

COLUMNS_MAX = 30
"""Columns that are drawn; those beyond are counted in words."""
METRICS_MAX = 20
"""Metrics that are drawn."""
NAME_WIDTH = 160
"""Cells of a name; longer ones are cut. A name takes as many lines as it needs."""
ROW, LAST = 34.0, 40.0
"""Heights of the row of a column, and of the axis below the last one."""
_HEAT_LEVELS = 5
_DOT = 5.0
_NUMBER = (15.0, 11.0)
"""The width and the height of the number of a dot."""
_FLOOR = 190.0


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
    said = _leader_text(judged) + left_out(len(ranked), COLUMNS_MAX, "column")
    scale = unit_scale(12, RIGHT)
    shown = ranked[:COLUMNS_MAX]
    places, floor = named_rows((name_of(column) for _, column in shown), 8, ROW, WIDTH - 120)
    rows = [
        _leader_row(place, scale, index, column, links)
        for place, (index, column) in zip(places, shown, strict=True)
    ]
    axis = across(scale, floor, 8, "pass rate; bar: 95 % interval over tests", percent)
    return Chart(name, title, said, drawing(name, title, said, floor + LAST, axis, *rows), figures)


def _rank(stat: Stat) -> tuple[bool, float]:
    return stat.value is None, -(stat.value or 0.0)


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
    stat, middle = column.pass_rate, row.last_line + 24
    said = share_text(stat)
    # The link has no text of its own: its name says more, and the text would be read twice.
    words = row.name() + text(RIGHT, row.top + 13, said, anchor="end", kind="is-strong")
    parts = []
    if stat.value is not None:
        if stat.interval is not None:
            low, high = map(scale.at, stat.interval)
            parts.append(rect(low, middle - 4, high - low, 8, "chart-interval", 4))
        parts.append(dot(scale.at(stat.value), middle, 5))
    parts.append(hit_area(0, row.top, WIDTH, row.height))
    label = f"{name_of(column)}: {said} of {plural(stat.n, 'case')}, {plural(stat.clusters, 'test')}"
    return words + mark("".join(parts), label, href=links(MarkFilter(column=index)))


def heat_table(columns: Sequence[ColumnSummary], links: Links) -> Chart:
    """Return the mean of each metric in each column as a table with coloured cells."""
    names = list(dict.fromkeys(name for column in columns for name in column.metrics))
    title, name = "Metrics by column", "heat"
    shown, drawn = columns[:COLUMNS_MAX], names[:METRICS_MAX]
    heads = "".join(
        element("th", escape(one_line(item, NAME_WIDTH)), scope="col") for item in (PASS_RATE, *drawn)
    )
    rows = "".join(_heat_row(index, column, drawn, links) for index, column in enumerate(shown))
    said = (
        "The mean of each metric; a stronger colour is a higher mean."
        + left_out(len(columns), COLUMNS_MAX, "column")
        + left_out(len(names), METRICS_MAX, "metric")
    )
    corner = element("th", "Column", scope="col")
    table = element(
        "table",
        element("caption", escape(f"{title}. {said}"), class_="visually-hidden"),
        element("thead", element("tr", corner, heads)),
        element("tbody", rows),
        class_="table is-tight heat",
    )
    frame = element("div", table, class_="table-frame", role="region", aria_label=title, tabindex="0")
    return Chart(name, title, said, frame, is_wide=True)


def _heat_row(index: int, column: ColumnSummary, names: Sequence[str], links: Links) -> str:
    cells = [_heat_cell(column.pass_rate, share_text(column.pass_rate), MarkFilter(column=index), links)]
    for name in names:
        stat = column.metrics.get(name, Stat())
        cells.append(_heat_cell(stat, mean_text(stat), MarkFilter(column=index, metric=name), links))
    head = element("th", escape(name_of(column)), scope="row")
    return element("tr", head, *cells)


def _heat_cell(stat: Stat, said: str, choice: MarkFilter, links: Links) -> str:
    if stat.value is None:
        return element("td", "none", class_="is-muted")
    level = round(min(max(stat.value, 0.0), 1.0) * _HEAT_LEVELS)
    value, bracket, interval = said.partition(" [")
    content = escape(value) + element(
        "span", escape(f"{bracket}{interval} n {stat.n:,}"), class_="heat-interval"
    )
    return element("td", element("a", content, href=links(choice)), class_=f"heat-{level}")


class _ColumnPrice(Struct, frozen=True):
    """A price that is paid for a pass rate: its name, one for each column, and how it is written."""

    name: str
    title: str
    axis: str
    values: Sequence[float | None]
    say: Callable[[float | None], str]


def cost_chart(columns: Sequence[ColumnSummary], links: Links) -> Chart:
    """Return pass rates against what the answers of a case cost when they were generated."""
    costs = [_cost_of_case(column) for column in columns]
    return _tradeoff(
        columns, _ColumnPrice("cost", "Pass rate and cost", "cost of a case", costs, _cost_text), links
    )


def latency_chart(columns: Sequence[ColumnSummary], links: Links) -> Chart:
    """Return pass rates against the median latency of an answer."""
    latencies = [column.latency_ms.median for column in columns]
    title = "Pass rate and latency"
    return _tradeoff(
        columns, _ColumnPrice("latency", title, "median latency", latencies, duration_text), links
    )


def _cost_of_case(column: ColumnSummary) -> float | None:
    cases = column.passed + column.failed + column.errored + column.not_evaluated
    cost = column.cost_usd_generated
    return None if cost is None or not cases else cost / cases


def _cost_text(cost: float | None) -> str:
    return "unknown" if cost is None else format_cost(cost) if cost >= 0 else f"-{format_cost(-cost)}"


def _tradeoff(columns: Sequence[ColumnSummary], price: _ColumnPrice, links: Links) -> Chart:
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
        said += f" Not drawn because one of the two is unknown: {plural(lacking, 'column')}."
    said += left_out(len(placed), COLUMNS_MAX, "column")
    wide, high = (
        round_scale([item[2] for item in placed], LEFT, RIGHT),
        _rates_scale([item[1] for item in placed]),
    )
    places = [(wide.at(value), high.at(rate)) for _, _, value, rate in placed[:COLUMNS_MAX]]
    numbers = _number_places(places)
    rows, end = named_rows((name_of(item[1]) for item in placed[:COLUMNS_MAX]), _FLOOR + 37, 17, RIGHT - LEFT)
    marks = []
    for row, place, number, (index, column, value, _) in zip(rows, places, numbers, placed, strict=False):
        marks.append(_tradeoff_mark(index, column, place, high, say(value), links))
        marks.append(text(*number, str(index + 1), anchor="middle", kind="is-strong"))
        marks.append(text(LEFT - 8, row.top + 13, f"{index + 1}", anchor="end", kind="is-strong"))
        marks.append(row.name(LEFT))
    axes = across(wide, _FLOOR, 22, price.axis, lambda value: say(value) if value else "0", 5)
    axes += upwards(high, LEFT, RIGHT, "pass rate; line: 95 % interval", percent)
    return Chart(name, title, said, drawing(name, title, said, end + 5, axes, *marks), figures)


def _number_places(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return where the number of each dot stands: beside it, below the numbers that are there already.

    Only numbers move; a dot stays where its figures put it, even on top of another one.
    """
    found: dict[int, tuple[float, float]] = {}
    width, height = _NUMBER
    for index, (x, y) in sorted(enumerate(places), key=lambda item: item[1][1]):
        beside, top = x + _DOT + 7 if x < RIGHT - width else x - _DOT - 7, y + 4
        while any(abs(beside - left) < width and abs(top - other) < height for left, other in found.values()):
            top += 1
            if top > _FLOOR - 4:  # there is no room below: a further pile stands beside this one
                beside, top = beside + width, y + 4
        found[index] = beside, top
    return [found[index] for index in range(len(places))]


def _rates_scale(columns: Sequence[ColumnSummary]) -> AxisScale:
    """Return a vertical scale of whole tenths that holds all pass rates with their intervals."""
    ends = [
        end for column in columns for end in column.pass_rate.interval or (column.pass_rate.value or 0.0,)
    ]
    low, high = math.floor(10 * min(ends)), math.ceil(10 * max(ends))
    return AxisScale(low / 10, max(high, low + 1) / 10, _FLOOR, 22)


def _tradeoff_mark(
    index: int, column: ColumnSummary, place: tuple[float, float], high: AxisScale, price: str, links: Links
) -> str:
    x, y = place
    interval = column.pass_rate.interval
    whisker = (
        "" if interval is None else line(x, high.at(interval[0]), x, high.at(interval[1]), "chart-whisker")
    )
    label = f"{index + 1}: {name_of(column)}, {price}, {share_text(column.pass_rate)}"
    return mark(f"{whisker}{dot(x, y, _DOT)}", label, href=links(MarkFilter(column=index)))


def name_of(column: ColumnSummary) -> str:
    """Return the label of a column on one line."""
    return one_line(column.label, NAME_WIDTH) or "column"


def column_name(columns: Sequence[ColumnSummary], index: int) -> str:
    """Return the label of a column by its index; its number where the summary lacks it."""
    return name_of(columns[index]) if index < len(columns) else f"column {index + 1}"


def left_out(total: int, most: int, noun: str) -> str:
    """` 3 further columns not drawn.`; nothing where all are."""
    return f" {plural(total - most, f'further {noun}')} not drawn." if total > most else ""
