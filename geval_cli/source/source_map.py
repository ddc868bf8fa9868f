"""Positions in source files: spans of text, key paths, and documents that carry them."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec import Struct

from geval_cli.errors import Location
from geval_cli.records import JsonValue

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions in one file: for each path of keys and indexes, where its key and its value begin."""

    file: str
    keys: Mapping[KeyPath, Location] = field(default_factory=dict, repr=False)
    values: Mapping[KeyPath, Location] = field(default_factory=dict, repr=False)


class SourcePath(Struct, frozen=True):
    """A part of a file: the `positions` of the whole file and the key path that leads to the part."""

    positions: Positions
    path: KeyPath = ()

    @classmethod
    def nowhere(cls) -> "SourcePath":
        """Return the place of specs that come from code or the command line and are in no file."""
        return cls(Positions(""))

    def child(self, *keys: str | int) -> "SourcePath":
        return SourcePath(self.positions, (*self.path, *keys))

    def has(self, *keys: str | int) -> bool:
        """Return whether the file has this part, or the one below it at `keys`."""
        return (*self.path, *keys) in self.positions.values

    def key(self, *keys: str | int) -> Location | None:
        """Return where the key of this part (or one below it) begins; for a list item, the item. None outside files."""
        path = (*self.path, *keys)
        return self.positions.keys.get(path) or self.value(*keys)

    def value(self, *keys: str | int) -> Location | None:
        """Return where the value of this part (or of one below it) begins; if missing, the nearest enclosing part."""
        path = (*self.path, *keys)
        while (found := self.positions.values.get(path)) is None and path:
            path = path[:-1]
        return found

    def spelled(self, *spellings: str) -> Location | None:
        """Return where the value of a key with several spellings begins; if missing, this part itself."""
        for name in spellings:
            if (found := self.positions.values.get((*self.path, name))) is not None:
                return found
        return self.value()


class KeyLocation(Location):
    """A place in data that is not in a file: its key path is all that can be said about it."""

    def __str__(self) -> str:
        return self.key_path


# Bounds a cache that helps because every test looks up where the assertions of `defaultTest` are.
_ASKED_KEPT = 1024

# Only these three: `str.splitlines` also breaks at form feeds and U+2028, where editors and YAML do not.
_LINE_BREAK = re.compile(r"\r\n|\n|\r")
_PLAIN_KEY = re.compile(r"[\w$-]+")

# Fields of the typed config whose key in the file is a different word.
_OTHER_SPELLINGS = {"criteria": "value", "assertions": "assert"}


class Span(Struct):
    """Where a value begins and ends, as offsets into the text, and the spans of what it contains."""

    start: int
    end: int
    children: "dict[str, KeySpan] | list[Span] | None" = None


class KeySpan(NamedTuple):
    """The position of a key in a mapping, and the span of its value."""

    start: int
    end: int
    value: Span


def split_lines(text: str) -> list[str]:
    """Return the lines of `text` as editors count them, without their line breaks."""
    return _LINE_BREAK.split(text)


def format_key_path(path: KeyPath, prefix: str = "") -> str:
    """Return a path in readable form: `tests[0].assert[2].threshold`."""
    text = prefix
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


