"""`geval rm` removes stored runs, after listing them; `geval cache` shows, clears and prunes stored answers."""

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import typer
from msgspec import Struct, field

from geval_cli.cli.options import RemoveOptions
from geval_cli.cli.problems import print_warnings
from geval_cli.errors import StoreError, UsageError
from geval_cli.extras.history import RunListEntry, print_runs
from geval_cli.extras.run_pages import RunChoice, RunOutline, RunPages
from geval_cli.extras.trust.labelling import removed_run
from geval_cli.numbers import format_bytes, format_time, plural
from geval_cli.records import SCHEMA_VERSION, RunRecord, RunStatus
from geval_cli.report.console import make_console
from geval_cli.report.json_file import json_text
from geval_cli.runs.stored import is_results_file
from geval_cli.store.cache import ResponseCache
from geval_cli.store.runs import RunStore
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
    """Remove all answers; raises the same errors as `print_stats`."""
    with _opened(home, folder) as cache:
        _say(f"removed {plural(asyncio.run(cache.clear()), 'answer')}")


def prune(home: Path | None, folder: Path | None, *, older_than_s: float) -> None:
    """Remove answers older than this many seconds; raises the same errors as `print_stats`."""
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


class _KeptRun(Struct, frozen=True):
    """A run that was not removed, because it could not be or was already gone; `why` says so in words."""

    run: str
    why: str


class _RemovalResult(Struct):
    """The outcome of a removal: ids of runs that are gone, and those that are left.

    `orphans` are ids of runs that were gone before, of which only labels remain. `answers` is the number of
    cached answers that were removed; None if none were looked for.
    """

    gone: list[str] = field(default_factory=list)
    left: list[_KeptRun] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    labels_kept: int = 0
    labels_removed: int = 0
    answers: int | None = None


def remove_runs(names: Sequence[str], given: RemoveOptions, *, older_than_s: float | None) -> None:
    """Remove runs: those that are named, else those that are older than an age and not among the newest `keep`.

    Cached answers that a removed run paid for, and that nothing else has used, are removed too unless they are to be
    kept.

    Raises:
        UsageError: it is unclear which runs, a named run is in progress, or there is no terminal to confirm at.
        StoreError: the database cannot be written.
    """
    if bool(names) == (older_than_s is not None or given.keep is not None):
        hint = "geval rm RUN..., geval rm --older-than 30d, or geval rm --keep 20"
        what = "run ids cannot be combined with --older-than or --keep" if names else "no run given"
        raise UsageError(what, hint=hint)
    told = _RemovalResult()
    with open_runs(given.home, os.environ) as runs:
        print_warnings(runs.warnings)
        if given.removes_labels:  # also of runs that are gone
            gone = {name: removed for name in names if (removed := removed_run(runs, name)) is not None}
            told.orphans = list(gone.values())
            names = [name for name in names if name not in gone]
        # A damaged run can only be removed by its whole id, and cannot be listed.
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
        told.left = [_KeptRun(run.id, "it is in progress") for run in going_on]
        if (chosen or told.orphans or damaged) and _may_remove(chosen, damaged, told, given):
            for run_id in (*(item.run.id for item in chosen), *damaged):
                _remove_one(runs, run_id, told, removes_labels=given.removes_labels)
            told.labels_removed += sum(runs.labels().remove(run_id) for run_id in told.orphans)
            runs.shrink()
            told.answers = _remove_answers(given, told.gone, shrinks=not runs.is_any_run_active)
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
    chosen: Sequence[RunOutline], damaged: Sequence[str], told: _RemovalResult, given: RemoveOptions
) -> bool:
    """List what would be removed and ask, unless the user is sure; without confirmation, everything is left."""
    if not given.as_json and not given.is_sure and chosen:
        console = make_console(sys.stdout, environ=os.environ)
        listed = [RunListEntry(item.run, item.counts, item.config_file) for item in chosen[:_LISTED]]
        would = f"{plural(len(chosen), 'run')} would be removed, with all results"
        print_runs(listed, console, now=datetime.now().astimezone(), folder=Path.cwd(), sentence=would)
        if len(chosen) > _LISTED:
            sys.stdout.write(f" and {plural(len(chosen) - _LISTED, 'more run')}\n")
        sys.stdout.flush()
    if given.is_sure or _confirmed(len(chosen) + len(damaged), len(told.orphans), as_json=given.as_json):
        return True
    run_ids = (*(item.run.id for item in chosen), *damaged)
    told.left = [_KeptRun(run_id, "nothing was confirmed") for run_id in run_ids]
    return False


def _remove_one(runs: RunStore, run_id: str, told: _RemovalResult, *, removes_labels: bool) -> None:
    try:
        why = "" if runs.remove(run_id) else "it was already gone"
    except UsageError as error:  # it was resumed after it was listed, or another process is removing it
        why = error.message
    if why:
        told.left.append(_KeptRun(run_id, why))
        return
    told.gone.append(run_id)
    if removes_labels:
        told.labels_removed += runs.labels().remove(run_id)
    else:
        told.labels_kept += runs.labels().count(run_id)


def _named(runs: RunStore, names: Sequence[str]) -> list[RunOutline]:
    """Return the named runs, each once; all names are looked up before anything is removed."""
    for name in filter(is_results_file, names):
        hint = "delete the file yourself; `geval list` shows the stored runs"
        raise UsageError(f"{name} is a results file, not a stored run", hint=hint)
    pages = RunPages(runs)
    found = {stored.run.id: stored for stored in map(runs.find, names)}
    return [
        RunOutline(stored.run, stored.summary or pages.counts(stored.run.id)) for stored in found.values()
    ]


def _old(runs: RunStore, older_than_s: float | None, keep: int | None) -> Iterator[RunOutline]:
    """Yield the runs that are old enough and not among the newest; one whose age cannot be read is kept."""
    outlines, _ = RunPages(runs).outlines(RunChoice(), offset=keep or 0, limit=_MOST_RUNS)
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
        UsageError: there is no terminal to ask at.
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
    """Remove the cached answers that only these runs have used; return their number, None if none were looked for."""
    if given.keeps_answers or not run_ids:
        return None
    try:
        with open_cache(given.home, os.environ, given.cache_folder) as cache:
            return asyncio.run(cache.remove_runs(run_ids, shrinks=shrinks))
    except UsageError:  # there is no cache
        return 0
    except StoreError as error:  # the runs are gone, whatever happens to the answers
        print_warnings([f"{error.message}; cached answers stay ({error.hint})"])
        return None
