"""Match a config's regular expressions against outputs, under limits of size and time."""

import math
from collections.abc import Callable
from functools import lru_cache

import regex

from geval_cli.assertions.time_limit import within
from geval_cli.errors import CheckTimeoutError, UnjudgeableError

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
