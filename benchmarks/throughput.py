"""1,000 tests, each one generation and one criteria g-eval, 50 ms latency, 200 connections, nothing cached.

The floor is a bare aiohttp loop that sends as many requests of the same size in the same run.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measured import Measured, measure

TESTS = 1_000
REQUESTS = 2 * TESTS + 1
CONNECTIONS = 200
LATENCY_S = 0.05
RUNS = 5
RATIO_BOUND = 3
MEMORY_BOUND_MB = 150
PROMPTFOO_S = (14, 17)

BARE_LOOP = """
import asyncio, json, sys
import aiohttp

async def main(url, requests, connections, size):
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * size}], "temperature": 0}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=connections)) as session:
        async def one():
            async with session.post(url, json=body, headers={"authorization": "Bearer k"}) as response:
                return (await response.json())["choices"][0]["message"]["content"]
        await asyncio.gather(*(one() for _ in range(requests)))

asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
"""


def run() -> None:
    with tempfile.TemporaryDirectory() as name, fixed_latency_server() as url:
        folder = Path(name)
        write_config(folder, TESTS)
        env = environment(url)
        floors, ours = [], []
        for number in range(RUNS):
            floors.append(measure(floor_command(url), folder, env))
            before = count(url)
            ours.append(measure(geval_command(f"home{number}"), folder, env))
            sent = count(url) - before
            show(floors[-1], ours[-1], f"{sent} requests")
        theirs = measured_promptfoo(folder, env)
    floor = min(floors, key=lambda run: run.wall_s)
    best = min(ours, key=lambda run: run.wall_s)
    show(floor, best, f"best of {RUNS}")
    ratio, peak_mb = best.wall_s / floor.wall_s, max(run.peak_mb for run in ours)
    print(
        f"ratio {ratio:.2f} ({verdict(ratio, RATIO_BOUND)}); processor time {best.cpu_s / floor.cpu_s:.2f} times"
    )
    print(f"memory {peak_mb:.0f} MB ({verdict(peak_mb, MEMORY_BOUND_MB)})")
    if theirs is None:
        low, high = PROMPTFOO_S
        print(f"promptfoo 0.123.1 was measured once, elsewhere, at {low}-{high} s for the same tests:")
        print(
            f"  {low / best.wall_s:.1f} to {high / best.wall_s:.1f} times as long as this run "
            "(wanted: 8; another machine, so a rough guide; PROMPTFOO=/path/to/promptfoo measures it here)"
        )
    else:
        print(
            f"promptfoo {theirs.wall_s:.2f} s ({theirs.cpu_s:.2f} s, {theirs.peak_mb:.0f} MB): "
            f"{theirs.wall_s / best.wall_s:.1f} times as long as the best run of geval (wanted: 8)"
        )


def show(floor: Measured, ours: Measured, note: str) -> None:
    print(
        f"floor {floor.wall_s:5.2f} s ({floor.cpu_s:5.2f} s of processor)   "
        f"geval {ours.wall_s:5.2f} s ({ours.cpu_s:5.2f} s, {ours.peak_mb:.0f} MB)   "
        f"ratio {ours.wall_s / floor.wall_s:4.2f}   {note}"
    )


def verdict(value: float, bound: float) -> str:
    return f"bound {bound:g}: {'kept' if value <= bound else 'BROKEN'}"


def floor_command(url: str, requests: int = REQUESTS) -> list[str]:
    words = [f"{url}/v1/chat/completions", str(requests), str(CONNECTIONS), "900"]
    return [sys.executable, "-c", BARE_LOOP, *words]


def geval_command(home: str) -> list[str]:
    words = f"run config.yaml -j {CONNECTIONS} --no-cache --no-progress --home {home}".split()
    return [sys.executable, "-m", "geval_cli", *words]


def measured_promptfoo(folder: Path, env: dict[str, str]) -> Measured | None:
    """One run of promptfoo on the same tests; None unless PROMPTFOO says what to start (a path, or a command)."""
    command = os.environ.get("PROMPTFOO")
    if not command:
        return None
    quiet = {
        "PROMPTFOO_CONFIG_DIR": str(folder / "promptfoo"),
        "PROMPTFOO_DISABLE_TELEMETRY": "1",
        "PROMPTFOO_DISABLE_UPDATE": "1",
        "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
    }
    words = f"eval -c promptfoo.yaml -j {CONNECTIONS} --no-cache --no-table --no-progress-bar --no-share"
    return measure([*shlex.split(command), *words.split()], folder, {**env, **quiet})


def environment(url: str) -> dict[str, str]:
    return {**os.environ, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-bench", "NO_COLOR": "1"}


@contextmanager
def fixed_latency_server(latency_s: float = LATENCY_S) -> Iterator[str]:
    """The base URL (without /v1) of a server in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.fixed_latency_server", str(latency_s)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


def count(url: str) -> int:
    return int(ask(url, "count"))


def ask(url: str, what: str) -> float:
    with urllib.request.urlopen(f"{url}/{what}") as response:
        return float(response.read())


def write_config(folder: Path, tests: int) -> None:
    """A config whose tests stand in a JSON Lines file, as large suites do; the same once more in promptfoo's words."""
    (folder / "promptfoo.yaml").write_text(
        """\
prompts: ["Write one sentence about {{ topic }}."]
providers: ["openai:chat:m"]
defaultTest:
  options: { provider: "openai:chat:judge" }
  assert: [{ type: g-eval, value: The output is one sentence about the topic. }]
tests: file://tests.jsonl
""",
        encoding="utf-8",
    )
    (folder / "config.yaml").write_text(
        """\
prompts: ["Write one sentence about {{ topic }}."]
providers: [{ id: "openai:m", config: { max_concurrency: 200 } }]
defaultTest:
  options: { provider: { id: "openai:judge", config: { max_concurrency: 200 } } }
  assert: [{ type: g-eval, criteria: The output is one sentence about the topic. }]
tests: file://tests.jsonl
""",
        encoding="utf-8",
    )
    lines = (json.dumps({"vars": {"topic": f"topic number {number}"}}) + "\n" for number in range(tests))
    (folder / "tests.jsonl").write_text("".join(lines), encoding="utf-8")
