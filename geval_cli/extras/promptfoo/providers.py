"""Reads providers in every form that promptfoo accepts: ids, `{id, label, config}`, `{id: {...}}`, files of these."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from geval_cli.errors import ConfigError
from geval_cli.extras.promptfoo.env import (
    STRUCTURED_SUFFIXES,
    existing_files,
    file_keys,
    literal_env,
    with_file_contents,
)
from geval_cli.extras.promptfoo.prompts import ConfigPart
from geval_cli.extras.promptfoo.requests import ENV_NAMES
from geval_cli.records import JsonValue
from geval_cli.source.files import (
    CODE_SUFFIXES,
    FILE_PREFIX,
    JAVASCRIPT_SUFFIXES,
    RUNNABLE_SUFFIXES,
    is_file_reference,
    read_document,
    split_part,
)
from geval_cli.source.secrets import mask_text
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import ProviderSpec, describe_value
from geval_cli.specs.promptfoo import (
    JUDGE_KINDS,
    EnvProviderSpec,
    FilteredProviderSpec,
    JudgesSpec,
    own_env_of,
)
from geval_cli.suite.validation import LoadContext, build_spec, read_fields
from geval_cli.templating.js_text import js_string

_SHOWN_MODES = ("chat", "responses", "completion", "messages")
"""API modes between vendor and model in an id, which are not shown if the config has only the id."""
_PRICED = ("openai:", "anthropic:", "mistral:", "xai:", "groq:", "deepseek:")
"""Vendors whose answers promptfoo prices by the model's name, whichever server gives them."""
_CALLBACK_KEYS = ("functionToolCallbacks",)
_EXAMPLE = "write its id, for example openai:gpt-4.1"


def read_promptfoo_providers(parts: list[ConfigPart], reading: LoadContext) -> tuple[ProviderSpec, ...]:
    """Return the providers of all `parts`, without the invalid ones, which are reported."""
    found: list[ProviderSpec] = []
    for part in parts:
        try:
            found.extend(_providers(part, reading))
        except ConfigError as error:
            reading.problems.extend(error.problems)
    return tuple(found)


def delayed(spec: ProviderSpec, delay_ms: float) -> ProviderSpec:
    """Return the provider with this delay between its requests, unless it sets its own."""
    if not delay_ms or "delay_ms" in spec.config:
        return spec
    return spec.model_copy(update={"config": {**spec.config, "delay_ms": delay_ms}})


def read_judge(value: JsonValue, place: SourcePath, reading: LoadContext) -> ProviderSpec | None:
    """Return the judge: a provider in any form, or a mapping from kinds of judgement to providers."""
    part = ConfigPart(value, place, reading.files.base_dir)
    if isinstance(value, dict) and value and set(value) <= set(JUDGE_KINDS):
        by_kind = {
            kind: judge
            for kind, entry in value.items()
            if (judge := read_judge(entry, place.child(kind), reading)) is not None
        }
        first = by_kind.get("text") or next(iter(by_kind.values()), None)
        if first is None:
            return None
        return JudgesSpec(
            id=first.id,
            label=first.label,
            config=first.config,
            env=own_env_of(first),
            place=first.place,
            by_kind=by_kind,
        )
    found = next(_providers(part, reading), None)
    if found is None:
        return None
    return EnvProviderSpec(
        id=found.id, label=found.label, config=found.config, env=found.env, place=found.place
    )


def read_answerer(value: JsonValue, place: SourcePath, reading: LoadContext) -> ProviderSpec | None:
    """Return the provider of a single test, in any form, with its transform."""
    try:
        return next(_providers(ConfigPart(value, place, reading.files.base_dir), reading), None)
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return None


