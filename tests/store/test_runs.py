import asyncio
import json
import sqlite3
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from geval_cli.errors import StoreError, UsageError
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    ErrorInfo,
    MetricSummary,
    ProviderRef,
    RenderedPrompt,
    Role,
    RunRecord,
    RunStatus,
    RunSummary,
    Status,
    Usage,
)
from geval_cli.store.runs import RunStore

RUN = RunRecord(
    id="20260101-aaaa",
    status=RunStatus.RUNNING,
    started_at="2026-01-01T00:00:00+00:00",
    finished_at=None,
    duration_ms=None,
    tool_version="0.1.0",
    config_path="gevalconfig.yaml",
    config_digest="d1",
    config={"prompts": ["Hi {{name}}"], "tests": [{"vars": {"name": "Ä 😀"}}]},
    warnings=("one",),
)
SUMMARY = RunSummary(
    total=2,
    passed=1,
    errored=1,
    pass_rate=1.0,
    metrics={"coherence": MetricSummary(0.5, 1, 1), "empty": MetricSummary(None, 0, 0)},
    usage={Role.JUDGE: Usage(3, 10, 2, 1, None)},
)
RESULT = CaseResult(
    id="0-0-0",
    test_index=0,
    repeat_index=0,
    column=0,
    description=None,
    prompt=RenderedPrompt("p", "p", "Hi"),
    provider=ProviderRef("echo", "echo"),
    vars={"name": "Ä", "list": [1, 2.5, None, True]},
    output={"text": "lone \ud800 surrogate"},
    status=Status.ERROR,
    score=None,
    error=ErrorInfo("JudgeParseError", "no score", raw="???"),
    usage={Role.GENERATION: Usage(1)},
    assertions=(
        AssertionResult(
            "assert-set",
            None,
            Status.ERROR,
            None,
            assertions=(
                AssertionResult("g-eval", "coherence", Status.FAILED, 0.25, 0.5, detail={"rating": 2}),
            ),
        ),
    ),
)


@pytest.fixture
def store(tmp_path) -> Iterator[RunStore]:
    store = RunStore.open(tmp_path / "home")
    yield store
    store.close()


def at(test, repeat=0, column=0, **changes):
    return replace(
        RESULT, id=f"{test}-{repeat}-{column}", test_index=test, repeat_index=repeat, column=column, **changes
    )


def test_a_run_and_its_results_come_back_as_they_were(store):
    finished = replace(
        RUN, status=RunStatus.COMPLETED, finished_at="2026-01-01T00:01:00+00:00", duration_ms=6e4
    )
    store.begin(RUN)
    store.add(RUN.id, RESULT)
    store.finish(finished, SUMMARY)
    assert store.find(RUN.id) == (finished, SUMMARY)
    assert list(store.results(RUN.id)) == [RESULT]


def test_results_come_by_test_then_repeat_then_column_however_they_were_added(store):
    store.begin(RUN)
    places = [(10, 0, 0), (2, 1, 0), (2, 0, 1), (2, 0, 0), (0, 0, 3), (2, 1, 1)]
    for place in places:
        store.add(RUN.id, at(*place))
    found = [(item.test_index, item.repeat_index, item.column) for item in store.results(RUN.id)]
    assert found == sorted(places)


def test_a_result_of_the_same_case_takes_the_place_of_the_older_one(store):
    store.begin(RUN)
    store.add(RUN.id, RESULT)
    store.add(RUN.id, at(0, status=Status.PASSED, score=1.0))
    assert [item.status for item in store.results(RUN.id)] == [Status.PASSED]


def test_results_of_other_runs_do_not_mix_in(store):
    other = replace(RUN, id="20260102-bbbb")
    for run in (RUN, other):
        store.begin(run)
    store.add(RUN.id, at(0))
    store.add(other.id, at(1))
    assert [item.test_index for item in store.results(other.id)] == [1]
    assert list(store.results("unknown")) == []


def test_runs_are_listed_newest_first_whatever_the_clock_said(store):
    clock_set_back = replace(RUN, id="b", started_at="1999-01-01T00:00:00+00:00")
    for run in (RUN, clock_set_back, replace(RUN, id="c")):
        store.begin(run)
    assert [stored.run.id for stored in store.runs()] == ["c", "b", RUN.id]
    assert [stored.run.id for stored in store.runs(limit=1)] == ["c"]


def test_a_run_that_nobody_works_on_any_more_is_interrupted_and_has_no_summary(store, tmp_path):
    store.begin(RUN)
    store.add(RUN.id, RESULT)
    store.close()
    again = RunStore.open(tmp_path / "home")
    assert again.find("latest") == (replace(RUN, status=RunStatus.INTERRUPTED), None)
    assert len(list(again.results(RUN.id))) == 1
    again.close()


def test_a_run_that_begins_again_keeps_its_results_and_its_place(store):
    store.begin(RUN)
    store.add(RUN.id, RESULT)
    store.finish(replace(RUN, status=RunStatus.INTERRUPTED), SUMMARY)
    store.begin(replace(RUN, id="later"))
    store.begin(RUN)
    assert store.find(RUN.id) == (RUN, None)
    assert list(store.results(RUN.id)) == [RESULT]
    assert store.find("latest").run.id == "later"


