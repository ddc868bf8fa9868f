"""Tests in Parquet files: rows as a source of tests reads them, each value at its row and column."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.records import JsonValue
from geval_cli.source.files import FILE_PREFIX
from geval_cli.source.parquet import ParquetColumn, ParquetRow, read_parquet, read_shape, refuse_parquet
from geval_cli.source.source_map import KeyPath, Positions, SourcePath
from geval_cli.specs.base import spellings
from geval_cli.suite.schema import TestSpec
from geval_cli.suite.tests import KEPT_BYTES, MOST_KEPT
from geval_cli.suite.validation import LoadContext

_VARS = "vars"
_KEYS = frozenset(spellings(TestSpec)) - {_VARS}


class ParquetRows(Struct, frozen=True):
    """Rows of a Parquet file, of which a few thousand at most are in memory. Empty ones are skipped.

    No env values are filled in, as in other tables.

    Attributes:
        path: the file.
        asked_at: where the config names it.
        columns: those that are read.
        left_out: names of those that the config leaves out.
        sparse: names of those that hold keys of a test, in which null says that a key is not there.
        is_small: whether all tests together take little memory.
    """

    path: Path
    asked_at: Location | None
    columns: tuple[ParquetColumn, ...]
    left_out: tuple[str, ...]
    sparse: frozenset[str]
    is_small: bool

    def rows(self, reading: LoadContext) -> Iterator[tuple[JsonValue, SourcePath]]:
        index = 0
        try:
            for row in self._read(reading):
                place = self._place(row, index)
                for name, fault in row.faults.items():
                    reading.report(f"this cell {fault}", place.value(name), "write null or text instead")
                yield self._test(row), place
                index += 1
        except ConfigError as error:
            reading.problems.extend(error.problems)
            return
        if not index:
            hint = "write one row per test"
            reading.report(f"`{self.path}` contains no tests", self.asked_at, hint)

    def marked(self, reading: LoadContext) -> Iterator[JsonValue]:
        try:
            for row in self._read(reading):
                if FILE_PREFIX in json.dumps(row.values):
                    yield self._test(row)
        except ConfigError:  # `rows` reports it
            return

    def _read(self, reading: LoadContext) -> Iterator[ParquetRow]:
        names = [column.name for column in self.columns]
        for row in read_parquet(self.path, reading.files.access, names, self.asked_at):
            if row.faults or any(value is not None for value in row.values.values()):
                yield row

    def _test(self, row: ParquetRow) -> dict[str, JsonValue]:
        """Return the row; a whole test, with `vars`, has only those keys that are not null."""
        is_whole = _VARS in row.values
        found: dict[str, JsonValue] = {
            name: _without_nulls(value) if name in self.sparse else value
            for name, value in row.values.items()
            if value is not None or not is_whole
        }
        return {**found, **dict.fromkeys(self.left_out)}

    def _place(self, row: ParquetRow, index: int) -> SourcePath:
        numbers = {column.name: column.number for column in self.columns}
        positions = _RowPositions(str(self.path), row.number, numbers, f"tests[{index}]")
        return SourcePath(Positions(str(self.path), keys=positions, values=positions))


class _RowPositions(Mapping[KeyPath, Location]):
    """The places of one row: its number as the line, the number of a column as the column."""

    def __init__(self, file: str, row: int, columns: Mapping[str, int], prefix: str) -> None:
        self._file, self._row, self._columns, self._prefix = file, row, columns, prefix

    def __getitem__(self, path: KeyPath) -> Location:
        if not path:
            return Location(self._file, self._row, 1, length=0, key_path=self._prefix)
        name = path[0]
        if len(path) > 1 or name not in self._columns:
            raise KeyError(path)
        key_path = f"{self._prefix}.{name}"
        return Location(self._file, self._row, self._columns[str(name)] + 1, length=0, key_path=key_path)

    def __iter__(self) -> Iterator[KeyPath]:
        yield ()
        yield from ((name,) for name in self._columns)

    def __len__(self) -> int:
        return len(self._columns) + 1


def parquet_rows(
    path: Path, asked_at: Location | None, names: Mapping[str, str | None], reading: LoadContext
) -> ParquetRows | None:
    """Return the tests of a Parquet file; None with problems when there are columns that cannot be read.

    Args:
        path: the file.
        asked_at: where the config names it.
        names: that the config gives to columns; one with None is not read at all.
        reading: takes the problems.

    Raises:
        ConfigError: the file cannot be read, or the config is a stranger's.
    """
    if reading.files.access.is_strangers:
        raise ConfigError([refuse_parquet(path, asked_at)])
    shape = read_shape(path, reading.files.access, asked_at)
    left_out = tuple(column.name for column in shape.columns if names.get(column.name, "") is None)
    read = tuple(column for column in shape.columns if column.name not in left_out)
    problems = list(_column_problems(read, path))
    reading.problems.extend(problems)
    if problems:
        return None
    sparse = frozenset(column.name for column in read if names.get(column.name, column.name) in _KEYS)
    is_small = shape.rows <= MOST_KEPT and shape.data_bytes <= KEPT_BYTES
    return ParquetRows(path, asked_at, read, left_out, sparse, is_small)


def _column_problems(columns: tuple[ParquetColumn, ...], path: Path) -> Iterator[Problem]:
    seen: set[str] = set()
    for column in columns:
        where = Location(str(path), 1, column.number + 1, length=0, key_path=f"column {column.name}")
        if column.strange_type:
            message = (
                f"the column `{column.name}` contains {column.strange_type}, which JSON cannot represent"
            )
            hint = f"leave it out with `columns: {{{column.name}: null}}` next to `path`"
            yield Problem(message, where, hint)
        if column.name in seen:
            yield Problem(
                f"two columns are called `{column.name}`", where, "rename one of them, or remove it"
            )
        seen.add(column.name)


def _without_nulls(value: JsonValue) -> JsonValue:
    """Return a value without the null entries of its mappings: every row of a Parquet file has all keys."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
