"""The derived metrics of a run as rows of one table: each column's value, and that over all cases."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from geval_cli.numbers import format_score
from geval_cli.report.console import print_trimmed
from geval_cli.report.inert import one_line
from geval_cli.report.plain_table import indented, plain_table
from geval_cli.report.report import RunReport
from geval_cli.report.verdict import column_title, signs_of

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
