"""Charts of a judge's scores against human labels, and of probes. Pure."""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from geval_cli.extras.html import drawing as svg
from geval_cli.extras.html.charts import DUST
from geval_cli.extras.html.drawing import AxisScale, Chart, FigureTable, Links, MarkFilter, NamedRow
from geval_cli.extras.trust.labels import GOOD_AT, LabelledOutput
from geval_cli.extras.trust.probes import Finding, ProbeVerdict
from geval_cli.extras.trust.statistics.plain import chance_at, rising_blocks
from geval_cli.judge.estimate import passes
from geval_cli.numbers import fixed, format_score, format_share, plural
from geval_cli.report.sanitize import one_line

if TYPE_CHECKING:  # the module needs numpy, which charts of a run must not require
    from geval_cli.extras.trust.statistics.agreement import Confusion

_BINS = 20
_CURVE_STEPS = 100
_CURVE_FROM = 20
"""Fewest labelled outputs for which a curve is drawn; with fewer it would mostly fit noise."""


def score_against_label(
    name: str,
    metric: str,
    points: Sequence[LabelledOutput],
    *,
    threshold: float | None = None,
    good_at: float = GOOD_AT,
    links: Links | None = None,
) -> Chart:
    """Return a chart of scores (vertical) against labels; on the diagonal the judge agrees with the labels.

    Args:
        name: of the drawing.
        metric: the one that was rated and labelled.
        points: outputs that have both a score and a label.
        threshold: scores of at least this pass.
        good_at: outputs with a label of at least this are good.
        links: addresses of the outputs behind a dot.
    """
    title = f"Judge and human labels: {one_line(metric, svg.NAME_WIDTH)}"
    if not points:
        return Chart(name, title, "No output has both a label and a score.")
    counts = Counter((_bin(point.label), _bin(point.score)) for point in points)
    differing = Counter((_bin(point.label), _bin(point.score)) for point in points if point.differs(good_at))
    shift = sum(point.score - point.label for point in points) / len(points)
    said = f"{plural(len(points), 'labelled output')}; the judge's scores are {_shift_text(shift)}."
    if differing:
        said += (
            f" Red: the judge's verdict differs from the human one ({plural(differing.total(), 'output')})."
        )
    wide, high, axes = svg.square((), "the mean human label", "judge's score; dot: how many outputs")
    cuts = []
    kinds = [("chart-diagonal", "the judge agrees with the labels")]
    if threshold is not None and 0 <= threshold <= 1:
        cuts.append(svg.line(svg.LEFT, high.at(threshold), svg.RIGHT, high.at(threshold), "chart-threshold"))
        kinds.append(("chart-threshold", f"horizontal: the judge passes from {format_score(threshold)}"))
    cuts.append(svg.line(wide.at(good_at), svg.END, wide.at(good_at), svg.TOP, "chart-threshold"))
    kinds.append(("chart-threshold", f"vertical: humans pass from {format_score(good_at)}"))
    most = max(counts.values())
    dots = []
    for (label, score), count in sorted(counts.items()):
        apart = differing[label, score]
        spot = svg.counted_dot(wide.at(label), high.at(score), count, most, "is-worse" if apart else "")
        said_of = f"{plural(count, 'output')}: label {format_score(label)}, score {format_score(score)}"
        said_of += f"; verdicts differ on {apart:,}" if apart else ""
        dots.append(svg.mark(spot, said_of, href=_href(links, metric, score, label)))
    rows = tuple(
        (format_score(label), format_score(score), f"{count:,}", f"{differing[label, score]:,}")
        for (label, score), count in sorted(counts.items())
    )
    figures = FigureTable(("label", "score", "outputs", "verdicts differ"), rows)
    keys, end = svg.legend(kinds, svg.END + 36)
    return Chart(name, title, said, figures, end, [axes, *cuts, *dots, keys])


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
    """Return a chart of the share of good outputs (vertical) by score, with the curve fitted to them.

    Args:
        name: of the drawing.
        metric: the one that was rated and labelled.
        points: score, share of good outputs and number of outputs; neighbouring scores are drawn as one dot.
        curve: the probability of being good at a score.
        threshold: scores of at least this pass.
        links: addresses of the outputs behind a dot.
    """
    title = f"Calibration: {one_line(metric, svg.NAME_WIDTH)}"
    if not points:
        return Chart(name, title, "No output has both a label and a score.")
    spots = _neighbours_joined(points)
    total = sum(number for *_, number in spots)
    said = f"The share of good outputs by score, of {plural(total, 'labelled output')}."
    said_above = "share of good outputs; dot: how many"
    wide, high, axes = svg.square((), "judge's score", said_above, svg.percent)
    parts = [axes]
    kinds = [("chart-diagonal", "share = score")]
    if threshold is not None and 0 <= threshold <= 1:
        parts.append(svg.line(wide.at(threshold), svg.END, wide.at(threshold), svg.TOP, "chart-threshold"))
        said += f" Threshold {format_score(threshold)}."
        kinds.append(("chart-threshold", "threshold"))
    if curve is not None:
        steps = [place / _CURVE_STEPS for place in range(_CURVE_STEPS + 1)]
        parts.append(svg.path([(wide.at(score), high.at(curve(score))) for score in steps], "chart-line"))
        kinds.append(("chart-line", "fitted curve"))
    most = max(number for *_, number in spots)
    for score, share, number in spots:
        spot = svg.counted_dot(wide.at(score), high.at(share), number, most, "")
        said_of = f"score {format_score(score)}: {format_share(share)} of {plural(number, 'output')} are good"
        parts.append(svg.mark(spot, said_of, href=_href(links, metric, score)))
    figures = FigureTable(
        ("score", "good", "outputs"),
        tuple((format_score(score), format_share(share), f"{number:,}") for score, share, number in spots),
    )
    keys, end = svg.legend(kinds, svg.END + 36)
    return Chart(name, title, said, figures, end, [*parts, keys])


