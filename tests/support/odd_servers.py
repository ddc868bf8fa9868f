"""Servers of other kinds than LoopbackServer: bytes as they are, TLS, and a proxy that tunnels."""

import json
import select
import socket
import ssl
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self


class _Listener:
    """Accepts connections on 127.0.0.1 and converses with each in a thread of its own. A context manager."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
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
            pass  # the client has gone, or does not trust us

    def converse(self, connection: socket.socket) -> None:
        raise NotImplementedError


class RawServer(_Listener):
    """Answers every request with the same bytes and closes. `heads` are the requests' heads."""

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


class TunnelProxy(_Listener):
    """A proxy that leads every CONNECT to one port of this machine. `heads` are the CONNECT requests' heads."""

    def __init__(self, target_port: int, *, refuse: bytes = b"") -> None:
        super().__init__()
        self.heads: list[str] = []
        self._target_port = target_port
        self._refuse = refuse

    def converse(self, connection: socket.socket) -> None:
        self.heads.append(read_request(connection))
        if self._refuse:
            connection.sendall(self._refuse)
            return
        with socket.create_connection(("127.0.0.1", self._target_port)) as target:
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            ends = {connection: target, target: connection}
            while True:
                for ready in select.select(list(ends), [], [])[0]:
                    part = ready.recv(65536)
                    if not part:
                        return
                    ends[ready].sendall(part)


def read_request(connection: socket.socket) -> str:
    """The head of a request; its body is read and thrown away."""
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
    """An answer of status 200 as it goes over the wire; a body that is no bytes is sent as JSON."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/{version} 200 OK", "content-type: application/json", "connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if has_length:
        lines.append(f"content-length: {len(payload)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload
