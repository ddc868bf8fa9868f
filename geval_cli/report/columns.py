"""The columns of a run side by side: which prompt or model is better, as far as the tests show."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from geval_cli.numbers import fixed, format_cost, format_score
from geval_cli.records import ColumnSummary, Delta, Difference, Role, Stat, Status, Usage
from geval_cli.report.console import indented, plain_table, print_hanging, print_trimmed
from geval_cli.report.numbers import (
    format_count,
    format_difference,
    format_duration,
    format_p,
    format_share,
    plural,
)
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import one_line
from geval_cli.report.verdict import STYLES, column_title, signs_of

METRICS_MAX = 6
"""Metrics that have a place in the table; all of them are among the differences, and in the JSON."""
DIFFERENCES_MAX = 30
PASS_RATE = "pass rate"
_NAME_WIDTH = 40
_DIGITS = 2
_GAP = 3
_NO_MONEY = 1e-9
"""Cells between two columns of a table."""
_WIDTH_FOR_MDE, _WIDTH_FOR_INTERVALS, _WIDTH_FOR_DIFFERENCES = 100, 70, 50
_VERDICT_STYLES = {
    "better": "green",
    "worse": STYLES[Status.FAILED],
    "undecided": "dim",
    "identical": "dim",
    "mixed": "yellow",
}


def share_text(stat: Stat) -> str:
    """`75% [47, 91]`: a share in per cent with its 95 % interval; "none" of nothing."""
    if stat.value is None:
        return "none"
    text = format_share(stat.value)
    if stat.interval is None:
        return text
    low, high = map(_bound, stat.interval)
    return f"{text} [{low}, {high}]"


def _bound(share: float) -> str:
    """Return a bound in whole per cents, as it is an estimate; 0 and 100 only where it is that."""
    text = fixed(100 * share, 0)
    return format_share(share).removesuffix("%") if text in {"0", "100"} else text


def mean_text(stat: Stat | None, *, has_interval: bool = True) -> str:
    """`0.71 [0.60, 0.82]`: a mean with its 95 % interval; "none" of nothing."""
    if stat is None or stat.value is None:
        return "none"
    text = format_score(stat.value)
    if stat.interval is None or not has_interval:
        return text
    low, high = stat.interval
    return f"{text} [{fixed(low, _DIGITS)}, {fixed(high, _DIGITS)}]"


def cost_text(column: ColumnSummary) -> str:
    """Return what the answers of a column cost when they were generated."""
    return "unknown" if column.cost_usd_generated is None else format_cost(column.cost_usd_generated)


def cost_note(columns: Sequence[ColumnSummary]) -> str:
    """Return a sentence about answers that this run did not pay for; empty where it paid for all."""
    paid, generated = (
        None if None in costs else sum(cost or 0.0 for cost in costs)
        for costs in ([item.cost_usd for item in columns], [item.cost_usd_generated for item in columns])
    )
    if generated is None or paid is None or generated - paid < _NO_MONEY:
        return ""
    in_all = f"{format_cost(generated)} in all, of which this run paid {format_cost(paid)}"
    return f"Cost and latency are as generated: {in_all}."


def duration_text(duration_ms: float | None) -> str:
    """Return a latency; empty where nothing was timed."""
    return "" if duration_ms is None else format_duration(duration_ms)


def tokens_text(column: ColumnSummary) -> str:
    """`1.2k + 310`: tokens in and out of the column's answers."""
    usage = column.usage.get(Role.GENERATION.value, Usage())
    return f"{format_count(usage.input_tokens)} + {format_count(usage.output_tokens)}"


def differences_of(column: ColumnSummary) -> Iterator[tuple[str, Difference]]:
    """Yield each row of a column's comparison with the baseline, by name: the pass rate, then the metrics."""
    found = column.vs_first
    if found is None:
        return
    if found.pass_rate is not None:
        yield PASS_RATE, found.pass_rate
    yield from found.metrics.items()


def verdict_word(column: ColumnSummary) -> str:
    """Return the verdict on a column in a word; "mixed" when it is better in one thing and worse in another."""
    if column.vs_first is None:
        return "baseline"
    verdicts = {item.verdict for _, item in differences_of(column)}
    if verdicts >= {"better", "worse"}:
        return "mixed"
    for word in ("better", "worse", "undecided", "identical"):
        if word in verdicts:
            return word
    return "one test" if verdicts else "no test in both"


def verdict_text(column: ColumnSummary) -> str:
    """`better: pass rate, tone; worse: length`: the verdict on a column, and what it is about."""
    parts = []
    for word in ("better", "worse"):
        names = [one_line(name, _NAME_WIDTH) for name, item in differences_of(column) if item.verdict == word]
        if names:
            parts.append(f"{word}: {', '.join(names)}")
    return "; ".join(parts) or verdict_word(column)


