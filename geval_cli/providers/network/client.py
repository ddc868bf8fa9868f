"""Complete HTTP exchanges: send a request, read its answer, and keep the request out of every error."""

import asyncio
import os
import re
import select
import socket
import ssl
import sys
import time
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from functools import cache, lru_cache, partial
from http import HTTPStatus
from importlib import import_module
from io import BytesIO
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from yarl import URL

from geval_cli.plugins import is_installed
from geval_cli.providers.network.addresses import (
    Address,
    ClientCertificate,
    basic_credentials,
    parse_address,
    parse_proxy,
    tls_context,
)
from geval_cli.providers.network.messages import (
    BrokenCompressionError,
    CertificateError,
    CutOffAnswerError,
    HttpCall,
    HttpFailure,
    HttpResponse,
    NoAnswerError,
    NoConnectionError,
    NoProxyError,
    NotHttpError,
    OversizedAnswerError,
    ProxyRefusalError,
    SlowConnectionError,
    TlsError,
    UnknownCompressionError,
    UnsendableRequestError,
)
from geval_cli.version import install_hint

# zlib's codes for `wbits`: adding 16 means gzip's header and trailer, a negative number means neither.
_GZIP = 16 + zlib.MAX_WBITS
_ZLIB = zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS
# RFC 1950: the low half of the first byte is the method; 8 is the only one in use.
_ZLIB_METHOD = 8
# More layers of compression than this are a bomb: each can be a thousand times larger than the one before.
_MOST_ENCODINGS = 3
# A body may consist of several gzip files in a row. Each needs a new decompressor, however small it is.
_MOST_MEMBERS = 1024
_PIECE = 64 * 1024
"""The bytes decompressed at a time: kept small, since the data after the end of a member is copied."""

_ZSTD_MODULES = ("compression.zstd", "backports.zstd")
"""The module in Python 3.14, and the one that can be installed for older versions."""


