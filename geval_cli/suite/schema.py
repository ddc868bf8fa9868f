"""The top level of a config file and its tests, as frozen pydantic models."""

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from geval_cli.assertions.base import Assertion
from geval_cli.specs.base import (
    EvaluationParsing,
    ProviderSpec,
    RunOptionsSpec,
    Score,
    Spec,
    TestOptionsSpec,
    TraceStepSpec,
    TurnSpec,
    WrittenSchema,
)


class SimulatedUserSpec(Spec):
    """A user played by a model: `simulate` of `turns`. What a test leaves out comes from `defaultTest`."""

    goal: str | None = Field(
        None, description="What the user wants, in a sentence; a template of the test's variables."
    )
    profile: str | dict[str, Any] | None = Field(
        None, description="Who the user is: text, or traits by name. Without it, each of `profiles`."
    )
    user: ProviderSpec | None = Field(None, description="The model that plays the user.")
    opening: str | None = Field(
        None, description="The user's first message; a template. Without it, the user's model writes it."
    )
    max_turns: Annotated[int, Field(ge=1, le=100)] = Field(
        8,
        validation_alias=AliasChoices("max_turns", "maxTurns"),
        description="The most messages that the user writes.",
    )
    done_when: str | Assertion | None = Field(
        None,
        validation_alias=AliasChoices("done_when", "doneWhen"),
        description="When the goal is reached: a sentence for the user's model, or an assertion on each answer.",
    )


class SimulationSpec(Spec):
    """`turns` that a simulated user says."""

    simulate: SimulatedUserSpec = Field(description="The user who talks with the model under test.")


class TestSpec(Spec):
    """One entry of `tests`, or `defaultTest`. With `output`, no model is called."""

    __test__ = False

    description: str | None = Field(None, description="A short description of this test.")
    vars: dict[str, Any] = Field(
        default_factory=dict,
        description="Variables for templates; file:// reads a text, also as an item of a list.",
    )
    input: str | None = Field(None, description="The user's message; text or file://.")
    output: Any = Field(
        None, description="An existing answer to check, if there is no provider; may be file://."
    )
    expected_output: str | None = Field(
        None,
        validation_alias=AliasChoices("expected_output", "expectedOutput"),
        description="A reference answer; text or file://.",
    )
    context: str | tuple[str, ...] | None = Field(
        None, description="Facts that the answer should agree with; one or more texts, or file://."
    )
    retrieval_context: str | tuple[str, ...] | None = Field(
        None,
        validation_alias=AliasChoices("retrieval_context", "retrievalContext"),
        description="The passages retrieved for the input; one or more texts, or file://.",
    )
    images: tuple[str, ...] | None = Field(
        None, description="Images for the model and the judge: file:// (png, jpeg, gif, webp) or data URLs."
    )
    audio: tuple[str, ...] | None = Field(
        None, description="Audio for the model and the judge: file:// (wav, mp3, flac, ogg) or data URLs."
    )
    turns: tuple[TurnSpec, ...] | SimulationSpec | None = Field(
        None,
        description=(
            "A conversation: recorded as [{role, content}, ...], to be played as [{user: ...}, ...], or"
            " {simulate: ...}."
        ),
    )
    scenario: str | None = Field(None, description="The situation of a conversation, for the judge.")
    expected_outcome: str | None = Field(
        None,
        validation_alias=AliasChoices("expected_outcome", "expectedOutcome"),
        description="The intended outcome of a conversation, for the judge.",
    )
    role: str | None = Field(None, description="The assistant's role in a conversation, for the judge.")
    trace: tuple[TraceStepSpec, ...] | None = Field(
        None,
        description="The agent's steps before it gave `output`: [{type, name, args, output, error, ms}].",
    )
    tools: Any = Field(
        None,
        description=(
            "Tools whose calls are answered during the run: file://tools.py, or {functions, definitions,"
            " simulate, recorded, max_calls}."
        ),
    )
    evaluation_schema: WrittenSchema | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_schema", "evaluationSchema"),
        description=(
            "A JSON Schema for answers in schema mode; if empty, answers aren't evaluated. May be file://."
        ),
    )
    evaluation_parsing: EvaluationParsing | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_parsing", "evaluationParsing"),
        description=(
            "strict: the answer must be pure JSON; tolerant: code fences and prose around it are allowed."
        ),
    )
    assertions: tuple[Assertion, ...] = Field(
        (),
        validation_alias=AliasChoices("assert", "assertions"),
        description="The checks of this test.",
    )
    threshold: Score | None = Field(
        None,
        description=(
            "If set, the weighted mean score of all assertions must reach it; single assertions don't decide."
        ),
    )
    provider: ProviderSpec | None = Field(
        None,
        description=(
            "The model under test for this test, instead of the config's providers. The judge is"
            " options.provider."
        ),
    )
    options: TestOptionsSpec = Field(
        default_factory=TestOptionsSpec,
        description="The judge for this test's assertions, and transforms.",
    )
    metadata: dict[str, Any] = Field(default_factory=dict, description="Any data; stored with the result.")


