"""A whole run on the terminal: table, failures, summary, in this order."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from geval_cli.report.failures import print_failures
from geval_cli.report.report import RunReport
from geval_cli.report.summary import print_summary
from geval_cli.report.table import print_table


def print_report(
    report: RunReport, console: Console, *, verbose: bool = False, written: Sequence[Path] = ()
) -> None:
    """Print what `geval run` and `geval show` show of a run; `written` are the results files of this run."""
    print_table(report, console)
    print_failures(report, console, verbose=verbose)
    print_summary(report, console, written=written)
