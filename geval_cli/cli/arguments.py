"""Options that are more than a word or a number, as values."""

from collections.abc import Sequence
from typing import cast, get_args

from geval_cli.config.schema import Scoring
from geval_cli.errors import UsageError


def parse_variables(texts: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping.

    Raises:
        UsageError: a text has no `=`, or nothing before it.
    """
    variables = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise UsageError(f"--var takes NAME=VALUE, not `{text}`", hint="for example --var city=Paris")
        variables[name] = value
    return variables


def parse_scoring(text: str | None, samples: int | None) -> Scoring | None:
    """A way of scoring; None when none was given.

    Raises:
        UsageError: there is no such way, or it is at odds with a number of samples.
    """
    known = get_args(Scoring)
    if text is not None and text not in known:
        raise UsageError(f"--scoring takes {', '.join(known)}, not `{text}`", hint="`auto` is the default")
    if samples is not None and text not in (None, "samples"):
        raise UsageError(f"--samples means --scoring samples, not {text}", hint="leave one of the two out")
    return cast("Scoring | None", text)
