"""Find the credentials of Google Cloud and Azure as their own tools do, for models that no key is given for.

A token of theirs opens far more than a model. So it is sent to the cloud's own hosts alone, unless a config that may
run code says `cloud_login: true` beside another address, and it is never used for a stranger's config.
"""

import asyncio
import logging
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC
from functools import partial
from http import HTTPStatus
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct

from geval_cli.errors import ProviderAuthError, ProviderUnavailableError
from geval_cli.patterns import compile_later
from geval_cli.providers.base import ProviderSource
from geval_cli.providers.network.messages import HttpCall
from geval_cli.providers.options import is_routing_header
from geval_cli.providers.redaction import Secrets
from geval_cli.providers.wire.credentials import Token, TokenSigner
from geval_cli.source.access import TRUST_HINT
from geval_cli.version import install_hint

_TIME_LIMIT_S = 10.0
# Google's library renews a token so long before its end; sooner, a metadata server hands out the same one again.
_MARGIN_S = 225.0
_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_PRINCIPAL = ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET")
_AUTHORITY = "AZURE_AUTHORITY_HOST"
# A link of Azure's chain that was there and failed: those that are not there say "unavailable", or what to install.
_FAILED_LINK = compile_later(
    r"^\t(\w+Credential: .*(?:AADSTS|failed|expired|refused|denied|timed out).*)$",
    re.MULTILINE | re.IGNORECASE,
)
# What libraries say of a server that does not answer, the host in it, and the reason.
_AWAY = compile_later(r"HTTPS?Connection|Max retries|Failed to resolve|Connection (?:refused|aborted|reset)")
_HOST = compile_later(r"host='([^']+)'")
_CAUSE = compile_later(
    r"name or service not known|failed to resolve|timed out|certificate verify failed|network is unreachable"
    r"|no route to host|connection (?:refused|aborted|reset)",
    re.IGNORECASE,
)


class _Fetched(NamedTuple):
    """A token, the Unix time of its end, and the headers that go with it."""

    text: str
    end: float | None
    headers: Mapping[str, str] = {}


class _NoTokenError(Exception):
    """There are no credentials, or they are refused, or the server that hands out tokens `is_away`."""

    def __init__(self, reason: str, *, hint: str = "", is_away: bool = False) -> None:
        super().__init__(reason)
        self.hint = hint
        self.is_away = is_away


def _google_token(env: Mapping[str, str], scope: str) -> _Fetched:
    import google.auth  # noqa: PLC0415 - few runs need it
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError  # noqa: PLC0415
    from google.auth.transport.requests import Request  # noqa: PLC0415

    # Its advice on quota projects and key files is for those who write programs.
    warnings.filterwarnings("ignore", module=r"google\.auth")
    key_file = env.get(_KEY_FILE)
    request: Any = partial(Request(), timeout=_TIME_LIMIT_S)
    try:
        if key_file and key_file != os.environ.get(_KEY_FILE):  # of an env file, or the config
            load: Any = google.auth.load_credentials_from_file
            quota_project = env.get("GOOGLE_CLOUD_QUOTA_PROJECT")
            credentials, _ = load(key_file, scopes=[scope], quota_project_id=quota_project, request=request)
        else:
            credentials, _ = google.auth.default(scopes=[scope], request=request)
        credentials.refresh(request)
    except DefaultCredentialsError as error:
        if "were not found" in str(error):
            raise _NoTokenError("Google Cloud's default credentials were not found") from error
        raise _NoTokenError(f"{_KEY_FILE}: {error}", hint=f"fix {_KEY_FILE}, or unset it") from error
    except TransportError as error:
        raise _NoTokenError(str(error), is_away=True) from error
    except GoogleAuthError as error:
        said = error.args[0] if error.args else error
        raise _NoTokenError(f"Google Cloud gives no token: {said}") from error
    except PermissionError as error:
        hint = "check its permissions; with --untrusted, geval cannot read it"
        raise _NoTokenError(f"{error.filename} cannot be read", hint=hint) from error
    except (OSError, ValueError) as error:
        raise _NoTokenError(str(error)) from error
    # The library writes moments in UTC, without saying so.
    end = None if credentials.expiry is None else credentials.expiry.replace(tzinfo=UTC).timestamp()
    project = getattr(credentials, "quota_project_id", None)
    return _Fetched(credentials.token, end, {"x-goog-user-project": project} if project else {})


