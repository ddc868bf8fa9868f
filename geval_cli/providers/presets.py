"""How a config, the environment and a preset become an `Endpoint`."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlunsplit

from msgspec import Struct

from geval_cli.errors import Location, MissingKey, Problem, Severity
from geval_cli.plugins import extra
from geval_cli.providers.base import (
    CLASSIFICATION,
    EMBEDDING,
    MODERATION,
    TEXT,
    ProviderIdentity,
    ProviderLimits,
    ProviderSource,
    kind_of,
)
from geval_cli.providers.network.addresses import (
    ClientCertificate,
    certificate_of,
    check_certificate,
    split_url,
)
from geval_cli.providers.network.messages import Signer
from geval_cli.providers.options import (
    CLOUD_LOGIN,
    ENDPOINT_KEYS,
    OtherKeys,
    check_settings,
    has_key_command,
    is_price,
    key_command_source,
    limits_of,
    own_settings,
    spelling_in,
    wire_parameters,
)
from geval_cli.providers.preset_table import (
    COMMON_MODES,
    KIND_ALIASES,
    MEDIA_FAMILIES,
    OTHER_MODES,
    PRESETS,
    WIRE_FORMATS,
    OtherMode,
    Preset,
)
from geval_cli.providers.prices import AZURE_URL, FREE, LIST_PRICE, Price, batch_price_of, price_of
from geval_cli.providers.redaction import Secrets, keyed_url, keyed_value, public_url
from geval_cli.providers.wire.parameters import check_parameters, parameters_of, places_of
from geval_cli.providers.wire.refusals import HEADERS_SOURCE
from geval_cli.providers.wire.token_usage import TokenUsage
from geval_cli.records import Usage
from geval_cli.source.problems import did_you_mean
from geval_cli.source.secrets import mask_text, secret_values
from geval_cli.specs.base import WIRE_SETTINGS
from geval_cli.specs.promptfoo import own_env_of


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Everything that a provider over HTTP needs.

    Attributes:
        url: the full address that requests are sent to.
        headers: sent with each request, including the key.
        key_header: the name, in lower case, of the header with geval's own key; empty without one.
        key_source: where the key came from, for error messages; empty without a key.
        wire: the parameters of each request, from the config.
        places: where the config sets them, if it is in a file; `place` is where the provider itself is.
        price: None when unknown.
        certificate: the client certificate shown to servers that request one.
        signer: adds a key that is not known beforehand to each request; None without one.
        batch: the name of its batch API; empty for none.
        batch_deployment: the deployment that answers batches at Azure, where no deployment answers both.
        batch_price: the price of answers in batches; None when unknown.
        max_choices: the most choices that one request may ask for; None for no limit.
    """

    id: str
    label: str
    kind: str
    model: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    key_header: str = ""
    secrets: Secrets = field(default_factory=Secrets)
    key_source: str = ""
    limits: ProviderLimits = field(default_factory=ProviderLimits)
    wire: Mapping[str, Any] = field(default_factory=dict, repr=False)
    places: Mapping[str, Location] = field(default_factory=dict, repr=False)
    place: Location | None = None
    price: Price | None = None
    max_choices: int | None = None
    certificate: ClientCertificate | None = None
    signer: Signer | None = None
    batch: str = ""
    batch_deployment: str = ""
    batch_price: Price | None = None

    @property
    def identity(self) -> ProviderIdentity:
        """Return the identity for the cache key.

        Headers count, except the key: some servers choose the model or the user by them.
        """
        lower = {name.lower(): value for name, value in self.headers.items()}
        headers = {name: keyed_value(name, value) for name, value in lower.items() if name != self.key_header}
        params = {**self.wire, "headers": headers} if headers else self.wire
        return ProviderIdentity(self.kind, self.model, keyed_url(self.url), params)

    def prepare(self) -> None:
        """Do slow preparation before a request is sent, rather than while answers wait to be read."""
        if self.price is not None:
            self.price.prepare()

    def usage(self, tokens: TokenUsage | None, *, requests: int, is_batched: bool = False) -> Usage:
        """Return the tokens and the cost of a call; `cost_usd` is None when the price or the tokens are unknown."""
        price = self.batch_price if is_batched else self.price
        cost = None if price is None else price.cost_usd(tokens)
        counted = tokens or TokenUsage()
        return Usage(
            requests,
            counted.input_tokens,
            counted.output_tokens,
            cost_usd=cost,
            batched_requests=requests * is_batched,
        )


