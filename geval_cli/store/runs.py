"""The run store: every run with its config snapshot, and every case result, kept the moment it is known."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import NamedTuple

from geval_cli.errors import StoreError, UsageError
from geval_cli.records import (
    CaseResult,
    RunRecord,
    RunSummary,
    case_result_from_json,
    run_record_from_json,
    run_summary_from_json,
    to_json,
)
from geval_cli.store.database import Database, open_database
from geval_cli.store.migrations import RUNS
from geval_cli.store.writer import DatabaseThread

RUNS_FILE = "geval.db"
LATEST = "latest"

_UNREADABLE = (ValueError, LookupError)  # what is no JSON, or not the JSON that this version writes

_INSERT_RUN = """
    INSERT INTO runs (id, status, started_at, config_path, config_digest, record) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET status = excluded.status, record = excluded.record, summary = NULL
"""
_FINISH_RUN = "UPDATE runs SET status = ?, record = ?, summary = ? WHERE id = ?"
_INSERT_RESULT = """
    INSERT INTO results (run_id, test_index, repeat_index, column_index, case_id, status, result)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (run_id, test_index, repeat_index, column_index)
    DO UPDATE SET case_id = excluded.case_id, status = excluded.status, result = excluded.result
"""
_SELECT_RUNS = "SELECT record, summary FROM runs ORDER BY sequence DESC LIMIT ?"
_SELECT_BY_PREFIX = """
    SELECT record, summary FROM runs WHERE substr(id, 1, length(?1)) = ?1
    ORDER BY id = ?1 DESC, sequence DESC LIMIT 2
"""
_SELECT_RESULTS = """
    SELECT result FROM results WHERE run_id = ? ORDER BY test_index, repeat_index, column_index
"""


class StoredRun(NamedTuple):
    """A run as it is stored. `summary` is None as long as the run has not come to an end of its own."""

    run: RunRecord
    summary: RunSummary | None


class RunStore:
    """The runs of one home folder. Safe for several processes at once; one instance belongs to one process.

    Attributes:
        warnings: what the user should know about opening it (a damaged file that was moved aside).
    """

    def __init__(self, database: Database) -> None:
        self.warnings = database.warnings
        self._database = database
        self._writer = DatabaseThread(database)
        self._last: Future[None] | None = None

    @classmethod
    def open(cls, home: Path) -> "RunStore":
        """The store in `home`, made if it is not there.

        Raises:
            StoreError: the folder or the file cannot be used; the hint says what to do.
        """
        return cls(open_database(home / RUNS_FILE, RUNS))

    @staticmethod
    def exists(home: Path) -> bool:
        """Whether anything was ever stored in `home`; asking creates nothing."""
        return (home / RUNS_FILE).is_file()

    def begin(self, run: RunRecord) -> None:
        """Store `run` as it begins (again, when it is resumed). Returns when it is committed.

        Raises:
            StoreError: it cannot be written.
        """
        row = (run.id, run.status, run.started_at, run.config_path, run.config_digest, _dump(run))
        self._write(_INSERT_RUN, row).result()

    def add(self, run_id: str, result: CaseResult) -> "Future[None]":
        """Store `result`, in the place of an older one of its case.

        Returns at once; the future is settled when it is committed, after milliseconds, or with a StoreError.
        """
        place = (run_id, result.test_index, result.repeat_index, result.column)
        return self._write(_INSERT_RESULT, (*place, result.id, result.status, _dump(result)))

    def finish(self, run: RunRecord, summary: RunSummary) -> None:
        """Store how `run` ended. Returns when it is committed.

        Raises:
            StoreError: it cannot be written.
        """
        self._write(_FINISH_RUN, (run.status, _dump(run), _dump(summary), run.id)).result()

    def runs(self, limit: int = 20) -> list[StoredRun]:
        """The last `limit` runs, newest first. One whose process died is still `running`.

        Raises:
            StoreError: the database cannot be read.
        """
        return self._select_runs(_SELECT_RUNS, limit)

    def find(self, name: str) -> StoredRun:
        """The run with this id, or whose id alone begins so; "latest" is the one that was begun last.

        Raises:
            UsageError: there is none, or more than one.
            StoreError: the database cannot be read.
        """
        hint = "`geval list` shows the runs that are stored here"
        if name == LATEST:
            latest = self.runs(1)
            if not latest:
                raise UsageError("no run is stored here yet", hint="`geval run CONFIG` makes one")
            return latest[0]
        found = self._select_runs(_SELECT_BY_PREFIX, name) if name else []
        if not found:
            raise UsageError(f"there is no run `{name}`", hint=hint)
        if len(found) > 1 and found[0].run.id != name:
            raise UsageError(f"more than one run begins with `{name}`", hint=hint)
        return found[0]

    def results(self, run_id: str) -> Iterator[CaseResult]:
        """The results of a run by test, repeat and column, read while you iterate and never held all at once.

        Raises:
            StoreError: the database cannot be read.
        """
        self._wait_for_writes()
        with contextlib.closing(self._database.connect()) as connection:
            try:
                for (text,) in connection.execute(_SELECT_RESULTS, (run_id,)):
                    yield case_result_from_json(json.loads(text))
            except (sqlite3.Error, *_UNREADABLE) as error:
                raise self._read_error(error) from error

    def close(self) -> None:
        """Commit what was added and release the file. Safe to call twice."""
        self._writer.close()

    def _select_runs(self, statement: str, argument: str | int) -> list[StoredRun]:
        self._wait_for_writes()
        with contextlib.closing(self._database.connect()) as connection:
            try:
                rows = connection.execute(statement, (argument,)).fetchall()
                return [_stored_run(*row) for row in rows]
            except (sqlite3.Error, *_UNREADABLE) as error:
                raise self._read_error(error) from error

    def _write(self, statement: str, row: tuple[object, ...]) -> "Future[None]":
        def execute(connection: sqlite3.Connection) -> None:
            connection.execute(statement, row)

        self._last = self._writer.submit(execute)
        return self._last

    def _wait_for_writes(self) -> None:
        # Written in the order given, so all before the last one are done; whether they could be is not asked here.
        if self._last is not None:
            wait([self._last])

    def _read_error(self, error: Exception) -> StoreError:
        if isinstance(error, sqlite3.Error):
            return self._database.error(error)
        path = self._database.path
        return StoreError(
            f"the run database {path} holds something that this version of geval cannot read: {error}",
            path=str(path),
            hint="read it with the version that wrote it, or choose another place with --home",
        )


def _dump(record: RunRecord | RunSummary | CaseResult) -> str:
    return json.dumps(to_json(record), separators=(",", ":"))


def _stored_run(record: str, summary: str | None) -> StoredRun:
    return StoredRun(
        run_record_from_json(json.loads(record)),
        None if summary is None else run_summary_from_json(json.loads(summary)),
    )
