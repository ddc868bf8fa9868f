"""The tests' own way to run in several processes: every test has its verdict, and what it says is shown."""

import subprocess
import sys
from pathlib import Path

CONFTEST = """
import sys

sys.path.insert(0, TESTS)
from support.forked_tests import run_in_forks

crashed = []

def pytest_runtestloop(session):
    run_in_forks(session, 3, lambda name: name.partition("::")[0], crashed.append)
    return True

def pytest_sessionfinish():
    print("crashed:", crashed)
"""
ODD = """
import asyncio, os, pytest, uvloop

@pytest.fixture(scope="module")
def process(tmp_path_factory):
    yield os.getpid()

def test_passes(process): assert process == os.getpid() != os.getppid()
def test_fails(process): print("said before"); assert "a" == "b"
def test_ends_its_process(): os._exit(3)
def test_comes_after(process, tmp_path): assert (process, tmp_path.parent.name[:8]) == (os.getpid(), "process-")
def test_hangs():
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner: runner.run(asyncio.sleep(1000))
@pytest.mark.skip(reason="no need")
def test_is_skipped(): pass
"""
MORE = "import pytest\n\n@pytest.mark.parametrize('n', range(20))\ndef test_it(n): assert n != 7\n"


def test_each_test_is_run_once_in_the_process_of_its_group_and_a_crash_or_a_hang_costs_one(
    tmp_path: Path,
) -> None:
    files = {"conftest.py": CONFTEST.replace("TESTS", repr(str(Path(__file__).parent))), "test_odd.py": ODD}
    files |= {f"test_more_{number}.py": MORE for number in range(4)}
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:geval",
        "-p",
        "no:xdist",
        "-p",
        "no:hypothesispytest",
        "-o",
        "timeout=2",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "7 failed, 78 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1
    assert "crashed: ['test_odd.py::test_ends_its_process', 'test_odd.py::test_hangs']" in done.stdout
    assert "its process ended with 3" in done.stdout
    assert "its process ended with -9" in done.stdout
    assert "said before" in done.stdout
