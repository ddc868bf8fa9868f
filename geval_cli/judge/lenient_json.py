"""Read the JSON in a judge's reply leniently, keeping character positions.

It may be surrounded by prose and code fences, have trailing or missing commas, single or curly quotes, unquoted keys
and words, raw line breaks and unescaped quotes inside strings, Python's True/False/None or decimal commas, and may
break off. Values nested deeper than `MAX_DEPTH` are not read. Time is linear in the length of the text.
"""

import re
from collections.abc import Iterator

from msgspec import Struct

from geval_cli.patterns import compile_later

MAX_DEPTH = 64

_QUOTES = {'"': '"', "'": "'", "“": "”", "”": "”"}
_OBJECT_START = compile_later(r"""\{(?=\s*+["'“\w])""")
_SPACE = compile_later(r"\s*")
_KEY = compile_later(r"""(?:["'“]([^"'“”\n]{1,200})["'”]|([^\W\d][\w-]{0,60}))\s*[:=]""")
_NUMBER_TEXT = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?"
_JSON_NUMBER = compile_later(_NUMBER_TEXT)
_NUMBER_VALUE = compile_later(_NUMBER_TEXT + r"""(?=\s*+(?:[,}\]"'“]|\Z)|[ \t]*\n)""")
_DECIMAL_COMMA = compile_later(r"[0-9]{1,9},[0-9]{1,2}(?=\s*[}\]\n])")
_BARE_VALUE = compile_later(r"[^,}\]\n]+")
_NEXT_MEMBER = compile_later(r"""\s*+,?\s*+(?:["'“][^"'“”\n]{1,80}["'”]|[^\W\d][\w-]{0,60}) {0,5}[:=]""")
_AFTER_VALUE = compile_later(r"\s*+(?:[}\]]|\Z|,\s*+[}\]])")
_AFTER_ITEM = compile_later(
    r"""\s*+(?:\]|,\s*+(?:["'“”\]{[]|(?:true|false|null|none|[-+]?[0-9.]{1,20})\s*+[,\]]))""", re.IGNORECASE
)
_ESCAPE = compile_later(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_JSON_WORDS = {"true": True, "false": False, "null": None, "none": None}

# A longer run of digits is not a rating and stays text.
_LONGEST_NUMBER = 40


class JsonMember(Struct, frozen=True):
    """A `key: value` pair of an object; `start` and `end` are the value's character offsets, without quotes."""

    key: str
    value: "Value"
    start: int
    end: int


class JsonObject(Struct, frozen=True):
    """An object as far as it could be read; `members` holds complete values only, and `end` is where reading stopped.

    `is_begun` says whether it has at least one key, which tells an object from a brace in a text.
    """

    members: tuple[JsonMember, ...]
    is_closed: bool
    start: int
    end: int
    is_begun: bool = True

    def last(self, *keys: str) -> JsonMember | None:
        """Return the last member with one of these lower-case keys; the object's own members go before nested ones."""
        for member in reversed(self.members):
            if member.key.strip().lower() in keys:
                return member
        for member in reversed(self.members):
            if isinstance(member.value, JsonObject) and (found := member.value.last(*keys)):
                return found
        return None


Value = str | float | bool | None | list["Value"] | JsonObject


def find_objects(text: str, start: int = 0) -> Iterator[JsonObject]:
    """Return every outermost object in `text` after `start` that has at least one member, in order."""
    return (found for found in find_begun_objects(text, start) if found.members)


def find_begun_objects(text: str, start: int = 0) -> Iterator[JsonObject]:
    """Yield every outermost object that has a key, even if its first value breaks off, in order."""
    match = _OBJECT_START.search(text, start)
    while match is not None:
        found = _Reader(text, match.start()).read_object(0)
        if found.is_begun:
            yield found
        match = _OBJECT_START.search(text, max(found.end, match.end()))


def read_array(text: str, start: int) -> list[Value] | None:
    """Return the items of the array that begins at `start`, or None if the array cannot be read to its end."""
    try:
        return _Reader(text, start).read_array(0)
    except _Unreadable:
        return None


class _Unreadable(Exception):
    """No value can be read at the reader's position."""


class _Reader:
    def __init__(self, text: str, position: int) -> None:
        self.text = text
        self.position = position

    def read_object(self, depth: int) -> JsonObject:
        members: list[JsonMember] = []
        start = self.position
        self.position += 1
        first = self.position
        try:
            while not self._ends_with("}"):
                first = self.position
                members.append(self._read_member(depth))
        except _Unreadable:
            is_begun = bool(members) or _KEY.match(self.text, first) is not None
            return JsonObject(tuple(members), False, start, self.position, is_begun)
        return JsonObject(tuple(members), True, start, self.position, bool(members))

    def read_array(self, depth: int) -> list[Value]:
        items: list[Value] = []
        self.position += 1
        while not self._ends_with("]"):
            value, _, _ = self._read_value(depth + 1, in_array=True)
            items.append(value)
        return items

    def _ends_with(self, bracket: str) -> bool:
        """Skip spaces and commas, consume the closing bracket if it follows, and return whether it did."""
        self._skip_space()
        while self.text.startswith(",", self.position):
            self.position += 1
            self._skip_space()
        if self.text.startswith(bracket, self.position):
            self.position += 1
            return True
        return False

    def _skip_space(self) -> None:
        match = _SPACE.match(self.text, self.position)
        assert match is not None
        self.position = match.end()

    def _read_member(self, depth: int) -> JsonMember:
        match = _KEY.match(self.text, self.position)
        if match is None:
            raise _Unreadable
        self.position = match.end()
        value, start, end = self._read_value(depth + 1, in_array=False)
        return JsonMember(match[1] or match[2], value, start, end)

    def _read_value(self, depth: int, *, in_array: bool) -> tuple[Value, int, int]:
        self._skip_space()
        start = self.position
        if depth > MAX_DEPTH or start >= len(self.text):
            raise _Unreadable
        character = self.text[start]
        if character == "{":
            found = self.read_object(depth)
            if not found.is_closed and not found.members:
                raise _Unreadable
            return found, start, self.position
        if character == "[":
            return self.read_array(depth), start, self.position
        if character in _QUOTES:
            return self._read_string(in_array=in_array)
        start = self.position
        match = (
            (not in_array and _DECIMAL_COMMA.match(self.text, start))
            or _NUMBER_VALUE.match(self.text, start)
            or _BARE_VALUE.match(self.text, start)
        )
        if match is None:
            raise _Unreadable
        raw = match[0].rstrip()
        self.position = match.end()
        return _bare_value(raw), start, start + len(raw)

    def _read_string(self, *, in_array: bool) -> tuple[str, int, int]:
        start = self.position + 1
        closing = _QUOTES[self.text[self.position]]
        position = start
        while True:
            position = _find_unescaped(self.text, closing, position)
            if position == -1:
                self.position = len(self.text)
                raise _Unreadable
            after = position + 1
            if in_array:
                is_closing = bool(_AFTER_ITEM.match(self.text, after))
            else:
                is_closing = bool(
                    _AFTER_VALUE.match(self.text, after) or _NEXT_MEMBER.match(self.text, after)
                )
            if is_closing:
                break
            position += 1
        self.position = position + 1
        return _unescape(self.text[start:position]), start, position


def _find_unescaped(text: str, quote: str, start: int) -> int:
    """Return the position of the next `quote` that is not escaped by a backslash; -1 if there is none."""
    position = text.find(quote, start)
    while position != -1:
        backslashes = 0
        while position - backslashes > start and text[position - backslashes - 1] == "\\":
            backslashes += 1
        if backslashes % 2 == 0:
            return position
        position = text.find(quote, position + 1)
    return -1


def _unescape(raw: str) -> str:
    if "\\" not in raw:
        return raw
    text = _ESCAPE.sub(
        lambda match: chr(int(match[1], 16)) if match[1] else _ESCAPED.get(match[2], match[2]), raw
    )
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _bare_value(raw: str) -> Value:
    if raw.lower() in _JSON_WORDS:
        return _JSON_WORDS[raw.lower()]
    match = _JSON_NUMBER.fullmatch(raw)
    if match is None or len(raw) > _LONGEST_NUMBER:
        return raw
    return float(raw)
