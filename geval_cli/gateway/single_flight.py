"""Single flight: send equal requests under way at the same time once, and give the answer to all callers."""

import asyncio
from functools import partial

from msgspec import Struct, field

from geval_cli.gateway.call import Handler, ModelCall, without_cost
from geval_cli.records import ModelResponse

_Task = asyncio.Task[ModelResponse]


class _Flight(Struct):
    task: _Task
    waiters: list[asyncio.Future[ModelResponse]] = field(default_factory=list)

    def land(self) -> None:
        """Hand the outcome to all who still wait."""
        error = None if self.task.cancelled() else self.task.exception()
        for waiter in self.waiters:
            if waiter.done():
                continue
            if self.task.cancelled():
                waiter.cancel()
            elif error is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(self.task.result())


class SingleFlight:
    """A layer that joins equal calls: one task does the work, so that a cancelled caller takes it from no other.

    Each caller has a future of its own, which is settled when that task is done: `asyncio.shield` does the same, in
    twice as many turns of the event loop for every request of a run.
    """

    def __init__(self, *, is_for_one_run: bool = False) -> None:
        self._is_counted = not is_for_one_run
        self._flights: dict[tuple[str, ...], _Flight] = {}
        self._tasks: set[_Task] = set()

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        if not call.keys:
            return await send_next(call)
        if call.keys in self._flights:
            return without_cost(await self._wait(call.keys), is_counted=self._is_counted)
        self._begin(call, send_next)
        return await self._wait(call.keys)

    def _begin(self, call: ModelCall, send_next: Handler) -> None:
        flight = self._flights[call.keys] = _Flight(asyncio.create_task(send_next(call)))
        self._tasks.add(flight.task)
        flight.task.add_done_callback(partial(self._landed, flight, call.keys))

    async def aclose(self) -> None:
        """Cancel what is under way, and all who wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _landed(self, flight: _Flight, keys: tuple[str, ...], task: _Task) -> None:
        self._tasks.discard(task)
        self._take_from_table(flight, keys)
        flight.land()

    async def _wait(self, keys: tuple[str, ...]) -> ModelResponse:
        flight = self._flights[keys]
        waiter: asyncio.Future[ModelResponse] = asyncio.get_running_loop().create_future()
        flight.waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            flight.waiters.remove(waiter)
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # it came too late for this caller; asyncio is not to warn of it
            if not flight.waiters and not flight.task.done():
                # Out of the table at once: a new caller must not join a flight that is being cancelled.
                self._take_from_table(flight, keys)
                flight.task.cancel()
            raise
        finally:
            # Both hold the error, whose traceback holds this frame: a cycle for each call that fails.
            del flight, waiter

    def _take_from_table(self, flight: _Flight, keys: tuple[str, ...]) -> None:
        if self._flights.get(keys) is flight:
            del self._flights[keys]
