"""Turn ratings into a score: normalisation, the distribution of samples, and the decision to pass.

score = (rating - low) / (high - low); pass when round(score, 9) >= round(threshold, 9).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from geval_cli.errors import JudgeRangeError
from geval_cli.judge.metric import Estimator, Metric, ReadFrom, ScoreRange, format_number
from geval_cli.records import JsonValue, Status, Usage, to_json

STRICT_MAJORITY = 0.5 + 2e-9
"""The least share of samples that say 1 with which strict mode passes: more than half, whatever float dust says."""

_DECIDING_DIGITS = 9
_DUST = 1e-9


class Distribution(Struct, frozen=True):
    """A probability distribution over ratings. `masses` sum to `coverage`, which is at most 1."""

    masses: Mapping[float, float] = field(default_factory=dict)
    coverage: float = 0.0

    @property
    def shares(self) -> dict[float, float]:
        """Return rating -> probability, renormalised to sum to 1, from the lowest rating to the highest."""
        if self.coverage <= 0:
            return {}
        return {rating: self.masses[rating] / self.coverage for rating in sorted(self.masses)}

    def mean(self) -> float:
        """Return the expected rating, sum of p * rating over what is covered (Liu et al. 2023, section 2, equation 1).

        Raises:
            ValueError: nothing is covered.
        """
        if self.coverage <= 0:
            raise ValueError("an empty distribution has no mean")
        total = math.fsum(self.masses.values())
        return math.fsum(rating * mass for rating, mass in self.masses.items()) / total


def distribution_of(ratings: Sequence[float]) -> Distribution:
    """Return the distribution of sampled ratings by their frequency."""
    counts = Counter(ratings)
    return Distribution(
        {rating: count / len(ratings) for rating, count in counts.items()}, 1.0 if ratings else 0.0
    )


def mean_of_samples(ratings: Sequence[float]) -> float:
    """Return the plain mean; `ratings` must not be empty."""
    return math.fsum(ratings) / len(ratings)


def nearest_to(ratings: Sequence[float], mean: float) -> int:
    """Return the index of the rating nearest to `mean`; the first of several."""
    return min(range(len(ratings)), key=lambda index: abs(ratings[index] - mean))


def normalise_rating(rating: float, score_range: ScoreRange) -> float:
    """Map a rating from the judge's range onto 0..1.

    Raises:
        JudgeRangeError: the rating lies outside `score_range` by more than float dust; it is not clamped, since a clamp
            would hide a judge that ignores its scale.
    """
    low, high = score_range
    score = (rating - low) / (high - low)
    if not -_DUST <= score <= 1 + _DUST:
        span = f"{format_number(low)} to {format_number(high)}"
        raise JudgeRangeError(f"the rating {rating!r} is outside {span}")
    return min(max(score, 0.0), 1.0)


def passes(score: float, threshold: float) -> bool:
    """Return whether `score` reaches `threshold`; equal passes, and differences below 1e-9 never decide."""
    return score >= threshold or round(score, _DECIDING_DIGITS) >= round(threshold, _DECIDING_DIGITS)


def strict_score(distribution: Distribution) -> float:
    """Return 1 when more than half of the known probability is for 1, else 0 (strict mode; a tie is not enough)."""
    return 1.0 if distribution.shares.get(1.0, 0.0) > 0.5 + _DUST else 0.0  # a majority


class RatingEstimate(Struct, frozen=True):
    """A rating and how it was found.

    Attributes:
        rating: in the metric's `asked_range`; fractional when weighted or averaged.
        reason: what the judge said beside it.
        estimator: how it was found; `fallback` says why it was not the way that was hoped for, or is None.
        read_from: what of the judge's reply it was read from; None for the mean of several.
        distribution: of the ratings; empty for `single`, for a checklist and for the mean of several.
        valid: readable samples of `requested`; both None unless `samples`.
        early_stop: after how many samples of how many it was enough, and why; None where all were to be taken.
    """

    rating: float
    reason: str | None
    estimator: Estimator
    read_from: ReadFrom | None = None
    distribution: Distribution = field(default_factory=Distribution)
    valid: int | None = None
    requested: int | None = None
    early_stop: Mapping[str, JsonValue] | None = None
    fallback: str | None = None

    @property
    def coverage(self) -> float | None:
        """Return the share of the probability that could be resolved (0..1); None unless `logprobs`."""
        return self.distribution.coverage if self.estimator == "logprobs" else None


class Grade(Struct, frozen=True):
    """The outcome of a judgement.

    Attributes:
        status: `passed` or `failed`, by the metric's effective threshold.
        score: 0..1.
        detail: the JSON form of all this, for `AssertionResult.detail`.
    """

    status: Status
    score: float
    threshold: float
    reason: str | None
    estimate: RatingEstimate
    evaluation_steps: tuple[str, ...] = ()
    usage: Usage = Usage()
    latency_ms: float = 0.0
    detail: Mapping[str, JsonValue] = field(default_factory=dict)


def graded(
    metric: Metric,
    score: float,
    estimate: RatingEstimate,
    about: Mapping[str, JsonValue],
    *,
    usage: Usage,
    latency_ms: float,
    score_range: ScoreRange | None = None,
    steps: tuple[str, ...] = (),
    may_pass: bool = True,
) -> Grade:
    """Hold a score against the threshold of its metric.

    Args:
        metric: the criterion.
        score: 0..1.
        estimate: the rating that the score is made of, and the reason to show.
        about: what else the detail says, without what is None.
        usage: of all calls.
        latency_ms: of all calls.
        score_range: of the rating; the metric's `asked_range` unless it is another.
        steps: the evaluation steps that were followed.
        may_pass: False where something that is required is missing, whatever the score.
    """
    threshold = metric.effective_threshold
    shares = {format_number(rating): share for rating, share in estimate.distribution.shares.items()}
    detail = {
        "estimator": estimate.estimator,
        "rating": estimate.rating,
        "score_range": score_range or metric.asked_range,
        "distribution": shares or None,
        "coverage": estimate.coverage,
        "valid": estimate.valid,
        "requested": estimate.requested,
        "early_stop": estimate.early_stop,
        "read_from": estimate.read_from,
        "fallback": estimate.fallback,
        "evaluation_steps": steps,
        "usage": usage,
        "latency_ms": latency_ms,
        **about,
    }
    return Grade(
        status=Status.PASSED if may_pass and passes(score, threshold) else Status.FAILED,
        score=score,
        threshold=threshold,
        reason=estimate.reason,
        estimate=estimate,
        evaluation_steps=steps,
        usage=usage,
        latency_ms=latency_ms,
        detail=to_json({name: value for name, value in detail.items() if value is not None}),
    )


def mean_grade(
    metric: Metric,
    grades: Sequence[Grade],
    about: Mapping[str, JsonValue],
    *,
    reason: str | None,
    steps: tuple[str, ...],
) -> Grade:
    """Return the grade of several, each of a part of what is judged: the mean of their scores, with one threshold."""
    estimators = {grade.estimate.estimator for grade in grades}
    estimate = RatingEstimate(
        math.fsum(grade.estimate.rating for grade in grades) / len(grades),
        reason,
        estimators.pop() if len(estimators) == 1 else "mixed",
        fallback=next((grade.estimate.fallback for grade in grades if grade.estimate.fallback), None),
    )
    return graded(
        metric,
        math.fsum(grade.score for grade in grades) / len(grades),
        estimate,
        about,
        usage=sum((grade.usage for grade in grades[1:]), grades[0].usage),
        latency_ms=max(grade.latency_ms for grade in grades),
        steps=steps,
    )
