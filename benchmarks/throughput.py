"""1,000 tests, each one generation and one criteria g-eval, 50 ms latency, 200 connections, nothing cached.

The floor is a bare aiohttp loop that sends as many requests of the same size in the same run.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = 1_000
REQUESTS = 2 * TESTS + 1
CONNECTIONS = 200
LATENCY_S = 0.05
RUNS = 3

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
        env = {**os.environ, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "sk-bench", "NO_COLOR": "1"}
        floors, ours = [], []
        for number in range(RUNS):
            bare = [
                sys.executable,
                "-c",
                BARE_LOOP,
                f"{url}/v1/chat/completions",
                str(REQUESTS),
                str(CONNECTIONS),
                "900",
            ]
            floors.append(timed(bare, folder, env))
            before = count(url)
            words = f"run config.yaml -j {CONNECTIONS} --no-cache --no-progress --home home{number}".split()
            ours.append(timed([sys.executable, "-m", "geval_cli", *words], folder, env))
            sent = count(url) - before
            ratio = ours[-1] / floors[-1]
            times = f"floor {floors[-1]:5.2f} s   geval {ours[-1]:5.2f} s"
            print(f"{times}   ratio {ratio:4.2f}   {sent} requests")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        best = min(ours) / min(floors)
        print(f"best ratio {best:.2f} (bound 1.8); peak memory of any process {peak:.0f} MB (bound 150)")


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
    with urllib.request.urlopen(f"{url}/count") as response:
        return int(response.read())


def write_config(folder: Path, tests: int) -> None:
    """A config whose tests stand in a JSON Lines file, as large suites do."""
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


def timed(command: list[str], folder: Path, env: dict[str, str]) -> float:
    started = time.perf_counter()
    finished = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    took = time.perf_counter() - started
    if finished.returncode not in (0, 1):
        sys.exit(f"{command[:4]} ended with {finished.returncode}:\n{finished.stderr[-2000:]}")
    return took
