"""A clock that advances only when every task waits, so that tests of waiting take no time."""

import asyncio
import heapq
import itertools
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# The number of event loop iterations without a wake-up after which every task counts as waiting.
_IDLE_TURNS = 60


class FakeTime:
    """Virtual time with its own `clock` and `sleep`; `run` runs a coroutine in it. `slept` lists every sleep."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        waker = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), waker))
        await waker

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(self._drive(coroutine))

    async def _drive(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(coroutine)
        while not task.done():
            for _ in range(_IDLE_TURNS):
                await asyncio.sleep(0)
            if task.done():
                break
            if self._sleepers:
                self._wake_next()
            else:
                await asyncio.sleep(0.0005)  # some task waits for a thread
        return task.result()

    def _wake_next(self) -> None:
        at, _, waker = heapq.heappop(self._sleepers)
        self.now = max(self.now, at)
        if not waker.done():
            waker.set_result(None)
