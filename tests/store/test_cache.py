import asyncio
import contextlib
import hashlib
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geval_cli.errors import StoreError
from geval_cli.records import Choice, TokenAlternative, TokenLogprob, Usage
from geval_cli.store.cache import DEFAULT_TTL_S, ResponseCache, StoredChoice, _decode, _encode

text = st.text(st.characters())
number = st.floats(allow_nan=False, allow_infinity=False)
alternatives = st.lists(st.builds(TokenAlternative, text, number), max_size=3).map(tuple)
tokens = st.lists(st.builds(TokenLogprob, text, number, alternatives), max_size=4).map(tuple)
stored_choices = st.builds(
    StoredChoice,
    choice=st.builds(Choice, text, st.none() | text, st.none() | tokens),
    usage=st.builds(
        Usage,
        requests=st.just(1),
        input_tokens=st.integers(0),
        output_tokens=st.integers(0),
        cost_usd=st.none() | st.floats(0, 9),
    ),
    latency_ms=st.floats(0, 1e9),
    model=st.none() | text,
    dropped=st.lists(text, max_size=2).map(tuple),
)


def key(name):
    return hashlib.sha256(str(name).encode()).hexdigest()


def choice(text="fine"):
    return StoredChoice(Choice(text), Usage(requests=1))


class Days:
    def __init__(self):
        self.today = 20_000.0

    def now(self):
        return self.today * 24 * 3600


@pytest.fixture
def days():
    return Days()


@pytest.fixture
def cache(tmp_path, days):
    cache = ResponseCache.open(tmp_path, now=days.now)
    yield cache
    cache.close()


def test_answers_can_be_removed_one_by_one(cache):
    async def body():
        await cache.put_many({key(name): choice(name) for name in "abc"})
        await cache.remove_many([key("a"), key("b"), key("never there")])
        return await cache.get_many([key(name) for name in "abc"])

    assert asyncio.run(body()) == {key("c"): choice("c")}


@given(stored_choices)
def test_what_is_kept_comes_back_exactly(stored):
    assert _decode(_encode(stored)) == stored


class TestAnswersOfRuns:
    """An answer goes with the run that bought it, unless someone else has used it since."""

    @staticmethod
    async def removed(cache, *runs):
        removed = await cache.remove_runs(runs, shrinks=True)
        left = await cache.get_many([key(name) for name in "abcd"])
        return removed, sorted(stored.choice.text for stored in left.values())

    @pytest.mark.parametrize("other", ["another run", None])
    def test_what_somebody_else_used_stays(self, cache, other):
        async def body():
            await cache.used_by("a run").put_many({key(name): choice(name) for name in "abc"})
            await cache.used_by(other).put_many({key("d"): choice("d")})
            assert len(await cache.used_by("a run").get_many([key("a"), key("d")])) == 2
            assert len(await cache.used_by(other).get_many([key("b"), key("never there")])) == 1
            assert len(await cache.get_many([key("c")])) == 1  # looking is not using
            return await self.removed(cache, "a run")

        assert asyncio.run(body()) == (2, ["b", "d"])

    def test_what_no_run_bought_goes_with_none(self, cache):
        async def body():
            await cache.used_by(None).put_many({key("a"): choice("a")})
            await cache.put_many({key("b"): choice("b")})
            return await self.removed(cache, "a run", "", "None")

        assert asyncio.run(body()) == (0, ["a", "b"])

    def test_what_was_asked_for_again_belongs_to_who_asked(self, cache):
        async def body():
            await cache.used_by("first").put_many({key("a"): choice("old")})
            await cache.used_by("second").put_many({key("a"): choice("new")})
            first = await self.removed(cache, "first")
            return first, await self.removed(cache, "second")

        assert asyncio.run(body()) == ((0, ["new"]), (1, []))

    def test_many_runs_go_at_once(self, cache):
        async def body():
            for name in "abc":
                await cache.used_by(f"run {name}").put_many({key(name): choice(name)})
            return await self.removed(cache, *(f"run {number}" for number in range(2000)), "run a", "run c")

        assert asyncio.run(body()) == (2, ["b"])

    @pytest.mark.parametrize("only_run", [5, 2.5, b"a run", ""])
    def test_an_owner_that_geval_never_wrote_owns_nothing(self, cache, tmp_path, only_run):
        async def body():
            await cache.used_by("a run").put_many({key("a"): choice("a")})
            with contextlib.closing(sqlite3.connect(tmp_path / "cache.db")) as connection, connection:
                connection.execute("UPDATE choices SET only_run = ?", (only_run,))
            assert await cache.used_by("a run").get_many([key("a")]) == {key("a"): choice("a")}
            return await self.removed(cache, "a run")

        assert asyncio.run(body()) == (0, ["a"])


def test_long_answers_take_less_room_than_they_are_long():
    alternatives = tuple(TokenAlternative(f"token {i}", -i / 7) for i in range(20))
    stored = StoredChoice(Choice("8", "stop", (TokenLogprob("8", -0.1, alternatives),) * 50))
    encoded = _encode(stored)
    assert len(encoded) < 3000
    assert _decode(encoded) == stored


