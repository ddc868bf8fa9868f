"""`geval list`, `geval show`, `geval export run` and `geval import run`: stored runs."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path

from msgspec import Struct, structs
from rich.console import Console
from rich.text import Text

from geval_cli.cli.problems import keep_runs, print_problems, print_warnings
from geval_cli.errors import Problem, Severity, StoreError, UsageError
from geval_cli.extras.evidence import PLURALS, Failures, print_cases, print_failures, print_test
from geval_cli.extras.history import RunHistory, read_history, runs_json
from geval_cli.extras.history import print_runs as print_run_table
from geval_cli.extras.results_files import read_importable, store_run
from geval_cli.extras.run_pages import RunChoice
from geval_cli.numbers import plural
from geval_cli.records import SCHEMA_VERSION, CaseResult, Status
from geval_cli.report.case_view import PROBLEMS, case_number
from geval_cli.report.console import make_console
from geval_cli.report.failures import GroupBy
from geval_cli.report.json_file import json_document, json_text
from geval_cli.report.report import RunReport, check_output_paths, files_of, write_results_file
from geval_cli.report.sanitize import quoted
from geval_cli.report.terminal import print_answer, print_report, show_command
from geval_cli.runs.stored import open_report
from geval_cli.store.home import current_folder, home_folder, make_folder
from geval_cli.store.runs import RunStore, config_file
from geval_cli.store.state import open_runs


def import_run(home: Path | None, path: Path) -> None:
    """Store the run of a results file, and print its id.

    Raises:
        ConfigError: with every problem of the file.
        UsageError: the run is stored already.
        StoreError: it cannot be stored.
    """
    imported = read_importable(path)
    folder = home_folder(home, env=os.environ, cwd=current_folder())
    make_folder(folder)
    with closing(RunStore.open(folder)) as runs:
        run = store_run(imported, runs)
    counted = plural(len(imported.results), "result")
    if imported.summary is not None and imported.summary.total > len(imported.results):
        counted += f" of a run with {imported.summary.total:,}"
    sys.stdout.write(f"imported {counted} as run {run.id}\nnext: {show_command(run.id, home)}\n")


def export_run(home: Path | None, name: str, *, outputs: Sequence[Path]) -> None:
    """Write a run to files.

    Raises:
        UsageError: no run, or more than one, has this id.
        ConfigError: a file cannot be written in the format of its extension.
    """
    check_output_paths(outputs)
    keep_runs(outputs, [name])
    with open_report(name, home, os.environ) as (report, warnings):
        print_warnings(warnings)
        for path in outputs:
            write_results_file(path, report)
            sys.stdout.write(f"wrote {' and '.join(map(str, files_of(path)))}\n")


def print_runs(
    home: Path | None, *, config: Path | None, tags: Sequence[tuple[str, str]], limit: int, as_json: bool
) -> None:
    """Print the newest `limit` runs, optionally only those of a config or with certain tags.

    Raises:
        UsageError: nothing was ever stored here, or no run of this config.
    """
    file = None if config is None else config_file(config)
    chosen = RunChoice(None if config is None else str(config), file, tuple(tags))
    with open_runs(home, os.environ) as runs:
        print_warnings(runs.warnings)
        history = _readable_history(runs, chosen, limit)
        if not history.total and config is not None and not tags:
            hint = "list the stored runs with `geval list`"
            raise UsageError(f"no runs of {config} are stored here", hint=hint)
        if as_json:
            document = {
                "schema_version": SCHEMA_VERSION,
                "kind": "list",
                **runs_json(history.runs, history.total),
            }
            sys.stdout.write(json_text(document, indent=2) + "\n")
            return
        console = make_console(sys.stdout, environ=os.environ)
        if not history.runs and tags:
            console.print(Text(" no run has these tags"))
            return
        now = datetime.now().astimezone()
        print_run_table(history.runs, console, now=now, folder=Path.cwd(), total=history.total)


def _readable_history(runs: RunStore, chosen: RunChoice, limit: int) -> RunHistory:
    """Return the newest chosen runs; damaged ones are left out, with a warning that names them."""
    try:
        return read_history(runs, chosen, limit=limit)
    except StoreError as error:
        damaged = runs.damaged()
        if not damaged:
            raise
        print_problems([Problem(f"{error.message}; skipped", hint=error.hint, severity=Severity.WARNING)])
        return read_history(runs, chosen, limit=limit, without=damaged)


_WHOLE = frozenset({".html", ".md"})
"""Files that show totals of a run, which a part of its cases would contradict."""


class ShowChoice(Struct, frozen=True):
    """The part of a run to show.

    Attributes:
        case: the number of a test, `#3`, or of one of its repeats, `#3.2`; None for all.
        wanted: only cases with these statuses; empty for all.
        is_whole: whether nothing is shortened.
        is_verbose: whether passed assertions are shown too.
        by: how failures are grouped.
    """

    case: str | None = None
    wanted: frozenset[Status] = frozenset()
    is_whole: bool = False
    is_verbose: bool = False
    by: GroupBy = GroupBy.ASSERTION

    def results(self, report: RunReport) -> Iterator[CaseResult]:
        """Yield the chosen results."""
        for result in report.results():
            if self.wanted and result.status not in self.wanted:
                continue
            if (
                self.case is None
                or case_number(result) == self.case
                or self.case == f"#{result.test_index + 1}"
            ):
                yield result


def show_run(
    home: Path | None, name: str, choice: ShowChoice, *, outputs: Sequence[Path], as_json: bool
) -> None:
    """Show one run on the terminal, or as JSON, and write it to files.

    Raises:
        UsageError: no run, or more than one, has this id; it has no such case; a file format cannot show part of a run.
        ConfigError: a file cannot be written in the format of its extension.
    """
    check_output_paths(outputs)
    keep_runs(outputs, [name])
    is_part = choice.case is not None or bool(choice.wanted)
    whole = next((path for path in outputs if path.suffix in _WHOLE), None)
    if is_part and whole is not None:
        hint = "write .json, .jsonl, .csv, .parquet or .junit.xml, or leave out the choice of cases"
        raise UsageError(
            f"{quoted(whole.name)} would show sums of the whole run beside a part of its cases", hint=hint
        )
    with open_report(name, home, os.environ) as (report, warnings):
        print_warnings(warnings)
        if choice.case is not None and next(choice.results(report), None) is None:
            numbers = {result.test_index + 1 for result in report.results()}
            if not numbers:
                no_case = UsageError(
                    f"run {report.run.id} has no results", hint="list the stored runs with `geval list`"
                )
            else:
                few = f"use a test from {min(numbers)} to {max(numbers)}; 3.2 is the second repeat of test 3"
                what = "case" if not choice.wanted else f"{' or '.join(sorted(choice.wanted))} case"
                no_case = UsageError(f"run {report.run.id} has no {what} {choice.case}", hint=few)
            raise no_case
        chosen = report
        if is_part:
            chosen = structs.replace(report, results=lambda: choice.results(report), tests=None)
        for path in outputs:
            write_results_file(path, chosen)
        if as_json:
            for part in json_document(chosen):
                sys.stdout.write(part)
        else:
            _print(
                report,
                choice,
                make_console(sys.stdout, environ=os.environ),
                outputs,
                "" if name == "latest" else name,
                home,
            )


def _print(
    report: RunReport,
    choice: ShowChoice,
    console: Console,
    written: Sequence[Path],
    name: str,
    home: Path | None,
) -> None:
    if choice.case is not None:
        results = list(choice.results(report))
        print_test(results, report, console, is_verbose=choice.is_verbose or choice.is_whole)
        if not (choice.is_verbose or choice.is_whole):
            command = f"{show_command(name, home)} --case {choice.case.removeprefix('#')} -v"
            console.print(Text(f"\n full details, with prompts: {command}", style="dim"), soft_wrap=True)
        return
    if not choice.wanted and not choice.is_whole:
        print_report(
            report, console, verbose=choice.is_verbose, written=written, by=choice.by, name=name, home=home
        )
        return
    failures = Failures(choice.is_verbose, choice.by, choice.wanted or PROBLEMS)
    for result in report.results():
        failures.add(result)
    if choice.is_whole:
        print_cases(choice.results(report), failures, report, console)
    elif failures.total:
        print_failures(failures, report, console)
    else:
        console.print(
            f"\n no {' or '.join(word for status, word in PLURALS.items() if status in choice.wanted)}"
        )
    print_answer(report, console, written=written, name=name, home=home)
