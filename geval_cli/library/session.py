"""The background thread in which a metric's judges live, whoever asks for them: started late, ended by itself."""

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
    """Runs work for one metric, from any thread and any event loop.

    All of it runs in one event loop in a thread of its own: connections, answers and locks belong to a loop, and the
    callers' loops come and go. The thread starts with the first work and ends when the session is forgotten.
    """

    def __init__(self, options: JudgingOptions | None = None) -> None:
        self._options = options or JudgingOptions()
        self._lock = threading.Lock()
        self._worker: Worker | None = None

    def run(self, work: "Callable[[Session], Coroutine[Any, Any, T]]") -> T:
        """Run `work` and return its result; block until then."""
        future = self._submit(work)
        try:
            return future.result()
        finally:
            future.cancel()  # for Ctrl-C; nothing happens to work that is done

    async def arun(self, work: "Callable[[Session], Coroutine[Any, Any, T]]") -> T:
        """Run `work` and return its result. Cancelling the wait cancels the work."""
        from asyncio import wrap_future

        return await wrap_future(self._submit(work))

    def close(self) -> None:
        """End the thread; what is under way is cancelled. Later work starts another one."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()

    def _submit(self, work: "Callable[[Session], Coroutine[Any, Any, T]]") -> "Future[T]":
        from geval_cli.library.worker import Worker

        with self._lock:
            # In a forked process the thread is gone.
            if self._worker is None or not self._worker.is_alive:
                self._worker = Worker(self._options)
                weakref.finalize(self, self._worker.stop)
            return self._worker.submit(work)
