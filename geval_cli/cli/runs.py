"""Stored runs and answers: `geval list`, `show`, `compare`, `rm`, `cache`, `export run` and `import run`."""

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer
from msgspec import Struct, field, structs
from rich.console import Console
from rich.text import Text

from geval_cli.cli.options import CompareOptions, RemoveOptions
from geval_cli.cli.problems import print_problems, print_warnings
from geval_cli.engine.columns import margins_of
from geval_cli.errors import ConfigError, Problem, Severity, StoreError, UsageError
from geval_cli.extras.compare.comparison import (
    ComparisonOptions,
    EarlierRun,
    NamedRun,
    RunComparison,
    compare,
    comparison_to_json,
)
from geval_cli.extras.compare.text import comparison_markdown, print_comparison
from geval_cli.extras.evidence import PLURALS, Failures, print_cases, print_failures, print_test
from geval_cli.extras.history import RunHistory, RunListEntry, read_history, runs_json
from geval_cli.extras.history import print_runs as print_run_table
from geval_cli.extras.results_files import read_importable, store_run
from geval_cli.extras.trust.labelling import removed_run
from geval_cli.numbers import format_bytes, format_time, plural
from geval_cli.plugins import extra
from geval_cli.records import SCHEMA_VERSION, CaseResult, RunRecord, RunStatus, Status
from geval_cli.report.case_view import PROBLEMS, case_number
from geval_cli.report.console import make_console
from geval_cli.report.failures import GroupBy
from geval_cli.report.json_file import json_document, json_text
from geval_cli.report.report import (
    RunReport,
    check_output_path,
    check_output_paths,
    files_of,
    write_results_file,
)
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import quoted
from geval_cli.report.terminal import print_answer, print_report, show_command
from geval_cli.runs.options import check_idle, declared_options
from geval_cli.runs.stored import is_results_file, open_report, open_reports
from geval_cli.statistics.paired import ADJUSTMENTS
from geval_cli.store.cache import ResponseCache
from geval_cli.store.home import current_folder, home_folder, make_folder
from geval_cli.store.run_pages import RunChoice, RunOutline
from geval_cli.store.runs import RunStore, config_file
from geval_cli.store.state import open_cache, open_runs


def print_stats(home: Path | None, folder: Path | None) -> None:
    """Print the number of cached answers, their age and their size.

    Raises:
        UsageError: there is no cache.
        StoreError: it cannot be read.
    """
    with _opened(home, folder) as cache:
        stats = asyncio.run(cache.stats())
    answers = plural(stats.entries, "answer is cached", "answers are cached")
    since = "" if stats.oldest is None else f", the oldest from {format_time(stats.oldest)}"
    _say(f"{answers}, {format_bytes(stats.file_bytes)} in {stats.path}{since}")
    if stats.newest is not None:
        _say(f"  newest   {format_time(stats.newest)}")
    if stats.expired:
        _say(f"  expired  {stats.expired:,}, older than 14 days; `geval cache prune` removes them")


def clear(home: Path | None, folder: Path | None) -> None:
    """Remove all answers; raises as `print_stats`."""
    with _opened(home, folder) as cache:
        _say(f"removed {plural(asyncio.run(cache.clear()), 'answer')}")


def prune(home: Path | None, folder: Path | None, *, older_than_s: float) -> None:
    """Remove answers older than so many seconds; raises as `print_stats`."""
    with _opened(home, folder) as cache:
        _say(f"removed {plural(asyncio.run(cache.prune(older_than_s=older_than_s)), 'answer')}")


@contextmanager
def _opened(home: Path | None, folder: Path | None) -> Iterator[ResponseCache]:
    with open_cache(home, os.environ, folder) as cache:
        print_warnings(cache.warnings)
        yield cache


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


_LISTED = 20
_MOST_RUNS = 1_000_000


class _Left(Struct, frozen=True):
    """A run that was to go and is still there, or was gone before; `why` in words."""

    run: str
    why: str


class _Told(Struct):
    """The outcome: ids of runs that are gone, and those that are left.

    `orphans` are ids of runs that were gone before, of which only labels remain. `answers` is the number of
    cached answers that are gone; None where none were looked for.
    """

    gone: list[str] = field(default_factory=list)
    left: list[_Left] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    labels_kept: int = 0
    labels_removed: int = 0
    answers: int | None = None


