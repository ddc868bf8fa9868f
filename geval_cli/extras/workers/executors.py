"""Run shards in other processes on this machine, managed by loky.

loky starts processes, notices when one dies and replaces it. Each worker is a pool of one process, because a larger
pool ends all its processes when one is killed. On Linux they are forked from a process that has imported what all of
them need: imports cost as much as hundreds of tests. Each worker reports events over its own connection while it works,
because a pool returns results only at the end of a task.
"""

import asyncio
import contextlib
import gc
import logging
import os
import platform
import secrets
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from geval_cli.engine.runner import StopReason
from geval_cli.errors import ConfigError, GevalError, UsageError
from geval_cli.extras.workers.shards import EventBatch, ShardEnd, ShardOrder, batch_from_json, batch_to_json
from geval_cli.extras.workers.worker import EventBatcher, ShardRunner, WorkerSetup, mistakes_of, open_runner
from geval_cli.runs.event_loop import loop_factory
from geval_cli.store.home import hold_folder, remove_abandoned
from geval_cli.version import install_hint

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Listener = Callable[[EventBatch], Awaitable[None]]
"""Receives the events of a worker."""

_MESSAGES_WAITING = 8  # of a worker; then it waits for the coordinator, whose memory stays flat
_LAST_WORDS_S = 5.0  # after a worker is gone, and for what a worker has sent whose coordinator is gone
_LISTENING_S = 2.0  # for workers to end that are to hurry; one may be stopped, or compute without end
_PAUSE_S = 0.1  # before a worker that could not be started is tried again; what it is copied from may still be ending
_HEAVY = ("aiohttp", "uvloop")
"""Libraries that workers need if the coordinator has loaded them."""

_SAFE_PATH = "PYTHONSAFEPATH"

HURRY = b"hurry"
"""The message that tells workers to stop without waiting for requests under way."""
_END = b"end"


class WorkerLostError(Exception):
    """A worker ended before its shard was done."""


class WorkerNotStartedError(WorkerLostError):
    """A worker could not be started, so it has spent nothing."""


class ShardExecutor(Protocol):
    """Runs shards outside this process."""

    def host(self, worker: int) -> str:
        """Return the host name of a worker, given its number."""

    async def run(self, worker: int, order: ShardOrder, listen: Listener) -> ShardEnd:
        """Have a worker run a shard, passing its events to `listen`, and return how it ended.

        Raises:
            WorkerLostError: the worker ended before the shard was done.
            RuntimeError: another failure: a bug, or an unreadable cache.
        """

    def stop(self, reason: StopReason) -> None:
        """Tell all workers to start no more jobs."""

    def hurry(self) -> None:
        """Tell all workers to stop without waiting for requests under way."""

    async def aclose(self) -> None:
        """End all workers. Safe to call twice."""


def check_loky() -> None:
    """Check that worker processes can be run here.

    Raises:
        UsageError: loky is not installed, or processes cannot communicate.
    """
    from multiprocessing.connection import Listener  # noqa: PLC0415 - few runs have workers

    try:
        import loky  # noqa: F401, PLC0415 - few runs have workers
    except ImportError as error:
        raise UsageError(
            "--workers needs loky, which is not installed", hint=f"install it {install_hint('workers')}"
        ) from error
    try:
        Listener().close()
    except OSError as error:  # its path is too long, for one
        message = f"--workers cannot create a socket in {tempfile.gettempdir()}: {error}"
        raise UsageError(message, hint="set TMPDIR to a folder with a short path") from error


