"""Shards of a run: ranges of tests for parallel workers, their permits, and the messages between processes.

Everything here is plain data and arithmetic; `coordinator` sends it, `worker` does the work.
"""

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct, field

from geval_cli.events import CaseStarted, ModelCalled, RequestEnded
from geval_cli.gateway.budget import Budget
from geval_cli.json_codec import decode_json, encode_json
from geval_cli.records import CaseResult
from geval_cli.store.cache import StoredChoice

SHARD_TESTS = 500
"""The most tests in a shard."""

LOT_RESULTS = 50
"""The most results sent in one batch."""

MOST_LOSSES = 3
"""How often a shard is retried after its worker was lost; then its cases are errors."""

_SHARDS_PER_WORKER = 4  # at least, so that one slow shard at the end does not leave the others idle
_PERMIT_SHARE = 0.02
_FEWEST_REQUESTS = 10  # of a permit near the end: fewer would be more shards than work


class Shard(Struct):
    """The tests numbered `start` to `stop`, excluding `stop`. `losses` counts the workers lost while running it."""

    start: int
    stop: int
    losses: int = 0


def shard_size(tests: int, workers: int) -> int:
    """Return the number of tests per shard: small enough that every worker gets several, at most `SHARD_TESTS`."""
    return max(1, min(SHARD_TESTS, math.ceil(tests / (workers * _SHARDS_PER_WORKER))))


def cut(indexes: Iterable[int], size: int) -> list[Shard]:
    """Split test numbers, in ascending order, into shards of `size` tests."""
    shards: list[Shard] = []
    for position, index in enumerate(indexes):
        if position % size == 0:
            shards.append(Shard(index, index))
        shards[-1].stop = index + 1
    return shards


class Permit(Struct, frozen=True):
    """The most that a worker may spend on a shard; None for no limit."""

    max_cost_usd: float | None = None
    max_requests: int | None = None


class Permits:
    """Divides a run's budget among workers, so that together they never exceed it.

    A permit is at most 2 % of the unassigned budget, but enough to be worth a shard; near the end one worker gets the
    rest while the others wait. They also wait, under a cost limit, until a first answer shows what one costs.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held: deque[Permit] = deque()

    def take(self) -> Permit | None:
        """Return a permit; None while the rest is assigned to others, who will return what they do not use.

        Raises:
            BudgetError: nothing is left or assigned.
        """
        if not self._held:
            self._budget.check()
        requests = self._requests()
        cost_usd = self._cost_usd()
        if requests == 0 or cost_usd == 0.0:
            return None
        if cost_usd is not None and not self._budget.requests:
            requests = min(_FEWEST_REQUESTS, requests or _FEWEST_REQUESTS)
        permit = Permit(cost_usd, requests)
        self._held.append(permit)
        return permit

    def release_claim(self, permit: Permit, *, requests: int, cost_usd: float) -> None:
        """Record what was spent of a permit, and return the rest to the budget."""
        self._held.remove(permit)
        self._budget.requests += requests
        self._budget.pay(cost_usd)

    def lose(self, permit: Permit) -> None:
        """Record a whole permit as spent, because the true amount is unknown."""
        self.release_claim(permit, requests=permit.max_requests or 0, cost_usd=permit.max_cost_usd or 0.0)

    def _requests(self) -> int | None:
        most = self._budget.max_requests
        if most is None:
            return None
        held = sum(permit.max_requests or 0 for permit in self._held)
        free = max(0, most - self._budget.requests - held)
        return min(free, max(_FEWEST_REQUESTS, int(free * _PERMIT_SHARE)))

    def _cost_usd(self) -> float | None:
        most = self._budget.max_cost_usd
        if most is None:
            return None
        free_usd = most - self._budget.cost_usd - sum(permit.max_cost_usd or 0.0 for permit in self._held)
        part_usd = free_usd * _PERMIT_SHARE
        if not self._held and not self._budget.requests:
            return part_usd
        # The mean cost of a request so far.
        if (
            self._budget.requests
            and part_usd > 0.0
            and part_usd >= _FEWEST_REQUESTS * (self._budget.cost_usd / self._budget.requests)
        ):
            return part_usd
        return 0.0 if self._held else free_usd


class ShardOrder(Struct, frozen=True):
    """A shard for a worker.

    Attributes:
        start, stop: the numbers of its tests, excluding `stop`.
        done: the cases that are already done, encoded as in `DoneCases`.
        permit: what it may spend.
        pace: the share of the usual number of concurrent requests that servers currently accept, above 0 up to 1.
        is_repeated: whether another worker started it and was lost.
    """

    start: int
    stop: int
    done: bytes
    permit: Permit
    pace: float = 1.0
    is_repeated: bool = False


class ShardEnd(Struct, frozen=True):
    """How a worker ended a shard.

    Attributes:
        requests, cost_usd: what it spent of its permit.
        is_out_of_permit: whether it stopped because the permit was used up.
        is_overloaded: whether a server reported too many requests.
        unpriced: a provider whose answer had an unknown cost under a cost limit.
        mistakes: why the tests can no longer be read; empty if they can.
    """

    requests: int = 0
    cost_usd: float = 0.0
    is_out_of_permit: bool = False
    is_overloaded: bool = False
    unpriced: str | None = None
    mistakes: tuple[str, ...] = ()


class EventBatch(Struct):
    """The events of a worker since its last batch. The last batch of a shard has an `end`.

    `answers` are new answers by key, from a worker that does not write into the run's cache.
    """

    results: list[CaseResult] = field(default_factory=list)
    calls: list[ModelCalled] = field(default_factory=list)
    requests: list[RequestEnded] = field(default_factory=list)
    begun: list[CaseStarted] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    answers: dict[str, StoredChoice] = field(default_factory=dict)
    end: ShardEnd | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to send."""
        return not (
            self.results
            or self.calls
            or self.requests
            or self.begun
            or self.notices
            or self.answers
            or self.end is not None
        )


def batch_to_json(batch: EventBatch) -> bytes:
    """Encode a batch as a message."""
    return encode_json(batch)


def batch_from_json(message: bytes) -> EventBatch:
    """Decode the batch in a message.

    Raises:
        ValueError: the message is not a batch.
    """
    try:
        return _LOT.decode(message)
    except msgspec.DecodeError:
        # What msgspec does not read, as halves of surrogate pairs in what a model wrote
        plain: Any = decode_json(message)
        return msgspec.convert(plain, EventBatch)


_LOT = msgspec.json.Decoder(EventBatch)