AZURE_API_VERSION = "2024-10-21"
"""The newest version of Azure's deployment API that is not a preview."""

MODERATION_MODEL = "omni-moderation-latest"
"""The model used when a config says just `openai:moderation`."""

_MODES = (
    "chat:",
    "messages:",
    "responses:",
    "embedding:",
    "embeddings:",
    "moderation:",
    "text-classification:",
)
_FREE_NAMES = frozenset(
    {
        "vllm",
        "ollama",
        "litellm",
        "databricks",
        "helicone",
        "bedrock",
        "docker",
        "lmstudio",
        "localai",
        "llamafile",
    }
)
"""Vendors whose users name models freely, possibly with a colon in the name."""
CLASSIFIERS_URL = "https://router.huggingface.co/hf-inference"
_PRINCIPAL_KEYS: Mapping[str, str] = {
    "azureTenantId": "AZURE_TENANT_ID",
    "azureClientId": "AZURE_CLIENT_ID",
    "azureClientSecret": "AZURE_CLIENT_SECRET",
    "azureAuthorityHost": "AZURE_AUTHORITY_HOST",
}
"""The keys of a service principal in promptfoo's configs, and the environment variables for the same values."""
_COMPATIBLE = "/compatibility/v1"
_COHERE_EMBED = "/v2/embed"
"""Cohere has OpenAI's API at the first path; its own embeddings, at the second, also take the vectors' purpose."""
_PATHS = {EMBEDDING: "/embeddings", MODERATION: "/moderations"}
_NOT_SPOKEN = {
    EMBEDDING: "use another, for example openai:embedding:text-embedding-3-large",
    MODERATION: "use another, for example openai:moderation",
    CLASSIFICATION: "write huggingface:text-classification:MODEL",
}


def preset_of(source: ProviderSource) -> Preset:
    """Return the preset for the kind in the id of `source`.

    Raises:
        KeyError: there is none.
    """
    return PRESETS[KIND_ALIASES.get(source.kind, source.kind)]


def speaks_responses(source: ProviderSource) -> bool:
    """Return whether an id names OpenAI's Responses API rather than its chat API."""
    return source.name.startswith("responses:")