class LocalWorkers:
    """Workers on this machine, one process each. Belongs to one event loop."""

    def __init__(self, setup: WorkerSetup) -> None:
        from multiprocessing.connection import Listener  # noqa: PLC0415 - few runs have workers

        self._setup = setup
        self._loop = asyncio.get_running_loop()
        self._key = secrets.token_bytes(32)
        self._listener = Listener(authkey=self._key, backlog=64)
        if sys.platform != "win32":
            # multiprocessing made it, and does not remove it when this process is killed.
            hold_folder(Path(self._listener.address).parent)
            remove_abandoned()
        self._workers: dict[int, _LocalWorker] = {}
        self._is_closed = False
        logging.getLogger("concurrent.futures").addFilter(_is_news)  # where loky logs
        threading.Thread(target=self._accept, daemon=True).start()

    def host(self, worker: int) -> str:
        """Return the name of this machine."""
        return platform.node()

    async def run(self, worker: int, order: ShardOrder, listen: Listener) -> ShardEnd:
        """Have a worker run a shard; see `ShardExecutor.run`."""
        known = self._workers.get(worker)
        if known is None or known.is_gone:
            known = self._workers[worker] = await self._new_worker(worker)
        try:
            return await known.run(order, listen)
        except WorkerLostError:
            known.kill()
            raise

    async def _new_worker(self, number: int) -> "_LocalWorker":
        try:
            return _LocalWorker(self._listener.address, self._key, number, self._setup)
        except OSError as error:  # too many open files, or no room for semaphores
            await asyncio.sleep(_PAUSE_S)
            raise WorkerNotStartedError from error

    def stop(self, reason: StopReason) -> None:
        """Tell all workers to start no more jobs."""
        for worker in self._workers.values():
            worker.tell(reason.value.encode())

    def hurry(self) -> None:
        """Tell all workers to stop without waiting for requests under way; unresponsive ones are killed soon."""
        for worker in self._workers.values():
            worker.tell(HURRY)
        self._loop.call_later(_LISTENING_S, self._kill)

    def _kill(self) -> None:
        for worker in self._workers.values():
            worker.kill()

    async def aclose(self) -> None:
        """End all workers. Safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            self._kill()
            from multiprocessing.connection import Client  # noqa: PLC0415 - as above

            # Wakes the thread that accepts; it may have ended, so nothing is asked of it.
            with contextlib.suppress(OSError):
                Client(self._listener.address).close()
            self._listener.close()

    def _accept(self) -> None:
        from multiprocessing import AuthenticationError  # noqa: PLC0415 - as above

        while not self._is_closed:
            try:
                connection = self._listener.accept()
                worker = int(connection.recv_bytes())
            except (OSError, EOFError, ValueError, AuthenticationError):
                continue  # the last call of `aclose`, or somebody who is no worker
            self._loop.call_soon_threadsafe(self._connected, worker, connection)

    def _connected(self, worker: int, connection: "Connection[Any, Any]") -> None:
        if worker in self._workers:
            self._workers[worker].connect(connection, self._loop)


class _LocalWorker:
    """One worker: its process pool, and the connection for its events."""

    def __init__(self, address: Any, key: bytes, number: int, setup: WorkerSetup) -> None:
        from loky import ProcessPoolExecutor  # noqa: PLC0415 - few runs have workers

        # Which permissions new files of this process lack.
        umask = os.umask(0o077)  # it cannot be read alone; a file that is made meanwhile is nobody else's
        os.umask(umask)
        started_with = (address, key, number, dict(os.environ), umask, setup)
        with _without_files_here():
            self._pool = ProcessPoolExecutor(
                max_workers=1,
                timeout=None,
                initializer=start_local_worker,
                initargs=started_with,
                context=_process_context(),
            )
        self._connection: Connection[Any, Any] | None = None
        self._batches: asyncio.Queue[EventBatch | None] = asyncio.Queue(_MESSAGES_WAITING)
        self._sent: list[bytes] = []
        self.is_gone = False

    def connect(self, connection: "Connection[Any, Any]", loop: asyncio.AbstractEventLoop) -> None:
        """Accept the connection of the process, and send the messages queued for it."""
        self._connection = connection
        threading.Thread(target=self._listen, args=(connection, loop), daemon=True).start()
        for message in self._sent:
            self.tell(message)

    def tell(self, message: bytes) -> None:
        """Tell the process to stop or to hurry."""
        if self._connection is None:
            self._sent.append(message)
            return
        with contextlib.suppress(OSError):  # it has ended
            self._connection.send_bytes(message)

    async def run(self, order: ShardOrder, listen: Listener) -> ShardEnd:
        """Have the process run a shard."""
        try:
            with _without_files_here(), _without_ctrl_c(), _without_main():
                task = asyncio.wrap_future(self._pool.submit(do_shard, order))
        except BrokenExecutor as error:  # it ended while it had nothing to do
            raise WorkerLostError from error
        except (
            EOFError,
            OSError,
        ) as error:
            # It cannot be started: the process to copy ended, or there is no room
            await asyncio.sleep(_PAUSE_S)
            raise WorkerNotStartedError from error
        task.add_done_callback(_forget_failure)
        while (batch := await self._next_batch(task)) is not None:
            await listen(batch)
            if batch.end is not None:
                return batch.end
        raise WorkerLostError

    async def _next_batch(self, task: "asyncio.Future[None]") -> EventBatch | None:
        """Return the next batch of events from the process; None when it has ended."""
        told = asyncio.ensure_future(self._batches.get())
        try:
            ends: set[asyncio.Future[Any]] = {told, task}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            failure = task.exception() if task.done() else None
            is_end = self.is_gone or isinstance(failure, BrokenExecutor)
            if isinstance(failure, Exception) and not is_end:
                raise failure
            if failure is not None and not told.done():
                # It broke, or was told to end (KeyboardInterrupt): what it said before is still on its way.
                await asyncio.wait({told}, timeout=_LAST_WORDS_S if self._connection else 0.0)
                return told.result() if told.done() else None
            return await told
        finally:
            told.cancel()

    def kill(self) -> None:
        """End the process: it exits by itself when its connection closes; loky kills one that does not notice."""
        self.is_gone = True
        self.tell(_END)
        if self._connection is not None:
            # Close a connection so that both ends hear of it: while a thread reads, closing alone leaves it
            # open.
            with contextlib.suppress(OSError):  # the other end is gone
                if sys.platform != "win32":
                    with socket.socket(fileno=os.dup(self._connection.fileno())) as both:
                        both.shutdown(socket.SHUT_RDWR)
                self._connection.close()
        self._pool.shutdown(wait=False, kill_workers=True)

    def _listen(self, connection: "Connection[Any, Any]", loop: asyncio.AbstractEventLoop) -> None:
        """Forward the process's messages until it has ended. Runs in its own thread.

        An unreadable message counts as the end as well, so that nothing waits for the rest.
        """
        # TypeError is what reading says when `kill` closes the connection meanwhile.
        with contextlib.suppress(EOFError, OSError, TypeError, ValueError):
            while True:
                self._put(batch_from_json(connection.recv_bytes()), loop)
        self._put(None, loop)

    def _put(self, batch: EventBatch | None, loop: asyncio.AbstractEventLoop) -> None:
        putting = self._batches.put(batch)
        try:
            asyncio.run_coroutine_threadsafe(putting, loop).result()
        except RuntimeError:  # the loop is closed: nobody wants to know
            putting.close()


def _is_news(record: logging.LogRecord) -> bool:
    """Hide loky's failures to end a process: psutil trips over exiting ones, and ours exit by themselves."""
    trace = record.exc_info[2] if record.exc_info else None
    return all(frame.f_code.co_name != "kill_process_tree" for frame, _ in traceback.walk_tb(trace))


