"""Reads promptfoo's configs, merges them, and turns every part into the same specs as geval's own configs.

Each part keeps its place in its config, even when several are merged.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.engine.plan import is_chosen, prompt_names
from geval_cli.errors import ConfigError, Location, Problem, Severity
from geval_cli.extras.promptfoo.env import (
    TRUE_WORDS,
    PromptfooEnv,
    existing_files,
    literal_env,
    program_reference,
)
from geval_cli.extras.promptfoo.prompts import ConfigPart, default_prompt, read_promptfoo_prompts
from geval_cli.extras.promptfoo.providers import delayed, read_promptfoo_providers
from geval_cli.extras.promptfoo.test_rows import TestRow
from geval_cli.extras.promptfoo.tests import PromptfooTests, ReadTest, parts_of, read_row, read_scenarios
from geval_cli.records import JsonValue
from geval_cli.source.access import Access
from geval_cli.source.env import gather_env
from geval_cli.source.files import (
    FILE_PREFIX,
    JAVASCRIPT_SUFFIXES,
    SourceFiles,
    find_files,
    is_file_reference,
    read_document,
    suite_parts,
)
from geval_cli.source.media import without_media_data
from geval_cli.source.problems import did_you_mean, hint_among, sort_problems
from geval_cli.source.secrets import mask_config
from geval_cli.source.source_map import MAX_DEPTH, Document, SourcePath
from geval_cli.specs.base import PromptSpec, ProviderSpec, describe_value
from geval_cli.specs.dialect import PROMPTFOO_RULES
from geval_cli.specs.promptfoo import FilteredProviderSpec, PromptfooOptions, TemplateFilter
from geval_cli.statistics.paired import NO_MARGINS
from geval_cli.suite.gates import read_derived_metrics, read_gates, read_margins
from geval_cli.suite.suite import BaselineName, LoadedSuite, OpenedSuite, tag_texts
from geval_cli.suite.validation import LoadContext, ScriptCaller

_REF = "$ref"
_SCHEMA_KEYS = frozenset({"parameters", "schema", "json_schema", "input_schema", "inputSchema"})
"""Keys with JSON Schemas, whose references are left to the schema."""
# The `value` of an assertion that has one of these is a JSON Schema, too.
_SCHEMA_MARKS = frozenset({"$defs", "definitions"})


_MOST_VALUES, _REFERENCE_COSTS = 1_000_000, 100
"""The most values from references, each costing extra: forty that name the next twice would fill the memory."""


class References(Struct):
    """Replaces `$ref` references by their targets. `used` has the top-level keys that were referred to."""

    document: Document
    folder: Path
    access: Access
    problems: list[Problem]
    used: set[str] = field(default_factory=set)
    _files: dict[Path, Document] = field(default_factory=dict)
    _left: int = _MOST_VALUES

    def resolved(self) -> JsonValue:
        """Return the content of the document with all references replaced."""
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
            # In this order (RFC 6901): `~01` is the key `~1`, not `/`.
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
        """Read the file that a reference in `home` names, relative to that document's folder."""
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
"""Keys that do not affect results, and keys that are refused elsewhere."""
_FOR_ANCHORS = ("x-", ".", "_", "definitions", "$defs")
"""Prefixes of keys that only hold YAML anchors or the targets of references."""


class ConfigFile(Struct, frozen=True):
    """A config file: `content` has references and environment values filled in, `written` is the original."""

    path: Path
    document: Document
    written: Mapping[str, JsonValue]
    content: Mapping[str, JsonValue]
    referred: frozenset[str]

    @property
    def whole(self) -> ConfigPart:
        return ConfigPart(self.content, self.document.place, self.path.parent)


class MergedConfigs(Struct):
    """The parts of all configs: lists are joined in order, and in `settings` the later config wins."""

    prompts: list[ConfigPart] = field(default_factory=list)
    providers: list[ConfigPart] = field(default_factory=list)
    tests: list[ConfigPart] = field(default_factory=list)
    scenarios: list[ConfigPart] = field(default_factory=list)
    defaults: list[ConfigPart] = field(default_factory=list)
    descriptions: list[str] = field(default_factory=list)
    settings: dict[str, ConfigPart] = field(default_factory=dict)


def open_config(path: Path, document: Document, reading: LoadContext) -> ConfigFile:
    """Return a config with its references resolved and its environment values filled in."""
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
    """Merge the parts of all configs."""
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
    value = config.content.get(key)
    place = config.document.place.child(key)
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
    """Report keys that geval would otherwise ignore silently, although they change the results."""
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
    """Return a part as a mapping; if it is something else, report a problem and return an empty one."""
    if part is None:
        return {}
    if isinstance(part.value, dict):
        return part.value
    reading.report(f"`{name}` must be a mapping, found {describe_value(part.value)}", part.place.value())
    return {}