def check(source: ProviderSource) -> list[Problem]:
    """Return the problems of the config of a provider that has a preset."""
    config, changed = source.spec.config, {}
    if source.rules.adds_params:
        changed = extra("requests of promptfoo").promptfoo_params(
            source.spec, config, own_env_of(source.spec)
        )
    changed = {name: value for name, value in changed.items() if config.get(name) is not None}
    is_azure = preset_of(source).wire_format == "azure"
    further = {*changed, *(_PRINCIPAL_KEYS if is_azure else ())}
    problems = check_settings(source, ENDPOINT_KEYS, OtherKeys.SENT, further=further)
    # A warning for each parameter of the config that promptfoo changes or does not send.
    for name, value in changed.items():
        if name in _SENT_OTHERWISE:
            continue
        own = {spelling for key in ENDPOINT_KEYS for spelling in key.spellings}
        known = sorted({*WIRE_SETTINGS, *own}, key=lambda word: (word.islower() != name.islower(), word))
        near = None if name in WIRE_SETTINGS else did_you_mean(name, known)
        hint = f"did you mean `{near}`?" if near else "put it under `passthrough` to send it unchanged"
        if name == "delay":
            hint = "put it next to `id` to pause between requests"
        what = "is not sent to this model" if value is None else f"is sent as {json.dumps(value)}"
        problems.append(
            source.key_problem(
                f"`{name}` {what}, as with promptfoo", key=name, hint=hint, severity=Severity.WARNING
            )
        )
    problems += check_certificate(source)
    if has_key_command(config):
        problems += extra("programs that print keys").check_key_command(source)
    problems += _batch_problems(source)
    if any(config.get(name) for name in (CLOUD_LOGIN, "cloudLogin")):
        problems += extra("cloud credentials").check_cloud_login(source, is_cloud=is_azure)
    if kind_of(source.spec.id) == TEXT:
        wire_format = preset_of(source).wire_format
        problems += check_parameters(source, wire_format, is_responses=speaks_responses(source), told=changed)
    if not _model_name(source):
        hint = f"write it after the colon, for example `{preset_of(source).example}`"
        problems.append(source.problem(f"`{source.id}` has no model name", hint=hint))
    elif not _is_spoken(preset_of(source), kind_of(source.spec.id), source):
        message = f"{kind_of(source.spec.id)} models of {source.kind} are not supported"
        problems.append(source.problem(message, hint=_NOT_SPOKEN[kind_of(source.spec.id)]))
    else:
        problems += _mode_problems(source)
    return problems


_SENT_OTHERWISE = frozenset(
    {"output_format", "effort", "extra_body", "omitDefaults", "tools", "tool_choice", "response_format"}
)
"""promptfoo's keys that are sent under another name, sent in another place, or not meant to be sent."""


def _batch_problems(source: ProviderSource) -> Iterator[Problem]:
    """Yield a problem for each batch setting that the vendor does not support."""
    preset = preset_of(source)
    config = source.spec.config
    is_openai = preset.wire_format == "openai" and preset.batch in {"", "openai"}
    if config.get("batch") == "openai" and not is_openai:
        hint = "leave `batch` out: it has its own batch API" if preset.batch else "leave it out"
        yield source.problem(
            f"`batch: openai` is for servers with OpenAI's batch API, which {source.kind} does not have",
            key="batch",
            hint=hint,
        )
    named = next((name for name in ("batch_deployment", "batchDeployment") if name in config), None)
    if named is not None and preset.wire_format != "azure":
        yield source.problem(
            f"`{named}` is for azure: models", key=named, hint="leave it out: batches use the same model"
        )


def _mode_problems(source: ProviderSource) -> Iterator[Problem]:
    """Yield a problem if an id names something other than a chat model: it is never sent as a model name."""
    mode, separator, model = source.name.partition(":")
    kind = KIND_ALIASES.get(source.kind, source.kind)
    other = OTHER_MODES.get(kind, {}).get(mode) or (COMMON_MODES.get(mode) if separator else None)
    if kind == "openai" and f"{mode}-".startswith(MEDIA_FAMILIES):
        other = OtherMode.MEDIA
    if other is None or (kind in _FREE_NAMES and other is not OtherMode.OLD_API):
        return
    hints = {
        OtherMode.OLD_API: f"geval uses the chat API: write `{source.kind}:{model or 'MODEL'}`",
        OtherMode.MEDIA: (
            "geval requests text: write a Python provider that makes the request and returns the text to "
            "judge"
        ),
        OtherMode.PROGRAM: "it is a program: run it with `exec:` or from a Python provider",
        OtherMode.SERVICE: "it is a service with its own API: call it from a Python provider",
    }
    yield source.problem(f"`{source.kind}:{mode}{separator}` is not supported", hint=hints[other])


def _is_spoken(preset: Preset, kind: str, source: ProviderSource) -> bool:
    """Return whether geval can request this kind of answer from the vendor."""
    if kind == CLASSIFICATION:
        return source.kind == "huggingface"
    if kind == MODERATION:
        return preset.wire_format == "openai"
    return kind == TEXT or preset.wire_format in ("openai", "azure")


