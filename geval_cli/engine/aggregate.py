"""Sums up a run from its events and results: figures, notices, flaky tests and derived metrics. Pure.

The formula of a derived metric may use the name of every metric, which stands for the sum of its scores over the
cases, `__count` for the number of cases, and the derived metrics before it: `APE / __count` is a mean. The cases are
those of one column, or all.
"""

import ast
import math
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from itertools import groupby
from keyword import iskeyword

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.errors import Problem
from geval_cli.events import ModelCalled, Noticed, RunEvent
from geval_cli.metrics import with_members
from geval_cli.patterns import compile_later
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    FlakyTest,
    MetricSummary,
    Role,
    RunSummary,
    Status,
    Usage,
)
from geval_cli.statistics.intervals import ClusteredMean, Interval, RunningMean, share_interval
from geval_cli.suite.gates import DerivedMetric

COUNT = "__count"
_LONGEST = 2_000  # characters

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: math.pow,
}


def _rounded(value: float, digits: float = 0) -> float:
    """Round half away from zero, as people and promptfoo's formulas do."""
    if digits not in range(16):
        raise ValueError("the digits to round to are a whole number from 0 to 15")
    return float(Decimal(repr(value)).quantize(Decimal(1).scaleb(-int(digits)), ROUND_HALF_UP))


