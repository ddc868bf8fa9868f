"""Cuts into a text that are made all at once, and where its lines begin and end."""

import re
from bisect import bisect_right

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
