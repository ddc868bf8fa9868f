"""The records of a judgement: the metric, the judged case and the judge.

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
"""How a rating was estimated; `mixed` if the parts of a list of criteria or a checklist used different estimators."""

ReadFrom = Literal["json", "label", "number", "retry"] | Mapping[str, int]
"""What a rating was read from: JSON, a labelled rating, a bare number or a retry; for samples, a count of each."""

Explain = Literal["failed", "passed", "always", "never"]
"""When to pay for an explanation of a dimension's rating; `passed` is for `not-g-eval`, which fails on a pass here."""

DEFAULT_SCORE_RANGE: ScoreRange = (0.0, 10.0)
DEFAULT_THRESHOLD = DEFAULT_RULES.geval_threshold
DEFAULT_SAMPLES = 20
DEFAULT_MIN_VALID = 0.5
DEFAULT_WINDOW = 5

Over = Literal["conversation", "answers"]
"""What of a conversation is rated: all of it at once, or each answer separately."""

STRICT_RANGE: ScoreRange = (0.0, 1.0)
SHARE_RANGE: ScoreRange = (0.0, 1.0)
"""The range of a checklist's rating: the weighted share of its items that are met."""


class RubricBand(Struct, frozen=True):
    """A rating (`low` equals `high`) or an inclusive range of ratings, and what an output must be like to get it."""

    low: float
    high: float
    description: str


class RubricPrompt(Struct, frozen=True):
    """The user's own judge prompts, as unrendered templates; None means geval's. `evaluate` asks for the rating."""

    steps: str | None = None
    evaluate: str | None = None


class ChecklistItem(Struct, frozen=True):
    """One requirement on an output, which the judge answers with yes or no.

    Attributes:
        weight: weight of a yes in the score, relative to the other items; at least 0.
        required: whether a no fails the output whatever the score.
        evidence: whether a yes counts only with a quotation from the output that supports it.
    """

    text: str
    weight: float = 1.0
    required: bool = False
    evidence: bool = True


class RatedExample(Struct, frozen=True):
    """An output with a human rating in `asked_range`, which shows the judge how to use the scale."""

    output: str
    rating: float
    reason: str = ""
    input: str = ""


class Metric(Struct, frozen=True):
    """One criterion: a named `dimension`, `criteria` and/or `evaluation_steps`, or a `checklist`.

    Templates in `criteria` and `evaluation_steps` are rendered before they get here; `rubric_prompt` is not.

    Attributes:
        name: shown in results; what `{{dimension}}` means in the rubric prompt of the criteria form.
        criteria: if there are several, each is judged separately, and the mean score is compared with the threshold.
        evaluation_params: None for the default: the input, the output and whatever else the test case has.
        evaluation_steps: None to have the judge write them once.
        checklist: what the output must have, item by item; there are then no criteria, steps or rubric, and the
            rating is the weighted share of items answered yes.
        joint: all dimensions rated in the same call, `dimension` among them; empty if it is rated alone.
        guidelines: sentences that tell the judge how to apply the criterion.
        examples: rated outputs that the judge is shown with the criterion.
        score_range: of the ratings; for a dimension, that of `DIMENSIONS[dimension]`.
        score_step: distance between neighbouring ratings; None for `default_step`.
        threshold: minimum score (0..1) to pass; strict mode always uses 1.
        samples: number of ratings to request; with `stop_error`, the maximum.
        stop_error: sampling stops when the probability of a different verdict is at most this (0..0.5); None takes all.
        min_valid: minimum share (0..1) of samples that must be readable.
        over: what of a conversation is rated; `answers` requires a case with turns.
        window: with `over: answers`, how many turns the judge sees, including the answer.
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
        """Return the range in which the judge is asked to rate: 0..1 in strict mode, else `score_range`."""
        return STRICT_RANGE if self.strict_mode else self.score_range

    @property
    def asked_step(self) -> float:
        """Return the distance between the ratings that the judge is asked to choose from."""
        if self.strict_mode:
            return 1.0
        return default_step(self.score_range) if self.score_step is None else self.score_step

    @property
    def effective_threshold(self) -> float:
        """Return the threshold that decides: 1 in strict mode, else `threshold`."""
        return 1.0 if self.strict_mode else self.threshold


class JudgedCase(Struct, frozen=True):
    """One output and everything from its test case that a judge may be shown.

    `geval_cli.judge.source` decides which text is the input and which the source; the caller does not.

    Attributes:
        actual_output: the raw output; anything but text is shown as JSON.
        input: the test's own `input`, before falling back to a var or the prompt.
        prompt: the prompt that the model got apart from the input, if the judge is to see it; else None.
        source: the assertion's rendered `source:`, or None.
        images, audio: markers of the images and recordings that the test has besides its vars (`source.media`).
        vars: the test's vars, used to find the source and by rubric prompts.
        rendered_prompt: the prompt as sent (for chat prompts the messages as JSON text), or None.
        repeat_index: which repeat of the run this is; part of every judge request except those for steps.
        turns: of a conversation, with the output as the last one; None if the case is not a conversation.
        rates_answer: whether one answer of a conversation is rated: `actual_output`, which is then not in `turns`.
        first_turn: the number, in the conversation, of the first of `turns`, counted from 1.
        trace: the steps that led to the output; None if unknown.
        shows_trace: whether the trace is shown with the output if the metric names no parameters.
        scenario, expected_outcome, role: what the conversation is about, how it should end, who the assistant is.
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
    """The model that grades. It retries, caches, splits requests for samples and drops what the server refuses.

    Judges are hashable. Judges that compare equal count as the same one, so each fact about it is found out only once.
    """

    @property
    def label(self) -> str: ...

    @property
    def provider_params(self) -> Mapping[str, JsonValue]:
        """Return the wire parameters from the judge provider's own config (`Provider.identity.params`).

        A temperature or token limit set there is the user's choice, and no request overrides it.
        """
        ...

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the response to `request`; its `token_logprobs` are None if the server returns none.

        Raises:
            ProviderError: no response, after retries.
        """
        ...


@runtime_checkable
class CachingJudge(Protocol):
    """A judge that caches its answers."""

    async def forget(self, request: ModelRequest) -> None:
        """Drop the cached answers to `request`, so that the next call sends it again."""
        ...

    async def has_kept(self, request: ModelRequest) -> bool:
        """Return whether all answers to `request` are in the cache."""
        ...


def public_id_of(judge: Judge) -> str:
    """Return the judge's id without credentials, fit for files that are shared."""
    # Called for each rating, like the function below; an isinstance check of a protocol takes thirty times as long.
    found = getattr(judge, "public_id", None)
    return found if isinstance(found, str) else mask_text(judge.label)


def identity_of(judge: Judge) -> ProviderIdentity | None:
    """Return the identity of the judge's provider, which determines its answers; None if it has none."""
    found = getattr(judge, "identity", None)
    return found if isinstance(found, ProviderIdentity) else None


def default_step(score_range: ScoreRange) -> float:
    """Return the default `score_step`: 1, or a tenth of the range if that is narrower than 2."""
    low, high = score_range
    return (high - low) / 10 if high - low < 2 else 1.0  # noqa: PLR2004  # whole numbers would leave only two ratings


_HUGE = 1e15


def format_number(value: float) -> str:
    """Return a rating without superfluous decimals: `8`, not `8.0`; at most ten digits if it is huge or not whole."""
    if abs(value) < _HUGE and value == int(value):
        return str(int(value))
    return f"{value:.10g}"
