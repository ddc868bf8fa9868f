"""The run store: every run with a snapshot of its config, and every case result, stored as soon as it is known.

If the store fails, results that it does not take are not lost.

Labels of outputs, and calls of tools that may have effects in the world, are stored with their runs.
"""

import asyncio
import contextlib
import heapq
import json
import os
import secrets
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from geval_cli.errors import StoreError, UsageError
from geval_cli.json_codec import decode_json, encode_json
from geval_cli.metrics import metric_verdicts
from geval_cli.patterns import compile_later
from geval_cli.records import (
    CaseResult,
    Column,
    JsonValue,
    RecordedTest,
    Role,
    RunRecord,
    RunStatus,
    RunSummary,
    Usage,
    case_result_from_json,
    recorded_test_from_json,
    run_record_from_json,
    run_summary_from_json,
    to_json,
    usage_by_role_from_json,
)
from geval_cli.store.database import (
    RUNS,
    SHRUNK_MAX_BYTES,
    Database,
    DatabaseThread,
    OpenMode,
    memory_database,
    open_database,
    readable_database,
    shrink,
    transaction,
)
from geval_cli.store.locks import RunLocks
from geval_cli.version import __version__

if TYPE_CHECKING:
    import sqlite3

    from geval_cli.store.database import DatabaseThread

_PUT = """
    INSERT INTO labels (run_id, case_id, metric, annotator, output_sha256, label) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (run_id, case_id, metric, annotator)
    DO UPDATE SET output_sha256 = excluded.output_sha256, label = excluded.label
"""
_SELECT_LABELS = """
    SELECT case_id, metric, annotator, output_sha256, label FROM labels
    WHERE run_id = ? ORDER BY rowid
"""
_SELECT_ONE = """
    SELECT case_id, metric, annotator, output_sha256, label FROM labels
    WHERE run_id = ? AND case_id = ? AND metric = ? AND annotator = ?
"""
_COUNT = "SELECT count(*) FROM labels WHERE run_id = ?"
_RUNS = "SELECT DISTINCT run_id FROM labels WHERE substr(run_id, 1, length(?)) = ? ORDER BY run_id"
_DELETE = "DELETE FROM labels WHERE run_id = ?"


class StoredLabel(Struct, frozen=True):
    """One annotator's label of one metric of one output.

    Attributes:
        case_id: the id of the result; `output_sha256` says which text was read.
        annotator: the name of the annotator; "" if unknown.
        row: the label as a line of a file of labels.
    """

    case_id: str
    metric: str
    annotator: str
    output_sha256: str
    row: JsonValue


class RunLabels(Struct, frozen=True):
    """The labels of all runs of one home folder, in the database of the runs. Safe for several processes at once.

    They outlive the run that they were made for: only `remove` deletes them.

    Attributes:
        database: the database of the runs.
        explain: returns the error for the user of the database.
    """

    database: Database
    explain: Callable[[Exception], StoreError]

    def put(self, run_id: str, labels: Iterable[StoredLabel]) -> None:
        """Store labels, all or none, replacing those by the same annotators. Returns when they are committed.

        Raises:
            StoreError: they cannot be written.
        """
        rows = [
            (run_id, item.case_id, item.metric, item.annotator, item.output_sha256, json.dumps(item.row))
            for item in labels
        ]
        with self._connected() as connection, transaction(connection):
            connection.executemany(_PUT, rows)

    def of_run(self, run_id: str) -> list[StoredLabel]:
        """Return the labels of a run in the order in which they were first given."""
        return [_label(row) for row in self._select(_SELECT_LABELS, run_id)]

    def find(self, run_id: str, case_id: str, metric: str, annotator: str) -> StoredLabel | None:
        """Return one annotator's label of one metric of one output; None if there is none."""
        found = self._select(_SELECT_ONE, run_id, case_id, metric, annotator)
        return _label(found[0]) if found else None

    def count(self, run_id: str) -> int:
        """Return how many labels a run has."""
        return sum(row[0] for row in self._select(_COUNT, run_id))

    def runs(self, beginning: str) -> list[str]:
        """Return the ids with this beginning of the runs that have labels, including runs that were removed."""
        return [row[0] for row in self._select(_RUNS, beginning, beginning)]

    def remove(self, run_id: str) -> int:
        """Remove the labels of a run; return how many there were.

        Raises:
            StoreError: they cannot be written.
        """
        with self._connected() as connection, transaction(connection):
            connection.execute("PRAGMA secure_delete = ON")
            return connection.execute(_DELETE, (run_id,)).rowcount

    def _select(self, statement: str, *values: str) -> list[tuple]:  # type: ignore[type-arg]
        with self._connected() as connection:
            return connection.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(self.database.connect()) as connection:
            try:
                yield connection
            except sqlite3.Error as error:
                raise self.explain(error) from error


