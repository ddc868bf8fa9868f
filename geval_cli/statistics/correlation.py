"""Correlations of scores with labels, and their intervals when items come in clusters. Pure; needs numpy and scipy.

Nothing here is random: an interval is the same each time. None stands for what is not defined, never 0 or NaN.
"""

import hashlib
import math
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy import stats

from geval_cli.statistics.intervals import Estimate

Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]
Codes = NDArray[np.intp]
Correlation = Callable[[Numbers, Numbers], float | None]

MIN_CLUSTERS = 10
"""With fewer, the interval of a correlation covers too little to be shown."""
MAX_GROUPS = 200
"""Clusters that are left out one by one; more are left out in so many groups."""
_CONFIDENCE_QUANTILE = 0.975
_CERTAIN = 1 - 1e-12
"""A correlation of 1 has no Fisher transform."""


def pearson(x: Numbers, y: Numbers, shares: Numbers | None = None) -> float | None:
    """Return Pearson's r; None of fewer than two pairs, or when a side is constant.

    Pairs count by `shares`, if given.
    """
    if shares is not None:
        counted = shares > 0
        x, y, shares = x[counted], y[counted], shares[counted] / shares.sum()
    if len(x) < 2 or _is_constant(x) or _is_constant(y):  # noqa: PLR2004 - a line needs two points
        return None
    if shares is None:
        dx, dy = x - x.mean(), y - y.mean()
        products = dx, dy
    else:
        dx, dy = x - shares @ x, y - shares @ y
        products = shares * dx, shares * dy
    r = float(products[0] @ dy / math.sqrt(float(products[0] @ dx) * float(products[1] @ dy)))
    return min(1.0, max(-1.0, r))


def spearman(x: Numbers, y: Numbers, shares: Numbers | None = None) -> float | None:
    """Return Spearman's rho, ties at their mean rank; None as for `pearson`. Pairs count by `shares`, if given."""
    if shares is None:
        return pearson(stats.rankdata(x), stats.rankdata(y))
    return pearson(_weighted_ranks(x, shares), _weighted_ranks(y, shares), shares)


def _weighted_ranks(values: Numbers, shares: Numbers) -> Numbers:
    """Return for each value the share of all that lie below it, and half of those that are equal."""
    _, place = np.unique(values, return_inverse=True)
    of_value = np.bincount(place, weights=shares)
    return np.asarray((np.cumsum(of_value) - of_value / 2)[place], dtype=np.float64)


def kendall(x: Numbers, y: Numbers) -> float | None:
    """Return Kendall's tau-b; None as for `pearson`."""
    if len(x) < 2 or _is_constant(x) or _is_constant(y):  # noqa: PLR2004
        return None
    # The p-value is not used: the exact one takes long, and the other is not defined for two pairs.
    method = "asymptotic" if len(x) > 2 else "exact"  # noqa: PLR2004
    return float(stats.kendalltau(x, y, method=method).statistic)


CORRELATIONS: dict[str, Correlation] = {"pearson": pearson, "spearman": spearman, "kendall": kendall}


def partial_spearman(x: Numbers, y: Numbers, given: Numbers) -> float | None:
    """Return Spearman's rho of x and y with the ranks of `given` held fixed; None where one of them is constant."""
    xy, xg, yg = spearman(x, y), spearman(x, given), spearman(y, given)
    if xy is None or xg is None or yg is None:
        return None
    rest = (1 - xg**2) * (1 - yg**2)
    return (xy - xg * yg) / math.sqrt(rest) if rest > 1 - _CERTAIN else None


