"""A process that has loaded geval, and becomes `geval ARGS` by forking: what a test saves is the loading and unloading.

`support.forked_geval` starts it as a program, with the names of further libraries, and sends it, for each command, a
socket and two pipes. Each command is a process with its own arguments, folder, environment, streams and exit code, and
ends as every Python process does, except that no one takes apart what was loaded. Commands may overlap.

It loads libraries and what every `geval run` loads, and runs a small suite once: most of what a short command costs is
done at the first use of something. Modules of geval that only some commands use are not among it, so that a command
which forgets to import one of them still fails.
"""

import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
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
    """What a forked process is to become. `streams` are to be its standard output and its standard error."""

    module: str
    args: list[str]
    cwd: str
    env: dict[str, str]
    streams: tuple[int, int]


def serve(control: socket.socket) -> Command | None:
    """Fork for every command until the tests hang up. Returns what a forked process is to be, and None at the end.

    The tests are told the number of each process, and later how it ended; meanwhile others may begin.
    """
    with selectors.DefaultSelector() as waited_for:
        waited_for.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in waited_for.select():
                if key.fileobj is control:
                    told, numbers, _, _ = socket.recv_fds(control, 1, 3)
                    if not told:
                        return None
                    talk, *streams = numbers
                    if command := _begun(socket.socket(fileno=talk), (streams[0], streams[1]), waited_for):
                        control.close()
                        return command
                else:
                    waited_for.unregister(key.fileobj)
                    os.close(key.fd)
                    _tell_end(*key.data)


def _begun(
    talk: socket.socket, streams: tuple[int, int], waited_for: selectors.BaseSelector
) -> Command | None:
    """Fork, and return in the new process what it is to be, without anything that belongs to others."""
    with talk.makefile("r", encoding="utf-8") as lines:
        command = Command(**json.loads(lines.readline()), streams=streams)
    process = os.fork()
    if process == 0:
        talk.close()
        for key in waited_for.get_map().values():
            if key.data:
                os.close(key.fd)
                key.data[1].close()
        return command
    for number in streams:
        os.close(number)
    with contextlib.suppress(ConnectionError):
        talk.sendall(f"{process}\n".encode())
    waited_for.register(os.pidfd_open(process), selectors.EVENT_READ, (process, talk))
    return None


def _tell_end(process: int, talk: socket.socket) -> None:
    _, status = os.waitpid(process, 0)
    with talk, contextlib.suppress(ConnectionError):
        talk.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


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


def rehearse() -> None:
    """Run commands here, in a folder that is gone afterwards."""
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
    for number, handler in handlers.items():
        signal.signal(number, handler)
    assert threading.active_count() == 1, "a process with several threads must not fork"


def main() -> None:
    for name in (*LOADED, *sys.argv[2:]):
        importlib.import_module(name)
    sys.path.append(str(Path(__file__).parents[1]))
    importlib.import_module("support.built_commands").build_commands()
    sys.path.pop()
    rehearse()
    gc.freeze()
    command = serve(socket.socket(fileno=int(sys.argv[1])))
    if command is not None:
        become(command)


if __name__ == "__main__":
    main()
