"""Providers in every form that a config may write them: a name, `{id, label, config}`, `{id: {...}}`, or a list."""

from geval_cli.json_codec import encode_json
from geval_cli.plugins import extra
from geval_cli.providers.preset_table import PRESETS
from geval_cli.records import JsonValue
from geval_cli.source.env import unknown_expression
from geval_cli.source.secrets import mask_text
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import FunctionSpec, JurySpec, ProviderSpec, describe_value
from geval_cli.suite.validation import LoadContext, build_spec, read_fields

_FEWEST_JUDGES = 2
JURY = "jury"
"""The id of several judges, which names no model."""


def read_providers(value: JsonValue, place: SourcePath, reading: LoadContext) -> tuple[ProviderSpec, ...]:
    """Return the providers under test, in the order of the file; those with problems are left out."""
    if not isinstance(value, list):
        provider = read_provider(value, place, reading)
        return () if provider is None else (provider,)
    if not value:
        reading.report("`providers` has no entries", place.value(), "add one, or leave the key out")
    found = [read_provider(item, place.child(index), reading) for index, item in enumerate(value)]
    return tuple(provider for provider in found if provider is not None)


def read_judges(value: JsonValue, place: SourcePath, reading: LoadContext) -> ProviderSpec | None:
    """Return who judges: one provider, or of a list the jury of all of them. promptfoo has no juries."""
    if not isinstance(value, list) or reading.rules.judges_by_kind:
        return read_provider(value, place, reading)
    if len(value) < _FEWEST_JUDGES:
        hint = "name at least two" if not value else "write it without the brackets, or name more"
        reading.report("a list of judges is a jury and needs at least two", place.value(), hint)
        return None
    known = reading.errors
    members = [read_provider(item, place.child(index), reading) for index, item in enumerate(value)]
    judges = [judge for judge in members if judge is not None]
    seen: dict[bytes, int] = {}
    for index, judge in enumerate(judges):
        first = seen.setdefault(encode_json([judge.id, judge.config]), index)
        if first != index:
            message = f"the jury has `{judge.title}` twice, so one judge would count double"
            reading.report(message, place.value(index), "keep one of them, or give it other settings")
    if reading.errors > known:
        return None
    label = ", ".join(judge.title for judge in judges)
    return JurySpec(id=JURY, label=label, members=tuple(judges), place=place)


def read_provider(value: JsonValue, place: SourcePath, reading: LoadContext) -> ProviderSpec | None:
    """Return one provider; its label is its id, without keys, unless given."""
    if reading.rules.judges_by_kind:
        judge: ProviderSpec | None = extra("judges by kind").read_judge(value, place, reading)
        return judge
    if isinstance(value, str):
        value = {"id": value}
    elif isinstance(value, dict) and _is_keyed(value):
        [(name, settings)] = value.items()
        value, place = {**(settings or {}), "id": name}, place.child(name)
    elif isinstance(value, dict) and _is_split(value):
        [(name, model)] = value.items()
        message = f"`{name}: {model}` is a mapping, because of the space after the colon"
        reading.report(message, place.value(), f"write `{name}:{model}`")
        return None
    elif not isinstance(value, dict):
        message = f"a provider must be text or a mapping, found {describe_value(value)}"
        reading.report(message, place.value(), "write its id, for example openai:gpt-4.1")
        return None
    fields = read_fields(ProviderSpec, value, place, "a provider", reading)
    if fields is None:
        return None
    name = fields.values.get("id")
    if isinstance(name, str):
        if not name.strip():
            reading.report(
                "a provider's id is empty", fields.child("id").value(), "for example openai:gpt-4.1"
            )
            return None
        fields.values.setdefault("label", mask_text(name))
    spec = build_spec(ProviderSpec, fields, reading)
    if spec is not None:
        for key in ("id", "config"):
            _report_unfilled(
                fields.values.get(key), fields.child(key) if key in fields.written else place, reading
            )
    if spec is None or spec.id not in reading.functions:
        return spec
    return FunctionSpec(
        id=spec.id,
        label=spec.label,
        config=spec.config,
        place=spec.place,
        function=reading.functions[spec.id],
    )


def _report_unfilled(value: JsonValue, place: SourcePath, reading: LoadContext) -> None:
    """Report expressions of env values that are no template here, and would be sent as they are written."""
    if isinstance(value, dict):
        for key, entry in value.items():
            _report_unfilled(entry, place.child(key), reading)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _report_unfilled(item, place.child(index), reading)
    elif isinstance(value, str) and (found := unknown_expression(value)):
        hint = "write {{ env.NAME }} or {{ env.NAME | default('text') }}"
        reading.report(f"`{found}` would be sent as it is written", place.value(), hint)


def _is_split(value: dict[str, JsonValue]) -> bool:
    """Return whether it is the id of a provider with a space after its colon: `openai: gpt-4.1`."""
    if len(value) != 1:
        return False
    [(name, model)] = value.items()
    return isinstance(model, str) and str(name).lower() in {*PRESETS, "local", "http", "https"}


def _is_keyed(value: dict[str, JsonValue]) -> bool:
    """Return whether it is a mapping of an id to its settings: `openai:gpt-4.1: {config: ...}`."""
    if len(value) != 1:
        return False
    [(name, settings)] = value.items()
    return ":" in name and isinstance(settings, dict | None) and "id" not in (settings or {})