def _azure_token(env: Mapping[str, str], scope: str) -> _Fetched:
    from azure.core.exceptions import AzureError, ServiceRequestError, ServiceResponseError  # noqa: PLC0415
    from azure.identity import ClientSecretCredential, DefaultAzureCredential  # noqa: PLC0415

    for logger in map(logging.getLogger, ("azure", "msal", "urllib3")):
        if not logger.handlers:  # without one they print what the error says
            logger.addHandler(logging.NullHandler())
    options: dict[str, Any] = {
        "retry_total": 2,
        "connection_timeout": _TIME_LIMIT_S,
        "read_timeout": _TIME_LIMIT_S,
        "process_timeout": int(_TIME_LIMIT_S),
    }
    principal = [env.get(name) or "" for name in _PRINCIPAL]
    try:
        # An env file, or the config, may name another authority for a secret of its own, never for this machine's.
        if all(principal) and principal[-1] != os.environ.get(_PRINCIPAL[-1]):
            if env.get(_AUTHORITY):
                options["authority"] = env[_AUTHORITY]
            with ClientSecretCredential(*principal, **options) as credential:
                token = credential.get_token(scope)
        else:
            with DefaultAzureCredential(**options) as chain:
                token = chain.get_token(scope)
    except (ServiceRequestError, ServiceResponseError) as error:
        raise _NoTokenError(str(error), is_away=True) from error
    except (AzureError, ValueError, OSError) as error:
        reason = str(error).strip() or type(error).__name__
        failed = _FAILED_LINK.findall(reason)
        if "\nAttempted credentials:" in reason and not failed:
            raise _NoTokenError("Azure's default credentials were not found") from error
        first = failed[-1] if failed else reason.splitlines()[0]
        if _AWAY.search(first):
            raise _NoTokenError(first, is_away=True) from error
        raise _NoTokenError(f"Azure gives no token: {first}") from error
    return _Fetched(token.token, float(token.expires_on))


class Cloud(Struct, frozen=True):
    """A cloud, and where its credentials and models are.

    Attributes:
        title: its name for people.
        package: what finds its credentials.
        install: how it is installed.
        modules: those of it that must be there.
        hosts: how names of its own hosts end. Whoever has a resource there sees no token that is sent to it.
        login: what a person runs to have credentials.
        role: what an account lacks whose token is good and whose requests are refused.
        token: fetches one; it blocks.
    """

    title: str
    package: str
    install: str
    modules: tuple[str, ...]
    hosts: tuple[str, ...]
    login: str
    role: str
    token: Callable[[Mapping[str, str], str], _Fetched]


CLOUDS: Mapping[Literal["google", "azure"], Cloud] = {
    "google": Cloud(
        title="Google Cloud",
        package="google-auth",
        install=install_hint("gcp"),
        modules=("google.auth", "requests"),
        hosts=(".googleapis.com",),
        login="gcloud auth application-default login",
        role="give the account the role Vertex AI User (roles/aiplatform.user) in the project",
        token=_google_token,
    ),
    "azure": Cloud(
        title="Azure",
        package="azure-identity",
        install=install_hint("azure"),
        modules=("azure.identity",),
        hosts=tuple(
            f".{service}.{domain}"
            for domain in ("azure.com", "azure.us", "azure.cn")
            for service in ("openai", "cognitiveservices", "services.ai")
        ),
        login="az login",
        role="give the account the role Cognitive Services OpenAI User at the resource",
        token=_azure_token,
    ),
}


def _scope_of(cloud: Cloud, url: str, written: str) -> str:
    """Return what a token is to be good for."""
    if cloud is CLOUDS["google"]:
        return "https://www.googleapis.com/auth/cloud-platform"
    if written:
        return written
    parts = urlsplit(url)
    domain = next(
        (end for end in (".azure.us", ".azure.cn") if (parts.hostname or "").endswith(end)), ".azure.com"
    )
    # Projects of Foundry have an audience of their own; what a resource offers by itself has the old one.
    service = "ai" if "/api/projects/" in parts.path else "cognitiveservices"
    return f"https://{service}{domain}/.default"


