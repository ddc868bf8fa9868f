"""Judges an output by its assertions: errors become results, judge calls are metered and sent ahead where possible."""

import asyncio
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.assertions.base import Assertion, MergedTest, RowMember, Subject, Tools, location_of
from geval_cli.assertions.geval_metric import metric_name
from geval_cli.assertions.registry import judge_assertion, judge_row, prefetch_requests, score_threshold
from geval_cli.engine.transforms import seen_by_assertion
from geval_cli.errors import (
    CodeFailedError,
    GevalError,
    JudgeError,
    MachineLimitError,
    NotDoneError,
    ProviderError,
)
from geval_cli.gateway.call import OPEN_CASE, AheadRequest, OpenCase, ahead_key
from geval_cli.judge.calls import gather_all
from geval_cli.judge.metric import CachingJudge, Judge, identity_of, public_id_of
from geval_cli.plugins import source_of_bug
from geval_cli.providers.base import ProviderIdentity
from geval_cli.records import (
    INTERNAL_ERROR,
    AssertionResult,
    CaseResult,
    ErrorInfo,
    JsonValue,
    ModelRequest,
    ModelResponse,
    Role,
    Status,
    Usage,
)
from geval_cli.specs.base import ProviderSpec

_RAW_SHOWN = 2_000  # characters of a reply or an error body that a result keeps
_REFUSED_WITHIN_S = 0.3  # a model that does not exist is refused at once; an answer takes longer
_SPECS_KEPT = 256  # specs whose requests were sent ahead; a suite may have a spec of its own for every test


class _PendingAnswer(AheadRequest, kw_only=True):
    """A request that is sent ahead; `starting` waits for the moment to send it, and `answer` is set once it is sent."""

    judge: Judge
    request: ModelRequest
    case: OpenCase | None
    context: Context
    starting: asyncio.Task[None] | None = None
    answer: asyncio.Task[ModelResponse] | None = None

    def start(self) -> asyncio.Task[ModelResponse]:
        """Send the request on behalf of its own case, whichever case needs it first."""
        if self.answer is None:
            self.is_sent = True
            self.answer = self.context.run(asyncio.ensure_future, self.judge.complete(self.request))
        return self.answer

    async def start_in_time(self, answered: asyncio.Event) -> None:
        """Send the request once its case has begun and a model has answered, or has at least not refused at once."""
        if self.case is not None:
            await self.case.begun.wait()
            if not answered.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(answered.wait(), _REFUSED_WITHIN_S)
        self.start()


class PrefetchedAnswers(Struct):
    """Answers requested ahead for one job. Each is given out once, to the assertion that requests it."""

    _questions: list[_PendingAnswer] = field(default_factory=list)

    def ask(self, judge: Judge, request: ModelRequest, answered: asyncio.Event) -> _PendingAnswer:
        """Schedule a request to be sent alongside the one for the output, without waiting for its answer."""
        question = _PendingAnswer(
            key=ahead_key(judge.label, request),
            judge=judge,
            request=request,
            case=OPEN_CASE.get(),
            context=copy_context(),
        )
        question.starting = asyncio.ensure_future(question.start_in_time(answered))
        self._questions.append(question)
        return question

    def take(self, judge: Judge, request: ModelRequest) -> asyncio.Task[ModelResponse] | None:
        """Return the pending answer to `request`, if there is one that was not taken yet."""
        for question in self._questions:
            if question.judge == judge and question.request == request:
                self._questions.remove(question)
                return question.start()
        return None

    def tools(self, tools: Tools) -> Tools:
        """Return `tools` whose judges use these answers."""
        if not self._questions:
            return tools

        def judge_for(spec: ProviderSpec) -> Judge:
            return _PrefetchingJudge(tools.judge_for(spec), self)

        return replace(tools, judge_for=judge_for)

    async def with_unused_cost(self, result: CaseResult) -> CaseResult:
        """Return `result` with the cost of the answers that were not taken; they are paid for all the same."""
        if not self._questions:
            return result
        answers = [question.answer for question in self._questions if question.is_sent]
        # Awaited, not cancelled: the requests are sent, and their cost belongs to this case.
        came = await asyncio.gather(*filter(None, answers), return_exceptions=True)
        spent = sum((answer.usage for answer in came if isinstance(answer, ModelResponse)), Usage())
        judging = result.usage.get(Role.JUDGE, Usage()) + spent
        return replace(result, usage={**result.usage, Role.JUDGE: judging})

    def cancel(self) -> None:
        """Stop waiting for answers that were not taken."""
        for question in self._questions:
            answer = question.answer
            if question.starting is not None:
                question.starting.cancel()
            if answer is not None and not answer.cancel() and not answer.cancelled():
                answer.exception()  # retrieve the exception, or asyncio would warn that it was never retrieved


