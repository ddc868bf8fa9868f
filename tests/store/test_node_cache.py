"""The cache of another machine: it fetches what the run's cache knows, once, and passes on what is new."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from geval_cli.extras.workers.ray_cluster import AnswerRow, KnownKeys, NodeCache, packed_keys, rows_of
from geval_cli.records import Choice
from geval_cli.store.cache import ResponseCache, StoredChoice

KEYS = [f"{number:064x}" for number in (7 << 200, 8 << 200, 2**255)]


def answer(text: str) -> StoredChoice:
    return StoredChoice(Choice(text))


@given(st.sets(st.binary(min_size=32, max_size=32), max_size=30), st.binary(min_size=32, max_size=32))
def test_keys_of_the_other_cache_are_known(keys: set[bytes], other: bytes) -> None:
    packed = b"".join(int.from_bytes(key[:8]).to_bytes(8, "little") for key in sorted(keys))
    known = KnownKeys(packed)
    assert all(known.may_hold(key.hex()) for key in keys)
    assert known.may_hold(other.hex()) == (other[:8] in {key[:8] for key in keys})


def test_what_the_run_knows_is_fetched_once_and_what_is_new_is_passed_on(tmp_path: Path) -> None:
    asyncio.run(fetching(tmp_path))


async def fetching(folder: Path) -> None:
    home = ResponseCache.open(folder / "home", now=lambda: 1000.0)
    await home.put_many({KEYS[0]: answer("old"), KEYS[2]: answer("high")})
    fetched: list[list[str]] = []
    shared: dict[str, StoredChoice] = {}

    async def fetch(keys: Sequence[str]) -> Sequence[AnswerRow]:
        fetched.append(list(keys))
        return await rows_of(home, keys)

    def share(answers: Mapping[str, StoredChoice]) -> None:
        shared.update(answers)

    node = NodeCache.open(folder / "node", now=lambda: 1000.0)
    node.known, node.fetch, node.share = KnownKeys(await packed_keys(home, 0.0)), fetch, share
    for _ in range(2):
        found = await node.get_many(KEYS)
        assert {key: kept.choice.text for key, kept in found.items()} == {KEYS[0]: "old", KEYS[2]: "high"}
    assert fetched == [[KEYS[0], KEYS[2]]]
    await node.put_many({KEYS[1]: answer("new")})
    assert list(shared) == [KEYS[1]]  # and nothing that came from there
    assert len(await node.get_many(KEYS)) == 3
    assert await packed_keys(home, 1000.5) == b""
    node.close()
    home.close()
