"""Evaluates gates: one pass over the results of a run, with a handful of sums for each gate. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from geval_cli.assertions.base import Assertion, MergedTest, as_text, hides_error
from geval_cli.assertions.geval_metric import metric_name
from geval_cli.engine.aggregate import COUNT, names_in_formula
from geval_cli.engine.columns import PASS_RATE
from geval_cli.engine.plan import evaluation_of
from geval_cli.errors import Problem
from geval_cli.metrics import metric_status, with_members
from geval_cli.numbers import errors_failed, format_interval, format_share, format_share_interval, plural
from geval_cli.records import NO_ERRORS_NOTE, CaseResult, GateResult, JsonValue, Status, Usage
from geval_cli.source.problems import did_you_mean, hint_among
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import PromptSpec
from geval_cli.statistics.intervals import ClusteredMean, Quantiles, RunningMean
from geval_cli.statistics.paired import NO_MARGINS, Margins
from geval_cli.suite.gates import DerivedMetric, Gate, Statistic
from geval_cli.templating import Templates

_QUANTILES = {Statistic.LATENCY_P50: 0.5, Statistic.LATENCY_P95: 0.95, Statistic.LATENCY_P99: 0.99}

_LATENCIES = {Statistic.LATENCY_MEAN, *_QUANTILES}

_LOST = (frozenset(Statistic) - {Statistic.ERRORS}, {Statistic.MEAN, Statistic.DELTA, Statistic.BORDERLINE})
"""The figures that gates on a metric, and on whole cases, lose to an error even if another assertion failed."""

_NAMES_SCORES = frozenset({"javascript", "python", "webhook"})
"""Assertion types whose verdicts may name scores that are not in the config."""

ALL_PASS = Gate("failures <= 0", Statistic.FAILURES, "<=", 0)
"""The gate of a run whose config has none."""


def judge_gates(
    gates: Sequence[Gate],
    results: Iterable[CaseResult],
    *,
    max_errors: int | None,
    spent: Usage | None = None,
) -> tuple[GateResult, ...]:
    """Return the result of each gate, and last that of `max_errors`, the most errors allowed; None sets no limit.

    Gates that need a baseline or labels have no result here. A failed case whose error a gate does not count is an
    error for `max_errors`, too.

    `spent` is the usage of the whole run, which exceeds that of its results if attempts without an answer were charged.

    A gate that has nothing to count is an error, never passed. Too many errors are an error too: no answer was found to
    be bad, but not all were judged.
    """
    sums = [_Sums(gate) for gate in gates]
    errored = 0
    for result in results:
        hides = [item.add(result) for item in sums]
        errored += result.status is Status.ERROR or any(hides)
    for item in sums:
        if spent is not None and not item.gate.tags:
            item.usage = spent
    found = [item.result() for item in sums if not (item.gate.needs_baseline or item.gate.needs_labels)]
    if max_errors is not None:
        status = Status.PASSED if errored <= max_errors else Status.ERROR
        note = "allowed by --max-errors" if max_errors else NO_ERRORS_NOTE
        found.append(GateResult(f"errors <= {max_errors}", status, float(errored), note))
    return tuple(found)


def holds_error(result: CaseResult) -> bool:
    """Return whether a case, an assertion or a member is an error; a case that failed has no score then either."""
    return Status.ERROR in (result.status, *[item.status for item, _ in with_members(result.assertions)])


class _Sums(Struct):
    """The sums that one gate needs, over the results that its tags select."""

    gate: Gate
    cases: int = 0
    failed: int = 0
    errored: int = 0
    unscored: int = 0
    unjudged: int = 0
    unmarked: int = 0
    """Cases with errors that lack a score of the metric, a verdict on it, and a calibrated score, respectively."""
    scores: ClusteredMean = field(default_factory=ClusteredMean)
    judged: ClusteredMean = field(default_factory=ClusteredMean)
    finished: ClusteredMean = field(default_factory=ClusteredMean)
    borderline: ClusteredMean = field(default_factory=ClusteredMean)
    latencies: Quantiles = field(default_factory=Quantiles)
    latency: RunningMean = field(default_factory=RunningMean)
    usage: Usage = field(default_factory=Usage)

    def add(self, result: CaseResult) -> bool:
        """Count a result, and return whether an error hides a figure that the gate needs."""
        if not all(is_tagged(result.metadata, name, value) for name, value in self.gate.tags):
            return False
        if self.gate.metric is None:
            self._count(result.status, result)
            if result.score is not None:
                self.scores.add(result.test_index, result.score)
            has_error = result.score is None and holds_error(result)
            self.unscored += has_error
        else:
            # Assertions of the same metric count as one, with the worst status among them.
            metric = self.gate.metric
            if metric in result.named_scores:
                self.scores.add(result.test_index, result.named_scores[metric])
            status = metric_status(result.assertions, metric)
            # If another assertion failed the case, an error of this one is lost all the same.
            has_error = status is Status.ERROR or (status is None and _may_lack_a_metric(result))
            has_error |= any(item.metric == metric and hides_error(item) for item in result.assertions)
            self.unscored += has_error and metric not in result.named_scores
            self.unjudged += has_error and status is None
            if status not in {None, Status.NOT_EVALUATED}:
                self._count(status, result)
        marks = list(_borderline_marks(result, self.gate.metric))
        if marks:
            self.borderline.add(result.test_index, float(any(marks)))
        self.unmarked += has_error and not marks
        for usage in result.usage.values():
            self.usage += usage
        # Cached answers and failed calls say nothing about the speed of the model.
        if result.latency_ms and not result.cached and result.error is None:
            self.latencies.add(result.latency_ms)
            self.latency.add(result.latency_ms)
        return has_error and self.gate.statistic in _LOST[self.gate.metric is None]

    def _count(self, status: Status, result: CaseResult) -> None:
        self.cases += 1
        self.failed += status is Status.FAILED
        self.errored += status is Status.ERROR
        has_passed = float(status is Status.PASSED)
        if status in {Status.PASSED, Status.FAILED}:
            self.judged.add(result.test_index, has_passed)
        if status is not Status.NOT_EVALUATED:
            self.finished.add(result.test_index, has_passed)

    def result(self) -> GateResult:
        """Return the result of the gate."""
        actual, note = self._actual()
        if actual is None:
            if self.gate.statistic is Statistic.BORDERLINE:
                nothing = "no case has a score calibrated with enough labels"
            elif self.gate.metric is not None:
                nothing = f"no case has a score of {self.gate.metric}"
            elif self.gate.tags and not self.cases:
                nothing = "no case has these tags"
            elif self.gate.statistic is Statistic.COST:
                nothing = "a price is unknown"
            elif self.gate.statistic in _LATENCIES:
                nothing = f"no answer was timed{'; those from the cache are not' if self.cases else ''}"
            else:
                nothing = "there is nothing to count"
            return GateResult(self.gate.text, Status.ERROR, None, nothing)
        if self.gate.holds(actual):
            return GateResult(self.gate.text, Status.PASSED, actual, note)
        # Too many errors are not a verdict on the answers.
        status = Status.ERROR if self.gate.statistic is Statistic.ERRORS else Status.FAILED
        return GateResult(self.gate.text, status, actual, note)

    def _actual(self) -> tuple[float | None, str]:
        """Return the value to compare with the limit, and a note on its sample size and confidence interval."""
        match self.gate.statistic:
            case Statistic.MEAN:
                interval = self.scores.interval()
                note = "" if interval is None else f", 95 % CI {format_interval(interval)}"
                return self.scores.mean, f"{_sample_size(self.scores.n, self.unscored)}{note}"
            case Statistic.PASS_RATE:
                share, note = _share(self.judged, self.unjudged)
                if share is not None and self.errored:
                    least = share * self.judged.n / (self.judged.n + self.errored)
                    note = f"{note}; {format_share(least)} {errors_failed(self.errored)}"
                return share, note
            case Statistic.PASSED:
                return _share(self.finished)
            case Statistic.BORDERLINE:
                return _share(self.borderline, self.unmarked)
            case Statistic.FAILURES:
                failed, note = self._counted(self.failed)
                return failed, f"{note}, {plural(self.errored, 'error')} among them" if self.errored else note
            case Statistic.ERRORS:
                errors, note = self._counted(self.errored)
                return (
                    errors,
                    f"{note}; {plural(self.unjudged, 'error')} not counted" if self.unjudged else note,
                )
            case Statistic.COST:
                return self.usage.cost_usd, ""
            case Statistic.LATENCY_MEAN:
                return self.latency.mean, f"n={self.latency.n}"
        return self.latencies.at(_QUANTILES[self.gate.statistic]), f"n={self.latencies.n}"

    def _counted(self, count: int) -> tuple[float | None, str]:
        if not self.cases:
            return None, ""
        if self.gate.is_share:
            return count / self.cases, f"{count:,} of {self.cases:,}"
        return float(count), f"of {self.cases:,}"


_LATENCY = "latency"
_OF_RUNS_AND_METRICS = {
    Statistic.MEAN: ("score", "the score of whole cases"),
    Statistic.DELTA: ("score", "the score of whole cases"),
    Statistic.PASS_RATE_DELTA: (PASS_RATE, "the pass rate of whole cases"),
}
"""Statistics of the whole run that a gate writes like a metric of this name."""


class GateSubjects(Struct):
    """The metrics and tags of a suite's tests, to check names in gates, margins and formulas before money is spent."""

    gates: Sequence[Gate]
    margins: Margins = NO_MARGINS
    margin_place: SourcePath = field(default_factory=SourcePath.nowhere)
    derived: Sequence[DerivedMetric] = ()
    metrics: set[str] = field(default_factory=set)
    metadata: dict[str, set[str]] = field(default_factory=dict)
    fitting: set[int] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    """Metrics that rate an output by itself; the others compare the outputs of a run with one another."""
    names_may_come: bool = False

    def record(self, test: MergedTest, prompts: Iterable[PromptSpec], templates: Templates) -> None:
        """Record the metrics and tags of one test, and what the evaluation modes of `prompts` add."""
        if not self.gates and not self.margins.by_name and not self.derived:
            return
        self.names_may_come |= test.promptfoo.assert_scoring_function is not None
        evaluations = (evaluation_of(prompt, test) for prompt in prompts)
        for spec in (*filter(None, evaluations), *test.assertions):
            self.note_metrics(spec, test, templates)
        for name, value in test.metadata.items():
            self.metadata.setdefault(name, set()).update(_tag_texts(value))
        for index, gate in enumerate(self.gates):
            if all(is_tagged(test.metadata, name, value) for name, value in gate.tags):
                self.fitting.add(index)

    def note_metrics(self, spec: Assertion, test: MergedTest, templates: Templates) -> None:
        """Record the metrics of an assertion and its members."""
        is_of_others = not type(spec).__module__.startswith("geval_cli.")
        self.names_may_come |= is_of_others or spec.base_type in _NAMES_SCORES
        name = metric_name(spec, test, templates)
        if name is not None:
            self.metrics.add(name)
            if not spec.needs_other_outputs:
                self.own.add(name)
        for member in spec.members:
            self.note_metrics(member, test, templates)

    def unknown_metrics(self, may_be: Callable[[str], bool] = lambda _: False) -> Iterator[Problem]:
        """Yield a problem for each gate, margin and formula with an unknown metric, unless it `may_be` one."""
        if self.names_may_come:
            return
        named = [
            (name, "the margin", self.margin_place.child(name).key())
            for name in self.margins.by_name
            if name not in {PASS_RATE, "score"}
        ]
        named += [
            (gate.metric, f"the gate `{gate.text}`", gate.place.value())
            for gate in self.gates
            if gate.metric is not None
        ]
        derived = {item.name for item in self.derived}
        for name, what, where in named:
            if name not in self.metrics and not may_be(name):
                hint = self._known_metrics(name)
                if name in derived:
                    hint = "use a metric of an assertion: a derived metric can have no gate and no margin"
                yield Problem(f"no assertion has the metric `{name}` of {what}", where, hint)
        above = {COUNT, *self.metrics}
        for item in self.derived:
            for name in sorted(names_in_formula(item.value) - above):
                if may_be(name):
                    continue
                hyphenated = [metric for metric in sorted(self.metrics) if name in metric.split("-")]
                if name in derived:
                    hint = f"a formula can use derived metrics above it: move `{name}` up"
                elif hyphenated:
                    hint = (
                        f"a hyphen is a minus sign here: name the metric `{hyphenated[0].replace('-', '_')}`"
                    )
                else:
                    hint = self._known_metrics(name)
                message = f"no assertion has the metric `{name}` of the derived metric `{item.name}`"
                yield Problem(message, item.place.value("value"), hint)
            above.add(item.name)

    def _known_metrics(self, name: str) -> str:
        return hint_among(name, sorted(self.metrics)) or f"add `metric: {name}` to an assertion"

    def problems(self) -> Iterator[Problem]:
        """Yield a problem for each gate, margin and formula that cannot work as written, whatever the models answer."""
        yield from self.unknown_metrics()
        for index, gate in enumerate(self.gates):
            if gate.needs_baseline and gate.metric in self.metrics and gate.metric not in self.own:
                message = (
                    f"`{gate.metric}` of the gate `{gate.text}` compares the outputs of one run with each "
                    "other and cannot be compared between runs"
                )
                yield Problem(
                    message, gate.place.value(), "gate on a metric that rates each output on its own"
                )
            if gate.statistic is Statistic.LATENCY_MEAN and gate.limit <= 1 and _LATENCY in self.metrics:
                message = (
                    f"`{gate.text}` limits the run's latency in milliseconds, not the metric `{_LATENCY}`"
                )
                yield Problem(message, gate.place.value(), "give the metric another name")
            of_run = _OF_RUNS_AND_METRICS.get(gate.statistic)
            if gate.metric is None and of_run is not None and of_run[0] in self.metrics:
                message = f"`{gate.text}` is about {of_run[1]}, not the metric `{of_run[0]}`"
                yield Problem(message, gate.place.value(), "give the metric another name")
            if index not in self.fitting:
                yield self._missing_tags(gate)

    def _missing_tags(self, gate: Gate) -> Problem:
        hint = ""
        for name, value in gate.tags:
            known = self.metadata.get(name)
            near = did_you_mean(name, self.metadata) if known is None else did_you_mean(value, known)
            if near and near not in {name, value}:
                hint = f"did you mean `{near}`?"
        message = f"no test has the metadata that the gate `{gate.text}` selects"
        return Problem(message, gate.place.value(), hint)


