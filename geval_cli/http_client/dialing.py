"""New connections: names looked up, the quickest address taken, through a proxy where there is one, encrypted."""

import asyncio
import os
import socket
import ssl
import time
from functools import cached_property, partial
from ipaddress import ip_address

import aiohappyeyeballs
from msgspec import Struct

from geval_cli.http_client.address import Address, basic_credentials, parse_address
from geval_cli.http_client.connection import Connection
from geval_cli.http_client.failures import (
    CertificateError,
    CutOffAnswerError,
    HttpFailure,
    InvalidAddressError,
    NoAnswerError,
    NoConnectionError,
    NoProxyError,
    NotHttpError,
    ProxyRefusalError,
    SlowConnectionError,
    TlsError,
    UnsendableRequestError,
)
from geval_cli.http_client.request_text import request_bytes

CONNECT_TIMEOUT_S = 30.0
"""For a connection alone, its encryption and the way through a proxy included."""

_NEXT_ADDRESS_AFTER_S = 0.25  # RFC 8305, "happy eyeballs"
_NAMES_KNOWN_FOR_S = 10.0
_FIRST_PROBE_AFTER_S = 60
_REDIRECT = 300
_CLOSED_IN_HANDSHAKE = "it closed the connection while encryption was agreed upon"


class Route(Struct, frozen=True):
    """What connections have in common that may stand in for each other."""

    scheme: str
    host: str
    port: int
    proxy: str | None = None

    def __repr__(self) -> str:
        return f"Route({self.scheme}://{self.host}:{self.port})"  # the proxy's address may hold a password

    @property
    def is_encrypted(self) -> bool:
        return self.scheme == "https"


_Addresses = list[aiohappyeyeballs.AddrInfoType]


class _Lookup(Struct, frozen=True):
    task: "asyncio.Task[_Addresses]"
    good_until: float


class Dialer:
    """Opens connections. It belongs to one event loop, and remembers for a moment where names lead."""

    def __init__(self) -> None:
        self._lookups: dict[tuple[str, int], _Lookup] = {}

    async def dial(self, route: Route) -> Connection:
        """A connection along `route`, ready for its first request.

        Raises:
            NoConnectionError, SlowConnectionError, TlsError, CertificateError: the server cannot be reached.
            NoProxyError, ProxyRefusalError, UnsendableRequestError: its proxy is in the way.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if route.proxy is None:
                    return await self._connect(route.host, route.port, is_encrypted=route.is_encrypted)
                return await self._connect_through(parse_proxy(route.proxy), route)
        except TimeoutError as error:
            raise SlowConnectionError(f"within {CONNECT_TIMEOUT_S:g} s") from error

    async def _connect(self, host: str, port: int, *, is_encrypted: bool) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            addresses = await self._look_up(host, port)
            sock = await aiohappyeyeballs.start_connection(
                addresses, happy_eyeballs_delay=_NEXT_ADDRESS_AFTER_S, interleave=1, loop=loop
            )
            _keep_alive(sock)
            _, connection = await loop.create_connection(
                Connection,
                sock=sock,
                ssl=self._tls if is_encrypted else None,
                server_hostname=_certified_name(host) if is_encrypted else None,
            )
        except OSError as error:
            raise _connecting_failure(error) from error
        return connection

    async def _connect_through(self, proxy: Address, route: Route) -> Connection:
        try:
            connection = await self._connect(proxy.host, proxy.port, is_encrypted=proxy.is_encrypted)
        except (NoConnectionError, TlsError) as error:
            raise NoProxyError(str(error)) from error
        if route.is_encrypted:
            try:
                await self._tunnel(connection, proxy, route)
            except BaseException:
                connection.close()
                raise
        return connection

    async def _tunnel(self, connection: Connection, proxy: Address, route: Route) -> None:
        await _ask_for_tunnel(connection, proxy, route)
        try:
            transport = await asyncio.get_running_loop().start_tls(
                connection.transport, connection, self._tls, server_hostname=_certified_name(route.host)
            )
        except OSError as error:
            raise _connecting_failure(error) from error
        if transport is None:
            raise NoConnectionError(_CLOSED_IN_HANDSHAKE)
        connection.switch_to(transport)

    async def _look_up(self, host: str, port: int) -> _Addresses:
        """Where `host` is. Hundreds of connections at once ask the system one time."""
        now = time.monotonic()
        self._lookups = {key: known for key, known in self._lookups.items() if known.good_until > now}
        known = self._lookups.get((host, port))
        if known is None:
            known = _Lookup(asyncio.ensure_future(_addresses(host, port)), now + _NAMES_KNOWN_FOR_S)
            self._lookups[host, port] = known
            known.task.add_done_callback(partial(self._forget_failed, (host, port)))
        return await asyncio.shield(known.task)

    def _forget_failed(self, key: tuple[str, int], task: "asyncio.Task[_Addresses]") -> None:
        """Also when all who wanted to know it have gone meanwhile."""
        known = self._lookups.get(key)
        if (task.cancelled() or task.exception()) and known is not None and known.task is task:
            del self._lookups[key]

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Made for the first server that wants it: reading the system's certificates takes a while."""
        return ssl.create_default_context()


