"""Plots of a judge against people, as SVG: score against label, verdicts, and error by length. Without scripts."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from geval_cli.trust.agreement_records import MetricAgreement

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
