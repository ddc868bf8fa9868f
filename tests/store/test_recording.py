import asyncio
import sqlite3
import threading

import pytest
from msgspec.structs import replace
from support.sample_run import RUN, SUMMARY, make_case

from geval_cli.records import RunStatus
from geval_cli.store.runs import UNCOMMITTED_MAX, Recording, RunStore

FINISHED = replace(RUN, status=RunStatus.COMPLETED)


@pytest.fixture
def store(tmp_path):
    store = RunStore.open(tmp_path)
    yield store
    store.close()


def execute(tmp_path, *statements):
    with sqlite3.connect(tmp_path / "geval.db") as other:
        for statement in statements:
            other.execute(statement)
    other.close()


def refuse(tmp_path, table):
    execute(tmp_path, f"CREATE TRIGGER full BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'full'); END")


def accept_again(tmp_path):
    execute(tmp_path, "DROP TRIGGER full")


def numbers_of(results):
    return [item.test_index for item in results]


def test_results_are_in_the_store_when_the_run_has_ended(store):
    async def body():
        recording = Recording(store, RUN)
        await recording.begin(RUN)
        for test in (2, 0, 1):
            await recording.add(make_case(test))
        await recording.finish(FINISHED, SUMMARY)
        return recording

    recording = asyncio.run(body())
    assert recording.failure is None
    assert numbers_of(recording.results()) == numbers_of(store.results(RUN.id)) == [0, 1, 2]
    assert store.find(RUN.id) == (FINISHED, SUMMARY)


def test_results_that_the_store_refuses_are_held_and_come_in_their_place(store, tmp_path):
    async def body():
        recording = Recording(store, RUN)
        await recording.begin(RUN)
        for test in (0, 3):
            await recording.add(make_case(test))
        assert numbers_of(recording.results()) == [0, 3]
        refuse(tmp_path, "results")
        for test in (2, 5, 1):
            await recording.add(make_case(test))
        await recording.finish(FINISHED, SUMMARY)
        return recording

    recording = asyncio.run(body())
    assert recording.failure is not None
    assert "full" in recording.failure.message
    assert numbers_of(recording.results()) == [0, 1, 2, 3, 5]
    assert numbers_of(store.results(RUN.id)) == [0, 3]


def test_a_store_that_works_again_at_the_end_gets_everything(store, tmp_path):
    async def body():
        refuse(tmp_path, "runs")
        recording = Recording(store, RUN)
        await recording.begin(RUN)
        assert recording.failure is not None
        for test in (1, 0):
            await recording.add(make_case(test))
        assert numbers_of(recording.results()) == [0, 1]
        accept_again(tmp_path)
        await recording.finish(FINISHED, SUMMARY)
        return recording

    recording = asyncio.run(body())
    assert recording.failure is None
    assert numbers_of(recording.results()) == numbers_of(store.results(RUN.id)) == [0, 1]
    assert store.find(RUN.id) == (FINISHED, SUMMARY)


def test_a_store_that_cannot_even_be_read_leaves_what_is_held(store, tmp_path):
    async def body():
        execute(tmp_path, "DROP TABLE results", "DROP TABLE runs")
        recording = Recording(store, RUN)
        await recording.begin(RUN)
        await recording.add(make_case(0))
        await recording.finish(FINISHED, SUMMARY)
        return recording

    recording = asyncio.run(body())
    assert recording.failure is not None
    assert numbers_of(recording.results()) == [0]


def test_adding_waits_when_the_store_falls_behind(store):
    may_write = threading.Event()

    async def body():
        recording = Recording(store, RUN)
        await recording.begin(RUN)
        store._writer.submit(lambda _: may_write.wait())
        added = 0

        async def add_all():
            nonlocal added
            for test in range(UNCOMMITTED_MAX + 50):
                await recording.add(make_case(test))
                added += 1

        adding = asyncio.ensure_future(add_all())
        before = -1
        while before != added:
            before = added
            for _ in range(20):
                await asyncio.sleep(0)
        may_write.set()
        await adding
        await recording.finish(FINISHED, SUMMARY)
        return before, recording

    added, recording = asyncio.run(body())
    assert added == UNCOMMITTED_MAX
    assert len(list(recording.results())) == UNCOMMITTED_MAX + 50
