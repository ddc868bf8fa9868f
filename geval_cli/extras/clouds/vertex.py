"""Vertex AI: Gemini and Claude models in a project of Google's cloud, or Gemini by a key without one.

With a project (`project_id`, or a variable) the credentials are an access token: of a variable, or of the user's own
login in the cloud. Without one, an API key. The wires are those of Gemini and Claude.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from geval_cli.errors import Problem
from geval_cli.patterns import compile_later
from geval_cli.providers.base import ProviderSource
from geval_cli.providers.network.addresses import certificate_of, check_certificate
from geval_cli.providers.options import (
    ENDPOINT_KEYS,
    Others,
    OwnKey,
    check_settings,
    limits_of,
    own_settings,
    wire_parameters,
)
from geval_cli.providers.preset_table import VERTEX, is_region
from geval_cli.providers.presets import Endpoint
from geval_cli.providers.prices import price_of
from geval_cli.providers.redaction import Secrets
from geval_cli.providers.wire.anthropic import AnthropicProvider
from geval_cli.providers.wire.credentials import (
    CLOUD_LOGIN,
    KEY_COMMAND_SOURCE,
    CloudLogin,
    check_cloud_login,
    check_key_command,
    cloud_login,
    has_key_command,
    key_command_of,
    missing_program,
)
from geval_cli.providers.wire.endpoint_provider import EndpointProvider
from geval_cli.providers.wire.google import GoogleProvider
from geval_cli.providers.wire.parameters import check_parameters, places_of
from geval_cli.records import ModelRequest
from geval_cli.source.secrets import secret_values

_KEY_VARIABLES = VERTEX.key_envs[:1]
_TOKEN_VARIABLES = VERTEX.key_envs[1:]
PROJECT_VARIABLES = ("VERTEX_PROJECT_ID", "GOOGLE_CLOUD_PROJECT", "GOOGLE_PROJECT_ID")
REGION_VARIABLES = ("VERTEX_REGION", "GOOGLE_CLOUD_LOCATION")
DEFAULT_REGION = "us-central1"
_GLOBAL = "global"
_CONTINENTS = ("eu", "us")
_PUBLISHERS = (("gemini", "google"), ("gemma", "google"), ("claude", "anthropic"))
"""How names of models begin, and whose they are."""
_METHODS = {"google": "generateContent", "anthropic": "rawPredict"}
_PROJECT = compile_later(r"[a-z0-9][a-z0-9.:-]{0,127}")  # as in `example.com:my-project`, or a number


def _is_project(value: Any) -> bool:
    return isinstance(value, str) and _PROJECT.fullmatch(value) is not None


def publisher_of(source: ProviderSource) -> str:
    """Return whose a model is: google or anthropic; empty where geval does not know how it is called."""
    return next((owner for start, owner in _PUBLISHERS if source.name.startswith(start)), "")


def region_url(region: str) -> str:
    """Return where a region's models are: one of Google's, a continent or the whole world."""
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
    """Return the problems of the model and the config."""
    problems = check_settings(source, VERTEX_KEYS, Others.SENT) + check_certificate(source)
    problems += [*check_key_command(source), *check_cloud_login(source, is_cloud=True)]
    publisher = publisher_of(source)
    problems += check_parameters(source, publisher or "google")
    if not publisher:
        hint = "geval calls only Gemini and Claude there; for others use a gateway such as litellm:MODEL"
        problems.append(source.problem(f"`{source.id}` is not a Gemini or Claude model", hint=hint))
    return problems


def check_ready(source: ProviderSource) -> list[Problem]:
    """Return what is missing before it can be called, or unusable in the environment."""
    settings = own_settings(source.spec.config, VERTEX_KEYS)
    problems = missing_program(source)
    project, region = _project(source, settings), _region(source, settings)
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
        key_source=login.title if login and cloud else key_source,
        limits=limits_of(settings),
        wire=wire_parameters(source.spec.config, VERTEX_KEYS),
        places=places_of(source),
        place=source.place,
        price=price_of(settings, url=url, model=source.name),
        certificate=certificate_of(source),
        signer=cloud or key_command_of(source, key_header=key_header, secrets=secrets),
    )


class VertexClaudeProvider(AnthropicProvider):
    """A Claude model at Vertex AI, whose address names the model, and whose body the version of the API."""

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        body = super().payload(request)
        del body["model"]
        return {"anthropic_version": "vertex-2023-10-16", **body}


def build(source: ProviderSource) -> EndpointProvider:
    """Return the provider that a checked `source` describes."""
    endpoint = vertex_endpoint(source)
    return VertexClaudeProvider(endpoint) if publisher_of(source) == "anthropic" else GoogleProvider(endpoint)


def own_urls(source: ProviderSource) -> list[str]:
    """Return where the region's models are that the config or the environment names; the usual region's otherwise."""
    region = str(source.spec.config.get("region") or "") or _first(source, REGION_VARIABLES) or DEFAULT_REGION
    return [region_url(region)] if is_region(region) else []


def _login(source: ProviderSource, settings: Mapping[str, Any]) -> CloudLogin | None:
    """Return the credentials of Google Cloud for a model without a key in a project."""
    url = str(settings.get("api_endpoint") or _request_url(source, settings))
    return cloud_login(source, "google", url, settings) if _project(source, settings) else None


def _request_url(source: ProviderSource, settings: Mapping[str, Any]) -> str:
    publisher = publisher_of(source) or "google"
    model = quote(source.name, safe="@" if publisher == "anthropic" else "")
    path = f"publishers/{publisher}/models/{model}:{_METHODS[publisher]}"
    own = settings.get("base_url") or (f"https://{settings['api_host']}" if "api_host" in settings else "")
    project = _project(source, settings)
    if not project:
        return f"{str(own or VERTEX.base_url).rstrip('/')}/v1/{path}"
    region = _region(source, settings)
    host = str(own or region_url(region)).rstrip("/")
    return f"{host}/v1/projects/{quote(project, safe=':')}/locations/{region}/{path}"


def _credentials(source: ProviderSource, settings: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the key or the token, and in words where it came from."""
    if has_key_command(settings):
        return None, KEY_COMMAND_SOURCE
    if settings.get(CLOUD_LOGIN):
        return None, ""
    if "api_key" in settings:
        return settings["api_key"], "`apiKey` in the config"
    named = settings.get("api_key_env")
    usual = _TOKEN_VARIABLES if _project(source, settings) else _KEY_VARIABLES
    for variable in (named,) if named else usual:
        if source.env.get(variable):
            return source.env[variable].strip(), variable  # of the environment, a file of it or the config
    return None, ""


def _project(source: ProviderSource, settings: Mapping[str, Any]) -> str:
    if "project_id" in settings:
        return str(settings["project_id"])
    has_key = (
        source.env.get(_KEY_VARIABLES[0]) and not has_key_command(settings) and not settings.get(CLOUD_LOGIN)
    )
    if publisher_of(source) != "anthropic" and (has_key or "api_key" in settings):
        return ""  # a key is asked for without a project, whatever the environment says of projects
    return _first(source, PROJECT_VARIABLES)


def _region(source: ProviderSource, settings: Mapping[str, Any]) -> str:
    usual = _GLOBAL if publisher_of(source) == "anthropic" else DEFAULT_REGION
    return str(settings.get("region") or _first(source, REGION_VARIABLES) or usual)


def _first(source: ProviderSource, names: tuple[str, ...]) -> str:
    return next((source.env[name] for name in names if source.env.get(name)), "")
