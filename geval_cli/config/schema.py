"""The keys of a config file, as frozen pydantic models: the one place that knows spellings, types and defaults.

Every model refuses unknown keys. What a value means (is the dimension known? does the rubric fit the range?) is for
the room that uses it: `judge`, `assertions` and `providers` each offer a check. `geval schema` is generated from here,
key descriptions included.
"""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from geval_cli.config.assertion_base import AssertionSpec, ModelGradedSpec
from geval_cli.config.assertion_schema import (
    ASSERTION_SPECS,
    EVALUATION_SPECS,
    EvaluationParam,
    GEvalAssertionSpec,
    IsJsonAssertionSpec,
    LlmEvaluationSpec,
    RubricBandSpec,
    SchemaEvaluationSpec,
    TextAssertionSpec,
)
from geval_cli.config.spec import (
    EvaluationParsing,
    ProviderSpec,
    RubricPromptSpec,
    SampleCount,
    Score,
    Scoring,
    Spec,
    Text,
    WrittenSchema,
)

__all__ = [
    "ASSERTION_SPECS",
    "EVALUATION_SPECS",
    "AssertionSpec",
    "ChatMessageSpec",
    "EvaluationMode",
    "EvaluationParam",
    "EvaluationParsing",
    "FactualityWeightsSpec",
    "GEvalAssertionSpec",
    "IsJsonAssertionSpec",
    "LlmEvaluationSpec",
    "ModelGradedSpec",
    "PromptSpec",
    "ProviderSpec",
    "RubricBandSpec",
    "RubricPromptSpec",
    "RunOptionsSpec",
    "SampleCount",
    "SchemaEvaluationSpec",
    "Score",
    "Scoring",
    "Spec",
    "SuiteSpec",
    "TestOptionsSpec",
    "TestSpec",
    "Text",
    "TextAssertionSpec",
    "WrittenSchema",
]


class ChatMessageSpec(Spec):
    """One message of a chat prompt. String content is a template."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(description="Who says it.")
    content: str | list[dict[str, Any]] = Field(
        description="What is said: a template, file://, or the list of parts that chat APIs take."
    )


EvaluationMode = Literal["llm", "schema"]


class PromptSpec(Spec):
    """One prompt: exactly one of `raw` (text), `messages` (chat), `system` (the test's input is the user message)."""

    id: str = Field("", description="A name for this prompt that no other prompt has.")
    label: str = Field("", description="What tables show for this prompt.")
    raw: str | None = Field(None, description="The prompt: a template, or file:// with the path of one.")
    messages: tuple[ChatMessageSpec, ...] | None = Field(None, description="The prompt as chat messages.")
    system: str | None = Field(
        None, description="A system message; the test's input becomes the user message. Text or file://."
    )
    evaluation_mode: EvaluationMode | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_mode", "evaluationMode"),
        description="How answers are evaluated: by a judge (llm), or by each test's evaluation_schema (schema).",
    )
    evaluation_criteria: str | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_criteria", "evaluationCriteria"),
        description="What the judge of the mode llm values; empty: not evaluated. Template or file://.",
    )
    evaluation_parsing: EvaluationParsing | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_parsing", "evaluationParsing"),
        description="How answers are parsed in the mode schema, unless the test says it: strict or tolerant.",
    )
    expected_schema: dict[str, Any] | str | None = Field(
        None,
        validation_alias=AliasChoices("expected_schema", "expectedSchema"),
        description="A JSON Schema that shapes the answer where the provider can; nothing is evaluated by it.",
    )

    @property
    def effective_mode(self) -> EvaluationMode | None:
        """How answers are evaluated; criteria without a mode mean `llm`."""
        if self.evaluation_mode is None and self.evaluation_criteria is not None:
            return "llm"
        return self.evaluation_mode


class FactualityWeightsSpec(Spec):
    """What each relation between the facts of two answers is worth, from 0 to 1."""

    subset: Score = Field(1.0, description="The output says less than the reference.")
    superset: Score = Field(1.0, description="The output says more than the reference.")
    agree: Score = Field(1.0, description="Both say the same.")
    disagree: Score = Field(0.0, description="They contradict each other.")
    differ_but_factual: Score = Field(
        1.0,
        validation_alias=AliasChoices("differButFactual", "differ_but_factual"),
        description="They differ in what does not matter for the facts.",
    )