class SpanTree:
    """The spans of one text, with what is needed to describe a place in it.

    Args:
        file: the file's name as the user knows it.
        text: the text that the offsets refer to.
        root: returns the spans; called at most once, and only when a position is needed.
        first_line: the number of the text's first line in the file.
        prefix: the start of key paths, for texts that are part of a larger whole.
    """

    def __init__(
        self, file: str, text: str, root: Callable[[], Span], *, first_line: int = 1, prefix: str = ""
    ) -> None:
        self.file = file
        self._text = text
        self._load_root = root
        self._root: Span | None = None
        self._line_starts: list[int] | None = None
        self._first_line = first_line
        self._prefix = prefix

    def positions(self) -> Positions:
        return Positions(self.file, keys=_SpanMap(self, of_keys=True), values=_SpanMap(self, of_keys=False))

    def locate(self, start: int, end: int, path: KeyPath = ()) -> Location:
        """Return the location of a span of the text; its length is cut at the end of the line."""
        if self._line_starts is None:
            # Only when a first position is needed: most runs have no problem to locate.
            self._line_starts = [0, *(match.end() for match in _LINE_BREAK.finditer(self._text))]
        index = bisect_right(self._line_starts, start) - 1
        line_start = self._line_starts[index]
        visible_end = min(end, self._line_end(index))
        while visible_end > start and self._text[visible_end - 1].isspace():
            visible_end -= 1
        return Location(
            self.file,
            self._first_line + index,
            start - line_start + 1,
            max(1, visible_end - start),
            format_key_path(path, self._prefix),
        )

    def _line_end(self, index: int) -> int:
        """Return where a line ends, computed from the next one's start: a search would read a long line each time."""
        starts = self._line_starts or [0]
        if index + 1 == len(starts):
            return len(self._text)
        end = starts[index + 1] - 1
        return end - 1 if self._text.startswith("\r\n", end - 1) else end

    def refer_back(self, key: KeySpan, offset: int) -> str:
        """Return where a key is, in words for a message about `offset`."""
        there = self.locate(key.start, key.end)
        here = self.locate(offset, offset)
        column = f", column {there.column}" if there.line == here.line else ""
        return f"it is already in line {there.line}{column}"

    def root(self) -> Span:
        if self._root is None:
            self._root = self._load_root()
        return self._root

    def find_value(self, path: KeyPath) -> Location:
        """Return the position of the value at `path`; raises KeyError if the file has none."""
        span, written = self._follow(path)
        return self.locate(span.start, span.end, written)

    def find_key(self, path: KeyPath) -> Location:
        """Return the position of the key that `path` ends with; its key path is that of the enclosing mapping."""
        if not path or isinstance(path[-1], int):
            raise KeyError(path)
        span, written = self._follow(path[:-1])
        key = _keys_of(span)[_written_key(span, path[-1])]
        return self.locate(key.start, key.end, written)

    def _follow(self, path: KeyPath) -> tuple[Span, KeyPath]:
        """Return the span at `path`, and the path as spelled in the file."""
        span, written = self.root(), list[str | int]()
        for part in path:
            if isinstance(part, str):
                key = _written_key(span, part)
                written.append(key)
                span = _keys_of(span)[key].value
            elif isinstance(span.children, list) and 0 <= part < len(span.children):
                written.append(part)
                span = span.children[part]
            else:
                raise KeyError(part)
        return span, tuple(written)


def _keys_of(span: Span) -> dict[str, KeySpan]:
    return span.children if isinstance(span.children, dict) else {}


def _written_key(span: Span, key: str) -> str:
    """Return the file's spelling of `key`: callers use field names, files may use camelCase or another word."""
    keys = _keys_of(span)
    if key in keys:
        return key
    other = _OTHER_SPELLINGS.get(key, key)
    if other in keys:
        return other
    plain = key.replace("_", "").lower()
    for written in keys:
        if written.replace("_", "").lower() == plain:
            return written
    raise KeyError(key)


class _SpanMap(Mapping[KeyPath, Location]):
    """A tree of spans as the mapping that `Positions` expects."""

    def __init__(self, tree: SpanTree, *, of_keys: bool) -> None:
        self._tree = tree
        self._of_keys = of_keys
        self._asked: dict[KeyPath, Location | None] = {}

    def __getitem__(self, path: KeyPath) -> Location:
        location: Location | None = self.get(path)
        if location is None:
            raise KeyError(path)
        return location

    def get(self, path: KeyPath, default: Any = None) -> Any:
        """Return the position at `path`. Called for every result; `Mapping.get` would be slowed by an exception."""
        if self._of_keys and not (path and isinstance(path[-1], str)):
            return default
        try:
            location = self._asked[path]
        except KeyError:
            location = self._find(path)
            # Bounded, because a suite with a problem in every test looks up that many positions.
            if len(self._asked) < _ASKED_KEPT:
                self._asked[path] = location
        return default if location is None else location

    def _find(self, path: KeyPath) -> Location | None:
        try:
            return self._tree.find_key(path) if self._of_keys else self._tree.find_value(path)
        except KeyError:
            return None

    def __iter__(self) -> Iterator[KeyPath]:
        pending: list[tuple[KeyPath, Span]] = [((), self._tree.root())]
        while pending:
            path, span = pending.pop()
            if not self._of_keys or (path and isinstance(path[-1], str)):
                yield path
            if isinstance(span.children, dict):
                pending.extend(((*path, key), child.value) for key, child in span.children.items())
            elif span.children is not None:
                pending.extend(((*path, index), child) for index, child in enumerate(span.children))

    def __len__(self) -> int:
        return sum(1 for _ in self)


MAX_DEPTH = 100
"""How many levels deep a file may be nested: real configs have about ten, and the limit prevents stack overflows."""


ENV_MARK = "env."
"""A part of every `{{ env.NAME }}`; texts without it need no search."""


class Document(Struct, frozen=True):
    """The content of one file. Keys of mappings are always text, as written; numbers are finite.

    `may_use_env` is false if no string in it can refer to an environment value.
    """

    value: JsonValue
    positions: Positions
    may_use_env: bool = True

    @property
    def place(self) -> SourcePath:
        return SourcePath(self.positions)
