"""Ctrl-C while a command starts."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.geval_command import clean_environment, with_ctrl_c

HERE = Path(__file__).parents[2]
WHERE_PYTHON_LOSES_IT = """\
import os, signal
from geval_cli.cli.main import restore_keyboard_interrupt, stop_at_once

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


@pytest.mark.parametrize(("then", "code"), [("", 130), ("restore_keyboard_interrupt()", 0)])
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
    assert (finished.stderr == "interrupted by Ctrl-C\n") is (code == 130)
    assert (finished.stdout == "went on\n") is (code == 0)


def test_who_wants_it_ignored_gets_that() -> None:
    program = "from geval_cli.cli.main import stop_at_once; import os, signal; stop_at_once();"
    finished = subprocess.run(
        [sys.executable, "-c", f"{program} os.kill(os.getpid(), signal.SIGINT); print('went on')"],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert (finished.returncode, finished.stdout) == (0, "went on\n")


SUITE = "prompts: [hello]\nproviders: [echo]\ntests: [{ assert: [{ type: contains, value: hell }] }]\n"
WHEN_IMPORTED = """\
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
from geval_cli.cli.main import geval
geval()
"""


@pytest.mark.parametrize(
    "module",
    [
        "geval_cli.cli.streams",
        "typer",
        "geval_cli.cli.arguments",
        "geval_cli.runs.evaluate",
        "uvloop",
        "geval_cli.report.terminal",
    ],
)
def test_whenever_it_comes_there_is_a_word_and_no_traceback(tmp_path: Path, module: str) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE, encoding="utf-8")
    finished = subprocess.run(
        [sys.executable, "-P", "-c", WHEN_IMPORTED.format(module=module), "run", "suite.yaml"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=with_ctrl_c,
    )
    assert finished.returncode == 130, finished.stderr
    assert "Traceback" not in finished.stderr
    assert "interrupted by Ctrl-C\n" in finished.stderr or "Ctrl-C: stopping" in finished.stderr


def test_little_is_loaded_before_it_is_ours() -> None:
    program = (
        "import sys; before = set(sys.modules); import geval_cli.cli.main; print(*set(sys.modules) - before)"
    )
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path += {[str(HERE)]!r}; {program}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not {"typing", "re", "traceback", "threading", "asyncio"} & set(loaded)
