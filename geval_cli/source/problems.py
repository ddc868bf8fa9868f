"""Problems as the user reads them: place, source line, caret, hint, notes. Plain text; colours are up to the CLI."""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from geval_cli.errors import Location, Problem, Severity
from geval_cli.patterns import compile_later
from geval_cli.source.access import TRUSTED, open_regular
from geval_cli.source.secrets import MASK, header_line_spans, secret_spans
from geval_cli.source.source_map import split_lines

_TAB_WIDTH = 4
_MAX_WIDTH = 100
_LEAD = 30
_LONG_LINE = 2_000
_MARGIN = 500
"""How many characters of a long line are drawn on each side of the caret."""
_SECRET_MARGIN = 65_536
"""How far around the caret secrets are searched for; nothing longer than this is a key."""
_ELLIPSIS = "…"
_JOINERS = frozenset("\u200d\ufe0e\ufe0f")
_REPLACEMENT = "�"


class _Cell(NamedTuple):
    """A source character as the screen shows it, with its width in columns."""

    text: str
    width: int


def draw_source_line(line: str, *, column: int, length: int, above: Iterable[str] = ()) -> tuple[str, str]:
    """Return the line as it is shown, and a line of carets to print below it.

    Args:
        line: the line as it is in the file.
        column: the first character to point at, counted from 1; may be just past the end.
        length: how many characters to point at.
        above: the lines above it, nearest first; they tell whether it is a header.
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
    """Return the cells to draw and the offset of the first: all of a line, or the part near the caret of a long one.

    A generated config may be one line of megabytes, with a problem in each of its tests.
    """
    caret = min(max(caret, 0), len(line))
    base = max(0, caret // _SECRET_MARGIN - 1) * _SECRET_MARGIN  # the same for all nearby problems
    end = base + 3 * _SECRET_MARGIN
    first, last = max(0, caret - _MARGIN), min(len(line), caret + _MARGIN)
    if len(line) <= _LONG_LINE:
        base, end, first, last = 0, len(line), 0, len(line)
    cells = _plain_cells(line[first:last])
    part = line[base:end]
    for start, stop in (*_spans_of(part), *header_line_spans(above, part)):
        _mask(cells, max(0, base + start - first), min(len(cells), base + stop - first))
    return first, cells


@lru_cache(maxsize=4)
def _spans_of(part: str) -> Sequence[tuple[int, int]]:
    """Return the secrets' spans, cached for all problems of a long line: the search takes a millisecond per 10 kB."""
    return secret_spans(part)


def _mask(cells: list[_Cell], start: int, end: int) -> None:
    if start < end:
        cells[start:end] = [_Cell(MASK, len(MASK)), *[_Cell("", 0)] * (end - start - 1)]


def _plain_cells(line: str) -> list[_Cell]:
    cells: list[_Cell] = []
    column = 0
    for character in line:
        if character == "\t":
            width = _TAB_WIDTH - column % _TAB_WIDTH
            cell = _Cell(" " * width, width)
        else:
            cell = _cell_of(character)
        cells.append(cell)
        column += cell.width
    return cells


@lru_cache(maxsize=1024)
def _cell_of(character: str) -> _Cell:
    if character in _JOINERS or unicodedata.combining(character):
        return _Cell(character, 0)
    # Escape sequences and text-direction marks could make a terminal lie about the line.
    if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}:
        return _Cell(_REPLACEMENT, 1)
    return _Cell(character, 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1)


def _masked_before(cells: list[_Cell], start: int) -> int:
    """Return the distance back to the start of the visible mask, for a caret that would be inside the mask."""
    for cell in reversed(cells[:start]):
        if cell.width:
            return cell.width if cell.text == MASK else 0
    return 0


def _window(cells: list[_Cell], start: int, end: int) -> tuple[int, int]:
    """Return the range of cells to show: all of them, or as many around the caret as fit."""
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


LineReader = Callable[[Location], str | None]

