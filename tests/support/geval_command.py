"""Runs the real `geval` command in a process of its own, as a user does.

Most of what a short command costs is the loading of its modules. So on Linux it is forked off a process that has loaded
them, one for each process of pytest. It is started from nothing with `is_loaded_anew`, and where its environment says
something about the loading.
"""

import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from support.forked_geval import Ended, ForkServer, Order, fork_server

_VOLATILE = (
    (re.compile(r"\b\d{8}-\d{6}-[0-9a-f]{4}\b"), "<ID>"),
    (re.compile(r"\b\d+(\.\d+)?\s?(ms|s|min)\b(?!\w)"), "<TIME>"),
    (re.compile(r"\b\d{4}-\d{2}-\d{2}T[\d:.]+(\+00:00|Z)"), "<WHEN>"),
)

_READ_WHILE_LOADING = ("PYTHON", "LC_", "LANG", "TYPER_", "PYDANTIC_")
"""How the names of variables begin that decide how Python and libraries are loaded."""

_ABOUT_TRUST = ("agree", "calibrate", "probe")


@dataclass(frozen=True)
class Finished:
    """How a command ended; `stdout` and `stderr` with what differs from run to run replaced."""

    code: int
    stdout: str
    stderr: str


def with_ctrl_c() -> None:
    """Undo, in a new process, that a shell's background jobs ignore Ctrl-C, and those of nohup a lost terminal."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment of a user without keys, in a plain 100-column pipe."""
    kept = {
        name: os.environ[name] for name in ("PATH", "HOME", "LANG", "GEVAL_MODELS_DIR") if name in os.environ
    }
    return {**kept, "PYTHONUTF8": "1", "XDG_STATE_HOME": _state_home(), **extra}


@cache
def _state_home() -> str:
    """Where untrusted runs of tests keep their state: not in the home folder of whoever runs them."""
    folder = tempfile.mkdtemp(prefix="geval-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def run_geval(
    *args: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 120,
    streams: Mapping[str, int] | None = None,
    is_loaded_anew: bool = False,
) -> Finished:
    """Run `geval ARGS` in `cwd` and wait for it. With `streams`, its `stdout` or `stderr` is that open file."""
    order = Order(args, cwd, clean_environment() if env is None else env, streams or {}, timeout_s)
    run = _run_anew if is_loaded_anew or not _can_be_forked(order.env) else _server_for(args).run
    ended = run(order)
    return Finished(ended.code, settled(ended.stdout.decode(), cwd), settled(ended.stderr.decode(), cwd))


def run_pytest(*args: str, cwd: Path, env: Mapping[str, str]) -> Finished:
    """Run `pytest ARGS` in `cwd` in a process that has loaded it, and of geval what a run needs."""
    server = fork_server(*sorted(clean_environment().items()), libraries=("pytest",))
    ended = server.run(Order(args, cwd, env, {}, 120, module="pytest"))
    return Finished(ended.code, settled(ended.stdout.decode(), cwd), settled(ended.stderr.decode(), cwd))


def _server_for(args: Sequence[str]) -> ForkServer:
    """Commands about trust have one of their own: what they compute with takes longer to load than all else."""
    if args and args[0] in _ABOUT_TRUST:
        one_thread = clean_environment(OPENBLAS_NUM_THREADS="1")  # a process with several must not fork
        return fork_server(*sorted(one_thread.items()), libraries=("scipy.stats",))
    return fork_server(*sorted(clean_environment().items()))


def _run_anew(order: Order) -> Ended:
    finished = subprocess.run(
        [sys.executable, "-m", "geval_cli", *order.args],
        cwd=order.cwd,
        env=order.env,
        timeout=order.timeout_s,
        check=False,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **order.streams},
    )
    return Ended(finished.returncode, finished.stdout or b"", finished.stderr or b"")


def _can_be_forked(env: Mapping[str, str]) -> bool:
    """Whether nothing in `env` says how Python and its libraries are to be loaded."""
    loaded = clean_environment()
    deciding = {name for name in {*env, *loaded} if name.startswith(_READ_WHILE_LOADING)}
    return sys.platform == "linux" and all(env.get(name) == loaded.get(name) for name in deciding)


def settled(text: str, folder: Path) -> str:
    """`text` with ids, times and the folder's path replaced."""
    text = text.replace(str(folder), "<DIR>")
    for pattern, name in _VOLATILE:
        text = pattern.sub(name, text)
    return text
