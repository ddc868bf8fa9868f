"""HTTP for providers: a keep-alive pool, verified TLS, proxies from the environment, failures classified."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from geval_cli.errors import (
    ProviderRequestError,
    ProviderResponseError,
    ProviderShapeError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from geval_cli.providers.redaction import public_url
from geval_cli.providers.refusals import CallContext, HttpReply, refusal_error
from geval_cli.version import __version__

MAX_BODY_BYTES = 64 * 1024 * 1024
"""A longer answer is refused; it is counted after decompression."""

_KEEP_ALIVE_S = 4.0
"""Below the 5 s after which uvicorn and Node close idle connections: a POST on a dying one would be lost."""

_CONNECT_TIMEOUT_S = 30.0

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One request. Its `headers` hold credentials, so `repr` leaves them out."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    method: str = "POST"
    timeout_s: float = 300.0


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
        body = _ENCODER.encode(payload).encode("utf-8", "replace")
        headers = {"content-type": "application/json", "accept": "application/json", **call.headers}
        reply = await self.send(HttpCall(call.url, headers, body, call.method, call.timeout_s), context)
        try:
            return json.loads(reply.body), reply
        except ValueError as error:
            raise response_error("an answer that is not JSON", reply, context) from error

    async def send(self, call: HttpCall, context: CallContext) -> HttpReply:
        """Send `call` and read the whole answer; a redirect is not followed, and so is an error.

        Raises:
            ProviderTimeoutError: no complete answer within `call.timeout_s`.
            ProviderUnavailableError: no connection, a broken one, 5xx, 408 or 409.
            ProviderAuthError, ProviderRateLimitError, UnsupportedParameterError,
                ProviderRequestError: 3xx and other 4xx.
            ProviderShapeError: the answer is larger than `MAX_BODY_BYTES`.
        """
        try:
            reply = await self._exchange(call, context)
        except TimeoutError as error:
            message = f"{context.provider_id} gave no complete answer within {call.timeout_s:g} s"
            hint = "raise `timeout_s` in the provider's config if the model needs longer"
            raise ProviderTimeoutError(message, provider_id=context.provider_id, hint=hint) from error
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            message = (
                f"the TLS certificate of {_origin(call.url)} could not be verified: {_reason(error, context)}"
            )
            hint = "behind a company proxy, point SSL_CERT_FILE at the company's certificates"
            raise ProviderRequestError(message, provider_id=context.provider_id, hint=hint) from error
        except aiohttp.InvalidURL as error:
            message = f"not a valid address: {public_url(call.url)}"
            raise ProviderRequestError(
                message, provider_id=context.provider_id, hint="check `base_url`"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            message = f"{_origin(call.url)} cannot be reached: {_reason(error, context)}"
            hint = "is the server running?" if is_loopback(call.url) else "check the network and `base_url`"
            raise ProviderUnavailableError(message, provider_id=context.provider_id, hint=hint) from error
        if not reply.is_success:
            raise refusal_error(reply, context, now_s=self._clock())
        return reply

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _exchange(self, call: HttpCall, context: CallContext) -> HttpReply:
        session = self._open_session()
        timeout = aiohttp.ClientTimeout(
            total=call.timeout_s, sock_connect=min(call.timeout_s, _CONNECT_TIMEOUT_S)
        )
        started = time.perf_counter()
        async with session.request(
            call.method,
            call.url,
            headers=call.headers,
            data=call.body or None,
            timeout=timeout,
            proxy=self._proxy_for(call.url),
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
                headers={"user-agent": f"geval-cli/{__version__}"},
            )
        return self._session


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for `url`; never one for this machine itself."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(url) or proxy_bypass(host):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


def is_loopback(url: str) -> bool:
    """Whether `url` points at this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def response_error(what: str, reply: HttpReply, context: CallContext) -> ProviderResponseError:
    """The error for a 2xx `reply` that holds `what` instead of an answer."""
    message = f"{context.provider_id} sent {what}"
    if reply.body.lstrip()[:1] == b"<":
        message += " (it looks like a web page: check `base_url`)"
    return ProviderResponseError(
        message,
        provider_id=context.provider_id,
        status=reply.status,
        body=context.secrets.excerpt(reply.text),
    )


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


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _reason(error: BaseException, context: CallContext) -> str:
    return context.secrets.redact(str(error)) or type(error).__name__
