"""Chances over several tries of one test, from how many of its repeats passed. Pure."""

from collections.abc import Iterable
from math import comb

from geval_cli.statistics.intervals import Interval, wilson_interval


def pass_at_k(passed: int, judged: int, k: int) -> float | None:
    """Return the unbiased estimate (0..1) of the chance that at least one of `k` tries passes; None of fewer tries.

    Source: Chen et al., "Evaluating Large Language Models Trained on Code" (HumanEval), 2021: 1 - C(n - c, k) / C(n, k)
    for c of n tries that passed.
    """
    return None if judged < k else 1 - comb(judged - passed, k) / comb(judged, k)


def pass_hat_k(passed: int, judged: int, k: int) -> float | None:
    """Return the unbiased estimate (0..1) of the chance that all of `k` tries pass; None of fewer tries.

    Source: Yao et al., "tau-bench: A Benchmark for Tool-Agent-User Interaction in Real-World Domains", 2024:
    C(c, k) / C(n, k) for c of n tries that passed.
    """
    return None if judged < k else comb(passed, k) / comb(judged, k)


def mean_share(shares: Iterable[tuple[float, int]], cases: int) -> tuple[float | None, Interval | None, int]:
    """Return the mean of one share for each test, its 95 % interval, and how many tests there are.

    The interval is Wilson's with the effective number of cases, as `ClusteredMean.share_interval` has it; None of fewer
    than two tests.

    Args:
        shares: pairs of a share (0..1) and the number of tests that have it.
        cases: how many cases the shares were computed from; no interval is narrower than that of so many.
    """
    counted = list(shares)
    tests = sum(count for _, count in counted)
    if not tests:
        return None, None, 0
    mean = sum(share * count for share, count in counted) / tests
    if tests == 1:
        return mean, None, 1
    variance = sum(count * (share - mean) ** 2 for share, count in counted) / tests**2
    if mean in {0.0, 1.0}:
        worth = float(tests)
    else:
        worth = min(cases, mean * (1 - mean) / variance) if variance else float(cases)
    return mean, wilson_interval(mean * worth, worth), tests
