import asyncio
import os
import time
from pathlib import Path

import pytest
from support.calls import run

from geval_cli.extras.programs.scripting import processes
from geval_cli.extras.programs.scripting.processes import PythonPool
from geval_cli.source.command import ScriptCrashError, ScriptError

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

def loop_of_its_own():
    import asyncio
    return asyncio.run(asyncio.sleep(0, "done"))

made = []

async def same_loop():
    import asyncio
    made.append(asyncio.get_running_loop())
    return made[0] is made[-1]

def light(first, *, word=""):
    import sys
    return [first, "asyncio" in sys.modules, "inspect" in sys.modules]
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


def test_plain_functions_may_run_a_loop_and_coroutines_share_one(file: Path) -> None:
    async def body() -> list[object]:
        pool = PythonPool(file, size=1)
        calls = [("light", [1, 2]), ("loop_of_its_own", []), ("same_loop", []), ("same_loop", [])]
        try:
            return [await pool.call(name, arguments, timeout_s=60) for name, arguments in calls]
        finally:
            await pool.aclose()

    assert run(body()) == [[1, False, False], "done", True, True]


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


WRITERS = """
import os, subprocess, sys

def to_all(line):
    for number in range(1024):
        try:
            os.write(number, line.encode())
        except OSError:
            pass
    return 1

def to_stdout(text):
    print(text)
    sys.__stdout__.write(text)
    os.write(1, text.encode())
    os.system("echo banner")
    subprocess.run([sys.executable, "-c", "print('banner')"])
    sys.stdin.read()
    return 2

def good():
    return 3

def close_all():
    os.closerange(3, 4096)
    return 4

def fork_and_return():
    os.fork()
    return 5

def fork_and_stay(program):
    if os.fork() == 0:
        os.setsid()
        os.execvp(program[0], program)
    os._exit(0)

def leave():
    sys.exit()

def start_what_stays(program):
    subprocess.Popen(program, start_new_session=True)
    return 6

def complain(size):
    os.write(2, b"x" * size + b" end")
    return 7

def long(size):
    return "x" * size
"""
STAYS = ["sleep", "40"]


def called(file: Path, *calls: tuple[object, ...]) -> list[object]:
    """What each call gives, or the error that it raises; `good` is called after each."""

    async def body() -> list[object]:
        pool = PythonPool(file, size=1)
        found: list[object] = []
        try:
            for function, *arguments in calls:
                outcomes = await asyncio.gather(
                    pool.call(str(function), arguments, timeout_s=60), return_exceptions=True
                )
                found += outcomes
                assert await pool.call("good", [], timeout_s=60) == 3
        finally:
            await asyncio.wait_for(pool.aclose(), 20)
        return found

    return run(body())


@pytest.fixture
def writers(tmp_path: Path) -> Path:
    path = tmp_path / "writers.py"
    path.write_text(WRITERS, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "line",
    ["{}\n", "[]\n", "null\n", "garbage\n", "garbage", "\n", '{"error": 3}\n', '{"result": 1}\n', "[" * 9999],
)
def test_what_code_writes_into_the_channel_is_an_error_of_its_call(writers: Path, line: str) -> None:
    (error,) = called(writers, ("to_all", line))
    assert isinstance(error, ScriptError)
    assert "cannot be read" in str(error)


def test_what_code_and_its_programs_print_is_no_answer(writers: Path) -> None:
    assert called(writers, ("to_stdout", '{"result": 7}\n'), ("to_stdout", "banner")) == [2, 2]


def test_code_that_closes_everything_ends_as_a_crash_or_an_answer(writers: Path) -> None:
    (found,) = called(writers, ("close_all",))
    assert isinstance(found, ScriptCrashError) or found == 4


def test_a_fork_of_the_code_neither_answers_nor_keeps_the_channel_open(writers: Path) -> None:
    forked, stayed, left, started = called(
        writers, ("fork_and_return",), ("fork_and_stay", STAYS), ("leave",), ("start_what_stays", STAYS)
    )
    assert (forked, started) == (5, 6)
    assert isinstance(stayed, ScriptCrashError)
    assert isinstance(left, ScriptError)


def test_an_answer_that_is_too_long_is_an_error(writers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_ANSWER_BYTES", 1000)
    (error,) = called(writers, ("long", 5_000))
    assert isinstance(error, ScriptError)
    assert "more than" in str(error)


def test_a_long_line_of_complaints_takes_no_time_and_only_its_end_is_kept(writers: Path) -> None:
    began = time.monotonic()
    assert called(writers, ("complain", 40_000_000)) == [7]
    assert time.monotonic() - began < 15  # minutes, if each part is joined to all before it


@pytest.mark.parametrize("code", ["", "0", "3", "'bye'"])
def test_code_that_exits_is_an_error_of_its_call_and_runs_once(tmp_path: Path, code: str) -> None:
    path = tmp_path / "exits.py"
    path.write_text(
        f"import sys\n\ndef leave():\n    sys.exit({code})\n\ndef good():\n    return 3\n", "utf-8"
    )
    (error,) = called(path, ("leave",))
    assert isinstance(error, ScriptError)
    assert not isinstance(error, ScriptCrashError)  # which is tried again, and may be paid for again
    assert "SystemExit" in str(error)


@pytest.mark.parametrize(
    "text", ["raise OSError", "return 1 / 0", "return None", "sys.exit()", "return '\\udc80'"]
)
def test_an_exception_without_a_text_is_an_error_of_its_call_and_is_raised_once(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "raises.py"
    code = f"class Odd(Exception):\n    def __str__(self):\n        {text}\n\ndef odd():\n    raise Odd\n"
    path.write_text(f"import sys\n\n{code}\ndef good():\n    return 3\n", "utf-8")
    error, good = called(path, ("odd",), ("good",))
    assert isinstance(error, ScriptError)
    assert not isinstance(error, ScriptCrashError)
    assert "Odd" in str(error)
    assert good == 3
