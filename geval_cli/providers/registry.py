"""The known provider kinds, and how a part of a config is checked and becomes a provider.

The module of a kind is imported on its first use.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

from msgspec import Struct

from geval_cli.errors import ConfigError, Problem, UsageError
from geval_cli.patterns import compile_later
from geval_cli.plugins import PROVIDERS, extra, find_plugin, plugin_names
from geval_cli.providers.base import ClientModel, Provider, ProviderSource
from geval_cli.providers.preset_table import KIND_ALIASES, PRESETS, VERTEX, WIRE_FORMATS
from geval_cli.providers.trust import access_problem, ports_of, runs_program, variables_of
from geval_cli.source.access import TRUSTED, Access
from geval_cli.source.files import is_bare_path
from geval_cli.source.problems import did_you_mean, listing
from geval_cli.specs.base import FunctionSpec, ProviderSpec
from geval_cli.specs.promptfoo import own_env_of

_GATEWAY = "put a gateway such as LiteLLM in front of it: litellm:MODEL"
_SERVER = "it speaks OpenAI's chat API: write `openai:MODEL` and set base_url"
_ELSEWHERE: Mapping[str, str] = {
    "bedrock-agent": _GATEWAY,
    "sagemaker": "call the endpoint by its address, with `sign: aws` in its config",
    "replicate": _GATEWAY,
    "palm": "use the model through Google's API: google:gemini-2.5-flash",
    "browser": "drive the browser from a Python provider",
    "webhook": "use an HTTP provider: http://...",
    "package": "run the package with Node (`exec: node app.js`), or serve it over HTTP",
    "promptfoo": "it is part of promptfoo itself: write a Python provider instead",
    "llama": _SERVER,
    **dict.fromkeys(("websocket", "ws", "wss", "mcp", "a2a"), "talk to the server from a Python provider"),
    **dict.fromkeys(("golang", "go", "ruby", "rb"), "run it with `exec:`, or serve it over HTTP"),
    **dict.fromkeys(
        ("sequence", "simulated-user", "manual-input", "agentic"),
        "hold the conversation from a Python provider",
    ),
    **dict.fromkeys(
        ("opencode", "openclaw", "openinterpreter", "transformers", "transformers.js"),
        "it is a program: run it with `exec:` or from a Python provider",
    ),
    **dict.fromkeys(
        ("slack", "n8n", "elevenlabs", "fal", "quiverai", "modelslab"),
        "it is a service with its own API: call it from a Python provider",
    ),
}
"""Vendors, programs and services that other tools call and geval does not, with what to do instead."""

NONE_PROVIDER = "none"
"""Not a provider: it says that the tests contain their outputs, and the engine handles it."""


class ProviderKind(Struct, frozen=True):
    """A kind of provider.

    Attributes:
        checks: the module whose `check` finds problems in the config and whose `check_ready`, if it has one, finds what
            is missing on this machine. It imports nothing heavy.
        builds: the module whose `build` makes the provider.
        title: a description for people.
        example: an id to copy.
        key_env: the variable that usually holds the key; empty when none is needed.
        base_url: where requests go by default; empty when the id or the config says it.
        plugin: the object that an installed package provides instead of both modules.
    """

    checks: str
    builds: str
    title: str
    example: str
    key_env: str = ""
    base_url: str = ""
    plugin: Any = None


_HERE = "geval_cli.providers"
_LOCAL = "geval_cli.extras.local"
_PROGRAMS = "geval_cli.extras.programs.providers"
_AWS = "geval_cli.extras.aws"
_STAND_INS = "geval_cli.extras.stand_ins"
_CLOUDS = "geval_cli.extras.clouds"
_HTTP = "geval_cli.extras.http_provider.provider"

OWN_KINDS: Mapping[str, ProviderKind] = {
    "vertex": ProviderKind(
        _CLOUDS,
        _CLOUDS,
        VERTEX.title,
        VERTEX.example,
        VERTEX.key_envs[0],
        VERTEX.base_url,
    ),
    # One of its two APIs is that of a preset, which handles it.
    "bedrock": ProviderKind(
        f"{_AWS}.bedrock", f"{_AWS}.bedrock", PRESETS["bedrock"].title, PRESETS["bedrock"].example
    ),
    "local": ProviderKind(
        f"{_LOCAL}.models",
        f"{_LOCAL}.provider",
        "a model in this process (llama.cpp)",
        "local:smollm2",
    ),
    "echo": ProviderKind(
        f"{_STAND_INS}.echo", f"{_STAND_INS}.echo", "answers with the prompt itself", "echo"
    ),
    "scripted": ProviderKind(
        f"{_STAND_INS}.scripted", f"{_STAND_INS}.scripted", "answers from a file", "scripted:replies.yaml"
    ),
    "http": ProviderKind(_HTTP, _HTTP, "any HTTP API", "http://localhost:8080/answer"),
    "https": ProviderKind(_HTTP, _HTTP, "any HTTP API", "https://example.com/answer"),
    "python": ProviderKind(
        f"{_PROGRAMS}.python",
        f"{_PROGRAMS}.python",
        "a Python function",
        "python:provider.py:call_api",
    ),
    "javascript": ProviderKind(
        f"{_PROGRAMS}.javascript",
        f"{_PROGRAMS}.javascript",
        "a JavaScript class or function",
        "javascript:provider.js",
    ),
    "file": ProviderKind(
        f"{_PROGRAMS}.python",
        f"{_PROGRAMS}.python",
        "a Python function",
        "file://provider.py:call_api",
    ),
    "exec": ProviderKind(f"{_PROGRAMS}.exec", f"{_PROGRAMS}.exec", "a program's output", "exec:./answer.sh"),
}


_JAVASCRIPT = compile_later(r"\.[cm]?js(?::[\w$]+)?$", re.IGNORECASE)


def _source(spec: ProviderSpec, env: Mapping[str, str], base_dir: Path, access: Access) -> ProviderSource:
    own = own_env_of(spec)
    if access.is_trusted_provider(spec):
        access = TRUSTED
    return ProviderSource(spec, {**env, **own} if own else env, base_dir, access)


def provider_kinds() -> dict[str, ProviderKind]:
    """Return all kinds, by the word that an id begins with."""
    presets = {
        name: ProviderKind(
            f"{_HERE}.presets",
            f"{_HERE}.wire.{WIRE_FORMATS[preset.wire_format].module}",
            preset.title,
            preset.example,
            preset.key_envs[0] if preset.needs_key else "",
            preset.base_url,
        )
        for name, preset in PRESETS.items()
    }
    return {**presets, **OWN_KINDS}


def check_provider(
    spec: ProviderSpec, *, env: Mapping[str, str], base_dir: Path, access: Access = TRUSTED
) -> list[Problem]:
    """Return the problems of a provider's id and config; nothing is sent and no key is needed."""
    source = _source(spec, env, base_dir, access)
    if spec.id == NONE_PROVIDER:
        return []
    kind = _find_kind(source)
    if kind is None:
        return [_unknown_kind(source)]
    check: Any = getattr(_module(kind.checks, kind), "check", None)
    return _problems_of(check, source, kind)


