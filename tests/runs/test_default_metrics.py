"""The metric of a g-eval that names none: in everything that comes out of a run."""

import asyncio
import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.stored_runs import write_replies

from geval_cli.engine.runner import StopSignal
from geval_cli.records import MetricSummary
from geval_cli.report.report import write_results_file
from geval_cli.runs.evaluate import run_evaluation
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.resume import resume_run
from geval_cli.runs.stored import load_report
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
        resumed = resume_run(prepared, state.runs) if prepared.request.resumes else None
        report = asyncio.run(
            run_evaluation(prepared, state, listen=lambda event: None, stop=StopSignal(), resumed=resumed)
        )
    return report.run.id


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
