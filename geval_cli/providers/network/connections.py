"""Connections over HTTP: aiohttp's, used again only where nothing is left over."""

import asyncio
import os
import select
import socket
import ssl
import sys
from typing import Any, cast
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

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

# A head of 64 MiB at most, as of a body.
_MAX_LINE_BYTES = 64 * 1024
_MAX_HEADERS = 1024
# Routers forget a connection that is silent for minutes, as while a model thinks; probes keep it known.
_FIRST_PROBE_AFTER_S = 60
_CLOSED_IN_HANDSHAKE = "it closed the connection while encryption was agreed upon"
_SOCKS_HINT = f"SOCKS proxies need an extra: {install_hint('socks')}"


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
    """Opens connections, and gives none to a second request that is not silent.

    aiohttp itself takes what a server sends unasked for the answer to the next request. So a connection is used again
    only when the last answer was complete, the whole request had left, and nothing waits to be read, not even what the
    event loop has not shown yet.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._used: WeakSet[asyncio.BaseProtocol] = WeakSet()

    async def connect(self, req: aiohttp.ClientRequest, *args: Any, **options: Any) -> Connection:
        """Return a connection for `req`.

        Raises:
            HttpFailure: the server or its proxy cannot be reached.
        """
        while True:
            connection = await self._connected(req, *args, **options)
            protocol = connection.protocol
            assert protocol is not None
            is_new = protocol not in self._used
            if is_new or (not protocol.should_close and _is_silent(connection.transport)):
                self._used.add(protocol)
                return connection
            protocol.abort()
            connection.close()

    async def _connected(self, req: aiohttp.ClientRequest, *args: Any, **options: Any) -> Connection:
        try:
            return await super().connect(req, *args, **options)
        except aiohttp.ClientError as error:
            failure = _connecting_failure(error, req)
        raise failure  # out here it has no context: aiohttp's errors hold the request, and with it the key


def _is_silent(transport: asyncio.Transport | None) -> bool:
    """Return whether all that was sent has left, and nothing has come."""
    if transport is None or transport.get_write_buffer_size():
        return False
    file_number = transport.get_extra_info("socket").fileno()
    if sys.platform == "win32":
        return not select.select([file_number], [], [], 0)[0]
    poll = select.poll()  # `select` takes no file number above 1,023
    poll.register(file_number, select.POLLIN)
    return not poll.poll(0)


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
            # aiohttp has no public way to connect otherwise; its protocol is made as it makes it itself.
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
    """Open a socket that is looked after.

    A model may think for minutes without a byte, which routers on the way take for the end of the connection.
    """
    family, kind, protocol, _, _ = found
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # what macOS calls otherwise, and there is two hours
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _FIRST_PROBE_AFTER_S)
    return made


def failure_of(error: Exception) -> HttpFailure:
    """Say what went wrong with an exchange, without anything that was sent."""
    if isinstance(error, HttpFailure):
        return error
    if isinstance(error, aiohttp.ServerTimeoutError):
        return SlowConnectionError(f"within {CONNECT_TIMEOUT_S:g} s")
    if isinstance(error, aiohttp.ClientResponseError):
        return NotHttpError("it is no HTTP")  # its own text quotes what came, which may be an echo
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
