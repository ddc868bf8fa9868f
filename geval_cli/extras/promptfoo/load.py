"""From promptfoo configs to a suite: read, join, and turn every part into the specs that geval's own configs become."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from msgspec.structs import replace

from geval_cli.engine.plan import is_chosen, prompt_names
from geval_cli.errors import ConfigError, Location, Problem, Severity
from geval_cli.extras.promptfoo.env import TRUE_WORDS, PromptfooEnv, literal_env
from geval_cli.extras.promptfoo.merge import ConfigFile, MergedConfigs, gather, open_config, settings_of
from geval_cli.extras.promptfoo.paths import program_reference
from geval_cli.extras.promptfoo.prompts import ConfigPart, default_prompt, read_promptfoo_prompts
from geval_cli.extras.promptfoo.providers import delayed, read_promptfoo_providers
from geval_cli.extras.promptfoo.test_entries import ReadTest, read_row
from geval_cli.extras.promptfoo.test_rows import TestRow
from geval_cli.extras.promptfoo.tests import PromptfooTests, read_scenarios
from geval_cli.records import JsonValue
from geval_cli.source.access import Access
from geval_cli.source.env import gather_env
from geval_cli.source.files import (
    FILE_PREFIX,
    JAVASCRIPT_SUFFIXES,
    SourceFiles,
    existing_files,
    find_files,
    suite_parts,
)
from geval_cli.source.media import without_media_data
from geval_cli.source.problems import hint_among, sort_problems
from geval_cli.source.secrets import mask_config
from geval_cli.source.source_map import Document, SourcePath
from geval_cli.specs.base import PromptSpec, ProviderSpec, describe_value
from geval_cli.specs.dialect import PROMPTFOO_RULES
from geval_cli.specs.promptfoo import FilteredProviderSpec, PromptfooOptions, TemplateFilter
from geval_cli.statistics.paired import NO_MARGINS
from geval_cli.suite.gates import read_derived_metrics, read_gates, read_margins
from geval_cli.suite.suite import BaselineName, LoadedSuite, OpenedSuite, tag_texts
from geval_cli.suite.validation import LoadContext, ScriptCaller


def read_filters(part: ConfigPart | None, reading: LoadContext) -> tuple[TemplateFilter, ...]:
    """Return the filters that a config names; an invalid one becomes a problem."""
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
"""Options of the display and of services that geval does not have; they change no result."""

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
# A day. Larger numbers are slips (microseconds, say), and a timer may not take them.
_LONGEST_DELAY_MS = 24 * 3600 * 1000


def read_options(settings: dict[str, ConfigPart], reading: LoadContext) -> PromptfooOptions:
    """Return the options of a run; `commandLineOptions` win over `evaluateOptions`."""
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
    """Return the position of the option whose value is used."""
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
    """Return the suite that one config, or several together, describe, as far as it can be read.

    Relative paths are relative to the folder of the first config; those in prompts to that of their own.

    Raises:
        ConfigError: a config is no mapping, or an env file is broken.
    """
    first, base_dir = documents[0][0], documents[0][0].parent
    for _, document in documents:
        if not isinstance(document.value, dict):
            found = describe_value(document.value)
            message = f"a config must be a mapping of prompts, providers and tests, found {found}"
            raise ConfigError([Problem(message, document.place.value(), "write `tests:`, then the tests")])
    values = gather_env(env, base_dir=base_dir, env_file=env_file, access=access)
    own = [literal_env(document.value.get("env"), values, access) for _, document in documents]
    for named in own:
        values |= named
    files, env_of_all = SourceFiles(base_dir, access), PromptfooEnv(values, access)
    reading = LoadContext(files, env_of_all, rules=PROMPTFOO_RULES, scripts=scripts)
    # In a config its own `env` wins; what all of them say together is for the tests and the run.
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
    _warn_of_choices(prompts, providers, reading)
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
    parts = _digest_parts(configs, reading, variables, rows)
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


def _warn_of_choices(
    prompts: Sequence[PromptSpec], providers: Sequence[ProviderSpec], reading: LoadContext
) -> None:
    """Warn of prompts that a provider chooses and that do not exist: promptfoo leaves them out, silently."""
    for provider in providers:
        chosen = provider.prompts if isinstance(provider, FilteredProviderSpec) else None
        for index, name in enumerate(chosen or ()):
            if not any(is_chosen(prompt_names(prompt), [name]) for prompt in prompts):
                labels = dict.fromkeys(prompt.label for prompt in prompts)
                at = provider.place.child("prompts").value(index)
                reading.warn(f"there is no prompt `{name}`", at, hint_among(name, labels))


def _tags(part: ConfigPart | None, reading: LoadContext) -> dict[str, str]:
    """Return the tags that are names and texts; others are left out with a warning, since they decide nothing."""
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
    """Return the defaults of every test; of several configs the later one upon the earlier."""
    default = ReadTest()
    for part in parts:
        found = read_row(TestRow(part.value, part.place, part.folder), "defaultTest", reading)
        if found is not None:
            default = found.over(default)
    return default


def _named_elsewhere(
    tests: PromptfooTests, prompts: Sequence[PromptSpec], providers: Sequence[ProviderSpec]
) -> Iterator[JsonValue]:
    """Yield what files that the configs name take from further files; the texts of the configs do not say it."""
    yield [prompt.raw for prompt in prompts]
    yield [provider.config for provider in providers]
    files = tests.reading.files
    for value in tests.written():
        names = sorted({*_files_in(value, files.base_dir, files.access, is_marked=True)})
        if names:
            yield [f"{FILE_PREFIX}{name}" for name in names]


def _digest_parts(
    configs: list[ConfigFile],
    reading: LoadContext,
    variables: Mapping[str, JsonValue],
    rows: Iterator[JsonValue],
) -> dict[str, str]:
    """Return the parts that decide the results: all configs, and every file they name, with or without file://."""
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
    return suite_parts(joined, chain(named, rows), reading.files, variables)


def _files_in(value: JsonValue, folder: Path, access: Access, *, is_marked: bool = False) -> Iterator[str]:
    """The files that texts in `value` name, as paths relative to nothing; who reads them tells what may not be.

    With `is_marked`, only those with file://.
    """
    if isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _files_in(item, folder, access, is_marked=is_marked)
    elif isinstance(value, str) and (value.startswith(FILE_PREFIX) if is_marked else _names_files(value)):
        with suppress(ConfigError):
            yield from (str(file.path.resolve()) for file in find_files(value, folder, access))


def _names_files(text: str) -> bool:
    """Return whether a text may be the name of a file: one that is marked so, or a word with an ending."""
    is_marked = text.startswith(FILE_PREFIX)
    return is_marked or (len(text.split()) == 1 and Path(text).suffix != "" and "**" not in text)
