"""One job from prompt to result: render, call the model, judge. The boundary where errors become values."""

import json
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from geval_cli.assertions.base import Assertion, MergedTest, RowColumn, Subject, Tools, Verdict, verdict_of
from geval_cli.assertions.registry import wants_logprobs
from geval_cli.assertions.trace import trace_of
from geval_cli.engine.conversation import ConversationState
from geval_cli.engine.judge_output import (
    PrefetchedAnswers,
    Prefetcher,
    elapsed_ms,
    error_info,
    internal_error,
    judge_each,
    judge_one,
)
from geval_cli.engine.plan import NO_PROVIDER, Job, answer_schema, assertions_of, key_of
from geval_cli.engine.prompt import (
    REQUESTS,
    Rendered,
    prompt_params,
    render_prompt,
    seen_by_templates,
    shown_prompt,
)
from geval_cli.engine.transforms import PROGRAMS, own_verdict, with_made_parts, with_transformed_output
from geval_cli.errors import CodeFailedError, GevalError, NotDoneError, TemplateError
from geval_cli.gateway.call import OPEN_CASE
from geval_cli.metrics import named_scores
from geval_cli.plugins import extra
from geval_cli.providers.base import is_program
from geval_cli.providers.wire.chat import reported_logprobs
from geval_cli.records import (
    TEST_TEXTS,
    AssertionResult,
    CaseResult,
    Choice,
    JsonValue,
    ModelRequest,
    ModelResponse,
    RecordedTest,
    RenderedPrompt,
    Role,
    Status,
    Usage,
)
from geval_cli.source.media import is_marker, named_and_hashed, without_media_data
from geval_cli.specs.base import ProviderSpec
from geval_cli.specs.promptfoo import NamedPromptSpec
from geval_cli.store.runs import ToolCallLog

Generate = Callable[[ProviderSpec, ModelRequest], Awaitable[ModelResponse]]


class JobContext(Struct, frozen=True):
    """The context of a job: a way to call the model, the tools of the assertions, the state left by earlier jobs.

    `calls` records the tool calls of tests that define tools; without it, no tool may be called.

    With `stored`, no model is called: it returns the case of an earlier run, whose output is judged as it is. `columns`
    are the columns of the run, by whose names outputs are compared. `judge` judges the assertions that can end a
    conversation.
    """

    generate: Generate
    tools: Tools
    carried: ConversationState = field(default_factory=ConversationState)
    prefetcher: Prefetcher = field(default_factory=Prefetcher)
    stored: Callable[[Job], CaseResult] | None = None
    columns: tuple[RowColumn, ...] = ()
    calls: ToolCallLog | None = None
    judge: Callable[[Assertion, Subject, Tools], Awaitable[AssertionResult]] = judge_one


class PendingResult(Struct, frozen=True):
    """The state of a job: its result so far, and the subject that was judged; None if there is no output to judge.

    `earlier` are the ratings that the output already has from an earlier run.
    """

    job: Job
    result: CaseResult
    subject: Subject | None = None
    earlier: tuple[AssertionResult, ...] = ()


async def run_job(job: Job, context: JobContext) -> CaseResult:
    """Return the result of one job, with any error in it.

    Raises:
        NotDoneError: the run may spend no more, or the answer will come with a batch; the job stays undone.
    """
    return (await begin_job(job, context)).result


async def begin_job(job: Job, context: JobContext) -> PendingResult:
    """Return the state of a job, judged except for the assertions that compare its output with others.

    Raises:
        NotDoneError: as in `run_job`.
    """
    prefetched = PrefetchedAnswers()
    try:
        pending = await _run(job, context, prefetched)
        result = await prefetched.with_unused_cost(pending.result)
        # The key is that of the job as planned: programs may have changed its variables.
        return replace(pending, result=replace(result, test_key=key_of(job.test)))
    finally:
        prefetched.cancel()


