"""Several real processes on one database, killed in the middle of writing: nothing that was committed is lost."""

import asyncio
import contextlib
import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from geval_cli.store.cache import ResponseCache
from geval_cli.store.runs import RunStore

# Writes without end and prints the number of each answer once it is committed.
CACHE_WRITER = """
import asyncio, hashlib, sys
from pathlib import Path
from geval_cli.records import Choice
from geval_cli.store.cache import ResponseCache, StoredChoice

async def write(cache, worker):
    number = worker
    while True:
        name = f"{sys.argv[2]}-{number}"
        key = hashlib.sha256(name.encode()).hexdigest()
        await cache.put_many({key: StoredChoice(Choice(name * 20))})
        print(name, flush=True)
        number += 8

async def main():
    cache = ResponseCache.open(Path(sys.argv[1]))
    await asyncio.gather(*(write(cache, worker) for worker in range(8)))

asyncio.run(main())
"""

RUN_WRITER = """
import sys
from msgspec.structs import replace
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from geval_cli.records import *
from geval_cli.store.runs import RunStore

store = RunStore.open(Path(sys.argv[1]))
run = RunRecord(sys.argv[2], RunStatus.RUNNING, "2026", None, None, "0", "c", "d", {})
store.begin(run)
case = CaseResult(
    "0", 0, 0, 0, None, RenderedPrompt("p", "p", "Hi"), ProviderRef("e", "e"), {}, "x", Status.PASSED, 1.0
)
number = 0
while True:
    store.add(run.id, replace(case, id=str(number), test_index=number))
    if number % 10 == 0:
        seen = sum(1 for _ in store.results(run.id))
        print(seen, flush=True)
    number += 1
"""


def start(program, *arguments):
    # Lines are read straight from the pipe, so that none is lost in a buffer of ours.
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], stdout=subprocess.PIPE)


def kill_after_lines(process, count):
    lines = [process.stdout.readline() for _ in range(count)]
    os.kill(process.pid, signal.SIGKILL)
    lines += process.stdout.readlines()
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    # The last line may have been cut by the kill.
    return [line.decode().strip() for line in lines if line.endswith(b"\n")]


def is_sound(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no kill -9")
def test_no_committed_answer_is_lost_when_processes_are_killed_while_they_write(tmp_path):
    committed = []
    for round_number in range(3):
        processes = [start(CACHE_WRITER, tmp_path, f"{round_number}-{name}") for name in "ab"]
        for process in processes:
            committed += kill_after_lines(process, 20 + 37 * round_number)

    async def body():
        cache = ResponseCache.open(tmp_path)
        keys = {hashlib.sha256(name.encode()).hexdigest(): name for name in committed}
        found = await cache.get_many(list(keys))
        cache.close()
        return keys, found, cache.warnings

    keys, found, warnings = asyncio.run(body())
    assert len(committed) >= 2 * (20 + 57 + 94)
    assert {keys[key] * 20 for key in keys} == {stored.choice.text for stored in found.values()}
    assert warnings == ()
    assert is_sound(tmp_path / "cache.db")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no kill -9")
def test_a_killed_run_is_interrupted_with_all_results_that_were_seen(tmp_path):
    processes = [start(RUN_WRITER, tmp_path, name, Path.cwd()) for name in ("one", "two")]
    seen = {
        name: kill_after_lines(process, 5) for name, process in zip(("one", "two"), processes, strict=True)
    }
    store = RunStore.open(tmp_path)
    for name, counts in seen.items():
        stored, summary = store.find(name)
        numbers = [item.test_index for item in store.results(name)]
        assert (stored.status, summary) == ("interrupted", None)
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= int(counts[-1])
    store.close()
    assert is_sound(tmp_path / "geval.db")
