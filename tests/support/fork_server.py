"""A process that has loaded geval, and becomes `geval ARGS` by forking: what a test saves is the loading and unloading.

`support.forked_geval` starts it as a program, with the names of further libraries, and sends it, for each command, a
socket and two pipes. Each command is a process with its own arguments, folder, environment, streams and exit code, and
ends as every Python process does, except that no one takes apart what was loaded. It is a grandchild: between the two
stands a process that waits for its end, so that commands may overlap.

It loads what every `geval run` loads, and libraries. Modules of geval that only some commands use are not among it,
so that a command which forgets to import one of them still fails.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

LOADED = (
    "geval_cli.cli.run",
    "geval_cli.cli.arguments",
    "aiohttp",
    "ssl",
    "jsonschema",
    "rich.console",
)


@dataclass(frozen=True)
class Command:
    """What a forked process is to become. `streams` are to be its standard output and its standard error."""

    module: str
    args: list[str]
    cwd: str
    env: dict[str, str]
    streams: tuple[int, int]


def serve(control: socket.socket) -> Command | None:
    """Fork for every command until the tests hang up. Returns what a forked process is to be, and None at the end."""
    while True:
        told, numbers, _, _ = socket.recv_fds(control, 1, 3)
        if not told:
            return None
        _forget_ended()
        talk, *streams = numbers
        if os.fork() == 0:
            control.close()
            return _supervised(socket.socket(fileno=talk), (streams[0], streams[1]))
        for number in numbers:
            os.close(number)


def _forget_ended() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _supervised(talk: socket.socket, streams: tuple[int, int]) -> Command:
    """Fork once more; tell the tests the number of the new process, in which this returns, and how it ended."""
    with talk, talk.makefile("rw", encoding="utf-8") as lines:
        command = Command(**json.loads(lines.readline()), streams=streams)
        process = os.fork()
        if process == 0:
            return command
        for number in streams:
            os.close(number)
        lines.write(f"{process}\n")
        lines.flush()
        _, status = os.waitpid(process, 0)
        lines.write(f"{os.waitstatus_to_exitcode(status)}\n")
    os._exit(0)


def become(command: Command) -> None:
    """Be `python -m MODULE ARGS` from here on."""
    for number, wanted in zip(command.streams, (1, 2), strict=True):
        os.dup2(number, wanted)
        os.close(number)
    os.chdir(command.cwd)
    os.environ.clear()
    os.environ.update(command.env)
    time.tzset()
    sys.path.insert(0, command.cwd)
    sys.argv[1:] = command.args
    runpy.run_module(command.module, run_name="__main__", alter_sys=True)


def main() -> None:
    for name in (*LOADED, *sys.argv[2:]):
        importlib.import_module(name)
    sys.path.append(str(Path(__file__).parents[1]))
    importlib.import_module("support.built_commands").build_commands()
    sys.path.pop()
    gc.freeze()
    command = serve(socket.socket(fileno=int(sys.argv[1])))
    if command is not None:
        become(command)


if __name__ == "__main__":
    main()
