"""Stored runs, and what a run says to the shell."""

from msgspec.structs import replace

from geval_cli.engine.aggregate import Tally, with_clustered_intervals
from geval_cli.engine.runner import StopReason
from geval_cli.errors import ExitCode
from geval_cli.records import RunStatus, Status
from geval_cli.report.report import RunReport
from geval_cli.service.spending import combined, larger
from geval_cli.store.runs import RunStore


def load_report(runs: RunStore, name: str) -> RunReport:
    """A stored run as the reports read it; `name` is an id, its beginning, or `latest`.

    Raises:
        UsageError: no run, or more than one, has this name.
    """
    run, summary = runs.find(name)
    origin = runs.origin(run.id)
    if summary is None:
        tally = Tally()
        for result in runs.results(run.id):
            tally.add(result)
        spent = origin.spent if origin is not None and origin.spent is not None else {}
        summary = tally.summary()
        if tally.has_clusters:
            summary = with_clustered_intervals(summary, runs.results(run.id))
        summary = replace(summary, usage=combined(tally.usage, spent, larger))
    planned = None if origin is None else origin.planned
    return RunReport(run, summary, lambda: runs.results(run.id), planned=planned)


def exit_code(report: RunReport, stopped_by: StopReason | None = None) -> ExitCode:
    """What a run says to the shell (GEVAL.md, section 4)."""
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
    """Where there are gates, they decide in place of all-must-pass."""
    statuses = {gate.status for gate in report.summary.gates}
    if Status.FAILED in statuses:
        return ExitCode.FAILED
    if Status.ERROR in statuses or report.run.status is not RunStatus.COMPLETED:
        return ExitCode.NOT_JUDGED
    return ExitCode.OK
