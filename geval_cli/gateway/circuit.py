"""The circuit breaker: once a key was refused, calls fail at once instead of asking again."""

from collections.abc import Callable

from msgspec import Struct

from geval_cli.errors import ProviderAuthError
from geval_cli.gateway.call import Handler, ModelCall
from geval_cli.providers.base import Provider
from geval_cli.records import ModelResponse

RETRY_AFTER_S = 30.0
"""After this time one call may try the key again: the process of `geval serve` lives long enough for a new one."""


class _Broken(Struct):
    """A provider that refused, and the time until which it is not asked. Holding it keeps its id from being reused."""

    provider: Provider
    error: ProviderAuthError
    until: float


class Circuit:
    """A layer that remembers a refused key or a used-up quota: later calls to that provider fail at once.

    Every `RETRY_AFTER_S` seconds one call is let through; when it is answered, all are again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # By the object, not by what it leads to: two providers may ask one server with different keys.
        self._broken: dict[int, _Broken] = {}

    def check(self, provider: Provider) -> None:
        """Check that `provider` may be asked.

        Raises:
            ProviderAuthError: an equal of the one that stopped it.
        """
        broken = self._broken.get(id(provider))
        if broken is not None and self._clock() < broken.until:
            first = broken.error
            raise ProviderAuthError(
                first.message,
                provider_id=first.provider_id,
                status=first.status,
                body=first.body,
                hint=first.hint,
            )

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        provider = call.provider
        self.check(provider)
        broken = self._broken.get(id(provider))
        if broken is not None:
            broken.until = self._clock() + RETRY_AFTER_S  # this call finds out; the others do not wait for it
        try:
            response = await send_next(call)
        except ProviderAuthError as error:
            self._broken[id(provider)] = _Broken(provider, error, self._clock() + RETRY_AFTER_S)
            raise
        self._broken.pop(id(provider), None)
        return response
