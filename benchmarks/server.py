"""`geval serve` under load: rounds of 200 concurrent evaluations, with a judge on loopback that takes 50 ms."""

import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from benchmarks.throughput import fixed_latency_server

AT_ONCE = 200
ROUNDS = 8
JUDGE_LATENCY_S = 0.05
GROWTH_BOUND_MB = 15
TOKEN = "token-of-the-benchmark-0123456789"

ASKED = {
    "name": "clarity",
    "input": "How does the sea look?",
    "evaluationSteps": ["Read the text.", "Compare it with the question."],
}


def run() -> None:
    with tempfile.TemporaryDirectory() as folder, fixed_latency_server(JUDGE_LATENCY_S) as judge:
        keys = {"OPENAI_API_KEY": "sk-bench", "GEVAL_SERVER_TOKEN": TOKEN}
        environ = {**os.environ, **keys, "OPENAI_BASE_URL": f"{judge}/v1"}
        server = subprocess.Popen(
            [sys.executable, "-m", "geval_cli", "serve", "--port", "0", "--scoring", "single"],
            cwd=folder,
            env=environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stderr is not None
            first = server.stderr.readline()
            found = re.search(r"http://\S+", first)
            if found is None:
                sys.exit(f"the server did not start: {first}{server.stderr.read()}")
            asyncio.run(load(found.group(), server.pid))
        finally:
            server.terminate()
            server.communicate()


async def load(url: str, pid: int) -> None:
    """Send every round of requests, and print how the server's memory develops."""
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        await one_round(session, url, -1)
        memory = [memory_mb(pid)]
        times: list[float] = []
        began = time.perf_counter()
        for number in range(ROUNDS):
            times += await one_round(session, url, number)
            memory.append(memory_mb(pid))
        took = time.perf_counter() - began
    times.sort()
    print(f"{AT_ONCE} at once, {ROUNDS} rounds: {len(times) / took:7.0f} evaluations/s")
    for name, value in (
        ("p50", statistics.median(times)),
        ("p99", times[int(len(times) * 0.99)]),
        ("most", times[-1]),
    ):
        print(f"  {name:<5} {value * 1000:7.0f} ms")
    growth = memory[-1] - memory[ROUNDS // 2]
    verdict = "flat" if growth <= GROWTH_BOUND_MB else "GROWS"
    shown = " ".join(f"{value:.0f}" for value in memory)
    print(f"  memory after each round: {shown} MB ({verdict})")


async def one_round(session: aiohttp.ClientSession, url: str, number: int) -> list[float]:
    return await asyncio.gather(*(one(session, url, f"{number}.{index}") for index in range(AT_ONCE)))


async def one(session: aiohttp.ClientSession, url: str, name: str) -> float:
    """Return the duration in seconds of one evaluation that is not in the cache."""
    began = time.perf_counter()
    asked = {**ASKED, "actualOutput": f"Answer {name}: it is wide and blue."}
    async with session.post(f"{url}/api/geval", json=asked) as answer:
        body = await answer.json()
    assert answer.status == 200, body
    assert body["score"] == 0.8, body
    return time.perf_counter() - began


def memory_mb(pid: int) -> float:
    """Return the resident memory, if the system reports it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0.0
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    return int(found.group(1)) / 1024 if found else 0.0
