"""Finds runs by name: stored runs, and results files; those that `geval run -o` wrote are read result by result."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from geval_cli.engine.columns import summarized
from geval_cli.errors import UsageError
from geval_cli.gateway.budget import combined, larger
from geval_cli.plugins import extra
from geval_cli.report.report import HumanLabels, RunReport
from geval_cli.source.access import TRUSTED, Access
from geval_cli.source.files import PARQUET_SUFFIX
from geval_cli.store.runs import RunStore
from geval_cli.store.state import open_runs

_ENDINGS = (".json", ".jsonl", PARQUET_SUFFIX)


def named_report(name: str, runs: RunStore, access: Access = TRUSTED) -> RunReport:
    """Return the run that `name` refers to: an id, its beginning, `latest`, `latest~1`, or the path of a results file.

    A results file is one that `geval run -o` wrote (.json, .jsonl, .parquet), or promptfoo's results of version 3.

    Raises:
        UsageError: there is no such run or file, or it has no results.
        ConfigError: promptfoo's results have problems; it lists all of them, with their places.
        StoreError: stored runs cannot be read.
    """
    if is_results_file(name):
        report: RunReport = extra("results files").named_file(name, access)
        return report
    try:
        return load_report(runs, name)
    except UsageError as error:
        if access.is_untrusted or not os.path.isfile(name):  # noqa: PTH113 - it is False, and no error, for a name that is too long
            raise
        hint = f"use a {_ENDINGS[0]}, {_ENDINGS[1]} or {_ENDINGS[2]} file that `geval run -o FILE` wrote"
        raise UsageError(f"{name} is not a file that a run can be read from", hint=hint) from error


@contextmanager
def open_report(
    name: str, home: Path | None, environ: Mapping[str, str]
) -> Iterator[tuple[RunReport, tuple[str, ...]]]:
    """Open a single run like `open_reports`."""
    with open_reports([name], home, environ) as (reports, warnings):
        yield reports[0], warnings


@contextmanager
def open_reports(
    names: Sequence[str], home: Path | None, environ: Mapping[str, str]
) -> Iterator[tuple[list[RunReport], tuple[str, ...]]]:
    """Open runs for reading until the end of the block, with warnings about the store; names as in `named_report`.

    Raises:
        UsageError: there is no such run or file, or it has no results.
        ConfigError: promptfoo's results have problems.
        StoreError: the database cannot be read.
    """
    if all(map(is_results_file, names)):  # no store is needed, so there may be none
        with RunStore.open_in_memory() as nothing:
            yield [named_report(name, nothing) for name in names], ()
        return
    with open_runs(home, environ) as runs:
        try:
            reports = [named_report(name, runs) for name in names]
        except UsageError as error:
            if runs.warnings:  # a run may be missing because a damaged database was moved aside
                raise UsageError("; ".join((error.message, *runs.warnings)), hint=error.hint) from error
            raise
        yield reports, runs.warnings


def load_report(runs: RunStore, name: str) -> RunReport:
    """Return a stored run in the form that reports read; `name` is an id, its beginning, or `latest`.

    Raises:
        UsageError: no run, or more than one, has this name.
    """
    run, summary = runs.find(name)
    origin = runs.origin(run.id)
    if summary is None:
        spent = origin.spent if origin is not None and origin.spent is not None else {}
        summary = summarized(run, lambda: runs.results(run.id))
        summary = replace(summary, usage=combined(summary.usage, spent, larger))
    planned = None if origin is None else origin.planned
    return RunReport(
        run,
        summary,
        lambda: runs.results(run.id),
        planned=planned,
        labels=lambda: kept_labels_of(runs, run.id),
        tests=lambda: runs.tests(run.id),
    )


def kept_labels_of(runs: RunStore, run_id: str) -> HumanLabels | None:
    """Return the human labels of a stored run's outputs, beside the judge's verdicts; None if there are none."""
    kept = runs.labels().of_run(run_id)
    if not kept:
        return None
    labelled = runs.cases(run_id, {label.case_id for label in kept})
    found: HumanLabels = extra("human labels").beside_judge(labelled.values(), kept)
    return found


def is_results_file(name: str) -> bool:
    """Return whether a name is that of a file rather than of a stored run."""
    return Path(name).suffix.lower() in _ENDINGS