def _problems_of(check: Any, source: ProviderSource, kind: ProviderKind | None) -> list[Problem]:
    found: list[Problem] = (check(source) or []) if check else []
    return found if kind is None or kind.plugin is None else extra("packages").problems_in(found, kind.plugin)


def begin_loading(specs: Iterable[ProviderSpec], *, env: Mapping[str, str], base_dir: Path) -> None:
    """Import the modules that `specs` need in a thread, while the caller continues.

    Importing an HTTP client reads the system's certificates, which does not block other threads. Invalid specs are left
    for `check_provider` to report.
    """
    kinds = (_find_kind(ProviderSource(spec, env, base_dir, TRUSTED)) for spec in specs)
    modules = {kind.builds for kind in kinds if kind is not None and kind.plugin is None}
    if modules and not _MAY_CONFUSE_THREADS.intersection(sys.modules):
        # A daemon, so that exit does not wait for it: an import interrupted by Ctrl-C may leave it stuck on a lock.
        Thread(target=_load, args=(sorted(modules),), name="geval-imports", daemon=True).start()


_MAY_CONFUSE_THREADS = frozenset({"_pytest.assertion.rewrite"} if sys.version_info < (3, 13) else ())
"""This module parses each imported module with `ast`, where older Pythons confuse the recursion depths of two threads
(python/cpython#106905): imports may then fail in either thread.
"""


def _load(modules: Sequence[str]) -> None:
    # A missing package is reported where the provider is built.
    with suppress(ImportError):
        for module in modules:
            import_module(module)


def check_ready(
    spec: ProviderSpec, *, env: Mapping[str, str], base_dir: Path, access: Access = TRUSTED
) -> list[Problem]:
    """Return what a valid provider lacks before it can answer: a key, an extra package, a model file."""
    source = _source(spec, env, base_dir, access)
    kind = _find_kind(source)
    check: Any = getattr(_module(kind.checks, kind), "check_ready", None) if kind else None
    return _problems_of(check, source, kind)


def provider_access_problem(
    spec: ProviderSpec, *, env: Mapping[str, str], base_dir: Path, access: Access
) -> Problem | None:
    """Return the problem if a config with this access may not use a provider; None when it may."""
    return access_problem(_source(spec, env, base_dir, access), OWN_KINDS)


_WITHOUT_MODEL = frozenset({"scripted", "echo"})


def sees_images(spec: ProviderSpec) -> bool:
    """Return whether images in a prompt reach the provider: as images, or in texts if its dialect allows it."""
    kind = spec.id.partition(":")[0].lower()
    if kind in _WITHOUT_MODEL or kind == "vertex" or KIND_ALIASES.get(kind, kind) in PRESETS:
        return True
    return kind != "local" and not spec.rules.marks_images


_HEARD_BY_CHAT_API = frozenset({"audio/wav", "audio/mpeg"})
_HEARD_BY_GOOGLE = _HEARD_BY_CHAT_API | {"audio/flac", "audio/ogg"}