def _providers(part: ConfigPart, reading: LoadContext) -> Iterator[FilteredProviderSpec]:
    value, place = part.value, part.place
    if isinstance(value, str):
        yield from _of_text(value, part, reading)
    elif isinstance(value, dict) and "id" not in value and len(value) == 1:
        name, settings = next(iter(value.items()))
        inner = {**settings} if isinstance(settings, dict) else {}
        shown = inner.pop("id", None)
        label = inner.get("label") or shown or _shown_id(name)
        if inner.get("label") and inner.pop("prompts", None) is not None:
            hint = "write `id:` and `label:` as separate keys for a provider that answers only some prompts"
            message = "`prompts` is not used where a provider with a `label` is written as `id: {...}`"
            reading.warn(message, place.child(name).key("prompts"), hint)
        yield from _built({**inner, "id": name, "label": label}, place.child(name), part.folder, reading)
    elif isinstance(value, dict):
        yield from _of_mapping(value, part, reading)
    else:
        message = f"a provider must be text or a mapping, found {describe_value(value)}"
        reading.report(message, place.value(), _EXAMPLE)


def _of_mapping(
    value: dict[str, JsonValue], part: ConfigPart, reading: LoadContext
) -> Iterator[FilteredProviderSpec]:
    name = value.get("id")
    if isinstance(name, str) and is_file_reference(name) and _is_structured(name):
        for found in _of_text(name, part, reading):
            yield found.model_copy(update={"label": value["label"]} if value.get("label") else {})
        return
    if isinstance(name, str) and not value.get("label"):
        own = _own_name(name, {"id": name, "config": value.get("config") or {}}, part, reading)
        value = {**value, "label": own} if own else value
    yield from _built(value, part.place, part.folder, reading)


def _of_text(name: str, part: ConfigPart, reading: LoadContext) -> Iterator[FilteredProviderSpec]:
    if not (is_file_reference(name) and _is_structured(name)):
        if not name.strip():
            reading.report("a provider's id is empty", part.place.value(), _EXAMPLE)
            return
        label = _own_name(name, {}, part, reading) or _shown_id(name)
        yield from _built({"id": name, "label": label}, part.place, part.folder, reading)
        return
    for file in existing_files(name, part.folder, reading.files.access, part.place.value()):
        document = read_document(
            file.path, reading.files.access, asked_at=part.place.value(), prefix="providers"
        )
        content = reading.env.fill(document.value, document.place, reading.problems)
        items = content if isinstance(content, list) else [content]
        for index, item in enumerate(items):
            place = document.place.child(index) if isinstance(content, list) else document.place
            yield from _providers(ConfigPart(item, place, part.folder), reading)


def _built(
    value: dict[str, JsonValue], place: SourcePath, folder: Path, reading: LoadContext
) -> Iterator[FilteredProviderSpec]:
    known: dict[str, Any] = {
        key: entry for key, entry in value.items() if key not in {"inputs", "delay", "file_params"}
    }
    own_env = {} if value.get("env") is None else _own_env(value["env"], place.child("env"), reading)
    # Only the environment values that change requests, since they are part of the provider's identity.
    values = reading.env.values
    picked = {name: values[name] for name in ENV_NAMES if values.get(name)}
    known["env"] = {**picked, **own_env}
    name = known.get("id")
    if isinstance(name, str):
        known["id"] = _with_path(name, folder, place, reading)
        # The id as written, since tables show it, but with any key in it masked.
        known.setdefault("label", mask_text(name))
    if isinstance(known.get("label"), int | float):
        known["label"] = js_string(known["label"])
    config = known.get("config")
    if isinstance(config, dict):
        known["file_params"] = file_keys(config)
        known["config"] = config = _provider_config(config, place.child("config"), folder, reading)
        if isinstance(name, str) and name.startswith("anthropic:"):
            known["config"] = config = _with_beta_header(config)
    if isinstance(name, str) and name.startswith(_PRICED) and (config is None or isinstance(config, dict)):
        known["config"] = {"price": "list", **(config or {})}
    if value.get("delay") is not None and isinstance(config, dict | None):
        known["config"] = {"delay_ms": value["delay"], **(known.get("config") or {})}
    fields = read_fields(FilteredProviderSpec, known, place, "a provider", reading)
    spec = None if fields is None else build_spec(FilteredProviderSpec, fields, reading)
    if spec is not None and spec.id:
        yield spec


