"""The parts of one promptfoo config or of several that are joined, each part with its place."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from geval_cli.config.document import Document
from geval_cli.config.problems import did_you_mean
from geval_cli.config.promptfoo.cases import parts_of
from geval_cli.config.promptfoo.env import PromptfooEnv
from geval_cli.config.promptfoo.paths import existing_files
from geval_cli.config.promptfoo.prompts import ConfigPart
from geval_cli.config.promptfoo.references import References
from geval_cli.config.source_file import is_file_reference, read_document
from geval_cli.config.validation import Reading
from geval_cli.config.wanted import describe_value
from geval_cli.errors import ConfigError, Problem
from geval_cli.records import JsonValue

_READ = frozenset(
    {
        "$schema", "assertionTemplates", "commandLineOptions", "defaultTest", "derivedMetrics", "description",
        "dialect", "env", "evaluateOptions", "gates", "nunjucksFilters", "outputPath",
        "prompts", "providers", "scenarios", "targets", "tests",
    }
)  # fmt: skip
_SILENT = frozenset({"tags", "metadata", "writeLatestResults", "sharing", "extensions", "redteam"})
"""Keys that change no result, and those that are refused elsewhere."""
_FOR_ANCHORS = ("x-", ".", "_", "definitions", "$defs")
"""How keys begin that only hold YAML anchors or what references name."""


class ConfigFile(Struct, frozen=True):
    """A config as it was read: its content with references and env values put in, and what it was before."""

    path: Path
    document: Document
    written: Mapping[str, JsonValue]
    content: Mapping[str, JsonValue]
    referred: frozenset[str]

    @property
    def whole(self) -> ConfigPart:
        return ConfigPart(self.content, self.document.place, self.path.parent)


class Sections(Struct):
    """Lists joined in the order of the configs; for `settings`, the later config wins."""

    prompts: list[ConfigPart] = field(default_factory=list)
    providers: list[ConfigPart] = field(default_factory=list)
    tests: list[ConfigPart] = field(default_factory=list)
    scenarios: list[ConfigPart] = field(default_factory=list)
    defaults: list[ConfigPart] = field(default_factory=list)
    descriptions: list[str] = field(default_factory=list)
    settings: dict[str, ConfigPart] = field(default_factory=dict)
    has_prompts: bool = False


def open_config(path: Path, document: Document, reading: Reading) -> ConfigFile:
    """The content of a config with its references resolved and its env values filled in."""
    references = References(document, path.parent, reading.files.access, reading.problems)
    resolved = references.resolved()
    assert isinstance(resolved, dict)
    assert isinstance(reading.env, PromptfooEnv)
    filled = {
        key: entry
        if key in {"env", "$schema"}
        else reading.env.fill(entry, document.place.child(key), reading.problems)
        for key, entry in resolved.items()
    }
    return ConfigFile(path, document, document.value, filled, frozenset(references.used))


def gather(configs: list[ConfigFile], reading: Reading) -> Sections:
    """The parts of all configs."""
    sections = Sections()
    for config in configs:
        _add(config, sections, reading)
    return sections


def _add(config: ConfigFile, sections: Sections, reading: Reading) -> None:
    content, place = config.content, config.document.place
    _check_keys(config, reading)
    if isinstance(content.get("description"), str):
        sections.descriptions.append(content["description"])
    sections.has_prompts |= content.get("prompts") is not None
    known_prompts = [part.value for part in sections.prompts]
    sections.prompts += [
        part for part in _list(config, "prompts", reading) if part.value not in known_prompts
    ]
    known = [part.value for part in sections.providers]
    key = "targets" if content.get("targets") is not None else "providers"
    sections.providers += [part for part in _list(config, key, reading) if part.value not in known]
    sections.tests += _list(config, "tests", reading)
    for part in _list(config, "scenarios", reading):
        sections.scenarios += _of_file(part, reading) if is_file_reference(part.value) else [part]
    if content.get("defaultTest") is not None:
        part = ConfigPart(content["defaultTest"], place.child("defaultTest"), config.path.parent)
        sections.defaults += _of_file(part, reading) if isinstance(part.value, str) else [part]
    for name in (
        "evaluateOptions",
        "commandLineOptions",
        "outputPath",
        "derivedMetrics",
        "gates",
        "nunjucksFilters",
        "options",
    ):
        if content.get(name) is not None:
            sections.settings[name] = ConfigPart(content[name], place.child(name), config.path.parent)


def _list(config: ConfigFile, key: str, reading: Reading) -> list[ConfigPart]:
    value, place = config.content.get(key), config.document.place.child(key)
    if key == "prompts" and isinstance(value, dict) and not {"raw", "id", "messages"} & value.keys():
        # The old form: a mapping of files to labels.
        return [ConfigPart({file: label}, place, config.path.parent) for file, label in value.items()]
    if isinstance(value, list) and not value and key != "tests":
        reading.report(f"`{key}` has no entries", place.value(), "add one, or leave the key out")
    return list(parts_of(value, place, config.whole))


def _of_file(part: ConfigPart, reading: Reading) -> list[ConfigPart]:
    """The entries of the YAML or JSON files that a part names."""
    found: list[ConfigPart] = []
    try:
        files = existing_files(str(part.value), part.folder, reading.files.access, part.place.value())
    except ConfigError as error:
        reading.problems.extend(error.problems)
        return found
    for file in files:
        try:
            document = read_document(file.path, reading.files.access, asked_at=part.place.value())
        except ConfigError as error:
            reading.problems.extend(error.problems)
            continue
        content = reading.env.fill(document.value, document.place, reading.problems)
        found += parts_of(content, document.place, ConfigPart(content, document.place, part.folder))
    return found


def _check_keys(config: ConfigFile, reading: Reading) -> None:
    place = config.document.place
    if "targets" in config.content and "providers" in config.content:
        reading.warn(
            "`providers` is not used: `targets` stands beside it", place.key("providers"), "keep one"
        )
    for key in config.content.keys() - _READ - _SILENT - config.referred:
        if not key.startswith(_FOR_ANCHORS):
            hint = f"did you mean `{near}`?" if (near := did_you_mean(key, _READ)) else ""
            reading.warn(f"unknown key `{key}` in the config", place.key(key), hint)
    _refuse(config, reading)


def _refuse(config: ConfigFile, reading: Reading) -> None:
    """What a run here would silently leave out is refused."""
    hints = {
        "extensions": ("extensions are not run", "prepare and clean up around `geval run` instead"),
        "redteam": (
            "red teaming is not supported",
            "remove `redteam`; promptfoo itself generates such tests",
        ),
    }
    for key, (message, hint) in hints.items():
        value = config.content.get(key)
        if value and not (key == "redteam" and config.content.get("tests")):
            reading.problems.append(Problem(message, config.document.place.key(key), hint))
        elif value:
            reading.warn(f"`{key}` is not used: {message}", config.document.place.key(key), hint)


def settings_of(part: ConfigPart | None, name: str, reading: Reading) -> dict[str, JsonValue]:
    """The mapping that a part is; a problem, and nothing, when it is none."""
    if part is None:
        return {}
    if isinstance(part.value, dict):
        return part.value
    reading.report(f"`{name}` must be a mapping, found {describe_value(part.value)}", part.place.value())
    return {}