def _label(row: tuple[str, str, str, str, str]) -> StoredLabel:
    case_id, metric, annotator, output_sha256, label = row
    return StoredLabel(case_id, metric, annotator, output_sha256, json.loads(label))


_INSERT = (
    "INSERT OR REPLACE INTO tool_calls (run_id, case_id, number, name, arguments) VALUES (?, ?, ?, ?, ?)"
)
_FINISH = "UPDATE tool_calls SET answer = ? WHERE run_id = ? AND case_id = ? AND number = ?"
_SELECT_CALLS = (
    "SELECT name, arguments, answer FROM tool_calls WHERE run_id = ? AND case_id = ? ORDER BY number"
)
_HAS_RESULT = "SELECT 1 FROM results WHERE run_id = ? AND case_id = ?"


class StoredCall(Struct, frozen=True):
    """A call that was started. `answer` is None if none came; `is_told` is whether the case's error says so."""

    name: str
    arguments: JsonValue
    answer: Mapping[str, JsonValue] | None
    is_told: bool


class ToolCallLog:
    """The calls of tools in one run, by case, in the order in which they were made."""

    def __init__(self, writer: "DatabaseThread", run_id: str) -> None:
        self._writer = writer
        self._run_id = run_id

    async def of_case(self, case_id: str) -> list[StoredCall]:
        """Return the calls of a case that were started so far.

        Raises:
            StoreError: they cannot be read.
        """

        def select(connection: "sqlite3.Connection") -> list[StoredCall]:
            rows = connection.execute(_SELECT_CALLS, (self._run_id, case_id)).fetchall()
            return [
                StoredCall(
                    name,
                    decode_json(arguments),
                    None if answer is None else decode_json(answer),
                    is_told=answer is not None,
                )
                for name, arguments, answer in rows
            ]

        return await self._writer.run(select)

    async def has_result(self, case_id: str) -> bool:
        """Return whether the run has a result of a case, even an error.

        Raises:
            StoreError: that cannot be read.
        """
        where = (self._run_id, case_id)
        return await self._writer.run(
            lambda connection: connection.execute(_HAS_RESULT, where).fetchone() is not None
        )

    async def begin(self, case_id: str, number: int, name: str, arguments: JsonValue) -> None:
        """Store that a call is about to be made. This is committed when the method returns.

        Raises:
            StoreError: it cannot be stored, so the call must not be made.
        """
        row = (self._run_id, case_id, number, name, encode_json(arguments).decode())
        await self._writer.run(lambda connection: connection.execute(_INSERT, row) and None)

    async def finish(self, case_id: str, number: int, answer: Mapping[str, JsonValue] | None) -> None:
        """Store the answer to a call; None if the case's error is about to say that no answer came.

        Raises:
            StoreError: it cannot be stored.
        """
        row = (encode_json(None if answer is None else dict(answer)).decode(), self._run_id, case_id, number)
        await self._writer.run(lambda connection: connection.execute(_FINISH, row) and None)


RUNS_FILE = "geval.db"
LATEST = "latest"

_LATEST = compile_later(r"latest(?:~(\d{1,9}))?")
_PREFIXED_MAX = 4
_NEAREST, _IDS_COMPARED, _ID_MAX = 2, 1000, 100

# Errors for text that is not JSON, or not the JSON that this version writes.
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)

