"""kill -9 in the middle of a run: what was answered is never asked again, and no result is lost or there twice."""

import random
import signal
from pathlib import Path
from typing import Any

import pytest
from support.counting_server import CountingServer
from support.kill_trial import KillableRun, comparable, disturbed

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no kill -9")

TESTS = 60
REQUESTS = 2 * TESTS + 1


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The results of a run that nobody killed."""
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
