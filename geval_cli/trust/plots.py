"""Plots of a judge as SVG, without scripts: against people (score, verdicts, error by length), and of its probes."""

import html
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from geval_cli.report.sanitize import sanitize
from geval_cli.trust.agreement_records import MetricAgreement
from geval_cli.trust.probes import Finding, Verdict

_SIDE, _MARGIN = 240, 36
_BINS = 20
_LARGEST = 11.0
_SMALLEST = 1.5
_LENGTH_GROUPS = 5
_CURVE_STEPS = 100


def score_plot(item: MetricAgreement) -> str:
    """Return scores (upwards) against mean labels; the area of a dot is the number of outputs there."""
    counts = Counter((_bin(label), _bin(score)) for label, score, _ in item.points)
    most = max(counts.values(), default=1)
    dots = [
        f'<circle class="dot" fill-opacity=".6" cx="{_x(label):.1f}" cy="{_y(score):.1f}"'
        f' r="{max(_SMALLEST, _LARGEST * (count / most) ** 0.5):.1f}"><title>{count:,} outputs: label {label:.2f},'
        f" score {score:.2f}</title></circle>"
        for (label, score), count in sorted(counts.items())
    ]
    verdicts = item.verdicts
    cuts = (
        f'<line class="cut" x1="{_x(0):.1f}" x2="{_x(1):.1f}" y1="{_y(verdicts.threshold):.1f}"'
        f' y2="{_y(verdicts.threshold):.1f}"/><line class="cut" x1="{_x(verdicts.good_at):.1f}"'
        f' x2="{_x(verdicts.good_at):.1f}" y1="{_y(0):.1f}" y2="{_y(1):.1f}"/>'
    )
    diagonal = f'<line class="axis" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}"/>'
    return _svg("Score against label", "mean label", "score", diagonal + "".join(dots) + cuts)


def confusion_plot(item: MetricAgreement) -> str:
    """Return the four kinds of verdicts as squares, whose darkness is their share of the good, or of the bad."""
    counts = item.verdicts.counts
    cells = [
        (0, 1, counts.true_pass, counts.good, "good, passes"),
        (1, 1, counts.false_pass, counts.bad, "bad, passes"),
        (0, 0, counts.false_fail, counts.good, "good, fails"),
        (1, 0, counts.true_fail, counts.bad, "bad, fails"),
    ]
    drawn = []
    half = _SIDE / 2
    for column, row, count, of_all, name in cells:
        x, y = _MARGIN + column * half, _MARGIN + (1 - row) * half
        share = count / of_all if of_all else 0.0
        kind = "bad" if (column, row) in {(1, 1), (0, 0)} else "cell"
        drawn.append(
            f'<rect class="{kind}" fill-opacity="{0.08 + 0.6 * share:.2f}" x="{x}" y="{y}" width="{half - 3}"'
            f' height="{half - 3}"/><text x="{x + 8}" y="{y + 22}">{name}</text>'
            f'<text x="{x + 8}" y="{y + 42}">{count:,} of {of_all:,}</text>'
        )
    return _svg(f"Verdicts at {item.verdicts.threshold:g}", "", "", "".join(drawn), has_axes=False)


def reliability_plot(
    points: Sequence[tuple[float, float, int]], curve: Callable[[float], float], threshold: float
) -> str:
    """Return the share of good outputs (upwards) of each score, and the curve of P(pass) through them.

    The area of a dot is the number of labels; of many scores, neighbours are shown together.
    """
    groups: dict[float, list[tuple[float, float, int]]] = defaultdict(list)
    for point in points:
        groups[_bin(point[0])].append(point)
    most = max((sum(count for *_, count in group) for group in groups.values()), default=1)
    dots = []
    for score, group in sorted(groups.items()):
        count = sum(number for *_, number in group)
        share = sum(good * number for _, good, number in group) / count
        radius = max(_SMALLEST, _LARGEST * (count / most) ** 0.5)
        dots.append(
            f'<circle class="dot" fill-opacity=".6" cx="{_x(score):.1f}" cy="{_y(share):.1f}" r="{radius:.1f}">'
            f"<title>score {score:.2f}: {100 * share:.0f} % of {count:,} outputs are good</title></circle>"
        )
    steps = [place / _CURVE_STEPS for place in range(_CURVE_STEPS + 1)]
    line = " ".join(f"{_x(score):.1f},{_y(curve(score)):.1f}" for score in steps)
    cut = f'<line class="cut" x1="{_x(threshold):.1f}" x2="{_x(threshold):.1f}" y1="{_y(0)}" y2="{_y(1)}"/>'
    drawn = f'<polyline points="{line}" fill="none" stroke="currentColor"/>'
    return _svg("P(pass) by score", "score", "share of good outputs", cut + "".join(dots) + drawn)


