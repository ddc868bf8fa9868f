"""Derived metrics: numbers computed from the sums of a run's metrics by the formulas of the config. Pure.

A formula knows the name of every metric, which stands for the sum of its scores over the cases, `__count` for the
number of cases, and the derived metrics before it: `APE / __count` is a mean. The cases are those of a column, or all.
"""

import ast
import math
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from geval_cli.errors import Problem
from geval_cli.records import CaseResult, RunSummary
from geval_cli.suite.gates import DerivedMetric

COUNT = "__count"
_LARGEST_POWER = 1000.0
_LONGEST = 2_000  # characters

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: lambda base, power: math.pow(base, min(power, _LARGEST_POWER)),
}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "abs": abs,
    "ceil": math.ceil,
    "exp": math.exp,
    "floor": math.floor,
    "log": math.log,
    "log10": math.log10,
    "log2": math.log2,
    "max": max,
    "min": min,
    "pow": lambda base, power: math.pow(base, min(power, _LARGEST_POWER)),
    "round": round,
    "sqrt": math.sqrt,
}


def derive(metrics: Iterable[DerivedMetric], summary: RunSummary) -> dict[str, float | None]:
    """Return the value of each derived metric; None when it cannot be computed: no score yet, a division by zero."""
    sums = {
        name: scored.mean * scored.n for name, scored in summary.metrics.items() if scored.mean is not None
    }
    return _derived(metrics, sums, summary.total)


def derive_by_column(
    metrics: Sequence[DerivedMetric], results: Iterable[CaseResult], *, columns: int
) -> dict[str, tuple[float | None, ...]]:
    """Return the value of each derived metric for the cases of each column alone, by the column's index."""
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
            hint = "write arithmetic over names of metrics and __count, such as `APE / __count`"
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
    except (LookupError, ArithmeticError, ValueError, TypeError, SyntaxError):
        return None
    return value if math.isfinite(value) else None


def _parse(formula: str) -> ast.expr:
    # `^` is the power in such formulas; in Python it would be something else.
    return ast.parse(formula.strip().replace("^", "**"), mode="eval").body


def _check(node: ast.expr) -> None:
    match node:
        case ast.Constant(value=bool()):
            raise ValueError(f"`{ast.unparse(node)}` is no number")
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
        case ast.Call(func=ast.Name(id=name)):
            raise ValueError(f"there is no function `{name}`; there are {', '.join(_FUNCTIONS)}")
        case _:
            raise ValueError(f"`{ast.unparse(node)[:60]}` is no arithmetic")


def _compute(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return float(value)
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=sign, right=right):
            return _BINARY[type(sign)](_compute(left, values), _compute(right, values))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_compute(operand, values)
        case ast.UnaryOp(operand=operand):
            return _compute(operand, values)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name](*(_compute(argument, values) for argument in arguments))
    raise ValueError("no arithmetic")
