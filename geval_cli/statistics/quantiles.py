"""Quantiles of numbers that come one by one and are not kept. Pure."""

import math

from msgspec import Struct, field

_GROWTH = 1.01
"""Each bucket is one per cent wider than the one before, so a quantile is off by half a per cent at most."""


class Quantiles(Struct):
    """Counts in buckets that grow with the numbers: a few thousand of them, however many numbers there are.

    Source of the idea: Masson, Rim and Lee, "DDSketch: a fast and fully-mergeable quantile sketch", 2019.
    """

    n: int = 0
    _zeros: int = 0
    _buckets: dict[int, int] = field(default_factory=dict)

    def add(self, value: float) -> None:
        """Take in a number; negative ones count as 0."""
        self.n += 1
        if value <= 0:
            self._zeros += 1
            return
        bucket = math.ceil(math.log(value, _GROWTH))
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    def at(self, share: float) -> float | None:
        """Return the number that `share` (0..1) of all numbers do not exceed; None of nothing."""
        if not self.n:
            return None
        rank = max(math.ceil(share * self.n), 1)
        seen = self._zeros
        if rank <= seen:
            return 0.0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if rank <= seen:
                return 2 * _GROWTH**bucket / (_GROWTH + 1)  # the middle of the bucket, in relative terms
        return None
