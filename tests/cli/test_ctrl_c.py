"""Ctrl-C while a command starts."""

import signal
import subprocess
import sys

import pytest
from support.geval_command import clean_environment, with_ctrl_c

WHERE_PYTHON_LOSES_IT = """\
import os, signal
from geval_cli.cli.ctrl_c import raise_again, stop_at_once

class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(10_000):
            pass

stop_at_once()
{then}
del (dying := [Dying()])[0]
print("went on")
"""


@pytest.mark.parametrize(("then", "code"), [("", 130), ("raise_again()", 0)])
def test_it_ends_the_process_even_where_python_would_lose_it(then: str, code: int) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", WHERE_PYTHON_LOSES_IT.format(then=then)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=with_ctrl_c,
    )
    assert finished.returncode == code
    assert (finished.stderr == "stopped\n") is (code == 130)
    assert (finished.stdout == "went on\n") is (code == 0)


def test_who_wants_it_ignored_gets_that() -> None:
    program = "from geval_cli.cli.ctrl_c import stop_at_once; import os, signal; stop_at_once();"
    finished = subprocess.run(
        [sys.executable, "-c", f"{program} os.kill(os.getpid(), signal.SIGINT); print('went on')"],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert (finished.returncode, finished.stdout) == (0, "went on\n")
