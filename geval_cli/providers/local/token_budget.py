"""Shares a fixed number of tokens among requests at once: whoever does not fit waits, in order of arrival."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TokenBudget:
    """`capacity` tokens to be held at once. May be used from several event loops, each in its own thread."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = capacity
        self._guard = threading.Lock()
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, tokens: int) -> AsyncIterator[None]:
        """Hold `tokens` inside the block, at most the capacity; waits until they are free."""
        needed = min(tokens, self.capacity)
        await self._take(needed)
        try:
            yield
        finally:
            self._give_back(needed)

    async def _take(self, needed: int) -> None:
        with self._guard:
            if not self._waiting and needed <= self._free:
                self._free -= needed
                return
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((needed, turn))
        try:
            await turn
        except asyncio.CancelledError:
            with self._guard:
                was_waiting = (needed, turn) in self._waiting
                if was_waiting:
                    self._waiting.remove((needed, turn))
            self._give_back(0 if was_waiting else needed)
            raise

    def _give_back(self, tokens: int) -> None:
        with self._guard:
            self._free += tokens
            while self._waiting and self._waiting[0][0] <= self._free:
                needed, turn = self._waiting.popleft()
                self._free -= needed
                turn.get_loop().call_soon_threadsafe(_resolve, turn)


def _resolve(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
