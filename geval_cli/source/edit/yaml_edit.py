"""Changing values in a YAML or JSON text and nothing else: comments, order, quotes and every other line stay.

The text is edited where its value differs from the wanted one. The outcome is read again and compared; where fine cuts
do not give the wanted value (unusual anchors, exotic layout), coarser ones are tried.
"""

from collections.abc import Sequence

import yaml
from msgspec import Struct

from geval_cli.errors import ConfigError, UsageError
from geval_cli.records import JsonValue
from geval_cli.source.edit.targets import TargetValue, plain_value
from geval_cli.source.edit.yaml_changes import YamlChanges
from geval_cli.source.edit.yaml_layout import CutError, Cuts, Node, dedented, read_tree
from geval_cli.source.edit.yaml_style import same
from geval_cli.source.json_source import read_json
from geval_cli.source.source_map import Document
from geval_cli.source.yaml_source import read_yaml

_DEPTHS = (100, 2, 1)
"""How deep to look for what differs: everywhere, or whole prompts and tests, or whole keys of the top level."""


class EditableText(Struct, frozen=True):
    """A text whose value can be changed in place.

    Attributes:
        text: without a byte order mark, line breaks as they are.
        name: of the file; `.json` at its end means that only JSON may be written.
        document: its value.
        tree: how it is written.
        lines: of the text; to look places up in, and never cut. Kept, since a large suite has thousands of parts.
    """

    text: str
    name: str
    document: Document
    tree: Node
    lines: Cuts

    @property
    def value(self) -> JsonValue:
        return self.document.value

    def source(self, *path: str | int) -> str | None:
        """The lines of the collection at `path` as they are written, comments included, without their indentation.

        None where they would not mean the same by themselves: within aliases, or when they use some.
        """
        node = _follow(self.tree, path)
        if node is None or node.is_flow or node.kind not in ("mapping", "list"):
            return None
        if any(part.anchor or part.kind == "alias" for part in node.walk()):
            return None
        cuts = self.lines
        end = cuts.line_end(node.end)
        if self.text[node.end : end].strip()[:1] not in ("", "#"):
            return None
        try:
            return dedented(self.text[node.start : end], cuts.column(node.start))
        except CutError:
            return None

    def entries(self, path: Sequence[str | int], keys: Sequence[str]) -> str | None:
        """Return the lines of some keys of the mapping at `path`, as `source` gives those of a whole collection."""
        node = _follow(self.tree, path)
        if node is None or node.is_flow or not keys:
            return None
        cuts, parts = self.lines, list[str]()
        for entry in node.entries:
            if entry.key not in keys:
                continue
            if any(part.anchor or part.kind == "alias" for part in entry.value.walk()):
                return None
            end = cuts.line_end(max(entry.end, entry.value.end))
            try:
                parts.append(dedented(self.text[entry.start : end], cuts.column(entry.start)))
            except CutError:
                return None
        return "\n".join(parts) if len(parts) == len(keys) else None

    def with_value(self, target: TargetValue) -> str:
        """Return the text changed so that it reads as `target`; the same text when it does so already.

        Raises:
            UsageError: it cannot be written there.
        """
        value = plain_value(target)
        for depth in _DEPTHS:
            changes = YamlChanges(Cuts(self.text), self.tree, depth=depth, is_json=_is_json(self.name))
            try:
                text = changes.make(self.value, target)
                if same(_read(text, self.name).value, value):
                    return text
            except (CutError, ConfigError, yaml.YAMLError):
                continue
        hint = "make this change in the file itself"
        raise UsageError("the layout of the file does not allow this change to be made here", hint=hint)


def editable_text(text: str, name: str) -> EditableText:
    """Return a text that can be changed in place.

    Raises:
        ConfigError: it is broken.
        UsageError: it is sound, but in a form that only other programs can change.
    """
    document = _read(text, name)
    try:
        return EditableText(text, name, document, read_tree(text), Cuts(text))
    except yaml.YAMLError as error:  # JSON that is no YAML: tabs, surrogate pairs in escapes
        raise UsageError("this JSON cannot be changed here", hint="edit the file itself") from error


def _read(text: str, name: str) -> Document:
    return read_json(text, name) if _is_json(name) else read_yaml(text, name)


def _is_json(name: str) -> bool:
    return name.lower().endswith(".json")


def _follow(node: Node, path: Sequence[str | int]) -> Node | None:
    for part in path:
        if isinstance(part, int):
            if part >= len(node.items):
                return None
            node = node.items[part]
        else:
            found = next((entry.value for entry in node.entries if entry.key == part), None)
            if found is None:
                return None
            node = found
    return node
