"""How many requests a server takes at once, found out by asking: more while answers come clean, half on overload."""

import asyncio
import contextlib
import math
from collections import deque
from enum import Enum, auto

_GROWTH = 0.05  # of the cap, with each round of clean answers: back at it ten rounds after it was halved


class CallOutcome(Enum):
    """What an answer says about the pace: it was fine, too much, or nothing at all (a bad request, a lost one)."""

    CLEAN = auto()
    OVERLOAD = auto()
    UNCLEAR = auto()


class AdaptiveSlots:
    """Slots for requests on the wire, first come, first served.

    They begin at the cap, which is the user's word for what the server takes. An overload halves them, once for all
    requests that were under way when it showed: only what is sent at the new pace can show that it is still too fast.
    Each round of clean answers gives some back, up to the cap.
    """

    def __init__(self, most: int | None) -> None:
        """Begin with `most` slots; None for as many as are asked for."""
        self._most = math.inf if most is None else float(most)
        self._step = 1.0 if most is None else max(1.0, most * _GROWTH)
        self._allowed = self._most
        self._taken = 0
        self._halvings = 0
        self._line: deque[asyncio.Future[None]] = deque()

    @property
    def allowed(self) -> float:
        """How many requests may be on the wire at once now."""
        return self._allowed

    async def acquire(self) -> int:
        """Wait for a slot. Returns what `release` needs to know about it."""
        ticket = self.take()
        if ticket is None:
            await self._stand_in_line()
            ticket = self._halvings
        return ticket

    def take(self) -> int | None:
        """Return a slot, if there is one for which nobody waits; as `acquire`, which would wait."""
        if self._line or not self._has_room:
            return None
        self._taken += 1
        return self._halvings

    def release(self, ticket: int, outcome: CallOutcome = CallOutcome.UNCLEAR) -> None:
        """Give back the slot of `ticket`, and say how the server took the request."""
        if outcome is CallOutcome.OVERLOAD and ticket == self._halvings:
            self._allowed = max(1.0, min(self._allowed, self._taken) / 2)
            self._halvings += 1
        elif outcome is CallOutcome.CLEAN and self._allowed < self._most:
            self._allowed = min(self._most, self._allowed + self._step / self._allowed)
        self._taken -= 1
        self._let_in()

    @property
    def _has_room(self) -> bool:
        return self._taken + 1 <= self._allowed

    async def _stand_in_line(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it had its slot already
                self._taken -= 1
            with contextlib.suppress(ValueError):
                self._line.remove(turn)
            self._let_in()
            raise

    def _let_in(self) -> None:
        while self._line and self._has_room:
            turn = self._line.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)
