"""Gates: conditions on a whole run, such as `coherence.mean >= 0.7`, that decide its exit code."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, TypeVar

from pydantic import Field

from geval_cli.errors import Problem
from geval_cli.numbers import digits_beside, percent_hint
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.source.problems import did_you_mean, hint_among
from geval_cli.source.source_map import SourcePath
from geval_cli.specs.base import Spec, describe_value
from geval_cli.statistics.paired import Margins
from geval_cli.suite.validation import LoadContext, read_spec

Comparison = Literal[">=", ">", "<=", "<"]
BoundT = TypeVar("BoundT", float, float | None)


class Statistic(StrEnum):
    """The figure of a metric, or of the whole run, that a gate compares.

    `pass_rate` = passed / (passed + failed); `passed` counts errors as not passed: passed / (passed + failed + errors);
    `errors` is a count or, with a limit in per cent, a share of all cases. `cost` is in US dollars, `latency` in
    milliseconds. `delta` is the mean difference of scores from the baseline, over pairs of tests; `pass_rate.delta` is
    that of the share that passed. `borderline` is the share of outputs that a calibrated judge is unsure about.
    `true_mean` and `true_pass_rate` are what humans would say about all outputs, estimated from labels of some, and
    `true_delta` is what they would say about the difference from the baseline.
    """

    MEAN = "mean"
    PASS_RATE = "pass_rate"
    PASSED = "passed"
    FAILURES = "failures"
    ERRORS = "errors"
    BORDERLINE = "borderline"
    COST = "cost"
    LATENCY_MEAN = "latency.mean"
    LATENCY_P50 = "latency.p50"
    LATENCY_P95 = "latency.p95"
    LATENCY_P99 = "latency.p99"
    DELTA = "delta"
    PASS_RATE_DELTA = "pass_rate.delta"
    TRUE_MEAN = "true_mean"
    TRUE_PASS_RATE = "true_pass_rate"
    TRUE_DELTA = "true_delta"


DELTAS = frozenset({Statistic.DELTA, Statistic.PASS_RATE_DELTA, Statistic.TRUE_DELTA})
"""The statistics that need a baseline."""
TRUE_FIGURES = frozenset({Statistic.TRUE_MEAN, Statistic.TRUE_PASS_RATE, Statistic.TRUE_DELTA})
"""The statistics that need a metric and human labels."""
_QUOTES = " '\"`"
_PERCENT = 0.01
_OF_METRICS = {
    "mean": Statistic.MEAN,
    "pass_rate": Statistic.PASS_RATE,
    "errors": Statistic.ERRORS,
    "delta": Statistic.DELTA,
    "borderline": Statistic.BORDERLINE,
    "true_mean": Statistic.TRUE_MEAN,
    "true_pass_rate": Statistic.TRUE_PASS_RATE,
    "true_delta": Statistic.TRUE_DELTA,
}
_OF_RUNS = {
    **{
        item.value: item for item in Statistic if item not in {Statistic.MEAN, Statistic.DELTA, *TRUE_FIGURES}
    },
    "score.mean": Statistic.MEAN,
    "score.delta": Statistic.DELTA,
}
_SHARES = frozenset(
    {Statistic.MEAN, Statistic.PASS_RATE, Statistic.PASSED, Statistic.BORDERLINE, *DELTAS, *TRUE_FIGURES}
)
_COUNTS = frozenset({Statistic.ERRORS, Statistic.FAILURES})
"""The statistics that are counts, and are compared as shares if the limit is in per cent."""
_LONGEST = 500
"""How many characters a gate may have: on long rows of spaces, the patterns take quadratic time."""
GATE = compile_later(
    r"\s*(?P<subject>[^<>=]+?)\s*(?:\[(?P<tags>[^\]]*)\])?\s*(?P<comparison>>=|<=|>|<)\s*"
    r"(?P<limit>[-+]?[0-9]*\.?[0-9]+)\s*(?P<percent>%)?"
    r"(?:\s+(?P<against>vs\s+baseline)(?:\s+(?P<proven>proven))?)?\s*\Z"
)
"""The one form in which conditions are written: in `gates`, and in `--require` of the commands about human labels."""
EQUIVALENCE = compile_later(
    r"\s*(?P<subject>[^<>=]+?)\s*(?:\[(?P<tags>[^\]]*)\])?\s+equivalent\s+within\s+"
    r"(?P<limit>\+?[0-9]*\.?[0-9]+)\s*(?P<percent>%)?\s+vs\s+baseline\s*\Z"
)
"""A gate that holds if the difference from the baseline is shown to be at most the limit, in either direction."""
_CALLED = compile_later(r"(?P<figure>\w+)\((?P<metric>[^()]+)\)\Z")
_DELTA_FORM = (
    "write it like `fluency.delta >= -0.02 vs baseline`, with ` proven` at the end if it must be proven"
)
_EQUIVALENCE_FORM = (
    "write it like `fluency equivalent within 0.05 vs baseline`; pass_rate and score can be used in "
    "place of a metric"
)
_FORM = "write it like `coherence.mean >= 0.7`, `pass_rate[area=billing] >= 90%` or `errors <= 1%`"


class Condition:
    """A comparison with a limit."""

    __slots__ = ()
    comparison: Comparison
    limit: float

    def holds(self, value: float) -> bool:
        """Return whether `value` is on the right side of the limit; both are rounded to nine decimals, like scores."""
        left = round(value, 9)
        right = round(self.limit, 9)
        match self.comparison:
            case ">=":
                return left >= right
            case ">":
                return left > right
            case "<=":
                return left <= right
        return left < right

    def worst_and_best(self, low: BoundT, high: BoundT) -> tuple[BoundT, BoundT]:
        """Return the worst end of an interval for this condition, then the best one."""
        return (low, high) if self.comparison in {">=", ">"} else (high, low)


@dataclass(frozen=True, slots=True)
class Gate(Condition):
    """One condition on a run.

    Attributes:
        text: the condition as written.
        metric: the metric whose scores count; None for the whole cases.
        tags: only cases whose metadata has all of these values count.
        limit: the number to compare with; a share if the limit is in per cent.
        is_share: whether the limit was written in per cent.
        is_proven: whether the gate holds only if the condition is shown to be true; otherwise it breaks only if the
            condition is shown to be false. Only for deltas.
        is_equivalence: whether the gate holds only if a delta is shown to be within `limit` of 0, on both sides.
        family: how many gates share the 5 % chance that one of them breaks although nothing got worse: all gates on
            deltas that break if a drop is shown.
    """

    text: str
    statistic: Statistic
    comparison: Comparison
    limit: float
    metric: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    is_share: bool = False
    is_proven: bool = False
    is_equivalence: bool = False
    family: int = 1
    place: SourcePath = field(default_factory=SourcePath.nowhere, compare=False)

    @property
    def needs_baseline(self) -> bool:
        """Return whether the gate is about a difference from the baseline."""
        return self.statistic in DELTAS

    @property
    def needs_labels(self) -> bool:
        """Return whether the gate is about what humans would say about all outputs."""
        return self.statistic in TRUE_FIGURES

    def said(self, difference: float) -> str:
        """Return a difference in the form of the limit, on whose side it is seen to be: `-0.048`, or `-4.8 pts`."""
        scale, digits, unit = (100, 1, " pts") if self.is_share else (1, 3, "")
        limit = math.copysign(self.limit, difference) if self.is_equivalence else self.limit
        digits = digits_beside(scale * difference, scale * limit, digits)
        return f"{round(scale * difference, 9) + 0.0:+.{digits}f}{unit}"

    @property
    def passes_until_disproved(self) -> bool:
        """Return whether the gate holds until the opposite is shown, so that chance breaks it in some runs."""
        return self.statistic in DELTAS and not (self.is_proven or self.is_equivalence)


class GatesSpec(Spec):
    """Gates, and the correction of gates on differences."""

    correction: Literal["bonferroni", "none"] = Field(
        "bonferroni",
        description=(
            "Whether the gates on differences share the 5 % chance of a false alarm (bonferroni) or"
            " each has its own (none)."
        ),
    )
    conditions: list[Any] = Field(
        default_factory=list, description="The gates, for example coherence.mean >= 0.7."
    )


def read_gates(value: JsonValue, place: SourcePath, reading: LoadContext) -> tuple[Gate, ...]:
    """Return the gates of a config, and report each one that cannot be read."""
    correction = "bonferroni"
    if isinstance(value, dict):
        spec = read_spec(GatesSpec, value, place, "gates", reading)
        if spec is None:
            return ()
        value = spec.conditions
        place = place.child("conditions")
        correction = spec.correction
    if not isinstance(value, list):
        hint = "put `- ` before each gate" if isinstance(value, str) else _FORM
        reading.report(f"`gates` must be a list, found {describe_value(value)}", place.value(), hint)
        return ()
    found = []
    for index, item in enumerate(value):
        if isinstance(item, str):
            gate = parse_gate(item, place.child(index))
        else:
            message = f"a gate must be text, found {describe_value(item)}"
            gate = Problem(message, place.value(index), _FORM)
        if (
            not isinstance(gate, Problem)
            and gate.statistic is Statistic.BORDERLINE
            and not _is_calibrated(reading)
        ):
            message = f"there is no calibration, so the gate `{gate.text}` cannot be checked"
            gate = Problem(message, gate.place.value(), "add `calibration: judge.cal.json` to the config")
        if isinstance(gate, Problem):
            reading.problems.append(gate)
        else:
            found.append(gate)
    return tuple(found) if correction == "none" else corrected(found)


def corrected(gates: Sequence[Gate]) -> tuple[Gate, ...]:
    """Return the gates such that they share the chance of a false alarm, which then does not grow with their number."""
    family = len({gate.text for gate in gates if gate.passes_until_disproved})
    return tuple(replace(gate, family=family) if gate.passes_until_disproved else gate for gate in gates)


def _is_calibrated(reading: LoadContext) -> bool:
    """Return whether the config names a calibration file, even a broken one, which is reported elsewhere."""
    found = reading.calibrations
    return found is not None and (not found.is_empty or found.is_broken)


def parse_gate(text: str, place: SourcePath) -> Gate | Problem:
    """Parse `text` as a gate, or return the problem with it."""
    if len(text) > _LONGEST:
        return Problem(f"a gate has at most {_LONGEST} characters, not {len(text):,}", place.value())
    equivalence = EQUIVALENCE.match(text)
    match = equivalence or GATE.match(text)
    if match is None:
        form = _EQUIVALENCE_FORM if "equivalent" in text.split() else _FORM
        return Problem(f"this is not a gate: `{text}`", place.value(), form)
    subject, percent = match["subject"], match["percent"]
    tags = _tags(match["tags"])
    if tags is None:
        hint = "write tags as `[area=billing]` or `[area=billing, lang=de]`"
        return Problem(f"broken tags in the gate `{text}`", place.value(), hint)
    if equivalence is not None:
        return _equivalence(text, equivalence, tags, place)
    named = _statistic(subject)
    if named is None:
        metric, dot, _ = subject.rpartition(".")
        if subject in TRUE_FIGURES:
            hint = f"name the metric that has human labels: `METRIC.{subject}`"
        elif dot:
            known = [f"{metric.strip(_QUOTES) or 'METRIC'}.{name}" for name in _OF_METRICS]
            hint = hint_among(subject, known, everything="docs/reference/gates-and-filters.md")
        else:
            called = _CALLED.match(subject)
            near = did_you_mean(subject, _OF_RUNS)
            if called is not None and called["figure"] in _OF_METRICS:
                near = f"{called['metric']}.{called['figure']}"
            hint = f"did you mean `{near}`?" if near else f"for the mean of a metric, write `{subject}.mean`"
        return Problem(f"unknown figure `{subject}`", place.value(), hint)
    metric, statistic = named
    limit = float(match["limit"]) / (100 if percent else 1)
    # The message and the hint if the figure and `vs baseline` do not match.
    is_against = bool(match["against"])
    if statistic in DELTAS:
        misfit = (
            None if is_against else (f"the gate `{text}` does not say what it compares with", _DELTA_FORM)
        )
    elif is_against:
        misfit = f"only `delta` can be compared with the baseline, not `{statistic}`", _DELTA_FORM
    else:
        misfit = (f"this is not a gate: `{text}`", _FORM) if limit < 0 else None
    if misfit:
        return Problem(misfit[0], place.value(), misfit[1])
    is_share, asks_for_more = bool(percent), match["comparison"] in {">=", ">"}
    if limit < -1:
        problem = "a limit below -1 (or -100%)"
    elif limit > 1 and (statistic in _SHARES or (is_share and statistic in _COUNTS)):
        problem = "a limit above 1 (or 100%)"
    elif is_share and statistic not in {*_SHARES, *_COUNTS}:
        problem = "a percentage limit on a figure that is not a share"
    elif is_share and asks_for_more and 0 < limit < _PERCENT and statistic in _SHARES - DELTAS:
        problem, percent, limit = "a limit below 1 %", "", 100 * 100 * limit
    else:
        problem = None
    if problem:
        meant = "" if percent else percent_hint(limit)
        return Problem(
            f"{problem} in the gate `{text}`", place.value(), f"{meant} or {limit:g}%" if meant else _FORM
        )
    comparison: Comparison = match["comparison"]  # type: ignore[assignment]  # one of the four, by the pattern
    return Gate(
        text.strip(),
        statistic,
        comparison,
        limit,
        metric=metric,
        tags=tags,
        is_share=is_share,
        is_proven=bool(match["proven"]),
        place=place,
    )


def _equivalence(
    text: str, match: "re.Match[str]", tags: tuple[tuple[str, str], ...], place: SourcePath
) -> Gate | Problem:
    subject, percent = match["subject"], match["percent"]
    limit = float(match["limit"]) / (100 if percent else 1)
    if not 0 < limit < 1:
        message = f"the margin is not between 0 and 1 (or 100%) in the gate `{text}`"
        return Problem(message, place.value(), _EQUIVALENCE_FORM)
    of_run = {"pass_rate": Statistic.PASS_RATE_DELTA, "score": Statistic.DELTA}
    metric = None if subject in of_run else subject.strip("\"'")
    if metric == "":
        return Problem(f"the gate `{text}` names no metric", place.value(), _EQUIVALENCE_FORM)
    return Gate(
        text.strip(),
        of_run.get(subject, Statistic.DELTA),
        "<=",
        limit,
        metric=metric,
        tags=tags,
        is_share=bool(percent),
        is_equivalence=True,
        place=place,
    )


def _statistic(subject: str) -> tuple[str | None, Statistic] | None:
    """Return the metric, if one is named, and its statistic; None if there is no such figure."""
    if subject in _OF_RUNS:
        return None, _OF_RUNS[subject]
    metric, dot, name = subject.rpartition(".")
    metric = metric.strip().strip("\"'")
    return (metric, _OF_METRICS[name]) if dot and metric and name in _OF_METRICS else None


def _tags(text: str | None) -> tuple[tuple[str, str], ...] | None:
    if text is None:
        return ()
    pairs = [part.partition("=") for part in text.split(",")]
    if any(not name.strip() or not equals for name, equals, _ in pairs):
        return None
    return tuple((name.strip(), value.strip().strip("\"'")) for name, _, value in pairs)


def read_margins(value: JsonValue, place: SourcePath, reading: LoadContext) -> Margins:
    """Return the `margin` of a config; no margins, with a problem, if it cannot be read."""
    try:
        return Margins.read(value)
    except ValueError as error:
        place = place.child(str(error)) if isinstance(value, dict) else place
        wrong = value.get(str(error)) if isinstance(value, dict) else value
        message = f"a margin must be a number between 0 and 1, found {describe_value(wrong)}"
        hint = "write `margin: 0.05`, or by metric `margin: {fluency: 0.05, pass_rate: 0.02}`"
        reading.report(message, place.value(), hint)
        return Margins()


class DerivedMetric(Spec):
    """A metric computed from other metrics at the end of the run."""

    name: str = Field(description="The name of the derived metric.")
    value: str = Field(
        description=(
            "A formula; a metric's name stands for the sum of its scores, __count for the number of cases."
        )
    )


def read_derived_metrics(
    value: JsonValue, place: SourcePath, reading: LoadContext
) -> tuple[DerivedMetric, ...]:
    """Return the derived metrics of a config, in its order; those with problems are left out."""
    if not isinstance(value, list | tuple):
        message = f"`derivedMetrics` must be a list, found {describe_value(value)}"
        reading.report(message, place.value(), "put `- ` before each metric")
        return ()
    found: dict[str, DerivedMetric] = {}
    for index, item in enumerate(value):
        metric = read_spec(DerivedMetric, item, place.child(index), "a derived metric", reading)
        if metric is None:
            continue
        if metric.name in found:
            message = f"two derived metrics are called `{metric.name}`"
            reading.report(message, metric.place.value("name"), "give them different names")
        found[metric.name] = metric
    return tuple(found.values())
