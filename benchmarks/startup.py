"""Startup time of the command and the library, compared with an empty Python process."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measured import measure
from benchmarks.throughput import ask, environment, fixed_latency_server

RUNS = 11
BOUNDS_S = {"--version": 0.2, "--help": 0.2}

CONFIG = """\
prompts: ["{{ x }}"]
providers: [echo]
tests:
""" + "".join(
    f"  - {{ vars: {{ x: {number} }}, assert: [{{ type: contains, value: {number} }}] }}\n"
    for number in range(10)
)


LIBRARY_BOUND_S = 0.05
LIBRARY_PROGRAMS = {
    "from geval_cli import GEval": "from geval_cli import GEval, TestCase, Result, evaluate_batch, ApiError",
    "GEval('Tone', 'Be kind.')": "from geval_cli import GEval; GEval('Tone', 'Be kind.')",
}


PLUGIN_BOUND_S = 0.005
EMPTY_SESSION = """\
import sys, time
import pytest
started = time.process_time()
code = pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:], "test_nothing.py"])
print("took", time.process_time() - started)
"""


FIRST_REQUEST_BOUND_S = 0.7
MODEL_CONFIG = """\
prompts: ["{{ x }}"]
providers: [openai:m]
defaultTest: { assert: [{ type: g-eval, criteria: It is kind., provider: openai:judge }] }
tests:
""" + "".join(f"  - {{ vars: {{ x: {number} }} }}\n" for number in range(10))


def run() -> None:
    empty = median_s([sys.executable, "-c", "pass"])
    print(f"{'python -c pass':<40} {empty * 1000:7.0f} ms")
    run_commands(empty)
    run_library(empty)
    run_plugin()
    run_first_request(empty)


def run_first_request(empty: float) -> None:
    """Measure the time from the start of the command to its first request to the server, with ten tests."""
    waits = []
    command = [sys.executable, "-m", "geval_cli", "run", "config.yaml", "--no-progress"]
    with tempfile.TemporaryDirectory() as name, fixed_latency_server() as url:
        folder = Path(name)
        (folder / "config.yaml").write_text(MODEL_CONFIG, encoding="utf-8")
        for number in range(RUNS):
            ask(url, "first")
            started = time.time()
            measure([*command, "--home", f"home{number}"], folder, environment(url))
            waits.append(ask(url, "first") - started)
    took = min(waits[1:])
    verdict = verdict_on(took, FIRST_REQUEST_BOUND_S)
    print(
        f"{'first request of 10 tests (best)':<40} {took * 1000:7.0f} ms  {took / empty:5.1f} x  ({verdict})"
    )


def run_library(empty: float) -> None:
    """Measure what the library adds to a Python process: its import, and the first metric (which loads pydantic)."""
    for name, program in LIBRARY_PROGRAMS.items():
        added = median_s([sys.executable, "-c", program]) - empty
        verdict = "" if "import" not in name else f"  ({verdict_on(added, LIBRARY_BOUND_S)})"
        print(f"{name:<40} {added * 1000:+7.0f} ms{verdict}")


def run_plugin() -> None:
    """Measure the CPU time that the pytest plugin adds to a session that does not use it; the minimum counts."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_nothing.py").write_text("def test_it(): pass\n", encoding="utf-8")
        with_plugin, without = (
            least_cpu_s(folder, *words) for words in (["-p", "geval_cli.extras.pytest_plugin"], [])
        )
    added = with_plugin - without
    print(
        f"{'pytest plugin, not used (CPU)':<40} {added * 1000:+7.1f} ms  ({verdict_on(added, PLUGIN_BOUND_S)})"
    )


def least_cpu_s(folder: str, *words: str) -> float:
    """Return the minimum CPU time of a session with one empty test, without other installed plugins."""
    command = [sys.executable, "-c", EMPTY_SESSION, *words]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    printed = [
        subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout
        for _ in range(RUNS)
    ]
    return min(float(text.rpartition("took")[2]) for text in printed)


def run_commands(empty: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.yaml").write_text(CONFIG, encoding="utf-8")
        for words in (
            ["--version"],
            ["--help"],
            ["validate", "config.yaml"],
            ["run", "config.yaml", "--no-progress"],
        ):
            took = median_s([sys.executable, "-m", "geval_cli", *words], folder)
            bound = BOUNDS_S.get(words[0])
            verdict = "" if bound is None else f"  ({verdict_on(took, bound)})"
            name = "geval " + " ".join(words)
            print(f"{name:<40} {took * 1000:7.0f} ms  {took / empty:5.1f} x{verdict}")


def verdict_on(took: float, bound: float) -> str:
    return f"bound {bound * 1000:.0f} ms: {'kept' if took <= bound else 'BROKEN'}"


def median_s(command: list[str], folder: str | None = None) -> float:
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])  # the first one fills the disk cache
