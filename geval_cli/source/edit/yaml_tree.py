"""Where every part of a YAML text is and how it is written: what changing it in place needs to know.

Values come from `yaml_source`, which also refuses what this reader takes for granted: one document, sane nesting.
"""

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
