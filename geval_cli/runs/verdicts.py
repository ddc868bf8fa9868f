"""Judge a run as a whole once all results are known: its gates, and the tests that are flaky."""

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from geval_cli.engine.aggregate import derive_by_column, flaky_tests
from geval_cli.engine.columns import with_columns
from geval_cli.engine.gates import ALL_PASS, errors_are_gated, judge_gates, passed_gate
from geval_cli.engine.rankings import RankingSums
from geval_cli.errors import StoreError
from geval_cli.plugins import extra
from geval_cli.records import CaseResult, GateResult, RunRecord, RunSummary, Status
from geval_cli.runs.baseline import NO_BASELINE, Baseline, compared_with, judge_differences
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.runs.stopping import Decisions, is_not_asked
from geval_cli.suite.gates import Gate
from geval_cli.suite.suite import LoadedSuite


def with_verdicts(
    summary: RunSummary,
    prepared: PreparedRun,
    results: Callable[[], Iterator[CaseResult]],
    run: RunRecord,
    baseline: Baseline | None = None,
    decisions: Decisions | None = None,
) -> RunSummary:
    """Return `summary` with the run's gates, its flaky tests, the figures and ranks of its columns, and its comparison.

    The results are gone through again for each of these.
    """
    columns = prepared.plan.columns
    if not summary.total and prepared.request.allows_empty:
        return with_columns(summary, columns, (), baseline=None, has_clusters=False)
    gates, max_errors = gates_of(prepared.request, prepared.suite)
    has_stopped = decisions is not None and decisions.has_stopped
    named = prepared.suite.baseline
    try:
        # With one case a test, clusters are single cases and the intervals of the tally are right as they are.
        has_clusters = prepared.plan.repeats > 1 or len(columns) > 1
        label = None if named is None else named.name
        ranking = RankingSums(columns)
        passing = ranking.passing(results())
        margins = prepared.suite.margins.with_given(prepared.request.margins)
        summary = with_columns(
            summary, columns, passing, baseline=label, has_clusters=has_clusters, margins=margins
        )
        summary = ranking.with_rankings(summary)
        if prepared.plan.repeats > 1:
            flaky, count = flaky_tests(results())
            summary = replace(summary, flaky=flaky, flaky_count=count)
        if prepared.suite.derived_metrics:
            by_column = derive_by_column(prepared.suite.derived_metrics, results(), columns=len(columns))
            summary = replace(summary, derived_by_column=by_column)
        if gates or max_errors is not None:
            asked = _asked(results) if has_stopped else results
            judged = _judged(gates, max_errors, asked, (run, baseline), prepared.labels)
            summary = replace(summary, gates=judged)
        if decisions is not None and has_stopped:
            summary = replace(
                summary, gates=decisions.with_gates(summary.gates), early_stop=decisions.early_stop
            )
        if baseline is not None:
            summary = replace(summary, baseline=compared_with(baseline, run, results, margins))
    # The results cannot be read again: gates are errors then, never passed.
    except StoreError as error:
        unknown = tuple(GateResult(gate.text, Status.ERROR, None, error.message) for gate in gates)
        summary = replace(summary, gates=unknown)
    return summary


def _judged(
    gates: Sequence[Gate],
    max_errors: int | None,
    results: Callable[[], Iterator[CaseResult]],
    against: tuple[RunRecord, Baseline | None],
    labels: object,
) -> tuple[GateResult, ...]:
    """Return the results of all gates in their order, those on differences and on true figures among them."""
    run, baseline = against
    differences = [gate for gate in gates if gate.needs_baseline and not gate.needs_labels]
    found = judge_differences(differences, baseline, results(), run.columns)
    if estimated := [gate for gate in gates if gate.needs_labels and not gate.needs_baseline]:
        found |= extra("true figures").judge_true_figures(estimated, labels, results, run.id)
    if estimated := [gate for gate in gates if gate.needs_labels and gate.needs_baseline]:
        earlier = None if baseline is None else baseline.earlier
        found |= extra("true differences").judge_true_differences(estimated, labels, earlier, run, results)
    others = [gate for gate in gates if gate.text not in found]
    judged = iter(judge_gates(others, results(), max_errors=max_errors))
    in_order = [found[gate.text] if gate.text in found else next(judged) for gate in gates]
    return (*in_order, *judged)


def _asked(results: Callable[[], Iterator[CaseResult]]) -> Callable[[], Iterator[CaseResult]]:
    return lambda: (result for result in results() if not is_not_asked(result))


def gates_of(request: RunRequest, suite: LoadedSuite) -> tuple[tuple[Gate, ...], int | None]:
    """Return the gates of the config and of the command line, and how many errors are allowed beside them.

    Where gates decide, errors that no gate counts must not go unseen: none is allowed unless it is said how many. And
    whoever only allows errors still wants everything that was judged to pass.
    """
    gates = suite.gates
    if request.baseline == NO_BASELINE:
        gates = tuple(gate for gate in gates if not gate.needs_baseline)
    if request.fail_under is not None:
        gates = (*gates, passed_gate(request.fail_under))
    if request.max_errors is not None:
        return gates or (ALL_PASS,), request.max_errors
    return gates, 0 if gates and not errors_are_gated(gates) else None
