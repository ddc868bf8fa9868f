"""The gateway: build the stack of layers once, and send every model call of a run through it."""

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
from geval_cli.gateway.limits import Limits, OpenCases, Pace
from geval_cli.gateway.retry import Circuit, Pauses, Retry
from geval_cli.plugins import WrongResultError
from geval_cli.providers.base import Provider, ProviderIdentity
from geval_cli.records import ErrorInfo, JsonValue, ModelRequest, ModelResponse, Role, Usage
from geval_cli.source.media import called, find_media, markers_in, with_media
from geval_cli.source.secrets import mask_text
from geval_cli.store.cache import ResponseCache
from geval_cli.store.locks import Claims


class TraceDetail(StrEnum):
    """How much a `RequestEnded` tells beside what the log of requests shows."""

    NONE = "none"
    FACTS = "facts"
    CONTENT = "content"


_SCOUT_PATIENCE_S = 600.0

# Requests that come again are those for steps: one for each criterion. Each that is held keeps its prompt.
_MOST_REPEATED = 64


class Batching(Protocol):
    """Hands in and fetches what is asked in batches, in two layers of the stack."""

    @property
    def scout(self) -> Layer: ...

    @property
    def layer(self) -> Layer: ...

    def release(self) -> None:
        """Leave the batches to other processes."""
        ...


class BatchStart(Protocol):
    """Begins the batches of a run."""

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
        budget: bounds their cost and number; none may leave when it is used up.
        is_tracing: a `RequestEnded` tells of each.
        trace_detail: how much each of these events tells.
        is_heard: whether anybody still listens to them; a collector of traces may be given up.
        is_offline: none may leave at all; only the cache answers, and is not written to.
        run_id: the run that all calls belong to, so that an answer that it has bought or read once counts once; None
            when they belong to none.
        pace: this process's part of all caps.
        begin_batches: where something goes into batches.
        wire: closed when the run is to stop, so that nothing more leaves.
    """

    budget: Budget = field(default_factory=Budget)
    is_tracing: bool = False
    trace_detail: TraceDetail = TraceDetail.NONE
    is_heard: Callable[[], bool] = lambda: True
    is_offline: bool = False
    run_id: str | None = None
    pace: Pace = field(default_factory=Pace)
    begin_batches: BatchStart | None = None
    wire: Wire = field(default_factory=Wire)

    def check_may_leave(self) -> None:
        """Check that one more request may leave.

        Raises:
            StoppedError, BudgetError: it may not, and why.
        """
        self.wire.check()
        self.budget.check()


class StackParts(Struct, frozen=True):
    """The parts of a stack that its gateway uses, too.

    `batches` is None where nothing goes into batches, `claims` where no other process may use the answers.
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
        # Outermost, so that of equal calls only one is looked up, waits and is paid for.
        parts.single_flight,
        # Above the cache, as the process that asked for the same has kept the answer by the time it gives up its claim.
        None if parts.claims is None else Claimed(parts.claims, runtime=runtime, wire=policy.wire),
        # Before all that sends: a known sample needs no slot, no budget and no working key.
        CacheRead(parts.answers),
        # Behind the cache, which goes on answering: only what it does not know comes here and is refused.
        Offline() if policy.is_offline else None,
        # Behind the cache: only missing samples are spread over requests, each of which goes its own way from here.
        # With batches all wait for the first answer: what it finds out would else cost a wave of hours.
        FanOut(notice) if batches is None else FanOut(notice, patience_s=_SCOUT_PATIENCE_S),
        # Inside the fan-out: each request's answers are committed as they come, even when another request fails.
        CacheWrite(parts.answers),
        # Above all that learns from answers: the others of its kind are written by what the first one has taught.
        None if batches is None else batches.scout,
        # Around all that follows: each attempt is adapted, admitted and paid for anew, and a delay holds no slot.
        Retry(pauses=pauses, runtime=runtime, notice=notice, wire=policy.wire),
        # Inside the retries, as an attempt that failed may have been charged; around batches, whose answers may, too.
        parts.ledger,
        # Inside the retries, as a refused parameter is a lesson and no failed attempt; above the limits, as calls
        # that wait for what the first one finds out must hold no slot.
        CapabilityLayer(notice),
        # Below the two: requests are submitted as the server takes them, and an error in a batch's results is met as
        # that of a direct answer. What goes into a batch holds no slot and reserves its money by itself.
        None if batches is None else batches.layer,
        # Above the limits: a call that waits for money holds no slot. Without a bound on money nobody waits.
        CostReservation(budget, begin=begin) if budget.max_cost_usd is not None else None,
        # Below whatever waits for another reason: a slot is held only by a request that is about to leave.
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
        # Counts what really leaves, every repetition too; so it stands behind all that repeats or waits.
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
    response = await call.provider.complete(call.request)
    if not isinstance(response, ModelResponse):
        raise WrongResultError(call.provider, "complete", ModelResponse, response)
    return align(response, call.request, call.provider.id)


