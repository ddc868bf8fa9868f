"""Runs of tests of every kind, with one inserted between two runs: all that is compared knows the others again."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.stored_runs import store_run, write_config, write_replies
from support.web_server import running_server

from geval_cli.engine.plan import failing_tests
from geval_cli.extras.compare.comparison import ComparisonOptions, NamedRun, RunComparison, compare
from geval_cli.extras.history import read_history
from geval_cli.extras.run_pages import RunChoice
from geval_cli.records import Status
from geval_cli.report.report import write_results_file
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.stored import load_report, named_report
from geval_cli.store.state import open_runs

KINDS: dict[str, Callable[[int], dict[str, Any]]] = {
    "variables": lambda number: {"vars": {"x": number}},
    "input": lambda number: {"input": f"question {number}"},
    "played": lambda number: {"turns": [{"user": "Hello."}, {"user": f"question {number}"}]},
    "held": lambda number: {"turns": [{"role": "user", "content": f"said {number}"}]},
    "context": lambda number: {"context": f"document {number}"},
}
PROMPT = "{{ input | default(x) | default(context) }}"
FIRST, LATER = range(1, 5), range(5)
"""The numbers of the tests of each kind in both runs: one is new, and stands before the others."""


def stored(folder: Path, name: str, numbers: range, **options: Any) -> str:
    """Return the id of a run of all kinds; tests of even numbers pass, and the others fail."""
    model = write_replies(folder, "model.json", [{"default": "yes"}])
    tests = [
        {**make(number), "assert": [{"type": "contains", "value": "no" if number % 2 else "yes"}]}
        for make in KINDS.values()
        for number in numbers
    ]
    return store_run(write_config(folder, name, tests, prompts=[PROMPT], providers=[model]), **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two runs, of which the first is in files, too: in old.json as an older geval wrote it."""
    found = tmp_path_factory.mktemp("matched")
    first = stored(found, "first.json", FIRST)
    with open_runs(found / ".geval", {}) as runs:
        for ending in ("json", "jsonl", "parquet"):
            write_results_file(found / f"a.{ending}", load_report(runs, first))
    document = json.loads((found / "a.json").read_text("utf-8"))
    for result in document["results"]:
        del result["test_key"]
    (found / "old.json").write_text(json.dumps(document), encoding="utf-8")
    stored(found, "first.json", LATER, baseline=str(found / "a.json"))
    return found


def compared(folder: Path, earlier: str, later: str = "latest") -> RunComparison:
    with open_runs(folder / ".geval", {}) as runs:
        sides = [
            NamedRun(name, named_report(str(folder / name) if "." in name else name, runs))
            for name in (earlier, later)
        ]
        return compare(*sides, ComparisonOptions())


@pytest.mark.parametrize("earlier", ["latest~1", "a.json", "a.jsonl", "a.parquet"])
def test_an_inserted_test_changes_no_pair(folder: Path, earlier: str) -> None:
    found = compared(folder, earlier)
    assert (found.paired, found.only_a, found.only_b) == (20, 0, 5)
    assert (found.rows[0].flipped, found.rows[0].delta.value) == ((), 0)
    assert (found.warnings, found.notes) == ((), ())


def test_results_of_an_older_geval_are_compared_by_what_they_have(folder: Path) -> None:
    """Variables and conversations tell their tests apart; inputs and contexts are told to be mixed up."""
    found = compared(folder, "old.json")
    assert (found.paired, found.only_a, found.only_b) == (20, 0, 5)
    assert found.rows[0].flipped
    assert {flip.test.split()[0] for flip in found.rows[0].flipped} <= {"question", "document"}
    [warning] = found.warnings
    assert warning.startswith("pairs may be wrong: 10 tests that the results of A do not tell apart")
    back = compared(folder, "latest", "old.json")
    assert (back.paired, back.only_a, back.only_b) == (20, 5, 0)


def test_a_baseline_the_list_of_runs_and_the_pages_know_the_tests_again(folder: Path) -> None:
    with open_runs(folder / ".geval", {}) as runs:
        summary = load_report(runs, "latest").summary
        newest = read_history(runs, RunChoice(), limit=1).runs[0]
        ids = [load_report(runs, name).run.id for name in ("latest~1", "latest")]
    assert summary.baseline["paired"] == 20
    assert summary.baseline["rows"][0]["flipped"] == []
    assert newest.change is not None
    assert (newest.change.value, newest.change.clusters) == (0, 20)
    with running_server(folder) as server:
        page = server.get(f"/compare?before={ids[0]}&after={ids[1]}").text
        charts = server.get(f"/compare/charts?before={ids[0]}&after={ids[1]}")
    text = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert "20 cases in both runs Tests are matched by content" in text
    assert "Without a partner: 0 before, 5 after." in text
    assert "All 20 Same verdict 20" in text
    assert charts.status == 200


