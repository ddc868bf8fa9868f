"""The test case and the result of an evaluation, and the options for judging."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from geval_cli.gateway.budget import Budget


class _NoOutput:
    """A marker for a test case without an output of its own."""

    def __repr__(self) -> str:
        return "no output"


NO_OUTPUT = _NoOutput()


@dataclass(frozen=True, slots=True)
class TestCase:
    """One output to judge, and what it is judged against.

    Attributes:
        input: what the user said to the model under test; for a dimension, the source text.
        actual_output: what the model answered; anything but text is shown to the judge as JSON.
        expected_output: a good answer, for comparison.
        context: known facts: a text or several.
        retrieval_context: what a search found for the input: a text or several.
        images, audio: what the judge sees and hears in addition to the texts: paths, data URLs, or bytes.
        turns: a conversation, [{"role": "user", "content": "..."}, ...]. Without `actual_output`, the last turn is the
            assistant's; with it, the output comes after them. In a suite also {"simulate": {"goal": "...", ...}}.
        scenario: what the conversation is about.
        expected_outcome: how it should end.
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
    """Return whether a table cell is empty: NaN, or pandas' NA or NaT."""
    return type(value).__name__ in {"NAType", "NaTType"} or (isinstance(value, float) and value != value)  # noqa: PLR0124 - only NaN differs from itself


def given_media(given: object) -> Sequence[object]:
    """Return the given images or recordings as a sequence, even if there is only one."""
    if isinstance(given, str | bytes | Path):
        return [given]
    return list(given) if isinstance(given, Sequence) else [given]


def written_media(given: object, kind: str) -> str:
    """Return an `image`, or `audio`, from a program in the form that a config would name it.

    Raises:
        UsageError: it is not a path, a data URL or bytes.
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
        threshold: the lowest passing score (0..1); 1 in strict mode.
        reason: the judge's own; for a dimension, the ratings in words; None if the judge gave none.
        latency_ms: from the start of this evaluation to its verdict, in milliseconds, including waiting.
        metadata: how the score was determined: `raw_score` in the `score_range` of the judge's ratings, `estimator`
            (logprobs, samples or single) and, if it was not the preferred one, `fallback`; `evaluation_steps`,
            `criteria` or `dimension`, `evaluation_params`, `judge`, `usage`, and what the estimator found
            (`distribution`, `coverage`, `valid` of `requested`, `read_from`). With several criteria: `parts`, one each.
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
    """The options for calling judges.

    Attributes:
        uses_cache: whether answers are read from and written to the cache in the state folder; otherwise they are kept
            in memory only.
        home: the state folder; None for GEVAL_HOME, or `.geval` in the current folder.
        is_offline: whether only the cache answers.
        budget: what may be spent; None for no limit.
        batch_poll_s: use batches, with this interval between two polls in seconds; None calls judges directly.
    """

    uses_cache: bool = False
    home: Path | None = None
    is_offline: bool = False
    budget: "Budget | None" = None
    batch_poll_s: float | None = None


@contextmanager
def exits_as_errors(kinds: tuple[type[BaseException], ...] = (SystemExit,)) -> Iterator[None]:
    """Raise RuntimeError if a package's code raises one of `kinds`, which would end an event loop."""
    try:
        yield
    except kinds as end:
        raise RuntimeError(f"code of a package raised {end!r}").with_traceback(end.__traceback__) from end
