"""The gateway: builds the stack of layers once, and sends every model call of a run through it."""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.errors import ProviderError, UnjudgeableError
from geval_cli.events import ModelCalled, Noticed, RequestDetail, RequestEnded, RunEvent
from geval_cli.gateway.budget import Budget, BudgetLayer, CostReservation, Ledger
from geval_cli.gateway.cache import (
    CachedAnswers,
    CacheRead,
    CacheWrite,
    Claimed,
    Offline,
    SingleFlight,
    choice_keys,
)
from geval_cli.gateway.call import (
    CASE_OF_TRACE,
    Handler,
    Layer,
    ModelCall,
    Notice,
    OpenCase,
    Runtime,
    ServerKey,
    Wire,
    align,
    compose,
    less,
)
from geval_cli.gateway.capabilities import CapabilityLayer, FanOut
from geval_cli.gateway.limits import CapShare, Limits, OpenCases
from geval_cli.gateway.retry import Circuit, Pauses, Retry
from geval_cli.plugins import extra, is_own
from geval_cli.providers.base import Provider, ProviderIdentity
from geval_cli.records import ErrorInfo, JsonValue, ModelRequest, ModelResponse, Role, Usage
from geval_cli.source.media import called, find_media, markers_in, with_media
from geval_cli.source.secrets import mask_text
from geval_cli.store.cache import ResponseCache
from geval_cli.store.locks import Claims


class TraceDetail(StrEnum):
    """The amount of detail in a `RequestEnded` beyond what the request log shows."""

    NONE = "none"
    FACTS = "facts"
    CONTENT = "content"


_SCOUT_PATIENCE_S = 600.0

# The requests that repeat are those for steps, one for each criterion. Each call that is held keeps its prompt.
_MOST_REPEATED = 64


class Batching(Protocol):
    """Submits requests in batches and fetches their results, in two layers of the stack."""

    @property
    def scout(self) -> Layer: ...

    @property
    def layer(self) -> Layer: ...

    def release(self) -> None:
        """Leave the batches to other processes."""
        ...


class BatchStart(Protocol):
    """Starts the batches of a run."""

    def __call__(
        self,
        cache: ResponseCache,
        *,
        budget: Budget,
        check_provider: Callable[[Provider], None],
        notice: Notice,
        wire: Wire,
        on_event: Callable[[RunEvent], None],
        runtime: Runtime,
    ) -> Batching: ...


class CallPolicy(Struct, frozen=True):
    """The rules for the requests of a run.

    Attributes:
        budget: limits their cost and number; none may be sent when it is used up.
        is_tracing: emit a `RequestEnded` for each request.
        trace_detail: how much detail each of these events has.
        is_heard: returns whether the events are still wanted; a trace collector may be given up.
        is_offline: no request may be sent; only the cache answers, and it is not written to.
        run_id: the run that all calls belong to, so that an answer it has paid for or read counts only once; None when
            they belong to no run.
        pace: this process's part of all caps.
        begin_batches: starts the batches of a run that uses them; otherwise None.
        wire: closed when the run is to stop, so that no more requests are sent.
    """

    budget: Budget = field(default_factory=Budget)
    is_tracing: bool = False
    trace_detail: TraceDetail = TraceDetail.NONE
    is_heard: Callable[[], bool] = lambda: True
    is_offline: bool = False
    run_id: str | None = None
    pace: CapShare = field(default_factory=CapShare)
    begin_batches: BatchStart | None = None
    wire: Wire = field(default_factory=Wire)

    def check_may_leave(self) -> None:
        """Check that one more request may be sent.

        Raises:
            StoppedError, BudgetError: it may not; the error says why.
        """
        self.wire.check()
        self.budget.check()


class StackParts(Struct, frozen=True):
    """The parts of a stack that its gateway uses, too.

    `batches` is None when no batches are used, `claims` when no other process may use the answers.
    """

    single_flight: SingleFlight
    answers: CachedAnswers
    circuit: Circuit
    cases: OpenCases
    ledger: Ledger
    batches: Batching | None = None
    claims: Claims | None = None


