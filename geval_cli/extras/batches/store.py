"""The batches known to a response cache: what each provider was sent, by which run, and answers not read yet."""

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import asdict

from geval_cli.errors import StoreError
from geval_cli.json_codec import decode_json, encode_json
from geval_cli.records import JsonValue, Role
from geval_cli.store.database import Database, DatabaseThread

# Short texts stay readable with any SQLite tool.
_DEFLATE_FROM_BYTES = 1024
_MOST_REPLY_BYTES = 128 * 1024 * 1024
_KEYS_PER_QUERY = 500
_ROWS_PER_READ = 500

_FIND_REQUEST = "SELECT batch_id, reply, tries FROM batch_requests WHERE key = ?"
_ADD_REQUEST = """
    INSERT INTO batch_requests (key, run_id, body, size, reserved_usd, created_at) VALUES (?, ?, ?, ?, ?, ?)
"""
_IS_FREE = "batch_id IS NULL AND reply IS NULL"
_RENEW_BODY = f"UPDATE batch_requests SET body = ?, size = ?, reserved_usd = ? WHERE key = ? AND {_IS_FREE}"
_FREE_REQUESTS = f"SELECT key, size, reserved_usd FROM batch_requests WHERE {_IS_FREE} AND key IN ({{}})"
_ASSIGN = f"UPDATE batch_requests SET batch_id = ? WHERE key = ? AND {_IS_FREE}"
_TAKE = f"DELETE FROM batch_requests WHERE key = ? AND {_IS_FREE}"
_ANSWER = """
    UPDATE batch_requests SET reply = ?, body = NULL WHERE key = ? AND batch_id = ? AND reply IS NULL
"""
_RELEASE = """
    UPDATE batch_requests SET batch_id = NULL, tries = tries + ? WHERE batch_id = ? AND reply IS NULL
"""
_COUNT_ANSWERS = "UPDATE batches SET answered = answered + ?, failed = failed + ? WHERE id = ?"
_KEYS = "SELECT key FROM batch_requests WHERE batch_id = ? AND reply IS NULL ORDER BY key"
_REFUSE = "UPDATE batch_requests SET reply = ?, body = NULL WHERE batch_id = ? AND reply IS NULL"
_FORGET_KEPT = """
    DELETE FROM batch_requests
    WHERE key = ? AND reply IS NOT NULL AND EXISTS (SELECT 1 FROM choices WHERE choices.key = ?)
"""
_FORGET = "DELETE FROM batch_requests WHERE key = ? AND reply IS NOT NULL"
_ADOPT = """
    INSERT INTO batch_requests (key, batch_id, reply, size, reserved_usd, created_at) VALUES (?, ?, ?, 0, 0, ?)
    ON CONFLICT (key) DO UPDATE SET batch_id = excluded.batch_id, reply = excluded.reply, body = NULL
"""
_WAITING = "SELECT count(*) FROM batch_requests WHERE batch_id = ? AND reply IS NULL"
_UNREAD = """
    SELECT role, count(*) FROM batch_requests JOIN batches ON batches.id = batch_id
    WHERE batches.run_id = ? AND NOT EXISTS (SELECT 1 FROM choices WHERE choices.key = batch_requests.key)
    GROUP BY role
"""
_BODIES = """
    SELECT key, body FROM batch_requests WHERE batch_id = ? AND key > ? AND body IS NOT NULL
    ORDER BY key LIMIT ?
"""
_OF_RUN = """
    SELECT {} FROM batches
    WHERE run_id = ? OR id IN (SELECT value FROM json_each(?)) ORDER BY created_at, id
"""


class BatchState(StrEnum):
    """The states of a batch, from the intent to its end; each is committed before the next step is taken."""

    INTENT = "intent"
    UPLOADED = "uploaded"
    SUBMITTED = "submitted"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_open(self) -> bool:
        """Return whether more answers may arrive."""
        return self in {BatchState.INTENT, BatchState.UPLOADED, BatchState.SUBMITTED}