_INSERT_RUN = """
    INSERT INTO runs (id, status, started_at, config_path, config_digest, record) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET status = excluded.status, record = excluded.record, summary = NULL
"""
_FINISH_RUN = "UPDATE runs SET status = ?, record = ?, summary = ? WHERE id = ?"
_INSERT_RESULT = """
    INSERT INTO results (run_id, test_index, repeat_index, column_index, case_id, status, verdicts, result)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (run_id, test_index, repeat_index, column_index)
    DO UPDATE SET case_id = excluded.case_id, status = excluded.status, verdicts = excluded.verdicts,
                  result = excluded.result
"""
_INSERT_TEST = """
    INSERT INTO tests (run_id, test_index, test) VALUES (?, ?, ?)
    ON CONFLICT (run_id, test_index) DO UPDATE SET test = excluded.test
"""
_SELECT_TESTS = "SELECT test FROM tests WHERE run_id = ? ORDER BY test_index"
_TESTS_REMEMBERED = 4096
_SELECT_RUNS = "SELECT record, summary FROM runs ORDER BY sequence DESC LIMIT ?"
_SELECT_BY_PREFIX = """
    SELECT record, summary FROM runs, (SELECT ? AS wanted) WHERE substr(id, 1, length(wanted)) = wanted
    ORDER BY id = wanted DESC, sequence DESC LIMIT 4
"""
_SELECT_LATEST = "SELECT record, summary FROM runs ORDER BY sequence DESC LIMIT 1 OFFSET ?"
_COUNT_RUNS = "SELECT count(*) FROM runs"
_SELECT_IDS = "SELECT id FROM runs ORDER BY sequence DESC LIMIT ?"
_DELETE_RUN = "DELETE FROM runs WHERE id = ?"
_ANNOTATE_RUN = "UPDATE runs SET record = json_set(record, '$.title', ?, '$.tags', json(?)) WHERE id = ?"
_SELECT_CASES = """
    SELECT case_id, result FROM results WHERE run_id = ? AND case_id IN (SELECT value FROM json_each(?))
"""
_SELECT_RESULTS = """
    SELECT result FROM results WHERE run_id = ? ORDER BY test_index, repeat_index, column_index
"""
_INSERT_ORIGIN = """
    INSERT OR IGNORE INTO origins (run_id, config_file, planned, covered) VALUES (?, ?, ?, ?)
"""
_NOTE_SPENT = "UPDATE origins SET spent = ? WHERE run_id = ?"
_SELECT_ORIGIN = "SELECT config_file, planned, covered, spent FROM origins WHERE run_id = ?"
_SELECT_OF_CONFIG = """
    SELECT record, summary FROM runs LEFT JOIN origins ON run_id = id
    WHERE config_file = ? OR config_digest = ? ORDER BY sequence DESC
"""


def config_file(path: Path) -> str:
    """Return the name under which a config's runs are found from every folder: its absolute path, without `..`."""
    return os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps `..`, and Path.resolve follows links


def new_run_id() -> str:
    """Return an id for a run that begins now: runs sort by their ids, and two that begin together differ."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def time_now() -> str:
    """Return the current time as in records of runs."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def new_run(config_path: str, config: JsonValue, columns: tuple[Column, ...], **known: Any) -> RunRecord:
    """Return the record of a run that begins now; `known` are further fields of the record."""
    run = RunRecord(
        id=new_run_id(),
        status=RunStatus.RUNNING,
        started_at=time_now(),
        finished_at=None,
        duration_ms=None,
        tool_version=__version__,
        config_path=config_path,
        config_digest="",
        config=config,
        columns=columns,
    )
    return replace(run, **known)


class StoredRun(NamedTuple):
    """A stored run. `summary` is None until the run has finished."""

    run: RunRecord
    summary: RunSummary | None


class RunOrigin(Struct, frozen=True):
    """The facts about a run that are needed to resume it.

    Attributes:
        config_file: the config's absolute path.
        planned: the number of cases that the run will have.
        covered: the fingerprint: hashes of all that decides results, part by part.
        spent: the usage of its calls as last noted, including cases that have no result; None if never noted.
    """

    config_file: str
    planned: int
    covered: Mapping[str, JsonValue]
    spent: Mapping[Role, Usage] | None = None


_SELECT_STORED = """
    SELECT id, record, summary, covered, spent,
           NOT EXISTS (SELECT 1 FROM results WHERE run_id = id AND NOT json_valid(result))
    FROM runs LEFT JOIN origins ON run_id = id ORDER BY sequence DESC
"""
_DAMAGED_NAMED = 20


def record_text(record: msgspec.Struct) -> str:
    """Return the JSON form of a record as compact text.

    The result is the same as for encoding `to_json(record)`, but many times as fast, as no tree is built first.

    Raises:
        TypeError: something in it has no JSON form.
    """
    return encode_json(record).decode()


