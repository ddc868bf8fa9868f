"""Runs in several processes and on several machines: killed by the dozen, and a million outputs judged.

What is printed: results lost or changed, questions paid for twice, requests beyond those needed. The cluster part needs
Ray, and says so where it is not installed.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from support.counting_server import CountingServer
from support.kill_trial import KillableRun, comparable, disturbed

from benchmarks.measured import measure

TESTS = 60
NEEDED = 2 * TESTS + 1
AT_ONCE = 8
NODE_TESTS = 200
MILLION = 1_000_000


def run(kills: int = 50, *, seed: int = 1, tests: int = MILLION) -> bool:
    """Kill coordinators and workers `kills` times each; lose a machine of a cluster; judge `tests` stored outputs."""
    chance = random.Random(seed)
    alone = _alone(TESTS)
    fine = [_killed_coordinators(kills, alone, chance), _killed_workers(kills, alone, chance)]
    if find_spec("ray") is None:
        print("ray is not installed: no cluster was tried")
    else:
        fine.append(_lost_machine(_alone(NODE_TESTS)))
    fine.append(_stored_outputs(tests))
    return all(fine)


def _alone(tests: int) -> Any:
    with CountingServer() as server, tempfile.TemporaryDirectory() as name:
        return [comparable(item) for item in KillableRun(Path(name), server, tests).finish()["results"]]


def _killed_coordinators(kills: int, alone: Any, chance: random.Random) -> bool:
    """Kill the process that shows the run, again and again, and resume it."""
    done = lost = twice = 0
    while done < kills:
        each = min(5, kills - done)
        with CountingServer() as server, tempfile.TemporaryDirectory() as name:
            run = KillableRun(Path(name), server, TESTS, options=("--workers", "2"))
            trial = disturbed(run, kills=each, chance=chance, requests=(1, NEEDED // (each + 2)))
        done += each
        lost += trial.results != alone
        twice += sum(kill.paid_twice for kill in trial.kills)
    print(f"coordinator killed {done} times: {lost} runs with other results, {twice} answers paid for twice")
    return not lost and not twice


def _killed_workers(kills: int, alone: Any, chance: random.Random) -> bool:
    """Kill one of two workers, again and again, while the run goes on."""
    done = wrong = beyond = 0
    while done < kills:
        with CountingServer(latency_s=0.03) as server, tempfile.TemporaryDirectory() as name:
            run = KillableRun(Path(name), server, TESTS, options=("--workers", "2"))
            process = run.start()
            killed, count = 0, 0
            while process.poll() is None and killed < 3:
                count += chance.randint(10, 40)
                if server.wait_for_requests(count, timeout_s=2.0):
                    killed += _kill_one(process.pid, chance)
            _, errors = process.communicate(timeout=300)
            document = json.loads((Path(name) / "home.json").read_text(encoding="utf-8"))
            found = [comparable(item) for item in document["results"]]
            wrong += found != alone or process.returncode not in {0, 1}
            beyond += max(0, len(server.requests) - NEEDED - killed * AT_ONCE)
            done += max(killed, 1)
            if found != alone:
                sys.stderr.buffer.write(errors)
    print(f"workers killed {done} times: {wrong} runs with other results, {beyond} requests too many")
    return not wrong and not beyond


def _kill_one(pid: int, chance: random.Random) -> bool:
    workers = worker_processes(pid)
    if not workers:
        return False
    os.kill(chance.choice(workers), signal.SIGKILL)
    return True


def worker_processes(pid: int) -> list[int]:
    """Return the processes that do the shards of a run, by their numbers."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"popen_loky" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return sorted(found)


def _lost_machine(alone: Any) -> bool:
    """Lose one of the two machines of a cluster in the middle of a run."""
    from ray.cluster_utils import Cluster

    with CountingServer(latency_s=0.1) as server, tempfile.TemporaryDirectory() as name:
        # Workers of a cluster have the environment of their machine.
        os.environ |= {
            "OPENAI_BASE_URL": server.base_url,
            "OPENAI_API_KEY": "sk-counted",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        second = cluster.add_node(num_cpus=1)
        try:
            run = KillableRun(Path(name), server, NODE_TESTS, options=("--ray", cluster.address))
            process = run.start()
            server.wait_for_requests(NODE_TESTS, timeout_s=120)
            cluster.remove_node(second, allow_graceful=False)
            process.communicate(timeout=600)
        finally:
            cluster.shutdown()
        document = json.loads((Path(name) / "home.json").read_text(encoding="utf-8"))
        asked = len(server.requests)
    is_same = [comparable(item) for item in document["results"]] == alone
    beyond = asked - (2 * NODE_TESTS + 1)
    print(
        f"a machine of two lost: results {'equal' if is_same else 'DIFFER'}, {beyond} requests beyond those needed"
    )
    return is_same and beyond <= 2 * AT_ONCE


def _stored_outputs(tests: int) -> bool:
    """Judge stored outputs by assertions that ask no model: alone, and in two workers."""
    figures = {}
    for count in (10_000, tests):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_outputs(folder, count)
            command = [
                sys.executable,
                "-m",
                "geval_cli",
                "run",
                "config.yaml",
                "--no-progress",
                "--home",
                "home",
            ]
            started = time.perf_counter()
            took = measure([*command, "--workers", "2"], folder, os.environ)
            figures[count] = 1000 * took.cpu_s / count
            minutes = (time.perf_counter() - started) / 60
            print(
                f"{count:,} outputs: {minutes:.1f} minutes, {figures[count]:.2f} ms a test, {took.peak_mb:.0f} MB"
            )
    slower = figures[tests] / figures[10_000]
    print(f"a test among {tests:,} takes {slower:.2f} times as long as one among 10,000")
    return slower <= 1.2


def write_outputs(folder: Path, count: int) -> None:
    """Write a config whose tests have outputs of their own."""
    config = "defaultTest:\n  assert: [{type: contains, value: answer}, {type: regex, value: '[0-9]'}]\n"
    (folder / "config.yaml").write_text(f"tests: file://tests.jsonl\n{config}", encoding="utf-8")
    with (folder / "tests.jsonl").open("w", encoding="utf-8") as file:
        for number in range(count):
            file.write(json.dumps({"vars": {"n": number}, "output": f"answer number {number}"}) + "\n")
