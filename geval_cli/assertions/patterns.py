"""Match regular expressions from configs under limits of size and time, and stop work that takes too long."""

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


class _TimeLimitReached(SystemExit):
    """Raised inside the work to stop it; as a SystemExit, it passes error handlers and ends a thread quietly."""


def within(seconds: float, what: str, work: Callable[P, T], *args: P.args, **words: P.kwargs) -> T:
    """Return what `work` returns, or raise what it raises. It runs in a thread, where an exception stops it when late.

    That stops Python code and waiting; C code needs a limit of its own.

    Raises:
        CheckTimeoutError: the work, called `what` in the message, takes longer.
    """
    ended = allocate_lock()
    returned = list[T]()
    raised = list[BaseException]()
    ended.acquire()
    is_late = False

    def run() -> None:
        try:
            if not is_late:  # on a busy machine, the thread may start after its time is up
                returned.append(work(*args, **words))
        except _TimeLimitReached:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            raised.append(error)
        finally:
            ended.release()

    # A `threading.Thread` would print a traceback if the exception arrived while it ends.
    thread = start_new_thread(copy_context().run, (run,))
    try:
        is_over = ended.acquire(timeout=seconds)
    except BaseException:  # Ctrl-C
        is_late = True
        _stop(thread)
        raise
    if not is_over:
        is_late = True
        with _ignore_unraisable():
            # Repeatedly, because the work may have caught the exception, or the thread may not have started.
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
def _ignore_unraisable() -> Iterator[None]:
    """Print nothing if the exception is raised in a finalizer, where Python can only report it."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda told: None if told.exc_type is _TimeLimitReached else before(told)
    try:
        yield
    finally:
        sys.unraisablehook = before


def _stop(thread: int) -> None:
    """Raise the exception in a thread; no effect before it has started or after it has ended."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_TimeLimitReached))


REGEX_TIMEOUT_S = 2.0
MAX_LENGTH = 50_000
MAX_SIZE = 200_000
"""The size limit of a pattern with its repetitions written out, as it is in memory: about 300 bytes per character."""

_QUICK = 200
_SIMPLE_HINT = "write it without nested repetition, such as (a|aa)+"
_TOO_LARGE = f"it is longer than {MAX_SIZE:,} characters with its repetitions written out"


@lru_cache(maxsize=512)
def compiled(pattern: str, flags: int = 0) -> "regex.Pattern[str]":
    """Return a compiled pattern.

    Raises:
        regex.error: the pattern is broken or too large: (((a{1000}){1000}){1000}) would take gigabytes.
    """
    if len(pattern) > MAX_LENGTH:
        raise regex.error(f"it is longer than {MAX_LENGTH:,} characters")
    if _written_out(pattern) > MAX_SIZE:
        raise regex.error(_TOO_LARGE)
    try:
        if len(pattern) <= _QUICK and "{" not in pattern:
            return regex.compile(pattern, flags)
        # The time limit catches what the estimate of the size misses.
        return within(REGEX_TIMEOUT_S, "the pattern", regex.compile, pattern, flags)
    except (CheckTimeoutError, MemoryError) as error:
        raise regex.error(_TOO_LARGE) from error
    except RecursionError as error:
        raise regex.error("it is nested too deeply") from error


def _written_out(pattern: str) -> int:
    """Return roughly the length of a pattern with `a{3}` written out as `aaa`; never much less than the real one."""
    if _MAY_HAVE_COMMENTS.search(pattern):  # there may be anything between a group and its repetition
        return len(pattern) * math.prod(_number(digits) for digits in _COUNTS.findall(pattern))
    groups: list[int] = [0]  # lengths of the open groups
    last = 0  # length of what a repetition would repeat
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
    """Return a minimum number of repetitions, at least 1; only the first nine digits count."""
    return max(1, int(digits.lstrip("0")[:9] or 0))


_MAY_HAVE_COMMENTS = regex.compile(r"\(\?[a-zA-Z0-9-]*(?:x|#)")
_COUNTS = regex.compile(r"\{\s*(\d*)(?:,\d*)?\s*\}")
_COUNT = regex.compile(r"(\d*)(?:,\d*)?\}")
_CLASS = regex.compile(r"\^?\]?(?:\\.|[^\]\\\[({])*\]", regex.DOTALL)
"""The rest of a character class without anything that would count outside a class."""


def is_found(pattern: str, text: str) -> bool:
    """Return whether `pattern` matches anywhere in `text`. Other threads keep running meanwhile.

    Raises:
        CheckTimeoutError: it takes too long; some patterns need exponential time on some texts.
        UnjudgeableError: the pattern is broken or too large.
    """
    return _is_match(lambda found: found.search, pattern, text)


def is_whole(pattern: str, text: str) -> bool:
    """Return whether `pattern` matches all of `text`, ignoring case. Raises the same errors as `is_found`."""
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
