"""Regular expressions that come from a config and meet outputs that nobody foresaw, under a time limit."""

import regex

from geval_cli.errors import CheckTimeoutError

REGEX_TIMEOUT_S = 2.0


def is_found(pattern: str, text: str) -> bool:
    """Whether `pattern` matches somewhere in `text`. Other threads go on meanwhile.

    Raises:
        CheckTimeoutError: it takes too long to say; some patterns need exponential time on some texts.
    """
    try:
        return regex.search(pattern, text, timeout=REGEX_TIMEOUT_S, concurrent=True) is not None
    except TimeoutError as error:
        message = f"the regular expression took more than {REGEX_TIMEOUT_S:g} s on this output"
        raise CheckTimeoutError(
            message, hint="write it without nested repetition, such as (a|aa)+"
        ) from error
