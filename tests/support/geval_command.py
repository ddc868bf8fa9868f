"""Runs the real `geval` command in its own process, as a user does.

Most of the time of a short command is spent loading modules. So on Linux it is forked from a process that has loaded
them, one for each pytest process. It is started from scratch with `is_loaded_anew`, or if its environment affects how
Python loads modules.
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
from typing import Any

import pexpect
from support.fork_server import SYS_CLONE
from support.forked_geval import ForkedProcess, ForkedTerminal, ForkServer, fork_server

_VOLATILE = (
    (re.compile(r"\b\d{8}-\d{6}-[0-9a-f]{4}\b"), "<ID>"),
    (re.compile(r"\b\d+(\.\d+)?\s?(ms|s|min)\b(?!\w)"), "<TIME>"),
    (re.compile(r"\b\d{4}-\d{2}-\d{2}T[\d:.]+(\+00:00|Z)"), "<WHEN>"),
)

_READ_WHILE_LOADING = ("PYTHON", "LC_", "LANG", "TYPER_", "PYDANTIC_")
"""How the names of variables begin that decide how Python and libraries are loaded."""

_OF_WEB = ("fastapi", "fastapi.responses", "jinja2", "markdown_it", "starlette.staticfiles", "uvicorn")
_OF_SERVERS = {"mcp": ("mcp.server",), "serve": _OF_WEB, "view": _OF_WEB}
_ABOUT_TRUST = ("agree", "calibrate", "improve", "probe")


@dataclass(frozen=True)
class Finished:
    """The outcome of a command; everything that differs from run to run is replaced in `stdout` and `stderr`."""

    code: int
    stdout: str
    stderr: str


def with_ctrl_c() -> None:
    """Restore SIGINT, which background jobs of a shell ignore, and SIGHUP, which nohup ignores, in a new process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def clean_environment(**extra: str) -> dict[str, str]:
    """Return the environment of a user without keys, whose output goes to a pipe 100 columns wide."""
    kept = {
        name: os.environ[name] for name in ("PATH", "HOME", "LANG", "GEVAL_MODELS_DIR") if name in os.environ
    }
    return {**kept, "PYTHONUTF8": "1", "XDG_STATE_HOME": _state_home(), **extra}


@cache
def _state_home() -> str:
    """Return the folder for the state of tests' untrusted runs, which must not be in the developer's home folder."""
    folder = tempfile.mkdtemp(prefix="geval-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def run_geval(
    *args: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    code: str | None = None,
    timeout_s: float = 120,
    streams: Mapping[str, int] | None = None,
    is_loaded_anew: bool = False,
) -> Finished:
    """Run `geval ARGS`, or `python -c CODE ARGS`, in `cwd` and wait for it.

    `streams` gives open files to use as its `stdout` or `stderr`.
    """
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options = {**pipes, **(streams or {})}
    return _finished(
        start_geval(*args, cwd=cwd, env=env, code=code, is_loaded_anew=is_loaded_anew, **options),
        cwd,
        timeout_s,
    )


def run_pytest(*args: str, cwd: Path, env: Mapping[str, str]) -> Finished:
    """Run `pytest ARGS` in `cwd`, in a process that has preloaded pytest and the parts of geval that a run needs."""
    return _finished(start_pytest(*args, cwd=cwd, env=env), cwd, 120)


def start_pytest(*args: str, cwd: Path, env: Mapping[str, str]) -> "subprocess.Popen[Any]":
    server = _server_with("pytest")
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return ForkedProcess(args, server, module="pytest", cwd=cwd, env=env, **pipes)


def start_geval(
    *args: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    code: str | None = None,
    is_loaded_anew: bool = False,
    **options: Any,
) -> "subprocess.Popen[Any]":
    """Start `geval ARGS`, or `python -c CODE ARGS`, in `cwd`, with any other options of `Popen`."""
    env = clean_environment() if env is None else env
    if is_loaded_anew or not _can_be_forked(env):
        program = ["-m", "geval_cli"] if code is None else ["-c", code]
        own = {"preexec_fn": with_ctrl_c, **options}
        return subprocess.Popen([sys.executable, *program, *args], cwd=cwd, env=env, **own)
    return ForkedProcess(args, _server_for(args), code=code, cwd=cwd, env=env, **options)


def geval_at_terminal(
    *args: str, cwd: Path, env: Mapping[str, str], dimensions: tuple[int, int] = (40, 80)
) -> "pexpect.spawn[str]":
    """Start `geval ARGS` at a terminal with these dimensions (lines, columns)."""
    options: dict[str, Any] = {
        "cwd": str(cwd),
        "env": env,
        "dimensions": dimensions,
        "encoding": "utf-8",
        "timeout": 60,
    }
    if not _can_be_forked(env):
        return pexpect.spawn(sys.executable, ["-m", "geval_cli", *args], **options)
    return ForkedTerminal(args, _server_for(args), **options)


def _finished(process: "subprocess.Popen[bytes]", cwd: Path, timeout_s: float) -> Finished:
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    texts = (settled((written or b"").decode(), cwd) for written in (stdout, stderr))
    return Finished(process.returncode, *texts)


def _server_for(args: Sequence[str]) -> ForkServer:
    """Return the fork server for a command; `serve` and trust commands need further libraries preloaded."""
    command = args[0] if args else ""
    return _server_with(*_OF_SERVERS.get(command, ("scipy.stats",) if command in _ABOUT_TRUST else ()))


def _server_with(*libraries: str) -> ForkServer:
    one_thread = clean_environment(OPENBLAS_NUM_THREADS="1")  # a process with several threads must not fork
    return fork_server(*libraries, env=tuple(sorted(one_thread.items())))


def _can_be_forked(env: Mapping[str, str]) -> bool:
    """Return whether nothing in `env` affects how Python and its libraries are loaded."""
    loaded = clean_environment()
    deciding = {name for name in {*env, *loaded} if name.startswith(_READ_WHILE_LOADING)}
    return (
        sys.platform == "linux"
        and SYS_CLONE is not None
        and all(env.get(name) == loaded.get(name) for name in deciding)
    )


def settled(text: str, folder: Path) -> str:
    """Return `text` with ids, times and the folder's path replaced."""
    text = text.replace(str(folder), "<DIR>")
    for pattern, name in _VOLATILE:
        text = pattern.sub(name, text)
    return text
