"""How sure a number is: 95 % intervals for a share and for a mean. Pure."""

import math
from statistics import NormalDist

from msgspec import Struct

Interval = tuple[float, float]
"""The lower and the upper bound."""

_CONFIDENCE_QUANTILE = 0.975
_Z = NormalDist().inv_cdf(_CONFIDENCE_QUANTILE)
# The 97.5 % quantile of Student's t for 1, 2, ... degrees of freedom, where the series below is not good enough.
_T_FEW = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


def wilson_interval(passed: int, judged: int) -> Interval | None:
    """Wilson's score interval for the share `passed` of `judged`, within 0..1; None when nothing was judged.

    Unlike the usual mean plus or minus an error, it stays within 0..1 and says something for 0 and for all of a few.

    Source: Wilson, E. B., "Probable inference, the law of succession, and statistical inference", 1927.
    """
    if not judged:
        return None
    share, z_squared = passed / judged, _Z**2
    centre = share + z_squared / (2 * judged)
    spread = _Z * math.sqrt(share * (1 - share) / judged + z_squared / (4 * judged**2))
    scale = 1 + z_squared / judged
    low = 0.0 if passed == 0 else max(0.0, (centre - spread) / scale)
    high = 1.0 if passed == judged else min(1.0, (centre + spread) / scale)
    return low, high


class RunningMean(Struct):
    """The mean and the spread of numbers that come one by one and are not kept.

    Source: Welford, B. P., "Note on a method for calculating corrected sums of squares and products", 1962.
    """

    n: int = 0
    _mean: float = 0.0
    _squares: float = 0.0
    _lowest: float = math.inf
    _highest: float = -math.inf

    def add(self, value: float) -> None:
        """Take in the next number."""
        self.n += 1
        self._lowest, self._highest = min(self._lowest, value), max(self._highest, value)
        distance = value - self._mean
        self._mean += distance / self.n
        self._squares += distance * (value - self._mean)

    @property
    def mean(self) -> float | None:
        """The mean so far; None of nothing."""
        return self._mean if self.n else None

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation; None of fewer than two numbers."""
        return math.sqrt(max(self._squares, 0.0) / (self.n - 1)) if self.n > 1 else None

    def interval(self) -> Interval | None:
        """The 95 % interval of the mean by Student's t; None of fewer than two numbers.

        It assumes that the tests are a sample of those that could have been written. Of numbers that all lie within
        0..1, as scores do, the interval is cut to that range: their mean cannot lie outside.
        """
        deviation = self.deviation
        if deviation is None:
            return None
        spread = _t_quantile(self.n - 1) * deviation / math.sqrt(self.n)
        low, high = self._mean - spread, self._mean + spread
        if self._lowest >= 0 and self._highest <= 1:
            return max(low, 0.0), min(high, 1.0)
        return low, high


def _t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, good to three decimals.

    Source: the Cornish-Fisher series in Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.5.
    """
    if freedom <= len(_T_FEW):
        return _T_FEW[freedom - 1]
    z = _Z
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / float(freedom) ** power for power, term in enumerate(terms))
