"""How many tests a drop takes to be seen, by the spread of an earlier run of the same config."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from geval_cli.records import CaseResult, RunStatus, Status
from geval_cli.report.plan import PowerPlan
from geval_cli.runs.requests import PreparedRun
from geval_cli.runs.stored import load_report
from geval_cli.runs.verdicts import gates_of
from geval_cli.statistics.intervals import ClusteredMean
from geval_cli.statistics.paired import detectable_quantile
from geval_cli.store.runs import RunStore, config_file

DROP = 0.05
_ENDED = frozenset({RunStatus.COMPLETED, RunStatus.INTERRUPTED, RunStatus.ABORTED})
_LEAST = 2
_LEAST_KNOWN = 10
"""Tests of the earlier run below which its spread says too little."""


def planned_power(prepared: PreparedRun, runs: RunStore) -> tuple[PowerPlan, ...]:
    """Return what a run can show of the pass rate and of the metrics of its gates; nothing without an earlier run.

    Raises:
        StoreError: the stored runs cannot be read.
    """
    stored = runs.of_config(config_file(prepared.suite.path), "")
    earlier = [item.run for item in stored if item.run.status in _ENDED and item.run.judged_from is None]
    if not earlier:
        return ()
    gates, _ = gates_of(prepared.request, prepared.suite)
    metrics = dict.fromkeys(gate.metric for gate in gates)
    report = load_report(runs, earlier[0].id)
    figures = _figures(report.results(), (None, *(name for name in metrics if name is not None)))
    return tuple(
        item
        for metric, mean in figures.items()
        if (item := _power(metric, mean, prepared.tests, report.run.id)) is not None
    )


def _figures(results: Iterable[CaseResult], metrics: Iterable[str | None]) -> dict[str | None, ClusteredMean]:
    """Return the mean of each metric over tests, and of whether they passed under None."""
    figures = {metric: ClusteredMean() for metric in metrics}
    for result in results:
        for metric, mean in figures.items():
            for value in _values(result, metric):
                mean.add(result.test_index, value)
    return figures


def _values(result: CaseResult, metric: str | None) -> Iterator[float]:
    if metric is not None:
        if metric in result.named_scores:
            yield result.named_scores[metric]
    elif result.status in {Status.PASSED, Status.FAILED}:
        yield float(result.status is Status.PASSED)


def _power(metric: str | None, mean: ClusteredMean, tests: int, run_id: str) -> PowerPlan | None:
    centre, error, known = mean.mean, mean.standard_error(), mean.clusters
    if centre is None or error is None or known < _LEAST_KNOWN or not 0 <= centre <= 1:
        return None
    # Tests that all came out alike say nothing of the spread that they would have after a drop.
    dropped = max(0.0, centre - DROP)
    spread = error * math.sqrt(known) or math.sqrt(dropped * (1 - dropped))
    if not spread:
        return None

    def detects(count: int) -> float:
        return detectable_quantile(count - 1) * spread / math.sqrt(count)

    most = _LEAST
    while detects(most) > DROP:
        most *= 2
    needed = _LEAST + bisect_left(range(_LEAST, most), -DROP, key=lambda count: -detects(count))
    shown = detects(tests) if tests >= _LEAST else math.inf
    return PowerPlan(metric, DROP, needed, tests, None if shown > 1 else shown, run_id)
