"""Every kind of fault at rates of 1, 10 and 50 %: how many tests end correctly, and how long a run takes.

A test is correct if it has its true verdict, or an error because every allowed attempt failed. Anything else means that
a fault was mistaken for a bad answer.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TESTS = 60
RATES = (0.01, 0.1, 0.5)


def run(tests: int = TESTS) -> bool:
    """Print a line for each kind of fault, and return whether every verdict of every run was correct."""
    sys.path.insert(0, str(ROOT / "tests"))  # the faulty server belongs to the tests
    faults = importlib.import_module("support.faults")

    print(f"{tests} tests for each kind, up to {faults.MAX_RETRIES} repetitions")
    print("role        kind         rate  passed  failed  errors  right  wrong  requests")
    cells = [(rate, is_judge) for is_judge in (False, True) for rate in RATES]
    outcomes = [print_cell(faults, tests, rate, is_judge=is_judge) for rate, is_judge in cells]
    return all(outcomes)


def print_cell(faults: Any, tests: int, rate: float, *, is_judge: bool) -> bool:
    """Run all kinds of faults at once and print a line for each; return whether every verdict was correct."""
    results, faulty, took_s = run_once(faults, tests, rate, is_judge=is_judge)
    wrong_in_all = right_in_all = 0
    for kind in faults.FAULTS:
        found = [status for name, number, status in results if name == kind]
        must = [
            faults.expected_status(kind, number, rate, is_judge=is_judge)
            for name, number, _ in results
            if name == kind
        ]
        right = sum(is_one == must_be for is_one, must_be in zip(found, must, strict=True))
        wrong = sum(
            is_one != "error" and is_one != ("failed" if number % 2 else "passed")
            for name, number, is_one in results
            if name == kind
        )
        wrong_in_all += wrong
        right_in_all += right
        counts = Counter(found)
        model = f"judge-{kind}" if is_judge else kind
        requests = sum(count for (name, _), count in faulty.attempts.items() if name == model)
        numbers = f"{counts['passed']:6}  {counts['failed']:6}  {counts['error']:6}  {right:5}  {wrong:5}"
        print(f"{'judge' if is_judge else 'generation':10}  {kind:11}  {rate:4.0%}  {numbers}  {requests:8}")
    print(f"   {len(results)} verdicts, {wrong_in_all} wrong, {took_s:.1f} s\n")
    return right_in_all == len(results) and not wrong_in_all


def run_once(
    faults: Any, tests: int, rate: float, *, is_judge: bool
) -> tuple[list[tuple[str, int, str]], Any, float]:
    """Return (kind, test, status) of every verdict, the server, and the duration of the command in seconds."""
    loopback = importlib.import_module("support.loopback")
    faulty = faults.FaultyServer(rate)
    with loopback.LoopbackServer(respond=faulty.respond) as server, tempfile.TemporaryDirectory() as name:
        make = faults.judge_config if is_judge else faults.generation_config
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(make(tests, server.base_url)), encoding="utf-8")
        command = [sys.executable, "-m", "geval_cli", "run", "config.json", "-o", "out.json", "-j", "200"]
        started = time.perf_counter()
        finished = subprocess.run(command, cwd=folder, env={**os.environ}, capture_output=True, check=False)
        took_s = time.perf_counter() - started
        if finished.returncode not in (0, 1):
            sys.exit(f"the run ended with {finished.returncode}:\n{finished.stderr.decode()[-2000:]}")
        cases = json.loads((folder / "out.json").read_text(encoding="utf-8"))["results"]
    return list(verdicts(cases, is_judge=is_judge)), faulty, took_s


def verdicts(cases: list[Any], *, is_judge: bool) -> Any:
    for case in cases:
        if is_judge:
            for verdict in case["assertions"]:
                yield verdict["metric"], case["test_index"], verdict["status"]
        else:
            yield case["provider"]["id"].removeprefix("openai:"), case["test_index"], case["status"]
