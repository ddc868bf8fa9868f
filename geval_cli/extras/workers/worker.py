"""Run the shards of a run in a separate process, with the usual engine and gateway, and report events in batches."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import MergedTest
from geval_cli.engine.plan import DoneCases, Plan
from geval_cli.engine.runner import StopReason, StopSignal, run_plan
from geval_cli.errors import ConfigError, Problem
from geval_cli.events import CaseFinished, CaseStarted, ModelCalled, Noticed, RequestEnded, RunEvent
from geval_cli.extras.workers.shards import (
    LOT_RESULTS,
    EventBatch,
    Permit,
    ShardEnd,
    ShardOrder,
    batch_to_json,
)
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.limits import CapShare
from geval_cli.judge.calls import LockedSteps
from geval_cli.records import STOPPED, JsonValue
from geval_cli.runs import collect_garbage_rarely
from geval_cli.runs.evaluate import JOBS_PER_REQUEST, READ_ROW_BY_ROW, JobRunner, max_answer_s, open_jobs
from geval_cli.runs.prepare import reopened
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.runs.resume import fingerprint
from geval_cli.runs.session import call_policy, request_limit
from geval_cli.store.cache import ResponseCache, StoredChoice

LOT_EVERY_S = 0.05
"""The interval between batches: a lost worker takes at most this much with it; its answers are in the cache anyway."""


class CachePlace(Struct, frozen=True):
    """Where a worker finds the cache of its run, and how it uses it."""

    folder: Path
    ttl_s: float | None
    is_offline: bool


class WorkerSetup(Struct, frozen=True):
    """The facts about a run that its workers need.

    Attributes:
        request: the options of the run; its `environ` is a plain dict.
        is_in_rows: what checking all tests found.
        covered: the fingerprint of the run; the worker's must match.
        run_id: the run.
        began_s: when it started, in seconds since 1970 by the cache's clock.
        is_resumed: whether an earlier process started it.
        reads_since_s: answers stored before this time are requested again; 0 accepts all that have not expired.
        cache: where answers are stored.
        workers: the number of workers, which share all limits.
        steps: evaluation steps generated beforehand, for judges whose answers are not cached.
    """

    request: RunRequest
    is_in_rows: bool
    covered: Mapping[str, JsonValue]
    run_id: str
    began_s: float
    is_resumed: bool
    reads_since_s: float
    cache: CachePlace
    workers: int
    steps: LockedSteps = field(default_factory=dict)


class ShardRunner:
    """Runs shards one after another. Belongs to one event loop; created by `open_runner`."""

    def __init__(
        self,
        prepared: PreparedRun,
        jobs: JobRunner,
        batches: "EventBatcher",
        budget: Budget,
        pace: CapShare,
        look_again: Callable[[], None],
    ) -> None:
        self._prepared = prepared
        self._jobs = jobs
        self._batches = batches
        self._budget = budget
        self._pace = pace
        self._look_again = look_again
        self._tests = RangeReader(prepared)
        self._stop = StopSignal()
        self._patience_s = max_answer_s(prepared, jobs.session.pool)
        self._reason: StopReason | None = None

    async def run(self, order: ShardOrder) -> None:
        """Run the shard of an order, and report in batches; the last one says how it ended."""
        self._stop = StopSignal(wire=self._jobs.session.gateway.wire, patience_s=self._patience_s)
        if self._reason is not None:
            self._stop.request(self._reason)
        spent = self._budget.requests, self._budget.cost_usd
        allow(self._budget, order.permit)
        self._pace.share, overloads = order.pace, self._pace.overloads
        if order.is_repeated:  # another process has paid for some of its answers
            self._look_again()
        mistakes: tuple[str, ...] = ()
        ticking = asyncio.ensure_future(self._batches.send_regularly())
        try:
            prepared, plan = self._prepared, self._prepared.plan
            tests = self._tests.between(order.start, order.stop)
            suite = dataclasses.replace(plan.suite, tests=tests)
            part = Plan(suite, plan.repeats, is_in_rows=plan.is_in_rows)
            done = DoneCases(
                repeats=plan.repeats, columns=len(plan.columns), first_test=order.start, marks=order.done
            )
            at_once = self._pace.part(request_limit(prepared)) or 1
            await run_plan(
                tuple(done.missing(queue) for queue in part.queues),
                partial(self._jobs.execute, stop=self._stop),
                parallel=at_once * JOBS_PER_REQUEST,
                events=self._batches,
                stop=self._stop,
            )
        except ConfigError as error:
            mistakes = mistakes_of(error)
        finally:
            ticking.cancel()
        self._batches.end(
            ShardEnd(
                requests=self._budget.requests - spent[0],
                cost_usd=self._budget.cost_usd - spent[1],
                is_out_of_permit=self._stop.reason is StopReason.BUDGET,
                is_overloaded=self._pace.overloads > overloads,
                unpriced=self._budget.unpriced,
                mistakes=mistakes,
            )
        )

    def stop(self, reason: StopReason) -> None:
        """Start no more jobs of this shard or later ones."""
        self._reason = reason
        self._stop.request(reason)

    def hurry(self) -> None:
        """Stop without waiting for requests under way."""
        self._stop.hurry()


@asynccontextmanager
async def open_runner(
    setup: WorkerSetup, first: Permit, batches: "EventBatcher", cache: ResponseCache | None = None
) -> AsyncIterator[ShardRunner]:
    """Open the suite, the cache and the models of a run for its shards, for the length of the block.

    Args:
        setup: the run.
        first: the permit of the first shard; if it limits the cost, so do those of all shards.
        batches: collects the events.
        cache: an open cache, which stays open; None to open the one that `setup` names.

    Raises:
        ConfigError: the config changed during the run.
        StoreError: the cache cannot be used.
    """
    collect_garbage_rarely()
    prepared = reopened(setup.request, is_in_rows=setup.is_in_rows)
    prepared = replace(prepared, locked_steps={**setup.steps, **prepared.locked_steps})
    if fingerprint(prepared) != setup.covered:
        raise changed_error(setup.request)
    budget, pace = Budget(), CapShare(setup.workers)
    allow(budget, first)
    policy = replace(call_policy(prepared, budget, setup.run_id), pace=pace)
    async with AsyncExitStack() as stack:
        cache = cache or _open_cache(setup.cache, stack)
        if setup.is_resumed:
            cache.begin_at(setup.began_s)
        else:
            await cache.begin_shared(setup.began_s)
        jobs = await stack.enter_async_context(
            open_jobs(prepared, cache, batches, policy, began_s=setup.began_s)
        )
        look_again = partial(cache.begin_at, setup.began_s)
        yield ShardRunner(prepared, jobs, batches, budget, pace, look_again)


def mistakes_of(error: ConfigError) -> tuple[str, ...]:
    """Return the problems of an error in the form of `ShardEnd`: each with its place, if it has one."""
    return tuple(
        problem.message if problem.location is None else f"{problem.message} ({problem.location})"
        for problem in error.problems
    )


def _open_cache(place: CachePlace, stack: AsyncExitStack) -> ResponseCache:
    if place.is_offline:
        return stack.enter_context(ResponseCache.open_read_only(place.folder))
    cache = ResponseCache.open(place.folder, ttl_s=place.ttl_s)
    stack.callback(cache.close)
    return cache


def allow(budget: Budget, permit: Permit) -> None:
    """Raise the limits of `budget` by the permit."""
    requests, cost_usd = permit.max_requests, permit.max_cost_usd
    budget.begun_at = budget.requests
    budget.max_requests = None if requests is None else budget.requests + requests
    budget.max_cost_usd = None if cost_usd is None else budget.cost_usd + cost_usd


class RangeReader:
    """Reads ranges of tests. Ranges mostly ascend, so one pass over the source serves many of them."""

    def __init__(self, prepared: PreparedRun) -> None:
        self._prepared = prepared
        self._source = prepared.suite.tests
        self._files = [path for path in prepared.suite.files if path.suffix.lower() in READ_ROW_BY_ROW]
        self._stamps = list(map(_stamp_of, self._files))
        self._tests: Iterator[MergedTest] = iter(())
        self._next: MergedTest | None = None
        self._position = -1  # every test before this number has been passed

    def between(self, start: int, stop: int) -> list[MergedTest]:
        """Return the tests numbered `start` to `stop`, excluding `stop`.

        Raises:
            ConfigError: they can no longer be read, or their files have changed: numbers would be of other tests.
        """
        if self._position < 0 or start < self._position:
            self._tests = iter(self._source)
            self._next = next(self._tests, None)
        found: list[MergedTest] = []
        while self._next is not None and self._next.index < stop:
            if self._next.index >= start:
                found.append(self._next)
            self._next = next(self._tests, None)
        self._position = stop
        stamps = list(map(_stamp_of, self._files))
        if stamps != self._stamps:  # perhaps only saved again
            again = reopened(self._prepared.request, is_in_rows=self._prepared.plan.is_in_rows)
            if fingerprint(again) != fingerprint(self._prepared):
                raise changed_error(self._prepared.request)
            self._stamps = stamps
        return found


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Return what tells that a file was written again."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def changed_error(request: RunRequest) -> ConfigError:
    """Return the error of a run whose files have changed."""
    message = (
        f"{request.config}, or a file that it uses, has changed since the run started; a function "
        "that makes tests has to return the same ones in each process"
    )
    return ConfigError([Problem(message, None, "do not change the config during a run")])


class EventBatcher:
    """Collects events into batches. The results of one row are always in the same batch."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._batch = EventBatch()

    def emit(self, event: RunEvent) -> None:
        """Add an event to the batch."""
        batch = self._batch
        if isinstance(event, CaseFinished):
            batch.results.append(event.result)
        elif isinstance(event, ModelCalled):
            batch.calls.append(event)
        elif isinstance(event, RequestEnded):
            batch.requests.append(event)
        elif isinstance(event, CaseStarted):
            batch.begun.append(event)
        # Whether the budget of the run is used up is for the coordinator to say, and not for one permit.
        elif isinstance(event, Noticed) and not event.message.startswith(STOPPED):
            batch.notices.append(event.message)

    def share(self, answers: Mapping[str, StoredChoice]) -> None:
        """Add answers for the run's cache."""
        self._batch.answers.update(answers)

    async def wait_for_room(self) -> None:
        """Send a full batch."""
        if len(self._batch.results) >= LOT_RESULTS:
            self._flush()

    async def send_regularly(self) -> None:
        """Send collected events at regular intervals, until cancelled."""
        while True:
            await asyncio.sleep(LOT_EVERY_S)
            self._flush()

    def end(self, end: ShardEnd) -> None:
        """Send the last batch of a shard."""
        self._batch.end = end
        self._flush()

    def _flush(self) -> None:
        if not self._batch.is_empty:
            batch, self._batch = self._batch, EventBatch()
            self._send(batch_to_json(batch))
