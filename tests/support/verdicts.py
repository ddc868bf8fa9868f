"""Judging one output with one assertion, for tests of single types."""

import asyncio
from typing import Any

from support.specs import assertion, case, check_context, subject, tools

from geval_cli.assertions.base import Subject
from geval_cli.assertions.registry import check_assertion, judge_assertion
from geval_cli.errors import Problem
from geval_cli.records import AssertionResult, JsonValue, Status


def judged(
    kind: str,
    output: JsonValue,
    *,
    seen: Subject | None = None,
    vars: dict[str, JsonValue] | None = None,
    **keys: Any,
) -> AssertionResult:
    """Return the result of an assertion of `kind` on `output`; `seen` replaces the whole subject."""
    about = seen or subject(output, case(vars=vars or {}))
    return asyncio.run(judge_assertion(assertion(kind, **keys), about, tools()))


def passes(kind: str, output: JsonValue, **keys: Any) -> bool:
    """Return whether it passes; checks that the score is 1 or 0 accordingly, and the negation the opposite."""
    result, opposite = judged(kind, output, **keys), judged(f"not-{kind}", output, **keys)
    assert result.status in (Status.PASSED, Status.FAILED)
    assert result.score == float(result.status is Status.PASSED)
    assert {result.status, opposite.status} == {Status.PASSED, Status.FAILED}
    assert opposite.score == 1 - result.score
    return result.status is Status.PASSED


def problems(kind: str, *, vars: dict[str, JsonValue] | None = None, **keys: Any) -> list[Problem]:
    """Return the problems with an assertion in a test with `vars`."""
    return check_assertion(assertion(kind, **keys), check_context(case(vars=vars or {})))
