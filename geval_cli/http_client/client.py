"""A pool of connections that are kept alive, and exchanges over them."""

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from geval_cli.http_client.address import Address, basic_credentials, parse_address
from geval_cli.http_client.connection import Connection, RawAnswer
from geval_cli.http_client.dialing import Dialer, Route, parse_proxy, proxy_credentials
from geval_cli.http_client.request_text import request_bytes
from geval_cli.http_client.unpacking import unpacked

_KEEP_ALIVE_S = 4.0
"""Below the 5 s after which uvicorn and Node close idle connections: a POST on a dying one would be lost."""

_CLOSING_S = 1.0


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One request. Its `headers`, and often its `url`, hold credentials, so `repr` leaves them out.

    A user name and password in the URL are sent as Basic authentication, unless `headers` hold an Authorization.
    `timeout_s` is for all of it, from the connection to the last byte of the answer.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    method: str = "POST"
    timeout_s: float = 300.0


class HttpClient:
    """Sends requests, each over a connection that is idle or new. It belongs to one event loop.

    Redirects are not followed and cookies not kept. How many connections there are is up to the caller: one for each
    request under way. `headers` are for every request, unless it says otherwise; their names are lower case.
    """

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        self._headers = headers or {}
        self._dialer = Dialer()
        self._idle: dict[Route, deque[Connection]] = {}
        self._is_closed = False

    async def exchange(self, call: HttpCall, *, max_bytes: int, proxy: str | None = None) -> RawAnswer:
        """Send `call` and read the whole answer, whatever its status; the body comes without its compression.

        Args:
            call: what to send.
            max_bytes: how long the body may be, as it comes and unpacked.
            proxy: the address of an HTTP proxy, which may hold a user name and a password.

        Raises:
            TimeoutError: there was no complete answer in time.
            HttpFailure: one of its subclasses says what went wrong.
        """
        address = parse_address(call.url)
        route = Route(address.scheme, address.host, address.port, proxy)
        request = self._request(call, address, route)
        async with asyncio.timeout(call.timeout_s):
            connection = self._take_idle(route) or await self._dialer.dial(route)
            try:
                answer = await connection.exchange(request, max_bytes)
            except BaseException:
                connection.close()
                raise
        self._keep(route, connection)
        packing = answer.headers.get("content-encoding")
        if packing is None:
            return answer
        return RawAnswer(answer.status, answer.headers, unpacked(answer.body, packing, max_bytes))

    async def aclose(self) -> None:
        """Close the connections that are idle. Those of requests under way end with them."""
        self._is_closed = True
        connections = [connection for idle in self._idle.values() for connection in idle]
        self._idle.clear()
        for connection in connections:
            connection.close()
        if connections:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSING_S):
                    await asyncio.gather(*(connection.closed for connection in connections))

    def _take_idle(self, route: Route) -> Connection | None:
        idle = self._idle.get(route)
        dying = time.monotonic() - _KEEP_ALIVE_S
        while idle:
            connection = idle.pop()  # the one used last: the others may grow old and go
            if connection.is_open and connection.idle_since > dying and connection.is_quiet:
                return connection
            connection.close()
        return None

    def _keep(self, route: Route, connection: Connection) -> None:
        if self._is_closed or not connection.is_open:
            connection.close()
            return
        now = connection.idle_since = time.monotonic()
        idle = self._idle.setdefault(route, deque())
        idle.append(connection)
        while idle[0].idle_since < now - _KEEP_ALIVE_S:
            idle.popleft().close()

    def _request(self, call: HttpCall, address: Address, route: Route) -> bytes:
        headers = dict(self._headers)
        if address.user_info:
            headers["authorization"] = basic_credentials(address.user_info)
        for name, value in call.headers.items():
            headers[name.lower()] = value
        target = address.target
        if route.proxy is not None and not route.is_encrypted:
            target = f"http://{address.host_header}{target}"
            headers = {**proxy_credentials(parse_proxy(route.proxy)), **headers}
        else:
            headers.pop("proxy-authorization", None)  # servers must never see it
        return request_bytes(call.method, target, address.host_header, headers, call.body)