class Batch(Struct, frozen=True):
    """A batch. Times are seconds since 1970.

    Attributes:
        id: geval's id, which the provider stores as a label where it can.
        run_id: the run that created it; None if it was adopted.
        server: the model and its address, as one text without keys.
        reserved_usd: its expected cost.
        remote_id: the provider's id for it.
        failed: how many of its requests were answered with an error.
    """

    id: str
    run_id: str | None
    server: str
    provider_id: str
    role: Role
    state: BatchState
    requests: int
    reserved_usd: float
    created_at: float
    file_id: str | None = None
    remote_id: str | None = None
    answered: int = 0
    failed: int = 0
    expires_at: float | None = None
    ended_at: float | None = None


class BatchReply(Struct, frozen=True):
    """A provider's answer to one request of a batch: an HTTP status with a body.

    `problem` is set instead if the request got no answer and must not be sent again.
    """

    status: int = 200
    body: JsonValue = None
    problem: str = ""

    @property
    def is_success(self) -> bool:
        return not self.problem and 200 <= self.status < 300  # noqa: PLR2004 - HTTP's own range


class Claim(Struct, frozen=True):
    """Where a request is: in a batch, waiting, or answered. `tries` counts batches that ended without answering it."""

    batch_id: str | None = None
    reply: BatchReply | None = None
    tries: int = 0
    is_new: bool = False


class FreeRequest(Struct, frozen=True):
    """A request that is in no batch yet: its size in bytes and its expected cost."""

    key: str
    size: int
    reserved_usd: float


_COLUMNS = ", ".join(Batch.__struct_fields__)
_PLACES = ", ".join("?" * len(Batch.__struct_fields__))