def length_plot(item: MetricAgreement) -> str:
    """Return the mean error (score minus label) of five groups of outputs, shortest first; nothing without texts."""
    known = sorted((words, score - label) for label, score, words in item.points if words is not None)
    if len(known) < _LENGTH_GROUPS or len(known) < len(item.points):
        return ""
    groups: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for position, pair in enumerate(known):
        groups[position * _LENGTH_GROUPS // len(known)].append(pair)
    middle, width = _y(0.5), _SIDE / _LENGTH_GROUPS
    bars = []
    for number, members in groups.items():
        error = sum(value for _, value in members) / len(members)
        top, height = (
            (_y(0.5 + error / 2), abs(error) * _SIDE / 2) if error >= 0 else (middle, -error * _SIDE / 2)
        )
        x = _MARGIN + number * width
        bars.append(
            f'<rect class="{"bad" if error > 0 else "cell"}" fill-opacity=".6" x="{x + 4:.1f}" y="{top:.1f}"'
            f' width="{width - 8:.1f}" height="{height:.1f}"><title>{_span(members)} words: {error:+.3f}</title></rect>'
            f'<text x="{x + 4:.1f}" y="{_y(0) - 4:.1f}">{_span(members)}</text>'
        )
    axis = f'<line class="axis" x1="{_x(0)}" x2="{_x(1)}" y1="{middle}" y2="{middle}"/>'
    return _svg("Score minus label, by length", "words of the output", "-1 to +1", axis + "".join(bars))


_ROW, _NAMES, _WIDTH = 22, 170, 640
_BELOW = 40


def probe_plot(metric: str, findings: Sequence[Finding]) -> str:
    """Return a row for each finding: the figure with its interval, on what the bar allows; "" without a figure.

    Right of it stands the verdict. All figures share one axis, from 0 to 1 and as far beyond as they need.
    """
    shown = [item for item in findings if item.estimate.value is not None]
    if not shown:
        return ""
    reached = [item.estimate.value or 0.0 for item in shown]
    for item in shown:
        reached += [*(item.estimate.interval or ()), *(_allowed(item.bar, (0.0, 1.0)) or ())]
    low, high = min(0.0, *reached), max(1.0, *reached)
    right = _WIDTH - 70

    def place(value: float) -> float:
        return _NAMES + (min(high, max(low, value)) - low) / (high - low) * (right - _NAMES)

    rows = "".join(
        _probe_row(item, 40 + number * _ROW, place, (low, high), right) for number, item in enumerate(shown)
    )
    bottom = 40 + len(shown) * _ROW
    ticks = "".join(
        f'<text x="{place(tick):.1f}" y="{bottom + 14}" text-anchor="middle">{tick:g}</text>'
        f'<line class="axis" x1="{place(tick):.1f}" x2="{place(tick):.1f}" y1="28" y2="{bottom}"/>'
        for tick in (-1.0, -0.5, 0.0, 0.5, 1.0)
        if low <= tick <= high
    )
    title = html.escape(sanitize(f"Probes of {metric or 'all metrics'}"))
    return (
        f'<svg class="wide" viewBox="0 0 {_WIDTH} {bottom + _BELOW - 16}" role="img" aria-label="{title}">'
        f'<text x="8" y="18" font-weight="bold">{title}</text>{ticks}{rows}</svg>'
    )


def _probe_row(
    item: Finding, top: float, place: Callable[[float], float], axis: tuple[float, float], right: float
) -> str:
    value, interval = item.estimate.value or 0.0, item.estimate.interval
    allowed = _allowed(item.bar, axis)
    middle = top + _ROW / 2
    kind = {Verdict.FAILS: "bad", Verdict.HOLDS: "dot"}.get(item.verdict, "open")
    name = html.escape(sanitize(f"{item.probe}, {item.figure}"))
    said = html.escape(f"{item.probe}, {item.figure}: {value:.2f}, must be {item.bar}")
    parts = [f'<text x="8" y="{middle + 4:.1f}">{name}</text>']
    if allowed is not None:
        start, end = place(allowed[0]), place(allowed[1])
        width = max(2.0, end - start)
        parts.append(
            f'<rect class="cell" fill-opacity=".15" x="{start:.1f}" y="{top + 2:.1f}" width="{width:.1f}"'
            f' height="{_ROW - 4}"/>'
        )
    if interval is not None:
        parts.append(
            f'<line stroke="currentColor" x1="{place(interval[0]):.1f}" x2="{place(interval[1]):.1f}"'
            f' y1="{middle:.1f}" y2="{middle:.1f}"/>'
        )
    parts.append(
        f'<circle class="{kind}" cx="{place(value):.1f}" cy="{middle:.1f}" r="4"><title>{said}</title></circle>'
        f'<text x="{right + 12}" y="{middle + 4:.1f}">{item.verdict.value}</text>'
    )
    return "".join(parts)


def _allowed(bar: str, axis: tuple[float, float]) -> tuple[float, float] | None:
    """Return where on the axis a figure is allowed to lie, by its bar: `>= 0.8`, `<= 0.1`, `= 1`, `+-0.05`."""
    sign = bar.rstrip("0123456789.").strip()
    limit = float(bar.removeprefix(sign).strip() or "nan")
    return {
        ">=": (limit, axis[1]),
        "<=": (axis[0], limit),
        "=": (limit, limit),
        "+-": (-limit, limit),
    }.get(sign)


def _span(members: Sequence[tuple[int, float]]) -> str:
    return f"{members[0][0]}-{members[-1][0]}"


def _bin(value: float) -> float:
    return round(value * _BINS) / _BINS


def _x(value: float) -> float:
    return _MARGIN + value * _SIDE


def _y(value: float) -> float:
    return _MARGIN + (1 - value) * _SIDE


def _svg(title: str, across: str, upwards: str, content: str, *, has_axes: bool = True) -> str:
    whole = _SIDE + 2 * _MARGIN
    axes = (
        f'<line class="axis" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(0)}"/>'
        f'<line class="axis" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(0)}" y2="{_y(1)}"/>'
    )
    names = (
        f'<text x="{_x(0.5)}" y="{whole - 8}" text-anchor="middle">{across}</text>'
        f'<text x="12" y="{_y(0.5)}" text-anchor="middle" transform="rotate(-90 12 {_y(0.5)})">{upwards}</text>'
    )
    return (
        f'<svg viewBox="0 0 {whole} {whole}" role="img" aria-label="{title}">'
        f'<text x="{_MARGIN}" y="20" font-weight="bold">{title}</text>{axes if has_axes else ""}{content}{names}</svg>'
    )
