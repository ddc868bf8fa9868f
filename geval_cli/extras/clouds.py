"""Models on Google Cloud and Azure, called with the clouds' own credentials; and Vertex AI (Gemini and Claude).

A login token gives access to far more than a model. So it is sent only to the cloud's own hosts, unless a config that
may run code sets `cloud_login: true` with another address, and it is never used for an untrusted config.

Vertex AI is called with an access token if there is a Google Cloud project (`project_id`, or a variable), else with an
API key.
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
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, urlsplit

from msgspec import Struct

from geval_cli.errors import MissingKey, Problem, ProviderAuthError, ProviderUnavailableError
from geval_cli.extras.credentials import (
    Token,
    TokenSigner,
    check_key_command,
    key_command_of,
    missing_program,
)
from geval_cli.patterns import compile_later
from geval_cli.plugins import is_installed
from geval_cli.providers.base import ProviderSource
from geval_cli.providers.network.addresses import certificate_of, check_certificate
from geval_cli.providers.network.messages import HttpCall, Signer
from geval_cli.providers.options import (
    CLOUD_LOGIN,
    ENDPOINT_KEYS,
    OtherKeys,
    OwnKey,
    check_settings,
    has_key_command,
    is_routing_header,
    limits_of,
    own_settings,
    wire_parameters,
)
from geval_cli.providers.preset_table import VERTEX, is_region
from geval_cli.providers.presets import Endpoint, find_key, join_versioned_url, source_of_sent
from geval_cli.providers.prices import LIST_PRICE, price_of
from geval_cli.providers.redaction import Secrets
from geval_cli.providers.wire.anthropic import AnthropicProvider
from geval_cli.providers.wire.endpoint_provider import EndpointProvider
from geval_cli.providers.wire.google import GoogleProvider
from geval_cli.providers.wire.parameters import check_parameters, parameters_of, places_of
from geval_cli.providers.wire.refusals import CLOUD_CREDENTIALS
from geval_cli.records import ModelRequest
from geval_cli.source.access import TRUST_HINT
from geval_cli.source.secrets import secret_values
from geval_cli.version import install_hint

_TIME_LIMIT_S = 10.0
# Google's library renews a token this long before it expires; any earlier, a metadata server returns the same one.
_MARGIN_S = 225.0
_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_PRINCIPAL = ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET")
_AUTHORITY = "AZURE_AUTHORITY_HOST"
# A credential in Azure's chain that was tried and failed; absent ones say "unavailable", or what to install.
_FAILED_LINK = compile_later(
    r"^\t(\w+Credential: .*(?:AADSTS|failed|expired|refused|denied|timed out).*)$",
    re.MULTILINE | re.IGNORECASE,
)
# Libraries' messages about a server that does not answer, the host name in them, and the reason.
_AWAY = compile_later(r"HTTPS?Connection|Max retries|Failed to resolve|Connection (?:refused|aborted|reset)")
_HOST = compile_later(r"host='([^']+)'")
_CAUSE = compile_later(
    r"name or service not known|failed to resolve|timed out|certificate verify failed|network is unreachable"
    r"|no route to host|connection (?:refused|aborted|reset)",
    re.IGNORECASE,
)


class _Fetched(NamedTuple):
    """A token, the Unix time at which it expires, and the headers to send with it."""

    text: str
    end: float | None
    headers: Mapping[str, str] = {}


class _NoTokenError(Exception):
    """There are no credentials, they are rejected, or the token server `is_away` (cannot be reached)."""

    def __init__(self, reason: str, *, hint: str = "", is_away: bool = False) -> None:
        super().__init__(reason)
        self.hint = hint
        self.is_away = is_away


def _google_token(env: Mapping[str, str], scope: str) -> _Fetched:
    import google.auth  # noqa: PLC0415 - few runs need it
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError  # noqa: PLC0415
    from google.auth.transport.requests import Request  # noqa: PLC0415

    # Its advice on quota projects and key files is meant for programmers.
    warnings.filterwarnings("ignore", module=r"google\.auth")
    key_file = env.get(_KEY_FILE)
    request: Any = partial(Request(), timeout=_TIME_LIMIT_S)
    try:
        if key_file and key_file != os.environ.get(_KEY_FILE):  # from an env file, or the config
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
    # The library uses UTC without a time zone.
    end = None if credentials.expiry is None else credentials.expiry.replace(tzinfo=UTC).timestamp()
    project = getattr(credentials, "quota_project_id", None)
    return _Fetched(credentials.token, end, {"x-goog-user-project": project} if project else {})


def _azure_token(env: Mapping[str, str], scope: str) -> _Fetched:
    from azure.core.exceptions import AzureError, ServiceRequestError, ServiceResponseError  # noqa: PLC0415
    from azure.identity import ClientSecretCredential, DefaultAzureCredential  # noqa: PLC0415

    for logger in map(logging.getLogger, ("azure", "msal", "urllib3")):
        if not logger.handlers:  # without a handler, they repeat the error on stderr
            logger.addHandler(logging.NullHandler())
    options: dict[str, Any] = {
        "retry_total": 2,
        "connection_timeout": _TIME_LIMIT_S,
        "read_timeout": _TIME_LIMIT_S,
        "process_timeout": int(_TIME_LIMIT_S),
    }
    principal = [env.get(name) or "" for name in _PRINCIPAL]
    try:
        # An env file or the config may name another authority for its own secret, never for this machine's.
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
    """A cloud, its hosts, and how to get its credentials.

    Attributes:
        title: its name in messages.
        package: the package that finds its credentials.
        install: how to install that package.
        modules: the modules that must be installed.
        hosts: the suffixes of its own host names. Owners of resources there cannot see the tokens sent to them.
        login: the command that a user runs to log in.
        role: the hint for an account whose token is valid but whose requests are refused.
        token: fetches a token; blocks.
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
    """Return the scope to request a token for."""
    if cloud is CLOUDS["google"]:
        return "https://www.googleapis.com/auth/cloud-platform"
    if written:
        return written
    parts = urlsplit(url)
    domain = next(
        (end for end in (".azure.us", ".azure.cn") if (parts.hostname or "").endswith(end)), ".azure.com"
    )
    # Foundry projects have their own audience; a resource's own endpoints have the old one.
    service = "ai" if "/api/projects/" in parts.path else "cognitiveservices"
    return f"https://{service}{domain}/.default"


