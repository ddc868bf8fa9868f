"""One connection: a request out, its answer in, then the next one."""

import asyncio

import httptools
from msgspec import Struct

from geval_cli.http_client.failures import (
    CutOffAnswerError,
    HttpFailure,
    NoAnswerError,
    NotHttpError,
    OversizedAnswerError,
)

_MAX_HEAD_BYTES = 256 * 1024
_FIRST_FINAL_STATUS = 200  # below are words on the way, such as 100 Continue
_REDIRECT = 300
_NO_BODY = frozenset({204, 304})


class RawAnswer(Struct, frozen=True):
    """A complete answer. Header names are lower case, repeated ones joined with commas; the body is as it came."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection(asyncio.Protocol):
    """A connection that a transport is made for, or given to with `switch_to`. One exchange at a time."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self.is_open = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        # Old servers end their lines with a line feed alone, and fold long headers.
        self._parser.set_dangerous_leniencies(lenient_headers=True, lenient_optional_cr_before_lf=True)
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._waiting: asyncio.Future[RawAnswer] | None = None
        self._max_bytes = 0
        self._is_tunnel_request = False
        self._begin()

    async def exchange(self, request: bytes, max_bytes: int, *, opens_tunnel: bool = False) -> RawAnswer:
        """Send `request` and wait for its answer; `opens_tunnel` for CONNECT, whose good answers have no body.

        Raises:
            NoAnswerError, CutOffAnswerError, NotHttpError: nothing, not all of it, or something else came.
            OversizedAnswerError: the body has more than `max_bytes` bytes.
        """
        if self._transport is None or not self.is_open:
            raise NoAnswerError("it was closed before")
        self._begin()
        self._max_bytes = max_bytes
        self._is_tunnel_request = opens_tunnel
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    @property
    def transport(self) -> asyncio.Transport:
        """What the connection sends through, once it stands."""
        assert self._transport is not None
        return self._transport

    def switch_to(self, transport: asyncio.Transport) -> None:
        """Go on over `transport`, which encrypts the one before."""
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)

    def close(self) -> None:
        """End it, now. Whoever waits for an answer learns that none comes."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if not self.closed.done():
            self.closed.set_result(None)
        if self._ends_with_connection and exc is None:
            self._finish()
        elif self._has_begun:
            self._fail(CutOffAnswerError(str(exc or "")))
        else:
            self._fail(NoAnswerError(str(exc or "")))

    def data_received(self, data: bytes) -> None:
        if self._waiting is None or self._waiting.done():
            self.close()  # nobody asked
            return
        self._has_begun = True
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(NotHttpError(str(error)))
            self.close()
        if self._head_bytes > _MAX_HEAD_BYTES and not self._has_head:
            self._fail(NotHttpError("headers without end"))
            self.close()

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return  # a trailer
        key, text = name.decode("latin-1").lower(), value.decode("utf-8", "replace")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        if self._status < _FIRST_FINAL_STATUS:
            self._headers = {}
            return
        self._has_head = True
        headers = self._headers
        has_length = "content-length" in headers or "transfer-encoding" in headers
        self._ends_with_connection = not has_length and self._status not in _NO_BODY
        if self._is_tunnel_request and self._status < _REDIRECT:
            self._finish()

    def on_body(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._max_bytes:
            self._fail(OversizedAnswerError(f"more than {self._max_bytes} bytes"))
            self.close()
        else:
            self._parts.append(part)

    def on_message_complete(self) -> None:
        if self._has_head:
            self.is_open = self.is_open and self._parser.should_keep_alive()
            self._finish()

    def _begin(self) -> None:
        self._status = 0
        self._headers = {}
        self._parts = []
        self._size = 0
        self._head_bytes = 0
        self._has_begun = False
        self._has_head = False
        self._ends_with_connection = False

    def _finish(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(RawAnswer(self._status, self._headers, b"".join(self._parts)))

    def _fail(self, failure: HttpFailure) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(failure)
