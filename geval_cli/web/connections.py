"""Connections to the server: how long a request may take to arrive, and how many there may be.

uvicorn bounds only the time between two requests, and each byte begins that anew; so a client that says half a request
and no more would keep its connection for ever.
"""

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from geval_cli.web.settings import ServerSettings

_BODY_GRACE_S = 5.0  # in which the application says itself that the body is late, and why
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 10\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a time limit for the head and the body of each request."""

    settings: ClassVar[ServerSettings]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._has_begun = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        if len(self.connections) > self.settings.max_connections:
            self._refuse(_TOO_MANY)
        else:
            self._allow(self.settings.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._has_begun = True
        if self._deadline is None:  # the first of the next request
            self._allow(self.settings.head_timeout_s)
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._has_begun = True
        if self._deadline is None:  # it came in one piece with the end of the request before it
            self._allow(self.settings.head_timeout_s)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._allow(self.settings.body_timeout_s + _BODY_GRACE_S)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop_clock()
        self._has_begun = False
        super().on_message_complete()

    def _allow(self, seconds: float) -> None:
        self._stop_clock()
        self._deadline = self.loop.call_later(seconds, self._expire, seconds)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self, seconds: float) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering or self.flow.read_paused:  # what is late came behind a request that is being answered
            self._allow(seconds)
        else:
            self._deadline = None
            self._refuse(_TOO_SLOW if self._has_begun else b"")

    def _refuse(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()


def bounded_protocol(settings: ServerSettings) -> type[BoundedProtocol]:
    """Return the protocol of a server with these settings; uvicorn makes one object of it for each connection."""
    return type("BoundedProtocol", (BoundedProtocol,), {"settings": settings})