def build_stack(
    parts: StackParts,
    *,
    policy: CallPolicy,
    runtime: Runtime,
    on_event: Callable[[RunEvent], None],
    max_concurrency: int | None,
) -> list[Layer]:
    """Return the layers that a call passes on its way to a provider, outermost first."""

    async def begin(case: OpenCase) -> None:
        await parts.cases.begin(case)
        circuit.check_judges(case)

    circuit = parts.circuit
    batches = parts.batches
    pauses = Pauses(runtime.clock)
    budget = policy.budget
    notice = _notice_of(on_event)
    layers: list[Layer | None] = [
        # Outermost, so that only one of several equal calls is looked up, waits and is paid for.
        parts.single_flight,
        # Outside the cache: the process that sends the same has stored the answer by the time it releases its claim.
        None if parts.claims is None else Claimed(parts.claims, runtime=runtime, wire=policy.wire),
        # Before everything that sends: a known sample needs no slot, no budget and no working key.
        CacheRead(parts.answers),
        # Inside the cache, which continues to answer: only what it does not know gets here and is refused.
        Offline() if policy.is_offline else None,
        # Inside the cache: only missing samples are spread over requests, each of which goes its own way from here.
        # With batches all calls wait for the first answer: what it shows would otherwise cost another batch of hours.
        FanOut(notice) if batches is None else FanOut(notice, patience_s=_SCOUT_PATIENCE_S),
        # Inside the fan-out: each request's answers are stored as they come, even when another request fails.
        CacheWrite(parts.answers),
        # Outside everything that learns from answers: what the first request shows shapes the others of its kind.
        None if batches is None else batches.scout,
        # Around all that follows: each attempt is adapted, admitted and paid for again, and a delay holds no slot.
        Retry(pauses=pauses, runtime=runtime, notice=notice, wire=policy.wire),
        # Inside the retries, as a failed attempt may have been charged; around batches, whose failures may be, too.
        parts.ledger,
        # Inside the retries, as a refused parameter is a lesson, not a failed attempt; outside the limits, as calls
        # that wait for what the first one finds out must hold no slot.
        CapabilityLayer(notice),
        # Inside these two: requests are submitted in the form the server accepts, and an error in a batch's results is
        # treated like one in a direct answer. A batched request holds no slot and reserves its own money.
        None if batches is None else batches.layer,
        # Outside the limits: a call that waits for money holds no slot. Without a cost limit no call waits.
        CostReservation(budget, begin=begin) if budget.max_cost_usd is not None else None,
        # Inside everything that waits for another reason: only a request that is about to be sent holds a slot.
        Limits(
            pauses=pauses,
            check_provider=circuit.check,
            check_budget=policy.check_may_leave,
            runtime=runtime,
            max_concurrency=max_concurrency,
            pace=policy.pace,
            cases=parts.cases,
            check_judges=circuit.check_judges,
        ),
        # Counts every request actually sent, including retries; so it is inside everything that repeats or waits.
        BudgetLayer(budget, check_provider=circuit.check, wire=policy.wire, note=parts.cases.count),
        # Times the request alone, without the waits above.
        RequestTrace(on_event, detail=policy.trace_detail, is_heard=policy.is_heard)
        if policy.is_tracing
        else None,
        # Innermost: it learns of a refused key before any other layer acts on the error.
        circuit,
    ]
    return [layer for layer in layers if layer is not None]


async def ask_provider(call: ModelCall) -> ModelResponse:
    """Send one request, behind all layers. The choices are aligned with the request's samples."""
    if is_own(call.provider):
        response = await call.provider.complete(call.request)
    else:
        response = await extra("packages").answer_of(call.provider, call.request)
    return align(response, call.request, call.provider.id)


