"""Parquet files: tests and results read row by row, and results written with `-o results.parquet`.

A results file has one row per case, for data frames and databases; `geval import run` reads it back. The tests are
next to it in `results.tests.parquet`, one row each, joined by `test_index`.
"""

import json
import math
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import UUID

from msgspec import Struct

from geval_cli.errors import ConfigError, Location, OutputError, Problem
from geval_cli.events import RunEvent
from geval_cli.json_codec import decode_json
from geval_cli.metrics import with_members
from geval_cli.patterns import compile_later
from geval_cli.records import SCHEMA_VERSION, TEST_TEXTS, CaseResult, JsonValue, Usage
from geval_cli.report.csv_file import reasons_of
from geval_cli.report.json_file import json_text, result_text
from geval_cli.report.report import RunReport, file_of_tests
from geval_cli.report.safe_file import SafeFile
from geval_cli.report.sanitize import value_text
from geval_cli.source.access import TRUST_HINT, Access, open_regular
from geval_cli.source.files import FILE_PREFIX, open_problem
from geval_cli.source.source_map import KeyPath, Positions, SourcePath
from geval_cli.specs.base import spellings
from geval_cli.suite.schema import TestSpec
from geval_cli.suite.test_files import KEPT_BYTES, MOST_KEPT, RowSource
from geval_cli.suite.validation import LoadContext
from geval_cli.version import install_hint


def parquet_hint() -> str:
    """Return the hint that says how to install Parquet support."""
    return f"install it {install_hint('parquet')}"


RESULT_COLUMN, TEST_COLUMN, RESULTS_METADATA = "result", "test", "geval.results"
"""The columns of results files that hold a whole result, and its test, as JSON; and the metadata key of run and
summary.
"""


_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 2_000
_READ_AT_ONCE = 1 << 20
_SHORT_FLOATS = compile_later(r"\b(?:half)?float\b")
_MOST_DIGITS = 10
_INDEX = compile_later(r"__index_level_\d+__")
"""Columns in which pandas keeps the numbers of rows: with them, a test would be another one in each order of rows."""
_WHOLE_BELOW = 1 << 53
_VARS = "vars"
_KEYS = frozenset(spellings(TestSpec)) - {_VARS}
_BROKEN = (ValueError, OSError, NotImplementedError, KeyError, IndexError, TypeError, MemoryError)
"""Errors that pyarrow raises on broken files, besides its own."""


class ParquetColumn(Struct, frozen=True):
    """A column of a file: its name, its number from 0, and the first type in it that JSON lacks ("" if none)."""

    name: str
    number: int
    strange_type: str = ""


class ParquetShape(Struct, frozen=True):
    """The content of a file according to its footer.

    Attributes:
        columns: the columns, in order.
        rows: the number of rows.
        data_bytes: the uncompressed size of all columns.
        metadata: the metadata of the schema.
    """

    columns: tuple[ParquetColumn, ...]
    rows: int
    data_bytes: int
    metadata: dict[bytes, bytes]


class ParquetRow(Struct, frozen=True):
    """A row: its number from 1, its values by column, and why a column's value has no JSON form, where it has none."""

    number: int
    values: dict[str, JsonValue]
    faults: dict[str, str]


def refuse_parquet(path: Path, asked_at: Location | None) -> Problem:
    """Return the problem for an untrusted config that refers to a Parquet file."""
    message = f"`{path.name}` is a Parquet file, which --untrusted does not allow"
    notes = ("use .csv or .jsonl: a small Parquet file can be built to fill the memory",)
    return Problem(message, asked_at, TRUST_HINT, notes)


def write_problem(path: Path) -> Problem | None:
    """Return the problem if pyarrow, which writes results to `path`, is not installed; does not import it."""
    if find_spec("pyarrow") is not None:
        return None
    return Problem(f"cannot write {path}: Parquet needs the package pyarrow", hint=parquet_hint())


