"""Disks and databases that do not do what they should: results are still shown and written."""

import contextlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.geval_command import Finished, clean_environment, run_geval
from support.read_only import read_only_command

from geval_cli.cli.remove import print_stats
from geval_cli.cli.runs import print_runs
from geval_cli.store import database
from geval_cli.store.state import open_state

TESTS = 20
CONFIG = """\
prompts: ["{{ x }}"]
providers: [{ id: "scripted:replies.yaml", config: { max_concurrency: 1 } }]
tests:
""" + "".join(
    f"  - {{ vars: {{ x: 'word{number}' }}, assert: [{{ type: contains, value: fine }}] }}\n"
    for number in range(TESTS)
)


NEEDS_LIMITS = pytest.mark.skipif(sys.platform == "win32", reason="there are no limits on the size of files")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    # Slow enough that each result is committed by itself: the log grows by pages, the results file by lines.
    (tmp_path / "replies.yaml").write_text(
        "- { match: word, reply: fine, latency_ms: 15 }\n", encoding="utf-8"
    )
    return tmp_path


def results_of(project: Path) -> list[str]:
    document = json.loads((project / "out.json").read_text(encoding="utf-8"))
    return [case["status"] for case in document["results"]]


def run_with_room(project: Path, limit_bytes: int, *options: str) -> Finished:
    """A run in a process none of whose files may grow beyond a limit, as on a disk that is nearly full."""
    limited = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}));"
        "from geval_cli.cli.main import main; main()"
    )
    return run_geval("run", "config.yaml", "-j", "1", *options, cwd=project, code=limited)


@NEEDS_LIMITS
def test_a_disk_that_fills_up_costs_no_result(project: Path) -> None:
    finished = run_with_room(project, 110_000, "-o", "out.json")
    assert finished.code == 0, finished.stderr
    assert f"{TESTS} passed" in finished.stdout
    assert "not all of this run is stored" in " ".join(finished.stdout.split())
    assert "(partly stored: geval show" in " ".join(finished.stdout.split())
    assert results_of(project) == ["passed"] * TESTS


@NEEDS_LIMITS
@pytest.mark.parametrize(("limit_bytes", "huge"), [(110_000, 1), (600_000, 800_000)])
def test_a_run_that_is_stored_in_part_is_not_complete_and_can_be_resumed(
    project: Path, limit_bytes: int, huge: int
) -> None:
    """Whether nothing more could be written, or only not a result that is `huge`."""
    slow = {"match": "word", "reply": "fine", "latency_ms": 15}
    replies = [{**slow, "match": "word7", "reply": "fine" * (huge // 4 + 1)}, slow]
    (project / "replies.yaml").write_text(json.dumps(replies), encoding="utf-8")
    finished = run_with_room(project, limit_bytes)
    assert "not all of this run is stored" in " ".join(finished.stdout.split())
    (listed,) = json.loads(run_geval("list", "--json", cwd=project).stdout)["runs"]
    resumed = run_geval("run", "config.yaml", "--resume", "-o", "out.json", cwd=project)
    assert listed["run"]["status"] in {"aborted", "interrupted"}
    assert (resumed.code, results_of(project)) == (0, ["passed"] * TESTS), resumed.stderr
    assert 0 < int(resumed.stderr.partition(" of 20 cases are done")[0].rpartition(" ")[2]) < TESTS


@NEEDS_LIMITS
def test_a_disk_that_is_full_from_the_beginning_costs_no_result_either(project: Path) -> None:
    finished = run_with_room(project, 0)
    assert finished.code == 0, finished.stderr
    assert f"{TESTS} passed" in finished.stdout
    assert "not stored, so it cannot be shown again" in finished.stdout
    assert finished.stderr.count("in memory until it ends") == 2
    assert not (project / ".geval").exists()


@NEEDS_LIMITS
def test_results_that_no_disk_takes_are_shown_and_the_advice_is_one_that_helps(project: Path) -> None:
    finished = run_with_room(project, 0, "-o", "out.json")
    assert finished.code == 3
    assert f"{TESTS} passed" in finished.stdout
    assert "cannot write out.json" in finished.stderr
    assert "this run is not stored either" in finished.stderr
    assert "geval show" not in finished.stderr


@NEEDS_LIMITS
def test_no_run_is_gone_on_with_where_nothing_can_be_stored(project: Path) -> None:
    finished = run_with_room(project, 0, "--resume")
    assert finished.code == 2
    assert "because its results cannot be stored" in finished.stderr
    assert "passed" not in finished.stdout


def test_a_home_that_cannot_be_written_to_stops_no_run_and_can_be_read(project: Path) -> None:
    assert run_geval("run", "config.yaml", cwd=project).code == 0
    home = project / ".geval"

    def read_only(*words: str) -> "subprocess.CompletedProcess[str]":
        return read_only_command(project, words, read_only=[home], environ=clean_environment())

    listed = read_only("list")
    assert (listed.returncode, "100 %" in listed.stdout) == (0, True), listed.stderr
    shown = read_only("show", "-o", "out.json")
    assert (shown.returncode, f"{TESTS} passed" in shown.stdout) == (0, True), shown.stderr
    assert results_of(project) == ["passed"] * TESTS
    counted = read_only("cache", "stats")
    assert (counted.returncode, "0 answers are cached" in counted.stdout) == (0, True), counted.stderr
    ran = read_only("run", "config.yaml", "-o", "out.json")
    assert (ran.returncode, f"{TESTS} passed" in ran.stdout) == (0, True), ran.stderr
    assert "kept in a temporary folder until it ends" in ran.stderr
    assert "not stored, so it cannot be shown again" in ran.stdout
    assert "geval show" not in ran.stdout


def test_damaged_databases_are_moved_aside_and_the_run_goes_on(project: Path) -> None:
    home = project / ".geval"
    home.mkdir()
    for name in ("geval.db", "cache.db"):
        (home / name).write_bytes(b"no database " * 400)
    finished = run_geval("run", "config.yaml", cwd=project)
    assert (finished.code, f"{TESTS} passed" in finished.stdout) == (0, True)
    for name in ("geval.db", "cache.db"):
        [aside] = home.glob(f"{name}.damaged-*")
        assert aside.read_bytes() == b"no database " * 400
        assert f"was moved to {name}.damaged-" in " ".join(finished.stderr.split())
    assert "100 %" in run_geval("list", cwd=project).stdout


@pytest.mark.parametrize(
    ("name", "look"),
    [
        ("geval.db", lambda home: print_runs(home, config=None, tags=(), as_json=False, limit=5)),
        ("cache.db", lambda home: print_stats(home, None)),
    ],
)
def test_who_only_looks_is_told_that_a_damaged_database_was_moved_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, look: Callable[[Path], None]
) -> None:
    (tmp_path / name).write_bytes(b"no database " * 400)
    look(tmp_path)
    assert f"was moved to {name}.damaged-" in capsys.readouterr().err


def test_a_database_that_another_process_keeps_locked_stops_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.02)
    with open_state(tmp_path, {}):
        pass
    with contextlib.closing(sqlite3.connect(tmp_path / "geval.db", isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = DELETE").fetchone()
        other.execute("BEGIN EXCLUSIVE")
        with open_state(tmp_path, {}) as state:
            [warning] = state.warnings
    assert "another process has it locked" in warning
    assert "the results of this run are kept in a temporary folder" in warning
