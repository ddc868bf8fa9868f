"""How time and memory grow with the number of tests: 1,000, 10,000 and 100,000 from a JSON Lines file."""

import tempfile
from pathlib import Path

from benchmarks.measured import Measured, measure
from benchmarks.throughput import environment, fixed_latency_server, geval_command, verdict, write_config

SIZES = (1_000, 10_000, 100_000)
QUICK_SIZES = SIZES[:2]
LATENCY_S = 0.01
MEMORY_BOUND_MB = 200
GROWTH_BOUND = 1.2
FURTHER_TEST_BOUND_MS = 1.2
"""Processor time of each test between the first two sizes: what a test costs once everything has been loaded."""


def run() -> None:
    compare(SIZES)


def run_quick() -> None:
    compare(QUICK_SIZES)


def compare(sizes: tuple[int, ...]) -> None:
    runs: list[Measured] = []
    with fixed_latency_server(LATENCY_S) as url:
        for tests in sizes:
            with tempfile.TemporaryDirectory() as name:
                write_config(Path(name), tests)
                runs.append(measure(geval_command("home"), Path(name), environment(url)))
                show(tests, runs[-1])
    peak_mb = max(run.peak_mb for run in runs)
    print(f"memory {peak_mb:.0f} MB ({verdict(peak_mb, MEMORY_BOUND_MB)})")
    growth = runs[-1].peak_mb / runs[-2].peak_mb
    print(
        f"{sizes[-1]:,} tests take {growth:.2f} times the memory of {sizes[-2]:,} ({verdict(growth, GROWTH_BOUND)})"
    )
    further_ms = 1000 * (runs[1].cpu_s - runs[0].cpu_s) / (sizes[1] - sizes[0])
    print(
        f"each test between {sizes[0]:,} and {sizes[1]:,} takes {further_ms:.2f} ms of processor "
        f"({verdict(further_ms, FURTHER_TEST_BOUND_MS)})"
    )
    slower = (runs[-1].cpu_s / sizes[-1]) / (runs[-2].cpu_s / sizes[-2])
    print(f"a test among {sizes[-1]:,} takes {slower:.2f} times as long as one among {sizes[-2]:,}")


def show(tests: int, run: Measured) -> None:
    each_ms = 1000 * run.wall_s / tests
    print(
        f"{tests:>8,} tests {run.wall_s:8.1f} s ({run.cpu_s:.1f} s of processor) {each_ms:6.2f} ms a test "
        f"{run.peak_mb:6.0f} MB"
    )
