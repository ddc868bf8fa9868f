"""A request and a response over HTTP, whoever carries them, and the failures that end an exchange."""

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
    """One request. Its `headers`, and often its `url`, hold credentials, so `repr` leaves them out.

    A user name and password in the URL are sent as Basic authentication, unless `headers` hold an Authorization.
    `timeout_s` is for all of it, from the connection to the last byte of the answer.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    method: str = "POST"
    timeout_s: float = 300.0


class HttpResponse(Struct, frozen=True):
    """A complete response. Header names are lower case, repeated ones joined with commas; the body is unpacked.

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
        """Return the body as text: UTF-8, or where it is not that, in the charset that the server names."""
        charset = _charset_in(self.headers.get("content-type", ""))
        if charset is None or (not charset.startswith(_LIKE_UTF_8) and _is_utf_8(self.body)):
            return self.body.decode("utf-8-sig", "replace")
        return self.body.decode(charset, "replace").removeprefix("\ufeff")

    def json(self) -> Any:
        """Return the JSON in the body.

        Raises:
            ValueError: it is none.
        """
        try:
            return decode_json(self.body)
        except ValueError:
            if _is_utf_8(self.body) or _charset_in(self.headers.get("content-type", "")) is None:
                raise
            return decode_json(self.text)


# Bytes of these may look like UTF-8, too; and codecs that are no charsets of texts on the web.
_LIKE_UTF_8 = ("utf-16", "utf-32", "iso2022", "hz")
_NO_CHARSETS = ("idna", "punycode", "raw-unicode-escape", "unicode-escape", "undefined", "utf-7", "utf-8")


def _charset_in(content_type: str) -> str | None:
    """Return the charset other than UTF-8 that a Content-Type names; None where there is none that can be read."""
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
    """No complete answer. The text says why, in lower-case words; it names no header and no query."""


class InvalidAddressError(HttpFailure):
    """The address is none that a request can be sent to."""


class UnsendableRequestError(HttpFailure):
    """A header or the proxy's address cannot be put on the wire."""


class NoConnectionError(HttpFailure):
    """The server was not found, or takes no connections."""


class SlowConnectionError(HttpFailure):
    """No connection within `CONNECT_TIMEOUT_S`."""


class TlsError(HttpFailure):
    """No encryption could be agreed upon."""


class CertificateError(TlsError):
    """The server's certificate is not one to trust."""


class NoProxyError(HttpFailure):
    """The proxy was not found, or takes no connections."""


class ProxyRefusalError(HttpFailure):
    """The proxy does not lead to the server; `status` is its HTTP status, 0 for a SOCKS proxy."""

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status


class NoAnswerError(HttpFailure):
    """The server closed the connection without a word."""


class CutOffAnswerError(HttpFailure):
    """The connection ended in the middle of an answer."""


class NotHttpError(HttpFailure):
    """The server's answer is not HTTP."""


class BrokenCompressionError(HttpFailure):
    """The body cannot be unpacked."""


class UnknownCompressionError(HttpFailure):
    """The body is packed with `encoding`, which was not asked for."""

    def __init__(self, encoding: str) -> None:
        super().__init__(encoding)
        self.encoding = encoding


class OversizedAnswerError(HttpFailure):
    """The answer is longer than was allowed, as it came or unpacked."""


def json_bytes(payload: object) -> bytes:
    """Return the JSON text that is sent for `payload`."""
    try:
        return msgspec.json.encode(payload)
    except (UnicodeEncodeError, OverflowError):
        # Half of a surrogate pair, which servers refuse even when it is escaped; or a number of more than 64 bits.
        return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class Signer(Protocol):
    """Knows the key of an API when a request is sent, and not before: see `wire.tokens`."""

    async def sign(self, call: HttpCall) -> HttpCall:
        """Return `call` with the key. Raises ProviderAuthError when there is none."""
        ...

    async def sign_again(self, refused: HttpCall, error: ProviderAuthError) -> HttpCall:
        """Return the call to send in the place of a `refused` one. Raises `error` when there is no other key."""
        ...
