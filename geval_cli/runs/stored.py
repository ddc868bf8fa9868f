"""Runs by name: stored ones, and results files: those that `geval run -o` wrote are read result by result."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import ConfigError, UsageError
from geval_cli.gateway.budget import combined, larger
from geval_cli.plugins import extra
from geval_cli.records import (
    CaseResult,
    Column,
    ProviderRef,
    RenderedPrompt,
    RunRecord,
    RunStatus,
    RunSummary,
    run_record_from_json,
    run_summary_from_json,
)
from geval_cli.report.report import HumanLabels, RunReport
from geval_cli.runs.import_run import (
    UNREADABLE,
    ResultsReader,
    ResultsRow,
    newer_version,
    read_importable,
    summarized,
)
from geval_cli.source.access import TRUSTED, Access
from geval_cli.source.files import PARQUET_SUFFIX
from geval_cli.store.run_pages import read_case_result
from geval_cli.store.runs import RunStore
from geval_cli.store.state import open_runs

_ENDINGS = (".json", ".jsonl", PARQUET_SUFFIX)
T = TypeVar("T")
_HINT = "use a file that `geval run -o FILE` wrote, or a run from `geval list`"


_NAMELESS = RunRecord(
    id="",
    status=RunStatus.COMPLETED,
    started_at="",
    finished_at=None,
    duration_ms=None,
    tool_version="",
    config_path="",
    config_digest="",
    config=None,
)
"""The run of results without one."""


class _Place(Struct):
    """The column of a result."""

    column: int
    prompt: RenderedPrompt
    provider: ProviderRef


_PLACES = msgspec.json.Decoder(_Place)


def named_report(name: str, runs: RunStore, access: Access = TRUSTED) -> RunReport:
    """Return the run that `name` means: an id, its beginning, `latest`, `latest~1`, or the path of a results file.

    A results file is one that `geval run -o` wrote (.json, .jsonl, .parquet), or promptfoo's results of version 3.

    Raises:
        UsageError: there is no such run or file, or it holds no results.
        ConfigError: promptfoo's results have problems; all of them, with their places.
        StoreError: stored runs cannot be read.
    """
    if is_results_file(name):
        # The name of the file stands for an id that it lacks.
        report = read_results_file(Path(name), access)
        path = Path(name)
        run = report.run if report.run.id else replace(report.run, id=path.name)
        summary = report.summary if report.run.id else summarized(run, report.results)
        return replace(report, run=run, summary=summary, file=str(path))
    return load_report(runs, name)


@contextmanager
def open_report(
    name: str, home: Path | None, environ: Mapping[str, str]
) -> Iterator[tuple[RunReport, tuple[str, ...]]]:
    """Open one run as `open_reports` does."""
    with open_reports([name], home, environ) as (reports, warnings):
        yield reports[0], warnings


@contextmanager
def open_reports(
    names: Sequence[str], home: Path | None, environ: Mapping[str, str]
) -> Iterator[tuple[list[RunReport], tuple[str, ...]]]:
    """Open runs for reading, until the end of the block, with warnings about the store; names as in `named_report`.

    Raises:
        UsageError: there is no such run or file, or it holds no results.
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
    """Return a stored run as the reports read it; `name` is an id, its beginning, or `latest`.

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
    """Return what people said of the outputs of a stored run; None where nobody did."""
    kept = runs.labels().of_run(run_id)
    if not kept:
        return None
    labelled = runs.pages().cases(run_id, {label.case_id for label in kept})
    found: HumanLabels = extra("human labels").beside_judge(labelled.values(), kept)
    return found


def is_results_file(name: str) -> bool:
    """Return whether a name is that of a file, and not of a stored run."""
    return Path(name).suffix.lower() in _ENDINGS


def read_results_file(path: Path, access: Access = TRUSTED) -> RunReport:
    """Return the run in a file; its results are read anew each time, and never all held.

    A .jsonl file holds results only: the id of its run is empty then. Promptfoo's results are held.

    Raises:
        UsageError: the file cannot be read, or holds no results; going through the results may raise it, too.
        ConfigError: promptfoo's results have problems.
    """
    file = _opened(path, access)
    if file.is_foreign:
        imported = read_importable(path, access)
        counted = summarized(imported.run, lambda: iter(imported.results))
        return RunReport(imported.run, counted, lambda: iter(imported.results), is_stored=False)
    with _refused(path):
        if newer := newer_version(file.head):
            raise UsageError(f"{path} was written by a newer geval: {newer}", hint="update geval to read it")
        run, summary = _NAMELESS, RunSummary()
        if file.has_run:
            run, summary = run_record_from_json(file.head["run"]), run_summary_from_json(file.head["summary"])
    if not run.columns:
        found: dict[int, Column] = {}
        for item in _read(file, lambda row: _PLACES.decode(row.text)):
            if item.column not in found:
                found[item.column] = Column(item.column, item.prompt.label, item.provider.label)
        columns_in = tuple(found[index] for index in sorted(found))
        run = replace(run, columns=columns_in)
    return RunReport(run, summary, lambda: _read(file, _with_test), is_stored=False)


def _with_test(row: ResultsRow) -> CaseResult:
    result = read_case_result(row.text)
    return replace(result, test=row.find_test(result.test_index) or result.test)


def _opened(path: Path, access: Access) -> ResultsReader:
    with _refused(path):
        return ResultsReader(path, access)


def _read(file: ResultsReader, decode: Callable[[ResultsRow], T]) -> Iterator[T]:
    """Yield what `decode` makes of each result of a file."""
    with _refused(file.path):
        yield from map(decode, file.rows())


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Raise UsageError for what is wrong with a file."""
    try:
        yield
    except OSError as error:
        raise _cannot_read(path, error) from error
    except ConfigError as error:
        raise UsageError(error.problems[0].message, hint=error.problems[0].hint) from error
    except UNREADABLE as error:
        raise UsageError(f"{path} is not a geval results file", hint=_HINT) from error


def _cannot_read(path: Path, error: OSError) -> UsageError:
    hint = "use a run from `geval list`, or a file that `geval run -o FILE` wrote"
    return UsageError(f"cannot read {path}: {(error.strerror or str(error)).lower()}", hint=hint)
