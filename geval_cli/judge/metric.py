"""The frozen records of a judgement: metric, case, judge and grade.

`geval_cli.judge.grading.grade` turns a `Metric`, a `JudgedCase` and a `Judge` into a `Grade`.
"""

from collections.abc import Mapping
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct, field

from geval_cli.providers.base import ProviderIdentity
from geval_cli.records import JsonValue, ModelRequest, ModelResponse, TraceStep, Turn
from geval_cli.source.secrets import mask_text
from geval_cli.specs.base import Scoring
from geval_cli.specs.dialect import DEFAULT_RULES

ScoreRange = tuple[float, float]

Estimator = Literal["logprobs", "samples", "single", "mixed"]
"""How a rating came about. `mixed`: the parts of a list of criteria or a checklist did not all use the same one."""

ReadFrom = Literal["json", "label", "number", "retry"] | Mapping[str, int]
"""The part of a reply that gave the rating: form asked for, verdict line or sentence; counts for samples."""

Explain = Literal["failed", "passed", "always", "never"]
"""When the dimension form buys a rationale. `passed` serves `not-g-eval`, whose failures are passes here."""

DEFAULT_SCORE_RANGE: ScoreRange = (0.0, 10.0)
DEFAULT_THRESHOLD = DEFAULT_RULES.geval_threshold
DEFAULT_SAMPLES = 20
DEFAULT_MIN_VALID = 0.5
DEFAULT_WINDOW = 5

Over = Literal["conversation", "answers"]
"""The parts of a conversation that are rated: all of it at once, or each answer by itself."""

STRICT_RANGE: ScoreRange = (0.0, 1.0)
SHARE_RANGE: ScoreRange = (0.0, 1.0)
"""The range of a checklist's rating: the weighted share of its items that are met."""


class RubricBand(Struct, frozen=True):
    """A rating (`low` equals `high`) or a span of ratings, both ends included, and what earns it."""

    low: float
    high: float
    description: str


class RubricPrompt(Struct, frozen=True):
    """The user's own judge prompts as unrendered templates; None keeps ours. `evaluate` is the form of a dimension."""

    steps: str | None = None
    evaluate: str | None = None


class ChecklistItem(Struct, frozen=True):
    """One thing that an output is to have, answered with yes or no.

    Attributes:
        weight: what a yes counts in the score, against the other items; at least 0.
        required: whether a no fails the output, whatever the score is.
        evidence: whether a yes counts only with words of the output that show it.
    """

    text: str
    weight: float = 1.0
    required: bool = False
    evidence: bool = True


class RatedExample(Struct, frozen=True):
    """An output that people have rated, which shows a judge how the scale is used. The rating is in `asked_range`."""

    output: str
    rating: float
    reason: str = ""
    input: str = ""


class Metric(Struct, frozen=True):
    """One criterion: a named `dimension`, `criteria` and/or `evaluation_steps`, or a `checklist`.

    Templates in `criteria` and `evaluation_steps` are rendered before they come here; `rubric_prompt` is not.

    Attributes:
        name: shown in results; what `{{dimension}}` means in the rubric prompt of the criteria form.
        criteria: several mean: each judged for itself, the mean of the scores against one threshold.
        evaluation_params: None for the default: the input, the output and whatever else the test case has.
        evaluation_steps: None to have the judge write them once.
        checklist: what the output is to have, item by item; then there are no criteria, steps or rubric, and the
            rating is the weighted share of yes.
        joint: all dimensions that are rated in the same call, `dimension` among them; empty when it is rated alone.
        guidelines: sentences that tell the judge how to apply the criterion.
        examples: rated outputs that the judge is shown beside it.
        score_range: of the ratings; for a dimension, that of `DIMENSIONS[dimension]`.
        score_step: distance of two neighbouring ratings; None for `default_step`.
        threshold: minimum score (0..1) to pass; strict mode always takes 1.
        samples: how many ratings to ask for; with `stop_error` the most.
        stop_error: the probability (0..0.5) of another verdict at which no further samples are taken; None takes all.
        min_valid: least share (0..1) of samples that must be readable.
        over: what of a conversation is rated; nothing for a case without turns.
        window: with `over: answers`, how many turns a judge sees, the answer among them.
    """

    name: str
    criteria: tuple[str, ...] = ()
    dimension: str | None = None
    joint: tuple[str, ...] = ()
    checklist: tuple[ChecklistItem, ...] = ()
    evaluation_params: tuple[str, ...] | None = None
    evaluation_steps: tuple[str, ...] | None = None
    rubric: tuple[RubricBand, ...] = ()
    guidelines: tuple[str, ...] = ()
    examples: tuple[RatedExample, ...] = ()
    score_range: ScoreRange = DEFAULT_SCORE_RANGE
    score_step: float | None = None
    strict_mode: bool = False
    threshold: float = DEFAULT_THRESHOLD
    scoring: Scoring = "auto"
    samples: int = DEFAULT_SAMPLES
    stop_error: float | None = None
    min_valid: float = DEFAULT_MIN_VALID
    explain: Explain = "failed"
    rubric_prompt: RubricPrompt | None = None
    over: Over = "conversation"
    window: int = DEFAULT_WINDOW

    @property
    def asked_range(self) -> ScoreRange:
        """Return the range that the judge is asked to rate in: 0..1 in strict mode, else `score_range`."""
        return STRICT_RANGE if self.strict_mode else self.score_range

    @property
    def asked_step(self) -> float:
        """Return the step between the ratings that the judge is asked for."""
        if self.strict_mode:
            return 1.0
        return default_step(self.score_range) if self.score_step is None else self.score_step

    @property
    def effective_threshold(self) -> float:
        """Return the threshold that decides: 1 in strict mode, whatever the metric says."""
        return 1.0 if self.strict_mode else self.threshold


