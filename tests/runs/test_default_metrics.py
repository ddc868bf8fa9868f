"""The metric of a g-eval that names none: in everything that comes out of a run, and in runs stored before it."""

import asyncio
import csv
import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.stored_runs import write_replies

from geval_cli.engine.runner import StopSignal
from geval_cli.records import MetricSummary, Status
from geval_cli.report.output import write_results_file
from geval_cli.runs.evaluation import run_evaluation
from geval_cli.runs.preparation import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.resume import find_run, resume_run
from geval_cli.runs.stored import load_report
from geval_cli.store.result_filter import ResultFilter
from geval_cli.store.run_pages import SortOrder
from geval_cli.store.runs import RunStore
from geval_cli.store.state import open_state

PLAIN, VARIED, NEGATED = "the-answer-is-right", "it-is-about-x", "not-the-answer-is-rude"
MODE = "keeps-to-the-topic"
ALL = {PLAIN: (0.8, 3), VARIED: (0.8, 3), NEGATED: (0.2, 3), MODE: (0.8, 3)}
KNOWN = {name: ALL[name] for name in (PLAIN, NEGATED, MODE)}


def write_suite(folder: Path, **keys: Any) -> Path:
    replies = [{"match": '"steps"', "reply": '{"steps": ["Read.", "Rate."]}'}]
    judge = write_replies(folder, "judge.json", [*replies, {"default": '{"reason": "fine", "score": 8}'}])
    checks = [
        {"type": "g-eval", "criteria": "The answer is right.", "provider": judge},
        {"type": "g-eval", "criteria": "It is about {{ x }}", "provider": judge},
        {
            "type": "assert-set",
            "assert": [
                {"type": "not-g-eval", "value": "The answer is rude", "provider": judge, "threshold": 0.1}
            ],
        },
    ]
    config = {
        "prompts": [{"raw": "{{ x }}", "evaluation_criteria": "Keeps to the topic"}],
        "providers": ["echo"],
        "defaultTest": {"assert": checks, "options": {"provider": judge}},
        "tests": [{"vars": {"x": word}} for word in ("one", "two", "three")],
        **keys,
    }
    path = folder / "suite.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def run(path: Path, **request: Any) -> str:
    prepared = prepare(RunRequest(path, {}, **request))
    with open_state(path.parent / ".geval", {}) as state:
        resumed = resume_run(prepared, state.runs) if prepared.request.resumption else None
        report = asyncio.run(
            run_evaluation(prepared, state, listen=lambda event: None, stop=StopSignal(), resumed=resumed)
        )
    return report.run.id


def without_default_metrics(folder: Path, *, keep: int | None = None) -> None:
    """Make of the stored run one of an older geval, which had no default metrics, and which ended after `keep`."""
    with closing(sqlite3.connect(folder / ".geval" / "geval.db")) as connection, connection:
        rows = connection.execute("SELECT rowid, result FROM results ORDER BY test_index").fetchall()
        for place, (row, text) in enumerate(rows):
            if keep is not None and place >= keep:
                connection.execute("DELETE FROM results WHERE rowid = ?", (row,))
                continue
            result = json.loads(text)
            result["named_scores"] = {}
            strip_metrics(result["assertions"])
            packed = json.dumps(result, separators=(",", ":"))
            connection.execute("UPDATE results SET result = ? WHERE rowid = ?", (packed, row))
        (summary,) = connection.execute("SELECT summary FROM runs").fetchone()
        ended = None if keep is not None else json.dumps({**json.loads(summary), "metrics": {}})
        connection.execute("UPDATE runs SET summary = ?", (ended,))


def strip_metrics(assertions: list[dict[str, Any]]) -> None:
    for item in assertions:
        item["metric"] = None
        strip_metrics(item["assertions"])


def numbers(metrics: Mapping[str, MetricSummary]) -> dict[str, tuple[float | None, int]]:
    return {
        name: (None if item.mean is None else round(item.mean, 6), item.n) for name, item in metrics.items()
    }


def test_it_is_in_the_sums_and_in_every_file(tmp_path: Path) -> None:
    run_id = run(write_suite(tmp_path, gates=[f"{PLAIN}.mean >= 0.8", f"{MODE}.pass_rate >= 1"]))

    with RunStore.open_read_only(tmp_path / ".geval") as runs:
        report = load_report(runs, run_id)
        for name in ("run.json", "run.csv", "run.junit.xml", "run.md", "run.html"):
            write_results_file(tmp_path / name, report)
    document = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    first = document["results"][0]
    with (tmp_path / "run.csv").open(encoding="utf-8-sig", newline="") as file:
        row = next(csv.DictReader(file))

    assert numbers(report.summary.metrics) == ALL
    assert document["summary"]["metrics"].keys() == first["named_scores"].keys() == ALL.keys()
    assert [item["metric"] for item in first["assertions"]] == [MODE, PLAIN, VARIED, None]
    assert [gate["status"] for gate in document["summary"]["gates"][:2]] == ["passed", "passed"]
    assert {f"score {name}": "0.8" for name in (PLAIN, VARIED, MODE)}.items() <= row.items()
    assert PLAIN in (tmp_path / "run.md").read_text(encoding="utf-8")
    assert PLAIN in (tmp_path / "run.html").read_text(encoding="utf-8")