class BatchStore:
    """The batches in a response cache. Safe for several processes: every step is one transaction."""

    def __init__(
        self, database: Database, reader: DatabaseThread, writer: DatabaseThread, now: Callable[[], float]
    ) -> None:
        self._database = database
        self._reader = reader
        self._writer = writer
        self.now = now

    async def claim(self, key: str, body: bytes, run_id: str | None, reserved_usd: float) -> Claim:
        """Return where a request is; an unknown one is recorded as waiting for the next batch.

        An answer that is an error is returned only once: later requests for it are sent again.

        Raises:
            StoreError: the cache cannot be written.
        """
        stored = _packed(body)
        name = bytes.fromhex(key)
        now = self.now()

        def work(connection: sqlite3.Connection) -> Claim:
            row = connection.execute(_FIND_REQUEST, (name,)).fetchone()
            if row is None:
                connection.execute(_ADD_REQUEST, (name, run_id, stored, len(body), reserved_usd, now))
                return Claim(is_new=True)
            batch_id, reply, tries = row
            if reply is not None:
                found = _reply_of(reply)
                if not found.is_success:
                    connection.execute(_FORGET, (name,))
                return Claim(batch_id, found, tries)
            if batch_id is None:  # a server's limits may have been found out since it was written
                connection.execute(_RENEW_BODY, (stored, len(body), reserved_usd, name))
            return Claim(batch_id, None, tries)

        return await self._writer.run(work)

    async def is_known(self, key: str) -> bool:
        """Return whether a request is in a batch or answered by one."""
        row = await self._read_one(_FIND_REQUEST, (bytes.fromhex(key),))
        return row is not None and (row[0] is not None or row[1] is not None)

    async def take(self, key: str) -> bool:
        """Remove a request so that it can be sent directly; False if it is already in a batch."""
        name = bytes.fromhex(key)

        def work(connection: sqlite3.Connection) -> bool:
            if connection.execute(_TAKE, (name,)).rowcount:
                return True
            return connection.execute(_FIND_REQUEST, (name,)).fetchone() is None

        return await self._writer.run(work)

    async def free_requests(self, keys: Sequence[str]) -> list[FreeRequest]:
        """Return the requests among `keys` that are in no batch, in the same order."""

        def work(connection: sqlite3.Connection) -> list[FreeRequest]:
            found: dict[str, FreeRequest] = {}
            for some in _chunks(keys):
                names = [bytes.fromhex(key) for key in some]
                rows = connection.execute(_FREE_REQUESTS.format(",".join("?" * len(names))), names)
                found |= {key.hex(): FreeRequest(key.hex(), size, usd) for key, size, usd in rows}
            return [found[key] for key in keys if key in found]

        return await self._reader.run(work)

    async def add(self, batch: Batch, keys: Sequence[str]) -> Batch | None:
        """Create a batch of those `keys` that are in none yet; None if there are no such keys.

        Raises:
            StoreError: the cache cannot be written.
        """
        rows = [(batch.id, bytes.fromhex(key)) for key in keys]

        def work(connection: sqlite3.Connection) -> int:
            count = connection.executemany(_ASSIGN, rows).rowcount
            if count:
                values = {**asdict(batch), "requests": count}
                connection.execute(
                    f"INSERT INTO batches ({_COLUMNS}) VALUES ({_PLACES})", tuple(values.values())
                )
            return count

        count = await self._writer.run(work)
        return _with(batch, requests=count) if count else None

    async def update(self, batch: Batch, **changes: JsonValue) -> Batch:
        """Store changes to a batch and return it."""
        settings = ", ".join(f"{name} = ?" for name in changes)
        values = (*changes.values(), batch.id)
        await self._writer.run(
            lambda connection: connection.execute(f"UPDATE batches SET {settings} WHERE id = ?", values)
        )
        return _with(batch, **changes)

    def bodies(self, batch_id: str) -> Iterator[tuple[str, bytes]]:
        """Yield the key and body of each request of a batch, on a separate connection: a thread writes them to a file.

        Raises:
            StoreError: the cache cannot be read.
        """
        try:
            with closing(self._database.connect()) as connection:
                last = b""
                while rows := connection.execute(_BODIES, (batch_id, last, _ROWS_PER_READ)).fetchall():
                    yield from ((key.hex(), _unpacked(body)) for key, body in rows)
                    last = rows[-1][0]
        except sqlite3.Error as error:
            raise self._database.error(error) from error

    async def answer(self, batch_id: str, replies: Mapping[str, BatchReply]) -> tuple[int, int]:
        """Store answers and delete their requests, in one transaction.

        Answers to unknown or already answered requests are ignored. Returns how many answers were new, and how many of
        those are errors.
        """
        rows = [
            (_packed(encode_json(_document(reply))), bytes.fromhex(key), batch_id, reply.is_success)
            for key, reply in replies.items()
        ]

        def work(connection: sqlite3.Connection) -> tuple[int, int]:
            new = failed = 0
            for *values, is_success in rows:
                is_new = connection.execute(_ANSWER, values).rowcount
                new += is_new
                failed += is_new and not is_success
            if new:
                connection.execute(_COUNT_ANSWERS, (new, failed, batch_id))
            return new, failed

        return await self._writer.run(work)

    async def keys(self, batch_id: str) -> list[str]:
        """Return the keys of a batch's unanswered requests."""
        rows = await self._reader.run(lambda connection: connection.execute(_KEYS, (batch_id,)).fetchall())
        return [row[0].hex() for row in rows]

    async def waiting(self, batch_id: str) -> int:
        """Return the number of a batch's unanswered requests."""
        row = await self._read_one(_WAITING, (batch_id,))
        return int(row[0]) if row else 0

    async def unread(self, run_id: str | None) -> dict[Role, int]:
        """Return how many requests in a run's batches have no answer in the response cache, by role."""
        rows = await self._reader.run(lambda connection: connection.execute(_UNREAD, (run_id,)).fetchall())
        return {Role(role): count for role, count in rows}

    async def end(
        self, batch: Batch, state: BatchState, *, tries: int = 1, refusal: BatchReply | None = None
    ) -> Batch:
        """End a batch: its unanswered requests wait for another one, or are answered with `refusal`.

        `tries` is added to the tries of those requests.
        """
        ended_at = self.now()
        stored = None if refusal is None else _packed(encode_json(_document(refusal)))

        def work(connection: sqlite3.Connection) -> None:
            if stored is None:
                connection.execute(_RELEASE, (tries, batch.id))
            else:
                connection.execute(_REFUSE, (stored, batch.id))
            connection.execute(
                "UPDATE batches SET state = ?, ended_at = ? WHERE id = ?", (state, ended_at, batch.id)
            )

        await self._writer.run(work)
        return _with(batch, state=state, ended_at=ended_at)

    async def forget_read(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Delete answers that the response cache has by now; the pairs are their keys here and there."""
        rows = [(bytes.fromhex(key), bytes.fromhex(choice)) for key, choice in pairs]
        await self._writer.run(lambda connection: connection.executemany(_FORGET_KEPT, rows))

    async def forget(self, key: str) -> None:
        """Delete an answer that cannot be used."""
        name = bytes.fromhex(key)
        await self._writer.run(lambda connection: connection.execute(_FORGET, (name,)))

    async def adopt(self, batch_id: str, replies: Mapping[str, BatchReply]) -> None:
        """Store the answers of a batch unknown to this cache, for any later run with the same requests."""
        now = self.now()
        rows = [
            (bytes.fromhex(key), batch_id, _packed(encode_json(_document(reply))), now)
            for key, reply in replies.items()
        ]
        await self._writer.run(lambda connection: connection.executemany(_ADOPT, rows))

    async def find(self, batch_ids: Iterable[str]) -> list[Batch]:
        """Return the batches with these ids, oldest first."""
        return await self.of_run(None, batch_ids)

    async def of_run(self, run_id: str | None, others: Iterable[str] = ()) -> list[Batch]:
        """Return the batches that a run created and those with the ids in `others`, oldest first."""
        arguments = (run_id, encode_json(list(others)).decode())
        return await self._rows(_OF_RUN.format(_COLUMNS), arguments)

    async def all(self) -> list[Batch]:
        """Return every batch, oldest first."""
        return await self._rows(f"SELECT {_COLUMNS} FROM batches ORDER BY created_at, id", ())

    async def _rows(self, statement: str, arguments: tuple[JsonValue, ...]) -> list[Batch]:
        rows = await self._reader.run(lambda connection: connection.execute(statement, arguments).fetchall())
        return [_batch(row) for row in rows]

    async def _read_one(
        self, statement: str, arguments: tuple[JsonValue, ...]
    ) -> tuple[JsonValue, ...] | None:
        found: tuple[JsonValue, ...] | None = await self._reader.run(
            lambda connection: connection.execute(statement, arguments).fetchone()
        )
        return found


def _batch(row: Sequence[JsonValue]) -> Batch:
    values = dict(zip(Batch.__struct_fields__, row, strict=True))
    try:
        return Batch(**{**values, "role": Role(values["role"]), "state": BatchState(values["state"])})
    except ValueError as error:
        raise StoreError(
            f"the response cache contains a batch that geval did not create: {error}",
            path="",
            hint="choose another folder with --home or --cache-dir",
        ) from error


def _with(batch: Batch, **changes: JsonValue) -> Batch:
    return Batch(**{**asdict(batch), **changes})


def _chunks(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(keys), _KEYS_PER_QUERY):
        yield keys[start : start + _KEYS_PER_QUERY]


def _document(reply: BatchReply) -> dict[str, JsonValue]:
    return {"problem": reply.problem} if reply.problem else {"status": reply.status, "body": reply.body}


def _reply_of(stored: str | bytes) -> BatchReply:
    try:
        document = decode_json(_unpacked(stored))
        return BatchReply(document.get("status", 0), document.get("body"), document.get("problem", ""))
    except (ValueError, AttributeError, zlib.error):
        return BatchReply(problem="the stored answer cannot be read")


def _packed(text: bytes) -> str | bytes:
    if len(text) < _DEFLATE_FROM_BYTES:
        try:
            return text.decode()
        except UnicodeDecodeError:
            return zlib.compress(text, 1)
    return zlib.compress(text, 1)


def _unpacked(stored: str | bytes) -> bytes:
    if isinstance(stored, str):
        return stored.encode()
    inflating = zlib.decompressobj()
    text = inflating.decompress(stored, _MOST_REPLY_BYTES)
    if inflating.unconsumed_tail:
        raise ValueError(f"an answer of more than {_MOST_REPLY_BYTES:,} bytes")
    return text