def _is_own_host(cloud: Cloud, url: str) -> bool:
    """Return whether a request to `url` reaches the cloud itself and no one else."""
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
    """The credentials of a cloud, as its own tools find them, for one provider.

    Args:
        scope: the scope of the token; by default that of the address.
        goes_anywhere: whether the config allows the token to be sent to other hosts.
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
        # A key file may name other files and servers to send them to, so only configs that may run code can choose one.
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
        """Return a new token, fetched in a thread: it takes a second or more, and may run a program."""
        try:
            return await asyncio.to_thread(self.fetch_now)
        except _NoTokenError as error:
            what, hint = self.said(error)
            kind = ProviderUnavailableError if error.is_away else ProviderAuthError
            message = f"no credentials for {self._provider_id}: {what}"
            failed = kind(message, provider_id=self._provider_id, hint=hint)
        raise failed  # raised here to have no context: the libraries' errors hold requests, and with them keys

    def said(self, error: _NoTokenError) -> tuple[str, str]:
        """Return a message that says why there is no token, and a hint."""
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
        """Return a valid token; blocks. Of several threads, only one fetches it.

        Raises:
            _NoTokenError: there is no token.
        """
        with self._fetching:
            known = self.known()
            if known is not None:
                return known
            found = self._cloud.token(self._env, self._scope)
            until = self.replaced_at(found.end, margin_s=_MARGIN_S)
            return self.keep(Token(found.text, is_bearer=True, until=until, headers=found.headers))


_FETCHING: dict[tuple[str, str], threading.Lock] = {}
"""The lock held while a cloud's token for a scope is fetched."""


