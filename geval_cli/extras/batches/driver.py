"""Between two passes over a run's jobs: submit what was asked as batches, wait for them, fetch their answers.

`batch_steps` does what one batch needs; here is which batches there are, what waits for one, and when to go on.
"""

import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path

from msgspec import Struct, field

from geval_cli.errors import BudgetError, StoppedError
from geval_cli.events import BatchesAdvanced, RunEvent
from geval_cli.extras.batches.api import LOGPROBS_PER_BATCH
from geval_cli.extras.batches.layer import (
    BatchGroup,
    BatchLayer,
    BatchPolicy,
    BatchQueue,
    ScoutLayer,
    server_text,
)
from geval_cli.extras.batches.steps import BatchSteps, WatchedBatch
from geval_cli.extras.batches.store import Batch, BatchState, FreeRequest
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.call import Layer, Notice, Runtime, Wire
from geval_cli.providers.base import Provider, batch_api
from geval_cli.records import Role
from geval_cli.store.cache import ResponseCache
from geval_cli.store.locks import RunLocks

FEWEST_IN_A_BATCH = 20
"""Fewer requests than these are sent directly: it takes seconds, and a batch hours."""

_SLOWER = 1.5
_LONGEST_POLL_S = 300.0
# Of a process that is not to wait, for a provider that does not answer at once.
_MOST_ROUNDS = 3
_MOST_ROUNDS_OF_FILES = 8  # some minutes: Azure reads a file before a batch can be created


class WaitOutcome(Enum):
    """The outcomes of a wait."""

    PASS = auto()  # something was answered, or is to be sent directly: the jobs are to be done again
    HANDED_IN = auto()  # nobody is to wait; what was asked is at the providers
    STOPPED = auto()  # the run is to stop; its batches go on
    CANCELLED = auto()  # somebody cancelled a batch: the run is to stop


Pause = Callable[[float], Awaitable[bool]]
"""Waits so many seconds; True as soon as the run is to stop."""


class _Waiting(Struct):
    """Requests of a group that are in no batch yet.

    Attributes:
        size: how many the provider was found to take in a batch, if it limits its queue.
        one_by_one: whether it takes no second batch as long as one is under way.
    """

    provider: Provider
    keys: list[str] = field(default_factory=list)
    size: int | None = None
    one_by_one: bool = False