def read_case_result(text: str | bytes) -> CaseResult:
    """Return the result that `record_text` wrote, in this version of geval or in another one.

    Raises:
        ValueError: it is not a result that this version of geval can read.
    """
    try:
        return _CASE_DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return case_result_from_json(decode_json(text))  # which ignores what it does not know


_CASE_DECODER = msgspec.json.Decoder(CaseResult)


def read_recorded_test(text: str | bytes) -> RecordedTest:
    """Return the test that `record_text` wrote.

    Raises:
        ValueError: it is not a test.
    """
    try:
        return _TEST_DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return recorded_test_from_json(decode_json(text))


_TEST_DECODER = msgspec.json.Decoder(RecordedTest)
_SELECT_TEST = "SELECT test FROM tests WHERE run_id = ? AND test_index = ?"


class ResultReader:
    """A reader of one run's stored results, with their tests; the results of one test share it."""

    def __init__(self, connection: sqlite3.Connection, run_id: str) -> None:
        self._connection = connection
        self._run_id = run_id
        self._test: tuple[int, RecordedTest | UnsetType] = (-1, UNSET)

    def read(self, text: str) -> CaseResult:
        """Return the result in `text`, with its test."""
        result = read_case_result(text)
        if self._test[0] != result.test_index:
            found = self._connection.execute(_SELECT_TEST, (self._run_id, result.test_index)).fetchone()
            self._test = (result.test_index, UNSET if found is None else read_recorded_test(found[0]))
        return replace(result, test=self._test[1]) if self._test[1] else result


