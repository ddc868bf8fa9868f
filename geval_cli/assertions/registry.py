"""Which assertions there are, and how any of them is checked before a run and judged in one.

The module of a type is imported on its first use, since some bring libraries that take long to load.
"""

from importlib import import_module
from typing import Protocol, cast

from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools, location_of, negated
from geval_cli.config.place import Place
from geval_cli.config.schema import AssertionSpec, WrittenSchema
from geval_cli.errors import Problem
from geval_cli.records import AssertionResult

_HERE = "geval_cli.assertions"

TYPES: dict[str, str] = {
    "contains": f"{_HERE}.text",
    "icontains": f"{_HERE}.text",
    "equals": f"{_HERE}.text",
    "starts-with": f"{_HERE}.text",
    "ends-with": f"{_HERE}.text",
    "regex": f"{_HERE}.text",
    "is-json": f"{_HERE}.structured",
    "g-eval": f"{_HERE}.geval",
    "evaluation-llm": f"{_HERE}.llm_evaluation",
    "evaluation-schema": f"{_HERE}.schema_evaluation",
}
"""The module of each type; `not-` before a type is dealt with here."""


class AssertionModule(Protocol):
    """What the module of a type offers."""

    def check(self, spec: AssertionSpec, context: CheckContext) -> list[Problem]:
        """Every problem of the assertion in one test, before anything is sent."""
        ...

    async def judge(self, spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
        """The verdict on one output.

        Raises:
            GevalError: it could not be judged.
        """
        ...


def check_assertion(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Every problem of one assertion in one test."""
    return _module(spec).check(spec, context)


def check_schema(written: WrittenSchema, name: str, place: Place) -> list[Problem]:
    """Every problem of a JSON Schema that stands outside assertions; `name` is how messages call it."""
    from geval_cli.assertions.json_schemas import schema_problems

    return schema_problems(written, name, place)


async def judge_assertion(spec: AssertionSpec, subject: Subject, tools: Tools) -> AssertionResult:
    """The verdict of one assertion on one output.

    Raises:
        GevalError: it could not be judged; the caller makes that a result with status `error`.
    """
    outcome = await _module(spec).judge(spec, subject, tools)
    if spec.is_negated:
        outcome = negated(outcome)
    return AssertionResult(
        type=spec.type,
        metric=metric_name(spec),
        status=outcome.status,
        score=outcome.score,
        threshold=outcome.threshold,
        threshold_is_default=outcome.threshold_is_default,
        weight=spec.weight,
        reason=outcome.reason,
        location=location_of(spec),
        latency_ms=outcome.latency_ms,
        detail=outcome.detail,
    )


def metric_name(spec: AssertionSpec) -> str | None:
    """Under which name scores are summed up: the `metric` that was written, or the dimension of a g-eval."""
    return spec.metric or getattr(spec, "dimension", None)


def _module(spec: AssertionSpec) -> AssertionModule:
    return cast(AssertionModule, import_module(TYPES[spec.base_type]))
