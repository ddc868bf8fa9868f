"""The drawings of two runs compared, and of one suite's runs over time. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from geval_cli.numbers import format_difference, format_score, format_share, plural
from geval_cli.report.charts import drawing as svg
from geval_cli.report.charts.drawing import AxisScale, Chart, FigureTable, NamedRow
from geval_cli.report.charts.figures import DUST
from geval_cli.report.comparison import ComparedRow, RowWords, is_rate
from geval_cli.report.sanitize import one_line
from geval_cli.statistics.intervals import Interval

DOTS_MAX = 400
"""Pairs that are drawn one by one; of more, those of equal places are counted and drawn together."""
ROWS_MAX = 30
_CELLS = 25
_SORTED_TOP, _SORTED_END = 22.0, 190.0
_EQUAL = 0.005
"""Scores that differ by less look equal in every table."""


_LEAST_LIMIT = 0.05
"""A scale of differences reaches at least so far: a drawing must not make much of nearly nothing."""


class PairedScore(Struct, frozen=True):
    """The scores of one case in an earlier and a later run, with its title and where it is shown."""

    before: float
    after: float
    title: str
    href: str | None = None

    @property
    def difference(self) -> float:
        """Return the later score minus the earlier one."""
        return self.after - self.before


class ScoreRange(Struct, frozen=True):
    """Scores from `low` on and below `high`; None stands for no end."""

    low: float | None = None
    high: float | None = None

    def holds(self, score: float | None) -> bool:
        """Return whether a score lies within; what is an end but for dust is that end."""
        if score is None:
            return False
        return (self.low is None or score >= self.low - DUST) and (
            self.high is None or score < self.high - DUST
        )


PairLinks = Callable[[ScoreRange, ScoreRange], str]
"""Returns the address of the page that shows the cases with scores before, and after, in these ranges."""


def score_scatter(
    name: str, what: str, pairs: Sequence[PairedScore], links: PairLinks | None = None
) -> Chart:
    """Return later scores (upwards) against earlier ones: what lies above the diagonal became better.

    Args:
        name: of the drawing.
        what: which scores they are.
        pairs: of all cases that have a score in both runs.
        links: where the pairs are shown that are drawn as one dot.
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
    """Return a dot for each cell of a fine grid, whose area is the number of pairs there."""
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
    """Return the number of the cell, each of which holds its lower end."""
    return math.floor((value - scale.low + DUST) / (scale.high - scale.low) * _CELLS + 0.5)


def _range_of(cell: int, scale: AxisScale) -> ScoreRange:
    """Return the scores of a cell; the first and the last one are open to the outside."""
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
    """Return the differences of all pairs from the worst to the best; of many pairs evenly chosen ones."""
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
    """Return a scale with 0 in its middle that holds all values."""
    limit = max(svg.round_scale([max(map(abs, values), default=0.0)], 0, 1).high, _LEAST_LIMIT)
    return AxisScale(-limit, limit, start, end)


def difference_intervals(
    name: str, what: str, rows: Sequence[ComparedRow], link: Callable[[ComparedRow], str | None]
) -> Chart:
    """Return the mean differences of a figure, row by row, with their intervals; one that holds 0 shows no difference.

    The intervals are those of each difference by itself; verdicts allow for all that were tested. Differences of
    shares are in percentage points.

    Args:
        name: of the drawing.
        what: the figure.
        rows: of it, one for each column.
        link: where the cases of a row's column are shown.
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
        value: None where the run has none.
        n: what it is the mean of.
    """

    when: str
    value: float | None
    interval: Interval | None
    n: int
    is_partial: bool
    run_id: str
    href: str | None = None


def trend(name: str, title: str, points: Sequence[TrendPoint], *, is_share: bool = False) -> Chart:
    """Return the values of runs, oldest first, with a band of their intervals; the runs are evenly spaced.

    Args:
        name: of the drawing.
        title: what was measured.
        points: oldest first.
        is_share: the values are shown in per cent.
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
    """Return the area between the ends of the intervals; a run without one is a point of it."""
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
"""Room for a day under the axis, and between it and the next."""


def _dates(points: Sequence[TrendPoint], wide: AxisScale) -> str:
    """Return the days of at most four runs under the axis, each day once, and none over another."""
    parts = [svg.line(svg.LEFT, 170, svg.RIGHT, 170, "chart-axis")]
    last, days = len(points) - 1, set[str]()
    free, end = 0.0, wide.at(last) - _DAY_WIDTH  # the last day ends below its run
    for place in sorted({round(last * share / 3) for share in range(4)}):
        x, day = wide.at(place), _day(points[place].when)[:10]
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