def test_a_run_is_found_by_the_beginning_of_its_id(store):
    for name in ("ab12", "ab34", "cd", "cdef", "100%", "100x"):
        store.begin(replace(RUN, id=name))
    assert store.find("ab1").run.id == "ab12"
    assert store.find("cd").run.id == "cd"
    assert store.find("100%").run.id == "100%"
    with pytest.raises(UsageError, match="more than one"):
        store.find("ab")


@pytest.mark.parametrize("name", ["nope", "%", ""])
def test_a_run_that_is_not_there_is_said_with_a_way_to_see_those_that_are(store, name):
    store.begin(RUN)
    with pytest.raises(UsageError, match="no run") as caught:
        store.find(name)
    assert "geval list" in caught.value.hint


def test_the_latest_of_no_runs_is_said_in_words(store):
    with pytest.raises(UsageError, match="no runs are stored"):
        store.find("latest")


def test_adding_does_not_wait_and_what_was_added_is_read_at_once(store):
    async def body():
        store.begin(RUN)
        for index in range(2000):
            store.add(RUN.id, at(index))
        return sum(1 for _ in store.results(RUN.id))

    assert asyncio.run(body()) == 2000


def test_results_may_be_read_while_others_are_added(store):
    store.begin(RUN)
    store.add(RUN.id, at(0))
    store.add(RUN.id, at(1))
    reading = store.results(RUN.id)
    assert next(reading).test_index == 0
    store.add(RUN.id, at(2))
    assert [item.test_index for item in store.results(RUN.id)] == [0, 1, 2]
    assert [item.test_index for item in reading] == [1]


def test_a_result_that_cannot_be_stored_is_told_and_stops_nothing(store):
    store.begin(RUN)
    refused = store.add("a run that never began", RESULT)
    taken = store.add(RUN.id, RESULT)
    with pytest.raises(StoreError, match="cannot be used"):
        refused.result(5)
    assert taken.result(5) is None
    store.finish(replace(RUN, status=RunStatus.COMPLETED), SUMMARY)
    assert store.find(RUN.id).run.status is RunStatus.COMPLETED
    assert list(store.results(RUN.id)) == [RESULT]


def test_a_run_that_cannot_be_stored_is_told_at_once(store, tmp_path):
    with sqlite3.connect(tmp_path / "home" / "geval.db") as other:
        other.execute("DROP TABLE results")
        other.execute("DROP TABLE runs")
    other.close()
    with pytest.raises(StoreError):
        store.begin(RUN)
    with pytest.raises(StoreError):
        store.runs()
    with pytest.raises(StoreError):
        list(store.results(RUN.id))


def change_json(home, table, column, change):
    with sqlite3.connect(home / "geval.db") as other:
        [[text]] = other.execute(f"SELECT {column} FROM {table}")
        value = json.loads(text)
        change(value)
        other.execute(f"UPDATE {table} SET {column} = ?", (json.dumps(value),))
    other.close()


def test_what_a_newer_geval_added_is_passed_over(store, tmp_path):
    def add_keys(value):
        value["tomorrow"] = 1
        for name in ("prompt", "error"):
            if name in value:
                value[name]["tomorrow"] = 2
        for item in value.get("assertions", ()):
            item["usage"]["tomorrow"] = 3
        if "usage" in value:
            value["usage"]["embedding"] = value["usage"].get("generation", {})

    store.begin(RUN)
    store.add(RUN.id, RESULT)
    finished = replace(RUN, status=RunStatus.COMPLETED)
    store.finish(finished, SUMMARY)
    for place in (("runs", "record"), ("runs", "summary"), ("results", "result")):
        change_json(tmp_path / "home", *place, add_keys)
    assert store.find(RUN.id) == (finished, SUMMARY)
    assert list(store.results(RUN.id)) == [RESULT]


def test_what_this_geval_cannot_read_is_said(store, tmp_path):
    store.begin(RUN)
    store.add(RUN.id, RESULT)
    store.finish(RUN, SUMMARY)
    change_json(tmp_path / "home", "results", "result", lambda value: value.pop("output"))
    with pytest.raises(StoreError, match="this version of geval cannot read") as caught:
        list(store.results(RUN.id))
    assert caught.value.hint
    change_json(tmp_path / "home", "runs", "record", lambda value: value.update(status="paused"))
    with pytest.raises(StoreError, match=f"run {RUN.id} is damaged"):
        store.runs()


def test_asking_whether_anything_is_stored_creates_nothing(tmp_path):
    assert not RunStore.exists(tmp_path / "home")
    assert list(tmp_path.iterdir()) == []
    RunStore.open(tmp_path / "home").close()
    assert RunStore.exists(tmp_path / "home")


def test_a_damaged_store_opens_with_a_warning(tmp_path):
    (tmp_path / "geval.db").write_bytes(b"damaged " * 500)
    store = RunStore.open(tmp_path)
    assert "damaged" in store.warnings[0]
    assert store.runs() == []
    store.close()
