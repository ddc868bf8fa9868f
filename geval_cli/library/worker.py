"""A thread with an event loop for judges."""

import asyncio
import logging
import os
import secrets
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from geval_cli.errors import StoreError, UsageError
from geval_cli.extras.batches.driver import BatchDriver
from geval_cli.extras.batches.layer import BatchPolicy
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.gateway import CallPolicy
from geval_cli.library.records import JudgingOptions, exits_as_errors
from geval_cli.records import Role
from geval_cli.runs.session import Session, open_session
from geval_cli.store.cache import ResponseCache
from geval_cli.store.state import CacheChoice, open_answers

T = TypeVar("T")
_Opened = Future[tuple[asyncio.AbstractEventLoop, Session]]

MAX_REQUESTS = 100
"""The maximum number of concurrent requests of one metric."""

_ENDING_S = 5.0

_log = logging.getLogger("geval_cli")


class Worker:
    """A thread that runs coroutines that need judges, until `stop`; warnings go to the logger `geval_cli`.

    Raises:
        OSError: no event loop can be created, because too many files are open.
        UsageError: only the cache may answer, and there is none, or batches cannot be recorded.
        StoreError: the cache cannot be read.
    """

    def __init__(self, options: JudgingOptions) -> None:
        self._options = options
        self._stopping = asyncio.Event()
        opened: _Opened = Future()
        self._thread = threading.Thread(target=self._live, args=(opened,), name="geval-judges", daemon=True)
        self._thread.start()
        self._loop, self._judges = opened.result()

    @property
    def is_alive(self) -> bool:
        """Return whether work can be submitted; False in a forked process."""
        return self._thread.is_alive()

    def submit(self, work: Callable[[Session], Coroutine[Any, Any, T]]) -> Future[T]:
        """Return the future result of `work`; cancelling it cancels the work."""
        return asyncio.run_coroutine_threadsafe(self._result_of(work), self._loop)

    def stop(self) -> None:
        """Cancel all work, close the judges and end the thread; waits for it, unless called from that thread."""
        if not self.is_alive:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        if threading.current_thread() is not self._thread:
            self._thread.join(_ENDING_S)

    async def _result_of(self, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        with exits_as_errors((SystemExit, KeyboardInterrupt)):
            return await work(self._judges)

    def _live(self, opened: _Opened) -> None:
        try:
            loop = asyncio.new_event_loop()
        except OSError as error:
            opened.set_exception(error)
            return
        loop.set_default_executor(_Executor())
        try:
            serving = loop.create_task(self._serve(opened))
            while not serving.done():
                # The loop stops if code of a package raises one of these, and other callers wait for their results.
                with suppress(SystemExit, KeyboardInterrupt):
                    loop.run_until_complete(serving)
        except (UsageError, StoreError) as error:
            opened.set_exception(error)
        finally:
            loop.close()

    async def _serve(self, opened: _Opened) -> None:
        options = self._options
        poll_s = options.batch_poll_s
        batch = None if poll_s is None else BatchPolicy(frozenset({Role.JUDGE}), poll_s=poll_s)
        # With a run id, an answer that several cases share, such as steps, counts once.
        run_id = None if batch is None else f"library-{secrets.token_hex(4)}"
        policy = CallPolicy(
            options.budget or Budget(),
            is_offline=options.is_offline,
            run_id=run_id,
            begin_batches=None if batch is None else partial(BatchDriver.begin, batch),
        )
        async with AsyncExitStack() as stack:
            cache = self._open_cache(stack)
            judges = await stack.enter_async_context(
                open_session(
                    env=os.environ,
                    base_dir=Path(),
                    cache=cache,
                    max_concurrency=MAX_REQUESTS,
                    policy=policy,
                    notice=_log.warning,
                )
            )
            opened.set_result((asyncio.get_running_loop(), judges))
            await self._stopping.wait()
            # Cancel every other task of this loop and wait until it has ended.
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    def _open_cache(self, stack: AsyncExitStack) -> ResponseCache | None:
        options = self._options
        if not options.uses_cache:
            return None
        choice = CacheChoice(is_offline=options.is_offline)
        cache, warnings = stack.enter_context(open_answers(options.home, os.environ, choice))
        for warning in warnings:
            _log.warning(warning)
        if options.batch_poll_s is not None and cache.is_temporary:
            hint = "see the warning; set GEVAL_HOME to another folder"
            raise UsageError("batches outlive this process, but there is nowhere to record them", hint=hint)
        return cache


class _Executor(ThreadPoolExecutor):
    """An executor that does work itself when the interpreter exits and no thread can start: models are freed then too.

    For the same reason `asyncio.run` cannot be used here: it starts a thread at its end.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            done: Future[T] = Future()
            done.set_result(fn(*args, **kwargs))
            return done