def _own_name(name: str, options: dict[str, JsonValue], part: ConfigPart, reading: LoadContext) -> str | None:
    """Return the name that a JavaScript provider gives itself; None if it has none or cannot be called."""
    path, export = split_part(name.removeprefix("javascript:").removeprefix(FILE_PREFIX))
    file = part.folder / path
    is_javascript = file.suffix.lower() in RUNNABLE_SUFFIXES & JAVASCRIPT_SUFFIXES
    if reading.scripts is None or not is_javascript or " " in name or not file.is_file():
        return None
    try:
        found = reading.scripts().provider_name(file, export, {"config": {}, **options}, part.place.value())
    except ConfigError:
        return None  # its calls will fail too, and say why
    return mask_text(found) if isinstance(found, str) and found.strip() else None


def _with_path(name: str, folder: Path, place: SourcePath, reading: LoadContext) -> str:
    """Return the id in geval's form; report a program in an unsupported language, and return an empty id."""
    path, function = split_part(
        name.removeprefix("python:").removeprefix("javascript:").removeprefix(FILE_PREFIX)
    )
    suffix = Path(path).suffix.lower()
    is_script = name.startswith((FILE_PREFIX, "python:", "javascript:")) or suffix in CODE_SUFFIXES
    if not is_script or " " in name:
        return name
    if suffix in RUNNABLE_SUFFIXES:
        # Absolute, because merging several configs loses the folder that a path is relative to.
        located = str((folder / path).absolute()) if folder != reading.files.base_dir else path
        return f"file://{located}" + (f":{function}" if function else "")
    language = "TypeScript" if suffix in JAVASCRIPT_SUFFIXES else f"`{suffix}`"
    hint = "compile it to JavaScript, write it in Python, run it with `exec:`, or serve it over HTTP"
    reading.report(f"providers in {language} are not supported: `{name}`", place.value("id"), hint)
    return ""


def _provider_config(
    config: dict[str, JsonValue], place: SourcePath, folder: Path, reading: LoadContext
) -> dict[str, JsonValue]:
    """Return `config` with file references replaced by the files' contents, and without unsupported keys."""
    for key in _CALLBACK_KEYS:
        if key in config:
            hint = "the call itself is the output, and assertions see it"
            reading.warn(f"`{key}` is not supported", place.key(key), hint)
    kept = {key: entry for key, entry in config.items() if key not in _CALLBACK_KEYS}
    return {key: with_file_contents(entry, place.child(key), folder, reading) for key, entry in kept.items()}


def _with_beta_header(config: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a config for Claude in which `beta` is the header that promptfoo sends."""
    beta, headers = config.get("beta"), config.get("headers")
    features = [str(item) for item in beta] if isinstance(beta, list) else []
    own = headers if isinstance(headers, dict) else {}
    features += [item.strip() for item in str(own.get(_BETA_HEADER, "")).split(",") if item.strip()]
    if config.get("output_format"):
        features.append(_STRUCTURED_OUTPUTS)
    if not features:
        return config
    kept = {key: value for key, value in config.items() if key != "beta"}
    return {**kept, "headers": {**own, _BETA_HEADER: ",".join(dict.fromkeys(features))}}


_BETA_HEADER = "anthropic-beta"
_STRUCTURED_OUTPUTS = "structured-outputs-2025-11-13"


def _own_env(value: JsonValue, place: SourcePath, reading: LoadContext) -> dict[str, str]:
    """Return the environment values that only one provider sees."""
    if isinstance(value, dict):
        return literal_env(value, reading.env.values, reading.files.access)
    reading.report(f"`env` must be a mapping of names to text, found {describe_value(value)}", place.value())
    return {}


def _is_structured(name: str) -> bool:
    return Path(name.removeprefix(FILE_PREFIX)).suffix.lower() in STRUCTURED_SUFFIXES


def _shown_id(name: str) -> str:
    """Return promptfoo's name for a provider given only by id: the id without its API mode."""
    vendor, _, rest = name.partition(":")
    mode, separator, model = rest.partition(":")
    if separator and model and mode in _SHOWN_MODES and not vendor.startswith(("http", "file", "exec")):
        return f"{vendor}:{model}"
    return mask_text(name)