def read_filters(part: ConfigPart | None, reading: LoadContext) -> tuple[TemplateFilter, ...]:
    """Return the filters that a config names, without the invalid ones, which are reported."""
    found = []
    values: Mapping[str, JsonValue] = settings_of(part, "nunjucksFilters", reading)
    for name, written in values.items():
        assert part is not None
        location = part.place.value(name)
        try:
            found.append(TemplateFilter(name, _reference(name, written, part, reading), location))
        except ConfigError as error:
            reading.problems.extend(error.problems)
    return tuple(found)


def _reference(name: str, written: JsonValue, part: ConfigPart, reading: LoadContext) -> str:
    location = part.place.value(name)
    files = existing_files(str(written), part.folder, reading.files.access, location)
    if files[0].suffix not in JAVASCRIPT_SUFFIXES:
        message = f"the filter `{name}` is not JavaScript: `{files[0].path.name}`"
        hint = "put a function into a .js file: module.exports = (value) => ..."
        raise ConfigError([Problem(message, location, hint)])
    return program_reference(files[0], location)


_USED = frozenset({"maxConcurrency", "repeat", "cache", "grader", "delay", "output"})
_WITHOUT_EFFECT = frozenset(
    {
        "table",
        "verbose",
        "progressBar",
        "showProgressBar",
        "tableCellMaxLength",
        "write",
        "share",
        "watch",
        "description",
        "generateSuggestions",
    }
)
"""Options for display, and for services that geval lacks; they do not affect results."""

_ELSEWHERE = {
    "timeoutMs": "set `timeout_s` in the `config` of providers",
    "maxEvalTimeMs": "set `timeout_s` in the `config` of providers",
    "envPath": "write --env-file on the command line",
    "envFile": "write --env-file on the command line",
    "vars": "write --var NAME=VALUE on the command line",
    "var": "write --var NAME=VALUE on the command line",
    "filterFirstN": "write --filter-first-n on the command line",
    "filterFailing": "write --filter-failing on the command line",
    "filterPattern": "write --filter-pattern on the command line",
    "filterPrompts": "write --filter-prompts on the command line",
    "filterProviders": "write --filter-providers on the command line",
    "filterTargets": "write --filter-providers on the command line",
    "filterSample": "write --filter-sample on the command line",
    "filterMetadata": "write --filter-metadata on the command line",
}
_SEE_HELP = "see `geval run --help` for options"
_MOST = 10_000
# A day. Larger values are mistakes (microseconds, say), and may be too large for a timer.
_LONGEST_DELAY_MS = 24 * 3600 * 1000


def read_options(settings: dict[str, ConfigPart], reading: LoadContext) -> PromptfooOptions:
    """Return the options of a run; `commandLineOptions` override `evaluateOptions`."""
    evaluate = settings_of(settings.get("evaluateOptions"), "evaluateOptions", reading)
    command = settings_of(settings.get("commandLineOptions"), "commandLineOptions", reading)
    values: dict[str, JsonValue] = {}
    for name, group in (("evaluateOptions", evaluate), ("commandLineOptions", command)):
        for key, value in group.items():
            place = settings[name].place
            if key not in _USED | _WITHOUT_EFFECT:
                reading.warn(f"`{key}` is not used", place.key(key), _ELSEWHERE.get(key, _SEE_HELP))
            elif key in _USED and value is not None:
                values[key] = value
    if "outputPath" in settings:
        values["output"] = settings["outputPath"].value
    concurrency, repeats = values.get("maxConcurrency"), values.get("repeat")
    outputs = values.get("output")
    names = outputs if isinstance(outputs, list) else [outputs] if outputs else []
    delay = values.get("delay")
    for key, value in (("maxConcurrency", concurrency), ("repeat", repeats)):
        if value is not None and not _is_count(value):
            reading.report(f"`{key}` must be a whole number of at least 1", _location(key, settings))
    if delay is not None and not _is_delay(delay):
        reading.report("`delay` must be a number of milliseconds of at least 0", _location("delay", settings))
    return PromptfooOptions(
        max_concurrency=concurrency if _is_count(concurrency) else None,
        repeats=repeats if _is_count(repeats) else None,
        delay_ms=delay if _is_delay(delay) else 0,
        uses_cache=values["cache"] if isinstance(values.get("cache"), bool) else None,
        grader=values["grader"] if isinstance(values.get("grader"), str) else None,
        outputs=tuple(name.removeprefix(FILE_PREFIX) for name in names if isinstance(name, str)),
    )


