"""Connections over HTTP: aiohttp's, bounded in what comes, and used again only where nothing is left over."""

import asyncio
import os
import select
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError

from geval_cli.providers.network.addresses import Address
from geval_cli.providers.network.messages import (
    CertificateError,
    CutOffAnswerError,
    HttpFailure,
    NoAnswerError,
    NoConnectionError,
    NoProxyError,
    NotHttpError,
    ProxyRefusalError,
    SlowConnectionError,
    TlsError,
    UnsendableRequestError,
)
from geval_cli.version import install_hint

CONNECT_TIMEOUT_S = 30.0
"""For a connection alone, its encryption and the way through a proxy included."""

_KEEP_ALIVE_S = 4.0
"""Below the 5 s after which uvicorn and Node close idle connections: a POST on a dying one would be lost."""

_MAX_HEAD_BYTES = 256 * 1024
_MAX_HEADERS = 4096
_MAX_FRAMING = 16
"""Bytes that may come for each byte of the body: chunks of one byte take six."""

_LAST_WORDS_BYTES = 64 * 1024
# Routers forget a connection that is silent for minutes, as while a model thinks; probes keep it known.
_FIRST_PROBE_AFTER_S = 60
_CLOSED_IN_HANDSHAKE = "it closed the connection while encryption was agreed upon"
_SOCKS_HINT = f"SOCKS proxies need an extra: {install_hint('socks')}"

# A whole answer without a body: a parser that reads it as one holds nothing of an answer before it.
_PROBE = b"HTTP/1.1 204 Probe\r\n\r\n"


def new_session(socks: Address | None) -> aiohttp.ClientSession:
    """Open a session that adds nothing to requests, follows and keeps nothing; `socks` is the proxy before it."""
    options: dict[str, Any] = {
        "limit": 0,
        "keepalive_timeout": _KEEP_ALIVE_S,
        "resolver": aiohttp.ThreadedResolver(),  # what the system says, whatever else is installed
        "socket_factory": _new_socket,
        "interleave": 1,
    }
    connector = _Connector(**options) if socks is None else _SocksConnector(socks, **options)
    session = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S, sock_connect=None),
        auto_decompress=False,
        max_line_size=_MAX_HEAD_BYTES,
        max_field_size=_MAX_HEAD_BYTES,
        max_headers=_MAX_HEADERS,
    )
    session._retry_connection = False  # a request is sent once; what may be repeated, the gateway knows
    return session