class Gateway:
    """The model calls of one run: answers in memory are returned at once, all other calls go through the stack.

    Belongs to one event loop; closes neither the providers nor the cache.

    Attributes:
        batches: the `Batching` of the run; None without batches.
        wire: the requests under way.
        cases: the cases of the run that have started and not finished.
    """

    def __init__(
        self,
        *,
        cache: ResponseCache | None,
        on_event: Callable[[RunEvent], None],
        reads_since: float | None = None,
        max_concurrency: int | None = None,
        runtime: Runtime | None = None,
        policy: CallPolicy | None = None,
    ) -> None:
        """Build the stack.

        Args:
            cache: where answers are kept; None keeps them in memory for this run.
            on_event: receives `ModelCalled` for every answer or final failure, `Noticed`, and `RequestEnded` if
                tracing.
            reads_since: answers stored before this time (of the cache's clock) are requested again; None reads all
                answers.
            max_concurrency: requests on the wire at once, over all providers; None for no cap.
            runtime: clock, sleep and randomness; None for the real ones.
            policy: budget, offline mode and tracing; the default has none of them.
        """
        self._on_event = on_event
        self._numbers = itertools.count(1)
        # By `id()` of the request, which is not reused as long as the call is held.
        self._repeated: dict[int, ModelCall] = {}
        runtime = runtime or Runtime()
        policy = policy or CallPolicy()
        self.wire = policy.wire
        self._answers = CachedAnswers(
            None if cache is None else cache.used_by(policy.run_id),
            since=reads_since,
            notice=_notice_of(on_event),
            is_written=not policy.is_offline,
            is_for_one_run=policy.run_id is not None,
            is_in_passes=policy.begin_batches is not None,
        )
        self._single_flight = SingleFlight(is_for_one_run=policy.run_id is not None)
        circuit = Circuit(runtime.clock)
        # Batches are submitted breadth first: none of their cases is complete before the last batch has ended.
        most = None if policy.begin_batches is not None else policy.pace.part(max_concurrency)
        self.cases = OpenCases(policy.budget, most)
        self._ledger = Ledger()
        self.batches: Any = None
        if policy.begin_batches is not None and cache is not None:
            self.batches = policy.begin_batches(
                cache,
                budget=policy.budget,
                check_provider=circuit.check,
                notice=_notice_of(on_event),
                wire=policy.wire,
                on_event=on_event,
                runtime=runtime,
            )
        # Each run that reads no earlier answers needs its own.
        claims = None if cache is None or policy.is_offline or reads_since else cache.claims
        layers = build_stack(
            StackParts(
                single_flight=self._single_flight,
                answers=self._answers,
                circuit=circuit,
                cases=self.cases,
                ledger=self._ledger,
                batches=self.batches,
                claims=claims,
            ),
            policy=policy,
            runtime=runtime,
            on_event=on_event,
            max_concurrency=max_concurrency,
        )
        self._send = compose(layers, ask_provider)

    async def complete(self, provider: Provider, request: ModelRequest) -> ModelResponse:
        """Return the choices for `request`, in the order of the response's `sample_indexes`; lost samples are missing.

        `usage.requests` counts choices, and `cached_requests` the choices that came from the cache or from an equal
        request of another caller; within one run, the latter do not count at all.

        Raises:
            ProviderError: there was not a single choice, or the key was refused.
            BudgetError, StoppedError: a request would be needed, and no more may be sent.
        """
        started = time.perf_counter()
        call = self._call(provider, request)
        try:
            response = self._answers.answer_in_memory(call)
            if response is None:
                response = await self._send(call)
            elif len(self._repeated) < _MOST_REPEATED:
                self._repeated[id(request)] = call
        except ProviderError:
            asked = Usage(requests=len(request.sample_indexes))
            self._tell(call, started, sum(self._ledger.close(call.number), asked), failed=True)
            raise
        except BaseException:
            # Some of several samples may have been answered, and stored, before sending was stopped.
            taken = sum(self._ledger.close(call.number), Usage())
            if taken != Usage():
                self._tell(call, started, replace(taken, requests=0, batched_requests=0), failed=True)
            raise
        _, lost = self._ledger.close(call.number)
        if lost != Usage():
            response = replace(response, usage=response.usage + lost)
        self._tell(call, started, less(response.usage, response.repeated_usage), dropped=response.dropped)
        return response

    async def forget(self, provider: Provider, request: ModelRequest) -> None:
        """Forget the unusable answers to `request`, so that it is sent again the next time."""
        await self._answers.forget(_call(provider, request))

    async def has_kept(self, provider: Provider, request: ModelRequest) -> bool:
        """Return whether all answers to `request` are in the cache."""
        call = _call(provider, request)
        return bool(call.keys) and len(await self._answers.find(call)) == len(call.keys)

    def begin_pass(self) -> None:
        """Start a pass over the cases of a run; the cases that an earlier pass left undone are redone."""
        self._answers.begin_pass()

    def settle(self, keys: Iterable[str]) -> None:
        """Note that a case is done, and that the answers with these keys have counted for it (`KEYS_OF_CASE`)."""
        self._answers.settle(keys)

    def model(self, provider: Provider) -> "BoundModel":
        """Return `provider` bound to this gateway."""
        return BoundModel(self, provider)

    async def aclose(self) -> None:
        """Cancel the calls under way; submitted batches continue. Safe to call twice."""
        await self._single_flight.aclose()
        if self.batches is not None:
            self.batches.release()

    def _call(self, provider: Provider, request: ModelRequest) -> ModelCall:
        """Return the call for `request`, with a number of its own."""
        # The steps request of a criterion is one object for all tests: hash it once, not once per test.
        known = self._repeated.get(id(request))
        if known is not None and known.request is request and known.provider is provider:
            return replace(known, number=next(self._numbers))
        return _call(provider, request, number=next(self._numbers))

    def _tell(self, call: ModelCall, started: float, usage: Usage, **outcome: Any) -> None:
        duration_ms = (time.perf_counter() - started) * 1000
        role, name = call.request.role, call.provider.id
        self._on_event(ModelCalled(role, name, usage, call=call.number, duration_ms=duration_ms, **outcome))