def check_ready(source: ProviderSource) -> list[Problem]:
    """Return what is missing before the provider can be called: its key or its address."""
    settings = own_settings(source.spec.config, ENDPOINT_KEYS)
    problems = []
    url = str(settings.get("api_endpoint") or _base_url(source, settings))
    preset = preset_of(source)
    names = " or ".join((*preset.base_url_envs, *preset.account_envs))
    if not url:
        named = preset.account_key if preset.account_url else "base_url"
        hint = f"set `{named}` in its config, or the variable {names}"
        problems.append(source.problem(f"no `{named}` for {source.id}", hint=hint))
    elif not split_url(url).hostname:
        # A bad URL in the config is reported elsewhere; this one comes from the environment.
        message = f"{source.id} would be called at `{mask_text(public_url(url))}`, which is not a valid URL"
        problems.append(source.problem(message, hint=f"set `base_url` in its config, or fix {names}"))
    if has_key_command(settings):
        problems += extra("programs that print keys").missing_program(source)
    key, _ = _find_key(source, settings)
    login = None if key or problems else _login(source, settings, endpoint_of(source).url)
    if login is not None:
        missing = login.missing(preset.key_envs[0])
        if missing is not None and (settings.get(CLOUD_LOGIN) or _needs_key(source, settings)):
            problems.append(missing)
    elif key is None and not has_key_command(settings) and _needs_key(source, settings):
        variable = settings.get("api_key_env") or preset_of(source).key_envs[0]
        found = source.problem(
            f"no key for {source.id}: the environment variable {variable} is not set",
            key=spelling_in(source.spec.config, "api_key_env", ENDPOINT_KEYS)
            if "api_key_env" in settings
            else None,
        )
        hint = f"set {variable}, or use another provider"
        notes = ("local:smollm2 runs on this machine and needs no key",)
        problems.append(MissingKey(found.message, found.location, hint, notes, variable=str(variable)))
    return problems


def endpoint_of(source: ProviderSource) -> Endpoint:
    """Return the endpoint that a checked `source` describes; a missing key is not an error here."""
    preset = preset_of(source)
    settings = own_settings(source.spec.config, ENDPOINT_KEYS)
    base_url = _base_url(source, settings)
    key, key_source = _find_key(source, settings)
    own_headers = _own_headers(settings)
    headers = {**_credentials(preset, settings, key), **own_headers}
    key_header = _key_header(preset)
    model = _model_name(source)
    written_out = settings.get("api_endpoint")
    kind = kind_of(source.spec.id)
    if kind == CLASSIFICATION:
        path = f"/models/{_model_name(source)}"
    elif kind == EMBEDDING and source.kind == "cohere":
        path = _COHERE_EMBED
    else:
        path = _PATHS.get(kind) or ("/responses" if speaks_responses(source) else "/chat/completions")
    named = settings.get("api_version") or source.env.get("OPENAI_API_VERSION")
    api_version = str(named or source.env.get("AZURE_API_VERSION") or AZURE_API_VERSION)
    call = _Call(model, path, api_version)
    url = str(written_out) if written_out else _request_url(preset, base_url, call)
    price_url = _price_url(preset, settings, url)
    wire = wire_parameters(source.spec.config, ENDPOINT_KEYS)
    if preset.wire_format == "azure":
        wire = {name: value for name, value in wire.items() if name not in _PRINCIPAL_KEYS}
    login = None if key else _login(source, settings, url)
    secrets = Secrets(
        [key, *secret_values([headers, base_url, str(written_out or "")]), *source.secret_values]
    )
    key_source = source_of_sent(key_source, key_header, own_headers)
    signer: Signer | None = login.signer if login else None
    if login and signer:
        key_source = login.title
    elif has_key_command(settings):
        signer = extra("programs that print keys").key_command_of(
            source, key_header=key_header, secrets=secrets
        )
    named = settings.get("batch", preset_of(source).batch)
    if not named or kind_of(source.spec.id) != TEXT:
        batch_api = ""
    elif named == "azure":
        batch_api = named if "batch_deployment" in settings else ""
    else:
        batch_api = "" if speaks_responses(source) and named != "openai" else str(named)
    return Endpoint(
        id=source.id,
        label=source.label,
        kind=preset.wire_format,
        model=model,
        url=url,
        headers=headers,
        key_header=key_header if key and key_header not in own_headers else "",
        secrets=secrets,
        key_source=key_source,
        limits=limits_of(settings),
        wire=parameters_of(source, wire, preset.wire_format),
        places=places_of(source),
        place=source.place,
        price=_price(source, settings, price_url, model),
        certificate=certificate_of(source),
        signer=signer,
        batch=batch_api,
        batch_deployment=settings.get("batch_deployment", ""),
        batch_price=batch_price_of(settings, url=price_url, model=model),
    )


