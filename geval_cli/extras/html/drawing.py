"""Scales, axes and marks as SVG markup, and the record of a drawing. Pure functions.

Every text is escaped here and every colour is a class of `charts.css`, so a drawing needs no style of its own, complies
with a strict content security policy and follows the theme. Lengths are pixels of the drawing, which is `WIDTH` wide.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from rich.cells import cell_len, chop_cells

from geval_cli.numbers import fixed, plural, trimmed
from geval_cli.report.sanitize import html_text, one_line

WIDTH = 360.0
"""The width of a drawing that is placed beside others; a phone shows it at nearly its own size."""
LEFT, RIGHT = 42.0, 350.0
"""The ends of a horizontal scale that leaves room for the figures of a vertical one."""
TOP, END = 22.0, 322.0
"""The ends of the vertical scale of a drawing that is nearly square."""
ROW, LAST = 34.0, 40.0
"""The heights of a row below its name, and of the axis below the last row."""
NAME_WIDTH, TITLE_WIDTH = 160, 120
"""The width in cells of the name of a column or metric, and of a test's title; longer ones are cut. Names may wrap."""
COLUMNS_MAX, METRICS_MAX = 30, 20
"""How many columns and metrics are drawn; further ones are counted in words."""
_CELL = 6.3
"""The largest width of half a wide character, or of a common narrow one, at the drawings' font size."""
LINE = 13.0
"""The height of a further line of a text."""
_TITLE_CELLS = 300
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_DUST = 1e-9


class MarkFilter(Struct, frozen=True):
    """The results that a mark stands for; a click on it shows them in the matrix. None selects all.

    Attributes:
        column: the index of a column.
        low: scores of at least this, of the `metric` if there is one.
        high: scores below this.
        label_low: mean human labels of the `metric` of at least this.
        label_high: mean labels below this.
        test: the index of a test.
        repeats: what the repeats of a test have in common, `passed`, `mixed` or `failed`.
    """

    column: int | None = None
    metric: str | None = None
    low: float | None = None
    high: float | None = None
    label_low: float | None = None
    label_high: float | None = None
    test: int | None = None
    repeats: str | None = None


Links = Callable[[MarkFilter], str]
"""Returns the address of the page that shows a selection of results."""


class FigureTable(Struct, frozen=True):
    """The figures of a drawing as text: the heading of each column, and the rows."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Chart(Struct, frozen=True):
    """A drawing and its text alternative.

    Attributes:
        name: identifies it on a page; letters, digits and hyphens. "" for one that is placed beside its text.
        description: what it shows, in a sentence or two; why it shows nothing if there are no `marks`.
        figures: the same figures as a table.
        height: of the drawing; 0 if `marks` are a table.
        marks: what is drawn, safe to put into a page.
        width: of the drawing; one that is not `WIDTH` wide keeps its size.
        is_wide: whether it takes the whole width of the page.
        href: the address of a page about what is drawn.
    """

    name: str
    title: str
    description: str
    figures: FigureTable | None = None
    height: float = 0.0
    marks: Sequence[str] = ()
    width: float = WIDTH
    is_wide: bool = False
    href: str | None = None

    @property
    def markup(self) -> str:
        """The whole drawing with its names for screen readers; a group if it contains links, else an image."""
        body = "".join(self.marks)
        if not self.height:
            return body
        box = f"0 0 {_value(self.width)} {_value(self.height)}"
        if not self.name:
            size = {"width": self.width, "height": self.height}
            return element("svg", body, viewBox=box, role="img", aria_label=self.description, **size)
        return element(
            "svg",
            element("title", escape(self.title), id=f"{self.name}-title"),
            element("desc", escape(self.description), id=f"{self.name}-said"),
            body,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=box,
            class_="chart-drawing",
            # An image must not contain anything that can take the focus.
            role="group" if "<a " in body else "img",
            aria_labelledby=f"{self.name}-title {self.name}-said",
        )


class AxisScale(Struct, frozen=True):
    """A linear scale: values `low` to `high` are placed at `start` to `end`, and values beyond at its ends."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the position of a value."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Return at most `most` round values from end to end."""
        step = _round_step((self.high - self.low) / max(most - 1, 1))
        first = math.ceil(self.low / step - _DUST)
        last = math.floor(self.high / step + _DUST)
        return [number * step for number in range(first, last + 1)]


def unit_scale(start: float, end: float) -> AxisScale:
    """Return the scale of scores and shares, from 0 to 1."""
    return AxisScale(0.0, 1.0, start, end)


def round_scale(values: Iterable[float], start: float, end: float) -> AxisScale:
    """Return a scale with round ends that includes 0 and all values; 0 to 1 if all of them are zero."""
    found = [0.0, *(value for value in values if math.isfinite(value))]
    low, high = min(found), max(found)
    if high - low < _DUST:
        return AxisScale(low, low + 1, start, end)
    step = _round_step((high - low) / 5)
    return AxisScale(math.floor(low / step + _DUST) * step, math.ceil(high / step - _DUST) * step, start, end)


def score_scale(values: Iterable[float], start: float, end: float) -> AxisScale:
    """Return the scale of scores: 0 to 1, or wider if a value lies outside."""
    found = [value for value in values if math.isfinite(value)]
    if all(-_DUST <= value <= 1 + _DUST for value in found):
        return unit_scale(start, end)
    return round_scale([1.0, *found], start, end)


def _round_step(least: float) -> float:
    """Return the smallest round number that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in _STEPS if step * power >= least * (1 - _DUST))


