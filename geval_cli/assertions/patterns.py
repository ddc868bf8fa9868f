"""Match a config's regular expressions against outputs, under limits of size and time, and stop what takes too long."""

import ctypes
import math
import sys
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import lru_cache
from typing import ParamSpec, TypeVar

import regex

from geval_cli.errors import CheckTimeoutError, UnjudgeableError

CHECK_TIMEOUT_S = 10.0
_PATIENCE_S = 0.05
_LEAST_TRIES = 20

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
    ended = allocate_lock()
    returned = list[T]()
    raised = list[BaseException]()
    ended.acquire()
    is_late = False

    def run() -> None:
        try:
            if not is_late:  # on a busy machine the thread may begin after its time is up
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
        is_late = True
        _stop(thread)
        raise
    if not is_over:
        is_late = True
        with _silent_about_it():
            # Again and again: a handler within may have caught it, or the thread has not begun.
            for _ in range(max(int(seconds / _PATIENCE_S), _LEAST_TRIES)):
                _stop(thread)
                if ended.acquire(timeout=_PATIENCE_S):
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


def _stop(thread: int) -> None:
    """Raise the exception in a thread, if it has begun and has not ended."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_TimeUp))


REGEX_TIMEOUT_S = 2.0
MAX_LENGTH = 50_000
MAX_SIZE = 200_000
"""Of a pattern with its repetitions written out, which is how it is kept: each part takes about 300 bytes."""

_QUICK = 200
_SIMPLE_HINT = "write it without nested repetition, such as (a|aa)+"
_TOO_LARGE = f"it is longer than {MAX_SIZE:,} characters with its repetitions written out"


@lru_cache(maxsize=512)
def compiled(pattern: str, flags: int = 0) -> "regex.Pattern[str]":
    """Return a compiled pattern.

    Raises:
        regex.error: it is broken, or too large: (((a{1000}){1000}){1000}) would take gigabytes.
    """
    if len(pattern) > MAX_LENGTH:
        raise regex.error(f"it is longer than {MAX_LENGTH:,} characters")
    if _written_out(pattern) > MAX_SIZE:
        raise regex.error(_TOO_LARGE)
    try:
        if len(pattern) <= _QUICK and "{" not in pattern:
            return regex.compile(pattern, flags)
        # What the estimate does not see, the time limit stops.
        return within(REGEX_TIMEOUT_S, "the pattern", regex.compile, pattern, flags)
    except (CheckTimeoutError, MemoryError) as error:
        raise regex.error(_TOO_LARGE) from error
    except RecursionError as error:
        raise regex.error("it is nested too deeply") from error


def _written_out(pattern: str) -> int:
    """Return about how long a pattern is once `a{3}` is written as `aaa`; never much less than it is."""
    if _MAY_HAVE_COMMENTS.search(pattern):  # anything may stand between a group and its repetition
        return len(pattern) * math.prod(_number(digits) for digits in _COUNTS.findall(pattern))
    groups: list[int] = [0]  # lengths of the groups that are open
    last = 0  # of what a repetition would repeat
    position = 0
    while position < len(pattern):
        sign = pattern[position]
        position += 1
        if sign == "{" and (count := _COUNT.match(pattern, position)):
            position = count.end()
            times = _number(count[1])
            groups[-1] += last * (times - 1)
            last *= times
            continue
        if sign == "\\":
            position += 1
        if sign == "(":
            groups.append(1)
            continue
        if sign == ")" and len(groups) > 1:
            last = groups.pop()
        elif sign == "[" and (within_brackets := _CLASS.match(pattern, position)):
            position, last = within_brackets.end(), 1
        else:
            last = 1
        groups[-1] += last
        if groups[-1] > MAX_SIZE:
            break
    return sum(groups)


def _number(digits: str) -> int:
    """Return how often at least something is repeated, or that it is far too often."""
    return max(1, int(digits.lstrip("0")[:9] or 0))


_MAY_HAVE_COMMENTS = regex.compile(r"\(\?[a-zA-Z0-9-]*(?:x|#)")
_COUNTS = regex.compile(r"\{\s*(\d*)(?:,\d*)?\s*\}")
_COUNT = regex.compile(r"(\d*)(?:,\d*)?\}")
_CLASS = regex.compile(r"\^?\]?(?:\\.|[^\]\\\[({])*\]", regex.DOTALL)
"""The rest of a class that holds nothing which would count outside of one."""


def is_found(pattern: str, text: str) -> bool:
    """Return whether `pattern` matches somewhere in `text`. Other threads go on meanwhile.

    Raises:
        CheckTimeoutError: it takes too long to say; some patterns need exponential time on some texts.
        UnjudgeableError: the pattern is broken or too large.
    """
    return _is_match(lambda found: found.search, pattern, text)


def is_whole(pattern: str, text: str) -> bool:
    """Return whether `pattern` matches all of `text`, in capitals or not. Raises as `is_found`."""
    return _is_match(lambda found: found.fullmatch, pattern, text, regex.IGNORECASE)


def _is_match(
    method: Callable[["regex.Pattern[str]"], Callable[..., object]], pattern: str, text: str, flags: int = 0
) -> bool:
    try:
        match = method(compiled(pattern, flags))
        return match(text, timeout=REGEX_TIMEOUT_S, concurrent=True) is not None
    except regex.error as error:
        raise UnjudgeableError(
            f"the regular expression cannot be used: {error}", hint=_SIMPLE_HINT
        ) from error
    except TimeoutError as error:
        message = f"the regular expression took more than {REGEX_TIMEOUT_S:g} s on this output"
        raise CheckTimeoutError(message, hint=_SIMPLE_HINT) from error
    except MemoryError as error:
        message = "the regular expression took more memory than allowed on this output"
        raise CheckTimeoutError(message, hint=_SIMPLE_HINT) from error
