"""Runs a test server in its own thread and event loop, so that it serves sync and async tests alike."""

import asyncio
import threading
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

_START_S = 60.0


class LoopThread:
    """A context manager that runs the server made by `listening`.

    Attributes:
        mistakes: exceptions of the test's own code while answering, such as a request that an emulator cannot parse.
            geval may mistake them for a vendor's failure and retry, so the first one is raised at the end.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)
        self._bound: Future[int] = Future()
        self._stop = asyncio.Event()
        self.mistakes: list[Exception] = []

    @property
    def port(self) -> int:
        """Return the port on 127.0.0.1 that it listens on."""
        return self._bound.result(_START_S)

    def listening(self) -> AbstractAsyncContextManager[int]:
        """Listen on a port, and yield it; stop listening afterwards. Runs in the server's loop."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        self._bound.result(_START_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if kind is None and self.mistakes:
            raise AssertionError("the server of this test failed while it answered") from self.mistakes[0]

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        try:
            async with self.listening() as port:
                self._bound.set_result(port)
                await self._stop.wait()
        except OSError as error:
            if self._bound.done():
                raise
            self._bound.set_exception(error)