def _price(source: ProviderSource, settings: Mapping[str, Any], url: str, model: str) -> Price | None:
    is_openai = split_url(url).hostname == split_url(PRESETS["openai"].base_url).hostname
    if kind_of(source.spec.id) == MODERATION and is_openai and not is_price(settings.get("price")):
        return FREE  # OpenAI does not charge for it
    return price_of(settings, url=url, model=model)


def _price_url(preset: Preset, settings: Mapping[str, Any], url: str) -> str:
    """Return the address that determines the vendor of a price: the vendor's own address for `price: list`."""
    if settings.get("price") != LIST_PRICE:
        return url
    return AZURE_URL if preset.wire_format == "azure" else preset.base_url


def join_url(base_url: str, path: str) -> str:
    """Return `base_url` with `path` appended to its path, unless it already ends with it; the query is kept."""
    parts = split_url(base_url)
    own_path = parts.path.rstrip("/")
    full = own_path if own_path.endswith(path) else f"{own_path}{path}"
    return urlunsplit((parts.scheme, parts.netloc, full, parts.query, ""))


def join_versioned_url(base_url: str, path: str) -> str:
    """Return `base_url` with `path` appended; the version that `path` begins with is not repeated."""
    version = f"/{path.split('/')[1]}"
    has_version = split_url(base_url).path.rstrip("/").endswith(version)
    return join_url(base_url, path.removeprefix(version) if has_version else path)


def _model_name(source: ProviderSource) -> str:
    if source.name == MODERATION:
        return MODERATION_MODEL
    for mode in _MODES:
        if source.name.startswith(mode):
            return source.name.removeprefix(mode)
    return source.name


def _base_url(source: ProviderSource, settings: Mapping[str, Any]) -> str:
    preset = preset_of(source)
    named = settings.get("base_url") or settings.get("api_host")
    if not named:
        named = next((source.env[name] for name in preset.base_url_envs if source.env.get(name)), "")
    if not named:
        named = _account_url(source, settings)
    is_classifier = kind_of(source.spec.id) == CLASSIFICATION
    url = str(named or (CLASSIFIERS_URL if is_classifier else preset.base_url))
    if url and "://" not in url:
        url = f"https://{url}" + ("/v1" if preset.wire_format == "openai" else "")
    if url and preset.base_url.endswith("/v1") and not preset.needs_key and split_url(url).path in {"", "/"}:
        url = f"{url.rstrip('/')}/v1"
    return url


def _account_url(source: ProviderSource, settings: Mapping[str, Any]) -> str:
    """Return the address of a vendor that has one per account; empty when no account is named."""
    preset = preset_of(source)
    found = (source.env[name] for name in preset.account_envs if source.env.get(name))
    account = settings.get(preset.account_key) or next(found, "")
    return preset.account_url.format(account=quote(str(account), safe="")) if account else ""