class RunStore:
    """The runs of one home folder. Safe for several processes at once; one instance belongs to one process.

    A run that is stored as `running` is read as `interrupted` if no process works on it.

    Attributes:
        warnings: what the user should know about opening it (a damaged file that was moved aside).
        home: the folder; None in memory.
    """

    def __init__(self, database: Database, home: Path | None) -> None:
        self.warnings = database.warnings
        self.home = home
        self._database = database
        self._locks = RunLocks(home)
        self._writer = None if database.is_read_only else DatabaseThread(database)
        self._last: Future[None] | None = None
        # The latest tests that are stored, or are about to be
        self._tests: dict[tuple[str, int], None] = {}

    @classmethod
    def open(cls, home: Path) -> "RunStore":
        """Return the store in `home`, created if it is missing.

        Raises:
            StoreError: the folder or the file cannot be used; the hint says what to do.
        """
        return cls(open_database(home / RUNS_FILE, RUNS), home)

    @classmethod
    @contextlib.contextmanager
    def open_read_only(cls, home: Path) -> "Iterator[RunStore]":
        """Open the store in `home` for reading, until the end of the block; the disk may be read-only.

        Raises:
            StoreError: the file cannot be read, or was written by another version of geval.
        """
        with readable_database(home / RUNS_FILE, RUNS) as database:
            yield cls(database, home)

    @classmethod
    @contextlib.contextmanager
    def open_in_memory(cls) -> "Iterator[RunStore]":
        """Open a store in memory, which is gone at the end of the block."""
        with memory_database(RUNS) as database, contextlib.closing(cls(database, None)) as runs:
            yield runs

    @staticmethod
    def exists(home: Path) -> bool:
        """Return whether there is a store in `home`, without creating one."""
        return (home / RUNS_FILE).is_file()

    @property
    def is_gone(self) -> bool:
        """Return whether the file was deleted while it was open: whatever is written to it is lost."""
        return self._database.access is not OpenMode.MEMORY and not self._database.path.exists()

    @property
    def is_any_run_active(self) -> bool:
        """Return whether a process works on any run of this home folder."""
        return self._locks.is_any_run_active()

    def make_room(self) -> None:
        """Check that results can be stored; a store in memory always has room.

        Raises:
            StoreError: it cannot be written, or there is no room.
        """
        if self._database.access is OpenMode.WRITE:
            self._database.make_room()

    def begin(self, run: RunRecord, origin: RunOrigin | None = None) -> None:
        """Store `run` when it begins, or again when it is resumed. Returns when it is committed.

        Until `finish` or `close`, other processes see that it is in progress. The first `origin` of a run is kept.

        Raises:
            StoreError: it cannot be written.
        """
        if not self._locks.holds(run.id):
            self._locks.acquire(run.id)
        row = (run.id, run.status, run.started_at, run.config_path, run.config_digest, record_text(run))
        begun = [self._write(_INSERT_RUN, row)]
        if origin is not None:
            covered = json.dumps(dict(origin.covered), separators=(",", ":"))
            kept = (run.id, origin.config_file, origin.planned, covered)
            begun.append(self._write(_INSERT_ORIGIN, kept))
        for written in begun:
            written.result()

    def claim(self, run_id: str) -> bool:
        """Lock a stored run for this process; return False if another one works on it.

        Raises:
            StoreError: the folder cannot be written to.
        """
        return self._locks.acquire(run_id)

    def release(self, run_id: str) -> None:
        """Give up a run that was claimed."""
        self._locks.release(run_id)

    def holder(self, run_id: str) -> str | None:
        """Return which process works on a run, in words; None if there is none."""
        return self._locks.holder(run_id) if self._locks.is_run_active(run_id) else None

    def add(self, run_id: str, result: CaseResult) -> "Future[None]":
        """Store `result`, replacing an older one of its case.

        Returns at once; the future is settled when the result is committed, after milliseconds, or with a StoreError.
        """
        asked, place = result.asked, (run_id, result.test_index)
        texts = encode_json(metric_verdicts(result)).decode(), record_text(replace(result, test=UNSET))
        row = (*place, result.repeat_index, result.column, result.id, result.status, *texts)
        if asked is None or place in self._tests:
            return self._write(_INSERT_RESULT, row)
        if len(self._tests) >= _TESTS_REMEMBERED:
            del self._tests[next(iter(self._tests))]
        self._tests[place] = None
        written = self._write_all((_INSERT_TEST, (*place, record_text(asked))), (_INSERT_RESULT, row))
        written.add_done_callback(lambda done: self._tests.clear() if done.exception() else None)
        return written

    def tool_calls(self, run_id: str) -> ToolCallLog:
        """Return the log of tool calls in a run.

        Raises:
            StoreError: the store cannot be written.
        """
        return ToolCallLog(self._writing(), run_id)

    def finish(self, run: RunRecord, summary: RunSummary) -> None:
        """Store the end of `run`. Returns when it is committed.

        Raises:
            StoreError: it cannot be written.
        """
        self._write(_FINISH_RUN, (run.status, record_text(run), record_text(summary), run.id)).result()
        self._locks.release(run.id)

    def remove(self, run_id: str) -> bool:
        """Remove a run with all of its results. Returns when that is committed; False if the run did not exist.

        Cached answers are not touched: `ResponseCache.remove_runs` removes them.

        Raises:
            UsageError: a process works on it.
            StoreError: it cannot be written.
        """
        writer = self._writing()
        if not self.claim(run_id):
            raise self._in_progress_error(run_id, hint="stop it first")

        def delete(connection: sqlite3.Connection) -> int:
            connection.execute("PRAGMA secure_delete = ON")  # prompts and answers are private
            return connection.execute(_DELETE_RUN, (run_id,)).rowcount

        try:
            return writer.submit(delete).result() > 0
        finally:
            self.release(run_id)

    def annotate(self, run_id: str, title: str | None, tags: Mapping[str, str]) -> None:
        """Store the title and the tags of a run, replacing its own. Returns when they are committed.

        Raises:
            UsageError: a process works on it, and will store its own record at the end.
            StoreError: it cannot be written.
        """
        self._writing()
        if not self.claim(run_id):
            raise self._in_progress_error(run_id, hint="wait for it to finish, or stop it first")
        try:
            self._write(_ANNOTATE_RUN, (title, encode_json(dict(tags)).decode(), run_id)).result()
        finally:
            self.release(run_id)

    def under_way(self, config: Path) -> StoredRun | None:
        """Return a run of a config that a process works on; None if there is none.

        Raises:
            StoreError: the database cannot be read.
        """
        wanted = os.path.realpath(config)
        for run_id in self._locks.locked_names():
            origin = self.origin(run_id)
            if origin is None or os.path.realpath(origin.config_file) != wanted:
                continue
            stored = self.find(run_id)
            if stored.run.status is RunStatus.RUNNING:  # not just locked while it is changed
                return stored
        return None

    def shrink(self) -> None:
        """Give the space of removed runs back to the disk, unless a run is in progress, which would have to wait."""
        path = self._database.path
        if self.is_any_run_active or not path.is_file() or path.stat().st_size > SHRUNK_MAX_BYTES:
            return
        with contextlib.closing(self._database.connect()) as connection:
            shrink(connection)

    def note_spent(self, run_id: str, spent: Mapping[Role, Usage]) -> "Future[None]":
        """Store what the calls of a run in progress have cost so far; returns like `add`."""
        return self._write(_NOTE_SPENT, (encode_json(to_json(spent)).decode(), run_id))

    def origin(self, run_id: str) -> RunOrigin | None:
        """Return the origin of a run; None if the run began without one.

        Raises:
            StoreError: the database cannot be read.
        """
        with self.reading() as connection:
            row = connection.execute(_SELECT_ORIGIN, (run_id,)).fetchone()
            return None if row is None else _origin(*row)

    def of_config(self, config_file: str, digest: str) -> list[StoredRun]:
        """Return the runs of a config, newest first: those of this file, and those with an equal digest.

        Raises:
            StoreError: the database cannot be read.
        """
        return self._select_runs(_SELECT_OF_CONFIG, config_file, digest)

    def runs(self, limit: int = 20) -> list[StoredRun]:
        """Return the last `limit` runs, newest first.

        Raises:
            StoreError: the database cannot be read.
        """
        return self._select_runs(_SELECT_RUNS, limit)

    def find(self, name: str) -> StoredRun:
        """Return the run with this id, or the only one whose id begins with it.

        "latest" is the run that began last, "latest~1" the one before it, and so on.

        Raises:
            UsageError: there is none, or more than one.
            StoreError: the database cannot be read.
        """
        place = _LATEST.fullmatch(name)
        if place is not None:
            return self._latest(int(place[1] or 0))
        found = self._select_runs(_SELECT_BY_PREFIX, name) if name else []
        if not found:
            raise UsageError(f"there is no run `{name}`", hint=self._nearest(name))
        if len(found) > 1 and found[0].run.id != name:
            several = ", ".join(stored.run.id for stored in found)
            more = ", ..." if len(found) == _PREFIXED_MAX else ""
            hint = f"give more of the id: {several}{more}"
            raise UsageError(f"more than one run id starts with `{name}`", hint=hint)
        return found[0]

    def damaged(self) -> list[str]:
        """Return the ids of runs that cannot be read, newest first; none if the database cannot be read at all."""
        found: list[str] = []
        try:
            with contextlib.closing(self._database.connect()) as connection:
                rows = connection.execute(_SELECT_STORED)
                for run_id, record, summary, covered, spent, has_valid_results in rows:
                    try:
                        self._stored_run(record, summary)
                        _origin("", 0, covered or "{}", spent)
                        is_damaged = not has_valid_results
                    except _UNREADABLE:
                        is_damaged = True
                    if is_damaged:
                        found.append(str(run_id))
        except (sqlite3.Error, StoreError):
            return []
        return found

    def _in_progress_error(self, run_id: str, *, hint: str) -> UsageError:
        who = self.holder(run_id) or "another process"
        return UsageError(f"run {run_id} is in progress in {who}", hint=hint)

    def _latest(self, back: int) -> StoredRun:
        found = self._select_runs(_SELECT_LATEST, back)
        if found:
            return found[0]
        count = self._select(_COUNT_RUNS, ())[0][0]
        if not count:
            raise UsageError("no runs are stored here yet", hint="start one with `geval run`")
        hint = f"{count} {'run is' if count == 1 else 'runs are'} stored here; `geval list` shows them"
        raise UsageError(f"there is no run `{LATEST}~{back}`", hint=hint)

    def _nearest(self, name: str) -> str:
        """Return the hint for a name that is not a run's: the ids that are most like it."""
        if get_close_matches(name[:_ID_MAX], [LATEST], cutoff=0.75):
            return f"did you mean `{LATEST}`?"
        ids = [str(row[0]) for row in self._select(_SELECT_IDS, (_IDS_COMPARED,))]
        near = get_close_matches(name[:_ID_MAX], ids, n=_NEAREST, cutoff=0.7)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        return f"{meant}list the stored runs with `geval list`"

    def results(self, run_id: str) -> Iterator[CaseResult]:
        """Yield the results of a run by test, repeat and column, read while you iterate and never all held in memory.

        Raises:
            StoreError: the database cannot be read.
        """
        with self.reading() as connection:
            reader = ResultReader(connection, run_id)
            for (text,) in connection.execute(_SELECT_RESULTS, (run_id,)):
                yield reader.read(text)

    def cases(self, run_id: str, case_ids: Iterable[str]) -> dict[str, CaseResult]:
        """Return results by their ids; ids that the run does not have are left out.

        Raises:
            StoreError: the database cannot be read.
        """
        with self.reading() as connection:
            found = connection.execute(_SELECT_CASES, (run_id, json.dumps(list(case_ids))))
            reader = ResultReader(connection, run_id)
            return {case_id: reader.read(text) for case_id, text in found}

    def tests(self, run_id: str) -> Iterator[RecordedTest]:
        """Yield what a run's tests have besides their variables, in order; none of it is held in memory.

        Raises:
            StoreError: the database cannot be read.
        """
        with self.reading() as connection:
            for (text,) in connection.execute(_SELECT_TESTS, (run_id,)):
                yield read_recorded_test(text)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Connect to all that is stored so far; errors while reading within the block are explained.

        Raises:
            StoreError: the database, or something in it, cannot be read.
        """
        # Jobs are written in order, so all are done once the last one is; whether they succeeded does not matter here.
        if self._last is not None:
            wait([self._last])
        with contextlib.closing(self._database.connect()) as connection:
            try:
                yield connection
            except (sqlite3.Error, *_UNREADABLE) as error:
                raise self._read_error(error) from error

    def labels(self) -> RunLabels:
        """Return the human labels of these runs' outputs."""
        return RunLabels(self._database, self._read_error)

    def close(self) -> None:
        """Commit what was added, and release the file and all claimed runs. Safe to call twice."""
        if self._writer is not None:
            self._writer.close()
        self._locks.release_all()

    def _select_runs(self, statement: str, *arguments: str | int) -> list[StoredRun]:
        with self.reading() as connection:
            return [self._stored_run(*row) for row in connection.execute(statement, arguments).fetchall()]

    def _select(self, statement: str, arguments: tuple[str | int, ...]) -> list[tuple[Any, ...]]:
        with self.reading() as connection:
            return connection.execute(statement, arguments).fetchall()

    def _stored_run(self, record: str, summary: str | None) -> StoredRun:
        run = self.settled(run_record_from_json(json.loads(record)))
        return StoredRun(run, None if summary is None else run_summary_from_json(json.loads(summary)))

    def settled(self, run: RunRecord) -> RunRecord:
        """Return `run` with its true status: without a process that works on it, it is not running."""
        if run.status is RunStatus.RUNNING and not self._locks.is_run_active(run.id):
            return replace(run, status=RunStatus.INTERRUPTED)
        return run

    def _write(self, statement: str, row: tuple[object, ...]) -> "Future[None]":
        return self._write_all((statement, row))

    def _write_all(self, *statements: tuple[str, tuple[object, ...]]) -> "Future[None]":
        def execute(connection: sqlite3.Connection) -> None:
            for statement, row in statements:
                connection.execute(statement, row)

        self._last = self._writing().submit(execute)
        return self._last

    def _writing(self) -> DatabaseThread:
        if self._writer is None:
            raise StoreError(
                f"the run database {self._database.path} was opened read-only",
                path=str(self._database.path),
                hint="choose another folder with --home",
            )
        return self._writer

    def _read_error(self, error: Exception) -> StoreError:
        path = self._database.path
        if damaged := self.damaged():
            several = f" and {len(damaged) - 1:,} more are" if len(damaged) > 1 else " is"
            what = "it" if len(damaged) == 1 else "them"
            return StoreError(
                f"run {damaged[0]}{several} damaged in the run database {path}",
                path=str(path),
                hint=f"`geval rm {' '.join(damaged[:_DAMAGED_NAMED])}` removes {what}; the rest can be "
                "read then",
            )
        if isinstance(error, sqlite3.Error):
            return self._database.error(error)
        return StoreError(
            f"the run database {path} contains something that this version of geval cannot read: {error}",
            path=str(path),
            hint="read it with the version that wrote it, or choose another folder with --home",
        )


