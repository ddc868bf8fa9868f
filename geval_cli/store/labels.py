"""Labels that people gave to outputs of stored runs: each is committed before the next output is shown."""

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from geval_cli.errors import StoreError
from geval_cli.records import JsonValue
from geval_cli.store.database import Database, transaction

_PUT = """
    INSERT INTO labels (run_id, case_id, metric, annotator, output_sha256, label) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (run_id, case_id, metric, annotator)
    DO UPDATE SET output_sha256 = excluded.output_sha256, label = excluded.label
"""
_SELECT = """
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
    """One person's word about one metric of one output.

    Attributes:
        case_id: of the result; `output_sha256` says which text was read.
        annotator: who; "" for nobody in particular.
        row: the label as a line of a file of labels has it.
    """

    case_id: str
    metric: str
    annotator: str
    output_sha256: str
    row: JsonValue


class RunLabels(Struct, frozen=True):
    """The labels of all runs of one home folder, in the database of the runs. Safe for several processes at once.

    They outlive the run that they were made for: only `remove` takes them away.

    Attributes:
        database: of the runs.
        explain: what an error means for the user of the database.
    """

    database: Database
    explain: Callable[[Exception], StoreError]

    def put(self, run_id: str, labels: Iterable[StoredLabel]) -> None:
        """Store labels, all or none, in the place of those by the same people. Returns when they are committed.

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
        return [_label(row) for row in self._select(_SELECT, run_id)]

    def find(self, run_id: str, case_id: str, metric: str, annotator: str) -> StoredLabel | None:
        """Return one person's label of one metric of one output; None when there is none."""
        found = self._select(_SELECT_ONE, run_id, case_id, metric, annotator)
        return _label(found[0]) if found else None

    def count(self, run_id: str) -> int:
        """Return how many labels a run has."""
        return sum(row[0] for row in self._select(_COUNT, run_id))

    def runs(self, beginning: str) -> list[str]:
        """Return the ids of runs that have labels and begin so, also of runs that were removed."""
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
