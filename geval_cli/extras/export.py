"""A whole suite in one self-contained file, for `geval export suite` and `geval import`, and specs written as config.

The file is itself a valid config. Short forms are expanded and `file://` texts are inlined; env expressions stay
expressions, so that no value from this machine gets into the file.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from msgspec import Struct

from geval_cli.assertions.geval_metric import GEvalFields, RubricBandSpec
from geval_cli.errors import ConfigError, Location, Problem, Severity
from geval_cli.records import JsonValue
from geval_cli.source.access import TRUSTED, Access
from geval_cli.source.env import ENV_EXPRESSION, EnvValues, gather_env
from geval_cli.source.files import FILE_PREFIX, SourceFiles, is_file_reference
from geval_cli.source.media import written_out
from geval_cli.source.problems import sort_problems
from geval_cli.source.secrets import MASK, mask_config, secret_variables
from geval_cli.source.source_map import ENV_MARK, Document, SourcePath
from geval_cli.source.yaml_source import write_yaml
from geval_cli.specs.base import JurySpec, PromptSpec, ProviderSpec, Spec, ToolSet, spellings
from geval_cli.suite.load import LITERAL_KEYS, read_suite, read_with_rules
from geval_cli.suite.prompts import names_several_prompts
from geval_cli.suite.suite import OpenedSuite
from geval_cli.suite.tests import SuiteTests
from geval_cli.suite.validation import LoadContext


class PortableSuite(Struct, frozen=True):
    """A suite as the content of one file.

    Attributes:
        warnings: what that file lacks or should not contain.
        files: the files that the suite was read from, apart from the config.
    """

    content: Mapping[str, JsonValue]
    warnings: tuple[Problem, ...] = ()
    files: frozenset[Path] = frozenset()

    def without_secrets(self) -> "PortableSuite":
        """Return the suite with every key and password replaced by `***`, for a file to share."""
        rest, env = _without_secrets(self.content)
        content = {key: env if key == "env" else rest[key] for key in self.content}
        return PortableSuite(content, self.warnings, self.files)

    def to_json(self) -> str:
        """Return the suite as JSON text."""
        text = json.dumps(self.content, ensure_ascii=False, indent=2) + "\n"
        try:
            text.encode()
        except UnicodeEncodeError:  # a lone surrogate, which only an escape can represent
            return json.dumps(self.content, indent=2) + "\n"
        return text

    def to_yaml(self) -> str:
        """Return the suite as the text of a YAML config.

        Raises:
            UsageError: it contains text that YAML cannot represent.
        """
        return write_yaml(self.content)


def read_portable_suite(
    path: Path, *, env: Mapping[str, str], env_file: Path | None = None, access: Access = TRUSTED
) -> PortableSuite:
    """Return the suite in a config file or an exported file.

    Args:
        path: a YAML or JSON file.
        env: values for `{{ env.NAME }}` in file names; elsewhere such expressions are kept.
        env_file: a file with more environment values; must exist.
        access: the files that may be read.

    Raises:
        ConfigError: lists every problem found.
    """
    document, rules = read_with_rules(path, access)
    if not rules.is_exportable:
        hint = "share the config itself with the files it uses: `geval run` runs it unchanged"
        message = (
            f"a config in {rules.name}'s dialect cannot be exported, because exported suites follow "
            "geval's own rules"
        )
        raise ConfigError([Problem(message, document.place.value(), hint)])
    files = _PortableFiles(path.parent, access)
    values = gather_env(env, base_dir=path.parent, env_file=env_file, access=access)
    written = _WrittenEnv(values, access=access)
    if not document.may_use_env and isinstance(
        document.value, dict
    ):  # an escape sequence may form an expression
        raw = {
            key: item if key in LITERAL_KEYS else written.literal(item)
            for key, item in document.value.items()
        }
        document = Document(raw, document.positions)
    opened = read_suite(path, document, LoadContext(files, written))
    problems = list(opened.problems)
    tests: list[JsonValue] = []
    assert isinstance(opened.suite.tests, SuiteTests)
    try:
        tests += [as_config(spec) for _, spec in opened.suite.tests.specs()]
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(sort_problems(problems))
    content = written_out(_content(document.value, opened, tests))
    kept = [*files.kept, *_files_that_stay(content, document.place)]
    if _without_secrets(content) == ({**content, "env": None}, content.get("env")):
        secrets = []
    else:
        hint = (
            "name an environment variable instead (`api_key_env`): the exported file has `***` in its place"
        )
        secrets = [
            Problem(
                "the suite contains a key or a password",
                document.place.value(),
                hint,
                severity=Severity.WARNING,
            )
        ]
    return PortableSuite(content, tuple(sort_problems([*kept, *secrets])), opened.suite.files)


def _files_that_stay(content: Mapping[str, JsonValue], place: SourcePath) -> Iterator[Problem]:
    for key, hint in _STAYING.items():
        if key in content:
            message = f"`{content[key]}` remains a separate file that has to travel with the suite"
            yield Problem(message, place.value(key), hint, severity=Severity.WARNING)


_STAYING = {
    "calibration": "the thresholds it supplied are written out as numbers",
    "labels": "gates on true figures need it",
    "anchors": "the judge rates its outputs again before each run",
}


def _content(
    raw: Mapping[str, JsonValue], opened: OpenedSuite, tests: list[JsonValue]
) -> dict[str, JsonValue]:
    """Return every key that the config has, in a fixed order; keys that it omits are not added."""
    suite = opened.suite
    assert isinstance(suite.tests, SuiteTests)
    default = suite.tests.default
    parts = {
        "$schema": raw.get("$schema"),
        "description": suite.description,
        "tags": raw.get("tags"),
        "dialect": raw.get("dialect"),
        "env": raw.get("env"),
        "prompts": _prompts(raw.get("prompts"), suite.prompts, suite.base_dir),
        "providers": [as_config(provider) for provider in suite.providers],
        "defaultTest": None if default is None else as_config(default),
        "tests": tests,
        "profiles": None if suite.tests.profiles is None else list(suite.tests.profiles),
        "options": as_config(suite.options),
        "derivedMetrics": [as_config(metric) for metric in suite.derived_metrics],
        **{key: raw.get(key) for key in ("baseline", "margin", "gates", "calibration", "labels", "anchors")},
    }
    spelled = {"default_test": "defaultTest", "derived_metrics": "derivedMetrics", "tools": "defaultTest"}
    given = {spelled.get(key, key) for key in raw}
    return {key: value for key, value in parts.items() if key in given}


def _prompts(raw: JsonValue, prompts: tuple[PromptSpec, ...], base_dir: Path) -> list[JsonValue]:
    """Return the prompts without automatic names, which may come from values on this machine.

    Prompts from a wildcard keep theirs, which are file names.
    """
    forms = []
    for prompt in prompts:
        index = next((part for part in prompt.place.path if isinstance(part, int)), 0)
        item = raw[index] if isinstance(raw, list) else raw
        written = item if isinstance(item, dict) else {}
        is_named = names_several_prompts(item, base_dir)
        form = as_config(prompt)
        forms.append(
            {key: form[key] for key in form if key not in {"id", "label"} or key in written or is_named}
        )
    return forms


def _without_secrets(content: Mapping[str, JsonValue]) -> tuple[dict[str, JsonValue], JsonValue]:
    """Return the masked content without `env`, and the masked `env`, whose keys are known by name or by their use."""
    rest = mask_config({**content, "env": None})
    assert isinstance(rest, dict)
    env = mask_config(content.get("env"))
    if isinstance(env, dict):
        keys = env.keys() & set(secret_variables(rest))
        env = {name: MASK if name in keys else value for name, value in env.items()}
    return rest, env


class _WrittenEnv(EnvValues):
    """Leaves env expressions unchanged, except in file names, which must be resolved."""

    def fill(self, value: JsonValue, place: SourcePath, problems: list[Problem]) -> JsonValue:
        if isinstance(value, str) and not is_file_reference(value):
            return value
        return super().fill(value, place, problems)

    def literal(self, value: JsonValue) -> JsonValue:
        if isinstance(value, dict):
            return {key: self.literal(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [self.literal(item) for item in value]
        return _as_plain_text(value) if isinstance(value, str) and not is_file_reference(value) else value


class _PortableFiles(SourceFiles):
    """Returns the content of files, or the reference itself if the content would mean something else in a config."""

    def __init__(self, base_dir: Path, access: Access) -> None:
        super().__init__(base_dir, access)
        self.kept: list[Problem] = []

    def text(self, reference: str, asked_at: Location | None) -> str:
        text = super().text(reference, asked_at)
        if text.startswith(FILE_PREFIX) or (ENV_MARK in text and "{{" in text):
            return self._keep(reference, asked_at)
        return text

    def document(self, reference: str, asked_at: Location | None) -> Document:
        document = super().document(reference, asked_at)
        if document.may_use_env:
            return Document(self._keep(reference, asked_at), document.positions)
        return document

    def _keep(self, reference: str, asked_at: Location | None) -> str:
        message = f"`{reference}` remains a separate file that has to travel with the suite"
        hint = "its text would mean something else inside a config"
        self.kept.append(Problem(message, asked_at, hint, severity=Severity.WARNING))
        return reference


_NEVER_SET = "GEVAL_PLAIN_TEXT"


def _as_plain_text(text: str) -> str:
    """Return config text that yields `text` literally, even if it contains env expressions.

    Each expression becomes the default of a variable that is never set.
    """

    def default(match: re.Match[str]) -> str:
        quoted = match[0].replace("\\", "\\\\").replace("'", "\\'")
        return f"{{{{ env.{_NEVER_SET} | default('{quoted}') }}}}"

    return ENV_EXPRESSION.sub(default, text)


def as_config(spec: Spec) -> dict[str, JsonValue]:
    """Return a mapping that reads as an equal spec; keys that were not set are left out."""
    if isinstance(spec, RubricBandSpec):
        if spec.low == spec.high:
            return {"score": spec.low, "description": spec.description}
        return {"score_range": [spec.low, spec.high], "expected_outcome": spec.description}
    given = [name for name in type(spec).model_fields if name in spec.model_fields_set and name != "place"]
    entries = {_first_spelling(type(spec))[name]: _config_value(getattr(spec, name)) for name in given}
    if isinstance(spec, ProviderSpec) and spec.label == spec.public_id:
        entries.pop("label", None)
    return {key: entry for key, entry in entries.items() if entry != {} or key not in {"options", "config"}}


def _config_value(value: object) -> JsonValue:
    if isinstance(value, JurySpec):  # in a config, a jury is a list of judges
        return [as_config(member) for member in value.members]
    if isinstance(value, Spec):
        return as_config(value)
    if isinstance(value, ToolSet):
        # Tools in the form that a config has; tools that are functions are in files and left out.
        written: dict[str, JsonValue] = {
            "definitions": [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": _config_value(dict(tool.parameters)),
                }
                for tool in value.definitions
            ],
            "max_calls": value.max_calls,
        }
        if value.simulator is not None:
            written["simulate"] = {"provider": as_config(value.simulator), "world": value.world}
        if value.recorded:
            answers = [as_config(answer) for answer in value.recorded]
            written["recorded"] = [
                answer if "error" in answer else {"result": None, **answer} for answer in answers
            ]
        return written
    if isinstance(value, tuple | list):
        return list(_config_items(value))
    if isinstance(value, dict):
        return {key: _config_value(item) for key, item in value.items()}
    return value


def _config_items(items: Sequence[object]) -> Iterator[JsonValue]:
    """Yield the items of a list; g-evals made from one assertion with `dimensions` are merged into one again."""
    made: list[GEvalFields] = []
    for item in items:
        if isinstance(item, GEvalFields) and item.dimensions is not None:
            made.append(item)
            if len(made) == len(item.dimensions):
                # Rebuild the assertion that `parts` was called on; a dimension gets a threshold if it differs.
                written = {item.dimension: item.threshold for item in made[0].dimensions or ()}
                shared = next(
                    (part.threshold for part in made if written[part.dimension or ""] is None), None
                )
                entries: list[JsonValue] = [
                    {"dimension": part.dimension}
                    if written[part.dimension or ""] is None and part.threshold == shared
                    else {"dimension": part.dimension, "threshold": part.threshold}
                    for part in made
                ]
                form = {**as_config(made[0]), "dimensions": entries, "threshold": shared}
                unsaid = {"dimension", "threshold"} if shared is None else {"dimension"}
                dimensions_form = {key: entry for key, entry in form.items() if key not in unsaid}
                yield dimensions_form
                made = []
        else:
            yield _config_value(item)


@cache
def _first_spelling(model: type[Spec]) -> dict[str, str]:
    first: dict[str, str] = {}
    for spelling, name in spellings(model).items():
        first.setdefault(name, spelling)
    return first
