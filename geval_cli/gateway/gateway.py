"""The gateway: builds the stack once and sends every model call of a run through it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from geval_cli.errors import ProviderError
from geval_cli.events import ModelCalled, Noticed, RunEvent
from geval_cli.gateway.cache import Answers, Keep, Recall
from geval_cli.gateway.call import Handler, ModelCall, Runtime, Server
from geval_cli.gateway.capabilities import CapabilityLayer
from geval_cli.gateway.circuit import Circuit
from geval_cli.gateway.fan_out import FanOut
from geval_cli.gateway.identity import choice_keys
from geval_cli.gateway.limits import Limits
from geval_cli.gateway.pauses import Pauses
from geval_cli.gateway.retry import Retry
from geval_cli.gateway.single_flight import SingleFlight
from geval_cli.providers.base import Provider
from geval_cli.records import JsonValue, ModelRequest, ModelResponse, Role, Usage
from geval_cli.store.cache import ResponseCache


class Gateway:
    """Model calls of one run. Belongs to one event loop; closes neither the providers nor the cache.

    Outermost first: what is at hand in memory, single flight, recall (cache), fan-out, keep (cache), retry,
    capabilities, limits, circuit. The wait for a feature to be found out, for a pause or for a retry holds no slot;
    every request on the wire, each part of a fan-out and each repetition too, passes the limits; every answer is kept
    as it comes.
    """

    def __init__(
        self,
        *,
        cache: ResponseCache | None,
        on_event: Callable[[RunEvent], None],
        reads_cache: bool = True,
        max_concurrency: int | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        """Build the stack.

        Args:
            cache: where answers are kept; None keeps them in memory for this run.
            on_event: gets `ModelCalled` for every answer or final failure, and `Noticed`.
            reads_cache: False asks again what was answered before; answers of this run are kept and found again.
            max_concurrency: requests on the wire at once, over all providers; None for no cap.
            runtime: clock, sleep and randomness, if not the real ones.
        """
        self._on_event = on_event
        runtime = runtime or Runtime()
        since = None if reads_cache or cache is None else cache.now()
        answers = self._answers = Answers(cache, since=since, notice=self._notice)
        pauses = Pauses(runtime.clock)
        circuit = Circuit()
        handler: Handler = Limits(
            circuit.send,
            pauses=pauses,
            check=circuit.check,
            runtime=runtime,
            max_concurrency=max_concurrency,
        )
        handler = CapabilityLayer(handler, self._notice)
        handler = Retry(handler, pauses=pauses, runtime=runtime, notice=self._notice)
        handler = Keep(handler, answers)
        handler = FanOut(handler, self._notice)
        handler = Recall(handler, answers)
        self._stack = SingleFlight(handler)

    async def complete(self, provider: Provider, request: ModelRequest) -> ModelResponse:
        """The choices for `request`, in the order of the response's `sample_indexes`; lost samples are missing there.

        `usage.requests` counts choices, `cached_requests` those that came from the cache or from an equal request of
        somebody else.

        Raises:
            ProviderError: no choice at all could be had, or the key was refused.
        """
        call = _call(provider, request)
        try:
            response = self._answers.at_hand(call) or await self._stack(call)
        except ProviderError:
            asked = Usage(requests=len(request.sample_indexes))
            self._on_event(ModelCalled(request.role, provider.id, asked, failed=True))
            raise
        self._on_event(ModelCalled(request.role, provider.id, response.usage, dropped=response.dropped))
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

    def _notice(self, message: str) -> None:
        self._on_event(Noticed(message))


@dataclass(frozen=True, slots=True)
class BoundModel:
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


def _call(provider: Provider, request: ModelRequest) -> ModelCall:
    """A judge of any kind is asked equal questions once in a run: all tests are judged by the same steps."""
    is_shared = provider.is_cacheable or request.role is Role.JUDGE
    identity = provider.identity
    keys = choice_keys(identity, request) if is_shared else ()
    server = Server(identity.kind, identity.endpoint, identity.model)
    return ModelCall(provider, request, server, keys, outlives_run=provider.is_cacheable)
