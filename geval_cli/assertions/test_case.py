"""One test of a suite, as the rest of the program works with it."""

from collections.abc import Mapping

import msgspec

from geval_cli.assertions.base import Assertion
from geval_cli.errors import Location
from geval_cli.records import JsonValue
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import EvaluationParsing, ProviderSpec, TestOptionsSpec, WrittenSchema
from geval_cli.specs.promptfoo import PromptfooTestOptions

_NO_OPTIONS = PromptfooTestOptions.model_construct()  # without building its validator, which few suites need


class TestCase(msgspec.Struct, frozen=True):
    """One test with `defaultTest` merged into it.

    `options` and `default_options` stay apart because the command line is between them (GEVAL.md, sections 2, 3).
    `output` counts only when `has_output`; None is a value that can be judged as it is. `schema_place` is where
    `evaluation_schema` is; for a test without one, the test itself. `provider` answers in place of the suite's.
    """

    __test__ = False

    index: int
    place: SourcePath
    description: str | None = None
    vars: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)
    input: str | None = None
    has_output: bool = False
    output: JsonValue = None
    expected_output: str | None = None
    context: str | tuple[str, ...] | None = None
    retrieval_context: str | tuple[str, ...] | None = None
    assertions: tuple[Assertion, ...] = ()
    threshold: float | None = None
    provider: ProviderSpec | None = None
    options: TestOptionsSpec = msgspec.field(default_factory=TestOptionsSpec)
    default_options: TestOptionsSpec = msgspec.field(default_factory=TestOptionsSpec)
    metadata: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)
    evaluation_schema: WrittenSchema | None = None
    evaluation_parsing: EvaluationParsing | None = None
    schema_place: SourcePath = msgspec.field(default_factory=SourcePath.nowhere)
    promptfoo: PromptfooTestOptions = _NO_OPTIONS

    @property
    def transform(self) -> tuple[str, Location | None] | None:
        """The code that makes of an answer the output, and where it is."""
        for options in (self.options, self.default_options):
            if options.transform is not None:
                return options.transform, options.place.value("transform")
        return None

    @property
    def transform_vars(self) -> tuple[str, Location | None] | None:
        """The code that changes the variables, and where it is."""
        for options in (self.options, self.default_options):
            if options.transform_vars is not None:
                return options.transform_vars, options.place.spelled("transformVars", "transform_vars")
        return None

    @property
    def variables(self) -> dict[str, JsonValue]:
        """Return the variables of templates: the test's own fields by name, and `vars`, which win over them."""
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
