"""The call that passes through the gateway, the layers and their clock, and helpers that join and copy responses."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.errors import ProviderResponseError, StoppedError
from geval_cli.events import ModelCalled
from geval_cli.providers.base import Provider
from geval_cli.providers.wire.finish_reasons import withheld
from geval_cli.records import ModelRequest, ModelResponse, Role, Usage

CASE_OF_TRACE: ContextVar[str | None] = ContextVar("case_of_trace", default=None)
"""The id of the case that the current task makes calls for; used for traces only, never for a decision."""


KEYS_OF_CASE: ContextVar[list[str] | None] = ContextVar("keys_of_case", default=None)
"""Collects the cache keys of the answers used for the current case; None when they are not collected."""


COUNTS_CALL: ContextVar[Callable[[ModelCalled], object] | None] = ContextVar("counts_call", default=None)
"""Called with the `ModelCalled` event of each call made by this task and the tasks it starts; None for no counting."""


class AheadRequest(Struct):
    """A request that needs no output, such as for evaluation steps: sent once for many cases, with the first answer."""

    key: int
    is_sent: bool = False


def ahead_key(label: str, request: ModelRequest) -> int:
    """Return a number that is the same for equal requests to one judge."""
    return hash((label, *[str(message.content) for message in request.messages]))


class OpenCase(Struct, eq=False):
    """A case that models are called for, or all cases of a test whose outputs are compared with each other.

    Attributes:
        kind: cases of the same kind need roughly the same number of requests and cost roughly the same.
        weight: how much of the room for open cases it takes: 1, or half the number of outputs that wait for each other.
        answer_calls, judge_calls: the minimum number of requests, as far as the config determines it.
        ahead: requests that other cases need, too; this case has to send those that have not been sent yet.
        is_judged: whether one answer does not finish the case: a judge is called for it, or its turns are played.
        judges: returns the judges of each of its assertions.
        is_begun: its first request may be sent; later requests go before those that start other cases.
        is_closed: the case is over, with or without a verdict.
        is_whole: the case has its verdict.
        sent: requests sent for the case, without retries; `shared` counts those of them that also serve other cases.
        cost_usd: what its requests cost, tracked when the budget limits cost.
        reserved, reserved_usd: the number of requests and the cost that the budget had to cover when the case started.
        begun: set as soon as its first request is sent, or its answer turns out to be available already.
    """

    kind: Hashable = None
    weight: int = 1
    answer_calls: int = 1
    judge_calls: int = 0
    ahead: list[AheadRequest] = field(default_factory=list)
    is_judged: bool = False
    judges: Callable[[], Iterable[Sequence[Provider]]] = tuple
    is_begun: bool = False
    is_closed: bool = False
    is_whole: bool = False
    sent: int = 0
    shared: int = 0
    cost_usd: float = 0.0
    reserved: int = 0
    reserved_usd: float = 0.0
    begun: asyncio.Event = field(default_factory=asyncio.Event)


OPEN_CASE: ContextVar[OpenCase | None] = ContextVar("open_case", default=None)
"""The case that the current task makes calls for; None for calls that are not part of a run's case."""


class ModelCall(Struct, frozen=True):
    """One request to one provider, on its way through the layers.

    Attributes:
        server: the model and endpoint that answer it.
        keys: the cache keys of its samples, which are the same for equal requests; empty when each request is to be
            sent.
        outlives_run: answers may come from earlier runs, and are kept for later ones.
        number: counts the calls of a run.
        attempt: counts from 1; a higher number is a retry.
        is_direct: the request is not put into a batch.
    """

    provider: Provider
    request: ModelRequest
    server: "ServerKey"
    keys: tuple[str, ...] = ()
    outlives_run: bool = True
    number: int = 0
    attempt: int = 1
    is_direct: bool = False

    def for_samples(self, sample_indexes: tuple[int, ...]) -> "ModelCall":
        """Return this call restricted to the given samples."""
        if sample_indexes == self.request.sample_indexes:
            return self
        key_of = dict(zip(self.request.sample_indexes, self.keys, strict=False))
        keys = tuple(key_of[index] for index in sample_indexes) if key_of else ()
        return replace(self, request=replace(self.request, sample_indexes=sample_indexes), keys=keys)


class ServerKey(Struct, frozen=True):
    """A model at an endpoint. All providers that call it share its pauses and its known capabilities."""

    kind: str
    endpoint: str
    model: str


Handler = Callable[[ModelCall], Coroutine[Any, Any, ModelResponse]]
"""Answers a call: a layer together with all layers further in."""


class Layer(Protocol):
    """One concern of the stack. A layer answers a call itself, or passes it on once or many times."""

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        """Answer `call`; `send_next` passes this call, or another one instead, to the next layer."""
        ...


def compose(layers: Iterable[Layer], send: Handler) -> Handler:
    """Return the handler that sends a call through `layers`, outermost first, and then to `send`."""
    handler = send
    for layer in reversed(tuple(layers)):
        handler = _bind(layer, handler)
    return handler


def _bind(layer: Layer, send_next: Handler) -> Handler:
    # Not functools.partial: with a keyword argument it takes twice as long, in each layer of each call.
    answer = layer.__call__
    return lambda call: answer(call, send_next)


Notice = Callable[[str], None]
"""Tells the user something once; the text is a complete sentence."""


