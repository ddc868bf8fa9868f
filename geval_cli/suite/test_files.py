"""The sources of tests: lists, files of every kind, wildcards, addresses, Python functions, and lists of these.

Rows are read one by one, and again in each pass; a source holds them in memory only if they take little.
"""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol, TypeGuard

from msgspec import Struct

from geval_cli.errors import CodeFailedError, ConfigError, Location, Problem
from geval_cli.plugins import extra
from geval_cli.providers.network.addresses import split_url
from geval_cli.records import JsonValue
from geval_cli.source.access import TRUST_HINT, open_regular
from geval_cli.source.files import (
    CODE_SUFFIXES,
    FILE_PREFIX,
    MAX_LINE_BYTES,
    PARQUET_SUFFIX,
    PYTHON_SUFFIXES,
    NamedFile,
    find_files,
    is_bare_path,
    is_bare_pattern,
    is_file_reference,
    is_wildcard,
    missing_file,
    open_problem,
    read_document,
    split_part,
    without_braces,
)
from geval_cli.source.json_source import json_line_positions, read_json
from geval_cli.source.source_map import ENV_MARK, MAX_DEPTH, Positions, SourcePath
from geval_cli.specs.base import describe_value
from geval_cli.suite.schema import TestFilesSpec
from geval_cli.suite.tables import (
    AS_WRITTEN,
    ColumnNames,
    FlatColumns,
    TableReader,
    TableRow,
    csv_rows,
    is_flat,
)
from geval_cli.suite.validation import LoadContext, read_spec

_LINES = frozenset({".jsonl", ".ndjson"})
_DOCUMENTS = frozenset({".yaml", ".yml", ".json"})
_CSV = frozenset({".csv", ".tsv"})
_SHEETS = frozenset({".xlsx", ".xlsm"})
_KNOWN = "known: .csv, .tsv, .xlsx, .parquet, .jsonl, .ndjson, .json, .yaml, .yml, .py"
_ADDRESSES = ("https://", "http://", "s3://", "huggingface://")
_FETCHED = _LINES | _DOCUMENTS | _CSV | _SHEETS | {PARQUET_SUFFIX}
"""The types of files that may be fetched: programs are never run if they come from elsewhere."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DEFAULT_FUNCTION = "generate_tests"
_MAKE_FILE = "have the program write its tests to a .jsonl file and use that"
MOST_KEPT = 5000
KEPT_BYTES = 1 << 18
"""A file of at most this many bytes is held in memory, where its tests take several times as much."""


class RowSource(Protocol):
    """The rows of a file as it has them, one test after the other, each with its place."""

    def rows(self, reading: LoadContext) -> Iterator[tuple[JsonValue, SourcePath]]:
        """Yield all rows, with env values filled in. A row that cannot be read is reported to `reading` instead."""
        ...

    def marked(self, reading: LoadContext) -> Iterator[JsonValue]:
        """Yield the rows that name files or env values, filled in: what the tests' own text does not show."""
        ...

    @property
    def is_small(self) -> bool:
        """Return whether all of its tests together take little memory."""
        ...


def read_rows(value: JsonValue, place: SourcePath, reading: LoadContext) -> RowSource:
    """Return the tests that `tests:` names, and report mistakes.

    Args:
        value: a list of tests and of `file://` texts, or one such text; env values are filled in.
        place: its place.
        reading: collects the problems.
    """
    if is_file_reference(value) or is_address(value):
        return _joined(_sources(value, place.value(), reading))
    if isinstance(value, list):
        if not value:
            reading.report("`tests` has no entries", place.value(), "add a test")
        sources: list[RowSource] = []
        held: list[tuple[JsonValue, SourcePath]] = []
        for index, item in enumerate(value):
            at = place.child(index)
            if is_file_reference(item) or is_address(item):
                sources += _of_held(held)
                held = []
                sources += _sources(item, at.value(), reading)
            elif isinstance(item, dict) and "path" in item:
                sources += _of_held(held)
                held = []
                sources += _renamed_sources(item, at, reading)
            elif _is_bare(item, reading):
                reading.report(
                    f"a test must be a mapping, found the path `{item}`", at.value(), f"write file://{item}"
                )
            else:
                held.append((item, at))
        return _joined([*sources, *_of_held(held)])
    if value is not None:
        hint = "put `- ` before each test" if isinstance(value, dict) else "or a file: `file://tests.yaml`"
        if _is_bare(value, reading):
            hint = f"write file://{value}"
        reading.report(f"`tests` must be a list of tests, found {describe_value(value)}", place.value(), hint)
    return InMemoryRows((), ())


