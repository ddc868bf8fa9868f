"""Single flight: equal requests under way at the same time are sent once, and all who asked get the answer."""

import asyncio

from msgspec import Struct

from geval_cli.gateway.call import Handler, ModelCall
from geval_cli.gateway.responses import without_cost
from geval_cli.records import ModelResponse


class _Flight(Struct):
    task: asyncio.Task[ModelResponse]
    waiting: int = 0


class SingleFlight:
    """A layer. The work runs in a task of its own, so that nobody's cancellation takes it away from the others."""

    def __init__(self, following: Handler) -> None:
        self._following = following
        self._flights: dict[tuple[str, ...], _Flight] = {}
        self._tasks: set[asyncio.Task[ModelResponse]] = set()

    async def __call__(self, call: ModelCall) -> ModelResponse:
        if not call.keys:
            return await self._following(call)
        flight = self._flights.get(call.keys)
        if flight is not None:
            return without_cost(await self._wait(flight, call.keys))
        flight = self._flights[call.keys] = _Flight(asyncio.create_task(self._send(call)))
        self._tasks.add(flight.task)
        flight.task.add_done_callback(self._tasks.discard)
        return await self._wait(flight, call.keys)

    async def aclose(self) -> None:
        """Stop what is under way. Who waits for it is cancelled."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, call: ModelCall) -> ModelResponse:
        try:
            return await self._following(call)
        finally:
            flight = self._flights.get(call.keys)
            if flight is not None and flight.task is asyncio.current_task():
                del self._flights[call.keys]

    async def _wait(self, flight: _Flight, keys: tuple[str, ...]) -> ModelResponse:
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if flight.waiting == 0 and not flight.task.done():
                # Out of the table at once: a new caller must not join a flight that is being cancelled.
                if self._flights.get(keys) is flight:
                    del self._flights[keys]
                flight.task.cancel()
