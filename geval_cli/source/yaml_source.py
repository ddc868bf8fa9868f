"""Convert YAML to plain values with positions, and back: one document, YAML 1.2, no duplicate keys, no alias bombs.

The parser's events are assembled here, without recursion, so that hostile nesting cannot overflow anything. Scalars
follow the core schema of YAML 1.2 (section 10.3 of the specification): `no`, `Yes` and `on` are text, `012` is 12,
`0o14` is 12, `12:30` and `2024-01-01` are text.
"""

import gc
import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import yaml
from msgspec import Struct, field

from geval_cli.errors import ConfigError, Problem, UsageError
from geval_cli.records import JsonValue
from geval_cli.source.source_map import ENV_MARK, MAX_DEPTH, Document, KeySpan, Span, SpanTree

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_NUMBER_STARTS = frozenset("0123456789+-.")
# Python refuses to parse integers of more than 4,300 digits, because that takes quadratic time.
_MAX_DIGITS = 4000
_MAX_BITS = 13_287  # bits of the largest number with 4,000 digits

TAG_PREFIX = "tag:yaml.org,2002:"

_QUOTES = "put quotes around the text"

# First match wins: a part of the parser's message (libyaml's or PyYAML's), our message, our hint.
_SENTENCES: tuple[tuple[str, str, str], ...] = (
    ("mapping values are not allowed", "a `: ` is not allowed here", f"check the indentation, or {_QUOTES}"),
    ("while scanning a quoted scalar", "the quote opened here is never closed", "close it"),
    ("unknown escape", "unknown escape in a double-quoted string", "double the backslash, or use single quotes"),
    ("while scanning an alias", "`*` begins a YAML alias, but this is not one", _QUOTES),
    ("while scanning an anchor", "`&` begins a YAML anchor, but this is not one", _QUOTES),
    ("while scanning a directive", "`%` begins a YAML directive, but this is not one", _QUOTES),
    ("while parsing a tag", "`!` begins a YAML tag, but this is not one", _QUOTES),
    ("while scanning a tag", "`!` begins a YAML tag, but this is not one", _QUOTES),
    ("while scanning a block scalar", "this block text is broken", "indent its lines equally, with spaces"),
    ("could not find expected ':'", "this line is not `key: value`", "add `: `, or indent it under the text above"),
    ("sequence entries are not allowed", "a `- ` is not allowed here", f"check the indentation, or {_QUOTES}"),
    ("parsing a flow sequence", "the list opened here with `[` is not closed", "check commas and `]`"),
    ("parsing a flow mapping", "the mapping opened here with `{` is not closed", "check commas and `}`"),
    ("parsing a block mapping", "this does not belong to the mapping above it", "check indentation and quotes"),
    ("parsing a block collection", "this does not belong to the list above it", "check indentation and quotes"),
    ("expected <document start>", "this does not belong to what is above it", "check the indentation"),
    ("document start", "this does not belong to what is above it", "check the indentation"),
)  # fmt: skip

# Constructs whose beginning tells more than the place where the parser gave up.
_POINTS_AT_BEGINNING = ("scanning a quoted scalar", "scanning a simple key", "flow sequence", "flow mapping")


class ScalarError(ValueError):
    """The scalar has no value that JSON can hold, or does not match its tag. The message is a sentence."""


def resolve_plain(text: str) -> str | int | float | bool | None:
    """Return the value of an unquoted scalar without a tag.

    Raises:
        ScalarError: it is infinite or NaN, or has too many digits.
    """
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if text[0] in _NUMBER_STARTS:
        if len(text) > _MAX_DIGITS and _FLOAT.fullmatch(text):
            raise ScalarError(f"this number has more than {_MAX_DIGITS} digits")
        if _INT.fullmatch(text):
            return int(text)
        if _OCTAL.fullmatch(text) or _HEX.fullmatch(text):
            whole = int(text, 0)
            if whole.bit_length() > _MAX_BITS:  # it can be parsed, but not be written in decimal again
                raise ScalarError(f"this number has more than {_MAX_DIGITS} digits")
            return whole
        if _NOT_FINITE.fullmatch(text):
            raise ScalarError(f"`{text}` is not a finite number")
        if not _FLOAT.fullmatch(text):
            return text
        number = float(text)
        if not math.isfinite(number):
            raise ScalarError("this number is too large")
        return number
    return text


def resolve_tagged(text: str, tag: str) -> str | int | float | bool | None:
    """Return the value of a scalar with one of the core tags (`!!str`, `!!int`, `!!float`, `!!bool`, `!!null`).

    Raises:
        ScalarError: the text does not match the tag, or the tag is another one.
    """
    kind = tag.removeprefix(TAG_PREFIX)
    if kind == "str":
        return text
    value = resolve_plain(text)
    if kind == "float" and type(value) is int:
        return float(value)
    expected = {"int": int, "float": float, "bool": bool, "null": type(None)}.get(kind)
    if expected is None:
        raise ScalarError(f"the tag `!!{kind}` is not supported")
    if type(value) is not expected:
        raise ScalarError(f"this value does not match its tag `!!{kind}`")
    return value