def remove_runs(names: Sequence[str], given: RemoveOptions, *, older_than_s: float | None) -> None:
    """Remove runs: those that are named, else those that are older than an age and not among the newest `keep`.

    Cached answers that a removed run bought, and that no one else has used, go with it unless they are to be kept.

    Raises:
        UsageError: nothing says which runs, a run that is named is going on, or nobody can be asked.
        StoreError: the database cannot be written.
    """
    if bool(names) == (older_than_s is not None or given.keep is not None):
        hint = "geval rm RUN..., geval rm --older-than 30d, or geval rm --keep 20"
        what = "run ids cannot be combined with --older-than or --keep" if names else "no run given"
        raise UsageError(what, hint=hint)
    told = _Told()
    with open_runs(given.home, os.environ) as runs:
        print_warnings(runs.warnings)
        if given.removes_labels:  # also of runs that are gone
            gone = {name: removed for name in names if (removed := removed_run(runs, name)) is not None}
            told.orphans = list(gone.values())
            names = [name for name in names if name not in gone]
        # A damaged run is removed by its whole id, and cannot be listed.
        damaged = [run_id for run_id in runs.damaged() if run_id in names] if names else []
        names = [name for name in names if name not in damaged]
        outlines = (
            _named(runs, names)
            if names or told.orphans or damaged
            else list(_old(runs, older_than_s, given.keep))
        )
        going_on = [item.run for item in outlines if item.run.status is RunStatus.RUNNING]
        if names and going_on:
            run = going_on[0]
            who = runs.holder(run.id) or "another process"
            hint = "stop it first, then remove it"
            raise UsageError(f"run {run.id} is in progress in {who}", hint=hint)
        chosen = [item for item in outlines if item.run.status is not RunStatus.RUNNING]
        told.left = [_Left(run.id, "it is in progress") for run in going_on]
        if (chosen or told.orphans or damaged) and _may_remove(chosen, damaged, told, given):
            for run_id in (*(item.run.id for item in chosen), *damaged):
                _remove_one(runs, run_id, told, removes_labels=given.removes_labels)
            told.labels_removed += sum(runs.labels().remove(run_id) for run_id in told.orphans)
            runs.shrink()
            told.answers = _remove_answers(given, told.gone, shrinks=not runs.is_any_going_on)
    if given.as_json:
        document = {
            "schema_version": SCHEMA_VERSION,
            "kind": "rm",
            "removed": told.gone,
            "left": told.left,
            "answers_removed": told.answers,
            "labels": {"removed": told.labels_removed, "kept": told.labels_kept},
        }
        sys.stdout.write(json_text(document, indent=2) + "\n")
        return
    for item in told.left:
        sys.stderr.write(f"note: run {item.run} was not removed: {item.why}\n")
    parts = [f"run {told.gone[0]}" if len(told.gone) == 1 else plural(len(told.gone), "run")]
    parts += [plural(told.labels_removed, "label")] if told.labels_removed else []
    parts += [f"{plural(told.answers, 'cached answer')} that nothing else used"] if told.answers else []
    sys.stdout.write(f"removed {' and '.join(parts)}\n")
    if told.labels_kept:
        how = "export them with `geval label RUN --export FILE`, or remove them with `geval rm RUN --labels`"
        sys.stderr.write(f"note: kept {plural(told.labels_kept, 'human label')}: {how}\n")


def _may_remove(
    chosen: Sequence[RunOutline], damaged: Sequence[str], told: _Told, given: RemoveOptions
) -> bool:
    """List what would go and ask, unless the user is sure; what is not confirmed is left."""
    if not given.as_json and not given.is_sure and chosen:
        console = make_console(sys.stdout, environ=os.environ)
        listed = [RunListEntry(item.run, item.counts, item.config_file) for item in chosen[:_LISTED]]
        would = f"{plural(len(chosen), 'run')} would be removed, with all results"
        print_run_table(listed, console, now=datetime.now().astimezone(), folder=Path.cwd(), sentence=would)
        if len(chosen) > _LISTED:
            sys.stdout.write(f" and {plural(len(chosen) - _LISTED, 'more run')}\n")
        sys.stdout.flush()
    if given.is_sure or _confirmed(len(chosen) + len(damaged), len(told.orphans), as_json=given.as_json):
        return True
    run_ids = (*(item.run.id for item in chosen), *damaged)
    told.left = [_Left(run_id, "nothing was confirmed") for run_id in run_ids]
    return False


