"""A run that is killed and resumed again and again, against a server that counts requests."""

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.counting_server import CountedRequest, CountingServer
from support.geval_command import clean_environment, start_geval

CONFIG = """\
prompts: ["Write one sentence about topic {{ number }}."]
providers: ["openai:m"]
defaultTest:
  options: { provider: "openai:judge", scoring: single }
  assert: [{ type: g-eval, criteria: The output is one sentence about the topic., threshold: 0.5 }]
tests: file://tests.jsonl
"""

AT_ONCE = 8
# The keys of ratings contain the judge's URL, which differs between runs.
_DIFFERS = frozenset({"latency_ms", "cached", "usage", "criterion_key", "criterion_parts", "rating_key"})
"""What may differ in a result between a run that was killed and one that was not."""


@dataclass(frozen=True)
class Kill:
    """One kill.

    Attributes:
        after: the number of requests that the server got from the process.
        in_flight: its requests whose answers were not in the cache when it died.
        stored: the number of results in the store afterwards.
        repeated: the requests in flight that a later process sent again.
        paid_twice: the requests that were sent again although their answers were in the cache.
    """

    after: int
    in_flight: int
    stored: int
    repeated: int
    paid_twice: int


@dataclass
class Trial:
    """The outcome: the kills, and how the run finally ended."""

    kills: list[Kill] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    usage: Mapping[str, Any] = field(default_factory=dict)
    run_ids: set[str] = field(default_factory=set)
    requests: int = 0


@dataclass
class KillableRun:
    """A config with `tests` tests, and its runs against `server`. The state is in `home`."""

    folder: Path
    server: CountingServer
    tests: int
    home: str = "home"
    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
        lines = (json.dumps({"vars": {"number": number}}) + "\n" for number in range(self.tests))
        (self.folder / "tests.jsonl").write_text("".join(lines), encoding="utf-8")

    def start(
        self, *options: str, group: int | None = None, is_loaded_anew: bool = False
    ) -> "subprocess.Popen[bytes]":
        """Start a process that runs the config; with `group` 0, it leads its own process group, for signals."""
        words = ["run", "config.yaml", "--home", self.home, "-o", f"{self.home}.json", "--no-progress"]
        environment = {"OPENAI_BASE_URL": self.server.base_url, "OPENAI_API_KEY": "sk-counted"}
        return start_geval(
            *(*words, "-j", str(AT_ONCE), *self.options, *options),
            cwd=self.folder,
            is_loaded_anew=is_loaded_anew,
            env=clean_environment(**environment, **self.environment),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=group,
        )

    def finish(self, *options: str) -> Any:
        """Return the results file of an undisturbed run."""
        process = self.start(*options)
        _, errors = process.communicate(timeout=120)
        assert process.returncode in {0, 1}, errors.decode()
        return self.document

    @property
    def document(self) -> Any:
        """Return the results file of the run that ended last."""
        return json.loads((self.folder / f"{self.home}.json").read_text(encoding="utf-8"))

    def has_run(self) -> bool:
        """Return whether a run has been stored, so that it can be resumed."""
        return bool(self.rows("geval.db", "SELECT id FROM runs"))

    def committed(self) -> set[str]:
        """Return the answers in the cache, as texts."""
        rows = self.rows("cache.db", "SELECT answer FROM choices")
        return {json.loads(answer)["text"] for (answer,) in rows}

    def rows(self, file: str, statement: str) -> list[Any]:
        """Return rows of one of the databases; none if it does not exist yet."""
        path = self.folder / self.home / file
        if not path.exists():
            return []
        with contextlib.closing(sqlite3.connect(path)) as connection:
            try:
                return connection.execute(statement).fetchall()
            except sqlite3.OperationalError:  # killed before its tables were created
                return []


def disturbed(run: KillableRun, *, kills: int, chance: random.Random, requests: tuple[int, int]) -> Trial:
    """Run to the end with `kills` kills, each after a number of `requests` (min, max); with 0, during startup."""
    trial = Trial()
    marks: list[tuple[int, int, set[str], int]] = []
    for _ in range(kills):
        first = len(run.server.requests)
        after = chance.randint(*requests)
        # Otherwise the run could end before a slow machine kills it.
        run.server.answer_at_most(first + after + AT_ONCE if after else None)
        process = run.start(*_resuming(run), is_loaded_anew=not after)
        if after:
            while process.poll() is None and not run.server.wait_for_requests(first + after, timeout_s=0.2):
                pass
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=chance.random() * (0.05 if after else 1.0))
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        _, errors = process.communicate()
        run.server.answer_at_most(None)
        assert process.returncode == -signal.SIGKILL, errors.decode()
        last = len(run.server.requests)
        stored = len(run.rows("geval.db", "SELECT case_id FROM results"))
        marks.append((first, last, run.committed(), stored))
    document = run.finish(*_resuming(run))
    trial.results = [comparable(result) for result in document["results"]]
    trial.usage = document["summary"]["usage"]
    trial.run_ids = {name for (name,) in run.rows("geval.db", "SELECT id FROM runs")}
    trial.requests = len(run.server.requests)
    trial.kills = list(_judged(marks, run.server.requests))
    return trial


def comparable(value: Any) -> Any:
    """Return a result without anything that depends on the clock or the cache."""
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items() if key not in _DIFFERS}
    if isinstance(value, list):
        return [comparable(item) for item in value]
    return value


def _resuming(run: KillableRun) -> list[str]:
    return ["--resume"] if run.has_run() else []


def _judged(
    marks: Sequence[tuple[int, int, set[str], int]], requests: Sequence[CountedRequest]
) -> Iterator[Kill]:
    for number, (first, last, committed, stored) in enumerate(marks):
        later = Counter(request.name for request in requests[last:])
        following = marks[number + 1][1] if number + 1 < len(marks) else len(requests)
        next_ones = {request.name for request in requests[last:following]}
        flying = {request.name for request in requests[first:last] if request.answer not in committed}
        kept = {request.name for request in requests[:last] if request.answer in committed}
        yield Kill(
            after=last - first,
            in_flight=len(flying),
            stored=stored,
            repeated=len(flying & next_ones),
            paid_twice=sum(later[name] for name in kept),
        )
