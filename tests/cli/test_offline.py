"""`--offline`, `--cache-dir` and `geval cache`, by the real command."""

import contextlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.geval_command import Finished, clean_environment, run_geval
from support.judge_server import judge_sensibly
from support.loopback import LoopbackServer, Reply, chat_reply
from support.product import Product
from support.read_only import read_only_command

G_EVAL = {"type": "g-eval", "criteria": "It is fine.", "provider": "openai:judge", "scoring": "single"}


def config(*words: str, **changes: Any) -> dict[str, Any]:
    tests = [{"description": f"says {word}", "vars": {"x": word}, "assert": [G_EVAL]} for word in words]
    return {"prompts": ["{{ x }}"], "providers": ["openai:m"], "tests": tests, **changes}


def respond(body: Any, headers: Any) -> Any:
    return chat_reply("fine") if body["model"] == "m" else judge_sensibly(body, headers)


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer(respond=respond) as server:
        yield server


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Product:
    return Product(tmp_path, monkeypatch, capsys)


def filled_cache(product: Product, server: LoopbackServer, suite: dict[str, Any]) -> Path:
    """A folder with the answers to `suite` in it."""
    folder = product.folder / "answers"
    assert product.run(suite, server, "--cache-dir", str(folder)).code == 0
    server.requests.clear()
    return folder


def offline(product: Product, server: LoopbackServer, folder: Path, *options: str) -> Any:
    """`geval run --offline` as CI does it: without keys, with a new home."""
    environment = clean_environment(OPENAI_BASE_URL=server.base_url)
    words = ["run", "config.yaml", "--offline", "--cache-dir", str(folder), "-o", "out.json", *options]
    finished = run_geval(*words, cwd=product.folder, env=environment)
    return finished, json.loads((product.folder / "out.json").read_text(encoding="utf-8"))


def test_the_cache_alone_answers_without_any_key_and_stays_one_file(
    product: Product, server: LoopbackServer
) -> None:
    keyed = {"id": "openai:m", "config": {"api_key": "{{ env.OPENAI_API_KEY }}"}}
    folder = filled_cache(product, server, config("a", "b", providers=[keyed]))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert list(before) == ["cache.db"]
    finished, results = offline(product, server, folder)
    assert (finished.code, server.requests) == (0, []), finished.stderr
    assert results["summary"]["usage"]["judge"]["cached_requests"] == 3
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_miss_is_an_error_that_names_the_test(product: Product, server: LoopbackServer) -> None:
    folder = filled_cache(product, server, config("a"))
    product.write(config("a", "new"))
    finished, results = offline(product, server, folder)
    assert (finished.code, server.requests) == (3, [])
    assert [case["status"] for case in results["results"]] == ["passed", "error"]
    assert results["results"][1]["error"]["type"] == "OfflineError"
    assert "says new" in finished.stdout
    assert "the cache has no answer from openai:m to this" in " ".join(finished.stdout.split())


def test_answers_never_expire_offline(product: Product, server: LoopbackServer) -> None:
    folder = filled_cache(product, server, config("a"))
    run_sql(folder / "cache.db", "UPDATE choices SET created_at = 1000")
    finished, _ = offline(product, server, folder)
    assert finished.code == 0
    assert product.run(config("a"), server, "--cache-dir", str(folder), "--cache-ttl", "never").code == 0
    assert server.requests == []
    assert product.run(config("a"), server, "--cache-dir", str(folder)).code == 0
    assert len(server.requests) == 3


def test_what_needs_nobody_answers_offline_and_what_is_never_kept_does_not(
    product: Product, server: LoopbackServer
) -> None:
    folder = filled_cache(product, server, config("a"))
    check = [{"type": "contains", "value": "a"}]
    program = f"exec:{sys.executable} -c print('a')"
    suite = config(providers=["echo", program], tests=[{"vars": {"x": "a"}, "assert": check}])
    product.write(suite)
    finished, results = offline(product, server, folder)
    assert finished.code == 3
    first, second = results["results"]
    assert (first["status"], second["status"]) == ("passed", "error")
    assert "are never cached" in second["error"]["message"]


def test_a_cache_in_a_checkout_that_cannot_be_written_to(product: Product, server: LoopbackServer) -> None:
    folder = filled_cache(product, server, config("a"))
    finished = read_only_command(
        product.folder,
        ["run", "config.yaml", "--offline", "--cache-dir", "answers"],
        read_only=[folder],
        environ=clean_environment(OPENAI_BASE_URL=server.base_url),
    )
    assert finished.returncode == 0, finished.stderr
    assert "1 passed" in finished.stdout