def _is_own_host(cloud: Cloud, url: str) -> bool:
    """Return whether a request to `url` reaches the cloud and no one else."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    is_plain = not any(sign in parts.netloc for sign in "@\\")
    return (
        parts.scheme == "https"
        and port in (None, 443)
        and is_plain
        and (parts.hostname or "").endswith(cloud.hosts)
    )


class CloudCredentials(TokenSigner):
    """The credentials of a cloud, as its own tools find them, for a provider there.

    Args:
        scope: what the token is to be good for; that of the address by default.
        goes_anywhere: whether the config says that the token may leave the cloud.
    """

    def __init__(
        self,
        source: ProviderSource,
        cloud: Cloud,
        url: str,
        *,
        scope: str = "",
        goes_anywhere: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cloud = cloud
        # A key file may name other files, and servers that get them: that is for configs that may run code.
        self._env = source.env if source.access.runs_code else os.environ
        self._scope = _scope_of(cloud, url, scope)
        self._goes_anywhere = goes_anywhere
        self._secrets = Secrets(source.secret_values)
        self._provider_id = source.id
        self._fetching = _FETCHING.setdefault((cloud.title, self._scope), threading.Lock())
        named = frozenset((name, self._env.get(name, "")) for name in (_KEY_FILE, *_PRINCIPAL, _AUTHORITY))
        super().__init__((cloud.title, self._scope, named), clock=clock)

    def __repr__(self) -> str:
        return f"CloudCredentials({self._cloud.title!r}, {self._scope!r})"

    async def sign(self, call: HttpCall) -> HttpCall:
        if not self._goes_anywhere and not _is_own_host(self._cloud, call.url):
            what = (
                f"no credentials for {self._provider_id}: those of {self._cloud.title} are for its own hosts"
            )
            raise ProviderAuthError(what, provider_id=self._provider_id, hint=_ANYWHERE_HINT)
        return await super().sign(call)

    async def sign_again(self, refused: HttpCall, error: ProviderAuthError) -> HttpCall:
        if error.status == HTTPStatus.FORBIDDEN:
            error.hint = self._cloud.role
        return await super().sign_again(refused, error)

    def hint_for_the_same(self) -> str:
        cloud = self._cloud
        return f"{cloud.title} gave the same token again: run `{cloud.login}` as an account that may call the model"

    async def fetch(self) -> Token:
        """Return a new token, which another thread fetches: it takes a second or more, and may run a program."""
        try:
            return await asyncio.to_thread(self.fetch_now)
        except _NoTokenError as error:
            what, hint = self.said(error)
            kind = ProviderUnavailableError if error.is_away else ProviderAuthError
            message = f"no credentials for {self._provider_id}: {what}"
            failed = kind(message, provider_id=self._provider_id, hint=hint)
        raise failed  # out here it has no context: the libraries' errors hold requests, and with them keys

    def said(self, error: _NoTokenError) -> tuple[str, str]:
        """Return in words why there is no token, and what to do."""
        reason = self._secrets.excerpt(str(error)).strip().rstrip(".")
        if error.is_away:
            host, cause = _HOST.search(reason), _CAUSE.search(reason)
            if host is not None and cause is not None:
                reason = f"{host[1]}: {cause[0].lower()}"
            return (
                f"the token server of {self._cloud.title} cannot be reached ({reason})",
                "check the network",
            )
        return reason, error.hint or f"run `{self._cloud.login}`"

    def fetch_now(self) -> Token:
        """Return a token that is fresh; it blocks. Of several threads one fetches.

        Raises:
            _NoTokenError: there is none.
        """
        with self._fetching:
            known = self.known()
            if known is not None:
                return known
            found = self._cloud.token(self._env, self._scope)
            until = self.replaced_at(found.end, margin_s=_MARGIN_S)
            return self.keep(Token(found.text, is_bearer=True, until=until, headers=found.headers))


_FETCHING: dict[tuple[str, str], threading.Lock] = {}
"""Whoever fetches a token of a cloud for a scope holds this."""

_ANYWHERE_HINT = "set `cloud_login: true` in its config to send a token to this address all the same"


def credentials_for(
    source: ProviderSource, name: Literal["google", "azure"], url: str, settings: Mapping[str, Any]
) -> CloudCredentials | None:
    """Return the credentials of a cloud for a provider; None where they may not be used for it."""
    if _refused(source, CLOUDS[name], url, settings):
        return None
    return CloudCredentials(
        source,
        CLOUDS[name],
        url,
        scope=str(settings.get("token_scope") or source.env.get("AZURE_TOKEN_SCOPE") or ""),
        goes_anywhere=bool(settings.get("cloud_login")),
    )


def lack_of(
    source: ProviderSource, name: Literal["google", "azure"], url: str, settings: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Return why the credentials of a cloud cannot be used for a provider, and what to do; None where they can.

    They are tried: only so it is known whether they are good.
    """
    cloud = CLOUDS[name]
    refused = _refused(source, cloud, url, settings)
    if refused is not None:
        return refused
    if not all(map(_is_installed, cloud.modules)):
        what = f"finding {cloud.title}'s default credentials needs the package {cloud.package}"
        return what, f"to use them, install it {cloud.install}"
    signer = credentials_for(source, name, url, settings)
    assert signer is not None
    tried_at, lack = _LACKS.get(signer.asked, (0.0, None))
    if lack is not None and time.monotonic() - tried_at < _AS_BEFORE_S:
        return lack
    try:
        signer.fetch_now()
    except _NoTokenError as error:
        lack = signer.said(error)
        _LACKS[signer.asked] = time.monotonic(), lack
        return lack
    return None


_AS_BEFORE_S = 5.0
"""So long a failure holds: an editor checks a config with each key that is pressed."""

_LACKS: dict[Hashable, tuple[float, tuple[str, str]]] = {}


def _refused(
    source: ProviderSource, cloud: Cloud, url: str, settings: Mapping[str, Any]
) -> tuple[str, str] | None:
    access = source.access
    if access.is_strangers:
        return f"--untrusted does not use the credentials of {cloud.title} on this machine", TRUST_HINT
    leads_elsewhere = any(map(is_routing_header, map(str, settings.get("headers", {}))))
    if _is_own_host(cloud, url) and not leads_elsewhere:
        return None
    if not settings.get("cloud_login"):
        return f"the credentials of {cloud.title} are sent to its own hosts only", _ANYWHERE_HINT
    if not access.runs_code:
        return f"{access.refuser} not allow the credentials of {cloud.title} at another address", TRUST_HINT
    return None


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
