"""Make tests of flat rows: columns are variables, but for those that are called as a key of a test is."""

import json
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from pathlib import Path

from msgspec import Struct

from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.errors import ConfigError, Location
from geval_cli.records import JsonValue
from geval_cli.source.json_source import read_json
from geval_cli.source.problems import did_you_mean, hint_among
from geval_cli.source.source_map import KeyPath, Positions, SourcePath
from geval_cli.specs.base import spellings
from geval_cli.suite.assertions import nearest_type
from geval_cli.suite.schema import TestSpec
from geval_cli.suite.tables import CellPositions, TableRow, uneven_problem
from geval_cli.suite.validation import LoadContext
from geval_cli.templating.js_text import js_string

_VARIABLES_OF_OLD = frozenset({"scenario", "expected_outcome", "expectedOutcome", "role"})
"""Keys of a test that columns of tables name variables by; judges of conversations read them there, too."""
_KEYS = frozenset(spellings(TestSpec)) - _VARIABLES_OF_OLD
_BELOW = frozenset({"vars", "metadata", "options"})
"""Keys of a test whose own keys have a column each: `metadata.area`."""
_ASSERTIONS = ("assert", "assertions")
_WORDS = frozenset({"content", "desc", "expected", "meta", "option", "var"})
"""Names that people give to variables, though each is nearly a key of a test."""
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
"""Columns of promptfoo's, by how they begin, and what to do about them here."""
_SHEET_ERRORS = frozenset({"#N/A", "#DIV/0!", "#REF!", "#VALUE!", "#NAME?", "#NUM!", "#NULL!"})


class ColumnNames(Struct, frozen=True):
    """Names that a config gives to columns, by those in the files; None leaves one out. `place` is of the mapping."""

    names: Mapping[str, str | None]
    place: SourcePath


AS_WRITTEN = ColumnNames({}, SourcePath.nowhere())


class FlatColumns:
    """The meaning of the columns of one file. What is wrong with a column is reported once, not in every row."""

    def __init__(self, reading: LoadContext, names: ColumnNames) -> None:
        self._reading = reading
        self._names = names
        self._paths: dict[str, KeyPath | None] = {}
        self._doubled: set[str] = set()

    def path_of(self, name: str, place: SourcePath) -> KeyPath | None:
        """Return where in a test a column's value belongs; None with a problem when the name is wrong.

        `("assert", TYPE)` stands for one more assertion of this type.
        """
        if name not in self._paths:
            ours = self._names.names.get(name, name)
            self._paths[name] = None if ours is None else self._find_path(ours, place.key(name))
        return self._paths[name]

    @property
    def renamed(self) -> Mapping[str, str | None]:
        return self._names.names

    def report_missing(self, file: Path) -> None:
        """Report columns that the config renames and the file does not have, once all rows have been read."""
        for name in self._names.names.keys() - self._paths.keys():
            hint = hint_among(name, self._paths, "it has")
            message = f"`{file.name}` has no column `{name}`"
            self._reading.report(message, self._names.place.key(name), hint)

    def test_of(
        self, row: Mapping[str, JsonValue], place: SourcePath
    ) -> tuple[dict[str, JsonValue], SourcePath]:
        """Return the test that a row describes, and its place: each of its keys is where the row has its column."""
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
            _put(test, path, value)
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
        near = None if name.lower() in _WORDS else did_you_mean(name, _KEYS)
        if near is None:
            return ("vars", name)
        notes = (f"if it is a variable, call it `vars.{name}`",)
        self._reading.report(
            f"unknown key `{name}` in a test", location, f"did you mean `{near}`?", notes=notes
        )
        return None


def _put(test: dict[str, JsonValue], path: KeyPath, value: JsonValue) -> None:
    key = str(path[0])
    if len(path) == 1:
        known = test.get(key)
        test[key] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
        return
    below = test.get(key)
    # A new mapping: the row's own belongs to the file, which is read again.
    test[key] = {**(below if isinstance(below, dict) else {}), str(path[1]): value}


def _add_checks(
    test: dict[str, JsonValue],
    checks: list[tuple[str, str, JsonValue]],
    place: SourcePath,
    origins: dict[KeyPath, KeyPath],
) -> None:
    """Add the assertions of `assert.TYPE` behind those of `assert`; an empty column is none."""
    if not checks:
        return
    key = next((key for key in _ASSERTIONS if key in test), "assert")
    written = test.get(key, [])
    if not isinstance(written, list):
        return
    made = [*written]
    for name, kind, value in checks:
        if value is not None and value != "":
            origins[(key, len(made))] = origins[(key, len(made), "value")] = (*place.path, name)
            made.append({"type": kind, "value": value})
    if made:
        test[key] = made


class _MovedPositions(Mapping[KeyPath, Location]):
    """The positions of a test whose parts are elsewhere in the file: `origins` says where, by the path in the test."""

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
    """Return whether a row of a file has variables beside the keys of a test, instead of below `vars`."""
    return isinstance(row, dict) and "vars" not in row and (bool(names.names) or not row.keys() <= _KEYS)


class TableReader:
    """Makes tests of the rows of one table; the first row that is not empty is its header."""

    def __init__(self, path: Path, header: TableRow, names: ColumnNames, reading: LoadContext) -> None:
        self._path, self._reading = path, reading
        self._flat = FlatColumns(reading, names)
        self._width = len(header.cells)
        self._names = self._read_header(header)
        positions = CellPositions(header, path, self._names, "tests")
        for name in self._names:
            self._flat.path_of(name, positions.place())
        self._flat.report_missing(path)

    def test_of(self, row: TableRow, index: int) -> tuple[JsonValue, SourcePath] | None:
        """Return the test of a row, the `index`-th from 0; None with a problem when it does not fit the header."""
        if len(row.cells) != self._width:
            self._reading.problems.append(uneven_problem(row, self._width, self._path))
            return None
        place = CellPositions(row, self._path, self._names, f"tests[{index}]").place()
        cells = {
            name: self._value(name, cell_text(row.cells[column]), place)
            for name, column in self._names.items()
        }
        return self._flat.test_of(cells, place)

    def _read_header(self, header: TableRow) -> dict[str, int]:
        """Return the columns that have a name; two of one name are a problem."""
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
        """Return a cell as the test has it: an empty one says nothing, but an empty variable is an empty text."""
        path = self._flat.path_of(name, place)
        if text in _SHEET_ERRORS:
            message = f"this cell contains the formula error {text}"
            self._reading.report(message, place.value(name), "fix the formula, or clear the cell")
        if path is None or path[0] == "vars":
            return text
        if not text.strip():
            return None
        key = str(path[0])
        if key == "threshold":
            try:
                return float(text)
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
        # The list of texts that a cell of `context` is in JSON, else the text.
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
    """Return what a cell holds as text: numbers without a needless `.0`, dates as 2026-11-22."""
    if isinstance(cell, datetime):
        return cell.date().isoformat() if cell.time() == time() else cell.isoformat(timespec="seconds")
    if isinstance(cell, date | time):
        return cell.isoformat()
    if cell is None:
        return ""
    return js_string(cell) if isinstance(cell, str | int | float | bool) else str(cell)


def _scalar(text: str) -> JsonValue:
    """Return the number, truth value, list or mapping that a text is in JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