def _remove_one(runs: RunStore, run_id: str, told: _Told, *, removes_labels: bool) -> None:
    try:
        why = "" if runs.remove(run_id) else "it was already gone"
    except UsageError as error:  # it was taken up again since it was listed, or another process removes it
        why = error.message
    if why:
        told.left.append(_Left(run_id, why))
        return
    told.gone.append(run_id)
    if removes_labels:
        told.labels_removed += runs.labels().remove(run_id)
    else:
        told.labels_kept += runs.labels().count(run_id)


def _named(runs: RunStore, names: Sequence[str]) -> list[RunOutline]:
    """Return the runs that are named, each once; all names are looked up before anything is removed."""
    for name in filter(is_results_file, names):
        hint = "delete the file yourself; `geval list` shows the stored runs"
        raise UsageError(f"{name} is a results file, not a stored run", hint=hint)
    pages = runs.pages()
    found = {stored.run.id: stored for stored in map(runs.find, names)}
    return [
        RunOutline(stored.run, stored.summary or pages.counts(stored.run.id)) for stored in found.values()
    ]


def _old(runs: RunStore, older_than_s: float | None, keep: int | None) -> Iterator[RunOutline]:
    """Yield the runs that are old enough and not among the newest; one whose age cannot be read stays."""
    outlines, _ = runs.pages().outlines(RunChoice(), offset=keep or 0, limit=_MOST_RUNS)
    now = datetime.now(UTC)
    for item in outlines:
        if older_than_s is None or _age_s(item.run, now) > older_than_s:
            yield item


def _age_s(run: RunRecord, now: datetime) -> float:
    try:
        return (now - datetime.fromisoformat(run.started_at)).total_seconds()
    except (ValueError, TypeError):
        return 0.0


def _confirmed(count: int, labelled: int, *, as_json: bool) -> bool:
    """Ask whether to remove the runs.

    Raises:
        UsageError: nobody can be asked.
    """
    runs = plural(count, "run") if count else f"the labels of {plural(labelled, 'run')}"
    if as_json or not sys.stdin.isatty():
        hint = "add --yes to skip the confirmation"
        raise UsageError(f"cannot ask whether to remove {runs}: there is no terminal", hint=hint)
    try:
        return typer.confirm(f"Remove {runs}{' with all results' if count else ''}?", err=True)
    except typer.Abort:  # the end of the input
        return False


def _remove_answers(given: RemoveOptions, run_ids: Sequence[str], *, shrinks: bool) -> int | None:
    """Remove the cached answers that only these runs have used; return their number, None when none were looked for."""
    if given.keeps_answers or not run_ids:
        return None
    try:
        with open_cache(given.home, os.environ, given.cache_folder) as cache:
            return asyncio.run(cache.remove_runs(run_ids, shrinks=shrinks))
    except UsageError:  # there is no cache
        return 0
    except StoreError as error:  # the runs are gone, whatever becomes of the answers
        print_warnings([f"{error.message}; cached answers stay ({error.hint})"])
        return None


_ENDINGS = (".json", ".md")
_KEPT = "kept"
"""Stands for a file: the labels that `geval label` keeps for the two runs."""


def compare_runs(earlier: str, later: str, given: CompareOptions) -> None:
    """Print the comparison of two runs or results files, and write it to files.

    Raises:
        UsageError: there is no such run or file, the suites are unrelated, or an option makes no sense.
        ConfigError: a file cannot be written in the format that its name asks for.
        OutputError: a file cannot be written.
    """
    if given.adjust not in ADJUSTMENTS:
        raise UsageError(f"unknown method --adjust {given.adjust}", hint="use holm or bh")
    if not 0 < given.detect <= 1:
        hint = "give the smallest difference in scores that matters to you, for example 0.05"
        raise UsageError(f"--detect {given.detect:g} must be above 0 and at most 1", hint=hint)
    if given.labels is None:
        check_idle(given, {"allow_unmatched"}, without="--labels")
    problems = []
    for path in given.outputs:
        problem = check_output_path(path)
        if path.suffix.lower() not in _ENDINGS:
            hint = f"use a name that ends in one of: {', '.join(_ENDINGS)}"
            problem = Problem(f"cannot write a comparison to {path}", hint=hint)
        if problem is not None:
            problems.append(problem)
    if problems:
        raise ConfigError(problems)
    options = ComparisonOptions(
        given.detect, given.adjust, given.columns, given.cluster, given_margins=given.margins
    )
    with open_reports([earlier, later], given.home, os.environ) as ((a, b), warnings):
        print_warnings(warnings)
        before = EarlierRun(a)
        found = compare(NamedRun(earlier, a), NamedRun(later, b), options, before)
        corrected = None
        if given.labels is not None:
            by_labels = extra("true differences")
            of_labels = by_labels.CorrectOptions(
                columns=given.columns,
                cluster=given.cluster,
                margins=margins_of(b.run).with_given(given.margins),
            )
            labels: Any = given.labels
            if str(labels) == _KEPT:
                labels = extra("human labels").labels_kept_for(a.run.id, b.run.id, home=given.home)
            corrected = by_labels.correct(labels, before, b, of_labels, allow_unmatched=given.allow_unmatched)
    for path in given.outputs:
        is_markdown = path.suffix.lower() == ".md"
        with SafeFile(path) as file:
            file.write(_markdown(found, corrected) if is_markdown else _json(found, corrected))
    if given.prints_json:
        sys.stdout.write(_json(found, corrected))
        return
    console = make_console(sys.stdout, environ=os.environ)
    if corrected is not None:
        corrected.print(console)
        console.print("\nThe judge alone:", style="bold")
    print_comparison(
        found,
        console,
        is_verbose=given.is_verbose,
        more=" ".join(["geval compare", *map(quoted, (earlier, later, *_options_again(given))), "-v"]),
    )


