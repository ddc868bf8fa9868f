"""Input and result of an evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from geval_cli.gateway.budget import Budget


class _NoOutput:
    """Stands where a test case has no output of its own."""

    def __repr__(self) -> str:
        return "no output"


NO_OUTPUT = _NoOutput()


@dataclass(frozen=True, slots=True)
class TestCase:
    """One output to judge, and what it is judged against.

    Attributes:
        input: what the user said to the model under test; the source text, when a dimension is judged.
        actual_output: what the model answered; anything but text is shown to the judge as JSON.
        expected_output: a good answer, for comparison.
        context: what is true about the matter: a text or several.
        retrieval_context: what a search found for the input: a text or several.
        images, audio: what the judge is to see and hear beside the texts: paths, data URLs, or bytes.
        turns: a conversation, [{"role": "user", "content": "..."}, ...]. Without `actual_output` the last is the
            assistant's; with it, the output follows them. In a suite also {"simulate": {"goal": "...", ...}}.
        scenario: what the conversation is about.
        expected_outcome: where it should lead.
        role: who the assistant is.
        trace: the steps of an agent that led to the output, [{"name": "search", "args": {...}}, ...]; None if unknown.
    """

    __test__ = False  # not a pytest class

    input: str | None = None
    actual_output: Any = NO_OUTPUT
    expected_output: str | None = None
    context: str | Sequence[str] | None = None
    retrieval_context: str | Sequence[str] | None = None
    turns: Sequence[Mapping[str, Any]] | Mapping[str, Any] = ()
    scenario: str | None = None
    expected_outcome: str | None = None
    role: str | None = None
    trace: Sequence[Mapping[str, Any]] | None = None
    images: Sequence[str | Path | bytes] = ()
    audio: Sequence[str | Path | bytes] = ()


def is_missing(value: Any) -> bool:
    """Return whether a table has nothing in a cell: NaN, or what pandas has in its place."""
    return type(value).__name__ in {"NAType", "NaTType"} or (isinstance(value, float) and value != value)  # noqa: PLR0124 - only NaN differs from itself


def given_media(given: object) -> Sequence[object]:
    """Return images or recordings that a program gives, be it one alone."""
    if isinstance(given, str | bytes | Path):
        return [given]
    return list(given) if isinstance(given, Sequence) else [given]


def written_media(given: object, kind: str) -> str:
    """Return an `image`, or `audio`, that a program gives as a config would name it.

    Raises:
        UsageError: it is no path, no data URL and no bytes.
    """
    if isinstance(given, bytes):
        from base64 import b64encode

        from geval_cli.source.media import media_type_of

        return f"data:{media_type_of(given) or f'{kind}/unknown'};base64,{b64encode(given).decode()}"
    if not isinstance(given, str | Path):
        from geval_cli.errors import UsageError

        what = "an image" if kind == "image" else "audio"
        raise UsageError(f"{what} must be a path, a data URL or bytes, found {type(given).__name__}")
    written = str(given)
    return (
        written
        if written.lower().startswith(("data:", "file://", "http://", "https://"))
        else f"file://{written}"
    )


@dataclass(frozen=True, slots=True)
class Result:
    """The verdict on one test case.

    Attributes:
        metric: the metric's name with its kind, `Helpfulness [GEval]`.
        score: 0..1.
        success: whether the score reaches the threshold.
        threshold: the least score (0..1) that passes; 1 in strict mode.
        reason: the judge's own; for a dimension the ratings in words; None when the judge gave none.
        latency_ms: from the start of this evaluation to its verdict, in milliseconds, waiting included.
        metadata: how the score came about: `raw_score` in the `score_range` that the judge was asked for, `estimator`
            (logprobs, samples or single) and, when it was not the one hoped for, `fallback`; `evaluation_steps`,
            `criteria` or `dimension`, `evaluation_params`, `judge`, `usage`, and what the estimator found
            (`distribution`, `coverage`, `valid` of `requested`, `read_from`). Several criteria: `parts`, one for each.
    """

    metric: str
    score: float
    success: bool
    threshold: float
    reason: str | None
    latency_ms: float
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        from geval_cli.library.table import verdict_html

        return verdict_html(self)


@dataclass(frozen=True, slots=True)
class JudgingOptions:
    """How judges are asked.

    Attributes:
        uses_cache: whether answers are kept in the state folder's cache, and read from it; otherwise in memory alone.
        home: the state folder; None for GEVAL_HOME, or `.geval` in the current folder.
        is_offline: whether the cache alone answers.
        budget: what may be spent; None for no bound.
        batch_poll_s: the seconds between two looks at a batch that judges are asked in; None asks them directly.
    """

    uses_cache: bool = False
    home: Path | None = None
    is_offline: bool = False
    budget: "Budget | None" = None
    batch_poll_s: float | None = None