class Prefetcher:
    """A sender of judge requests ahead of time, once per assertion: all tests that share it use the same answers."""

    def __init__(self) -> None:
        # The specs are held so that no other object can get the id of one of them.
        self._asked: dict[int, tuple[Assertion, list[_PendingAnswer]]] = {}
        self._unsent: list[_PendingAnswer] = []
        self._answered = asyncio.Event()
        self._is_sending = False

    async def note_answer(self) -> None:
        """Note that a model has answered, and send the waiting requests before anything else requests the same."""
        self._answered.set()
        unsent, self._unsent = self._unsent, []
        for question in unsent:
            if question.case is None or question.case.begun.is_set():
                question.start()
            else:
                self._unsent.append(question)
        self._is_sending = self._is_sending or len(unsent) > len(self._unsent)
        if self._is_sending:  # callers in the same turn of the event loop also let these requests leave first
            await asyncio.sleep(0)
            self._is_sending = False

    def ask(
        self, specs: Sequence[Assertion], subject: Subject, tools: Tools, answers: PrefetchedAnswers
    ) -> None:
        """Request ahead, into `answers`, what the new ones of `specs` will need; `subject` has no output yet."""
        case = OPEN_CASE.get()
        for spec in specs:
            # Keyed by identity: all tests share the assertion objects of `defaultTest`.
            if id(spec) not in self._asked:
                ahead = [
                    answers.ask(judge, request, self._answered)
                    for judge, request in prefetch_requests(spec, subject, tools)
                ]
                if not self._answered.is_set():
                    self._unsent += ahead
                self._asked[id(spec)] = spec, ahead
                if len(self._asked) > _SPECS_KEPT:
                    del self._asked[next(iter(self._asked))]
            if case is not None:
                case.ahead.extend(self._asked[id(spec)][1])


class _WrappedJudge(Struct, frozen=True, eq=False):
    """A judge with its calls wrapped. It is equal to the judge itself, so code that remembers judges knows it."""

    judge: Judge

    @property
    def label(self) -> str:
        return self.judge.label

    @property
    def provider_params(self) -> Mapping[str, JsonValue]:
        return self.judge.provider_params

    @property
    def identity(self) -> ProviderIdentity | None:
        return identity_of(self.judge)

    @property
    def public_id(self) -> str:
        return public_id_of(self.judge)

    async def forget(self, request: ModelRequest) -> None:
        if isinstance(self.judge, CachingJudge):
            await self.judge.forget(request)

    async def has_kept(self, request: ModelRequest) -> bool:
        return isinstance(self.judge, CachingJudge) and await self.judge.has_kept(request)

    def __eq__(self, other: object) -> bool:
        return self.judge == (other.judge if isinstance(other, type(self)) else other)

    def __hash__(self) -> int:
        return hash(self.judge)


class _PrefetchingJudge(_WrappedJudge, frozen=True, eq=False):
    """A judge for which some answers are already under way."""

    answers: PrefetchedAnswers

    async def complete(self, request: ModelRequest) -> ModelResponse:
        answer = self.answers.take(self.judge, request)
        return await (self.judge.complete(request) if answer is None else answer)


JUDGE_MODELS = "judge_models"
"""The key in a verdict's detail for the models that judged, as their responses identified themselves."""


class Meter(Struct):
    """The usage of judge calls, summed up; `has_batched` says that an answer came in a batch, so no time was measured.

    `models` are those that answered, as they identified themselves: the model and the fingerprint of its server.
    """

    usage: Usage = field(default_factory=Usage)
    has_batched: bool = False
    models: dict[tuple[str, str | None], None] = field(default_factory=dict)

    def read(self, result: AssertionResult) -> AssertionResult:
        """Return a result with the usage that it took, and the models that judged it."""
        latency_ms = None if self.has_batched else result.latency_ms
        detail = result.detail
        if self.models:
            told = [{"model": model, "fingerprint": mark} for model, mark in sorted(self.models, key=str)]
            detail = {**detail, JUDGE_MODELS: told}
        return replace(result, usage=self.usage, latency_ms=latency_ms, detail=detail)


class MeteredJudge(_WrappedJudge, frozen=True, eq=False):
    """A judge that adds the usage of every answer to `meter`: calls cost money even if they lead to no verdict."""

    meter: Meter

    async def complete(self, request: ModelRequest) -> ModelResponse:
        response = await self.judge.complete(request)
        self.meter.usage = self.meter.usage + response.usage
        self.meter.has_batched = self.meter.has_batched or response.latency_ms is None
        if response.model is not None:
            self.meter.models[response.model, response.fingerprint] = None
        return response


