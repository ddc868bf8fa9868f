"""Runs in several processes and on several machines: killed by the dozen, and a million outputs judged.

What is printed: results lost or changed, questions paid for twice, requests beyond those needed. The cluster part needs
Ray, and says so where it is not installed.
"""

import contextlib
import json
import os
import random
import signal
import sys
import tempfile
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from support.counting_server import CountingServer
from support.kill_trial import KillableRun, comparable, disturbed

from benchmarks.measured import measure
from geval_cli.records import to_json
from geval_cli.store.runs import RunStore

TESTS = 60
NEEDED = 2 * TESTS + 1
AT_ONCE = 8
NODE_TESTS = 200
MILLION = 1_000_000
SAMPLE = 10_000


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
            document = run.document
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
    """Return the processes that do the shards of a run, by their numbers: copies of a child of the run."""
    return sorted(worker for source in copied_processes(pid) for worker in _children(source))


def copied_processes(pid: int) -> list[int]:
    """Return the process of which the workers of a run are copies, if it is there."""
    return [child for child in _children(pid) if b"forkserver" in _command(child)]


def processes_with(variable: str, value: str) -> list[int]:
    """Return the processes, by number, in whose environment a variable has a value."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{variable}={value}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def _children(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(folder.name))
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


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
            # In the middle of shards: each has an eighth of the tests, with two requests for each.
            server.wait_for_requests(NODE_TESTS * 9 // 8, timeout_s=120)
            cluster.remove_node(second, allow_graceful=False)
            process.communicate(timeout=600)
        finally:
            cluster.shutdown()
        document = run.document
        asked = len(server.requests)
    is_same = [comparable(item) for item in document["results"]] == alone
    lost = sum(worker["lost"] for worker in document["run"]["workers"])
    beyond = asked - (2 * NODE_TESTS + 1)
    print(
        f"a machine of two lost, and {lost} shard with it: results {'equal' if is_same else 'DIFFER'}, "
        f"{beyond} requests beyond those needed"
    )
    return is_same and lost > 0 and beyond <= 2 * AT_ONCE


def _stored_outputs(tests: int) -> bool:
    """Judge stored outputs by assertions that ask no model: a sample in one process, and all in two workers."""
    figures, samples = {}, []
    for count, options in ((SAMPLE, []), (SAMPLE, ["--workers", "2"]), (tests, ["--workers", "2"])):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_outputs(folder, count)
            words = ["run", "config.yaml", "--no-progress", "--home", "home", *options]
            took = measure([sys.executable, "-m", "geval_cli", *words], folder, os.environ)
            samples.append(_first_results(folder / "home"))
        figures[count] = 1000 * took.cpu_s / count
        where = "in two workers" if options else "in one process"
        print(
            f"{count:,} outputs {where}: {took.wall_s / 60:.1f} minutes, {figures[count]:.2f} ms a test, "
            f"{took.peak_mb:.0f} MB in the largest process"
        )
    slower, is_same = figures[tests] / figures[SAMPLE], samples == samples[:1] * len(samples)
    print(
        f"a test among {tests:,} takes {slower:.2f} times as long as one among {SAMPLE:,}; "
        f"the first {SAMPLE:,} results are {'equal' if is_same else 'DIFFERENT'}"
    )
    return slower <= 1.2 and is_same


def _first_results(home: Path) -> list[Any]:
    with RunStore.open_read_only(home) as store:
        (run,) = store.runs()
        return [comparable(to_json(result)) for result in islice(store.results(run.run.id), SAMPLE)]


def write_outputs(folder: Path, count: int) -> None:
    """Write a config whose tests have outputs of their own."""
    config = "defaultTest:\n  assert: [{type: contains, value: answer}, {type: regex, value: '[0-9]'}]\n"
    (folder / "config.yaml").write_text(f"tests: file://tests.jsonl\n{config}", encoding="utf-8")
    with (folder / "tests.jsonl").open("w", encoding="utf-8") as file:
        for number in range(count):
            file.write(json.dumps({"vars": {"n": number}, "output": f"answer number {number}"}) + "\n")
