"""Runs a prepared suite: events go to a listener, results into the store as they come.

`run_evaluation` starts and ends the run, `JobRunner` runs its jobs, `with_verdicts` judges it as a whole.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import MergedTest, ModelGradedAssertion, each_assertion
from geval_cli.assertions.judges import judges_of
from geval_cli.engine.aggregate import Notices, Tally, derive, derive_by_column
from geval_cli.engine.case import ComparisonGroups
from geval_cli.engine.columns import with_columns, with_figures
from geval_cli.engine.gates import judge_gates
from geval_cli.engine.plan import DoneCases, Job
from geval_cli.engine.runner import EventSink, EventStream, StopReason, StopSignal, run_plan
from geval_cli.errors import (
    BudgetError,
    ConfigError,
    ExitCode,
    PendingError,
    StoppedError,
    StoreError,
)
from geval_cli.events import CaseFinished, CaseStarted, Noticed, RunEvent, RunFinished, RunStarted
from geval_cli.gateway.budget import AGAIN_HINT, RESUME_HINT, Budget, Spending
from geval_cli.gateway.call import CASE_OF_TRACE, KEYS_OF_CASE, OPEN_CASE, OpenCase
from geval_cli.gateway.gateway import BatchStart, CallPolicy
from geval_cli.numbers import format_cost
from geval_cli.plugins import extra
from geval_cli.providers.base import Provider
from geval_cli.records import (
    STOPPED,
    TEST_TEXTS,
    CaseResult,
    GateResult,
    JsonValue,
    RecordedTest,
    RunRecord,
    RunStatus,
    RunSummary,
    Status,
    Usage,
    WorkerRecord,
)
from geval_cli.report.report import RunReport
from geval_cli.runs.baseline import baseline_name, gates_of
from geval_cli.runs.prepare import asks_for_money
from geval_cli.runs.record import begun_run, ended_run, is_dirty
from geval_cli.runs.requests import PreparedRun
from geval_cli.runs.resume import ResumedRun, done_cases
from geval_cli.runs.session import (
    ProviderPool,
    Session,
    call_policy,
    job_context,
    open_suite_session,
    request_limit,
    safe_result,
)
from geval_cli.runs.stored import kept_labels_of
from geval_cli.source.files import FILE_PART, hash_or_reason
from geval_cli.store.cache import ResponseCache
from geval_cli.store.database import unsent
from geval_cli.store.runs import Recording, ToolCallLog
from geval_cli.store.state import State
from geval_cli.suite.gates import Gate
from geval_cli.suite.test_files import fits_in_memory

# More jobs than requests in flight: while one job judges, another already calls its model
JOBS_PER_REQUEST = 2

READ_ROW_BY_ROW = frozenset({".csv", ".tsv", ".jsonl", ".ndjson", ".xlsx", ".xlsm", ".parquet"})
"""Files of tests that are read during a run."""

_CLOSING_S = 5.0  # added to the timeout of a request
_TESTS_KEPT = 64


async def run_evaluation(
    prepared: PreparedRun,
    state: State,
    *,
    listen: Callable[[RunEvent], None],
    stop: StopSignal,
    resumed: ResumedRun | None = None,
) -> RunReport:
    """Run a prepared suite: every event goes to `listen`, every result into the store as it comes.

    With `resumed`, an earlier run is resumed: only what it lacks is done, and the report covers all of it.

    After `stop`, the run ends early and is `interrupted`; finished cases are stored and in the report. If its budget is
    used up, or if the tests can no longer be read as they were checked, it also ends early and is `aborted`; cases that
    the budget did not allow have no result. If the store fails, no result is lost: the report says so and holds all of
    them. But nothing more is sent that costs money, since the next run would have to pay for it again.

    Raises:
        StoreError: the run may cost money and there is no room for its results; nothing was sent.
        UsageError: the baseline cannot be read or is unrelated, or the run's batches could not be found again; nothing
            was sent.
        ConfigError: a gate is on a metric that the baseline lacks; nothing was sent.
    """
    request = prepared.request
    started = time.monotonic()
    run, origin = begun_run(prepared, resumed)
    baseline = None
    if baseline_name(request, prepared.suite, prepared.plan.columns) is not None:
        baseline = await asyncio.to_thread(
            extra("comparison of runs").open_baseline, prepared, state.runs, run.id
        )
    begin_batches: BatchStart | None = None
    if request.batched_roles or resumed is not None:
        begin_batches = await extra("batches").batch_start(
            prepared, state, run, is_resumed=resumed is not None
        )
    decisions = await asyncio.to_thread(_open_decisions, prepared, baseline, state, resumed)
    if decisions is not None and decisions.is_enough and not request.retry_errors:
        stop.request(StopReason.DECIDED)
    hint = AGAIN_HINT if request.judged else RESUME_HINT
    evaluation = _Evaluation(
        prepared,
        state,
        stop,
        resumed,
        run,
        recording=Recording(state.runs, run, origin, is_resumed=resumed is not None),
        budget=request.budget or Budget(request.max_cost, request.max_requests, hint=hint),
    )
    if resumed is not None:
        evaluation.tally = resumed.kept
        evaluation.spending = Spending(dict(resumed.kept.usage), resumed.carried)
    await evaluation.begin()
    policy = call_policy(prepared, evaluation.budget, run.id, begin_batches, stop.wire)
    running = asyncio.ensure_future(evaluation.do_jobs(policy))
    dirty = None
    if resumed is None and run.git is not None:
        # git runs alongside, since it may take a while; its answer is in the record of the run's end.
        dirty = asyncio.ensure_future(is_dirty(prepared.suite.base_dir, prepared.suite.access))
    status = RunStatus.ABORTED  # stays if an error ends the block below
    try:
        listen(RunStarted(run, prepared.total - (0 if resumed is None else len(resumed.done))))
        async for event in evaluation.events:
            # Store it before it is counted and shown: a resumed run must find whatever the user saw.
            await evaluation.enter(event)
            if isinstance(event, CaseFinished):
                if request.fail_fast and event.result.status in (Status.FAILED, Status.ERROR):
                    stop.request(StopReason.FAIL_FAST)
                if decisions is not None:
                    decisions.add(event.result)
                    if decisions.is_enough:
                        stop.request(StopReason.DECIDED)
            listen(event)
        await running
        if decisions is not None and stop.reason is StopReason.DECIDED:
            for result in decisions.rest():
                decisions.add(result)
                await evaluation.enter(CaseFinished(result))
                listen(CaseFinished(result))
        status = evaluation.final_status()
    except ConfigError as error:
        evaluation.notices.say(_what_changed(error))
    except asyncio.CancelledError:
        status = RunStatus.INTERRUPTED
        raise
    finally:
        # Close the run in the store even after Ctrl-C or an error, or it would look as if it were in progress.
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if dirty is not None and run.git is not None:
            run = replace(run, git=replace(run.git, dirty=await dirty))
        if not running.cancelled() and running.exception() is None:
            run = replace(run, workers=running.result())
        if evaluation.driver is not None or run.batches:
            batches = extra("batches").run_batches(state.cache, run.id, run.batches, evaluation.driver)
            run = replace(run, batches=await batches)
        if evaluation.anchors is not None:
            run = replace(run, anchors=evaluation.anchors)
        stopped = () if decisions is None else decisions.notes()
        notices = (*evaluation.notices.texts, *stopped, *prepared.suite.calibrations.notes())
        run = ended_run(run, status, lasted_s=time.monotonic() - started, notices=notices)
        await evaluation.recording.settle()
        summary = await asyncio.to_thread(
            with_verdicts, evaluation.sums(), prepared, evaluation.recording.results, run, baseline, decisions
        )
        await evaluation.recording.finish(run, summary)
    run = _with_store_trouble(run, evaluation.recording, summary.total)
    listen(RunFinished(run, summary))
    is_stored = evaluation.recording.failure is None
    return RunReport(
        run,
        summary,
        evaluation.recording.results,
        planned=prepared.total,
        bugs=evaluation.tally.bugs,
        is_stored=state.keeps_runs and is_stored,
        is_partly_stored=state.keeps_runs and not is_stored,
        # A new run has no labels yet.
        labels=lambda: None if resumed is None else kept_labels_of(state.runs, run.id),
    )


class _Evaluation(Struct):
    """A run in progress: its jobs, and its sums, which are stored with it.

    `driver` is set while the jobs run, if anything is sent in batches; `anchors` once they were judged. `rewritten` is
    the file of tests that had another content when all of them had been read.
    """

    prepared: PreparedRun
    state: State
    stop: StopSignal
    resumed: ResumedRun | None
    run: RunRecord
    recording: Recording
    budget: Budget
    tally: Tally = field(default_factory=Tally)
    spending: Spending = field(default_factory=Spending)
    notices: Notices = field(default_factory=Notices)
    events: EventStream = field(default_factory=EventStream)
    driver: Any = None
    anchors: JsonValue = None
    rewritten: str = ""

    async def begin(self) -> None:
        """Store the beginning of the run.

        Raises:
            StoreError: its results could not be stored, and it may cost money.
        """
        if not asks_for_money(self.prepared):
            await self.recording.begin(self.run)
            return
        failure = self.state.no_room
        try:
            if failure is None:
                await asyncio.to_thread(self.state.runs.make_room)
                await self.recording.begin(self.run)
                failure = self.recording.failure
        except StoreError as error:
            failure = error
        if failure is not None:
            raise unsent(failure) from failure

    async def enter(self, event: RunEvent) -> None:
        """Store the content of `event`, then count it."""
        self.notices.add(event)
        if isinstance(event, CaseFinished):
            await self.recording.add(event.result)
            self.tally.add(event.result)
            failure = self.recording.failure
            if failure is not None and self.spending.has_cost:
                # Results are still held in memory, but a crash would lose them: no more money is risked.
                message = f"{failure.message}, so further answers would be paid for but not stored"
                self.budget.end(message, hint=f"{failure.hint}; then continue")
        elif self.spending.add(event) and self.spending.is_note_due():
            self.recording.note_spent(self.spending.total)

    def final_status(self) -> RunStatus:
        """Return the status of the run, whose jobs have ended."""
        total = self.tally.summary().total
        planned = self.prepared.total
        if self.stop.is_requested and total < planned:
            return RunStatus.ABORTED if self.stop.reason is StopReason.BUDGET else RunStatus.INTERRUPTED
        if total == planned and not self.rewritten:
            return RunStatus.COMPLETED
        what = (
            f"{self.rewritten} was written" if total == planned else f"{total:,} cases instead of {planned:,}"
        )
        # Tests that were checked but never run have no verdict; additional ones have.
        self.notices.say(f"{STOPPED if total <= planned else ''}the tests changed during the run: {what}")
        return RunStatus.ABORTED if total <= planned else RunStatus.COMPLETED

    def _noting_other_tests(self, queue: Iterable[Job]) -> Iterator[Job]:
        """Yield the jobs of a queue, then set `rewritten` if some may be of a later version of the tests."""
        yield from queue
        suite, since = self.prepared.suite, self.prepared.request.made_s
        named = (
            (suite.base_dir / part.removeprefix(FILE_PART), known) for part, known in suite.parts.items()
        )
        read = [item for item in named if item[0].suffix.lower() in READ_ROW_BY_ROW and item[0].is_file()]
        are_kept = all(fits_in_memory(path) for path, _ in read)  # in memory, since they were checked
        for path, known in () if are_kept else read:
            # One that was only saved again has the same content.
            if path.stat().st_mtime > since and hash_or_reason(path, suite.access) != known:
                self.rewritten = path.name

    def sums(self) -> RunSummary:
        """Return the sums of all results, and the cost of the run."""
        sums = self.tally.summary()
        derived = derive(self.prepared.suite.derived_metrics, sums)
        return replace(sums, derived=derived, usage=self.spending.with_results(self.tally.usage))

    async def do_jobs(self, policy: CallPolicy) -> tuple[WorkerRecord, ...]:
        """Have the judges rate the anchors of the config, then run all jobs, here or in workers."""
        prepared, cache = self.prepared, self.state.cache
        # A resumed run already has the scores of its anchors, unless it was stopped while they were judged.
        has_looked = self.run.anchors is not None and not self.run.anchors.get("stopped")
        try:
            if prepared.anchors is not None and not has_looked:
                self.anchors = await extra("drift").look_before_run(
                    prepared, cache, policy, self.events.emit, home=self.state.runs.home
                )
            if not prepared.request.is_shared:
                await self._do_jobs_here(policy)
                return self.run.workers
            in_workers = extra("workers").run_in_workers
            return await in_workers(prepared, cache, self.events, self.stop, self.resumed, policy)  # type: ignore[no-any-return]
        finally:
            self.events.end()

    async def _do_jobs_here(self, policy: CallPolicy) -> None:
        """Run all jobs; those that wait for batches are run again until no answer is missing."""
        prepared, events, stop, resumed = self.prepared, self.events, self.stop, self.resumed
        cache = self.state.cache
        calls = self.state.runs.tool_calls(self.run.id)
        if resumed is not None:
            # Answers that the run received since it began count as its own, even if the clock was set back.
            cache.begin_at(resumed.started_s)
        began = cache.now() if resumed is None else resumed.started_s
        parallel = 1 if prepared.plan.is_serial else request_limit(prepared) * JOBS_PER_REQUEST
        async with open_jobs(prepared, cache, events, policy, began_s=began, calls=calls) as runner:
            driver = self.driver = runner.session.gateway.batches
            stop.patience_s = max_answer_s(prepared, runner.session.pool)
            done = None if resumed is None else resumed.done
            if done is None and driver is not None:
                done = done_cases(prepared)

            def carry(job: Job) -> None:
                if resumed is not None and prepared.plan.is_serial:
                    stored = self.state.runs.cases(resumed.run.id, [job.id])
                    extra("conversations").carry(job, stored.get(job.id), runner.groups.context)

            async def run_pass() -> bool:
                runner.begin_pass()
                work = _JobPass(runner, stop, None if driver is None else done)
                whole = map(self._noting_other_tests, prepared.plan.queues)
                queues = [one if done is None else done.missing(one, carry) for one in whole]
                await run_plan(queues, work.execute, parallel=parallel, events=events, stop=stop)
                return work.is_pending

            if driver is None:
                await run_pass()
            else:
                await extra("batches").run_in_waves(driver, run_pass, stop=stop, events=events)


class JobRunner(Struct, frozen=True):
    """A runner of a run's jobs, one call of `execute` each. Belongs to one event loop; `open_jobs` creates it."""

    prepared: PreparedRun
    events: EventSink
    session: Session
    groups: ComparisonGroups
    rows: dict[str, OpenCase] = field(default_factory=dict)
    """The cases of tests whose outputs are compared, by group, until the last output of the group is done."""
    safe_tests: dict[int, RecordedTest] = field(default_factory=dict)
    """The latest tests without secrets, so that a long document is searched once and not for every column."""

    def begin_pass(self) -> None:
        """Begin a pass over the jobs: groups that waited for a batch are done again as a whole."""
        self.session.gateway.begin_pass()
        self.rows.clear()
        self.groups.forget()

    async def execute(
        self, job: Job, *, stop: StopSignal, note: Callable[[Sequence[CaseResult]], None] | None = None
    ) -> CaseResult | None:
        """Run one job and return its result; other results of its row are emitted as events. None: no final result yet.

        When the budget is used up, `stop` is requested, and the job stays undone. `note` is called with all results.

        Raises:
            PendingError: an answer will come with a batch, and the job stays undone.
        """
        request = self.prepared.request
        if request.otel and request.has_collector():
            CASE_OF_TRACE.set(job.id)  # for the task of this job, and for the tasks that it starts
            self.events.emit(CaseStarted(job.id, time.time()))
        is_compared = any(spec.compares_outputs for spec in job.test.assertions)
        case = self._case_of(job, is_compared=is_compared)
        OPEN_CASE.set(case)
        is_over = True
        try:
            found = await self.groups.run(job)
            is_over = not is_compared or bool(found)
            case.is_whole = bool(found) and all(result.status is not Status.ERROR for result in found)
        except StoppedError:
            return None
        except BudgetError as error:
            if stop.reason is not StopReason.BUDGET:
                self.events.emit(Noticed(f"{STOPPED}{error.message} ({error.hint})"))
            stop.open_cases = self.session.gateway.cases.begun
            stop.request(StopReason.BUDGET)
            return None
        finally:
            if is_over:
                self.rows.pop(job.group, None)
                self.session.gateway.cases.close(case)
        results = [self._safe(result) for result in found]
        if note is not None:
            note(results)
        for result in results[:-1]:
            self.events.emit(CaseFinished(result))
        return results[-1] if results else None

    def _case_of(self, job: Job, *, is_compared: bool) -> OpenCase:
        """Return the case on whose behalf a job makes calls: that of its whole row if outputs are compared."""
        if is_compared and job.group in self.rows:
            return self.rows[job.group]
        outputs = self.groups.row_size(job) if is_compared else 1
        judged = [
            spec for spec in each_assertion(job.test.assertions) if isinstance(spec, ModelGradedAssertion)
        ]
        is_by_mode = job.prompt.effective_mode == "llm"
        case = OpenCase(
            kind=("row" if is_compared else job.column, *[spec.type for spec in judged]),
            weight=(outputs + 1) // 2,
            answer_calls=outputs * _answer_calls(job.test) if job.generates else 0,
            is_judged=bool(judged) or is_by_mode or job.test.plays_turns,
        )
        if judged:
            case.judges = partial(self._judges, job, judged)
        if self.session.gateway.cases.bounds_requests:
            # Count all judges of a jury; outputs that are compared are judged all at once.
            each = [
                (1 if spec.compares_outputs else outputs)
                * len([*judges_of(spec, job.test, self.prepared.defaults)])
                for spec in judged
            ]
            case.judge_calls = sum(each) + outputs * is_by_mode
        if is_compared:
            self.rows[job.group] = case
        return case

    def _judges(self, job: Job, judged: Sequence[ModelGradedAssertion]) -> Iterator[Sequence[Provider]]:
        """Yield the judges of each assertion of a test."""
        for spec in judged:
            found = tuple(judges_of(spec, job.test, self.prepared.defaults))
            yield [self.session.model_for(judge).provider for judge in found]

    def _safe(self, result: CaseResult) -> CaseResult:
        """Return the result without secrets in its test and its verdicts."""
        result = safe_result(result, self.session.secrets)
        if result.asked is None:
            return result
        known = self.safe_tests.get(result.test_index)
        if known is None:
            hide = self.session.secrets.hide_in
            texts = {name: getattr(result.asked, name) for name in TEST_TEXTS}
            hidden = {name: hide(text) for name, text in texts.items() if text is not None}
            lists = {name: tuple(text) for name, text in hidden.items() if isinstance(text, list)}
            known = replace(result.asked, **{**hidden, **lists})
            if len(self.safe_tests) >= _TESTS_KEPT:
                del self.safe_tests[next(iter(self.safe_tests))]
            self.safe_tests[result.test_index] = known
        return replace(result, test=known)


