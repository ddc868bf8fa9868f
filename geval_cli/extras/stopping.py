"""`--stop-when decided`: tests are drawn in random order, and the run ends as soon as its gates are decided.

Without gates, a run is decided when every column is shown to be better or worse than the one it is compared with.
Every test is one observation, averaged over its repeats and columns. Tests count in the order in which they were drawn,
not in which they finish, because the fastest tests are not a random sample.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum

from msgspec import UNSET, Struct
from msgspec.structs import replace

from geval_cli.engine.case import blank_result
from geval_cli.engine.columns import baseline_index, column_labels
from geval_cli.engine.gates import holds_error, is_tagged
from geval_cli.engine.plan import DoneCases, Plan, key_of
from geval_cli.errors import Problem
from geval_cli.extras.compare.comparison import (
    NOT_ASKED,
    PASS_RATE,
    SCORE,
    Baseline,
    Measure,
    RowKind,
    compared_case,
    values_of,
)
from geval_cli.extras.compare.matching import match_columns
from geval_cli.extras.trust.statistics.sequential import SequentialMean
from geval_cli.metrics import metric_status
from geval_cli.numbers import fixed, plural, trimmed
from geval_cli.records import AssertionResult, CaseResult, EarlyStop, GateResult, SequentialDecision, Status
from geval_cli.runs.record import DECIDED_EARLY
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.statistics.paired import SIGNIFICANCE
from geval_cli.suite.gates import Gate, Statistic

LEAST_TESTS = 10
"""A smaller suite never stops early: there is little to save and a high risk of a wrong decision."""
_DIGITS_MAX = 6
_DECIDABLE = frozenset(
    {
        Statistic.PASS_RATE,
        Statistic.PASSED,
        Statistic.MEAN,
        Statistic.DELTA,
        Statistic.PASS_RATE_DELTA,
    }
)
_RATES = frozenset({Statistic.PASS_RATE, Statistic.PASSED, Statistic.PASS_RATE_DELTA})
_JUDGED_AT_THE_END = frozenset({Statistic.ERRORS, Statistic.COST})
"""Statistics about the work of a run, however many tests it had."""


def stop_problems(
    request: RunRequest, plan: Plan, gates: Sequence[Gate], *, is_serial: bool
) -> Iterator[Problem]:
    """Yield the reasons why a run cannot stop early."""
    hint = "remove one of the two"
    if request.is_shared:
        name = "--workers" if request.ray is None else "--ray"
        message = f"{name} cannot be combined with --stop-when: workers take many tests at once"
        yield Problem(message, hint=hint)
    if request.batched_roles:
        message = "--stop-when cannot be combined with batches, which send everything at once"
        yield Problem(message, hint=hint)
    if is_serial:
        message = "--stop-when runs tests in random order, but tests here depend on earlier ones"
        yield Problem(message, hint="leave --stop-when out")
    decidable = _decidable(gates)
    refused = [gate for gate in gates if gate not in decidable and gate.statistic not in _JUDGED_AT_THE_END]
    for gate in refused:
        message = (
            f"the gate `{gate.text}` can be checked only after all tests have run, so --stop-when has no "
            "effect"
        )
        yield Problem(message, gate.place.value(), "remove the gate or --stop-when")
    if not refused and not decidable and (gates or len(plan.columns) < 2):  # noqa: PLR2004
        message = "--stop-when has nothing to wait for"
        yield Problem(message, hint="add a gate such as `pass_rate >= 80%`, or a second column to compare")


def _decidable(gates: Iterable[Gate]) -> list[Gate]:
    return [gate for gate in gates if gate.statistic in _DECIDABLE and not gate.is_equivalence]


class GateFinding(StrEnum):
    """The possible findings about a gate, or about two compared columns."""

    HOLDS = "holds"
    FAILS = "fails"
    BETTER = "better"
    WORSE = "worse"
    UNDECIDED = "undecided"


_Bounds = tuple[float, float]
"""The lowest and highest possible value: equal, unless the case is an error."""


def _bounds_of_gate(gate: Gate, result: CaseResult) -> _Bounds | None:
    """Return the bounds of a case's contribution to a gate on a rate or mean; None if the gate ignores the case."""
    if gate.metric is None:
        if result.status is Status.ERROR:
            return (0.0, 0.0) if gate.statistic is Statistic.PASSED else (0.0, 1.0)
        if gate.statistic is Statistic.MEAN:
            unknown = (0.0, 1.0) if holds_error(result) else None
            return unknown if result.score is None else (result.score, result.score)
        return _bounds_of_verdict(result.status)
    status = metric_status(result.assertions, gate.metric)
    if gate.statistic is Statistic.MEAN:
        score = result.named_scores.get(gate.metric)
        if score is not None:
            return score, score
    elif status is not None:
        return _bounds_of_verdict(status)
    # Without an answer nothing was judged, by whatever metric.
    return (0.0, 1.0) if status is Status.ERROR or (result.error and status is None) else None


