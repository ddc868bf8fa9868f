"""Where a part of a config stands in its file, kept beside the part so that any room can point at it later."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from geval_cli.errors import Location

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of one file: for each path of keys and indexes, where its key and its value begin."""

    file: str
    keys: Mapping[KeyPath, Location] = field(default_factory=dict, repr=False)
    values: Mapping[KeyPath, Location] = field(default_factory=dict, repr=False)


class Place(Struct, frozen=True):
    """A part of a file: `positions` of the whole file and the path of keys that leads to the part."""

    positions: Positions
    path: KeyPath = ()

    @classmethod
    def nowhere(cls) -> "Place":
        """For specs that come from code or from the command line and stand in no file."""
        return cls(Positions(""))

    def child(self, *keys: str | int) -> "Place":
        return Place(self.positions, (*self.path, *keys))

    def key(self, *keys: str | int) -> Location | None:
        """Where the key of this part (or of one below it) begins; for a list item, the item. None outside files."""
        path = (*self.path, *keys)
        return self.positions.keys.get(path) or self.value(*keys)

    def value(self, *keys: str | int) -> Location | None:
        """Where the value of this part (or of one below it) begins; the nearest enclosing part if it is not there."""
        path = (*self.path, *keys)
        while path not in self.positions.values:
            if not path:
                return None
            path = path[:-1]
        return self.positions.values[path]

    def spelled(self, *spellings: str) -> Location | None:
        """Where the value of a key begins that may be written in several ways; this part itself if it is not there."""
        for name in spellings:
            if (*self.path, name) in self.positions.values:
                return self.value(name)
        return self.value()
