"""What strangers' configs try, and do not get: files elsewhere, programs, environment values, servers."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.payloads import ENV, Payload, World, attempt, build_world, escapes, payloads, write

from geval_cli.cli.landlock import landlock_version


class Listener:
    """A server on this machine that nobody may come to; it counts who does."""

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


def table(world: World) -> list[tuple[int, Payload]]:
    return list(enumerate(payloads(world)))


def found_escapes(world: World, listener: Listener, *, untrusted: bool) -> dict[str, list[str]]:
    found = {}
    for number, payload in table(world):
        before = listener.visits
        write(world, number, payload)
        out = escapes(world, attempt(world, number, payload, untrusted=untrusted, env=ENV))
        if listener.visits > before:
            out.append("a server was asked")
        if out:
            found[payload.name] = out
    return found


def test_no_payload_escapes(tmp_path: Path) -> None:
    with listening() as listener:
        world = build_world(tmp_path, listener.port)
        assert len(table(world)) >= 150
        assert found_escapes(world, listener, untrusted=True) == {}


def run_unchecked(world: World, *, is_walled: bool) -> dict[str, list[str]]:
    """What gets out of a process in which no check of geval's own is asked."""
    script = Path(__file__).parents[1] / "support" / "unchecked.py"
    order = [sys.executable, str(script), str(world.root), str(world.port), "walled" if is_walled else "open"]
    ended = subprocess.run(order, capture_output=True, text=True, timeout=240, check=True)
    found: dict[str, list[str]] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.skipif(landlock_version() < 4, reason="the kernel has no Landlock that knows ports")
def test_the_kernel_alone_lets_nothing_out(tmp_path: Path) -> None:
    with listening() as listener:
        world = build_world(tmp_path, listener.port)
        assert run_unchecked(world, is_walled=True) == {}
        assert not world.marker.exists()
        assert listener.visits == 0


def test_payloads_escape_where_nothing_holds_them(tmp_path: Path) -> None:
    """Else the other tests would show nothing."""
    with listening() as listener:
        world = build_world(tmp_path, listener.port)
        found = run_unchecked(world, is_walled=False)
    places = {name.partition(":")[0] for name in found}
    assert len(found) >= 40
    assert len(places) >= 20
