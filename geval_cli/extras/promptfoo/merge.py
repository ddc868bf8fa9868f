"""The parts of one promptfoo config or of several that are joined, each part with its place."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct, field

from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.extras.promptfoo.env import PromptfooEnv
from geval_cli.extras.promptfoo.prompts import ConfigPart
from geval_cli.extras.promptfoo.tests import parts_of
from geval_cli.records import JsonValue
from geval_cli.source.access import Access
from geval_cli.source.files import existing_files, is_file_reference, read_document
from geval_cli.source.problems import did_you_mean
from geval_cli.source.source_map import MAX_DEPTH, Document, SourcePath
from geval_cli.specs.base import describe_value
from geval_cli.suite.validation import LoadContext

_REF = "$ref"
_SCHEMA_KEYS = frozenset({"parameters", "schema", "json_schema", "input_schema", "inputSchema"})
"""Below these keys are JSON Schemas, whose references are their own."""
# The `value` of an assertion that has one of these is a JSON Schema, too.
_SCHEMA_MARKS = frozenset({"$defs", "definitions"})


_MOST_VALUES, _REFERENCE_COSTS = 1_000_000, 100
"""Of all references together, each counted as so many: forty that name the next one twice would fill the memory."""


class References(Struct):
    """Puts what references name in their place. `used` are the top-level keys that something referred to."""

    document: Document
    folder: Path
    access: Access
    problems: list[Problem]
    used: set[str] = field(default_factory=set)
    _files: dict[Path, Document] = field(default_factory=dict)
    _left: int = _MOST_VALUES

    def resolved(self) -> JsonValue:
        """Return the content of the document without references."""
        return self._walk(self.document.value, self.document.place, self.document, ())

    def _walk(self, value: JsonValue, place: SourcePath, home: Document, trail: tuple[str, ...]) -> JsonValue:
        if trail and self._left <= 0:
            return {}
        self._left -= bool(trail)
        if isinstance(value, list):
            return [self._walk(item, place.child(index), home, trail) for index, item in enumerate(value)]
        if not isinstance(value, dict):
            return value
        reference = value.get(_REF)
        if isinstance(reference, str):
            where = f"{home.positions.file} {reference}"
            if where in trail or len(trail) >= MAX_DEPTH:
                return self._refuse(
                    f"`{reference}` refers to itself", place.value(_REF), "write that part out"
                )
            if self._left <= 0:
                return {}
            self._left -= _REFERENCE_COSTS
            target = self._target(reference, home, place.value(_REF))
            if target is None:
                return {}
            found, document = target
            found = self._walk(found, place, document, (*trail, where))
            if self._left <= 0 and not trail:
                self._refuse(
                    f"`{reference}` expands to more than {_MOST_VALUES:,} values",
                    place.value(_REF),
                    "refer to fewer values",
                )
            siblings = {key: entry for key, entry in value.items() if key != _REF}
            return {**found, **siblings} if isinstance(found, dict) else found
        return {
            key: entry
            if key in _SCHEMA_KEYS or _is_own_schema(key, entry)
            else self._walk(entry, place.child(key), home, trail)
            for key, entry in value.items()
        }

    def _target(
        self, reference: str, home: Document, asked_at: Location | None
    ) -> tuple[JsonValue, Document] | None:
        name, _, pointer = reference.partition("#")
        document = home if not name else self._read(name, home, asked_at)
        if document is None:
            return None
        found = document.value
        for part in filter(None, pointer.split("/")):
            # In this order (RFC 6901): `~01` is the key `~1`, and not `/`.
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdigit() and int(key) < len(found):
                found = found[int(key)]
            else:
                self._refuse(
                    f"`{reference}` does not exist: there is no `{key}`", asked_at, "check the path after `#`"
                )
                return None
        if document is self.document:
            self.used.add(pointer.strip("/").partition("/")[0])
        return found, document

    def _read(self, name: str, home: Document, asked_at: Location | None) -> Document | None:
        """Return the file that a reference in `home` names, relative to the folder of that file."""
        if "://" in name and not is_file_reference(name):
            self._refuse(f"`{name}` is not fetched", asked_at, "save it in a file next to the config")
            return None
        folder = self.folder if home is self.document else Path(home.positions.file).parent
        path = folder / name.removeprefix("file://")
        if path not in self._files:
            try:
                self._files[path] = read_document(path, self.access, asked_at=asked_at)
            except ConfigError as error:
                self.problems.extend(error.problems)
                return None
        return self._files[path]

    def _refuse(self, message: str, location: Location | None, hint: str) -> JsonValue:
        self.problems.append(Problem(message, location, hint))
        return {}


def _is_own_schema(key: str, entry: JsonValue) -> bool:
    return key == "value" and isinstance(entry, dict) and not _SCHEMA_MARKS.isdisjoint(entry)


_READ = frozenset(
    {
        "$schema", "assertionTemplates", "baseline", "commandLineOptions", "defaultTest", "derivedMetrics",
        "description", "dialect", "env", "evaluateOptions", "gates", "margin", "nunjucksFilters", "outputPath",
        "prompts", "providers", "scenarios", "tags", "targets", "tests",
    }
)  # fmt: skip
_SILENT = frozenset({"metadata", "writeLatestResults", "sharing", "extensions", "redteam"})
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


class MergedConfigs(Struct):
    """Lists joined in the order of the configs; for `settings`, the later config wins."""

    prompts: list[ConfigPart] = field(default_factory=list)
    providers: list[ConfigPart] = field(default_factory=list)
    tests: list[ConfigPart] = field(default_factory=list)
    scenarios: list[ConfigPart] = field(default_factory=list)
    defaults: list[ConfigPart] = field(default_factory=list)
    descriptions: list[str] = field(default_factory=list)
    settings: dict[str, ConfigPart] = field(default_factory=dict)


def open_config(path: Path, document: Document, reading: LoadContext) -> ConfigFile:
    """Return the content of a config with its references resolved and its env values filled in."""
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


def gather(configs: list[ConfigFile], reading: LoadContext) -> MergedConfigs:
    """Return the parts of all configs."""
    merged = MergedConfigs()
    for config in configs:
        _add(config, merged, reading)
    return merged


def _add(config: ConfigFile, merged: MergedConfigs, reading: LoadContext) -> None:
    content, place = config.content, config.document.place
    _check_keys(config, reading)
    if isinstance(content.get("description"), str):
        merged.descriptions.append(content["description"])
    known_prompts = [part.value for part in merged.prompts]
    merged.prompts += [part for part in _list(config, "prompts", reading) if part.value not in known_prompts]
    known = [part.value for part in merged.providers]
    key = "targets" if content.get("targets") is not None else "providers"
    merged.providers += [part for part in _list(config, key, reading) if part.value not in known]
    merged.tests += _list(config, "tests", reading)
    for part in _list(config, "scenarios", reading):
        merged.scenarios += _of_file(part, reading) if is_file_reference(part.value) else [part]
    if content.get("defaultTest") is not None:
        part = ConfigPart(content["defaultTest"], place.child("defaultTest"), config.path.parent)
        merged.defaults += _of_file(part, reading) if isinstance(part.value, str) else [part]
    for name in (
        "evaluateOptions",
        "commandLineOptions",
        "outputPath",
        "derivedMetrics",
        "gates",
        "baseline",
        "margin",
        "nunjucksFilters",
        "options",
        "tags",
    ):
        if content.get(name) is not None:
            merged.settings[name] = ConfigPart(content[name], place.child(name), config.path.parent)


def _list(config: ConfigFile, key: str, reading: LoadContext) -> list[ConfigPart]:
    value, place = config.content.get(key), config.document.place.child(key)
    if key == "prompts" and isinstance(value, dict) and not {"raw", "id", "messages"} & value.keys():
        # The old form: a mapping of files to labels.
        return [ConfigPart({file: label}, place, config.path.parent) for file, label in value.items()]
    if isinstance(value, list) and not value and key != "tests":
        reading.report(f"`{key}` has no entries", place.value(), "add one, or leave the key out")
    return list(parts_of(value, place, config.whole))


def _of_file(part: ConfigPart, reading: LoadContext) -> list[ConfigPart]:
    """Return the entries of the YAML or JSON files that a part names."""
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


def _check_keys(config: ConfigFile, reading: LoadContext) -> None:
    place = config.document.place
    if "targets" in config.content and "providers" in config.content:
        reading.warn(
            "`providers` is not used: the config also has `targets`", place.key("providers"), "keep one"
        )
    for key in config.content.keys() - _READ - _SILENT - config.referred:
        if not key.startswith(_FOR_ANCHORS):
            hint = f"did you mean `{near}`?" if (near := did_you_mean(key, _READ)) else ""
            reading.warn(f"unknown key `{key}` in the config", place.key(key), hint)
    _refuse(config, reading)


def _refuse(config: ConfigFile, reading: LoadContext) -> None:
    """Refuse keys that a run here would silently leave out."""
    hints = {
        "extensions": ("extensions are not supported", "set up and clean up outside `geval run` instead"),
        "redteam": (
            "red teaming is not supported",
            "remove `redteam`, and generate such tests with promptfoo itself",
        ),
    }
    for key, (message, hint) in hints.items():
        value = config.content.get(key)
        if value and not (key == "redteam" and config.content.get("tests")):
            reading.problems.append(Problem(message, config.document.place.key(key), hint))
        elif value:
            reading.warn(f"`{key}` is not used: {message}", config.document.place.key(key), hint)


def settings_of(part: ConfigPart | None, name: str, reading: LoadContext) -> dict[str, JsonValue]:
    """Return a part as a mapping; report a problem and return nothing when it is something else."""
    if part is None:
        return {}
    if isinstance(part.value, dict):
        return part.value
    reading.report(f"`{name}` must be a mapping, found {describe_value(part.value)}", part.place.value())
    return {}
