"""The typed suite that the rest of the program works with: prompts, providers and a re-iterable source of tests."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from geval_cli.assertions.base import UNCALIBRATED, Calibrations, MergedTest
from geval_cli.errors import Problem
from geval_cli.records import JsonValue
from geval_cli.source.access import TRUSTED, Access
from geval_cli.source.files import FILE_PART, digest_of
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import PromptSpec, ProviderSpec, RunOptionsSpec
from geval_cli.specs.dialect import DEFAULT_RULES, DialectRules
from geval_cli.specs.promptfoo import TemplateFilter
from geval_cli.statistics.paired import NO_MARGINS, Margins
from geval_cli.suite.gates import DerivedMetric, Gate


class TestSource(Protocol):
    """Tests that can be iterated again and again without being held all at once."""

    def __iter__(self) -> Iterator[MergedTest]:
        """Yield every test in the order of the file.

        Raises:
            ConfigError: on the first pass, after the last test was yielded, with every problem of every test.
        """
        ...


TestSource.__test__ = False  # type: ignore[attr-defined] # in the body it would be a member of the protocol


class BaselineName(msgspec.Struct, frozen=True):
    """The `baseline` of a config: a column's label, else a run or a results file; `place` is where it is."""

    name: str
    place: SourcePath


class ConfiguredFile(msgspec.Struct, frozen=True):
    """A file that a config names, such as its `labels`; `place` is where the config names it."""

    path: Path
    place: SourcePath


@dataclass(frozen=True, slots=True)
class LoadedSuite:
    """A loaded config.

    Attributes:
        path: the config file; `base_dir` is its folder, to which `file://` is relative.
        prompts: never empty; without `prompts`, there is one with the id "none" and an empty text.
        providers: may be empty; then every test must have its own `output`.
        tests: can be iterated again and again; each pass yields equal tests.
        parts: hashes of all that decides the results: keys of the config, files, vars from the command line.
        snapshot: the config as data, before env values are filled in, as kept in the run record.
        warnings: problems that do not stop a run; `test_warnings` are those of its tests, known once they were read.
        rules: the rules of its dialect.
        access: what the config may read, run and reach.
        tags: the tags of its runs.
        baseline: what results are compared with: a column, else an earlier run; None for the first column.
        margins: the largest differences that do not matter; `margin_place` is their place in the config.
        calibrations: what the scores of its metrics mean in terms of human labels.
        labels: human labels of some outputs, for gates on true figures.
        anchors: outputs that its judges rate again before each run.
    """

    path: Path
    base_dir: Path
    prompts: tuple[PromptSpec, ...]
    providers: tuple[ProviderSpec, ...]
    tests: TestSource
    options: RunOptionsSpec
    snapshot: JsonValue
    description: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    warnings: tuple[Problem, ...] = ()
    test_warnings: Mapping[tuple[str, int], Problem] = field(default_factory=dict)
    rules: DialectRules = DEFAULT_RULES
    gates: tuple[Gate, ...] = ()
    derived_metrics: tuple[DerivedMetric, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    filters: tuple[TemplateFilter, ...] = ()
    access: Access = TRUSTED
    tags: Mapping[str, str] = field(default_factory=dict)
    baseline: BaselineName | None = None
    margins: Margins = NO_MARGINS
    margin_place: SourcePath = field(default_factory=SourcePath.nowhere, compare=False)
    calibrations: Calibrations = field(default=UNCALIBRATED, compare=False)
    labels: ConfiguredFile | None = None
    anchors: ConfiguredFile | None = None

    @property
    def digest(self) -> str:
        """Return a hash of everything that decides the results: the config and the files that it names."""
        return digest_of(self.parts)

    @property
    def files(self) -> frozenset[Path]:
        """Return the files that decide the results, apart from the config itself, without symbolic links."""
        names = [part.removeprefix(FILE_PART) for part in self.parts if part.startswith(FILE_PART)]
        return frozenset((self.base_dir / name).resolve() for name in names)

    def resolved(self, spec: ProviderSpec) -> ProviderSpec:
        """Return the configured provider whose label is the id of `spec`, else `spec` itself.

        The id of a configured provider does not match: a judge must not inherit the settings of the model under test.
        A configured provider always stands for itself, whatever label another one has.
        """
        if self.access.is_trusted_provider(spec) or any(spec is item for item in self.providers):
            return spec
        named = (item for item in self.providers if spec.id == item.label != item.id and not spec.config)
        return next(named, spec)


def tag_texts(tags: Mapping[str, JsonValue]) -> dict[str, str]:
    """Return tags as texts: numbers and booleans as they are written in YAML."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in tags.items()}


class OpenedSuite(msgspec.Struct, frozen=True):
    """A suite as far as it could be read, and the errors found so far; warnings are in the suite.

    The problems of the tests are not included: the first pass over `suite.tests` raises them. With `problems`, the
    suite lacks the parts that are wrong; it can be checked for further problems, but not run.
    """

    suite: LoadedSuite
    problems: tuple[Problem, ...]