def _is_bare(value: JsonValue, reading: LoadContext) -> bool:
    folder, access = reading.files.base_dir, reading.files.access
    return is_bare_path(value, folder, access) or is_bare_pattern(value, folder, access)


def _of_held(rows: list[tuple[JsonValue, SourcePath]]) -> list[RowSource]:
    if not rows:
        return []
    values, places = zip(*rows, strict=True)
    return [InMemoryRows(values, places, is_inline=True)]


def _joined(sources: list[RowSource]) -> RowSource:
    return sources[0] if len(sources) == 1 else JoinedRows(tuple(sources))


def _renamed_sources(item: JsonValue, place: SourcePath, reading: LoadContext) -> list[RowSource]:
    """Return the sources of an entry that names files and renames their columns."""
    spec = read_spec(TestFilesSpec, item, place, "an entry of files", reading)
    if spec is None:
        return []
    asked_at = place.value("path")
    if not is_file_reference(spec.path) and not is_address(spec.path):
        reading.report("`path` must name tests files", asked_at, f"write file://{spec.path}")
        return []
    return _sources(spec.path, asked_at, reading, ColumnNames(spec.columns, place.child("columns")))


def _sources(
    reference: str, asked_at: Location | None, reading: LoadContext, names: ColumnNames = AS_WRITTEN
) -> list[RowSource]:
    """Return a source for each file that a `file://` text names, sorted by name."""
    if is_address(reference):
        return _fetched_sources(reference, asked_at, names, reading)
    found: list[RowSource] = []
    try:
        files = named_files(reference, asked_at, reading)
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return found
    is_plain = reading.files.resolve(reference, asked_at).is_file()
    for file in files:
        try:
            source = _file_rows(file, asked_at, names, reading)
        except ConfigError as error:
            reading.problems.extend(error.problems)
            continue
        if source is not None:
            found.append(
                source
                if is_plain
                else MarkedRows(source, f"{FILE_PREFIX}{relative_name(file.path, reading)}")
            )
    return found


def is_address(value: object) -> TypeGuard[str]:
    """Return whether a config value names test data by an address rather than by a file."""
    return isinstance(value, str) and value.lower().startswith(_ADDRESSES)


def _fetched_sources(
    reference: str, asked_at: Location | None, names: ColumnNames, reading: LoadContext
) -> list[RowSource]:
    """Return the source of tests from elsewhere; none, with a problem, if they cannot be fetched."""
    scheme, _, rest = reference.partition("://")  # HTTPS:// is the same
    reference = f"{scheme.lower()}://{rest}"
    problem = _address_problem(reference, asked_at, reading)
    if problem is not None or reading.fetch is None:
        reading.problems.extend([] if problem is None else [problem])
        return []
    try:
        fetched = reading.fetch()(reference, reading.env.values, asked_at)
        file = NamedFile(fetched.path, split_url(reference).fragment)
        source = _file_rows(file, asked_at, names, reading)
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return []
    return [] if source is None else [MarkedRows(source, f"content {fetched.sha256}")]


def _address_problem(reference: str, asked_at: Location | None, reading: LoadContext) -> Problem | None:
    if reading.files.access.is_untrusted:
        message = "tests at a URL have to be fetched, which --untrusted does not allow"
        return Problem(message, asked_at, TRUST_HINT)
    if reading.fetch is None:
        message = "tests at a URL are not fetched here"
        return Problem(message, asked_at, "download them to a file next to the config and use that")
    if reference.startswith("huggingface://"):
        return None
    parts = split_url(reference)
    if not parts.netloc:
        return Problem("this is not the URL of a file", asked_at, "for example https://example.com/tests.csv")
    if parts.scheme == "http" and parts.hostname not in {"127.0.0.1", "localhost", "::1"}:
        return Problem(
            "http:// is not safe: the tests could be changed in transit", asked_at, "write https://"
        )
    suffix = PurePosixPath(parts.path).suffix.lower()
    if suffix not in _FETCHED:
        what = (
            f"`{suffix}` is not a known file type for tests"
            if suffix
            else "the URL does not name a tests file"
        )
        return Problem(what, asked_at, f"known: {', '.join(sorted(_FETCHED))}")
    if is_wildcard(parts.path):
        return Problem("a URL names one file and cannot have wildcards", asked_at, "list each file")
    return None