def errors_are_gated(gates: Iterable[Gate]) -> bool:
    """Return whether one of the gates limits the errors of the whole run."""
    return any(item.statistic is Statistic.ERRORS and not item.metric and not item.tags for item in gates)


def passed_gate(share: float) -> Gate:
    """Return the gate of `--fail-under SHARE`; errors count as not passed."""
    return Gate(f"passed >= {100 * share:.10g}%", Statistic.PASSED, ">=", share)


def is_tagged(metadata: Mapping[str, JsonValue], name: str, value: str) -> bool:
    """Return whether the metadata under `name` is `value`, or a list that contains it."""
    return name in metadata and value in _tag_texts(metadata[name])


def _may_lack_a_metric(result: CaseResult) -> bool:
    """Return whether an error may explain why a case has neither an assertion of a metric nor its score from code."""
    if result.status is not Status.ERROR:
        return False
    errored = [item.type for item, _ in with_members(result.assertions) if item.status is Status.ERROR]
    is_of_code = any(kind.removeprefix("not-") in _NAMES_SCORES for kind in errored)
    return not result.assertions or result.error is not None or is_of_code


def _borderline_marks(result: CaseResult, metric: str | None) -> Iterator[bool]:
    """Yield for each calibrated score whether it is borderline: neither a clear pass nor a clear fail."""
    for assertion, _ in with_members(result.assertions):
        if metric in (None, assertion.metric) and isinstance(assertion.detail.get("borderline"), bool):
            yield bool(assertion.detail["borderline"])


def _tag_texts(found: JsonValue) -> list[str]:
    return [as_text(item) for item in found] if isinstance(found, list | tuple) else [as_text(found)]


def _share(cases: ClusteredMean, errors: int = 0) -> tuple[float | None, str]:
    interval = cases.interval()
    note = "" if interval is None else f", 95 % CI {format_share_interval(interval)}"
    return cases.mean, f"{_sample_size(cases.n, errors)}{note}"


def _sample_size(count: int, errors: int) -> str:
    """Return `n=8`, or `n=8 of 10` if two errors have nothing to count."""
    return f"n={count:,} of {count + errors:,}" if errors else f"n={count:,}"
