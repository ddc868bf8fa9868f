"""Convert JSON text to plain values with positions, as strictly as `json.loads` and with the same results.

YAML parsers refuse some JSON (surrogate pairs in escapes, U+2028 in strings), so JSON has its own reader.
"""

import json
import math
from typing import NoReturn

from geval_cli.errors import ConfigError, Problem
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.source.source_map import ENV_MARK, MAX_DEPTH, Document, KeySpan, Positions, Span, SpanTree

_SPACE = compile_later(r"[ \t\r\n]*")
_NUMBER = compile_later(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}
# Python refuses to parse integers of more than 4,300 digits, because that takes quadratic time.
_MAX_DIGITS = 4000
_DECODER = json.JSONDecoder()


def read_json(text: str, file: str, *, first_line: int = 1, prefix: str = "") -> Document:
    """Return the value in `text`.

    Raises:
        ConfigError: with the first syntax error and every duplicate key before it.
    """
    scanner = _Scanner(text, SpanTree(file, text, lambda: root, first_line=first_line, prefix=prefix))
    root = Span(0, 0)
    value, root = scanner.scan()
    if scanner.problems:
        raise ConfigError(scanner.problems)
    return Document(value, scanner.tree.positions(), may_use_env=ENV_MARK in text)


def json_line_positions(text: str, file: str, *, line: int, prefix: str) -> Positions:
    """Return the positions in one valid line of a JSON Lines file; the line is scanned when the first one is needed."""

    def scanned() -> Span:
        # With a separate tree: one that refers to itself would stay in memory, with its line, for each test of a file.
        return _Scanner(text, SpanTree(file, text, _no_spots, first_line=line, prefix=prefix)).scan()[1]

    return SpanTree(file, text, scanned, first_line=line, prefix=prefix).positions()


def _no_spots() -> Span:
    raise LookupError("a tree without positions has no spans")


class _Scanner:
    def __init__(self, text: str, tree: SpanTree) -> None:
        self.problems: list[Problem] = []
        self.tree = tree
        self._text = text
        self._offset = 0

    def scan(self) -> tuple[JsonValue, Span]:
        if not self._peek():
            self._fail("the file is empty")
        value, span = self._value(0)
        if self._peek():
            self._fail("there is more text after the JSON value", hint="keep one value per file")
        return value, span

    def _fail(self, message: str, *, hint: str = "", at: int | None = None) -> NoReturn:
        offset = min(self._offset if at is None else at, len(self._text))
        self.problems.append(Problem(message, self.tree.locate(offset, offset + 1), hint))
        raise ConfigError(self.problems)

    def _peek(self) -> str:
        """Return the next character that is not white space, or "" at the end."""
        found = _SPACE.match(self._text, self._offset)
        self._offset = found.end() if found else self._offset
        return self._text[self._offset : self._offset + 1]

    def _value(self, depth: int) -> tuple[JsonValue, Span]:
        if depth > MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} levels deep")
        first, start = self._peek(), self._offset
        if first == "{":
            return self._mapping(depth)
        if first == "[":
            return self._list(depth)
        value = self._scalar(first)
        return value, Span(start, self._offset)

    def _scalar(self, first: str) -> JsonValue:
        if first == '"':
            return self._string()
        word, value = _WORDS.get(first, ("", None))
        if word and self._text.startswith(word, self._offset):
            self._offset += len(word)
            return value
        found = _NUMBER.match(self._text, self._offset)
        if not found:
            self._fail("a JSON value is missing here", hint="put strings and keys in double quotes")
        if len(found.group()) > _MAX_DIGITS:
            self._fail(f"this number has more than {_MAX_DIGITS} digits")
        number = float(found.group()) if found.lastindex else int(found.group())
        if isinstance(number, float) and not math.isfinite(number):
            self._fail("this number is too large")
        self._offset = found.end()
        return number

    def _string(self) -> str:
        try:
            value, self._offset = _DECODER.raw_decode(self._text, self._offset)
        except json.JSONDecodeError as error:
            self._fail(f"this string is broken: {error.msg.removesuffix(' at').lower()}", at=error.pos)
        return str(value)

    def _list(self, depth: int) -> tuple[JsonValue, Span]:
        start, spans = self._offset, list[Span]()
        items: list[JsonValue] = []
        self._offset += 1
        while self._peek() != "]":
            if items:
                self._expect(",", "a comma or `]` is missing here")
            value, span = self._value(depth + 1)
            items.append(value)
            spans.append(span)
        self._offset += 1
        return items, Span(start, self._offset, spans)

    def _mapping(self, depth: int) -> tuple[JsonValue, Span]:
        start, spans = self._offset, dict[str, KeySpan]()
        entries: dict[str, JsonValue] = {}
        self._offset += 1
        while self._peek() != "}":
            if entries:
                self._expect(",", "a comma or `}` is missing here")
            key, key_start, key_end = self._key(spans)
            self._expect(":", "a `:` is missing here")
            entries[key], span = self._value(depth + 1)
            spans[key] = KeySpan(key_start, key_end, span)
        self._offset += 1
        return entries, Span(start, self._offset, spans)

    def _key(self, earlier: dict[str, KeySpan]) -> tuple[str, int, int]:
        if self._peek() != '"':
            self._fail(
                "a key in double quotes is missing here", hint="JSON has no comma before a closing bracket"
            )
        start = self._offset
        key = self._string()
        if key in earlier:
            location = self.tree.locate(start, self._offset)
            hint = self.tree.refer_back(earlier[key], start)
            self.problems.append(Problem(f"the key `{key}` is given twice", location, hint))
        return key, start, self._offset

    def _expect(self, character: str, message: str) -> None:
        if self._peek() != character:
            self._fail(message)
        self._offset += 1
