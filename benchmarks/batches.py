"""A run in batches: CPU time and memory for 50,000 tests, and the cost of a suite with and without batches."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measured import measure
from benchmarks.throughput import verdict

TESTS = 50_000
QUICK_TESTS = 2_000
CPU_BOUND_MS = 3.0
MEMORY_BOUND_MB = 150
BILLED_TESTS = 10_000

_ROOT = Path(__file__).parents[1]
_SERVER = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # for its threads, too: one of them waits for it
sys.path.insert(0, "tests")
from support.batch_server import BatchServer
with BatchServer() as server:
    print(server.base_url, flush=True)
    signal.sigwait({signal.SIGTERM})
    print(max(server.paid.values()), sum(server.paid.values()), len(server.direct), len(server.batches), flush=True)
"""
_CONFIG = """\
prompts: ["Write one sentence about topic {{ number }}."]
providers: [{ id: "openai:m", config: { max_tokens: 200 } }]
defaultTest:
  options: { provider: { id: "openai:judge", config: { max_tokens: 200 } }, scoring: single }
  assert: [{ type: g-eval, criteria: The output is one sentence about the topic., threshold: 0.1 }]
tests: file://tests.jsonl
options: { batch: { poll_s: 0.2 } }
"""


def run() -> None:
    one_run(TESTS)
    bill()


def run_quick() -> None:
    one_run(QUICK_TESTS)
    bill()


def one_run(tests: int) -> None:
    """Run a suite with `tests` tests in batches, against an emulator in a separate process."""
    with tempfile.TemporaryDirectory() as name, emulator() as (url, process):
        folder = Path(name)
        write(folder, tests, _CONFIG)
        env = {**os.environ, "OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sk-benchmark"}
        words = ["run", "config.yaml", "--batch", "--home", "home", "--no-progress"]
        took = measure([sys.executable, "-m", "geval_cli", *words], folder, env)
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        most, batched, direct, batches = map(int, process.stdout.readline().split())
    each_ms = took.cpu_s * 1000 / tests
    print(
        f"{tests:,} tests: {batched:,} requests in {batches} batches, {direct} directly, each paid {most} time(s)"
    )
    print(f"  {took.wall_s:.0f} s, {each_ms:.2f} ms of processor a test ({verdict(each_ms, CPU_BOUND_MS)})")
    print(f"  {took.peak_mb:.0f} MB at most ({verdict(took.peak_mb, MEMORY_BOUND_MB)})")


def bill() -> None:
    """Print what a suite costs at list prices according to `--plan`, with and without batches."""
    models = [("openai:gpt-4.1-mini", "openai:gpt-4.1"), ("anthropic:claude-sonnet-4-5",) * 2]
    for model, judge in models:
        config = _CONFIG.replace("openai:m", model).replace("openai:judge", judge)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write(folder, BILLED_TESTS, config)
            costs = [planned_usd(folder, options) for options in ((), ("--batch",))]
        print(f"{BILLED_TESTS:,} tests of {model}, judged by {judge}:")
        print(f"  at most ${costs[0]:.2f} directly, ${costs[1]:.2f} in batches")


def planned_usd(folder: Path, options: tuple[str, ...]) -> float:
    env = {**os.environ, "OPENAI_API_KEY": "x", "ANTHROPIC_API_KEY": "x"}
    words = ["run", "config.yaml", "--plan", "-o", "plan.json", "--home", "home", *options]
    subprocess.run(
        [sys.executable, "-m", "geval_cli", *words],
        cwd=folder,
        env=env,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return float(json.loads((folder / "plan.json").read_text(encoding="utf-8"))["total"]["cost_most_usd"])


def write(folder: Path, tests: int, config: str) -> None:
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    lines = (json.dumps({"vars": {"number": number}}) + "\n" for number in range(tests))
    (folder / "tests.jsonl").write_text("".join(lines), encoding="utf-8")


@contextlib.contextmanager
def emulator() -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Start the tests' batch API emulator in a separate process; yields its URL and the process."""
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()