_NAME = compile_later(r"[^\W\d]\w*")
_KEYWORD = "__keyword"
_ANY_NUMBER = 1_000
_COUNTS = {
    (1, 1): "one argument",
    (1, 2): "one argument or two",
    (2, 2): "two arguments",
    (1, _ANY_NUMBER): "at least one argument",
}
_FUNCTIONS: dict[str, tuple[Callable[..., float], int, int]] = {
    "abs": (abs, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "exp": (math.exp, 1, 1),
    "floor": (math.floor, 1, 1),
    "log": (math.log, 1, 2),
    "log10": (math.log10, 1, 1),
    "log2": (math.log2, 1, 1),
    "max": (lambda *values: max(values), 1, _ANY_NUMBER),
    "min": (lambda *values: min(values), 1, _ANY_NUMBER),
    "pow": (math.pow, 2, 2),
    "round": (_rounded, 1, 2),
    "sqrt": (math.sqrt, 1, 1),
}
"""Each function with the smallest and the largest number of arguments that it takes."""
_NOTICES_MAX = 100
FLAKY_MAX = 100
"""The largest number of flaky tests that are named; all are counted."""
_VERDICTS = frozenset({Status.PASSED, Status.FAILED})


def derive(metrics: Iterable[DerivedMetric], summary: RunSummary) -> dict[str, float | None]:
    """Return the value of each derived metric; None if it cannot be computed (no score yet, a division by zero)."""
    sums = {
        name: scored.mean * scored.n for name, scored in summary.metrics.items() if scored.mean is not None
    }
    return _derived(metrics, sums, summary.total)


def derive_by_column(
    metrics: Sequence[DerivedMetric], results: Iterable[CaseResult], *, columns: int
) -> dict[str, tuple[float | None, ...]]:
    """Return the value of each derived metric for the cases of each column alone, by the index of the column."""
    if not metrics:
        return {}
    counts: Counter[int] = Counter()
    sums: dict[int, dict[str, float]] = defaultdict(dict)
    for result in results:
        counts[result.column] += 1
        for name, score in result.named_scores.items():
            own = sums[result.column]
            own[name] = own.get(name, 0.0) + score
    derived = [_derived(metrics, sums[column], counts[column]) for column in range(columns)]
    return {metric.name: tuple(values[metric.name] for values in derived) for metric in metrics}


def _derived(
    metrics: Iterable[DerivedMetric], sums: Mapping[str, float], count: int
) -> dict[str, float | None]:
    values: dict[str, float] = {COUNT: float(count), **sums}
    found: dict[str, float | None] = {}
    for metric in metrics:
        value = _value_of(metric.value, values)
        found[metric.name] = value
        if value is not None:
            values[metric.name] = value
    return found


def check_formulas(metrics: Iterable[DerivedMetric]) -> Iterator[Problem]:
    """Yield the problems of formulas that do not depend on the metrics' values."""
    for metric in metrics:
        why = _formula_problem(metric.value)
        if why:
            message = f"the formula of the derived metric `{metric.name}` cannot be computed: {why}"
            hint = "write arithmetic with metric names and __count, such as `APE / __count`"
            yield Problem(message, metric.place.value("value"), hint)


def _formula_problem(formula: str) -> str:
    if len(formula) > _LONGEST:
        return f"it is longer than {_LONGEST:,} characters"
    try:
        _check(_parse(formula))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return error.msg if isinstance(error, SyntaxError) else str(error) or "it is nested too deeply"
    return ""


def _value_of(formula: str, values: Mapping[str, float]) -> float | None:
    try:
        value = float(_compute(_parse(formula), values))
    except (LookupError, ArithmeticError, ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return value if math.isfinite(value) else None


def names_in_formula(formula: str) -> set[str]:
    """Return the names that stand for numbers in a formula; none if it cannot be parsed."""
    if _formula_problem(formula):
        return set()
    nodes = list(ast.walk(_parse(formula)))
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    names = [node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in called]
    return {name.removesuffix(_KEYWORD) for name in names}


def _parse(formula: str) -> ast.expr:
    # `^` means power in these formulas; in Python it is exclusive or.
    text = formula.strip().replace("^", "**")
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        # A metric may be called `pass` or `class`, which are keywords in Python.
        renamed = _NAME.sub(lambda name: name[0] + _KEYWORD if iskeyword(name[0]) else name[0], text)
        if renamed == text:
            raise
        return ast.parse(renamed, mode="eval").body


def _check(node: ast.expr) -> None:
    match node:
        case ast.Constant(value=bool()):
            raise ValueError(f"`{ast.unparse(node)}` is not a number")
        case ast.Constant(value=int() | float()) | ast.Name():
            return
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            _check(left)
            _check(right)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            _check(operand)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            for argument in arguments:
                _check(argument)
            _, least, most = _FUNCTIONS[name]
            if not least <= len(arguments) <= most:
                raise ValueError(f"`{name}` takes {_COUNTS[least, most]}, not {len(arguments)}")
        case ast.Call(func=ast.Name(id=name)):
            raise ValueError(f"unknown function `{name}`; use one of {', '.join(_FUNCTIONS)}")
        case _:
            raise ValueError(f"`{ast.unparse(node)[:60]}` is not arithmetic")


def _compute(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return float(value)
        case ast.Name(id=name):
            return values[name.removesuffix(_KEYWORD)]
        case ast.BinOp(left=left, op=sign, right=right):
            return _BINARY[type(sign)](_compute(left, values), _compute(right, values))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_compute(operand, values)
        case ast.UnaryOp(operand=operand):
            return _compute(operand, values)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name][0](*(_compute(argument, values) for argument in arguments))
    raise ValueError("no arithmetic")


class Tally(Struct):
    """Running counts of case results; `summary` can be called at any time. Memory does not grow with the cases.

    `bugs` counts the results that are errors because of a bug in geval rather than the model or the judge. If
    `has_clusters`, some tests have several cases, so that intervals need the results test by test
    (`with_clustered_intervals`), which is not the order in which they come here.
    """

    counts: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(Status, 0))
    usage: dict[Role, Usage] = field(default_factory=lambda: {Role.GENERATION: Usage(), Role.JUDGE: Usage()})
    bugs: int = 0
    has_clusters: bool = False
    _scores: dict[str, RunningMean] = field(default_factory=dict)
    _errors: dict[str, int] = field(default_factory=dict)

    def add(self, result: CaseResult) -> None:
        """Count one result."""
        members = [item for item, _ in with_members(result.assertions)]
        self.counts[result.status] += 1
        self.has_clusters = self.has_clusters or result.column > 0 or result.repeat_index > 0
        errors = (result.error, *(item.error for item in members))
        self.bugs += any(error is not None and error.is_bug for error in errors)
        for role, usage in result.usage.items():
            self.usage[role] = self.usage.get(role, Usage()) + usage
        for metric, (score, errored) in metric_scores(result, members).items():
            mean = self._scores.setdefault(metric, RunningMean())
            if score is not None:
                mean.add(score)
            self._errors[metric] = self._errors.get(metric, 0) + errored

    def summary(self) -> RunSummary:
        """Return the sums so far."""
        passed, failed, errored = (
            self.counts[status] for status in (Status.PASSED, Status.FAILED, Status.ERROR)
        )
        return RunSummary(
            total=sum(self.counts.values()),
            passed=passed,
            failed=failed,
            errored=errored,
            not_evaluated=self.counts[Status.NOT_EVALUATED],
            pass_rate=passed / (passed + failed) if passed + failed else None,
            metrics={
                metric: MetricSummary(scores.mean, scores.n, self._errors[metric], self._interval(scores))
                for metric, scores in sorted(self._scores.items())
            },
            usage=dict(self.usage),
            pass_rate_at_least=passed / (passed + failed + errored) if passed + failed else None,
            pass_interval=None if self.has_clusters else share_interval(passed, passed + failed),
        )

    def _interval(self, scores: RunningMean) -> Interval | None:
        return None if self.has_clusters else scores.interval()


def with_clustered_intervals(summary: RunSummary, results: Iterable[CaseResult]) -> RunSummary:
    """Return `summary` with confidence intervals that count each test once, however many cases it has.

    `results` come test by test, as the store yields them.
    """
    passed = ClusteredMean()
    metrics = {name: ClusteredMean() for name in summary.metrics}
    for result in results:
        if result.status in {Status.PASSED, Status.FAILED}:
            passed.add(result.test_index, float(result.status is Status.PASSED))
        for name, score in result.named_scores.items():
            if name in metrics:
                metrics[name].add(result.test_index, score)
    found = {
        name: replace(metric, interval=metrics[name].interval()) for name, metric in summary.metrics.items()
    }
    return replace(summary, metrics=found, pass_interval=passed.interval())


def metric_scores(
    result: CaseResult, members: Sequence[AssertionResult]
) -> Mapping[str, tuple[float | None, int]]:
    """Return for each metric of a case its score (None if nothing was scored) and how many assertions errored."""
    metrics = {item.metric for item in members if item.metric is not None}
    return {
        metric: (
            result.named_scores.get(metric),
            sum(1 for item in members if item.metric == metric and item.status is Status.ERROR),
        )
        for metric in metrics
    }


class Notices(Struct):
    """Texts that the user should see, each once and at most 100."""

    _texts: dict[str, None] = field(default_factory=dict)
    _left_out: set[tuple[str, str]] = field(default_factory=set)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._texts)

    def add(self, event: RunEvent) -> None:
        """Add the notices that an event calls for, if any."""
        if isinstance(event, Noticed):
            self.say(event.message)
        elif isinstance(event, ModelCalled) and event.dropped:
            # The gateway reports this when a server rejects a parameter; for a cached answer, it has nothing to report.
            new = [name for name in event.dropped if (event.provider_id, name) not in self._left_out]
            self._left_out.update((event.provider_id, name) for name in new)
            if "temperature" in new:
                self.say(
                    f"{event.provider_id} does not accept `temperature` here: ratings and samples use the "
                    "model's default instead of 0 and 1, so another run may rate differently"
                )
                new.remove("temperature")
            if new and event.usage.cached_requests and event.usage.cached_requests == event.usage.requests:
                names = ", ".join(f"`{name}`" for name in new)
                self.say(
                    f"{event.provider_id} does not accept {names}; its cached answers were generated without"
                )

    def say(self, text: str) -> None:
        """Add a text."""
        if len(self._texts) < _NOTICES_MAX:
            self._texts[text] = None