def test_what_a_killed_process_left_in_the_log_is_read_too(product: Product, server: LoopbackServer) -> None:
    folder = filled_cache(product, server, config("a"))
    leave_in_log(folder / "cache.db")
    finished = read_only_command(
        product.folder,
        ["run", "config.yaml", "--offline", "--cache-dir", "answers"],
        read_only=[folder],
        environ=clean_environment(OPENAI_BASE_URL=server.base_url),
    )
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--offline", "--cache-dir", "nowhere"], "there is no response cache nowhere/cache.db"),
        (["--offline", "--no-cache"], "--offline and --no-cache cannot be combined"),
        (["--offline", "--cache-ttl", "1d"], "cannot be combined"),
        (["--cache-ttl", "soon"], "--cache-ttl must be an age, not `soon`"),
    ],
)
def test_what_makes_no_sense_is_refused(
    product: Product, server: LoopbackServer, options: list[str], what: str
) -> None:
    refused = product.run(config("a"), server, *options)
    assert (refused.code, what in refused.stderr) == (2, True), refused.stderr
    assert server.requests == []


def test_the_cache_can_be_looked_after(product: Product, server: LoopbackServer) -> None:
    folder = filled_cache(product, server, config("a", "b"))

    def cache(*words: str) -> str:
        finished = run_geval("cache", *words, "--cache-dir", str(folder), cwd=product.folder)
        assert finished.code == 0, finished.stderr
        return finished.stdout

    assert "5 answers are cached" in cache("stats")
    assert "removed 0 answers" in cache("prune", "--older-than", "1h")
    run_sql(folder / "cache.db", "UPDATE choices SET created_at = 1000 WHERE rowid <= 2")
    assert "2, older than 14 days" in cache("stats")
    assert "removed 2 answers" in cache("prune")
    assert "removed 3 answers" in cache("clear")
    assert "0 answers are cached" in cache("stats")
    missing = run_geval("cache", "stats", "--cache-dir", "nowhere", cwd=product.folder)
    assert (missing.code, "there is no response cache" in missing.stderr) == (2, True)


def test_several_processes_share_one_cache(product: Product, server: LoopbackServer) -> None:
    words = [f"word {number}" for number in range(12)]
    product.write(config(*words))
    environment = clean_environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="sk-x")
    command = ("run", "config.yaml", "--cache-dir", "shared")

    def run_with(home: str) -> Finished:
        return run_geval(*command, "--home", home, cwd=product.folder, env=environment)

    with ThreadPoolExecutor(3) as pool:
        runs = list(pool.map(run_with, ("home0", "home1", "home2")))
    assert [run.code for run in runs] == [0, 0, 0], runs
    assert not any("warning" in run.stdout + run.stderr for run in runs)
    stats = run_geval("cache", "stats", "--cache-dir", "shared", cwd=product.folder)
    assert "25 answers are cached" in stats.stdout


def run_sql(path: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def leave_in_log(path: Path) -> None:
    """Have the file's whole content in its log, as after a kill."""
    program = (
        "import sqlite3, os, sys; c = sqlite3.connect(sys.argv[1]); c.execute('PRAGMA wal_autocheckpoint = 0');"
        " rows = c.execute('SELECT * FROM choices').fetchall(); c.execute('DELETE FROM choices'); c.commit();"
        " c.execute('PRAGMA wal_checkpoint(TRUNCATE)').fetchall();"
        " c.executemany('INSERT INTO choices VALUES (?, ?, ?, ?)', rows); c.commit(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    assert Path(f"{path}-wal").stat().st_size > 0
    Path(f"{path}-shm").unlink()


@pytest.mark.parametrize("is_cut_off", [False, True], ids=["no probabilities", "a small token limit"])
def test_a_cached_run_sends_nothing_whichever_test_comes_first(tmp_path: Path, is_cut_off: bool) -> None:
    """Which test finds out what the judge can do differs from run to run; each is the first of a run here."""

    def answer(body: Any, headers: object) -> Reply:
        if is_cut_off and "max_tokens" in body:
            return chat_reply("I think that", n=body.get("n", 1), finish_reason="length")
        return chat_reply("3", n=body.get("n", 1))

    names = [f"word{number}" for number in range(4)]
    with LoopbackServer(respond=answer) as server:
        env = clean_environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="sk-test")
        for number, tests in enumerate([names, *([name] for name in names)]):
            document = {
                "prompts": ["{{ x }}"],
                "providers": ["echo"],
                "defaultTest": {
                    "options": {"provider": "openai:judge"},
                    "assert": [{"type": "g-eval", "dimension": "fluency", "evaluation_steps": ["Read it."]}],
                },
                "tests": [{"vars": {"x": name}} for name in tests],
            }
            (tmp_path / "c.json").write_text(json.dumps(document), encoding="utf-8")
            before = len(server.requests)
            ended = run_geval("run", "c.json", "--home", "home", "-j", "1", cwd=tmp_path, env=env)
            assert "4 passed" in ended.stdout or "1 passed" in ended.stdout, ended.stdout + ended.stderr
            assert (len(server.requests) == before) is (number > 0), server.requests[-1].json
