"""Read Parquet files row by row: values as JSON has them, in memory that does not grow with the number of rows."""

import math
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import UUID

from msgspec import Struct

from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.source.access import TRUST_HINT, Access, open_regular
from geval_cli.source.files import open_problem
from geval_cli.version import install_hint

PARQUET_SUFFIX = ".parquet"


def parquet_hint() -> str:
    """Say how Parquet files can be read and written."""
    return f"install it {install_hint('parquet')}"


RESULT_COLUMN, TEST_COLUMN, RESULTS_METADATA = "result", "test", "geval.results"
"""The columns of files of results that hold a whole result as JSON, and its test; and where their metadata have run and
summary."""


def file_of_tests(path: Path) -> Path:
    """Return the file with the tests of the results in `path`: `r.tests.parquet` beside `r.parquet`."""
    return path.with_name(f"{path.stem}.tests{path.suffix}")


_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 2_000
_READ_AT_ONCE = 1 << 20
_SHORT_FLOATS = compile_later(r"\b(?:half)?float\b")
_MOST_DIGITS = 10
_BROKEN = (ValueError, OSError, NotImplementedError, KeyError, IndexError, TypeError, MemoryError)
"""Errors that pyarrow raises on broken files, beside its own."""


class ParquetColumn(Struct, frozen=True):
    """A column of a file: its name, its number from 0, and the first kind of value in it that JSON lacks, or ""."""

    name: str
    number: int
    strange_type: str = ""


class ParquetShape(Struct, frozen=True):
    """The content of a file as its footer says it.

    Attributes:
        columns: in their order.
        rows: how many there are.
        data_bytes: of all columns, unpacked, as the file says.
        metadata: what its writer kept beside the rows.
    """

    columns: tuple[ParquetColumn, ...]
    rows: int
    data_bytes: int
    metadata: dict[bytes, bytes]


class ParquetRow(Struct, frozen=True):
    """A row: its number from 1, its values by column, and the columns whose value is none of JSON, with the reason."""

    number: int
    values: dict[str, JsonValue]
    faults: dict[str, str]


def refuse_parquet(path: Path, asked_at: Location | None) -> Problem:
    """Return the problem of a stranger's config that names a Parquet file."""
    message = f"`{path.name}` is a Parquet file, which --untrusted does not allow"
    notes = ("use .csv or .jsonl: a small Parquet file can be built to fill the memory",)
    return Problem(message, asked_at, TRUST_HINT, notes)


def is_parquet_installed() -> bool:
    """Return whether the package that reads and writes Parquet is there, without importing it."""
    return find_spec("pyarrow") is not None


def read_shape(path: Path, access: Access, asked_at: Location | None = None) -> ParquetShape:
    """Return what the footer of a Parquet file says.

    Raises:
        ConfigError: one problem, at `asked_at`: no such file, no Parquet, or the package is missing.
    """
    with _opened(path, access, asked_at) as file:
        schema, footer = file.schema_arrow, file.metadata
        columns = tuple(
            ParquetColumn(field.name, number, _strange_type(field.type))
            for number, field in enumerate(schema)
        )
        groups = [footer.row_group(index).total_byte_size for index in range(footer.num_row_groups)]
        return ParquetShape(columns, footer.num_rows, sum(groups), dict(schema.metadata or {}))