def explain_yaml_error(error: yaml.YAMLError, text: str, tree: SpanTree) -> Problem:
    """Return a parser's error as a problem located in `text`."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return Problem(f"the YAML cannot be read: {error}", tree.locate(0, 1))
    context, problem = error.context or "", error.problem or ""
    words = f"{context}; {problem}"
    mark = error.problem_mark or error.context_mark
    if (
        error.context_mark
        and "escape" not in problem
        and any(part in context for part in _POINTS_AT_BEGINNING)
    ):
        # An unclosed quote is noticed at the end of the file, far from the mistake.
        mark = error.context_mark
    offset = mark.index if mark else 0
    location = tree.locate(min(offset, len(text)), offset + 1)
    if _is_tab_trouble(words, text, offset):
        return Problem("a tab cannot be used for indentation in YAML", location, "use spaces")
    if "cannot start any token" in problem:
        return Problem(f'a plain text cannot begin with "{text[offset]}"', location, _QUOTES)
    for part, sentence, hint in _SENTENCES:
        if part in words:
            return Problem(sentence, location, hint)
    return Problem(f"the YAML cannot be read: {problem or context}", location)


def _is_tab_trouble(words: str, text: str, offset: int) -> bool:
    if "tab character" in words:
        return True
    if "cannot start any token" in words:
        return text[offset : offset + 1] == "\t"
    line_start = text.rfind("\n", 0, offset) + 1
    indentation = text[line_start : len(text)].split("\n", 1)[0]
    blank = indentation[: len(indentation) - len(indentation.lstrip())]
    return "\t" in blank


Loader = type[yaml.SafeLoader]

FAST_LOADER: Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C parser, if PyYAML was built with it."""

# "Billion laughs": ten lines of lists of aliases of lists make a value that fills the memory. A long file
# with many legitimate aliases is allowed more, in proportion to its length.
_MAX_ALIASED = 100_000
_ALIASED_PER_NODE = 100
# Lists what is not printable: the negation of what is takes twenty-five times as long to compile.
_NOT_PRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")


def read_yaml(text: str, file: str, *, prefix: str = "", loader: Loader = FAST_LOADER) -> Document:
    """Return the only document in `text`.

    Args:
        text: the YAML, without a byte order mark.
        file: the file name for positions.
        prefix: the start of key paths.
        loader: which of PyYAML's parsers to use.

    Raises:
        ConfigError: with the first syntax error and every duplicate key before it.
    """
    composer = _Composer(text, file, prefix)
    unprintable = _NOT_PRINTABLE.search(text)
    if unprintable:
        name = f"U+{ord(unprintable.group()):04X}"
        composer.report(
            f"the file contains the control character {name}", unprintable.start(), hint="remove it"
        )
    else:
        with _garbage_collection_paused():
            composer.compose(loader)
    if composer.problems:
        raise ConfigError(composer.problems)
    return Document(composer.value, composer.tree.positions(), may_use_env=ENV_MARK in text)


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Pause the collector: reading makes no garbage, but scanning its many small objects takes half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Node(Struct):
    """A finished value; `size` counts the nodes that it expands to when its aliases are followed."""

    value: JsonValue
    span: Span
    size: int = 1


class _Frame(Struct):
    """A mapping or list that is still open; in a mapping, `key` is waiting for its value."""

    span: Span
    anchor: str | None
    is_mapping: bool
    entries: dict[str, JsonValue] = field(default_factory=dict)
    items: list[JsonValue] = field(default_factory=list)
    key: str | None = None
    key_start: int = 0
    key_end: int = 0
    key_is_merge: bool = False
    merged: _Node | None = None
    size: int = 1


class _Abandoned(Exception):
    """The rest of the file is not worth reading; the reason has been reported."""