def _find_key(source: ProviderSource, settings: Mapping[str, Any]) -> tuple[str | None, str]:
    # An address may contain a user and password, which use the same header.
    has_own = "@" in split_url(_base_url(source, settings)).netloc
    return find_key(source, settings, () if has_own else preset_of(source).key_envs)


def find_key(
    source: ProviderSource, settings: Mapping[str, Any], usual: Iterable[str]
) -> tuple[str | None, str]:
    """Return the key and a description of its origin; `usual` are the variables to try if the config names none."""
    if has_key_command(settings):
        return None, key_command_source(source.spec.config)
    if settings.get(CLOUD_LOGIN):
        return None, ""
    if "api_key" in settings:
        written = spelling_in(source.spec.config, "api_key", ENDPOINT_KEYS)
        return settings["api_key"], f"`{written}` in the config"
    named = settings.get("api_key_env")
    for variable in (named,) if named else usual:
        if source.env.get(variable):
            return source.env[variable].strip(), variable  # from the environment, an env file or the config
    return None, ""


def source_of_sent(key_source: str, key_header: str, own_headers: Mapping[str, str]) -> str:
    """Return where the key that is sent comes from: a key in the config's own headers replaces any other."""
    is_own = key_header in own_headers if key_source else bool(secret_values(dict(own_headers)))
    return HEADERS_SOURCE if is_own else key_source


def _login(source: ProviderSource, settings: Mapping[str, Any], url: str) -> Any:
    """Return the cloud credentials for a provider without a key; None if its vendor is not such a cloud."""
    if preset_of(source).wire_format != "azure" or "@" in split_url(url).netloc:
        return None
    config = source.spec.config
    own = {variable: str(config[key]) for key, variable in _PRINCIPAL_KEYS.items() if config.get(key)}
    return extra("cloud credentials").cloud_login(
        replace(source, env={**source.env, **own}), "azure", url, settings
    )


def _needs_key(source: ProviderSource, settings: Mapping[str, Any]) -> bool:
    if "api_key_env" in settings:
        return True
    preset = preset_of(source)
    if not preset.needs_key or "api_endpoint" in settings or secret_values(_own_headers(settings)):
        return False
    if preset.wire_format == "azure":
        return True
    # The user's own server may well be open: if it requires a key, it says so itself.
    return _base_url(source, settings) in {preset.base_url, CLASSIFIERS_URL}


def _credentials(preset: Preset, settings: Mapping[str, Any], key: str | None) -> dict[str, str]:
    headers = {}
    rules = WIRE_FORMATS[preset.wire_format]
    if rules.version_header:
        headers[rules.version_header] = str(settings.get("api_version", rules.version))
    if key:
        name = _key_header(preset)
        headers[name] = f"Bearer {key}" if name == "authorization" else key
    if "organization" in settings:
        headers["openai-organization"] = settings["organization"]
    return headers


def _key_header(preset: Preset) -> str:
    return WIRE_FORMATS[preset.wire_format].key_header


def _own_headers(settings: Mapping[str, Any]) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in settings.get("headers", {}).items()}


class _Call(Struct, frozen=True):
    """A request at an address: the `path` of an API, for a model, in a version of Azure's API."""

    model: str
    path: str
    api_version: str


def _request_url(preset: Preset, base_url: str, call: _Call) -> str:
    path = WIRE_FORMATS[preset.wire_format].path.format(model=call.model)
    if path:
        return join_versioned_url(base_url, path)
    if call.path == _COHERE_EMBED:
        return join_url(base_url.rstrip("/").removesuffix(_COMPATIBLE), call.path)
    if preset.wire_format == "openai" or split_url(base_url).path.rstrip("/").endswith("/openai/v1"):
        return join_url(base_url, call.path)
    if call.path == "/responses":
        return join_url(base_url, "/openai/v1/responses")
    url = join_url(base_url, f"/openai/deployments/{call.model}{call.path}")
    return url if "api-version=" in url else f"{url}?api-version={call.api_version}"