def _bounds_of_verdict(status: Status) -> _Bounds | None:
    if status is Status.ERROR:
        return 0.0, 1.0
    return None if status is Status.NOT_EVALUATED else (float(status is Status.PASSED),) * 2


class _Decision(Struct):
    """One open decision. Differences, -1..1, are mapped to 0..1.

    Attributes:
        subject: the text of a gate, or the label of a column.
        bounds: returns the bounds that the cases of a test contribute.
        found: the findings if the mean is above the limit, and if it is below.
        most: the most values a test can have.
        limit: the limit for the mean, in the mean's own unit.
        is_void: whether a value was outside the scale, so that no decision is possible.
    """

    subject: str
    bounds: Callable[[Sequence[CaseResult]], list[_Bounds]]
    found: tuple[GateFinding, GateFinding]
    sequence: SequentialMean
    most: int
    limit: float
    is_difference: bool = False
    is_share: bool = False
    outcome: GateFinding = GateFinding.UNDECIDED
    is_void: bool = False

    def add(self, results: Sequence[CaseResult]) -> None:
        values = self.bounds(results)
        if not values or self.outcome is not GateFinding.UNDECIDED or self.is_void:
            return
        lowest, highest = (sum(ends) / len(values) for ends in zip(*values, strict=True))
        if self.is_difference:
            lowest, highest = (lowest + 1) / 2, (highest + 1) / 2
        if not 0 <= lowest <= highest <= 1:
            # Scores of the user's own code may leave the scale, and then nothing bounds what is to come.
            self.is_void = True
            return
        self.sequence.add(lowest, highest, weight=min(1.0, len(values) / self.most))
        if self.sequence.is_above:
            self.outcome = self.found[0]
        elif self.sequence.is_below:
            self.outcome = self.found[1]

    def figure(self, value: float | None) -> str:
        """Format a mean or a bound of one; rounding never moves it across the limit."""
        if value is None:
            return ""
        scale, unit = (100, "points" if self.is_difference else "%") if self.is_share else (1, "")
        digits = 2 if scale == 1 else 0 if self.is_difference else 1
        value = scale * value
        limit = scale * self.limit
        while float(fixed(value, digits)) == round(limit, 9) != round(value, 9) and digits < _DIGITS_MAX:
            digits += 1
        text = fixed(value, digits)
        text = trimmed(text) if unit == "%" else text
        sign = "+" if self.is_difference and float(text) > 0 else ""
        return f"{sign}{text} {unit}".rstrip()

    @property
    def record(self) -> SequentialDecision:
        mean = self.sequence.mean
        interval = self.sequence.interval()
        if self.is_difference:
            mean = None if mean is None else 2 * mean - 1
            interval = None if interval is None else (2 * interval[0] - 1, 2 * interval[1] - 1)
        return SequentialDecision(self.subject, self.outcome, mean, interval, self.sequence.n)