def _forget_failure(task: "asyncio.Future[None]") -> None:
    """Retrieve the exception of an abandoned task, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Shield processes started in the block from Ctrl-C: the coordinator tells them to stop."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker  # noqa: PLC0415 - few runs have workers

    from loky.backend import resource_tracker as loky_tracker  # noqa: PLC0415 - as above

    # Starting these would let Ctrl-C through again, before the first worker is started.
    resource_tracker.ensure_running()
    loky_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _process_context() -> Any:
    """Return the start method for processes: forked from one with the imports; None for loky's default."""
    if sys.platform != "linux":
        return None
    from multiprocessing import get_context  # noqa: PLC0415 - as above

    context = get_context("forkserver")
    libraries = [name for name in _HEAVY if name in sys.modules]
    context.set_forkserver_preload([*libraries, "geval_cli.extras.workers.template"])
    return context


@contextlib.contextmanager
def _without_files_here() -> Iterator[None]:
    """Keep processes started in the block from importing files of the current folder, such as a `logging.py`."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Prevent processes started in the block from running the program's main script again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class _Process:
    """The state that a worker process keeps between shards; one per process."""

    current: "_Process | None" = None

    def __init__(self, connection: "Connection[Any, Any]", setup: WorkerSetup) -> None:
        self._connection = connection
        self._setup = setup
        self._loop = (loop_factory() or asyncio.new_event_loop)()
        self._stack = AsyncExitStack()
        self._runner: ShardRunner | None = None
        self._sent: list[bytes] = []
        self._is_idle = threading.Event()
        self._is_idle.set()
        threading.Thread(target=self._listen, daemon=True).start()

    def do(self, order: ShardOrder) -> None:
        """Run a shard."""
        self._is_idle.clear()
        try:
            self._loop.run_until_complete(self._do(order))
        finally:
            self._is_idle.set()

    async def _do(self, order: ShardOrder) -> None:
        """Run a shard; messages received while the suite was being opened also apply."""
        if self._runner is None:
            opening = open_runner(self._setup, order.permit, EventBatcher(self._send))
            try:
                self._runner = await self._stack.enter_async_context(opening)
            except ConfigError as error:
                self._send(batch_to_json(EventBatch(end=ShardEnd(mistakes=mistakes_of(error)))))
                return
            gc.freeze()  # what is there stays: loky looks for garbage after a task, and would go through all of it
            for message in self._sent:
                self._obey(message)
        await self._runner.run(order)

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # without the coordinator, `_listen` ends this process
            self._connection.send_bytes(message)

    def _listen(self) -> None:
        """Receive messages until the connection ends. Runs in its own thread.

        If the coordinator is killed, nothing more is sent; requests already sent are paid for, and a resumed run finds
        their answers in the cache.
        """
        try:
            while (message := self._connection.recv_bytes()) != _END:
                self._loop.call_soon_threadsafe(self._obey, message)
        except (EOFError, OSError):
            self._loop.call_soon_threadsafe(self._obey, StopReason.REQUEST.value.encode())
            self._is_idle.wait(_LAST_WORDS_S)
        os._exit(1)

    def _obey(self, message: bytes) -> None:
        if self._runner is None:
            self._sent.append(message)
        elif message == HURRY:
            self._runner.hurry()
        else:
            self._runner.stop(StopReason(message.decode()))


def start_local_worker(
    address: Any, key: bytes, number: int, environ: Mapping[str, str], umask: int, setup: WorkerSetup
) -> None:
    """Start a worker process with the coordinator's environment and umask, and connect to the coordinator."""
    from multiprocessing import AuthenticationError  # noqa: PLC0415 - as above
    from multiprocessing.connection import Client  # noqa: PLC0415 - as above

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        # Of a terminal or a service manager, to all processes at once: the coordinator hears it, and says when to stop.
        # Not ignored, which programs that are started here would inherit.
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda *_: None)
    os.environ.clear()
    os.environ.update(environ)
    os.umask(umask)
    try:
        connection = Client(address, authkey=key)
        connection.send_bytes(str(number).encode())
    except (OSError, EOFError, AuthenticationError):  # the run has ended meanwhile, which is nobody's mistake
        os._exit(1)
    _Process.current = _Process(connection, setup)


def do_shard(order: ShardOrder) -> None:
    """Run a shard in this process."""
    if _Process.current is None:
        raise RuntimeError("no worker was started in this process")
    try:
        _Process.current.do(order)
    except GevalError as error:
        raise RuntimeError(
            error.message
        ) from error  # others of ours do not survive the way to another process