def _neighbours_joined(points: Sequence[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    """Return score, share of good outputs and number of outputs for each dot."""
    groups: dict[float, list[tuple[float, int]]] = {}
    for score, good, count in points:
        groups.setdefault(_bin(score), []).append((good, count))
    spots = []
    for score, members in sorted(groups.items()):
        number = sum(count for _, count in members)
        spots.append((score, sum(good * count for good, count in members) / number, number))
    return spots


def label_charts(outputs: Mapping[str, Sequence[LabelledOutput]], links: Links) -> Iterator[Chart]:
    """Yield, for each metric with human labels, two charts that compare the judge's scores with the labels."""
    for number, (metric, points) in enumerate(list(outputs.items())[: svg.METRICS_MAX], start=1):
        thresholds = {output.threshold for output in points}
        threshold = thresholds.pop() if len(thresholds) == 1 else None
        yield score_against_label(f"people-{number}", metric, points, threshold=threshold, links=links)
        verdicts = [(point.score, passes(point.label, GOOD_AT)) for point in points]
        curve = None
        if len(points) >= _CURVE_FROM:
            curve = partial(chance_at, rising_blocks(verdicts))
        yield chance_of_good(
            f"calibration-{number}",
            metric,
            [(score, float(is_good), 1) for score, is_good in verdicts],
            curve=curve,
            threshold=threshold,
            links=links,
        )


def _href(links: Links | None, metric: str, score: float, label: float | None = None) -> str | None:
    """Return the address of the labelled outputs behind a dot; without `label`, of all those near its score."""
    if links is None:
        return None
    low, high = _ends(score)
    label_low, label_high = (0.0, None) if label is None else _ends(label)
    return links(MarkFilter(None, metric, low, high, label_low=label_low, label_high=label_high))


def _ends(centre: float) -> tuple[float | None, float | None]:
    """Return the bounds of the values drawn at `centre`, the upper one exclusive; None where there is no bound."""
    low, high = (round(centre + half / _BINS, 9) for half in (-0.5, 0.5))
    return (low if low > 0 else None), (high if high < 1 else None)


def _bin(value: float) -> float:
    """Return the nearest position at which dots are drawn; a value halfway between two goes to the higher one."""
    return math.floor((min(max(value, 0.0), 1.0) + DUST) * _BINS + 0.5) / _BINS


_LENGTH_GROUPS = 5


def agreement_charts(
    metric: str,
    points: Sequence[LabelledOutput],
    counts: "Confusion",
    *,
    threshold: float | None,
    good_at: float,
) -> list[Chart]:
    """Return the charts for a metric with human labels; `threshold` is None if none reproduces the verdicts."""
    name = _name("labels", metric)
    scores = score_against_label(name, metric, points, threshold=threshold, good_at=good_at)
    lengths = _length_chart(metric, points)
    return [scores, _verdict_chart(metric, counts, threshold), *([lengths] if lengths else [])]


def calibration_chart(
    metric: str, points: Sequence[tuple[float, float, int]], curve: Callable[[float], float], threshold: float
) -> Chart:
    """Return a chart of the share of good outputs by score, with the curve of P(pass)."""
    return chance_of_good(_name("calibration", metric), metric, points, curve=curve, threshold=threshold)


def _name(kind: str, metric: str) -> str:
    """Return a name for a metric's drawing; hashed, as a metric's name may be any text."""
    return f"{kind}-{hashlib.blake2b(metric.encode(errors='surrogatepass'), digest_size=4).hexdigest()}"


def _verdict_chart(metric: str, counts: "Confusion", limit: float | None) -> Chart:
    """Return the confusion matrix as four squares, shaded by their share of the good or of the bad outputs."""
    cells = (
        ("good, passes", counts.true_pass, counts.good, True),
        ("bad, passes", counts.false_pass, counts.bad, False),
        ("good, fails", counts.false_fail, counts.good, False),
        ("bad, fails", counts.true_fail, counts.bad, True),
    )
    side = (svg.WIDTH - 24) / 2
    drawn = []
    for place, (said, count, total, is_right) in enumerate(cells):
        x = 8 + (place % 2) * (side + 8)
        y = 8 + (place // 2) * 108
        share = count / total if total else 0.0
        kind = "chart-bar" if is_right else "chart-bar is-failed"
        opacity = f"{0.08 + 0.5 * share:.2f}"
        drawn.append(
            svg.element("rect", x=x, y=y, width=side, height=100, rx=6, class_=kind, fill_opacity=opacity)
        )
        drawn.append(
            svg.text(x + 10, y + 22, said)
            + svg.text(x + 10, y + 42, f"{count:,} of {total:,}", kind="is-strong")
        )
    right = counts.true_pass + counts.true_fail
    outputs = plural(counts.good + counts.bad, "output")
    at, said = ("", "The") if limit is None else (f" at {limit:g}", f"At the threshold {limit:g} the")
    said += f" judge is right about {right:,} of {outputs}."
    figures = FigureTable(
        ("verdict", "outputs", "of"),
        tuple((name, f"{count:,}", f"{total:,}") for name, count, total, _ in cells),
    )
    title = f"Verdicts{at}: {one_line(metric, svg.NAME_WIDTH)}"
    name = _name("verdicts", metric)
    return Chart(name, title, said, figures, 224, [*drawn])


def _length_chart(metric: str, points: Sequence[LabelledOutput]) -> Chart | None:
    """Return the mean error (score minus label) of five groups of outputs by length, shortest first.

    None if there are fewer than five outputs, or if the text of one is unknown.
    """
    known = sorted((one.words, one.score - one.label) for one in points if one.words is not None)
    if len(known) < _LENGTH_GROUPS or len(known) < len(points):
        return None
    groups: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for position, pair in enumerate(known):
        groups[position * _LENGTH_GROUPS // len(known)].append(pair)
    errors = [
        (f"{members[0][0]}-{members[-1][0]}", sum(error for _, error in members) / len(members))
        for members in groups.values()
    ]
    high = AxisScale(-1.0, 1.0, 190, 22)
    width = (svg.RIGHT - svg.LEFT) / _LENGTH_GROUPS
    bars = []
    for place, (words, error) in enumerate(errors):
        x = svg.LEFT + place * width
        top, bottom = sorted((high.at(0), high.at(error)))
        bar = svg.rect(
            x + 6, top, width - 12, max(bottom - top, 1), "chart-bar is-failed" if error > 0 else "chart-bar"
        )
        bars.append(svg.mark(bar + svg.hit_area(x, 22, width, 168), f"{words} words: {error:+.3f}"))
        bars.append(svg.text(x + width / 2, 206, words, anchor="middle", kind="is-muted"))
    foot = svg.text((svg.LEFT + svg.RIGHT) / 2, 222, "words of the output", anchor="middle", kind="is-muted")
    axes = svg.upwards(high, svg.LEFT, svg.RIGHT, "score minus label", svg.signed, 5) + svg.line(
        svg.LEFT, high.at(0), svg.RIGHT, high.at(0), "chart-axis"
    )
    title = f"Error by length: {one_line(metric, svg.NAME_WIDTH)}"
    name = _name("lengths", metric)
    ends = f"{errors[0][1]:+.2f} of the shortest outputs to {errors[-1][1]:+.2f} of the longest"
    said = f"Score minus label, from {ends}."
    figures = FigureTable(
        ("words", "score minus label"), tuple((words, f"{error:+.3f}") for words, error in errors)
    )
    return Chart(name, title, said, figures, 230, [axes, *bars, foot])


def probe_chart(metric: str, findings: Sequence[Finding]) -> Chart | None:
    """Return a chart of findings, each figure and interval against its allowed range; None without figures.

    All figures share one axis, from 0 to 1 and as far beyond as they need.
    """
    shown = [item for item in findings if item.estimate.value is not None]
    if not shown:
        return None
    reached = [1.0]
    for item in shown:
        reached += [item.estimate.value or 0.0, *(item.estimate.interval or ())]
        reached += _allowed(item.bar, (0.0, 1.0)) or ()
    scale = svg.round_scale(reached, 20, svg.WIDTH - 20)
    places, floor = svg.named_rows((_probe_cells(item)[0] for item in shown), 8, svg.ROW, svg.WIDTH - 100)
    rows = [_probe_row(item, place, scale) for place, item in zip(places, shown, strict=True)]
    axis = svg.across(scale, floor, 8, "grey: allowed range; line: interval", svg.plain)
    title = f"Probes of {one_line(metric, svg.NAME_WIDTH) or 'all metrics'}"
    name = _name("probes", metric)
    failing = sum(item.verdict is ProbeVerdict.FAILS for item in shown)
    said = f"Outside the bar: {failing:,} of {plural(len(shown), 'figure')}."
    figures = FigureTable(("figure", "value", "bar", "verdict"), tuple(map(_probe_cells, shown)))
    return Chart(name, title, said, figures, floor + svg.LAST, [axis, *rows])


def _probe_cells(item: Finding) -> tuple[str, str, str, str]:
    return f"{item.probe}, {item.figure}", fixed(item.estimate.value or 0.0, 2), item.bar, item.verdict.value


def _probe_row(item: Finding, place: NamedRow, scale: AxisScale) -> str:
    value = item.estimate.value or 0.0
    interval = item.estimate.interval
    allowed = _allowed(item.bar, (scale.low, scale.high))
    middle = place.last_line + 24
    kind = {ProbeVerdict.FAILS: "chart-dot is-worse", ProbeVerdict.HOLDS: "chart-dot"}.get(
        item.verdict, "chart-dot is-hollow"
    )
    name, figure, bar, verdict = _probe_cells(item)
    parts = []
    if allowed is not None:
        start, end = map(scale.at, allowed)
        parts.append(svg.rect(start, middle - 7, max(end - start, 2), 14, "chart-allowed", 2))
    if interval is not None:
        parts.append(svg.line(scale.at(interval[0]), middle, scale.at(interval[1]), middle, "chart-whisker"))
    parts.append(svg.dot(scale.at(value), middle, 5, kind))
    words = place.name(down=12) + svg.text(svg.RIGHT, place.top + 12, verdict, anchor="end", kind="is-strong")
    return words + svg.mark("".join(parts), f"{name}: {figure}, must be {bar}, {verdict}")


def _allowed(bar: str, axis: tuple[float, float]) -> tuple[float, float] | None:
    """Return the range that a bar allows on the axis, where a bar is `>= 0.8`, `<= 0.1`, `= 1` or `+-0.05`."""
    sign = bar.rstrip("0123456789.").strip()
    limit = float(bar.removeprefix(sign).strip() or "nan")
    return {
        ">=": (limit, axis[1]),
        "<=": (axis[0], limit),
        "=": (limit, limit),
        "+-": (-limit, limit),
    }.get(sign)
