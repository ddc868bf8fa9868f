"""HTTP for providers: JSON both ways, proxies from the environment, safe redirects, classified failures."""

import errno
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin

from geval_cli.errors import (
    ProviderAuthError,
    ProviderError,
    ProviderRequestError,
    ProviderResponseError,
    ProviderShapeError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from geval_cli.providers.network.addresses import (
    ClientCertificate,
    is_loopback,
    missing_bundle,
    parse_address,
    parse_proxy,
    proxy_for,
    public_origin,
)
from geval_cli.providers.network.client import HttpClient, accepted
from geval_cli.providers.network.messages import (
    BrokenCompressionError,
    CertificateError,
    CutOffAnswerError,
    HttpCall,
    HttpFailure,
    HttpResponse,
    InvalidAddressError,
    NoAnswerError,
    NoConnectionError,
    NoProxyError,
    NotHttpError,
    OversizedAnswerError,
    ProxyRefusalError,
    Signer,
    SlowConnectionError,
    TlsError,
    UnknownCompressionError,
    UnsendableRequestError,
    json_bytes,
)
from geval_cli.providers.redaction import public_url
from geval_cli.providers.wire.refusals import (
    CallContext,
    error_facts,
    exhausted_for_s,
    refusal_error,
    request_id_of,
)
from geval_cli.records import Usage
from geval_cli.version import __version__, install_hint

_PROXY_HINT = "check HTTPS_PROXY, HTTP_PROXY and ALL_PROXY, or add the host to NO_PROXY"
_CERTIFICATES_HINT = "behind a company proxy, point SSL_CERT_FILE at the company's certificates"
_UNSENDABLE_HINT = "check %s, `headers` and the key for line breaks, and the proxy's address"

_WHAT_BROKE: dict[type[HttpFailure], str] = {
    NoAnswerError: "closed the connection without an answer",
    CutOffAnswerError: "closed the connection before its answer was complete",
    BrokenCompressionError: "sent an answer whose compression is broken",
    NotHttpError: "sent something that is not HTTP",
}
"""The failures of an established connection, as phrases that follow the name of the server."""


def connection_error(
    error: TimeoutError | HttpFailure, call: HttpCall, context: CallContext, *, proxy: str | None
) -> ProviderError:
    """Return the ProviderError for an exchange without an answer. Its text shows neither keys nor passwords."""
    if isinstance(error, InvalidAddressError):
        message = f"not a valid URL{_shown(call.url)}: {error}"
        return ProviderRequestError(message, provider_id=context.provider_id, hint=f"check {context.address}")
    origin = public_origin(call.url)
    if isinstance(error, TimeoutError):
        message = f"{context.provider_id} sent no complete answer within {call.timeout_s:g} s"
        hint = "raise `timeout_s` in the provider's config if the model needs longer"
        return ProviderTimeoutError(message, provider_id=context.provider_id, hint=hint)
    if isinstance(error, SlowConnectionError):
        message = f"{origin} did not accept a connection {_reason(error, context)}"
        return ProviderTimeoutError(
            message, provider_id=context.provider_id, hint=f"check the network and {context.address}"
        )
    if isinstance(error, UnsendableRequestError):
        message = f"the request to {origin} cannot be sent: {_reason(error, context)}"
        hint = _UNSENDABLE_HINT % context.address if "extra" not in str(error) else "or use an HTTP proxy"
        return ProviderRequestError(message, provider_id=context.provider_id, hint=hint)
    if isinstance(error, UnknownCompressionError):
        message = f"{origin} compressed its answer with {_reason(error, context)}, which was not requested"
        hint = f"install what reads br and zstd {install_hint('compression')}; or have the server send gzip"
        return ProviderRequestError(message, provider_id=context.provider_id, hint=hint)
    if isinstance(error, NoProxyError | ProxyRefusalError):
        name = parse_proxy(proxy or "").origin
        if isinstance(error, NoProxyError):
            return _unavailable(
                f"the proxy {name} cannot be reached: {_reason(error, context)}", context, _PROXY_HINT
            )
        if error.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            message = f"the proxy {name} requires a user name and password"
            hint = "put them into the proxy's URL: http://USER:PASSWORD@HOST:PORT"
            return ProviderRequestError(
                message, provider_id=context.provider_id, status=error.status, hint=hint
            )
        said = f"answered {error}" if error.status else f"refuses: {_reason(error, context)}"
        return _unavailable(f"the proxy {name} {said}", context, _PROXY_HINT)
    if isinstance(error, TlsError | NoConnectionError):
        origin = public_origin(call.url)
        reason = _reason(error, context)
        if isinstance(error, CertificateError):
            message = f"the TLS certificate of {origin} could not be verified: {reason}"
            hint = missing_bundle(os.environ) or _CERTIFICATES_HINT
            return ProviderRequestError(message, provider_id=context.provider_id, hint=hint)
        if isinstance(error, TlsError):
            message = f"TLS handshake with {origin} failed: {reason}"
            hint = f"check {context.address}: the port may speak http://, or a proxy may be in between"
            return ProviderRequestError(message, provider_id=context.provider_id, hint=hint)
        hint = (
            "is the server running?" if is_loopback(call.url) else f"check the network and {context.address}"
        )
        if os.strerror(errno.EMFILE) in reason:
            hint = "run with a lower -j, or raise the limit of open files (`ulimit -n`)"
        return _unavailable(f"{origin} cannot be reached: {reason}", context, hint)
    broken = _unavailable(
        f"{origin} {_WHAT_BROKE.get(type(error), 'dropped the connection')}",
        context,
        "the problem is at the server or in the network",
    )
    broken.has_begun = isinstance(error, CutOffAnswerError | BrokenCompressionError)
    return broken


def _shown(url: str) -> str:
    """Return `url` in brackets, unless the error may make it unclear where a password ends."""
    try:
        return "" if "@" in url else f" ({public_url(url)})"
    except ValueError:
        return ""


def _unavailable(message: str, context: CallContext, hint: str) -> ProviderUnavailableError:
    return ProviderUnavailableError(message, provider_id=context.provider_id, hint=hint)


def _reason(error: BaseException, context: CallContext) -> str:
    return context.secrets.redact(str(error)) or type(error).__name__


MAX_BODY_BYTES = 64 * 1024 * 1024
"""Longer answers are refused; the size is measured after decompression."""

_OWN_HEADERS = {"user-agent": f"geval-cli/{__version__}", "accept": "*/*"}
# Only within one origin (`/v1` to `/v1/`), so more redirects than this are a loop.
_MOST_REDIRECTS = 3
_SAME_REQUEST_AGAIN = frozenset({HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT})
# For any method but GET, these have come to mean a GET without the body.
_MOVED = frozenset({HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.FOUND})


class Transport:
    """A pool of connections for one provider. It belongs to the event loop of its first request.

    Args:
        certificate: presented to servers that request a client certificate.
        signer: adds a key that is not known beforehand to each request, and another one when a server refuses it.
        find_proxy: returns the address of the proxy for a URL, or None; by default from the environment.
        clock: returns Unix time, for dates in headers.
    """

    def __init__(
        self,
        *,
        certificate: ClientCertificate | None = None,
        signer: Signer | None = None,
        find_proxy: Callable[[str], str | None] = proxy_for,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._certificate = certificate
        self._signer = signer
        self._find_proxy = find_proxy
        self._clock = clock
        self._client: HttpClient | None = None
        self._proxies: dict[tuple[str, str], str | None] = {}

    async def post_json(
        self, call: HttpCall, payload: Mapping[str, Any], context: CallContext
    ) -> tuple[Any, HttpResponse]:
        """POST `payload` as JSON and read the JSON answer.

        Returns:
            The parsed body, and the response that contained it.

        Raises:
            ProviderError: as in `send`; ProviderResponseError when a 2xx answer is not JSON.
        """
        body = json_bytes(payload)
        headers = {"content-type": "application/json", "accept": "application/json", **call.headers}
        reply = await self.send(HttpCall(call.url, headers, body, call.method, call.timeout_s), context)
        return json_in(reply, context), reply

    async def send(self, call: HttpCall, context: CallContext) -> HttpResponse:
        """Send `call` and read the whole answer.

        A redirect is followed only if it keeps the scheme, host and port and means to repeat the same request; any
        other is an error, so that no key ever reaches another host.

        Raises:
            ProviderTimeoutError: no complete answer within `call.timeout_s`.
            ProviderUnavailableError: no connection, a broken connection, 5xx, 408 or 409.
            ProviderAuthError, ProviderRateLimitError, UnsupportedParameterError,
                ProviderRequestError: 3xx and other 4xx.
            ProviderShapeError: the answer is larger than `MAX_BODY_BYTES`.
        """
        if self._signer is None:
            return await self._send(call, context)
        call = await self._signer.sign(call)
        try:
            return await self._send(call, context)
        except ProviderAuthError as error:
            call = await self._signer.sign_again(call, error)
        return await self._send(call, context)

    async def _send(self, call: HttpCall, context: CallContext) -> HttpResponse:
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

    async def stream_lines(self, call: HttpCall, context: CallContext) -> AsyncIterator[bytes]:
        """Send `call` and yield the lines of the answer as they come, in any number; redirects are not followed.

        `call.timeout_s` applies to each part of the answer, and `MAX_BODY_BYTES` to each line.

        Raises:
            ProviderError: as in `send`; also in the middle of the answer.
        """
        if self._signer is not None:
            call = await self._signer.sign(call)
        is_signed_again = False
        proxy = self._proxy_for(call.url)
        lines = self._own_client().stream_lines(call, max_bytes=MAX_BODY_BYTES, proxy=proxy)
        while True:
            try:
                found = await anext(lines, None)
            except OversizedAnswerError as error:
                raise self._oversized(context) from error
            except (TimeoutError, HttpFailure) as error:
                raise connection_error(error, call, context, proxy=proxy) from error
            if isinstance(found, HttpResponse):
                refusal = refusal_error(found, context, now_s=self._clock())
                if self._signer is None or is_signed_again or not isinstance(refusal, ProviderAuthError):
                    raise refusal
                call = await self._signer.sign_again(call, refusal)
                is_signed_again = True
                lines = self._own_client().stream_lines(call, max_bytes=MAX_BODY_BYTES, proxy=proxy)
                continue
            if found is None:
                return
            yield found

    def exhausted_s(self, reply: HttpResponse, usage: Usage) -> float:
        """Return for how many seconds the quota at the server of `reply`, which used `usage`, is used up."""
        tokens = usage.input_tokens + usage.output_tokens
        return exhausted_for_s(reply.headers, now_s=self._clock(), tokens=tokens)

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _exchange(self, call: HttpCall, context: CallContext) -> HttpResponse:
        client, proxy = self._own_client(), None
        try:
            proxy = self._proxy_for(call.url)
            return await client.exchange(call, max_bytes=MAX_BODY_BYTES, proxy=proxy)
        except OversizedAnswerError as error:
            raise self._oversized(context) from error
        except (TimeoutError, HttpFailure) as error:
            raise connection_error(error, call, context, proxy=proxy) from error

    def _own_client(self) -> HttpClient:
        if self._client is None:
            own = {**_OWN_HEADERS, "accept-encoding": accepted()}
            self._client = HttpClient(own, certificate=self._certificate)
        return self._client

    @staticmethod
    def _oversized(context: CallContext) -> ProviderShapeError:
        message = f"{context.provider_id} sent more than {MAX_BODY_BYTES // 1024**2} MiB"
        return ProviderShapeError(message, provider_id=context.provider_id)

    def _proxy_for(self, url: str) -> str | None:
        """Return the proxy for `url`; the environment is searched once per host."""
        address = parse_address(url)
        origin = address.scheme, address.host_header
        if origin not in self._proxies:
            self._proxies[origin] = self._find_proxy(url)
        return self._proxies[origin]


def same_origin_target(call: HttpCall, reply: HttpResponse) -> str | None:
    """Return the URL at which `reply` wants the request repeated, if scheme, host and port stay the same; else None.

    User and password must stay the same as well: other credentials must not be taken from a redirect.
    """
    is_redirect = reply.status in _SAME_REQUEST_AGAIN or (call.method == "GET" and reply.status in _MOVED)
    location = reply.headers.get("location")
    if not is_redirect or not location:
        return None
    try:
        target = urljoin(call.url, location)
        here = parse_address(call.url)
        there = parse_address(target)
    except (ValueError, HttpFailure):
        return None
    is_same = (here.origin, here.user_info) == (there.origin, there.user_info)
    return target if is_same else None


def json_in(reply: HttpResponse, context: CallContext) -> Any:
    """Return the JSON in a 2xx `reply`. Raises ProviderResponseError when there is none."""
    try:
        return reply.json()
    except ValueError as error:
        what = "an answer that is not JSON" if reply.body else "an answer with an empty body"
        raise response_error(what, reply, context) from error


_WHAT_CHARS = 350  # shortened last, since part of a key cannot be masked


def response_error(what: str, reply: HttpResponse, context: CallContext) -> ProviderResponseError:
    """Return the error for a 2xx `reply` that contains `what`, which has no key in it, instead of an answer."""
    message = f"{context.provider_id} sent {what[:_WHAT_CHARS]}"
    if reply.body.lstrip()[:1] == b"<":
        message += f" (it looks like a web page: check {context.address})"
    is_stream = reply.body.startswith((b"data:", b"event:", b": "))
    if is_stream:
        message += " (it is an event stream, which was not requested: check what the server adds to requests)"
    error = ProviderResponseError(message, **error_facts(reply, context))
    error.is_retryable = not is_stream  # it would be paid for again, and be one again
    error.request_id = request_id_of(reply, context)
    return error