def read_shape(path: Path, access: Access, asked_at: Location | None = None) -> ParquetShape:
    """Return the content of a Parquet file according to its footer.

    Raises:
        ConfigError: one problem, at `asked_at`: no such file, not a Parquet file, or the package is missing.
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

    Dates, times and decimal numbers become strings; values that JSON lacks (NaN, broken UTF-8) become faults.

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
    """Yield each result in a file from `-o results.parquet`: its row number (from 1), its JSON, its test's JSON.

    Raises:
        ConfigError: the file cannot be read, or a row has no result.
    """
    has_tests = any(column.name == TEST_COLUMN for column in read_shape(path, access).columns)
    for row in read_parquet(path, access, (RESULT_COLUMN, TEST_COLUMN) if has_tests else (RESULT_COLUMN,)):
        text = row.values[RESULT_COLUMN]
        test = row.values.get(TEST_COLUMN)
        if not isinstance(text, str):
            where = Location(str(path), row.number, 1, length=0)
            raise ConfigError([Problem(f"this row has no text in `{RESULT_COLUMN}`", where)])
        yield row.number, text, test if isinstance(test, str) else None


def results_head(path: Path, access: Access) -> Mapping[str, Any] | None:
    """Return `schema_version`, `run` and `summary` of a results file; empty if the file does not have them.

    None means that the file contains no results.

    Raises:
        ConfigError: the file cannot be read.
    """
    shape = read_shape(path, access)
    if not any(column.name == RESULT_COLUMN for column in shape.columns):
        return None
    try:
        head = decode_json(shape.metadata.get(RESULTS_METADATA.encode(), b"{}"))
    except ValueError:
        head = {}
    return head if isinstance(head, dict) else {}


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
        # Read page by page: a whole row group may not fit into memory.
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
    """A value has no JSON form; the message says why."""


def _values_of(column: Any) -> list[Any]:
    """Return the values of part of a column in JSON form, with a `_NoJsonError` for each that has none."""
    from pyarrow import timestamp, types  # noqa: PLC0415 - an extra, and slow to import

    if (
        types.is_timestamp(column.type) and column.type.unit == "ns"
    ):  # Python's times have microseconds at best
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
    """Return a value with its 32-bit and 16-bit floats as originally written: 0.1, not 0.10000000149011612."""
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
    except OverflowError:  # it was rounded up beyond the range
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
        if math.isfinite(value):  # pandas makes floats of whole numbers beside an empty cell
            return int(value) if value.is_integer() and abs(value) < _WHOLE_BELOW else value
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
    """Return the name of the first type within `kind` that has no JSON form; "" if there is none."""
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


_GROUP_ROWS = 20_000
_GROUP_CHARACTERS = 8 << 20
_METRIC, _REASON, _VARIABLE, _METADATA = "metric.", "reason.", "var.", "metadata."


class ParquetResultsFile:
    """A results file, written from the report at the end of a run; it ignores events.

    Columns: the indexes of the case, its labels, the texts of the test (`input`, `expected_output`, ..., and the whole
    test as JSON in `test`; equal texts are stored once), the prompt, the output, its status, score (0 to 1; null if it
    has none), the reasons for failing, cost and latency, `metric.NAME`, `reason.NAME` and `var.NAME` for every name,
    and `result`, the whole result as JSON. The run and its summary are in the metadata of the schema.

    The file of tests has for each test its index and key, description, texts, `vars` and `metadata` as JSON, and
    `var.NAME` and `metadata.NAME` for every name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def listen(self, event: RunEvent) -> None:
        return None

    def finish(self, report: RunReport) -> None:
        try:
            import pyarrow  # noqa: PLC0415 - an extra, and slow to import
            from pyarrow import parquet  # noqa: PLC0415
        except ImportError as error:
            message = f"cannot write {self._path}: Parquet needs the package pyarrow"
            raise OutputError(message, path=str(self._path), hint=parquet_hint()) from error
        metrics: dict[str, None] = {}
        variables: dict[str, None] = {}
        metadata: dict[str, None] = {}
        for result in report.results():
            metrics.update(dict.fromkeys(result.named_scores))
            variables.update(dict.fromkeys(result.vars))
            metadata.update(dict.fromkeys(result.metadata))
        head = {"schema_version": SCHEMA_VERSION, "run": report.run, "summary": report.summary}
        kept = {RESULTS_METADATA: json_text(head).encode()}
        columns = {**case_columns(metrics, variables), TEST_COLUMN: str, RESULT_COLUMN: str}
        tests = {**_TEST_COLUMNS, **_text_columns(_VARIABLE, variables), **_text_columns(_METADATA, metadata)}
        arrow = {str: pyarrow.string(), float: pyarrow.float64(), int: pyarrow.int64()}
        schema, tests_schema = (
            pyarrow.schema([(name, arrow[kind]) for name, kind in kinds.items()], about)
            for kinds, about in ((columns, kept), (tests, {}))
        )
        with (
            SafeFile(file_of_tests(self._path)) as tests_file,
            parquet.ParquetWriter(tests_file.binary, tests_schema) as tests_writer,
            SafeFile(self._path) as file,
            parquet.ParquetWriter(file.binary, schema) as writer,
        ):
            for rows, test_rows in _groups(report, metrics, variables, metadata):
                writer.write_table(pyarrow.Table.from_pylist(rows, schema))
                if test_rows:
                    tests_writer.write_table(pyarrow.Table.from_pylist(test_rows, tests_schema))


