"""A run database that is spoilt while the real command runs."""

import contextlib
import json
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest
from support.geval_command import run_geval

SPOILER = """\
import sqlite3, sys
connection = sqlite3.connect(".geval/geval.db")
connection.execute({statement!r})
connection.commit()
print("fine")
"""
CONFIG = """\
prompts: ["{{{{ x }}}}"]
providers: ["exec:{python} spoiler.py"]
tests: [{{ vars: {{ x: a }}, assert: [{{ type: contains, value: fine }}] }}]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(CONFIG.format(python=sys.executable), encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def twice_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with two stored runs, to be copied."""
    folder = tmp_path_factory.mktemp("twice")
    (folder / "config.yaml").write_text(CONFIG.format(python=sys.executable), encoding="utf-8")
    (folder / "spoiler.py").write_text("print('fine')", encoding="utf-8")
    for _ in range(2):
        assert run_geval("run", "config.yaml", cwd=folder).code == 0
    return folder


def test_what_cannot_be_stored_is_shown_and_written_all_the_same(project: Path) -> None:
    refuse = "CREATE TRIGGER x BEFORE INSERT ON results BEGIN SELECT RAISE(ABORT, 'no room'); END"
    (project / "spoiler.py").write_text(SPOILER.format(statement=refuse), encoding="utf-8")
    finished = run_geval("run", "config.yaml", "-o", "out.json", cwd=project)
    assert finished.code == 0, finished.stderr
    assert "1 passed" in finished.stdout
    assert "not all of this run is stored" in " ".join(finished.stdout.split())
    report = json.loads((project / "out.json").read_text(encoding="utf-8"))
    assert [item["output"] for item in report["results"]] == ["fine"]
    assert "no room" in report["run"]["warnings"][0]


def test_when_results_cannot_be_read_again_the_summary_is_shown(project: Path) -> None:
    (project / "spoiler.py").write_text(SPOILER.format(statement="DROP TABLE results"), encoding="utf-8")
    finished = run_geval("run", "config.yaml", cwd=project)
    assert finished.code == 3
    assert "1 passed" in finished.stdout
    assert "no such table" in finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize(
    ("table", "column", "damaging"),
    [
        ("runs", "record", "substr(record, 1, 25)"),
        ("runs", "record", "'[1, 2]'"),
        ("runs", "record", "json_set(record, '$.status', 17)"),
        ("runs", "summary", "substr(summary, 1, 25)"),
        ("runs", "summary", "'[1]'"),
        ("origins", "covered", "'{'"),
        ("origins", "covered", "'[1]'"),
        ("results", "result", "substr(result, 1, 25)"),
    ],
)
def test_a_damaged_run_is_named_and_can_be_removed_so_that_the_others_are_read(
    twice_run: Path, tmp_path: Path, table: str, column: str, damaging: str
) -> None:
    project = tmp_path / "project"
    shutil.copytree(twice_run, project)
    own = "id" if table == "runs" else "run_id"
    with contextlib.closing(sqlite3.connect(project / ".geval" / "geval.db")) as connection:
        kept, damaged = (row[0] for row in connection.execute("SELECT id FROM runs ORDER BY sequence"))
        connection.execute(f"UPDATE {table} SET {column} = {damaging} WHERE {own} = ?", (damaged,))
        connection.commit()
    listed = run_geval("list", "--json", cwd=project)
    assert listed.code == 0
    if table != "origins":  # of which a list needs nothing
        assert json.loads(listed.stdout)["total"] == 1
        assert "warning: run <ID> is damaged" in " ".join(listed.stderr.split())
    for words in (("show", damaged), ("compare", "latest", kept), ("judge", damaged, "config.yaml")):
        looked = run_geval(*words, cwd=project)
        assert looked.code == 3, words
        assert "run <ID> is damaged" in " ".join(looked.stderr.split()), words
        assert "geval rm <ID>" in " ".join(looked.stderr.split())
        assert "Traceback" not in looked.stderr
    removed = run_geval("rm", damaged, "--yes", cwd=project)
    assert removed.code == 0, removed.stderr
    assert run_geval("list", cwd=project).code == 0
    with contextlib.closing(sqlite3.connect(project / ".geval" / "geval.db")) as connection:
        assert connection.execute("SELECT id FROM runs").fetchall() == [(kept,)]


def test_who_shows_a_run_is_told_that_the_database_was_damaged(project: Path) -> None:
    (project / ".geval").mkdir()
    (project / ".geval" / "geval.db").write_bytes(b"no database " * 400)
    shown = run_geval("show", "latest", cwd=project)
    assert shown.code == 2
    assert "it was moved to geval.db.damaged-" in " ".join(shown.stderr.split())


@pytest.mark.parametrize(
    "words",
    [
        ("show",),
        ("list",),
        ("compare", "latest~1", "latest"),
        ("judge", "latest", "config.yaml"),
        ("label", "--draw", "1", "--export", "sheet.jsonl"),
        ("export", "run", "latest", "-o", "run.json"),
        ("drift", "--save", "anchors.jsonl"),
        ("comment",),
        ("rm", "latest"),
        ("run", "config.yaml", "--resume"),
    ],
    ids=lambda words: words[0],
)
def test_each_command_says_that_a_damaged_database_was_moved_aside(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Without that, `no runs are stored here yet` sounds as if none were lost."""
    (tmp_path / "config.yaml").write_text(CONFIG.format(python=sys.executable), encoding="utf-8")
    (tmp_path / ".geval").mkdir()
    (tmp_path / ".geval" / "geval.db").write_text("not a database\n" * 100, encoding="utf-8")
    finished = run_geval(*words, cwd=tmp_path)
    told = " ".join((finished.stdout + finished.stderr).split())
    assert "was damaged; it was moved to geval.db.damaged-" in told
