"""What several processes cost: the processor time of a run in 1, 2 and 4 workers beside that of one process."""

import tempfile
from pathlib import Path

from benchmarks.measured import Measured, measure
from benchmarks.throughput import environment, fixed_latency_server, geval_command, verdict, write_config

TESTS = 10_000
QUICK_TESTS = 2_000
LATENCY_S = 0.01
BOUND = 1.1
"""Processor time of two workers, as a multiple of that of one process."""


def run() -> None:
    compare(TESTS)


def run_quick() -> None:
    compare(QUICK_TESTS)


def compare(tests: int) -> None:
    with fixed_latency_server(LATENCY_S) as url:
        found = {workers: one_run(url, tests, workers) for workers in (0, 2, 0, 2, 4)}
    alone = found[0]
    for workers, took in found.items():
        name = f"{workers} workers" if workers else "one process"
        print(
            f"{name:>12} {took.wall_s:6.1f} s, {took.cpu_s:6.1f} s of processor, {took.peak_mb:4.0f} MB at most"
        )
    ratio = found[2].cpu_s / alone.cpu_s
    print(f"two workers take {ratio:.2f} times the processor time of one process ({verdict(ratio, BOUND)})")


def one_run(url: str, tests: int, workers: int) -> Measured:
    with tempfile.TemporaryDirectory() as name:
        write_config(Path(name), tests)
        command = [*geval_command("home"), *(["--workers", str(workers)] if workers else [])]
        return measure(command, Path(name), environment(url))
