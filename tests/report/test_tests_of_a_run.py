"""What a test brings beside its variables is in every form of a run, once for all of its results."""

import csv
import io
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.geval_command import run_geval

from geval_cli.extras.results_files import read_results_file
from geval_cli.records import CaseResult, RecordedTest
from geval_cli.runs.stored import open_reports

DOCUMENT = "Refunds take 14 days. " * 900  # 20 kB
CONFIG: dict[str, Any] = {
    "prompts": ["Say {{ input }}", "Tell {{ input }}"],
    "providers": ["echo", {"id": "echo", "label": "second"}],
    "tests": [
        {
            "input": "How long?",
            "expected_output": "14 days",
            "context": DOCUMENT,
            "retrieval_context": ["Refunds.", "14 days."],
            "assert": [{"type": "contains", "value": "nothing of this", "metric": "said"}],
        },
        {"input": "second", "vars": {"x": 1}, "assert": [{"type": "contains", "value": "second"}]},
    ],
}
WANTED = [
    RecordedTest(0, "How long?", "14 days", DOCUMENT, ("Refunds.", "14 days.")),
    RecordedTest(1, "second"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and its files."""
    here = tmp_path_factory.mktemp("asked")
    (here / "tests.json").write_text(json.dumps(CONFIG["tests"]), encoding="utf-8")
    config = {**CONFIG, "tests": "file://tests.json"}
    (here / "gevalconfig.yaml").write_text(json.dumps(config), encoding="utf-8")
    endings = ("json", "jsonl", "csv", "md", "html", "parquet")
    wanted = [word for ending in endings for word in ("-o", f"r.{ending}")]
    finished = run_geval("run", "gevalconfig.yaml", "--repeat", "2", *wanted, cwd=here)
    assert finished.code == 1, finished.stderr
    return here


def asked_in(results: list[CaseResult]) -> list[RecordedTest | None]:
    return [result.asked for result in results]


@pytest.mark.parametrize("name", ["latest", "r.json", "r.jsonl", "r.parquet"])
def test_a_run_that_is_read_back_has_its_tests(folder: Path, name: str) -> None:
    path = name if name == "latest" else str(folder / name)
    with open_reports([path], folder / ".geval", os.environ) as ([report], _):
        results = list(report.results())
        assert asked_in(results) == [WANTED[0]] * 8 + [WANTED[1]] * 8
        assert list(report.asked()) == WANTED


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_a_document_is_written_once(folder: Path, ending: str) -> None:
    text = (folder / f"r.{ending}").read_text(encoding="utf-8")
    assert text.count(DOCUMENT.strip()) == 1
    if ending == "json":
        found = json.loads(text)
        assert list(found)[-2:] == ["tests", "results"]
        assert found["tests"][0]["retrieval_context"] == ["Refunds.", "14 days."]
        assert "test" not in found["results"][0]
    else:
        lines = [json.loads(line) for line in text.splitlines()]
        assert [list(line) for line in lines[:1]] == [["test"]]
        assert sum("test" in line for line in lines) == 2


def test_the_store_holds_a_document_once(folder: Path) -> None:
    with closing(sqlite3.connect(folder / ".geval" / "geval.db")) as database:
        counts = [
            database.execute(
                f"SELECT count(*) FROM {table} WHERE instr({column}, ?)", (DOCUMENT,)
            ).fetchone()[0]
            for table, column in (("results", "result"), ("tests", "test"), ("runs", "record"))
        ]
    assert counts == [0, 1, 0]


def test_files_that_other_programs_wrote_anew_keep_the_tests(folder: Path, tmp_path: Path) -> None:
    found = json.loads((folder / "r.json").read_text(encoding="utf-8"))
    found["results"].reverse()
    for name, text in (
        ("whole.json", json.dumps(found, indent=2)),
        ("turned.json", _one_a_line(found)),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        report = read_results_file(tmp_path / name)
        assert asked_in(list(report.results())) == [WANTED[1]] * 8 + [WANTED[0]] * 8


def _one_a_line(found: dict[str, Any]) -> str:
    tests, results = (",\n".join(map(json.dumps, found[name])) for name in ("tests", "results"))
    head = {name: value for name, value in found.items() if name not in ("tests", "results")}
    return json.dumps(head)[:-1] + f',\n"tests": [\n{tests}\n],\n"results": [\n{results}\n]\n}}\n'


def test_an_imported_run_has_them(folder: Path, tmp_path: Path) -> None:
    for ending in ("json", "jsonl", "parquet"):
        home = tmp_path / ending
        done = run_geval("import", "run", str(folder / f"r.{ending}"), "--home", str(home), cwd=tmp_path)
        assert done.code == 0, done.stderr
        with open_reports(["latest"], home, os.environ) as ([report], _):
            assert list(report.asked()) == WANTED


def test_tables_and_pages_show_them(folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO((folder / "r.csv").read_text(encoding="utf-8-sig"))))
    assert rows[0]["input"] == "How long?"
    assert rows[0]["context"] == DOCUMENT
    assert rows[0]["retrieval_context"] == "Refunds.\n14 days."
    assert rows[-1]["expected_output"] == ""
    assert "14 days" in (folder / "r.md").read_text(encoding="utf-8")
    shown = run_geval("show", "latest", "--case", "1", "--all", cwd=folder).stdout
    assert "expected output = 14 days" in shown
    one = json.loads(run_geval("show", "latest", "--case", "2", "--json", cwd=folder).stdout)
    assert [test["index"] for test in one["tests"]] == [1]


def test_sheets_of_labels_have_them(folder: Path) -> None:
    done = run_geval("estimate", "sheet.jsonl", "--draw", "1", cwd=folder)
    assert done.code == 0, done.stderr
    [row] = map(json.loads, (folder / "sheet.jsonl").read_text(encoding="utf-8").splitlines())
    assert row["test"]["expected_output"] == "14 days"


def test_a_key_in_a_test_is_not_kept(tmp_path: Path) -> None:
    key = "sk-proj-abcdefghijklmnop1234567890ABCDEFGHIJ"
    config = {
        "prompts": ["Say {{ input }}"],
        "providers": [
            {
                "id": "openai:m",
                "config": {"apiKey": key, "base_url": "http://127.0.0.1:9/v1", "max_retries": 0},
            }
        ],
        "tests": "file://tests.json",
    }
    test = {
        "input": "hi",
        "context": [f"The key is {key}.", "b"],
        "assert": [{"type": "equals", "value": "x"}],
    }
    (tmp_path / "tests.json").write_text(json.dumps([test]), encoding="utf-8")
    (tmp_path / "gevalconfig.yaml").write_text(json.dumps(config), encoding="utf-8")
    options = ("-o", "r.json")
    done = run_geval("run", "gevalconfig.yaml", *options, cwd=tmp_path)
    assert (tmp_path / "r.json").exists(), done.stderr
    [asked] = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["tests"]
    assert asked["input"] == "hi"
    assert key not in str(asked["context"])
    assert asked["context"][1] == "b"