async def _run(job: Job, context: JobContext, prefetched: PrefetchedAnswers) -> PendingResult:
    started = time.monotonic()
    shown, caller, answering = "", None, context.generate
    try:
        # Variables of earlier tests come first: generated prompts and transforms may use them.
        earlier = context.carried.variables_for(job)
        if context.stored is not None:
            return await _judge_stored(job, context.stored(job), context, earlier)
        job = await with_made_parts(job, context.tools, earlier)
        test = seen_by_templates(job.test, context.tools.templates, earlier)
        rendered = render_prompt(job.prompt, test, context.tools.templates, earlier)
        shown = rendered.text
        if job.generates:
            unanswered = Subject(
                test, "", rendered.whole, job.repeat_index, rendered.system, provider=job.provider
            )
            # A bug here shows up again when the output is judged, and must not prevent the model call.
            with suppress(Exception):
                specs = assertions_of(job.prompt, job.test)
                context.prefetcher.ask(specs, unanswered, context.tools, prefetched)
        if job.generates and job.test.tools is not None:
            caller = extra("tools").ToolCaller(job.id, test, job.repeat_index, context)
            answering = caller.generate
        if job.generates and test.is_conversation:
            called = None if caller is None else caller.steps
            held = await extra("conversations").hold_conversation(
                job, test, context, earlier, answering, called
            )
            response = held.response
            answered = held.result(blank_result(job, held.sent))
            answered = answered if caller is None else caller.with_unused_cost(answered)
            if held.error is not None:
                info = error_info(held.error)
                info = replace(info, message=f"{held.failed_at}{info.message}")
                return PendingResult(job, replace(answered, error=info))
        else:
            held = None
            answered, response = await _answer(job, test, rendered, replace(context, generate=answering))
            answered = answered if caller is None else caller.with_unused_cost(answered)
        if job.generates:
            if (case := OPEN_CASE.get()) is not None:
                case.begun.set()
            await context.prefetcher.note_answer()
        subject = Subject(
            test,
            answered.output,
            rendered.whole if held is None else held.sent,
            job.repeat_index,
            rendered.system,
            response=response,
            provider=_answerer(job, context.tools),
            opaque=frozenset(earlier),
            rules=context.tools.rules,
            turns=() if held is None else tuple(held.turns),
            reported=answered.reported,
            called=None if caller is None else answered.trace,
            ended_by=None if held is None else held.ended_by,
        )
        return await _judged(job, answered, subject, replace(context, tools=prefetched.tools(context.tools)))
    except NotDoneError:
        raise
    except GevalError as error:
        info = error_info(error)
    except Exception as error:  # noqa: BLE001 - one broken job must not lose the results of all the others
        info = internal_error(error)
    result = replace(blank_result(job, shown), error=info, latency_ms=elapsed_ms(started))
    return PendingResult(job, result if caller is None else caller.with_unused_cost(result))


async def _judge_stored(
    job: Job, found: CaseResult, context: JobContext, earlier: Mapping[str, JsonValue]
) -> PendingResult:
    """Judge the output of an earlier run: nothing is requested, generated or transformed. An error stays an error."""
    test = job.test
    if test.transform_vars is not None or test.promptfoo.made_vars:
        job = replace(job, test=replace(test, vars=found.vars))
    answered = replace(
        blank_result(job, found.prompt.rendered),
        output=found.output,
        turns=found.turns,
        finish_reason=found.finish_reason,
        tool_calls=found.tool_calls,
        latency_ms=found.latency_ms,
        cost_usd_generated=found.cost_usd_generated,
        cached=found.cached,
        reported=found.reported,
        ended_by=found.ended_by,
    )
    if found.error is not None and not found.assertions:
        return PendingResult(job, replace(answered, error=found.error))
    test = seen_by_templates(job.test, context.tools.templates, earlier)
    whole, system = stored_prompt(job, test, found, context.tools, earlier)
    subject = Subject(
        test,
        found.output,
        whole,
        job.repeat_index,
        system,
        response=_stored_response(found) if job.generates else None,
        provider=_answerer(job, context.tools),
        opaque=frozenset(earlier),
        rules=context.tools.rules,
        turns=found.turns,
        reported=found.reported,
        called=found.trace if job.generates and test.tools is not None else None,
        ended_by=found.ended_by or None,
    )
    known = tuple(with_all_members(found.assertions))
    tools = replace(context.tools, earlier=known)
    pending = await _judged(job, answered, subject, replace(context, tools=tools), is_final=True)
    return replace(pending, earlier=known)


