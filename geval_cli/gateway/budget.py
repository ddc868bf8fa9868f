"""The budget layer: nothing more leaves once a run has taken as much money, or as many requests, as it may."""

from collections.abc import Callable

from msgspec import Struct

from geval_cli.errors import BudgetError
from geval_cli.gateway.call import Handler, ModelCall
from geval_cli.numbers import format_cost
from geval_cli.providers.base import Provider
from geval_cli.records import ModelResponse

_HINT = "what is finished is kept; `geval run CONFIG --resume` with a larger budget does the rest"


class Budget(Struct):
    """What may be spent, and what has been.

    Attributes:
        max_cost_usd: US dollars for answers; None for no bound. What is on its way when they are used up still comes.
        max_requests: requests that may leave, repetitions among them; None for no bound. Never exceeded.
        cost_usd, requests: what was spent so far.
    """

    max_cost_usd: float | None = None
    max_requests: int | None = None
    cost_usd: float = 0.0
    requests: int = 0
    _unpriced: str | None = None

    def check(self) -> None:
        """Nothing, as long as one more request may leave.

        Raises:
            BudgetError: the budget is used up, or nobody can say any more how much of it is.
        """
        if self._unpriced is not None:
            message = f"{self._unpriced} gave an answer whose cost is unknown, so --max-cost cannot be kept"
            raise BudgetError(message, hint=_HINT)
        if self.max_requests is not None and self.requests >= self.max_requests:
            plural = "" if self.max_requests == 1 else "s"
            raise BudgetError(f"the budget of {self.max_requests:,} request{plural} is used up", hint=_HINT)
        if self.max_cost_usd is not None and self.cost_usd >= self.max_cost_usd:
            raise BudgetError(f"the budget of {format_cost(self.max_cost_usd)} is used up", hint=_HINT)

    def take_request(self) -> None:
        """Count a request that is about to leave.

        Raises:
            BudgetError: as `check`; the request must not leave.
        """
        self.check()
        self.requests += 1

    def pay(self, provider_label: str, cost_usd: float | None) -> None:
        """Count what an answer cost; None when that is unknown."""
        if cost_usd is not None:
            self.cost_usd += cost_usd
        elif self.max_cost_usd is not None:
            self._unpriced = provider_label


class BudgetLayer:
    """A layer: lets a request leave if the budget allows it, and takes its cost from the budget.

    It stands innermost, so that each repetition counts as what it is, and answers of the cache cost nothing.
    """

    def __init__(
        self, following: Handler, budget: Budget, *, check_provider: Callable[[Provider], None]
    ) -> None:
        self._following = following
        self._budget = budget
        self._check_provider = check_provider

    def check(self, provider: Provider) -> None:
        """Nothing, as long as `provider` may be asked; raises what keeps a request to it from leaving."""
        self._check_provider(provider)
        self._budget.check()

    async def __call__(self, call: ModelCall) -> ModelResponse:
        # Before anything is counted: a provider whose key was refused is asked nothing.
        self._check_provider(call.provider)
        self._budget.take_request()
        response = await self._following(call)
        self._budget.pay(call.provider.label, response.usage.cost_usd)
        return response
