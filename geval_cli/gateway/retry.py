"""Retry: repeat a request after a passing failure, with growing delays, and pause servers that limit their callers."""

from collections import defaultdict

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import ProviderError, ProviderRateLimitError, ProviderUnavailableError
from geval_cli.gateway.call import Handler, ModelCall, Notice, Runtime, ServerKey
from geval_cli.gateway.pauses import Pauses
from geval_cli.records import ModelResponse

BASE_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
LEAST_PATIENCE_S = 120.0
"""With a server that limits its callers, whatever the time limits: a minute's quota must have time to renew."""
LONG_PAUSE_S = 90.0
"""A server that has answered nothing for so long is spoken of again, as it may not be a minute's quota."""


class _NoticesGiven(Struct):
    """The notices given about one server, so that not every 429 is a line. Moments are those of the clock."""

    is_named: bool = False
    long_since: float | None = None
    given_up_since: float | None = None


class _RetryState(Struct):
    """The failures and waits of one call. `patience_s` is the time for which a rate limit was waited for in vain."""

    failures: int = 0
    retries: int = 0
    slept_s: float = 0.0
    limited_since: float | None = None
    patience_s: float | None = None
    gives_up_at: float = 0.0


class Retry:
    """A layer that makes up to `max_retries` more attempts, with exponential backoff and full jitter.

    A delay that the server names comes first. A rate limit, and any delay that a server names, pauses that server for
    everyone; it is waited for below, where calls are admitted. A call never waits longer in all than its attempts may
    take together: `timeout_s` times their number. A rate limit takes only of that time and is no attempt.
    """

    def __init__(self, *, pauses: Pauses, runtime: Runtime, notice: Notice) -> None:
        self._pauses = pauses
        self._runtime = runtime
        self._notice = notice
        self._told: defaultdict[ServerKey, _NoticesGiven] = defaultdict(_NoticesGiven)

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        state = _RetryState()
        while True:
            try:
                attempt = replace(call, attempt=state.failures + 1) if state.failures else call
                response = await send_next(attempt)
            except ProviderError as error:
                state.failures += 1
                delay_s = self._delay_s(call, error, state)
                if delay_s is None:
                    _tell_what_was_tried(error, state)
                    raise
                is_pause = isinstance(error, ProviderRateLimitError) or _named_delay_s(error) is not None
            else:
                self._pauses.answered(call.server)
                return response
            # Outside the handler, so that an error does not hang on to the one before it.
            if is_pause:
                self._pauses.pause(call.server, delay_s)
                self._tell_of_pause(call, state)
            else:
                await self._runtime.sleep(delay_s)

    def _delay_s(self, call: ModelCall, error: ProviderError, state: _RetryState) -> float | None:
        """Return the seconds to wait before the next attempt; None when there is to be none."""
        limits = call.provider.limits
        if not error.is_retryable or not limits.max_retries:
            return None
        patience_s = limits.timeout_s * (limits.max_retries + 1)
        if isinstance(error, ProviderRateLimitError):
            return self._pause_s(call, error, state, max(patience_s, LEAST_PATIENCE_S))
        delay_s = _named_delay_s(error)
        state.gives_up_at = self._runtime.clock() + patience_s - state.slept_s
        if delay_s is None:
            longest_s = min(LONGEST_DELAY_S, BASE_DELAY_S * 2**state.retries)
            delay_s = float(self._runtime.random() * longest_s)
        state.retries += 1
        state.slept_s += delay_s
        return delay_s if state.retries <= limits.max_retries and state.slept_s <= patience_s else None

    def _pause_s(
        self, call: ModelCall, error: ProviderRateLimitError, state: _RetryState, patience_s: float
    ) -> float | None:
        server = call.server
        own_pause_s, now = self._pauses.limited(server), self._runtime.clock()
        pause_s = error.retry_after_s or own_pause_s * (1 + self._runtime.random()) / 2
        if state.limited_since is None:
            state.limited_since = now
        waited_s = max(now - state.limited_since, self._pauses.limited_for_s(server))
        if waited_s + pause_s <= patience_s:
            state.gives_up_at = now + patience_s - waited_s
            return pause_s
        state.patience_s = patience_s
        self._tell_of_giving_up(call, patience_s)
        self._pauses.give_up(server)
        return None

    def _tell_of_pause(self, call: ModelCall, state: _RetryState) -> None:
        """Tell the user once that a server is waited for, and again when it gives no answer for long."""
        told, limited_s = self._told[call.server], self._pauses.limited_for_s(call.server)
        since = self._pauses.limited_since(call.server)
        until = self._runtime.time_of_day(state.gives_up_at)
        if not told.is_named:
            told.is_named = True
            self._notice(
                f"{call.provider.label} limits how often it may be asked; geval waits as it demands, "
                f"and gives up at {until}"
            )
        elif limited_s >= LONG_PAUSE_S and told.long_since != since:
            told.long_since = since
            self._notice(
                f"{call.provider.label} still limits how often it may be asked, and has answered nothing for "
                f"{limited_s:.0f} s; geval gives up at {until}"
            )

    def _tell_of_giving_up(self, call: ModelCall, patience_s: float) -> None:
        since = self._pauses.limited_since(call.server)
        told = self._told[call.server]
        if told.given_up_since != since:
            told.given_up_since = since
            at = self._runtime.time_of_day(self._runtime.clock())
            self._notice(
                f"{call.provider.label} was given up at {at}: it limits how often it may be asked, and geval waits for "
                f"that no longer than {patience_s:g} s"
            )


def _tell_what_was_tried(error: ProviderError, state: _RetryState) -> None:
    """Add to the error what was tried."""
    # In numbers that are the same for all calls to a provider, so that a report can show equal errors once.
    if state.patience_s is not None:
        error.remark(f"geval waits for a rate limit no longer than {state.patience_s:g} s")
    elif error.is_retryable and state.retries > 1:
        error.remark(f"asked {state.retries} times")


def _named_delay_s(error: ProviderError) -> float | None:
    """Return the delay that the server names; a delay of 0 counts as none."""
    return (error.retry_after_s or None) if isinstance(error, ProviderUnavailableError) else None
