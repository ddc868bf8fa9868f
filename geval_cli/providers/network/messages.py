"""An HTTP request and response, independent of the client, and the failures that end an exchange."""

import codecs
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from geval_cli.errors import ProviderAuthError
from geval_cli.json_codec import decode_json


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One request. Its `headers`, and often its `url`, contain credentials, so `repr` leaves them out.

    A user name and password in the URL are sent as Basic authentication, unless `headers` contain an Authorization.
    `timeout_s` covers everything from connecting to the last byte of the answer.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    method: str = "POST"
    timeout_s: float = 300.0


class HttpResponse(Struct, frozen=True):
    """A complete response. Header names are lower case, repeated ones are joined with commas; the body is decompressed.

    `latency_ms` runs from the call to the last byte.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    latency_ms: float = 0.0

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300  # noqa: PLR2004 - HTTP's own range

    @property
    def text(self) -> str:
        """Return the body as text: as UTF-8, or in the charset that the server names if it is not valid UTF-8."""
        charset = _charset_in(self.headers.get("content-type", ""))
        if charset is None or (not charset.startswith(_LIKE_UTF_8) and _is_utf_8(self.body)):
            return self.body.decode("utf-8-sig", "replace")
        return self.body.decode(charset, "replace").removeprefix("\ufeff")

    def json(self) -> Any:
        """Return the JSON in the body.

        Raises:
            ValueError: the body is not JSON.
        """
        try:
            return decode_json(self.body)
        except ValueError:
            if _is_utf_8(self.body) or _charset_in(self.headers.get("content-type", "")) is None:
                raise
            return decode_json(self.text)


# Charsets whose bytes may look like UTF-8, too; and codecs that are not charsets of texts on the web.
_LIKE_UTF_8 = ("utf-16", "utf-32", "iso2022", "hz")
_NO_CHARSETS = ("idna", "punycode", "raw-unicode-escape", "unicode-escape", "undefined", "utf-7", "utf-8")


def _charset_in(content_type: str) -> str | None:
    """Return the charset in a Content-Type; None if it is UTF-8, missing or not one that Python can read."""
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            try:
                found = codecs.lookup(value.strip().strip("\"'"))
                "".encode(found.name)
            except (LookupError, ValueError):
                return None
            return None if found.name in _NO_CHARSETS else found.name
    return None


def _is_utf_8(body: bytes) -> bool:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


class HttpFailure(Exception):
    """No complete answer. The text says why, in lower case; it does not name any header or query."""


class InvalidAddressError(HttpFailure):
    """The address is not one that a request can be sent to."""


class UnsendableRequestError(HttpFailure):
    """A header or the proxy's address cannot be sent."""


class NoConnectionError(HttpFailure):
    """The server was not found, or does not accept connections."""


class SlowConnectionError(HttpFailure):
    """There was no connection within `CONNECT_TIMEOUT_S`."""


class TlsError(HttpFailure):
    """The TLS handshake failed."""


class CertificateError(TlsError):
    """The server's certificate cannot be trusted."""


class NoProxyError(HttpFailure):
    """The proxy was not found, or does not accept connections."""


class ProxyRefusalError(HttpFailure):
    """The proxy refuses to connect to the server; `status` is its HTTP status, 0 for a SOCKS proxy."""

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status


class NoAnswerError(HttpFailure):
    """The server closed the connection without an answer."""


class CutOffAnswerError(HttpFailure):
    """The connection ended in the middle of an answer."""


class NotHttpError(HttpFailure):
    """The server's answer is not HTTP."""


class BrokenCompressionError(HttpFailure):
    """The body cannot be decompressed."""


class UnknownCompressionError(HttpFailure):
    """The body is compressed with `encoding`, which was not requested."""

    def __init__(self, encoding: str) -> None:
        super().__init__(encoding)
        self.encoding = encoding


class OversizedAnswerError(HttpFailure):
    """The answer is longer than allowed, either as received or decompressed."""


def json_bytes(payload: object) -> bytes:
    """Return `payload` as the JSON bytes to send."""
    try:
        return msgspec.json.encode(payload)
    except (UnicodeEncodeError, OverflowError):
        # Half a surrogate pair, which servers refuse even when escaped; or a number of more than 64 bits.
        return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class Signer(Protocol):
    """Provides an API key that is known only when a request is sent; see `wire.tokens`."""

    async def sign(self, call: HttpCall) -> HttpCall:
        """Return `call` with the key. Raises ProviderAuthError when there is no key."""
        ...

    async def sign_again(self, refused: HttpCall, error: ProviderAuthError) -> HttpCall:
        """Return the call to send instead of a `refused` one. Raises `error` when there is no other key."""
        ...