def _answer_calls(test: MergedTest) -> int:
    """Return the number of requests before a test's output is judged; with a simulated user, the most it may take."""
    if test.user is None:
        return max(1, len(test.turns))
    judged = len(test.user.assertions)
    opened = test.user.opening is not None
    return test.user.max_turns * (2 + judged) + 1 - opened - judged


@asynccontextmanager
async def open_jobs(
    prepared: PreparedRun,
    cache: ResponseCache,
    events: EventSink,
    policy: CallPolicy,
    *,
    began_s: float,
    calls: ToolCallLog | None = None,
) -> AsyncIterator[JobRunner]:
    """Provide a runner for the jobs of a run until the end of the block.

    Args:
        prepared: the suite.
        cache: where answers are kept.
        events: receives the events of the jobs.
        policy: the rules for requests.
        began_s: when the run began, in seconds since 1970 by the cache's clock.
        calls: records tool calls; None if no tool may be called.
    """
    async with open_suite_session(prepared, cache, policy, on_event=events.emit, began_s=began_s) as session:
        groups = ComparisonGroups(
            replace(job_context(session, prepared), calls=calls), prepared.plan.row_size
        )
        yield JobRunner(prepared, events, session, groups)


class _JobPass(Struct):
    """One pass over the jobs of a run. `done` records each case that has its result, for the next pass."""

    runner: JobRunner
    stop: StopSignal
    done: DoneCases | None
    is_pending: bool = False
    keys_of_group: dict[str, list[str]] = field(default_factory=dict)

    async def execute(self, job: Job) -> CaseResult | None:
        """Run one job; None if it stays undone, or if its result comes with that of another job."""
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
        """Record what is done. The answers of cases that are compared count once the last of the cases is done."""
        gathered = self.keys_of_group.setdefault(job.group, [])
        gathered.extend(keys)
        if not results or self.done is None:
            return
        self.runner.session.gateway.settle(gathered)
        del self.keys_of_group[job.group]
        for result in results:
            self.done.add(result)


