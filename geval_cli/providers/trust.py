"""The providers that an untrusted config may use: known vendors' models at their own addresses with their own keys."""

from collections.abc import Collection, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from geval_cli.errors import Problem
from geval_cli.plugins import PROVIDERS, extra, plugin_names
from geval_cli.providers.base import ProviderSource, local_name
from geval_cli.providers.options import (
    CERTIFICATE_KEYS,
    ENDPOINT_KEYS,
    KEY_COMMAND,
    has_key_command,
    is_routing_header,
    own_settings,
)
from geval_cli.providers.preset_table import KIND_ALIASES, PRESETS, VERTEX, Preset, is_region
from geval_cli.providers.presets import CLASSIFIERS_URL, endpoint_of
from geval_cli.source.access import TRUST_HINT, TRUSTED
from geval_cli.specs.base import ProviderSpec
from geval_cli.specs.promptfoo import own_env_of

Origin = tuple[str, str, int]
"""Scheme, host and port."""

MODELS_DIR_VARIABLE = "GEVAL_MODELS_DIR"
"""The variable that names the folder of local model files."""

_VERSION_VARIABLES = ("OPENAI_API_VERSION", "AZURE_API_VERSION")
_PROGRAMS = frozenset({"python", "javascript", "file", "exec"})
_ADDRESSES = frozenset({"http", "https"})
_MAY_SIGN = frozenset({*_ADDRESSES, "bedrock"})
_AWS, _VERTEX = "signatures of AWS", "vertex"
_SERVER_HINT = "start the server with --allow-code if you trust every config"
_WITH_FILES = frozenset({"scripted", "local"})


def runs_program(spec: ProviderSpec) -> bool:
    """Return whether a provider is the config's own code, passes its answers to it, or gets its key from it."""
    if _kind(spec) in _ADDRESSES:
        has_code: bool = extra("HTTP provider").has_response_code(spec.config)
        return has_code
    return _kind(spec) in _PROGRAMS or has_key_command(spec.config)


def access_problem(source: ProviderSource, kinds: Collection[str]) -> Problem | None:
    """Return the problem if the config's access refuses a provider; otherwise None.

    Args:
        source: the provider, with the access of its config.
        kinds: kinds of providers that live in this process or at an address that geval knows.
    """
    access, spec = source.access, source.spec
    if not access.runs_code and has_key_command(spec.config):
        key = next(name for name in KEY_COMMAND.spellings if name in spec.config)
        message = f"`{key}` of `{spec.public_id}` runs a program, which {access.refused_by} not allow"
        return Problem(message, spec.place.value("config", key), TRUST_HINT)
    if (
        _kind(spec) in _MAY_SIGN
        and not access.runs_code
        and (what := extra(_AWS).misused_credentials(source))
    ):
        message = f"`{spec.public_id}` uses {what} of this machine, which {access.refused_by} not allow"
        return Problem(message, spec.place.value("id"), TRUST_HINT if access.is_untrusted else _SERVER_HINT)
    if not access.runs_code and runs_program(spec):
        return _refused(f"`{spec.public_id}` runs code", spec)
    return None if access.reaches_any_host else _untrusted_problem(source, kinds)


def _untrusted_problem(source: ProviderSource, kinds: Collection[str]) -> Problem | None:
    spec, kind = source.spec, _kind(source.spec)
    if kind in _ADDRESSES:
        return _refused(f"`{spec.public_id}` has its own URL", spec)
    if kind not in {*PRESETS, *kinds, "none", "echo"}:
        if kind not in plugin_names(PROVIDERS):
            return None  # an unknown provider, which the check of the config reports
        return _refused(f"`{spec.public_id}` comes from an installed package and can reach any host", spec)
    if kind in _WITH_FILES and _is_outside(source):
        message = (
            f"`{spec.public_id}` refers to a file outside the config's folder, which --untrusted does "
            "not allow"
        )
        return Problem(message, spec.place.value("id"), "put the file next to the config")
    if own_env_of(spec):
        return _refused(f"`env` of `{spec.public_id}` sets environment values", spec)
    preset = VERTEX if kind == "vertex" else PRESETS.get(kind)
    if preset is None:
        return None
    return _endpoint_problem(spec, preset) or _header_problem(spec) or _reach_problem(source, preset)


def _endpoint_problem(spec: ProviderSpec, preset: Preset) -> Problem | None:
    settings = own_settings(spec.config, ENDPOINT_KEYS)
    key_env = settings.get("api_key_env")
    addresses = [settings[name] for name in ("base_url", "api_endpoint") if settings.get(name) is not None]
    has_own_host = settings.get("api_host") is not None
    if has_own_host or not all(_is_own_address(address, preset) for address in addresses):
        return _refused(f"`{spec.public_id}` sends its requests to another host", spec)
    if settings.get("cloud_login"):
        return _refused(f"`{spec.public_id}` uses the cloud login of this machine", spec)
    if own_settings(spec.config, CERTIFICATE_KEYS):
        return _refused(f"`{spec.public_id}` presents a certificate from this machine", spec)
    if key_env is not None and key_env not in preset.key_envs:
        return _refused(f"`{spec.public_id}` reads the environment variable `{key_env}`", spec)
    return None


