"""The call that travels through the gateway, the layers that it passes, and their clock and randomness."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import datetime
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.providers.base import Provider
from geval_cli.records import ModelRequest, ModelResponse


class ModelCall(Struct, frozen=True):
    """One request to one provider, on its way through the layers.

    Attributes:
        server: the model and endpoint that answer it.
        keys: the cache keys of its samples, by which equal requests find each other; empty when each is to be sent.
        outlives_run: answers may come from earlier runs, and are kept for later ones.
        number: counts the calls of a run.
        attempt: counts from 1; a higher one is a repetition.
    """

    provider: Provider
    request: ModelRequest
    server: "ServerKey"
    keys: tuple[str, ...] = ()
    outlives_run: bool = True
    number: int = 0
    attempt: int = 1

    def for_samples(self, sample_indexes: tuple[int, ...]) -> "ModelCall":
        """Return this call, for the given ones of its samples only."""
        if sample_indexes == self.request.sample_indexes:
            return self
        key_of = dict(zip(self.request.sample_indexes, self.keys, strict=False))
        keys = tuple(key_of[index] for index in sample_indexes) if key_of else ()
        return replace(self, request=replace(self.request, sample_indexes=sample_indexes), keys=keys)


class ServerKey(Struct, frozen=True):
    """A model at an endpoint. All providers that lead there share its pauses and its known capabilities."""

    kind: str
    endpoint: str
    model: str


Handler = Callable[[ModelCall], Coroutine[Any, Any, ModelResponse]]
"""Answers a call: a layer together with all that stand further in."""


class Layer(Protocol):
    """One concern of the stack. It answers a call itself, or passes it on: never, once or many times."""

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        """Answer `call`; `send_next` hands it, or another in its place, to the next layer."""
        ...


def compose(layers: Iterable[Layer], send: Handler) -> Handler:
    """Return the handler that sends a call through `layers`, outermost first, and then to `send`."""
    handler = send
    for layer in reversed(tuple(layers)):
        handler = _bind(layer, handler)
    return handler


def _bind(layer: Layer, send_next: Handler) -> Handler:
    # Not functools.partial: with a keyword it takes twice as long, in each layer, for each call.
    answer = layer.__call__
    return lambda call: answer(call, send_next)


Notice = Callable[[str], None]
"""Tells the user something once; the text is a whole sentence."""


class Runtime(Struct, frozen=True):
    """The clock, sleep and randomness that the layers use, replaceable in tests.

    Attributes:
        clock: monotonic seconds.
        sleep: waits that many seconds.
        random: uniform in [0, 1).
        now: the time as users have it, in seconds since 1970.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random
    now: Callable[[], float] = time.time

    def time_of_day(self, moment: float) -> str:
        """Return a moment of `clock` as a wall clock shows it here: 11:42."""
        return f"{datetime.fromtimestamp(self.now() + moment - self.clock()).astimezone():%H:%M}"
