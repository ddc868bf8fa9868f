"""A URL taken apart into what a connection and a request line need."""

import re
from base64 import b64encode
from functools import lru_cache
from urllib.parse import SplitResult, quote, unquote, urlsplit

from msgspec import Struct

from geval_cli.http_client.failures import InvalidAddressError

_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_LABEL = 63
_NO_HOST = re.compile(r"[\x00-\x20\x7f/?#@\\]")
_KEPT = "!#$%&'()*+,/:;=?@[]~"  # percent signs too: what is quoted already stays as it is


class Address(Struct, frozen=True):
    """Where a request goes. `user_info` is "user:password" of the URL, decoded, or empty."""

    scheme: str
    host: str
    port: int
    host_header: str
    target: str
    user_info: str

    @property
    def is_encrypted(self) -> bool:
        return self.scheme == "https"


@lru_cache(maxsize=256)
def parse_address(url: str) -> Address:
    """`url` taken apart: http or https, the host in ASCII, path and query quoted.

    Raises:
        InvalidAddressError: there is no such scheme, host or port.
    """
    try:
        parts = urlsplit(url)
        host, port = _ascii_host(parts.hostname or ""), parts.port
    except ValueError as error:
        raise InvalidAddressError(str(error)) from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise InvalidAddressError("it does not begin with http:// or https://")
    if not host or _NO_HOST.search(host):
        raise InvalidAddressError("it names no host")
    named = f"[{host}]" if ":" in host else host
    default = _DEFAULT_PORTS[parts.scheme]
    return Address(
        parts.scheme,
        host,
        port or default,
        named if port in (None, default) else f"{named}:{port}",
        _target(parts),
        unquote(parts.netloc.rpartition("@")[0]),
    )


def basic_credentials(user_info: str) -> str:
    """The value of an Authorization header for "user:password"."""
    return f"Basic {b64encode(user_info.encode()).decode('ascii')}"


def _target(parts: SplitResult) -> str:
    path = quote(parts.path, safe=_KEPT) or "/"
    return f"{path}?{quote(parts.query, safe=_KEPT)}" if parts.query else path


def _ascii_host(host: str) -> str:
    is_plain = host.isascii() and all(len(label) <= _MAX_LABEL for label in host.split("."))
    return host if is_plain else host.encode("idna").decode("ascii")  # ValueError, if a label is too long
