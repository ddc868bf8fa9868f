"""Add up the cost of a run's calls, whether or not a result came of them."""

import operator
import time
from collections.abc import Callable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.events import ModelCalled, RunEvent
from geval_cli.records import Role, Usage

UsageByRole = Mapping[Role, Usage]

_NOTE_EVERY_S = 0.02
"""So much of what cases without a result have cost is forgotten when the process is killed."""


class Spending(Struct):
    """Adds up the calls of one process of a run.

    Attributes:
        before: what earlier processes of the run spent on results that stay.
        carried: what they spent beyond that.
    """

    before: UsageByRole = field(default_factory=dict)
    carried: UsageByRole = field(default_factory=dict)
    _called: dict[Role, Usage] = field(default_factory=dict)
    _next_note_s: float = 0.0

    def add(self, event: RunEvent) -> bool:
        """Count an event if it is a call that took something; whether it was one."""
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
        """Return whether it is time to store the total again; asking so begins the next wait."""
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
        """All that was spent on the run so far."""
        return combined(combined(self.before, self.carried, operator.add), self._called, operator.add)

    @property
    def usage(self) -> Usage:
        """All that was spent, whatever for."""
        return sum(self.total.values(), Usage())

    def with_results(self, usage: UsageByRole) -> dict[Role, Usage]:
        """Return the cost of a run whose results add up to `usage`: cases that were cut short cost something too."""
        return combined(combined(usage, self.carried, operator.add), self.total, larger)


def combined(
    first: UsageByRole, second: UsageByRole, how: Callable[[Usage, Usage], Usage]
) -> dict[Role, Usage]:
    """Return the usage of each role, put together."""
    present = {Role.GENERATION, Role.JUDGE, *first, *second}
    return {
        role: how(first.get(role, Usage()), second.get(role, Usage())) for role in Role if role in present
    }


def larger(first: Usage, second: Usage) -> Usage:
    """Return the larger one in each respect; a cost is unknown when one of the two is."""
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
    """Return `total` less `part`; an unknown cost stays with the part when it is unknown there."""
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
