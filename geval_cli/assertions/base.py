"""Define the base of all assertions: the keys that all have, and the facts that each type declares.

A type of assertion is one class in one file: its fields are the keys that a config may write, `check` finds what is
wrong before anything is sent, `judge` gives the verdict on one output. `registry` lists the classes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import AliasChoices, Field, PrivateAttr

from geval_cli.errors import Problem
from geval_cli.specs.base import ProviderSpec, RubricPromptSpec, Score, Spec

if TYPE_CHECKING:  # these modules are about assertions, so they import this one
    from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools
    from geval_cli.assertions.row import RowMember
    from geval_cli.assertions.test_case import TestCase
    from geval_cli.judge.metric import Judge
    from geval_cli.records import AssertionResult, JsonValue, ModelRequest
    from geval_cli.templating import Templates

Amount = Annotated[float, Field(ge=0)]


class ValueRules(Spec):
    """A mapping that an assertion takes as its `value`."""

    def problems(self) -> Sequence[Problem]:
        """Return the problems of values that are each of the right type."""
        return ()


ValueForm = Literal["text", "texts", "data", "schema"] | tuple[type[ValueRules], str]
"""How `value` is read. text, texts: each text may be file://. data: a file may hold JSON or YAML. schema: a JSON
Schema. A pair: a mapping is read as that model, which messages call by the second item."""


class Assertion(Spec):
    """One entry of `assert`. `type` is written with `not-` before it to negate the verdict.

    Attributes:
        value_form: how `value` is read; None takes it as it is.
        value_may_be_null: null is a value of its own and not a mistake.
        threshold_is_score: `threshold` is the lowest score that passes; otherwise a limit on another scale.
        compares_outputs: all outputs of a test are judged together, by `judge_row`.
        needs_logprobs: the model under test is asked for the probabilities of its tokens.
        runs_code: code of the config decides, which untrusted configs may not bring.
        calls_server: outputs are sent to a server that the config names.
        libraries: modules that it needs and that only the `extra` of geval installs.
    """

    value_form: ClassVar[ValueForm | None] = None
    value_may_be_null: ClassVar[bool] = False
    threshold_is_score: ClassVar[bool] = True
    compares_outputs: ClassVar[bool] = False
    needs_logprobs: ClassVar[bool] = False
    runs_code: ClassVar[bool] = False
    calls_server: ClassVar[bool] = False
    libraries: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str] = ""

    type: str = Field(description="What is checked. With `not-` before it, the verdict is inverted.")
    metric: str | None = Field(None, description="The name under which scores are summed up over all tests.")
    weight: Annotated[float, Field(ge=0)] = Field(
        1.0, description="How much this counts in the test's score."
    )
    transform: str | None = Field(
        None, description="Code whose result is judged in place of the output: JavaScript, or file://."
    )

    @property
    def is_negated(self) -> bool:
        return self.type.startswith("not-")

    @property
    def base_type(self) -> str:
        """The type without `not-`."""
        return self.type.removeprefix("not-")

    @property
    def members(self) -> "tuple[Assertion, ...]":
        """The assertions of a set; any other has none."""
        return ()

    def applies_to(self, test: "TestCase", templates: "Templates") -> bool:
        """Return False when the assertion evaluates nothing in `test`, so that no judge is needed."""
        return True

    def check(self, context: "CheckContext") -> list[Problem]:
        """Return every problem of this assertion in one test, before anything is sent."""
        return []

    async def judge(self, subject: "Subject", tools: "Tools") -> "Outcome":
        """Return the verdict on one output.

        Raises:
            GevalError: it could not be judged.
        """
        raise NotImplementedError

    async def judge_row(self, members: "Sequence[RowMember]", tools: "Tools") -> "Sequence[Outcome]":
        """Return the verdicts on all outputs of a test, in the order of `members`, where `compares_outputs`.

        Raises:
            GevalError: they could not be judged.
        """
        raise NotImplementedError

    def prefetch(self, subject: "Subject", tools: "Tools") -> "Iterable[tuple[Judge, ModelRequest]]":
        """Return the judge requests that do not depend on the output; `subject` has none yet."""
        return ()


_DECIDES_NO_RATING = frozenset(
    {"type", "metric", "weight", "threshold", "provider", "rubric_prompt", "transform", "context_transform"}
)
"""Keys that say what a rating means, or that have done their part before an output is judged."""


class ModelGradedAssertion(Assertion):
    """An assertion that asks a judge, `provider`.

    Attributes:
        judge_kinds: the kinds of models that it asks.
        default_threshold: the lowest score that passes where none is written; None where the judge says what passes.
    """

    judge_kinds: ClassVar[tuple[str, ...]] = ("text",)
    default_threshold: ClassVar[float | None] = None

    threshold: Score | None = Field(
        None, description="The lowest score, from 0 to 1, that passes; 0.5 when left out."
    )
    provider: ProviderSpec | None = Field(None, description="Who judges.")
    rubric_prompt: str | RubricPromptSpec | None = Field(
        None,
        validation_alias=AliasChoices("rubricPrompt", "rubric_prompt"),
        description="Replaces the judge's prompt: a template, file://, or {steps, evaluate}.",
    )

    _is_calibrated: bool = PrivateAttr(False)

    @property
    def is_calibrated(self) -> bool:
        """Return whether the threshold is that of a calibration file."""
        return self._is_calibrated

    def with_calibrated_threshold(self, threshold: float) -> Self:
        """Return the assertion with the threshold that a calibration file has for it."""
        found = self.model_copy(update={"threshold": threshold})
        found._is_calibrated = True
        return found

    def criterion_source(self, test: "TestCase", tools: "Tools") -> object:
        """Return the object that `criterion` is made from: the same one for all tests that share the criterion."""
        return self

    def criterion(self, test: "TestCase", tools: "Tools") -> "JsonValue":
        """Return the keys that decide a rating, templates as written: the texts of a rating hold the variables."""
        levels = (self, test.options, test.default_options)
        own = next((level.rubric_prompt for level in levels if level.rubric_prompt is not None), None)
        written = own.model_dump(mode="json") if isinstance(own, RubricPromptSpec) else own
        return [self.model_dump(mode="json", exclude=set(_DECIDES_NO_RATING)), written]

    def criterion_parts(self, written: "JsonValue") -> "Mapping[str, JsonValue]":
        """Return the parts of what `criterion` returned, by the names that users know."""
        return {"criteria": written}

    def judged_texts(self, subject: "Subject", tools: "Tools") -> "JsonValue":
        """Return everything of a test and its output that a judge may be shown."""
        return [subject.text, subject.rendered_prompt, subject.system, subject.test.variables]

    def holds_again(self, rated: "AssertionResult", subject: "Subject", tools: "Tools") -> bool:
        """Return False where a rating of an earlier run followed steps that are settled otherwise now."""
        return True

    def decide_again(self, rated: "Outcome", test: "TestCase", tools: "Tools") -> "Outcome | None":
        """Return the verdict on an output that was rated in an earlier run, with the threshold of today.

        None: it cannot be known without a judge.
        """
        if self.default_threshold is None:
            return rated
        is_default = self.threshold is None
        threshold = self.default_threshold if self.threshold is None else self.threshold
        return rated.against(threshold, is_default=is_default)
