"""The drawings of one run: of its columns, and of the scores and repeats of its results. Pure."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct

from geval_cli.numbers import fixed, format_cost, format_duration, format_score, plural
from geval_cli.records import ColumnSummary, Stat
from geval_cli.report.charts import drawing as svg
from geval_cli.report.charts.drawing import AxisScale, Chart, FigureTable, Links, MarkFilter, NamedRow
from geval_cli.report.charts.figures import BINS, FURTHER_MAX, SCORE, Histogram, RunFigures, Spread, Verdicts
from geval_cli.report.columns import PASS_RATE, mean_text, ranking, share_text
from geval_cli.report.sanitize import one_line

_HEAT_LEVELS = 5
_DOT = 5.0
_NUMBER = (15.0, 11.0)
"""The width and the height of the number of a dot."""
_FLOOR = 190.0
_LINKED_HISTOGRAMS_MAX = 40
"""Above it a histogram is one link and its steps are none: a page must stay light."""
_SCORES_ROW, _BAR = 60.0, 34.0
_THRESHOLDS_DRAWN = 12


def run_charts(columns: Sequence[ColumnSummary], figures: RunFigures, links: Links) -> Iterator[Chart]:
    """Yield the drawings of a run; those that cannot say anything of this run are left out.

    Args:
        columns: of the run's summary.
        figures: of its results.
        links: addresses of choices of results.
    """
    if not columns:
        return
    # The wide one stands first, so that all others fill their columns without a hole.
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
        is_cut = len(figures.left_out) == FURTHER_MAX  # of more nothing is known
        said = f"Not drawn: {svg.listed(further)}{', or further ones' if is_cut else ''}."
        yield Chart("scores-further", "Further metrics", said)
    if figures.verdicts:
        yield repeat_verdicts(columns, figures.verdicts, links)
    if spreads := figures.spreads():
        yield repeat_spreads(columns, spreads, links)


def _only_score(columns: Mapping[int, Histogram]) -> float | None:
    """Return the score of a metric that never varies; None where it does."""
    scored = [counts for counts in columns.values() if counts.n]
    bins = {place for counts in scored for place in counts.bins()}
    means = {format_score(counts.mean) for counts in scored if counts.mean is not None}
    is_one = len(means) == 1 and len({low for low, _, _ in bins}) == 1
    return scored[0].mean if is_one else None


def _dullness(figures: RunFigures, metric: str) -> tuple[float, float]:
    """Sort metrics: those with the most scores below their threshold first, then those whose columns differ most."""
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
    """Return how often each score was given, a row for each column, with the threshold where there is one."""
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


def _threshold_name(scale: AxisScale, thresholds: Sequence[float]) -> str:
    place = scale.at(thresholds[-1])
    anchor = "start" if place < svg.WIDTH / 2 else "end"
    said = f"threshold {_limits(thresholds)}"
    return svg.text(place + (4 if anchor == "start" else -4), 11, said, anchor=anchor, kind="is-threshold")


def _limits(thresholds: Sequence[float]) -> str:
    low, high = format_score(thresholds[0]), format_score(thresholds[-1])
    return low if low == high else f"{low} to {high}"


def _means_text(rows: Sequence[_HistogramRow]) -> str:
    """Return the highest and the lowest mean in words."""
    scored = sorted((counts.mean, name_of(column)) for _, column, counts in rows if counts.mean is not None)
    (low, last), (high, best) = scored[0], scored[-1]
    if len(scored) == 1:
        return f"Mean: {format_score(high)}."
    if format_score(high) == format_score(low):
        return f"All means: {format_score(high)}."
    return f"Highest mean: {best}, {format_score(high)}; lowest: {last}, {format_score(low)}."


_VERDICT_WORDS = (("passed", "all repeats pass"), ("mixed", "mixed"), ("failed", "all fail"))


def repeat_verdicts(
    columns: Sequence[ColumnSummary], verdicts: Mapping[int, Verdicts], links: Links
) -> Chart:
    """Return for each column how many tests had equal verdicts in all repeats, and how many did not."""
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
            left, right = scale.at(start / item.total), scale.at((start + count) / item.total)
            bar = svg.rect(left + 0.5, place.last_line + 19, right - left - 1, 10, f"chart-bar is-{kind}", 2)
            choice = MarkFilter(index, repeats=kind)
            parts.append(
                svg.mark(bar, f"{name_of(column)}: {plural(count, 'test')}, {said}", href=links(choice))
            )
        start += count
    return "".join(parts)


def repeat_spreads(columns: Sequence[ColumnSummary], spreads: Sequence[Spread], links: Links) -> Chart:
    """Return the tests whose repeats scored furthest apart, a dot for each repeat."""
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
    """Return a row and where it ends."""
    low, high = scale.at(item.scores[0]), scale.at(item.scores[-1])
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
    """Return the pass rates with their intervals, the best first; columns without one stand last."""
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
    stat, middle = column.pass_rate, row.last_line + 24
    said = share_text(stat)
    # The link has no text of its own: its name says more, and the text would be read twice.
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
    """Return the mean of each metric in each column as a table with coloured cells."""
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
        columns, _ColumnPrice("cost", "Pass rate and cost", "cost of a case", costs, format_cost), links
    )


def latency_chart(columns: Sequence[ColumnSummary], links: Links) -> Chart:
    """Return pass rates against the median latency of an answer."""
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
    said += svg.left_out(len(placed), svg.COLUMNS_MAX, "column")
    wide, high = (
        svg.round_scale([item[2] for item in placed], svg.LEFT, svg.RIGHT),
        _rates_scale([item[1] for item in placed]),
    )
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
    """Return where the number of each dot stands: beside it, below the numbers that are there already.

    Only numbers move; a dot stays where its figures put it, even on top of another one.
    """
    found: dict[int, tuple[float, float]] = {}
    width, height = _NUMBER
    for index, (x, y) in sorted(enumerate(places), key=lambda item: item[1][1]):
        beside, top = x + _DOT + 7 if x < svg.RIGHT - width else x - _DOT - 7, y + 4
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
    """Return the label of a column by its index; its number where the summary lacks it."""
    return name_of(columns[index]) if index < len(columns) else f"column {index + 1}"