def test_failing_tests_are_found_where_they_stand_now(folder: Path) -> None:
    with open_runs(folder / ".geval", {}) as runs:
        failing = failing_tests(load_report(runs, "latest~1").results())
        run_id = stored(folder, "again.json", LATER, failing=failing)
        results = list(load_report(runs, run_id).results())
    assert len(failing) == len(results) == 10
    assert {result.status for result in results} == {Status.FAILED}


ROWS = {"one": "one", "two": "no", "three": "three", "four": "no"}


def write_table(folder: Path, rows: dict[str, str], dialect: str, kind: str) -> Path:
    if kind == "csv":
        check = "__expected" if dialect == "promptfoo" else "assert.equals"
        text = "".join(f"{x},{value}\n" for x, value in {"x": check, **rows}.items())
    else:
        tests = [
            {"vars": {"x": x}, "assert": [{"type": "equals", "value": value}]} for x, value in rows.items()
        ]
        text = "".join(json.dumps(test) + "\n" for test in tests)
    (folder / f"t.{kind}").write_text(text, encoding="utf-8")
    keys = {"dialect": dialect, "prompts": ["{{ x }}"], "providers": ["echo"], "tests": f"file://t.{kind}"}
    (folder / "c.json").write_text(json.dumps(keys), encoding="utf-8")
    return folder / "c.json"


@pytest.mark.parametrize(
    ("changed", "run", "gone"),
    [
        (ROWS, {"two", "four"}, 0),
        ({"new": "x", **ROWS}, {"two", "four"}, 0),
        (dict(reversed(ROWS.items())), {"two", "four"}, 0),
        ({"one": "one", "two": "two", "four": "no"}, {"two", "four"}, 0),
        ({"one": "one", "2": "no", "four": "no"}, {"four"}, 1),
        ({"one": "one", "2": "no", "three": "three", "4": "no"}, set(), 2),
        ({"one": "no"}, set(), 2),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("dialect", ["geval", "promptfoo"])
def test_failing_rows_of_a_changed_table_run_wherever_they_stand_or_it_is_said_that_they_are_gone(
    tmp_path: Path, dialect: str, kind: str, changed: dict[str, str], run: set[str], gone: int
) -> None:
    first = store_run(write_table(tmp_path, ROWS, dialect, kind))
    with open_runs(tmp_path / ".geval", {}) as runs:
        failing = failing_tests(load_report(runs, first).results())
    config = write_table(tmp_path, changed, dialect, kind)
    prepared = prepare(RunRequest(config, {}, failing=failing, allows_empty=True))
    assert {test.vars["x"] for test in prepared.suite.tests} == run
    told = [item.message for item in prepared.warnings if "--filter-failing" in item.message]
    are = {1: "1 test of --filter-failing is", 2: "2 tests of --filter-failing are"}
    assert told == ([f"{are[gone]} not in the config, so not run"] if gone else [])
    second = store_run(config)
    found = compared(tmp_path, first, second)
    assert found.paired == len(ROWS.keys() & changed.keys())


def test_variables_that_a_program_makes_anew_are_no_other_test(tmp_path: Path) -> None:
    """A test is known by what its config says: what a program made of it is another thing in each run."""
    program = (
        "import uuid\n\n\ndef get_var(name, prompt, variables):\n    return {'output': uuid.uuid4().hex}\n"
    )
    (tmp_path / "vars.py").write_text(program, encoding="utf-8")
    tests = [
        {"vars": {"x": word, "made": "file://vars.py"}, "assert": [{"type": "contains", "value": word[:3]}]}
        for word in ("one", "two", "threes")
    ]
    tests[0]["assert"] = [{"type": "contains", "value": "something else"}]
    config = write_config(tmp_path, "promptfooconfig.json", tests, prompts=["{{ x }} {{ made }}"])
    first = store_run(config)
    with open_runs(tmp_path / ".geval", {}) as runs:
        before = list(load_report(runs, first).results())
        failing = failing_tests(before)
    second = store_run(config, baseline=first)
    again = store_run(config, failing=failing)
    with open_runs(tmp_path / ".geval", {}) as runs:
        after = list(load_report(runs, second).results())
        assert [result.vars["made"] for result in after] != [result.vars["made"] for result in before]
        assert [result.test_key for result in after] == [result.test_key for result in before]
        assert load_report(runs, second).summary.baseline["paired"] == 3
        assert [result.test_index for result in load_report(runs, again).results()] == [0]
