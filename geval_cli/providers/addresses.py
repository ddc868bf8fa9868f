"""Where an HTTP request goes: the proxy before it, a redirect after it."""

import os
import sys
from ipaddress import ip_address
from urllib.parse import SplitResult, urljoin, urlsplit

from geval_cli.http_client.client import HttpCall
from geval_cli.providers.refusals import HttpReply

_DEFAULT_PORTS = {"http": 80, "https": 443}
_SAME_REQUEST_AGAIN = frozenset({307, 308})
_MOVED = frozenset({301, 302})  # for anything but a GET they have come to mean: as a GET, without the body


def same_origin_target(call: HttpCall, reply: HttpReply) -> str | None:
    """Where `reply` sends the same request again, if that is at the same scheme, host and port; else None."""
    is_redirect = reply.status in _SAME_REQUEST_AGAIN or (call.method == "GET" and reply.status in _MOVED)
    location = reply.headers.get("location")
    if not is_redirect or not location:
        return None
    try:
        target = urljoin(call.url, location)
        return target if _origin_of(urlsplit(target)) == _origin_of(urlsplit(call.url)) else None
    except ValueError:
        return None


def public_origin(url: str) -> str:
    """Scheme, host and port of `url`, without user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for `url`; never one for this machine itself."""
    if is_loopback(url) or not _may_name_proxies():
        return None
    from urllib import request  # noqa: PLC0415 - brings an HTTP client of its own, which takes a while

    parts = urlsplit(url)
    if request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxies = request.getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


def _may_name_proxies() -> bool:
    """Whether proxies may be set; macOS and Windows have settings besides the environment."""
    return sys.platform in {"darwin", "win32"} or any(name.lower().endswith("_proxy") for name in os.environ)


def is_loopback(url: str) -> bool:
    """Whether `url` points at this machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _origin_of(parts: SplitResult) -> tuple[str, str | None, int | None, str]:
    """User and password count too: others than the URL's own must not be taken from a redirect."""
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    return parts.scheme, parts.hostname, port, parts.netloc.rpartition("@")[0]
