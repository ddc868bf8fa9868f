"""Whom a connection trusts, and what it shows of itself: certificates of servers and of this client."""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from geval_cli.errors import Problem
from geval_cli.providers.base import ProviderSource
from geval_cli.providers.options import CERTIFICATE_KEYS, own_settings

CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables of the environment that name certificates to trust instead of the system's."""


class ClientCertificate(Struct, frozen=True):
    """A certificate that this client can show to a server, and its key, as PEM files.

    `key` is empty where the certificate's file holds the key, too.
    """

    certificate: str
    key: str = ""


def certificate_of(source: ProviderSource) -> ClientCertificate | None:
    """Return the certificate that the provider's config names, relative to the config's file."""
    paths = _certificate_paths(source)
    if "client_cert" not in paths:
        return None
    return ClientCertificate(*(str(paths[name]) for name in ("client_cert", "client_key") if name in paths))


def check_certificate(source: ProviderSource) -> list[Problem]:
    """Return the problems of the certificate that the provider's config names."""
    paths = _certificate_paths(source)
    problems = []
    for name, path in paths.items():
        key = _spelling(source, name)
        if source.access.is_outside(path):
            problems.append(source.access.outside_problem(path, source.spec.place.value("config", key)))
        elif not path.is_file():
            written = source.spec.config[key]
            hint = "paths are relative to the config's file"
            problems.append(source.problem(f"`{key}` is {written}, which is not a file", key=key, hint=hint))
    if "client_key" in paths and "client_cert" not in paths:
        key = _spelling(source, "client_key")
        problems.append(source.problem(f"`{key}` needs the `client_cert` that it belongs to", key=key))
    if problems or "client_cert" not in paths:
        return problems
    try:
        _show(certificate_of(source), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    except OSError as error:  # ssl.SSLError is one
        key = _spelling(source, "client_cert")
        reason = getattr(error, "reason", None) or error.strerror
        message = f"`{key}` and its key cannot be used: {reason}"
        hint = "use PEM files, and the certificate's own key without a password"
        return [source.problem(message, key=key, hint=hint)]
    return []


def tls_context(certificate: ClientCertificate | None = None) -> ssl.SSLContext:
    """Return the context for connections to servers whose certificates the user, or else the system, trusts.

    Raises:
        OSError: `certificate` cannot be read, or is none.
    """
    context = _trusting_context(os.environ)
    context.set_alpn_protocols(["http/1.1"])
    _show(certificate, context)
    return context


def missing_bundle(env: Mapping[str, str]) -> str:
    """Return "SSL_CERT_FILE names ..., which is no file" for the first such variable; empty when all are there."""
    for name in CA_VARIABLES:
        named = env.get(name)
        if named and not Path(named).exists():
            return f"{name} is {named}, which is not a {'folder' if name.endswith('DIR') else 'file'}"
    return ""


def _show(certificate: ClientCertificate | None, context: ssl.SSLContext) -> None:
    if certificate is not None:
        # With an empty password, since OpenSSL asks for one at the terminal otherwise.
        context.load_cert_chain(certificate.certificate, certificate.key or None, password="")


def _certificate_paths(source: ProviderSource) -> dict[str, Path]:
    settings = own_settings(source.spec.config, CERTIFICATE_KEYS)
    return {
        name: source.base_dir / Path(value.removeprefix("file://")).expanduser()
        for name, value in settings.items()
        if isinstance(value, str) and value
    }


def _spelling(source: ProviderSource, name: str) -> str:
    key = next(key for key in CERTIFICATE_KEYS if key.spellings[0] == name)
    return next(spelling for spelling in key.spellings if source.spec.config.get(spelling) is not None)


def _trusting_context(env: Mapping[str, str]) -> ssl.SSLContext:
    bundle = Path(env.get("REQUESTS_CA_BUNDLE") or "/")
    is_bundle = bundle.is_file() or (bundle.is_dir() and bundle != Path("/"))
    is_named = bool(env.get("SSL_CERT_FILE") or env.get("SSL_CERT_DIR"))
    if not is_bundle and not is_named:
        import truststore  # noqa: PLC0415 - brings the ways of macOS and Windows with it

        return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if is_named:
        context.load_default_certs()  # OpenSSL reads SSL_CERT_FILE and SSL_CERT_DIR itself
    if is_bundle:
        is_file = bundle.is_file()
        context.load_verify_locations(bundle if is_file else None, None if is_file else bundle)
    return context
