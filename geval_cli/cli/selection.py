"""Look up the tests that `--filter-failing` means, in a stored run or in a results file."""

import os
from pathlib import Path

from geval_cli.cli.problems import print_warnings
from geval_cli.engine.plan import failing_tests
from geval_cli.runs.results_file import open_report


def failing_in(run: str | None, home: Path | None) -> frozenset[str] | None:
    """Return the names of the tests that failed or errored in a run or a results file; None without one.

    Raises:
        UsageError: there is no such run or file.
    """
    if run is None:
        return None
    with open_report(run, home, os.environ) as (report, warnings):
        print_warnings(warnings)
        return failing_tests(report.results())
