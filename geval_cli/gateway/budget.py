"""The budget layer: no more requests are sent once a run has spent its money or its number of requests.

The usage of a run's calls is added up whether or not they led to a result (`Spending`).
"""

import asyncio
import operator
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.errors import (
    BudgetError,
    ProviderError,
    ProviderResponseError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from geval_cli.events import ModelCalled, RunEvent
from geval_cli.gateway.call import OPEN_CASE, Handler, ModelCall, OpenCase, ServerKey, Wire
from geval_cli.numbers import format_cost, plural
from geval_cli.providers.base import Provider
from geval_cli.providers.prices import FREE_KINDS
from geval_cli.providers.wire.finish_reasons import withheld
from geval_cli.records import ModelResponse, Purpose, Role, Usage

UsageByRole = Mapping[Role, Usage]

_NOTE_EVERY_S = 0.02
"""When the process is killed, at most this much of the spending on cases without a result is lost."""


class Spending(Struct):
    """The sum of the calls of one process of a run.

    Attributes:
        before: what earlier processes of the run spent on results that are kept.
        carried: what they spent beyond that.
    """

    before: UsageByRole = field(default_factory=dict)
    carried: UsageByRole = field(default_factory=dict)
    _called: dict[Role, Usage] = field(default_factory=dict)
    _next_note_s: float = 0.0

    def add(self, event: RunEvent) -> bool:
        """Count an event if it is a call that used anything, and return whether it is."""
        if not isinstance(event, ModelCalled):
            return False
        usage = event.usage
        if event.failed:
            usage = replace(usage, requests=0)
            if usage == Usage():
                return False
        before = self._called.get(event.role)
        self._called[event.role] = usage if before is None else before + usage
        return True

    def is_note_due(self) -> bool:
        """Return whether it is time to store the total again; a call that returns True starts the next interval."""
        now = time.monotonic()
        if now < self._next_note_s:
            return False
        self._next_note_s = now + _NOTE_EVERY_S
        return True

    @property
    def has_cost(self) -> bool:
        """Return whether anything was paid in this process, or may have been."""
        return any(usage.cost_usd is None or usage.cost_usd > 0 for usage in self._called.values())

    @property
    def total(self) -> dict[Role, Usage]:
        """Return all that was spent on the run so far, by role."""
        return combined(combined(self.before, self.carried, operator.add), self._called, operator.add)

    @property
    def usage(self) -> Usage:
        """Return all that was spent on the run so far, over all roles."""
        return sum(self.total.values(), Usage())

    def with_results(self, usage: UsageByRole) -> dict[Role, Usage]:
        """Return the cost of a run whose results add up to `usage`, including that of cases that were cut short."""
        return combined(combined(usage, self.carried, operator.add), self.total, larger)


def combined(
    first: UsageByRole, second: UsageByRole, how: Callable[[Usage, Usage], Usage]
) -> dict[Role, Usage]:
    """Return the usage of each role, with the values of both mappings combined by `how`."""
    present = {Role.GENERATION, Role.JUDGE, *first, *second}
    return {
        role: how(first.get(role, Usage()), second.get(role, Usage())) for role in Role if role in present
    }


def larger(first: Usage, second: Usage) -> Usage:
    """Return the larger value of each field; the cost is unknown when either cost is."""
    is_known = first.cost_usd is not None and second.cost_usd is not None
    return Usage(
        max(first.requests, second.requests),
        max(first.input_tokens, second.input_tokens),
        max(first.output_tokens, second.output_tokens),
        max(first.cached_requests, second.cached_requests),
        max(first.cost_usd or 0.0, second.cost_usd or 0.0) if is_known else None,
        max(first.batched_requests, second.batched_requests),
    )


def beyond(total: Usage, part: Usage) -> Usage:
    """Return `total` minus `part`, at least 0 in each field.

    If the cost of `part` is unknown, the difference costs 0; if only that of `total` is, so is that of the difference.
    """
    is_known = total.cost_usd is not None and part.cost_usd is not None
    cost_usd = max((total.cost_usd or 0.0) - (part.cost_usd or 0.0), 0.0) if is_known else None
    return Usage(
        max(total.requests - part.requests, 0),
        max(total.input_tokens - part.input_tokens, 0),
        max(total.output_tokens - part.output_tokens, 0),
        max(total.cached_requests - part.cached_requests, 0),
        0.0 if part.cost_usd is None else cost_usd,
        max(total.batched_requests - part.batched_requests, 0),
    )


ROUNDING = 1e-9

RESUME_HINT = "finished cases are kept, and `--resume` continues the run"
AGAIN_HINT = "finished cases are kept; judge the run again for the rest"
MORE_HINT = "allow more with --max-cost or --max-requests"


class Budget(Struct):
    """A limit on spending, and the sum of what was spent.

    Attributes:
        max_cost_usd: US dollars for answers; None for no limit. Exceeded by at most one request of each kind, provided
            that requests of a kind cost about the same.
        max_requests: requests that may be sent, including retries; None for no limit. Never exceeded.
        cost_usd, requests: what was spent so far.
        reserved_usd: the expected cost of batches that are not answered yet.
        whole: the budget that this one is a part of; see `part`.
        hint: what the user can do when the budget is used up.
        begun_at: how many requests had been sent when this part of a run's budget was assigned; its first case starts
            even if the part does not cover all of it.
    """

    max_cost_usd: float | None = None
    max_requests: int | None = None
    cost_usd: float = 0.0
    requests: int = 0
    reserved_usd: float = 0.0
    whole: "Budget | None" = None
    hint: str = MORE_HINT
    begun_at: int | None = None
    _unpriced: str | None = None
    _ended: BudgetError | None = None

    def part(self, max_requests: int | None) -> "Budget":
        """Return a budget of `max_requests` requests that shares the cost limit of this one: its costs count here, too.

        Two parts in use at the same time do not see each other's reservations for requests under way.
        """
        return Budget(self.max_cost_usd, max_requests, whole=self, hint=self.hint)

    def check(self) -> None:
        """Check that one more request may be sent.

        Raises:
            BudgetError: the budget is used up, or it is unknown how much of it is.
        """
        if self.whole is not None:
            self.whole.check()
        if self._ended is not None:
            raise BudgetError(self._ended.message, hint=self._ended.hint)
        if self._unpriced is not None:
            message = (
                f"the cost of an answer from {self._unpriced} is unknown, so --max-cost cannot be enforced"
            )
            raise BudgetError(message, hint=self.hint)
        if self.max_requests is not None and self.requests >= self.max_requests:
            message = f"the budget of {plural(self.max_requests, 'request')} is used up"
            raise BudgetError(message, hint=self.hint)
        if not self.has_money_left(0.0):
            raise BudgetError(
                f"the budget of {format_cost(self.max_cost_usd or 0.0)} is used up", hint=self.hint
            )

    def take_request(self) -> None:
        """Count a request that is about to be sent.

        Raises:
            BudgetError: as in `check`; the request must not be sent.
        """
        self.check()
        self.requests += 1

    def has_money_left(self, reserved_usd: float) -> bool:
        """Return whether any money is left if the requests under way cost `reserved_usd`."""
        if self.whole is not None:
            return self.whole.has_money_left(reserved_usd + self.reserved_usd)
        # In floating point, ten times 0.1 is a little less than 1; without the tolerance an eleventh would be sent.
        spent_usd = self.cost_usd + self.reserved_usd + reserved_usd
        return self.max_cost_usd is None or spent_usd < self.max_cost_usd * (1 - ROUNDING)

    def affordable_count(self, expected_usd: Sequence[float]) -> int:
        """Return how many of these requests, counted from the first one, may be submitted together."""
        count = len(expected_usd)
        if self.max_requests is not None:
            count = min(count, self.max_requests - self.requests)
        sum_usd = 0.0
        for place in range(count):
            sum_usd += expected_usd[place]
            if not self.has_money_left(sum_usd):
                return place
        return max(count, 0)

    def reserve_batch(self, requests: int, expected_usd: float) -> None:
        """Count requests that are submitted together, and reserve their expected cost."""
        self.requests += requests
        self.reserved_usd += expected_usd

    def pay(self, cost_usd: float) -> None:
        """Count the cost of an answer."""
        self.cost_usd += cost_usd
        if self.whole is not None:
            self.whole.pay(cost_usd)

    def end(self, message: str, *, hint: str) -> None:
        """Stop all further requests for an external reason, such as results that cannot be stored."""
        self._ended = BudgetError(message, hint=hint)

    @property
    def is_ended(self) -> bool:
        """Return whether `end` was called."""
        return self._ended is not None

    @property
    def unpriced(self) -> str | None:
        """Return the label of the provider passed to `give_up`; None if it was not called."""
        return self._unpriced

    def give_up(self, provider_label: str) -> None:
        """Stop all further requests: the cost of an answer is unknown, and no earlier one shows what to expect."""
        self._unpriced = provider_label
        if self.whole is not None:
            self.whole.give_up(provider_label)


_FREE = frozenset({"echo", "scripted"})
"""Kinds of providers whose answers are written in the config: a run that is to stop does not wait for them."""


class BudgetLayer:
    """A layer that lets a request through, and counts it, if the budget allows one more and the run is not stopping.

    It comes after the retries and the cache, so that each retry counts and cached answers do not.
    """

    def __init__(
        self,
        budget: Budget,
        *,
        check_provider: Callable[[Provider], None],
        wire: Wire,
        note: Callable[[ModelCall], None],
    ) -> None:
        """Build the layer; `note` is called with each request that is sent."""
        self._budget = budget
        self._check_provider = check_provider
        self._wire = wire
        self._note = note

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        # Before anything is counted: a provider whose key was refused is not called.
        self._check_provider(call.provider)
        self._wire.check()
        self._budget.take_request()
        self._note(call)
        if call.provider.identity.kind in _FREE:
            return await send_next(call)
        is_paid = call.provider.identity.kind not in FREE_KINDS
        self._wire.begin(is_paid=is_paid)
        try:
            return await send_next(call)
        finally:
            self._wire.end(is_paid=is_paid)


class _Kind(Struct, frozen=True):
    """A key for requests that should cost about the same: the same purpose, sent to the same model."""

    server: ServerKey
    role: Role
    is_sampled: bool
    is_weighed: bool
    limit: str
    answer_keys: tuple[str, ...]


class _Price(Struct):
    """The cost of the requests of one kind so far; `is_asked` while the first one is under way."""

    cost_usd: float = 0.0
    answers: int = 0
    characters: int = 0
    is_asked: bool = False

    def learn(self, cost_usd: float, *, answers: int, characters: int) -> None:
        self.cost_usd += cost_usd
        self.answers += answers
        self.characters += characters * answers

    def expected_usd(self, *, answers: int, characters: int) -> float:
        """Return the mean cost so far, increased in proportion for a request longer than the mean."""
        each_usd, usual = self.cost_usd / self.answers, self.characters / self.answers
        return each_usd * answers * max(1.0, characters / max(usual, 1.0))


class CostReservation:
    """A layer that enforces the cost limit with many requests under way, by reserving the expected cost of each.

    The first request of each kind goes alone, and its cost is the expected cost of the next ones. A request that no
    money would be left for waits until those under way have been answered. An answer that does not report its usage is
    charged the reserved amount. The layer comes before the limits, so that a call that waits here holds no slot.
    """

    def __init__(self, budget: Budget, *, begin: Callable[[OpenCase], Awaitable[None]]) -> None:
        """Build the layer; `begin` waits until a case may start, before any money is reserved for its answer."""
        self._budget = budget
        self._begin = begin
        self._prices: defaultdict[_Kind, _Price] = defaultdict(_Price)
        self._reserved_usd = 0.0
        self._under_way = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        request = call.request
        limit = request.params.get("max_tokens", request.params.get("max_completion_tokens"))
        keys = tuple((request.response_schema or {}).get("properties", ()))
        is_sampled = len(request.sample_indexes) > 1
        kind = _Kind(call.server, request.role, is_sampled, request.want_logprobs, str(limit), keys)
        price = self._prices[kind]
        case = OPEN_CASE.get()
        if case is not None and call.request.role is not Role.JUDGE:
            await self._begin(case)
        set_aside_usd = await self._reserve(price, call)
        try:
            response = await send_next(call)
        except ProviderError as error:
            is_charged = isinstance(error, ProviderResponseError | ProviderTimeoutError) or (
                isinstance(error, ProviderUnavailableError) and error.has_begun
            )
            paid_usd = error.cost_usd
            if paid_usd is None and is_charged:
                paid_usd = set_aside_usd
            if paid_usd:
                self._pay_out(call, paid_usd)
            raise
        else:
            cost_usd = response.usage.cost_usd
            # An answer that a filter withheld, free of charge or for an unknown one, does not show what others cost.
            is_withheld = all(withheld(choice.finish_reason) for choice in response.choices)
            if cost_usd is not None:
                if cost_usd or not is_withheld:
                    characters = call.request.characters
                    price.learn(cost_usd, answers=len(response.choices), characters=characters)
                self._pay_out(call, cost_usd)
            elif price.answers or is_withheld:
                self._pay_out(call, set_aside_usd)
            else:
                self._budget.give_up(call.provider.label)
            return response
        finally:
            # End the reservation, however its request ended, and let all waiting calls check again.
            self._under_way -= 1
            # Rounding may leave a remainder, and a call that waits for it would never be woken.
            self._reserved_usd = self._reserved_usd - set_aside_usd if self._under_way else 0.0
            price.is_asked = False
            waiting, self._waiting = self._waiting, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)

    def _pay_out(self, call: ModelCall, cost_usd: float) -> None:
        self._budget.pay(cost_usd)
        case = OPEN_CASE.get()
        if case is not None and call.request.purpose is not Purpose.STEPS:  # steps serve other cases, too
            case.cost_usd += cost_usd

    async def _reserve(self, price: _Price, call: ModelCall) -> float:
        """Wait until the request may be sent, and return the amount reserved for it: 0 for the first of its kind.

        Raises:
            BudgetError: the money is used up.
        """
        while True:
            self._budget.check()
            is_known = price.answers > 0
            if not price.is_asked and self._budget.has_money_left(self._reserved_usd):
                break
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        answers = len(call.request.sample_indexes)
        set_aside_usd = (
            price.expected_usd(answers=answers, characters=call.request.characters) if is_known else 0.0
        )
        price.is_asked = not is_known
        self._reserved_usd += set_aside_usd
        self._under_way += 1
        return set_aside_usd


class _Expense(Struct):
    """The cost of one call so far: of its answers, and of failed attempts that were charged nevertheless."""

    answered: Usage = Usage()
    failed: Usage = Usage()


class Ledger:
    """A layer that records the usage of each attempt of a call, so that the run can report the call's full cost.

    It sits inside the layers that repeat a request or split it into several, which forget single failures.
    """

    def __init__(self) -> None:
        self._expenses: dict[int, _Expense] = {}

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        try:
            response = await send_next(call)
        except ProviderError as error:
            if error.input_tokens or error.output_tokens or error.cost_usd:
                taken = Usage(0, error.input_tokens, error.output_tokens, cost_usd=error.cost_usd)
                self._of(call).failed += taken
            raise
        self._of(call).answered += response.usage
        return response

    def close(self, number: int) -> tuple[Usage, Usage]:
        """Return the usage of the answers and of the failures of the call with this number, and forget it."""
        expense = self._expenses.pop(number, None)
        return (Usage(), Usage()) if expense is None else (expense.answered, expense.failed)

    def _of(self, call: ModelCall) -> _Expense:
        return self._expenses.setdefault(call.number, _Expense())
