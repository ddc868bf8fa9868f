"""Test whether a judge's scale has shifted, from ratings of the same outputs then and now. Plain Python, pure."""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from geval_cli.extras.trust.statistics.plain import SCORE_DIGITS
from geval_cli.extras.trust.statistics.sequential import SequentialMean
from geval_cli.statistics.intervals import ClusterSums, Interval, mean_interval

MARGIN = 0.05
"""A mean shift of up to this much of the scale counts as none."""
LEVEL = 0.9
"""The level of the interval: both ends inside the margin amount to two one-sided tests at 5 %."""
_ALPHA = 0.05


class DriftVerdict(StrEnum):
    """The conclusion about a judge's drift."""

    STEADY = "steady"
    MOVED = "moved"
    UNCLEAR = "unclear"


class RatedTwice(Struct, frozen=True):
    """One output's scores, then and now; outputs of one test share a `cluster`.

    `passed` and `passes` are the verdicts then and now, both at today's threshold; None without one.
    """

    cluster: str
    before: float
    after: float
    passed: bool | None = None
    passes: bool | None = None


class Drift(Struct, frozen=True):
    """The difference between the scores of the same outputs: now minus then.

    Attributes:
        n: number of outputs.
        clusters: number of tests that they are from.
        before, after: the mean scores.
        shift: `after` minus `before`.
        se: its standard error, clustered by test; None for fewer than two tests.
        interval: 90 % interval of the shift; None as for `se`.
        rank: Spearman's rho; None if all scores of one side are equal.
        newly_failed, newly_passed: number of flipped verdicts, out of `judged`.
        margin: largest shift that counts as none.
    """

    n: int
    clusters: int
    before: float
    after: float
    shift: float
    se: float | None
    interval: Interval | None
    rank: float | None
    newly_failed: int
    newly_passed: int
    judged: int
    margin: float
    verdict: DriftVerdict


def drift_of(pairs: Sequence[RatedTwice], margin: float = MARGIN) -> Drift | None:
    """Return the drift of the scores; None without any pair."""
    if not pairs:
        return None
    count = len(pairs)
    before = math.fsum(pair.before for pair in pairs) / count
    after = math.fsum(pair.after for pair in pairs) / count
    shift = math.fsum(pair.after - pair.before for pair in pairs) / count
    sums = ClusterSums.of([pair.after - pair.before for pair in pairs], [pair.cluster for pair in pairs])
    groups, variance, interval = sums.clusters, None, None
    if groups > 1:
        variance = sums.variance
        interval = mean_interval(shift, variance, groups, level=LEVEL, lowest=-1, freedom=sums.freedom)
    flips = [(pair.passed, pair.passes) for pair in pairs if pair.passed is not None]
    return Drift(
        n=count,
        clusters=groups,
        before=before,
        after=after,
        shift=shift,
        se=None if variance is None else math.sqrt(variance),
        interval=interval,
        rank=spearman([pair.before for pair in pairs], [pair.after for pair in pairs]),
        newly_failed=flips.count((True, False)),
        newly_passed=flips.count((False, True)),
        judged=len(flips),
        margin=margin,
        verdict=_verdict(interval, margin),
    )


def _verdict(interval: Interval | None, margin: float) -> DriftVerdict:
    if interval is None:
        return DriftVerdict.UNCLEAR
    low, high = interval
    if -margin <= low and high <= margin:
        return DriftVerdict.STEADY
    return DriftVerdict.MOVED if low > margin or high < -margin else DriftVerdict.UNCLEAR


def least_for_steady(margin: float = MARGIN) -> int:
    """Return the smallest number of tests that can show a judge to be steady, reached if no score changes at all.

    `margin` is above 0.
    """

    def is_steady(count: int) -> bool:
        return _verdict(mean_interval(0.0, 0.0, count, level=LEVEL, lowest=-1), margin) is DriftVerdict.STEADY

    return bisect_left(range(1 << 62), True, lo=2, key=is_steady)


class Looks(Struct, frozen=True):
    """The combined result of all looks at the same anchors, however many there are.

    Attributes:
        count: number of looks. Each is one observation, its mean shift, since all of them share the original scores.
        mean: mean of their shifts.
        interval: 95 % confidence sequence of the shift: valid at all looks simultaneously.
        moved: whether a shift beyond the margin is shown.
    """

    count: int
    mean: float
    interval: Interval
    moved: bool


def looks_at(shifts: Sequence[float], margin: float = MARGIN) -> Looks | None:
    """Return what the shifts of all looks show together, oldest first; None without any.

    The probability of a false alarm over all looks is at most 5 % while the shift stays within the margin.
    """
    if not shifts:
        return None
    # Shifts within -1..1 are rescaled to 0..1 and compared with both ends of the margin.
    sequence = SequentialMean(_ALPHA, (1 + margin) / 2, (1 - margin) / 2)
    has_moved = False
    for shift in shifts:
        sequence.add((1 + shift) / 2)
        has_moved = has_moved or sequence.is_above or sequence.is_below
    low, high = sequence.interval() or (0.0, 1.0)
    return Looks(len(shifts), math.fsum(shifts) / len(shifts), (2 * low - 1, 2 * high - 1), has_moved)


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's rho with average ranks for ties; None if all numbers of one side are equal."""
    x, y = (_ranks([round(value, SCORE_DIGITS) for value in side]) for side in (first, second))
    middle = (len(x) + 1) / 2
    spread_x = math.fsum((rank - middle) ** 2 for rank in x)
    spread_y = math.fsum((rank - middle) ** 2 for rank in y)
    if not spread_x or not spread_y:
        return None
    together = math.fsum((a - middle) * (b - middle) for a, b in zip(x, y, strict=True))
    return together / math.sqrt(spread_x * spread_y)


def _ranks(values: Sequence[float]) -> list[float]:
    places: defaultdict[float, list[int]] = defaultdict(list)
    for place, value in enumerate(sorted(values), start=1):
        places[value].append(place)
    return [sum(places[value]) / len(places[value]) for value in values]
