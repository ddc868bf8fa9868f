"""Results files: geval's (`-o results.json`, `.jsonl`, `.parquet`) and promptfoo's, version 3.

Reports read them like stored runs, one result at a time if each has its own line; `geval import run` stores them.
"""

import codecs
import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial, reduce
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from geval_cli.assertions.base import PAIRS
from geval_cli.engine.columns import summarized
from geval_cli.errors import ConfigError, Location, Problem, UsageError
from geval_cli.json_codec import decode_json, encode_json
from geval_cli.plugins import extra, extras_of
from geval_cli.providers.redaction import Secrets
from geval_cli.records import (
    SCHEMA_VERSION,
    AssertionResult,
    CaseResult,
    Column,
    JsonValue,
    ProviderRef,
    RecordedTest,
    RenderedPrompt,
    RunRecord,
    RunStatus,
    RunSummary,
    case_result_from_json,
    recorded_test_from_json,
    run_record_from_json,
    run_summary_from_json,
)
from geval_cli.report.report import RunReport
from geval_cli.runs.session import safe_result
from geval_cli.source.access import TRUSTED, Access, open_regular
from geval_cli.source.files import MAX_CONFIG_BYTES, PARQUET_SUFFIX, open_problem, read_text
from geval_cli.source.json_source import read_json
from geval_cli.source.secrets import mask_config, mask_text, secret_values
from geval_cli.source.source_map import SourcePath
from geval_cli.store.runs import (
    LATEST,
    RunOrigin,
    RunStore,
    new_run,
    new_run_id,
    read_case_result,
    read_recorded_test,
    time_now,
)

MAX_FILE_BYTES = 1 << 30
_MOST_PROBLEMS = 20
_MOST_INDEX = 1 << 31
_MOST_SCORE = 1e100
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_-]+")
_WHAT_IS_READ = "use what `-o results.json`, `.jsonl` or `.parquet` wrote, or promptfoo results of version 3"


class ImportedRun(Struct, frozen=True):
    """A run read from a file.

    Attributes:
        summary: the summary in the file; None if it has none.
        dialect: the dialect of the run's config; empty if the file does not determine it.
    """

    run: RunRecord
    results: Sequence[CaseResult]
    summary: RunSummary | None = None
    dialect: str = ""


class ForeignResults(Struct, frozen=True):
    """Results written by another program.

    Attributes:
        rows: one item for each result.
        place: the keys under which the document has the rows.
        case_of_row: converts a row to a result; raises ValueError if it is not valid.
        id, time: those of the run; empty if the document does not have them.
        dialect: the dialect of the run's config.
    """

    rows: Sequence[JsonValue]
    place: tuple[str, ...]
    case_of_row: Callable[[JsonValue], CaseResult]
    id: str = ""
    time: str = ""
    dialect: str = ""


UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors, besides OSError and ConfigError, that reading a file that is no results file raises."""
_TEST_LINE = re.compile(rb'\{\s*"test"\s*:')
"""How a test's line begins in a JSONL file, also in files rewritten by other tools."""
_TESTS = b'"tests": ['
_RESULTS = b'"results": ['
"""The line after which geval's own files have one result per line; files rewritten by other tools are read whole."""


class ResultsRow(NamedTuple):
    """A result in a file: its JSON, a function that finds its test, and its line or row number, if any."""

    text: bytes
    find_test: Callable[[int], RecordedTest | None]
    number: int | None = None


