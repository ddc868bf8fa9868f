"""Comparison of two runs with 20,000 judged cases, from files and from the store: time and memory."""

import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measured import measure
from benchmarks.throughput import environment
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    Column,
    ProviderRef,
    RenderedPrompt,
    RunRecord,
    RunStatus,
    RunSummary,
    Status,
)
from geval_cli.report.json_file import JsonFile, JsonlFile
from geval_cli.report.report import RunReport
from geval_cli.store.state import CacheChoice, open_state

CASES = 20_000
BOUND_S, BOUND_MB = 3.0, 200.0
METRICS = ("coherence", "fluency", "relevance")
STEPS = ["Read the text and the answer.", "Look for what does not follow from it.", "Give a rating."]


def run() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, run_name in enumerate(("a", "b")):
            write_run(folder, run_name, seed=number)
        for pair in (("a.json", "b.json"), ("a.jsonl", "b.jsonl"), ("latest~1", "latest")):
            command = [sys.executable, "-m", "geval_cli", "compare", *pair]
            found = measure(command, folder, environment("http://127.0.0.1:9"))
            # CPU time, since other programs may be running; on an idle machine it equals the wall time.
            is_good = found.cpu_s < BOUND_S and found.peak_mb < BOUND_MB
            took = f"{found.wall_s:5.2f} s, {found.cpu_s:.2f} s of it processor time, {found.peak_mb:4.0f} MB"
            verdict = f"{'good' if is_good else 'TOO MUCH'}: at most {BOUND_S:g} s, {BOUND_MB:g} MB"
            print(f"{' '.join(pair):<20} {CASES:,} cases: {took}  ({verdict})")


def write_run(folder: Path, name: str, *, seed: int) -> None:
    """Write the same run as two files and to the store in `folder`."""
    columns = (Column(0, "p", "openai:m"),)
    record = RunRecord(
        f"2026010{seed}-120000-000{seed}",
        RunStatus.RUNNING,
        "2026-01-01T12:00:00+00:00",
        None,
        None,
        "0",
        "config.yaml",
        "0",
        {},
        columns,
        (),
        "1",
    )
    report = RunReport(record, RunSummary(), lambda: results(seed))
    JsonFile(folder / f"{name}.json").finish(report)
    JsonlFile(folder / f"{name}.jsonl").finish(report)
    with open_state(folder / ".geval", {}, CacheChoice()) as state:
        state.runs.begin(record)
        for result in results(seed):
            state.runs.add(record.id, result)
        state.runs.finish(record, RunSummary())


def results(seed: int) -> Iterator[CaseResult]:
    """Yield cases of a realistic size: about 3 kB of JSON each."""
    numbers = random.Random(seed)
    for index in range(CASES):
        scores = {metric: numbers.randint(0, 4) / 4 for metric in METRICS}
        assertions = tuple(judged(metric, score) for metric, score in scores.items())
        worst = min(scores.values())
        yield CaseResult(
            f"{index}",
            index,
            0,
            0,
            None,
            RenderedPrompt("p", "p", f"Answer the question {index}: " + "word " * 40),
            ProviderRef("openai:m", "openai:m"),
            {"question": f"What is {index}? " + "more " * 20},
            "An answer. " * 30,
            Status.PASSED if worst >= 0.5 else Status.FAILED,
            sum(scores.values()) / 3,
            scores,
            assertions=assertions,
        )


def judged(metric: str, score: float) -> AssertionResult:
    detail = {
        "estimator": "logprobs",
        "rating": 1 + 4 * score,
        "score_range": [1, 5],
        "evaluation_steps": STEPS,
        "criteria": f"The answer has {metric}.",
        "judge": "openai:gpt-4.1",
        "prompt_version": "1",
        "distribution": {str(rating): 0.2 for rating in range(1, 6)},
    }
    status = Status.PASSED if score >= 0.5 else Status.FAILED
    return AssertionResult(
        "g-eval",
        metric,
        status,
        score,
        0.5,
        reason="It reads well. " * 8,
        detail=json.loads(json.dumps(detail)),
    )


if __name__ == "__main__":
    run()
