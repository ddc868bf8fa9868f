"""A run of 300 tests that is killed (kill -9) at 20 random moments, and resumed each time.

In the end, every test must have exactly one result, equal to that of an undisturbed run, and no request whose answer
was stored may have been sent again. Requests that were in flight at a kill are sent again, because their answers were
never received.
"""

import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.counting_server import CountingServer
from support.kill_trial import KillableRun, Trial, comparable, disturbed

TESTS = 300
KILLS = 20
MOST_REQUESTS = 50
REQUESTS = 2 * TESTS + 1


def run(seed: int | None = None) -> bool:
    """Print the outcome, and return whether everything was correct."""
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    print(f"{TESTS} tests, {REQUESTS} requests, {KILLS} kills, seed {seed}")
    with tempfile.TemporaryDirectory() as name, CountingServer() as server:
        trial = disturbed(
            KillableRun(Path(name), server, TESTS),
            kills=KILLS,
            chance=random.Random(seed),
            requests=(0, MOST_REQUESTS),
        )
    with tempfile.TemporaryDirectory() as name, CountingServer() as server:
        document = KillableRun(Path(name), server, TESTS).finish()
        undisturbed = [comparable(result) for result in document["results"]]
    show(trial)
    verdict = {
        "one run": len(trial.run_ids) == 1,
        "one result a test": [item["test_index"] for item in trial.results] == list(range(TESTS)),
        "results equal the undisturbed run's": trial.results == undisturbed,
        "nothing paid twice": sum(kill.paid_twice for kill in trial.kills) == 0,
        "nothing sent again but what was in flight": trial.requests
        <= REQUESTS + sum(kill.in_flight for kill in trial.kills),
    }
    for what, is_kept in verdict.items():
        print(f"{what}: {'yes' if is_kept else 'NO'}")
    return all(verdict.values())


def show(trial: Trial) -> None:
    print("kill  requests seen  in flight  sent again  results stored  kept answers sent again")
    for number, kill in enumerate(trial.kills, start=1):
        print(
            f"{number:4}  {kill.after:13}  {kill.in_flight:9}  {kill.repeated:10}  {kill.stored:14}"
            f"  {kill.paid_twice:23}"
        )
    again = trial.requests - REQUESTS
    print(f"requests in all: {trial.requests}, {again} more than undisturbed")
    sent = {role: usage["requests"] - usage["cached_requests"] for role, usage in trial.usage.items()}
    print(f"usage of the run: {sent} requests sent, as its summary says")
