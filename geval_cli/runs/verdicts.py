"""Judge a run as a whole once all results are known: its gates, and the tests that are flaky."""

from collections import deque
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from geval_cli.engine.aggregate import flaky_tests, with_clustered_intervals
from geval_cli.engine.columns import ColumnSums, baseline_index
from geval_cli.engine.derived import derive_by_column
from geval_cli.engine.gates import ALL_PASS, errors_are_gated, judge_gates, passed_gate
from geval_cli.errors import StoreError
from geval_cli.records import CaseResult, Column, GateResult, JsonValue, RunSummary, Status
from geval_cli.runs.requests import PreparedRun
from geval_cli.suite.gates import Gate


def with_verdicts(
    summary: RunSummary, prepared: PreparedRun, results: Callable[[], Iterable[CaseResult]]
) -> RunSummary:
    """Return `summary` with the run's gates, its flaky tests, and its derived metrics for each column.

    The results are gone through again for each of these.
    """
    if not summary.total and prepared.request.allows_empty:
        return summary
    gates, max_errors = gates_of(prepared)
    baseline = prepared.suite.baseline
    try:
        # With one case a test, clusters are single cases and the intervals of the tally are right as they are.
        has_clusters = prepared.plan.repeats > 1 or len(prepared.plan.columns) > 1
        label = None if baseline is None else baseline.label
        summary = with_columns(
            summary, prepared.plan.columns, results(), baseline=label, has_clusters=has_clusters
        )
        if prepared.plan.repeats > 1:
            flaky, count = flaky_tests(results())
            summary = replace(summary, flaky=flaky, flaky_count=count)
        if prepared.suite.derived_metrics:
            by_column = derive_by_column(
                prepared.suite.derived_metrics, results(), columns=len(prepared.plan.columns)
            )
            summary = replace(summary, derived_by_column=by_column)
        if gates or max_errors is not None:
            summary = replace(summary, gates=judge_gates(gates, results(), max_errors=max_errors))
    # The results cannot be read again: gates are errors then, never passed.
    except StoreError as error:
        unknown = tuple(GateResult(gate.text, Status.ERROR, None, error.message) for gate in gates)
        summary = replace(summary, gates=unknown)
    return summary


def with_columns(
    summary: RunSummary,
    columns: tuple[Column, ...],
    results: Iterable[CaseResult],
    *,
    baseline: JsonValue,
    has_clusters: bool,
) -> RunSummary:
    """Return `summary` with the figures of each column, and with intervals by test where `has_clusters`.

    `results` come test by test and are gone through once; `baseline` is what the config says.
    """
    sums = ColumnSums(columns, baseline_index(columns, baseline))
    passing = sums.passing(results)
    if has_clusters:
        summary = with_clustered_intervals(summary, passing)
    else:
        deque(passing, maxlen=0)
    return replace(summary, columns=sums.summaries())


def gates_of(prepared: PreparedRun) -> tuple[tuple[Gate, ...], int | None]:
    """Return the gates of the config and of the command line, and how many errors are allowed beside them.

    Where gates decide, errors that no gate counts must not go unseen: none is allowed unless it is said how many. And
    whoever only allows errors still wants everything that was judged to pass.
    """
    request = prepared.request
    gates = prepared.suite.gates
    if request.fail_under is not None:
        gates = (*gates, passed_gate(request.fail_under))
    if request.max_errors is not None:
        return gates or (ALL_PASS,), request.max_errors
    return gates, 0 if gates and not errors_are_gated(gates) else None