class BatchDriver:
    """Drives the batches of one run. What other processes have submitted, and still drive, it only waits for."""

    def __init__(
        self,
        queue: BatchQueue,
        folder: Path | None,
        *,
        notice: Notice,
        on_event: Callable[[RunEvent], None],
        runtime: Runtime,
    ) -> None:
        """Build the driver; `folder` is that of the cache, None for one in memory."""
        self._queue = queue
        self._store = queue.store
        self._policy = queue.policy
        self.way_on = queue.policy.way_on
        self._budget = queue.budget
        self._steps = BatchSteps(queue, folder, notice)
        self._locks = RunLocks(folder)
        self._on_event = on_event
        self._runtime = runtime
        self._watched: dict[str, WatchedBatch] = {}
        self._waiting: dict[BatchGroup, _Waiting] = {}
        self._starved: BudgetError | None = None
        self._has_left = False
        self._notice = notice
        self._told: set[str] = set()

    @classmethod
    def begin(
        cls,
        policy: BatchPolicy,
        cache: ResponseCache,
        *,
        budget: Budget,
        check_provider: Callable[[Provider], None],
        notice: Notice,
        wire: Wire,
        on_event: Callable[[RunEvent], None],
        runtime: Runtime,
    ) -> "BatchDriver":
        """Return the driver of a run that begins (`gateway.BatchStart`, with a policy)."""
        queue = BatchQueue(
            cache.batches, policy, budget, check_provider=check_provider, notice=notice, wire=wire
        )
        return cls(queue, cache.folder, notice=notice, on_event=on_event, runtime=runtime)

    @property
    def scout(self) -> Layer:
        return ScoutLayer(self._queue)

    @property
    def layer(self) -> Layer:
        return BatchLayer(self._queue)

    @property
    def batch_ids(self) -> Sequence[str]:
        """Return the batches that the run has waited for."""
        return tuple(self._watched)

    async def open_batches(self) -> list[Batch]:
        """Return the batches of the run that may still bring answers."""
        return [batch for batch in await self._store.find(self._watched) if batch.state.is_open]

    async def wait_for(self, batches: Mapping[str, Provider], pause: Pause) -> WaitOutcome:
        """Wait until these batches have ended, by id with the provider that has each, and keep their answers.

        Raises:
            ProviderError, StoreError: as `between_passes`.
        """
        for batch_id, provider in batches.items():
            self._watched.setdefault(batch_id, WatchedBatch(provider))
        return await self._wait(pause, set(batches), sends_directly=False)

    async def finish(self) -> None:
        """Forget what was read by the last pass."""
        await self._queue.sweep()

    def release(self) -> None:
        """Leave the batches to other processes."""
        self._locks.release_all()

    async def between_passes(self, pause: Pause) -> WaitOutcome:
        """Hand in what the last pass asked, and wait until all batches have ended.

        Raises:
            BudgetError: nothing is under way, and the budget lets nothing more be submitted.
            ProviderError: a provider does not let its batches be looked at any more; they go on.
            StoreError: the cache cannot be read or written.
        """
        await self._queue.sweep()
        left = self._queue.begin_pass()
        for batch_id, provider in left.joined.items():
            self._watched.setdefault(batch_id, WatchedBatch(provider))
        for item in self._waiting.values():
            item.keys = []
        sends_directly = False
        for group, keys in left.free.items():
            provider = left.providers[group]
            if len(keys) < FEWEST_IN_A_BATCH or len(keys) < _fewest(provider):
                self._send_directly(keys, provider)
                sends_directly = True
            else:
                self._waiting.setdefault(group, _Waiting(provider)).keys = list(keys)
        under_way = await self.open_batches()
        self._reserve(under_way)
        return await self._wait(pause, {batch.id for batch in under_way}, sends_directly=sends_directly)

    async def _wait(self, pause: Pause, before: set[str], *, sends_directly: bool) -> WaitOutcome:
        delay_s, cancelled, rounds = self._policy.poll_s, False, 0
        self._starved, has_news, self._has_left = None, sends_directly, False
        while True:
            self._steps.retry_after_s, self._steps.reads_files = 0.0, False
            has_made = await self._make_batches()
            under_way = await self.open_batches()
            before |= {batch.id for batch in under_way}
            try:
                for batch in under_way:
                    await self._advance(batch)
            except StoppedError:
                return WaitOutcome.STOPPED
            found = await self._store.find(before)
            ended = [batch for batch in found if not batch.state.is_open]
            self._reserve(found)
            self._tell(found)
            has_news = has_news or bool(ended) or self._has_left
            cancelled = cancelled or any(
                batch.state is BatchState.CANCELLED and not self._watched[batch.id].is_late for batch in ended
            )
            still_open = [batch for batch in found if batch.state.is_open]
            if not still_open and (
                not any(item.keys for item in self._waiting.values()) or self._starved is not None
            ):
                break
            rounds += 1
            most_rounds = _MOST_ROUNDS_OF_FILES if self._steps.reads_files else _MOST_ROUNDS
            if not self._policy.waits and (
                rounds >= most_rounds or all(batch.state is BatchState.SUBMITTED for batch in still_open)
            ):
                return self._after(
                    WaitOutcome.PASS if has_news else WaitOutcome.HANDED_IN, cancelled=cancelled
                )
            delay_s = self._policy.poll_s if has_made else delay_s
            jitter = 0.75 + 0.5 * self._runtime.random()
            if await pause(max(delay_s * jitter, self._steps.retry_after_s)):
                return WaitOutcome.STOPPED
            delay_s = min(delay_s * _SLOWER, max(_LONGEST_POLL_S, self._policy.poll_s))
        if not has_news and self._starved is not None:
            raise self._starved
        return self._after(WaitOutcome.PASS, cancelled=cancelled)

    def _send_directly(self, keys: Collection[str], provider: Provider) -> None:
        """Have requests sent directly, since they are too few for a batch."""
        self._queue.direct.update(keys)
        fewest = _fewest(provider)
        if FEWEST_IN_A_BATCH <= len(keys) < fewest and provider.id not in self._told:
            self._told.add(provider.id)
            self._notice(
                f"{provider.id} takes batches of at least {fewest} requests; {len(keys)} are sent directly"
            )

    def _after(self, outcome: WaitOutcome, *, cancelled: bool) -> WaitOutcome:
        if outcome is WaitOutcome.PASS:
            self._queue.passes += 1
        return WaitOutcome.CANCELLED if cancelled else outcome

    def _reserve(self, batches: Sequence[Batch]) -> None:
        """Reserve what batches are expected to cost; those that have ended until their answers are read."""
        self._budget.reserved_usd = sum(batch.reserved_usd for batch in batches)

    async def _make_batches(self) -> bool:
        """Make batches of what waits for one, as far as provider and budget allow; tell whether any was made."""
        has_made = False
        for group, item in self._waiting.items():
            while item.keys and not (item.one_by_one and await self._is_busy(item.provider)):
                batch = await self._make_batch(group, item)
                if batch is None:
                    break
                has_made = True
        return has_made

    async def _is_busy(self, provider: Provider) -> bool:
        return any(self._watched[batch.id].provider is provider for batch in await self.open_batches())

    async def _make_batch(self, group: BatchGroup, item: _Waiting) -> Batch | None:
        """Make one batch, as an intent; None when there is nothing to make one of, or the budget is used up."""
        api = batch_api(item.provider)
        assert api is not None  # else its requests were not here
        free = await self._store.free_requests(item.keys)
        if not free:
            item.keys = []  # another process has taken them: the next pass joins it
            return None
        most = min(api.most_requests, self._policy.size or api.most_requests, item.size or api.most_requests)
        most_requests = min(most, LOGPROBS_PER_BATCH) if group.wants_logprobs else most
        # The first of `requests` that fit into one batch, at least one.
        taken: list[FreeRequest] = []
        room = api.most_bytes
        for request in free[:most_requests]:
            room -= request.size
            if room < 0 and taken:
                break
            taken.append(request)
        fitting = taken[: self._budget.part_that_fits([request.reserved_usd for request in taken])]
        if not fitting:
            self._starved = self._budget_error()
            return None
        if len(fitting) < _fewest(item.provider):
            self._send_directly(item.keys, item.provider)
            item.keys, self._has_left = [], True
            return None
        expected_usd = sum(request.reserved_usd for request in fitting)
        wanted = Batch(
            id=secrets.token_hex(8),
            run_id=self._policy.run_id,
            server=server_text(group.server),
            provider_id=item.provider.id,
            role=group.role,
            state=BatchState.INTENT,
            requests=len(fitting),
            reserved_usd=expected_usd,
            created_at=self._store.now(),
        )
        keys = [request.key for request in fitting]
        # Before others can see it: one who took it up in between could hand it in as well.
        self._locks.acquire(_lock_of(wanted))
        batch = await self._store.add(wanted, keys)
        named = set(keys)
        item.keys = [request.key for request in free if request.key not in named]
        if batch is None:
            self._locks.release(_lock_of(wanted))
            return None
        self._watched[batch.id] = WatchedBatch(item.provider, group, is_fresh=True)
        self._budget.hand_in(batch.requests, expected_usd)
        return batch

    def _budget_error(self) -> BudgetError:
        try:
            self._budget.check()
        except BudgetError as error:
            return error
        return BudgetError(
            "the budget does not allow another batch",
            hint="raise --max-cost or --max-requests, then continue with `--resume`",
        )

    async def _advance(self, batch: Batch) -> None:
        """Take a batch one step further, unless another process does.

        Raises:
            ProviderError: the provider does not let it be looked at any more.
        """
        name = _lock_of(batch)
        if not self._locks.holds(name):
            if self._locks.is_going_on(name) or not self._locks.acquire(name):
                return
            batch = (await self._store.find([batch.id]))[0]  # as it is now that no one else changes it
        watched = self._watched[batch.id]
        batch = await self._steps.take(batch, watched)
        if watched.refused:
            await self._make_smaller(batch, watched)
        if not batch.state.is_open:
            self._locks.release(name)

    async def _make_smaller(self, batch: Batch, watched: WatchedBatch) -> None:
        """Have what a provider refused as too much at once submitted again: one by one, or in smaller batches."""
        refused, watched.refused = watched.refused, []
        if watched.group is None:  # the next pass asks again, as it does for all that is in no batch
            return
        item = self._waiting.setdefault(watched.group, _Waiting(watched.provider))
        item.keys.extend(refused)
        item.one_by_one = True
        item.size = item.size if await self._is_busy(watched.provider) else max(1, batch.requests // 2)

    def _tell(self, batches: Sequence[Batch]) -> None:
        """Emit how far the batches of each role are."""
        by_role: defaultdict[Role, list[Batch]] = defaultdict(list)
        for batch in batches:
            by_role[batch.role].append(batch)
        for role, found in by_role.items():
            is_open = [batch for batch in found if batch.state.is_open]
            expiries = [batch.expires_at for batch in is_open if batch.expires_at is not None]
            self._on_event(
                BatchesAdvanced(
                    role,
                    number=min(len(found) - len(is_open) + 1, len(found)),
                    batches=len(found),
                    answered=sum(map(self._answered, found)),
                    requests=sum(batch.requests for batch in found),
                    expires_in_s=min(expiries) - self._runtime.now() if expiries else None,
                )
            )

    def _answered(self, batch: Batch) -> int:
        remote = self._watched[batch.id].remote
        return batch.answered if remote is None else max(batch.answered, min(remote.answered, batch.requests))


def _fewest(provider: Provider) -> int:
    """Return how many requests a batch of this provider must have."""
    api = batch_api(provider)
    return 1 if api is None else api.fewest_requests


def _lock_of(batch: Batch) -> str:
    return f"batch-{batch.id}"