class Runtime(Struct, frozen=True):
    """The clock, sleep and randomness that the layers use, replaceable in tests.

    Attributes:
        clock: monotonic seconds.
        sleep: waits for the given number of seconds.
        random: uniform in [0, 1).
        now: the wall-clock time, in seconds since 1970.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random
    now: Callable[[], float] = time.time

    def time_of_day(self, moment: float) -> str:
        """Return a moment of `clock` as local wall-clock time, such as 11:42."""
        return f"{datetime.fromtimestamp(self.now() + moment - self.clock()).astimezone():%H:%M}"


class Wire(Struct):
    """The requests of a run that are under way, and whether more may be sent. Belongs to one event loop.

    Attributes:
        under_way: requests sent and not yet answered, except those to providers that answer at once.
        paid: how many of them cost money.
    """

    under_way: int = 0
    paid: int = 0
    _closed: asyncio.Event = field(default_factory=asyncio.Event)
    _has_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def close(self) -> None:
        """Stop sending requests, as the run is to stop; requests under way may still be answered."""
        self._closed.set()

    def check(self) -> None:
        """Check that a request may be sent.

        Raises:
            StoppedError: the run is to stop.
        """
        if self._closed.is_set():
            raise StoppedError("the run was told to stop")

    def begin(self, *, is_paid: bool) -> None:
        """Count a request that is being sent."""
        self.under_way += 1
        self.paid += is_paid

    def end(self, *, is_paid: bool) -> None:
        """Count a request that was answered or has failed."""
        self.under_way -= 1
        self.paid -= is_paid
        if not self.under_way:
            self._has_ended.set()

    async def drained(self) -> None:
        """Wait until no request is under way."""
        while self.under_way:
            self._has_ended.clear()
            await self._has_ended.wait()

    async def sleep(self, sleeping: Awaitable[None]) -> None:
        """Wait for `sleeping`, but only until `close` is called."""
        waits = [asyncio.ensure_future(sleeping), asyncio.ensure_future(self._closed.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


def align(response: ModelResponse, request: ModelRequest, provider_id: str) -> ModelResponse:
    """Return `response` with its choices assigned to the first samples of `request`.

    A judge's choices that a content filter withheld are dropped: such a text may contain a number, but no rating.

    Raises:
        ProviderResponseError: none of a judge's choices is left.
    """
    usage = response.usage
    choices = found = response.choices[: len(request.sample_indexes)]
    if request.role is not Role.GENERATION:
        choices = tuple(choice for choice in found if not withheld(choice.finish_reason))
    if found and not choices:
        error = ProviderResponseError(
            f"{provider_id} sent a withheld answer ({found[0].finish_reason})",
            provider_id=provider_id,
            body=found[0].text,
        )
        # The answer would be withheld again.
        error.is_retryable, error.request_id = False, response.request_id
        error.hint = "use a judge that does not withhold its verdict on such a text"
        error.cost_usd = usage.cost_usd
        error.input_tokens, error.output_tokens = usage.input_tokens, usage.output_tokens
        raise error
    if len(choices) < len(found):
        response = replace(response, lost=response.lost + len(found) - len(choices))
    if (usage.requests, usage.cached_requests) != (len(choices), 0):
        usage = replace(usage, requests=len(choices), cached_requests=0)
    indexes = request.sample_indexes[: len(choices)]
    if (choices, indexes, usage) == (response.choices, response.sample_indexes, response.usage):
        return response
    return replace(response, choices=choices, sample_indexes=indexes, usage=usage)


def join(parts: Sequence[ModelResponse], wanted: Sequence[int]) -> ModelResponse:
    """Join `parts` into one response in the order of `wanted`; there must be at least one, and all must be aligned."""
    choice_of = {
        index: choice
        for part in parts
        for index, choice in zip(part.sample_indexes, part.choices, strict=True)
    }
    indexes = tuple(index for index in wanted if index in choice_of)
    sent = [part for part in parts if not part.cached]
    return ModelResponse(
        choices=tuple(choice_of[index] for index in indexes),
        usage=sum((part.usage for part in parts), Usage()),
        latency_ms=longest([part.latency_ms for part in sent or parts]),
        cached=not sent,
        dropped=tuple(dict.fromkeys(name for part in parts for name in part.dropped)),
        model=next((part.model for part in parts if part.model is not None), None),
        fingerprint=next((part.fingerprint for part in parts if part.fingerprint is not None), None),
        request_id=next((part.request_id for part in parts if part.request_id is not None), None),
        sample_indexes=indexes,
        original_usage=sum((part.usage_generated for part in parts), Usage()),
        shared=all(part.shared for part in parts),
        repeated_usage=sum((part.repeated_usage for part in parts), Usage()),
    )


def less(usage: Usage, part: Usage) -> Usage:
    """Return `usage` minus `part`, which is contained in it."""
    if part == Usage():
        return usage
    is_known = usage.cost_usd is not None and part.cost_usd is not None
    return Usage(
        usage.requests - part.requests,
        usage.input_tokens - part.input_tokens,
        usage.output_tokens - part.output_tokens,
        usage.cached_requests - part.cached_requests,
        (usage.cost_usd or 0.0) - (part.cost_usd or 0.0) if is_known else 0.0,
        usage.batched_requests - part.batched_requests,
    )


def longest(latencies_ms: Iterable[float | None]) -> float | None:
    """Return the longest of at least one latency; None when one is unknown, as in a batch."""
    found = list(latencies_ms)
    known = [latency for latency in found if latency is not None]
    return max(known) if len(known) == len(found) else None


def without_cost(response: ModelResponse, *, is_counted: bool) -> ModelResponse:
    """Return `response` for a caller that sent no request for it: counted as cached, or not at all."""
    count = len(response.choices) if is_counted else 0
    usage = Usage(requests=count, cached_requests=count)
    return replace(
        response,
        cached=True,
        usage=usage,
        original_usage=response.usage_generated,
        shared=not is_counted,
        repeated_usage=Usage(),
    )