class Gateway:
    """The model calls of one run: answers in memory are returned at once, all other calls go through the stack.

    Belongs to one event loop; closes neither the providers nor the cache.

    Attributes:
        batches: the `Batching` that was begun; None without any.
        wire: the requests that are under way.
        cases: those of a run that are begun and not finished.
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
            on_event: gets `ModelCalled` for every answer or final failure, `Noticed`, and `RequestEnded` if asked for.
            reads_since: answers kept before this time (of the cache's clock) are asked for again; None reads them all.
            max_concurrency: requests on the wire at once, over all providers; None for no cap.
            runtime: clock, sleep and randomness, if not the real ones.
            policy: budget, offline mode and log of requests; the default has none of them.
        """
        self._on_event = on_event
        self._numbers = itertools.count(1)
        # By the request's id, which is not used again as long as the call is held.
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
        # Batches are submitted breadth first: no case of theirs is whole before the last of them has ended.
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
        # Runs that read no earlier answers want their own, each.
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

        `usage.requests` counts choices, `cached_requests` those that came from the cache or from an equal request of
        someone else; within one run, the latter do not count at all.

        Raises:
            ProviderError: no choice at all could be had, or the key was refused.
            BudgetError, StoppedError: it would have to be asked for, and nothing more may be.
        """
        started = time.perf_counter()
        call = self._call(provider, request)
        try:
            response = self._answers.at_hand(call)
            if response is None:
                response = await self._send(call)
            elif len(self._repeated) < _MOST_REPEATED:
                self._repeated[id(request)] = call
        except ProviderError:
            asked = Usage(requests=len(request.sample_indexes))
            self._tell(call, started, sum(self._ledger.close(call.number), asked), failed=True)
            raise
        except BaseException:
            # Some of several samples may be answered, and kept, when nothing more may leave.
            taken = sum(self._ledger.close(call.number), Usage())
            if taken != Usage():
                self._tell(call, started, replace(taken, requests=0, batched_requests=0), failed=True)
            raise
        _, lost = self._ledger.close(call.number)
        if lost != Usage():
            response = replace(response, usage=response.usage + lost)
        self._tell(call, started, less(response.usage, response.retold), dropped=response.dropped)
        return response

    async def forget(self, provider: Provider, request: ModelRequest) -> None:
        """Forget the answers to `request`, which no one can use: it is sent again the next time."""
        await self._answers.forget(_call(provider, request))

    async def has_kept(self, provider: Provider, request: ModelRequest) -> bool:
        """Return whether all answers to `request` are in the cache."""
        call = _call(provider, request)
        return bool(call.keys) and len(await self._answers.find(call)) == len(call.keys)

    def begin_pass(self) -> None:
        """Begin to go through the cases of a run; those that an earlier pass has left undone are done again."""
        self._answers.begin_pass()

    def settle(self, keys: Iterable[str]) -> None:
        """Note that a case is done, for which the answers with these keys have counted (`KEYS_OF_CASE`)."""
        self._answers.settle(keys)

    def model(self, provider: Provider) -> "BoundModel":
        """Return `provider` behind this gateway."""
        return BoundModel(self, provider)

    async def aclose(self) -> None:
        """Stop what is still under way; batches go on. Safe to call twice."""
        await self._single_flight.aclose()
        if self.batches is not None:
            self.batches.release()

    def _call(self, provider: Provider, request: ModelRequest) -> ModelCall:
        """Return the call of `request`, under a number of its own."""
        # The steps request of a criterion is one object for all tests: hash it once, not once for each test.
        known = self._repeated.get(id(request))
        if known is not None and known.request is request and known.provider is provider:
            return replace(known, number=next(self._numbers))
        return _call(provider, request, number=next(self._numbers))

    def _tell(self, call: ModelCall, started: float, usage: Usage, **outcome: Any) -> None:
        duration_ms = (time.perf_counter() - started) * 1000
        role, name = call.request.role, call.provider.id
        self._on_event(ModelCalled(role, name, usage, call=call.number, duration_ms=duration_ms, **outcome))


class ModelCaller(Protocol):
    """Calls any provider; the gateway does, and whoever stands in its place."""

    async def complete(self, provider: Provider, request: ModelRequest) -> ModelResponse: ...

    async def forget(self, provider: Provider, request: ModelRequest) -> None: ...

    async def has_kept(self, provider: Provider, request: ModelRequest) -> bool: ...


class BoundModel(Struct, frozen=True):
    """One provider behind the gateway; it serves as a judge (`judge.metric.Judge`)."""

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
        """Return what of the provider decides its answers."""
        return self.provider.identity

    @property
    def public_id(self) -> str:
        """Return the provider's id without the keys that may be in it."""
        return mask_text(self.provider.id)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return await self.gateway.complete(self.provider, request)

    async def forget(self, request: ModelRequest) -> None:
        await self.gateway.forget(self.provider, request)

    async def has_kept(self, request: ModelRequest) -> bool:
        return await self.gateway.has_kept(self.provider, request)


