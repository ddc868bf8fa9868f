"""Which providers a stranger's config may use: models of known vendors at their own addresses, with their own keys."""

from pathlib import Path
from urllib.parse import urlsplit

from geval_cli.config.confinement import TRUST_HINT
from geval_cli.config.promptfoo.specs import own_env_of
from geval_cli.config.schema import ProviderSpec
from geval_cli.errors import Problem
from geval_cli.providers.json_path import has_response_code
from geval_cli.providers.local_models import model_name
from geval_cli.providers.options import CERTIFICATE_KEYS, ENDPOINT_KEYS, own_settings
from geval_cli.providers.preset_table import KIND_ALIASES, PRESETS, Preset
from geval_cli.providers.registry import OWN_KINDS
from geval_cli.providers.source import ProviderSource
from geval_cli.providers.vertex import VERTEX

_PROGRAMS = frozenset({"python", "javascript", "file", "exec"})
_ADDRESSES = frozenset({"http", "https"})
_WITH_FILES = frozenset({"scripted", "local"})


def runs_program(spec: ProviderSpec) -> bool:
    """Whether a provider is code of the config's own, or hands its answers to such code."""
    return _kind(spec) in _PROGRAMS or (_kind(spec) in _ADDRESSES and has_response_code(spec.config))


def trust_problem(spec: ProviderSpec, base_dir: Path) -> Problem | None:
    """Why --untrusted refuses a provider; None when it does not."""
    kind, where = _kind(spec), spec.place.value("id")
    if kind in _PROGRAMS:
        return _refused(f"`{spec.public_id}` runs code", spec)
    if kind in _ADDRESSES or kind not in {*PRESETS, *OWN_KINDS, "none", "echo"}:
        return _refused(f"`{spec.public_id}` is at an address of its own", spec)
    if kind in _WITH_FILES and _is_outside(spec, base_dir):
        message = (
            f"`{spec.public_id}` names a file outside the config's folder, which --untrusted does not allow"
        )
        return Problem(message, where, "keep the file beside the config")
    if own_env_of(spec):
        return _refused(f"`env` of `{spec.public_id}` sets environment values", spec)
    preset = VERTEX if kind == "vertex" else PRESETS.get(kind)
    return None if preset is None else _endpoint_problem(spec, preset)


def _endpoint_problem(spec: ProviderSpec, preset: Preset) -> Problem | None:
    settings = own_settings(spec.config, ENDPOINT_KEYS)
    key_env = settings.get("api_key_env")
    addresses = [settings[name] for name in ("base_url", "api_endpoint") if settings.get(name) is not None]
    has_own_host = settings.get("api_host") is not None
    if has_own_host or not all(_is_own_address(address, preset) for address in addresses):
        return _refused(f"`{spec.public_id}` sends what it is asked to another host", spec)
    if own_settings(spec.config, CERTIFICATE_KEYS):
        return _refused(f"`{spec.public_id}` shows a certificate of this machine's", spec)
    if key_env is not None and key_env not in preset.key_envs:
        return _refused(f"`{spec.public_id}` reads the environment variable `{key_env}`", spec)
    return None


def _is_own_address(url: object, preset: Preset) -> bool:
    if not isinstance(url, str) or not preset.base_url:
        return False
    try:
        asked, own = urlsplit(url), urlsplit(preset.base_url)
        asked_port = asked.port
    except ValueError:
        return False
    return (asked.scheme, asked.hostname, asked_port) == (own.scheme, own.hostname, own.port)


def _is_outside(spec: ProviderSpec, base_dir: Path) -> bool:
    name = model_name(spec.id) if _kind(spec) == "local" else spec.id.partition(":")[2]
    name = name.removeprefix("file://").removeprefix("//")
    looks_like_path = "/" in name or "\\" in name or name.startswith((".", "~")) or name.endswith(".gguf")
    if not looks_like_path:
        return (base_dir / name).is_symlink()
    return name.startswith("~") or not (base_dir / name).resolve().is_relative_to(base_dir.resolve())


def _kind(spec: ProviderSpec) -> str:
    kind = ProviderSource(spec, {}, Path()).kind
    return KIND_ALIASES.get(kind, kind)


def _refused(what: str, spec: ProviderSpec) -> Problem:
    return Problem(f"{what}, which --untrusted does not allow", spec.place.value("id"), TRUST_HINT)
