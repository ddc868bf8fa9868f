"""After a failure: leave servers alone for a while, retry requests, and give up on refused keys."""

from collections import defaultdict
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from geval_cli.errors import (
    ProviderError,
    ProviderRateLimitError,
    ProviderSettledError,
    ProviderUnavailableError,
)
from geval_cli.gateway.call import Handler, ModelCall, Notice, OpenCase, Runtime, ServerKey, Wire
from geval_cli.providers.base import Provider
from geval_cli.records import ModelResponse

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
"""The length of the window in which most servers count requests: a minute."""

# After a pause the waiting calls are sent one by one, about this many in a time as long as the pause.
_CALLS_PER_PAUSE = 20
_LONGEST_GAP_S = 1.0
_GAP_SHRINKS_TO = 0.9  # with each answer
_SHORTEST_GAP_S = 0.01


class _Pace(Struct):
    """The pause of one server, and the gap between the calls that follow it. Times are those of the clock."""

    until: float = 0.0
    next_call_at: float = 0.0
    gap_s: float = 0.0
    own_pause_s: float = 0.0
    limited_since: float | None = None


class Pauses:
    """The pauses of a run. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._paces: dict[ServerKey, _Pace] = {}

    def pause(self, server: ServerKey, delay_s: float) -> None:
        """Send nothing to `server` for the next `delay_s` seconds, then send calls one by one.

        A longer pause that is already in effect stays.
        """
        pace = self._paces.setdefault(server, _Pace())
        pace.until = max(pace.until, self._clock() + delay_s)
        pace.gap_s = min(_LONGEST_GAP_S, max(pace.gap_s, delay_s / _CALLS_PER_PAUSE))

    def hold(self, server: ServerKey, delay_s: float) -> None:
        """Send nothing to `server` for the next `delay_s` seconds: it reported that its quota is used up until then.

        A wait of more than `LONGEST_PAUSE_S` is ignored: the server then refuses the next call itself, and its caller
        sees why.
        """
        if delay_s <= LONGEST_PAUSE_S:
            pace = self._paces.setdefault(server, _Pace())
            pace.until = max(pace.until, self._clock() + delay_s)

    def limited(self, server: ServerKey) -> float:
        """Note a rate limit of `server`, and return how many seconds to leave it alone if it does not say so itself.

        The pause doubles whenever the last one was not enough. Calls that are refused together count as one.
        """
        pace = self._paces.setdefault(server, _Pace())
        now = self._clock()
        if pace.limited_since is None:
            pace.limited_since = now
        if now >= pace.until:
            pace.own_pause_s = min(LONGEST_PAUSE_S, 2 * pace.own_pause_s or FIRST_PAUSE_S)
        return pace.own_pause_s

    def limited_since(self, server: ServerKey) -> float | None:
        """Return the moment since which `server` has answered only with rate limits; None if it has not."""
        pace = self._paces.get(server)
        return None if pace is None else pace.limited_since

    def limited_for_s(self, server: ServerKey) -> float:
        """Return for how many seconds `server` has answered only with rate limits."""
        since = self.limited_since(server)
        return 0.0 if since is None else self._clock() - since

    def sent(self, server: ServerKey) -> None:
        """Note that a call is sent: the next one keeps its distance while the server recovers."""
        pace = self._paces.get(server)
        if pace is not None and pace.gap_s:
            pace.next_call_at = self._clock() + pace.gap_s

    def answered(self, server: ServerKey) -> None:
        """Note an answer: the server accepts requests again, and the gap between calls shrinks with each answer."""
        pace = self._paces.get(server)
        if pace is not None:
            pace.own_pause_s, pace.limited_since = 0.0, None
            pace.gap_s *= _GAP_SHRINKS_TO
            if pace.gap_s < _SHORTEST_GAP_S:
                pace.gap_s = 0.0

    def give_up(self, server: ServerKey) -> None:
        """Stop spacing out calls to `server`: it was given up, so the remaining calls may fail at once."""
        self._paces[server].gap_s = 0.0

    def remaining_s(self, server: ServerKey) -> float:
        """Return the seconds that the next call to `server` has to wait; 0 when it may be sent at once."""
        pace = self._paces.get(server)
        return 0.0 if pace is None else max(0.0, max(pace.until, pace.next_call_at) - self._clock())


BASE_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
LEAST_PATIENCE_S = 120.0
"""The minimum for a rate-limiting server, whatever the timeouts: a per-minute quota must have time to renew."""
LONG_PAUSE_S = 90.0
"""After this time without an answer the user is told again, as the cause may not be a per-minute quota."""


class _NoticesGiven(Struct):
    """The notices given about one server, so that not every 429 becomes a line. Times are those of the clock."""

    is_named: bool = False
    long_since: float | None = None
    given_up_since: float | None = None


class _RetryState(Struct):
    """The failures and waits of one call; `patience_s` is set once the wait for a rate limit has exceeded it."""

    failures: int = 0
    retries: int = 0
    slept_s: float = 0.0
    limited_since: float | None = None
    patience_s: float | None = None
    gives_up_at: float = 0.0


class Retry:
    """A layer that makes up to `max_retries` more attempts, with exponential backoff and full jitter.

    A delay that the server names takes precedence. A rate limit, or a delay that the server names, pauses that server
    for all calls; the pause is waited for further in, where calls are admitted. In total a call never waits longer than
    its attempts may take together: `timeout_s` times their number (for a rate limit, at least `LEAST_PATIENCE_S`). A
    rate limit uses up this time only, not an attempt.
    """

    def __init__(self, *, pauses: Pauses, runtime: Runtime, notice: Notice, wire: Wire) -> None:
        self._pauses = pauses
        self._runtime = runtime
        self._notice = notice
        self._wire = wire
        self._given: defaultdict[ServerKey, _NoticesGiven] = defaultdict(_NoticesGiven)

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
                    # The numbers are the same for all calls to a provider, so a report can show equal errors once.
                    if state.patience_s is not None:
                        error.remark(f"geval waits at most {state.patience_s:g} s for a rate limit")
                    elif error.is_retryable and state.retries > 1:
                        error.remark(f"sent {state.retries} times")
                    raise
                is_pause = isinstance(error, ProviderRateLimitError) or _named_delay_s(error) is not None
            else:
                self._pauses.answered(call.server)
                return response
            # Outside the except block, so that the next error is not chained to this one.
            if is_pause:
                self._pauses.pause(call.server, delay_s)
                self._report_pause(call, state)
            else:
                await self._wire.sleep(self._runtime.sleep(delay_s))

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
        own_pause_s = self._pauses.limited(server)
        now = self._runtime.clock()
        pause_s = error.retry_after_s or own_pause_s * (1 + self._runtime.random()) / 2
        if state.limited_since is None:
            state.limited_since = now
        waited_s = max(now - state.limited_since, self._pauses.limited_for_s(server))
        if waited_s + pause_s <= patience_s:
            state.gives_up_at = now + patience_s - waited_s
            return pause_s
        state.patience_s = patience_s
        since = self._pauses.limited_since(call.server)
        told = self._given[call.server]
        if told.given_up_since != since:
            told.given_up_since = since
            at = self._runtime.time_of_day(self._runtime.clock())
            self._notice(
                f"{call.provider.label} was given up at {at}: it is rate-limiting, and geval waits at "
                f"most {patience_s:g} s for that"
            )
        self._pauses.give_up(server)
        return None

    def _report_pause(self, call: ModelCall, state: _RetryState) -> None:
        """Tell the user once that geval waits for a server, and again when the server does not answer for long."""
        told = self._given[call.server]
        limited_s = self._pauses.limited_for_s(call.server)
        since = self._pauses.limited_since(call.server)
        until = self._runtime.time_of_day(state.gives_up_at)
        if not told.is_named:
            told.is_named = True
            self._notice(
                f"{call.provider.label} is rate-limiting; geval waits as it asks and gives up at {until}"
            )
        elif limited_s >= LONG_PAUSE_S and told.long_since != since:
            told.long_since = since
            self._notice(
                f"{call.provider.label} is still rate-limiting and has not answered for {limited_s:.0f} "
                f"s; geval gives up at {until}"
            )


def _named_delay_s(error: ProviderError) -> float | None:
    """Return the delay that the server names; a delay of 0 counts as none."""
    return (error.retry_after_s or None) if isinstance(error, ProviderUnavailableError) else None


RETRY_AFTER_S = 30.0
"""After this time one call may try the key again: `geval serve` runs long enough for a user to replace it."""


class _Broken(Struct):
    """A provider that refused, and the time until which it is not called. Holding it keeps `id()` from being reused."""

    provider: Provider
    error: ProviderSettledError
    until: float


class Circuit:
    """A layer that remembers a refused key, a used-up quota or an unknown model: later calls there fail at once.

    Every `RETRY_AFTER_S` seconds one call is let through; once one is answered, all calls are let through again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # By `id()`, not by server: two providers may call one server with different keys.
        self._broken: dict[int, _Broken] = {}

    def check(self, provider: Provider) -> None:
        """Check that `provider` may be called.

        Raises:
            ProviderSettledError: a copy of the error that stopped it.
        """
        broken = self._broken.get(id(provider))
        if broken is not None and self._clock() < broken.until:
            first = broken.error
            raise type(first)(
                first.message,
                provider_id=first.provider_id,
                status=first.status,
                body=first.body,
                hint=first.hint,
            )

    def check_judges(self, case: OpenCase) -> None:
        """Check that a case can be judged, before its answer is paid for.

        Raises:
            ProviderSettledError: why none of the judges of one of its assertions can be called.
        """
        if not self._broken:
            return
        for judges in case.judges():
            errors = []
            for judge in judges:
                try:
                    self.check(judge)
                except ProviderSettledError as error:
                    errors.append(error)
            if errors and len(errors) == len(judges):
                first = errors[0]
                raise type(first)(
                    f"no answer was requested, since it could not be judged: {first.message}",
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
        except ProviderSettledError as error:
            self._broken[id(provider)] = _Broken(provider, error, self._clock() + RETRY_AFTER_S)
            raise
        self._broken.pop(id(provider), None)
        return response
