"""The standard error of a mean over clusters, computed from matrices."""

from collections.abc import Sequence

import numpy as np


def cr2_of(rows: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return `cr2` of values that come as one row for each cluster."""
    places = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    return cr2(np.concatenate([np.asarray(row, dtype=float) for row in rows]), places)


def cr2(values: np.ndarray, places: np.ndarray) -> tuple[float, float]:
    """Return CR2's standard error of the mean and Bell and McCaffrey's degrees of freedom, from their definition."""
    n = len(values)
    hat = np.ones((n, n)) / n
    rest = np.eye(n) - hat
    residuals = rest @ values
    variance, columns = 0.0, []
    for cluster in np.unique(places):
        own = places == cluster
        size = own.sum()
        # The inverse root of (I - H)_gg; its directions across the column of ones are left as they are.
        block = np.eye(size) + (1 / np.sqrt(1 - size / n) - 1) * np.ones((size, size)) / size
        weights = block.sum(axis=0) / n
        variance += (weights @ residuals[own]) ** 2
        columns.append(rest[:, own] @ weights)
    spectrum = np.linalg.eigvalsh(np.array(columns) @ np.array(columns).T)
    return float(np.sqrt(variance)), float(spectrum.sum() ** 2 / (spectrum**2).sum())