def case_columns(metrics: Iterable[str], variables: Iterable[str]) -> dict[str, type]:
    """Return the columns of `case_row` with the types of their values, any of which may be null."""
    text, number, whole = str, float, int
    return {
        "id": text,
        "test_index": whole,
        "repeat_index": whole,
        "column": whole,
        "test_key": text,
        "description": text,
        "prompt": text,
        "provider": text,
        "status": text,
        "ended_by": text,
        "score": number,
        "cost_usd": number,
        "cost_usd_generated": number,
        "latency_ms": number,
        **{f"{_METRIC}{_clean(name)}": number for name in metrics},
        **dict.fromkeys(("output", "reasons", "error", "rendered_prompt"), text),
        **dict.fromkeys(TEST_TEXTS, text),
        **_text_columns(_REASON, metrics),
        **_text_columns(_VARIABLE, variables),
    }


_TEST_COLUMNS: dict[str, type] = {
    "test_index": int,
    **dict.fromkeys(("test_key", "description", *TEST_TEXTS, "vars", "metadata"), str),
}


def _text_columns(prefix: str, names: Iterable[str]) -> dict[str, type]:
    return {f"{prefix}{_clean(name)}": str for name in names}


def _groups(
    report: RunReport, metrics: Iterable[str], variables: Iterable[str], metadata: Iterable[str]
) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Yield rows of cases, with those of the tests that first occur in them, in groups that fit into memory."""
    rows: list[dict[str, Any]] = []
    tests: list[dict[str, Any]] = []
    seen: set[int] = set()
    size = 0
    for result in report.results():
        row = case_row(result, metrics, variables)
        row[TEST_COLUMN] = None if result.asked is None else json_text(result.asked)
        row[RESULT_COLUMN] = result_text(result)
        rows.append(row)
        size += len(row[RESULT_COLUMN]) + len(row[TEST_COLUMN] or "")
        if result.test_index not in seen:
            seen.add(result.test_index)
            tests.append(_test_row(result, variables, metadata))
        if len(rows) >= _GROUP_ROWS or size >= _GROUP_CHARACTERS:
            yield rows, tests
            rows, tests, size = [], [], 0
    if rows:
        yield rows, tests


def _test_row(result: CaseResult, variables: Iterable[str], metadata: Iterable[str]) -> dict[str, Any]:
    """Return the test of a case as a table row."""
    texts = {} if result.asked is None else result.asked.texts
    said: dict[str, str | None] = {
        "test_key": result.test_key,
        "description": result.description,
        **{name: texts.get(name) for name in TEST_TEXTS},
        "vars": json_text(result.vars),
        "metadata": json_text(result.metadata),
        **_texts_of(_VARIABLE, result.vars, variables),
        **_texts_of(_METADATA, result.metadata, metadata),
    }
    return {"test_index": result.test_index, **_cleaned(said)}


def _texts_of(prefix: str, values: Mapping[str, JsonValue], names: Iterable[str]) -> dict[str, str | None]:
    """Return the values as strings (nested ones as JSON), by column name."""
    return {f"{prefix}{name}": value_text(values[name]) if name in values else None for name in names}


def _cleaned(texts: Mapping[str, str | None]) -> dict[str, str | None]:
    return {_clean(name): None if text is None else _clean(text) for name, text in texts.items()}


def case_row(result: CaseResult, metrics: Iterable[str], variables: Iterable[str]) -> dict[str, Any]:
    """Return a case as a table row: numbers, valid UTF-8 strings and None, by column name."""
    texts = {} if result.asked is None else result.asked.texts
    error = None if result.error is None else f"{result.error.type}: {result.error.message}"
    said: dict[str, str | None] = {
        "output": None if result.output is None else value_text(result.output),
        "reasons": "\n".join(reasons_of(result)) or None,
        "error": error,
        "rendered_prompt": result.prompt.rendered,
        **{name: texts.get(name) for name in TEST_TEXTS},
        **{f"{_REASON}{name}": _reasons_for(name, result) for name in metrics},
        **_texts_of(_VARIABLE, result.vars, variables),
    }
    return {
        "id": result.id,
        "test_index": result.test_index,
        "repeat_index": result.repeat_index,
        "column": result.column,
        "test_key": None if result.test_key is None else _clean(result.test_key),
        "description": None if result.description is None else _clean(result.description),
        "prompt": _clean(result.prompt.label),
        "provider": _clean(result.provider.label),
        "status": result.status.value,
        "ended_by": result.ended_by or None,
        "score": _finite(result.score),
        "cost_usd": sum(result.usage.values(), Usage()).cost_usd,
        "cost_usd_generated": result.cost_usd_generated,
        "latency_ms": result.latency_ms,
        **{f"{_METRIC}{_clean(name)}": _finite(result.named_scores.get(name)) for name in metrics},
        **_cleaned(said),
    }


def _reasons_for(metric: str, result: CaseResult) -> str | None:
    """Return the reasons of a metric's assertions, whether they passed or not; None if there are none."""
    found = [
        item.reason for item, _ in with_members(result.assertions) if item.metric == metric and item.reason
    ]
    return "\n".join(found) or None


