"""Rank correlation of two raters."""

import math
from collections.abc import Sequence


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation; equal values share the mean of their ranks."""
    one, other = _ranks(first), _ranks(second)
    mean = (len(one) + 1) / 2
    products = math.fsum((a - mean) * (b - mean) for a, b in zip(one, other, strict=True))
    spread = math.fsum((a - mean) ** 2 for a in one) * math.fsum((b - mean) ** 2 for b in other)
    return products / math.sqrt(spread)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [order.index(value) + (order.count(value) + 1) / 2 for value in values]
