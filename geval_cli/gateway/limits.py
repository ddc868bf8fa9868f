"""Limits: bound the open cases, the requests on the wire, and the requests and tokens per minute.

A run that ends early, because of a budget, a signal or an error, should leave finished cases rather than answers
without verdicts. So only a limited number of cases is open at a time, and a case starts only when the budget covers it
up to its last verdict.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Collection, Hashable
from enum import Enum, auto
from http import HTTPStatus

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.errors import BudgetError, ProviderError, ProviderRateLimitError, ProviderUnavailableError
from geval_cli.gateway.budget import ROUNDING, Budget
from geval_cli.gateway.call import OPEN_CASE, Handler, ModelCall, OpenCase, Runtime, ServerKey, ahead_key
from geval_cli.gateway.retry import Pauses
from geval_cli.numbers import format_cost, plural
from geval_cli.providers.base import Provider, ProviderLimits
from geval_cli.records import ModelResponse, Purpose, Role


class OpenCases:
    """The cases that have started and not finished.

    At most as many judged cases are open as requests may be under way, which bounds the number of answers that lack a
    verdict at any time. A case starts only when the budget covers everything it needs: at first what the config
    implies, and, once a case of the same kind has finished, what that one took. A case that does not fit waits for the
    open ones.
    """

    def __init__(self, budget: Budget, most: int | None) -> None:
        """Start with no open case; at most `most` may be open at a time, any number if None."""
        self._budget = budget
        self._most = most
        self._open: set[OpenCase] = set()
        self._weight = 0
        self._reserved = 0
        self._sent_ahead: set[int] = set()
        self._judge_calls: dict[Hashable, int] = {}
        self._cost_usd: dict[Hashable, tuple[float, int]] = {}
        self._waiting: deque[tuple[OpenCase, asyncio.Future[None]]] = deque()

    @property
    def begun(self) -> Collection[OpenCase]:
        """Return a live view of the open cases."""
        return self._open

    @property
    def bounds_requests(self) -> bool:
        """Return whether the number of requests that a case takes matters."""
        return self._budget.max_requests is not None

    def try_begin(self, case: OpenCase) -> bool:
        """Start a case if there is room for it and no other case is waiting; return False when it has to wait.

        Raises:
            BudgetError: the rest of the budget does not cover the case.
        """
        if case.is_begun:
            return True
        if self._waiting or not self._may_begin(case):
            return False
        self._begin(case)
        return True

    async def begin(self, case: OpenCase) -> None:
        """Wait until the case may start.

        Raises:
            BudgetError: as in `try_begin`.
        """
        if self.try_begin(case):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((case, turn))
        try:
            await turn
        finally:
            if turn.cancelled():  # it may have blocked other cases that do fit
                self._call_next()

    def begin_without_waiting(self, case: OpenCase) -> None:
        """Start a case whose answer is available, without waiting: other cases may depend on its judge calls."""
        if not case.is_begun:
            self._begin(case)

    def close(self, case: OpenCase) -> None:
        """Close a case, whatever its outcome, and release the part of its reservation that it did not use."""
        if case.is_closed:
            return
        case.is_closed = True
        if not case.is_begun:
            return
        self._open.discard(case)
        self._weight -= case.weight if case.is_judged else 0
        self._reserved -= max(0, case.reserved - case.sent)
        if case.is_whole and case.sent:
            needed = case.sent - case.shared - case.answer_calls
            self._judge_calls[case.kind] = max(self._judge_calls.get(case.kind, 0), needed)
            cost_usd, cases = self._cost_usd.get(case.kind, (0.0, 0))
            self._cost_usd[case.kind] = cost_usd + case.cost_usd, cases + 1
        self._call_next()

    def count(self, call: ModelCall) -> None:
        """Count a request sent on behalf of a case."""
        case = OPEN_CASE.get()
        if case is None or call.attempt > 1:
            return
        if case.sent < case.reserved and not case.is_closed:
            self._reserved -= 1
        case.sent += 1
        if call.request.purpose is Purpose.STEPS:
            case.shared += 1
            if self.bounds_requests:
                self._sent_ahead.add(ahead_key(call.provider.label, call.request))

    def _begin(self, case: OpenCase) -> None:
        case.is_begun = True
        case.begun.set()
        if case.is_closed:
            return
        self._open.add(case)
        self._weight += case.weight if case.is_judged else 0
        case.reserved = self._needed(case)
        self._reserved += case.reserved
        case.reserved_usd = self._expected_usd(case) or 0.0

    def _may_begin(self, case: OpenCase) -> bool:
        """Return whether there is room for a case.

        Raises:
            BudgetError: there will never be room.
        """
        self._budget.check()
        if not self._open:
            if self._budget.begun_at != self._budget.requests and (lacking := self._lacking(case)):
                raise BudgetError(lacking, hint=self._budget.hint)
            return True
        is_crowded = self._most is not None and self._weight > 0 and self._weight + case.weight > self._most
        return not (case.is_judged and is_crowded) and self._lacking(case) is None

    def _needed(self, case: OpenCase) -> int:
        """Return the number of requests that a case takes until it is complete."""
        known = self._judge_calls.get(case.kind, 0)
        unsent = sum(not ahead.is_sent and ahead.key not in self._sent_ahead for ahead in case.ahead)
        return case.answer_calls + unsent + max(case.judge_calls, known)

    def _expected_usd(self, case: OpenCase) -> float | None:
        cost_usd, cases = self._cost_usd.get(case.kind, (0.0, 0))
        return cost_usd / cases if cases else None

    def _lacking(self, case: OpenCase) -> str | None:
        """Return why the budget does not cover a case in addition to the open ones; None when it does."""
        budget = self._budget
        needed = self._needed(case)
        if budget.max_requests is not None:
            left = budget.max_requests - budget.requests
            if left - self._reserved < needed:
                return (
                    f"the budget of {plural(budget.max_requests, 'request')} is used up: "
                    f"{left:,} left, but another case needs {needed:,}"
                )
        if budget.max_cost_usd is not None and case.is_judged:
            expected_usd = self._expected_usd(case)
            if expected_usd is None:
                # The first case of a kind shows what one costs up to its last verdict.
                return "not known yet" if any(item.kind == case.kind for item in self._open) else None
            reserved_usd = sum(max(0.0, item.reserved_usd - item.cost_usd) for item in self._open)
            left_usd = budget.max_cost_usd - budget.cost_usd
            if reserved_usd + expected_usd > left_usd + ROUNDING * budget.max_cost_usd:
                return (
                    f"the budget of {format_cost(budget.max_cost_usd)} is used up: {format_cost(left_usd)} "
                    f"left, but another case costs about {format_cost(expected_usd)}"
                )
        return None

    def _call_next(self) -> None:
        """Start the waiting cases in order, as long as there is room."""
        while self._waiting:
            case, turn = self._waiting[0]
            if not turn.done():
                try:
                    if not case.is_begun:  # another output of its row may have started it
                        if not self._may_begin(case):
                            return
                        self._begin(case)
                    turn.set_result(None)
                except BudgetError as error:
                    turn.set_exception(error)
            self._waiting.popleft()


_MINUTE_S = 60.0
_MINUTE_MS = 60_000.0
# The usual rule of thumb for English; the token counts of the first answers correct it.
_CHARACTERS_PER_TOKEN = 4
_ON_THE_WAY_S = 1.0  # what a new connection takes when DNS and TLS are slow
# Long waits are cut into pieces, so that a provider that was stopped meanwhile is noticed.
_LONGEST_SLEEP_S = 1.0
# Until the first answer shows how many tokens a request takes, the other calls check again after this time.
_LOOK_AGAIN_S = 0.05
_OVERLOADED = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, 529})  # 529 is Anthropic's own and not in HTTPStatus
_GROWTH = 0.05  # of the cap, per round of clean answers: back at the cap ten rounds after a halving
_NEVER_HALVED = 0  # the ticket for the slots that all servers share: only a server's own slots shrink


class CallOutcome(Enum):
    """How a server took the pace: fine, too fast, or unknown (for example after a bad request or a lost connection)."""

    CLEAN = auto()
    OVERLOAD = auto()
    UNCLEAR = auto()


class CapShare(Struct):
    """The part of every cap that this process may use when several processes share a run.

    Attributes:
        processes: how many processes share the caps; each gets an equal part, but at least one concurrent request.
        share: the fraction of the concurrent requests to use, above 0 and up to 1; lowered after one of the processes
            met an overload.
        overloads: how often a server reported an overload to this process.
    """

    processes: int = 1
    share: float = 1.0
    overloads: int = 0

    def of(self, limits: ProviderLimits) -> ProviderLimits:
        """Return this process's part of `limits`."""
        return replace(
            limits,
            max_concurrency=self.part(limits.max_concurrency),
            requests_per_minute=_divided(limits.requests_per_minute, self.processes),
            tokens_per_minute=_divided(limits.tokens_per_minute, self.processes),
            delay_ms=limits.delay_ms * self.processes,
        )

    def part(self, cap: int | None) -> int | None:
        """Return this process's part of a cap on concurrent requests; None stays None."""
        return None if cap is None else max(1, cap // self.processes)


def _divided(cap: float | None, parts: int) -> float | None:
    return None if cap is None else cap / parts


class WaitQueue:
    """A queue of waiters: first come, first served, except that priority waiters go first."""

    def __init__(self) -> None:
        self._before: deque[asyncio.Future[None]] = deque()
        self._others: deque[asyncio.Future[None]] = deque()

    def __bool__(self) -> bool:
        return bool(self._before or self._others)

    def is_behind(self, *, goes_before: bool) -> bool:
        """Return whether a newcomer would have to wait behind another waiter."""
        return bool(self._before) or (bool(self._others) and not goes_before)

    def enter(self, *, goes_before: bool) -> asyncio.Future[None]:
        """Add a newcomer to the queue and return its turn, a future that is done when the turn comes."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        (self._before if goes_before else self._others).append(turn)
        return turn

    def leave(self, turn: asyncio.Future[None]) -> None:
        """Leave the queue before the turn has come."""
        for line in (self._before, self._others):
            if turn in line:
                line.remove(turn)

    def call_next(self) -> bool:
        """Give the next waiter its turn; return False when none is waiting."""
        while self:
            turn = (self._before or self._others).popleft()
            if not turn.done():
                turn.set_result(None)
                return True
        return False


class AdaptiveSlots:
    """Slots for requests on the wire, first come, first served.

    The number of slots starts at the cap, which is what the user says the server can take. An overload halves it, once
    for all requests that were under way at that time: only requests sent at the new pace can show that it is still too
    fast. Each round of clean answers restores some slots, up to the cap.
    """

    def __init__(self, most: int | None, pace: CapShare | None = None) -> None:
        """Start with `most` slots, without a cap if None; only the share that `pace` allows is given out."""
        self._pace = pace or CapShare()
        self._most = math.inf if most is None else float(most)
        self._step = 1.0 if most is None else max(1.0, most * _GROWTH)
        self._allowed = self._most
        self._taken = 0
        self._halvings = 0
        self._waiting = WaitQueue()

    @property
    def allowed(self) -> float:
        """Return the current cap on concurrent requests."""
        return self._allowed

    async def acquire(self, *, goes_before: bool = False) -> int:
        """Wait for a slot, and return the ticket that `release` needs."""
        ticket = self.take(goes_before=goes_before)
        if ticket is None:
            turn = self._waiting.enter(goes_before=goes_before)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it had its slot already
                    self._taken -= 1
                self._waiting.leave(turn)
                self._admit_next()
                raise
            ticket = self._halvings
        return ticket

    def take(self, *, goes_before: bool = False) -> int | None:
        """Take a slot without waiting, and return its ticket; None when none is free or other waiters come first."""
        if not self._has_room or self._waiting.is_behind(goes_before=goes_before):
            return None
        self._taken += 1
        return self._halvings

    def release(self, ticket: int, outcome: CallOutcome = CallOutcome.UNCLEAR) -> None:
        """Give back the slot of `ticket`, and adapt the number of slots to the outcome of the request."""
        if outcome is CallOutcome.OVERLOAD and ticket == self._halvings:
            self._allowed = max(1.0, min(self._allowed, self._taken) / 2)
            self._halvings += 1
        elif outcome is CallOutcome.CLEAN:
            self._allowed = min(self._most, self._allowed + self._step / self._allowed)
        self._taken -= 1
        self._admit_next()

    @property
    def _has_room(self) -> bool:
        return self._taken + 1 <= min(self._allowed, max(1.0, self._most * self._pace.share))

    def _admit_next(self) -> None:
        while self._has_room and self._waiting.call_next():
            self._taken += 1


class TakenAmount(Struct):
    """An amount taken from a `Window`, to be corrected when the true amount is known."""

    at: float
    amount: float
    has_left: bool = False


class Window:
    """A cap per minute as a sliding window: the amounts taken in the last 60 seconds never add up to more than the cap.

    A single amount above the cap is let through when the window is empty. A cap below 1 allows an amount of 1 in a
    proportionally longer span. `margin_s` lengthens the span to allow for network delay: an early request may reach the
    server late, and a later one early. With a `capacity` the amounts are spread out: at most `capacity` in the
    corresponding fraction of a minute.
    """

    def __init__(self, per_minute: float, *, capacity: float | None = None, margin_s: float = 0.0) -> None:
        self._capacity = capacity or max(per_minute, 1.0)
        self._span_s = _MINUTE_S * self._capacity / per_minute + margin_s
        self._taken: deque[TakenAmount] = deque()
        self._total = 0.0

    def wait_s(self, amount: float, now: float) -> float:
        """Return the seconds from `now` until `amount` may be taken; 0 when it may be taken at once."""
        while self._taken and self._taken[0].at + self._span_s <= now:
            left = self._taken.popleft()
            left.has_left = True
            self._total -= left.amount
        excess = self._total + amount - self._capacity
        wait_s = 0.0
        for taken in self._taken:
            if excess <= 0:
                break
            excess -= taken.amount
            wait_s = taken.at + self._span_s - now
        return wait_s

    def take(self, amount: float, now: float) -> TakenAmount:
        taken = TakenAmount(now, amount)
        self._taken.append(taken)
        self._total += amount
        return taken

    def correct(self, taken: TakenAmount, amount: float) -> None:
        """Replace the amount of `taken` with `amount`, unless it has already left the window."""
        if not taken.has_left:
            self._total += amount - taken.amount
            taken.amount = amount


class _Slots(Struct):
    """The two slots that a request holds while it is on the wire: one for its server, and one for the whole run."""

    own: AdaptiveSlots
    overall: AdaptiveSlots | None

    async def acquire(self, *, goes_before: bool) -> int:
        """Wait for both slots, the server's first, and return the ticket that `release` needs."""
        ticket = await self.own.acquire(goes_before=goes_before)
        if self.overall is not None:
            try:
                await self.overall.acquire(goes_before=goes_before)
            except BaseException:
                self.own.release(ticket)
                raise
        return ticket

    def take(self, *, goes_before: bool) -> int | None:
        """Take both slots without waiting, and return their ticket; None when either is not free."""
        ticket = self.own.take(goes_before=goes_before)
        if ticket is None or self.overall is None:
            return ticket
        if self.overall.take(goes_before=goes_before) is None:
            self.own.release(ticket)
            return None
        return ticket

    def release(self, ticket: int, outcome: CallOutcome = CallOutcome.UNCLEAR) -> None:
        self.own.release(ticket, outcome)
        if self.overall is not None:
            self.overall.release(_NEVER_HALVED)


class _Admission(Struct):
    """A call's permission to be sent: the ticket for its slots, and the tokens counted for it."""

    ticket: int
    tokens: TakenAmount | None


class _Weights(Struct):
    """The mean number of tokens per request in a queue: input can be estimated beforehand, output cannot."""

    answers: int = 0
    tokens: float = 0.0
    under_way: int = 0

    def learn(self, tokens: float) -> None:
        self.answers += 1
        self.tokens += tokens

    def expected(self, estimate: float) -> float:
        return max(estimate, self.tokens / self.answers) if self.answers else estimate

    @property
    def is_unknown_yet(self) -> bool:
        """Return whether the first request is still under way: until its answer, the tokens per request are unknown."""
        return not self.answers and self.under_way > 0


class _Line:
    """A line of calls: the first one waits for time to pass or for a slot, the others wait for their turn."""

    def __init__(self) -> None:
        self._turns = WaitQueue()
        self._has_first = False

    def is_behind(self, *, goes_before: bool) -> bool:
        """Return whether a newcomer would have to wait."""
        return self._has_first and (not goes_before or self._turns.is_behind(goes_before=True))

    async def enter(self, *, goes_before: bool) -> None:
        """Wait until every call ahead has left the line."""
        if not self._has_first:
            self._has_first = True
            return
        turn = self._turns.enter(goes_before=goes_before)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had already become the first
                self.leave()
            self._turns.leave(turn)
            raise

    def leave(self) -> None:
        """Let the next call become the first."""
        self._has_first = self._turns.call_next()


class _AdmissionQueue(Struct):
    """A queue for one server under one set of limits: calls are admitted one by one, in order of arrival.

    Calls of cases that have started go before those that start a case.
    """

    server: ServerKey
    slots: _Slots
    requests: Window | None
    tokens: Window | None
    spacing: Window | None
    line: _Line = field(default_factory=_Line)
    weights: _Weights = field(default_factory=_Weights)

    @property
    def has_windows(self) -> bool:
        return self.requests is not None or self.tokens is not None or self.spacing is not None

    def wait_s(self, tokens: float, now: float) -> float:
        by_requests = self.requests.wait_s(1, now) if self.requests else 0.0
        if self.tokens is None:
            by_tokens = 0.0
        elif self.weights.is_unknown_yet:
            by_tokens = _LOOK_AGAIN_S
        else:
            by_tokens = self.tokens.wait_s(self.weights.expected(tokens), now)
        by_spacing = self.spacing.wait_s(1, now) if self.spacing else 0.0
        return max(by_requests, by_tokens, by_spacing)

    def take_tokens(self, estimate: float, now: float) -> TakenAmount | None:
        if self.tokens is None:
            return None
        self.weights.under_way += 1
        return self.tokens.take(self.weights.expected(estimate), now)

    def correct(self, taken: TakenAmount, actual: float) -> None:
        """Count the tokens that a request actually used; 0 when unknown, as for a failed request."""
        if self.tokens is not None and actual:
            self.weights.learn(actual)
            self.tokens.correct(taken, actual)

    def take_request(self, now: float) -> None:
        for window in (self.requests, self.spacing):
            if window is not None:
                window.take(1, now)


class Limits:
    """A layer that admits a call when its server may be called, the limits allow it and a slot is free.

    Only the first call in a queue waits for anything but its turn, and no call holds a slot while it waits for time to
    pass. The number of slots follows the server's answers (`AdaptiveSlots`); a server that reports a used-up quota is
    left alone until the quota is renewed.
    """

    def __init__(
        self,
        *,
        pauses: Pauses,
        check_provider: Callable[[Provider], None],
        check_budget: Callable[[], None],
        runtime: Runtime,
        max_concurrency: int | None,
        pace: CapShare,
        cases: OpenCases,
        check_judges: Callable[[OpenCase], None],
    ) -> None:
        self._pace = pace
        self._cases = cases
        self._check_judges = check_judges
        self._pauses = pauses
        self._check_provider = check_provider
        self._check_budget = check_budget
        self._runtime = runtime
        self._max_concurrency = self._pace.part(max_concurrency)
        self._overall = None if max_concurrency is None else AdaptiveSlots(self._max_concurrency)
        self._queues: dict[tuple[ServerKey, ProviderLimits], _AdmissionQueue] = {}

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        limits = call.provider.limits
        queue = self._queues.get((call.server, limits))
        if queue is None:
            limits = self._pace.of(limits)
            caps = [cap for cap in (limits.max_concurrency, self._max_concurrency) if cap is not None]
            queue = self._queues[call.server, call.provider.limits] = _AdmissionQueue(
                server=call.server,
                slots=_Slots(AdaptiveSlots(min(caps, default=None), self._pace), self._overall),
                requests=_window(limits.requests_per_minute),
                tokens=_window(limits.tokens_per_minute),
                spacing=Window(_MINUTE_MS / limits.delay_ms, capacity=1) if limits.delay_ms else None,
            )
        if queue.tokens:
            # An estimate of the messages' tokens, until the server reports them: about four characters per token.
            characters = sum(len(str(message.content)) for message in call.request.messages)
            estimate = characters / _CHARACTERS_PER_TOKEN
        else:
            estimate = 0.0
        case = self._case_to_begin(call)
        # Try to take slots without waiting, which works for most calls; None when the call has to wait.
        self._check_may_leave(call.provider, case)
        if queue.line.is_behind(goes_before=case is None) or self._wait_s(queue, estimate):
            admission = None
        else:
            ticket = queue.slots.take(goes_before=case is None)
            if ticket is None or not self._begins_at_once(case, queue, ticket):
                admission = None
            else:
                admission = self._admitted(queue, ticket, estimate)
        while admission is None:
            await queue.line.enter(goes_before=case is None)
            try:
                admission = await self._admit(queue, call.provider, estimate, case)
            finally:
                queue.line.leave()
            if admission is None and case is not None:
                # Outside the line, so that calls that finish other cases can pass.
                await self._cases.begin(case)
                self._check_judges(case)
                case = None
        outcome = CallOutcome.UNCLEAR
        try:
            response = await send_next(call)
            outcome = CallOutcome.CLEAN
        except ProviderError as error:
            if _is_overload(error):
                self._pace.overloads += 1
                outcome = CallOutcome.OVERLOAD
            raise
        finally:
            queue.slots.release(admission.ticket, outcome)
            if admission.tokens:
                queue.weights.under_way -= 1
        if response.exhausted_s:
            self._pauses.hold(queue.server, response.exhausted_s)
        if admission.tokens:
            queue.correct(admission.tokens, response.usage.input_tokens + response.usage.output_tokens)
        return response

    def _check_may_leave(self, provider: Provider, case: OpenCase | None) -> None:
        """Raise the error that would stop the call in a later layer, so that it does not wait in line in vain."""
        self._check_provider(provider)
        if case is not None:
            self._check_judges(case)
        self._check_budget()

    def _case_to_begin(self, call: ModelCall) -> OpenCase | None:
        """Return the case that the call would start; None for a call that goes before those that start a case."""
        case = OPEN_CASE.get()
        if case is None or case.is_begun:
            return None
        if call.request.role is not Role.JUDGE:
            return case
        self._cases.begin_without_waiting(case)
        return None

    async def _admit(
        self, queue: _AdmissionQueue, provider: Provider, estimate: float, case: OpenCase | None
    ) -> _Admission | None:
        """Wait until the call may be sent, take slots and return the admission; None if its case may not start yet."""
        while True:
            self._check_may_leave(provider, case)
            if wait_s := self._wait_s(queue, estimate):
                await self._runtime.sleep(min(wait_s, _LONGEST_SLEEP_S))
                continue
            ticket = await queue.slots.acquire(goes_before=case is None)
            # Getting a slot may have taken long enough for a pause to begin, or for the key to be refused.
            if self._wait_s(queue, estimate):
                queue.slots.release(ticket)
                continue
            return (
                self._admitted(queue, ticket, estimate) if self._begins_at_once(case, queue, ticket) else None
            )

    def _begins_at_once(self, case: OpenCase | None, queue: _AdmissionQueue, ticket: int) -> bool:
        """Start the case of a call that holds its slots; without room for it, give the slots back and return False."""
        try:
            may_begin = case is None or self._cases.try_begin(case)
        except BaseException:
            queue.slots.release(ticket)
            raise
        if not may_begin:
            queue.slots.release(ticket)
        return may_begin

    def _admitted(self, queue: _AdmissionQueue, ticket: int, estimate: float) -> _Admission:
        self._pauses.sent(queue.server)
        if not queue.has_windows:
            return _Admission(ticket, None)
        now = self._runtime.clock()
        queue.take_request(now)
        return _Admission(ticket, queue.take_tokens(estimate, now))

    def _wait_s(self, queue: _AdmissionQueue, estimate: float) -> float:
        by_limits = queue.wait_s(estimate, self._runtime.clock()) if queue.has_windows else 0.0
        return max(by_limits, self._pauses.remaining_s(queue.server))


def _window(per_minute: float | None) -> Window | None:
    return None if per_minute is None else Window(per_minute, margin_s=_ON_THE_WAY_S)


def _is_overload(error: ProviderError) -> bool:
    """Return whether the error says that the server gets too many requests, rather than that it is broken."""
    if isinstance(error, ProviderUnavailableError):
        return error.status in _OVERLOADED or bool(error.retry_after_s)
    return isinstance(error, ProviderRateLimitError)