def with_all_members(results: Iterable[AssertionResult]) -> Iterator[AssertionResult]:
    """Yield results, each followed by its members if it is an assertion set."""
    for result in results:
        yield result
        yield from with_all_members(result.assertions)


def stored_prompt(
    job: Job, test: MergedTest, found: CaseResult, tools: Tools, earlier: Mapping[str, JsonValue]
) -> tuple[str, str | None]:
    """Return a stored case's prompt as one text, and its system message if the config still renders that prompt."""
    shown = found.prompt.rendered
    if isinstance(job.prompt, NamedPromptSpec) and job.prompt.made_by:
        return shown, None
    try:
        rendered = render_prompt(job.prompt, test, tools.templates, earlier)
    except TemplateError:
        return shown, None
    return (rendered.whole, rendered.system) if rendered.text == shown else (shown, None)


def _stored_response(found: CaseResult) -> ModelResponse:
    text = found.output if isinstance(found.output, str) else json.dumps(found.output, ensure_ascii=False)
    reported = found.reported
    choice = Choice(
        text, found.finish_reason, reported_logprobs(reported), reported=reported, tool_calls=found.tool_calls
    )
    usage = found.usage.get(Role.GENERATION, Usage())
    return ModelResponse(
        (choice,),
        usage=usage,
        latency_ms=found.latency_ms,
        cached=True,  # the cost is what it was then: this run pays for none, nor did a case that shared its answer
        shared=not found.cached,
        original_usage=replace(usage, cost_usd=found.cost_usd_generated),
    )


def _answerer(job: Job, tools: Tools) -> ProviderSpec | None:
    """Return the provider that answered. In some dialects, the column's provider gets credit for given outputs too."""
    stands_for_outputs = tools.rules.credits_given_outputs and job.provider.id != NO_PROVIDER.id
    return job.provider if job.generates or stands_for_outputs else None


async def _answer(
    job: Job, test: MergedTest, rendered: Rendered, context: JobContext
) -> tuple[CaseResult, ModelResponse | None]:
    """Return the result and the model's answer, or the result with the test's stored output and None.

    `test` is the job's test, with its variables as templates see them.
    """
    blank = blank_result(job, rendered.text)
    if not job.generates:
        output = job.test.output if job.test.has_output else job.test.vars.get("output")
        if test.turns:  # nothing is sent, but the earlier turns are the output's prompt
            shown = RenderedPrompt(job.prompt.id, job.prompt.label, extra("conversations").history_text(test))
            return replace(blank, output=output, prompt=shown), None
        return replace(blank, output=output), None
    response = await ask_model(job, test, rendered, context)
    answered = replace(
        blank,
        output=extra(REQUESTS).output_of(response.choices[0], job.provider)
        if context.tools.rules.keeps_data
        else response.text,
        finish_reason=response.choices[0].finish_reason,
        tool_calls=response.tool_calls,
        latency_ms=response.latency_ms,
        cost_usd_generated=response.cost_usd_generated,
        cached=response.is_from_cache,
        reported=response.choices[0].reported,
        usage={Role.GENERATION: response.usage, Role.JUDGE: Usage()},
    )
    return answered, response


async def ask_model(job: Job, test: MergedTest, rendered: Rendered, context: JobContext) -> ModelResponse:
    """Call the model; `test` has its variables as templates see them."""
    params = {**prompt_params(job.prompt), **job.test.promptfoo.params}
    rules = context.tools.rules
    messages, added = rendered.messages, frozenset[str]()
    if rules.prompts_spell_chats or rules.renders_params or rules.adds_params:
        messages, params, added = extra(REQUESTS).request_parts(job, test, rendered, context.tools, params)
    request = ModelRequest(
        messages,
        repeat_index=job.repeat_index,
        want_logprobs=wants_logprobs(job.test.assertions),
        response_schema=answer_schema(job.prompt),
        role=Role.GENERATION,
        variables=test.variables,
        params=params,
        text=rendered.sent,
        origin=_origin(job) if rules.tells_programs and is_program(job.provider) else {},
        added=added,
    )
    return await context.generate(job.provider, request)


def _origin(job: Job) -> dict[str, JsonValue]:
    """Return the facts about the origin of a request that promptfoo gives to programs."""
    return {
        "prompt": shown_prompt(job.prompt, job.test),
        "test": extra(PROGRAMS).test_shown(job.test),
        "testIdx": job.test.index,
        "promptIdx": job.column,
        "repeatIndex": job.repeat_index,
    }


