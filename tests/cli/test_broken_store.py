"""A run database that is spoilt while the real command runs."""

import json
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
