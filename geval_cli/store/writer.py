"""A thread that owns a connection: it gathers the work handed to it for a moment and commits it together."""

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from msgspec import Struct

from geval_cli.errors import StoreError
from geval_cli.store.database import Database, transaction

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

GATHER_S = 0.004
"""How long a batch is gathered: long enough that many waiters share a commit, short beside any model call."""

# What running prepared SQL can raise: SQLite's own errors, a number too large, text that is not Unicode.
_FAILURES = (sqlite3.Error, ValueError, ArithmeticError)


class _Job(Struct):
    work: Work[Any]
    waiter: "asyncio.Future[Any] | Future[Any]"
    loop: asyncio.AbstractEventLoop | None
    result: Any = None
    error: Exception | None = None

    def settle(self) -> None:
        if self.waiter.done():
            return
        if self.error is not None:
            self.waiter.set_exception(self.error)
        else:
            self.waiter.set_result(self.result)


class DatabaseThread:
    """A thread that does work on a connection of its own, in the order given, off the event loop.

    With `writes`, work is gathered for `gather_s` seconds into one transaction, and everybody who waits is
    released by its commit. A job that fails takes no other with it: the batch is rolled back and done again
    one by one. Who waits gets a StoreError for what the database refuses, and any other error as it was raised.
    """

    def __init__(self, database: Database, *, writes: bool = True, gather_s: float = GATHER_S) -> None:
        self._database = database
        self._connection = database.connect()
        self._writes = writes
        self._gather_s = gather_s if writes else 0.0
        self._jobs: deque[_Job] = deque()
        self._bell: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._is_awake = False
        self._gathering: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name=f"geval {database.schema.name}", daemon=True)
        self._thread.start()

    def submit(self, work: Work[T]) -> "Future[T]":
        """Queue `work` and return a future that holds its result once it is committed."""
        waiter: Future[T] = Future()
        self._put(_Job(work, waiter, None))
        return waiter

    async def run(self, work: Work[T]) -> T:
        """Return the result of `work`, once it is committed. If the caller is cancelled, it is done all the same.

        Raises:
            StoreError: the database could not be read or written.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[T] = loop.create_future()
        self._put(_Job(work, waiter, loop))
        return await waiter

    def close(self) -> None:
        """Finish what was handed over, then release the file. Safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            self._bell.put(False)
        self._thread.join()

    def _put(self, job: _Job) -> None:
        if self._is_closed:
            path = str(self._database.path)
            raise StoreError(f"the {self._database.schema.name} {path} is already closed", path=path)
        self._jobs.append(job)
        # What another loop gathers is not waited for: that loop may have ended before its time is up.
        if self._is_awake and (self._gathering is None or self._gathering is job.loop):
            return
        self._is_awake = True
        if job.loop is None or self._gather_s == 0:
            self._bell.put(True)
        else:
            # Waking a thread costs as much as a small job, so it sleeps while the loop that waits gathers.
            self._gathering = job.loop
            job.loop.call_later(self._gather_s, self._bell.put, False)

    def _serve(self) -> None:
        is_last = False
        while not is_last:
            is_to_gather = self._bell.get()
            if is_to_gather and self._gather_s > 0 and not self._is_closed:
                time.sleep(self._gather_s)
            is_last = self._is_closed
            # Before the jobs are taken: whoever adds one from here on rings again.
            self._gathering, self._is_awake = None, False
            batch = [self._jobs.popleft() for _ in range(len(self._jobs))]
            self._run_batch(batch)
            _release(batch)
        self._connection.close()

    def _run_batch(self, batch: list[_Job]) -> None:
        if not self._writes or len(batch) <= 1:
            for job in batch:
                self._run_alone(job)
            return
        try:
            with transaction(self._connection):
                for job in batch:
                    job.result = job.work(self._connection)
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for each of these jobs
            for job in batch:
                # With a locked or full disk each would fail alike, each after its own wait.
                if self._database.is_to_blame(error):
                    self._fail(job, error)
                else:
                    self._run_alone(job)

    def _run_alone(self, job: _Job) -> None:
        try:
            with transaction(self._connection) if self._writes else contextlib.nullcontext():
                job.result = job.work(self._connection)
        except Exception as error:  # noqa: BLE001 - a thread that dies would leave all others waiting for ever
            self._fail(job, error)

    def _fail(self, job: _Job, error: Exception) -> None:
        job.error = error
        if isinstance(error, _FAILURES):
            job.error = self._database.error(error)
            job.error.__cause__ = error


def _release(batch: Iterable[_Job]) -> None:
    """Settle all futures with one call per event loop: waking a loop costs a system call."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
    for job in batch:
        if job.loop is None:
            job.settle()
        else:
            by_loop.setdefault(job.loop, []).append(job)
    for loop, jobs in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits any more
            loop.call_soon_threadsafe(_settle, jobs)


def _settle(jobs: list[_Job]) -> None:
    for job in jobs:
        job.settle()
