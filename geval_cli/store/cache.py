"""The response cache: model answers by a hash of the request; a Bloom filter saves most look-ups in the database."""

import contextlib
import math
import mmap
import sqlite3
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, convert, field

from geval_cli.errors import StoreError
from geval_cli.json_codec import decode_json, encode_json
from geval_cli.plugins import extra
from geval_cli.records import Choice, JsonValue, Message, TokenAlternative, TokenLogprob, Usage
from geval_cli.store.database import (
    CACHE,
    SHRUNK_MAX_BYTES,
    Database,
    DatabaseThread,
    OpenMode,
    memory_database,
    open_database,
    readable_database,
    shrink,
    unsent,
)
from geval_cli.store.locks import Claims

_BITS = 1 << 23  # a mebibyte; pages that are never written to take up no memory
_MASK = _BITS - 1
_DIGITS = 32
_FOUR_NUMBERS = struct.Struct("<4I")
CACHE_FILE = "cache.db"
DEFAULT_TTL_S = 14 * 24 * 3600.0
# Most answers are short and stay readable with any SQLite tool; token probabilities shrink to a third.
_DEFLATE_FROM_BYTES = 2048
_KEYS_PER_QUERY = 500

_INSERT = "INSERT OR REPLACE INTO choices (key, created_at, answer, only_run) VALUES (?, ?, ?, ?)"
_MARK_SHARED = "UPDATE choices SET only_run = NULL WHERE key = ?"
_DELETE_OF_RUN = "DELETE FROM choices WHERE only_run = ?"
_DELETE_BATCHED_OF_RUN = "DELETE FROM batch_requests WHERE run_id = ?"
_DELETE_BATCHES_OF_RUN = "DELETE FROM batches WHERE run_id = ?"
_PRUNE = "DELETE FROM choices WHERE created_at < ?"
_PRUNE_BATCHED = "DELETE FROM batch_requests WHERE created_at < ? AND (reply IS NOT NULL OR batch_id IS NULL)"
# SQLite sorts text after any number, so a row with a text as its time would never expire.
_YOUNG_ROWS = "FROM choices WHERE key IN ({}) AND created_at >= ? AND typeof(created_at) = 'real'"
_SELECT = f"SELECT key, answer {_YOUNG_ROWS}"
_SELECT_KEYS_SINCE = "SELECT key FROM choices WHERE created_at >= ?"
_SELECT_WITH_RUN = f"SELECT key, answer, only_run {_YOUNG_ROWS}"
_STATS = """
    SELECT count(*), coalesce(sum(length(answer)), 0), min(created_at), max(created_at),
           coalesce(sum(created_at < ?), 0)
    FROM choices
"""


CacheRow = tuple[Any, ...]
"""A key in hexadecimal digits, then the selected columns."""

_MOST_ANSWER_BYTES = 128 * 1024 * 1024
"""No provider's answer comes near this length."""


class KeyFilter:
    """A Bloom filter of keys (hexadecimal digits of a hash): no false negatives, and few false positives.

    With 100,000 keys in it, one other key in 100,000 is a false positive; with two million, one in seven.
    """

    def __init__(self) -> None:
        self._bits = mmap.mmap(-1, _BITS >> 3, access=mmap.ACCESS_COPY)

    def add(self, key: str) -> None:
        """Add `key` to the filter."""
        for number in _numbers(key):
            position = number & _MASK
            self._bits[position >> 3] |= 1 << (position & 7)

    def may_hold(self, key: str) -> bool:
        """Return False only if `key` was never added."""
        bits = self._bits
        a, b, c, d = _numbers(key)
        found = bits[(a & _MASK) >> 3] >> (a & 7) & bits[(b & _MASK) >> 3] >> (b & 7)
        return bool(found & bits[(c & _MASK) >> 3] >> (c & 7) & bits[(d & _MASK) >> 3] >> (d & 7) & 1)


def _numbers(key: str) -> tuple[int, ...]:
    return _FOUR_NUMBERS.unpack(bytes.fromhex(key[:_DIGITS]))


