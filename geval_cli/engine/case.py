"""One job from prompt to result: render, ask, judge. The boundary where errors become values."""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from geval_cli.assertions.metering import Meter, MeteredJudge
from geval_cli.assertions.outcome import Subject, Tools, location_of
from geval_cli.assertions.registry import judge_assertion, metric_name
from geval_cli.config.schema import AssertionSpec, ProviderSpec
from geval_cli.engine.aggregate import judge_case, named_scores
from geval_cli.engine.evaluation import answer_schema, assertions_of
from geval_cli.engine.plan import Job
from geval_cli.engine.prompt import Rendered, render_prompt
from geval_cli.errors import GevalError, JudgeError, ProviderError
from geval_cli.records import (
    INTERNAL_ERROR,
    AssertionResult,
    CaseResult,
    ErrorInfo,
    ModelRequest,
    ModelResponse,
    ProviderRef,
    RenderedPrompt,
    Role,
    Status,
    Usage,
)

_RAW_SHOWN = 2_000  # characters of a reply or an error body that a result keeps

Generate = Callable[[ProviderSpec, ModelRequest], Awaitable[ModelResponse]]


@dataclass(frozen=True, slots=True)
class Bench:
    """What a job needs to be done: a way to ask the model under test, and the tools of the assertions."""

    generate: Generate
    tools: Tools


async def run_job(job: Job, bench: Bench) -> CaseResult:
    """The result of one job. Never raises, except when cancelled: what goes wrong is in the result."""
    started = time.monotonic()
    blank = _blank_result(job)
    try:
        rendered = render_prompt(job.prompt, job.test, bench.tools.templates)
        blank = replace(blank, prompt=replace(blank.prompt, rendered=rendered.text))
        answered, response = await _answer(job, rendered, bench, blank)
        subject = Subject(
            job.test, answered.output, rendered.text, job.repeat_index, rendered.system, response
        )
        return await _judged(job, answered, subject, bench.tools)
    except GevalError as error:
        return replace(blank, error=error_info(error), latency_ms=_elapsed_ms(started))
    except Exception as error:  # noqa: BLE001 - one broken job must not lose the results of all the others
        return replace(blank, error=_internal_error(error), latency_ms=_elapsed_ms(started))


async def _answer(
    job: Job, rendered: Rendered, bench: Bench, blank: CaseResult
) -> tuple[CaseResult, ModelResponse | None]:
    """The result with the model's answer in it and that answer, or with the output that the test brings and None."""
    if not job.generates:
        output = job.test.output if job.test.has_output else job.test.vars.get("output")
        return replace(blank, output=output), None
    request = ModelRequest(
        rendered.messages,
        repeat_index=job.repeat_index,
        response_schema=answer_schema(job.prompt),
        role=Role.GENERATION,
        variables=job.test.variables,
    )
    response = await bench.generate(job.provider, request)
    answered = replace(
        blank,
        output=response.text,
        latency_ms=response.latency_ms,
        cached=response.cached,
        usage={Role.GENERATION: response.usage, Role.JUDGE: Usage()},
    )
    return answered, response


async def _judged(job: Job, answered: CaseResult, subject: Subject, tools: Tools) -> CaseResult:
    specs = assertions_of(job.prompt, job.test)
    assertions = await asyncio.gather(*(_judge_one(spec, subject, tools) for spec in specs))
    verdict = judge_case(assertions, job.test.threshold)
    judging = sum((assertion.usage for assertion in assertions), Usage())
    return replace(
        answered,
        status=verdict.status,
        score=verdict.score,
        named_scores=named_scores(assertions),
        usage={**answered.usage, Role.JUDGE: judging},
        assertions=tuple(assertions),
    )


async def _judge_one(spec: AssertionSpec, subject: Subject, tools: Tools) -> AssertionResult:
    started, meter = time.monotonic(), Meter()
    metered = replace(tools, judge_for=lambda judge: MeteredJudge(tools.judge_for(judge), meter))
    try:
        return replace(await judge_assertion(spec, subject, metered), usage=meter.usage)
    except GevalError as error:
        info = error_info(error)
    except Exception as error:  # noqa: BLE001 - as in run_job: the other assertions' paid verdicts must stay
        info = _internal_error(error)
    return AssertionResult(
        type=spec.type,
        metric=metric_name(spec),
        status=Status.ERROR,
        score=None,
        threshold=getattr(spec, "threshold", None),
        weight=spec.weight,
        error=info,
        location=location_of(spec),
        latency_ms=_elapsed_ms(started),
        usage=meter.usage,
    )


def error_info(error: GevalError) -> ErrorInfo:
    """An error as a value, with an excerpt of what came back instead of an answer."""
    raw = None
    if isinstance(error, JudgeError):
        raw = error.raw_text
    elif isinstance(error, ProviderError):
        raw = error.body
    return ErrorInfo(type(error).__name__, error.message, error.hint, raw[:_RAW_SHOWN] if raw else None)


def _internal_error(error: Exception) -> ErrorInfo:
    hint = "this is a bug in geval; please report it with the traceback, which a results file (-o FILE) holds"
    trace = "".join(traceback.format_exception(error)).rstrip()
    return ErrorInfo(INTERNAL_ERROR, f"{type(error).__name__}: {error}", hint, trace[-_RAW_SHOWN:])


def _blank_result(job: Job) -> CaseResult:
    return CaseResult(
        id=job.id,
        test_index=job.test.index,
        repeat_index=job.repeat_index,
        column=job.column,
        description=job.test.description,
        prompt=RenderedPrompt(job.prompt.id, job.prompt.label, ""),
        provider=ProviderRef(job.provider.public_id, job.provider.title),
        vars=job.test.vars,
        output=None,
        status=Status.ERROR,
        score=None,
        usage={Role.GENERATION: Usage(), Role.JUDGE: Usage()},
        metadata=job.test.metadata,
    )


def _elapsed_ms(started: float) -> float:
    return (time.monotonic() - started) * 1000
