"""Read stored runs, and choose a run's exit code."""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from geval_cli.engine.aggregate import Tally
from geval_cli.engine.columns import margins_of, with_columns
from geval_cli.engine.runner import StopReason
from geval_cli.errors import ExitCode
from geval_cli.plugins import extra
from geval_cli.records import CaseResult, JsonValue, RunRecord, RunStatus, RunSummary, Status
from geval_cli.report.report import HumanLabels, RunReport
from geval_cli.runs.spending import combined, larger
from geval_cli.store.runs import RunStore


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


def summarized(run: RunRecord, results: Callable[[], Iterator[CaseResult]]) -> RunSummary:
    """Return the counts of results that have no summary; it goes through them twice."""
    tally = Tally()
    for result in results():
        tally.add(result)
    return with_columns(
        tally.summary(),
        run.columns,
        results(),
        baseline=_baseline(run),
        has_clusters=tally.has_clusters,
        margins=margins_of(run),
    )


def _baseline(run: RunRecord) -> JsonValue:
    return run.config.get("baseline") if isinstance(run.config, dict) else None


def exit_code(report: RunReport, stopped_by: StopReason | None = None) -> ExitCode:
    """Return the exit code of a run (GEVAL.md, section 4)."""
    if stopped_by is StopReason.SIGINT:
        return ExitCode.INTERRUPTED
    if stopped_by in {StopReason.SIGTERM, StopReason.SIGHUP}:
        return ExitCode.TERMINATED
    summary = report.summary
    if stopped_by is StopReason.HANDED_IN:
        return ExitCode.PENDING
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
