"""Reads CSV files row by row, with the place of each cell, and makes tests of the rows.

Columns are variables, except for those named like a key of a test.
"""

import csv
import io
import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct

from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.errors import ConfigError, Location, Problem, Severity
from geval_cli.numbers import plural
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.source.access import Access, open_regular
from geval_cli.source.files import MAX_LINE_BYTES, MAX_TEXT_BYTES, open_problem
from geval_cli.source.json_source import read_json
from geval_cli.source.problems import did_you_mean, hint_among
from geval_cli.source.source_map import KeyPath, Positions, SourcePath
from geval_cli.specs.base import spellings
from geval_cli.suite.assertions import nearest_type
from geval_cli.suite.schema import TestSpec
from geval_cli.suite.validation import LoadContext
from geval_cli.templating.js_text import js_string

_QUOTED = compile_later(r'"[^"]*"')
_LINE_BREAKS = compile_later(r"\r\n|\r|\n")
_DELIMITERS = (",", ";", "\t")
MAX_COLUMNS = 2_000


class TableRow(Struct, frozen=True):
    """One row of a table.

    Attributes:
        cells: texts in a CSV file; in a sheet, the values of the cells, None for an empty one.
        line: the line of the file in which the row begins, from 1; in a sheet, the number of the row.
        last_line: the line in which it ends.
        text: the row as written in a CSV file.
        delimiter: the delimiter between its cells there.
        sheet: the name of its sheet; "" in a CSV file.
    """

    cells: list[Any]
    line: int
    last_line: int
    text: str = ""
    delimiter: str = ","
    sheet: str = ""

    @property
    def is_empty(self) -> bool:
        return not any(str(cell).strip() for cell in self.cells if cell is not None)

    def location(self, path: Path, column: int = 0, key_path: str = "") -> Location:
        """Return where a cell is, with columns counted from 0; beyond the last one, where the row ends."""
        if self.sheet:
            name = f"{self.sheet}!{column_letters(column)}{self.line}"
            return Location(str(path), self.line, column + 1, length=0, key_path=name)
        lines, first, length = self._offset_of(column)
        return Location(str(path), self.line + lines, first + 1, max(1, length), key_path)

    def _offset_of(self, column: int) -> tuple[int, int, int]:
        """Return the lines before a cell, the characters before it in its line, and its length within that line."""
        spans, breaks = _places_in(self.text, self.delimiter)
        if column < len(spans):
            start, end = spans[column]
        else:
            start = len(self.text.rstrip("\r\n"))
            end = len(self.text)
        lines = bisect_right(breaks, start)
        begin = breaks[lines - 1] if lines else 0
        cut = _LINE_BREAKS.search(self.text, start, end)
        return lines, start - begin, (cut.start() if cut else end) - start


@lru_cache(1)
def _places_in(text: str, delimiter: str) -> tuple[list[tuple[int, int]], list[int]]:
    """Return where each cell of a row begins and ends, and where its lines end; cached for look-ups in one row."""
    cell = _cell_pattern(delimiter)
    spans: list[tuple[int, int]] = []
    end = -1
    while end < len(text):
        found = cell.match(text, end + 1)
        assert found is not None  # a cell may be empty
        end = found.end()
        spans.append((found.start(), end))
    return spans, [found.end() for found in _LINE_BREAKS.finditer(text)]


@lru_cache(4)
def _cell_pattern(delimiter: str) -> "re.Pattern[str]":
    """Return the pattern of a cell up to the delimiter: `quoted` is the text in its quotes, `rest` what follows."""
    return re.compile(
        rf'(?:"(?P<quoted>[^"]*+(?:""[^"]*+)*+)(?P<closed>"?))?+(?P<rest>[^{re.escape(delimiter)}]*+)'
    )