def _location(key: str, settings: dict[str, ConfigPart]) -> Location | None:
    """Return the place of the option whose value is used."""
    for name in ("commandLineOptions", "evaluateOptions"):
        part = settings.get(name)
        if part is not None and isinstance(part.value, dict) and part.value.get(key) is not None:
            return part.place.value(key)
    return None


def _is_delay(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LONGEST_DELAY_MS


def _is_count(value: JsonValue) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST


_NO_EXPANSION = "PROMPTFOO_DISABLE_VAR_EXPANSION"


def open_suite(
    documents: Sequence[tuple[Path, Document]],
    *,
    env: Mapping[str, str],
    env_file: Path | None,
    variables: Mapping[str, JsonValue],
    access: Access,
    scripts: Callable[[], ScriptCaller] | None = None,
) -> OpenedSuite:
    """Return the suite that one or several configs describe, as far as it can be read.

    Paths are relative to the folder of the first config; those in prompts, to the folder of their own config.

    Raises:
        ConfigError: a config is not a mapping, or an env file cannot be read.
    """
    first = documents[0][0]
    base_dir = documents[0][0].parent
    for _, document in documents:
        if not isinstance(document.value, dict):
            found = describe_value(document.value)
            message = f"a config must be a mapping of prompts, providers and tests, found {found}"
            raise ConfigError([Problem(message, document.place.value(), "write `tests:`, then the tests")])
    values = gather_env(env, base_dir=base_dir, env_file=env_file, access=access)
    own = [literal_env(document.value.get("env"), values, access) for _, document in documents]
    for named in own:
        values |= named
    files = SourceFiles(base_dir, access)
    env_of_all = PromptfooEnv(values, access)
    reading = LoadContext(files, env_of_all, rules=PROMPTFOO_RULES, scripts=scripts)
    # In each config its own `env` wins; the merged values are for the tests and the run.
    configs = [
        open_config(path, document, replace(reading, env=env_of_all.with_values(named)))
        for (path, document), named in zip(documents, own, strict=True)
    ]
    merged = gather(configs, reading)
    return _suite(first, configs, merged, reading, variables)


def _suite(
    path: Path,
    configs: list[ConfigFile],
    merged: MergedConfigs,
    reading: LoadContext,
    variables: Mapping[str, JsonValue],
) -> OpenedSuite:
    whole = configs[0].document.place
    prompts = read_promptfoo_prompts(merged.prompts, reading) or (default_prompt(whole),)
    providers = read_promptfoo_providers(merged.providers, reading)
    # Warn if a provider chooses a prompt that does not exist: promptfoo silently leaves it out.
    for provider in providers:
        chosen = provider.prompts if isinstance(provider, FilteredProviderSpec) else None
        for index, name in enumerate(chosen or ()):
            if not any(is_chosen(prompt_names(prompt), [name]) for prompt in prompts):
                labels = dict.fromkeys(prompt.label for prompt in prompts)
                at = provider.place.child("prompts").value(index)
                reading.warn(f"there is no prompt `{name}`", at, hint_among(name, labels))
    tests = PromptfooTests(
        tests=tuple(merged.tests),
        scenarios=read_scenarios(merged.scenarios, reading),
        default=_default_test(merged.defaults, reading),
        reading=reading,
        overrides=dict(variables),
        whole=whole,
        prompts=prompts,
        providers=providers,
        expands=reading.env.values.get(_NO_EXPANSION, "").lower() not in TRUE_WORDS,
        given=next(
            (part.value["providerOutput"] for part in reversed(merged.defaults) if _gives_output(part)), None
        ),
    )
    options = read_options(merged.settings, reading)
    providers = tuple(delayed(provider, options.delay_ms) for provider in providers)
    part = merged.settings.get("derivedMetrics")
    derived_metrics = () if part is None else read_derived_metrics(part.value, part.place, reading)
    filters = read_filters(merged.settings.get("nunjucksFilters"), reading)
    gates = merged.settings.get("gates")
    found_gates = () if gates is None else read_gates(gates.value, gates.place, reading)
    margin = merged.settings.get("margin")
    margins = NO_MARGINS if margin is None else read_margins(margin.value, margin.place, reading)
    tags = _tags(merged.settings.get("tags"), reading)
    baseline = _baseline(merged.settings.get("baseline"), reading)
    reading.problems.extend(tests.problems())
    problems = sort_problems(map(reading.env.hide, reading.problems))
    rows = _named_elsewhere(tests, prompts, providers)
    # The parts that decide the results: all configs, and every file they name, with or without file://.
    joined = {
        (key if index == 0 else f"{key} ({config.path.name})"): value
        for index, config in enumerate(configs)
        for key, value in config.content.items()
    }
    named: list[JsonValue] = sorted(
        {
            f"{FILE_PREFIX}{name}"
            for config in configs
            for name in _files_in(config.content, config.path.parent, reading.files.access)
        }
    )
    parts = suite_parts(joined, chain(named, rows), reading.files, variables)
    written = [without_media_data(mask_config(config.written)) for config in configs]
    snapshot = written[0] if len(written) == 1 else written
    suite = LoadedSuite(
        path=path,
        base_dir=path.parent,
        prompts=prompts,
        providers=providers,
        tests=tests,
        options=options,
        parts=parts,
        snapshot=snapshot,
        description=", ".join(merged.descriptions) or None,
        env=reading.env.values,
        warnings=tuple(problem for problem in problems if problem.severity is Severity.WARNING),
        rules=PROMPTFOO_RULES,
        gates=found_gates,
        margins=margins,
        margin_place=SourcePath.nowhere() if margin is None else margin.place,
        derived_metrics=derived_metrics,
        filters=filters,
        tags=tags,
        access=reading.files.access,
        baseline=baseline,
    )
    errors = tuple(problem for problem in problems if problem.severity is Severity.ERROR)
    return OpenedSuite(suite, errors)


def _tags(part: ConfigPart | None, reading: LoadContext) -> dict[str, str]:
    """Return the tags whose value is text, a number or a boolean. Others are ignored with a warning."""
    if part is None:
        return {}
    if not isinstance(part.value, dict):
        message = f"`tags` must be a mapping of names to text, found {describe_value(part.value)}; ignored"
        reading.warn(message, part.place.value())
        return {}
    plain = {name: value for name, value in part.value.items() if isinstance(value, str | bool | int | float)}
    for name in part.value.keys() - plain.keys():
        reading.warn(f"the tag `{name}` must be text; ignored", part.place.value(name))
    return tag_texts(plain)


def _baseline(part: ConfigPart | None, reading: LoadContext) -> BaselineName | None:
    if part is None:
        return None
    if isinstance(part.value, str):
        return BaselineName(part.value, part.place)
    message = f"`baseline` must be text, found {describe_value(part.value)}"
    reading.report(message, part.place.value(), "write the label of a column, or a run")
    return None


def _default_test(parts: list[ConfigPart], reading: LoadContext) -> ReadTest:
    """Return the defaults of every test; those of a later config are merged over those of an earlier one."""
    default = ReadTest()
    for part in parts:
        found = read_row(TestRow(part.value, part.place, part.folder), "defaultTest", reading)
        if found is not None:
            default = found.over(default)
    return default


def _gives_output(part: ConfigPart) -> bool:
    return isinstance(part.value, dict) and bool(part.value.get("providerOutput"))


def _named_elsewhere(
    tests: PromptfooTests, prompts: Sequence[PromptSpec], providers: Sequence[ProviderSpec]
) -> Iterator[JsonValue]:
    """Yield what prompts, providers and tests take from files, since the configs' own text does not show it."""
    yield [prompt.raw for prompt in prompts]
    yield [provider.config for provider in providers]
    files = tests.reading.files
    for value in tests.written():
        names = sorted({*_files_in(value, files.base_dir, files.access, is_marked=True)})
        if names:
            yield [f"{FILE_PREFIX}{name}" for name in names]


def _files_in(value: JsonValue, folder: Path, access: Access, *, is_marked: bool = False) -> Iterator[str]:
    """Yield the absolute paths of the files that text in `value` names; with `is_marked`, only `file://` references.

    Files that may not be read are skipped, since reading them reports the problem.
    """
    if isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _files_in(item, folder, access, is_marked=is_marked)
    elif isinstance(value, str) and (value.startswith(FILE_PREFIX) if is_marked else _names_files(value)):
        with suppress(ConfigError):
            yield from (str(file.path.resolve()) for file in find_files(value, folder, access))


def _names_files(text: str) -> bool:
    """Return whether text may be a file name: a `file://` reference, or a single word with a suffix."""
    is_marked = text.startswith(FILE_PREFIX)
    return is_marked or (len(text.split()) == 1 and Path(text).suffix != "" and "**" not in text)