def read_parquet(
    path: Path, access: Access, columns: Collection[str], asked_at: Location | None = None
) -> Iterator[ParquetRow]:
    """Yield the rows of a Parquet file one by one, with the values of `columns` only.

    Dates, times and decimal numbers become texts; what JSON lacks (NaN, broken UTF-8) becomes a fault of its cell.

    Raises:
        ConfigError: one problem, at `asked_at`: the file cannot be read, or the package is missing.
    """
    with _opened(path, access, asked_at) as file:
        number = 0
        footer = file.metadata
        size = sum(footer.row_group(index).total_byte_size for index in range(footer.num_row_groups))
        rows_at_once = int(max(1, min(_BATCH_ROWS, _BATCH_BYTES * footer.num_rows // max(1, size))))
        for batch in file.iter_batches(rows_at_once, columns=list(columns), use_threads=False):
            read = {name: _values_of(batch.column(name)) for name in columns}
            for offset in range(batch.num_rows):
                number += 1
                yield _row(number, {name: values[offset] for name, values in read.items()})


def read_result_texts(path: Path, access: Access) -> Iterator[tuple[int, str, str | None]]:
    """Yield the number (from 1) and the JSON text of each result in a file that `-o results.parquet` wrote.

    Raises:
        ConfigError: the file cannot be read, or a row has no result.
    """
    has_tests = any(column.name == TEST_COLUMN for column in read_shape(path, access).columns)
    for row in read_parquet(path, access, (RESULT_COLUMN, TEST_COLUMN) if has_tests else (RESULT_COLUMN,)):
        text, test = row.values[RESULT_COLUMN], row.values.get(TEST_COLUMN)
        if not isinstance(text, str):
            where = Location(str(path), row.number, 1, length=0)
            raise ConfigError([Problem(f"this row has no text in `{RESULT_COLUMN}`", where)])
        yield row.number, text, test if isinstance(test, str) else None


@contextmanager
def _opened(path: Path, access: Access, asked_at: Location | None) -> Iterator[Any]:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        message = f"reading `{path.name}` needs the package pyarrow"
        raise ConfigError([Problem(message, asked_at, f"{parquet_hint()}; or save it as .jsonl")]) from error
    try:
        stream = open_regular(path, access)
    except OSError as error:
        raise ConfigError([open_problem(path, error, asked_at)]) from error
    try:
        # Page by page: a group of rows as a whole may be larger than memory.
        with stream, parquet.ParquetFile(stream, buffer_size=_READ_AT_ONCE, pre_buffer=False) as file:
            yield file
    except (ArrowException, *_BROKEN) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:200]
        hint = "write the file again; it may be truncated, encrypted or in another format"
        raise ConfigError([Problem(f"`{path}` cannot be read as Parquet: {why}", asked_at, hint)]) from error


def _row(number: int, cells: dict[str, Any]) -> ParquetRow:
    faults = {name: str(cell) for name, cell in cells.items() if isinstance(cell, _NoJsonError)}
    return ParquetRow(
        number, {name: None if name in faults else cell for name, cell in cells.items()}, faults
    )


class _NoJsonError(ValueError):
    """A value has no form in JSON; says why."""


def _values_of(column: Any) -> list[Any]:
    """Return the values of a part of a column as JSON has them, a `_NoJsonError` for each that it lacks."""
    from pyarrow import timestamp, types  # noqa: PLC0415 - an extra, and slow to import

    if types.is_timestamp(column.type) and column.type.unit == "ns":  # Python's own times end at microseconds
        column = column.cast(timestamp("us", column.type.tz), safe=False)
    try:
        values = column.to_pylist(maps_as_pydicts="strict")
    except (ValueError, KeyError, OverflowError):
        return [_read_cell(cell) for cell in column]
    if _SHORT_FLOATS.search(str(column.type)):
        values = [_with_written_floats(value, column.type) for value in values]
    if any(is_kind(column.type) for is_kind in (types.is_string, types.is_integer, types.is_boolean)):
        return list(values)
    return [_plain_or_fault(value) for value in values]


def _read_cell(cell: Any) -> Any:
    try:
        return _plain_or_fault(_with_written_floats(cell.as_py(maps_as_pydicts="strict"), cell.type))
    except UnicodeDecodeError:
        return _NoJsonError("does not contain UTF-8 text")
    except (ValueError, KeyError, OverflowError) as error:
        return _NoJsonError(f"cannot be read: {error}")


def _with_written_floats(value: Any, kind: Any) -> Any:
    """Return a value whose 32-bit and 16-bit numbers are those that were written: 0.1, and not 0.10000000149011612."""
    from pyarrow import types  # noqa: PLC0415 - an extra, and slow to import

    if types.is_dictionary(kind):
        return _with_written_floats(value, kind.value_type)
    if isinstance(value, float) and (types.is_float32(kind) or types.is_float16(kind)):
        form = "f" if types.is_float32(kind) else "e"
        shorter = (float(f"{value:.{count}g}") for count in range(1, _MOST_DIGITS))
        return next((number for number in shorter if _packed(number, form) == _packed(value, form)), value)
    if isinstance(value, dict) and types.is_struct(kind):
        inner = {kind.field(index).name: kind.field(index).type for index in range(kind.num_fields)}
        return {name: _with_written_floats(item, inner[name]) for name, item in value.items()}
    if isinstance(value, dict) and types.is_map(kind):
        return {name: _with_written_floats(item, kind.item_type) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_written_floats(item, kind.value_type) for item in value]
    return value


def _packed(number: float, form: str) -> bytes:
    try:
        return struct.pack(form, number)
    except OverflowError:  # it was rounded up, out of the range
        return b""


def _plain_or_fault(value: Any) -> Any:
    try:
        return _plain(value)
    except _NoJsonError as error:
        return error


def _plain(value: Any) -> JsonValue:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise _NoJsonError(f"contains {value}, which JSON cannot represent")
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise _NoJsonError(f"contains a value of type {type(value).__name__}, which JSON does not have")


def _strange_type(kind: Any) -> str:
    """Return the name of the first type within `kind` that has no form in JSON; "" when there is none."""
    from pyarrow import types  # noqa: PLC0415 - an extra, and slow to import

    if types.is_dictionary(kind):
        return _strange_type(kind.value_type)
    if types.is_nested(kind) and not types.is_union(kind):
        within = (_strange_type(kind.field(index).type) for index in range(kind.num_fields))
        return next((name for name in within if name), "")
    is_known = (
        types.is_string,
        types.is_large_string,
        types.is_string_view,
        types.is_boolean,
        types.is_integer,
        types.is_floating,
        types.is_decimal,
        types.is_date,
        types.is_time,
        types.is_timestamp,
        types.is_null,
    )
    if any(known(kind) for known in is_known) or str(kind) in {
        "extension<arrow.uuid>",
        "extension<arrow.json>",
    }:
        return ""
    return str(kind)