def _relaxed(cells: list[str], text: str, delimiter: str) -> list[str]:
    """Return the cells of a row as promptfoo reads them: a cell with text after its closing quote keeps its quotes.

    Raises:
        csv.Error: a quote is never closed, which Python's reader reports only in strict mode.
    """
    spans, _ = _places_in(text, delimiter)
    found = [_cell_pattern(delimiter).match(text, start) for start, _ in spans]
    if any(match is not None and match["closed"] == "" for match in found):
        raise csv.Error("unexpected end of data")
    return [
        cell
        if match is None or not match["closed"] or not match["rest"].rstrip("\r\n")
        else '"{}"{}'.format(match["quoted"].replace('""', '"'), match["rest"].rstrip("\r\n"))
        for cell, match in zip(cells, found, strict=True)
    ]


class CellPositions(Mapping[KeyPath, Location]):
    """The places in one row: of the whole row, and of each cell by the name of its column."""

    def __init__(self, row: TableRow, path: Path, columns: Mapping[str, int], prefix: str) -> None:
        self._row, self._path, self._columns, self._prefix = row, path, columns, prefix

    def __getitem__(self, path: KeyPath) -> Location:
        if not path:
            return self._row.location(self._path, 0, self._prefix)
        (name,) = path if len(path) == 1 else (None,)
        if not isinstance(name, str):
            raise KeyError(path)
        return self._row.location(self._path, self._columns[name], f"{self._prefix}.{name}")

    def __iter__(self) -> Iterator[KeyPath]:
        yield ()
        yield from ((name,) for name in self._columns)

    def __len__(self) -> int:
        return len(self._columns) + 1

    def place(self) -> SourcePath:
        return SourcePath(Positions(str(self._path), keys=self, values=self))


def column_letters(index: int) -> str:
    """Return the name of a sheet's column, counted from 0: A, B, ..., Z, AA."""
    letters = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def csv_rows(
    path: Path,
    access: Access,
    asked_at: Location | None,
    *,
    delimiter: str | None = ",",
    is_strict: bool = False,
) -> Iterator[TableRow]:
    """Yield the rows of a CSV file one by one, including the header; spaces are kept as part of the text.

    Args:
        path: the file, UTF-8 with or without a byte order mark.
        access: what the config may read.
        asked_at: where the config names the file.
        delimiter: the delimiter between cells; None: comma, semicolon or tab, whichever the first line uses.
        is_strict: whether text after a closing quote is an error.

    Raises:
        ConfigError: the file cannot be read, is not UTF-8 text, or its quotes are wrong.
    """
    # Python's default limit is 128 kB per cell, but documents in variables are longer.
    csv.field_size_limit(MAX_TEXT_BYTES)
    begin = 1
    try:
        with io.TextIOWrapper(open_regular(path, access), "utf-8-sig", newline="") as stream:
            lines = iter(lambda: stream.readline(MAX_LINE_BYTES + 1), "")
            first = next(lines, "")
            mark = delimiter or guess_delimiter(first)
            taken: list[str] = []
            reader = csv.reader(_noted(chain([first], lines), taken), delimiter=mark, strict=is_strict)
            for cells in reader:
                text = "".join(taken)
                taken.clear()
                if len(cells) > MAX_COLUMNS:
                    raise ConfigError([too_wide(len(cells), Location(str(path), begin, 1, length=0))])
                if cells:
                    read = cells if is_strict or '"' not in text else _relaxed(cells, text, mark)
                    yield TableRow(read, begin, reader.line_num, text, mark)
                begin = reader.line_num + 1
    except OSError as error:
        raise ConfigError([open_problem(path, error, asked_at)]) from error
    except UnicodeDecodeError as error:
        hint = "save it as UTF-8; in Excel choose `CSV UTF-8`"
        raise ConfigError([Problem(f"`{path}` is not UTF-8 text", asked_at, hint)]) from error
    except csv.Error as error:
        where = Location(str(path), begin, 1, length=0)
        if "unexpected end of data" in str(error):
            hint = 'close it; write a quote inside a quoted cell twice: ""'
            broken_row = Problem("a quote in this row is never closed", where, hint)
        elif "expected after" in str(error):
            hint = 'write a quote inside a quoted cell twice: ""'
            broken_row = Problem("there is text after a closing quote in this row", where, hint)
        else:
            broken_row = Problem(
                f"this row cannot be read: {error}", where, "look for a quote that is not closed"
            )
        raise ConfigError([broken_row]) from error


