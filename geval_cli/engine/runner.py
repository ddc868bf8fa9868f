"""Runs a plan as a stream of events: jobs run concurrently, and stop cleanly on request."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct, field

from geval_cli.engine.plan import Job
from geval_cli.events import CaseFinished, RunEvent
from geval_cli.gateway.call import Wire
from geval_cli.numbers import plural
from geval_cli.records import CaseResult

GRACE_S = 2.0
"""How many seconds jobs under way may still compute after the first Ctrl-C, once no request is on the wire."""

_CROWDED = 256  # with this many unread events, a finished job keeps its slot

Execute = Callable[[Job], Awaitable[CaseResult | None]]
"""Does one job. None: it was left undone because the run stops, or its result comes with those of other jobs."""


class StopReason(StrEnum):
    """The reason why a run stops before its end."""

    FAIL_FAST = "fail-fast"
    DECIDED = "decided"
    BUDGET = "budget"
    BATCHES = "batches"
    SUBMITTED = "submitted"
    REQUEST = "request"
    SIGINT = "SIGINT"
    SIGTERM = "SIGTERM"
    SIGHUP = "SIGHUP"

    @property
    def is_signal(self) -> bool:
        """Return whether the stop came from outside: a signal to the process, or a request to the server."""
        return self in {StopReason.REQUEST, StopReason.SIGINT, StopReason.SIGTERM, StopReason.SIGHUP}


class StopSignal(Struct):
    """A request for a run to stop: no new job is started, nothing more is sent, and requests already sent are awaited.

    Attributes:
        reason: why the run stops; None while it goes on.
        wire: the run's wire, closed as soon as a stop is requested. When a budget is used up, it stays open so that
            jobs under way can send the requests that they need.
        patience_s: how many seconds to wait for requests on the wire; None for as long as it takes.
        open_cases: the cases that still finish when a budget is used up.
    """

    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _hurried: asyncio.Event = field(default_factory=asyncio.Event)
    reason: StopReason | None = None
    wire: Wire = field(default_factory=Wire)
    patience_s: float | None = None
    open_cases: Collection[object] = ()

    def request(self, reason: StopReason) -> None:
        """Stop because of `reason`. The first reason is kept, but a signal replaces any other reason."""
        if self.reason is None or (reason.is_signal and not self.reason.is_signal):
            self.reason = reason
        if reason is not StopReason.BUDGET:
            self.wire.close()
        self._asked.set()

    def hurry(self) -> None:
        """Make a stop wait for nothing that is under way."""
        self._hurried.set()

    @property
    def text(self) -> str:
        """Return what the run still waits for, as in `stopping, 3 cases left`; an empty text while the run goes on."""
        if self.reason is None:
            return ""
        is_patient = self.reason is StopReason.BUDGET
        count = len(self.open_cases) if is_patient else self.wire.under_way
        left = plural(count, "case" if is_patient else "request")
        return f"stopping, {left} left" if count else "stopping"

    @property
    def is_requested(self) -> bool:
        return self._asked.is_set()

    @property
    def is_urgent(self) -> bool:
        return self._hurried.is_set()

    async def wait(self) -> None:
        """Wait until a stop is requested."""
        await self._asked.wait()

    async def wait_for_urgency(self) -> None:
        """Wait until `hurry` is called."""
        await self._hurried.wait()


class EventSink(Protocol):
    """A sink for the events of jobs."""

    def emit(self, event: RunEvent) -> None:
        """Take an event without blocking."""

    async def wait_for_room(self) -> None:
        """Wait while the reader of the events is far behind."""


class EventStream(Struct):
    """Events from many tasks in one order, read by the caller that runs the plan; anything below may `emit` into it."""

    _unread: deque[RunEvent] = field(default_factory=deque)
    _has_news: asyncio.Event = field(default_factory=asyncio.Event)
    _has_room: asyncio.Event = field(default_factory=asyncio.Event)
    _has_ended: bool = False

    def emit(self, event: RunEvent) -> None:
        """Add an event without blocking."""
        self._unread.append(event)
        if len(self._unread) == 1:
            self._has_news.set()

    def end(self) -> None:
        """End the stream: no more events will come."""
        self._has_ended = True
        self._has_news.set()

    async def wait_for_room(self) -> None:
        """Wait while many events are unread: a slow reader slows the run down instead of filling the memory."""
        while len(self._unread) >= _CROWDED:
            self._has_room.clear()
            await self._has_room.wait()

    async def __aiter__(self) -> AsyncIterator[RunEvent]:
        while await self._has_more():
            event = self._unread.popleft()
            if len(self._unread) < _CROWDED:
                self._has_room.set()
            yield event

    async def _has_more(self) -> bool:
        while not self._unread:
            if self._has_ended:
                return False
            self._has_news.clear()
            await self._has_news.wait()
        return True


class _WorkerPool(Struct):
    """The jobs under way, across all queues."""

    execute: Execute
    events: EventSink
    stop: StopSignal
    under_way: set[asyncio.Task[None]] = field(default_factory=set)

    async def start_all(self, jobs: Iterator[Job], parallel: int) -> None:
        """Start one job after another, each as soon as fewer than `parallel` of this queue are under way."""
        room = asyncio.Semaphore(parallel)

        def leave(task: asyncio.Task[None]) -> None:
            self.under_way.discard(task)
            room.release()

        while True:
            await room.acquire()
            # Wait for a slot first: a job is read only when it can start, so that plans of any length need no memory.
            job = None if self.stop.is_requested else next(jobs, None)
            if job is None:
                return
            task = asyncio.ensure_future(self._do(job))
            self.under_way.add(task)
            task.add_done_callback(leave)
            # The first request must not wait until hundreds of tests have been read.
            await asyncio.sleep(0)

    async def finish(self, *others: asyncio.Task[None], patience_s: float | None) -> None:
        """Wait until nothing is under way, but no longer than `patience_s` seconds or until one of `others` is done."""
        if self.under_way:
            everything = asyncio.gather(*self.under_way, return_exceptions=True)
            ends: set[asyncio.Future[Any]] = {everything, *others}
            await asyncio.wait(ends, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)

    async def _do(self, job: Job) -> None:
        result = await self.execute(job)
        if result is not None:
            self.events.emit(CaseFinished(result))
        await self.events.wait_for_room()


async def run_plan(
    queues: Iterable[Iterable[Job]],
    execute: Execute,
    *,
    parallel: int,
    events: EventSink,
    stop: StopSignal,
    grace_s: float = GRACE_S,
) -> None:
    """Execute all jobs, and emit a `CaseFinished` for each as it ends.

    Each queue has at most `parallel` jobs under way, so a queue whose jobs have to wait does not hold up the others.
    After `stop`, no further job is started. Requests already on the wire are paid for, so they are awaited for as long
    as `stop` allows; then jobs under way have `grace_s` seconds before they are cancelled and give no result. `stop`
    may cut both short. When a budget is used up, jobs under way take the time that they need. Returns when nothing is
    under way. An exception raised by a queue stops the run in the same way and is then raised.
    """
    workers = _WorkerPool(execute, events, stop)
    stopping = asyncio.ensure_future(stop.wait())
    hurrying = asyncio.ensure_future(stop.wait_for_urgency())
    starting = [asyncio.ensure_future(workers.start_all(iter(jobs), parallel)) for jobs in queues]
    broken: BaseException | None = None
    try:
        pending: set[asyncio.Task[None]] = {*starting, stopping}
        # Wait until all queues have started their last job: then only `stopping` is left in `pending`.
        while pending != {stopping} and not stopping.done() and broken is None:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            broken = next((task.exception() for task in done if task.exception()), None)
        for task in starting:
            task.cancel()
        if broken is None and not stopping.done():
            # All jobs are started: no time limit, unless a stop is requested meanwhile.
            await workers.finish(stopping, patience_s=None)
        is_patient = stop.reason is StopReason.BUDGET
        if not is_patient:
            drained = asyncio.ensure_future(stop.wire.drained())
            starting.append(drained)
            await workers.finish(drained, hurrying, patience_s=stop.patience_s)
        await workers.finish(hurrying, patience_s=None if is_patient else grace_s)
    finally:
        # Nothing may outlive this call, or it would emit into a closed event stream.
        left: list[asyncio.Task[Any]] = [*workers.under_way, *starting, stopping, hurrying]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    if broken is not None:
        raise broken