def _open_decisions(prepared: PreparedRun, baseline: Any, state: State, resumed: ResumedRun | None) -> Any:
    """Return what a run has to decide, with the results that a resumed run already has; None if it runs to its end."""
    if prepared.plan.drawn is None:
        return None
    decisions = extra("early stopping").Decisions(
        prepared, gates_of(prepared.request, prepared.suite)[0], baseline
    )
    if resumed is not None:
        for result in filter(resumed.done.has, state.runs.results(resumed.run.id)):
            decisions.add(result)
    return decisions


def max_answer_s(prepared: PreparedRun, pool: ProviderPool) -> float:
    """Return the seconds after which every request in flight has been answered or has timed out."""
    limits = [pool.get(spec).limits for spec in prepared.asked]
    return max((limit.timeout_s for limit in limits), default=0.0) + _CLOSING_S


def with_verdicts(
    summary: RunSummary,
    prepared: PreparedRun,
    results: Callable[[], Iterator[CaseResult]],
    run: RunRecord,
    baseline: Any,
    decisions: Any,
) -> RunSummary:
    """Return `summary` with the run's gates, flaky tests, figures and ranks of its columns, and comparison.

    The results are read again for each of these.
    """
    columns = prepared.plan.columns
    if not summary.total and prepared.request.allows_empty:
        return with_columns(summary, columns, (), baseline=None, has_clusters=False)
    gates, max_errors = gates_of(prepared.request, prepared.suite)
    early = decisions if decisions is not None and decisions.has_stopped else None
    asked = results if early is None else lambda: early.asked(results())
    named = prepared.suite.baseline
    try:
        # With one case per test, clusters are single cases, and the intervals of the tally are already right.
        margins = prepared.suite.margins.with_given(prepared.request.margins)
        summary = with_figures(
            summary,
            columns,
            results,
            baseline=None if named is None else named.name,
            has_clusters=prepared.plan.repeats > 1 or len(columns) > 1,
            has_repeats=prepared.plan.repeats > 1,
            margins=margins,
        )
        if prepared.suite.derived_metrics:
            by_column = derive_by_column(prepared.suite.derived_metrics, results(), columns=len(columns))
            summary = replace(summary, derived_by_column=by_column)
        if gates or max_errors is not None:
            spent = sum(summary.usage.values(), Usage())
            judged = _judged(gates, max_errors, asked, run, baseline, prepared.labels, spent)
            summary = replace(summary, gates=judged)
        if early is not None:
            summary = replace(summary, gates=early.with_gates(summary.gates), early_stop=early.early_stop)
        if baseline is not None:
            compared = extra("comparison of runs").compared_with(baseline, run, results, margins)
            summary = replace(summary, baseline=compared)
    # The results cannot be read again: gates are errors then, never passed.
    except StoreError as error:
        unknown = tuple(GateResult(gate.text, Status.ERROR, None, error.message) for gate in gates)
        summary = replace(summary, gates=unknown)
    return summary


