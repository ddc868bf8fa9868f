"""A process that has loaded geval and forks to become `geval ARGS`, which saves tests the time to load and unload it.

`support.forked_geval` starts it as a program and sends it, for each command, a socket and the standard streams. Each
command is a process with its own arguments, folder, environment, streams and exit code, and ends like any Python
process, except that the loaded modules are not torn down. Commands may overlap.

It loads libraries and everything that `geval run` needs, and runs a small suite once, because most of the cost of a
short command is in the first use of something. geval modules that only some commands use are not preloaded, so that a
command that forgets to import one still fails. A process forked from it can become another such server, with libraries
that only some commands use.
"""

import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import platform
import runpy
import signal
import socket
import sys
import tempfile
import termios
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

LOADED = (
    "geval_cli.cli.run",
    "geval_cli.cli.arguments",
    "aiohttp",
    "ssl",
    "jsonschema",
    "rich.console",
)

SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
_CLONE_PARENT = 0x8000

REHEARSED = """\
prompts: ['{{ word }}']
providers: [echo, 'openai:gpt-4o-mini']
defaultTest: { options: { provider: 'scripted:judge.yaml' } }
tests:
  - vars: { word: hello }
    assert: [{ type: contains, value: h }, { type: g-eval, evaluation_steps: [Look for a greeting.] }]
"""


@dataclass(frozen=True)
class Command:
    """The command that a forked process becomes: `python -m MODULE ARGS`, or with `code` `python -c CODE ARGS`.

    Without `module`, it becomes a server that has loaded the libraries `args` and receives commands through the socket
    `stdin`. `leads` makes it the leader of its own session at the terminal `stdin`, or of its own process group.
    """

    args: list[str]
    cwd: str
    env: dict[str, str]
    module: str
    code: str | None
    leads: Literal["", "terminal", "group"]


def serve(control: socket.socket) -> tuple[Command, list[int]] | None:
    """Fork for every command until the tests close the connection.

    Returns, in a forked process, its command and standard streams; in the server, None at the end.
    """
    while True:
        told, streams, _, _ = socket.recv_fds(control, 1, 3)
        if not told:
            return None
        with control.makefile("r", encoding="utf-8", buffering=1) as lines:
            command = Command(**json.loads(lines.readline()))
        process = fork_as_sibling()
        if process == 0:
            control.close()
            return command, streams
        for number in streams:
            os.close(number)
        control.sendall(f"{process}\n".encode())


def fork_as_sibling() -> int:
    """Fork so that the new process is a child of this one's parent, which can wait for it and get its exit status."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    process: int = ctypes.PyDLL(None).syscall(SYS_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if process == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return process


def become(command: Command, streams: list[int]) -> None:
    """Become the command."""
    for number, wanted in zip(streams, range(3), strict=True):
        os.dup2(number, wanted)
    for number in {*streams} - {*range(3)}:
        os.close(number)
    if command.leads == "terminal":
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - it stays
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    elif command.leads == "group":
        os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGHUP):  # ignored in a shell's background jobs
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.chdir(command.cwd)
    os.environ.clear()
    os.environ.update(command.env)
    time.tzset()
    sys.path.insert(0, command.cwd)
    sys.argv[1:] = command.args
    if command.code is None:
        runpy.run_module(command.module, run_name="__main__", alter_sys=True)
    else:
        sys.argv[0] = "-c"
        exec(command.code, sys.modules["__main__"].__dict__)


def rehearse() -> None:
    """Run a few commands in this process, in a temporary folder."""
    here, words, environ = Path.cwd(), sys.argv[:], dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    nowhere = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(nowhere):
        os.chdir(folder)
        Path("c.yaml").write_text(REHEARSED)
        Path("judge.yaml").write_text("- { match: greeting, reply: 'Score: 5' }\n")
        os.environ |= {"OPENAI_API_KEY": "sk-rehearsed", "GEVAL_HOME": folder}
        for args in (("validate",), ("run", "--filter-providers", "echo", "-o", "r.json"), ("run", "--plan")):
            sys.argv[1:] = [args[0], "c.yaml", *args[1:]]
            with contextlib.redirect_stderr(nowhere):
                try:
                    importlib.import_module("geval_cli.cli.main").main()
                except SystemExit as end:
                    code = end.code
            assert not code, nowhere.getvalue()
        os.chdir(here)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv[:] = words
    tempfile.tempdir = None  # the cached folder
    for number, handler in handlers.items():
        signal.signal(number, handler)


def with_libraries(command: Command, streams: list[int]) -> socket.socket:
    """Load the requested libraries, and return the socket that commands come from."""
    control, *written = streams
    for number, wanted in zip(written, (1, 2), strict=True):
        os.dup2(number, wanted)
        os.close(number)
    os.environ.clear()
    os.environ.update(command.env)
    for name in command.args:
        importlib.import_module(name)
    return socket.socket(fileno=control)


def main() -> None:
    for name in LOADED:
        importlib.import_module(name)
    sys.path.append(str(Path(__file__).parents[1]))
    importlib.import_module("support.built_commands").build_commands()
    sys.path.pop()
    rehearse()
    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        assert threading.active_count() == 1, "a process with several threads must not fork"
        gc.freeze()
        begun = serve(control)
        if begun is None:
            return
        if begun[0].module:
            become(*begun)
            return
        control = with_libraries(*begun)


if __name__ == "__main__":
    main()
