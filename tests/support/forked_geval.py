"""geval commands forked from a process that has loaded it (`support.fork_server`), for the tests."""

import atexit
import functools
import inspect
import json
import os
import pty
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from socket import send_fds, socket, socketpair
from typing import Any

import pexpect
from ptyprocess import PtyProcess


class ForkServer:
    """The process that has loaded geval; if it also needs `libraries`, it is forked from `base`.

    It has ended when `close` returns.
    """

    def __init__(
        self, env: Mapping[str, str], libraries: Sequence[str] = (), base: "ForkServer | None" = None
    ) -> None:
        self._turn = threading.Lock()
        self._control, theirs = socketpair()
        # Nothing is read from them; they are here so that its streams are of the same kind as its children's.
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with theirs:
            if base is not None:
                here = Path.cwd()
                self._process: subprocess.Popen[Any] = ForkedProcess(
                    libraries, base, module="", cwd=here, env=env, stdin=theirs, **pipes
                )
                return
            program = Path(__file__).with_name("fork_server.py")
            self._process = subprocess.Popen(
                [sys.executable, "-P", program, str(theirs.fileno())],
                env=dict(env),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                **pipes,
            )

    def begin(self, command: Mapping[str, Any], streams: Sequence[int]) -> int:
        """Start a command (see `support.fork_server.Command`) and return the process id of our new child."""
        with self._turn:
            try:
                send_fds(self._control, [b"."], streams)
                self._control.sendall(json.dumps(command).encode() + b"\n")
                if number := _line_from(self._control):
                    return int(number)
            except ConnectionError:
                pass
        raise RuntimeError(f"the fork server has ended: {self.close().decode()}")

    def close(self) -> bytes:
        """Stop it, and return its stderr."""
        self._control.close()
        return self._process.communicate()[1]


def _line_from(control: socket) -> bytes:
    line = b""
    while not line.endswith(b"\n") and (more := control.recv(64)):
        line += more
    return line


class ForkedProcess(subprocess.Popen[Any]):
    """A `Popen` that is forked from `server`: `python -m MODULE ARGS`, or with `code` `python -c CODE ARGS`."""

    def __init__(
        self,
        args: Sequence[str],
        server: ForkServer,
        *,
        module: str = "geval_cli",
        code: str | None = None,
        **options: Any,
    ) -> None:
        self._server, self._program = server, {"module": module, "code": code}
        super().__init__(args, **options)

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        """Replace the private method in which the standard library starts the process of a `Popen` on POSIX."""
        given = dict(zip(_GIVEN, rest, strict=True))
        assert not given["pass_fds"], "a forked command has its standard streams only"
        assert not given["start_new_session"], "a forked command leads a group of processes, or none"
        pipes = [given[name] for name in _PIPES]
        streams = [own if own >= 0 else number for number, own in enumerate((pipes[0], pipes[3], pipes[5]))]
        leads = "group" if given["process_group"] == 0 else ""
        command = _command(args, given["cwd"], given["env"], leads, **self._program)
        self.pid = self._server.begin(command, streams)
        self._child_created = True
        self._close_pipe_fds(*pipes)


_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_GIVEN = tuple(inspect.signature(subprocess.Popen._execute_child).parameters)[2:]


class ForkedTerminal(pexpect.spawn):
    """A `pexpect.spawn` that runs `python -m geval_cli ARGS` at the terminal, forked from `server`."""

    def __init__(self, args: Sequence[str], server: ForkServer, **options: Any) -> None:
        self._server = server
        super().__init__(sys.executable, list(args), **options)

    def _spawnpty(self, args: Sequence[bytes], **options: Any) -> PtyProcess:
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, options["dimensions"])
        words = [word.decode() for word in args[1:]]
        pid = self._server.begin(_command(words, options["cwd"], options["env"], "terminal"), [theirs] * 3)
        os.close(theirs)
        return PtyProcess(pid, ours)


def _command(
    args: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    leads: str,
    module: str = "geval_cli",
    code: str | None = None,
) -> dict[str, Any]:
    """Return the fields of a `support.fork_server.Command`."""
    what = {"args": list(args), "module": module, "code": code, "leads": leads}
    return {**what, "cwd": str(cwd), "env": dict(env)}


@functools.cache
def fork_server(*libraries: str, env: tuple[tuple[str, str], ...]) -> ForkServer:
    """Return this pytest process's server that has loaded `libraries`; the first call starts it."""
    base = fork_server(env=env) if libraries else None
    server = ForkServer(dict(env), libraries, base)
    atexit.register(server.close)
    return server