class ResultsReader:
    """Reads a results file; the results are read anew on every pass, one at a time if each has its own line.

    Attributes:
        head: the content besides the results; the whole content if `has_lines` is False.
        has_lines: whether each result is on its own line or row.
    """

    def __init__(self, path: Path, access: Access) -> None:
        """Read the head.

        Raises:
            OSError, ConfigError and the exceptions in `UNREADABLE`: it is not a results file.
        """
        self.path, self._access = path, access
        self._kind = path.suffix.lower()
        self.head: Mapping[str, Any] = {}
        self.has_lines = True
        if self._kind == PARQUET_SUFFIX:
            head = extra("Parquet files").results_head(path, access)
            if head is None:
                raise ConfigError([_not_results(path, "it has no column `result`")])
            self.head = head
            return
        with self._opened() as file:
            if self._kind == ".jsonl":
                return
            head, _ = _skip_head(file)
        self.has_lines = head is not None
        self.head = self._whole() if head is None else decode_json(head + _RESULTS + b"]}")

    @property
    def has_run(self) -> bool:
        """Return whether the file describes its run; JSON Lines and rewritten Parquet files do not."""
        return self._kind == ".json" or "run" in self.head

    @property
    def is_foreign(self) -> bool:
        """Return whether the file holds another program's results."""
        return isinstance(self.head.get("results"), dict)

    def rows(self) -> Iterator[ResultsRow]:
        """Yield the results; raises the same exceptions as `__init__`."""
        if self._kind == PARQUET_SUFFIX:
            for number, text, written in extra("Parquet files").read_result_texts(self.path, self._access):
                tests = () if written is None else (read_recorded_test(written),)
                yield ResultsRow(text.encode(), {item.index: item for item in tests}.get, number)
            return
        with self._opened() as file, self._opened() as beside:
            if self._kind == ".jsonl":
                # Each test comes before its first result; only the latest ones are kept.
                told: dict[int, RecordedTest] = {}
                for number, line in enumerate(map(bytes.strip, file), 1):
                    if _TEST_LINE.match(line) and (test := self._test(line, number)) is not None:
                        if len(told) >= _TESTS_KEPT:
                            del told[next(iter(told))]
                        told[test.index] = test
                    elif line:
                        yield ResultsRow(line, told.get, number)
            elif self.has_lines:
                _, first = _skip_head(file)
                listed = _ListedTests(beside)
                for number, line in enumerate(_listed_results(file), first):
                    yield ResultsRow(line, listed.get, number)
            else:
                whole = self._whole()
                recorded_tests = {
                    item.index: item for item in map(recorded_test_from_json, whole.get("tests") or ())
                }
                yield from (ResultsRow(encode_json(item), recorded_tests.get) for item in whole["results"])

    def _test(self, line: bytes, number: int) -> RecordedTest | None:
        """Return the test on a line; None if the line is a result whose first key happens to be `test`."""
        try:
            found = decode_json(line)
            return recorded_test_from_json(found["test"]) if len(found) == 1 else None
        except (ValueError, TypeError) as error:
            where = Location(str(self.path), number, 1, length=0)
            raise ConfigError(
                [Problem(f"this test cannot be read: {error}", where, _WHAT_IS_READ)]
            ) from error

    def _opened(self) -> BinaryIO:
        """Open the file and skip the byte order mark that other programs may have written."""
        file = open_regular(self.path, self._access)
        if self._access.is_untrusted and os.fstat(file.fileno()).st_size > MAX_CONFIG_BYTES:
            file.close()
            raise OSError(errno.EFBIG, f"it is larger than {MAX_CONFIG_BYTES >> 20} MB")
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        return file

    def _whole(self) -> Mapping[str, Any]:
        with self._opened() as file:
            data = decode_json(file.read())
        if not isinstance(data, dict):
            raise TypeError("it contains no JSON object")
        return data


def _skip_head(file: BinaryIO) -> tuple[bytes | None, int]:
    """Return the content before the results and the line number of the first result; leaves the file at that line.

    The content is None if no line marks the beginning of the results. It does not include the tests.
    """
    lines: list[bytes] = []
    is_in_tests = False
    for number, line in enumerate(file, 2):
        text = line.rstrip(b"\r\n")
        if text == _RESULTS:
            return b"".join(lines), number
        if text == _TESTS:  # there may be many: they are read along with the results
            is_in_tests = True
        elif not is_in_tests:
            lines.append(line)
        elif text == b"],":
            is_in_tests = False
    return None, 0


def _listed_results(file: BinaryIO) -> Iterator[bytes]:
    """Yield the results, one per line, up to the end of their list.

    Raises:
        ValueError: the list has no end, because the file was truncated.
    """
    for line in file:
        text = line.rstrip()
        if text == b"]":
            return
        yield text.removesuffix(b",")
    raise ValueError("the list of results has no end")


