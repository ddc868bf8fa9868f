"""Servers that LoopbackServer cannot be: raw bytes, TLS, and proxies that tunnel."""

import json
import select
import socket
import ssl
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self


class _Listener:
    """Accepts connections on 127.0.0.1 and handles each in its own thread. A context manager."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family)
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                self.converse(connection)
        except OSError:
            pass  # the client has disconnected, or does not trust our certificate

    def converse(self, connection: socket.socket) -> None:
        raise NotImplementedError


class RawServer(_Listener):
    """Answers every request with the same bytes and closes the connection. `heads` are the requests' heads."""

    def __init__(self, payload: bytes, *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__()
        self.payload = payload
        self.heads: list[str] = []
        self._tls = tls

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def converse(self, connection: socket.socket) -> None:
        if self._tls is None:
            self._answer(connection)
            return
        with self._tls.wrap_socket(connection, server_side=True) as secure:
            self._answer(secure)

    def _answer(self, connection: socket.socket) -> None:
        self.heads.append(read_request(connection))
        connection.sendall(self.payload)


class Conversation(_Listener):
    """Answers the first request of each connection with the first payload, and so on; then it hangs up, or waits.

    `greeting` is sent before any request. `heads` are the heads of all requests, `connections` is their number, and
    `ended` is released whenever one is over.
    """

    def __init__(
        self,
        *payloads: bytes,
        greeting: bytes = b"",
        hangs_up: bool = False,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__(host)
        self.heads: list[str] = []
        self.connections = 0
        self.ended = threading.Semaphore(0)
        self._payloads = payloads
        self._greeting = greeting
        self._hangs_up = hangs_up
        self._tls = tls

    def converse(self, connection: socket.socket) -> None:
        self.connections += 1
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            self._talk(connection)
        finally:
            connection.close()
            self.ended.release()

    def _talk(self, connection: socket.socket) -> None:
        connection.sendall(self._greeting)
        for payload in self._payloads:
            self.heads.append(read_request(connection))
            connection.sendall(payload)
        while not self._hangs_up and connection.recv(65536):
            pass


class TunnelProxy(_Listener):
    """A proxy that connects every CONNECT to one port of this machine. `heads` are the CONNECT requests' heads."""

    def __init__(
        self,
        target_port: int,
        *,
        refuse: bytes = b"",
        agree: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__()
        self.heads: list[str] = []
        self._target_port = target_port
        self._refuse = refuse
        self._agree = agree
        self._tls = tls

    def converse(self, connection: socket.socket) -> None:
        if self._tls is not None:
            with self._tls.wrap_socket(connection, server_side=True) as secure:
                self._lead(secure)
        else:
            self._lead(connection)

    def _lead(self, connection: socket.socket) -> None:
        self.heads.append(read_request(connection))
        if self._refuse:
            connection.sendall(self._refuse)
            return
        with socket.create_connection(("127.0.0.1", self._target_port)) as target:
            connection.sendall(self._agree)
            _join(connection, target)


class SocksProxy(_Listener):
    """A SOCKS proxy (4, 4a and 5) that connects everything to one port of this machine.

    `asked` are the hosts that clients requested, `logins` the credentials that they sent.
    """

    def __init__(self, target_port: int, *, login: str = "", refuses: bool = False) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.logins: list[str] = []
        self._target_port = target_port
        self._login = login
        self._refuses = refuses

    def converse(self, connection: socket.socket) -> None:
        version = _exactly(connection, 1)[0]
        reply = self._read_5(connection) if version == 5 else self._read_4(connection)
        connection.sendall(reply)
        if self._refuses:
            return
        with socket.create_connection(("127.0.0.1", self._target_port)) as target:
            _join(connection, target)

    def _read_5(self, connection: socket.socket) -> bytes:
        _exactly(connection, _exactly(connection, 1)[0])
        connection.sendall(b"\x05\x02" if self._login else b"\x05\x00")
        if self._login:
            _exactly(connection, 1)
            name, word = (_exactly(connection, _exactly(connection, 1)[0]).decode() for _ in range(2))
            self.logins.append(f"{name}:{word}")
            connection.sendall(b"\x01\x00" if self.logins[-1] == self._login else b"\x01\x01")
            if self.logins[-1] != self._login:
                raise ConnectionResetError
        kind = _exactly(connection, 4)[3]
        if kind == 3:
            host = _exactly(connection, _exactly(connection, 1)[0]).decode()
        else:
            family, length = (socket.AF_INET, 4) if kind == 1 else (socket.AF_INET6, 16)
            host = socket.inet_ntop(family, _exactly(connection, length))
        _exactly(connection, 2)
        self.asked.append(host)
        return b"\x05" + (b"\x05" if self._refuses else b"\x00") + b"\x00\x01" + bytes(6)

    def _read_4(self, connection: socket.socket) -> bytes:
        _exactly(connection, 3)
        address = _exactly(connection, 4)
        _until_zero(connection)
        self.asked.append(_until_zero(connection) if address[:3] == bytes(3) else socket.inet_ntoa(address))
        return b"\x00" + (b"\x5b" if self._refuses else b"\x5a") + bytes(6)


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = connection.recv(count - len(found))
        if not part:
            raise ConnectionResetError
        found += part
    return found


def _until_zero(connection: socket.socket) -> str:
    found = b""
    while not found.endswith(b"\0"):
        found += _exactly(connection, 1)
    return found[:-1].decode()


def _join(one: socket.socket, other: socket.socket) -> None:
    """Forward data from one end to the other until one of them is done."""
    ends = {one: other, other: one}
    while True:
        for ready in select.select(list(ends), [], [])[0]:
            part = ready.recv(65536)
            if not part:
                return
            ends[ready].sendall(part)


def read_request(connection: socket.socket) -> str:
    """Return the head of a request; its body is read and discarded."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(65536)
        if not part:
            raise ConnectionResetError
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    text = head.decode("latin-1")
    lengths = [
        line.partition(":")[2] for line in text.split("\r\n") if line.lower().startswith("content-length")
    ]
    while len(body) < int(lengths[0] if lengths else 0):
        body += connection.recv(65536)
    return text


def http_bytes(
    body: Any, *, version: str = "1.1", headers: Mapping[str, str] | None = None, has_length: bool = True
) -> bytes:
    """Return an answer with status 200 as sent over the wire; a body that is not bytes is sent as JSON."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/{version} 200 OK", "content-type: application/json", "connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if has_length:
        lines.append(f"content-length: {len(payload)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload
