"""From a config file to a suite: reads it, fills in env values, checks every part, and reports all problems at once."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import UNCALIBRATED
from geval_cli.errors import ConfigError, Location, Problem, Severity
from geval_cli.plugins import EXTRAS, extra
from geval_cli.records import JsonValue
from geval_cli.source.access import TRUSTED, Access, open_regular
from geval_cli.source.env import EnvValues, gather_env, settable
from geval_cli.source.files import (
    FILE_PREFIX,
    SourceFiles,
    as_reference,
    parse_document,
    read_document,
    suite_parts,
)
from geval_cli.source.media import without_media_data
from geval_cli.source.problems import sort_problems
from geval_cli.source.secrets import mask_config
from geval_cli.source.source_map import Document, SourcePath
from geval_cli.specs.base import PromptSpec, ProviderSpec, RunOptionsSpec, describe_value
from geval_cli.specs.dialect import DEFAULT_RULES, RULES, Dialect, DialectRules
from geval_cli.statistics.paired import NO_MARGINS
from geval_cli.suite.assertions import read_providers
from geval_cli.suite.gates import DerivedMetric, Gate, read_derived_metrics, read_gates, read_margins
from geval_cli.suite.prompts import NO_PROMPT, prompt_references, read_prompts
from geval_cli.suite.schema import SuiteSpec, TestSpec
from geval_cli.suite.suite import BaselineName, ConfiguredFile, LoadedSuite, OpenedSuite, tag_texts
from geval_cli.suite.test_files import InMemoryRows, RowSource, read_rows
from geval_cli.suite.tests import NO_DEFAULT, SuiteTests, read_test
from geval_cli.suite.trust import document_trust_problems, suite_trust_problems
from geval_cli.suite.validation import (
    Fields,
    LoadContext,
    ScriptCaller,
    SourceFetcher,
    build_spec,
    read_fields,
    read_spec,
)

_PROGRAM_SUFFIXES = frozenset({".py", ".js", ".cjs", ".mjs", ".ts", ".mts", ".cts"})
_PROMPTFOO_NAME = "promptfooconfig"
_PROMPTFOO_SCHEMA = re.compile(r"#.*\$schema\s*[=:]\s*\S*promptfoo\S*config-schema\.json")
_TAGS = "tags"
"""This key decides no result, so a run can be resumed after its tags were changed."""

LITERAL_KEYS = frozenset({"env", "$schema"})
T = TypeVar("T")
_NO_VARIABLES: Mapping[str, JsonValue] = {}


class BuiltSuite(Struct, frozen=True):
    """A suite made by a program, in the form of a config, and the functions that its providers name by their ids.

    `parts` are hashes of the functions' code, which are part of its digest beside the content.
    """

    document: Document
    functions: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)


def read_with_rules(
    path: Path, access: Access, asked: Dialect | None = None
) -> tuple[Document, DialectRules]:
    """Return the content of a config file, and the rules that it follows.

    Raises:
        ConfigError: the file cannot be read, or its content is broken.
    """
    if path.suffix.lower() in _PROGRAM_SUFFIXES:
        hint = "write the config as YAML or JSON; the program can write tests to a .jsonl file"
        raise ConfigError([Problem(f"geval does not run configs that are programs: `{path}`", None, hint)])
    document = read_document(path, access)
    # Comments are not part of the document, but an editor's schema comment tells which rules it follows.
    with open_regular(path, access) as stream:
        first_line = stream.readline().decode("utf-8-sig", "replace")
    return document, rules_of(path, document, first_line, asked)


def rules_of(path: Path, document: Document, first_line: str, asked: Dialect | None = None) -> DialectRules:
    """Return the rules that `path` follows: as requested, by its `dialect`, by its schema comment, by its name.

    Args:
        path: the config file.
        document: its content.
        first_line: the first line of its text, where an editor's schema comment may be.
        asked: the dialect requested on the command line.
    """
    if asked is not None:
        return RULES[asked]
    value = document.value if isinstance(document.value, dict) else {}
    written, schema = value.get("dialect"), value.get("$schema")
    if isinstance(written, str):
        return RULES.get(written, DEFAULT_RULES)
    is_named = isinstance(schema, str) and "promptfoo" in schema
    if is_named or _PROMPTFOO_SCHEMA.match(first_line) or path.name.startswith(f"{_PROMPTFOO_NAME}."):
        return RULES[Dialect.PROMPTFOO]
    return DEFAULT_RULES


def open_suite(
    path: Path,
    *,
    env: Mapping[str, str],
    env_file: Path | None = None,
    variables: Mapping[str, JsonValue] = _NO_VARIABLES,
    dialect: Dialect | None = None,
    joined: Sequence[Path] = (),
    needs_keys: bool = True,
    text: str | None = None,
    built: BuiltSuite | None = None,
    scripts: Callable[[], ScriptCaller] | None = None,
    fetch: Callable[[], SourceFetcher] | None = None,
    access: Access = TRUSTED,
) -> OpenedSuite:
    """Return the suite as far as it can be read, for callers that look for more problems before they report any.

    Args:
        path: the config file.
        env: where its environment values are looked up.
        env_file: a file with more of them; None for `.env` beside the config.
        variables: take precedence over every test's own.
        dialect: the rules that it follows; None: as the file itself says.
        joined: further configs that form one suite with it.
        needs_keys: whether keys that it takes from the environment must be there.
        text: read in place of the file's content, in geval's own dialect unless another is named.
        built: a suite made by a program, read in place of a file.
        scripts: runs programs; without it, whatever a program would make is a problem.
        fetch: makes the fetcher of test data from elsewhere; without it, such data is a problem.
        access: what the config may read and run, now and as long as its tests are read.

    Raises:
        ConfigError: nothing can be read at all: no such file, broken syntax, not a mapping, a broken env file.
    """
    if built is not None:
        return _open_built(path, built, env, env_file, variables, scripts)
    scripts = scripts if access.runs_code else None
    if text is None:
        document, rules = read_with_rules(path, access, dialect)
    else:
        document = parse_document(text, path)
        rules = DEFAULT_RULES if dialect is None else RULES[dialect]
    documents = [(path, document)]
    if (reader := f"dialect: {rules.name}") in EXTRAS:
        documents += [(other, read_document(other, access)) for other in joined]
        opened: OpenedSuite = extra(reader).open_suite(
            documents, env=env, env_file=env_file, variables=variables, access=access, scripts=scripts
        )
    elif joined:
        message = "only configs in promptfoo's dialect can be merged"
        hint = "run them one after another, without --merge"
        raise ConfigError([Problem(message, document.place.value(), hint)])
    else:
        # The config's own `env` wins, and must be known before any `{{ env.NAME }}` is filled in.
        literal = settable(_literal_env(_top_mapping(document)), access)
        values = gather_env(env, base_dir=path.parent, env_file=env_file, access=access) | literal
        filler = EnvValues(values, needs_keys=needs_keys, access=access)
        reading = LoadContext(SourceFiles(path.parent, access), filler, scripts=scripts, fetch=fetch)
        opened = read_suite(path, document, reading, variables)
    if not access.is_untrusted:
        return opened
    refused = [problem for _, document in documents for problem in document_trust_problems(document)]
    refused += suite_trust_problems(opened.suite)
    return replace(opened, problems=tuple(sort_problems([*opened.problems, *refused])))


def _open_built(
    path: Path,
    built: BuiltSuite,
    env: Mapping[str, str],
    env_file: Path | None,
    variables: Mapping[str, JsonValue],
    scripts: Callable[[], ScriptCaller] | None,
) -> OpenedSuite:
    """Return the suite that a program made. An env file is read only if it is named: the program has its own."""
    values = (
        env if env_file is None else gather_env(env, base_dir=path.parent, env_file=env_file, access=TRUSTED)
    )
    filler = EnvValues({**values, **_literal_env(_top_mapping(built.document))}, access=TRUSTED)
    files = SourceFiles(path.parent, TRUSTED)
    reading = LoadContext(files, filler, functions=built.functions, is_built=True, scripts=scripts)
    opened = read_suite(path, built.document, reading, variables)
    parts = {**opened.suite.parts, **built.parts}
    return replace(opened, suite=dataclasses.replace(opened.suite, parts=parts))


def read_suite(
    path: Path, document: Document, reading: LoadContext, variables: Mapping[str, JsonValue] = _NO_VARIABLES
) -> OpenedSuite:
    """Return the suite that the content of `path` describes, with files and env values from `reading`.

    Raises:
        ConfigError: the content is not a mapping.
    """
    raw = _top_mapping(document)
    if not document.may_use_env:
        filled = raw
    else:
        filled = {
            key: value
            if key in LITERAL_KEYS
            else reading.env.fill(value, document.place.child(key), reading.problems)
            for key, value in raw.items()
        }
    fields = read_fields(SuiteSpec, filled, document.place, "the config", reading)
    if fields is None:  # it is a mapping, as checked above
        raise ConfigError(reading.problems)

    def part(name: str, read: Callable[[JsonValue, SourcePath, LoadContext], T], absent: T) -> T:
        """Return the value of a key, read by its own reader."""
        return read(fields.values[name], fields.child(name), reading) if name in fields.values else absent

    calibrations = UNCALIBRATED
    if "calibration" in fields.values:
        calibrations = part("calibration", extra("calibration").read_calibrations, UNCALIBRATED)
    reading = replace(reading, calibrations=calibrations)
    if isinstance(filled.get("calibration"), str):  # so that the digest covers the content of the file, too
        filled = {**filled, "calibration": as_reference(filled["calibration"])}
    default: TestSpec | None = None
    if "default_test" in fields.values:
        place = fields.child("default_test")
        default = read_test(fields.values["default_test"], place, "defaultTest", reading)
    if "tools" in fields.values and (default is None or "tools" not in default.model_fields_set):
        tools = extra("tools of a config").read_tools(fields.values["tools"], fields.child("tools"), reading)
        default = (default or NO_DEFAULT).model_copy(update={"tools": tools})
    profiles = None
    if "profiles" in fields.values:
        profiles = extra("simulated users").read_profiles(
            fields.values["profiles"], fields.child("profiles"), reading
        )
    place = fields.child("profiles")
    tests = SuiteTests(_rows(fields, reading), reading, default, dict(variables), profiles, place)
    # The digest needs the rows, too; their problems are found and reported by the check.
    unreported = reading.with_problems([])
    rows = chain(prompt_references(filled.get("prompts"), unreported), tests.source.marked(unreported))
    deciding = {key: value for key, value in filled.items() if key != _TAGS}
    masked = mask_config(raw)
    unfilled = {key: value for key, value in masked.items() if filled.get(key) == raw[key]}
    parts = suite_parts(deciding, rows, reading.files, variables, unfilled)
    # The keys that need no reader of their own, if they are valid.
    names = ("description", "dialect", "schema_uri", "baseline", "labels", "anchors", _TAGS)
    plain: dict[str, JsonValue] = {name: fields.values[name] for name in names if name in fields.values}
    _check_env(fields, reading)
    rest = build_spec(SuiteSpec, Fields(fields.what, fields.place, plain, fields.written), reading)
    prompts: tuple[PromptSpec, ...] = part("prompts", read_prompts, ())
    providers: tuple[ProviderSpec, ...] = part("providers", read_providers, ())
    options = part("options", _options, None)
    gates: tuple[Gate, ...] = part("gates", read_gates, ())
    derived_metrics: tuple[DerivedMetric, ...] = part("derived_metrics", read_derived_metrics, ())
    margins = part("margin", read_margins, NO_MARGINS)
    found = sort_problems(map(reading.env.hide, reading.problems))
    suite = LoadedSuite(
        path=path,
        base_dir=path.parent,
        prompts=prompts or (NO_PROMPT,),
        providers=providers,
        tests=tests,
        options=options or RunOptionsSpec(),
        warnings=tuple(problem for problem in found if problem.severity is Severity.WARNING),
        test_warnings=tests.warnings,
        gates=gates,
        parts=parts,
        snapshot=without_media_data(masked),
        description=rest.description if rest else None,
        tags=tag_texts(rest.tags) if rest else {},
        derived_metrics=derived_metrics,
        env=reading.env.values,
        access=reading.files.access,
        baseline=None
        if rest is None or rest.baseline is None
        else BaselineName(rest.baseline, fields.child("baseline")),
        margins=margins,
        margin_place=fields.child("margin"),
        calibrations=calibrations,
        labels=_named_file(rest, "labels", fields, path.parent),
        anchors=_named_file(rest, "anchors", fields, path.parent),
    )
    return OpenedSuite(suite, tuple(problem for problem in found if problem.severity is Severity.ERROR))


def _top_mapping(document: Document) -> dict[str, JsonValue]:
    if isinstance(document.value, dict):
        return document.value
    hint = (
        "write `tests:` above the list"
        if isinstance(document.value, list)
        else "write `tests:`, then the tests"
    )
    message = (
        f"a config must be a mapping of prompts, providers and tests, found {describe_value(document.value)}"
    )
    raise ConfigError([Problem(message, document.place.value(), hint)])


def _literal_env(raw: Mapping[str, JsonValue]) -> dict[str, str]:
    """Return the config's `env:` as far as it is well-formed; the rest is reported with the other keys."""
    values = raw.get("env")
    if not isinstance(values, dict):
        return {}
    return {name: value for name, value in values.items() if isinstance(value, str)}


def _options(value: JsonValue, place: SourcePath, reading: LoadContext) -> RunOptionsSpec | None:
    return read_spec(RunOptionsSpec, value, place, "the options of the run", reading)


def _named_file(rest: SuiteSpec | None, key: str, fields: Fields, folder: Path) -> ConfiguredFile | None:
    name = None if rest is None else getattr(rest, key)
    return (
        None if name is None else ConfiguredFile(folder / name.removeprefix(FILE_PREFIX), fields.child(key))
    )


def _check_env(fields: Fields, reading: LoadContext) -> None:
    """Report values in `env` that are not text, without showing them: they are keys."""
    values = fields.values.get("env", {})
    place = fields.child("env")
    if not isinstance(values, dict):
        _report_unseen("`env` must be a mapping of names to text", place.value(), reading)
        return
    for name, value in values.items():
        if not isinstance(value, str):
            _report_unseen(f"`env.{name}` must be text: put quotes around it", place.value(name), reading)


def _report_unseen(message: str, location: Location | None, reading: LoadContext) -> None:
    reading.report(message, None if location is None else dataclasses.replace(location, length=0))


def _rows(fields: Fields, reading: LoadContext) -> RowSource:
    place = fields.child("tests")
    if "tests" not in fields.written:
        if "prompts" in fields.written or "default_test" in fields.written:
            return InMemoryRows(({},), (fields.place.child("defaultTest"),), is_inline=True)
        hint = "add `tests`, or `prompts` and `providers`"
        reading.report("the config has nothing to run", fields.place.value(), hint)
        return InMemoryRows((), ())
    return read_rows(fields.values.get("tests"), place, reading)
