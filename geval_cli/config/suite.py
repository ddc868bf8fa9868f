"""The typed suite that the rest of the program works with: prompts, providers and a re-iterable source of tests."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from geval_cli.config.access import TRUSTED, Access
from geval_cli.config.derived_metrics import DerivedMetric
from geval_cli.config.dialect import Dialect
from geval_cli.config.gates import Gate
from geval_cli.config.place import Place
from geval_cli.config.promptfoo.specs import TestDirections
from geval_cli.config.promptfoo.template_filter import TemplateFilter
from geval_cli.config.schema import (
    AssertionSpec,
    EvaluationParsing,
    PromptSpec,
    ProviderSpec,
    RunOptionsSpec,
    TestOptionsSpec,
    WrittenSchema,
)
from geval_cli.errors import Location, Problem
from geval_cli.records import JsonValue

_NO_DIRECTIONS = TestDirections.model_construct()  # without building its validator, which few suites need


class TestCase(msgspec.Struct, frozen=True):
    """One test with `defaultTest` merged into it.

    `options` and `default_options` stay apart because the command line stands between them (GEVAL.md, sections 2, 3).
    `output` counts only when `has_output`; None is a value that can be judged as it is. `schema_place` is where
    `evaluation_schema` stands; for a test without one, the test itself. `provider` answers in place of the suite's.
    """

    __test__ = False

    index: int
    place: Place
    description: str | None = None
    vars: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)
    input: str | None = None
    has_output: bool = False
    output: JsonValue = None
    expected_output: str | None = None
    context: str | tuple[str, ...] | None = None
    retrieval_context: str | tuple[str, ...] | None = None
    assertions: tuple[AssertionSpec, ...] = ()
    threshold: float | None = None
    provider: ProviderSpec | None = None
    options: TestOptionsSpec = msgspec.field(default_factory=TestOptionsSpec)
    default_options: TestOptionsSpec = msgspec.field(default_factory=TestOptionsSpec)
    metadata: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)
    evaluation_schema: WrittenSchema | None = None
    evaluation_parsing: EvaluationParsing | None = None
    schema_place: Place = msgspec.field(default_factory=Place.nowhere)
    directions: TestDirections = _NO_DIRECTIONS

    @property
    def transform(self) -> tuple[str, Location | None] | None:
        """The code that makes of an answer the output, and where it stands."""
        for options in (self.options, self.default_options):
            if options.transform is not None:
                return options.transform, options.place.value("transform")
        return None

    @property
    def transform_vars(self) -> tuple[str, Location | None] | None:
        """The code that changes the variables, and where it stands."""
        for options in (self.options, self.default_options):
            if options.transform_vars is not None:
                return options.transform_vars, options.place.spelled("transformVars", "transform_vars")
        return None

    @property
    def variables(self) -> dict[str, JsonValue]:
        """What templates see: the test's own fields under their names, and `vars`, which win over them."""
        own: dict[str, JsonValue] = {}
        if self.input is not None:
            own["input"] = self.input
        if self.expected_output is not None:
            own["expected_output"] = self.expected_output
        if self.context is not None:
            own["context"] = self.context
        if self.retrieval_context is not None:
            own["retrieval_context"] = self.retrieval_context
        own.update(self.vars)
        return own


class TestSource(Protocol):
    """Tests that can be gone through again and again without being held all at once."""

    def __iter__(self) -> Iterator[TestCase]:
        """Every test in the file's order.

        Raises:
            ConfigError: on the first pass, with every problem of every test, after the last test was yielded.
        """
        ...


TestSource.__test__ = False  # type: ignore[attr-defined] # in the body it would be a member of the protocol


class SuiteOverrides(msgspec.Struct, frozen=True):
    """What the command line says about the suite itself. `vars` win over every test's own variables."""

    vars: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Suite:
    """A loaded config.

    Attributes:
        path: the config file; `base_dir` is its folder, to which `file://` is relative.
        prompts: never empty; without `prompts` there is one with the id "none" and an empty text.
        providers: may be empty: then every test must bring its `output`.
        tests: iterable again and again; each pass yields equal tests.
        digest: of everything that decides the results: the config, the files it names.
        parts: what the digest is a hash of, each as a hash: keys of the config, files, vars from the command line.
        snapshot: the config as data, before env values are put in; what the run record keeps.
        warnings: problems that do not stop a run.
        access: what may be read, run and reached for it.
    """

    path: Path
    base_dir: Path
    prompts: tuple[PromptSpec, ...]
    providers: tuple[ProviderSpec, ...]
    tests: TestSource
    options: RunOptionsSpec
    digest: str
    snapshot: JsonValue
    description: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    warnings: tuple[Problem, ...] = ()
    dialect: Dialect = Dialect.GEVAL
    gates: tuple[Gate, ...] = ()
    derived_metrics: tuple[DerivedMetric, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    filters: tuple[TemplateFilter, ...] = ()
    access: Access = TRUSTED


class OpenedSuite(msgspec.Struct, frozen=True):
    """A suite as far as it could be read, and the problems found on the way.

    The problems of the tests are not among them: the first pass over `suite.tests` raises those. With `problems`, the
    suite lacks the parts that are wrong; it is good for finding further problems, not for a run.
    """

    suite: Suite
    problems: tuple[Problem, ...]
