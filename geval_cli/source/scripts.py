"""Programs whose results are parts of a config: who calls them is for higher rooms, which may also refuse to."""

from pathlib import Path
from typing import Protocol

from geval_cli.errors import Location
from geval_cli.records import JsonValue


class ScriptCaller(Protocol):
    """Calls a function of a user's file while a config is read. Equal calls are made once."""

    def __call__(
        self, path: Path, function: str, arguments: list[JsonValue], asked_at: Location | None
    ) -> JsonValue:
        """Call the function and return its result.

        Args:
            path: of the Python file.
            function: its name.
            arguments: of which the function gets as many as it takes.
            asked_at: where the config names the file.

        Raises:
            ConfigError: one problem, placed at `asked_at`: the function failed, or took too long.
        """
        ...
