"""Reads promptfoo's results, version 3: each row of its table becomes a result of geval."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from geval_cli.errors import ConfigError, Location, Problem
from geval_cli.extras.results_files import ForeignResults
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    ErrorInfo,
    JsonValue,
    ProviderRef,
    RenderedPrompt,
    Role,
    Status,
    Usage,
)
from geval_cli.specs.dialect import PROMPTFOO_RULES

_VERSION = 3
_ERROR = 2  # `failureReason` of a case that could not be judged


class _Prompt(Struct):
    raw: str = ""
    label: str = ""


class _Provider(Struct):
    id: str = ""
    label: str | None = None


class _Tokens(Struct):
    prompt: int | None = None
    completion: int | None = None


class _Answer(Struct):
    output: Any = None


class _Asserted(Struct):
    type: str = "unknown"
    metric: str | None = None
    threshold: float | None = None
    weight: float | None = None


class _Graded(Struct, rename="camel"):
    passed: bool = field(default=False, name="pass")
    score: float = 0.0
    reason: str | None = None
    assertion: _Asserted | None = None
    component_results: "list[_Graded] | None" = None


class _Test(Struct):
    description: str | None = None
    metadata: dict[str, Any] | None = None


class _ResultsRow(Struct, rename="camel"):
    test_idx: int
    prompt_idx: int
    success: bool
    prompt: _Prompt
    provider: _Provider | str
    score: float = 0.0
    vars: dict[str, Any] | None = None
    response: _Answer | None = None
    named_scores: dict[str, float] | None = None
    grading_result: _Graded | None = None
    error: str | None = None
    failure_reason: int | str | None = None
    latency_ms: float | None = None
    cost: float | None = None
    token_usage: _Tokens | None = None
    test_case: _Test | None = None


def read_results(
    document: Mapping[str, JsonValue], place: Callable[..., Location | None]
) -> ForeignResults | None:
    """Return the results in a document that promptfoo wrote; None for other documents.

    `place` returns the location of a value, given its keys.

    Raises:
        ConfigError: the results are of another version.
    """
    results = document.get("results")
    if not isinstance(results, dict) or "version" not in results:
        return None
    rows, name, begun = results.get("results"), document.get("evalId"), results.get("timestamp")
    if results["version"] != _VERSION or not isinstance(rows, list):
        message = "only results of promptfoo's version 3 can be read"
        hint = "export them again: promptfoo export eval ID -o results.json"
        raise ConfigError([Problem(message, place("results", "version"), hint)])
    return ForeignResults(
        rows,
        ("results", "results"),
        _case_of_row,
        id=name if isinstance(name, str) else "",
        time=begun if isinstance(begun, str) else "",
        dialect=str(PROMPTFOO_RULES.name),
    )


def _case_of_row(item: JsonValue) -> CaseResult:
    """Return a row as a result.

    Raises:
        ValueError: it is not a row of promptfoo's results.
    """
    try:
        row = msgspec.convert(item, _ResultsRow)
    except msgspec.ValidationError as error:
        raise ValueError(f"this is not a promptfoo result: {error}") from error
    provider = _Provider(row.provider) if isinstance(row.provider, str) else row.provider
    if row.success:
        status = Status.PASSED
    else:
        is_unanswered = row.response is None and row.error is not None
        status = Status.ERROR if row.failure_reason == _ERROR or is_unanswered else Status.FAILED
    output = None if row.response is None else row.response.output
    is_error = status is Status.ERROR
    test = row.test_case or _Test()
    tokens = row.token_usage or _Tokens()
    usage = Usage(1, tokens.prompt or 0, tokens.completion or 0, cost_usd=row.cost)
    return CaseResult(
        id=f"{row.test_idx}.0.{row.prompt_idx}",
        test_index=row.test_idx,
        repeat_index=0,
        column=row.prompt_idx,
        description=test.description,
        prompt=RenderedPrompt(row.prompt.label, row.prompt.label or row.prompt.raw, row.prompt.raw),
        provider=ProviderRef(provider.id, provider.label or provider.id),
        vars=row.vars or {},
        output=output,
        status=status,
        score=None if is_error else row.score,
        named_scores=row.named_scores or {},
        error=ErrorInfo("ProviderError", row.error or "promptfoo gave no reason") if is_error else None,
        latency_ms=row.latency_ms or 0.0,
        cost_usd_generated=row.cost,
        usage={Role.GENERATION: usage, Role.JUDGE: Usage()},
        assertions=() if row.grading_result is None else tuple(_assertions_of(row.grading_result)),
        metadata=test.metadata or {},
    )


def _assertions_of(graded: _Graded) -> Iterator[AssertionResult]:
    for part in graded.component_results or ():
        asserted = part.assertion or _Asserted()
        yield AssertionResult(
            type=asserted.type,
            metric=asserted.metric,
            status=Status.PASSED if part.passed else Status.FAILED,
            score=part.score,
            threshold=asserted.threshold,
            weight=1.0 if asserted.weight is None else asserted.weight,
            reason=part.reason,
            assertions=tuple(_assertions_of(part)),
        )