class Decisions:
    """The open decisions of a run. They receive every result, in any order."""

    def __init__(self, prepared: PreparedRun, gates: Sequence[Gate], baseline: Baseline | None) -> None:
        plan = prepared.plan
        assert plan.drawn is not None
        self._plan = plan
        cases = [(test.index, plan.cases_of(test) * plan.repeats) for test in plan.suite.tests]
        # A test that has gone since the check is told elsewhere.
        in_order = (cases[position] for position in plan.drawn.positions if position < len(cases))
        self._order = [(index, count) for index, count in in_order if count]
        self._waiting: dict[int, list[CaseResult]] = {}
        self._done = DoneCases(repeats=plan.repeats, columns=len(plan.columns))
        self._after = self._asked = self._not_asked = self._requests = 0
        decidable = _decidable(gates)
        self._decisions = _of_gates(decidable, plan, baseline) if decidable else _of_columns(prepared)

    @property
    def is_enough(self) -> bool:
        """Return whether no further test is needed: a gate fails, or everything is decided."""
        if not LEAST_TESTS <= len(self._order) > self._after:
            return False
        outcomes = {item.outcome for item in self._decisions}
        return GateFinding.FAILS in outcomes or GateFinding.UNDECIDED not in outcomes

    @property
    def has_stopped(self) -> bool:
        """Return whether some cases were skipped because the run was decided."""
        return self._not_asked > 0

    def add(self, result: CaseResult) -> None:
        """Add a result."""
        is_new = not self._done.has(result) and self._done.add(result)
        if _is_not_asked(result):
            self._not_asked += is_new
            return
        if not is_new:
            return
        self._asked += 1
        self._requests += sum(usage.requests for usage in result.usage.values())
        self._waiting.setdefault(result.test_index, []).append(result)
        while self._after < len(self._order) and not self.is_enough:
            index, count = self._order[self._after]
            if len(self._waiting.get(index, ())) < count:
                break
            results = self._waiting.pop(index)
            self._after += 1
            for decision in self._decisions:
                decision.add(results)

    def asked(self, results: Iterable[CaseResult]) -> Iterator[CaseResult]:
        """Yield the results of cases that were not skipped."""
        return (result for result in results if not _is_not_asked(result))

    def rest(self) -> Iterator[CaseResult]:
        """Yield a result for each skipped case; the caller passes it to `add`."""
        reason = (
            f"not needed: the run was decided after {self._after:,} of {plural(len(self._order), 'test')}"
        )
        why = AssertionResult(NOT_ASKED, None, Status.NOT_EVALUATED, None, reason=reason)
        for test in self._plan.suite.tests:
            for job in self._done.missing(self._plan.jobs_of(test)):
                yield replace(
                    blank_result(job),
                    status=Status.NOT_EVALUATED,
                    assertions=(why,),
                    test_key=key_of(job.test),
                    latency_ms=None,
                    test=UNSET,  # its texts are shown where they were asked about
                )

    @property
    def early_stop(self) -> EarlyStop:
        """Return the record of the early stop."""
        saved = round(self._requests / self._asked * self._not_asked) if self._asked else 0
        records = tuple(item.record for item in self._decisions)
        return EarlyStop(self._after, len(self._order), SIGNIFICANCE, records, self._not_asked, saved)

    def notes(self) -> Iterator[str]:
        """Yield what the user should know about a run that stopped early."""
        if not self.has_stopped:
            return
        found = self.early_stop
        told = "; ".join(self._sentence(item) for item in self._decisions)
        saved = (
            f", which saved about {plural(found.saved_requests, 'request')}" if found.saved_requests else ""
        )
        cases = plural(found.not_asked, "case was", "cases were")
        yield (
            f"{DECIDED_EARLY[0]}{found.after:,} of {plural(found.tests, 'test')}: {told}; {cases} not evaluated{saved}"
        )
        yield (
            f"{DECIDED_EARLY[1]}only its anytime-valid intervals hold; all other intervals and p-values are for"
            " runs of a fixed number of tests"
        )

    def _sentence(self, decision: "_Decision") -> str:
        record = decision.record
        outcome = "is not decided" if decision.outcome is GateFinding.UNDECIDED else str(decision.outcome)
        verb = "is " if decision.outcome in {GateFinding.BETTER, GateFinding.WORSE} else ""
        figures = [decision.figure(record.mean), *self._interval(decision, record)]
        return f"`{decision.subject}` {verb}{outcome} ({', '.join(filter(None, figures))})"

    def _interval(self, decision: "_Decision", record: SequentialDecision) -> Iterator[str]:
        """Yield the interval in words; several decisions share the 5 % error rate."""
        if record.interval is not None:
            level = 100 * (1 - SIGNIFICANCE / len(self._decisions))
            low, high = map(decision.figure, record.interval)
            low = low.removesuffix(" points")
            yield f"anytime-valid {level:.3g} % interval {low} to {high}"

    def with_gates(self, judged: Sequence[GateResult]) -> tuple[GateResult, ...]:
        """Return the gate results, with the sequential decisions in place of verdicts from so few tests."""
        found = {item.subject: item for item in self._decisions}
        return tuple(self._judged(item, found.get(item.gate)) for item in judged)

    def _judged(self, judged: GateResult, decision: "_Decision | None") -> GateResult:
        if decision is None:
            return judged
        statuses = {GateFinding.HOLDS: Status.PASSED, GateFinding.FAILS: Status.FAILED}
        status = statuses.get(decision.outcome, Status.NOT_EVALUATED)
        record = decision.record
        verdict = "not decided" if status is Status.NOT_EVALUATED else "decided"
        after = f"{verdict} after {self._after:,} of {plural(len(self._order), 'test')}"
        note = ", ".join([after, *self._interval(decision, record)])
        return replace(judged, status=status, actual=record.mean, note=note)


