"""Student's t distribution: tails and quantiles, for any number of degrees of freedom. Plain Python, pure."""

import math
from functools import lru_cache
from statistics import NormalDist

_STIRLING_FROM = 1000.0
_MAX_STEPS = 10_000
_TINY = 1e-300
_ROUNDING = 1e-12


def two_sided_p(t: float, freedom: float) -> float:
    """Return the share of Student's t distribution at least as far from 0 as `t`; `freedom` is above 0."""
    if math.isinf(t):
        return 0.0
    squared = t * t
    return _incomplete_beta(freedom / (freedom + squared), squared / (freedom + squared), freedom / 2)


@lru_cache(maxsize=4096)
def t_quantile(share: float, freedom: float) -> float:
    """Return the value below which `share` (above 0, below 1) of Student's t distribution lies."""
    if share == 0.5:  # noqa: PLR2004  # the middle, by symmetry
        return 0.0
    if share < 0.5:  # noqa: PLR2004
        return -t_quantile(1 - share, freedom)
    # Newton's method from the normal quantile, which is nearer to 0: the tail is convex, so no step goes too far.
    # Only rounding makes a step back.
    t, tail = NormalDist().inv_cdf(share), 1 - share
    step = math.inf
    while step > _ROUNDING * t:
        power = (freedom + 1) / 2 * math.log1p(t * t / freedom)
        density = math.exp(-power - _log_beta_half(freedom / 2)) / math.sqrt(freedom)
        step = (two_sided_p(t, freedom) / 2 - tail) / density
        t += step
    return t


def _log_beta_half(a: float) -> float:
    """Return the logarithm of B(a, 1/2)."""
    if a > _STIRLING_FROM:
        # Differences of two large logarithms would lose digits; the series of their difference does not.
        return math.log(math.pi) / 2 - (math.log(a) / 2 - 1 / (8 * a) + 1 / (192 * a**3))
    return math.lgamma(a) + math.log(math.pi) / 2 - math.lgamma(a + 0.5)


def _incomplete_beta(x: float, rest: float, a: float) -> float:
    """Return the regularized incomplete beta function I_x(a, 1/2), where `rest` is 1 - x in full precision.

    Source: Press et al., "Numerical Recipes", chapter 6.4: Lentz's evaluation of the continued fraction.
    """
    if rest <= 0:
        return 1.0
    if x <= 0:
        return 0.0
    # log1p loses no digits of log(x) where x = 1 - rest is near 1.
    front = math.exp(
        a * (math.log1p(-rest) if rest < x else math.log(x)) + math.log(rest) / 2 - _log_beta_half(a)
    )
    if x < (a + 1) / (a + 2.5):
        return front * _beta_fraction(x, a, 0.5) / a
    return 1 - front * _beta_fraction(rest, 0.5, a) / 0.5


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function."""
    c, d = 1.0, 1 / _off_zero(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, _MAX_STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _off_zero(1 + term * d)
            c = _off_zero(1 + term / c)
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:  # noqa: PLR2004  # nothing changes any more
            break
    return fraction


def _off_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
