"""The overhead of several processes: CPU time of a run with workers and on a Ray cluster, compared with one process.

The cluster consists of two nodes on this machine, started beforehand. The CPU time of geval and its tasks is compared
with the bound; that of Ray's own processes is printed separately.
"""

import os
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from benchmarks.measured import Measured, measure
from benchmarks.throughput import environment, fixed_latency_server, geval_command, verdict, write_config

TESTS = 10_000
QUICK_TESTS = 2_000
LATENCY_S = 0.01
TURNS = 3
BOUND = 1.1
"""Processor time of two workers, as a multiple of that of one process."""
RAY_BOUND = 1.5
_LOOK_EVERY_S = 0.1


def run() -> None:
    compare(TESTS)


def run_quick() -> None:
    compare(QUICK_TESTS)


def compare(tests: int) -> None:
    with fixed_latency_server(LATENCY_S) as url:
        found = [{workers: one_run(url, tests, workers) for workers in (0, 2, 4)} for _ in range(TURNS)]
        for workers in (0, 2, 4):
            name = f"{workers} workers" if workers else "one process"
            runs = [turn[workers] for turn in found]
            print(
                f"{name:>12} {median(run.wall_s for run in runs):6.1f} s, "
                f"{median(run.cpu_s for run in runs):6.1f} s of processor, "
                f"{max(run.peak_mb for run in runs):4.0f} MB at most"
            )
        ratio = median(turn[2].cpu_s / turn[0].cpu_s for turn in found)
        print(
            f"two workers take {ratio:.2f} times the processor time of one process ({verdict(ratio, BOUND)})"
        )
        if find_spec("ray") is None:
            print("ray is not installed: no cluster was tried")
        else:
            on_cluster(url, tests, median(turn[0].cpu_s for turn in found))


def on_cluster(url: str, tests: int, alone_s: float) -> None:
    """Run `tests` tests on a cluster of two nodes on this machine, and print the CPU time."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - not installed everywhere

    os.environ |= environment(url) | {
        "RAY_USAGE_STATS_ENABLED": "0"
    }  # tasks inherit their machine's environment
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        with tempfile.TemporaryDirectory() as name:
            write_config(Path(name), tests)
            command = [*geval_command("home"), "--ray", cluster.address]
            looks = [processes()]
            running = subprocess.Popen(
                command, cwd=name, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            while running.poll() is None:
                looks.append(processes())
                time.sleep(_LOOK_EVERY_S)
    finally:
        cluster.shutdown()
    own_s = ray_s = 0.0
    for pid in {pid for look in looks for pid in look}:
        names = {look[pid][0] for look in looks if pid in look}
        took_s = max(look[pid][1] for look in looks if pid in look) - looks[0].get(pid, ("", 0.0))[1]
        if pid == running.pid or any(map(is_task, names)):
            own_s += took_s
        elif any("ray" in name.partition(" ")[0] or "/ray/" in name for name in names):
            ray_s += took_s
    ratio = own_s / alone_s
    print(
        f"   two nodes {own_s:6.1f} s of processor, and {ray_s:.1f} s of Ray's own processes; "
        f"{ratio:.2f} times one process ({verdict(ratio, RAY_BOUND)})"
    )


def is_task(name: str) -> bool:
    """Return whether a command line belongs to a Ray process that runs tasks or actors of geval."""
    return name.startswith("ray::") and "IDLE" not in name


def processes() -> dict[int, tuple[str, float]]:
    """Return the command line and the CPU time in seconds of every process, by process id."""
    found = {}
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            name = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found[int(folder.name)] = name, (int(fields[11]) + int(fields[12])) * tick_s
    return found


def one_run(url: str, tests: int, workers: int) -> Measured:
    with tempfile.TemporaryDirectory() as name:
        write_config(Path(name), tests)
        command = [*geval_command("home"), *(["--workers", str(workers)] if workers else [])]
        return measure(command, Path(name), environment(url))
