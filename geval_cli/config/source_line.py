"""One source line as a terminal shows it, with the caret line under it: tabs, wide characters, secrets, long lines."""

import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

from geval_cli.config.secrets import MASK, header_line_spans, secret_spans

_TAB_WIDTH = 4
_MAX_WIDTH = 100
_LEAD = 30
_LONG_LINE = 2_000
_MARGIN = 500
"""So many characters on both sides of the caret are drawn of a long line."""
_SECRET_MARGIN = 65_536
"""So many are searched for secrets: one that is longer than this is no key."""
_ELLIPSIS = "…"
_JOINERS = frozenset("\u200d\ufe0e\ufe0f")
_REPLACEMENT = "�"


class _Cell(NamedTuple):
    """What one source character becomes on the screen, and how many columns it takes there."""

    text: str
    width: int


def draw_source_line(line: str, *, column: int, length: int, above: Iterable[str] = ()) -> tuple[str, str]:
    """The line as it is to be shown, and a line of carets to stand under it.

    Args:
        line: as it stands in the file.
        column: the first character to point at, from 1; may lie just behind the end.
        length: how many characters to point at.
        above: the lines above it, the nearest first; they say what is a header.
    """
    offset, cells = _cells_near(line, column - 1, above)
    start = min(max(column - 1 - offset, 0), len(cells))
    end = min(start + length, len(cells))
    first, last = _window(cells, start, end)
    head = _ELLIPSIS if first or offset else ""
    tail = _ELLIPSIS if offset + last < len(line) else ""
    shown = head + "".join(cell.text for cell in cells[first:last]) + tail
    before = len(head) + sum(cell.width for cell in cells[first:start])
    if start < len(cells) and not cells[start].width:
        before -= _masked_before(cells, start)
    under = sum(cell.width for cell in cells[start : min(end, last)])
    return shown, " " * before + "^" * max(1, under)


def _cells_near(line: str, caret: int, above: Iterable[str]) -> tuple[int, list[_Cell]]:
    """Return the cells to draw and the offset of the first: all of a line, or what is near the caret of a long one.

    A config that a program wrote may be one line of megabytes, and have a problem in each of its tests.
    """
    caret = min(max(caret, 0), len(line))
    base, end = max(0, caret - _SECRET_MARGIN), caret + _SECRET_MARGIN
    first, last = max(0, caret - _MARGIN), min(len(line), caret + _MARGIN)
    if len(line) <= _LONG_LINE:
        base, end, first, last = 0, len(line), 0, len(line)
    cells = _plain_cells(line[first:last])
    part = line[base:end]
    for start, stop in (*secret_spans(part), *header_line_spans(above, part)):
        _mask(cells, max(0, base + start - first), min(len(cells), base + stop - first))
    return first, cells


def _mask(cells: list[_Cell], start: int, end: int) -> None:
    if start < end:
        cells[start:end] = [_Cell(MASK, len(MASK)), *[_Cell("", 0)] * (end - start - 1)]


def _plain_cells(line: str) -> list[_Cell]:
    cells: list[_Cell] = []
    column = 0
    for character in line:
        cell = _cell(character, column)
        cells.append(cell)
        column += cell.width
    return cells


def _cell(character: str, column: int) -> _Cell:
    if character == "\t":
        width = _TAB_WIDTH - column % _TAB_WIDTH
        return _Cell(" " * width, width)
    if character in _JOINERS or unicodedata.combining(character):
        return _Cell(character, 0)
    # Escape sequences and text-direction marks could make a terminal lie about the line.
    if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
        return _Cell(_REPLACEMENT, 1)
    return _Cell(character, 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1)


def _masked_before(cells: list[_Cell], start: int) -> int:
    """How far back the visible mask begins, for a caret that would stand inside it."""
    for cell in reversed(cells[:start]):
        if cell.width:
            return cell.width if cell.text == MASK else 0
    return 0


def _window(cells: list[_Cell], start: int, end: int) -> tuple[int, int]:
    """Which cells to show: all of them, or as many around the caret as fit."""
    if sum(cell.width for cell in cells) <= _MAX_WIDTH:
        return 0, len(cells)
    first, lead = start, 0
    while first > 0 and lead < _LEAD:
        first -= 1
        lead += cells[first].width
    last, width = first, 0
    while last < len(cells) and width + cells[last].width <= _MAX_WIDTH:
        width += cells[last].width
        last += 1
    return first, max(last, min(end, start + 1, len(cells)))