async def judge_each(specs: Sequence[Assertion], subject: Subject, tools: Tools) -> list[AssertionResult]:
    """Return the results of several assertions on one output, in order. Raises like `judge_one`."""
    if len(specs) == 1:  # most tests: no task is needed for it
        return [await judge_one(specs[0], subject, tools)]
    return await gather_all(judge_one(spec, subject, tools) for spec in specs)


async def judge_one(spec: Assertion, subject: Subject, tools: Tools) -> AssertionResult:
    """Return the result of one assertion on one output; errors are results too.

    Raises:
        NotDoneError: the run may spend no more, or the answer will come with a batch.
    """
    started, meter = time.monotonic(), Meter()
    metered = metered_tools(tools, meter)
    try:
        seen = await seen_by_assertion(spec, subject, metered)
        return meter.read(await judge_assertion(spec, seen, metered))
    except NotDoneError:
        raise
    except Exception as error:  # noqa: BLE001 - as in run_job: the other assertions' paid verdicts must stay
        return meter.read(_error_result(spec, subject, tools, error, started))


def metered_tools(tools: Tools, meter: Meter) -> Tools:
    """Return `tools` whose judges' usage is counted by `meter`.

    They hold no reference to themselves: a cycle per assertion would stay in memory until the next garbage collection.
    """
    measured: Tools = replace(
        tools,
        judge_for=lambda judge: MeteredJudge(tools.judge_for(judge), meter),
        judge_each=lambda members, seen: judge_each(members, seen, metered_tools(tools, meter)),
    )
    return measured


async def judge_given(spec: Assertion, test: MergedTest, tools: Tools) -> AssertionResult:
    """Return the result of one assertion on a test's own output.

    Raises:
        GevalError: it could not be judged.
    """
    meter = Meter()
    metered = metered_tools(tools, meter)
    given = Subject(test, test.output, test.input or "", rules=tools.rules)
    seen = await seen_by_assertion(spec, given, metered)
    return replace(await judge_assertion(spec, seen, metered), usage=meter.usage)


async def compare_outputs(
    spec: Assertion, members: Sequence[RowMember], tools: Tools
) -> Sequence[AssertionResult]:
    """Return the results of an assertion that compares the outputs of a group; errors are results too.

    Raises:
        NotDoneError: the run may spend no more, or the answer will come with a batch.
    """
    started = time.monotonic()
    found: Sequence[AssertionResult | Exception]
    try:
        found = await judge_row(spec, members, tools)
    except NotDoneError:
        raise
    except Exception as error:  # noqa: BLE001 - as in run_job: the paid answers of the whole row must stay
        found = [error] * len(members)
    return [
        _error_result(spec, member.subject, tools, item, started) if isinstance(item, Exception) else item
        for member, item in zip(members, found, strict=True)
    ]


def _error_result(
    spec: Assertion, subject: Subject, tools: Tools, error: Exception, started: float
) -> AssertionResult:
    """Return the result of an assertion that could not be judged; `started` is its start by the monotonic clock."""
    return AssertionResult(
        type=spec.type,
        metric=metric_name(spec, subject.test, tools.templates),
        status=Status.ERROR,
        score=None,
        threshold=score_threshold(spec),
        weight=spec.weight,
        error=error_info(error) if isinstance(error, GevalError) else internal_error(error),
        location=location_of(spec),
        latency_ms=elapsed_ms(started),
    )


def error_info(error: GevalError) -> ErrorInfo:
    """Return an error as a value, with an excerpt of the reply, the error body or the code's details."""
    raw = None
    if isinstance(error, JudgeError):
        raw = error.raw_text
    elif isinstance(error, ProviderError):
        raw = error.body
    elif isinstance(error, CodeFailedError):
        raw = error.detail
    return ErrorInfo(type(error).__name__, error.message, error.hint, raw[:_RAW_SHOWN] if raw else None)


def internal_error(error: Exception) -> ErrorInfo:
    """Return a bug as a value, with the end of its traceback; or the machine limit that was reached."""
    if limit := MachineLimitError.of(error):
        return error_info(limit)
    hint = (
        f"this is a bug in {source_of_bug(error)}; report it with the traceback from a results file (-o FILE)"
    )
    trace = "".join(traceback.format_exception(error)).rstrip()
    return ErrorInfo(INTERNAL_ERROR, f"{type(error).__name__}: {error}", hint, trace[-_RAW_SHOWN:])


def elapsed_ms(started: float) -> float:
    """Return the milliseconds since `started`, a reading of the monotonic clock."""
    return (time.monotonic() - started) * 1000