def parse_proxy(url: str) -> Address:
    """The proxy's address; without a scheme it is one that speaks plain HTTP.

    Raises:
        UnsendableRequestError: it is no address, or not of an HTTP proxy.
    """
    if url.lower().startswith("socks"):
        raise UnsendableRequestError("the proxy is a SOCKS proxy, and only HTTP proxies are supported")
    try:
        return parse_address(url if "://" in url else f"http://{url}")
    except InvalidAddressError as error:
        raise UnsendableRequestError(f"the proxy's address is not valid: {error}") from error


def proxy_credentials(proxy: Address) -> dict[str, str]:
    """The header with the user name and password of the proxy's address, if there are any."""
    if not proxy.user_info:
        return {}
    return {"proxy-authorization": basic_credentials(proxy.user_info)}


async def _ask_for_tunnel(connection: Connection, proxy: Address, route: Route) -> None:
    target = f"[{route.host}]:{route.port}" if ":" in route.host else f"{route.host}:{route.port}"
    request = request_bytes("CONNECT", target, target, proxy_credentials(proxy), b"")
    try:
        answer = await connection.exchange(request, 0, opens_tunnel=True)
    except (NoAnswerError, CutOffAnswerError) as error:
        raise NoProxyError("it closed the connection without an answer") from error
    except NotHttpError as error:
        raise NoProxyError("it sent something that is not HTTP") from error
    if answer.status >= _REDIRECT:
        raise ProxyRefusalError(answer.status)


async def _addresses(host: str, port: int) -> _Addresses:
    try:
        ip_address(host)
    except ValueError:
        return list(await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))
    # Nothing to look up, so no thread for it.
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))


def _keep_alive(sock: socket.socket) -> None:
    """A model may think for minutes without a byte, which routers on the way take for the end of the connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # what macOS calls otherwise, and there is two hours
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _FIRST_PROBE_AFTER_S)


def _certified_name(host: str) -> str:
    """As certificates write it: without the dot at the end of a name that is complete, or the zone of an address."""
    return host.removesuffix(".").partition("%")[0]


def _connecting_failure(error: OSError) -> HttpFailure:
    if isinstance(error, ssl.SSLCertVerificationError):
        return CertificateError(error.verify_message)
    if isinstance(error, ssl.SSLError):
        return TlsError(error.reason or str(error))
    if isinstance(error, socket.gaierror):
        return NoConnectionError(error.strerror or str(error))
    if isinstance(error, ConnectionError) and error.errno is None:  # asyncio's own
        return NoConnectionError(_CLOSED_IN_HANDSHAKE)
    return NoConnectionError(os.strerror(error.errno) if error.errno else str(error))