class TestFilesSpec(Spec):
    """An entry of `tests` that loads files and renames their columns."""

    __test__ = False

    path: str = Field(description="file:// with a file, a folder or a wildcard; or a URL.")
    columns: dict[str, str | None] = Field(
        default_factory=dict,
        description="New names for columns: {column: test key or variable}; null drops a column.",
    )


class SuiteSpec(Spec):
    """The top level of a config file. Its parts have short forms, which the readers of each part know."""

    schema_uri: str | None = Field(
        None, validation_alias="$schema", description="The address of this file's JSON Schema, for editors."
    )
    description: str | None = Field(None, description="A short description of this suite.")
    tags: dict[str, str | bool | int | float] = Field(
        default_factory=dict,
        description="Names and values that tag each run, for `geval list --tag`.",
    )
    dialect: Literal["geval"] = Field("geval", description="The rules that this file follows.")
    prompts: Any = Field(
        None,
        description=(
            "The prompts: texts, file:// (also wildcards and folders), chat messages, {id, label, raw}."
        ),
    )
    providers: Any = Field(None, description="The models under test.")
    default_test: Any = Field(
        None,
        validation_alias=AliasChoices("defaultTest", "default_test"),
        description="Defaults for every test.",
    )
    tests: Any = Field(
        None,
        description=(
            "The tests, or where to load them from: file:// (.csv, .xlsx, .parquet, .jsonl, .json,"
            " .yaml, .py; also wildcards), https://, s3://, huggingface://datasets/."
        ),
    )
    tools: Any = Field(
        None, description="Tools whose calls are answered, for all tests without `tools` of their own."
    )
    profiles: Any = Field(
        None,
        description=(
            "Users by text or traits: each simulated conversation runs once per profile. A list, or"
            " file:// (.csv, .jsonl, .json, .yaml)."
        ),
    )
    options: RunOptionsSpec = Field(
        default_factory=RunOptionsSpec,
        description="Options of the run; the command line overrides them.",
    )
    derived_metrics: Any = Field(
        None,
        validation_alias=AliasChoices("derivedMetrics", "derived_metrics"),
        description="Metrics computed from other metrics: a list of {name, value}.",
    )
    baseline: str | None = Field(
        None,
        min_length=1,
        description=(
            "What to compare with: a column (by the label of its prompt, provider or both), a run or a"
            " results file. By default, the first column."
        ),
    )
    margin: Any = Field(
        None,
        description=(
            "The largest difference that doesn't matter, for example 0.05; smaller ones are"
            " `equivalent`. By metric: {fluency: 0.05, pass_rate: 0.02}."
        ),
    )
    gates: Any = Field(
        None,
        description=(
            "Conditions on the whole run that decide the exit code, for example coherence.mean >= 0.7."
        ),
    )
    calibration: str | None = Field(
        None,
        description=(
            "A file from `geval calibrate`: adds P(pass) to results and sets `threshold: calibrated`."
        ),
    )
    labels: str | None = Field(
        None,
        min_length=1,
        description="A file of human labels for some of the outputs, for gates on METRIC.true_pass_rate.",
    )
    anchors: str | None = Field(
        None,
        min_length=1,
        description=(
            "A file from `geval drift --save`: its outputs are re-judged before each run to detect a"
            " judge that has moved."
        ),
    )
    env: dict[str, str] = Field(
        default_factory=dict, repr=False, description="Environment variables for this suite, taken literally."
    )
