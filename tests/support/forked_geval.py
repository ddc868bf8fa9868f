"""Commands of geval forked off a process that has loaded it (`support.fork_server`), as the tests have them."""

import atexit
import contextlib
import functools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO


@dataclass(frozen=True)
class Order:
    """A command to be run. What it writes goes to the open files `streams` (stdout, stderr), or is gathered.

    It is `python -m MODULE ARGS`.
    """

    args: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    streams: Mapping[str, int]
    timeout_s: float
    module: str = "geval_cli"


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (minus the number of a signal), and what it wrote."""

    code: int
    stdout: bytes
    stderr: bytes


class ForkServer:
    """The process that has loaded geval, and `libraries` beside. It is gone when `close` returns."""

    def __init__(self, env: Mapping[str, str], libraries: Sequence[str] = ()) -> None:
        self._control, theirs = socket.socketpair()
        program = Path(__file__).with_name("fork_server.py")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", program, str(theirs.fileno()), *libraries],
                env=dict(env),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # nothing is read: its streams are to be of the kind that its children get
                stderr=subprocess.PIPE,
            )

    def run(self, order: Order) -> Ended:
        """Wait for a command.

        Raises:
            TimeoutError: it did not end in time, and was killed.
            RuntimeError: the fork server itself is not there.
        """
        talk, theirs = socket.socketpair()
        with contextlib.ExitStack() as ends, talk, talk.makefile("rw", encoding="utf-8") as lines:
            gathered, streams = {}, []
            with theirs, contextlib.ExitStack() as handed_over:
                for name in ("stdout", "stderr"):
                    if name in order.streams:
                        streams.append(order.streams[name])
                        continue
                    gathered[name], writing = os.pipe()
                    ends.callback(os.close, gathered[name])
                    handed_over.callback(os.close, writing)
                    streams.append(writing)
                socket.send_fds(self._control, [b"."], [theirs.fileno(), *streams])
            process = self._begin(order, lines)
            try:
                written = _read_all(gathered, order.timeout_s)
            except TimeoutError:
                os.kill(process, signal.SIGKILL)
                raise
            return Ended(int(lines.readline()), written.get("stdout", b""), written.get("stderr", b""))

    def _begin(self, order: Order, lines: TextIO) -> int:
        """Say what the command is. Returns the number of its process."""
        with contextlib.suppress(ConnectionError):
            told = {
                "module": order.module,
                "args": order.args,
                "cwd": str(order.cwd),
                "env": dict(order.env),
            }
            lines.write(json.dumps(told) + "\n")
            lines.flush()
            if number := lines.readline():
                return int(number)
        raise RuntimeError(f"the fork server has ended: {self.close().decode()}")

    def close(self) -> bytes:
        """End it. Returns what it complained about."""
        self._control.close()
        return self._process.communicate()[1]


@functools.cache
def fork_server(*env: tuple[str, str], libraries: Sequence[str] = ()) -> ForkServer:
    """The one of this process of pytest whose environment is `env`, started by the first that asks for it."""
    server = ForkServer(dict(env), libraries)
    atexit.register(server.close)
    return server


def _read_all(pipes: Mapping[str, int], timeout_s: float) -> Mapping[str, bytes]:
    """What is written to each pipe until nobody can write to it any more."""
    deadline = time.monotonic() + timeout_s
    written = {name: bytearray() for name in pipes}
    with selectors.DefaultSelector() as selector:
        for name, number in pipes.items():
            selector.register(number, selectors.EVENT_READ, name)
        while selector.get_map():
            ready = selector.select(max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"geval did not end within {timeout_s} s")
            for key, _ in ready:
                part = os.read(key.fd, 65536)
                written[key.data] += part
                if not part:
                    selector.unregister(key.fd)
    return written
