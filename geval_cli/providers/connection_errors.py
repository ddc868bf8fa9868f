"""Says what went wrong when no complete HTTP answer came: where it broke, and what to do about it."""

import os
import re
from pathlib import Path

import aiohttp

from geval_cli.errors import (
    ProviderError,
    ProviderRequestError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from geval_cli.providers.addresses import HttpCall, is_loopback, public_origin
from geval_cli.providers.redaction import public_url
from geval_cli.providers.refusals import CallContext

CONNECT_TIMEOUT_S = 30.0
"""For a connection alone; what it takes counts as a part of the call's own time too."""

_PROXY_WANTS_A_PASSWORD = 407
_PROXY_HINT = "check HTTPS_PROXY and HTTP_PROXY, or name the host in NO_PROXY"
_CERTIFICATES_HINT = "behind a company proxy, point SSL_CERT_FILE at the company's certificates"

_UNREADABLE_ENCODING = re.compile(
    r"decode content-encoding: \S+ \((\w+)\)"
)  # aiohttp's words for one that it lacks


def connection_error(
    error: Exception, call: HttpCall, context: CallContext, *, proxy: str | None
) -> ProviderError:
    """The ProviderError for what the HTTP library raised. What it says shows neither keys nor passwords."""
    origin = public_origin(call.url)
    if isinstance(error, TimeoutError):
        return _timeout_error(error, call, context)
    if isinstance(error, aiohttp.InvalidURL):
        message = f"not a valid address: {public_url(call.url)}"
        return ProviderRequestError(message, provider_id=context.provider_id, hint="check `base_url`")
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
        message = f"the TLS certificate of {origin} could not be verified: {_reason(error, context)}"
        return ProviderRequestError(
            message, provider_id=context.provider_id, hint=_certificates_hint(os.environ.get("SSL_CERT_FILE"))
        )
    if isinstance(error, aiohttp.ClientHttpProxyError | aiohttp.ClientProxyConnectionError):
        return _proxy_error(error, context, proxy or "")
    if isinstance(error, aiohttp.ClientConnectorError):
        hint = "is the server running?" if is_loopback(call.url) else "check the network and `base_url`"
        return _unavailable(f"{origin} cannot be reached: {_reason(error, context)}", context, hint)
    if isinstance(error, ValueError) and not isinstance(error, aiohttp.ClientError):
        message = f"the request to {origin} cannot be sent: {_reason(error, context)}"
        hint = "check `base_url`, `headers` and the key for line breaks, and the proxy's address"
        return ProviderRequestError(message, provider_id=context.provider_id, hint=hint)
    unreadable = _UNREADABLE_ENCODING.search(str(error))
    if unreadable is not None:
        message = f"{origin} packed its answer with {unreadable[1]}, which it was not asked for"
        hint = "have the server, or the proxy before it, send gzip or no compression at all"
        return ProviderRequestError(message, provider_id=context.provider_id, hint=hint)
    return _unavailable(
        f"{origin} {_what_broke(error)}", context, "that is trouble at the server or on the way"
    )


def _what_broke(error: Exception) -> str:
    """What happened on a connection that stood, in words that follow the name of the server."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "closed the connection without an answer"
    if isinstance(error, aiohttp.ClientPayloadError):
        if "encoding" in str(error).lower() and "decod" in str(error).lower():
            return "sent an answer whose compression is broken"
        return "closed the connection before its answer was complete"
    if isinstance(error, aiohttp.ClientResponseError):
        return "sent something that is not HTTP"
    return "broke the connection off"


def _timeout_error(error: TimeoutError, call: HttpCall, context: CallContext) -> ProviderTimeoutError:
    if isinstance(error, aiohttp.ConnectionTimeoutError) and call.timeout_s > CONNECT_TIMEOUT_S:
        message = f"{public_origin(call.url)} took no connection within {CONNECT_TIMEOUT_S:g} s"
        hint = "check the network and `base_url`"
    else:
        message = f"{context.provider_id} gave no complete answer within {call.timeout_s:g} s"
        hint = "raise `timeout_s` in the provider's config if the model needs longer"
    return ProviderTimeoutError(message, provider_id=context.provider_id, hint=hint)


def _proxy_error(error: Exception, context: CallContext, proxy: str) -> ProviderError:
    name = public_origin(proxy)
    if not isinstance(error, aiohttp.ClientHttpProxyError):
        return _unavailable(
            f"the proxy {name} cannot be reached: {_reason(error, context)}", context, _PROXY_HINT
        )
    if error.status == _PROXY_WANTS_A_PASSWORD:
        message = f"the proxy {name} wants a user name and password"
        hint = "write them into the proxy's address: http://USER:PASSWORD@HOST:PORT"
        return ProviderRequestError(message, provider_id=context.provider_id, status=error.status, hint=hint)
    return _unavailable(f"the proxy {name} answered HTTP {error.status}", context, _PROXY_HINT)


def _certificates_hint(named: str | None) -> str:
    if named and not Path(named).is_file():
        return f"SSL_CERT_FILE names {named}, which is no file"
    return _CERTIFICATES_HINT


def _unavailable(message: str, context: CallContext, hint: str) -> ProviderUnavailableError:
    return ProviderUnavailableError(message, provider_id=context.provider_id, hint=hint)


def _reason(error: BaseException, context: CallContext) -> str:
    return context.secrets.redact(str(error)) or type(error).__name__
