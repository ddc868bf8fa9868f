"""The earlier run that a run is compared with: the comparison, and gates on the difference."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.engine.gates import is_tagged
from geval_cli.errors import ConfigError, Problem, UsageError
from geval_cli.extras.compare.comparison import (
    PASS_RATE,
    SCORE,
    ComparisonOptions,
    EarlierRun,
    Measure,
    NamedRun,
    RowKind,
    compare,
    compared_case,
    comparison_to_json,
    is_same_rating,
    values_of,
)
from geval_cli.extras.compare.matching import TestPairs, match_columns, name_of_test, require_kinship
from geval_cli.numbers import estimated
from geval_cli.plugins import extra
from geval_cli.records import CaseResult, Column, GateResult, JsonValue, RunRecord, RunSummary, Status
from geval_cli.report.report import RunReport
from geval_cli.runs.baseline import THIS_RUN, baseline_name
from geval_cli.runs.requests import PreparedRun
from geval_cli.runs.stored import is_results_file, named_report
from geval_cli.source.access import TRUSTED
from geval_cli.source.files import PARQUET_SUFFIX
from geval_cli.statistics.paired import SIGNIFICANCE, Margins, PairedSample, PairedTest
from geval_cli.store.runs import RunStore
from geval_cli.suite.gates import Gate, Statistic

_FLIPS_KEPT = 100
"""A summary is read whenever runs are listed; `geval compare` tells of all flipped tests."""


class Baseline(Struct, frozen=True):
    """The earlier run that a run is compared with, read before anything is sent."""

    name: str
    earlier: EarlierRun


def open_baseline(prepared: PreparedRun, runs: RunStore, run_id: str) -> Baseline | None:
    """Return the run that a prepared run, whose id is `run_id`, is to be compared with; None without one.

    Raises:
        UsageError: there is no such run or file, it is the run itself, or its tests are not those of the suite.
        ConfigError: a gate is on a metric that it does not have, or the config may not read the file.
        StoreError: stored runs cannot be read.
    """
    request, suite = prepared.request, prepared.suite
    name = baseline_name(request, suite, prepared.plan.columns)
    if name is None:
        return None
    if request.baseline is None and is_results_file(name) and suite.access.is_outside(Path(name)):
        raise ConfigError([suite.access.outside_problem(Path(name), None)])
    if request.baseline is None and suite.access.is_strangers and Path(name).suffix.lower() == PARQUET_SUFFIX:
        raise ConfigError([extra("Parquet files").refuse_parquet(Path(name), None)])
    report = named_report(name, runs, TRUSTED if request.baseline is not None else suite.access)
    if report.run.id == run_id:
        hint = "the latest run is the one being resumed: give the baseline as a run's id or `latest~1`"
        raise UsageError(f"the baseline {name} is this run itself", hint=hint)
    earlier = EarlierRun(report)
    tests = TestPairs(earlier.tests)
    for test in suite.tests:
        tests.add(test.index, name_of_test(test))
    # Programs may make variables, and results without keys know only what was made: the comparison itself finds out.
    is_known = not suite.rules.tells_programs or all(name.key for name in earlier.tests.values())
    if is_known and tests.later:
        counts = len(tests.earlier), len(tests.later), len(tests.partners)
        require_kinship(*counts, ("the baseline", THIS_RUN))
    problems = [
        Problem(
            f"the baseline {name} has no score of `{gate.metric}` for the gate `{gate.text}`",
            gate.place.value(),
            f"its metrics: {', '.join(sorted(earlier.metrics))}" if earlier.metrics else "it has no metrics",
        )
        for gate in suite.gates
        if gate.needs_baseline and gate.metric is not None and gate.metric not in earlier.metrics
    ]
    if problems:
        raise ConfigError(problems)
    return Baseline(name, earlier)


def compared_with(
    baseline: Baseline, run: RunRecord, results: Callable[[], Iterator[CaseResult]], margins: Margins
) -> dict[str, JsonValue]:
    """Return the JSON form of the comparison; where there is nothing to compare, its `error`."""
    earlier = NamedRun(baseline.name, baseline.earlier.report)
    later = NamedRun(THIS_RUN, RunReport(run, RunSummary(), results))
    try:
        found = compare(earlier, later, ComparisonOptions(margins=margins), baseline.earlier)
        rows = tuple(replace(row, flipped=row.flipped[:_FLIPS_KEPT]) for row in found.rows)
        return comparison_to_json(replace(found, rows=rows))
    except UsageError as error:
        return {"kind": "compare", "error": error.message}


class _Difference(Struct):
    """The pairs that one gate is about."""

    gate: Gate
    sample: PairedSample = field(default_factory=PairedSample)

    @property
    def measure(self) -> Measure:
        if self.gate.metric is not None:
            return Measure(RowKind.METRIC, self.gate.metric)
        return PASS_RATE if self.gate.statistic is Statistic.PASS_RATE_DELTA else SCORE


def judge_differences(
    gates: Sequence[Gate],
    baseline: Baseline | None,
    results: Iterable[CaseResult],
    columns: Sequence[Column],
) -> dict[str, GateResult]:
    """Return the results of gates on differences from the baseline, by their text."""
    found = [_Difference(gate) for gate in gates]
    if baseline is not None and found:
        match = match_columns(baseline.earlier.report.columns, columns)
        for before, result in baseline.earlier.pairing(match).of(results):
            if before is None:
                continue
            after = compared_case(result)
            for item in found:
                if not all(is_tagged(result.metadata, *tag) for tag in item.gate.tags):
                    continue
                values = values_of(item.measure, before, after)
                if values is not None:
                    same = is_same_rating(item.measure, before, after)
                    item.sample.add(result.test_index, values, same=same)
    return {item.gate.text: judge_difference(item.gate, item.sample.test()) for item in found}


def judge_difference(gate: Gate, test: PairedTest | None) -> GateResult:
    """Return whether a gate holds: unless something must be shown, it is broken only where a drop is shown."""
    if test is None:
        return GateResult(gate.text, Status.ERROR, None, "no case was judged in both runs")
    level = SIGNIFICANCE / gate.family
    bounds = test.margin_interval() if gate.is_equivalence else test.bounds(level)
    if gate.is_equivalence:
        is_broken = bounds is not None and (bounds[0] > gate.limit or bounds[1] < -gate.limit)
        is_shown = test.identical or (
            bounds is not None and -gate.limit <= bounds[0] and bounds[1] <= gate.limit
        )
    else:
        worst, best = (None, None) if bounds is None else gate.worst_and_best(*bounds)
        is_broken = best is not None and not gate.holds(best)
        is_shown = (test.identical and gate.holds(0.0)) or (worst is not None and gate.holds(worst))
    holds = not is_broken if gate.breaks_on_a_shown_drop else is_shown
    note = _certainty(gate, test, bounds)
    if not (is_broken or is_shown):
        note = f"undecided: {note}{_need(gate, test, level)}"
    return GateResult(gate.text, Status.PASSED if holds else Status.FAILED, test.delta, note)


def _certainty(gate: Gate, test: PairedTest, bounds: tuple[float, float] | None) -> str:
    counted = f"n={test.n}"
    if test.flips is not None:
        counted += ", {:,} broken and {:,} fixed".format(*test.flips)
    if test.identical:
        return f"{counted}, the same texts and judge"
    if bounds is None:
        return f"{counted}, no interval"
    low, high = bounds
    if gate.is_equivalence:
        return f"{counted}, 90 % interval {gate.said(low)} to {gate.said(high)}"
    level = 100 * (1 - SIGNIFICANCE / gate.family)
    shared = f", 5 % shared by {gate.family} gates" if gate.family > 1 else ""
    return f"{counted}, one-sided {level:.3g} % bounds {gate.said(low)} and {gate.said(high)}{shared}"


def _need(gate: Gate, test: PairedTest, level: float) -> str:
    """Return how many more tests are likely to decide, if differences stay what they are."""
    limit = math.copysign(gate.limit, test.delta) if gate.is_equivalence else gate.limit
    # A gate looks in one direction, for which a two-sided level twice as large is the same.
    needed = test.needed_tests(test.delta - limit, 2 * level)
    if needed is None:
        return ""
    return f"; {estimated(max(1, needed - test.clusters))} more tests would tell"