class _Repeats(Struct):
    """The repeats of one test in one column."""

    first: CaseResult
    passed: int = 0
    judged: int = 0
    scores: RunningMean = field(default_factory=RunningMean)

    def add(self, result: CaseResult) -> None:
        if result.status in _VERDICTS:
            self.judged += 1
            self.passed += result.status is Status.PASSED
        if result.score is not None:
            self.scores.add(result.score)

    @property
    def is_flaky(self) -> bool:
        return 0 < self.passed < self.judged

    def flaky_test(self) -> FlakyTest:
        return FlakyTest(
            test_index=self.first.test_index,
            column=self.first.column,
            description=self.first.description,
            passed=self.passed,
            judged=self.judged,
            mean=self.scores.mean,
            deviation=self.scores.deviation,
        )


def flaky_tests(results: Iterable[CaseResult]) -> tuple[tuple[FlakyTest, ...], int]:
    """Return the first hundred tests that both passed and failed, and the total number of such tests.

    `results` come test by test, as the store yields them; only the repeats of one test are held at a time.
    """
    named: list[FlakyTest] = []
    count = 0
    for _, of_test in groupby(results, key=lambda result: result.test_index):
        columns: dict[int, _Repeats] = {}
        for result in of_test:
            columns.setdefault(result.column, _Repeats(result)).add(result)
        flaky = [repeats.flaky_test() for _, repeats in sorted(columns.items()) if repeats.is_flaky]
        count += len(flaky)
        named.extend(flaky[: FLAKY_MAX - len(named)])
    return tuple(named), count
