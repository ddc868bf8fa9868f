"""HTTP for providers: a keep-alive pool, verified TLS, proxies from the environment, failures classified."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from geval_cli.errors import ProviderResponseError, ProviderShapeError
from geval_cli.json_codec import decode_json
from geval_cli.providers.addresses import HttpCall, proxy_for, same_origin_target, with_credentials_as_header
from geval_cli.providers.connection_errors import CONNECT_TIMEOUT_S, connection_error
from geval_cli.providers.rate_headers import used_up_for_s
from geval_cli.providers.refusals import CallContext, HttpReply, refusal_error, request_id_of
from geval_cli.records import Usage
from geval_cli.version import __version__

MAX_BODY_BYTES = 64 * 1024 * 1024
"""A longer answer is refused; it is counted after decompression."""

_KEEP_ALIVE_S = 4.0
"""Below the 5 s after which uvicorn and Node close idle connections: a POST on a dying one would be lost."""

_MOST_REDIRECTS = 3


class Transport:
    """A pool of connections for one provider. It belongs to the event loop of its first request."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._proxies: dict[tuple[str, str], str | None] = {}

    async def post_json(
        self, call: HttpCall, payload: Mapping[str, Any], context: CallContext
    ) -> tuple[Any, HttpReply]:
        """POST `payload` as JSON and read the JSON answer.

        Returns:
            The parsed body, and the reply that it came in.

        Raises:
            ProviderError: one of its subclasses; see `send`. ProviderResponseError when a 2xx is not JSON.
        """
        body = _json_bytes(payload)
        headers = {"content-type": "application/json", "accept": "application/json", **call.headers}
        reply = await self.send(HttpCall(call.url, headers, body, call.method, call.timeout_s), context)
        try:
            return decode_json(reply.body), reply
        except ValueError as error:
            raise response_error("an answer that is not JSON", reply, context) from error

    async def send(self, call: HttpCall, context: CallContext) -> HttpReply:
        """Send `call` and read the whole answer.

        A redirect is followed as long as it stays with the same scheme, host and port and asks for the same request
        again; any other is an error, so that no key ever reaches another host.

        Raises:
            ProviderTimeoutError: no complete answer within `call.timeout_s`.
            ProviderUnavailableError: no connection, a broken one, 5xx, 408 or 409.
            ProviderAuthError, ProviderRateLimitError, UnsupportedParameterError,
                ProviderRequestError: 3xx and other 4xx.
            ProviderShapeError: the answer is larger than `MAX_BODY_BYTES`.
        """
        call = with_credentials_as_header(call)
        reply = await self._exchange(call, context)
        for _ in range(_MOST_REDIRECTS):
            target = same_origin_target(call, reply)
            if target is None:
                break
            call = replace(call, url=target)
            reply = await self._exchange(call, context)
        if not reply.is_success:
            raise refusal_error(reply, context, now_s=self._clock())
        return reply

    def exhausted_s(self, reply: HttpReply, usage: Usage) -> float:
        """How long the server of `reply`, which took `usage`, has nothing left for its callers, in seconds."""
        tokens = usage.input_tokens + usage.output_tokens
        return used_up_for_s(reply.headers, now_s=self._clock(), tokens=tokens)

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _exchange(self, call: HttpCall, context: CallContext) -> HttpReply:
        proxy = self._proxy_for(call.url)
        try:
            return await self._talk(call, context, proxy)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            trouble = connection_error(error, call, context, proxy=proxy)
            # These hold the request, with all of its headers, and show them in their `repr`.
            cause = None if isinstance(error, aiohttp.ClientResponseError) else error
        # Outside the handler, so that no error hangs on to one that holds keys.
        raise trouble from cause

    async def _talk(self, call: HttpCall, context: CallContext, proxy: str | None) -> HttpReply:
        session = self._open_session()
        timeout = aiohttp.ClientTimeout(
            total=call.timeout_s, sock_connect=min(call.timeout_s, CONNECT_TIMEOUT_S)
        )
        started = time.perf_counter()
        async with session.request(
            call.method,
            call.url,
            headers=call.headers,
            data=call.body or None,
            timeout=timeout,
            proxy=proxy,
            allow_redirects=False,
        ) as response:
            body = await _read_bounded(response, context)
            latency_ms = (time.perf_counter() - started) * 1000
            headers = {name.lower(): value for name, value in response.headers.items()}
            return HttpReply(response.status, headers, body, latency_ms)

    def _proxy_for(self, url: str) -> str | None:
        """As `proxy_for`, which reads the whole environment, but once for each host."""
        parts = urlsplit(url)
        origin = parts.scheme, parts.netloc
        if origin not in self._proxies:
            self._proxies[origin] = proxy_for(url)
        return self._proxies[origin]

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # trust_env stays off: it would also send what ~/.netrc holds; `proxy_for` finds the proxy.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"user-agent": f"geval-cli/{__version__}", "accept-encoding": "gzip, deflate"},
            )
        return self._session


def response_error(what: str, reply: HttpReply, context: CallContext) -> ProviderResponseError:
    """The error for a 2xx `reply` that holds `what` instead of an answer."""
    message = f"{context.provider_id} sent {what}"
    if reply.body.lstrip()[:1] == b"<":
        message += " (it looks like a web page: check `base_url`)"
    error = ProviderResponseError(
        message,
        provider_id=context.provider_id,
        status=reply.status,
        body=context.secrets.excerpt(reply.text),
    )
    error.request_id = request_id_of(reply, context)
    return error


def _json_bytes(payload: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(payload)
    except (UnicodeEncodeError, OverflowError):
        # Half of a surrogate pair, which servers refuse even when it is escaped; or a number of more than 64 bits.
        return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


async def _read_bounded(response: aiohttp.ClientResponse, context: CallContext) -> bytes:
    parts = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > MAX_BODY_BYTES:
            response.close()
            message = f"{context.provider_id} sent more than {MAX_BODY_BYTES // 1024**2} MiB"
            raise ProviderShapeError(message, provider_id=context.provider_id, status=response.status)
        parts.append(part)
    return b"".join(parts)