class _Unpacker(Protocol):
    """Decompresses one member, at most `max_length` bytes at a time; `eof` is true at the member's end."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: Any, max_length: int, /) -> bytes: ...


@cache
def accepted() -> str:
    """Return the value of the `accept-encoding` header: what `unpacked` can read with the installed packages."""
    names = ["gzip", "deflate"]
    if is_installed("brotli"):
        names.append("br")
    if any(map(is_installed, _ZSTD_MODULES)):
        names.append("zstd")
    return ", ".join(names)


def unpacked(body: bytes, encodings: str, max_bytes: int) -> bytes:
    """Return `body` without its content encodings (the header's value, with the encoding applied last at the end).

    Raises:
        UnknownCompressionError: one of them cannot be read, at least with the installed packages.
        BrokenCompressionError: the bytes do not match the header, end too early, or have too many layers.
        OversizedAnswerError: the result is longer than `max_bytes`.
    """
    names = [name for part in encodings.split(",") if (name := part.strip().lower()) not in {"", "identity"}]
    if len(names) > _MOST_ENCODINGS:
        raise BrokenCompressionError(f"it is compressed {len(names)} times")
    for name in reversed(names):
        if not body:
            break
        # Only gzip and zstd files may have several members in a row; gzip also zeros after the last one.
        is_several = name in {"gzip", "x-gzip", "zstd"}
        body = _unpacked_members(body, _unpacker_of(name, body), max_bytes, is_several=is_several)
    return body


def _unpacker_of(name: str, body: bytes) -> Callable[[], _Unpacker]:
    if name in {"gzip", "x-gzip"}:
        return lambda: zlib.decompressobj(_GZIP)
    if name == "deflate":
        # The standard means zlib's format; some servers send raw deflate.
        has_header = body[0] & 0x0F == _ZLIB_METHOD
        return lambda: zlib.decompressobj(_ZLIB if has_header else _RAW)
    if name == "br" and name in accepted():
        return _Brotli
    if name == "zstd" and name in accepted():
        module = next(filter(is_installed, _ZSTD_MODULES))
        unpacker: Callable[[], _Unpacker] = import_module(module).ZstdDecompressor
        return unpacker
    raise UnknownCompressionError(name)


def _unpacked_members(
    packed: bytes, begin: Callable[[], _Unpacker], max_bytes: int, *, is_several: bool
) -> bytes:
    found = bytearray()
    members, position = 0, 0
    view = memoryview(packed)
    while position < len(packed):
        if members == _MOST_MEMBERS:
            raise BrokenCompressionError(f"it has more than {_MOST_MEMBERS} parts")
        members += 1
        unpacker = begin()
        while not unpacker.eof:
            piece = view[position : position + _PIECE]
            if not piece:
                raise BrokenCompressionError("it ends too early")
            found += _unpacked_piece(unpacker, piece, max_bytes + 1 - len(found))
            if len(found) > max_bytes:
                raise OversizedAnswerError(f"more than {max_bytes} bytes")
            position += len(piece) - len(unpacker.unused_data)
        is_padded = packed[position : position + 1] == b"\0" and not packed[position:].strip(b"\0")
        if not is_several or is_padded:
            break
    return bytes(found)


def _unpacked_piece(unpacker: _Unpacker, piece: memoryview, most: int) -> bytes:
    """Decompress all of `piece`, or until there are `most` bytes of output."""
    try:
        return unpacker.decompress(piece, most)
    except (zlib.error, EOFError) as error:
        raise BrokenCompressionError(str(error)) from error
    except Exception as error:
        # The brotli and zstd libraries have their own errors, and are imported only when needed.
        if type(error).__module__.partition(".")[0] in {"brotli", "compression", "backports"}:
            raise BrokenCompressionError(str(error)) from error
        raise


class _Brotli:
    """Brotli's decompressor with the interface of zlib's; a body has one member."""

    unused_data = b""

    def __init__(self) -> None:
        self._inner: Any = import_module("brotli").Decompressor()

    @property
    def eof(self) -> bool:
        return bool(self._inner.is_finished())

    def decompress(self, data: memoryview, max_length: int, /) -> bytes:
        return bytes(self._inner.process(bytes(data), output_buffer_limit=max_length))


CONNECT_TIMEOUT_S = 30.0
"""The limit for connecting alone, including the TLS handshake and the way through a proxy."""

_KEEP_ALIVE_S = 4.0
"""Below the 5 s after which uvicorn and Node close idle connections: a POST on a closing connection would be lost."""

# A head of at most 64 MiB, like a body.
_MAX_LINE_BYTES = 64 * 1024
_MAX_HEADERS = 1024
# Routers drop a connection that is silent for minutes, as while a model thinks; probes keep it alive.
_FIRST_PROBE_AFTER_S = 60
_CLOSED_IN_HANDSHAKE = "it closed the connection during the TLS handshake"


def new_session(socks: Address | None) -> aiohttp.ClientSession:
    """Open a session that adds no headers, follows no redirects and keeps no cookies; `socks` is its proxy."""
    options: dict[str, Any] = {
        "limit": 0,
        "keepalive_timeout": _KEEP_ALIVE_S,
        "resolver": aiohttp.ThreadedResolver(),  # the system's resolver, whatever else is installed
        "socket_factory": _new_socket,
        "interleave": 1,
    }
    connector = _Connector(**options) if socks is None else _SocksConnector(socks, **options)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S, sock_connect=None),
        auto_decompress=False,
        max_line_size=_MAX_LINE_BYTES,
        max_field_size=_MAX_LINE_BYTES,
        max_headers=_MAX_HEADERS,
    )


class _Connector(aiohttp.TCPConnector):
    """Opens connections, and reuses a connection only if nothing unexpected has arrived on it.

    aiohttp itself treats unexpected data from a server as the answer to the next request. So a connection is reused
    only when the last answer was complete, the whole request was sent, and no data waits to be read, not even data that
    the event loop has not reported yet.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._received: WeakKeyDictionary[asyncio.BaseProtocol, Callable[[], object]] = WeakKeyDictionary()

    async def connect(self, req: aiohttp.ClientRequest, *args: Any, **options: Any) -> Connection:
        """Return a connection for `req`.

        Raises:
            HttpFailure: the server or its proxy cannot be reached.
        """
        while True:
            connection = await self._connected(req, *args, **options)
            protocol, transport = connection.protocol, connection.transport
            assert protocol is not None
            received = self._received.get(protocol)
            if received is None:  # it is new
                if transport is not None:
                    self._received[protocol] = _received(transport)
                return connection
            is_sent = transport is not None and not transport.get_write_buffer_size()
            if is_sent and not protocol.should_close and not received():
                return connection
            protocol.abort()
            connection.close()

    async def _connected(self, req: aiohttp.ClientRequest, *args: Any, **options: Any) -> Connection:
        try:
            return await super().connect(req, *args, **options)
        except aiohttp.ClientError as error:
            failure = _connecting_failure(error, req)
        raise failure  # outside `except`, so without context: aiohttp's errors hold the request, and with it the key


def _received(transport: asyncio.Transport) -> Callable[[], object]:
    """Return a function that says, without waiting, whether unread data has arrived."""
    file_number = transport.get_extra_info("socket").fileno()
    if sys.platform == "win32":
        return lambda: select.select([file_number], [], [], 0)[0]
    poll = select.poll()  # `select` does not accept file numbers above 1,023
    poll.register(file_number, select.POLLIN)
    return partial(poll.poll, 0)


class _UnresolvedNames(AbstractResolver):
    """Leaves the resolution of names to the proxy, or to its client."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [ResolveResult(hostname=host, host=host, port=port, family=family, proto=0, flags=0)]

    async def close(self) -> None:
        """Do nothing: nothing is open."""


class _SocksConnector(_Connector):
    """Opens connections through a SOCKS proxy.

    The proxy resolves the names of servers for socks4a:// and socks5h://; this machine does so for the others.
    """

    def __init__(self, proxy: Address, **options: Any) -> None:
        try:
            import python_socks.async_.asyncio  # noqa: F401, PLC0415 - an extra
        except ImportError as error:
            raise UnsendableRequestError(
                f"SOCKS proxies need an extra; install it {install_hint('socks')}"
            ) from error
        super().__init__(**{**options, "resolver": _UnresolvedNames()})
        self._proxy = proxy

    async def _wrap_create_connection(
        self, *_: Any, addr_infos: list[Any], **options: Any
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        host, port = addr_infos[0][4][:2]
        made = await self._tunnel(host, port)
        name = options.get("server_hostname")
        try:
            # aiohttp has no public way to do this; the protocol is created the way aiohttp does it.
            return await asyncio.get_running_loop().create_connection(
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
    """Open a socket with TCP keep-alive.

    A model may think for minutes without sending a byte, and routers on the way then drop the connection.
    """
    family, kind, protocol, _, _ = found
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # macOS has another name for it, and a default of two hours
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _FIRST_PROBE_AFTER_S)
    return made


def failure_of(error: Exception) -> HttpFailure:
    """Return the failure of an exchange, without any part of the request."""
    if isinstance(error, HttpFailure):
        return error
    if isinstance(error, aiohttp.ServerTimeoutError):
        return SlowConnectionError(f"within {CONNECT_TIMEOUT_S:g} s")
    if isinstance(error, aiohttp.ClientResponseError):
        return NotHttpError("it is not HTTP")  # its own text quotes the answer, which may echo the key
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
        return NoAnswerError()
    if isinstance(error, aiohttp.InvalidURL):
        return NoConnectionError("its address is not valid")
    return CutOffAnswerError()


def _connecting_failure(error: Exception, req: aiohttp.ClientRequest) -> HttpFailure:
    if req.proxy is None:
        return _dialling_failure(error)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return ProxyRefusalError(f"HTTP {error.status}", error.status)
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError):
        return NoProxyError("it closed the connection without an answer")
    if isinstance(error, aiohttp.ClientResponseError):
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


# Sent in one piece, a picture or a long document would block all other requests of the event loop.
_LONG_BODY_BYTES = 1024 * 1024

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# aiohttp adds these by default. But the config decides what is sent, and `accept-encoding` says what geval can unpack.
_ADDED_BY_AIOHTTP = ("user-agent", "accept", "accept-encoding", "content-type")
_OURS = frozenset({"content-length", "transfer-encoding", "expect"})


class HttpClient:
    """Sends requests, each over a connection that is idle or new. It belongs to the event loop of its first request.

    It follows no redirects, keeps no cookies, reads nothing from the environment, and sends each request once. The
    number of connections is up to the caller: there is one for each request under way.

    Args:
        headers: sent with every request that does not override them; their names are lower case.
        certificate: the client certificate, for servers that request one.
    """

    def __init__(
        self, headers: Mapping[str, str] | None = None, *, certificate: ClientCertificate | None = None
    ) -> None:
        self._headers = headers or {}
        self._certificate = certificate
        self._sessions: dict[Address | None, aiohttp.ClientSession] = {}
        self._under_way = 0
        self._is_closed = False
        self._context: ssl.SSLContext | None = None

    async def exchange(self, call: HttpCall, *, max_bytes: int, proxy: str | None = None) -> HttpResponse:
        """Send `call` and read the whole answer, whatever its status; the body is decompressed.

        Args:
            call: what to send.
            max_bytes: the maximum length of the body, both as received and decompressed.
            proxy: the address of an HTTP or SOCKS proxy, which may contain a user name and a password.

        Raises:
            TimeoutError: there was no complete answer in time.
            HttpFailure: the subclass says what went wrong.
        """
        started = time.perf_counter()
        address = parse_address(call.url)
        through = None if proxy is None else parse_proxy(proxy)
        options = self._options(call, address, through)
        session = self._session(through if through is not None and through.is_socks else None)
        self._under_way += 1
        try:
            async with asyncio.timeout(call.timeout_s):
                status, received, body = await _exchange(
                    session, call.method, _yarl_url(address), options, max_bytes
                )
        finally:
            self._under_way -= 1
            if self._is_closed and not self._under_way:
                await self._close_sessions()
        packing = received.get("content-encoding")
        if packing is not None:
            body = unpacked(body, packing, max_bytes)
        return HttpResponse(status, received, body, (time.perf_counter() - started) * 1000)

    async def stream_lines(
        self, call: HttpCall, *, max_bytes: int, proxy: str | None = None
    ) -> AsyncIterator[bytes | HttpResponse]:
        """Send `call` and yield the lines of a 2xx answer as they come; for any other status, yield the response.

        No compression is requested. `call.timeout_s` applies to each part, `max_bytes` to each line.

        Raises:
            TimeoutError: the next part did not come in time.
            HttpFailure: the subclass says what went wrong; also in the middle of the answer.
        """
        headers = {**call.headers, "accept-encoding": "identity"}
        plain = HttpCall(call.url, headers, call.body, call.method, call.timeout_s)
        address = parse_address(call.url)
        through = None if proxy is None else parse_proxy(proxy)
        session = self._session(through if through is not None and through.is_socks else None)
        self._under_way += 1
        try:
            async with asyncio.timeout(call.timeout_s):
                response = await _opened(
                    session, call.method, _yarl_url(address), self._options(plain, address, through)
                )
            try:
                found = _headers_of(response)
                if not 200 <= response.status < 300:  # noqa: PLR2004 - HTTP's own range
                    yield HttpResponse(response.status, found, await _body_of(response, max_bytes))
                    return
                if found.get("content-encoding", "identity") != "identity":
                    raise UnknownCompressionError(found["content-encoding"])
                async for line in _lines_of(response, max_bytes, call.timeout_s):
                    yield line
            finally:
                response.close()
        finally:
            self._under_way -= 1
            if self._is_closed and not self._under_way:
                await self._close_sessions()

    async def aclose(self) -> None:
        """Close the connections, or leave that to the last request under way."""
        self._is_closed = True
        if not self._under_way:
            await self._close_sessions()

    async def _close_sessions(self) -> None:
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    def _session(self, socks: Address | None) -> aiohttp.ClientSession:
        session = self._sessions.get(socks)
        if session is None:
            session = self._sessions[socks] = new_session(socks)
        return session

    def _options(self, call: HttpCall, address: Address, proxy: Address | None) -> dict[str, Any]:
        """Return aiohttp's options other than method and URL."""
        if not _is_token(call.method):
            raise UnsendableRequestError("the method is not a valid HTTP method")
        headers = {"host": address.host_header, **self._headers}
        if address.user_info:
            headers["authorization"] = basic_credentials(address.user_info)
        headers |= _sendable(call.headers)
        options: dict[str, Any] = {"headers": headers, "data": _payload(call.body), "allow_redirects": False}
        if missing := [name for name in _ADDED_BY_AIOHTTP if name not in headers]:
            options["skip_auto_headers"] = missing
        if address.is_encrypted or (proxy is not None and proxy.is_encrypted):
            # Create the context only when a server needs it: reading the system's certificates takes a while.
            if self._context is None:
                try:
                    self._context = tls_context(self._certificate)
                except OSError as error:
                    reason = error.strerror or str(error)
                    raise UnsendableRequestError(f"certificates cannot be read: {reason}") from error
            options["ssl"] = self._context
            options["server_hostname"] = address.host.removesuffix(".").partition("%")[
                0
            ]  # the form that certificates use
        if proxy is None or proxy.is_socks or address.is_encrypted:
            headers.pop("proxy-authorization", None)  # servers must never see it
        if proxy is not None and not proxy.is_socks:
            for_proxy = {"user-agent": headers.get("user-agent", "")}
            if proxy.user_info:
                for_proxy["proxy-authorization"] = basic_credentials(proxy.user_info)
            options["proxy"] = _yarl_url(proxy)
            options["proxy_headers"] = for_proxy
            if not address.is_encrypted:  # then there is no tunnel: the proxy reads the request itself
                options["headers"] = {**for_proxy, **headers}
        return options


async def _exchange(
    session: aiohttp.ClientSession, method: str, url: URL, options: Mapping[str, Any], max_bytes: int
) -> tuple[int, dict[str, str], bytes]:
    """Return the status, the headers and the body as received."""
    try:
        response = await session.request(method, url, **options)
        try:
            headers = _headers_of(response)
            body = await _body_of(response, max_bytes)
        except BaseException:
            response.close()
            raise
    except (aiohttp.ClientError, HttpFailure) as error:
        failure = failure_of(error)
    else:
        response.release()
        return response.status, headers, body
    raise failure  # outside `except`, so without context: aiohttp's errors hold the request, and with it the key


async def _opened(
    session: aiohttp.ClientSession, method: str, url: URL, options: Mapping[str, Any]
) -> aiohttp.ClientResponse:
    """Return a response whose body has not been read yet."""
    try:
        return await session.request(method, url, **options)
    except (aiohttp.ClientError, HttpFailure) as error:
        failure = failure_of(error)
    raise failure  # as in `_exchange`


async def _lines_of(
    response: aiohttp.ClientResponse, max_bytes: int, timeout_s: float
) -> AsyncIterator[bytes]:
    rest = b""
    while True:
        try:
            async with asyncio.timeout(timeout_s):
                part = await response.content.readany()
        except (aiohttp.ClientError, HttpFailure) as error:
            failure = failure_of(error)
        else:
            if not part:
                break
            *lines, rest = (rest + part).split(b"\n")
            if len(rest) > max_bytes:
                raise OversizedAnswerError(f"a line of more than {max_bytes} bytes")
            for line in lines:
                yield line
            continue
        raise failure
    if rest:
        yield rest


async def _body_of(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    if response.status == HTTPStatus.SWITCHING_PROTOCOLS:
        raise NotHttpError("another protocol")
    body = bytearray()
    while part := await response.content.readany():
        body += part
        if len(body) > max_bytes:
            raise OversizedAnswerError(f"more than {max_bytes} bytes")
    return bytes(body)


def _headers_of(response: aiohttp.ClientResponse) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in response.raw_headers:
        key = name.decode("latin-1").strip().lower()
        text = value.strip().decode("utf-8", "replace")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _sendable(headers: Mapping[str, str]) -> dict[str, str]:
    """Return `headers` with lower-case names; the last of two spellings wins, and those the client sets are dropped."""
    found = {}
    for name, value in headers.items():
        if not _is_token(name):
            raise UnsendableRequestError("a header name is not valid")
        if control := _CONTROL.search(value):
            what = "line break" if control[0] in "\r\n" else "control character"
            raise UnsendableRequestError(f"the header {name} contains a {what}")
        lowered = name.lower()
        if lowered not in _OURS:
            found[lowered] = value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    return found


def _payload(body: bytes) -> Any:
    """Return `body` in aiohttp's form: a long one is sent in pieces, so that it does not block other requests."""
    if len(body) > _LONG_BODY_BYTES:
        return BytesIO(body)
    return aiohttp.BytesPayload(body) if body else None


@lru_cache(maxsize=256)
def _is_token(word: str) -> bool:
    return _NAME.fullmatch(word) is not None


@lru_cache(maxsize=256)
def _yarl_url(address: Address) -> URL:
    """Return the URL without user and password, so that no aiohttp error can show them."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    return URL(f"{address.scheme}://{host}:{address.port}{address.target}", encoded=True)
