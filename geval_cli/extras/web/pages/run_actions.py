"""A run as its page shows it: how far it is while it is under way, and what can be done with it."""

import os

from anyio import from_thread
from fastapi import Request
from msgspec import Struct

from geval_cli.errors import UsageError
from geval_cli.extras.web.live_run import EventJson, LiveRun, brief_of
from geval_cli.extras.web.live_runs import LiveRuns
from geval_cli.extras.web.pages.routing import link_with, stored_runs
from geval_cli.extras.web.problems_json import RefusedError
from geval_cli.records import RunStatus
from geval_cli.report.report import RunReport
from geval_cli.runs.resume import options_of
from geval_cli.runs.stored import load_report
from geval_cli.specs.dialect import RULES
from geval_cli.store.runs import RunStore

_PROBLEMS_SHOWN = 5
_CONFLICT = 409
_UNFINISHED = (RunStatus.INTERRUPTED, RunStatus.ABORTED)


class RunProgress(Struct, frozen=True):
    """How far a run is that is under way; its counts are those of its report.

    Attributes:
        total: cases that there will be.
        problems: the last cases that did not pass, newest first, as the run's events have them.
        is_stopping: whether it was asked to stop.
        holder: the process that works on it; empty where that is this server.
    """

    total: int
    problems: tuple[EventJson, ...]
    is_stopping: bool = False
    holder: str = ""


class RunActions(Struct, frozen=True):
    """The actions that a run allows.

    Attributes:
        suite_link: the editor of its suite; empty where the suite cannot be edited here.
        can_repeat: whether a run of its config can be started with its options.
        can_resume: whether it ended early and the rest can be done.
        errors: the cases that ended in an error and can be done again.
        lacks: why it can neither be repeated nor resumed; empty where it can.
        is_gone: whether that is because its config is not in the served folder.
    """

    suite_link: str = ""
    can_repeat: bool = False
    can_resume: bool = False
    errors: int = 0
    lacks: str = ""
    is_gone: bool = False


def seen_run(request: Request, run_id: str) -> tuple[RunReport, RunProgress | None]:
    """Return a run by its id, the beginning of it or `latest`, and how far it is; None for one that is over.

    Raises:
        UsageError: no run, or more than one, has this id.
        StoreError: the stored runs cannot be read.
    """
    runs, live_runs = stored_runs(request), _live_runs(request)
    live = live_runs.find(runs.find(run_id).run.id)
    if live is not None:
        return from_thread.run_sync(_seen_live, live, runs)  # it belongs to the event loop
    report = load_report(runs, run_id)
    run = report.run
    if run.status is not RunStatus.RUNNING:
        return report, None
    problems = tuple(brief_of(item) for item in runs.pages().problems(run.id, _PROBLEMS_SHOWN))
    total = max(report.planned or 0, report.summary.total)
    return report, RunProgress(total, problems, holder=runs.holder(run.id) or "another process")


def actions_of(request: Request, report: RunReport) -> RunActions:
    """Return the actions that a run allows."""
    run, runs, folder = report.run, stored_runs(request), request.app.state.settings.folder
    try:
        path = _live_runs(request).config_of(run)
    except RefusedError as error:
        is_gone = error.status != _CONFLICT or (
            run.judged_from is None and not (folder / run.config_path).is_file()
        )
        return RunActions(lacks=f"{error.message}: {error.hint}", is_gone=is_gone)
    origin = runs.origin(run.id)
    covered = {} if origin is None else origin.covered
    options = covered.get("options")
    rules = RULES.get(str(options.get("--dialect"))) if isinstance(options, dict) else None
    is_editable = rules is None or rules.is_editable
    if is_editable:
        suite_link = link_with("/suites/edit", {"path": os.path.relpath(path.resolve(), folder.resolve())})
    else:
        suite_link = ""
    try:
        options_of(covered)
    except UsageError as error:
        return RunActions(suite_link, lacks=f"{error.message}: {error.hint}")
    if run.status is RunStatus.RUNNING:
        return RunActions(suite_link)
    is_unfinished = run.status in _UNFINISHED
    return RunActions(suite_link, can_repeat=True, can_resume=is_unfinished, errors=report.summary.errored)


def _seen_live(live: LiveRun, runs: RunStore) -> tuple[RunReport, RunProgress]:
    run = live.run
    report = RunReport(run, live.summary, lambda: runs.results(run.id), planned=live.total)
    problems = tuple(live.state()["problems"][: -_PROBLEMS_SHOWN - 1 : -1])
    return report, RunProgress(live.total, problems, live.is_stopping)


def _live_runs(request: Request) -> LiveRuns:
    live: LiveRuns = request.app.state.live_runs
    return live
