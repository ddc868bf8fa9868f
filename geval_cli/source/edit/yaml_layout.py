"""The layout of a YAML text: where each part is and how it is written, and cuts into it that are made all at once.

Values come from `yaml_source`, which also refuses what this reader takes for granted: one document, sane nesting.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import yaml
from msgspec import Struct, field

from geval_cli.source.yaml_source import FAST_LOADER

MERGE_KEY = "<<"


class Entry(NamedTuple):
    """A key of a mapping, where it is, and its value."""

    key: str
    start: int
    end: int
    value: "Node"

    @property
    def whole_end(self) -> int:
        """Return the end of the value, or of the key where the value is empty and is said to stand before it."""
        return max(self.end, self.value.end)


class Node(Struct):
    """A value as it is written.

    Attributes:
        start: where it begins, its anchor and tag included.
        end: behind its last visible character, so before comments and blank lines that follow.
        style: of a scalar, as YAML marks it (`"`, `'`, `|`, `>`, else empty); of the others whether `flow` or not.
        target: the node that an alias stands for.
    """

    kind: Literal["scalar", "mapping", "list", "alias"]
    start: int
    end: int
    style: str = ""
    anchor: str | None = None
    entries: list[Entry] = field(default_factory=list)
    items: list["Node"] = field(default_factory=list)
    target: "Node | None" = None

    @property
    def is_flow(self) -> bool:
        return self.style == "flow"

    def walk(self) -> Iterator["Node"]:
        """Yield this node and all below it, without following aliases."""
        pending = [self]
        while pending:
            node = pending.pop()
            yield node
            pending += node.items
            pending += [entry.value for entry in node.entries]


class _Open(Struct):
    """A mapping or list that is not yet closed; `key` waits for its value."""

    node: Node
    key: yaml.ScalarEvent | None = None


def read_tree(text: str) -> Node:
    """Return the tree of a text that `read_yaml` has read without problems."""
    parser = FAST_LOADER(text)
    builder = _Builder(text)
    try:
        while not isinstance(event := parser.get_event(), yaml.StreamEndEvent):  # type: ignore[no-untyped-call]
            builder.take(event)
    finally:
        parser.dispose()
    return builder.root


class _Builder:
    def __init__(self, text: str) -> None:
        self.root = Node("scalar", 0, 0)
        self._text = text
        self._open: list[_Open] = []
        self._anchors: dict[str, Node] = {}

    def _alias(self, event: Any) -> Node:
        start, end = event.start_mark.index, event.end_mark.index
        return Node("alias", start, end, target=self._anchors[event.anchor])

    def take(self, event: Any) -> None:
        if isinstance(event, yaml.ScalarEvent):
            parent = self._open[-1] if self._open else None
            if parent and parent.node.kind == "mapping" and parent.key is None:
                parent.key = event
            else:
                self._add(self._scalar(event))
        elif isinstance(event, yaml.AliasEvent):
            self._add(self._alias(event))
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._begin(event)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._finish(event)

    def _scalar(self, event: Any) -> Node:
        start, end = event.start_mark.index, event.end_mark.index
        style = event.style or ""
        if style in ("|", ">"):
            end = self._block_end(start, end)
        return self._named(Node("scalar", start, end, style), event)

    def _block_end(self, start: int, end: int) -> int:
        """Return the mark of a block text is in a later line; blank lines are its own only where it keeps them."""
        written = self._text[start:end]
        if "+" in written.split("\n", 1)[0]:
            return start + len(written.removesuffix("\n").removesuffix("\r"))
        return start + len(written.rstrip())

    def _begin(self, event: Any) -> None:
        kind: Literal["mapping", "list"] = "mapping" if isinstance(event, yaml.MappingStartEvent) else "list"
        style = "flow" if event.flow_style else ""
        start, end = event.start_mark.index, event.end_mark.index
        self._open.append(_Open(self._named(Node(kind, start, end, style), event)))

    def _finish(self, event: Any) -> None:
        node = self._open.pop().node
        if node.is_flow:
            node.end = event.end_mark.index
        else:
            last = node.items[-1] if node.items else node.entries[-1].value if node.entries else node
            node.end = last.end
        self._add(node)

    def _named(self, node: Node, event: Any) -> Node:
        if event.anchor:
            node.anchor = event.anchor
            self._anchors[event.anchor] = node
        return node

    def _add(self, node: Node) -> None:
        if not self._open:
            self.root = node
            return
        parent = self._open[-1]
        if parent.node.kind == "list":
            parent.node.items.append(node)
        elif parent.key is not None:
            key: Any = parent.key
            parent.node.entries.append(Entry(key.value, key.start_mark.index, key.end_mark.index, node))
            parent.key = None


_NEWLINE = re.compile("\n")
_BLANK_LINES = re.compile(r"(?:[ \t]*\r?\n)*")


class CutError(Exception):
    """The text is laid out in a way that these cuts cannot follow."""


class Cuts:
    """Pieces of `text` and what comes in their place. Inserted line breaks become those of the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._cuts: list[tuple[int, int, str]] = []
        self._line_starts = [0, *(found.end() for found in _NEWLINE.finditer(text))]
        self._newline = "\r\n" if "\r\n" in text else "\n"

    def replace(self, start: int, end: int, new: str) -> None:
        self._cuts.append((start, end, new.replace("\n", self._newline)))

    def insert(self, at: int, new: str) -> None:
        self.replace(at, at, new)

    def apply(self) -> str:
        """Return the text with every cut made.

        Raises:
            CutError: two of them overlap.
        """
        parts, cursor = [], 0
        for start, end, new in sorted(self._cuts, key=lambda cut: cut[:2]):
            if start < cursor:
                raise CutError
            parts += [self.text[cursor:start], new]
            cursor = end
        return "".join([*parts, self.text[cursor:]])

    def line_start(self, at: int) -> int:
        return self._line_starts[bisect_right(self._line_starts, at) - 1]

    def line_end(self, at: int) -> int:
        """Return where the line of `at` ends, before its line break."""
        index = bisect_right(self._line_starts, at)
        if index == len(self._line_starts):
            return len(self.text)
        found = self._line_starts[index] - 1
        return found - 1 if found > at and self.text[found - 1] == "\r" else found

    def next_line(self, at: int) -> int:
        """Return where the line after that of `at` begins."""
        index = bisect_right(self._line_starts, at)
        return self._line_starts[index] if index < len(self._line_starts) else len(self.text)

    def column(self, at: int) -> int:
        return at - self.line_start(at)

    def begins_line(self, at: int) -> bool:
        """Return whether only spaces are before `at` in its line."""
        return self.behind_text(at, " ") <= self.line_start(at)

    def behind_text(self, at: int, blanks: str) -> int:
        """Return the end of the text before `at`, `blanks` not counted."""
        while at and self.text[at - 1] in blanks:
            at -= 1
        return at

    def indentation(self, at: int) -> int:
        """Return the number of leading spaces in the line of `at`, as far as `at`."""
        start = end = self.line_start(at)
        while end < at and self.text[end] == " ":
            end += 1
        return end - start

    def skip_blank_lines(self, at: int) -> int:
        found = _BLANK_LINES.match(self.text, at)
        return found.end() if found else at

    def before_blank_lines(self, at: int, first: int) -> int:
        """Return the start of the blank lines directly above the line start `at`, none of them before `first`."""
        while at > first:
            above = self.line_start(at - 1)
            if above < first or self.text[above:at].strip():
                break
            at = above
        return at

    def before_comments(self, at: int, column: int, first: int) -> int:
        """Return the start of the comments of this column directly above the line start `at`, none before `first`."""
        while at > first:
            above = self.line_start(at - 1)
            line = self.text[above:at]
            if above < first or not line.lstrip(" ").startswith("#") or line.index("#") != column:
                break
            at = above
        return at


def indented(text: str, indent: int, *, first: bool) -> str:
    """`text` with spaces before every line that has something in it; before its first line only if `first`."""
    lines = text.split("\n")
    return "\n".join(
        " " * indent + line if line.strip() and (first or number) else line
        for number, line in enumerate(lines)
    )


def dedented(text: str, indent: int) -> str:
    """`text`, whose first line begins at its first character, without `indent` spaces before every other line.

    Raises:
        CutError: a line has less before it.
    """
    first, *rest = text.replace("\r\n", "\n").split("\n")
    lines = [first]
    for line in rest:
        if line[:indent].strip():
            raise CutError
        lines.append(line[indent:])
    return "\n".join(lines)


def indentation_of(cuts: Cuts, tree: Node) -> int:
    """Return the indentation of a mapping within a mapping; 2 where the text has none."""
    for node in tree.walk():
        for entry in node.entries:
            inner = entry.value
            if not node.is_flow and inner.kind == "mapping" and not inner.is_flow and not inner.anchor:
                return max(1, cuts.column(inner.start) - cuts.column(entry.start))
    return 2
