"""Define the outcome of an assertion: a verdict before weight, metric and `not-` are applied."""

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.judge.scoring import passes
from geval_cli.records import AssertionResult, JsonValue, Status


class Outcome(Struct, frozen=True):
    """A verdict before weight, metric and `not-` are applied. `score` is 0..1, None when nothing was scored.

    Attributes:
        assertions: the results of the assertions that this one holds.
    """

    status: Status
    score: float | None
    reason: str
    threshold: float | None = None
    threshold_is_default: bool = False
    detail: Mapping[str, JsonValue] = field(default_factory=dict)
    latency_ms: float = 0.0
    assertions: tuple[AssertionResult, ...] = ()

    @classmethod
    def of(cls, passed: bool, reason: str, **detail: JsonValue) -> "Outcome":
        """Return a yes-or-no verdict: score 1 or 0."""
        return cls(Status.PASSED if passed else Status.FAILED, float(passed), reason, detail=detail)

    @classmethod
    def graded(
        cls, score: float, reason: str, threshold: float, *, is_default: bool = False, **detail: JsonValue
    ) -> "Outcome":
        """Return a score on 0..1 against the threshold that it must reach."""
        status = Status.PASSED if passes(score, threshold) else Status.FAILED
        return cls(status, score, reason, threshold, is_default, detail)

    def against(self, threshold: float, *, is_default: bool = False) -> "Outcome":
        """Return the same score held against another threshold, in the reason too where that names it."""
        if self.score is None:
            return self
        status = Status.PASSED if passes(self.score, threshold) else Status.FAILED
        reason = self.reason
        if self.threshold is not None:
            reason = reason.replace(threshold_in_words(self.threshold), threshold_in_words(threshold))
        return replace(
            self, status=status, reason=reason, threshold=threshold, threshold_is_default=is_default
        )

    @classmethod
    def not_evaluated(cls, reason: str) -> "Outcome":
        """There is nothing to evaluate with."""
        return cls(Status.NOT_EVALUATED, None, reason)


def threshold_in_words(threshold: float) -> str:
    """Return the part of a reason that names the threshold."""
    return f"the threshold is {threshold:g}"


_OPPOSITE = {Status.PASSED: Status.FAILED, Status.FAILED: Status.PASSED}


def negated(outcome: Outcome) -> Outcome:
    """Return the outcome under `not-`: pass flips and the score is inverted. An unjudged outcome stays as it is."""
    return replace(
        outcome,
        status=_OPPOSITE.get(outcome.status, outcome.status),
        score=None if outcome.score is None else 1 - outcome.score,
    )


def shortened(text: str, limit: int = 120) -> str:
    """`text` for use inside a reason: on one line, at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
