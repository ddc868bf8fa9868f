"""Where an HTTP request goes: the parts of a URL, its proxy, and the certificates trusted and presented."""

import os
import re
import ssl
import sys
from base64 import b64encode
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address, ip_network
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit

from msgspec import Struct

from geval_cli.errors import Problem
from geval_cli.providers.base import ProviderSource
from geval_cli.providers.network.messages import InvalidAddressError, UnsendableRequestError
from geval_cli.providers.options import CERTIFICATE_KEYS, own_settings, spelling_in

CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Environment variables that name certificates to trust instead of the system's."""


class ClientCertificate(Struct, frozen=True):
    """A certificate that this client can present to a server, and its key, as PEM files.

    `key` is empty if the certificate's file contains the key, too.
    """

    certificate: str
    key: str = ""


def certificate_of(source: ProviderSource) -> ClientCertificate | None:
    """Return the certificate that the provider's config names, relative to the config's file; None if it names none."""
    paths = _certificate_paths(source)
    if "client_cert" not in paths:
        return None
    return ClientCertificate(*(str(paths[name]) for name in ("client_cert", "client_key") if name in paths))


def check_certificate(source: ProviderSource) -> list[Problem]:
    """Return the problems of the certificate that the provider's config names."""
    paths = _certificate_paths(source)
    problems = []
    for name, path in paths.items():
        key = spelling_in(source.spec.config, name, CERTIFICATE_KEYS)
        if source.access.is_outside(path):
            problems.append(source.access.outside_problem(path, source.spec.place.value("config", key)))
        elif not path.is_file():
            written = source.spec.config[key]
            hint = "paths are relative to the config's file"
            problems.append(source.problem(f"`{key}` is {written}, which is not a file", key=key, hint=hint))
    if "client_key" in paths and "client_cert" not in paths:
        key = spelling_in(source.spec.config, "client_key", CERTIFICATE_KEYS)
        problems.append(source.problem(f"`{key}` needs the `client_cert` that it belongs to", key=key))
    if problems or "client_cert" not in paths:
        return problems
    try:
        _show(certificate_of(source), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    except OSError as error:  # ssl.SSLError is one
        key = spelling_in(source.spec.config, "client_cert", CERTIFICATE_KEYS)
        reason = getattr(error, "reason", None) or error.strerror
        message = f"`{key}` and its key cannot be used: {reason}"
        hint = "use PEM files, and the certificate's own key without a password"
        return [source.problem(message, key=key, hint=hint)]
    return []


def tls_context(certificate: ClientCertificate | None = None) -> ssl.SSLContext:
    """Return the context for connections to servers with certificates that the user, or by default the system, trusts.

    Raises:
        OSError: `certificate` cannot be read, or is not a certificate.
    """
    context = _trusting_context(os.environ)
    context.set_alpn_protocols(["http/1.1"])
    _show(certificate, context)
    return context


def missing_bundle(env: Mapping[str, str]) -> str:
    """Return "SSL_CERT_FILE is ..., which is not a file" for the first such variable; empty when all files exist."""
    for name in CA_VARIABLES:
        named = env.get(name)
        if named and not Path(named).exists():
            return f"{name} is {named}, which is not a {'folder' if name.endswith('DIR') else 'file'}"
    return ""


def _show(certificate: ClientCertificate | None, context: ssl.SSLContext) -> None:
    if certificate is not None:
        # With an empty password, since OpenSSL otherwise asks for one at the terminal.
        context.load_cert_chain(certificate.certificate, certificate.key or None, password="")


def _certificate_paths(source: ProviderSource) -> dict[str, Path]:
    settings = own_settings(source.spec.config, CERTIFICATE_KEYS)
    return {
        name: source.base_dir / Path(value.removeprefix("file://")).expanduser()
        for name, value in settings.items()
        if isinstance(value, str) and value
    }


def _trusting_context(env: Mapping[str, str]) -> ssl.SSLContext:
    bundle = Path(env.get("REQUESTS_CA_BUNDLE") or "/")
    is_bundle = bundle.is_file() or (bundle.is_dir() and bundle != Path("/"))
    is_named = bool(env.get("SSL_CERT_FILE") or env.get("SSL_CERT_DIR"))
    if not is_bundle and not is_named:
        import truststore  # noqa: PLC0415 - loads the code for macOS and Windows as well

        return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if is_named:
        context.load_default_certs()  # OpenSSL reads SSL_CERT_FILE and SSL_CERT_DIR itself
    if is_bundle:
        is_file = bundle.is_file()
        context.load_verify_locations(bundle if is_file else None, None if is_file else bundle)
    return context


_DEFAULT_PORTS = {"http": 80, "https": 443}
_SOCKS_PORT = 1080
# RFC 1035; a longer label goes to Python's codec, which rejects it.
_MAX_LABEL = 63
_HOST = re.compile(r"(?:[\w-]+\.)*[\w-]+\.?", re.ASCII)
_KEPT = "!#$%&'()*+,/:;=?@[]~"  # percent signs too, so that quoted characters stay unchanged
_SOCKS = re.compile(r"socks(4a?|5h?)?://", re.IGNORECASE)


class Address(Struct, frozen=True):
    """Where a request goes. `user_info` is the URL's decoded "user:password", or empty; `repr` shows no secrets."""

    scheme: str
    host: str
    port: int
    host_header: str
    target: str
    user_info: str

    def __repr__(self) -> str:
        return f"Address({self.origin})"

    @property
    def origin(self) -> str:
        """Return scheme, host and port, as in a URL."""
        return f"{self.scheme}://{self.host_header}"

    @property
    def is_encrypted(self) -> bool:
        return self.scheme == "https"

    @property
    def is_socks(self) -> bool:
        return self.scheme.startswith("socks")


@lru_cache(maxsize=256)
def parse_address(url: str) -> Address:
    """Split `url` into its parts: http or https, the host in ASCII, path and query quoted.

    Raises:
        InvalidAddressError: the scheme, host or port is missing or invalid.
    """
    parts = _split(url)
    if parts is None:
        raise InvalidAddressError("its host or port is not valid")
    if parts.scheme not in _DEFAULT_PORTS:
        raise InvalidAddressError("it does not begin with http:// or https://")
    host = _ascii_host(parts.hostname or "")
    target = _target(parts)
    if host is None:
        raise InvalidAddressError("it has no host")
    if target is None:
        raise InvalidAddressError("it contains half of a character")
    named = f"[{host.partition('%')[0]}]" if ":" in host else host  # without the zone of a link-local address
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


@lru_cache(maxsize=64)
def parse_proxy(url: str) -> Address:
    """Split a proxy's address into its parts; without a scheme it means plain HTTP.

    Raises:
        UnsendableRequestError: it is not the address of an HTTP or SOCKS proxy.
    """
    socks = _SOCKS.match(url)
    try:
        if socks is None:
            return parse_address(url if "://" in url else f"http://{url}")
        # A SOCKS address has the same parts as an HTTP one, except for the scheme and the default port.
        address = parse_address(f"http://{url[socks.end() :]}")
        has_port = urlsplit(url).port is not None
    except InvalidAddressError as error:
        raise UnsendableRequestError(f"the proxy's address is not valid: {error}") from error
    port = address.port if has_port else _SOCKS_PORT
    scheme = socks[0].lower().removesuffix("://")
    named = f"[{address.host}]" if ":" in address.host else address.host
    scheme = "socks5" if scheme == "socks" else scheme
    return Address(scheme, address.host, port, f"{named}:{port}", "", address.user_info)


def basic_credentials(user_info: str) -> str:
    """Return the value of an Authorization header for "user:password"."""
    return f"Basic {b64encode(user_info.encode('utf-8', 'replace')).decode('ascii')}"


def split_url(url: str) -> SplitResult:
    """Split `url` without raising: an invalid address (`http://[::1`) has no scheme and no host."""
    return _split(url) or SplitResult("", "", url, "", "")


def public_origin(url: str) -> str:
    """Return scheme, host and port of `url`, without user and password."""
    parts = split_url(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def proxy_for(url: str) -> str | None:
    """Return the proxy that the environment names for `url`, never one for this machine itself; None for no proxy."""
    if is_loopback(url):
        return None
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return _system_proxy(url) if sys.platform in {"darwin", "win32"} else None
    address = parse_address(url)
    if is_exempt(address.host, address.port, _variable("no_proxy")):
        return None
    return _variable(f"{address.scheme}_proxy") or _variable("all_proxy") or None


def is_exempt(host: str, port: int, exemptions: str) -> bool:
    """Return whether `exemptions`, the value of NO_PROXY, covers `host`.

    An entry is `*`, a name (which also covers all names that end in it), an address, or a network such as 10.0.0.0/8; a
    name or an address may be followed by a port.
    """
    plain = host.lower().rstrip(".").partition("%")[0]
    entries = exemptions.replace(",", " ").lower().split()
    return any(entry == "*" or _names(entry, plain, port) for entry in entries)


def is_loopback(url: str) -> bool:
    """Return whether `url` points at this machine."""
    host = split_url(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _variable(name: str) -> str:
    """Return an environment variable; the lower-case name takes precedence, as in curl."""
    if name == "http_proxy" and "REQUEST_METHOD" in os.environ:
        return os.environ.get(name, "")  # a CGI script: HTTP_PROXY is the `Proxy` header that a client sent
    return os.environ.get(name, os.environ.get(name.upper(), ""))


def _system_proxy(url: str) -> str | None:
    """Return the proxy in the system settings of macOS or Windows."""
    from urllib import request  # noqa: PLC0415 - imports an HTTP client, which takes a while

    parts = split_url(url)
    if request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxies = request.getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


def _names(entry: str, host: str, port: int) -> bool:
    name, named_port = _split_port(entry)
    if named_port not in {"", str(port)}:
        return False
    try:
        address = ip_address(host)
    except ValueError:
        suffix = name.removeprefix("*").strip(".")
        return suffix != "" and (host == suffix or host.endswith(f".{suffix}"))
    try:
        return address in ip_network(name, strict=False)
    except ValueError:
        return False


def _split_port(entry: str) -> tuple[str, str]:
    if entry.startswith("["):
        name, _, rest = entry[1:].partition("]")
        return name, rest.removeprefix(":")
    if entry.count(":") > 1:  # an IPv6 address without brackets has no port
        return entry, ""
    name, _, port = entry.partition(":")
    return name, port


# Each of these catches its errors and returns None: the errors quote the address, and with it passwords.


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
