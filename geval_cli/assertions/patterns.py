"""Match a config's regular expressions against outputs, under a time limit."""

from collections.abc import Callable

import regex

from geval_cli.errors import CheckTimeoutError

REGEX_TIMEOUT_S = 2.0


def is_found(pattern: str, text: str) -> bool:
    """Return whether `pattern` matches somewhere in `text`. Other threads go on meanwhile.

    Raises:
        CheckTimeoutError: it takes too long to say; some patterns need exponential time on some texts.
    """
    return _is_match(regex.search, pattern, text)


def is_whole(pattern: str, text: str) -> bool:
    """Return whether `pattern` matches all of `text`, in capitals or not. Raises as `is_found`."""
    return _is_match(regex.fullmatch, pattern, text, regex.IGNORECASE)


def _is_match(match: Callable[..., object], pattern: str, text: str, flags: int = 0) -> bool:
    try:
        return match(pattern, text, flags, timeout=REGEX_TIMEOUT_S, concurrent=True) is not None
    except TimeoutError as error:
        message = f"the regular expression took more than {REGEX_TIMEOUT_S:g} s on this output"
        raise CheckTimeoutError(
            message, hint="write it without nested repetition, such as (a|aa)+"
        ) from error
