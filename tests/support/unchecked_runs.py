"""Payloads in a separate process without any of geval's checks, and the port that none of them may reach."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from support.payloads import World


class Listener:
    """A server on this machine that no one may connect to; it counts the connections."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.visits = 0
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _listen(self) -> None:
        while True:
            try:
                visitor, _ = self._socket.accept()
            except OSError:
                return
            self.visits += 1
            visitor.close()


@contextmanager
def listening() -> Iterator[Listener]:
    listener = Listener()
    try:
        yield listener
    finally:
        listener.close()


def run_unchecked(world: World, how: Literal["confined", "confined all", "open"]) -> dict[str, list[str]]:
    """Return what escapes from a process without any of geval's own checks, by payload name."""
    script = Path(__file__).with_name("unchecked.py")
    order = [sys.executable, str(script), str(world.root), str(world.port), *how.split()]
    ended = subprocess.run(order, capture_output=True, text=True, timeout=240, check=True)
    found: dict[str, list[str]] = json.loads(ended.stdout.splitlines()[-1])
    return found