class _Composer:
    def __init__(self, text: str, file: str, prefix: str) -> None:
        self.problems: list[Problem] = []
        self.value: JsonValue = None
        self.tree = SpanTree(file, text, lambda: self._root, prefix=prefix)
        self._text = text
        self._root = Span(0, 0)
        self._frames: list[_Frame] = []
        self._anchors: dict[str, _Node | None] = {}
        self._nodes = 0
        self._aliased = 0
        self._documents = 0

    def report(self, message: str, start: int, end: int | None = None, *, hint: str = "") -> None:
        location = self.tree.locate(start, start + 1 if end is None else end)
        self.problems.append(Problem(message, location, hint))

    def compose(self, loader: Loader) -> None:
        """Process the parser's events until the end, or until the file turns out to be broken or hostile."""
        handlers: dict[type[yaml.Event], Callable[[Any], None]] = {
            yaml.ScalarEvent: self._add_scalar,
            yaml.MappingStartEvent: partial(self._open, is_mapping=True),
            yaml.SequenceStartEvent: partial(self._open, is_mapping=False),
            yaml.MappingEndEvent: self._close,
            yaml.SequenceEndEvent: self._close,
            yaml.AliasEvent: self._follow_alias,
            yaml.DocumentStartEvent: self._begin_document,
        }
        parser = loader(self._text)
        try:
            # Not yaml.parse: it makes two calls per event, which is a third of the time that large files take.
            while not isinstance(event := parser.get_event(), yaml.StreamEndEvent):  # type: ignore[no-untyped-call]
                handler = handlers.get(type(event))
                if handler is not None:
                    handler(event)
        except yaml.YAMLError as error:
            self.problems.append(explain_yaml_error(error, self._text, self.tree))
        except _Abandoned:
            return
        finally:
            parser.dispose()
        if not self._documents and not self.problems:
            self.report("the file is empty", 0)

    def _begin_document(self, event: yaml.Event) -> None:
        self._documents += 1
        if self._documents > 1:
            start, _ = _span(event)
            self.report("a second document begins here", start, start + 3, hint="keep one document per file")
            raise _Abandoned

    def _add_scalar(self, event: yaml.ScalarEvent) -> None:
        start, end = _span(event)
        frame = self._frames[-1] if self._frames else None
        if frame is not None and frame.is_mapping and frame.key is None:
            self._take_key(event, start, end)
            return
        is_quoted = event.tag is None and not event.implicit[0]
        value: JsonValue = event.value if is_quoted else self._resolve(event, start, end)
        # The fast path for nearly all scalars: those that no alias or merge needs as a node.
        if frame is not None and not frame.key_is_merge and event.anchor is None:
            self._nodes += 1
            frame.size += 1
            children = frame.span.children
            if isinstance(children, list):
                frame.items.append(value)
                children.append(Span(start, end))
            elif isinstance(children, dict) and frame.key is not None:
                frame.entries[frame.key] = value
                children[frame.key] = KeySpan(frame.key_start, frame.key_end, Span(start, end))
                frame.key = None
            return
        if event.anchor and not event.style:
            start = max(start, end - len(event.value))  # after the anchor
        node = _Node(value, Span(start, end))
        if event.anchor:
            self._anchors[event.anchor] = node
        self._add(node)

    def _resolve(self, event: yaml.ScalarEvent, start: int, end: int) -> JsonValue:
        try:
            if event.tag is None:
                return resolve_plain(event.value) if event.implicit[0] else event.value
            if event.tag == "!":
                return event.value
            if event.tag.startswith(TAG_PREFIX):
                return resolve_tagged(event.value, event.tag)
        except ScalarError as error:
            self.report(str(error), start, end, hint="put quotes around it if it is meant as text")
            return None
        self._refuse_tag(event.tag, start, end)
        return None

    def _refuse_tag(self, tag: str, start: int, end: int) -> None:
        hint = "put quotes around the text if the `!` is part of it"
        self.report(f"the YAML tag `{tag}` is not supported", start, end, hint=hint)

    def _take_key(self, event: yaml.ScalarEvent, start: int, end: int) -> None:
        frame = self._frames[-1]
        frame.key, frame.key_start, frame.key_end = event.value, start, end
        frame.key_is_merge = event.value == "<<" and event.tag is None and event.implicit[0]
        children = frame.span.children
        earlier = children.get(event.value) if isinstance(children, dict) else None
        if earlier is not None:
            hint = self.tree.refer_back(earlier, start)
            self.report(f"the key `{event.value}` is given twice", start, end, hint=hint)

    def _open(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent, *, is_mapping: bool) -> None:
        start, end = _span(event)
        self._refuse_complex_key(start)
        if len(self._frames) >= MAX_DEPTH:
            self.report(f"nested more than {MAX_DEPTH} levels deep", start)
            raise _Abandoned
        if event.tag not in (None, "!", f"{TAG_PREFIX}{'map' if is_mapping else 'seq'}"):
            self._refuse_tag(event.tag, start, end)
        if event.anchor:
            self._anchors[event.anchor] = None
        self._frames.append(_Frame(Span(start, end, {} if is_mapping else []), event.anchor, is_mapping))

    def _refuse_complex_key(self, start: int) -> None:
        if not self._frames or not self._frames[-1].is_mapping or self._frames[-1].key is not None:
            return
        if self._text.startswith("{", start) and self._text[max(0, start - 1) : start] == "{":
            message = "`{{` begins a YAML mapping here"
            hint = "put quotes around a text that begins with a template"
            self.report(message, start - 1, start + 1, hint=hint)
        else:
            self.report("a key must be text, not a list or a mapping", start)
        raise _Abandoned

    def _close(self, event: yaml.Event) -> None:
        frame = self._frames.pop()
        frame.span.end = max(frame.span.end, _span(event)[1])
        if frame.merged is not None:
            _merge(frame, frame.merged)
        node = _Node(frame.entries if frame.is_mapping else frame.items, frame.span, frame.size)
        if frame.anchor:
            self._anchors[frame.anchor] = node
        self._add(node)

    def _follow_alias(self, event: yaml.AliasEvent) -> None:
        name, (start, end) = event.anchor, _span(event)
        self._refuse_complex_key(start)
        if name not in self._anchors:
            hint = "put quotes around the text if the `*` is part of it"
            self.report(f"there is no anchor `&{name}` above this alias", start, end, hint=hint)
            raise _Abandoned
        node = self._anchors[name]
        if node is None:
            self.report(f"the alias `*{name}` contains itself", start, end)
            raise _Abandoned
        self._aliased += node.size
        if self._aliased > _MAX_ALIASED + _ALIASED_PER_NODE * self._nodes:
            message = f"aliases expand this file to more than {_MAX_ALIASED:,} values"
            self.report(message, start, end, hint="write the values out, or use fewer aliases within aliases")
            raise _Abandoned
        self._add(_Node(node.value, Span(start, end, node.span.children), node.size))

    def _add(self, node: _Node) -> None:
        self._nodes += 1
        if not self._frames:
            self.value, self._root = node.value, node.span
            return
        frame = self._frames[-1]
        frame.size += node.size
        children = frame.span.children
        if isinstance(children, list):
            frame.items.append(node.value)
            children.append(node.span)
        elif isinstance(children, dict) and frame.key is not None:
            if frame.key_is_merge:
                parts = node.value if isinstance(node.value, list) else [node.value]
                if not all(isinstance(part, dict) for part in parts):
                    self.report("`<<` needs a mapping or a list of mappings", node.span.start, node.span.end)
                frame.merged = node
            else:
                frame.entries[frame.key] = node.value
            children[frame.key] = KeySpan(frame.key_start, frame.key_end, node.span)
            frame.key = None