def _noted(lines: Iterator[str], taken: list[str]) -> Iterator[str]:
    """Yield the lines, and collect those of the current row in `taken`, to look up places in them."""
    size = 0
    for line in lines:
        size = len(line) if not taken else size + len(line)
        if size > MAX_LINE_BYTES:
            raise csv.Error(f"it is longer than {MAX_LINE_BYTES >> 20} MB")
        taken.append(line)
        yield line


def too_wide(columns: int, where: Location | None) -> Problem:
    """Return the problem of a table with more columns than `MAX_COLUMNS`."""
    message = f"this table has {columns:,} columns; at most {MAX_COLUMNS:,} are allowed"
    return Problem(
        message, where, "remove unused columns; in a spreadsheet also empty ones that have formatting"
    )


def guess_delimiter(header: str) -> str:
    """Return the delimiter that occurs most often in a header, outside of quotes; a comma if there is none."""
    bare = _QUOTED.sub("", header)
    return max(_DELIMITERS, key=bare.count)


def uneven_problem(row: TableRow, width: int, path: Path) -> Problem:
    """Return the problem of a row that has more or fewer cells than the header."""
    hint = "put quotes around cells that contain commas, without spaces before the quotes"
    if row.delimiter != ",":
        hint = "put quotes around cells that contain the delimiter, without spaces before the quotes"
    where = Location(str(path), row.last_line, 1, length=0)
    return Problem(f"this row has {plural(len(row.cells), 'cell')}, but the header has {width}", where, hint)


_VARIABLES_OF_OLD = frozenset({"scenario", "expected_outcome", "expectedOutcome", "role"})
"""Keys of a test that are variables if they name a column of a table; judges of conversations read them there, too."""
_KEYS = frozenset(spellings(TestSpec)) - _VARIABLES_OF_OLD
_BELOW = frozenset({"vars", "metadata", "options"})
"""Keys of a test whose own keys each have a column: `metadata.area`."""
_ASSERTIONS = ("assert", "assertions")
_TWO_PARTS = compile_later(r"\s*([A-Za-z]+)(\s*[.:]\s*|[\s_-]+)(\S.*?)\s*")
_WORDS = frozenset({"content", "desc", "expected", "meta", "option", "var"})
"""Names that people give to variables, although each resembles a key of a test."""
_MAPPINGS = frozenset({"metadata", "options", "vars"})
_LISTS = frozenset({"turns", "trace"})
_FOREIGN = {
    "__expected": "call it `assert.TYPE`, for example `assert.icontains`, with only the value in it",
    "__description": "call it `description`",
    "__threshold": "call it `threshold`",
    "__providerOutput": "call it `output`",
    "__metadata": "call it `metadata.NAME`",
    "__metric": "give the assertions of `defaultTest` a `metric`",
    "__config": "give the assertions of `defaultTest` a `threshold`",
    "__prefix": "write it into the prompt",
    "__suffix": "write it into the prompt",
}
"""Columns of promptfoo, by the beginning of their names, and what to do about them here."""
_SHEET_ERROR = compile_later(r"#(N/A|NAME\?|(DIV/0|REF|VALUE|NUM|NULL|CALC|SPILL|FIELD|ERROR)!)|Err:\d{3}")


class ColumnNames(Struct, frozen=True):
    """The config's names for columns, by their names in the files; None drops a column. `place` is of the mapping."""

    names: Mapping[str, str | None]
    place: SourcePath


AS_WRITTEN = ColumnNames({}, SourcePath.nowhere())


