"""Tests that a Python function of the user makes, in a real process."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from support.promptfoo import NAME, write_files

from geval_cli.errors import ConfigError
from geval_cli.extras.programs.loading import LoadScripts
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.source.access import TRUSTED
from geval_cli.specs.dialect import Dialect
from geval_cli.suite.load import open_suite

GENERATOR = """
import pathlib

def generate_tests(config=None):
    with pathlib.Path(__file__).with_name("calls").open("a") as file:
        file.write("x")
    return [{"vars": {"x": str(number)}} for number in range((config or {}).get("count", 2))]

def more():
    return [{"vars": {"x": "more"}}]

def broken():
    raise ValueError("no data")

def wrong():
    return {"vars": {}}
"""


def prepared(folder: Path, tests: object) -> PreparedRun:
    config = {"providers": ["echo"], "prompts": ["{{x}}"], "tests": tests}
    write_files(folder, {"make.py": GENERATOR, NAME: json.dumps(config)})
    return prepare(RunRequest(folder / NAME, os.environ))


def test_a_function_makes_tests_and_is_called_once(tmp_path: Path) -> None:
    tests = [
        "file://make.py",
        "make.py:more",
        {"path": "file://make.py:generate_tests", "config": {"count": 1}},
    ]
    suite = prepared(tmp_path, tests).suite
    assert [case.vars["x"] for case in suite.tests] == ["0", "1", "more", "0"]
    assert (tmp_path / "calls").read_text() == "xx"


def test_it_works_where_an_event_loop_is_running(tmp_path: Path) -> None:
    async def main() -> PreparedRun:
        return prepared(tmp_path, "make.py")

    assert asyncio.run(main()).tests == 2


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("make.py:broken", "`broken` of make.py failed: ValueError: no data"),
        ("make.py:wrong", "must return a list of tests, not a mapping"),
        ("make.py:nothing", "`nothing` of make.py failed"),
    ],
)
def test_a_function_that_fails_is_a_problem_with_its_place(tmp_path: Path, tests: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepared(tmp_path, tests)
    (problem,) = caught.value.problems
    assert message in problem.message
    assert problem.location is not None


def test_a_function_that_never_ends_is_ended(tmp_path: Path) -> None:
    write_files(tmp_path, {"slow.py": "import time\ndef f():\n    time.sleep(60)\n"})
    with pytest.raises(ConfigError) as caught:
        LoadScripts(os.environ, TRUSTED, time_limit_s=0.2)(tmp_path / "slow.py", "f", [], None)
    assert "took longer than 0.2 s" in caught.value.problems[0].message


def test_reading_alone_runs_nothing(tmp_path: Path) -> None:
    prepared(tmp_path, "make.py")
    (tmp_path / "calls").unlink()
    opened = open_suite(tmp_path / NAME, env={}, dialect=Dialect.PROMPTFOO)
    assert "tests that a program makes are not supported" in opened.problems[0].message
    assert not (tmp_path / "calls").exists()