class _Handler(ResponseHandler):
    """The protocol of one connection: bounds what comes, and knows whether somebody may use the connection again.

    aiohttp itself takes what a server sends unasked for the answer to the next request. What is checked here before a
    connection is used again: the last answer was complete to the byte, the whole request had left, and nothing waits
    to be read, not even what the event loop has not shown yet.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.was_used = False
        self._received = 0
        self._has_input: Callable[[], object] = bool

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._has_input = _input_test(transport.get_extra_info("socket").fileno())

    def set_response_params(self, **params: Any) -> None:
        """Prepare for the answer to the next request."""
        self.was_used = True
        self._received = 0
        super().set_response_params(**params)

    @property
    def is_quiet(self) -> bool:
        """Return whether the connection is idle: no unrequested bytes came, and the last request is sent whole."""
        if self.should_close or self.transport is None:
            return False
        if not self.was_used:  # a TLS server sends tickets before it is asked
            return bool(self.transport.get_extra_info("sslcontext")) or not self._has_input()
        return (
            not self.transport.get_write_buffer_size()
            and not self._has_input()
            and _is_at_a_beginning(getattr(self, "_parser", None))
        )

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        size = 0 if self._payload is None else self._payload.total_bytes
        # Bytes beyond the body are headers and chunk framing; without a bound a server could send them for ever.
        if self._received > _MAX_HEAD_BYTES + _MAX_FRAMING * size:
            self._break(NotHttpError("headers or chunks without end"))

    def eof_received(self) -> None:
        super().eof_received()
        if self.transport is not None:
            self.transport.abort()  # at once: asyncio would first send what is left of the request

    def connection_lost(self, exc: BaseException | None) -> None:
        if exc is not None:
            # First the unread bytes, then the loss: the answer may explain the failure.
            self._read_last_words()
        super().connection_lost(exc)

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        """Tell whoever waits for the head or the body, in our own words and without what aiohttp knows."""
        failure = self._in_our_words(exc)
        super().set_exception(failure)
        payload = self._payload
        if payload is not None and not payload.is_eof() and payload.exception() is None:
            payload.set_exception(failure)

    def _in_our_words(self, error: BaseException) -> BaseException:
        if isinstance(error, HttpProcessingError):
            return NotHttpError(type(error).__name__)  # its text quotes what came, which may be an echo
        if isinstance(error, aiohttp.ClientError | OSError):
            return CutOffAnswerError() if self._received else NoAnswerError()
        return error

    def _break(self, failure: HttpFailure) -> None:
        transport = self.transport
        self.set_exception(failure)
        if transport is not None:
            transport.abort()

    def _read_last_words(self) -> None:
        """A server may refuse a long request and close: then sending can fail before its answer was looked at."""
        transport = self.transport
        if transport is None or self._parser is None or transport.get_extra_info("sslcontext"):
            return
        with suppress(OSError):
            while part := os.read(transport.get_extra_info("socket").fileno(), _LAST_WORDS_BYTES):
                self.data_received(part)


class _Connector(aiohttp.TCPConnector):
    """Opens connections, and gives none to a second request that is not silent."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = cast("partial[ResponseHandler]", partial(_Handler, loop=self._loop))

    async def connect(self, req: aiohttp.ClientRequest, *args: Any, **options: Any) -> Connection:
        """Return a connection for `req`.

        Raises:
            HttpFailure: the server or its proxy cannot be reached.
        """
        while True:
            try:
                connection = await super().connect(req, *args, **options)
            except (aiohttp.ClientError, HttpFailure) as error:
                failure = _connecting_failure(error, req)
            else:
                handler = cast(_Handler, connection.protocol)
                if handler.is_quiet:
                    return connection
                was_used = handler.was_used
                handler.abort()
                connection.close()
                if was_used:
                    continue
                failure = NoAnswerError("it spoke before it was asked")
            raise failure


