"""Says what went wrong when no complete HTTP answer came: where it broke, and what to do about it."""

import os
from http import HTTPStatus

from geval_cli.errors import (
    ProviderError,
    ProviderRequestError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from geval_cli.providers.network.addresses import is_loopback, parse_proxy, public_origin
from geval_cli.providers.network.failures import (
    BrokenCompressionError,
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
    UnknownCompressionError,
    UnsendableRequestError,
)
from geval_cli.providers.network.messages import HttpCall
from geval_cli.providers.network.tls import missing_bundle
from geval_cli.providers.redaction import public_url
from geval_cli.providers.wire.refusals import CallContext
from geval_cli.version import install_hint

_PROXY_HINT = "check HTTPS_PROXY, HTTP_PROXY and ALL_PROXY, or name the host in NO_PROXY"
_CERTIFICATES_HINT = "behind a company proxy, point SSL_CERT_FILE at the company's certificates"
_UNSENDABLE_HINT = "check `base_url`, `headers` and the key for line breaks, and the proxy's address"

_WHAT_BROKE: dict[type[HttpFailure], str] = {
    NoAnswerError: "closed the connection without an answer",
    CutOffAnswerError: "closed the connection before its answer was complete",
    BrokenCompressionError: "sent an answer whose compression is broken",
    NotHttpError: "sent something that is not HTTP",
}
"""What happened on a connection that stood, in words that follow the name of the server."""


def connection_error(
    error: TimeoutError | HttpFailure, call: HttpCall, context: CallContext, *, proxy: str | None
) -> ProviderError:
    """The ProviderError for an exchange that brought no answer. What it says shows neither keys nor passwords."""
    if isinstance(error, InvalidAddressError):
        message = f"not a valid address{_shown(call.url)}: {error}"
        return ProviderRequestError(message, provider_id=context.provider_id, hint="check `base_url`")
    origin = public_origin(call.url)
    if isinstance(error, TimeoutError):
        message = f"{context.provider_id} gave no complete answer within {call.timeout_s:g} s"
        hint = "raise `timeout_s` in the provider's config if the model needs longer"
        return ProviderTimeoutError(message, provider_id=context.provider_id, hint=hint)
    if isinstance(error, SlowConnectionError):
        message = f"{origin} took no connection {_reason(error, context)}"
        return ProviderTimeoutError(
            message, provider_id=context.provider_id, hint="check the network and `base_url`"
        )
    if isinstance(error, UnsendableRequestError):
        message = f"the request to {origin} cannot be sent: {_reason(error, context)}"
        hint = _UNSENDABLE_HINT if "extra" not in str(error) else "or use an HTTP proxy"
        return ProviderRequestError(message, provider_id=context.provider_id, hint=hint)
    if isinstance(error, UnknownCompressionError):
        message = f"{origin} packed its answer with {_reason(error, context)}, which it was not asked for"
        hint = f"for br and zstd, {install_hint('compression')}; or have the server send gzip"
        return ProviderRequestError(message, provider_id=context.provider_id, hint=hint)
    if isinstance(error, NoProxyError | ProxyRefusalError):
        return _proxy_error(error, context, parse_proxy(proxy or "").origin)
    if isinstance(error, TlsError | NoConnectionError):
        return _unreachable(error, call, context)
    return _unavailable(
        f"{origin} {_WHAT_BROKE.get(type(error), 'broke the connection off')}",
        context,
        "that is trouble at the server or on the way",
    )


def _shown(url: str) -> str:
    """`url` in brackets, if what is wrong with it cannot hide where a password ends."""
    try:
        return "" if "@" in url else f" ({public_url(url)})"
    except ValueError:
        return ""


def _unreachable(error: HttpFailure, call: HttpCall, context: CallContext) -> ProviderError:
    origin, reason = public_origin(call.url), _reason(error, context)
    if isinstance(error, CertificateError):
        message = f"the TLS certificate of {origin} could not be verified: {reason}"
        hint = missing_bundle(os.environ) or _CERTIFICATES_HINT
        return ProviderRequestError(message, provider_id=context.provider_id, hint=hint)
    if isinstance(error, TlsError):
        message = f"{origin} agrees on no encryption: {reason}"
        hint = "check `base_url`: perhaps that port speaks http://, or a proxy stands before it"
        return ProviderRequestError(message, provider_id=context.provider_id, hint=hint)
    hint = "is the server running?" if is_loopback(call.url) else "check the network and `base_url`"
    return _unavailable(f"{origin} cannot be reached: {reason}", context, hint)


def _proxy_error(error: NoProxyError | ProxyRefusalError, context: CallContext, name: str) -> ProviderError:
    if isinstance(error, NoProxyError):
        return _unavailable(
            f"the proxy {name} cannot be reached: {_reason(error, context)}", context, _PROXY_HINT
        )
    if error.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        message = f"the proxy {name} wants a user name and password"
        hint = "write them into the proxy's address: http://USER:PASSWORD@HOST:PORT"
        return ProviderRequestError(message, provider_id=context.provider_id, status=error.status, hint=hint)
    said = f"answered {error}" if error.status else f"refuses: {_reason(error, context)}"
    return _unavailable(f"the proxy {name} {said}", context, _PROXY_HINT)


def _unavailable(message: str, context: CallContext, hint: str) -> ProviderUnavailableError:
    return ProviderUnavailableError(message, provider_id=context.provider_id, hint=hint)


def _reason(error: BaseException, context: CallContext) -> str:
    return context.secrets.redact(str(error)) or type(error).__name__
