"""Stop what takes too long on an output: schemas, comparisons and parsers written in Python."""

import ctypes
import sys
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import ParamSpec, TypeVar

from geval_cli.errors import CheckTimeoutError

CHECK_TIMEOUT_S = 10.0
_PATIENCE_S = 0.05

P = ParamSpec("P")
T = TypeVar("T")


class _TimeUp(SystemExit):
    """Raised within the work; nothing that handles errors takes it for one, and a thread may end by it."""


def within(seconds: float, what: str, work: Callable[P, T], *args: P.args, **words: P.kwargs) -> T:
    """Return what `work` returns, or raise what it raises. It runs in a thread, in which an exception stops it.

    That reaches only what runs Python code or waits; code in C must know a limit of its own.

    Raises:
        CheckTimeoutError: it takes longer; `what` names it.
    """
    ended, returned, raised = allocate_lock(), list[T](), list[BaseException]()
    ended.acquire()

    def run() -> None:
        try:
            returned.append(work(*args, **words))
        except _TimeUp:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised again where it was asked for
            raised.append(error)
        finally:
            ended.release()

    # One of `threading` would tell of an exception that comes as it ends.
    thread = start_new_thread(copy_context().run, (run,))
    try:
        is_over = ended.acquire(timeout=seconds)
    except BaseException:  # Ctrl-C
        _stop(thread)
        raise
    if not is_over:
        with _silent_about_it():
            # Again and again: a handler within may have caught it.
            for _ in range(int(seconds / _PATIENCE_S) + 1):
                if not _stop(thread) or ended.acquire(timeout=_PATIENCE_S):
                    break
        hint = "make it smaller or simpler, or the output shorter"
        raise CheckTimeoutError(f"{what} took more than {seconds:g} s", hint=hint)
    if raised:
        raise raised[0]
    return returned[0]


@contextmanager
def _silent_about_it() -> Iterator[None]:
    """Print nothing when the exception comes up in a finalizer, where Python can only tell of it."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda told: None if told.exc_type is _TimeUp else before(told)
    try:
        yield
    finally:
        sys.unraisablehook = before


def _stop(thread: int) -> bool:
    """Raise the exception in a thread; return whether there is such a thread."""
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    return bool(raise_in(ctypes.c_ulong(thread), ctypes.py_object(_TimeUp)))
