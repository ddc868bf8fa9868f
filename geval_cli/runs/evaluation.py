"""Run a prepared suite: events go to a listener, results into the store as they come."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.engine.aggregate import Notices, Tally, derive
from geval_cli.engine.plan import DoneCases, Job
from geval_cli.engine.runner import EventStream, StopReason, StopSignal, run_plan
from geval_cli.errors import ConfigError, ExitCode, PendingError, StoreError
from geval_cli.events import CaseFinished, RunEvent, RunFinished, RunStarted
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.call import KEYS_OF_CASE
from geval_cli.gateway.gateway import BatchStart, CallPolicy
from geval_cli.numbers import format_cost
from geval_cli.plugins import extra
from geval_cli.records import (
    STOPPED,
    CaseResult,
    JsonValue,
    RunRecord,
    RunStatus,
    RunSummary,
    Status,
    Usage,
    WorkerRecord,
)
from geval_cli.report.report import RunReport
from geval_cli.runs.baseline import Baseline, open_baseline
from geval_cli.runs.jobs import JOBS_PER_REQUEST, JobRunner, answer_patience_s, open_jobs
from geval_cli.runs.preparation import asks_for_money
from geval_cli.runs.record import begun_run, ended_run, is_dirty, origin_of
from geval_cli.runs.requests import PreparedRun
from geval_cli.runs.resume import ResumedRun, done_cases
from geval_cli.runs.session import call_policy, request_limit
from geval_cli.runs.spending import Spending
from geval_cli.runs.stopping import Decisions
from geval_cli.runs.stored import kept_labels_of
from geval_cli.runs.verdicts import gates_of, with_verdicts
from geval_cli.store.cache import ResponseCache
from geval_cli.store.recording import Recording
from geval_cli.store.state import State
from geval_cli.store.tool_calls import ToolCallLog


async def run_evaluation(
    prepared: PreparedRun,
    state: State,
    *,
    listen: Callable[[RunEvent], None],
    stop: StopSignal,
    resumed: ResumedRun | None = None,
) -> RunReport:
    """Run a prepared suite: every event goes to `listen`, every result into the store as it comes.

    With `resumed` an earlier run is resumed: only what it lacks is done, and the report is of all of it.

    After `stop` the run ends early; what was finished is stored and in the report, and the run is `interrupted`. When
    its budget is used up, or the tests can no longer be read as they were checked, it ends early too and is `aborted`;
    what a budget keeps from being asked has no result. A store that fails loses no result: the report then says so, and
    holds all of them; but nothing more is asked that costs money, as the next run would have to pay for it again.

    Raises:
        StoreError: the run may cost money and there is no room for its results; nothing was asked.
        UsageError: what it is to be compared with cannot be read, or is unrelated; or its batches could not be found
            again; nothing was asked.
        ConfigError: a gate is on a metric that the baseline lacks; nothing was asked.
    """
    run, started = begun_run(prepared, resumed), time.monotonic()
    baseline = await asyncio.to_thread(open_baseline, prepared, state.runs, run.id)
    begin_batches: BatchStart | None = None
    if prepared.request.batched_roles or resumed is not None:
        begin_batches = await extra("batches").batch_start(
            prepared, state, run, is_resumed=resumed is not None
        )
    decisions = await asyncio.to_thread(_open_decisions, prepared, baseline, state, resumed)
    if decisions is not None and decisions.is_enough and not prepared.request.retry_errors:
        stop.request(StopReason.DECIDED)
    events, books = EventStream(), await _begun_books(run, prepared, state, resumed)
    jobs = _Jobs(prepared, state.cache, events, stop, resumed, calls=state.runs.tool_calls(run.id))
    policy = call_policy(prepared, books.budget, run.id, begin_batches, stop.wire)
    # A run that is resumed has the scores of its anchors, unless it was stopped while they were judged.
    has_looked = run.anchors is not None and not run.anchors.get("stopped")
    if prepared.anchors is None or has_looked:
        running = _begin_jobs(jobs, policy)
    else:
        running = asyncio.ensure_future(_with_anchors(jobs, policy, state.runs.home))
    # git is asked beside the run, since it may take a while; what it says is in the record of the run's end.
    dirty = asyncio.ensure_future(_is_dirty(run, prepared)) if resumed is None else None
    status = RunStatus.ABORTED  # holds when an error ends the block below
    try:
        listen(RunStarted(run, prepared.total - (0 if resumed is None else len(resumed.done))))
        async for event in events:
            # Stored before it is counted and shown: what the user saw, a resumed run must find.
            await books.enter(event)
            if prepared.request.fail_fast and _fails(event):
                stop.request(StopReason.FAIL_FAST)
            if decisions is not None and isinstance(event, CaseFinished):
                decisions.add(event.result)
                if decisions.is_enough:
                    stop.request(StopReason.DECIDED)
            listen(event)
        await running
        if decisions is not None and stop.reason is StopReason.DECIDED:
            for result in decisions.rest():
                decisions.add(result)
                await books.enter(CaseFinished(result))
                listen(CaseFinished(result))
        status = _final_status(books.tally, prepared, stop, books.notices)
    except ConfigError as error:
        books.notices.say(_what_changed(error))
    except asyncio.CancelledError:
        status = RunStatus.INTERRUPTED
        raise
    finally:
        # Also after Ctrl-C or an error the run is closed in the store, else it would look as if it were under way.
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        run = _with_workers(await _with_dirt(run, dirty), running)
        stopped = () if decisions is None else decisions.notes()
        notices = (*books.notices.texts, *stopped, *prepared.suite.calibrations.notes())
        if jobs.driver is not None or run.batches:
            batches = extra("batches").run_batches(state.cache, run.id, run.batches, jobs.driver)
            run = replace(run, batches=await batches)
        run = run if jobs.anchors is None else replace(run, anchors=jobs.anchors)
        run = ended_run(run, status, lasted_s=time.monotonic() - started, notices=notices)
        summary = await _concluded(run, books, prepared, baseline, decisions)
    run = _with_store_trouble(run, books.recording, books.tally.summary().total)
    listen(RunFinished(run, summary))
    return RunReport(
        run,
        summary,
        books.recording.results,
        planned=prepared.total,
        bugs=books.tally.bugs,
        is_stored=state.keeps_runs and books.recording.failure is None,
        is_partly_stored=state.keeps_runs and books.recording.failure is not None,
        # Nobody has labelled what is new.
        labels=lambda: None if resumed is None else kept_labels_of(state.runs, run.id),
    )


def exit_code(report: RunReport, stopped_by: StopReason | None = None) -> ExitCode:
    """Return the exit code of a run. Where there are gates, they decide in place of all-must-pass."""
    if stopped_by is StopReason.SIGINT:
        return ExitCode.INTERRUPTED
    if stopped_by in {StopReason.SIGTERM, StopReason.SIGHUP}:
        return ExitCode.TERMINATED
    summary = report.summary
    if stopped_by is StopReason.HANDED_IN:
        return ExitCode.PENDING
    if report.bugs:
        return ExitCode.BUG
    statuses = {gate.status for gate in summary.gates}
    if Status.FAILED in statuses or (summary.failed and not statuses):
        return ExitCode.FAILED
    is_judged = Status.ERROR not in statuses if statuses else not summary.errored
    if not is_judged or report.run.status is not RunStatus.COMPLETED:
        return ExitCode.NOT_JUDGED
    return ExitCode.OK  # a run without tests too: it begins only where that is allowed


class _Jobs(Struct):
    """The jobs of a run and where they report to; `driver` is there while they go on, if anything goes into batches."""

    prepared: PreparedRun
    cache: ResponseCache
    events: EventStream
    stop: StopSignal
    resumed: ResumedRun | None
    driver: Any = None
    anchors: JsonValue = None
    calls: ToolCallLog | None = None


async def _with_anchors(jobs: _Jobs, policy: CallPolicy, home: Path | None) -> tuple[WorkerRecord, ...]:
    """Have the judges rate the anchors of the config, then do all jobs."""
    try:
        jobs.anchors = await extra("drift").look_before_run(
            jobs.prepared, jobs.cache, policy, jobs.events.emit, home=home
        )
    except BaseException:
        jobs.events.end()
        raise
    return await _begin_jobs(jobs, policy)


def _begin_jobs(jobs: _Jobs, policy: CallPolicy) -> "asyncio.Future[tuple[WorkerRecord, ...]]":
    if not jobs.prepared.request.is_shared:
        return asyncio.ensure_future(_run_jobs(jobs, policy))
    run_in_workers = extra("workers").run_in_workers
    done: Awaitable[tuple[WorkerRecord, ...]] = run_in_workers(
        jobs.prepared, jobs.cache, jobs.events, jobs.stop, jobs.resumed, policy
    )
    return asyncio.ensure_future(done)


class _Books(Struct):
    """The sums of a run that goes on, which are stored with it."""

    recording: Recording
    budget: Budget
    tally: Tally
    spending: Spending
    notices: Notices = field(default_factory=Notices)

    async def enter(self, event: RunEvent) -> None:
        """Store what `event` says, then count it."""
        self.notices.add(event)
        if isinstance(event, CaseFinished):
            await self.recording.add(event.result)
            self.tally.add(event.result)
            if self.recording.failure is not None and self.spending.has_cost:
                # Results are still held in memory, but a crash would lose them: no more money is risked.
                _stop_paying(self.budget, self.recording.failure)
        elif self.spending.add(event) and self.spending.is_note_due():
            self.recording.note_spent(self.spending.total)


async def _begun_books(
    run: RunRecord, prepared: PreparedRun, state: State, resumed: ResumedRun | None
) -> _Books:
    """Return the books of a run, stored as it begins; with `resumed` an earlier process has entered something.

    Raises:
        StoreError: its results could not be stored, and it may cost money.
    """
    request = prepared.request
    recording = Recording(state.runs, run, origin_of(prepared), is_resumed=resumed is not None)
    await _begin(recording, run, state, prepared)
    budget = request.budget or Budget(request.max_cost, request.max_requests)
    if resumed is None:
        return _Books(recording, budget, Tally(), Spending())
    return _Books(recording, budget, resumed.kept, Spending(dict(resumed.kept.usage), resumed.carried))


def _open_decisions(
    prepared: PreparedRun, baseline: Baseline | None, state: State, resumed: ResumedRun | None
) -> Decisions | None:
    """Return what a run is to decide, with what a resumed one knows of it; None for one that goes to its end."""
    if prepared.plan.drawn is None:
        return None
    decisions = Decisions(prepared, gates_of(prepared.request, prepared.suite)[0], baseline)
    if resumed is not None:
        for result in filter(resumed.done.has, state.runs.results(resumed.run.id)):
            decisions.add(result)
    return decisions


def _fails(event: RunEvent) -> bool:
    return isinstance(event, CaseFinished) and event.result.status in (Status.FAILED, Status.ERROR)


async def _begin(recording: Recording, run: RunRecord, state: State, prepared: PreparedRun) -> None:
    """Store the run as it begins.

    Raises:
        StoreError: its results could not be stored, and it may cost money.
    """
    if not asks_for_money(prepared):
        await recording.begin(run)
        return
    failure = state.no_room or await _lack_of_room(state)
    if failure is None:
        await recording.begin(run)
        failure = recording.failure
    if failure is not None:
        raise StoreError(
            f"{failure.message}; nothing was sent, because the answers would be paid for but not stored",
            path=failure.path,
            hint=failure.hint,
        ) from failure


async def _is_dirty(run: RunRecord, prepared: PreparedRun) -> bool | None:
    suite = prepared.suite
    return None if run.git is None else await is_dirty(suite.base_dir, suite.access)


async def _with_dirt(run: RunRecord, dirty: "asyncio.Future[bool | None] | None") -> RunRecord:
    """Return the record with what git said about changed files since the run began."""
    if dirty is None or run.git is None:
        return run
    return replace(run, git=replace(run.git, dirty=await dirty))


async def _lack_of_room(state: State) -> StoreError | None:
    try:
        await asyncio.to_thread(state.runs.make_room)
    except StoreError as error:
        return error
    return None


def _stop_paying(budget: Budget, failure: StoreError) -> None:
    message = f"{failure.message}, so further answers would be paid for but not stored"
    budget.end(message, hint=f"{failure.hint}; then continue")


def _with_store_trouble(run: RunRecord, recording: Recording, total: int) -> RunRecord:
    """Return the record with a warning when the store lacks something of the run: how much, and what it cost."""
    if recording.failure is None:
        return run
    unstored = list(recording.unstored)
    usage = sum((used for result in unstored for used in result.usage.values()), Usage())
    cost = "at an unknown cost" if usage.cost_usd is None else f"which cost {format_cost(usage.cost_usd)}"
    stored = f"{total - len(unstored):,} of {total:,} results are"
    what = f": {stored}; the other {len(unstored):,}, {cost}, are shown only now" if unstored else ""
    text = f"{recording.failure.message}; not all of this run is stored{what} ({recording.failure.hint})"
    return replace(run, warnings=(*run.warnings, text))


def _what_changed(error: ConfigError) -> str:
    first, count = error.problems[0], len(error.problems)
    where = f" ({first.location})" if first.location else ""
    more = f", and {count - 1:,} more" if count > 1 else ""
    return f"{STOPPED}the tests changed during the run: {first.message}{where}{more}"


async def _concluded(
    run: RunRecord,
    books: _Books,
    prepared: PreparedRun,
    baseline: Baseline | None,
    decisions: Decisions | None,
) -> RunSummary:
    """Return the summary with the verdicts on the run as a whole in it, stored with the run."""
    sums = books.tally.summary()
    derived = derive(prepared.plan.suite.derived_metrics, sums)
    summary = replace(sums, derived=derived, usage=books.spending.with_results(books.tally.usage))
    results = books.recording.results
    await books.recording.settle()
    summary = await asyncio.to_thread(with_verdicts, summary, prepared, results, run, baseline, decisions)
    await books.recording.finish(run, summary)
    return summary


def _final_status(tally: Tally, prepared: PreparedRun, stop: StopSignal, notices: Notices) -> RunStatus:
    """Return the state of a run whose jobs came to an end."""
    total = tally.summary().total
    if stop.is_requested and total < prepared.total:
        return RunStatus.ABORTED if stop.reason is StopReason.BUDGET else RunStatus.INTERRUPTED
    if total != prepared.total:
        notices.say(f"the tests changed during the run: {total:,} cases instead of {prepared.total:,}")
    return RunStatus.COMPLETED


async def _run_jobs(jobs: _Jobs, policy: CallPolicy) -> tuple[WorkerRecord, ...]:
    """Do all jobs; those whose answers come with batches again and again, until there is nothing more to wait for."""
    prepared, events, stop, resumed = jobs.prepared, jobs.events, jobs.stop, jobs.resumed
    if resumed is not None:
        # What the run has been answered since it began counts as its own, even if the clock was set back.
        jobs.cache.begin_at(resumed.started_s)
    began = jobs.cache.now() if resumed is None else resumed.started_s
    parallel = 1 if prepared.plan.is_serial else request_limit(prepared) * JOBS_PER_REQUEST
    try:
        async with open_jobs(prepared, jobs.cache, events, policy, began_s=began, calls=jobs.calls) as runner:
            driver = jobs.driver = runner.session.gateway.batches
            stop.patience_s = answer_patience_s(prepared, runner.session.pool)
            done = (
                resumed.done if resumed is not None else done_cases(prepared) if driver is not None else None
            )

            async def run_pass() -> bool:
                runner.begin_pass()
                work = _Pass(runner, stop, None if driver is None else done)
                queues = (
                    prepared.plan.queues if done is None else tuple(map(done.missing, prepared.plan.queues))
                )
                await run_plan(queues, work.execute, parallel=parallel, events=events, stop=stop)
                return work.is_pending

            if driver is None:
                await run_pass()
            else:
                await extra("batches").run_in_waves(driver, run_pass, stop=stop, events=events)
        return ()
    finally:
        events.end()


class _Pass(Struct):
    """One pass over the jobs of a run. `done` takes note of each case that has its result, for the next pass."""

    runner: JobRunner
    stop: StopSignal
    done: DoneCases | None
    is_pending: bool = False
    keys_of_group: dict[str, list[str]] = field(default_factory=dict)

    async def execute(self, job: Job) -> CaseResult | None:
        """Do one job; None when it stays undone, or when its result comes with that of another one."""
        if self.done is None:
            return await self.runner.execute(job, stop=self.stop)
        keys: list[str] = []
        KEYS_OF_CASE.set(keys)
        try:
            return await self.runner.execute(job, stop=self.stop, note=partial(self._settle, job, keys))
        except PendingError:
            self.is_pending = True
            return None

    def _settle(self, job: Job, keys: list[str], results: Sequence[CaseResult]) -> None:
        """Note what is done. The answers of cases that are compared count when the last of them is."""
        gathered = self.keys_of_group.setdefault(job.group, [])
        gathered.extend(keys)
        if not results or self.done is None:
            return
        self.runner.session.gateway.settle(gathered)
        del self.keys_of_group[job.group]
        for result in results:
            self.done.add(result)


def _with_workers(run: RunRecord, running: "asyncio.Future[tuple[WorkerRecord, ...]]") -> RunRecord:
    """Return the record with what its workers have done, in earlier processes of the run, too."""
    if running.cancelled() or running.exception() is not None:
        return run
    known = {(worker.name, worker.host): worker for worker in run.workers}
    for worker in running.result():
        before = known.get((worker.name, worker.host), WorkerRecord(worker.name, worker.host))
        known[worker.name, worker.host] = WorkerRecord(
            worker.name,
            worker.host,
            before.cases + worker.cases,
            before.requests + worker.requests,
            before.lost + worker.lost,
        )
    return replace(run, workers=tuple(known.values()))
