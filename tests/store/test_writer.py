import asyncio
import contextlib
import threading

import pytest

from geval_cli.errors import StoreError
from geval_cli.store.database import DatabaseThread, Schema, open_database

NOTES = Schema("test database", 77, (("CREATE TABLE notes (text TEXT UNIQUE)",),))


@pytest.fixture
def database(tmp_path):
    return open_database(tmp_path / "x.db", NOTES)


@pytest.fixture
def writer(database):
    writer = DatabaseThread(database)
    yield writer
    writer.close()


def insert(text):
    return lambda connection: connection.execute("INSERT INTO notes VALUES (?)", (text,)).rowcount


def stored(database):
    with contextlib.closing(database.connect()) as connection:
        return [row[0] for row in connection.execute("SELECT text FROM notes ORDER BY rowid")]


def test_work_is_committed_when_its_waiter_is_released(database, writer):
    async def body():
        assert await writer.run(insert("a")) == 1
        return stored(database)

    assert asyncio.run(body()) == ["a"]


def test_many_waiters_share_a_commit(database, writer):
    statements = []
    all_are_waiting = threading.Event()

    def hold(connection):
        all_are_waiting.wait()
        connection.set_trace_callback(statements.append)

    async def body():
        holding = writer.submit(hold)
        waiting = [asyncio.ensure_future(writer.run(insert(str(i)))) for i in range(200)]
        await asyncio.sleep(0)
        all_are_waiting.set()
        await asyncio.gather(*waiting)
        holding.result()

    asyncio.run(body())
    # One that ends the transaction of `hold` itself, one for the two hundred.
    assert statements.count("COMMIT") <= 2
    assert len(stored(database)) == 200


def test_work_is_done_in_the_order_given(database, writer):
    futures = [writer.submit(insert(str(i))) for i in range(100)]
    for future in futures:
        future.result()
    assert stored(database) == [str(i) for i in range(100)]


def test_one_that_fails_takes_no_other_with_it(database, writer):
    async def body():
        work = [writer.run(insert(text)) for text in ("a", "b", "a", "\ud800", "c")]
        return await asyncio.gather(*work, return_exceptions=True)

    results = asyncio.run(body())
    assert [type(result) for result in results] == [int, int, StoreError, StoreError, int]
    assert stored(database) == ["a", "b", "c"]


def test_a_bug_in_one_work_is_told_to_its_waiter_and_the_others_are_served(database, writer):
    def broken(connection):
        raise TypeError("boom")

    first, second = writer.submit(broken), writer.submit(insert("a"))
    with pytest.raises(TypeError, match="boom"):
        first.result(5)
    assert second.result(5) == 1
    with pytest.raises(TypeError, match="boom"):
        writer.submit(broken).result(5)
    assert stored(database) == ["a"]


def test_a_full_disk_fails_everybody_who_waits_and_what_fits_again_is_written(database, writer):
    def fill(connection):
        connection.execute("PRAGMA max_page_count = 8")

    async def body():
        await writer.run(fill)
        work = [writer.run(insert(str(i) * 20_000)) for i in range(3)]
        full = await asyncio.gather(*work, return_exceptions=True)
        return full, await writer.run(insert("short"))

    full, short = asyncio.run(body())
    assert all("disk is full" in error.message for error in full)
    assert short == 1
    assert stored(database) == ["short"]


def test_work_whose_caller_was_cancelled_is_done_all_the_same(database, writer):
    async def body():
        task = asyncio.create_task(writer.run(insert("a")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await writer.run(insert("b"))

    asyncio.run(body())
    assert stored(database) == ["a", "b"]


def test_closing_commits_what_was_handed_over_and_ends_the_thread(database):
    before = set(threading.enumerate())
    writer = DatabaseThread(database)
    for i in range(50):
        writer.submit(insert(str(i)))
    writer.close()
    writer.close()
    assert len(stored(database)) == 50
    assert set(threading.enumerate()) <= before
    with pytest.raises(StoreError, match="closed"):
        writer.submit(insert("late"))


def test_a_waiter_whose_loop_is_gone_disturbs_nobody(database, writer):
    async def leave():
        task = asyncio.ensure_future(writer.run(insert("a")))
        await asyncio.sleep(0)
        task.cancel()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()
    assert writer.submit(insert("b")).result() == 1
    assert stored(database) == ["a", "b"]
