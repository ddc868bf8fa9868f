"""Retry: ask again after what may pass, later and later, and leave a server alone that asks for it."""

import itertools

from geval_cli.errors import ProviderError, ProviderRateLimitError, ProviderUnavailableError
from geval_cli.gateway.call import Handler, ModelCall, Notice, Runtime, Server
from geval_cli.gateway.pauses import Pauses
from geval_cli.records import ModelResponse

BASE_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0


class Retry:
    """A layer: up to `max_retries` more attempts, with exponential backoff and full jitter (0 to the whole delay).

    A delay that the server names comes first. A rate limit, and any delay that a server names, pauses that server for
    everyone; it is waited for below, where calls are admitted. A call never waits longer in all than its attempts may
    take together: `timeout_s` times their number.
    """

    def __init__(self, following: Handler, *, pauses: Pauses, runtime: Runtime, notice: Notice) -> None:
        self._following = following
        self._pauses = pauses
        self._runtime = runtime
        self._notice = notice
        self._told: set[Server] = set()

    async def __call__(self, call: ModelCall) -> ModelResponse:
        limits = call.provider.limits
        patience_s = limits.timeout_s * (limits.max_retries + 1)
        for attempt in itertools.count():
            try:
                return await self._following(call)
            except ProviderError as error:
                delay_s = self._delay_s(error, attempt)
                patience_s -= delay_s
                if not error.is_retryable or attempt >= limits.max_retries or patience_s < 0:
                    raise
                is_pause = isinstance(error, ProviderRateLimitError) or _named_delay_s(error) is not None
            # Outside the handler, so that an error does not hang on to the one before it.
            if is_pause:
                self._pauses.pause(call.server, delay_s)
                self._tell(call)
            else:
                await self._runtime.sleep(delay_s)
        raise AssertionError("unreachable: the loop ends by returning or raising")

    def _delay_s(self, error: ProviderError, attempt: int) -> float:
        if named := _named_delay_s(error):
            return named
        return float(self._runtime.random() * min(LONGEST_DELAY_S, BASE_DELAY_S * 2**attempt))

    def _tell(self, call: ModelCall) -> None:
        if call.server not in self._told:
            self._told.add(call.server)
            self._notice(f"{call.provider.label} limits how often it may be asked; geval waits as it demands")


def _named_delay_s(error: ProviderError) -> float | None:
    if isinstance(error, ProviderRateLimitError | ProviderUnavailableError):
        return error.retry_after_s
    return None