def decision_text(item: Difference) -> str:
    """`better`, or `undecided (~40 more)`: so many further tests would show a difference of this size."""
    more = more_tests(item.delta)
    if item.verdict != "undecided" or more is None:
        return item.verdict or ""
    return f"undecided (~{more:,} more)"


def more_tests(delta: Delta) -> int | None:
    """Return how many further tests would probably decide; None where that cannot be told, or they are enough."""
    if delta.needed_tests is None or delta.needed_tests <= delta.clusters:
        return None
    return _rounded(delta.needed_tests - delta.clusters)


def _rounded(count: int) -> int:
    """Two figures, as it is an estimate."""
    scale = int("1".ljust(len(str(count)) - 1, "0"))
    return -(-count // scale) * scale


class _Shape(Struct, frozen=True):
    """Which figures the table has, and how wide the names of columns may be; 0 stands for their numbers alone."""

    title: int = 60
    has_tokens: bool = True
    has_p95: bool = True
    has_intervals: bool = True
    has_reasons: bool = True
    has_counts: bool = True
    has_cost: bool = True
    has_latency: bool = True
    has_errors: bool = True
    has_metrics: bool = True


_STEPS: tuple[dict[str, bool | int], ...] = (
    {},
    {"has_tokens": False},
    {"has_p95": False},
    {"title": 36},
    {"has_intervals": False},
    {"has_reasons": False},
    {"has_counts": False},
    {"has_cost": False},
    {"has_latency": False},
    {"title": 0, "has_latency": True, "has_cost": True},
    {"has_cost": False},
    {"has_latency": False},
    {"has_errors": False},
    {"has_metrics": False},
)
"""The changes of the shape where a terminal is narrow, one after another until the table fits."""


def print_columns(report: RunReport, console: Console) -> None:
    """Print the columns side by side, then how far each differs from the baseline; nothing for a single column."""
    columns = report.summary.columns
    # One has nothing to be compared with.
    if len(columns) < 2 or not report.summary.total:  # noqa: PLR2004
        return
    signs = signs_of(console)
    titles = [column_title(column, report.columns, signs) for column in report.columns]
    shape = _Shape()
    for step in _STEPS:
        shape = replace(shape, **step)
        rows = _rows(columns, titles, shape)
        if _width(rows) <= console.width - 1:
            _print_legend(titles, shape, console)
            _print_rows(rows, console)
            break
    else:
        _print_blocks(columns, titles, console)
    if note := cost_note(columns):
        console.print(Text(f" {note}", style="dim"))
        console.print()
    _print_differences(columns, console)


def _print_legend(titles: Sequence[str], shape: _Shape, console: Console) -> None:
    """Print the names of the columns, where the table has not room for all of them."""
    if all(cell_len(title) <= shape.title for title in titles):
        return
    for number, title in enumerate(titles, start=1):
        line = Text(f" [{number}] ", style="bold")
        console.print(line.append(one_line(title, console.width - line.cell_len), style="not bold"))
    console.print()


def _rows(columns: Sequence[ColumnSummary], titles: Sequence[str], shape: _Shape) -> list[tuple[str, ...]]:
    """Return the heading and a row for each column."""
    fields = _fields(columns, shape)
    rows = [("column", *(name for name, _ in fields))]
    for number, (column, title) in enumerate(zip(columns, titles, strict=True), start=1):
        name = f"[{number}] {one_line(title, shape.title)}" if shape.title else f"[{number}]"
        rows.append((name, *(text(column) for _, text in fields)))
    return rows


_Field = tuple[str, Callable[[ColumnSummary], str]]
"""A column of the table: its heading, and its text for one column of the run."""


def _fields(columns: Sequence[ColumnSummary], shape: _Shape) -> list[_Field]:
    """Return the columns of the table; what no column of the run has, as a cost of local models, is left out."""
    has_cost = shape.has_cost and any(column.cost_usd_generated != 0 for column in columns)
    has_latency = any(column.latency_ms.median is not None for column in columns)
    has_tokens = any(usage.input_tokens for column in columns for usage in column.usage.values())
    fields: list[tuple[bool, _Field]] = [
        (shape.has_counts, ("passed", lambda item: f"{item.passed:,} of {item.passed + item.failed:,}")),
        (True, (f"{PASS_RATE} [95 %]", lambda item: share_text(item.pass_rate))),
        *((shape.has_counts, field) for field in _chances(columns)),
        *((shape.has_metrics, _metric(name, shape)) for name in metric_names(columns)),
        (shape.has_errors, ("errors", lambda item: f"{item.errored:,}")),
        (has_cost, ("cost", cost_text)),
        (shape.has_latency and has_latency, ("latency", lambda item: duration_text(item.latency_ms.median))),
        (shape.has_p95 and has_latency, ("p95", lambda item: duration_text(item.latency_ms.p95))),
        (shape.has_tokens and has_tokens, ("tokens", tokens_text)),
        (
            True,
            (f"against [{baseline_number(columns)}]", verdict_text if shape.has_reasons else verdict_word),
        ),
    ]
    return [field for is_shown, field in fields if is_shown]


def _metric(name: str, shape: _Shape) -> _Field:
    def text(column: ColumnSummary) -> str:
        return mean_text(column.metrics.get(name), has_interval=shape.has_intervals)

    return one_line(name, 20), text


def _chances(columns: Sequence[ColumnSummary]) -> Iterator[_Field]:
    """Yield pass@k and pass^k of as many tries as there were repeats; nothing of a run without repeats."""
    tries = max((int(k) for column in columns for k in column.pass_at_k), default=0)
    if tries:
        yield f"pass@{tries}", lambda column: _chance(column.pass_at_k, tries)
        yield f"pass^{tries}", lambda column: _chance(column.pass_hat_k, tries)


def metric_names(columns: Sequence[ColumnSummary]) -> list[str]:
    """Return the metrics that have a place in the table, in the order of their names."""
    return sorted({name for column in columns for name in column.metrics})[:METRICS_MAX]


def _chance(by_k: Mapping[str, Stat], tries: int) -> str:
    found = by_k.get(str(tries))
    return "none" if found is None or found.value is None else format_share(found.value)


def baseline_number(columns: Sequence[ColumnSummary]) -> int:
    """Return the number, from 1, of the column with which the others are compared."""
    return next((number for number, item in enumerate(columns, start=1) if item.vs_first is None), 1)


def _width(rows: Sequence[tuple[str, ...]]) -> int:
    widths = [max(cell_len(cell) for cell in cells) for cells in zip(*rows, strict=True)]
    return 1 + sum(widths) + _GAP * (len(widths) - 1)


def _print_rows(rows: Sequence[tuple[str, ...]], console: Console) -> None:
    heading, *body = rows
    table = plain_table(console)
    for position, name in enumerate(heading):
        is_text = position in {0, len(heading) - 1}
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    for cells in body:
        verdict = Text(cells[-1], style=_verdict_style(cells[-1]))
        table.add_row(*map(Text, cells[:-1]), verdict)
    print_trimmed(indented(table), console)
    console.print()


def _verdict_style(text: str) -> str:
    if "better" in text and "worse" in text:
        return _VERDICT_STYLES["mixed"]
    return _VERDICT_STYLES.get(text.partition(":")[0], "dim")


def _print_blocks(columns: Sequence[ColumnSummary], titles: Sequence[str], console: Console) -> None:
    """Print a block for each column, where no table fits."""
    for number, (column, title) in enumerate(zip(columns, titles, strict=True), start=1):
        print_hanging(Text(f"[{number}] ", style="bold"), Text(title), console, indent=1)
        line = f"{share_text(column.pass_rate)}, {verdict_text(column)}"
        print_hanging(Text("    "), Text(line), console, indent=1)
    console.print()


def _print_differences(columns: Sequence[ColumnSummary], console: Console) -> None:
    """Print how far each column differs from the baseline, of the tests that both have judged."""
    rows = [
        (f"[{number}] {one_line(name, _NAME_WIDTH)}", item)
        for number, column in enumerate(columns, start=1)
        for name, item in differences_of(column)
        if item.verdict is not None
    ]
    if not rows or console.width < _WIDTH_FOR_DIFFERENCES:
        return
    has_interval, has_mde = console.width >= _WIDTH_FOR_INTERVALS, console.width >= _WIDTH_FOR_MDE
    table = plain_table(console)
    table.add_column(f"against [{baseline_number(columns)}]", overflow="fold")
    for name, is_shown in (
        ("difference", True),
        ("95 % interval", has_interval),
        ("p (Holm)", True),
        ("MDE", has_mde),
    ):
        if is_shown:
            table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict (more tests)", overflow="fold")
    for name, item in rows[:DIFFERENCES_MAX]:
        interval = [interval_of(item)] if has_interval else []
        mde = [mde_of(item)] if has_mde else []
        verdict = Text(decision_text(item), style=_VERDICT_STYLES.get(item.verdict or "", ""))
        table.add_row(
            Text(name), format_difference(item.delta.value or 0.0), *interval, p_of(item), *mde, verdict
        )
    print_trimmed(indented(table), console)
    hidden = len(rows) - DIFFERENCES_MAX
    if hidden > 0:
        console.print(Text(f" and {plural(hidden, 'more difference')}, in -o results.json", style="dim"))
    console.print()


def interval_of(item: Difference) -> str:
    """`-0.02 to +0.16`: the 95 % interval of a difference."""
    return "" if item.delta.interval is None else " to ".join(map(format_difference, item.delta.interval))


def p_of(item: Difference) -> str:
    """Return the p-value of a difference, adjusted for all that are shown."""
    return "" if item.delta.p_adjusted is None else format_p(item.delta.p_adjusted)


def mde_of(item: Difference) -> str:
    """Return the smallest difference that so many tests would show with a chance of 80 %."""
    return "" if item.delta.mde is None else f"{item.delta.mde:.{_DIGITS}f}"
