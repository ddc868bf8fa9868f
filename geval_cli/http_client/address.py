"""A URL taken apart into what a connection and a request line need."""

import re
from base64 import b64encode
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import SplitResult, quote, unquote, urlsplit

from msgspec import Struct

from geval_cli.http_client.failures import InvalidAddressError

_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_LABEL = 63
_HOST = re.compile(r"(?:[\w-]+\.)*[\w-]+\.?", re.ASCII)
_KEPT = "!#$%&'()*+,/:;=?@[]~"  # percent signs too: what is quoted already stays as it is


class Address(Struct, frozen=True):
    """Where a request goes. `user_info` is "user:password" of the URL, decoded, or empty; `repr` shows no secrets."""

    scheme: str
    host: str
    port: int
    host_header: str
    target: str
    user_info: str

    def __repr__(self) -> str:
        return f"Address({self.scheme}://{self.host_header})"

    @property
    def is_encrypted(self) -> bool:
        return self.scheme == "https"


@lru_cache(maxsize=256)
def parse_address(url: str) -> Address:
    """`url` taken apart: http or https, the host in ASCII, path and query quoted.

    Raises:
        InvalidAddressError: there is no such scheme, host or port.
    """
    parts = _split(url)
    if parts is None:
        raise InvalidAddressError("its host or its port is none")
    if parts.scheme not in _DEFAULT_PORTS:
        raise InvalidAddressError("it does not begin with http:// or https://")
    host, target = _ascii_host(parts.hostname or ""), _target(parts)
    if host is None:
        raise InvalidAddressError("it names no host")
    if target is None:
        raise InvalidAddressError("it holds half of a character")
    named = f"[{host.partition('%')[0]}]" if ":" in host else host  # the % of an address within this network
    default = _DEFAULT_PORTS[parts.scheme]
    port = default if parts.port is None else parts.port
    return Address(
        parts.scheme,
        host,
        port,
        named if port == default else f"{named}:{port}",
        target,
        unquote(parts.netloc.rpartition("@")[0]),
    )


def basic_credentials(user_info: str) -> str:
    """The value of an Authorization header for "user:password"."""
    return f"Basic {b64encode(user_info.encode('utf-8', 'replace')).decode('ascii')}"


# Each of these catches its own errors, and gives None: their texts quote the address, and with it passwords.


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0
    except ValueError:
        return None
    return parts if has_port else None


def _target(parts: SplitResult) -> str | None:
    try:
        path = quote(parts.path, safe=_KEPT) or "/"
        return f"{path}?{quote(parts.query, safe=_KEPT)}" if parts.query else path
    except UnicodeEncodeError:
        return None


def _ascii_host(host: str) -> str | None:
    try:
        if ":" in host:
            return str(ip_address(host.replace("%25", "%")))
        if not host.isascii() or any(len(label) > _MAX_LABEL for label in host.split(".")):
            host = host.encode("idna").decode("ascii")
    except ValueError:  # a label is too long, or no IPv6 address
        return None
    return host if _HOST.fullmatch(host) else None