def escape(text: str) -> str:
    """Return a text on one line, escaped for markup and attributes."""
    return html_text(one_line(text, _TITLE_CELLS))


def element(name: str, *content: str, **attributes: str | float | None) -> str:
    """Return an element. `content` is markup; attribute values are escaped but not cut, and None leaves one out.

    An underscore at the end of an attribute's name is dropped (`class_`), others become hyphens.
    """
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{said}>{''.join(content)}</{name}>" if content else f"<{name}{said}/>"


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return html_text(value)
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def text(
    x: float, y: float, said: str, *, room: float | None = None, kind: str = "", anchor: str | None = None
) -> str:
    """Return a text that begins at `x`, or is placed by `anchor`; it is cut if `room` is too small for it."""
    shown = said if room is None else one_line(said, max(int(room / _CELL), 1))
    title = element("title", escape(said)) if shown != one_line(said, _TITLE_CELLS) else ""
    names = f"chart-text {kind}".strip()
    return element("text", html_text(shown), title, x=x, y=y, class_=names, text_anchor=anchor)


def wrapped(said: str, room: float) -> list[str]:
    """Return a text as lines that fit into `room`, broken at spaces, or within a word that is longer than a line."""
    width = max(int(room / _CELL), 2)
    lines = [""]
    for word in one_line(said, _TITLE_CELLS).split(" "):
        for piece in chop_cells(word, width):
            joined = f"{lines[-1]} {piece}".strip()
            if cell_len(joined) <= width:
                lines[-1] = joined
            else:
                lines.append(piece)
    return lines


class NamedRow(Struct, frozen=True):
    """A row of a drawing below its name, which takes as many lines as it needs.

    Attributes:
        top: of the whole row.
        lines: of the name.
        height: of the whole row.
    """

    top: float
    lines: Sequence[str]
    height: float

    @property
    def last_line(self) -> float:
        """The top of the last line of the name; that of the whole row if there is one line."""
        return self.top + LINE * (len(self.lines) - 1)

    def name(self, x: float = 12, *, down: float = 13) -> str:
        """Return the name, with its first line `down` below the top."""
        return text_lines(x, self.top + down, self.lines)


def named_rows(names: Iterable[str], top: float, height: float, room: float) -> tuple[list[NamedRow], float]:
    """Return rows one below the other, and where the last one ends.

    Args:
        names: of the rows.
        top: of the first row.
        height: of a row whose name takes one line.
        room: the width of the lines of a name.
    """
    rows = []
    for name in names:
        lines = wrapped(name, room)
        rows.append(NamedRow(top, lines, height + LINE * (len(lines) - 1)))
        top += rows[-1].height
    return rows, top


def text_lines(x: float, y: float, lines: Sequence[str], *, kind: str = "", anchor: str | None = None) -> str:
    """Return lines of text one below the other, the first one at `y`."""
    return "".join(
        text(x, y + LINE * place, said, kind=kind, anchor=anchor) for place, said in enumerate(lines)
    )


def legend(entries: Iterable[tuple[str, str]], top: float) -> tuple[str, float]:
    """Return a legend, a sample of each kind of mark or line with its meaning in as many rows as needed, and its end.

    Args:
        entries: the class of the mark, and its meaning.
        top: of the first row.
    """
    x, parts = 12.0, []
    for kind, said in entries:
        width = 17 + _CELL * cell_len(said)
        if x > 12 and x + width > RIGHT:  # noqa: PLR2004 - where a row begins
            x, top = 12.0, top + 16
        is_line = kind.startswith(("chart-line", "chart-diagonal", "chart-threshold"))
        sample = line(x, top + 10, x + 12, top + 10, kind) if is_line else rect(x, top + 5, 12, 10, kind, 2)
        parts.append(sample + text(x + 17, top + 14, said, kind="is-muted"))
        x += width + 12
    return "".join(parts), top + 20


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def rect(x: float, y: float, width: float, height: float, kind: str, radius: float | None = None) -> str:
    """Return a rectangle; a negative size counts as 0."""
    return element("rect", x=x, y=y, width=max(width, 0), height=max(height, 0), class_=kind, rx=radius)


