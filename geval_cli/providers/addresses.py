"""Where an HTTP request goes: the proxy before it, a redirect after it."""

from ipaddress import ip_address
from urllib.parse import SplitResult, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

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
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
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


def _origin_of(parts: SplitResult) -> tuple[str, str | None, int | None, str]:
    """User and password count too: others than the URL's own must not be taken from a redirect."""
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    return parts.scheme, parts.hostname, port, parts.netloc.rpartition("@")[0]