class StoredChoice(Struct, frozen=True):
    """One answer as the cache returns it.

    Attributes:
        usage: its share of the usage of the request that paid for it.
        latency_ms: the time that this request took; None if it was part of a batch.
    """

    choice: Choice
    usage: Usage = Usage(requests=1)
    latency_ms: float | None = 0.0
    model: str | None = None
    dropped: tuple[str, ...] = ()
    fingerprint: str | None = None


class _Kept(Struct, frozen=True):
    """One answer in the form of its row in the database."""

    text: str
    finish_reason: str | None
    usage: tuple[int, int, float | None]
    latency_ms: float | None
    model: str | None
    dropped: tuple[str, ...]
    logprobs: list[tuple[str, float, list[tuple[str, float]]]] | None = None
    is_data: bool = False
    reported: dict[str, JsonValue] = field(default_factory=dict)
    tool_calls: tuple[dict[str, JsonValue], ...] = ()
    fingerprint: str | None = None
    message: Message | None = None


class CacheStats(Struct, frozen=True):
    """The number, size and age of the entries. `expired` ones are not read; times are seconds since 1970."""

    path: Path
    entries: int
    expired: int
    answer_bytes: int
    file_bytes: int
    oldest: float | None
    newest: float | None


class ResponseCache:
    """A cache of answers by content-addressed key. Safe for several processes at once.

    Attributes:
        warnings: what the user should know about opening it (a damaged file that was moved aside).
        ttl_s: how long an answer is valid, in seconds; None for ever.
        is_read_only: whether it only gives answers and stores none.
        is_temporary: whether it ends with this process, in place of a cache that cannot be used.
        no_room: the error of a full disk, if that is why it ends.
    """

    is_temporary = False
    no_room: StoreError | None = None

    def __init__(
        self,
        database: Database,
        *,
        ttl_s: float | None = DEFAULT_TTL_S,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.warnings = database.warnings
        self.ttl_s = ttl_s
        self.is_read_only = database.is_read_only
        self._clock = now
        self._latest = 0.0
        self._own = KeyFilter()
        self._own_since = now()  # what was stored later was stored through this object, as far as it matters
        self._database = database
        self._reader = DatabaseThread(database, writes=False)
        self._writer = None if database.is_read_only else DatabaseThread(database)
        self._claims: Claims | None = None

    @classmethod
    def open(
        cls, folder: Path, *, ttl_s: float | None = DEFAULT_TTL_S, now: Callable[[], float] = time.time
    ) -> Self:
        """Return the cache in `folder`, created if it is missing. `now` returns seconds since 1970.

        Raises:
            StoreError: the folder or the file cannot be used; the hint says what to do.
        """
        return cls(open_database(folder / CACHE_FILE, CACHE), ttl_s=ttl_s, now=now)

    @classmethod
    @contextlib.contextmanager
    def open_read_only(cls, folder: Path, *, is_frozen: bool = False) -> "Iterator[ResponseCache]":
        """Open the cache in `folder` for reading, until the end of the block; its answers do not expire.

        With `is_frozen`, no other process writes to it, and nothing is created in its folder: a checkout stays clean.

        Raises:
            StoreError: there is none, or it cannot be read.
        """
        with readable_database(folder / CACHE_FILE, CACHE, is_frozen=is_frozen) as database:
            cache = cls(database, ttl_s=None)
            try:
                yield cache
            finally:
                cache.close()

    @classmethod
    @contextlib.contextmanager
    def open_in_memory(cls) -> "Iterator[ResponseCache]":
        """Open a cache in memory, which is gone at the end of the block."""
        with memory_database(CACHE) as database, contextlib.closing(cls(database)) as cache:
            yield cache

    @staticmethod
    def exists(folder: Path) -> bool:
        """Return whether there is a cache in `folder`, without creating one."""
        return (folder / CACHE_FILE).is_file()

    @property
    def folder(self) -> Path | None:
        """Return the folder of its file; None for a cache in memory."""
        return None if self._database.access is OpenMode.MEMORY else self._database.path.parent

    @property
    def claims(self) -> Claims | None:
        """Return the claims on answers that are being requested; None if no other process can use the cache."""
        if self._claims is None and not self.is_read_only and self.folder is not None:
            self._claims = Claims(self.folder)
        return self._claims

    @property
    def batches(self) -> Any:
        """Return the `BatchStore` of the batches at providers whose answers go into this cache.

        Raises:
            StoreError: it was opened for reading only.
        """
        return extra("stored batches").BatchStore(self._database, self._reader, self._writing(), self.now)

    def now(self) -> float:
        """Return the seconds since 1970; unlike the system's clock, this time never goes back."""
        self._latest = max(self._latest, self._clock())
        return self._latest

    def begin_at(self, time_s: float) -> None:
        """Keep `now` from being before `time_s`: whatever is stored from here on counts as stored since then."""
        self._latest = max(self._latest, time_s)
        self._own_since = math.inf  # other processes stored some of the answers, whatever the clock says

    async def begin_shared(self, time_s: float) -> None:
        """Do the same as `begin_at`, but allow answers that other processes store later to be missed, to save look-ups.

        Raises:
            StoreError: the cache cannot be read.
        """
        self._latest = max(self._latest, time_s)
        known = await self._reader.run(
            lambda connection: connection.execute(_SELECT_KEYS_SINCE, (time_s,)).fetchall()
        )
        for (key,) in known:
            self._own.add(key.hex())
        self._own_since = time_s

    async def get_many(self, keys: Sequence[str], *, since: float | None = None) -> dict[str, StoredChoice]:
        """Return those of `keys` that are stored and neither expired nor older than `since` (seconds since 1970).

        Answers that other processes stored after this one opened the cache may be missing if `since` is as late as
        that. A look-up does not count as use by a run: that takes `used_by`.

        Raises:
            StoreError: the cache cannot be read.
        """
        rows = await self._find(_SELECT, keys, since)
        found = ((key, _decoded(answer)) for key, answer in rows)
        return {key: stored for key, stored in found if stored is not None}

    async def _find(self, statement: str, keys: Sequence[str], since: float | None) -> list[CacheRow]:
        if since is not None and since >= self._own_since:
            # Only answers stored through this object can be as young, and a query is most of the cost of a look-up.
            keys = [key for key in keys if self._own.may_hold(key)]
            if not keys:
                return []
        oldest = max(self._expiry(), since or 0.0)
        return await self._reader.run(lambda connection: _select(connection, statement, keys, oldest))

    async def put_many(self, choices: Mapping[str, StoredChoice], *, run_id: str | None = None) -> None:
        """Store `choices`, replacing older ones. They are committed when this returns, after milliseconds.

        Args:
            choices: the answers, by key.
            run_id: the run that paid for them; None if there was none.

        Raises:
            StoreError: the cache cannot be written.
        """
        created_at = self.now()
        rows = [(bytes.fromhex(key), created_at, _encode(stored), run_id) for key, stored in choices.items()]
        for key in choices:
            self._own.add(key)
        await self._writing().run(lambda connection: insert_rows(connection, rows))

    async def remove_many(self, keys: Sequence[str]) -> None:
        """Remove `keys`, as far as they are stored.

        Raises:
            StoreError: the cache cannot be written.
        """
        rows = [(bytes.fromhex(key),) for key in keys]
        await self._writing().run(
            lambda connection: connection.executemany("DELETE FROM choices WHERE key = ?", rows)
        )

    def used_by(self, run_id: str | None) -> "CacheOfRun":
        """Return the cache as a run uses it; `run_id` is None for requests outside a run."""
        return CacheOfRun(self, run_id)

    async def stats(self) -> CacheStats:
        """Count and measure the entries.

        Raises:
            StoreError: the cache cannot be read.
        """
        expiry = self._expiry()
        row = await self._reader.run(lambda connection: connection.execute(_STATS, (expiry,)).fetchone())
        entries, answer_bytes, oldest, newest, expired = row
        path = self._database.path
        return CacheStats(
            path,
            entries,
            expired,
            answer_bytes=answer_bytes,
            file_bytes=path.stat().st_size,
            oldest=oldest,
            newest=newest,
        )

    async def clear(self) -> int:
        """Remove every answer and give the space back. Returns the number of answers removed.

        Raises:
            StoreError: the cache cannot be written.
        """
        return await self._remove(
            ("DELETE FROM choices", "DELETE FROM batch_requests WHERE reply IS NOT NULL")
        )

    async def prune(self, *, older_than_s: float | None = None) -> int:
        """Remove answers older than this many seconds, or by default the expired ones, and give the space back.

        Returns the number of answers removed.

        Raises:
            StoreError: the cache cannot be written.
        """
        before = self._expiry() if older_than_s is None else self.now() - older_than_s
        return await self._remove((_PRUNE, _PRUNE_BATCHED), (before,))

    async def remove_runs(self, run_ids: Iterable[str], *, shrinks: bool) -> int:
        """Remove the answers that one of these runs paid for and no other has used. Returns the number removed.

        Args:
            run_ids: the runs.
            shrinks: whether the space is given back to the disk, for which all other processes have to wait.

        Raises:
            StoreError: the cache cannot be written.
        """
        rows = [(run_id,) for run_id in run_ids]

        def delete(connection: sqlite3.Connection) -> int:
            connection.execute("PRAGMA secure_delete = ON")  # prompts and answers are private
            connection.executemany(_DELETE_BATCHED_OF_RUN, rows)
            connection.executemany(_DELETE_BATCHES_OF_RUN, rows)
            return connection.executemany(_DELETE_OF_RUN, rows).rowcount

        removed = await self._writing().run(delete)
        if removed and shrinks and self._database.path.stat().st_size <= SHRUNK_MAX_BYTES:
            await self._reader.run(shrink)
        return removed

    def check_room(self) -> None:
        """Raise StoreError if answers cannot be stored because the disk is full: what is paid for would be lost."""
        if self.no_room is not None:
            raise unsent(self.no_room)

    def close(self) -> None:
        """Commit what was stored and release the file. Safe to call twice."""
        if self._claims is not None:
            self._claims.close()
        self._reader.close()
        if self._writer is not None:
            # The last process to close a database merges its log into the file.
            self._writer.close()

    def _expiry(self) -> float:
        return 0.0 if self.ttl_s is None else self.now() - self.ttl_s

    async def _remove(self, statements: Sequence[str], arguments: tuple[float, ...] = ()) -> int:
        removed = await self._writing().run(
            lambda connection: sum(
                connection.execute(statement, arguments).rowcount for statement in statements
            )
        )
        await self._reader.run(shrink)
        return removed

    def _writing(self) -> DatabaseThread:
        if self._writer is None:
            path = self._database.path
            hint = "leave --offline out, or choose another folder with --cache-dir"
            raise StoreError(f"the response cache {path} was opened read-only", path=str(path), hint=hint)
        return self._writer


class CacheOfRun:
    """The cache as one run uses it: it records which answers the run paid for, and which it has from others."""

    def __init__(self, cache: ResponseCache, run_id: str | None) -> None:
        self._cache = cache
        self._run_id = run_id

    async def get_many(self, keys: Sequence[str], *, since: float | None = None) -> dict[str, StoredChoice]:
        """Return the same as `ResponseCache.get_many`; answers that another run paid for are marked as shared.

        Raises:
            StoreError: the cache cannot be read.
        """
        cache = self._cache
        if cache.is_read_only:  # it may be older than the column that says which run paid for an answer
            return await cache.get_many(keys, since=since)
        found: dict[str, StoredChoice] = {}
        foreign: list[tuple[bytes]] = []
        for key, answer, only_run in await cache._find(_SELECT_WITH_RUN, keys, since):
            stored = _decoded(answer)
            if stored is not None:
                found[key] = stored
                if only_run is not None and only_run != self._run_id:
                    foreign.append((bytes.fromhex(key),))
        if foreign:
            # The mark is not waited for: a cache that can be read keeps answering even if it cannot be written.
            cache._writing().submit(lambda connection: connection.executemany(_MARK_SHARED, foreign))
        return found

    async def put_many(self, choices: Mapping[str, StoredChoice]) -> None:
        """Store `choices` as paid for by this run; see `ResponseCache.put_many`."""
        await self._cache.put_many(choices, run_id=self._run_id)

    async def remove_many(self, keys: Sequence[str]) -> None:
        """Remove `keys`; see `ResponseCache.remove_many`."""
        await self._cache.remove_many(keys)


def _select(
    connection: sqlite3.Connection, statement: str, keys: Sequence[str], oldest: float
) -> list[CacheRow]:
    rows: list[CacheRow] = []
    for start in range(0, len(keys), _KEYS_PER_QUERY):
        some = [bytes.fromhex(key) for key in keys[start : start + _KEYS_PER_QUERY]]
        marks = ",".join("?" * len(some))
        found = connection.execute(statement.format(marks), (*some, oldest))
        rows.extend((row[0].hex(), *row[1:]) for row in found)
    return rows


def insert_rows(
    connection: sqlite3.Connection, rows: Sequence[tuple[bytes, float, str | bytes, str | None]]
) -> None:
    """Write answers as rows: key, seconds since 1970, the encoded answer, the only run that uses it."""
    connection.executemany(_INSERT, rows)


def _encode(stored: StoredChoice) -> str | bytes:
    choice, usage = stored.choice, stored.usage
    answer: dict[str, JsonValue] = {
        "text": choice.text,
        "finish_reason": choice.finish_reason,
        "usage": [usage.input_tokens, usage.output_tokens, usage.cost_usd],
        "latency_ms": stored.latency_ms,
        "model": stored.model,
        "dropped": stored.dropped,
    }
    if stored.fingerprint is not None:
        answer["fingerprint"] = stored.fingerprint
    if choice.is_data:
        answer["is_data"] = True
    if choice.reported:
        answer["reported"] = choice.reported
    if choice.tool_calls:
        answer["tool_calls"] = choice.tool_calls
    if choice.message is not None:
        answer["message"] = choice.message
    if choice.token_logprobs is not None:
        answer["logprobs"] = [
            [token.text, token.logprob, [[other.text, other.logprob] for other in token.alternatives]]
            for token in choice.token_logprobs
        ]
    text = encode_json(answer)
    return text.decode() if len(text) < _DEFLATE_FROM_BYTES else zlib.compress(text, 1)


def _decoded(answer: object) -> StoredChoice | None:
    """Return an answer as it was stored; None for anything that geval never wrote, which counts as missing."""
    try:
        return _decode(answer) if isinstance(answer, str | bytes) else None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, zlib.error):
        return None


