"""What was said of a run as a whole: its gates with their actual values, and the tests that are flaky."""

from rich.console import Console
from rich.text import Text

from geval_cli.numbers import format_score
from geval_cli.records import GateResult
from geval_cli.report.console import print_trimmed
from geval_cli.report.inert import inert, one_line
from geval_cli.report.numbers import plural
from geval_cli.report.plain_table import indented, plain_table
from geval_cli.report.report import RunReport
from geval_cli.report.verdict import column_title, signs_of, verdict

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
            name, gate_value(gate), verdict(gate.status, None, signs), Text(inert(gate.note), style="dim")
        )
    print_trimmed(indented(table), console)
    console.print()


def gate_value(gate: GateResult) -> str:
    """What the gate's limit was compared with, in the form that the limit is written in."""
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
