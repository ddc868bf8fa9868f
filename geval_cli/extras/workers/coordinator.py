"""Coordinate a run that several processes share: assign shards and permits, collect results, reassign lost shards.

Only this process writes to the store; it emits the events of all workers as its own.
"""

import asyncio
import math
import os
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.engine.case import blank_result
from geval_cli.engine.plan import DoneCases, key_of
from geval_cli.engine.runner import EventStream, StopReason, StopSignal
from geval_cli.errors import (
    BudgetError,
    ConfigError,
    GevalError,
    NotDoneError,
    Problem,
    StoppedError,
    UsageError,
)
from geval_cli.events import CaseFinished, Noticed
from geval_cli.extras.lock import NeededSteps, needs_of_plan
from geval_cli.extras.plan import WorkersPlan
from geval_cli.extras.workers.executors import (
    LocalWorkers,
    ShardExecutor,
    WorkerLostError,
    WorkerNotStartedError,
    check_loky,
)
from geval_cli.extras.workers.ray_cluster import RayWorkers, check_cluster, join_cluster
from geval_cli.extras.workers.shards import (
    MOST_LOSSES,
    EventBatch,
    Permit,
    Permits,
    Shard,
    ShardOrder,
    cut,
    shard_size,
)
from geval_cli.extras.workers.worker import CachePlace, WorkerSetup
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.gateway import CallPolicy
from geval_cli.judge.calls import JudgeCalls, LockedSteps
from geval_cli.judge.grading import write_steps
from geval_cli.records import STOPPED, ErrorInfo, WorkerRecord
from geval_cli.runs.options import AUTO, LOCAL
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.runs.resume import ResumedRun, fingerprint
from geval_cli.runs.session import ProviderPool, Session, open_suite_session, request_limit
from geval_cli.store.cache import CacheOfRun, ResponseCache

_SLOWEST = 1 / 64
_QUICKENS = 1.25


def check_workers(prepared: PreparedRun, cache: ResponseCache | None) -> None:
    """Check that several processes can share a run; they find each other's answers in `cache`.

    Raises:
        UsageError: they cannot; the message says why.
    """
    request = prepared.request
    if request.workers is not None and request.ray is not None:
        raise UsageError(
            "--workers cannot be combined with --ray",
            hint="remove --workers: a cluster has one worker per processor",
        )
    option = "--workers" if request.ray is None else "--ray"
    hint = f"remove {option}: one process does this run"
    if request.is_untrusted:  # first: in the sandbox, what the others try is forbidden
        raise UsageError(f"{option} cannot be combined with --untrusted", hint=hint)
    if request.ray is None:
        check_loky()
    else:
        # Only the folder of the first config is sent to a cluster.
        folder = request.config.resolve().parent
        outside = [path for path in request.joined if not path.resolve().is_relative_to(folder)]
        if outside and request.ray != LOCAL:
            hint = f"move it there, or use --ray {LOCAL}"
            raise UsageError(f"--ray sends the folder {folder}, but {outside[0]} is not in it", hint=hint)
        check_cluster(request.ray)
    if prepared.plan.is_serial:
        message = f"{option} cannot run tests that depend on the one before them"
        raise UsageError(message, hint=hint)
    if cache is not None and cache.folder is None:
        message = f"{option} needs a cache on disk, through which its processes share answers"
        raise UsageError(message, hint="free some space, or choose another folder with --cache-dir")


def asked_workers(request: RunRequest) -> int:
    """Return the number of workers requested: those of a cluster, one per processor, or a number.

    Raises:
        UsageError: there is no such cluster.
    """
    if request.ray is not None:
        return join_cluster(request.ray, request.config)
    return os.cpu_count() or 1 if request.workers == AUTO else int(request.workers or 1)


def capped_workers(prepared: PreparedRun, count: int) -> int:
    """Return the number of workers: as requested, but no more than the limit on concurrent requests allows."""
    pool = ProviderPool.of(prepared.suite)
    caps = [pool.get(spec).limits.max_concurrency for spec in prepared.asked]
    return max(1, min([count, request_limit(prepared), *(cap for cap in caps if cap is not None)]))