class ModelCaller(Protocol):
    """Calls any provider: the gateway, or a stand-in for it."""

    async def complete(self, provider: Provider, request: ModelRequest) -> ModelResponse: ...

    async def forget(self, provider: Provider, request: ModelRequest) -> None: ...

    async def has_kept(self, provider: Provider, request: ModelRequest) -> bool: ...


class BoundModel(Struct, frozen=True):
    """One provider behind the gateway; it can act as a judge (`judge.metric.Judge`)."""

    gateway: ModelCaller
    provider: Provider

    @property
    def label(self) -> str:
        return self.provider.label

    @property
    def provider_params(self) -> Mapping[str, JsonValue]:
        """Return the wire parameters that the provider's config sets."""
        return self.provider.identity.params

    @property
    def identity(self) -> ProviderIdentity:
        """Return the settings of the provider that determine its answers."""
        return self.provider.identity

    @property
    def public_id(self) -> str:
        """Return the provider's id with any keys in it masked."""
        return mask_text(self.provider.id)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return await self.gateway.complete(self.provider, request)

    async def forget(self, request: ModelRequest) -> None:
        await self.gateway.forget(self.provider, request)

    async def has_kept(self, request: ModelRequest) -> bool:
        return await self.gateway.has_kept(self.provider, request)


def _notice_of(on_event: Callable[[RunEvent], None]) -> Notice:
    """Return a function that sends the user a notice through the events of the run."""
    return lambda message: on_event(Noticed(message))


def _call(provider: Provider, request: ModelRequest, *, number: int = 0) -> ModelCall:
    """Return the call for `request`, with the cache keys that are the same for equal requests.

    Raises:
        UnjudgeableError: the request has too many images, or audio that the provider cannot hear.
    """
    request = with_media_for(provider, request)
    # Equal requests to any kind of judge are sent once per run: all tests are judged by the same steps.
    is_shared = provider.is_cacheable or request.role is Role.JUDGE
    identity = provider.identity
    keys = choice_keys(identity, request) if is_shared else ()
    server = ServerKey(identity.kind, identity.endpoint, identity.model)
    return ModelCall(provider, request, server, keys, outlives_run=provider.is_cacheable, number=number)