def named_files(reference: str, asked_at: Location | None, reading: LoadContext) -> list[NamedFile]:
    """Return the files that a `file://` text names, at least one, sorted by name; for a folder, the visible ones.

    Raises:
        ConfigError: there is none, or it may not be read.
    """
    path = reading.files.resolve(reference, asked_at)
    access = reading.files.access
    folder = reading.files.base_dir
    found = find_files(reference, folder, access, asked_at)
    if os.path.isdir(path):  # noqa: PTH112 - it is False, and no error, for a name that is too long
        found = [file for file in found if not file.path.name.startswith(".")]
        if not found:
            raise ConfigError(
                [Problem(f"the folder `{path}` contains no files", asked_at, "use another one")]
            )
    name, _ = split_part(reference.removeprefix(FILE_PREFIX))
    singles = () if not found or path.exists() else without_braces(name)
    gone = [single for single in singles if not (is_wildcard(single) or (folder / single).exists())]
    if found and not gone:
        return sorted(found, key=lambda file: file.path.parts)
    if is_wildcard(name):
        raise ConfigError([missing_file(gone[0] if gone else reference, folder, access, asked_at)])
    raise ConfigError([open_problem(folder / name, FileNotFoundError(), asked_at)])


def relative_name(path: Path, reading: LoadContext) -> str:
    """Return the name of a file as a config writes it: relative to the config's folder, if possible."""
    folder = reading.files.base_dir
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def _file_rows(
    file: NamedFile, asked_at: Location | None, names: ColumnNames, reading: LoadContext
) -> RowSource | None:
    """Return the tests of one file; None, with a problem, if it is not a tests file.

    Raises:
        ConfigError: it cannot be read.
    """
    path, suffix = file.path, file.suffix
    if suffix in _DOCUMENTS:
        document = read_document(path, reading.files.access, asked_at=asked_at, prefix="tests")
        items = document.value
        if not isinstance(items, list):
            message = f"a tests file must contain a list of tests, found {describe_value(items)}"
            reading.report(message, document.place.value())
            document_rows = None
        else:
            if document.may_use_env:
                items = reading.env.fill(items, document.place, reading.problems)
            else:
                items = reading.env.literal(items)
            if not items:
                reading.report("`tests` has no entries", document.place.value(), "add a test")
            document_rows = InMemoryRows.of_list(items, document.place)
        return _flat(document_rows, path, names)
    if suffix == PARQUET_SUFFIX:
        return _flat(extra("Parquet files").open_tests(path, asked_at, names.names, reading), path, names)
    if suffix in PYTHON_SUFFIXES:
        return _flat(_generated_rows(file, asked_at, reading), path, names)
    if suffix in CODE_SUFFIXES:
        reading.report(f"only Python programs can make tests: `{path.name}`", asked_at, _MAKE_FILE)
        return None
    if suffix not in _LINES | _CSV | _SHEETS:
        reading.report(f"`{path.name}` is not a tests file", asked_at, _KNOWN)
        return None
    try:
        with open_regular(path, reading.files.access):  # report a missing file before anything else is done
            pass
    except OSError as error:
        raise ConfigError([open_problem(path, error, asked_at)]) from error
    if suffix in _LINES:
        return FlatRows(JsonLinesRows(path, asked_at), path, names)
    return FileRows(file, asked_at, names)


def _flat(source: RowSource | None, path: Path, names: ColumnNames) -> RowSource | None:
    return None if source is None else FlatRows(source, path, names)


def _generated_rows(file: NamedFile, asked_at: Location | None, reading: LoadContext) -> RowSource | None:
    name = f"{file.path.name}:{file.part}" if file.part else file.path.name
    try:
        reading.files.access.require_code(f"`{name}`")
    except CodeFailedError as error:
        reading.report(error.message, asked_at, error.hint)
        return None
    if reading.scripts is None:
        reading.report(f"tests made by a program are not read here: `{name}`", asked_at, _MAKE_FILE)
        return None
    rows = reading.scripts().rows(file.path, file.part or _DEFAULT_FUNCTION, asked_at)
    return GeneratedRows(rows, name, asked_at)


