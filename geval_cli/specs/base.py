"""Define the base of all models of a config's parts, bounds, and the model of a provider."""

import re
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from geval_cli.json_codec import encode_json
from geval_cli.numbers import UNIT_S
from geval_cli.source.secrets import mask_text
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.dialect import DEFAULT_RULES, DialectRules

_IDS_KEPT = 64

Score = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(strict=True)]
SampleCount = Annotated[int, Field(ge=1, le=1000)]
EvaluationParsing = Literal["strict", "tolerant"]
WrittenSchema = dict[str, Any] | bool | str
"""A JSON Schema as a config may have it: written out, or as JSON text."""


_masked = lru_cache(maxsize=_IDS_KEPT)(mask_text)  # every result shows the id of its provider


class Spec(BaseModel):
    """A part of a config. `place` knows the file, line and column of the part and of each of its keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        populate_by_name=True,
        defer_build=True,  # a config uses a few of the sixty models, and building them all took a fifth of the start
    )

    place: SourcePath = Field(default_factory=SourcePath.nowhere, exclude=True, repr=False)


class ProviderSpec(Spec):
    """A model. `config` is sent with each request, except for geval's own keys (base_url, api_key_env, ...)."""

    rules: ClassVar[DialectRules] = DEFAULT_RULES

    id: str = Field(description="The model, for example openai:gpt-4.1 or local:smollm2.")
    label: str = Field("", description="The name of this provider in results and tables.")
    config: dict[str, Any] = Field(
        default_factory=dict,
        repr=False,
        description=(
            "Model parameters, sent as is, and geval's own settings: base_url, api_key_env, timeout_s, ..."
        ),
    )

    @property
    def fingerprint(self) -> bytes:
        """The same for specs that say the same. It holds what they hold, keys too."""
        return encode_json([self.id, self.label, self.config])

    def __repr_args__(self) -> Iterable[tuple[str, str]]:
        return [("id", self.public_id), ("label", self.label)]

    @property
    def public_id(self) -> str:
        """The id without the keys that may be in it (`http://...?api_key=***`), as everybody may see it."""
        return _masked(self.id)

    @property
    def title(self) -> str:
        """Return the name of this provider in tables, files and messages."""
        return self.label or self.public_id


class FunctionSpec(ProviderSpec):
    """A model that is a function or a client of the program that made the suite; no config can name one."""

    function: Any = Field(exclude=True, repr=False)

    @property
    def fingerprint(self) -> bytes:
        """As that of any provider, but two functions are never the same."""
        return encode_json([self.id, self.label, self.config, id(self.function)])


class JurySpec(ProviderSpec):
    """Several judges in the place of one. It answers nothing itself: `members` do."""

    members: tuple[ProviderSpec, ...] = ()


CALIBRATED = "calibrated"
"""The word for `threshold` where the calibration file has the number, and for `combine` where it has the weights."""


class JuryRulesSpec(Spec):
    """How to combine the verdicts of several judges."""

    combine: Literal["mean", "median", "majority", "calibrated"] = Field(
        "mean",
        description=(
            "How to combine the judges: the mean or median score, the majority verdict, or the mean"
            " with the calibration file's weights."
        ),
    )
    min_judges: Annotated[int, Field(ge=1)] | None = Field(
        None, description="How many judges must give a verdict; by default more than half."
    )


Scoring = Literal["auto", "logprobs", "samples", "single"]


class EarlyStopSpec(Spec):
    """Sampling that stops early, once the verdict is settled."""

    upto: Annotated[int, Field(ge=2, le=1000)] = Field(description="Maximum number of ratings.")
    stop_error: Annotated[float, Field(ge=0, le=0.5)] = Field(
        0.02,
        description=(
            "Stop when the probability of a different verdict is at most this; 0 stops only when it is"
            " impossible."
        ),
    )


Samples = int | EarlyStopSpec
"""How many ratings to ask for: a number, or at most a number."""

UPTO = "upto:"
"""Stands before the number in `--samples upto:20`."""


def samples_of(written: int | str | None) -> Samples | None:
    """Return what `--samples` means: a number, or `upto:` and a number, which was checked."""
    return EarlyStopSpec(upto=int(written.removeprefix(UPTO))) if isinstance(written, str) else written


class RubricPromptSpec(Spec):
    """Both prompts of a judge with criteria, each a template."""

    steps: str | None = Field(
        None, description="The prompt that generates evaluation steps; text or file://."
    )
    evaluate: str | None = Field(None, description="The prompt that requests the rating; text or file://.")


@cache
def spellings(model: type[Spec]) -> Mapping[str, str]:
    """Return every key that a mapping of this kind may have, with the field that it means; best spelling first."""
    found: dict[str, str] = {}
    for name, info in model.model_fields.items():
        if name == "place":
            continue
        alias = info.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [alias or name]
        found.update((str(choice), name) for choice in choices)
    return found