def _is_own_address(url: object, preset: Preset) -> bool:
    if not isinstance(url, str) or not preset.base_url:
        return False
    try:
        asked = urlsplit(url)
        own = urlsplit(preset.base_url)
        asked_port = asked.port
    except ValueError:
        return False
    return (asked.scheme, asked.hostname, asked_port) == (own.scheme, own.hostname, own.port)


def _header_problem(spec: ProviderSpec) -> Problem | None:
    """Return a problem if the config sets a header that may route a request away from its address."""
    headers = spec.config.get("headers")
    for name in headers if isinstance(headers, Mapping) else ():
        if is_routing_header(str(name)):
            what = f"the header `{str(name)[:60]}` of `{spec.public_id}` may send requests elsewhere"
            return _refused(what, spec)
    return None


def _reach_problem(source: ProviderSource, preset: Preset) -> Problem | None:
    """Return a problem if requests would go anywhere but to `own_origins`: a second check, of the final address."""
    try:
        url = (extra(_VERTEX).vertex_endpoint if _kind(source.spec) == _VERTEX else endpoint_of)(source).url
    except (KeyError, ValueError, TypeError):
        return None  # the check of the settings reports the problem, and nothing is built from them
    if not url or _origin(url) in own_origins(source, preset):
        return None
    return _refused(f"`{source.spec.public_id}` sends its requests to another host", source.spec)


def own_origins(source: ProviderSource, preset: Preset) -> set[Origin]:
    """Return the origins that a vendor's requests may go to: its own, and those that the user's environment names."""
    urls = [preset.base_url, CLASSIFIERS_URL, preset.account_url.replace("{account}", "a")]
    urls += [source.env.get(name, "") for name in preset.base_url_envs]
    origins = {_origin(url if "://" in url else f"https://{url}") for url in urls if url}
    if preset is VERTEX:
        origins.update(map(_origin, extra(_VERTEX).own_urls(source)))
    elif preset.account_key == "region":
        region = str(source.spec.config.get("region") or "") or next(
            (source.env[name] for name in preset.account_envs if source.env.get(name)), ""
        )
        if is_region(region):
            origins.add(_origin(preset.account_url.format(account=region)))
            if preset is PRESETS["bedrock"]:  # its other API
                origins.add(("https", f"bedrock-runtime.{region}.amazonaws.com", 443))
    return origins


def variables_of(source: ProviderSource) -> frozenset[str]:
    """Return the environment variables that a vendor's provider may read."""
    if _kind(source.spec) == _VERTEX:
        vertex = extra(_VERTEX)
        return frozenset({*VERTEX.key_envs, *vertex.PROJECT_VARIABLES, *vertex.REGION_VARIABLES})
    preset = PRESETS.get(_kind(source.spec))
    if preset is None:
        return frozenset({MODELS_DIR_VARIABLE})
    if source.access.runs_code and _kind(source.spec) in _MAY_SIGN and extra(_AWS).uses_credentials(source):
        return frozenset(name for name in source.env if name.startswith("AWS_"))
    return frozenset({*preset.key_envs, *preset.base_url_envs, *preset.account_envs, *_VERSION_VARIABLES})


def ports_of(source: ProviderSource) -> frozenset[int] | None:
    """Return the TCP ports that a provider may connect to; None for any port, as for a local model."""
    kind = _kind(source.spec)
    if kind == "local" or runs_program(source.spec) or kind in _ADDRESSES:
        return None if kind == "local" or source.access.reaches_any_host else frozenset()
    preset = VERTEX if kind == "vertex" else PRESETS.get(kind)
    return frozenset() if preset is None else frozenset(port for _, _, port in own_origins(source, preset))


def port_of(url: str) -> int:
    """Return the port of `url`, explicit or implied by its scheme; 0 for none."""
    return _origin(url if "://" in url else f"http://{url}")[2]


def _origin(url: str) -> Origin:
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)
    except ValueError:
        return ("", "", 0)
    return (parts.scheme, (parts.hostname or "").lower(), port)


def _is_outside(source: ProviderSource) -> bool:
    spec, base_dir = source.spec, source.base_dir
    name = local_name(spec.id) if _kind(spec) == "local" else spec.id.partition(":")[2]
    name = name.removeprefix("file://").removeprefix("//")
    looks_like_path = "/" in name or "\\" in name or name.startswith((".", "~")) or name.endswith(".gguf")
    if not looks_like_path:
        return (base_dir / name).is_symlink()
    return name.startswith("~") or source.access.is_outside(base_dir / name)


def _kind(spec: ProviderSpec) -> str:
    kind = ProviderSource(spec, {}, Path(), TRUSTED).kind
    return KIND_ALIASES.get(kind, kind)


def _refused(what: str, spec: ProviderSpec) -> Problem:
    return Problem(f"{what}, which --untrusted does not allow", spec.place.value("id"), TRUST_HINT)
