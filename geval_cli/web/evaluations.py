"""Evaluations that a server has under way: a bounded number, each ended when nobody waits for it any more."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from geval_cli.web.refusals import RefusedError

T = TypeVar("T")

_TOO_MANY, _UNAVAILABLE = 429, 503
_AGAIN_S = 1


class Evaluations:
    """Runs work on behalf of clients. Belongs to one event loop.

    Attributes:
        most: so much work may be under way at a time; more is refused at once.
        timeout_s: so long a piece of work may take, in seconds.
    """

    def __init__(self, most: int, timeout_s: float) -> None:
        self.most = most
        self.timeout_s = timeout_s
        self._under_way: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T], receive: Receive) -> T:
        """Return the result of `work`. Cancel it when its client disconnects, or when it takes too long.

        Raises:
            RefusedError: 429 when too much is under way, 503 when it took too long or the server stops.
        """
        if len(self._under_way) >= self.most:
            work.close()
            message = f"{self.most} evaluations are under way already"
            hint = "send it again after the time that `Retry-After` says, or fewer at a time"
            raise RefusedError(message, status=_TOO_MANY, hint=hint, retry_after_s=_AGAIN_S)
        task = asyncio.create_task(work)
        gone = asyncio.create_task(_gone(receive))
        self._under_way.add(task)
        try:
            await asyncio.wait({task, gone}, timeout=self.timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled():
                return task.result()
            raise self._unfinished(task, gone)
        finally:
            self._under_way.discard(task)
            task.cancel()
            gone.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    def stop_all(self) -> None:
        """Cancel all work; the clients are told."""
        for task in self._under_way:
            task.cancel()

    def _unfinished(self, task: "asyncio.Task[T]", gone: "asyncio.Task[None]") -> RefusedError:
        if task.cancelled():
            hint = "send it again when the server is back"
            return RefusedError("the server was stopped", status=_UNAVAILABLE, hint=hint)
        if gone.done():
            return RefusedError(
                "the client has gone", status=_UNAVAILABLE, hint="stay until the answer is there"
            )
        message = f"the evaluation took longer than {self.timeout_s:g} s"
        hint = "the judge may be overloaded: try again, or ask for fewer at a time"
        return RefusedError(message, status=_UNAVAILABLE, hint=hint, retry_after_s=_AGAIN_S)


async def _gone(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
