"""Databases that someone else wrote: what stands in them is never run, and what geval never writes is not read."""

import asyncio
import contextlib
import hashlib
import json
import sqlite3
import zlib
from pathlib import Path

import pytest

from geval_cli.errors import StoreError
from geval_cli.records import Choice
from geval_cli.store.cache import CACHE_FILE, ResponseCache, StoredChoice
from geval_cli.store.database import CACHE, RUNS, OpenMode, open_database
from geval_cli.store.runs import RUNS_FILE, RunStore

KEY = hashlib.sha256(b"asked").hexdigest()
GOOD = {
    "text": "10",
    "finish_reason": None,
    "usage": [1, 1, None],
    "latency_ms": 1.0,
    "model": None,
    "dropped": [],
}


def planted(folder: Path, statement: str, arguments: tuple[object, ...] = ()) -> Path:
    """A cache to which a stranger added something."""
    ResponseCache.open(folder).close()
    with contextlib.closing(sqlite3.connect(folder / CACHE_FILE)) as connection, connection:
        connection.execute(statement, arguments)
    return folder


def found(folder: Path) -> dict[str, StoredChoice]:
    async def look() -> dict[str, StoredChoice]:
        with contextlib.closing(ResponseCache.open(folder)) as cache:
            return await cache.get_many([KEY])

    return asyncio.run(look())


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "x",
        "[]",
        "null",
        "{}",
        5,
        2.5,
        b"",
        b"not deflated",
        zlib.compress(b"{}"),
        *(json.dumps({**GOOD, "text": value}) for value in (10, None, True, ["10"], {"a": 1})),
        *(
            json.dumps({**GOOD, "usage": value})
            for value in ([], [1, 1], ["1", 1, None], [1.5, 1, None], "abc", None)
        ),
        *(json.dumps({**GOOD, "finish_reason": value}) for value in (1, [])),
        *(json.dumps({**GOOD, "latency_ms": value}) for value in ("1", True, [])),
        *(
            json.dumps({**GOOD, "logprobs": value})
            for value in ("x", [1], [["a"]], [["a", "b", []]], [["a", 1, [["b"]]]])
        ),
        *(json.dumps({**GOOD, "dropped": value}) for value in ("n", [1], None)),
        json.dumps({key: value for key, value in GOOD.items() if key != "usage"}),
        "[" * 100_000,
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_row_that_geval_never_wrote_is_no_answer(tmp_path: Path, answer: object) -> None:
    statement = "INSERT INTO choices (key, created_at, answer) VALUES (?, 4e9, ?)"
    assert found(planted(tmp_path, statement, (bytes.fromhex(KEY), answer))) == {}


def test_a_row_that_geval_could_have_written_is_one(tmp_path: Path) -> None:
    statement = "INSERT INTO choices (key, created_at, answer) VALUES (?, 4e9, ?)"
    kept = found(planted(tmp_path, statement, (bytes.fromhex(KEY), json.dumps(GOOD))))
    assert kept[KEY].choice == Choice("10")


@pytest.mark.parametrize("created_at", ["zzz", "never", b"\xff"])
def test_a_time_that_is_none_does_not_last_for_ever(tmp_path: Path, created_at: object) -> None:
    statement = "INSERT INTO choices (key, created_at, answer) VALUES (?, ?, ?)"
    assert found(planted(tmp_path, statement, (bytes.fromhex(KEY), created_at, json.dumps(GOOD)))) == {}


def test_an_answer_that_unpacks_to_more_than_any_answer_is_none(tmp_path: Path) -> None:
    packing = zlib.compressobj(1)
    bomb = b"".join(packing.compress(b" " * 1024 * 1024) for _ in range(130)) + packing.flush()
    statement = "INSERT INTO choices (key, created_at, answer) VALUES (?, 4e9, ?)"
    assert found(planted(tmp_path, statement, (bytes.fromhex(KEY), bomb))) == {}


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON choices BEGIN DELETE FROM choices; END",
        "CREATE VIEW v AS SELECT 1",
        "CREATE VIRTUAL TABLE f USING fts5(a)",
    ],
)
def test_views_triggers_and_virtual_tables_are_refused(tmp_path: Path, statement: str) -> None:
    planted(tmp_path, statement)
    with pytest.raises(StoreError, match="contains views, triggers or virtual tables"):
        ResponseCache.open(tmp_path)
    with (
        pytest.raises(StoreError, match="contains views, triggers or virtual tables"),
        ResponseCache.open_read_only(tmp_path),
    ):
        pass


def test_every_connection_distrusts_its_file(tmp_path: Path) -> None:
    database = open_database(tmp_path / "x.db", CACHE)
    for access in (OpenMode.WRITE, OpenMode.READ, OpenMode.FROZEN, OpenMode.MEMORY):
        opened = type(database)(database.path, CACHE, access=access)
        with contextlib.closing(opened.connect()) as connection:
            assert connection.execute("PRAGMA trusted_schema").fetchone() == (0,)
            assert connection.execute("PRAGMA cell_size_check").fetchone() == (1,)


@pytest.mark.parametrize(
    "record", ["", "x", "[]", "5", "{}", '{"id": 5}', '{"id": "r", "started_at": []}', "[" * 50_000]
)
def test_stored_runs_of_somebody_else_end_in_an_error_that_says_so(tmp_path: Path, record: str) -> None:
    RunStore.open(tmp_path).close()
    with contextlib.closing(sqlite3.connect(tmp_path / RUNS_FILE)) as connection, connection:
        connection.execute(
            "INSERT INTO runs (id, status, started_at, config_path, config_digest, record)"
            " VALUES ('r', 'completed', 'x', 'c', 'd', ?)",
            (record,),
        )
    with contextlib.closing(RunStore.open(tmp_path)) as runs, pytest.raises(StoreError):
        runs.find("r")
    assert RUNS.application_id != CACHE.application_id