def test_only_the_keys_that_are_there_are_found(cache):
    async def body():
        await cache.put_many({key("a"): choice("a"), key("b"): choice("b")})
        return await cache.get_many([key("b"), key("c")])

    assert asyncio.run(body()) == {key("b"): choice("b")}


def test_more_keys_than_one_query_takes_are_found(cache):
    async def body():
        await cache.put_many({key(i): choice(str(i)) for i in range(1200)})
        return await cache.get_many([key(i) for i in range(1300)])

    assert len(asyncio.run(body())) == 1200


def test_a_newer_answer_takes_the_place_of_the_older_one(cache):
    async def body():
        await cache.put_many({key("a"): choice("old")})
        await cache.put_many({key("a"): choice("new")})
        return await cache.get_many([key("a")])

    assert asyncio.run(body()) == {key("a"): choice("new")}


def test_answers_are_good_for_two_weeks_and_then_pruned(cache, days):
    async def body():
        await cache.put_many({key("old"): choice()})
        days.today += 10
        await cache.put_many({key("young"): choice()})
        days.today += 5
        found = await cache.get_many([key("old"), key("young")])
        stats = await cache.stats()
        return found, stats, await cache.prune(), await cache.stats()

    found, before, pruned, after = asyncio.run(body())
    assert DEFAULT_TTL_S == 14 * 24 * 3600
    assert set(found) == {key("young")}
    assert (before.entries, before.expired, pruned, after.entries, after.expired) == (2, 1, 1, 1, 0)
    assert (before.oldest, before.newest) == (20_000 * 86400, 20_010 * 86400)


def test_without_a_time_limit_answers_are_good_for_ever(tmp_path, days):
    async def body():
        cache = ResponseCache.open(tmp_path, ttl_s=None, now=days.now)
        await cache.put_many({key("a"): choice()})
        days.today += 10_000
        found = await cache.get_many([key("a")])
        cache.close()
        return found

    assert len(asyncio.run(body())) == 1


def test_answers_older_than_wished_for_are_not_found(cache, days):
    async def body():
        await cache.put_many({key("before"): choice()})
        days.today += 1
        since = days.now()
        await cache.put_many({key("after"): choice()})
        return await cache.get_many([key("before"), key("after")], since=since)

    assert set(asyncio.run(body())) == {key("after")}


class TestAnswersSinceTheCacheWasOpened:
    @pytest.fixture
    def strangers(self, cache, tmp_path, days):
        """The key of an answer that another process keeps while this one has the cache open."""
        other = ResponseCache.open(tmp_path, now=days.now)
        asyncio.run(other.put_many({key("theirs"): choice()}))
        other.close()
        return key("theirs")

    def test_own_ones_are_found_and_the_database_is_not_asked_for_others(self, cache, days, strangers):
        async def body():
            await cache.put_many({key("own"): choice()})
            return await cache.get_many([key("own"), strangers], since=days.now())

        assert set(asyncio.run(body())) == {key("own")}

    def test_those_of_others_are_found_when_older_ones_are_wanted_too(self, cache, days, strangers):
        assert set(asyncio.run(cache.get_many([strangers], since=days.now() - 1))) == {strangers}

    def test_those_of_others_are_found_for_a_run_that_they_began(self, cache, days, strangers):
        began = days.now()  # with a clock that was set back meanwhile, this may be later than the opening
        cache.begin_at(began)
        assert set(asyncio.run(cache.get_many([strangers], since=began))) == {strangers}


def test_clearing_removes_everything_and_gives_the_space_back(cache, tmp_path):
    async def body():
        await cache.put_many({key(i): choice(key(i) * 10) for i in range(1000)})
        before = await cache.stats()
        return before, await cache.clear(), await cache.stats()

    before, cleared, after = asyncio.run(body())
    assert cleared == 1000
    assert (after.entries, after.oldest, after.newest, after.answer_bytes) == (0, None, None, 0)
    assert before.path == tmp_path / "cache.db"
    assert after.file_bytes < 100_000 < before.answer_bytes


def test_two_caches_on_one_file_see_each_others_answers(cache, tmp_path, days):
    async def body():
        other = ResponseCache.open(tmp_path, now=days.now)
        await cache.put_many({key("a"): choice()})
        found = await other.get_many([key("a")])
        await other.clear()
        other.close()
        return found, await cache.get_many([key("a")])

    assert asyncio.run(body()) == ({key("a"): choice()}, {})


def test_short_answers_can_be_read_with_any_sqlite_tool(cache, tmp_path):
    asyncio.run(cache.put_many({key("a"): choice("hello")}))
    connection = sqlite3.connect(tmp_path / "cache.db")
    assert '"text":"hello"' in connection.execute("SELECT answer FROM choices").fetchone()[0]
    connection.close()


def test_a_cache_that_cannot_be_used_is_said_in_words(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError) as caught:
        ResponseCache.open(tmp_path / "file")
    assert caught.value.hint
    assert not ResponseCache.exists(tmp_path / "elsewhere")
