"""Drawings of a judge against people and of probes: score against label, verdicts, error by length, figures on bars."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence

from geval_cli.extras.trust.agreement_records import MetricAgreement
from geval_cli.extras.trust.probes import Finding, Verdict
from geval_cli.numbers import fixed
from geval_cli.report.charts.agreement_charts import LabelledScore, chance_of_good, score_against_label
from geval_cli.report.charts.drawing import (
    LEFT,
    RIGHT,
    WIDTH,
    Chart,
    FigureTable,
    NamedRow,
    Scale,
    across,
    dot,
    drawing,
    element,
    hit_area,
    line,
    mark,
    named_rows,
    plain,
    rect,
    round_scale,
    signed,
    text,
    upwards,
)
from geval_cli.report.numbers import plural
from geval_cli.report.sanitize import one_line

_NAME = 160
_LENGTH_GROUPS = 5
_ROW, _LAST = 34.0, 40.0


def agreement_charts(item: MetricAgreement) -> list[Chart]:
    """Return what is drawn of a metric that people labelled."""
    verdicts = item.verdicts
    points = [LabelledScore(label, score, differs) for label, score, _, differs in item.points]
    scores = score_against_label(
        _name("labels", item.metric),
        item.metric,
        points,
        threshold=verdicts.threshold,
        good_at=verdicts.good_at,
    )
    lengths = _length_chart(item)
    return [scores, _verdict_chart(item), *([lengths] if lengths else [])]


def calibration_chart(
    metric: str, points: Sequence[tuple[float, float, int]], curve: Callable[[float], float], threshold: float
) -> Chart:
    """Return the share of good outputs of each score, and the curve of P(pass) through them."""
    return chance_of_good(_name("calibration", metric), metric, points, curve=curve, threshold=threshold)


def _name(kind: str, metric: str) -> str:
    """Return a name for the drawing of a metric, which may be any text."""
    return f"{kind}-{hashlib.blake2b(metric.encode(errors='surrogatepass'), digest_size=4).hexdigest()}"


def _verdict_chart(item: MetricAgreement) -> Chart:
    """Return the four kinds of verdicts as squares, whose darkness is their share of the good, or of the bad."""
    counts = item.verdicts.counts
    cells = (
        ("good, passes", counts.true_pass, counts.good, True),
        ("bad, passes", counts.false_pass, counts.bad, False),
        ("good, fails", counts.false_fail, counts.good, False),
        ("bad, fails", counts.true_fail, counts.bad, True),
    )
    side = (WIDTH - 24) / 2
    drawn = []
    for place, (said, count, total, is_right) in enumerate(cells):
        x, y = 8 + (place % 2) * (side + 8), 8 + (place // 2) * 108
        share = count / total if total else 0.0
        kind = "chart-bar" if is_right else "chart-failed"
        opacity = f"{0.08 + 0.5 * share:.2f}"
        drawn.append(
            element("rect", x=x, y=y, width=side, height=100, rx=6, class_=kind, fill_opacity=opacity)
        )
        drawn.append(
            text(x + 10, y + 22, said) + text(x + 10, y + 42, f"{count:,} of {total:,}", kind="is-strong")
        )
    threshold = f"{item.verdicts.threshold:g}"
    right = counts.true_pass + counts.true_fail
    outputs = plural(counts.good + counts.bad, "output")
    said = f"At the threshold {threshold} the judge is right about {right:,} of {outputs}."
    figures = FigureTable(
        ("verdict", "outputs", "of"),
        tuple((name, f"{count:,}", f"{total:,}") for name, count, total, _ in cells),
    )
    title, name = f"Verdicts at {threshold}: {one_line(item.metric, _NAME)}", _name("verdicts", item.metric)
    return Chart(name, title, said, drawing(name, title, said, 224, *drawn), figures)


def _length_chart(item: MetricAgreement) -> Chart | None:
    """Return the mean error (score minus label) of five groups of outputs, shortest first; None without texts."""
    known = sorted((words, score - label) for label, score, words, _ in item.points if words is not None)
    if len(known) < _LENGTH_GROUPS or len(known) < len(item.points):
        return None
    groups: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for position, pair in enumerate(known):
        groups[position * _LENGTH_GROUPS // len(known)].append(pair)
    errors = [
        (_span(members), sum(error for _, error in members) / len(members)) for members in groups.values()
    ]
    high, width = Scale(-1.0, 1.0, 190, 22), (RIGHT - LEFT) / _LENGTH_GROUPS
    bars = []
    for place, (words, error) in enumerate(errors):
        x = LEFT + place * width
        top, bottom = sorted((high.at(0), high.at(error)))
        bar = rect(x + 6, top, width - 12, max(bottom - top, 1), "chart-failed" if error > 0 else "chart-bar")
        bars.append(mark(bar + hit_area(x, 22, width, 168), f"{words} words: {error:+.3f}"))
        bars.append(text(x + width / 2, 206, words, anchor="middle", kind="is-muted"))
    foot = text((LEFT + RIGHT) / 2, 222, "words of the output", anchor="middle", kind="is-muted")
    axes = upwards(high, LEFT, RIGHT, "score minus label", signed, 5) + line(
        LEFT, high.at(0), RIGHT, high.at(0), "chart-axis"
    )
    title, name = f"Error by length: {one_line(item.metric, _NAME)}", _name("lengths", item.metric)
    ends = f"{errors[0][1]:+.2f} of the shortest outputs to {errors[-1][1]:+.2f} of the longest"
    said = f"Score minus label, from {ends}."
    figures = FigureTable(
        ("words", "score minus label"), tuple((words, f"{error:+.3f}") for words, error in errors)
    )
    return Chart(name, title, said, drawing(name, title, said, 230, axes, *bars, foot), figures)


def _span(members: Sequence[tuple[int, float]]) -> str:
    return f"{members[0][0]}-{members[-1][0]}"


def probe_chart(metric: str, findings: Sequence[Finding]) -> Chart | None:
    """Return a row for each finding: the figure with its interval, on what the bar allows; None without a figure.

    All figures share one axis, from 0 to 1 and as far beyond as they need.
    """
    shown = [item for item in findings if item.estimate.value is not None]
    if not shown:
        return None
    reached = [1.0]
    for item in shown:
        reached += [item.estimate.value or 0.0, *(item.estimate.interval or ())]
        reached += _allowed(item.bar, (0.0, 1.0)) or ()
    scale = round_scale(reached, 20, WIDTH - 20)
    places, floor = named_rows((_probe_cells(item)[0] for item in shown), 8, _ROW, WIDTH - 100)
    rows = [_probe_row(item, place, scale) for place, item in zip(places, shown, strict=True)]
    axis = across(scale, floor, 8, "grey: what the bar allows; line: interval", plain)
    title, name = f"Probes of {one_line(metric, _NAME) or 'all metrics'}", _name("probes", metric)
    failing = sum(item.verdict is Verdict.FAILS for item in shown)
    said = f"Outside of what the bar allows: {failing:,} of {plural(len(shown), 'figure')}."
    figures = FigureTable(("figure", "value", "bar", "verdict"), tuple(map(_probe_cells, shown)))
    return Chart(name, title, said, drawing(name, title, said, floor + _LAST, axis, *rows), figures)


def _probe_cells(item: Finding) -> tuple[str, str, str, str]:
    return f"{item.probe}, {item.figure}", fixed(item.estimate.value or 0.0, 2), item.bar, item.verdict.value


def _probe_row(item: Finding, place: NamedRow, scale: Scale) -> str:
    value, interval = item.estimate.value or 0.0, item.estimate.interval
    allowed, middle = _allowed(item.bar, (scale.low, scale.high)), place.last_line + 24
    kind = {Verdict.FAILS: "chart-dot is-worse", Verdict.HOLDS: "chart-dot"}.get(
        item.verdict, "chart-dot is-hollow"
    )
    name, figure, bar, verdict = _probe_cells(item)
    parts = []
    if allowed is not None:
        start, end = map(scale.at, allowed)
        parts.append(rect(start, middle - 7, max(end - start, 2), 14, "chart-allowed", 2))
    if interval is not None:
        parts.append(line(scale.at(interval[0]), middle, scale.at(interval[1]), middle, "chart-whisker"))
    parts.append(dot(scale.at(value), middle, 5, kind))
    words = place.name(down=12) + text(RIGHT, place.top + 12, verdict, anchor="end", kind="is-strong")
    return words + mark("".join(parts), f"{name}: {figure}, must be {bar}, {verdict}")


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