class JudgedCase(Struct, frozen=True):
    """One output and everything that a judge may see beside it, as the test case has it.

    Which text is the input and which the source is found in `geval_cli.judge.source`, not by the caller.

    Attributes:
        actual_output: the output as it is; anything but text is shown as JSON.
        input: the test's own `input`, not yet replaced by a var or by the prompt.
        prompt: what the model was told beside the input, when the judge is to see it; None when not.
        source: the assertion's `source:`, rendered; None when it has none.
        images, audio: markers of those that the test has beside its vars (`source.media`).
        vars: the test's vars, seen by the source search and by rubric prompts.
        rendered_prompt: the prompt as sent (chat prompts: the messages' JSON text), or None.
        repeat_index: which repeat of the run this is; part of every judge request except those for steps.
        turns: of a conversation, the output as the last of them; None for a case that is no conversation.
        rates_answer: one answer of a conversation is rated: `actual_output`, which is not among `turns`.
        first_turn: the number of the first of `turns` in the conversation, from 1.
        trace: the steps that led to the output; None where they are not known.
        shows_trace: they stand beside the output for a judge that no one told what to look at.
        scenario, expected_outcome, role: what the conversation is about, where it should lead, who the assistant is.
    """

    actual_output: JsonValue
    prompt: str | None = None
    input: str | None = None
    expected_output: str | None = None
    context: str | tuple[str, ...] | None = None
    retrieval_context: str | tuple[str, ...] | None = None
    source: str | None = None
    images: tuple[str, ...] = ()
    audio: tuple[str, ...] = ()
    vars: Mapping[str, JsonValue] = field(default_factory=dict)
    rendered_prompt: str | None = None
    repeat_index: int = 0
    turns: tuple[Turn, ...] | None = None
    rates_answer: bool = False
    first_turn: int = 1
    trace: tuple[TraceStep, ...] | None = None
    shows_trace: bool = False
    scenario: str | None = None
    expected_outcome: str | None = None
    role: str | None = None


class Judge(Protocol):
    """The model that grades. It retries, caches, splits sample requests and leaves out what the server refuses.

    Judges can be hashed. Those that are equal are taken for one: what is found out about it is found out once.
    """

    @property
    def label(self) -> str: ...

    @property
    def provider_params(self) -> Mapping[str, JsonValue]:
        """Return the wire parameters from the judge provider's own config (`Provider.identity.params`).

        A temperature or token limit written there is the user's word, and no request sets another.
        """
        ...

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Answer `request`; `token_logprobs` is None where the server has none.

        Raises:
            ProviderError: no answer could be had, after retries.
        """
        ...


@runtime_checkable
class CachingJudge(Protocol):
    """A judge that caches its answers."""

    async def forget(self, request: ModelRequest) -> None:
        """Forget the answers to `request`: it is answered anew the next time."""
        ...

    async def has_kept(self, request: ModelRequest) -> bool:
        """Return whether all answers to `request` are in the cache."""
        ...


def public_id_of(judge: Judge) -> str:
    """Return the id of a judge without credentials, as files that are shared may have it."""
    # Asked for each rating, as below, and a protocol takes thirty times as long.
    found = getattr(judge, "public_id", None)
    return found if isinstance(found, str) else mask_text(judge.label)


def identity_of(judge: Judge) -> ProviderIdentity | None:
    """Return what decides the answers of a judge, as far as it says so."""
    found = getattr(judge, "identity", None)
    return found if isinstance(found, ProviderIdentity) else None


def default_step(score_range: ScoreRange) -> float:
    """Return the `score_step` of a metric that names none: 1, or a tenth of a range that is shorter than 2."""
    low, high = score_range
    return (high - low) / 10 if high - low < 2 else 1.0  # noqa: PLR2004  # whole ratings would leave two of them


def format_number(value: float) -> str:
    """Return a rating as people write it: `8`, not `8.0`; at most ten significant digits when it is not whole."""
    if value == int(value):
        return str(int(value))
    return f"{value:.10g}"