def _options_again(given: CompareOptions) -> Iterator[str]:
    """Yield the options that shape a comparison, as they were given."""
    for declared, option in declared_options(CompareOptions):
        value = getattr(given, declared.name)
        if declared.name not in {"outputs", "is_verbose"} and value != declared.default:
            for item in value if isinstance(value, tuple) else (value,):
                yield from (option.name,) if item is True else (option.name, str(item))


def _json(found: RunComparison, corrected: Any) -> str:
    """Return the comparison as JSON, with what the labels say under `corrected`."""
    more = {} if corrected is None else {"corrected": corrected.to_json()}
    return json_text(comparison_to_json(found) | more, indent=2) + "\n"


def _markdown(found: RunComparison, corrected: Any) -> str:
    if corrected is None:
        return comparison_markdown(found)
    return f"{corrected.to_markdown()}\n{comparison_markdown(found, heading='## The judge alone')}"


def import_run(home: Path | None, path: Path) -> None:
    """Store the run of a results file, and say under which name.

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
    sys.stdout.write(f"imported {counted} as run {run.id}\nnext: {show_command(run.id, home)}\n")


def export_run(home: Path | None, name: str, *, outputs: Sequence[Path]) -> None:
    """Write a run to files.

    Raises:
        UsageError: no run, or more than one, has this id.
        ConfigError: a file cannot be written in the format that its name asks for.
    """
    check_output_paths(outputs)
    with open_report(name, home, os.environ) as (report, warnings):
        print_warnings(warnings)
        for path in outputs:
            write_results_file(path, report)
            sys.stdout.write(f"wrote {' and '.join(map(str, files_of(path)))}\n")


def print_runs(
    home: Path | None, *, config: Path | None, tags: Sequence[tuple[str, str]], limit: int, as_json: bool
) -> None:
    """Print the newest `limit` runs, of one config or with some tags if these are given.

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
    """Return the newest runs that are chosen; those that are damaged are left out, with a warning that names them."""
    try:
        return read_history(runs, chosen, limit=limit)
    except StoreError as error:
        damaged = runs.damaged()
        if not damaged:
            raise
        print_problems([Problem(f"{error.message}; skipped", hint=error.hint, severity=Severity.WARNING)])
        return read_history(runs, chosen, limit=limit, without=damaged)


_WHOLE = frozenset({".html", ".md"})
"""Files that show the sums of a run, which a part of its cases would contradict."""


class ShowChoice(Struct, frozen=True):
    """The part of a run that is shown.

    Attributes:
        case: the number of a test, `3`, or of one of its repeats, `3.2`; None for all.
        wanted: cases with these statuses only; empty for all.
        is_whole: whether nothing is cut.
        is_verbose: whether passed assertions are shown too.
        by: what failures are grouped by.
    """

    case: str | None = None
    wanted: frozenset[Status] = frozenset()
    is_whole: bool = False
    is_verbose: bool = False
    by: GroupBy = GroupBy.ASSERTION

    def results(self, report: RunReport) -> Iterator[CaseResult]:
        """Yield the results that are chosen."""
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
        UsageError: no run, or more than one, has this id; it has no such case; a file has no form for a part of a run.
        ConfigError: a file cannot be written in the format that its name asks for.
    """
    check_output_paths(outputs)
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
