"""Regular expressions that are compiled on first use: compiling all of them took a tenth of every start."""

import re
from typing import Any, cast


def compile_later(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern that is compiled on first use, which is also when a mistake in it shows.

    It is for constants of modules, of which a run uses only a few.
    """
    return cast("re.Pattern[str]", _Pattern(text, flags))


class _Pattern:
    """A stand-in for a pattern; an attribute, once looked up, is stored and costs nothing more."""

    def __init__(self, text: str, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, found)
        return found
