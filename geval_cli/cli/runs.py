"""`geval list`, `geval show`, `geval export run` and `geval import run`: stored runs."""

import os
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path

from geval_cli.cli.problems import print_warnings
from geval_cli.errors import ConfigError
from geval_cli.report.console import make_console
from geval_cli.report.numbers import plural
from geval_cli.report.output import check_output_path, write_results_file
from geval_cli.report.run_list import print_runs as print_run_table
from geval_cli.report.terminal import print_report
from geval_cli.runs.import_run import read_results_file, store_run
from geval_cli.runs.stored import load_report
from geval_cli.store.home import current_folder, home_folder, make_folder
from geval_cli.store.runs import RunStore
from geval_cli.store.state import open_runs


def print_runs(home: Path | None, *, limit: int) -> None:
    """Print the newest `limit` runs."""
    with open_runs(home, os.environ) as runs:
        print_warnings(runs.warnings)
        console = make_console(sys.stdout, environ=os.environ)
        found = [(run, summary or runs.pages().counts(run.id)) for run, summary in runs.runs(limit)]
        print_run_table(found, console, now=datetime.now().astimezone())


def import_run(home: Path | None, path: Path) -> None:
    """Store the run of a results file, and say under which name.

    Raises:
        ConfigError: with every problem of the file.
        UsageError: the run is stored already.
        StoreError: it cannot be stored.
    """
    imported = read_results_file(path)
    folder = home_folder(home, env=os.environ, cwd=current_folder())
    make_folder(folder)
    with closing(RunStore.open(folder)) as runs:
        run = store_run(imported, runs)
    counted = plural(len(imported.results), "result")
    sys.stdout.write(f"imported {counted} as run {run.id}; try: geval show {run.id}\n")


def export_run(home: Path | None, name: str, *, outputs: Sequence[Path]) -> None:
    """Write a stored run to files.

    Raises:
        UsageError: no run, or more than one, has this id.
        ConfigError: a file cannot be written in the format that its name asks for.
    """
    _check_outputs(outputs)
    with open_runs(home, os.environ) as runs:
        print_warnings(runs.warnings)
        report = load_report(runs, name)
        for path in outputs:
            write_results_file(path, report)
            sys.stdout.write(f"wrote {path}\n")


def _check_outputs(outputs: Sequence[Path]) -> None:
    problems = [problem for path in outputs if (problem := check_output_path(path)) is not None]
    if problems:
        raise ConfigError(problems)


def show_run(home: Path | None, name: str, *, outputs: Sequence[Path], verbose: bool) -> None:
    """Show one stored run on the terminal, and write it to files.

    Raises:
        UsageError: no run, or more than one, has this id.
        ConfigError: a file cannot be written in the format that its name asks for.
    """
    _check_outputs(outputs)
    with open_runs(home, os.environ) as runs:
        print_warnings(runs.warnings)
        report = load_report(runs, name)
        for path in outputs:
            write_results_file(path, report)
        print_report(report, make_console(sys.stdout, environ=os.environ), verbose=verbose, written=outputs)
