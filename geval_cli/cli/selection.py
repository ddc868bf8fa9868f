"""Look up the tests that `--filter-failing` means, in a stored run or in a results file."""

import os
from pathlib import Path

from geval_cli.cli.problems import print_warnings
from geval_cli.engine.selection import failing_tests
from geval_cli.runs.results_file import is_results_file, named_report, results_in
from geval_cli.store.state import open_runs


def failing_in(run: str | None, home: Path | None) -> frozenset[str] | None:
    """Return the fingerprints of the tests that failed or errored in a run or a results file; None without one.

    Raises:
        UsageError: there is no such run or file.
    """
    if run is None:
        return None
    if is_results_file(run):
        return failing_tests(results_in(Path(run)))
    with open_runs(home, os.environ) as runs:
        print_warnings(runs.warnings)
        return failing_tests(named_report(run, runs).results())
