"""Single flight: send equal requests under way at the same time once, and give the answer to all callers.

`SingleFlight` does it for the calls of one gateway, `Claimed` for all processes that share a cache.
"""

import asyncio
from functools import partial

from msgspec import Struct, field

from geval_cli.gateway.call import Handler, ModelCall, Runtime, Wire, without_cost
from geval_cli.records import ModelResponse
from geval_cli.store.locks import Claims

_Task = asyncio.Task[ModelResponse]


class _Flight(Struct):
    task: _Task
    waiters: list[asyncio.Future[ModelResponse]] = field(default_factory=list)

    def land(self, *, is_counted: bool) -> None:
        """Hand the outcome to all who still wait; the first of them bears its cost, whoever began the call."""
        if self.task.cancelled():
            for waiter in self.waiters:
                waiter.cancel()
            return
        error = self.task.exception()
        waiting = [waiter for waiter in self.waiters if not waiter.done()]
        for number, waiter in enumerate(waiting):
            if error is not None:
                waiter.set_exception(error)
            elif number == 0:
                waiter.set_result(self.task.result())
            else:
                waiter.set_result(without_cost(self.task.result(), is_counted=is_counted))


_FIRST_LOOK_S = 0.01
_LONGEST_LOOK_S = 0.25


class Claimed:
    """A layer that passes a call on when no other process asks the same, so that the cache has the answer by then.

    It stands above the look-up in the cache: whoever gets a claim later finds what was kept under it. Equal calls with
    different numbers of samples share the first one, so that one claim for each call is enough.

    A holder that is alive may take long, through retries and a server's limits; one that hangs must not stop others.
    So a call waits as long as claims are given back, and a request's time-out after the last of them.
    """

    def __init__(self, claims: Claims, *, runtime: Runtime, wire: Wire) -> None:
        self._claims = claims
        self._runtime = runtime
        self._wire = wire
        self._progress_at = 0.0

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        if not call.keys or not call.outlives_run:
            return await send_next(call)
        key = call.keys[0]
        if not self._claims.take(key) and not await self._wait(key, call.provider.limits.timeout_s):
            return await send_next(call)
        try:
            return await send_next(call)
        finally:
            self._claims.give_back(key)

    async def _wait(self, key: str, most_s: float) -> bool:
        """Wait for a claim; False when its holder seems to hang.

        Raises:
            StoppedError: the run is to stop.
        """
        began, pause_s = self._runtime.clock(), _FIRST_LOOK_S
        while self._runtime.clock() - max(began, self._progress_at) < most_s:
            self._wire.check()
            await self._runtime.sleep(pause_s)
            if self._claims.take(key):
                self._progress_at = self._runtime.clock()
                return True
            pause_s = min(2 * pause_s, _LONGEST_LOOK_S)
        return False


class SingleFlight:
    """A layer that joins equal calls: one task does the work, so that a cancelled caller takes it from no other.

    Each caller has a future of its own, which is settled when that task is done: `asyncio.shield` does the same, in
    twice as many turns of the event loop for every request of a run.
    """

    def __init__(self, *, is_for_one_run: bool) -> None:
        self._is_counted = not is_for_one_run
        self._flights: dict[tuple[str, ...], _Flight] = {}
        self._tasks: set[_Task] = set()

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        if not call.keys:
            return await send_next(call)
        if call.keys not in self._flights:
            flight = self._flights[call.keys] = _Flight(asyncio.create_task(send_next(call)))
            self._tasks.add(flight.task)
            flight.task.add_done_callback(partial(self._landed, flight, call.keys))
            del flight  # as in `_wait`
        return await self._wait(call.keys)

    async def aclose(self) -> None:
        """Cancel what is under way, and all who wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _landed(self, flight: _Flight, keys: tuple[str, ...], task: _Task) -> None:
        self._tasks.discard(task)
        self._take_from_table(flight, keys)
        flight.land(is_counted=self._is_counted)

    async def _wait(self, keys: tuple[str, ...]) -> ModelResponse:
        flight = self._flights[keys]
        waiter: asyncio.Future[ModelResponse] = asyncio.get_running_loop().create_future()
        flight.waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            flight.waiters.remove(waiter)
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