def dot(x: float, y: float, radius: float, kind: str = "chart-dot") -> str:
    """Return a circle."""
    return element("circle", cx=x, cy=y, r=radius, class_=kind)


def path(points: Iterable[tuple[float, float]], kind: str, *, is_closed: bool = False) -> str:
    """Return straight lines through points."""
    course = "L".join(f"{_value(x)} {_value(y)}" for x, y in points)
    return element("path", d=f"M{course}{'Z' if is_closed else ''}", class_=kind)


def mark(content: str, said: str, *, href: str | None = None) -> str:
    """Return a part of a drawing that shows its figures when it is pointed at; with `href`, a link."""
    title = element("title", escape(said))
    if href is None:
        return element("g", title, content)
    label = one_line(said, _TITLE_CELLS)
    return element("a", title, content, href=href, class_="chart-mark", aria_label=label)


def hit_area(x: float, y: float, width: float, height: float) -> str:
    """Return an invisible rectangle that makes a small mark easier to hit."""
    return rect(x, y, width, height, "chart-hit")


def across(
    scale: AxisScale, y: float, top: float, title: str, say: Callable[[float], str], most: int = 6
) -> str:
    """Return a horizontal axis at height `y` with grid lines up to `top` and its title below; 32 pixels high."""
    parts = [line(scale.start, y, scale.end, y, "chart-axis")]
    for value in scale.ticks(most):
        place = scale.at(value)
        anchor = "end" if place > WIDTH - 20 else "start" if place < 12 else "middle"  # noqa: PLR2004 - half a figure
        parts.append(line(place, top, place, y, "chart-grid"))
        parts.append(text(place, y + 14, say(value), kind="is-muted", anchor=anchor))
    middle = (scale.start + scale.end) / 2
    parts.append(text(middle, y + 28, title, kind="is-muted", anchor="middle", room=scale.end - scale.start))
    return "".join(parts)


def upwards(
    scale: AxisScale, x: float, right: float, title: str, say: Callable[[float], str], most: int = 6
) -> str:
    """Return a vertical axis at `x` with grid lines up to `right` and its title above, 14 pixels above its end."""
    parts = [text(4, scale.end - 10, title, kind="is-muted", room=right)]
    for value in scale.ticks(most):
        place = scale.at(value)
        parts.append(line(x, place, right, place, "chart-grid"))
        parts.append(text(x - 5, place + 4, say(value), kind="is-muted", anchor="end"))
    return "".join([*parts, line(x, scale.start, x, scale.end, "chart-axis")])


def square(
    values: Iterable[float],
    below: str,
    above: str,
    say: Callable[[float], str] | None = None,
) -> tuple[AxisScale, AxisScale, str]:
    """Return the two scales of a drawing that plots one figure against another, and its axes with the diagonal.

    Args:
        values: the scores; both scales include all of them.
        below: the title of the horizontal axis.
        above: the title of the vertical axis.
        say: formats the ticks of the vertical axis, if they are not scores.
    """
    found = list(values)
    wide, high = score_scale(found, LEFT, RIGHT), score_scale(found, END, TOP)
    axes = across(wide, END, TOP, below, plain) + upwards(high, LEFT, RIGHT, above, say or plain)
    return wide, high, axes + line(LEFT, END, RIGHT, TOP, "chart-diagonal")


def counted_dot(x: float, y: float, count: int, most: int, kind: str) -> str:
    """Return a circle whose area shows how many it stands for; `most` is the number of the largest circle."""
    return dot(x, y, max(9 * math.sqrt(count / most), 2), f"chart-dot is-clear {kind}".rstrip())


def percent(share: float) -> str:
    """Return a tick of a scale of shares: `75 %`."""
    return f"{trimmed(fixed(100 * share, 2))} %"


def plain(value: float) -> str:
    """Return a tick of a scale of scores: `0.25`."""
    return trimmed(fixed(value, 3))


def signed(value: float) -> str:
    """Return a tick of a scale of differences: `+0.25`."""
    return f"+{plain(value)}" if value > _DUST else plain(value)


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return some names, each on one line: `a, b, c and 4 more`."""
    shown = ", ".join(one_line(name, 60) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def left_out(total: int, most: int, noun: str) -> str:
    """Return ` 3 further columns not drawn.`, or "" if all are drawn."""
    return f" {plural(total - most, f'further {noun}')} not drawn." if total > most else ""