async def _judged(
    job: Job, answered: CaseResult, subject: Subject, context: JobContext, *, is_final: bool = False
) -> PendingResult:
    """Return the state after judging. An output that `is_final` is already transformed."""
    tools, error, answer = context.tools, None, subject.output
    try:
        if not is_final:
            subject = await with_transformed_output(subject, job.provider, job.prompt, tools)
    except CodeFailedError as failed:  # the answer is paid for, so it stays in the result
        return PendingResult(job, replace(answered, error=error_info(failed)))
    context.carried.record(job, subject)
    if subject.output is not answer:
        answered = replace(answered, output=subject.output, reported=subject.reported)
    specs = [spec for spec in assertions_of(job.prompt, job.test) if not spec.compares_outputs]
    assertions = await judge_each(specs, subject, tools)
    verdict = verdict_of(assertions, job.test.threshold)
    try:
        verdict = await own_verdict(verdict, list(zip(specs, assertions, strict=True)), subject, tools)
    except CodeFailedError as failed:
        verdict = Verdict(Status.ERROR, None)
        error = error_info(failed)
    judging = answered.usage.get(Role.JUDGE, Usage())
    judging = sum((assertion.usage for assertion in assertions), judging)
    result = replace(
        answered,
        turns=subject.conversation,
        trace=trace_of(subject) or (),
        status=verdict.status,
        score=verdict.score,
        error=error,
        named_scores=named_scores(assertions),
        usage={**answered.usage, Role.JUDGE: judging},
        assertions=tuple(assertions),
    )
    return PendingResult(job, result, subject)


def blank_result(job: Job, rendered: str = "") -> CaseResult:
    """Return the initial result of a job: an error without a reason, until there is more."""
    return CaseResult(
        id=job.id,
        test_index=job.test.index,
        repeat_index=job.repeat_index,
        column=job.column,
        description=job.test.description,
        prompt=RenderedPrompt(job.prompt.id, job.prompt.label, without_media_data(rendered)),
        provider=job.shown_provider,
        vars=without_media_data(job.test.vars),
        output=None,
        status=Status.ERROR,
        score=None,
        usage={Role.GENERATION: Usage(), Role.JUDGE: Usage()},
        metadata=job.test.metadata,
        test=_asked(job.test),
    )


def _asked(test: MergedTest) -> RecordedTest | UnsetType:
    found = RecordedTest(
        index=test.index,
        **{name: getattr(test, name) for name in TEST_TEXTS},
        images=tuple(named_and_hashed(item) for item in test.images if is_marker(item)),
        audio=tuple(named_and_hashed(item) for item in test.audio if is_marker(item)),
    )
    return UNSET if found.is_empty else found


class ComparisonGroups(Struct):
    """A runner of jobs that holds back results whose outputs are compared until the last of their group is there.

    Their number is bounded by the jobs under way, as long as jobs come row by row. The results of a row that is never
    completed, because the run stops, are never returned: its cases stay undone, and their answers are in the cache.
    """

    context: JobContext
    row_size: Callable[[Job], int]
    _rows: dict[str, list[PendingResult]] = field(default_factory=dict)

    def forget(self) -> None:
        """Drop incomplete groups: a later pass over the plan does all of their jobs again."""
        self._rows.clear()

    async def run(self, job: Job) -> Sequence[CaseResult]:
        """Return the results that are final with this job: its own, those of its whole group, or none.

        Raises:
            NotDoneError: the run may spend no more, or an answer will come with a batch.
        """
        if not any(spec.compares_outputs for spec in job.test.assertions):
            return (await run_job(job, self.context),)
        pending = await begin_job(job, self.context)
        row = self._rows.setdefault(job.group, [])
        row.append(pending)
        if len(row) < self.row_size(job):
            return ()
        # Complete groups are dropped at once: the plan's order keeps few of them open, so memory stays flat.
        del self._rows[job.group]
        # Jobs end in any order; a judge that compares must get the same request each time, or the cache never hits.
        row.sort(key=lambda member: member.job.column)
        found: Sequence[CaseResult] = await extra("comparisons").finish_row(row, self.context)
        return found
