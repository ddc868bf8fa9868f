"""The gateway: builds the stack once and sends every model call of a run through it."""

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.errors import ProviderError
from geval_cli.events import ModelCalled, Noticed, RunEvent
from geval_cli.gateway.budget import Budget, BudgetLayer, Purse
from geval_cli.gateway.cache import Answers, CacheRead, CacheWrite
from geval_cli.gateway.call import Handler, ModelCall, Runtime, ServerKey
from geval_cli.gateway.capabilities import CapabilityLayer
from geval_cli.gateway.circuit import Circuit
from geval_cli.gateway.fan_out import FanOut
from geval_cli.gateway.identity import choice_keys
from geval_cli.gateway.limits import Limits
from geval_cli.gateway.offline import Offline
from geval_cli.gateway.pauses import Pauses
from geval_cli.gateway.request_log import RequestTrace
from geval_cli.gateway.retry import Retry
from geval_cli.gateway.single_flight import SingleFlight
from geval_cli.providers.base import Provider
from geval_cli.records import JsonValue, ModelRequest, ModelResponse, Role, Usage
from geval_cli.store.cache import ResponseCache

_MOST_REPEATED = 64


class CallPolicy(Struct, frozen=True):
    """What watches over the requests of a run.

    Attributes:
        budget: what they may cost; none may leave when it is used up.
        is_tracing: whether a `RequestEnded` tells of each.
        is_offline: whether none may leave at all, so that only the cache answers, which is then not written to.
        is_for_one_run: whether all calls are of one run, so that what it has bought or read once counts once.
    """

    budget: Budget = field(default_factory=Budget)
    is_tracing: bool = False
    is_offline: bool = False
    is_for_one_run: bool = False


class Gateway:
    """Model calls of one run. Belongs to one event loop; closes neither the providers nor the cache.

    Outermost first: what is at hand in memory, single flight, recall (cache), fan-out, keep (cache), retry,
    capabilities, purse (where money is bounded), limits, budget, circuit. The wait for a feature to be found out, for a
    price, for a pause or for a retry holds no slot; every request on the wire, each part of a fan-out and each
    repetition too, passes limits and budget; every answer is kept as it comes.
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
            policy: a budget and a log of requests, if there are to be any.
        """
        self._on_event = on_event
        self._numbers = itertools.count(1)
        # By the request's id, which is not used again as long as the call is held.
        self._repeated: dict[int, ModelCall] = {}
        runtime, policy = runtime or Runtime(), policy or CallPolicy()
        answers = self._answers = Answers(
            cache,
            since=reads_since,
            notice=self._notice,
            is_written=not policy.is_offline,
            is_for_one_run=policy.is_for_one_run,
        )
        pauses = Pauses(runtime.clock)
        circuit = Circuit(runtime.clock)
        handler: Handler = RequestTrace(circuit.send, on_event) if policy.is_tracing else circuit.send
        handler = BudgetLayer(handler, policy.budget, check_provider=circuit.check)
        handler = Limits(
            handler,
            pauses=pauses,
            check=handler.check,
            runtime=runtime,
            max_concurrency=max_concurrency,
        )
        if policy.budget.max_cost_usd is not None:
            handler = Purse(handler, policy.budget)
        handler = CapabilityLayer(handler, self._notice)
        handler = Retry(handler, pauses=pauses, runtime=runtime, notice=self._notice)
        handler = CacheWrite(handler, answers)
        handler = FanOut(handler, self._notice)
        if policy.is_offline:
            handler = Offline(handler)
        handler = CacheRead(handler, answers)
        self._stack = SingleFlight(handler, is_for_one_run=policy.is_for_one_run)

    async def complete(self, provider: Provider, request: ModelRequest) -> ModelResponse:
        """The choices for `request`, in the order of the response's `sample_indexes`; lost samples are missing there.

        `usage.requests` counts choices, `cached_requests` those that came from the cache or from an equal request of
        somebody else; within one run, the latter do not count at all.

        Raises:
            ProviderError: no choice at all could be had, or the key was refused.
            BudgetError: it would have to be asked for, and nothing more may be.
        """
        started = time.perf_counter()
        call = self._call(provider, request)
        try:
            response = self._answers.at_hand(call)
            if response is None:
                response = await self._stack(call)
            elif len(self._repeated) < _MOST_REPEATED:
                self._repeated[id(request)] = call
        except ProviderError:
            asked = Usage(requests=len(request.sample_indexes))
            self._tell(call, started, asked, failed=True)
            raise
        self._tell(call, started, response.usage, dropped=response.dropped)
        return response

    async def forget(self, provider: Provider, request: ModelRequest) -> None:
        """Have `request` asked anew the next time: its answers are of no use to anybody."""
        await self._answers.forget(_call(provider, request))

    def model(self, provider: Provider) -> "BoundModel":
        """`provider` behind this gateway."""
        return BoundModel(self, provider)

    async def aclose(self) -> None:
        """Stop what is still under way. Safe to call twice."""
        await self._stack.aclose()

    def _call(self, provider: Provider, request: ModelRequest) -> ModelCall:
        """Return the call of `request`; the steps of a criterion are one object for all tests, and hashed once."""
        known = self._repeated.get(id(request))
        if known is not None and known.request is request and known.provider is provider:
            return replace(known, number=next(self._numbers))
        return _call(provider, request, number=next(self._numbers))

    def _tell(self, call: ModelCall, started: float, usage: Usage, **outcome: Any) -> None:
        duration_ms = (time.perf_counter() - started) * 1000
        role, name = call.request.role, call.provider.id
        self._on_event(ModelCalled(role, name, usage, call=call.number, duration_ms=duration_ms, **outcome))

    def _notice(self, message: str) -> None:
        self._on_event(Noticed(message))


class BoundModel(Struct, frozen=True):
    """One provider behind the gateway: what a judge is made of."""

    gateway: Gateway
    provider: Provider

    @property
    def label(self) -> str:
        return self.provider.label

    @property
    def provider_params(self) -> Mapping[str, JsonValue]:
        """The wire parameters that the provider's config sets."""
        return self.provider.identity.params

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return await self.gateway.complete(self.provider, request)

    async def forget(self, request: ModelRequest) -> None:
        await self.gateway.forget(self.provider, request)


def _call(provider: Provider, request: ModelRequest, *, number: int = 0) -> ModelCall:
    """Return a judge of any kind is asked equal questions once in a run: all tests are judged by the same steps."""
    is_shared = provider.is_cacheable or request.role is Role.JUDGE
    identity = provider.identity
    keys = choice_keys(identity, request) if is_shared else ()
    server = ServerKey(identity.kind, identity.endpoint, identity.model)
    return ModelCall(provider, request, server, keys, outlives_run=provider.is_cacheable, number=number)
