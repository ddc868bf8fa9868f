"""`check`: judge one output with any assertion of a config, without a suite or a run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from geval_cli.library.records import JudgingOptions, exits_as_errors, given_media, written_media
from geval_cli.library.session import LibrarySession
from geval_cli.library.table import verdict_html

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path
    from typing import Unpack

    from geval_cli.library.metric import GEval
    from geval_cli.records import AssertionResult
    from geval_cli.runs.requests import PreparedRun
    from geval_cli.runs.session import Session


class CheckKeywords(TypedDict, total=False):
    """The keyword arguments of `check`, apart from the output and the assertion.

    Attributes:
        input: what the user said to the model under test.
        expected_output: a good answer, for comparison.
        context: known facts: a text or several.
        retrieval_context: what a search found for the input: a text or several.
        images, audio: paths, data URLs, or bytes.
        vars: variables for templates in the assertion.
        grader: the judge if the assertion names none: "openai:gpt-4.1".
        samples: number of ratings that a judge gives.
        turns: the conversation that ends with the output, [{"role": "user", "content": "..."}, ...].
        scenario: what the conversation is about.
        expected_outcome: how it should end.
        role: who the assistant is in it.
        trace: the steps of an agent that led to the output, [{"name": "search", "args": {...}}, ...].
    """

    input: str | None
    expected_output: str | None
    context: str | Sequence[str] | None
    retrieval_context: str | Sequence[str] | None
    images: "Sequence[str | Path | bytes] | None"
    audio: "Sequence[str | Path | bytes] | None"
    vars: Mapping[str, Any] | None
    grader: str | None
    samples: int | None
    turns: Sequence[Mapping[str, Any]] | None
    scenario: str | None
    expected_outcome: str | None
    role: str | None
    trace: Sequence[Mapping[str, Any]] | None


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The verdict of one assertion on one output.

    Attributes:
        type: of the assertion.
        status: `passed`, `failed` or `not_evaluated` (there was nothing to evaluate).
        success: whether it did not fail.
        score: 0..1; None if nothing was scored.
        threshold: what the score had to reach; None if there is no threshold.
        reason: the reason in words.
        metric: the name under which scores are aggregated, or None.
        latency_ms: how long judging took, in milliseconds.
        metadata: how the score was determined, as in `detail` of results files; `usage` is that of the judges.
    """

    type: str
    status: Literal["passed", "failed", "not_evaluated"]
    success: bool
    score: float | None
    threshold: float | None
    reason: str | None
    metric: str | None
    latency_ms: float
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return verdict_html(self)


def check(
    output: Any, assertion: "Mapping[str, Any] | GEval", **given: "Unpack[CheckKeywords]"
) -> CheckResult:
    """Return the verdict of an assertion on `output`. Blocks, even inside a running event loop.

    Equal requests to a judge are sent once per process.

    Args:
        output: text, or JSON data.
        assertion: as in a config, `{"type": "contains", "value": "x"}`, or a `GEval`.
        **given: see `CheckKeywords`.

    Raises:
        UsageError: the assertion is not valid, or its judge lacks something; names every problem.
        ApiError: the judge could not answer.
        JudgeError: the judge answered, but no verdict could be read.
        GevalError: the output cannot be judged for another reason.
    """
    prepared = prepare_check(output, assertion, dict(given))
    return to_check_result(_session.run(judging_work(prepared)))


async def acheck(
    output: Any, assertion: "Mapping[str, Any] | GEval", **given: "Unpack[CheckKeywords]"
) -> CheckResult:
    """Do the same as `check`, without blocking the event loop."""
    prepared = prepare_check(output, assertion, dict(given))
    return to_check_result(await _session.arun(judging_work(prepared)))


_session = LibrarySession(JudgingOptions())

_WARNINGS_KEPT = 1000
_NOT_OF_TEST = ("grader", "samples")