def _origin(config_file: str, planned: int, covered: str, spent: str | None) -> RunOrigin:
    usage = None if spent is None else usage_by_role_from_json(json.loads(spent))
    return RunOrigin(config_file, planned, dict(json.loads(covered)), usage)


UNCOMMITTED_MAX = 256
"""The most results that may be on their way into the store; beyond that, `add` waits."""

_Place = tuple[int, int, int]


class Recording:
    """A run that is being stored. Results that the store does not take are held in memory until the end.

    After its first error, the store is left alone, since each further attempt may take seconds; at the end, one more
    attempt is made to store everything. Belongs to one event loop.

    Attributes:
        failure: why the store lacks a part of this run; None as long as it lacks nothing.
    """

    def __init__(
        self, runs: RunStore, run: RunRecord, origin: RunOrigin | None = None, *, is_resumed: bool = False
    ) -> None:
        """Prepare the recording; nothing is stored yet, unless the run is resumed."""
        self.failure: StoreError | None = None
        self._runs = runs
        self._run_id = run.id
        self._origin = origin
        self._has_begun = is_resumed
        self._uncommitted: deque[tuple[CaseResult, Future[None]]] = deque()
        self._held: dict[_Place, CaseResult] = {}

    async def begin(self, run: RunRecord) -> None:
        """Store the beginning of the run."""
        try:
            await asyncio.to_thread(self._runs.begin, run, self._origin)
            self._has_begun = True
        except StoreError as error:
            self.failure = error

    async def add(self, result: CaseResult) -> None:
        """Store a result; waits only if many are not committed yet."""
        if self.failure is not None:
            self._hold(result)
            return
        self._uncommitted.append((result, self._runs.add(self._run_id, result)))
        while len(self._uncommitted) > UNCOMMITTED_MAX:
            await asyncio.gather(asyncio.wrap_future(self._uncommitted[0][1]), return_exceptions=True)
            self._settle()
        self._settle()

    def note_spent(self, spent: Mapping[Role, Usage]) -> None:
        """Store what the calls of the run have cost so far, in case its process dies; does nothing after a failure."""
        if self.failure is None:
            self._runs.note_spent(self._run_id, spent)

    async def settle(self) -> None:
        """Wait until every result so far is stored or held."""
        await asyncio.to_thread(wait, [committed for _, committed in self._uncommitted])
        self._settle()

    async def finish(self, run: RunRecord, summary: RunSummary) -> None:
        """Store the end of the run, and the results that are held; `failure` says whether that worked."""
        await asyncio.to_thread(self._finish, run, summary)

    @property
    def unstored(self) -> Iterable[CaseResult]:
        """Return the results that the store does not have."""
        return self._held.values()

    def results(self) -> Iterator[CaseResult]:
        """Return all results by test, repeat and column.

        Raises:
            StoreError: the store cannot be read.
        """
        held = iter(sorted(self._held.values(), key=_place))
        if not self._has_begun:
            return held
        # A result may be both: held after an error, although it was committed.
        stored = (item for item in self._runs.results(self._run_id) if _place(item) not in self._held)
        return heapq.merge(stored, held, key=_place)

    def _settle(self) -> None:
        """Drop what is committed, and hold what the store refused."""
        while self._uncommitted and self._uncommitted[0][1].done():
            result, committed = self._uncommitted.popleft()
            error = committed.exception()
            if isinstance(error, StoreError):
                self.failure = self.failure or error
                self._hold(result)
            elif error is not None:
                raise error

    def _finish(self, run: RunRecord, summary: RunSummary) -> None:
        wait([committed for _, committed in self._uncommitted])
        self._settle()
        try:
            if self.failure is not None:
                # The beginning may be what failed; of a run that exists, only status and record are written again.
                self._runs.begin(replace(run, status=RunStatus.ABORTED), self._origin)
                self._has_begun = True
                committed = [self._runs.add(run.id, result) for result in self._held.values()]
                for item in committed:
                    item.result()
                self._held.clear()
                self.failure = None
            self._runs.finish(run, summary)
        except StoreError as error:
            self.failure = self.failure or error

    def _hold(self, result: CaseResult) -> None:
        self._held[_place(result)] = result


def _place(result: CaseResult) -> _Place:
    return result.test_index, result.repeat_index, result.column
