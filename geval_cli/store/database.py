"""Opening a SQLite file that several geval processes share: WAL, migrations, damage, errors in words.

Durability: WAL with synchronous=NORMAL. What is committed survives any end of the process, kill -9 included; a power
cut or a crash of the operating system may take the last commits, never the file's integrity.
"""

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from geval_cli.errors import StoreError
from geval_cli.store.home import make_folder
from geval_cli.store.migrations import Schema

BUSY_TIMEOUT_S = 15.0

_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_COMPANIONS = ("-wal", "-shm", "-journal")

_ADVICE = {
    sqlite3.SQLITE_FULL: ("the disk is full", "free some space, or choose another place with --home"),
    sqlite3.SQLITE_READONLY: (
        "it is read-only",
        "make the file and its folder writable, or choose another place with --home",
    ),
    sqlite3.SQLITE_PERM: ("permission is denied", "make the file and its folder writable, or use --home"),
    sqlite3.SQLITE_CANTOPEN: (
        "it cannot be opened",
        "check that its folder exists and can be written to, or choose another place with --home",
    ),
    sqlite3.SQLITE_BUSY: ("another process keeps it locked", "wait for that process to end, then try again"),
    sqlite3.SQLITE_LOCKED: (
        "another process keeps it locked",
        "wait for that process to end, then try again",
    ),
    sqlite3.SQLITE_IOERR: (
        "reading or writing the disk failed",
        "check the disk and its free space, or choose another place with --home",
    ),
    sqlite3.SQLITE_CORRUPT: ("the file is damaged", "move it away and run again; a new one is made"),
    sqlite3.SQLITE_NOTADB: ("the file is not a database", "move it away and run again; a new one is made"),
}


@dataclass(frozen=True, slots=True)
class Database:
    """A file that is open-able and up to date. `warnings` tell what had to be done for that."""

    path: Path
    schema: Schema
    warnings: tuple[str, ...] = ()

    def connect(self) -> sqlite3.Connection:
        """A new connection in autocommit mode; it may be handed to another thread, but used by one at a time.

        Raises:
            StoreError: the file cannot be opened.
        """
        try:
            return _connect(self.path)
        except sqlite3.Error as error:
            raise self.error(error) from error

    @staticmethod
    def is_to_blame(error: Exception) -> bool:
        """Whether `error` comes from the file or the disk, not from what was asked of it."""
        return _primary_code(error) in _ADVICE

    def error(self, error: Exception) -> StoreError:
        """What `error` means for the user of this file."""
        return store_error(error, path=self.path, name=self.schema.name)


def open_database(path: Path, schema: Schema) -> Database:
    """Make `path` ready: created if missing, migrated if old, moved aside (never deleted) if damaged.

    Raises:
        StoreError: it cannot be read or written, belongs to another program, or comes from a newer geval.
    """
    make_folder(path.parent)
    try:
        try:
            _prepare(path, schema)
        except sqlite3.DatabaseError as error:
            if _primary_code(error) not in _CORRUPT:
                raise
            return Database(path, schema, _replace_damaged(path, schema))
    except sqlite3.Error as error:
        raise store_error(error, path=path, name=schema.name) from error
    return Database(path, schema)


def store_error(error: Exception, *, path: Path, name: str) -> StoreError:
    """A StoreError that says in words what went wrong with the database at `path`, and what to do."""
    what, hint = _ADVICE.get(_primary_code(error), (str(error), "choose another place with --home"))
    return StoreError(f"the {name} {path} cannot be used: {what}", path=str(path), hint=hint)


def _connect(path: Path) -> sqlite3.Connection:
    connection = _open(path)
    try:
        _use_wal(connection)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL. SQLite itself does not wait for another process that is switching too."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if _primary_code(error) not in _BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return


def _prepare(path: Path, schema: Schema) -> None:
    with contextlib.closing(_open(path)) as connection:
        # Before anything is changed, WAL included: the file may not be ours.
        if _applied(connection, path, schema) == len(schema.migrations):
            return
        _use_wal(connection)
        with transaction(connection):
            # Asked again under the write lock: another process may have migrated since.
            for number in range(_applied(connection, path, schema), len(schema.migrations)):
                _migrate(connection, schema, number + 1)


def _applied(connection: sqlite3.Connection, path: Path, schema: Schema) -> int:
    """How many migrations the file has seen. Reading it also shows whether the file is a database at all."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if not tables:
        return 0
    if connection.execute("PRAGMA application_id").fetchone()[0] != schema.application_id:
        raise StoreError(
            f"{path} is a SQLite database, but not geval's {schema.name}",
            path=str(path),
            hint="choose another folder with --home or --cache-dir; the file is left as it is",
        )
    applied = int(connection.execute("SELECT coalesce(max(number), 0) FROM migrations").fetchone()[0])
    if applied > len(schema.migrations):
        raise StoreError(
            f"the {schema.name} {path} was written by a newer geval",
            path=str(path),
            hint="update geval, or choose another place with --home",
        )
    return applied


def _migrate(connection: sqlite3.Connection, schema: Schema, number: int) -> None:
    connection.execute(f"PRAGMA application_id = {schema.application_id}")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, applied_at TEXT NOT NULL)"
    )
    for statement in schema.migrations[number - 1]:
        connection.execute(statement)
    connection.execute("INSERT INTO migrations VALUES (?, datetime('now'))", (number,))


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """A write transaction: committed at the end, rolled back if anything is raised inside."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite may have rolled back by itself (disk full); then there is nothing to do.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _replace_damaged(path: Path, schema: Schema) -> tuple[str, ...]:
    """Move the damaged file aside and make a new one; of several processes that find the damage, one does."""
    lock = sqlite3.connect(f"{path}.repair", timeout=BUSY_TIMEOUT_S, isolation_level=None)
    with contextlib.closing(lock):
        lock.execute("BEGIN EXCLUSIVE")
        try:
            _prepare(path, schema)
        except sqlite3.DatabaseError as error:
            if _primary_code(error) not in _CORRUPT:
                raise
            aside = _move_aside(path)
            _prepare(path, schema)
        else:
            return ()
    return (f"the {schema.name} {path} was damaged; it was moved to {aside.name} and a new one was made",)


def _move_aside(path: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    aside = path.with_name(f"{path.name}.damaged-{stamp}-{os.getpid()}")
    try:
        path.rename(aside)
        for suffix in _COMPANIONS:
            companion = Path(f"{path}{suffix}")
            if companion.exists():
                companion.rename(f"{aside}{suffix}")
    except OSError as error:
        raise StoreError(
            f"{path} is damaged and cannot be moved away: {error.strerror or error}",
            path=str(path),
            hint="move it away by hand, or choose another place with --home",
        ) from error
    return aside


def _primary_code(error: Exception) -> int:
    """SQLite's result code without its extended part; 0 for errors that do not come from SQLite."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
