"""A hundred kills of runs in batches, at any request that they send: each is paid for once, and no result is lost."""

import random
import tempfile
from collections import Counter
from pathlib import Path

from support.batch_server import BatchServer
from support.batch_trial import BatchSuite, comparable
from support.batch_vendors import VENDORS

from geval_cli.extras.aws.batches import BedrockBatches

MOST_IN_A_RUN = 15
_DIFFERS = frozenset(
    {
        "cached",
        "usage",
        "latency_ms",
        "location",
        "criterion_key",
        "criterion_parts",
        "rating_key",
        "cost_usd_generated",
    }
)


def run(kills: int, seed: int) -> bool:
    """Kill runs so often in all; return whether every one of them ended as one that no one disturbed."""
    import openai  # noqa: F401 - once here, and not in each process

    BedrockBatches.fewest_requests = 1  # these runs are small
    chance, done, is_good = random.Random(seed), 0, True
    counts: Counter[str] = Counter()
    while done < kills:
        wire = chance.choice(sorted(VENDORS))
        with tempfile.TemporaryDirectory() as folder, BatchServer() as server:
            server.expired_share = chance.choice((0.0, 0.0, 0.7))
            suite = BatchSuite(Path(folder) / "killed", server, wire=wire, tests=chance.randint(25, 60))
            killed, is_over = 0, False
            operations = sorted(VENDORS[wire].routes)
            while not is_over and done + killed < kills and killed < MOST_IN_A_RUN:
                operation, when = chance.choice(operations), chance.choice(("before", "after"))
                is_over = not suite.run_until_killed(operation, when, resume_latest=killed > 0)
                if not is_over:
                    killed += 1
                    counts[f"{wire} {operation} {when}"] += 1
            # One that came to its end before it could be killed is read from the cache.
            ended = suite.run(resume_latest=not is_over)
            done += killed
            asked_twice = [name for name, count in server.paid.items() if count > 1]
            direct = BatchSuite(Path(folder) / "direct", server, wire=wire, tests=suite.tests).run(
                is_batched=False
            )
            is_same = comparable(_stripped(ended.results)) == comparable(_stripped(direct.results))
            if asked_twice or not is_same:
                print(f"  {wire}, {killed} kills: {len(asked_twice)} paid twice, results equal: {is_same}")
                is_good = False
    for name, count in sorted(counts.items()):
        print(f"  {name}: {count}")
    return is_good


def _stripped(results: object) -> object:
    if isinstance(results, dict):
        return {key: _stripped(item) for key, item in results.items() if key not in _DIFFERS}
    return [_stripped(item) for item in results] if isinstance(results, list) else results