def planned_workers(prepared: PreparedRun) -> WorkersPlan:
    """Return how several processes would share a run.

    Raises:
        UsageError: they cannot.
    """
    check_workers(prepared, None)
    asked = capped_workers(prepared, asked_workers(prepared.request))
    size = shard_size(prepared.tests, asked)
    shards = math.ceil(prepared.tests / size)
    count = max(1, min(asked, shards))
    return WorkersPlan(count, shards, size, max(1, request_limit(prepared) // count))


class _DistributedRun(Struct):
    """The state of a run shared by workers."""

    prepared: PreparedRun
    events: EventStream
    stop: StopSignal
    budget: Budget
    cache: CacheOfRun
    done: DoneCases
    shards: deque[Shard] = field(default_factory=deque)
    records: list[WorkerRecord] = field(default_factory=list)
    under_way: int = 0
    pace: float = 1.0
    slowings: int = 0
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    noticed: set[str] = field(default_factory=set)
    _permits: Permits | None = None

    @property
    def permits(self) -> Permits:
        """The parts of the budget assigned to workers."""
        if self._permits is None:
            self._permits = Permits(self.budget)
        return self._permits

    async def work(self, worker: int, executor: ShardExecutor) -> None:
        """Have one worker run shards until none are left or the run stops."""
        while (shard := await self._next_shard()) is not None:
            try:
                await self._do(shard, worker, executor)
            finally:
                async with self.news:
                    self.under_way -= 1
                    self.news.notify_all()

    async def _next_shard(self) -> Shard | None:
        """Return the next shard, waiting for shards under way, which may come back; None when all are done."""
        async with self.news:
            while not self.shards and self.under_way and not self.stop.is_requested:
                await self.news.wait()
            if not self.shards or self.stop.is_requested:
                self.news.notify_all()
                return None
            self.under_way += 1
            return self.shards.popleft()

    async def _do(self, shard: Shard, worker: int, executor: ShardExecutor) -> None:
        permit = await self._next_permit()
        if permit is None:
            return
        slowings = self.slowings
        marks = self.done.marks_of(shard.start, shard.stop)
        order = ShardOrder(shard.start, shard.stop, marks, permit, self.pace, is_repeated=shard.losses > 0)

        async def listen(batch: EventBatch) -> None:
            await self._enter(worker, batch)

        try:
            end = await executor.run(worker, order, listen)
        except WorkerLostError as error:
            if isinstance(error, WorkerNotStartedError):
                self.permits.release_claim(permit, requests=0, cost_usd=0.0)
            else:
                self.permits.lose(permit)
            self._lost(shard, worker)
            return
        self.records[worker] = replace(self.records[worker], host=executor.host(worker))
        self.permits.release_claim(permit, requests=end.requests, cost_usd=end.cost_usd)
        was_slowed = slowings != self.slowings
        record = self.records[worker]
        self.records[worker] = replace(record, requests=record.requests + end.requests)
        if end.mistakes:
            raise ConfigError([Problem(text) for text in end.mistakes])
        if end.unpriced is not None:
            self.budget.give_up(end.unpriced)
        if end.is_overloaded and not was_slowed:
            # Once for all shards that were under way: only the new pace shows whether it is still too fast.
            self.pace = max(_SLOWEST, self.pace / 2)
            self.slowings += 1
        elif not end.is_overloaded:
            self.pace = min(1.0, self.pace * _QUICKENS)
        if end.is_out_of_permit:
            self.shards.appendleft(shard)

    async def _next_permit(self) -> Permit | None:
        """Return the permit for the next shard, if needed after others return theirs; None when the run stops."""
        try:
            async with self.news:
                while (permit := self.permits.take()) is None and not self.stop.is_requested:
                    await self.news.wait()
        except BudgetError as error:
            self.stop_paying(error)
            return None
        return permit

    def _lost(self, shard: Shard, worker: int) -> None:
        """Requeue the rest of a shard whose worker was lost; after too many losses, turn its cases into errors."""
        record = self.records[worker]
        self.records[worker] = replace(record, lost=record.lost + 1)
        shard.losses += 1
        if shard.losses <= MOST_LOSSES:
            if not self.stop.is_requested:
                self._notice(f"{record.name} was lost; its unfinished cases are done again")
            self.shards.appendleft(shard)
            return
        plan = self.prepared.plan
        error = ErrorInfo(
            "WorkerLostError",
            f"the process running this case died {shard.losses} times before it finished",
            "it may have run out of memory, or code of the config may have ended it; try fewer "
            "--workers, or none",
        )
        for test in self.prepared.suite.tests:
            if shard.start <= test.index < shard.stop:
                for job in self.done.missing(list(plan.jobs_of(test))):
                    result = replace(blank_result(job), error=error, test_key=key_of(job.test))
                    self.done.add(result)
                    self.events.emit(CaseFinished(result))

    async def _enter(self, worker: int, batch: EventBatch) -> None:
        """Emit a worker's events as events of the run; results that are already known are skipped."""
        if batch.answers:  # kept before anything uses them
            await self.cache.put_many(batch.answers)
        numbers = len(self.records)
        record = self.records[worker]
        for call in batch.calls:
            self.events.emit(replace(call, call=call.call * numbers + worker))
        for request in batch.requests:
            self.events.emit(replace(request, call=request.call * numbers + worker))
        for begun in batch.begun:
            self.events.emit(begun)
        for text in batch.notices:
            self._notice(text)
        new = [result for result in batch.results if not self.done.has(result)]
        for result in new:
            self.done.add(result)
            self.events.emit(CaseFinished(result))
        self.records[worker] = replace(record, cases=record.cases + len(new))
        if self.budget.is_ended:
            try:
                self.budget.check()
            except BudgetError as error:
                self.stop_paying(error)
        await self.events.wait_for_room()

    def _notice(self, text: str) -> None:
        """Show a notice once, however many workers report it."""
        if text not in self.noticed:
            self.noticed.add(text)
            self.events.emit(Noticed(text))

    def stop_paying(self, error: BudgetError) -> None:
        """Stop the run because its budget is used up."""
        if self.stop.reason is not StopReason.BUDGET:
            self.events.emit(Noticed(f"{STOPPED}{error.message} ({error.hint})"))
        self.stop.request(StopReason.BUDGET)


async def run_in_workers(
    prepared: PreparedRun,
    cache: ResponseCache,
    events: EventStream,
    stop: StopSignal,
    resumed: ResumedRun | None,
    policy: CallPolicy,
) -> tuple[WorkerRecord, ...]:
    """Run the cases in several processes, and return a record of each worker's share.

    Raises:
        ConfigError: the tests changed since they were checked and can no longer be read.
    """
    try:
        if resumed is not None:
            cache.begin_at(resumed.started_s)
        before = () if resumed is None else resumed.run.workers
        began_s = cache.now() if resumed is None else resumed.started_s
        shared = cache.used_by(policy.run_id)
        if resumed is not None:
            done_before = resumed.done
        else:
            done_before = DoneCases(repeats=prepared.plan.repeats, columns=len(prepared.plan.columns))
        run = _DistributedRun(prepared, events, stop, policy.budget, shared, done_before)
        steps = await _ask_for_steps(run, cache, policy, began_s)
        if steps is None or cache.folder is None:
            return before
        count = capped_workers(prepared, await asyncio.to_thread(asked_workers, prepared.request))
        run.shards.extend(await asyncio.to_thread(_shards_of, prepared, count))
        count = max(1, min(count, len(run.shards)))
        setup = WorkerSetup(
            request=prepared.request.for_workers,
            is_in_rows=prepared.plan.is_in_rows,
            covered=fingerprint(prepared),
            run_id=policy.run_id or "",
            began_s=began_s,
            is_resumed=resumed is not None,
            reads_since_s=0.0 if prepared.reads_cache else began_s,
            cache=CachePlace(cache.folder, cache.ttl_s, cache.is_read_only),
            workers=count,
            steps=steps,
        )
        address = prepared.request.ray
        executor: ShardExecutor
        if address is None:
            executor = LocalWorkers(setup)
        else:
            executor = RayWorkers(setup, address)
            await executor.take_over()
        run.records += [
            WorkerRecord(f"worker {number + 1}", executor.host(number)) for number in range(count)
        ]
        watching = [
            asyncio.ensure_future(_pass_on_stop(run.stop, executor, run.news)),
            asyncio.ensure_future(_pass_on_hurry(run.stop, executor)),
        ]
        working = [asyncio.ensure_future(run.work(number, executor)) for number in range(count)]
        try:
            await asyncio.gather(*working)
        finally:
            for task in (*working, *watching):
                task.cancel()
            await asyncio.gather(*working, *watching, return_exceptions=True)
            await executor.aclose()
        return _with_earlier_totals(before, run.records)
    finally:
        events.end()


def _with_earlier_totals(
    before: Sequence[WorkerRecord], now: Sequence[WorkerRecord]
) -> tuple[WorkerRecord, ...]:
    """Return the totals of a run's workers, including those of earlier processes of the run."""
    known = {(worker.name, worker.host): worker for worker in before}
    for worker in now:
        earlier = known.get((worker.name, worker.host), WorkerRecord(worker.name, worker.host))
        known[worker.name, worker.host] = WorkerRecord(
            worker.name,
            worker.host,
            earlier.cases + worker.cases,
            earlier.requests + worker.requests,
            earlier.lost + worker.lost,
        )
    return tuple(known.values())


async def _pass_on_stop(stop: StopSignal, executor: ShardExecutor, news: asyncio.Condition) -> None:
    await stop.wait()
    executor.stop(stop.reason or StopReason.REQUEST)
    async with news:
        news.notify_all()


async def _pass_on_hurry(stop: StopSignal, executor: ShardExecutor) -> None:
    await stop.wait_for_urgency()
    executor.hurry()


def _shards_of(prepared: PreparedRun, workers: int) -> list[Shard]:
    size = shard_size(prepared.tests, workers)
    return cut((test.index for test in prepared.suite.tests), size)


async def _ask_for_steps(
    run: _DistributedRun, cache: ResponseCache, policy: CallPolicy, began_s: float
) -> LockedSteps | None:
    """Generate the evaluation steps that several tests need, so that all workers judge by the same steps.

    Steps of judges that share an id but differ in parameters are not returned: workers find them in the cache. A judge
    that does not answer is skipped; the cases that need it report the error. None if the run stops meanwhile.
    """
    prepared = run.prepared
    needs = await asyncio.to_thread(
        needs_of_plan,
        prepared.plan,
        prepared.templates,
        prepared.defaults,
        with_variables=True,
    )
    known = prepared.locked_steps
    shared = [item for key, item in needs.found.items() if needs.uses[key] > 1 and key not in known]
    async with open_suite_session(
        prepared, cache, policy, on_event=run.events.emit, began_s=began_s
    ) as session:
        asking = asyncio.gather(*(_steps_of(item, session) for item in shared), return_exceptions=True)
        hurrying = asyncio.ensure_future(run.stop.wait_for_urgency())
        try:
            ends: set[asyncio.Future[Any]] = {asking, hurrying}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done() or run.stop.is_requested:
                return None
            found = asking.result()  # of all of them: what was asked beside one that failed is paid for, too
            for item in found:
                if isinstance(item, BaseException):
                    raise item
            judges = Counter(judge.public_id for judge in prepared.judges)
            return {
                needed.key: steps
                for needed, steps in zip(shared, found, strict=True)
                if isinstance(steps, tuple) and steps and judges[needed.judge.public_id] == 1
            }
        except StoppedError:
            return None
        except BudgetError as error:
            run.stop_paying(error)
            return None
        finally:
            asking.cancel()
            hurrying.cancel()
            await asyncio.gather(asking, hurrying, return_exceptions=True)


async def _steps_of(needed: NeededSteps, session: Session) -> tuple[str, ...]:
    """Return the steps for a criterion; empty if the judge did not answer."""
    try:
        calls = JudgeCalls(session.model_for(needed.judge), session.memory)
        return await write_steps(needed.criteria, needed.params, calls)
    except NotDoneError:
        raise
    except GevalError:
        return ()