def test_failures_name_it_in_junit(tmp_path: Path) -> None:
    judge = write_replies(tmp_path, "low.json", [{"default": '{"reason": "poor", "score": 1}'}])
    checks = [{"type": "g-eval", "evaluation_steps": ["Compare."], "provider": judge}]
    run_id = run(write_suite(tmp_path, prompts=["{{ x }}"], defaultTest={"assert": checks}))

    with RunStore.open_read_only(tmp_path / ".geval") as runs:
        write_results_file(tmp_path / "run.junit.xml", load_report(runs, run_id))
    assert "g-eval compare" in (tmp_path / "run.junit.xml").read_text(encoding="utf-8")


def test_stored_results_of_before_get_it_where_it_is_known_for_sure(tmp_path: Path) -> None:
    run_id = run(write_suite(tmp_path))
    without_default_metrics(tmp_path)

    with RunStore.open_read_only(tmp_path / ".geval") as runs:
        report, pages = load_report(runs, run_id), runs.pages()
        results = list(report.results())
        wanted = ResultFilter(metric=PLAIN, status=Status.PASSED)
        rows = pages.rows(run_id, wanted, sort=SortOrder.SCORE, offset=0, limit=9)
        verdicts = pages.verdicts(run_id)
        some, _ = pages.results(run_id, offset=0, limit=9)

    assert numbers(report.summary.metrics) == KNOWN
    assert [item.metric for item in results[0].assertions] == [MODE, PLAIN, None, None]
    assert results[0].assertions[3].assertions[0].metric == NEGATED
    assert results[0].named_scores.keys() == KNOWN.keys() == verdicts[0].named_scores.keys()
    assert rows.total == 3
    assert some == results == pages.row(run_id, 0, 0) + results[1:]


@pytest.mark.parametrize(
    "changes",
    [
        {"dialect": "promptfoo", "prompts": ["{{ x }}"]},
        {"tests": "file://tests.json", "defaultTest": {}},
    ],
)
def test_stored_results_of_before_stay_without_it_where_it_is_not_known(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    written = json.loads(write_suite(tmp_path).read_text(encoding="utf-8"))
    tests = [{**test, **written["defaultTest"]} for test in written["tests"]]
    (tmp_path / "tests.json").write_text(json.dumps(tests), encoding="utf-8")
    run_id = run(write_suite(tmp_path, **{"prompts": ["{{ x }}"], **changes}))
    without_default_metrics(tmp_path)

    with RunStore.open_read_only(tmp_path / ".geval") as runs:
        report = load_report(runs, run_id)
        assert numbers(report.summary.metrics) == {}
        assert not any(result.named_scores for result in report.results())


def test_a_resumed_run_of_before_has_it_in_all_results(tmp_path: Path) -> None:
    path = write_suite(tmp_path)
    run_id = run(path)
    without_default_metrics(tmp_path, keep=1)

    assert run(path, resume_from=run_id) == run_id

    with RunStore.open_read_only(tmp_path / ".geval") as runs:
        report = load_report(runs, run_id)
        assert numbers(report.summary.metrics) == ALL
        assert [result.named_scores.keys() for result in report.results()] == [ALL.keys()] * 3


def test_looking_at_a_run_of_before_changes_nothing_in_the_store(tmp_path: Path) -> None:
    path = write_suite(tmp_path)
    run_id = run(path)
    without_default_metrics(tmp_path)
    before = stored_texts(tmp_path)
    prepared = prepare(RunRequest(path, {}, resume_from=run_id))

    with RunStore.open_read_only(tmp_path / ".geval") as runs:
        assert numbers(find_run(prepared, runs).kept.summary().metrics) == ALL
    assert stored_texts(tmp_path) == before


def test_a_metric_that_is_empty_in_a_test_stays_none(tmp_path: Path) -> None:
    checks = [
        {"type": "g-eval", "criteria": "Right", "metric": "{{ name }}", "provider": "scripted:judge.json"}
    ]
    tests = [{"vars": {"x": "one", "name": name}} for name in ("", "own")]
    path = write_suite(tmp_path, prompts=["{{ x }}"], defaultTest={"assert": checks}, tests=tests)
    run_id = run(path)
    run(path, resume_from=run_id)

    with RunStore.open_read_only(tmp_path / ".geval") as runs:
        assert [result.named_scores for result in load_report(runs, run_id).results()] == [{}, {"own": 0.8}]


def stored_texts(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / ".geval" / "geval.db")) as connection:
        return [text for (text,) in connection.execute("SELECT result FROM results ORDER BY rowid")]
