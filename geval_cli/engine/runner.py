"""A plan becomes a stream of events: jobs run side by side, and stop cleanly when asked to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from geval_cli.engine.plan import Job
from geval_cli.events import CaseFinished, RunEvent
from geval_cli.records import CaseResult

GRACE_S = 2.0
"""How long what is under way may still take after the first Ctrl-C: most answers on their way arrive in it."""


@dataclass(slots=True)
class StopSignal:
    """Asks a run to stop: no new job is started, and what is under way gets a short grace."""

    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _asked_again: asyncio.Event = field(default_factory=asyncio.Event)
    reason: str = ""

    def request(self, reason: str) -> None:
        """Stop, because of `reason`; the first reason stays. Asked a second time, the run grants no grace."""
        if self.is_requested:
            self._asked_again.set()
        self.reason = self.reason or reason
        self._asked.set()

    @property
    def is_requested(self) -> bool:
        return self._asked.is_set()

    @property
    def is_urgent(self) -> bool:
        return self._asked_again.is_set()

    async def wait(self) -> None:
        """Until a stop is asked for."""
        await self._asked.wait()

    async def wait_for_urgency(self) -> None:
        """Until a stop is asked for again."""
        await self._asked_again.wait()


@dataclass(slots=True)
class EventStream:
    """Events from many tasks in one order. Whoever runs the plan reads it; anything below may `emit` into it."""

    _queue: "asyncio.Queue[RunEvent | None]" = field(default_factory=asyncio.Queue)

    def emit(self, event: RunEvent) -> None:
        """Add an event; never blocks."""
        self._queue.put_nowait(event)

    def end(self) -> None:
        """No more events will come."""
        self._queue.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[RunEvent]:
        while (event := await self._queue.get()) is not None:
            yield event


async def run_plan(
    jobs: Iterable[Job],
    execute: Callable[[Job], Awaitable[CaseResult]],
    *,
    parallel: int,
    events: EventStream,
    stop: StopSignal,
    grace_s: float = GRACE_S,
) -> None:
    """Execute all `jobs`, at most `parallel` at a time, and emit a `CaseFinished` for each as it ends.

    After `stop` no further job is started; those under way have `grace_s` seconds, unless it is asked for again, before
    they are cancelled and give no result. Returns when nothing is under way any more.
    """
    stopping = asyncio.ensure_future(stop.wait())
    hurrying = asyncio.ensure_future(stop.wait_for_urgency())
    under_way: set[asyncio.Task[None]] = set()
    try:
        for job in jobs:
            while len(under_way) >= parallel and not stop.is_requested:
                await asyncio.wait({*under_way, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_requested:
                break
            task = asyncio.ensure_future(_execute(job, execute, events))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            await asyncio.sleep(0)
        while under_way and not stop.is_requested:
            await asyncio.wait({*under_way, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if under_way:
            await _wait_for_all(under_way, hurrying, grace_s)
    finally:
        left: list[asyncio.Task[Any]] = [*under_way, stopping, hurrying]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _wait_for_all(
    tasks: Iterable[asyncio.Task[None]], hurrying: asyncio.Task[None], grace_s: float
) -> None:
    """Until all `tasks` are done, but no longer than `grace_s` seconds or until `hurrying` is done."""
    everything: asyncio.Future[Any] = asyncio.gather(*tasks, return_exceptions=True)
    ends: set[asyncio.Future[Any]] = {everything, hurrying}
    await asyncio.wait(ends, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)


async def _execute(job: Job, execute: Callable[[Job], Awaitable[CaseResult]], events: EventStream) -> None:
    events.emit(CaseFinished(await execute(job)))
