"""A plan becomes a stream of events: jobs run side by side, and stop cleanly when asked to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from geval_cli.engine.plan import Job
from geval_cli.events import CaseFinished, RunEvent
from geval_cli.records import CaseResult

GRACE_S = 2.0
"""How long what is under way may still take after the first Ctrl-C: most answers on their way arrive in it."""

_CROWDED = 256  # unread events from which on a finished job keeps its place

Execute = Callable[[Job], Awaitable[CaseResult]]


class StopReason(StrEnum):
    """Why a run stops before its end."""

    FAIL_FAST = "fail-fast"
    SIGINT = "SIGINT"
    SIGTERM = "SIGTERM"

    @property
    def is_signal(self) -> bool:
        """Whether somebody outside asks for it."""
        return self is not StopReason.FAIL_FAST


@dataclass(slots=True)
class StopSignal:
    """Asks a run to stop: no new job is started, and what is under way gets a short grace."""

    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _hurried: asyncio.Event = field(default_factory=asyncio.Event)
    reason: StopReason | None = None

    def request(self, reason: StopReason) -> None:
        """Stop, because of `reason`. The first reason stays, except that a signal displaces what is none."""
        if self.reason is None or (reason.is_signal and not self.reason.is_signal):
            self.reason = reason
        self._asked.set()

    def hurry(self) -> None:
        """Grant no grace to what is under way when the run stops."""
        self._hurried.set()

    @property
    def is_requested(self) -> bool:
        return self._asked.is_set()

    @property
    def is_urgent(self) -> bool:
        return self._hurried.is_set()

    async def wait(self) -> None:
        """Until a stop is asked for."""
        await self._asked.wait()

    async def wait_for_urgency(self) -> None:
        """Until no grace is granted any more."""
        await self._hurried.wait()


@dataclass(slots=True)
class EventStream:
    """Events from many tasks in one order. Whoever runs the plan reads it; anything below may `emit` into it."""

    _queue: "asyncio.Queue[RunEvent | None]" = field(default_factory=asyncio.Queue)
    _has_room: asyncio.Event = field(default_factory=asyncio.Event)

    def emit(self, event: RunEvent) -> None:
        """Add an event; never blocks."""
        self._queue.put_nowait(event)

    def end(self) -> None:
        """No more events will come."""
        self._queue.put_nowait(None)

    async def wait_for_room(self) -> None:
        """As long as many events are unread: a slow reader slows the run down instead of filling the memory."""
        while self._queue.qsize() >= _CROWDED:
            self._has_room.clear()
            await self._has_room.wait()

    async def __aiter__(self) -> AsyncIterator[RunEvent]:
        while (event := await self._queue.get()) is not None:
            if self._queue.qsize() < _CROWDED:
                self._has_room.set()
            yield event


@dataclass(slots=True)
class _Lane:
    """Jobs of which at most `parallel` are under way at a time."""

    jobs: Iterator[Job]
    parallel: int
    under_way: set[asyncio.Task[None]] = field(default_factory=set)
    is_exhausted: bool = False

    def start(self, execute: Execute, events: EventStream) -> None:
        """Start as many jobs as there is room for."""
        while not self.is_exhausted and len(self.under_way) < self.parallel:
            job = next(self.jobs, None)
            if job is None:
                self.is_exhausted = True
                return
            task = asyncio.ensure_future(_execute(job, execute, events))
            self.under_way.add(task)
            task.add_done_callback(self.under_way.discard)


async def run_plan(
    lanes: Iterable[Iterable[Job]],
    execute: Execute,
    *,
    parallel: int,
    events: EventStream,
    stop: StopSignal,
    grace_s: float = GRACE_S,
) -> None:
    """Execute all jobs, and emit a `CaseFinished` for each as it ends.

    Each lane has at most `parallel` jobs under way: one whose jobs have to wait holds up no other. After `stop` no
    further job is started; those under way have `grace_s` seconds, unless `stop` hurries, before they are cancelled
    and give no result. Returns when nothing is under way any more. What a lane raises stops the run in the same way
    and is raised then.
    """
    all_lanes = [_Lane(iter(jobs), parallel) for jobs in lanes]
    stopping = asyncio.ensure_future(stop.wait())
    hurrying = asyncio.ensure_future(stop.wait_for_urgency())
    try:
        try:
            await _run_lanes(all_lanes, execute, events, stop, stopping)
        except Exception:
            await _wait_for_all(_under_way(all_lanes), hurrying, grace_s)
            raise
        await _wait_for_all(_under_way(all_lanes), hurrying, grace_s)
    finally:
        left: list[asyncio.Task[Any]] = [*_under_way(all_lanes), stopping, hurrying]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _run_lanes(
    lanes: Iterable[_Lane],
    execute: Execute,
    events: EventStream,
    stop: StopSignal,
    stopping: asyncio.Task[None],
) -> None:
    """Until all jobs are done, or a stop is asked for."""
    while not stop.is_requested:
        for lane in lanes:
            lane.start(execute, events)
        under_way = _under_way(lanes)
        if not under_way:
            return
        await asyncio.wait({*under_way, stopping}, return_when=asyncio.FIRST_COMPLETED)


async def _wait_for_all(
    tasks: Iterable[asyncio.Task[None]], hurrying: asyncio.Task[None], grace_s: float
) -> None:
    """Until all `tasks` are done, but no longer than `grace_s` seconds or until `hurrying` is done."""
    everything: asyncio.Future[Any] = asyncio.gather(*tasks, return_exceptions=True)
    ends: set[asyncio.Future[Any]] = {everything, hurrying}
    await asyncio.wait(ends, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)


def _under_way(lanes: Iterable[_Lane]) -> set[asyncio.Task[None]]:
    return {task for lane in lanes for task in lane.under_way}


async def _execute(job: Job, execute: Execute, events: EventStream) -> None:
    events.emit(CaseFinished(await execute(job)))
    await events.wait_for_room()