def encode(names: Sequence[str]) -> Codes:
    """Return a whole number from 0 for each name, equal ones for equal names, in the order in which they come."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.intp)


def fold(names: Sequence[str], most: int = MAX_GROUPS) -> Codes:
    """Return the group of each cluster: itself, or one of `most` by the hash of its name when there are more."""
    if len(set(names)) <= most:
        return encode(names)
    hashed = {
        name: str(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % most) for name in set(names)
    }
    return encode([hashed[name] for name in names])


def jackknife(
    statistic: Callable[[Mask], float | None],
    clusters: Sequence[str],
    *,
    is_correlation: bool = True,
    n: int | None = None,
) -> Estimate:
    """Return a statistic with its interval by leaving out one cluster at a time.

    Args:
        statistic: of the items that a mask keeps.
        clusters: the name of each item's cluster; above `MAX_GROUPS` they are left out in groups.
        is_correlation: whether it lies within -1..1: the interval is then made on Fisher's z scale, and from
            `MIN_CLUSTERS` clusters on only; else from two on.
        n: items that count, when it is not all of them.

    Source: Efron and Stein, "The jackknife estimate of variance", 1981; Student's t with G - 1 for G groups.
    """
    everything = np.ones(len(clusters), dtype=bool)
    value, found = statistic(everything), len(set(clusters))
    bare = Estimate(value, None, len(clusters) if n is None else n, found)
    if value is None or found < (MIN_CLUSTERS if is_correlation else 2):
        return bare
    left_out = leave_one_out(statistic, clusters)
    return replace_interval(bare, jackknife_interval(value, left_out, is_correlation=is_correlation))


def leave_one_out(statistic: Callable[[Mask], float | None], clusters: Sequence[str]) -> list[float | None]:
    """Return a statistic without each cluster; above `MAX_GROUPS` clusters, without groups of them."""
    groups = fold(clusters)
    return [statistic(groups != group) for group in range(int(groups.max()) + 1)]


def jackknife_error(left_out: Numbers) -> float:
    """Return the standard error of a statistic by its values without each cluster."""
    return math.sqrt((len(left_out) - 1) / len(left_out) * float(((left_out - left_out.mean()) ** 2).sum()))


def jackknife_interval(
    value: float, left_out: Sequence[float | None], *, is_correlation: bool = True
) -> tuple[float, float] | None:
    """Return the 95 % interval around `value` from the values without each group; None where one is undefined."""
    known = [item for item in left_out if item is not None]
    if len(known) < len(left_out) or len(known) < 2:  # noqa: PLR2004 - a spread needs two
        return None
    if is_correlation and max(abs(item) for item in (value, *known)) > _CERTAIN:
        return None
    numbers = np.array(known)
    if is_correlation:
        value, numbers = math.atanh(value), np.arctanh(numbers)
    count = len(known)
    spread = float(stats.t.ppf(_CONFIDENCE_QUANTILE, count - 1)) * jackknife_error(numbers)
    low, high = value - spread, value + spread
    return (math.tanh(low), math.tanh(high)) if is_correlation else (low, high)


def replace_interval(estimate: Estimate, interval: tuple[float, float] | None) -> Estimate:
    """Return the estimate with another interval."""
    return Estimate(estimate.value, interval, estimate.n, estimate.clusters)


def dataset_level(correlation: Correlation, x: Numbers, y: Numbers, clusters: Sequence[str]) -> Estimate:
    """Return the correlation over all pairs."""
    return jackknife(lambda kept: correlation(x[kept], y[kept]), clusters)


class DocumentMean(Struct, frozen=True):
    """A mean over the documents that have one value each: `used` of them; `skipped` have a constant side."""

    estimate: Estimate
    used: int
    skipped: int


def summary_level(
    correlation: Correlation, x: Numbers, y: Numbers, documents: Sequence[str], clusters: Sequence[str]
) -> DocumentMean:
    """Return the mean of each document's correlation over its outputs, as G-Eval's paper does on SummEval.

    Documents where a side is constant have none and are skipped. No interval where a document spreads over clusters.
    """
    codes = encode(documents)
    order = np.argsort(codes, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    found = [(correlation(x[rows], y[rows]), rows) for rows in members]
    values = np.array([value for value, _ in found if value is not None])
    used = [rows for value, rows in found if value is not None]
    homes = [{clusters[row] for row in rows} for rows in used]
    n, skipped = sum(map(len, used)), len(found) - len(used)
    if not used:
        return DocumentMean(Estimate(None), 0, skipped)
    if any(len(home) > 1 for home in homes):
        value = float(values.mean())
        return DocumentMean(Estimate(value, None, n, len(set(clusters))), len(used), skipped)

    def mean(kept: Mask) -> float | None:
        return float(values[kept].mean()) if kept.any() else None

    return DocumentMean(jackknife(mean, [next(iter(home)) for home in homes], n=n), len(used), skipped)


def system_level(
    correlation: Correlation, x: Numbers, y: Numbers, systems: Sequence[str], clusters: Sequence[str]
) -> Estimate:
    """Return the correlation of the systems' mean score with their mean label."""
    codes = encode(systems)
    count = int(codes.max()) + 1

    def of_means(kept: Mask) -> float | None:
        sizes = np.bincount(codes[kept], minlength=count)
        there = sizes > 0
        means = [np.bincount(codes[kept], side[kept], count)[there] / sizes[there] for side in (x, y)]
        # Sums in another order differ in the last digits, which must not break a tie of two systems.
        return correlation(np.round(means[0], 12), np.round(means[1], 12))

    return jackknife(of_means, clusters)


def _is_constant(values: Numbers) -> bool:
    return bool((values == values[0]).all())
