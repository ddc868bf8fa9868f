"""The schema of each database as numbered steps, and applying them. A step that was released never changes."""

import sqlite3
from pathlib import Path

from msgspec import Struct

from geval_cli.errors import StoreError

_FOREIGN = """
    SELECT 1 FROM sqlite_schema
    WHERE type IN ('view', 'trigger') OR upper(ltrim(sql)) LIKE 'CREATE VIRTUAL%' LIMIT 1
"""


class Schema(Struct, frozen=True):
    """One kind of database.

    Attributes:
        name: what it holds, in words for messages.
        application_id: the number in the file's header by which our file is told from any other SQLite file.
        migrations: SQL statements step by step; the first brings an empty file to version 1.
    """

    name: str
    application_id: int
    migrations: tuple[tuple[str, ...], ...]


RUNS = Schema(
    name="run database",
    application_id=0x47455652,  # "GEVR"
    migrations=(
        (
            # `sequence` orders runs by when they began even if the clock was set back in between.
            """
            CREATE TABLE runs (
                sequence INTEGER PRIMARY KEY AUTOINCREMENT,
                id TEXT NOT NULL UNIQUE,
                status TEXT NOT NULL,
                started_at TEXT NOT NULL,
                config_path TEXT NOT NULL,
                config_digest TEXT NOT NULL,
                record TEXT NOT NULL,
                summary TEXT
            )
            """,
            # `verdicts` are those of its metrics, which views count and choose by without reading the results.
            """
            CREATE TABLE results (
                run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
                test_index INTEGER NOT NULL,
                repeat_index INTEGER NOT NULL,
                column_index INTEGER NOT NULL,
                case_id TEXT NOT NULL,
                status TEXT NOT NULL,
                verdicts TEXT NOT NULL,
                result TEXT NOT NULL,
                UNIQUE (run_id, test_index, repeat_index, column_index)
            )
            """,
            # What only resuming and judging again need.
            """
            CREATE TABLE origins (
                run_id TEXT PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
                config_file TEXT NOT NULL,
                planned INTEGER NOT NULL,
                covered TEXT NOT NULL,
                spent TEXT
            )
            """,
            # No reference to the run: what people said is their work, and stays when the run is removed.
            """
            CREATE TABLE labels (
                run_id TEXT NOT NULL,
                case_id TEXT NOT NULL,
                metric TEXT NOT NULL,
                annotator TEXT NOT NULL,
                output_sha256 TEXT NOT NULL,
                label TEXT NOT NULL,
                PRIMARY KEY (run_id, case_id, metric, annotator)
            )
            """,
            # What a test brings beside its variables, once for all of its results: it may be a long document.
            """
            CREATE TABLE tests (
                run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
                test_index INTEGER NOT NULL,
                test TEXT NOT NULL,
                PRIMARY KEY (run_id, test_index)
            )
            """,
        ),
        (
            # Calls of tools, each stored before it is made; `answer` is NULL until it is known what came of it.
            """
            CREATE TABLE tool_calls (
                run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
                case_id TEXT NOT NULL,
                number INTEGER NOT NULL,
                name TEXT NOT NULL,
                arguments TEXT NOT NULL,
                answer TEXT,
                PRIMARY KEY (run_id, case_id, number)
            )
            """,
        ),
    ),
)

CACHE = Schema(
    name="response cache",
    application_id=0x47455643,  # "GEVC"
    migrations=(
        (
            # `answer` is JSON text, or the same deflated, as a blob, when it is long. `only_run` is the run that paid
            # for it while no other has used it; NULL: several have, or no run did.
            """
            CREATE TABLE choices (
                key BLOB PRIMARY KEY NOT NULL,
                created_at REAL NOT NULL,
                answer NOT NULL,
                only_run TEXT
            )
            """,
            "CREATE INDEX choices_by_age ON choices (created_at)",
            # Batches of requests at a provider. They belong to the answers: several runs may wait for one.
            """
            CREATE TABLE batches (
                id TEXT PRIMARY KEY NOT NULL,
                run_id TEXT,
                server TEXT NOT NULL,
                provider_id TEXT NOT NULL,
                role TEXT NOT NULL,
                state TEXT NOT NULL,
                requests INTEGER NOT NULL,
                reserved_usd REAL NOT NULL,
                created_at REAL NOT NULL,
                file_id TEXT,
                remote_id TEXT,
                answered INTEGER NOT NULL DEFAULT 0,
                failed INTEGER NOT NULL DEFAULT 0,
                expires_at REAL,
                ended_at REAL
            )
            """,
            # `body` is what is asked, `size` bytes, until it is answered; `reply` is the answer, until a run has read
            # it. Both are JSON text, or the same deflated, as a blob. Without a batch it waits for the next one.
            """
            CREATE TABLE batch_requests (
                key BLOB PRIMARY KEY NOT NULL,
                run_id TEXT,
                batch_id TEXT,
                body,
                size INTEGER NOT NULL,
                reply,
                tries INTEGER NOT NULL DEFAULT 0,
                reserved_usd REAL NOT NULL,
                created_at REAL NOT NULL
            )
            """,
            "CREATE INDEX batch_requests_by_batch ON batch_requests (batch_id)",
        ),
    ),
)


def applied_migrations(connection: sqlite3.Connection, path: Path, schema: Schema) -> int:
    """Return the number of migrations that the file has seen; raise if it is no database of this schema."""
    if not table_names(connection):
        return 0
    if connection.execute("PRAGMA application_id").fetchone()[0] != schema.application_id:
        raise StoreError(
            f"{path} is a SQLite database, but not geval's {schema.name}",
            path=str(path),
            hint="choose another folder with --home or --cache-dir; the file is left as it is",
        )
    if connection.execute(_FOREIGN).fetchone() is not None:
        raise StoreError(
            f"the {schema.name} {path} contains views, triggers or virtual tables, which geval never creates",
            path=str(path),
            hint="another program made it: inspect it before you use it, or choose another folder with "
            "--home",
        )
    applied = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if applied > len(schema.migrations):
        raise StoreError(
            f"the {schema.name} {path} was written by a newer geval",
            path=str(path),
            hint="update geval, or choose another folder with --home",
        )
    if applied < 1:
        raise StoreError(
            f"the {schema.name} {path} was written by a geval older than 0.2.0",
            path=str(path),
            hint="move it away, or choose another folder with --home",
        )
    return applied


def table_names(connection: sqlite3.Connection) -> set[str]:
    """Return the names of all tables in the file."""
    return {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}


def apply_migration(connection: sqlite3.Connection, schema: Schema, number: int) -> None:
    """Apply the migration `number`, counted from 1; the caller holds the write lock."""
    connection.execute(f"PRAGMA application_id = {schema.application_id}")
    for statement in schema.migrations[number - 1]:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {number}")