def _span(event: yaml.Event) -> tuple[int, int]:
    start, end = event.start_mark, event.end_mark
    return (start.index, end.index) if start and end else (0, 0)


def _merge(frame: _Frame, source: _Node) -> None:
    """Add the entries of `<<` for keys that the mapping does not have itself; of several sources, the first wins."""
    children = frame.span.children
    if not isinstance(children, dict):
        return
    children.pop("<<", None)
    if isinstance(source.value, list):
        spans = source.span.children if isinstance(source.span.children, list) else []
        pairs = list(zip(source.value, spans, strict=True))
    else:
        pairs = [(source.value, source.span)]
    for value, span in pairs:
        if not isinstance(value, dict) or not isinstance(span.children, dict):
            continue
        for key, entry in value.items():
            if key not in frame.entries:
                frame.entries[key] = entry
                children[key] = span.children[key]


# PyYAML wraps lines at 80 characters unless it is given another width.
_NEVER_FOLDED = 1_000_000_000


class _ReadableDumper(yaml.SafeDumper):
    """A dumper whose texts a YAML 1.2 reader takes for texts; PyYAML's own rules are those of YAML 1.1."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)


class _QuotingDumper(_ReadableDumper):
    """A dumper that puts every text in double quotes: not pretty, but safe for all characters."""


def write_yaml(value: JsonValue) -> str:
    """Return YAML text that `geval_cli.source.yaml_source.read_yaml` reads back as an equal value.

    Raises:
        UsageError: there is none, because YAML cannot represent half of a surrogate pair.
    """
    for dumper in (_ReadableDumper, _QuotingDumper):
        text = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=_NEVER_FOLDED)
        if _reads_back(text, value):
            return text
    raise UsageError(
        "the suite contains text that YAML cannot represent", hint="keep it in JSON, which geval reads too"
    )


def _reads_back(text: str, value: JsonValue) -> bool:
    try:
        found = read_yaml(text, "config.yaml").value
    except ConfigError:
        return False
    return json.dumps(found) == json.dumps(value)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if _is_text(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _represent_quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')


def _is_text(text: str) -> bool:
    try:
        return isinstance(resolve_plain(text), str)
    except ScalarError:
        return False


_ReadableDumper.add_representer(str, _represent_text)
_QuotingDumper.add_representer(str, _represent_quoted)
