"""Which cuts make a YAML text say something else: compared part by part with its tree, changed where it differs."""

from collections.abc import Collection, Sequence

from msgspec import Struct

from geval_cli.records import JsonValue
from geval_cli.source.edit.targets import (
    EditedItem,
    EditedList,
    TargetValue,
    Written,
    has_written,
    matched,
    plain_value,
)
from geval_cli.source.edit.yaml_layout import (
    MERGE_KEY,
    CutError,
    Cuts,
    Entry,
    Node,
    dedented,
    indentation_of,
    indented,
    read_tree,
)
from geval_cli.source.edit.yaml_style import block_text, entry_text, flow_text, json_text, same
from geval_cli.source.yaml_source import read_yaml


class _Nesting(Struct, frozen=True):
    """The layout around a value: the indentation of its continuation lines, and what encloses it."""

    indent: int = 0
    depth: int = 0
    is_item: bool = False
    in_flow: bool = False


class _Part(Struct, frozen=True):
    """An entry or item: from `start` (its comments) over `mark` (its key or dash) to `end`."""

    start: int
    mark: int
    end: int
    stays: bool


class YamlChanges:
    """The changes to one text. `depth` is the level below which parts are written anew as a whole."""

    def __init__(self, cuts: Cuts, tree: Node, *, depth: int, is_json: bool = False) -> None:
        self._cuts = cuts
        self._tree = tree
        self._depth = depth
        self._is_json = is_json
        self._step = indentation_of(cuts, tree)
        self._aliased = {id(node.target) for node in tree.walk() if node.kind == "alias"}
        self._moved: dict[int, JsonValue] = {}  # new values of nodes with an anchor
        self._gone: set[int] = set()

    def make(self, old: JsonValue, target: TargetValue) -> str:
        """Return the changed text. Raises CutError when it cannot be cut like this."""
        self._change(self._tree, old, target, _Nesting())
        return self._cuts.apply()

    def _change(self, node: Node, old: JsonValue, target: TargetValue, nesting: _Nesting) -> None:
        if isinstance(target, Written):
            self._put(node, target, nesting)
            return
        new = plain_value(target)
        if node.kind == "alias":
            self._change_alias(node, old, new, nesting)
            return
        is_same = same(old, new)
        # An equal part is left alone only while no anchor changed: an alias within it may have to be written out.
        is_left_alone = is_same and not self._moved and not self._gone
        if is_left_alone and not isinstance(target, EditedList) and not has_written(target):
            return
        if id(node) in self._aliased and not is_same:
            # Aliases of it show the new value from now on, and are compared with that.
            self._moved[id(node)] = new
        # Equal parts are walked at any depth, as only aliases in them can need a change.
        goes_deeper = is_same or nesting.depth < self._depth
        if goes_deeper and node.kind == "mapping" and isinstance(target, dict) and isinstance(old, dict):
            self._change_mapping(node, old, target, nesting)
        elif goes_deeper and node.kind == "list" and isinstance(target, list | EditedList) and new:
            self._change_list(node, old, target, nesting)
        elif not is_same:
            self._put(node, target, nesting)

    def _forget(self, node: Node) -> None:
        """Note that a part is taken away: aliases of what was in it must be written out."""
        self._gone |= {id(part) for part in node.walk()} & self._aliased

    def _change_alias(self, node: Node, old: JsonValue, new: JsonValue, nesting: _Nesting) -> None:
        current = self._moved.get(id(node.target), old)
        if id(node.target) in self._gone or not same(current, new):
            self._put(node, new, nesting)

    def _change_mapping(
        self, node: Node, old: dict[str, JsonValue], target: dict[str, TargetValue], nesting: _Nesting
    ) -> None:
        own = {entry.key for entry in node.entries}
        stays = [entry for entry in node.entries if entry.key in target or entry.key == MERGE_KEY]
        merged = {key for key in old if key not in own}
        staying = {entry.key for entry in stays}
        # A key that `<<` merges in cannot be removed here, and without any entry left there is no place to insert at.
        if not stays or any(key not in target for key in merged) or (merged and self._moved):
            if not same(old, plain_value(target)) or merged:
                self._put(node, target, nesting)
            return
        column = self._cuts.column(node.entries[0].start)
        below = _Nesting(column + self._step, nesting.depth + 1, in_flow=nesting.in_flow or node.is_flow)
        for entry in node.entries:
            # All removals are noted before anything is compared: an alias further up may refer into a removed part.
            if entry.key not in staying:
                self._forget(entry.value)
        for entry in node.entries:
            if entry.key in target and entry.key != MERGE_KEY:
                self._change_entry(entry, old[entry.key], target[entry.key], below)
        self._remove([_Part(e.start, e.start, e.whole_end, e.key in staying) for e in node.entries], node)
        is_known = own | {key for key in merged if same(old[key], plain_value(target[key]))}
        self._add_keys(
            node, stays, {key: value for key, value in target.items() if key not in is_known}, target
        )

    def _change_entry(self, entry: Entry, old: JsonValue, target: TargetValue, nesting: _Nesting) -> None:
        if not isinstance(target, Written) or not target.has_key:
            self._change(entry.value, old, target, nesting)
        elif nesting.in_flow or entry.value.anchor or entry.value.kind != "scalar":
            self._change(entry.value, old, target.value, nesting)
        else:  # one line for another, with the comments behind them
            end = max(entry.end, entry.value.end)
            self._cuts.replace(entry.start, self._cuts.line_end(end), target.text)

    def _add_keys(
        self,
        node: Node,
        stays: Sequence[Entry],
        added: dict[str, TargetValue],
        target: dict[str, TargetValue],
    ) -> None:
        """Insert each new key behind the one that it follows in `target`."""
        places = {entry.key: entry for entry in stays}
        column = self._cuts.column(node.entries[0].start)
        before: Entry | None = None
        for key, value in target.items():
            before = places.get(key, before)
            if key not in added:
                continue
            if node.is_flow:
                at = stays[0].start if before is None else before.whole_end
                self._insert_flow(node, at, plain_value(value), key, is_first=before is None)
            elif before is None:
                text = self._entry_lines(key, value, column)
                self._cuts.insert(self._above(stays[0], column), f"{text}\n{' ' * column}")
            else:
                text = " " * column + self._entry_lines(key, value, column)
                self._cuts.insert(self._cuts.line_end(before.whole_end), f"\n{text}")

    def _above(self, entry: Entry, column: int) -> int:
        """Return the place before an entry and its comments; those at the top of a file are about all of it."""
        if not column or not self._cuts.begins_line(entry.start):
            return entry.start
        return self._cuts.before_comments(self._cuts.line_start(entry.start), column, 0) + column

    def _entry_lines(self, key: str, value: TargetValue, column: int) -> str:
        if isinstance(value, Written) and value.has_key:
            return indented(value.text, column, first=False)
        if has_written(value):
            head = entry_text(key, None).removesuffix(" null")
            return f"{head}\n{indented(self._block(value), column + self._step, first=True)}"
        return indented(entry_text(key, plain_value(value), self._step), column, first=False)

    def _block(self, value: TargetValue, style: str = "") -> str:
        """Return a value as block YAML, with the parts that somebody wrote as they are written."""
        if isinstance(value, Written):
            return value.text
        if isinstance(value, dict) and has_written(value):
            return "\n".join(self._entry_lines(key, part, 0) for key, part in value.items())
        return block_text(plain_value(value), style)

    def _change_list(
        self, node: Node, old: JsonValue, target: Sequence[TargetValue] | EditedList, nesting: _Nesting
    ) -> None:
        items = target.items if isinstance(target, EditedList) else matched(old, target)
        kept = [item.origin for item in items if item.origin is not None and not item.is_copy]
        # Items in another order, or twice, cannot be moved by cuts: the list is written as a whole.
        if not kept or kept != sorted(set(kept)):
            self._put(node, target, nesting)
            return
        in_flow = nesting.in_flow or node.is_flow
        staying = frozenset(kept)
        parts = self._list_parts(node, staying)
        below = _Nesting(
            self._cuts.column(parts[0].mark) + 2, nesting.depth + 1, is_item=True, in_flow=in_flow
        )
        for index, child in enumerate(node.items):
            if index not in staying:
                self._forget(child)
        for item in items:
            if item.origin is not None and not item.is_copy:
                self._change(node.items[item.origin], old[item.origin], item.value, below)
        self._remove(parts, node)
        before: int | None = None
        for item in items:
            if item.origin is not None and not item.is_copy:
                before = item.origin
            elif node.is_flow:
                at = parts[kept[0]].mark if before is None else node.items[before].end
                self._insert_flow(node, at, plain_value(item.value), None, is_first=before is None)
            else:
                self._insert_item(parts, kept, before, self._item_text(node, old, item))

    def _list_parts(self, node: Node, kept: Collection[int]) -> list[_Part]:
        parts: list[_Part] = []
        end = node.start
        for index, item in enumerate(node.items):
            mark = item.start
            if not node.is_flow:
                # The tree knows where the value begins, not its dash: look back, but not into the item before.
                mark = self._cuts.text.rfind("-", end, max(item.start, end + 1))
                if mark < 0:
                    raise CutError
            start = mark
            if index and self._cuts.begins_line(mark) and not node.is_flow:
                line, column = self._cuts.line_start(mark), self._cuts.column(mark)
                start = self._cuts.before_comments(line, column, self._cuts.next_line(end))
            end = max(item.end, mark + 1)
            parts.append(_Part(start, mark, end, index in kept))
        return parts

    def _insert_item(
        self, parts: Sequence[_Part], kept: Sequence[int], before: int | None, text: str
    ) -> None:
        cuts, column = self._cuts, self._cuts.column(parts[0].mark)
        # If the first two items have a blank line between them, so has the new one.
        between = cuts.text[parts[0].end : parts[1].start] if len(parts) > 1 else ""
        gap = "\n" if between.count("\n") > 1 and not between.split("\n")[1].strip() else ""
        lines = f"{' ' * column}- {indented(text, column + 2, first=False)}"
        if before is None and not cuts.begins_line(parts[kept[0]].mark):
            raise CutError
        if before is None:
            cuts.insert(cuts.line_start(parts[kept[0]].start), f"{lines}\n{gap}")
        else:
            cuts.insert(cuts.line_end(parts[before].end), f"\n{gap}{lines}")

    def _item_text(self, node: Node, old: JsonValue, item: EditedItem) -> str:
        """Return a new item; a copy is written as what it is a copy of, as far as it is the same."""
        value = plain_value(item.value)
        if item.origin is None:
            return self._block(item.value)
        source = node.items[item.origin]
        is_block = source.kind == "mapping" and not source.is_flow and isinstance(value, dict) and bool(value)
        if not is_block or any(part.anchor or part.kind == "alias" for part in source.walk()):
            return block_text(value)
        try:
            end = self._cuts.line_end(source.end)  # with the comment behind it
            text = dedented(self._cuts.text[source.start : end], self._cuts.column(source.start))
            return YamlChanges(Cuts(text), read_tree(text), depth=self._depth).make(
                read_yaml(text, "").value, item.value
            )
        except CutError:
            return block_text(value)

    def _remove(self, parts: Sequence[_Part], node: Node) -> None:
        """Cut out what does not stay; at least one part does."""
        cuts = self._cuts
        first = next(index for index, part in enumerate(parts) if part.stays)
        for index, part in enumerate(parts):
            if part.stays:
                continue
            in_lines = not node.is_flow and cuts.begins_line(part.mark)
            # Something else follows on the same line: cutting whole lines would take it along.
            if in_lines and cuts.text[part.end : cuts.line_end(part.end)].strip()[:1] not in ("", "#"):
                raise CutError
            if index < first and not in_lines:
                cuts.replace(part.mark, parts[index + 1].mark, "")
            elif index < first:
                end = cuts.next_line(part.end)
                end = cuts.skip_blank_lines(end) if node.kind == "list" else end
                cuts.replace(cuts.line_start(part.start), end, "")
            elif in_lines:
                start = cuts.line_start(part.start)
                if node.kind == "list":
                    start = cuts.before_blank_lines(start, cuts.next_line(parts[index - 1].end))
                cuts.replace(cuts.line_end(cuts.line_start(start - 1)), cuts.line_end(part.end), "")
            elif node.is_flow:
                cuts.replace(parts[index - 1].end, part.end, "")
            else:
                raise CutError

    def _insert_flow(self, node: Node, at: int, value: JsonValue, key: str | None, *, is_first: bool) -> None:
        cuts = self._cuts
        name = "" if key is None else f"{self._flow(key)}: "
        first = node.entries[0].start if node.entries else node.items[0].start
        between, text = " ", name + self._flow(value)
        if "\n" in cuts.text[node.start : first]:
            column = cuts.column(first)
            between = f"\n{' ' * column}"
            text = indented(name + self._flow(value, is_long=True), column, first=False)
        cuts.insert(at, f"{text},{between}" if is_first else f",{between}{text}")

    def _flow(self, value: JsonValue, *, is_long: bool = False) -> str:
        if not self._is_json:
            return flow_text(value)
        return json_text(value, indent=self._step if is_long else None)

    def _put(self, node: Node, target: TargetValue, nesting: _Nesting) -> None:
        """Write a part anew, in the style of what was there; what is behind it in its line stays."""
        name = f"&{node.anchor} " if id(node) in self._aliased else ""
        self._forget(node)
        if name:
            self._gone.discard(id(node))
            self._moved[id(node)] = plain_value(target)
        if nesting.in_flow:
            is_long = "\n" in self._cuts.text[node.start : node.end]
            text = self._flow(plain_value(target), is_long=is_long)
            column = self._cuts.indentation(node.start)
            text = self._apart(node, name) + indented(text, column, first=False)
            self._cuts.replace(node.start, node.end, text)
        elif isinstance(target, Written):
            # The lines of a block were shown with the comment behind them.
            was_block = node.kind in ("mapping", "list") and not node.is_flow
            self._put_block(node, target.text, name, nesting, has_comment=was_block)
        else:
            value = plain_value(target)
            text = self._block(target, node.style if node.kind == "scalar" else "")
            if isinstance(value, dict | list) and value:
                self._put_block(node, text, name, nesting)
            else:
                self._put_text(node, text, name, nesting)

    def _put_text(self, node: Node, text: str, name: str, nesting: _Nesting) -> None:
        """Write a scalar, or an empty collection, in the line of its key or dash where that is possible."""
        lines = indented(text, max(0, nesting.indent - 2), first=False)
        before = self._cuts.behind_text(node.start, " \t\r\n")
        if self._cuts.begins_line(node.start) and not nesting.is_item:
            if self._cuts.text.startswith(":", before - 1):
                self._put_lines(node, f" {name}{lines}", start=before)
            else:  # a comment is between
                pad = max(0, nesting.indent - self._cuts.column(node.start))
                self._put_lines(node, " " * pad + name + lines)
        else:
            self._put_lines(node, self._apart(node, name) + lines)

    def _put_block(
        self, node: Node, text: str, name: str, nesting: _Nesting, *, has_comment: bool = False
    ) -> None:
        column = self._cuts.column(node.start)
        begins_line = self._cuts.begins_line(node.start)
        if nesting.is_item and not name and not begins_line:
            apart = self._apart(node, "")
            lines = apart + indented(text, column + len(apart), first=False)
            self._put_lines(node, lines, has_comment=has_comment)
        elif begins_line and not name:
            is_deep = column >= nesting.indent or (node.kind == "list" and text.startswith("-"))
            width = column if is_deep else nesting.indent
            lines = " " * (width - column) + indented(text, width, first=False)
            self._put_lines(node, lines, has_comment=has_comment)
        else:
            before = self._cuts.behind_text(node.start, " ")
            lines = indented(text, nesting.indent, first=True)
            lines = f" {name}".rstrip() + "\n" + lines
            self._put_lines(node, lines, start=before, has_comment=has_comment)

    def _put_lines(
        self, node: Node, text: str, *, start: int | None = None, has_comment: bool = False
    ) -> None:
        """Replace a part; a comment behind it moves up to the first of several lines.

        With `has_comment`, the text has that comment already, or it is meant to go.
        """
        begin = node.start if start is None else start
        line_end = self._cuts.line_end(node.end)
        rest = self._cuts.text[node.end : line_end]
        if rest.strip()[:1] not in ("", "#"):
            self._cuts.replace(begin, node.end, text)
            return
        if "\n" not in text or has_comment:
            self._cuts.replace(begin, line_end if has_comment else node.end, text)
            return
        head, body = text.split("\n", 1)
        was_one_line = "\n" not in self._cuts.text[begin : node.end]
        comment = rest.rstrip() if was_one_line else ""
        self._cuts.replace(begin, line_end, f"{head}{comment}\n{body}")

    def _apart(self, node: Node, name: str) -> str:
        """Return a space where the part, an empty one, touches the colon or dash before it; then its anchor."""
        touches = node.start > 0 and not self._cuts.text[node.start - 1].isspace()
        return f" {name}" if touches and node.start == node.end else name
