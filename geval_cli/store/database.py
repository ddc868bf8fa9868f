"""SQLite files that several processes share: WAL, migrations, one writer, repair of damage, errors in plain words.

Durability: WAL with synchronous=NORMAL. Committed data survives any end of the process, including kill -9; a power
cut or a crash of the operating system may take the last commits, but never the file's integrity. The schema of each
database is a list of numbered steps; a released step never changes. A thread owns the connection that writes: it
gathers work for a moment and commits it together.
"""

import asyncio
import contextlib
import errno
import os
import queue
import secrets
import shutil
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from geval_cli.errors import StoreError
from geval_cli.store.home import make_folder, make_private_file, restrict_to_owner, temporary_folder

_FOREIGN = """
    SELECT 1 FROM sqlite_schema
    WHERE type IN ('view', 'trigger') OR upper(ltrim(sql)) LIKE 'CREATE VIRTUAL%' LIMIT 1
"""


class Schema(Struct, frozen=True):
    """One kind of database.

    Attributes:
        name: its name in messages.
        application_id: the number in the file's header that tells our file from any other SQLite file.
        migrations: SQL statements step by step; the first step brings an empty file to version 1.
    """

    name: str
    application_id: int
    migrations: tuple[tuple[str, ...], ...]


RUNS = Schema(
    name="run database",
    application_id=0x47455652,  # "GEVR"
    migrations=(
        (
            # `sequence` orders runs by their beginning even if the clock was set back in between.
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
            # `verdicts` are those of its metrics, which views count and filter by without reading the results.
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
            # Needed only for resuming and for judging again.
            """
            CREATE TABLE origins (
                run_id TEXT PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
                config_file TEXT NOT NULL,
                planned INTEGER NOT NULL,
                covered TEXT NOT NULL,
                spent TEXT
            )
            """,
            # No reference to the run: labels are people's work, and stay when the run is removed.
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
            # What a test has besides its variables, once for all of its results: it may be a long document.
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
            # Calls of tools, each stored before it is made; `answer` is NULL until its outcome is known.
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
            # `answer` is JSON text or, if long, the same deflated as a blob. `only_run` is the run that paid
            # for it while no other run has used it; NULL: several have, or no run paid for it.
            """
            CREATE TABLE choices (
                key BLOB PRIMARY KEY NOT NULL,
                created_at REAL NOT NULL,
                answer NOT NULL,
                only_run TEXT
            )
            """,
            "CREATE INDEX choices_by_age ON choices (created_at)",
            # Batches of requests at a provider. They are stored with the answers: several runs may wait for one.
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
            # `body` is the request, `size` bytes, until it is answered; `reply` is the answer, until a run has read it.
            # Both are JSON text, or the same deflated, as a blob. Without a batch, a request waits for the next one.
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
    """Return how many migrations the file has seen.

    Raises:
        StoreError: it is not a database of this schema, or it was written by a version of geval that is too old or new.
    """
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


BUSY_TIMEOUT_S = 15.0

ROOM_BYTES = 256 * 1024
"""This much must fit into a file and its log before a run begins that costs money: the results of some dozen cases."""

SHRUNK_MAX_BYTES = 512 * 1024 * 1024
"""A larger file takes longer to shrink than a run that starts meanwhile would wait."""

_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_UNWRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN}
_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_COMPANIONS = ("-wal", "-shm", "-journal")

_ADVICE = {
    sqlite3.SQLITE_FULL: ("the disk is full", "free some space, or choose another folder with --home"),
    sqlite3.SQLITE_READONLY: (
        "it is read-only",
        "make the file and its folder writable, or choose another folder with --home",
    ),
    sqlite3.SQLITE_PERM: ("permission denied", "make the file and its folder writable, or use --home"),
    sqlite3.SQLITE_CANTOPEN: (
        "it cannot be opened",
        "check that its folder exists and can be written to, or choose another folder with --home",
    ),
    sqlite3.SQLITE_BUSY: ("another process has it locked", "wait for that process to end, then try again"),
    sqlite3.SQLITE_LOCKED: (
        "another process has it locked",
        "wait for that process to end, then try again",
    ),
    sqlite3.SQLITE_IOERR: (
        "reading or writing the disk failed",
        "check the disk and its free space, or choose another folder with --home",
    ),
    sqlite3.SQLITE_CORRUPT: ("the file is damaged", "move it away and run again; a new one is created"),
    sqlite3.SQLITE_NOTADB: ("the file is not a database", "move it away and run again; a new one is created"),
}


class OpenMode(StrEnum):
    """A way to open a file; the value is the query of its SQLite URI.

    `FROZEN`: no process writes, so nothing is locked. `MEMORY`: there is no file; in this process, its name finds it.
    """

    WRITE = ""
    READ = "mode=ro"
    FROZEN = "mode=ro&immutable=1"
    MEMORY = "mode=memory&cache=shared"


class Database(Struct, frozen=True):
    """A database file with an up-to-date schema, unless it is only read. `warnings` report repairs."""

    path: Path
    schema: Schema
    warnings: tuple[str, ...] = ()
    access: OpenMode = OpenMode.WRITE

    @property
    def is_read_only(self) -> bool:
        """Return whether the database is opened for reading only."""
        return self.access in {OpenMode.READ, OpenMode.FROZEN}

    def connect(self) -> sqlite3.Connection:
        """Return a new connection in autocommit mode; any thread may use it, but only one at a time.

        Raises:
            StoreError: the file cannot be opened.
        """
        try:
            return self.connect_plainly()
        except sqlite3.Error as error:
            raise self.error(error) from error

    def connect_plainly(self) -> sqlite3.Connection:
        """Return a new connection like `connect`, but raise SQLite's own errors."""
        if self.is_read_only:
            return _open(self.path, self.access)
        if self.access is OpenMode.MEMORY:
            return _connect_in_memory(self.path)
        connection = _open(self.path)
        try:
            _use_wal(connection)
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA temp_store = MEMORY")  # an untrusted run may not write elsewhere
            connection.execute("PRAGMA synchronous = NORMAL")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def make_room(self) -> None:
        """Write `ROOM_BYTES` to the disk and free them again, so that the next results have room in the file.

        A small write proves nothing: on a full disk, it may find space within the file, and the next one none.

        Raises:
            StoreError: there is no room, or the file cannot be written.
        """
        with contextlib.closing(self.connect()) as connection:
            try:
                with transaction(connection):
                    connection.execute("CREATE TABLE IF NOT EXISTS room (filler BLOB)")
                    connection.execute("INSERT INTO room VALUES (randomblob(?))", (ROOM_BYTES,))
                with transaction(connection):
                    connection.execute("DROP TABLE IF EXISTS room")
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            except sqlite3.Error as error:
                raise self.error(error) from error

    @staticmethod
    def is_storage_error(error: Exception) -> bool:
        """Return whether `error` comes from the file or the disk, rather than from the work."""
        return _primary_code(error) in _ADVICE

    def error(self, error: Exception) -> StoreError:
        """Return the StoreError that explains `error` to the user of this file."""
        return store_error(error, path=self.path, name=self.schema.name)


def open_database(path: Path, schema: Schema) -> Database:
    """Prepare `path`: create it if missing, migrate it if old, move it aside (never delete it) if damaged.

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


@contextlib.contextmanager
def memory_database(schema: Schema) -> Iterator[Database]:
    """Open a database in memory, until the end of the block. Only this process can connect to it."""
    database = Database(Path(f"{schema.name} {secrets.token_hex(8)}"), schema, access=OpenMode.MEMORY)
    with contextlib.closing(database.connect()) as connection:  # it lasts as long as one connection does
        with transaction(connection):
            for number in range(len(schema.migrations)):
                apply_migration(connection, schema, number + 1)
        yield database


@contextlib.contextmanager
def readable_database(path: Path, schema: Schema, *, is_frozen: bool = False) -> Iterator[Database]:
    """Open the database at `path` for reading, until the end of the block, even on a read-only disk.

    The log that a killed process left beside the file is read too. With `is_frozen`, no other process writes to it, and
    nothing is created in its folder, unless there is such a log.

    Raises:
        StoreError: it cannot be read, belongs to another program, or comes from a newer geval.
    """
    log = Path(f"{path}-wal")
    with contextlib.ExitStack() as stack:
        try:
            has_log = log.is_file() and log.stat().st_size > 0
            database = Database(path, schema, access=OpenMode.READ)
            if (is_frozen and not has_log) or not _is_readable(database):
                database = Database(path, schema, access=OpenMode.FROZEN)
                if has_log:
                    # Copy the database and its log to a temporary folder: to read a log, SQLite needs to create
                    # files beside it.
                    folder = stack.enter_context(temporary_folder())
                    for source in (path, log):
                        shutil.copy(source, folder)
                    database = Database(folder / path.name, schema)
            with contextlib.closing(database.connect_plainly()) as connection:
                applied_migrations(connection, path, schema)
        except sqlite3.Error as error:
            raise store_error(error, path=path, name=schema.name) from error
        except OSError as error:
            raise StoreError(
                f"the {schema.name} {path} cannot be read: {error.strerror or error}",
                path=str(path),
                hint="check the file's permissions and the free space of the temporary folder",
            ) from error
        yield database


def _is_readable(database: Database) -> bool:
    """Return whether the database can be read while other processes write to it.

    For that, SQLite needs to create files beside it, which a read-only folder does not allow.
    """
    try:
        with contextlib.closing(database.connect_plainly()) as connection:
            table_names(connection)
    except sqlite3.Error as error:
        if _primary_code(error) in _UNWRITABLE:
            return False
        raise
    return True


def is_unwritable(error: StoreError) -> bool:
    """Return whether the file cannot be written, but may be readable."""
    return error.__cause__ is not None and _primary_code(error.__cause__) in _UNWRITABLE


def is_full(error: StoreError) -> bool:
    """Return whether the disk has no room for the file, or the user's quota is used up."""
    cause = error.__cause__
    if isinstance(cause, OSError):
        return cause.errno in _FULL_DISK
    return cause is not None and _primary_code(cause) in _FULL


def unsent(failure: StoreError) -> StoreError:
    """Return the error of a command that sends nothing, because of a failure that would lose what it pays for."""
    told = f"{failure.message}; nothing was sent, because the answers would be paid for but not stored"
    return StoreError(told, path=failure.path, hint=failure.hint)


def store_error(error: Exception, *, path: Path, name: str) -> StoreError:
    """Return a StoreError that says in plain words what is wrong with the database at `path`, and what to do."""
    what, hint = _ADVICE.get(_primary_code(error), (str(error), "choose another folder with --home"))
    return StoreError(f"the {name} {path} cannot be used: {what}", path=str(path), hint=hint)


def _connect_in_memory(path: Path) -> sqlite3.Connection:
    connection = _open(path, OpenMode.MEMORY)
    connection.execute("PRAGMA foreign_keys = ON")
    # Connections that share a database in memory lock whole tables against each other, and do not wait for them.
    connection.execute("PRAGMA read_uncommitted = ON")
    return connection


def _open(path: Path, access: OpenMode = OpenMode.WRITE) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?{access}" if access else str(path)
    connection = sqlite3.connect(
        address, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, uri=bool(access)
    )
    try:
        # Make SQLite trust nothing in the file itself: someone else may have written it.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        if sys.version_info >= (3, 12):
            connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL, and wait for other processes that are switching too, which SQLite itself does not do."""
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
    make_private_file(path)  # files that SQLite creates beside it get its mode
    for ending in _COMPANIONS:
        restrict_to_owner(Path(f"{path}{ending}"))
    with contextlib.closing(_open(path)) as connection:
        # Check before anything is changed, WAL included: the file may not be ours.
        if applied_migrations(connection, path, schema) == len(schema.migrations):
            return
        _use_wal(connection)
        with transaction(connection):
            # Check again under the write lock: another process may have migrated it.
            for number in range(applied_migrations(connection, path, schema), len(schema.migrations)):
                apply_migration(connection, schema, number + 1)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in a write transaction: committed at its end, rolled back if it raises."""
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
    """Move the damaged file aside and create a new one; if several processes find the damage, one of them does."""
    make_private_file(Path(f"{path}.repair"))
    lock = _open(Path(f"{path}.repair"))
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
    return (f"the {schema.name} {path} was damaged; it was moved to {aside.name} and a new one was created",)


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
            hint="move it away by hand, or choose another folder with --home",
        ) from error
    return aside


def _primary_code(error: BaseException) -> int:
    """Return SQLite's result code without its extended part; 0 for errors that are not from SQLite."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def shrink(connection: sqlite3.Connection) -> None:
    """Give free pages back to the disk; if another process is busy with it or it is full, they are reused later."""
    with contextlib.suppress(sqlite3.OperationalError):
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

GATHER_S = 0.004
"""How long a batch is gathered: long enough for many callers to share a commit, short beside any model call."""

# What prepared SQL can raise: SQLite's own errors, a number too large, text that is not Unicode.
_FAILURES = (sqlite3.Error, ValueError, ArithmeticError)


class _Job(Struct):
    work: Work[Any]
    waiter: "asyncio.Future[Any] | Future[Any]"
    loop: asyncio.AbstractEventLoop | None
    result: Any = None
    error: Exception | None = None

    def settle(self) -> None:
        if self.waiter.done():
            return
        if self.error is not None:
            self.waiter.set_exception(self.error)
        else:
            self.waiter.set_result(self.result)


class DatabaseThread:
    """A thread that runs jobs on a connection of its own, in the order given, off the event loop.

    With `writes`, jobs are gathered for `gather_s` seconds into one transaction, and its commit releases all callers. A
    job that fails does not fail the others: the batch is rolled back and its jobs are run one by one. The caller gets a
    StoreError for errors of the database, and any other error as it was raised.
    """

    def __init__(self, database: Database, *, writes: bool = True, gather_s: float = GATHER_S) -> None:
        self._database = database
        self._connection = database.connect()
        self._writes = writes
        self._gather_s = gather_s if writes else 0.0
        self._jobs: deque[_Job] = deque()
        self._bell: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._is_awake = False
        self._gathering: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name=f"geval {database.schema.name}", daemon=True)
        self._thread.start()

    def submit(self, work: Work[T]) -> "Future[T]":
        """Queue `work` and return a future that holds its result once it is committed."""
        waiter: Future[T] = Future()
        self._put(_Job(work, waiter, None))
        return waiter

    async def run(self, work: Work[T]) -> T:
        """Return the result of `work`, once it is committed. It is done even if the caller is cancelled.

        Raises:
            StoreError: the database could not be read or written.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[T] = loop.create_future()
        self._put(_Job(work, waiter, loop))
        return await waiter

    def close(self) -> None:
        """Finish all queued work, then release the file. Safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            self._bell.put(False)
        self._thread.join()

    def _put(self, job: _Job) -> None:
        if self._is_closed:
            path = str(self._database.path)
            raise StoreError(f"the {self._database.schema.name} {path} is already closed", path=path)
        self._jobs.append(job)
        # A batch that another event loop gathers is not waited for: that loop may end before its time is up.
        if self._is_awake and (self._gathering is None or self._gathering is job.loop):
            return
        self._is_awake = True
        if job.loop is None or self._gather_s == 0:
            self._bell.put(True)
        else:
            # Waking a thread costs as much as a small job, so it sleeps while the caller's event loop gathers.
            self._gathering = job.loop
            job.loop.call_later(self._gather_s, self._bell.put, False)

    def _serve(self) -> None:
        is_last = False
        while not is_last:
            is_to_gather = self._bell.get()
            if is_to_gather and self._gather_s > 0 and not self._is_closed:
                time.sleep(self._gather_s)
            is_last = self._is_closed
            # Reset before the jobs are taken: a job that is added from here on rings again.
            self._gathering, self._is_awake = None, False
            batch = [self._jobs.popleft() for _ in range(len(self._jobs))]
            self._run_batch(batch)
            # Settle all futures with one call per event loop: waking a loop costs a system call.
            by_loop: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
            for job in batch:
                if job.loop is None:
                    job.settle()
                else:
                    by_loop.setdefault(job.loop, []).append(job)
            for loop, jobs in by_loop.items():
                # If the event loop was closed meanwhile, there are no callers left.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(_settle, jobs)
        self._connection.close()

    def _run_batch(self, batch: list[_Job]) -> None:
        if not self._writes or len(batch) <= 1:
            for job in batch:
                self._run_alone(job)
            return
        try:
            with transaction(self._connection):
                for job in batch:
                    job.result = job.work(self._connection)
        except Exception as error:  # noqa: BLE001 - whatever it is, a caller waits for each of these jobs
            for job in batch:
                # If the disk is locked or full, each would fail alike, after a wait of its own.
                if self._database.is_storage_error(error):
                    self._fail(job, error)
                else:
                    self._run_alone(job)

    def _run_alone(self, job: _Job) -> None:
        try:
            with transaction(self._connection) if self._writes else contextlib.nullcontext():
                job.result = job.work(self._connection)
        except Exception as error:  # noqa: BLE001 - if the thread died, all callers would wait for ever
            self._fail(job, error)

    def _fail(self, job: _Job, error: Exception) -> None:
        job.error = error
        if isinstance(error, _FAILURES):
            job.error = self._database.error(error)
            job.error.__cause__ = error


def _settle(jobs: list[_Job]) -> None:
    for job in jobs:
        job.settle()
