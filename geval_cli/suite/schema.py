"""The top level of a config file and its tests, as frozen pydantic models."""

from typing import Any, Literal

from pydantic import AliasChoices, Field

from geval_cli.assertions.base import Assertion
from geval_cli.specs.base import (
    EvaluationParsing,
    ProviderSpec,
    RunOptionsSpec,
    Score,
    Spec,
    TestOptionsSpec,
    WrittenSchema,
)
from geval_cli.specs.conversation import TraceStepSpec, TurnSpec


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
    images: tuple[str, ...] | None = Field(
        None, description="Images that model and judge see: file:// (png, jpeg, gif, webp) or data URLs."
    )
    turns: tuple[TurnSpec, ...] | None = Field(
        None,
        description="A conversation: [{role, content}, ...] that was held, or [{user: ...}, ...] that is played.",
    )
    scenario: str | None = Field(None, description="What a conversation is about, for its judge.")
    expected_outcome: str | None = Field(
        None,
        validation_alias=AliasChoices("expected_outcome", "expectedOutcome"),
        description="Where a conversation should lead, for its judge.",
    )
    role: str | None = Field(None, description="Who the assistant is in a conversation, for its judge.")
    trace: tuple[TraceStepSpec, ...] | None = Field(
        None,
        description="What an agent did before it gave the test's `output`: [{type, name, args, output, error, ms}].",
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
    assertions: tuple[Assertion, ...] = Field(
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


class TestFilesSpec(Spec):
    """An entry of `tests` that names files and renames their columns."""

    __test__ = False

    path: str = Field(
        description="file:// with a file of tests, a folder of them, or a wildcard; or an address."
    )
    columns: dict[str, str | None] = Field(
        default_factory=dict,
        description="What columns are called here: {their name: a key of a test, or a variable}; null leaves one out.",
    )


class SuiteSpec(Spec):
    """The top level of a config file. Its parts have short forms, which the readers of each part know."""

    schema_uri: str | None = Field(
        None, validation_alias="$schema", description="Where an editor finds this file's schema."
    )
    description: str | None = Field(None, description="What this suite is about.")
    tags: dict[str, str | bool | int | float] = Field(
        default_factory=dict,
        description="What `geval list --tag` finds this suite's runs by: names and values.",
    )
    dialect: Literal["geval"] = Field("geval", description="Whose rules this file follows.")
    prompts: Any = Field(
        None,
        description="What is sent: texts, file:// (wildcards, folders too), chat messages, {id, label, raw}.",
    )
    providers: Any = Field(None, description="The models under test.")
    default_test: Any = Field(
        None,
        validation_alias=AliasChoices("defaultTest", "default_test"),
        description="What every test has, unless it says otherwise.",
    )
    tests: Any = Field(
        None,
        description="The tests, and files of them: file:// with .csv, .xlsx, .parquet, .jsonl, .json, .yaml, .py;"
        " wildcards too. Or an address: https://, s3://, huggingface://datasets/.",
    )
    options: RunOptionsSpec = Field(
        default_factory=RunOptionsSpec,
        description="Options of the whole run; the command line wins over them.",
    )
    derived_metrics: Any = Field(
        None,
        validation_alias=AliasChoices("derivedMetrics", "derived_metrics"),
        description="Numbers computed from the sums of metrics: a list of {name, value}.",
    )
    baseline: str | None = Field(
        None,
        min_length=1,
        description="What results are compared with: the label of a column, of a prompt or of a provider that only one"
        " column has, else a run or a results file. Without it, columns are compared with the first.",
    )
    margin: Any = Field(
        None,
        description="The largest difference that does not matter, for example 0.05: smaller ones are `equivalent`. By"
        " metric: {fluency: 0.05, pass_rate: 0.02}.",
    )
    gates: Any = Field(
        None,
        description="Conditions on the whole run that decide its exit code, for example coherence.mean >= 0.7.",
    )
    calibration: str | None = Field(
        None,
        description="A file of `geval calibrate`: results get P(pass), and `threshold: calibrated` has its number.",
    )
    labels: str | None = Field(
        None,
        min_length=1,
        description="A file of human labels of some of the outputs, for gates on METRIC.true_pass_rate.",
    )
    anchors: str | None = Field(
        None,
        min_length=1,
        description="A file of `geval drift --save`: its outputs are judged again before each run, to see whether the"
        " judge has moved.",
    )
    env: dict[str, str] = Field(
        default_factory=dict, repr=False, description="Environment values for this suite, taken literally."
    )