class ChatMessageSpec(Spec):
    """One message of a chat prompt. String content is a template."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = Field(
        description="The author of the message."
    )
    content: str | list[dict[str, Any]] = Field(
        description="The text: a template, file://, or a list of parts as in chat APIs."
    )


EvaluationMode = Literal["llm", "schema"]


class PromptSpec(Spec):
    """One prompt: exactly one of `raw` (text), `messages` (chat), `system` (the test's input is the user message)."""

    id: str = Field("", description="A unique id of this prompt.")
    label: str = Field("", description="The name of this prompt in results and tables.")
    raw: str | None = Field(None, description="The prompt: a template or file://.")
    messages: tuple[ChatMessageSpec, ...] | None = Field(
        None, description="The prompt as a list of chat messages."
    )
    system: str | None = Field(
        None, description="A system message; the test's `input` becomes the user message. Text or file://."
    )
    evaluation_mode: EvaluationMode | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_mode", "evaluationMode"),
        description=(
            "How to evaluate answers: with a judge (llm), or with each test's evaluation_schema (schema)."
        ),
    )
    evaluation_criteria: str | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_criteria", "evaluationCriteria"),
        description=(
            "The judge's criteria in llm mode; if empty, answers aren't evaluated. Template or file://."
        ),
    )
    evaluation_parsing: EvaluationParsing | None = Field(
        None,
        validation_alias=AliasChoices("evaluation_parsing", "evaluationParsing"),
        description="How to parse answers in schema mode, unless the test sets it: strict or tolerant.",
    )
    expected_schema: dict[str, Any] | str | None = Field(
        None,
        validation_alias=AliasChoices("expected_schema", "expectedSchema"),
        description=(
            "A JSON Schema for the provider's structured output, if it supports that; not used for"
            " evaluation."
        ),
    )

    @property
    def effective_mode(self) -> EvaluationMode | None:
        """How answers are evaluated; criteria without a mode mean `llm`."""
        if self.evaluation_mode is None and self.evaluation_criteria is not None:
            return "llm"
        return self.evaluation_mode


class FactualityWeightsSpec(Spec):
    """The score of each factuality category, from 0 to 1."""

    subset: Score = Field(1.0, description="Score if the output says less than the reference.")
    superset: Score = Field(1.0, description="Score if the output says more than the reference.")
    agree: Score = Field(1.0, description="Score if both say the same.")
    disagree: Score = Field(0.0, description="Score if they contradict each other.")
    differ_but_factual: Score = Field(
        1.0,
        validation_alias=AliasChoices("differButFactual", "differ_but_factual"),
        description="Score if they differ, but not in the facts.",
    )


class TestOptionsSpec(Spec):
    """Defaults for the judge of a test's assertions, and transforms."""

    __test__ = False  # not a pytest class

    provider: ProviderSpec | None = Field(None, description="The judge.")
    rubric_prompt: str | RubricPromptSpec | None = Field(
        None,
        validation_alias=AliasChoices("rubricPrompt", "rubric_prompt"),
        description="Your own judge prompt: a template, file://, chat messages, or {steps, evaluate}.",
    )
    scoring: Scoring | None = Field(None, description="How to compute the score from the judge's ratings.")
    samples: SampleCount | EarlyStopSpec | None = Field(
        None, description="The number of ratings, or {upto: 20} to stop early; implies `scoring: samples`."
    )
    factuality: FactualityWeightsSpec | None = Field(
        None, description="The score of each category of a factuality assertion."
    )
    transform: str | None = Field(
        None,
        description="Code that turns the answer into the output to check; inline or file://.",
    )
    transform_vars: str | None = Field(
        None,
        validation_alias=AliasChoices("transformVars", "transform_vars"),
        description="Code that changes the variables before the prompt is rendered; inline or file://.",
    )


_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd])")

Duration = Annotated[str, Field(pattern=rf"^(?:{_DURATION.pattern})$")]
"""A time as configs have it: 90s, 45m, 26h, 2d."""


def seconds_of(duration: str) -> float:
    """Return a checked `Duration` in seconds."""
    found = _DURATION.fullmatch(duration)
    assert found is not None
    return float(found[1]) * UNIT_S[found[2]]


class BatchSpec(Spec):
    """Settings of batches, for runs with --batch."""

    size: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="Maximum requests per batch; by default the provider's limit.",
    )
    poll_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        15.0, description="Initial interval between two polls of a batch, in seconds."
    )
    max_wait: Duration = Field("26h", description="How long to wait for a batch: 90s, 45m, 26h, 2d.")
    fallback: Literal["direct", "error"] = Field(
        "direct",
        description=(
            "What to do with requests whose batch failed or timed out: send them directly, or report"
            " an error."
        ),
    )


class RunOptionsSpec(Spec):
    """Options of the run; the command line overrides them."""

    max_concurrency: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None,
        validation_alias=AliasChoices("max_concurrency", "maxConcurrency"),
        description="Maximum number of concurrent model calls.",
    )
    batch: BatchSpec | None = Field(None, description="Batch settings, for --batch.")
    stop_when: Literal["decided"] | None = Field(
        None, description="Stop when the gates, or without gates the comparison of columns, are decided."
    )
