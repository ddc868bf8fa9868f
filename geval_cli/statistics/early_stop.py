"""Decides when a rating has enough samples, by how likely the remaining ones are to change the verdict.

The remaining samples are assumed to be drawn like the earlier ones: from a Dirichlet-multinomial distribution whose
parameters are the counts seen, plus a prior worth one sample that is centred on their median. The probability that
all samples together pass is exact. This is a rule for saving money, not a test of a hypothesis: how often it errs is
not guaranteed, only measured (docs/reference/geval.md).
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

from msgspec import Struct

DEFAULT_STOP_ERROR = 0.02

_BATCH_ENDS = (2, 4, 8, 14, 20)
_GROWTH = 1.5  # after those, each batch ends half as far again
_PRIOR_POWER = 2.1
_PRIOR_WIDTH = 4  # the width of the scale in units of distance, however many ratings it has
_DUST = 5e-10  # a score is rounded to nine decimals before it is compared
_UNITS = 10**9  # ratings are added up as whole numbers of 1 / _UNITS
_MOST_WORK = 2_000_000  # products in one convolution; more would block everything else for a second
_DECISIONS_KEPT = 4096


class StopRule(Struct, frozen=True):
    """A rule for when to stop taking samples.

    Attributes:
        scale: every rating that the judge may give, from the lowest to the highest.
        least_mean: the lowest mean rating that passes.
        stop_error: the probability (0 to 0.5) of a different verdict at which it stops; 0 stops only at certainty.
    """

    scale: tuple[float, ...]
    least_mean: float
    stop_error: float = DEFAULT_STOP_ERROR


class StopDecision(Struct, frozen=True):
    """A decision to stop or to continue; `p_pass` is how likely all samples together pass, None if not computed."""

    stops: bool
    p_pass: float | None

    @property
    def is_certain(self) -> bool:
        return self.p_pass in (0.0, 1.0)


def batch_ends(upto: int) -> tuple[int, ...]:
    """Return after how many samples to check: 2, 4, 8, 14, 20, then half as many more each time, and `upto` last."""
    ends = [end for end in _BATCH_ENDS if end < upto]
    end = math.ceil(_BATCH_ENDS[-1] * _GROWTH)
    while end < upto:
        ends.append(end)
        end = math.ceil(end * _GROWTH)
    return (*ends, upto)


def decide(rule: StopRule, ratings: Sequence[float], left: int) -> StopDecision:
    """Return whether to stop after `ratings`, in any order, when `left` more samples could be taken."""
    return _decide(rule, tuple(sorted(ratings)), left)


@lru_cache(maxsize=_DECISIONS_KEPT)
def _decide(rule: StopRule, ratings: tuple[float, ...], left: int) -> StopDecision:
    if not ratings:
        return StopDecision(stops=left == 0, p_pass=None)
    low = rule.scale[0]
    high = rule.scale[-1]
    total = len(ratings) + left
    least = total * (rule.least_mean - _DUST * (high - low))
    seen = math.fsum(ratings)
    if seen + left * low >= least:
        return StopDecision(stops=True, p_pass=1.0)
    if seen + left * high < least:
        return StopDecision(stops=True, p_pass=0.0)
    support = tuple(sorted({*rule.scale, *ratings}))
    if left**3 * len(support) ** 2 / 6 > _MOST_WORK:
        return StopDecision(stops=False, p_pass=None)
    chance = _tail(support, _parameters(support, ratings, high - low), left, least - seen)
    is_settled = rule.stop_error > 0 and min(chance, 1 - chance) <= rule.stop_error
    # Neither outcome is certain, even if a sum of floats says so.
    return StopDecision(stops=is_settled, p_pass=min(max(chance, math.ulp(0.0)), math.nextafter(1.0, 0.0)))


def _parameters(support: Sequence[float], ratings: tuple[float, ...], width: float) -> tuple[float, ...]:
    """Return a Dirichlet parameter for each rating: how often it was given, plus its share of a prior of weight 1.

    The prior falls off with the distance from the (upper) median of the ratings: on a scale of 1 to 5, the ratings at a
    distance of 1, 2 and 3 have 0.5, 0.051 and 0.00095 of the median's weight.
    """
    median = ratings[len(ratings) // 2]
    weights = [
        float(2.0 ** -((_PRIOR_WIDTH * abs(rating - median) / width) ** _PRIOR_POWER)) for rating in support
    ]
    total = math.fsum(weights)
    return tuple(
        ratings.count(rating) + weight / total for rating, weight in zip(support, weights, strict=True)
    )


def _tail(support: Sequence[float], parameters: Sequence[float], left: int, least: float) -> float:
    """Return the probability that `left` draws from the urn add up to at least `least`.

    With the parameters alpha, their sum A and the ratings x, the coefficient of t^n in prod (1 - t z^x)^-alpha, divided
    by that of (1 - t)^-A, is the distribution of the sum of n draws. Differentiating the logarithm gives the recurrence
    n F_n = sum over k of F_(n-k) P_k with P_k = sum alpha z^(k x). Every term is positive, so nothing cancels.
    """
    points = [(round(rating * _UNITS), alpha) for rating, alpha in zip(support, parameters, strict=True)]
    sums: list[dict[int, float]] = [{0: 1.0}]
    for draws in range(1, left + 1):
        found: dict[int, float] = {}
        for place, mass in _products(sums, points, draws):
            found[place] = found.get(place, 0.0) + mass
        sums.append({place: mass / draws for place, mass in found.items()})
    last = sums[left]
    bound = math.ceil(least * _UNITS - left)  # rounding changed each rating by half a unit at most
    return math.fsum(mass for place, mass in last.items() if place >= bound) / math.fsum(last.values())


def _products(
    sums: Sequence[dict[int, float]], points: Sequence[tuple[int, float]], draws: int
) -> Iterator[tuple[int, float]]:
    for step in range(1, draws + 1):
        before = sums[draws - step].items()
        for rating, alpha in points:
            shift = step * rating
            for place, mass in before:
                yield place + shift, mass * alpha
