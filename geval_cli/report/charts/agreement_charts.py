"""The drawings of a judge held against people: score and label, verdicts, chance of being good. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec import Struct

from geval_cli.extras.trust.labels.sheet import MetricLabels
from geval_cli.judge.scoring import passes
from geval_cli.numbers import format_score
from geval_cli.report.charts.column_charts import METRICS_MAX
from geval_cli.report.charts.drawing import (
    LEFT,
    RIGHT,
    Chart,
    Choice,
    FigureTable,
    Links,
    across,
    dot,
    drawing,
    legend,
    line,
    mark,
    path,
    percent,
    plain,
    unit_scale,
    upwards,
)
from geval_cli.report.charts.figures import DUST
from geval_cli.report.numbers import format_share, plural
from geval_cli.report.sanitize import one_line
from geval_cli.statistics.calibration import chance_at, rising_blocks

_BINS = 20
_LARGEST, _SMALLEST = 9.0, 2.0
_NAME = 160
_TOP, _END = 22.0, 322.0
_CURVE_STEPS = 100
_CURVE_FROM = 20
"""Labelled outputs from which on a curve is drawn through them; through fewer it would follow chance."""


class LabelledScore(Struct, frozen=True):
    """People's mean label of one output and the judge's score of it, both 0..1; `differs`: their verdicts do."""

    label: float
    score: float
    differs: bool = False


def score_against_label(
    name: str,
    metric: str,
    points: Sequence[LabelledScore],
    *,
    threshold: float | None = None,
    good_at: float | None = None,
    links: Links | None = None,
) -> Chart:
    """Return scores (upwards) against labels: on the diagonal the judge says what people say.

    Args:
        name: of the drawing.
        metric: which was rated and labelled.
        points: of each output that has both.
        threshold: scores from here on pass.
        good_at: labels from here on are good.
        links: addresses of the outputs of a dot.
    """
    title = f"Judge and people: {one_line(metric, _NAME)}"
    if not points:
        return Chart(name, title, "No output has both a label and a score.")
    counts = Counter((_bin(point.label), _bin(point.score)) for point in points)
    differing = Counter((_bin(point.label), _bin(point.score)) for point in points if point.differs)
    shift = sum(point.score - point.label for point in points) / len(points)
    said = f"{plural(len(points), 'labelled output')}; the judge's scores are {_shift_text(shift)}."
    if differing:
        said += f" Red: the judge's verdict is another than people's ({plural(differing.total(), 'output')})."
    wide, high = unit_scale(LEFT, RIGHT), unit_scale(_END, _TOP)
    axes = across(wide, _END, _TOP, "people's mean label", plain)
    axes += upwards(high, LEFT, RIGHT, "judge's score; dot: how many outputs", plain)
    cuts = [line(LEFT, _END, RIGHT, _TOP, "chart-diagonal")]
    kinds = [("chart-diagonal", "the judge says what people say")]
    if threshold is not None and 0 <= threshold <= 1:
        cuts.append(line(LEFT, high.at(threshold), RIGHT, high.at(threshold), "chart-threshold"))
        kinds.append(("chart-threshold", f"across: passes from {format_score(threshold)}"))
    if good_at is not None:
        cuts.append(line(wide.at(good_at), _END, wide.at(good_at), _TOP, "chart-threshold"))
        kinds.append(("chart-threshold", f"upright: good from {format_score(good_at)}"))
    most = max(counts.values())
    dots = []
    for (label, score), count in sorted(counts.items()):
        apart = differing[label, score]
        kind = "chart-dot is-clear is-worse" if apart else "chart-dot is-clear"
        spot = dot(wide.at(label), high.at(score), _radius(count, most), kind)
        said_of = f"{plural(count, 'output')}: label {format_score(label)}, score {format_score(score)}"
        said_of += f"; verdicts differ on {apart:,}" if apart else ""
        dots.append(mark(spot, said_of, href=_href(links, metric, score, label)))
    rows = tuple(
        (format_score(label), format_score(score), f"{count:,}", f"{differing[label, score]:,}")
        for (label, score), count in sorted(counts.items())
    )
    figures = FigureTable(("label", "score", "outputs", "verdicts differ"), rows)
    keys, end = legend(kinds, _END + 36)
    return Chart(name, title, said, drawing(name, title, said, end, axes, *cuts, *dots, keys), figures)


def _shift_text(shift: float) -> str:
    if abs(shift) < 0.005:  # noqa: PLR2004 - what two decimals show as no difference
        return "neither higher nor lower on average"
    return f"{format_score(abs(shift))} {'higher' if shift > 0 else 'lower'} on average"


def chance_of_good(
    name: str,
    metric: str,
    points: Sequence[tuple[float, float, int]],
    *,
    curve: Callable[[float], float] | None = None,
    threshold: float | None = None,
    links: Links | None = None,
) -> Chart:
    """Return the share of good outputs (upwards) of each score, and the curve that was fitted to them.

    Args:
        name: of the drawing.
        metric: which was rated and labelled.
        points: score, share of good outputs and number of outputs; neighbours are drawn together.
        curve: the chance of being good at a score.
        threshold: scores from here on pass.
        links: addresses of the outputs of a dot.
    """
    title = f"Calibration: {one_line(metric, _NAME)}"
    if not points:
        return Chart(name, title, "No output has both a label and a score.")
    spots = _neighbours_joined(points)
    total = sum(number for *_, number in spots)
    said = f"The share of good outputs by score, of {plural(total, 'labelled output')}."
    wide, high = unit_scale(LEFT, RIGHT), unit_scale(_END, _TOP)
    axes = across(wide, _END, _TOP, "judge's score", plain)
    axes += upwards(high, LEFT, RIGHT, "share of good outputs; dot: how many", percent)
    parts = [axes, line(LEFT, _END, RIGHT, _TOP, "chart-diagonal")]
    kinds = [("chart-diagonal", "share = score")]
    if threshold is not None and 0 <= threshold <= 1:
        parts.append(line(wide.at(threshold), _END, wide.at(threshold), _TOP, "chart-threshold"))
        said += f" Threshold {format_score(threshold)}."
        kinds.append(("chart-threshold", "threshold"))
    if curve is not None:
        steps = [place / _CURVE_STEPS for place in range(_CURVE_STEPS + 1)]
        parts.append(path([(wide.at(score), high.at(curve(score))) for score in steps], "chart-line"))
        kinds.append(("chart-line", "fitted curve"))
    most = max(number for *_, number in spots)
    for score, share, number in spots:
        spot = dot(wide.at(score), high.at(share), _radius(number, most), "chart-dot is-clear")
        said_of = f"score {format_score(score)}: {format_share(share)} of {plural(number, 'output')} are good"
        parts.append(mark(spot, said_of, href=_href(links, metric, score)))
    figures = FigureTable(
        ("score", "good", "outputs"),
        tuple((format_score(score), format_share(share), f"{number:,}") for score, share, number in spots),
    )
    keys, end = legend(kinds, _END + 36)
    return Chart(name, title, said, drawing(name, title, said, end, *parts, keys), figures)


def _neighbours_joined(points: Sequence[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    """Return score, share of good outputs and their number for each place where a dot is drawn."""
    groups: dict[float, list[tuple[float, int]]] = {}
    for score, good, count in points:
        groups.setdefault(_bin(score), []).append((good, count))
    spots = []
    for score, members in sorted(groups.items()):
        number = sum(count for _, count in members)
        spots.append((score, sum(good * count for good, count in members) / number, number))
    return spots


def label_charts(labels: Sequence[MetricLabels], links: Links) -> Iterator[Chart]:
    """Yield for each metric that people labelled how the judge's scores compare with their labels."""
    for number, item in enumerate(labels[:METRICS_MAX], start=1):
        points = [
            LabelledScore(
                output.label,
                output.score,
                differs=output.passed is not None and output.passed != passes(output.label, item.good_at),
            )
            for output in item.outputs
        ]
        thresholds = {output.threshold for output in item.outputs}
        threshold = thresholds.pop() if len(thresholds) == 1 else None
        yield score_against_label(
            f"people-{number}", item.metric, points, threshold=threshold, good_at=item.good_at, links=links
        )
        verdicts = [(point.score, point.label >= item.good_at) for point in points]
        curve = None
        if len(points) >= _CURVE_FROM:
            curve = partial(chance_at, rising_blocks(verdicts))
        yield chance_of_good(
            f"calibration-{number}",
            item.metric,
            [(score, float(is_good), 1) for score, is_good in verdicts],
            curve=curve,
            threshold=threshold,
            links=links,
        )


def _href(links: Links | None, metric: str, score: float, label: float | None = None) -> str | None:
    """Return the address of the labelled outputs of one dot, or of all labels at its score."""
    if links is None:
        return None
    low, high = _ends(score)
    label_low, label_high = (0.0, None) if label is None else _ends(label)
    return links(Choice(None, metric, low, high, label_low=label_low, label_high=label_high))


def _ends(centre: float) -> tuple[float | None, float | None]:
    """Return the values that are drawn at `centre`: from the first on, below the second; None without an end."""
    low, high = (round(centre + half / _BINS, 9) for half in (-0.5, 0.5))
    return (low if low > 0 else None), (high if high < 1 else None)


def _radius(count: int, most: int) -> float:
    return max(_LARGEST * math.sqrt(count / most), _SMALLEST)


def _bin(value: float) -> float:
    """Return the nearest of the places where dots are drawn; what lies between two goes to the higher one."""
    return math.floor((min(max(value, 0.0), 1.0) + DUST) * _BINS + 0.5) / _BINS