def with_media_for(provider: Provider, request: ModelRequest) -> ModelRequest:
    """Return `request` with the images and audio that it refers to, if the provider accepts any; see `with_media`.

    Raises:
        UnjudgeableError: it has more media than a request may have, or audio that the provider cannot hear.
    """
    if not getattr(provider, "sees_images", False):
        return request
    found = with_media(request)
    unheard = {item.media_type for item in found.media if item.media_type.startswith("audio/")}
    unheard -= getattr(provider, "hears", frozenset())
    if not unheard:
        return found
    # A model's output may contain a data URL, which is plain text to a provider that cannot hear it.
    markers = [marker for message in request.messages for marker in markers_in(message.content)]
    named = {item.media_type for item in map(find_media, markers) if item is not None} & unheard
    if named:
        raise UnjudgeableError(
            f"{provider.id} cannot hear audio as {' and '.join(sorted(map(called, named)))}"
        )
    return with_media(request, without=unheard)


class RequestTrace:
    """A layer that emits a `RequestEnded` for each request, without any key; with texts only if `detail` says so.

    `now` returns seconds since 1970.
    """

    def __init__(
        self,
        on_event: Callable[[RequestEnded], None],
        *,
        now: Callable[[], float] = time.time,
        detail: TraceDetail = TraceDetail.NONE,
        is_heard: Callable[[], bool] = lambda: True,
    ) -> None:
        self._on_event = on_event
        self._now = now
        self._detail = detail
        self._is_heard = is_heard

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        if not self._is_heard():
            return await send_next(call)
        started_at = self._now()
        started = time.perf_counter()
        try:
            response = await send_next(call)
        except ProviderError as error:
            info = ErrorInfo(type(error).__name__, error.message, error.hint)
            self._tell(
                call,
                started_at,
                started,
                status=error.status,
                error=info,
                request_id=error.request_id,
                detail=self._detail_of(call, None),
            )
            raise
        self._tell(
            call,
            started_at,
            started,
            request_id=response.request_id,
            usage=response.usage,
            finish_reasons=tuple(choice.finish_reason for choice in response.choices),
            detail=self._detail_of(call, response),
        )
        return response

    def _detail_of(self, call: ModelCall, response: ModelResponse | None) -> RequestDetail | None:
        if self._detail is TraceDetail.NONE:
            return None
        has_texts = self._detail is TraceDetail.CONTENT
        settings = {**call.provider.identity.params, **call.request.params}
        return RequestDetail(
            case=CASE_OF_TRACE.get(),
            model=call.server.model,
            purpose=call.request.purpose,
            response_model=None if response is None else response.model,
            response_id=None if response is None else response.response_id,
            settings={name: value for name, value in settings.items() if name != "headers"},
            endpoint=call.provider.identity.endpoint,
            is_shaped=call.request.response_schema is not None,
            cache_read_tokens=0 if response is None else response.cache_read_tokens,
            cache_write_tokens=0 if response is None else response.cache_write_tokens,
            messages=call.request.messages if has_texts else (),
            choices=response.choices if has_texts and response is not None else (),
        )

    def _tell(
        self,
        call: ModelCall,
        started_at: float,
        started: float,
        **outcome: int | str | Usage | ErrorInfo | RequestDetail | tuple[str | None, ...] | None,
    ) -> None:
        self._on_event(
            RequestEnded(
                call=call.number,
                attempt=call.attempt,
                role=call.request.role,
                provider_id=call.provider.id,
                answers=len(call.request.sample_indexes),
                started_at=started_at,
                latency_ms=(time.perf_counter() - started) * 1000,
                **outcome,  # type: ignore[arg-type]  # each under the name of its field
            )
        )