# What could make a terminal act or mislead: control characters and marks of text direction.
_CONTROL = compile_later("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# Larger files (these can only be tests) are reported without their lines, to limit memory use.
_MAX_SHOWN_FILE = 64 * 1024 * 1024

# Up to this many letters, one typo is tolerated, then two; in longer words three (`_tolerance`).
_SHORT_WORD = 5
_MEDIUM_WORD = 9
# An abbreviation of one or two letters is too short to suggest a key for.
_MIN_PREFIX = 3
_MIN_GUTTER = 3


def render_problems(problems: Iterable[Problem]) -> str:
    """Return all problems as text, each once, sorted by file, line and column, with a blank line between them."""
    reader = _FileLines()
    return "\n\n".join(render_problem(problem, read_line=reader) for problem in sort_problems(problems))


def render_problem(problem: Problem, *, read_line: LineReader | None = None) -> str:
    """Return one problem as text, without a final line break.

    `read_line` returns the source line of a location; by default, it is read from the file on disk.
    """
    location = problem.location
    lines = [f"{problem.severity.value}: {problem.message}"]
    if location is None:
        notes = (problem.hint, *problem.notes) if problem.hint else problem.notes
        return _CONTROL.sub("�", "\n".join([*lines, *(f"    = {note}" for note in notes)]))
    width = max(_MIN_GUTTER, len(str(location.line)))
    path = f"   {location.key_path}" if location.key_path else ""
    lines.append(f"{' ' * (width - 1)}--> {location}{path}")
    reader = read_line or _FileLines()
    source = reader(location) if location.length else None
    notes = problem.notes
    if source is None:
        notes = (problem.hint, *notes) if problem.hint else notes
    else:
        shown, caret = draw_source_line(
            source, column=location.column, length=location.length, above=_lines_above(location, reader)
        )
        lines.append(f"{' ' * width} |")
        lines.append(f"{location.line:>{width}} | {shown}".rstrip())
        lines.append(f"{' ' * width} | {caret} {problem.hint}".rstrip())
    lines += [f"{' ' * width} = {note}" for note in notes]
    return _CONTROL.sub("�", "\n".join(lines))


def _lines_above(location: Location, read_line: LineReader) -> Iterator[str]:
    for number in range(location.line - 1, 0, -1):
        line = read_line(replace(location, line=number))
        if line is None:
            return
        yield line


def sort_problems(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems sorted by file, line and column, without duplicates.

    Of those without a location, errors come first and warnings last, so that what ends a run is not below what does
    not.

    A mistake in a part that several aliases refer to is reported once.
    """
    unique: dict[tuple[object, ...], Problem] = {}
    for problem in problems:
        unique.setdefault((*_order(problem), problem.severity, problem.message), problem)
    return sorted(unique.values(), key=_order)


def _order(problem: Problem) -> tuple[bool, str, int, int]:
    place = problem.location
    if place is None:
        return problem.severity is Severity.WARNING, "", 0, 0
    return False, place.file, place.line, place.column


class _FileLines:
    """Source lines from disk; only the last file is kept, because problems come sorted by file."""

    def __init__(self) -> None:
        self._file = ""
        self._lines: list[str] = []

    def __call__(self, location: Location) -> str | None:
        if location.file != self._file:
            self._file, self._lines = location.file, read_lines(location.file)
        index = location.line - 1
        return self._lines[index] if 0 <= index < len(self._lines) else None


def read_lines(file: str) -> list[str]:
    """Return the lines of a file; none if it cannot be read or is too large."""
    try:
        # Line breaks must stay unchanged: text mode would turn a lone "\r" in the middle of a JSON line into one.
        path = Path(file)
        if path.stat().st_size > _MAX_SHOWN_FILE:
            return []
        with open_regular(path, TRUSTED) as stream:
            return split_lines(stream.read().decode("utf-8-sig", errors="replace"))
    except (OSError, ValueError):
        return []


def did_you_mean(word: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed word that `word` was most likely meant to be, or None if none is close.

    Spellings that differ in case, hyphens and underscores match; so do a few typos, including swapped neighbours, and
    unambiguous beginnings.
    """
    candidates = list(dict.fromkeys(allowed))
    plain = _plain(word)
    if not plain:
        return None
    near = [
        (far, candidate) for candidate in candidates if (far := _near(plain, _plain(candidate))) is not None
    ]
    if near:
        return min(near, key=lambda pair: (pair[0], -_similarity(plain, _plain(pair[1]))))[1]
    longer = [candidate for candidate in candidates if _plain(candidate).startswith(plain)]
    is_clear = len({_plain(candidate) for candidate in longer}) == 1 and len(plain) >= _MIN_PREFIX
    return longer[0] if is_clear else None


_LIST_MAX, _NEAREST, _ALIKE = 88, 5, 0.6


def hint_among(word: str, allowed: Iterable[str], label: str = "use one of", everything: str = "") -> str:
    """Return the hint for a word that is not allowed: `did you mean ...?`, else what `listing` returns."""
    words = list(dict.fromkeys(allowed))
    near = did_you_mean(word, words)
    return f"did you mean `{near}`?" if near else listing(label, word, words, everything)


def listing(label: str, word: str, allowed: Iterable[str], everything: str = "") -> str:
    """Return all allowed words after a label if they fit on a line, else those most similar to `word`.

    `everything` says where all of them are listed.
    """
    words = list(dict.fromkeys(allowed))
    whole = f"{label}: {', '.join(words)}"
    if len(whole) <= _LIST_MAX or len(words) <= _NEAREST:
        return whole if words else ""
    likeness = {candidate: _similarity(_plain(word), _plain(candidate)) for candidate in words}
    alike = sorted((one for one in words if likeness[one] >= _ALIKE), key=lambda one: -likeness[one])
    nearest = list(dict.fromkeys([*alike, *words]))[:_NEAREST]
    where = (
        f"; all {len(words):,} are in {everything}" if everything else f" and {len(words) - _NEAREST:,} more"
    )
    return f"{label}: {', '.join(nearest)}{', ...' if everything else ''}{where}"


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "").replace(" ", "")


def _tolerance(word: str, candidate: str) -> int:
    longest = max(len(word), len(candidate))
    if longest <= _SHORT_WORD:
        return 1 if longest > 1 else 0
    return 2 if longest <= _MEDIUM_WORD else 3


def _near(word: str, candidate: str) -> int | None:
    """Return the edit distance if it is small, else None; words whose lengths differ too much are not compared."""
    tolerance = _tolerance(word, candidate)
    if abs(len(word) - len(candidate)) > tolerance:
        return None
    # Optimal string alignment distance: insertions, deletions, changes and swaps of neighbours cost one each.
    before: Sequence[int] = []
    above: Sequence[int] = range(len(candidate) + 1)
    for row, left in enumerate(word, start=1):
        current = [row]
        for column, right in enumerate(candidate, start=1):
            cost = min(above[column] + 1, current[-1] + 1, above[column - 1] + (left != right))
            if row > 1 and column > 1 and left == candidate[column - 2] and word[row - 2] == right:
                cost = min(cost, before[column - 2] + 1)
            current.append(cost)
        before, above = above, current
    distance = above[len(candidate)]
    return distance if distance <= tolerance else None


def _similarity(word: str, candidate: str) -> float:
    return SequenceMatcher(None, word, candidate).ratio()