class CloudLogin(Struct, frozen=True):
    """The cloud credentials for a provider without a key, whose requests go to `url`."""

    source: ProviderSource
    cloud: Literal["google", "azure"]
    url: str
    settings: Mapping[str, Any]

    @property
    def title(self) -> str:
        """Return the name of the credentials, for messages."""
        return f"{'Google Cloud' if self.cloud == 'google' else 'Azure'}'s {CLOUD_CREDENTIALS}"

    @property
    def signer(self) -> Signer | None:
        """Return the signer that adds a token to requests; None if the provider may not use one."""
        return credentials_for(self.source, self.cloud, self.url, self.settings)

    def missing(self, variable: str) -> Problem | None:
        """Try to get a token, and return the problem if that fails; None if it succeeds.

        Args:
            variable: the environment variable that could hold a key instead.
        """
        lack = lack_of(self.source, self.cloud, self.url, self.settings)
        if lack is None:
            return None
        what, hint = lack
        if self.settings.get(CLOUD_LOGIN):
            return self.source.problem(f"no credentials for {self.source.id}: {what}", hint=hint)
        message = f"no credentials for {self.source.id}: {variable} is not set, and {what}"
        found = self.source.problem(message)
        return MissingKey(message, found.location, f"{hint}; or set {variable}", variable=variable)


def cloud_login(
    source: ProviderSource, cloud: Literal["google", "azure"], url: str, settings: Mapping[str, Any]
) -> CloudLogin | None:
    """Return the cloud credentials for a provider without a key; None if it does not use any."""
    if source.access.is_untrusted or has_key_command(settings) or secret_values(settings.get("headers", {})):
        return None
    if settings.get(CLOUD_LOGIN, "api_key_env" not in settings) is False:
        return None
    return CloudLogin(source, cloud, url, settings)


def check_cloud_login(source: ProviderSource, *, is_cloud: bool) -> list[Problem]:
    """Return the problems with `cloud_login`: next to another source of the key, or for a vendor without a login."""
    config = source.spec.config
    key = next((name for name in (CLOUD_LOGIN, "cloudLogin") if config.get(name)), None)
    if key is None:
        return []
    if not is_cloud:
        hint = "leave it out: it is for azure: and vertex:"
        return [source.key_problem(f"{source.kind}: has no `{key}`", key=key, hint=hint)]
    names = ("api_key", "apiKey", "api_key_env", "apiKeyEnvar", "api_key_command", "apiKeyCommand")
    return [
        source.problem(f"`{key}` and `{name}` both supply a key: keep one", key=name)
        for name in names
        if config.get(name) is not None
    ]


_ANYWHERE_HINT = "set `cloud_login: true` in its config to send a token to this address all the same"


def credentials_for(
    source: ProviderSource, name: Literal["google", "azure"], url: str, settings: Mapping[str, Any]
) -> CloudCredentials | None:
    """Return the credentials of a cloud for a provider; None if it may not use them."""
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
    """Return why a provider cannot use the credentials of a cloud, and a hint; None if it can.

    A token is fetched, the only way to find out whether the credentials work.
    """
    cloud = CLOUDS[name]
    refused = _refused(source, cloud, url, settings)
    if refused is not None:
        return refused
    if not all(map(is_installed, cloud.modules)):
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
"""How long a failure is remembered: an editor checks the config at every keystroke."""

_LACKS: dict[Hashable, tuple[float, tuple[str, str]]] = {}


def _refused(
    source: ProviderSource, cloud: Cloud, url: str, settings: Mapping[str, Any]
) -> tuple[str, str] | None:
    access = source.access
    if access.is_untrusted:
        return f"--untrusted does not use the credentials of {cloud.title} on this machine", TRUST_HINT
    leads_elsewhere = any(map(is_routing_header, map(str, settings.get("headers", {}))))
    if _is_own_host(cloud, url) and not leads_elsewhere:
        return None
    if not settings.get("cloud_login"):
        return f"the credentials of {cloud.title} are sent to its own hosts only", _ANYWHERE_HINT
    if not access.runs_code:
        return (
            f"{access.refused_by} not allow the credentials of {cloud.title} at another address",
            TRUST_HINT,
        )
    return None


