"""Read stored runs, and choose a run's exit code."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from geval_cli.engine.aggregate import Tally, with_clustered_intervals
from geval_cli.engine.runner import StopReason
from geval_cli.errors import ExitCode, UsageError
from geval_cli.metrics import with_members
from geval_cli.record_reading import case_result_from_json, run_record_from_json, run_summary_from_json
from geval_cli.records import CaseResult, Column, RunRecord, RunStatus, RunSummary, Status
from geval_cli.report.report import RunReport
from geval_cli.runs.spending import combined, larger
from geval_cli.store.record_text import metrics_of_run
from geval_cli.store.runs import RunOrigin, RunStore
from geval_cli.store.state import open_runs

_RESULTS_LOOKED_AT = 100
_RESULT_FILES = (".json", ".jsonl")


def load_report(runs: RunStore, name: str) -> RunReport:
    """Return a stored run as the reports read it; `name` is an id, its beginning, or `latest`.

    Raises:
        UsageError: no run, or more than one, has this name.
    """
    run, summary = runs.find(name)
    origin = runs.origin(run.id)
    if summary is None:
        spent = origin.spent if origin is not None and origin.spent is not None else {}
        summary = _sums(runs, run.id)
        summary = replace(summary, usage=combined(summary.usage, spent, larger))
    elif origin is not None and _lacks_metrics(summary, runs, run, origin):
        summary = replace(summary, metrics=_sums(runs, run.id).metrics)
    planned = None if origin is None else origin.planned
    return RunReport(run, summary, lambda: runs.results(run.id), planned=planned)


@contextmanager
def open_report(
    name: str, home: Path | None, environ: Mapping[str, str]
) -> Iterator[tuple[RunReport, tuple[str, ...]]]:
    """Open a run for reading, until the end of the block, with warnings about the store.

    `name` is an id, its beginning, `latest`, `latest~1`, or the path of a file that `-o` wrote (.json, .jsonl).

    Raises:
        UsageError: there is no such run or file, or it holds no results.
        StoreError: the database cannot be read.
    """
    path = Path(name)
    if path.suffix.lower() in _RESULT_FILES:
        yield read_report(path), ()
        return
    with open_runs(home, environ) as runs:
        yield load_report(runs, name), runs.warnings


def read_report(path: Path) -> RunReport:
    """Return the run in a results file: a .jsonl file holds only its results.

    Raises:
        UsageError: the file cannot be read, or holds no results.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".json":
            document = json.loads(text)
            results = [case_result_from_json(item) for item in document["results"]]
        else:
            lines = (line for line in text.split("\n") if line.strip())
            document, results = {}, [case_result_from_json(json.loads(line)) for line in lines]
        run = run_record_from_json(document["run"]) if "run" in document else _unknown_run(path, results)
        summary = (
            run_summary_from_json(document["summary"]) if "summary" in document else _summary_of(results)
        )
    except OSError as error:
        hint = "name a run of `geval list`, or a file that `geval run -o FILE` wrote"
        raise UsageError(
            f"cannot read {path}: {(error.strerror or str(error)).lower()}", hint=hint
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        hint = "name a file that `geval run -o FILE` wrote, or a run of `geval list`"
        raise UsageError(f"{path} holds no results of geval", hint=hint) from error
    return RunReport(run, summary, lambda: iter(results), is_stored=False, file=str(path))


def _unknown_run(path: Path, results: Sequence[CaseResult]) -> RunRecord:
    """Return what can be said of a run of which only the results are known."""
    columns = {item.column: Column(item.column, item.prompt.label, item.provider.label) for item in results}
    return RunRecord(
        id=path.name,
        status=RunStatus.COMPLETED,
        started_at="",
        finished_at=None,
        duration_ms=None,
        tool_version="",
        config_path="",
        config_digest="",
        config=None,
        columns=tuple(columns[index] for index in sorted(columns)),
    )


def _summary_of(results: Sequence[CaseResult]) -> RunSummary:
    tally = Tally()
    for result in results:
        tally.add(result)
    return with_clustered_intervals(tally.summary(), iter(results)) if tally.has_clusters else tally.summary()


def _sums(runs: RunStore, run_id: str) -> RunSummary:
    tally = Tally()
    for result in runs.results(run_id):
        tally.add(result)
    summary = tally.summary()
    return with_clustered_intervals(summary, runs.results(run_id)) if tally.has_clusters else summary


def _lacks_metrics(summary: RunSummary, runs: RunStore, run: RunRecord, origin: RunOrigin) -> bool:
    """Return whether the sums are an older geval's, without metrics that results have as they are read today."""
    names = set(metrics_of_run(run.config, origin.covered).values()) - summary.metrics.keys()
    if not names:
        return False
    # Or the tests that have them were left out: no reason to go through all results each time the run is looked at.
    some = islice(runs.results(run.id), _RESULTS_LOOKED_AT)
    return any(item.metric in names for result in some for item, _ in with_members(result.assertions))


def exit_code(report: RunReport, stopped_by: StopReason | None = None) -> ExitCode:
    """Return the exit code of a run (GEVAL.md, section 4)."""
    if stopped_by is StopReason.SIGINT:
        return ExitCode.INTERRUPTED
    if stopped_by in {StopReason.SIGTERM, StopReason.SIGHUP}:
        return ExitCode.TERMINATED
    summary = report.summary
    if report.bugs:
        return ExitCode.BUG
    if summary.gates:
        return _gates_exit_code(report)
    if summary.failed:
        return ExitCode.FAILED
    if summary.errored or report.run.status is not RunStatus.COMPLETED:
        return ExitCode.NOT_JUDGED
    return ExitCode.OK  # a run without tests too: it begins only where that is allowed


def _gates_exit_code(report: RunReport) -> ExitCode:
    """Return where there are gates, they decide in place of all-must-pass."""
    statuses = {gate.status for gate in report.summary.gates}
    if Status.FAILED in statuses:
        return ExitCode.FAILED
    if Status.ERROR in statuses or report.run.status is not RunStatus.COMPLETED:
        return ExitCode.NOT_JUDGED
    return ExitCode.OK