def _is_not_asked(result: CaseResult) -> bool:
    """Return whether a case was skipped because the run was already decided."""
    return result.status is Status.NOT_EVALUATED and any(item.type == NOT_ASKED for item in result.assertions)


def _of_gates(gates: Sequence[Gate], plan: Plan, baseline: Baseline | None) -> list[_Decision]:
    alpha = SIGNIFICANCE / len(gates)
    found = []
    for gate in gates:
        holds_above = gate.comparison in {">=", ">"}
        outcomes = (
            (GateFinding.HOLDS, GateFinding.FAILS) if holds_above else (GateFinding.FAILS, GateFinding.HOLDS)
        )
        limit = (gate.limit + 1) / 2 if gate.needs_baseline else gate.limit
        bounds = _differences_of(gate, plan, baseline) if gate.needs_baseline else _values_of(gate)
        sequence = SequentialMean(alpha, limit)
        most = plan.repeats * len(plan.columns)
        is_share = gate.is_share or gate.statistic in _RATES
        found.append(
            _Decision(
                gate.text,
                bounds,
                outcomes,
                sequence,
                most,
                gate.limit,
                gate.needs_baseline,
                is_share=is_share,
            )
        )
    return found


def _values_of(gate: Gate) -> Callable[[Sequence[CaseResult]], list[_Bounds]]:
    def bounds(results: Sequence[CaseResult]) -> list[_Bounds]:
        return [
            found for item in _tagged(gate, results) if (found := _bounds_of_gate(gate, item)) is not None
        ]

    return bounds


def _tagged(gate: Gate, results: Iterable[CaseResult]) -> Iterator[CaseResult]:
    return (item for item in results if all(is_tagged(item.metadata, *tag) for tag in gate.tags))


def _differences_of(
    gate: Gate, plan: Plan, baseline: Baseline | None
) -> Callable[[Sequence[CaseResult]], list[_Bounds]]:
    """Return a function that gives the differences of a test from the baseline, where the baseline judged it."""
    if baseline is None:
        return lambda _: []
    if gate.metric is not None:
        measure = Measure(RowKind.METRIC, gate.metric)
    else:
        measure = PASS_RATE if gate.statistic is Statistic.PASS_RATE_DELTA else SCORE
    pairing = baseline.earlier.pairing(match_columns(baseline.earlier.report.columns, plan.columns))

    def bounds(results: Sequence[CaseResult]) -> list[_Bounds]:
        found: list[_Bounds] = []
        for before, result in pairing.of(_tagged(gate, results)):
            if before is None:
                continue
            earlier = values_of(measure, before, before)
            values = values_of(measure, before, compared_case(result))
            if values is not None:
                found.append((values[1] - values[0],) * 2)
            elif earlier is not None and holds_error(result):
                found.append((-earlier[0], 1 - earlier[0]))
        return found

    return bounds


def _of_columns(prepared: PreparedRun) -> list[_Decision]:
    """Return a decision for each column except the baseline: whether more or fewer tests pass in it."""
    columns, named = prepared.plan.columns, prepared.suite.baseline
    first = baseline_index(columns, None if named is None else named.name)
    others = [column.index for column in columns if column.index != first]
    labels = column_labels(columns)
    alpha = SIGNIFICANCE / len(others)

    def differences(other: int) -> Callable[[Sequence[CaseResult]], list[_Bounds]]:
        def bounds(results: Sequence[CaseResult]) -> list[_Bounds]:
            sides: dict[int, list[_Bounds]] = {first: [], other: []}
            for item in results:
                value = _bounds_of_verdict(item.status)
                if item.column in sides and value is not None:
                    sides[item.column].append(value)
            if not sides[first] or not sides[other]:
                return []
            before, after = map(_mean_bounds, (sides[first], sides[other]))
            return [(after[0] - before[1], after[1] - before[0])]

        return bounds

    found = (GateFinding.BETTER, GateFinding.WORSE)
    return [
        _Decision(
            labels[other],
            differences(other),
            found,
            SequentialMean(alpha, 0.5),
            most=1,
            limit=0.0,
            is_difference=True,
            is_share=True,
        )
        for other in others
    ]


def _mean_bounds(values: Sequence[_Bounds]) -> _Bounds:
    return (sum(low for low, _ in values) / len(values), sum(high for _, high in values) / len(values))
