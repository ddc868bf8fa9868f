import signal
import subprocess
import sys

import pytest
from msgspec.structs import replace
from support.sample_run import RUN, SUMMARY

from geval_cli.extras.run_pages import RunChoice, RunPages
from geval_cli.records import RunStatus
from geval_cli.store.locks import RunLocks
from geval_cli.store.runs import RunStore

RUNNING = replace(RUN, status=RunStatus.RUNNING)
HOLDER = """
import sys, time
from pathlib import Path
from geval_cli.store.locks import RunLocks
locks = RunLocks(Path(sys.argv[1]))
print(locks.acquire("one"), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"True\n"
        yield process
        process.kill()


def test_a_lock_ends_with_the_process_that_holds_it(tmp_path, holder):
    locks = RunLocks(tmp_path)
    assert locks.is_run_active("one")
    assert not locks.acquire("one")
    assert locks.holder("one").startswith(f"process {holder.pid} on ")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert not locks.is_run_active("one")
    assert locks.acquire("one")
    locks.release_all()


def test_a_lock_is_held_once_and_leaves_no_file(tmp_path):
    locks, other = RunLocks(tmp_path), RunLocks(tmp_path)
    assert locks.acquire("one")
    assert not locks.acquire("one")
    assert not other.acquire("one")
    assert other.acquire("two")
    locks.release("one")
    assert other.acquire("one")
    other.release_all()
    assert list((tmp_path / "running").iterdir()) == []


def test_asking_creates_nothing(tmp_path):
    assert not RunLocks(tmp_path).is_run_active("one")
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_running_as_long_as_its_process_works_on_it(tmp_path):
    working, looking = RunStore.open(tmp_path), RunStore.open(tmp_path)
    working.begin(RUNNING)
    assert looking.find(RUN.id).run.status is RunStatus.RUNNING
    assert RunPages(looking).outlines(RunChoice(), offset=0, limit=9)[0][0].run.status is RunStatus.RUNNING
    assert looking.holder(RUN.id) is not None
    working.close()
    assert looking.find(RUN.id).run.status is RunStatus.INTERRUPTED
    assert (
        RunPages(looking).outlines(RunChoice(), offset=0, limit=9)[0][0].run.status is RunStatus.INTERRUPTED
    )
    assert looking.holder(RUN.id) is None
    looking.close()


def test_a_run_that_ended_as_it_did_stays_so(tmp_path):
    store = RunStore.open(tmp_path)
    store.begin(RUNNING)
    store.finish(replace(RUN, status=RunStatus.ABORTED), SUMMARY)
    assert store.find(RUN.id).run.status is RunStatus.ABORTED
    assert store.claim(RUN.id)
    store.close()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits on the size of files")
def test_a_full_disk_neither_keeps_a_run_from_its_lock_nor_breaks_letting_go_of_it(tmp_path):
    import resource

    locks = RunLocks(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        assert locks.acquire("one")
        locks.release("one")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not locks.is_run_active("one")


def test_without_a_folder_runs_are_known_to_their_own_process_alone():
    locks = RunLocks(None)
    assert locks.acquire("one")
    assert not locks.acquire("one")
    assert locks.is_run_active("one")
    assert locks.holder("one") == "another process"
    locks.release_all()
    assert not locks.is_run_active("one")
