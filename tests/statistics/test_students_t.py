"""The expected figures come from scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from geval_cli.statistics.intervals import _log_beta_half, t_quantile, two_sided_p

FREEDOMS = (1, 2, 2.088608, 3, 4, 5, 9, 10, 29, 99, 199, 1_000, 1_999, 2_001, 5_000, 99_999, 1_000_000)


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_students_t_is_that_of_scipy(freedom: float) -> None:
    points = [*np.linspace(-12, 12, 97), -300.0, 1e-7, 300.0]
    halves = [two_sided_p(t, freedom) / 2 for t in points]
    below = [1 - half if t > 0 else half for t, half in zip(points, halves, strict=True)]
    assert below == pytest.approx(stats.t.cdf(points, freedom), abs=1e-9)
    tails = [two_sided_p(t, freedom) for t in points if t > 0]
    assert tails == pytest.approx([2 * stats.t.sf(t, freedom) for t in points if t > 0], rel=1e-7, abs=1e-300)
    shares = [0.0001, 0.025, 0.2, 0.5, 0.6, 0.8, 0.9, 0.95, 0.975, 0.995, 0.9999]
    assert [t_quantile(share, freedom) for share in shares] == pytest.approx(
        stats.t.ppf(shares, freedom), rel=1e-9, abs=1e-9
    )


@pytest.mark.parametrize("a", [1_001, 1_500, 10_000])
def test_the_series_for_large_samples_agrees_with_the_product_that_it_stands_for(a: int) -> None:
    """B(1, 1/2) = 2, and B(k + 1, 1/2) = B(k, 1/2) k / (k + 1/2)."""
    product = math.log(2) - math.fsum(math.log1p(0.5 / k) for k in range(1, a))
    assert _log_beta_half(a) == pytest.approx(product, abs=1e-13)


@pytest.mark.parametrize("t", [math.inf, -math.inf])
def test_nothing_is_farther_off_than_infinity(t: float) -> None:
    assert two_sided_p(t, 5) == 0.0