class _ListedTests:
    """The tests at the head of a file, one per line, read in step with its results, which are in the same order."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lines = self._begun()
        self._last: RecordedTest | None = None

    def get(self, index: int) -> RecordedTest | None:
        """Return the test with this index; None if there is none."""
        if self._last is not None and self._last.index > index:  # out of order: the file was rewritten
            self._lines, self._last = self._begun(), None
        while self._last is None or self._last.index < index:
            line = next(self._lines, None)
            if line is None:
                return None
            self._last = read_recorded_test(line)
        return self._last if self._last.index == index else None

    def _begun(self) -> Iterator[bytes]:
        self._file.seek(0)
        for line in self._file:
            text = line.rstrip(b"\r\n")
            if text == _RESULTS:
                return
            if text == _TESTS:
                break
        for line in self._file:
            text = line.strip()
            if text == b"],":
                return
            if text:
                yield text.removesuffix(b",")


def read_importable(path: Path, access: Access = TRUSTED) -> ImportedRun:
    """Return the run in a results file, with every result validated so that it can be stored.

    Raises:
        ConfigError: lists the problems of the file, each with its line and column.
    """
    try:
        file = ResultsReader(path, access)
        return _foreign_run(file, access) or _own_run(file, access)
    except OSError as error:
        raise ConfigError([open_problem(path, error, None)]) from error
    except UNREADABLE as error:
        if path.suffix.lower() == ".json":
            _document(path, access)  # reports where it is not valid JSON
        raise ConfigError([_not_results(path, str(error))]) from error


def _foreign_run(file: ResultsReader, access: Access) -> ImportedRun | None:
    for reader in () if file.has_lines else extras_of("results"):
        foreign = reader.read_results(file.head, partial(_place, file.path, access))
        if foreign is not None:
            rows = ((item, None) for item in foreign.rows)
            cases = _converted(rows, foreign.case_of_row, file.path, access, *foreign.place)
            secrets = Secrets(secret_values(file.head.get("config")))
            cases = [_without_keys(case, secrets) for case in cases]
            known: dict[str, Any] = {}
            if foreign.id:
                known["id"] = _safe_id(foreign.id)
            if _is_time(foreign.time):
                known["started_at"] = known["finished_at"] = foreign.time
            run = _new_run(file.path, cases, file.head.get("config"), **known)
            return _renumbered(ImportedRun(run, cases, dialect=foreign.dialect))
    return None


def _own_run(file: ResultsReader, access: Access) -> ImportedRun:
    path, head = file.path, file.head
    if newer := newer_version(head):
        where = _place(path, access, "schema_version")
        raise ConfigError([Problem(f"a newer geval wrote this: {newer}", where, "update geval to read it")])
    if path.suffix.lower() == ".json" and not ("run" in head and isinstance(head.get("results"), list)):
        raise ConfigError([_not_results(path, "it has no `run` and `results`")])
    run, summary = None, None
    if file.has_run:
        try:
            run = run_record_from_json(head["run"])
        except (ValueError, TypeError) as error:
            message = f"the run cannot be read: {_why(error)}"
            where = _place(path, access, "run")
            raise ConfigError([Problem(message, where, _WHAT_IS_READ)]) from error
        with suppress(ValueError, TypeError):  # it can be recalculated
            summary = run_summary_from_json(head.get("summary") or {})
    rows = ((row, row.number) for row in file.rows())
    cases = _converted(rows, lambda row: _case_of(row, path), path, access, "results")
    if not cases and run is None:
        raise ConfigError([_not_results(path, "it is empty")])
    run = _new_run(path, cases, None) if run is None else _safe_run(run, cases)
    return _renumbered(ImportedRun(run, cases, summary))


_TESTS_KEPT = 10_000


def newer_version(document: Mapping[str, JsonValue]) -> str | None:
    """Return a message if a results document has a newer version than this geval can read; else None."""
    found = document.get("schema_version")
    is_newer = isinstance(found, int) and found > SCHEMA_VERSION
    return f"`schema_version` is {found}; this geval reads {SCHEMA_VERSION}" if is_newer else None


def store_run(imported: ImportedRun, runs: RunStore) -> RunRecord:
    """Store an imported run, with its counts calculated again.

    Raises:
        UsageError: a run with this id is already stored.
        StoreError: it cannot be stored.
    """
    run = imported.run
    if _is_stored(run.id, runs):
        raise UsageError(f"run {run.id} is stored here already", hint=f"`geval show {run.id}` shows it")
    summary = summarized(run, lambda: iter(imported.results))
    if imported.summary is not None:
        said = imported.summary
        summary = replace(
            summary,
            gates=said.gates,
            derived=said.derived,
            derived_by_column=said.derived_by_column,
            baseline=said.baseline,
            early_stop=said.early_stop,
        )
    options = {"options": {"--dialect": imported.dialect}} if imported.dialect else {}
    runs.begin(run, RunOrigin(run.config_path, len(imported.results), options))
    written = [runs.add(run.id, result) for result in imported.results]
    for future in written:
        future.result()
    runs.finish(run, summary)
    return run


def _is_stored(run_id: str, runs: RunStore) -> bool:
    try:
        return runs.find(run_id).run.id == run_id
    except UsageError:
        return False


def _document(path: Path, access: Access) -> SourcePath:
    """Return the positions in a JSON file; reads the file a second time, which is needed only to report problems.

    Raises:
        ConfigError: it is not valid JSON.
    """
    return read_json(read_text(path, access, max_bytes=MAX_FILE_BYTES), str(path)).place


def _place(path: Path, access: Access, *keys: str) -> Location | None:
    if path.suffix.lower() != ".json":
        return Location(str(path), 1, 1, length=0)
    place = _document(path, access)
    for key in keys[:-1]:
        place = place.child(key)
    return place.value(*keys[-1:])


def _not_results(path: Path, why: str) -> Problem:
    return Problem(
        f"`{path}` is not a results file: {why}", Location(str(path), 1, 1, length=0), _WHAT_IS_READ
    )


def _case_of(row: ResultsRow, path: Path) -> CaseResult:
    try:
        value = msgspec.json.decode(row.text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        # The slower reader reports invalid JSON, NaN and duplicate keys with their positions.
        value = read_json(row.text.decode(), str(path), first_line=row.number or 1).value
    case = case_result_from_json(value)
    return replace(case, test=row.find_test(case.test_index) or case.test)


def _converted(
    rows: Iterable[tuple[Any, int | None]],
    convert: Callable[[Any], CaseResult],
    path: Path,
    access: Access,
    *keys: str,
) -> list[CaseResult]:
    """Return the sorted results; `rows` gives the raw form of each result and its line number.

    Raises:
        ConfigError: lists the results that are not valid, each with its place.
    """
    found: list[CaseResult] = []
    problems: list[Problem] = []
    cases: dict[tuple[int, int, int], int] = {}
    place: SourcePath | None = None
    for index, (row, line) in enumerate(rows):
        try:
            found.append(_checked(convert(row), cases, index))
        except ConfigError as error:
            problems.extend(error.problems)
        except (ValueError, TypeError, AttributeError) as error:
            where = None if line is None else Location(str(path), line, 1, length=0)
            if where is None:
                place = place or reduce(SourcePath.child, keys, _document(path, access))
                where = place.value(index)
            problems.append(Problem(f"result {index + 1}: {_why(error)}", where))
        if len(problems) >= _MOST_PROBLEMS:
            break
    if problems:
        raise ConfigError(problems)
    return sorted(found, key=_position)


def _position(case: CaseResult) -> tuple[int, int, int]:
    return case.test_index, case.repeat_index, case.column


def _without_keys(case: CaseResult, secrets: Secrets) -> CaseResult:
    """Return a result of a tool that does not mask keys in errors and reasons, with the keys of its config masked."""
    safe = safe_result(case, secrets)
    if safe.error is None:
        return safe
    return replace(safe, error=replace(safe.error, message=secrets.redact(safe.error.message)))


def _why(error: Exception) -> str:
    """Return the reason for which a result is not valid, without the name of the internal class."""
    text = str(error)
    return text.partition(": ")[2] if text.startswith("this is not a ") else text


def _checked(case: CaseResult, cases: dict[tuple[int, int, int], int], index: int) -> CaseResult:
    """Return a result that can be stored, with keys masked; raises ValueError if its case is a duplicate."""
    _check_numbers(case)
    place = (case.test_index, case.repeat_index, case.column)
    if place in cases:
        raise ValueError(f"case {'.'.join(map(str, place))} is result {cases[place] + 1} already")
    cases[place] = index
    provider = ProviderRef(mask_text(case.provider.id), mask_text(case.provider.label))
    return replace(case, id=".".join(map(str, place)), provider=provider)


def _check_numbers(case: CaseResult) -> None:
    """Raise ValueError for numbers that no run writes and that cannot be aggregated."""
    if not all(0 <= number < _MOST_INDEX for number in (case.test_index, case.repeat_index, case.column)):
        raise ValueError("test_index, repeat_index and column must be whole numbers of at least 0")
    scores = (case.score, *case.named_scores.values(), *(item.score for item in case.assertions))
    if any(score is not None and abs(score) > _MOST_SCORE for score in scores):
        raise ValueError("a score is too large")


def _safe_run(run: RunRecord, cases: Sequence[CaseResult]) -> RunRecord:
    """Return the record with a safe id, keys masked in its config, and columns that match its results."""
    status = RunStatus.INTERRUPTED if run.status is RunStatus.RUNNING else run.status
    known = {column.index for column in run.columns}
    columns = run.columns if all(case.column in known for case in cases) else _columns_of(cases)
    return replace(run, id=_safe_id(run.id), status=status, config=mask_config(run.config), columns=columns)


def _safe_id(written: str) -> str:
    safe = _NOT_IN_ID.sub("-", written).strip("-_")[:80]
    return safe if _ID.fullmatch(safe) and safe != LATEST else new_run_id()


def _new_run(path: Path, cases: Sequence[CaseResult], config: JsonValue, **known: Any) -> RunRecord:
    values = {"status": RunStatus.COMPLETED, "finished_at": time_now(), **known}
    return new_run(str(path), mask_config(config), _columns_of(cases), **values)


def _columns_of(cases: Iterable[CaseResult]) -> tuple[Column, ...]:
    found = {case.column: Column(case.column, case.prompt.label, case.provider.label) for case in cases}
    return tuple(found[index] for index in sorted(found))


def _renumbered(imported: ImportedRun) -> ImportedRun:
    columns, renumber = _in_place(imported.run.columns)
    run, results = replace(imported.run, columns=columns), list(map(renumber, imported.results))
    return replace(imported, run=run, results=results)


def _in_place(columns: Sequence[Column]) -> tuple[tuple[Column, ...], Callable[[CaseResult], CaseResult]]:
    """Return the columns renumbered from 0, as in every run, and a function that renumbers the column of a result.

    Filtered results may lack the first columns of their run. Human labels refer to cases by id, so ids stay the same.
    """
    places = {column.index: place for place, column in enumerate(columns)}

    def moved(item: AssertionResult) -> AssertionResult:
        pairs, members = item.detail.get(PAIRS), tuple(map(moved, item.assertions))
        if not isinstance(pairs, list | tuple):
            return replace(item, assertions=members)
        kept = [pair for pair in pairs if isinstance(pair, dict) and pair.get("column") in (None, *places)]
        found = [
            {**pair, "column": places.get(pair["column"])} if "column" in pair else pair for pair in kept
        ]
        return replace(item, assertions=members, detail={**item.detail, PAIRS: found})

    def renumber(result: CaseResult) -> CaseResult:
        place = places.get(result.column, result.column)
        return replace(result, column=place, assertions=tuple(map(moved, result.assertions)))

    if all(index == place for index, place in places.items()):
        return tuple(columns), lambda result: result
    return tuple(replace(column, index=places[column.index]) for column in columns), renumber


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


T = TypeVar("T")
_HINT = "use a file that `geval run -o FILE` wrote, or a run from `geval list`"
_NAMELESS = RunRecord(
    id="",
    status=RunStatus.COMPLETED,
    started_at="",
    finished_at=None,
    duration_ms=None,
    tool_version="",
    config_path="",
    config_digest="",
    config=None,
)
"""The run of results that name none."""


class _Place(Struct):
    """The position of a result: its case and its column."""

    test_index: int
    repeat_index: int
    column: int
    prompt: RenderedPrompt
    provider: ProviderRef


_PLACES = msgspec.json.Decoder(_Place)
PlaceT = TypeVar("PlaceT", _Place, CaseResult)


def named_file(name: str, access: Access = TRUSTED) -> RunReport:
    """Return the run in a file, as `read_results_file` does; if it has no id, the file name takes its place."""
    path = Path(name)
    report = read_results_file(path, access)
    run = report.run if report.run.id else replace(report.run, id=path.name)
    summary = report.summary if report.run.id else summarized(run, report.results)
    return replace(report, run=run, summary=summary, file=str(path))


def read_results_file(path: Path, access: Access = TRUSTED) -> RunReport:
    """Return the run in a file; its results are read anew on every pass and are not kept in memory.

    A .jsonl file holds only results, so the id of its run is empty. Promptfoo's results are kept in memory.

    Raises:
        UsageError: the file cannot be read or has no results; iterating over the results may raise it as well.
        ConfigError: promptfoo's results have problems.
    """
    file = _opened(path, access)
    if file.is_foreign:
        imported = read_importable(path, access)
        counted = summarized(imported.run, lambda: iter(imported.results))
        return RunReport(imported.run, counted, lambda: iter(imported.results), is_stored=False)
    with _refused(path):
        if newer := newer_version(file.head):
            raise UsageError(f"{path} was written by a newer geval: {newer}", hint="update geval to read it")
        run, summary = _NAMELESS, RunSummary()
        if file.has_run:
            run = run_record_from_json(file.head["run"])
            summary = run_summary_from_json(file.head["summary"])
    is_together = True
    if not run.columns or not file.has_lines or path.suffix.lower() != ".json":
        found: dict[int, Column] = {}
        tests: set[int] = set()
        last = -1
        for item in _once(path, _read(file, lambda row: _PLACES.decode(row.text))):
            if item.test_index != last:
                is_together = is_together and item.test_index not in tests
                last = item.test_index
                tests.add(last)
            if item.column not in found:
                found[item.column] = Column(item.column, item.prompt.label, item.provider.label)
        run = replace(run, columns=run.columns or tuple(found[index] for index in sorted(found)))
    columns, renumber = _in_place(run.columns)
    run = replace(run, columns=columns)

    def results() -> Iterator[CaseResult]:
        # Other programs may have sorted them, but the cases of a test, which is a cluster, must come together.
        items = map(renumber, _once(path, _read(file, _with_test)))
        return items if is_together else iter(sorted(items, key=_position))

    return RunReport(run, summary, results, is_stored=False)


def _once(path: Path, items: Iterable[PlaceT]) -> Iterator[PlaceT]:
    """Yield the items; raises UsageError if a case occurs twice, as in a file joined from two runs."""
    seen: set[int] = set()
    for item in items:
        case = (item.test_index << 32 | item.repeat_index) << 32 | item.column
        if case in seen:
            place = f"{item.test_index}.{item.repeat_index}.{item.column}"
            hint = "a file holds one run: `geval compare A B` compares two files"
            raise UsageError(f"{path} has case {place} twice", hint=hint)
        seen.add(case)
        yield item


def _with_test(row: ResultsRow) -> CaseResult:
    result = read_case_result(row.text)
    _check_numbers(result)
    return replace(result, test=row.find_test(result.test_index) or result.test)


def _opened(path: Path, access: Access) -> ResultsReader:
    with _refused(path):
        return ResultsReader(path, access)


def _read(file: ResultsReader, decode: Callable[[ResultsRow], T]) -> Iterator[T]:
    """Yield each result of a file, decoded."""
    with _refused(file.path):
        yield from map(decode, file.rows())


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Convert exceptions about an unreadable file to UsageError."""
    try:
        yield
    except OSError as error:
        hint = "use a run from `geval list`, or a file that `geval run -o FILE` wrote"
        raise UsageError(
            f"cannot read {path}: {(error.strerror or str(error)).lower()}", hint=hint
        ) from error
    except ConfigError as error:
        raise UsageError(error.problems[0].message, hint=error.problems[0].hint) from error
    except UNREADABLE as error:
        raise UsageError(f"{path} is not a geval results file", hint=_HINT) from error