def _judged(
    gates: Sequence[Gate],
    max_errors: int | None,
    results: Callable[[], Iterator[CaseResult]],
    run: RunRecord,
    baseline: Any,
    labels: object,
    spent: Usage,
) -> tuple[GateResult, ...]:
    """Return the results of all gates in order, including gates on differences and on true figures."""
    differences = [gate for gate in gates if gate.needs_baseline and not gate.needs_labels]
    found: dict[str, GateResult] = {}
    if differences:
        found |= extra("comparison of runs").judge_differences(differences, baseline, results(), run)
    if estimated := [gate for gate in gates if gate.needs_labels and not gate.needs_baseline]:
        found |= extra("true figures").judge_true_figures(estimated, labels, results, run.id)
    if estimated := [gate for gate in gates if gate.needs_labels and gate.needs_baseline]:
        earlier = None if baseline is None else baseline.earlier
        found |= extra("true differences").judge_true_differences(estimated, labels, earlier, run, results)
    judged = iter(judge_gates(gates, results(), max_errors=max_errors, spent=spent))
    in_order = [found[gate.text] if gate.text in found else next(judged) for gate in gates]
    return (*in_order, *judged)


def _with_store_trouble(run: RunRecord, recording: Recording, total: int) -> RunRecord:
    """Return the record, with a warning if results are not stored: how many, and what they cost."""
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
    first, *others = error.problems
    where = f" ({first.location})" if first.location else ""
    more = f", and {len(others):,} more" if others else ""
    return f"{STOPPED}the tests changed during the run: {first.message}{where}{more}"


def exit_code(report: RunReport, stopped_by: StopReason | None = None) -> ExitCode:
    """Return the exit code of a run. If there are gates, they decide; otherwise every case has to pass."""
    if stopped_by is StopReason.SIGINT:
        return ExitCode.INTERRUPTED
    if stopped_by in {StopReason.SIGTERM, StopReason.SIGHUP}:
        return ExitCode.TERMINATED
    summary = report.summary
    if stopped_by is StopReason.SUBMITTED:
        return ExitCode.PENDING
    if report.bugs:
        return ExitCode.BUG
    statuses = {gate.status for gate in summary.gates}
    if Status.FAILED in statuses or (summary.failed and not statuses):
        return ExitCode.FAILED
    is_judged = Status.ERROR not in statuses if statuses else not summary.errored
    if not is_judged or report.run.status is not RunStatus.COMPLETED:
        return ExitCode.NOT_JUDGED
    return ExitCode.OK  # also for a run without tests: it only starts where that is allowed
