"""One connection: a request out, its answer in, then the next one."""

import asyncio
import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import cast

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
_MAX_FRAMING = 16
"""Bytes that may come for each byte of the body: chunks of one byte take six."""

_FIRST_FINAL_STATUS = 200  # below are words on the way, such as 100 Continue
_LAST_WORDS_BYTES = 64 * 1024
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
        self._has_input: Callable[[], object] = bool
        self._parser = _response_parser(self)
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._waiting: asyncio.Future[RawAnswer] | None = None
        self._max_bytes = 0
        self._is_tunnel_request = False
        self._begin()

    def _begin(self) -> None:
        self._status = 0
        self._headers = {}
        self._body = bytearray()
        self._size = 0
        self._received = 0
        self._has_begun = False
        self._has_head = False
        self._ends_with_connection = False

    async def exchange(self, request: bytes, max_bytes: int, *, opens_tunnel: bool = False) -> RawAnswer:
        """Send `request` and wait for its answer; `opens_tunnel` for CONNECT, of whose answers only the head is read.

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
        answer = await self._waiting
        if self.is_open and self._transport.get_write_buffer_size():
            self.is_open = False  # answered before the request was out: its rest would begin the next one
        return answer

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has come since the last answer, not even what the event loop has yet to show us.

        Such bytes, or such an end, would be taken for the answer to the next request.
        """
        return not self._has_input()

    @property
    def transport(self) -> asyncio.Transport:
        """What the connection sends through, once it stands."""
        assert self._transport is not None
        return self._transport

    def switch_to(self, transport: asyncio.Transport) -> None:
        """Go on over `transport`, which encrypts the one before."""
        self._transport = transport
        self.is_open = not self.closed.done()
        self._parser = _response_parser(self)

    def close(self) -> None:
        """End it, now. Whoever waits for an answer learns that none comes."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # What other event loops make is none by its class.
        self._transport = cast(asyncio.Transport, transport)
        self._has_input = _input_test(transport.get_extra_info("socket").fileno())
        self.is_open = True

    def eof_received(self) -> None:
        self._end("")
        self.close()  # at once: asyncio would first send what is left of the request

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if not self.closed.done():
            self.closed.set_result(None)
        if exc is not None:
            self._read_last_words()
            self._ends_with_connection = False
        self._end(str(exc or ""))

    def data_received(self, data: bytes) -> None:
        if self._waiting is None or self._waiting.done():
            self.close()  # nobody asked
            return
        self._has_begun = True
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._break(NotHttpError("another protocol"))
        except httptools.HttpParserError as error:
            self._break(NotHttpError(str(error)))
        if self._received > _MAX_HEAD_BYTES + _MAX_FRAMING * self._size:
            self._break(NotHttpError("headers or chunks without end"))

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._has_head:
            self.is_open = False  # one more answer than was asked for

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return  # a trailer
        key, text = name.decode("latin-1").strip().lower(), value.strip().decode("utf-8", "replace")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        if self._has_head:
            return
        self._status = self._parser.get_status_code()
        if self._status < _FIRST_FINAL_STATUS:
            self._headers = {}
            return
        self._has_head = True
        if self._is_tunnel_request:
            self._finish()
            return
        if "content-length" not in self._headers and self._status not in _NO_BODY:
            last_coding = self._headers.get("transfer-encoding", "").lower().rpartition(",")[2]
            self._ends_with_connection = last_coding.strip() != "chunked"

    def on_body(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._max_bytes:
            self._break(OversizedAnswerError(f"more than {self._max_bytes} bytes"))
        else:
            self._body += part

    def on_message_complete(self) -> None:
        if self._has_head and not self._is_tunnel_request:
            self.is_open = self.is_open and self._parser.should_keep_alive()
            self._finish()

    def _finish(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(RawAnswer(self._status, self._headers, bytes(self._body)))

    def _end(self, reason: str) -> None:
        """No more bytes come."""
        if self._ends_with_connection:
            self._finish()
        elif self._has_begun:
            self._fail(CutOffAnswerError(reason))
        else:
            self._fail(NoAnswerError(reason))

    def _read_last_words(self) -> None:
        """A server may refuse a long request and close: then sending can fail before its answer was looked at."""
        if self._waiting is None or self._waiting.done() or self.transport.get_extra_info("sslcontext"):
            return
        with suppress(OSError):
            while part := os.read(self.transport.get_extra_info("socket").fileno(), _LAST_WORDS_BYTES):
                self.data_received(part)

    def _break(self, failure: HttpFailure) -> None:
        self._fail(failure)
        self.close()

    def _fail(self, failure: HttpFailure) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(failure)


def _response_parser(connection: Connection) -> httptools.HttpResponseParser:
    parser = httptools.HttpResponseParser(connection)
    # Old servers end their lines with a line feed alone, and fold long headers.
    parser.set_dangerous_leniencies(lenient_headers=True, lenient_optional_cr_before_lf=True)
    return parser


def _input_test(file_number: int) -> Callable[[], object]:
    """What tells, as something true or false, whether a socket has anything to read."""
    if sys.platform == "win32":
        return lambda: select.select([file_number], [], [], 0)[0]
    poll = select.poll()  # `select` takes no file number above 1,023
    poll.register(file_number, select.POLLIN)
    return partial(poll.poll, 0)
