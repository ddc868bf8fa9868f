"""The outcome of one assertion, before weight, metric and `not-` are applied, and one verdict from several. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.judge.scoring import passes
from geval_cli.metrics import weighted_mean
from geval_cli.records import AssertionResult, JsonValue, Status

_OPPOSITE = {Status.PASSED: Status.FAILED, Status.FAILED: Status.PASSED}


class Verdict(Struct, frozen=True):
    """The verdict of several assertions: `score` is their weighted mean, None when one errored or none counted."""

    status: Status
    score: float | None


def verdict_of(assertions: Sequence[AssertionResult], threshold: float | None) -> Verdict:
    """Return one verdict from all assertions; with a `threshold` the weighted score decides instead of all-must-pass.

    An assertion with weight 0 is there for its metric: whether it passes decides nothing. That it could not be judged
    does, as ever.
    """
    statuses = {item.status for item in assertions if item.weight or item.status is Status.ERROR}
    score = None if Status.ERROR in statuses else weighted_score(assertions)
    if threshold is not None:
        return Verdict(_by_threshold(statuses, score, threshold), score)
    for status in (Status.FAILED, Status.ERROR, Status.PASSED):
        if status in statuses:
            return Verdict(status, score)
    if any(item.score is not None and item.status is not Status.NOT_EVALUATED for item in assertions):
        return Verdict(Status.PASSED, None)
    return Verdict(Status.NOT_EVALUATED, score)


def weighted_score(assertions: Iterable[AssertionResult]) -> float | None:
    """sum(weight * score) / sum(weight) over the assertions that have a score; None when no weight is left."""
    return weighted_mean([(item.weight, item.score) for item in assertions if item.score is not None])


def _by_threshold(statuses: set[Status], score: float | None, threshold: float) -> Status:
    if Status.ERROR in statuses:
        return Status.ERROR
    if score is None:
        return Status.NOT_EVALUATED
    return Status.PASSED if passes(score, threshold) else Status.FAILED


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
        """Return the same score held against another threshold; its reason names none, so it stays as it is."""
        if self.score is None:
            return self
        status = Status.PASSED if passes(self.score, threshold) else Status.FAILED
        return replace(self, status=status, threshold=threshold, threshold_is_default=is_default)

    @classmethod
    def not_evaluated(cls, reason: str) -> "Outcome":
        """There is nothing to evaluate with."""
        return cls(Status.NOT_EVALUATED, None, reason)


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
