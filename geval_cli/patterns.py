"""Regular expressions that are compiled when they are first used: compiling all of them took a tenth of every start."""

import re
from typing import Any, cast


def compile_later(text: str, flags: int = 0) -> re.Pattern[str]:
    """Compile `text` at its first use, which is also when a mistake in it shows.

    It is for constants of modules, of which a run uses few.
    """
    return cast("re.Pattern[str]", _Pattern(text, flags))


class _Pattern:
    """Stands for a pattern; what was once asked of it stays as an attribute and costs nothing more."""

    def __init__(self, text: str, flags: int) -> None:
        self._text = text
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(self._text, self._flags), name)
        setattr(self, name, found)
        return found
