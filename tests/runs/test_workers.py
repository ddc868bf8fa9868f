"""`geval run --workers`: the same results from several processes, whichever of them dies, within one budget."""

import json
import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.counting_server import CountingServer
from support.kill_trial import KillableRun, comparable, disturbed

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no kill -9")

TESTS = 60
REQUESTS = 2 * TESTS + 1


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one process makes of the suite."""
    with CountingServer() as server:
        return KillableRun(tmp_path_factory.mktemp("alone"), server, TESTS).finish()


def results_of(document: Any) -> list[Any]:
    return [comparable(item) for item in document["results"]]


def children(pid: int) -> list[int]:
    """The processes of a process that are workers, by number."""
    found = subprocess.run(
        ["pgrep", "-P", str(pid), "-f", "popen_loky"], capture_output=True, text=True, check=False
    )
    return sorted(map(int, found.stdout.split()))


@pytest.mark.parametrize("workers", [1, 5])
def test_results_and_requests_are_those_of_one_process(tmp_path: Path, alone: Any, workers: int) -> None:
    with CountingServer() as server:
        document = KillableRun(tmp_path, server, TESTS, options=("--workers", str(workers))).finish()
        names = [request.name for request in server.requests]
    assert results_of(document) == results_of(alone)
    assert len(names) == len(set(names)) == REQUESTS  # no question twice, the one for steps among them
    assert document["summary"]["usage"] == alone["summary"]["usage"]
    found = document["run"]["workers"]
    assert [worker["name"] for worker in found] == [f"worker {number + 1}" for number in range(workers)]
    assert sum(worker["cases"] for worker in found) == TESTS
    assert sum(worker["requests"] for worker in found) == REQUESTS - 1  # the steps were asked for before
    assert alone["run"]["workers"] == []


def test_a_killed_coordinator_loses_nothing_and_takes_its_workers_along(tmp_path: Path, alone: Any) -> None:
    with CountingServer() as server:
        run = KillableRun(tmp_path, server, TESTS, options=("--workers", "2"))
        trial = disturbed(run, kills=2, chance=random.Random(8), requests=(20, 30))
    assert trial.results == results_of(alone)
    assert len(trial.run_ids) == 1
    assert sum(kill.paid_twice for kill in trial.kills) == 0
    assert trial.requests <= REQUESTS + sum(kill.in_flight for kill in trial.kills)


def test_a_killed_worker_loses_nothing(tmp_path: Path, alone: Any) -> None:
    with CountingServer() as server:
        run = KillableRun(tmp_path, server, TESTS, options=("--workers", "2"))
        process = run.start()
        for count in (20, 50, 80):
            assert server.wait_for_requests(count, timeout_s=60)
            os.kill(random.Random(count).choice(children(process.pid)), signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
        asked = len(server.requests)
    assert process.returncode in {0, 1}, errors.decode()
    document = json.loads((tmp_path / "home.json").read_text(encoding="utf-8"))
    assert results_of(document) == results_of(alone)
    lost = sum(worker["lost"] for worker in document["run"]["workers"])
    assert lost == 3
    assert asked <= REQUESTS + lost * 2 * 4  # four requests at once for each worker, and their answers
    assert any("was lost" in warning for warning in document["run"]["warnings"])
