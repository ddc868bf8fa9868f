"""HTTP for providers: JSON both ways, proxies from the environment, safe redirects, failures classified."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin

import msgspec

from geval_cli.errors import ProviderResponseError, ProviderShapeError
from geval_cli.json_codec import decode_json
from geval_cli.providers.network.addresses import parse_address, proxy_for
from geval_cli.providers.network.client import HttpClient
from geval_cli.providers.network.errors import connection_error
from geval_cli.providers.network.failures import HttpFailure, OversizedAnswerError
from geval_cli.providers.network.messages import HttpCall, HttpResponse
from geval_cli.providers.network.tls import ClientCertificate
from geval_cli.providers.network.unpacking import accepted
from geval_cli.providers.wire.rate_headers import used_up_for_s
from geval_cli.providers.wire.refusals import CallContext, refusal_error, request_id_of
from geval_cli.records import Usage
from geval_cli.version import __version__

MAX_BODY_BYTES = 64 * 1024 * 1024
"""A longer answer is refused; it is counted after decompression."""

_OWN_HEADERS = {"user-agent": f"geval-cli/{__version__}", "accept": "*/*"}
_MOST_REDIRECTS = 3
_SAME_REQUEST_AGAIN = frozenset({HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT})
# For anything but a GET these have come to mean: as a GET, without the body.
_MOVED = frozenset({HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.FOUND})


class Transport:
    """A pool of connections for one provider. It belongs to the event loop of its first request.

    Args:
        certificate: what is shown to servers that want to know who asks.
        find_proxy: the address of the proxy for a URL, if there is one; that of the environment by default.
        clock: the Unix time, for dates in headers.
    """

    def __init__(
        self,
        *,
        certificate: ClientCertificate | None = None,
        find_proxy: Callable[[str], str | None] = proxy_for,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._certificate = certificate
        self._find_proxy = find_proxy
        self._clock = clock
        self._client: HttpClient | None = None
        self._proxies: dict[tuple[str, str], str | None] = {}

    async def post_json(
        self, call: HttpCall, payload: Mapping[str, Any], context: CallContext
    ) -> tuple[Any, HttpResponse]:
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

    async def send(self, call: HttpCall, context: CallContext) -> HttpResponse:
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

    def exhausted_s(self, reply: HttpResponse, usage: Usage) -> float:
        """Return how long the server of `reply`, which took `usage`, has nothing left for its callers, in seconds."""
        tokens = usage.input_tokens + usage.output_tokens
        return used_up_for_s(reply.headers, now_s=self._clock(), tokens=tokens)

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _exchange(self, call: HttpCall, context: CallContext) -> HttpResponse:
        if self._client is None:
            own = {**_OWN_HEADERS, "accept-encoding": accepted()}
            self._client = HttpClient(own, certificate=self._certificate)
        proxy = None
        try:
            proxy = self._proxy_for(call.url)
            return await self._client.exchange(call, max_bytes=MAX_BODY_BYTES, proxy=proxy)
        except OversizedAnswerError as error:
            message = f"{context.provider_id} sent more than {MAX_BODY_BYTES // 1024**2} MiB"
            raise ProviderShapeError(message, provider_id=context.provider_id) from error
        except (TimeoutError, HttpFailure) as error:
            raise connection_error(error, call, context, proxy=proxy) from error

    def _proxy_for(self, url: str) -> str | None:
        """Return the proxy for `url`; it is looked for, in the whole environment, once for each host."""
        address = parse_address(url)
        origin = address.scheme, address.host_header
        if origin not in self._proxies:
            self._proxies[origin] = self._find_proxy(url)
        return self._proxies[origin]


def same_origin_target(call: HttpCall, reply: HttpResponse) -> str | None:
    """Return where `reply` sends the same request again, if that is at the same scheme, host and port; else None.

    User and password count, too: others than the URL's own must not be taken from a redirect.
    """
    is_redirect = reply.status in _SAME_REQUEST_AGAIN or (call.method == "GET" and reply.status in _MOVED)
    location = reply.headers.get("location")
    if not is_redirect or not location:
        return None
    try:
        target = urljoin(call.url, location)
        here, there = parse_address(call.url), parse_address(target)
    except (ValueError, HttpFailure):
        return None
    is_same = (here.origin, here.user_info) == (there.origin, there.user_info)
    return target if is_same else None


def response_error(what: str, reply: HttpResponse, context: CallContext) -> ProviderResponseError:
    """Return the error for a 2xx `reply` that holds `what` instead of an answer."""
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