@dataclass(frozen=True, slots=True)
class InMemoryRows:
    """Rows of a list that is in memory anyway, with env values filled in. Inline rows are in the config itself."""

    items: tuple[JsonValue, ...] = field(repr=False)
    places: tuple[SourcePath, ...] = field(repr=False)
    is_inline: bool = False

    @classmethod
    def of_list(cls, items: list[JsonValue], place: SourcePath) -> "InMemoryRows":
        return cls(tuple(items), tuple(place.child(index) for index in range(len(items))))

    def rows(self, reading: LoadContext) -> Iterator[tuple[JsonValue, SourcePath]]:
        yield from zip(self.items, self.places, strict=True)

    def marked(self, reading: LoadContext) -> Iterator[JsonValue]:
        del reading
        yield from () if self.is_inline else self.items

    @property
    def is_small(self) -> bool:
        return len(self.items) <= MOST_KEPT


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines; of a line that is too long, only as much as it takes to notice."""
    return iter(lambda: stream.readline(MAX_LINE_BYTES + 1), b"")


class JsonLinesRows(Struct, frozen=True):
    """Rows of a JSON Lines file, of which only one line is in memory at a time. Empty lines are skipped.

    `asked_at` is where the config names the file, and `what` says what its rows are.
    """

    path: Path
    asked_at: Location | None
    what: str = "tests"

    def rows(self, reading: LoadContext) -> Iterator[tuple[JsonValue, SourcePath]]:
        index = 0
        try:
            with open_regular(self.path, reading.files.access) as stream:
                for number, raw in enumerate(_lines(stream), start=1):
                    if len(raw) > MAX_LINE_BYTES:
                        where = Location(str(self.path), number, 1, length=0)
                        limit = f"{MAX_LINE_BYTES >> 20} MB"
                        reading.report(
                            f"this line is longer than {limit}",
                            where,
                            "split it, or move long text into files",
                        )
                        return
                    content = raw.removeprefix(_BYTE_ORDER_MARK) if number == 1 else raw
                    if content.strip():
                        row = self._read_line(content, number, index, reading)
                        index += 1
                        if row is not None:
                            yield row
        except OSError as error:
            reading.problems.append(open_problem(self.path, error, self.asked_at))
            return
        if index == 0:
            reading.report(
                f"`{self.path}` contains no {self.what}", self.asked_at, "write one JSON object per line"
            )

    def marked(self, reading: LoadContext) -> Iterator[JsonValue]:
        try:
            with open_regular(self.path, reading.files.access) as stream:
                for raw in _lines(stream):
                    if len(raw) > MAX_LINE_BYTES:
                        return
                    if any(mark.encode() in raw for mark in (ENV_MARK, FILE_PREFIX)):
                        row = self._read_line(raw.removeprefix(_BYTE_ORDER_MARK), 0, 0, reading)
                        if row is not None:
                            yield row[0]
        except OSError:
            return

    @property
    def is_small(self) -> bool:
        return fits_in_memory(self.path)

    def _read_line(
        self, raw: bytes, number: int, index: int, reading: LoadContext
    ) -> tuple[JsonValue, SourcePath] | None:
        file = str(self.path)
        prefix = f"{self.what}[{index}]"
        try:
            text = raw.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            where = Location(file, number, len(raw[: error.start].decode()) + 1, length=0, key_path=prefix)
            message = f"this line is not UTF-8 text: byte 0x{raw[error.start]:02X} at offset {error.start} of the line"
            reading.report(message, where, "save the file as UTF-8")
            return None
        try:
            value = _decode(text)
        except ValueError:
            try:
                value = read_json(text, file, first_line=number, prefix=prefix).value
            except ConfigError as error:
                reading.problems.extend(error.problems)
                return None
        place = SourcePath(json_line_positions(text, file, line=number, prefix=prefix))
        may_use_env = ENV_MARK in text
        read = reading.env.fill(value, place, reading.problems) if may_use_env else reading.env.literal(value)
        return read, place


class JoinedRows(Struct, frozen=True):
    """Rows of several sources, one after the other."""

    sources: tuple[RowSource, ...]

    def rows(self, reading: LoadContext) -> Iterator[tuple[JsonValue, SourcePath]]:
        for source in self.sources:
            yield from source.rows(reading)

    def marked(self, reading: LoadContext) -> Iterator[JsonValue]:
        for source in self.sources:
            yield from source.marked(reading)

    @property
    def is_small(self) -> bool:
        return all(source.is_small for source in self.sources)


class MarkedRows(Struct, frozen=True):
    """Rows of a source, with a `mark` that helps to identify a run.

    It is the name of a file that the config names by a wildcard, by its folder or with a part of it, or the hash of
    what was fetched. A file that the config names directly needs none.
    """

    source: RowSource
    mark: str

    def rows(self, reading: LoadContext) -> Iterator[tuple[JsonValue, SourcePath]]:
        return self.source.rows(reading)

    def marked(self, reading: LoadContext) -> Iterator[JsonValue]:
        return chain([self.mark], self.source.marked(reading))

    @property
    def is_small(self) -> bool:
        return self.source.is_small


class FlatRows(Struct, frozen=True):
    """Rows of the file `path` in which variables may be next to the keys of a test."""

    source: RowSource
    path: Path
    names: ColumnNames

    def rows(self, reading: LoadContext) -> Iterator[tuple[JsonValue, SourcePath]]:
        columns = FlatColumns(reading, self.names)
        for value, place in self.source.rows(reading):
            if isinstance(value, dict) and is_flat(value, self.names):
                yield columns.test_of(value, place)
            else:
                yield value, place
        columns.report_missing(self.path)

    def marked(self, reading: LoadContext) -> Iterator[JsonValue]:
        return self.source.marked(reading)

    @property
    def is_small(self) -> bool:
        return self.source.is_small


class FileRows(Struct, frozen=True):
    """Rows of a CSV file or of a sheet, read one by one. `asked_at` is where the config names the file.

    Cells are texts without env values filled in: tables come from elsewhere more often than configs.
    """

    file: NamedFile
    asked_at: Location | None
    names: ColumnNames

    def rows(self, reading: LoadContext) -> Iterator[tuple[JsonValue, SourcePath]]:
        try:
            path, access = self.file.path, reading.files.access
            if self.file.suffix in _SHEETS:
                cells: Iterator[TableRow] = extra("sheets").sheet_rows(
                    path, self.file.part, access, self.asked_at, is_strict=True
                )
            else:
                delimiter = "\t" if self.file.suffix == ".tsv" else None
                cells = csv_rows(path, access, self.asked_at, delimiter=delimiter, is_strict=True)
            filled = (row for row in cells if not row.is_empty)
            header = next(filled, None)
            tests = None if header is None else TableReader(self.file.path, header, self.names, reading)
            index = 0
            for index, row in enumerate(filled, start=1):
                assert tests is not None
                test = tests.test_of(row, index - 1)
                if test is not None:
                    yield reading.env.literal(test[0]), test[1]
            if not index:
                hint = "write a header and one row per test"
                if header is not None:
                    hint = "the file has a header and no rows: add one row per test"
                reading.report(f"`{self.file.path}` contains no tests", self.asked_at, hint)
        except ConfigError as error:
            reading.problems.extend(error.problems)

    def marked(self, reading: LoadContext) -> Iterator[JsonValue]:
        for value, _ in self.rows(reading):
            if FILE_PREFIX in json.dumps(value):
                yield value

    @property
    def is_small(self) -> bool:
        return fits_in_memory(self.file.path)


class GeneratedRows(Struct, frozen=True):
    """Rows that a Python function made. They are kept in a file of geval's own, so that every pass reads the same ones.

    Attributes:
        path: that file, in JSON Lines.
        name: the name of the function, for messages.
        asked_at: where the config names it.
    """

    path: Path
    name: str
    asked_at: Location | None

    def rows(self, reading: LoadContext) -> Iterator[tuple[JsonValue, SourcePath]]:
        index = 0
        for index, value in enumerate(self.marked(reading), start=1):
            yield reading.env.literal(value), self._place(index)
        if not index:
            reading.report(f"`{self.name}` made no tests", self.asked_at, "yield a mapping for each test")

    def marked(self, reading: LoadContext) -> Iterator[JsonValue]:
        with open_regular(self.path, reading.files.access) as stream:
            for line in stream:
                yield json.loads(line)

    @property
    def is_small(self) -> bool:
        return fits_in_memory(self.path)

    def _place(self, number: int) -> SourcePath:
        """Return the place in the config that names the function, with the number of the row."""
        at = self.asked_at
        if at is None:
            return SourcePath.nowhere()
        where = Location(
            at.file, at.line, at.column, at.length, f"{at.key_path}, row {number} of {self.name}"
        )
        return SourcePath(Positions(at.file, values={(): where}))


def fits_in_memory(path: Path) -> bool:
    """Return whether the tests of a file are kept once they were read."""
    try:
        return path.stat().st_size <= KEPT_BYTES
    except OSError:
        return False


def _decode(text: str) -> JsonValue:
    """Decode one line like `json.loads`; raise ValueError for all that `read_json` refuses or has to examine."""
    if text.count("[") + text.count("{") > MAX_DEPTH:
        raise ValueError("possibly nested too deep")
    return _DECODER.decode(text)


def _unique(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a key is given twice")
    return entries


def _refuse(name: str) -> JsonValue:
    raise ValueError(f"{name} is not a JSON value")


def _finite(spelling: str) -> float:
    number = float(spelling)
    if math.isinf(number):
        raise ValueError(f"{spelling} is too large")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
