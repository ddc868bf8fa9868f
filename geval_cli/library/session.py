"""The background thread for a metric's judges, shared by all callers; it starts on first use and ends by itself."""

import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from geval_cli.library.records import JudgingOptions

if TYPE_CHECKING:
    from concurrent.futures import Future

    from geval_cli.library.worker import Worker
    from geval_cli.runs.session import Session

T = TypeVar("T")


class LibrarySession:
    """The session of one metric, which runs work from any thread and any event loop.

    All work runs in one event loop in its own thread: connections, answers and locks belong to a loop, while the
    callers' loops come and go. The thread starts with the first work and ends when the session is garbage-collected.
    """

    def __init__(self, options: JudgingOptions | None = None) -> None:
        self._options = options or JudgingOptions()
        self._lock = threading.Lock()
        self._worker: Worker | None = None

    def run(self, work: "Callable[[Session], Coroutine[Any, Any, T]]") -> T:
        """Run `work` and return its result; blocks until then."""
        future = self._submit(work)
        try:
            return future.result()
        finally:
            future.cancel()  # for Ctrl-C; has no effect on finished work

    async def arun(self, work: "Callable[[Session], Coroutine[Any, Any, T]]") -> T:
        """Run `work` and return its result. Cancelling the wait cancels the work."""
        from asyncio import wrap_future

        return await wrap_future(self._submit(work))

    def close(self) -> None:
        """Stop the thread and cancel running work; later work starts a new thread."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()

    def _submit(self, work: "Callable[[Session], Coroutine[Any, Any, T]]") -> "Future[T]":
        from geval_cli.library.worker import Worker

        with self._lock:
            # A forked process does not have the thread.
            if self._worker is None or not self._worker.is_alive:
                self._worker = Worker(self._options)
                weakref.finalize(self, self._worker.stop)
            return self._worker.submit(work)
