"""A whole run on the terminal: table, failures, summary, in this order."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from geval_cli.report.comparison_text import print_baseline
from geval_cli.report.failures import Failures, GroupBy, print_failures
from geval_cli.report.report import RunReport
from geval_cli.report.summary import print_summary
from geval_cli.report.table import TableRows, print_table


def print_report(
    report: RunReport,
    console: Console,
    *,
    verbose: bool = False,
    written: Sequence[Path] = (),
    by: GroupBy = GroupBy.ASSERTION,
) -> None:
    """Print what `geval run` and `geval show` show of a run.

    `written` are the results files of this run; `by` is what its failures are grouped by.
    """
    rows, failures = TableRows(), Failures(verbose, by)
    for result in report.results():
        rows.add(result)
        failures.add(result)
    print_table(rows, report, console)
    print_failures(failures, report, console)
    print_baseline(report.summary.baseline, console)
    print_summary(report, console, written=written)
