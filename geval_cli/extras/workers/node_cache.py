"""The cache of a machine that is not the one that shows the run: answers of its own disk, and those of the other's."""

from array import array
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from geval_cli.store.cache import CacheRow, ResponseCache, StoredChoice, insert_rows

_PREFIX_DIGITS = 16  # of a key: eight bytes, which among a billion keys are rarely those of another one

AnswerRow = tuple[bytes, float, str | bytes, str | None]
"""An answer as a row of the cache: key, seconds since 1970, the encoded answer, the only run that uses it."""

Fetch = Callable[[Sequence[str]], Awaitable[Sequence[AnswerRow]]]
"""Asks the other machine for the answers of keys."""

_KEYS = "SELECT key FROM choices WHERE created_at >= ? ORDER BY key"
_ROWS = "SELECT key, created_at, answer, only_run FROM choices WHERE key IN ({})"


class KnownKeys:
    """The keys of another cache, eight bytes each: no false negatives, and hardly ever a false positive."""

    def __init__(self, packed: bytes = b"") -> None:
        self._prefixes = array("Q")
        self._prefixes.frombytes(packed)

    def may_hold(self, key: str) -> bool:
        """Return False only if the other cache had no answer for `key`."""
        prefix = int(key[:_PREFIX_DIGITS], 16)
        place = bisect_left(self._prefixes, prefix)
        return place < len(self._prefixes) and self._prefixes[place] == prefix


async def packed_keys(cache: ResponseCache, since_s: float) -> bytes:
    """Return the keys of answers that are as young as that, as `KnownKeys` takes them.

    Raises:
        StoreError: the cache cannot be read.
    """
    found = await cache._reader.run(lambda connection: connection.execute(_KEYS, (since_s,)).fetchall())
    return array("Q", (int.from_bytes(key[: _PREFIX_DIGITS // 2]) for (key,) in found)).tobytes()


async def rows_of(cache: ResponseCache, keys: Sequence[str]) -> list[AnswerRow]:
    """Return the answers of keys as rows.

    Raises:
        StoreError: the cache cannot be read.
    """
    marks = ",".join("?" * len(keys))
    asked = [bytes.fromhex(key) for key in keys]
    rows: list[Any] = await cache._reader.run(
        lambda connection: connection.execute(_ROWS.format(marks), asked).fetchall()
    )
    return [tuple(row) for row in rows]


async def all_keys(cache: ResponseCache) -> list[str]:
    """Return the keys of all answers.

    Raises:
        StoreError: the cache cannot be read.
    """
    found = await cache._reader.run(lambda connection: connection.execute(_KEYS, (0.0,)).fetchall())
    return [key.hex() for (key,) in found]


async def keep_rows(cache: ResponseCache, rows: Sequence[AnswerRow]) -> None:
    """Keep answers of another cache as they are there.

    Raises:
        StoreError: the cache cannot be written.
    """
    await cache._writing().run(lambda connection: insert_rows(connection, rows))


class NodeCache(ResponseCache):
    """A cache on the disk of one machine, which fetches what the cache of the run knows and passes on what is new."""

    known = KnownKeys()
    fetch: Fetch | None = None
    share: Callable[[Mapping[str, StoredChoice]], None] | None = None

    async def put_many(self, choices: Mapping[str, StoredChoice], *, run_id: str | None = None) -> None:
        """Keep `choices` here, and then pass them on."""
        await super().put_many(choices, run_id=run_id)
        if self.share is not None:
            self.share(choices)

    async def _find(self, statement: str, keys: Sequence[str], since: float | None) -> list[CacheRow]:
        wanted = [key for key in keys if self.known.may_hold(key) and not self._own.may_hold(key)]
        if wanted and self.fetch is not None:
            rows = await self.fetch(wanted)
            await self._writing().run(lambda connection: insert_rows(connection, rows))
            for key in wanted:
                self._own.add(key)
        return await super()._find(statement, keys, since)
