"""The schema of each database as numbered steps. Steps are only ever added: a released one never changes."""

from msgspec import Struct


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
            """
            CREATE TABLE results (
                run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
                test_index INTEGER NOT NULL,
                repeat_index INTEGER NOT NULL,
                column_index INTEGER NOT NULL,
                case_id TEXT NOT NULL,
                status TEXT NOT NULL,
                result TEXT NOT NULL,
                UNIQUE (run_id, test_index, repeat_index, column_index)
            )
            """,
        ),
        (
            # Beside the runs, not in them: older ones have none, and what reads runs needs none.
            """
            CREATE TABLE origins (
                run_id TEXT PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
                config_file TEXT NOT NULL,
                planned INTEGER NOT NULL,
                covered TEXT NOT NULL,
                spent TEXT
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
            # `answer` is JSON text, or the same deflated, as a blob, when it is long.
            """
            CREATE TABLE choices (
                key BLOB PRIMARY KEY NOT NULL,
                created_at REAL NOT NULL,
                answer NOT NULL
            )
            """,
            "CREATE INDEX choices_by_age ON choices (created_at)",
        ),
        (
            # The run that bought the answer, as long as nobody else has used it; NULL: several did, or no run did.
            "ALTER TABLE choices ADD COLUMN only_run TEXT",
        ),
    ),
)