class _UnresolvedNames(AbstractResolver):
    """Leaves names to the proxy, or to what speaks with it."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [ResolveResult(hostname=host, host=host, port=port, family=family, proto=0, flags=0)]

    async def close(self) -> None:
        """Nothing is open."""


class _SocksConnector(_Connector):
    """Opens connections through a SOCKS proxy.

    The proxy looks up the names of servers for socks4a:// and socks5h://; for the others this machine does.
    """

    def __init__(self, proxy: Address, **options: Any) -> None:
        try:
            import python_socks.async_.asyncio  # noqa: F401, PLC0415 - an extra
        except ImportError as error:
            raise UnsendableRequestError(_SOCKS_HINT) from error
        super().__init__(**{**options, "resolver": _UnresolvedNames()})
        self._proxy = proxy

    async def _wrap_create_connection(
        self, *_: Any, addr_infos: list[Any], **options: Any
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        host, port = addr_infos[0][4][:2]
        made = await self._tunnel(host, port)
        name = options.get("server_hostname")
        try:
            return await self._loop.create_connection(
                self._factory, sock=made, ssl=options.get("ssl"), server_hostname=name
            )
        except OSError as error:
            failure = _os_failure(error)
        raise failure

    async def _tunnel(self, host: str, port: int) -> socket.socket:
        from python_socks import ProxyConnectionError, ProxyError, ProxyType  # noqa: PLC0415
        from python_socks.async_.asyncio import Proxy  # noqa: PLC0415

        name, _, password = self._proxy.user_info.partition(":")
        proxy = Proxy(
            ProxyType.SOCKS4 if self._proxy.scheme.startswith("socks4") else ProxyType.SOCKS5,
            self._proxy.host,
            self._proxy.port,
            name or None,
            password or None,
            rdns=self._proxy.scheme in {"socks4a", "socks5h"},
        )
        try:
            return await proxy.connect(host, port, timeout=CONNECT_TIMEOUT_S)
        except ProxyConnectionError as error:
            failure: HttpFailure = NoProxyError(os.strerror(error.errno) if error.errno else "no connection")
        except ProxyError as error:
            failure = ProxyRefusalError(str(error))
        except OSError as error:
            failure = _os_failure(error)
        raise failure


def _new_socket(found: Any) -> socket.socket:
    """Open a socket that is looked after.

    A model may think for minutes without a byte, which routers on the way take for the end of the connection.
    """
    family, kind, protocol, _, _ = found
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # what macOS calls otherwise, and there is two hours
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _FIRST_PROBE_AFTER_S)
    return made


def _input_test(file_number: int) -> Callable[[], object]:
    """Return a function that tests whether a socket has anything to read."""
    if sys.platform == "win32":
        return lambda: select.select([file_number], [], [], 0)[0]
    poll = select.poll()  # `select` takes no file number above 1,023
    poll.register(file_number, select.POLLIN)
    return partial(poll.poll, 0)


def _is_at_a_beginning(parser: Any) -> bool:
    """Return whether `parser` holds no part of a further answer, so that its next input is read on its own."""
    try:
        messages, is_upgraded, _ = parser.feed_data(_PROBE)
    except (HttpProcessingError, ValueError, AttributeError):
        return False
    return [message.code for message, _ in messages] == [HTTPStatus.NO_CONTENT] and not is_upgraded


def failure_of(error: Exception) -> HttpFailure:
    """Say what went wrong with an exchange, without anything that was sent."""
    if isinstance(error, HttpFailure):
        return error
    if isinstance(error, aiohttp.ServerTimeoutError):
        return SlowConnectionError(f"within {CONNECT_TIMEOUT_S:g} s")
    if isinstance(error, aiohttp.ClientResponseError):
        return NotHttpError("it is no HTTP")
    if isinstance(error, aiohttp.InvalidURL):
        return NoConnectionError("its address is not valid")
    return CutOffAnswerError()


def _connecting_failure(error: Exception, req: aiohttp.ClientRequest) -> HttpFailure:
    if req.proxy is None:
        return _dialling_failure(error)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return ProxyRefusalError(f"HTTP {error.status}", error.status)
    if isinstance(error, NoAnswerError | CutOffAnswerError):
        return NoProxyError("it closed the connection without an answer")
    if isinstance(error, NotHttpError | aiohttp.ClientResponseError):
        return NoProxyError("it sent something that is not HTTP")
    failure = _dialling_failure(error)
    is_before = isinstance(error, aiohttp.ClientConnectorError) and (error.host, error.port) == (
        req.proxy.raw_host,
        req.proxy.port,
    )
    return NoProxyError(str(failure)) if is_before else failure


def _dialling_failure(error: Exception) -> HttpFailure:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return _os_failure(cast(OSError, error.certificate_error))
    if isinstance(error, aiohttp.ClientConnectorError):
        return _os_failure(error.os_error)
    return failure_of(error)


def _os_failure(error: OSError) -> HttpFailure:
    if isinstance(error, ssl.SSLCertVerificationError):
        return CertificateError(error.verify_message)
    if isinstance(error, ssl.SSLError):
        return TlsError(error.reason or str(error))
    if isinstance(error, socket.gaierror):
        return NoConnectionError(error.strerror or str(error))
    if error.errno:
        return NoConnectionError(os.strerror(error.errno))
    is_without_number = isinstance(error, ConnectionError) or "start TLS" in str(
        error
    )  # asyncio's, aiohttp's
    return NoConnectionError(_CLOSED_IN_HANDSHAKE if is_without_number else str(error))