def _inflated(answer: bytes) -> bytes:
    inflating = zlib.decompressobj()
    text = inflating.decompress(answer, _MOST_ANSWER_BYTES)
    if inflating.unconsumed_tail:
        raise ValueError(f"an answer of more than {_MOST_ANSWER_BYTES:,} bytes")
    return text


def _decode(answer: str | bytes) -> StoredChoice:
    data = convert(decode_json(answer if isinstance(answer, str) else _inflated(answer)), _Kept)
    tokens = None if data.logprobs is None else tuple(_token(*token) for token in data.logprobs)
    input_tokens, output_tokens, cost_usd = data.usage
    return StoredChoice(
        choice=Choice(
            data.text,
            data.finish_reason,
            tokens,
            is_data=data.is_data,
            reported=data.reported,
            tool_calls=data.tool_calls,
            message=data.message,
        ),
        usage=Usage(requests=1, input_tokens=input_tokens, output_tokens=output_tokens, cost_usd=cost_usd),
        latency_ms=data.latency_ms,
        model=data.model,
        dropped=data.dropped,
        fingerprint=data.fingerprint,
    )


def _token(text: str, logprob: float, alternatives: list[tuple[str, float]]) -> TokenLogprob:
    return TokenLogprob(text, logprob, tuple(TokenAlternative(*other) for other in alternatives))
