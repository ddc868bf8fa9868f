"""The drawings of one run: of its columns, and of the scores and repeats of its results. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from geval_cli.numbers import fixed, format_score, plural
from geval_cli.records import ColumnSummary
from geval_cli.report.charts.column_charts import (
    COLUMNS_MAX,
    LAST,
    METRICS_MAX,
    NAME_WIDTH,
    ROW,
    column_name,
    cost_chart,
    heat_table,
    latency_chart,
    leaderboard,
    left_out,
    name_of,
)
from geval_cli.report.charts.drawing import (
    LINE,
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
    hit_area,
    legend,
    line,
    listed,
    mark,
    named_rows,
    percent,
    plain,
    rect,
    score_scale,
    text,
    text_lines,
    unit_scale,
    wrapped,
)
from geval_cli.report.charts.figures import BINS, FURTHER_MAX, SCORE, Histogram, RunFigures, Spread, Verdicts
from geval_cli.report.sanitize import one_line

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
    for number, name in enumerate(metrics[:METRICS_MAX] or [SCORE][len(constant) :], start=1):
        yield score_histograms(f"scores-{number}", name, columns, figures, links)
    if constant:
        means = [f"{one_line(name, NAME_WIDTH)} {format_score(mean)}" for name, mean in constant.items()]
        said = f"Nothing varies: {listed(means, 12)}."
        yield Chart("scores-constant", "The same score everywhere", said)
    if further := [*metrics[METRICS_MAX:], *sorted(figures.left_out)]:
        is_cut = len(figures.left_out) == FURTHER_MAX  # of more nothing is known
        said = f"Not drawn: {listed(further)}{', or further ones' if is_cut else ''}."
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
    title = "Scores" if metric == SCORE else f"Scores: {one_line(metric, NAME_WIDTH)}"
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
    said = f"{_means_text(rows)}{limits}{left_out(len(rows), COLUMNS_MAX, 'column')}"
    outside = any(counts.counts[0] or counts.counts[-1] for *_, counts in rows)
    said += " Scores below 0 or above 1 are at the ends." if outside else ""
    scale = unit_scale(32, WIDTH - 32) if outside else unit_scale(12, RIGHT)
    top = 18.0 if thresholds else 6.0
    shown = rows[:COLUMNS_MAX]
    places, floor = named_rows((name_of(item[1]) for item in shown), top, _SCORES_ROW, WIDTH - 100)
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
    axis = across(scale, floor, top, "score; height: how many, row by row", plain)
    cuts = [
        line(scale.at(value), bottom - _BAR, scale.at(value), bottom, "chart-threshold")
        for value in thresholds[:_THRESHOLDS_DRAWN]
        for bottom in (place.top + place.height for place in places)
    ]
    if cuts:
        cuts.append(_threshold_name(scale, thresholds))
    return Chart(name, title, said, drawing(name, title, said, floor + LAST, axis, *drawn, *cuts), table)


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
    words = place.name(down=12) + text(
        RIGHT, place.top + 12, f"mean {_mean(counts)}", anchor="end", kind="is-muted"
    )
    parts = [line(scale.start, floor, scale.end, floor, "chart-axis")]
    whole = f"{name_of(column)}: mean {_mean(counts)} of {plural(counts.n, 'score')}"
    for low, high, count in counts.bins():
        start, end = _bin_ends(scale, low, high)
        height = max(_BAR * count / most, 1.5)
        bar = rect(start + 0.5, floor - height, end - start - 1, height, "chart-bar", 1)
        if has_links:
            step = MarkFilter(choice.column, choice.metric, low, high)
            label = f"{name_of(column)}: {plural(count, 'score')} {_bin_text(low, high)}"
            bar = mark(bar + hit_area(start, floor - _BAR, end - start, _BAR), label, href=links(step))
        parts.append(bar)
    if has_links:
        return words + "".join(parts)
    parts.append(hit_area(0, place.top, WIDTH, place.height))
    return words + mark("".join(parts), whole, href=links(choice))


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
    if format_score(high) == format_score(low):
        return f"All means: {format_score(high)}."
    return f"Highest mean: {best}, {format_score(high)}; lowest: {last}, {format_score(low)}."


def _counts_text(counts: Histogram) -> str:
    return "; ".join(f"{_bin_text(low, high)}: {count:,}" for low, high, count in counts.bins()) or "none"


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
    said += left_out(len(rows), COLUMNS_MAX, "column")
    scale = unit_scale(12, RIGHT)
    shown = rows[:COLUMNS_MAX]
    kinds, top = legend([(f"chart-bar is-{kind}", word) for kind, word in _VERDICT_WORDS], 0)
    places, floor = named_rows((name_of(item[1]) for item in shown), top + 8, ROW, WIDTH - 120)
    drawn = [_verdict_row(place, scale, item, links) for place, item in zip(places, shown, strict=True)]
    axis = across(scale, floor, top + 8, "share of tests", percent)
    return Chart(name, title, said, drawing(name, title, said, floor + LAST, axis, kinds, *drawn), figures)


def _verdict_row(
    place: NamedRow, scale: AxisScale, row: tuple[int, ColumnSummary, Verdicts], links: Links
) -> str:
    index, column, item = row
    share = f"{item.mixed:,} of {item.total:,} mixed"
    parts = [place.name(), text(RIGHT, place.top + 13, share, anchor="end", kind="is-muted")]
    start = 0
    for kind, said in _VERDICT_WORDS:
        count = getattr(item, kind)
        if count:
            left, right = scale.at(start / item.total), scale.at((start + count) / item.total)
            bar = rect(left + 0.5, place.last_line + 19, right - left - 1, 10, f"chart-bar is-{kind}", 2)
            choice = MarkFilter(index, repeats=kind)
            parts.append(mark(bar, f"{name_of(column)}: {plural(count, 'test')}, {said}", href=links(choice)))
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
    scale = score_scale([score for item in spreads for score in item.scores], 12, RIGHT)
    drawn, top = [], 8.0
    for row in rows:
        part, top = _spread_row(top, scale, *row, links)
        drawn.append(part)
    axis = across(scale, top, 8, "score; a dot for each repeat", plain)
    return Chart(name, title, said, drawing(name, title, said, top + LAST, axis, *drawn), figures)


def _spread_row(
    top: float, scale: AxisScale, item: Spread, test: str, column: str, links: Links
) -> tuple[str, float]:
    """Return a row and where it ends."""
    low, high = scale.at(item.scores[0]), scale.at(item.scores[-1])
    titles, names = wrapped(test, RIGHT - 12), wrapped(column, RIGHT - 12)
    middle = top + LINE * (len(titles) + len(names)) + 11
    dots = (dot(scale.at(score), middle, 4, "chart-dot is-clear") for score in dict.fromkeys(item.scores))
    words = text_lines(12, top + 13, titles)
    words += text_lines(12, top + 13 + LINE * len(titles), names, kind="is-muted")
    parts = [rect(low, middle - 2, high - low, 4, "chart-interval", 2), *dots]
    parts.append(hit_area(0, top, WIDTH, middle + 8 - top))
    said = f"{test}, {column}: {', '.join(map(format_score, item.scores[:20]))}"
    choice = MarkFilter(item.column, test=item.test_index)
    return words + mark("".join(parts), said, href=links(choice)), middle + 10