class FlatColumns:
    """The meaning of the columns of one file. A problem with a column is reported once, not in every row."""

    def __init__(self, reading: LoadContext, names: ColumnNames) -> None:
        self._reading = reading
        self._names = names
        self._paths: dict[str, KeyPath | None] = {}
        self._doubled: set[str] = set()

    def path_of(self, name: str, place: SourcePath) -> KeyPath | None:
        """Return where in a test a column's value belongs; None if it is dropped or, with a problem, badly named.

        `("assert", TYPE)` stands for an additional assertion of this type.
        """
        if name not in self._paths:
            ours = self._names.names.get(name, name)
            self._paths[name] = None if ours is None else self._find_path(ours, place.key(name))
        return self._paths[name]

    @property
    def renamed(self) -> Mapping[str, str | None]:
        return self._names.names

    def report_missing(self, file: Path) -> None:
        """Report columns that the config renames but the file does not have. Call it once all columns are known."""
        for name in self._names.names.keys() - self._paths.keys():
            hint = hint_among(name, self._paths, "it has")
            message = f"`{file.name}` has no column `{name}`"
            self._reading.report(message, self._names.place.key(name), hint)

    def test_of(
        self, row: Mapping[str, JsonValue], place: SourcePath
    ) -> tuple[dict[str, JsonValue], SourcePath]:
        """Return the test that a row describes, and its place, in which each key is where its column is in the row."""
        test: dict[str, JsonValue] = {}
        origins: dict[KeyPath, KeyPath] = {(): place.path}
        checks: list[tuple[str, str, JsonValue]] = []
        for name, value in row.items():
            path = self.path_of(name, place)
            if path is None or (value is None and path[0] != "vars"):
                continue
            if path[0] == "assert" and len(path) > 1:
                checks.append((name, str(path[1]), value))
                continue
            if path in origins and name not in self._doubled:
                self._doubled.add(name)
                self._reading.report(f"`{name}` duplicates another column", place.key(name), "keep one")
            origins[path] = (*place.path, name)
            key = str(path[0])
            if len(path) == 1:
                known = test.get(key)
                test[key] = (
                    {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
                )
                continue
            below = test.get(key)
            # A new mapping: the one in the row belongs to the file, which is read again.
            test[key] = {**(below if isinstance(below, dict) else {}), str(path[1]): value}
        _add_checks(test, checks, place, origins)
        old = place.positions
        keys, values = _MovedPositions(origins, old.keys), _MovedPositions(origins, old.values)
        return test, SourcePath(Positions(old.file, keys=keys, values=values))

    def _find_path(self, name: str, location: Location | None) -> KeyPath | None:
        foreign = next((hint for start, hint in _FOREIGN.items() if name.startswith(start)), None)
        if foreign:
            notes = ("or read the whole config by promptfoo's rules: `dialect: promptfoo`",)
            message = f"`{name}` is a promptfoo column and has no meaning here"
            self._reading.report(message, location, foreign, notes=notes)
            return None
        first, _, rest = name.partition(".")
        if rest and first == "assert":
            if rest.removeprefix("not-") in ASSERTION_TYPES:
                return ("assert", rest)
            near = nearest_type(rest)
            hint = f"did you mean `assert.{near}`?" if near else "docs/assertions.md lists all types"
            self._reading.report(f"there is no assertion type `{rest}`", location, hint)
            return None
        if rest and first in _BELOW:
            return (first, rest)
        if name in _KEYS:
            return (name,)
        near = _meant_path(name) or (None if name.lower() in _WORDS else did_you_mean(name, _KEYS))
        if near is None:
            return ("vars", name)
        notes = (f"if it is a variable, call it `vars.{name}`",)
        self._reading.report(
            f"unknown key `{name}` in a test", location, f"did you mean `{near}`?", notes=notes
        )
        return None


def _meant_path(name: str) -> str | None:
    """Return the two-part name that a column was most likely meant to have: `Assert.equals`, `metadata: area`."""
    found = _TWO_PARTS.fullmatch(name)
    if found is None:
        return None
    first = found[1].lower()
    sign = found[2]
    rest = found[3]
    if first in _BELOW and sign.strip() in (".", ":"):
        return f"{first}.{rest}"
    kind = nearest_type(rest)
    if kind is None:
        return None
    is_kind = rest.lower().replace("_", "-") == kind
    is_slip = first.startswith("as") and "r" in first and did_you_mean(first, ("assert",)) is not None
    is_ours = first in ("assert", "assertion", "assertions")
    return f"assert.{kind}" if is_ours or (is_kind and is_slip) else None


def _add_checks(
    test: dict[str, JsonValue],
    checks: list[tuple[str, str, JsonValue]],
    place: SourcePath,
    origins: dict[KeyPath, KeyPath],
) -> None:
    """Add the assertions of `assert.TYPE` columns after those of `assert`; an empty cell adds none.

    For a type without `value`, such as `latency`, the cell is the threshold.
    """
    if not checks:
        return
    key = next((key for key in _ASSERTIONS if key in test), "assert")
    written = test.get(key, [])
    if not isinstance(written, list):
        return
    made = [*written]
    for name, kind, value in checks:
        if value is not None and value != "":
            fields = ASSERTION_TYPES[kind.removeprefix("not-")].model_fields
            of_cell = "value" if "value" in fields or "threshold" not in fields else "threshold"
            origins[(key, len(made))] = origins[(key, len(made), of_cell)] = (*place.path, name)
            is_number = of_cell == "threshold" and isinstance(value, str)
            made.append({"type": kind, of_cell: _scalar(value) if is_number else value})
    if made:
        test[key] = made


class _MovedPositions(Mapping[KeyPath, Location]):
    """The positions of a test whose parts are elsewhere in the file: `origins` maps paths in the test to these."""

    def __init__(self, origins: Mapping[KeyPath, KeyPath], positions: Mapping[KeyPath, Location]) -> None:
        self._origins, self._positions = origins, positions

    def __getitem__(self, path: KeyPath) -> Location:
        for end in range(len(path), -1, -1):
            origin = self._origins.get(path[:end])
            if origin is not None:
                return self._positions[(*origin, *path[end:])]
        raise KeyError(path)

    def __iter__(self) -> Iterator[KeyPath]:
        return iter(self._origins)

    def __len__(self) -> int:
        return len(self._origins)


def is_flat(row: JsonValue, names: ColumnNames) -> bool:
    """Return whether a row of a file has variables next to the keys of a test, instead of under `vars`."""
    return isinstance(row, dict) and "vars" not in row and (bool(names.names) or not row.keys() <= _KEYS)


class TableReader:
    """A reader that makes tests of the rows of one table; the first row that is not empty is its header."""

    def __init__(self, path: Path, header: TableRow, names: ColumnNames, reading: LoadContext) -> None:
        self._path, self._reading = path, reading
        self._flat = FlatColumns(reading, names)
        self._width = len(header.cells)
        self._names = self._read_header(header)
        self._unnamed = [place for place, cell in enumerate(header.cells) if not cell_text(cell).strip()]
        positions = CellPositions(header, path, self._names, "tests")
        for name in self._names:
            self._flat.path_of(name, positions.place())
        self._flat.report_missing(path)

    def test_of(self, row: TableRow, index: int) -> tuple[JsonValue, SourcePath] | None:
        """Return the test of a row, the `index`-th from 0; None, with a problem, if it does not fit the header."""
        if len(row.cells) != self._width:
            self._reading.problems.append(uneven_problem(row, self._width, self._path))
            return None
        for column in self._unnamed:
            cell = cell_text(row.cells[column]).strip()
            if cell and not (column == 0 and cell.isdecimal()):  # a row number written by pandas
                message = "this cell is left out, because its column has no name"
                at, self._unnamed = row.location(self._path, column), []
                hint = "name the column in the first row, or clear it"
                self._reading.problems.append(Problem(message, at, hint, severity=Severity.WARNING))
                break
        place = CellPositions(row, self._path, self._names, f"tests[{index}]").place()
        cells = {
            name: self._value(name, cell_text(row.cells[column]), place)
            for name, column in self._names.items()
        }
        return self._flat.test_of(cells, place)

    def _read_header(self, header: TableRow) -> dict[str, int]:
        """Return the columns that have a name; two columns with the same name are a problem."""
        names: dict[str, int] = {}
        for column, cell in enumerate(header.cells):
            name = cell_text(cell).strip()
            where = header.location(self._path, column)
            if name == "vars" and name not in self._flat.renamed:
                hint = "give each variable its own column"
                self._reading.report("a table has no column `vars`", where, hint)
            elif name in names:
                message = f"two columns are called `{name}`"
                self._reading.report(message, where, "rename one of them, or remove it")
            elif name:
                names[name] = column
        return names

    def _value(self, name: str, text: str, place: SourcePath) -> JsonValue:
        """Return the value of a cell in the test: an empty cell is no value, but for a variable an empty text."""
        path = self._flat.path_of(name, place)
        if _SHEET_ERROR.fullmatch(text):
            message = f"this cell contains the formula error {text}"
            self._reading.report(message, place.value(name), "fix the formula, or clear the cell")
        if path is None or path[0] == "vars":
            return text
        if not text.strip():
            return None
        key = str(path[0])
        if key == "threshold":
            try:
                return float(text[:-1]) / 100 if text.endswith("%") else float(text)
            except ValueError:
                hint = "use a decimal point: 0.7" if "," in text else "scores run from 0 to 1"
                self._reading.report(
                    f"`{name}` must be a number, found `{text.strip()}`", place.value(name), hint
                )
                return None
        if len(path) == 1 and key in (*_ASSERTIONS, *_MAPPINGS, *_LISTS):
            return self._data(text, name, place)
        if key == "options":
            return _scalar(text)
        if key in {"provider", "evaluation_schema", "evaluationSchema"} and text.lstrip().startswith("{"):
            return self._data(text, name, place)
        # A cell of `context` may be a list of texts in JSON; anything else is a text.
        if "context" not in key.lower():
            return text
        found = _scalar(text) if text.lstrip().startswith("[") else text
        is_texts = isinstance(found, list) and all(isinstance(item, str) for item in found)
        return found if is_texts else text

    def _data(self, text: str, name: str, place: SourcePath) -> JsonValue:
        try:
            return read_json(text, "").value
        except ConfigError as error:
            why = error.problems[0].message
            key = str((self._flat.path_of(name, place) or ("",))[0])
            hint = "write a mapping"
            if key in _LISTS or key in _ASSERTIONS:
                hint = f"write a list of {key if key in _LISTS else 'assertions'}"
            message = f"a cell of `{name}` must be JSON: {why}"
            self._reading.report(message, place.value(name), f"{hint}, as JSON")
            return None


def cell_text(cell: object) -> str:
    """Return a cell as text: numbers without a needless `.0`, dates as 2026-11-22, durations as 30:05:00."""
    if isinstance(cell, datetime):
        return cell.date().isoformat() if cell.time() == time() else cell.isoformat(timespec="seconds")
    if isinstance(cell, date | time):
        return cell.isoformat()
    if isinstance(cell, timedelta):  # as a spreadsheet shows it
        minutes, seconds = divmod(abs(round(cell.total_seconds())), 60)
        return f"{'-' if cell < timedelta() else ''}{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
    if cell is None:
        return ""
    return js_string(cell) if isinstance(cell, str | int | float | bool) else str(cell)


def _scalar(text: str) -> JsonValue:
    """Return the finite number (`80%` is 0.8), boolean, list or mapping that a text is in JSON, else the text."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, float) and not math.isfinite(value) else value
