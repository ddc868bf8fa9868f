"""Turn ratings into a score: normalisation, the distribution of samples, and the decision to pass.

score = (rating - low) / (high - low); pass when round(score, 9) >= round(threshold, 9) (GEVAL.md, section 2).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from geval_cli.errors import JudgeRangeError
from geval_cli.judge.metric import ScoreRange, format_number

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
