"""kill -9 in the middle of a run: what was answered is never asked again, and no result is lost or there twice."""

import random
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.counting_server import CountingServer
from support.geval_command import clean_environment, start_geval
from support.kill_trial import AT_ONCE, KillableRun, comparable, disturbed

from geval_cli.runs.evaluate import JOBS_PER_REQUEST

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no kill -9")

TESTS = 60
REQUESTS = 2 * TESTS + 1


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The results of a run that no one killed."""
    with CountingServer() as server:
        document = KillableRun(tmp_path_factory.mktemp("undisturbed"), server, TESTS).finish()
    return [comparable(item) for item in document["results"]]


@pytest.mark.parametrize(("options", "kills"), [((), 3), (("--no-cache",), 2)], ids=["cache", "no-cache"])
def test_a_run_that_is_killed_again_and_again_ends_like_one_that_was_not(
    tmp_path: Path, undisturbed: list[Any], options: tuple[str, ...], kills: int
) -> None:
    with CountingServer() as server:
        run = KillableRun(tmp_path, server, TESTS, options=options)
        trial = disturbed(run, kills=kills, chance=random.Random(8), requests=(20, 30))
    assert len(trial.run_ids) == 1
    assert [item["test_index"] for item in trial.results] == list(range(TESTS))
    assert trial.results == undisturbed
    assert sum(kill.paid_twice for kill in trial.kills) == 0
    assert trial.requests <= REQUESTS + sum(kill.in_flight for kill in trial.kills)
    assert any(kill.stored for kill in trial.kills), "no kill came late enough to show anything"


@pytest.mark.parametrize("is_killed", [False, True], ids=["both live", "one is killed"])
def test_two_equal_runs_at_once_pay_for_each_answer_once(tmp_path: Path, is_killed: bool) -> None:
    with CountingServer(latency_s=0.05) as server:
        run = KillableRun(tmp_path, server, TESTS)
        words = ("run", "config.yaml", "--home", "home", "--no-progress", "-j", str(AT_ONCE))
        environment = clean_environment(OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY="sk-two")
        started = [
            start_geval(*words, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) for _ in range(2)
        ]
        kept: set[str] = set()
        if is_killed:
            assert server.wait_for_requests(30, timeout_s=60)
            started[0].kill()
            started[0].wait()
            kept = run.committed()
        before = len(server.requests)
        codes = [process.wait(timeout=120) for process in started]
    sent = Counter(request.name for request in server.requests)
    assert codes[1] in {0, 1}
    assert len(sent) == REQUESTS
    assert [request.name for request in server.requests[before:] if request.answer in kept] == []
    # Lost is what was on the wire, and what had come and was being committed: no more than the jobs under way.
    assert sum(sent.values()) <= REQUESTS + (AT_ONCE * JOBS_PER_REQUEST if is_killed else 0)
    assert kept or not is_killed, "the kill came too early to show anything"
