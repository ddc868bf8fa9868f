"""Claims: one process at a time asks for an answer, and the claims of a process end with it."""

import os
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from geval_cli.store.locks import CLAIMS_FILE, Claims

KEY, OTHER = (sha256(name).hexdigest() for name in (b"key", b"other"))

HOLDER = """
import sys
from pathlib import Path
from geval_cli.store.locks import Claims
claims = Claims(Path(sys.argv[1]))
print(claims.take(sys.argv[2]), flush=True)
sys.stdin.read()
claims.release_claim(sys.argv[2])
print("given back", flush=True)
sys.stdin.read()
"""


def holder(folder: Path, key: str) -> "subprocess.Popen[bytes]":
    """Another process that has claimed `key`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), key], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"True\n"
    return process


def test_a_claim_of_another_process_holds_until_it_is_given_back(tmp_path):
    process = holder(tmp_path, KEY)
    claims = Claims(tmp_path)
    assert (claims.take(KEY), claims.take(OTHER)) == (False, True)
    process.communicate()
    assert claims.take(KEY)
    claims.close()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no kill -9")
def test_a_claim_of_a_killed_process_is_gone(tmp_path):
    process, claims = holder(tmp_path, KEY), Claims(tmp_path)
    assert not claims.take(KEY)
    process.kill()
    process.communicate()
    assert claims.take(KEY)
    claims.close()


def test_users_of_one_process_exclude_one_another_and_closing_one_keeps_the_claims_of_the_others(tmp_path):
    first, second = Claims(tmp_path), Claims(tmp_path)
    assert (first.take(KEY), second.take(KEY)) == (True, False)
    second.close()
    process = holder(tmp_path, OTHER)
    process.communicate()
    script = HOLDER.replace("sys.stdin.read()", "", 1)
    found = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), KEY],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert found.stdout.startswith(b"False")
    first.release_claim(KEY)
    first.close()


def test_where_no_file_can_be_made_every_claim_is_granted(tmp_path):
    (tmp_path / CLAIMS_FILE).mkdir()
    claims = Claims(tmp_path)
    assert claims.take(KEY)
    claims.release_claim(KEY)
    claims.close()
    claims.close()


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="this system cannot refuse links")
def test_a_planted_link_is_not_followed(tmp_path):
    target = tmp_path / "target"
    (tmp_path / CLAIMS_FILE).symlink_to(target)
    Claims(tmp_path).close()
    assert not target.exists()


@pytest.mark.skipif(os.name != "posix", reason="the file stays where there are no shared locks")
def test_the_last_process_removes_the_file_and_none_before(tmp_path):
    process, claims = holder(tmp_path, KEY), Claims(tmp_path)
    claims.close()
    assert (tmp_path / CLAIMS_FILE).exists()
    claims = Claims(tmp_path)
    assert not claims.take(KEY)
    process.communicate()
    claims.close()
    assert not (tmp_path / CLAIMS_FILE).exists()


@pytest.mark.skipif(os.name != "posix", reason="the file stays where there are no shared locks")
def test_processes_that_come_and_go_never_hold_one_claim_at_once(tmp_path):
    code = """
import os, sys
from pathlib import Path
from geval_cli.store.locks import Claims
folder, mark = Path(sys.argv[1]), Path(sys.argv[1]) / "held"
taken = 0
for _ in range(300):
    claims = Claims(folder)
    if claims.take(sys.argv[2]):
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))  # fails if another process has the claim, too
        os.unlink(mark)
        claims.release_claim(sys.argv[2])
        taken += 1
    claims.close()
print(taken)
"""
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), KEY], stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    taken = [int(process.communicate()[0]) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert min(taken) > 0
    assert not (tmp_path / CLAIMS_FILE).exists()
