"""The keys of a config file, as frozen pydantic models: the one place that knows spellings, types and defaults.

Every model refuses unknown keys. What a value means (is the dimension known? does the rubric fit the range?) is for
the room that uses it: `judge`, `assertions` and `providers` each offer a check. `geval schema` is generated from here,
key descriptions included.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from geval_cli.config.place import Place
from geval_cli.config.secrets import mask_text

Score = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(strict=True)]
SampleCount = Annotated[int, Field(ge=1, le=1000)]


class Spec(BaseModel):
    """A part of a config. `place` knows the file, line and column of the part and of each of its keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, populate_by_name=True
    )

    place: Place = Field(default_factory=Place.nowhere, exclude=True, repr=False)


class ChatMessageSpec(Spec):
    """One message of a chat prompt. String content is a template."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(description="Who says it.")
    content: str | list[dict[str, Any]] = Field(
        description="What is said: a template, file://, or the list of parts that chat APIs take."
    )


EvaluationMode = Literal["llm", "schema"]
EvaluationParsing = Literal["strict", "tolerant"]
WrittenSchema = dict[str, Any] | bool | str
"""A JSON Schema as a config may have it: written out, or as JSON text."""


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


class ProviderSpec(Spec):
    """A model endpoint. `config` goes to the wire, except geval's own keys (base_url, api_key_env, timeout_s, ...)."""

    id: str = Field(description="Which model, for example openai:gpt-4.1 or local:smollm2.")
    label: str = Field("", description="What tables show for this provider.")
    config: dict[str, Any] = Field(
        default_factory=dict,
        repr=False,
        description="Settings of the model, sent as they are, and geval's own: base_url, api_key_env, timeout_s, ...",
    )

    def __repr_args__(self) -> Iterable[tuple[str, str]]:
        return [("id", self.public_id), ("label", self.label)]

    @property
    def public_id(self) -> str:
        """The id without the keys that may stand in it (`http://...?api_key=***`), as everybody may see it."""
        return mask_text(self.id)

    @property
    def title(self) -> str:
        """What tables, files and messages show for this provider."""
        return self.label or self.public_id


Scoring = Literal["auto", "logprobs", "samples", "single"]


class RubricPromptSpec(Spec):
    """Both judge prompts of the criteria form, each a template."""

    steps: str | None = Field(None, description="The prompt that asks for evaluation steps. Text or file://.")
    evaluate: str | None = Field(None, description="The prompt that asks for the rating. Text or file://.")


class TestOptionsSpec(Spec):
    """How the assertions of a test are judged, unless they say so themselves."""

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


class AssertionSpec(Spec):
    """What every assertion has. `type` is written with `not-` before it to turn the verdict round."""

    type: str = Field(description="What is checked. With `not-` before it, the verdict is turned round.")
    metric: str | None = Field(None, description="The name under which scores are summed up over all tests.")
    weight: Annotated[float, Field(ge=0)] = Field(
        1.0, description="How much this counts in the test's score."
    )

    @property
    def is_negated(self) -> bool:
        return self.type.startswith("not-")

    @property
    def base_type(self) -> str:
        return self.type.removeprefix("not-")


class TextAssertionSpec(AssertionSpec):
    """contains, icontains, equals, starts-with, ends-with, regex: the output against one text, itself a template."""

    value: str | int | float | bool = Field(description="What to look for; a template.")


class IsJsonAssertionSpec(AssertionSpec):
    """is-json: the whole output is JSON and, with a `value`, valid against that JSON Schema."""

    value: WrittenSchema | None = Field(
        None, description="A JSON Schema that the output must fit, or file:// with the path of one."
    )


EvaluationParam = Literal["input", "actual_output", "expected_output", "context", "retrieval_context"]


class ModelGradedSpec(AssertionSpec):
    """What every assertion that asks a judge has. `provider` is the judge."""

    threshold: Score | None = Field(
        None, description="The lowest score, from 0 to 1, that passes; 0.5 when left out."
    )
    provider: ProviderSpec | None = Field(None, description="Who judges.")
    rubric_prompt: str | RubricPromptSpec | None = Field(
        None,
        validation_alias=AliasChoices("rubricPrompt", "rubric_prompt"),
        description="Replaces the judge's prompt: a template, file://, or {steps, evaluate}.",
    )


class RubricBandSpec(Spec):
    """One band of a rubric: a rating, or a span of ratings, and what earns it."""

    low: float = Field(description="The lowest rating of this band.")
    high: float = Field(description="The highest rating of this band.")
    description: str = Field(description="What earns it.")


class GEvalAssertionSpec(ModelGradedSpec):
    """g-eval: an LLM judge rates the output, by a named `dimension` or by custom `criteria`."""

    dimension: str | None = Field(
        None,
        description="fluency, coherence, consistency, relevance, engagingness, groundedness or naturalness.",
    )
    criteria: str | tuple[str, ...] | None = Field(
        None,
        validation_alias=AliasChoices("criteria", "value"),
        description="What to value, in your own words; a list is rated one by one. Template or file://.",
    )
    evaluation_steps: tuple[str, ...] | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_steps", "evaluationSteps"),
        description="The steps that the judge follows; generated from the criteria when left out.",
    )
    evaluation_params: tuple[EvaluationParam, ...] | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_params", "evaluationParams"),
        description="Which parts of the test the judge sees.",
    )
    rubric: tuple[RubricBandSpec, ...] | None = Field(None, description="What earns which rating.")
    score_range: tuple[float, float] | None = Field(
        None, description="The lowest and the highest rating, [0, 10] when left out."
    )
    score_step: Annotated[float, Field(gt=0)] | None = Field(
        None, description="The distance between two ratings."
    )
    strict_mode: bool = Field(False, description="All or nothing: the judge answers 0 or 1.")
    scoring: Scoring | None = Field(None, description="How the judge's ratings become one score.")
    samples: SampleCount | None = Field(
        None, description="How many ratings to ask for; means scoring: samples."
    )
    min_valid: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="The share of samples that must be readable."
    )
    explain: Literal["failed", "always", "never"] = Field(
        "failed", description="When to buy a rationale for a dimension's score."
    )
    source: str | None = Field(None, description="What the output was made from; a template.")


ASSERTION_SPECS: dict[str, type[AssertionSpec]] = {
    "contains": TextAssertionSpec,
    "icontains": TextAssertionSpec,
    "equals": TextAssertionSpec,
    "starts-with": TextAssertionSpec,
    "ends-with": TextAssertionSpec,
    "regex": TextAssertionSpec,
    "is-json": IsJsonAssertionSpec,
    "g-eval": GEvalAssertionSpec,
}
"""Which keys an assertion takes, by its `type` without `not-`."""


class LlmEvaluationSpec(GEvalAssertionSpec):
    """evaluation-llm: what a prompt in the mode `llm` asks of every answer. Its place is that of the criteria."""


class SchemaEvaluationSpec(AssertionSpec):
    """evaluation-schema: what a test asks of an answer in the mode `schema`. Its place is that of the schema."""

    value: WrittenSchema | None = None
    parsing: EvaluationParsing = "strict"


EVALUATION_SPECS: dict[str, type[AssertionSpec]] = {
    "evaluation-llm": LlmEvaluationSpec,
    "evaluation-schema": SchemaEvaluationSpec,
}
"""The assertions that evaluation modes stand for; no config writes them as a `type`."""


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
    options: TestOptionsSpec = Field(
        default_factory=TestOptionsSpec, description="How the assertions of this test are judged."
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
    env: dict[str, str] = Field(
        default_factory=dict, repr=False, description="Environment values for this suite, taken literally."
    )