def accepted_audio(spec: ProviderSpec) -> frozenset[str]:
    """Return the media types of audio in a prompt that reach the provider, as audio or in texts (`sees_images`)."""
    source = ProviderSource(spec, {}, Path(), TRUSTED)
    kind = KIND_ALIASES.get(source.kind, source.kind)
    if kind == "vertex":
        return frozenset() if extra("vertex").publisher_of(source) == "anthropic" else _HEARD_BY_GOOGLE
    preset = PRESETS.get(kind)
    if preset is None:
        return _HEARD_BY_GOOGLE if kind in _WITHOUT_MODEL or sees_images(spec) else frozenset()
    if preset.wire_format == "google":
        return _HEARD_BY_GOOGLE
    is_chat = preset.wire_format in ("openai", "azure") and not source.name.startswith("responses:")
    return _HEARD_BY_CHAT_API if is_chat and kind != "bedrock" else frozenset()


def needs_of(
    specs: Iterable[ProviderSpec], *, env: Mapping[str, str], base_dir: Path, access: Access
) -> tuple[frozenset[str], frozenset[int] | None]:
    """Return the environment variables that these providers may read, and the TCP ports they connect to (None: any)."""
    names: set[str] = set()
    ports: set[int] | None = set()
    for spec in specs:
        source = _source(spec, env, base_dir, access)
        names |= env.keys() if runs_program(spec) and source.access.runs_code else variables_of(source)
        asked = ports_of(source)
        ports = None if ports is None or asked is None else ports | asked
    return frozenset(names), None if ports is None else frozenset(ports)


def build_provider(
    spec: ProviderSpec, *, env: Mapping[str, str], base_dir: Path, access: Access = TRUSTED
) -> Provider:
    """Return the provider that `spec` describes. It opens nothing before its first request.

    Raises:
        ConfigError: the kind is unknown, a file that the provider needs is broken, or `access` does not allow it.
    """
    source = _source(spec, env, base_dir, access)
    kind = _find_kind(source)
    if kind is None:
        raise ConfigError([_unknown_kind(source)])
    refused = access_problem(source, OWN_KINDS)
    if refused is not None:
        raise ConfigError([refused])
    provider: Provider = _module(kind.builds, kind).build(source)
    if kind.plugin is not None:
        extra("packages").check_parts(provider, kind.title)
    return provider


def _module(name: str, kind: ProviderKind) -> Any:
    """Return the module, or the object that an installed package provides instead."""
    return import_module(name) if kind.plugin is None else kind.plugin


def build_client_provider(asked: ClientModel, number: int) -> Provider:
    """Return the provider for a client that the user supplied, the `number`-th in its event loop."""
    provider: Provider = import_module(f"{_PROGRAMS}.openai_client").build(asked, number)
    return provider


_HTTP_CODE_KIND = ProviderKind(
    f"{_PROGRAMS}.http_code",
    f"{_PROGRAMS}.http_code",
    "any HTTP API, read by code",
    "http://localhost:8080/answer",
)

_FUNCTION_KIND = ProviderKind(
    f"{_PROGRAMS}.function",
    f"{_PROGRAMS}.function",
    "a function of the program itself",
    "",
)
"""Not available by name in a config: `geval_cli.run(Suite(...))` uses it."""


def _find_kind(source: ProviderSource) -> ProviderKind | None:
    if isinstance(source.spec, FunctionSpec):
        return _FUNCTION_KIND
    kind = KIND_ALIASES.get(source.kind, source.kind)
    if kind == "file" and _JAVASCRIPT.search(source.name):
        kind = "javascript"
    if kind in ("http", "https") and extra("HTTP provider").has_response_code(source.spec.config):
        return _HTTP_CODE_KIND
    known = provider_kinds().get(kind)
    if known is not None or kind == NONE_PROVIDER or kind in _ELSEWHERE:
        return known
    plugin = find_plugin(PROVIDERS, kind)
    if plugin is None:
        return None
    if not callable(getattr(plugin, "build", None)):
        raise UsageError(
            f"the plugin `{kind}` is not a provider",
            hint="its entry point must name something with a `build` method",
        )
    return ProviderKind("", "", kind, f"{kind}:...", plugin=plugin)


def _unknown_kind(source: ProviderSource) -> Problem:
    kinds = provider_kinds()
    if source.kind in _ELSEWHERE:
        return source.problem(f"`{source.id}` is not supported", hint=_ELSEWHERE[source.kind])
    near = did_you_mean(source.kind, (*kinds, *plugin_names(PROVIDERS)))
    if is_bare_path(source.spec.id, source.base_dir, source.access):
        hint = f"write file://{source.spec.id}"
    elif near:
        rest = source.id[len(source.kind) :]
        hint = f"did you mean `{near}{rest}`?"
    elif ":" not in source.spec.id:
        hint = f"write the kind before the model, for example `openai:{source.id}`"
    else:
        hint = "for a server with OpenAI's chat API, write `openai:MODEL` and set base_url"
    known = listing("known kinds", source.kind, (*kinds, NONE_PROVIDER), "`geval models --providers`")
    return source.problem(f"unknown provider `{source.id}`", hint=hint, notes=() if near else (known,))