def prepare_check(
    output: Any,
    assertion: Any,
    given: Mapping[str, Any],
    *,
    is_offline: bool = False,
    max_cost_usd: float | None = None,
) -> "PreparedRun":
    """Return a checked suite with one test, which brings `output` and has one assertion.

    Raises:
        UsageError: the assertion or the test is not valid; names every problem.
    """
    import os

    from geval_cli.errors import ConfigError, Severity, UsageError
    from geval_cli.library.run import problem_line
    from geval_cli.library.run_options import check_is_own, check_options
    from geval_cli.library.suite import Suite, build_suite
    from geval_cli.runs.prepare import prepare
    from geval_cli.runs.requests import RunRequest
    from geval_cli.source.media import MEDIA_FIELDS
    from geval_cli.source.problems import hint_among

    check_is_own(os.environ)
    unknown = sorted(given.keys() - CheckKeywords.__annotations__.keys())
    if unknown:
        hint = hint_among(unknown[0], CheckKeywords.__annotations__, everything="docs/reference/library.md")
        raise UsageError(f"`check` takes no `{unknown[0]}`", hint=hint)
    check_options({name: given[name] for name in _NOT_OF_TEST if name in given})
    # NaN is how pandas writes what is missing.
    if output is None or (isinstance(output, float) and math.isnan(output)):
        hint = 'return it from the function that makes it; JSON\'s null is "null"'
        raise UsageError(f"the output is {output}", hint=hint)
    test = {name: value for name, value in given.items() if value is not None and name not in _NOT_OF_TEST}
    for name, kind in MEDIA_FIELDS.items():
        if name in test:
            test[name] = [written_media(item, kind) for item in given_media(test[name])]
    # As for a `GEval`, a dimension compares the output with the input if there is no context.
    prompts = None if given.get("input") is None else "{{ input }}"
    suite = Suite(tests=[{**test, "output": output, "assert": [assertion]}], prompts=prompts, name="check")
    request = RunRequest(
        suite.path,
        os.environ,
        built=build_suite(suite),
        grader=given.get("grader"),
        samples=given.get("samples"),
        is_offline=is_offline,
        max_cost=max_cost_usd,
    )
    try:
        with exits_as_errors():
            prepared = prepare(request)
    except ConfigError as error:
        problems = [item for item in error.problems if item.severity is Severity.ERROR]
        raise UsageError.of("this assertion cannot be checked", problems) from error
    for problem in prepared.warnings:
        _warn(problem_line(problem))
    return prepared


@lru_cache(_WARNINGS_KEPT)
def _warn(text: str) -> None:
    """Log a warning, but not again for each output that is checked."""
    import logging

    logging.getLogger("geval_cli").warning(text)


def judging_work(
    prepared: "PreparedRun",
) -> "Callable[[Session], Coroutine[Any, Any, AssertionResult]]":
    """Return the coroutine function that judges a check; it raises the library's errors."""
    from msgspec.structs import replace

    from geval_cli.engine.judge_output import judge_given
    from geval_cli.errors import ApiError, ProviderError, UnjudgeableError
    from geval_cli.records import Status
    from geval_cli.runs.session import counted, safe_assertion

    async def work(judges: "Session") -> "AssertionResult":
        with counted():
            try:
                suite = prepared.suite
                [test] = suite.tests
                [spec] = test.assertions
                tools = judges.tools(suite, prepared.templates, prepared.defaults)
                result = safe_assertion(await judge_given(spec, test, tools), judges.secrets)
            except ProviderError as error:
                raise ApiError(
                    error.message, status=error.status, body=error.body, hint=error.hint
                ) from error
            if result.status is Status.ERROR:  # a member of a set could not be judged
                failed = next(item.error for item in (result, *result.assertions) if item.error is not None)
                raise UnjudgeableError(failed.message, hint=failed.hint)
            return replace(result, location=None)  # the assertion is not in a file

    return work


def to_check_result(found: "AssertionResult") -> CheckResult:
    """Convert an assertion's result to the library's `CheckResult`."""
    from geval_cli.records import to_json

    return CheckResult(
        type=found.type,
        status=found.status.value,  # type: ignore[arg-type] # never `error`, which was raised
        success=found.status.value != "failed",
        score=found.score,
        threshold=found.threshold,
        reason=found.reason,
        metric=found.metric,
        latency_ms=found.latency_ms or 0.0,
        metadata={**found.detail, "usage": to_json(found.usage)},
    )