_KEY_VARIABLES = VERTEX.key_envs[:1]
_TOKEN_VARIABLES = VERTEX.key_envs[1:]
PROJECT_VARIABLES = ("VERTEX_PROJECT_ID", "GOOGLE_CLOUD_PROJECT", "GOOGLE_PROJECT_ID")
REGION_VARIABLES = ("VERTEX_REGION", "GOOGLE_CLOUD_LOCATION")
DEFAULT_REGION = "us-central1"
_GLOBAL = "global"
_CONTINENTS = ("eu", "us")
_PUBLISHERS = (("gemini", "google"), ("gemma", "google"), ("claude", "anthropic"))
"""Beginnings of model names, with their publishers."""
_METHODS = {"google": "generateContent", "anthropic": "rawPredict"}
_PROJECT = compile_later(r"[a-z0-9][a-z0-9.:-]{0,127}")  # as in `example.com:my-project`, or a number


def _is_project(value: Any) -> bool:
    return isinstance(value, str) and _PROJECT.fullmatch(value) is not None


def publisher_of(source: ProviderSource) -> str:
    """Return the publisher of a model: google or anthropic; empty for a model that geval cannot call."""
    return next((owner for start, owner in _PUBLISHERS if source.name.startswith(start)), "")


def region_url(region: str) -> str:
    """Return the base URL for a region, a continent or `global`."""
    if region == _GLOBAL:
        return VERTEX.base_url
    if region in _CONTINENTS:
        return f"https://aiplatform.{region}.rep.googleapis.com"
    return f"https://{region}-aiplatform.googleapis.com"


VERTEX_KEYS = (
    OwnKey(("project_id", "projectId"), "the id of a project", _is_project),
    OwnKey(("region",), "the name of a region, for example europe-west4", is_region),
    *ENDPOINT_KEYS,
)


def check(source: ProviderSource) -> list[Problem]:
    """Return the problems with the model and the config."""
    problems = check_settings(source, VERTEX_KEYS, OtherKeys.SENT) + check_certificate(source)
    problems += [*check_key_command(source), *check_cloud_login(source, is_cloud=True)]
    publisher = publisher_of(source)
    problems += check_parameters(source, publisher or "google")
    if not publisher:
        hint = "geval calls only Gemini and Claude there; for others use a gateway such as litellm:MODEL"
        problems.append(source.problem(f"`{source.id}` is not a Gemini or Claude model", hint=hint))
    return problems


def check_ready(source: ProviderSource) -> list[Problem]:
    """Report what is missing, or invalid in the environment, to call the model."""
    settings = own_settings(source.spec.config, VERTEX_KEYS)
    problems = missing_program(source)
    project = _project(source, settings)
    region = _region(source, settings)
    if (project and not _is_project(project)) or not is_region(region):
        message = f"`{project[:60]}` in `{region[:60]}` is not a project in a region"
        problems.append(source.problem(message, hint="set `project_id` and `region` in the config"))
    if problems:
        return problems
    if not project and (publisher_of(source) == "anthropic" or settings.get(CLOUD_LOGIN)):
        message = f"no Google Cloud project for {source.id}"
        return [source.problem(message, hint=f"set `project_id` in the config, or {PROJECT_VARIABLES[1]}")]
    key, _ = _credentials(source, settings)
    login = _login(source, settings) if key is None else None
    if login is not None:
        missing = login.missing(_TOKEN_VARIABLES[0])
        if missing is not None and (settings.get(CLOUD_LOGIN) or "base_url" not in settings):
            return [missing]
    elif has_key_command(settings) or secret_values(settings.get("headers", {})) or "base_url" in settings:
        return []
    elif key is None:
        hint = f"set {(_TOKEN_VARIABLES if project else _KEY_VARIABLES)[0]}"
        if not project:
            hint += ", or `project_id` to use your Google Cloud credentials"
        return [source.problem(f"no credentials for {source.id}", hint=hint)]
    return []


