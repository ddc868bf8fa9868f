"""From promptfoo configs to a suite: read, join, and turn every part into the specs that geval's own configs become."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from geval_cli.config.access import Access
from geval_cli.config.derived_metrics import DerivedMetric, read_derived_metrics
from geval_cli.config.dialect import Dialect
from geval_cli.config.digest import digest_of, suite_parts
from geval_cli.config.document import Document
from geval_cli.config.env import gather_env
from geval_cli.config.gates import read_gates
from geval_cli.config.problems import sort_problems
from geval_cli.config.promptfoo.cases import PromptfooTests, read_scenarios
from geval_cli.config.promptfoo.env import PromptfooEnv, literal_env
from geval_cli.config.promptfoo.filters import read_filters
from geval_cli.config.promptfoo.options import read_options
from geval_cli.config.promptfoo.paths import find_files
from geval_cli.config.promptfoo.prompts import ConfigPart, default_prompt, read_promptfoo_prompts
from geval_cli.config.promptfoo.providers import delayed, read_promptfoo_providers
from geval_cli.config.promptfoo.sections import ConfigFile, Sections, gather, open_config
from geval_cli.config.promptfoo.test_reading import ReadTest, read_row
from geval_cli.config.promptfoo.test_rows import TestRow
from geval_cli.config.scripts import ScriptCaller
from geval_cli.config.secrets import mask_config
from geval_cli.config.source_file import FILE_PREFIX, SourceFiles
from geval_cli.config.suite import OpenedSuite, Suite, SuiteOverrides
from geval_cli.config.validation import Reading
from geval_cli.config.wanted import describe_value
from geval_cli.errors import ConfigError, Problem, Severity
from geval_cli.records import JsonValue

_NO_EXPANSION = "PROMPTFOO_DISABLE_VAR_EXPANSION"
_TRUE = frozenset({"1", "true", "yes", "yup", "yeppers"})


def open_promptfoo_suite(
    documents: Sequence[tuple[Path, Document]],
    *,
    env: Mapping[str, str],
    env_file: Path | None,
    overrides: SuiteOverrides,
    access: Access,
    scripts: ScriptCaller | None = None,
) -> OpenedSuite:
    """The suite that one config, or several together, describe, as far as it can be read.

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
    for _, document in documents:
        values |= literal_env(document.value.get("env"), values, access)
    files = SourceFiles(base_dir, access)
    reading = Reading(files, PromptfooEnv(values, access), dialect=Dialect.PROMPTFOO, scripts=scripts)
    configs = [open_config(path, document, reading) for path, document in documents]
    sections = gather(configs, reading)
    return _suite(first, configs, sections, reading, overrides)


def _suite(
    path: Path, configs: list[ConfigFile], sections: Sections, reading: Reading, overrides: SuiteOverrides
) -> OpenedSuite:
    whole = configs[0].document.place
    tests = PromptfooTests(
        tests=tuple(sections.tests),
        scenarios=read_scenarios(sections.scenarios, reading),
        default=_default_test(sections.defaults, reading),
        reading=reading,
        overrides=dict(overrides.vars),
        whole=whole,
        expands=reading.env.values.get(_NO_EXPANSION, "").lower() not in _TRUE,
    )
    prompts = read_promptfoo_prompts(sections.prompts, reading)
    providers = read_promptfoo_providers(sections.providers, reading)
    options = read_options(sections.settings, reading)
    providers = tuple(delayed(provider, options.delay_ms) for provider in providers)
    derived_metrics = _derived_metrics(sections.settings.get("derivedMetrics"), reading)
    filters = read_filters(sections.settings.get("nunjucksFilters"), reading)
    gates = sections.settings.get("gates")
    found_gates = () if gates is None else read_gates(gates.value, gates.place, reading)
    reading.problems.extend(tests.problems())
    problems = sort_problems(map(reading.env.hide, reading.problems))
    parts = _digest_parts(configs, reading, overrides)
    suite = Suite(
        path=path,
        base_dir=path.parent,
        prompts=prompts or (default_prompt(whole),),
        providers=providers,
        tests=tests,
        options=options,
        digest=digest_of(parts),
        parts=parts,
        snapshot=_snapshot(configs),
        description=", ".join(sections.descriptions) or None,
        env=reading.env.values,
        warnings=tuple(problem for problem in problems if problem.severity is Severity.WARNING),
        dialect=Dialect.PROMPTFOO,
        gates=found_gates,
        derived_metrics=derived_metrics,
        filters=filters,
        access=reading.files.access,
    )
    errors = tuple(problem for problem in problems if problem.severity is Severity.ERROR)
    return OpenedSuite(suite, errors)


def _derived_metrics(part: ConfigPart | None, reading: Reading) -> tuple[DerivedMetric, ...]:
    return () if part is None else read_derived_metrics(part.value, part.place, reading)


def _default_test(parts: list[ConfigPart], reading: Reading) -> ReadTest:
    """What every test has; of several configs the later one upon the earlier."""
    default = ReadTest()
    for part in parts:
        found = read_row(TestRow(part.value, part.place, part.folder), "defaultTest", reading)
        if found is not None:
            default = found.over(default)
    return default


def _snapshot(configs: list[ConfigFile]) -> JsonValue:
    """What the run record keeps: the config as it is written, or a list of them."""
    written = [mask_config(config.written) for config in configs]
    return written[0] if len(written) == 1 else written


def _digest_parts(configs: list[ConfigFile], reading: Reading, overrides: SuiteOverrides) -> dict[str, str]:
    """What decides the results: every config, and every file that anything in them names, with or without file://."""
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
    return suite_parts(joined, named, reading.files, overrides.vars)


def _files_in(value: JsonValue, folder: Path, access: Access) -> Iterator[str]:
    """The files that texts in `value` name, as paths relative to nothing; who reads them tells what may not be."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _files_in(item, folder, access)
    elif isinstance(value, list):
        for item in value:
            yield from _files_in(item, folder, access)
    elif isinstance(value, str) and _names_files(value):
        with suppress(ConfigError):
            yield from (str(file.path.resolve()) for file in find_files(value, folder, access))


def _names_files(text: str) -> bool:
    """Whether a text may be the name of a file: one that is marked so, or a word with an ending."""
    is_marked = text.startswith(FILE_PREFIX)
    return is_marked or (len(text.split()) == 1 and Path(text).suffix != "" and "**" not in text)
