"""Open cases: only so many are begun at a time, and none that the budget does not pay for to its last verdict.

A run that ends early, by a budget, a signal or an error, then leaves whole cases instead of answers without verdicts.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Hashable

from geval_cli.errors import BudgetError
from geval_cli.gateway.budget import HINT, ROUNDING, Budget
from geval_cli.gateway.call import OPEN_CASE, ModelCall, OpenCase, ahead_key
from geval_cli.numbers import format_cost, plural
from geval_cli.records import Purpose


class OpenCases:
    """The cases that are begun and not finished.

    At most as many cases that a judge is called for are open as requests may be under way, so that no more answers than
    that lack a verdict at any time. A case begins only when the budget pays for all that it needs: what the config
    says, and once a case of its kind is whole, what that took. One that does not fit waits for those that are open.
    """

    def __init__(self, budget: Budget, most: int | None) -> None:
        """Begin with none; `most` may be open at a time, None for any number."""
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
        """Return the cases that are open, as they are from now on."""
        return self._open

    @property
    def bounds_requests(self) -> bool:
        """Return whether it matters how many requests a case takes."""
        return self._budget.max_requests is not None

    def begin_at_once(self, case: OpenCase) -> bool:
        """Begin a case if there is room for it and nobody waits; False when it has to wait.

        Raises:
            BudgetError: what is left of the budget does not pay for it.
        """
        if case.is_begun:
            return True
        if self._waiting or not self._may_begin(case):
            return False
        self._begin(case)
        return True

    async def begin(self, case: OpenCase) -> None:
        """Wait until the case may begin.

        Raises:
            BudgetError: as in `begin_at_once`.
        """
        if self.begin_at_once(case):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((case, turn))
        try:
            await turn
        finally:
            if not turn.done() or turn.cancelled():
                self._waiting = deque(item for item in self._waiting if item[1] is not turn)
                self._call_next()

    def begin_anyway(self, case: OpenCase) -> None:
        """Begin a case whose answer was at hand. It never waits, as others may wait for what its judge is asked."""
        if not case.is_begun:
            self._begin(case)

    def close(self, case: OpenCase) -> None:
        """End a case, whatever came of it, and give back what it did not need."""
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
        """Count a request that leaves on behalf of a case."""
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
            BudgetError: there will never be.
        """
        self._budget.check()
        if not self._open:
            if self._budget.begun_at != self._budget.requests and (lacking := self._lacking(case)):
                raise BudgetError(lacking, hint=HINT)
            return True
        is_crowded = self._most is not None and self._weight > 0 and self._weight + case.weight > self._most
        return not (case.is_judged and is_crowded) and self._lacking(case) is None

    def _needed(self, case: OpenCase) -> int:
        """Return how many requests a case takes until it is whole."""
        known = self._judge_calls.get(case.kind, 0)
        unsent = sum(not ahead.is_sent and ahead.key not in self._sent_ahead for ahead in case.ahead)
        return case.answer_calls + unsent + max(case.judge_calls, known)

    def _expected_usd(self, case: OpenCase) -> float | None:
        cost_usd, cases = self._cost_usd.get(case.kind, (0.0, 0))
        return cost_usd / cases if cases else None

    def _lacking(self, case: OpenCase) -> str | None:
        """Return why the budget does not pay for a case beside those that are open; None when it does."""
        budget, needed = self._budget, self._needed(case)
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
                # The first of its kind shows what one costs, to the last verdict.
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
        """Begin those who wait, in their order, as far as there is room."""
        while self._waiting:
            case, turn = self._waiting[0]
            if not turn.done():
                try:
                    if not case.is_begun:  # as another output of its row may have begun it
                        if not self._may_begin(case):
                            return
                        self._begin(case)
                    turn.set_result(None)
                except BudgetError as error:
                    turn.set_exception(error)
            self._waiting.popleft()
