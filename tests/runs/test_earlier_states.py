"""State folders that earlier commits left behind: they open, their answers are used, their half-done runs resume.

Each folder in `earlier_states` is named after the commit that wrote it and holds its two databases as SQL text, with
`@FOLDER@` in the place of the folder that it ran in. `config.yaml` was run to its end; the run of `half.yaml` was
killed when three of its six tests were stored. The models answered as below, behind a proxy, so that their URL has no
port.
"""

import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.geval_command import Finished, clean_environment, run_geval
from support.model_server import ModelServer

STATES = sorted((Path(__file__).parent / "earlier_states").iterdir())
REQUESTS_OF_A_FRESH_RUN = 20
REQUESTS_LEFT_TO_THE_HALF_DONE_RUN = 9
CAPITALS = {
    "France": "Paris",
    "Peru": "Lima",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Norway": "Oslo",
    "Cuba": "Havana",
}


def answer(body: Any) -> str:
    question = body["messages"][-1]["content"]
    return next(f"The capital is {city}." for country, city in CAPITALS.items() if country in question)


@pytest.fixture(params=STATES, ids=lambda path: path.name)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    home = tmp_path / ".geval"
    home.mkdir()
    for name in ("geval", "cache"):
        script = (request.param / f"{name}.sql").read_text(encoding="utf-8")
        with closing(sqlite3.connect(home / f"{name}.db")) as connection:
            connection.executescript(script.replace("@FOLDER@", str(tmp_path)))
            if name == "cache":  # or the answers would be too old for a run one day
                connection.execute("UPDATE choices SET created_at = ?", (time.time(),))
                connection.commit()
    for name in ("config.yaml", "half.yaml"):
        shutil.copy(request.param / name, tmp_path)
    return tmp_path


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(answer=answer) as running:
        yield running


def geval(folder: Path, server: ModelServer, *arguments: str) -> Finished:
    proxy = server.base_url.removesuffix("/v1")
    env = clean_environment(HTTP_PROXY=proxy, http_proxy=proxy, OPENAI_API_KEY="sk-test-key")
    return run_geval(*arguments, cwd=folder, env=env)


def test_stored_runs_are_listed_and_shown(folder: Path, server: ModelServer) -> None:
    listed = geval(folder, server, "list")
    assert listed.code == 0
    assert "config.yaml" in listed.stdout
    assert "interrupted" in listed.stdout
    shown = geval(folder, server, "show", "latest")
    assert "3 passed" in shown.stdout


def test_a_whole_run_is_answered_by_the_cache(folder: Path, server: ModelServer) -> None:
    finished = geval(folder, server, "run", "config.yaml", "--no-progress")
    assert (finished.code, len(server.requests)) == (0, 0)
    assert "6 passed" in finished.stdout


def test_a_half_done_run_is_resumed_and_nothing_is_paid_twice(folder: Path, server: ModelServer) -> None:
    finished = geval(folder, server, "run", "half.yaml", "--resume", "--no-progress")
    assert finished.code == 0, finished.stderr
    assert "6 passed" in finished.stdout
    assert "3 of 6 cases are done" in finished.stdout + finished.stderr
    assert len(server.requests) == REQUESTS_LEFT_TO_THE_HALF_DONE_RUN


def test_without_the_cache_all_of_it_is_asked(folder: Path, server: ModelServer) -> None:
    finished = geval(folder, server, "run", "config.yaml", "--no-progress", "--no-cache")
    assert (finished.code, len(server.requests)) == (0, REQUESTS_OF_A_FRESH_RUN)