def _clean(text: str) -> str:
    """Return a text that is valid in UTF-8: a lone surrogate becomes U+FFFD."""
    return text.encode("utf-16-le", errors="surrogatepass").decode("utf-16-le", errors="replace")


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def open_tests(
    path: Path, asked_at: Location | None, names: Mapping[str, str | None], reading: LoadContext
) -> RowSource | None:
    """Return the tests in a Parquet file; None, with problems reported, if some columns cannot be read.

    Args:
        path: the file.
        asked_at: where the config refers to it.
        names: the new names that the config gives to columns; a column renamed to None is not read.
        reading: collects the problems.

    Raises:
        ConfigError: the file cannot be read, or the config is untrusted.
    """
    if reading.files.access.is_untrusted:
        raise ConfigError([refuse_parquet(path, asked_at)])
    shape = read_shape(path, reading.files.access, asked_at)
    left_out = tuple(column.name for column in shape.columns if names.get(column.name, "") is None)
    read = tuple(
        column
        for column in shape.columns
        if column.name not in left_out and (column.name in names or not _INDEX.fullmatch(column.name))
    )
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


class ParquetRows(Struct, frozen=True):
    """The rows of a Parquet file, with a few thousand at most in memory. Empty rows are skipped.

    As in other tables, env expressions are not filled in.

    Attributes:
        path: the file.
        asked_at: where the config refers to it.
        columns: the columns to read.
        left_out: the names of columns that the config leaves out.
        sparse: the names of columns with a test's own keys, in which null means that the key is absent.
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
                yield reading.env.literal(self._test(row)), place
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
        """Return the row as a test; if it has `vars`, it is a whole test, and null values are left out."""
        is_whole = _VARS in row.values
        found: dict[str, JsonValue] = {
            name: _without_nulls(value) if name in self.sparse else value
            for name, value in row.values.items()
            if value is not None or not is_whole
        }
        return {**found, **dict.fromkeys(self.left_out)}

    def _place(self, row: ParquetRow, index: int) -> SourcePath:
        numbers = {column.name: column.number for column in self.columns}
        positions = _ParquetPositions(str(self.path), row.number, numbers, f"tests[{index}]")
        return SourcePath(Positions(str(self.path), keys=positions, values=positions))


class _ParquetPositions(Mapping[KeyPath, Location]):
    """The positions in one row: the row number as the line, the number of a column as the column."""

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


def _without_nulls(value: JsonValue) -> JsonValue:
    """Return a value without the null entries of its mappings, since every row of a Parquet file has all keys."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