def _notice_of(on_event: Callable[[RunEvent], None]) -> Notice:
    """Return a function that tells the user something through the events of the run."""
    return lambda message: on_event(Noticed(message))


def _call(provider: Provider, request: ModelRequest, *, number: int = 0) -> ModelCall:
    """Return the call of `request`, with the keys by which equal ones find each other.

    Raises:
        UnjudgeableError: it holds too many images, or audio that the provider cannot hear.
    """
    request = with_media_for(provider, request)
    # A judge of any kind is asked equal questions once in a run: all tests are judged by the same steps.
    is_shared = provider.is_cacheable or request.role is Role.JUDGE
    identity = provider.identity
    keys = choice_keys(identity, request) if is_shared else ()
    server = ServerKey(identity.kind, identity.endpoint, identity.model)
    return ModelCall(provider, request, server, keys, outlives_run=provider.is_cacheable, number=number)


def with_media_for(provider: Provider, request: ModelRequest) -> ModelRequest:
    """Return `request` with the images and audio that it names, where the provider takes any; see `with_media`.

    Raises:
        UnjudgeableError: it holds more than a request may, or audio that the provider cannot hear.
    """
    if not getattr(provider, "sees_images", False):
        return request
    found = with_media(request)
    unheard = {item.media_type for item in found.media if item.media_type.startswith("audio/")}
    unheard -= getattr(provider, "hears", frozenset())
    if not unheard:
        return found
    # What a model wrote may hold a data URL, which is a text to whoever cannot hear it.
    markers = [marker for message in request.messages for marker in markers_in(message.content)]
    named = {item.media_type for item in map(find_media, markers) if item is not None} & unheard
    if named:
        raise UnjudgeableError(
            f"{provider.id} cannot hear audio as {' and '.join(sorted(map(called, named)))}"
        )
    return with_media(request, without=unheard)


class RequestTrace:
    """A layer that sends a `RequestEnded` for each request, without a key; with texts only where `detail` says so.

    `now` is seconds since 1970.
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
