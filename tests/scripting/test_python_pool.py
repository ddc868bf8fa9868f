import asyncio
import os
from pathlib import Path

import pytest
from support.calls import run

from geval_cli.scripting.python_pool import PythonPool
from geval_cli.scripting.script_errors import ScriptCrashError

CODE = """
import os, pathlib, time

calls = 0

def count():
    global calls
    calls += 1
    return [os.getpid(), calls]

def meet(folder, name, others):
    \"\"\"Answers only once all the others are here too.\"\"\"
    folder = pathlib.Path(folder)
    (folder / name).touch()
    while not all((folder / other).exists() for other in others):
        time.sleep(0.005)
    return os.getpid()

def crash():
    os._exit(1)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CODE, encoding="utf-8")
    return path


def test_calls_at_once_run_in_processes_of_their_own(file: Path, tmp_path: Path) -> None:
    async def body() -> set[int]:
        pool = PythonPool(file, size=3)
        names = ["a", "b", "c"]
        try:
            calls = [pool.call("meet", [str(tmp_path), name, names], timeout_s=60) for name in names]
            return set(await asyncio.gather(*calls))
        finally:
            await pool.aclose()
            await pool.aclose()

    pids = run(body())
    assert len(pids) == 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_calls_one_after_another_stay_in_one_process(file: Path) -> None:
    async def body() -> list[list[int]]:
        pool = PythonPool(file, size=3)
        try:
            return [await pool.call("count", [], timeout_s=60) for _ in range(3)]
        finally:
            await pool.aclose()

    answers = run(body())
    assert [count for _, count in answers] == [1, 2, 3]
    assert len({pid for pid, _ in answers}) == 1


def test_no_more_processes_than_its_size(file: Path) -> None:
    async def body() -> list[list[int]]:
        pool = PythonPool(file, size=2)
        try:
            return await asyncio.gather(*(pool.call("count", [], timeout_s=60) for _ in range(10)))
        finally:
            await pool.aclose()

    answers = run(body())
    assert len({pid for pid, _ in answers}) == 2
    assert len({tuple(answer) for answer in answers}) == 10


def test_a_crash_hits_its_own_call_only(file: Path) -> None:
    async def body() -> list[object]:
        pool = PythonPool(file, size=2)
        try:
            first = await asyncio.gather(
                pool.call("crash", [], timeout_s=60),
                pool.call("count", [], timeout_s=60),
                return_exceptions=True,
            )
            return [*first, await pool.call("count", [], timeout_s=60)]
        finally:
            await pool.aclose()

    crashed, *answers = run(body())
    assert isinstance(crashed, ScriptCrashError)
    assert all(isinstance(answer, list) for answer in answers)