class TestOptionsSpec(Spec):
    """How the assertions of a test are judged, unless they say so themselves, and code between the steps of a test."""

    __test__ = False  # not a pytest class

    provider: ProviderSpec | None = Field(None, description="Who judges.")
    rubric_prompt: str | RubricPromptSpec | None = Field(
        None,
        validation_alias=AliasChoices("rubricPrompt", "rubric_prompt"),
        description="Replaces the judge's prompt: a template, file://, or {steps, evaluate}.",
    )
    scoring: Scoring | None = Field(None, description="How the judge's ratings become one score.")
    samples: SampleCount | None = Field(
        None, description="How many ratings to ask for; means scoring: samples."
    )
    factuality: FactualityWeightsSpec | None = Field(
        None, description="What each case of a factuality assertion is worth."
    )
    transform: str | None = Field(
        None,
        description="Code that makes of the answer the output that is judged, or file:// with such code.",
    )
    transform_vars: str | None = Field(
        None,
        validation_alias=AliasChoices("transformVars", "transform_vars"),
        description="Code that changes the variables before the prompt is written, or file:// with such code.",
    )


class TestSpec(Spec):
    """One entry of `tests`, or `defaultTest`. `output` present means: judge it as it is."""

    __test__ = False

    description: str | None = Field(None, description="What this test is about.")
    vars: dict[str, Any] = Field(
        default_factory=dict, description="Variables of the prompt; file:// loads a text."
    )
    input: str | None = Field(None, description="What the user says. Text or file://.")
    output: Any = Field(
        None, description="An answer to judge as it is, when there is no provider. May be file://."
    )
    expected_output: str | None = Field(
        None,
        validation_alias=AliasChoices("expected_output", "expectedOutput"),
        description="A good answer, for comparison. Text or file://.",
    )
    context: str | tuple[str, ...] | None = Field(
        None, description="What is true about the matter. Text, texts or file://."
    )
    retrieval_context: str | tuple[str, ...] | None = Field(
        None,
        validation_alias=AliasChoices("retrieval_context", "retrievalContext"),
        description="What a search found for the input. Text, texts or file://.",
    )
    evaluation_schema: WrittenSchema | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_schema", "evaluationSchema"),
        description="A JSON Schema for answers to prompts in the mode schema; empty: not evaluated. May be file://.",
    )
    evaluation_parsing: EvaluationParsing | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_parsing", "evaluationParsing"),
        description="strict: the answer is JSON and nothing else; tolerant: code fences and prose may surround it.",
    )
    assertions: tuple[AssertionSpec, ...] = Field(
        (),
        validation_alias=AliasChoices("assert", "assertions"),
        description="What the output is checked for.",
    )
    threshold: Score | None = Field(
        None, description="With it, the weighted score of all assertions decides, not each of them."
    )
    provider: ProviderSpec | None = Field(
        None,
        description="Who answers this test, in place of the config's providers. The judge is options.provider.",
    )
    options: TestOptionsSpec = Field(
        default_factory=TestOptionsSpec,
        description="How the assertions of this test are judged, and its transforms.",
    )
    metadata: dict[str, Any] = Field(default_factory=dict, description="Anything; kept with the result.")


class RunOptionsSpec(Spec):
    """Options of the whole run; the command line wins over them."""

    max_concurrency: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None,
        validation_alias=AliasChoices("max_concurrency", "maxConcurrency"),
        description="How many model calls may be under way at once.",
    )


class SuiteSpec(Spec):
    """The top level of a config file. Its parts have short forms, which the readers of each part know."""

    schema_uri: str | None = Field(
        None, validation_alias="$schema", description="Where an editor finds this file's schema."
    )
    description: str | None = Field(None, description="What this suite is about.")
    dialect: Literal["geval"] = Field("geval", description="Whose rules this file follows.")
    prompts: Any = Field(None, description="What is sent: texts, file://, chat messages, {id, label, raw}.")
    providers: Any = Field(None, description="The models under test.")
    default_test: Any = Field(
        None,
        validation_alias=AliasChoices("defaultTest", "default_test"),
        description="What every test has, unless it says otherwise.",
    )
    tests: Any = Field(None, description="The tests, or file:// with a .yaml, .json or .jsonl file of them.")
    options: RunOptionsSpec = Field(
        default_factory=RunOptionsSpec,
        description="Options of the whole run; the command line wins over them.",
    )
    derived_metrics: Any = Field(
        None,
        validation_alias=AliasChoices("derivedMetrics", "derived_metrics"),
        description="Numbers computed from the sums of metrics: a list of {name, value}.",
    )
    gates: Any = Field(
        None,
        description="Conditions on the whole run that decide its exit code, for example coherence.mean >= 0.7.",
    )
    env: dict[str, str] = Field(
        default_factory=dict, repr=False, description="Environment values for this suite, taken literally."
    )
