"""What a reader makes of a YAML or JSON text: plain values, and where each of them stands."""

from msgspec import Struct

from geval_cli.config.place import Place, Positions
from geval_cli.records import JsonValue

MAX_DEPTH = 100
"""Levels of nesting that a file may have. Real configs have about ten; the bound keeps every walk free of overflow."""


ENV_MARK = "env."
"""What every `{{ env.NAME }}` contains; texts without it need not be searched for any."""


class Document(Struct, frozen=True):
    """The content of one file. Keys of mappings are always text, as written; numbers are finite.

    `may_use_env` is false when no string in it can ask for an environment value.
    """

    value: JsonValue
    positions: Positions
    may_use_env: bool = True

    @property
    def place(self) -> Place:
        return Place(self.positions)
