"""Stored runs, and what a run says to the shell."""

from geval_cli.engine.aggregate import Tally
from geval_cli.engine.runner import StopReason
from geval_cli.errors import ExitCode
from geval_cli.records import RunStatus
from geval_cli.report.report import RunReport
from geval_cli.store.runs import RunStore


def load_report(runs: RunStore, name: str) -> RunReport:
    """A stored run as the reports read it; `name` is an id, its beginning, or `latest`.

    Raises:
        UsageError: no run, or more than one, has this name.
    """
    run, summary = runs.find(name)
    if summary is None:
        tally = Tally()
        for result in runs.results(run.id):
            tally.add(result)
        summary = tally.summary()
    return RunReport(run, summary, lambda: runs.results(run.id))


def exit_code(report: RunReport, stopped_by: StopReason | None = None) -> ExitCode:
    """What a run says to the shell (GEVAL.md, section 4)."""
    if stopped_by is StopReason.SIGINT:
        return ExitCode.INTERRUPTED
    if stopped_by is StopReason.SIGTERM:
        return ExitCode.TERMINATED
    summary = report.summary
    if report.bugs:
        return ExitCode.BUG
    if summary.failed:
        return ExitCode.FAILED
    if summary.errored or report.run.status is not RunStatus.COMPLETED:
        return ExitCode.NOT_JUDGED
    return ExitCode.OK if summary.total else ExitCode.USAGE
