"""Build the tables about a run as a whole: its gates with their actual values, and its flaky tests."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from geval_cli.numbers import format_score
from geval_cli.records import GateResult, RankedColumn, RunSummary
from geval_cli.report.console import is_unicode, print_hanging, print_trimmed
from geval_cli.report.numbers import plural
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import one_line, sanitize
from geval_cli.report.verdict import column_title, signs_of, verdict

# In files and logs, and where the stream has no line characters, the line is made of dashes.
_DASHES = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)


def plain_table(console: Console, *, has_blank_lines: bool = False) -> Table:
    """Return an empty table; `has_blank_lines` puts one between rows, for cells of several lines."""
    look = box.SIMPLE_HEAD if console.is_terminal and is_unicode(console) else _DASHES
    return Table(
        box=look,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1),
        border_style="dim",
        show_lines=has_blank_lines,
    )


def indented(table: Table) -> RenderableType:
    """Return the table, one cell in from the left, where all our lines begin."""
    return Padding(table, (0, 0, 0, 1), expand=False)


_FLAKY_SHOWN = 10


def print_gates(report: RunReport, console: Console) -> None:
    """Each gate with what it was compared with; nothing for a run without gates."""
    if not report.summary.gates:
        return
    signs = signs_of(console)
    table = plain_table(console)
    table.add_column("gate", overflow="fold")
    table.add_column("actual", justify="right")
    table.add_column("")
    table.add_column("", overflow="fold")
    for gate in report.summary.gates:
        name = Text(one_line(gate.gate, 80))
        table.add_row(
            name, gate_value(gate), verdict(gate.status, None, signs), Text(sanitize(gate.note), style="dim")
        )
    print_trimmed(indented(table), console)
    console.print()


def gate_value(gate: GateResult) -> str:
    """Return the gate's actual value, in the form that the limit is written in."""
    if gate.actual is None:
        return "none"
    if gate.gate.rstrip().endswith("%"):
        return f"{round(100 * gate.actual, 2):g}%"
    if gate.actual.is_integer() and "." not in gate.gate.split()[-1]:
        return f"{gate.actual:,.0f}"
    return format_score(gate.actual)


def print_flaky(report: RunReport, console: Console) -> None:
    """The tests that both passed and failed when they were repeated; nothing when there are none."""
    summary = report.summary
    if not summary.flaky_count:
        return
    signs = signs_of(console)
    columns = {column.index: column for column in report.columns}
    table = plain_table(console)
    table.add_column("flaky test", overflow="fold")
    for heading in ("passed", "mean", "deviation"):
        table.add_column(heading, justify="right")
    for test in summary.flaky[:_FLAKY_SHOWN]:
        name = f"#{test.test_index + 1} {one_line(test.description or '', 60)}".rstrip()
        if len(columns) > 1 and test.column in columns:
            name += f" [{column_title(columns[test.column], report.columns, signs)}]"
        numbers = ("" if value is None else format_score(value) for value in (test.mean, test.deviation))
        table.add_row(Text(name), f"{test.passed:,} of {test.judged:,}", *numbers)
    print_trimmed(indented(table), console)
    hidden = summary.flaky_count - min(len(summary.flaky), _FLAKY_SHOWN)
    if hidden:
        console.print(Text(f" and {plural(hidden, 'more flaky test')}", style="dim"))
    console.print()


RANKING_HEADER = ("rating", "95 % interval", "won", "tied", "lost")
_RANKINGS_MAX = 12
_PERCENT = 100


def ranking_rows(entries: Sequence[RankedColumn]) -> Iterator[tuple[str, ...]]:
    """Yield place and name of each ranked column, and its figures as `RANKING_HEADER` names them."""
    for place, entry in enumerate(entries, start=1):
        counts = (f"{entry.wins:,}", f"{entry.ties:,}", f"{entry.losses:,}")
        if entry.rating is None:
            yield "", entry.label, "none", "", *counts
            continue
        bounds = (entry.low, entry.high)
        low, high = ("" if bound is None else f"{bound:.0f}" for bound in bounds)
        yield f"{place}", entry.label, f"{entry.rating:.0f}", f"{low} to {high}" if low else "", *counts


def ranking_note(summary: RunSummary, name: str) -> str:
    """Return how far a ranking can be trusted: whether there is one, and how often the order decided."""
    share = summary.order_consistency.get(name)
    entries = summary.rankings[name]
    notes = []
    if entries and entries[0].rating is None:
        notes.append("no ranking: the comparisons do not connect all columns")
    if share is not None:
        notes.append(f"the judge said the same in both orders for {_PERCENT * share:.0f}% of the pairs")
    return "; ".join(notes)


def rankings_shown(summary: RunSummary) -> list[tuple[str, tuple[RankedColumn, ...]]]:
    """Return the rankings that people are shown, by metric; all of them are in the JSON."""
    return list(summary.rankings.items())[:_RANKINGS_MAX]


def print_rankings(report: RunReport, console: Console) -> None:
    """Print the columns of each metric that outputs were compared by, the best first."""
    for name, entries in rankings_shown(report.summary):
        table = plain_table(console)
        table.add_column("", justify="right")
        table.add_column(f"ranking: {one_line(name, 40)}", overflow="fold")
        for heading in RANKING_HEADER:
            table.add_column(heading, justify="right", no_wrap=heading != RANKING_HEADER[1])
        for place, label, *figures in ranking_rows(entries):
            table.add_row(place, Text(one_line(label, 60)), *figures)
        print_trimmed(indented(table), console)
        note = ranking_note(report.summary, name)
        if note:
            print_hanging(Text(), Text(note, style="dim"), console, indent=1)
        console.print()


DERIVED_HEADER = ("derived metric", "of", "value")
EVERYTHING = "all cases"
_ROWS_MAX = 60


def derived_rows(report: RunReport, titles: dict[int, str]) -> Iterator[tuple[str, str, str]]:
    """Name, column and value of each derived metric; `titles` are those of the columns by their index."""
    summary, count = report.summary, 0
    for name, value in summary.derived.items():
        by_column = summary.derived_by_column.get(name, ()) if len(report.columns) > 1 else ()
        for index, own in enumerate(by_column):
            count += 1
            if count <= _ROWS_MAX:
                yield one_line(name, 60), titles.get(index, str(index + 1)), _shown(own)
        yield one_line(name, 60), EVERYTHING, _shown(value)


def print_derived(report: RunReport, console: Console) -> None:
    """The derived metrics; nothing for a run without any."""
    if not report.summary.derived:
        return
    signs = signs_of(console)
    titles = {column.index: column_title(column, report.columns, signs) for column in report.columns}
    table = plain_table(console)
    for heading in DERIVED_HEADER[:-1]:
        table.add_column(heading, overflow="fold")
    table.add_column(DERIVED_HEADER[-1], justify="right")
    for name, of, value in derived_rows(report, titles):
        table.add_row(Text(name), Text(of), Text(value))
    print_trimmed(indented(table), console)
    console.print()


def _shown(value: float | None) -> str:
    return "none" if value is None else format_score(value)
