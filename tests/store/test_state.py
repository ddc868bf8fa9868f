import asyncio
import sqlite3
import tempfile
from pathlib import Path

import pytest
from support.sample_run import RUN, SUMMARY

from geval_cli.records import Choice
from geval_cli.store.cache import CACHE_FILE, ResponseCache, StoredChoice
from geval_cli.store.runs import RUNS_FILE, RunStore
from geval_cli.store.state import open_state


@pytest.fixture
def home(tmp_path: Path) -> Path:
    RunStore.open(tmp_path).close()
    ResponseCache.open(tmp_path).close()
    return tmp_path


def make_newer(path: Path) -> None:
    """As a later version of geval would leave the file."""
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()


def places(home: Path) -> tuple[list[bool], tuple[str, ...]]:
    """Whether the run database and the cache are those in `home`, and the warnings."""
    with open_state(home, {}) as state:
        return [part._database.path.parent == home for part in (state.runs, state.cache)], state.warnings


def test_both_databases_are_those_of_the_home_folder(home: Path) -> None:
    assert places(home) == ([True, True], ())


def test_run_database_that_cannot_be_used_takes_the_cache_not_with_it(home: Path) -> None:
    make_newer(home / RUNS_FILE)
    found, [warning] = places(home)
    assert found == [False, True]
    assert "the results of this run are kept in a temporary folder until it ends" in warning
    assert "newer geval" in warning


def test_a_cache_that_cannot_be_used_takes_the_runs_not_with_it(home: Path) -> None:
    make_newer(home / CACHE_FILE)
    found, [warning] = places(home)
    assert found == [True, False]
    assert "the answers of this run are kept in a temporary folder until it ends" in warning


def test_what_was_temporary_is_gone_afterwards(home: Path) -> None:
    make_newer(home / RUNS_FILE)
    with open_state(home, {}) as state:
        temporary = state.runs._database.path.parent
        assert temporary.exists()
    assert not temporary.exists()


def test_where_there_is_no_temporary_folder_either_both_work_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    home = tmp_path / "home"
    home.write_text("no folder", encoding="utf-8")
    answers = {"ab" * 32: StoredChoice(Choice("Paris"))}
    with open_state(home, {}) as state:
        assert not state.keeps_runs
        assert all("are kept in memory until it ends" in warning for warning in state.warnings)
        state.runs.begin(RUN)
        state.runs.finish(RUN, SUMMARY)
        assert state.runs.find("latest").run == RUN

        async def keep_and_find() -> object:
            await state.cache.put_many(answers)
            return await state.cache.get_many(list(answers))

        assert asyncio.run(keep_and_find()) == answers
    assert home.read_text(encoding="utf-8") == "no folder"


def test_two_memories_are_not_one() -> None:
    with RunStore.open_in_memory() as one, RunStore.open_in_memory() as other:
        one.begin(RUN)
        assert (len(one.runs()), len(other.runs())) == (1, 0)