def vertex_endpoint(source: ProviderSource) -> Endpoint:
    """Return the endpoint that a checked `source` describes."""
    settings = own_settings(source.spec.config, VERTEX_KEYS)
    key, key_source = _credentials(source, settings)
    own_headers = {str(name).lower(): str(value) for name, value in settings.get("headers", {}).items()}
    has_project = bool(_project(source, settings))
    key_header = "authorization" if has_project else "x-goog-api-key"
    headers = {key_header: f"Bearer {key}" if has_project else key, **own_headers} if key else own_headers
    url = str(settings.get("api_endpoint") or _request_url(source, settings))
    secrets = Secrets([key, *secret_values([headers, url]), *source.secret_values])
    login = None if key else _login(source, settings)
    cloud = login and login.signer
    return Endpoint(
        id=source.id,
        label=source.label,
        kind="vertex",
        model=source.name,
        url=url,
        headers=headers,
        key_header=key_header if key and key_header not in own_headers else "",
        secrets=secrets,
        key_source=login.title if login and cloud else source_of_sent(key_source, key_header, own_headers),
        limits=limits_of(settings),
        wire=parameters_of(
            source, wire_parameters(source.spec.config, VERTEX_KEYS), publisher_of(source) or "google"
        ),
        places=places_of(source),
        place=source.place,
        price=price_of(settings, url=_price_url(settings, url), model=source.name),
        certificate=certificate_of(source),
        signer=cloud or key_command_of(source, key_header=key_header, secrets=secrets),
    )


def _price_url(settings: Mapping[str, Any], url: str) -> str:
    """Return the URL that determines the price: Google's own if a gateway is to be charged at Google's list price."""
    is_elsewhere = not (urlsplit(url).hostname or "").endswith(".googleapis.com")
    return VERTEX.base_url if settings.get("price") == LIST_PRICE and is_elsewhere else url


class VertexClaudeProvider(AnthropicProvider):
    """A Claude model on Vertex AI, with the model in the URL and the API version in the body."""

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        body = super().payload(request)
        del body["model"]
        return {"anthropic_version": "vertex-2023-10-16", **body}


def build(source: ProviderSource) -> EndpointProvider:
    """Return the provider that a checked `source` describes."""
    endpoint = vertex_endpoint(source)
    return VertexClaudeProvider(endpoint) if publisher_of(source) == "anthropic" else GoogleProvider(endpoint)


def own_urls(source: ProviderSource) -> list[str]:
    """Return the URL of the region in the config or the environment, else of the default; empty if it is invalid."""
    region = str(source.spec.config.get("region") or "") or _first(source, REGION_VARIABLES) or DEFAULT_REGION
    return [region_url(region)] if is_region(region) else []


def _login(source: ProviderSource, settings: Mapping[str, Any]) -> CloudLogin | None:
    """Return Google Cloud credentials for a model in a project; None without a project."""
    url = str(settings.get("api_endpoint") or _request_url(source, settings))
    return cloud_login(source, "google", url, settings) if _project(source, settings) else None


def _request_url(source: ProviderSource, settings: Mapping[str, Any]) -> str:
    publisher = publisher_of(source) or "google"
    model = quote(source.name, safe="@" if publisher == "anthropic" else "")
    path = f"publishers/{publisher}/models/{model}:{_METHODS[publisher]}"
    own = settings.get("base_url") or (f"https://{settings['api_host']}" if "api_host" in settings else "")
    project = _project(source, settings)
    if not project:
        return join_versioned_url(str(own or VERTEX.base_url), f"/v1/{path}")
    region = _region(source, settings)
    place = f"/v1/projects/{quote(project, safe=':')}/locations/{region}"
    return join_versioned_url(str(own or region_url(region)), f"{place}/{path}")


def _credentials(source: ProviderSource, settings: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the key or token, and a phrase that says where it came from."""
    return find_key(source, settings, _TOKEN_VARIABLES if _project(source, settings) else _KEY_VARIABLES)


def _project(source: ProviderSource, settings: Mapping[str, Any]) -> str:
    if "project_id" in settings:
        return str(settings["project_id"])
    has_key = (
        source.env.get(_KEY_VARIABLES[0]) and not has_key_command(settings) and not settings.get(CLOUD_LOGIN)
    )
    if publisher_of(source) != "anthropic" and (has_key or "api_key" in settings):
        return ""  # a key is used without a project, even if the environment names one
    return _first(source, PROJECT_VARIABLES)


def _region(source: ProviderSource, settings: Mapping[str, Any]) -> str:
    usual = _GLOBAL if publisher_of(source) == "anthropic" else DEFAULT_REGION
    return str(settings.get("region") or _first(source, REGION_VARIABLES) or usual)


def _first(source: ProviderSource, names: tuple[str, ...]) -> str:
    return next((source.env[name] for name in names if source.env.get(name)), "")
