"""Between two passes over a run's jobs: hand in what was asked as batches, wait for them, fetch their answers.

Every step is committed before the next one is taken. Whoever takes up a batch that may have been created already asks
the provider for it first, so that nothing is paid for twice.
"""

import asyncio
import os
import secrets
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum, auto
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct, field

from geval_cli.errors import BudgetError, ProviderError, ProviderRequestError
from geval_cli.events import BatchesAdvanced, RunEvent
from geval_cli.gateway.batch import BatchQueue, Group, batch_api, server_text
from geval_cli.gateway.call import Notice, Runtime
from geval_cli.providers.base import Provider
from geval_cli.providers.wire.batch_api import (
    LOGPROBS_PER_BATCH,
    BatchApi,
    BrokenResultsError,
    RemoteBatch,
    RemoteState,
)
from geval_cli.records import Role
from geval_cli.store.batches import Batch, BatchReply, BatchState, FreeRequest
from geval_cli.store.run_locks import RunLocks

FEWEST_IN_A_BATCH = 20
"""Fewer requests than these are sent directly: it takes seconds, and a batch hours."""

_SLOWER = 1.5
_LONGEST_POLL_S = 300.0
_LINES_PER_COMMIT = 50
_MOST_BROKEN_READS = 3
_MOST_NOT_FOUND = 5
# Of a process that is not to wait, for a provider that does not answer at once.
_MOST_ROUNDS = 3
_GRACE_AFTER_CANCEL_S = 3600.0
_KEY_DIGITS = 64
_HEX = frozenset("0123456789abcdef")

_ENDS = {
    RemoteState.COMPLETED: BatchState.COMPLETED,
    RemoteState.EXPIRED: BatchState.EXPIRED,
    RemoteState.CANCELLED: BatchState.CANCELLED,
    RemoteState.FAILED: BatchState.FAILED,
}


class Outcome(Enum):
    """The outcomes of a wait."""

    PASS = auto()  # something was answered, or is to be sent directly: the jobs are to be done again
    HANDED_IN = auto()  # nobody is to wait; what was asked is at the providers
    STOPPED = auto()  # the run is to stop; its batches go on
    CANCELLED = auto()  # somebody cancelled a batch: the run is to stop


Pause = Callable[[float], Awaitable[bool]]
"""Waits so many seconds; True as soon as the run is to stop."""


class _Watched(Struct):
    """The state of a batch that this process waits for; `group` only of one that it has made."""

    provider: Provider
    group: Group | None = None
    remote: RemoteBatch | None = None
    is_fresh: bool = False
    broken_reads: int = 0
    not_found: int = 0
    is_late: bool = False
    has_told: bool = False


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
    """Drives the batches of one run. What other processes have handed in, and still drive, it only waits for."""

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
        self._budget = queue.budget
        self._folder = folder
        self._locks = RunLocks(folder)
        self._notice = notice
        self._on_event = on_event
        self._runtime = runtime
        self._watched: dict[str, _Watched] = {}
        self._waiting: dict[Group, _Waiting] = {}
        self._retry_after_s = 0.0
        self._starved: BudgetError | None = None

    @property
    def batch_ids(self) -> Sequence[str]:
        """Return the batches that the run has waited for."""
        return tuple(self._watched)

    async def open_batches(self) -> list[Batch]:
        """Return the batches of the run that may still bring answers."""
        return [batch for batch in await self._store.find(self._watched) if batch.state.is_open]

    async def wait_for(self, batches: Mapping[str, Provider], pause: Pause) -> Outcome:
        """Wait until these batches have ended, by id with the provider that has each, and keep their answers.

        Raises:
            ProviderError, StoreError: as `between_passes`.
        """
        for batch_id, provider in batches.items():
            self._watched.setdefault(batch_id, _Watched(provider))
        return await self._wait(pause, set(batches), sends_directly=False)

    async def finish(self) -> None:
        """Forget what was read by the last pass."""
        await self._queue.sweep()

    def release(self) -> None:
        """Leave the batches to other processes."""
        self._locks.release_all()

    async def between_passes(self, pause: Pause) -> Outcome:
        """Hand in what the last pass asked, and wait until all batches have ended.

        Raises:
            BudgetError: nothing is under way, and the budget lets nothing more be handed in.
            ProviderError: a provider does not let its batches be looked at any more; they go on.
            StoreError: the cache cannot be read or written.
        """
        await self._queue.sweep()
        left = self._queue.begin_pass()
        for batch_id, provider in left.joined.items():
            self._watched.setdefault(batch_id, _Watched(provider))
        for item in self._waiting.values():
            item.keys = []
        sends_directly = False
        for group, keys in left.free.items():
            if len(keys) < FEWEST_IN_A_BATCH:
                self._queue.direct.update(keys)
                sends_directly = True
            else:
                self._waiting.setdefault(group, _Waiting(left.providers[group])).keys = list(keys)
        under_way = await self.open_batches()
        self._reserve(under_way)
        return await self._wait(pause, {batch.id for batch in under_way}, sends_directly=sends_directly)

    async def _wait(self, pause: Pause, before: set[str], *, sends_directly: bool) -> Outcome:
        delay_s, cancelled, rounds = self._policy.poll_s, False, 0
        self._starved, has_news = None, sends_directly
        while True:
            self._retry_after_s = 0.0
            has_made = await self._make_batches()
            under_way = await self.open_batches()
            before |= {batch.id for batch in under_way}
            for batch in under_way:
                await self._advance(batch)
            found = await self._store.find(before)
            ended = [batch for batch in found if not batch.state.is_open]
            self._reserve(found)
            self._tell(found)
            has_news = has_news or bool(ended)
            cancelled = cancelled or any(self._is_cancelled(batch) for batch in ended)
            still_open = [batch for batch in found if batch.state.is_open]
            if not still_open and (not self._has_waiting() or self._starved is not None):
                break
            rounds += 1
            if not self._policy.waits and (rounds >= _MOST_ROUNDS or _are_handed_in(still_open)):
                return self._after(Outcome.PASS if has_news else Outcome.HANDED_IN, cancelled=cancelled)
            delay_s = self._policy.poll_s if has_made else delay_s
            jitter = 0.75 + 0.5 * self._runtime.random()
            if await pause(max(delay_s * jitter, self._retry_after_s)):
                return Outcome.STOPPED
            delay_s = min(delay_s * _SLOWER, max(_LONGEST_POLL_S, self._policy.poll_s))
        if not has_news and self._starved is not None:
            raise self._starved
        return self._after(Outcome.PASS, cancelled=cancelled)

    def _after(self, outcome: Outcome, *, cancelled: bool) -> Outcome:
        if outcome is Outcome.PASS:
            self._queue.passes += 1
        return Outcome.CANCELLED if cancelled else outcome

    def _is_cancelled(self, batch: Batch) -> bool:
        return batch.state is BatchState.CANCELLED and not self._watched[batch.id].is_late

    def _has_waiting(self) -> bool:
        return any(item.keys for item in self._waiting.values())

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

    async def _make_batch(self, group: Group, item: _Waiting) -> Batch | None:
        """Make one batch, as an intent; None when there is nothing to make one of, or the budget is used up."""
        api = batch_api(item.provider)
        assert api is not None  # else its requests were not here
        free = await self._store.free_requests(item.keys)
        if not free:
            item.keys = []  # another process has taken them: the next pass joins it
            return None
        taken = _cut(free, self._most_requests(group, item, api), api.most_bytes)
        fitting = taken[: self._budget.part_that_fits([request.reserved_usd for request in taken])]
        if not fitting:
            self._starved = self._budget_error()
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
        batch = await self._store.add(wanted, keys)
        named = set(keys)
        item.keys = [request.key for request in free if request.key not in named]
        if batch is None:
            return None
        self._watched[batch.id] = _Watched(item.provider, group, is_fresh=True)
        self._budget.hand_in(batch.requests, expected_usd)
        return batch

    def _budget_error(self) -> BudgetError:
        try:
            self._budget.check()
        except BudgetError as error:
            return error
        return BudgetError(
            "the budget does not allow for any further batch",
            hint="raise --max-cost or --max-requests, then `geval run CONFIG --resume`",
        )

    def _most_requests(self, group: Group, item: _Waiting, api: BatchApi) -> int:
        most = min(api.most_requests, self._policy.size or api.most_requests, item.size or api.most_requests)
        return min(most, LOGPROBS_PER_BATCH) if group.wants_logprobs else most

    async def _advance(self, batch: Batch) -> None:
        """Take a batch one step further, unless another process does.

        Raises:
            ProviderError: the provider does not let it be looked at any more.
        """
        name = f"batch-{batch.id}"
        if not self._locks.holds(name):
            if self._locks.is_going_on(name) or not self._locks.acquire(name):
                return
            batch = (await self._store.find([batch.id]))[0]  # as it is now that nobody else changes it
        watched = self._watched[batch.id]
        api = batch_api(watched.provider)
        assert api is not None
        try:
            if batch.state in {BatchState.INTENT, BatchState.UPLOADED}:
                batch = await self._submit(batch, watched, api)
            elif batch.state is BatchState.SUBMITTED:
                batch = await self._follow(batch, watched, api)
        except BrokenResultsError as error:
            await self._count_broken_read(batch, watched, error)
        except ProviderError as error:
            await self._count_failure(batch, watched, error)
        if not batch.state.is_open:
            self._locks.release(name)

    async def _submit(self, batch: Batch, watched: _Watched, api: BatchApi) -> Batch:
        if not watched.is_fresh:
            found = await self._adopted(batch, watched, api)
            if found is not None:
                return found
        file: BinaryIO | None = None
        with self._written(batch) as open_file:
            if batch.state is BatchState.INTENT:
                file = await asyncio.to_thread(open_file, api)
                file_id = await api.upload(batch.id, file)
                if file_id is not None:
                    batch = await self._store.update(batch, state=BatchState.UPLOADED, file_id=file_id)
                    file = None
            watched.is_fresh = False
            remote = await api.create(batch.id, batch.file_id, file)
        return await self._note_submitted(batch, remote)

    async def _note_submitted(self, batch: Batch, remote: RemoteBatch) -> Batch:
        return await self._store.update(
            batch, state=BatchState.SUBMITTED, remote_id=remote.id, expires_at=remote.expires_at
        )

    async def _adopted(self, batch: Batch, watched: _Watched, api: BatchApi) -> Batch | None:
        """Return the batch if the provider has it already; as it was, if that shows only when another one has ended."""
        taken = {other.remote_id for other in await self._store.all()}
        for remote in await api.find(batch.id, since=batch.created_at, requests=batch.requests):
            if remote.id in taken:
                continue
            if remote.label == batch.id:
                return await self._note_submitted(batch, remote)
            if remote.label is not None:
                continue
            if remote.state is RemoteState.RUNNING:
                self._say_once(
                    watched, f"{batch.provider_id} has a batch that may be this run's; it is waited for"
                )
                return batch
            if await self._has_result_of(batch, remote, api):
                return await self._note_submitted(batch, remote)
        return None

    async def _has_result_of(self, batch: Batch, remote: RemoteBatch, api: BatchApi) -> bool:
        results = api.results(remote)
        first = await anext(results, None)
        return first is not None and first.custom_id in set(await self._store.keys(batch.id))

    @contextmanager
    def _written(self, batch: Batch) -> Iterator[Callable[[BatchApi], BinaryIO]]:
        """Provide a function that writes the lines of a batch to a file, which is gone at the end of the block."""
        files: list[BinaryIO] = []

        def write(api: BatchApi) -> BinaryIO:
            # Beside the cache, where prompts are kept anyway; nobody else may read it.
            file: BinaryIO = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed at the block's end
            files.append(file)
            file.writelines(api.line(key, body) for key, body in self._store.bodies(batch.id))
            file.flush()
            file.seek(os.SEEK_SET)
            return file

        try:
            yield write
        finally:
            for file in files:
                file.close()

    async def _follow(self, batch: Batch, watched: _Watched, api: BatchApi) -> Batch:
        """Look at a batch, and fetch its answers once it has ended."""
        remote = watched.remote = await api.get(batch.remote_id or "")
        watched.not_found = 0
        if remote.state is RemoteState.RUNNING:
            return await self._mind_the_time(batch, watched, api)
        if remote.state is RemoteState.FAILED and not remote.results:
            return await self._end_failed(batch, watched, remote)
        await self._fetch(batch, remote, api)
        missing = await self._store.waiting(batch.id)
        is_broken = remote.state is RemoteState.COMPLETED and missing
        if is_broken and watched.broken_reads < _MOST_BROKEN_READS:
            raise BrokenResultsError(f"{missing:,} results are missing")
        if watched.is_late:
            return await self._give_up(batch, BatchState.CANCELLED, "it took longer than `max_wait` allows")
        tries = 0 if remote.state is RemoteState.CANCELLED else 1
        return await self._store.end(batch, _ENDS[remote.state], tries=tries)

    async def _fetch(self, batch: Batch, remote: RemoteBatch, api: BatchApi) -> None:
        replies: dict[str, BatchReply] = {}
        async for line in api.results(remote):
            if line.is_left_out or not _is_key(line.custom_id):
                continue
            replies.setdefault(line.custom_id, BatchReply(line.status, line.body))
            if len(replies) >= _LINES_PER_COMMIT:
                await self._store.answer(batch.id, replies)
                replies = {}
        await self._store.answer(batch.id, replies)

    async def _mind_the_time(self, batch: Batch, watched: _Watched, api: BatchApi) -> Batch:
        """Cancel a batch that takes too long, and give it up when even that takes too long."""
        waited_s = self._store.now() - batch.created_at
        if waited_s <= self._policy.max_wait_s:
            return batch
        if not watched.is_late:
            with suppress(ProviderRequestError):  # it may have ended meanwhile
                await api.cancel(batch.remote_id or "")
            watched.is_late = True
        elif waited_s > self._policy.max_wait_s + _GRACE_AFTER_CANCEL_S:
            return await self._give_up(batch, BatchState.FAILED, "it took longer than `max_wait` allows")
        return batch

    async def _end_failed(self, batch: Batch, watched: _Watched, remote: RemoteBatch) -> Batch:
        """End a batch that the provider did not take; nothing of it was paid for."""
        if not remote.is_token_limit or batch.requests == 1:
            reason = remote.message or remote.code or "no reason was given"
            self._take_back(batch, watched)
            return await self._give_up(batch, BatchState.FAILED, reason)
        keys = await self._store.keys(batch.id)
        has_company = any(
            other.id != batch.id and self._watched[other.id].provider is watched.provider
            for other in await self.open_batches()
        )
        ended = await self._store.end(batch, BatchState.FAILED, tries=0)
        if watched.group is not None:  # else the next pass asks again, as it does for all that is in no batch
            item = self._waiting.setdefault(watched.group, _Waiting(watched.provider))
            item.keys.extend(keys)
            item.one_by_one = True
            item.size = item.size if has_company else max(1, batch.requests // 2)
        self._take_back(batch, watched)
        self._say_once(watched, f"{batch.provider_id} takes no more tokens at a time; geval hands in less")
        return ended

    async def _give_up(self, batch: Batch, state: BatchState, reason: str) -> Batch:
        """End a batch that answers nothing more: what it left is sent directly, or is an error."""
        what = f"a batch of {batch.provider_id} came to nothing: {reason}"
        if self._policy.falls_back:
            self._notice(f"{what}; what it did not answer is sent directly")
            return await self._store.end(batch, state, tries=2)
        return await self._store.end(batch, state, refusal=BatchReply(problem=what))

    async def _count_broken_read(self, batch: Batch, watched: _Watched, error: BrokenResultsError) -> None:
        watched.broken_reads += 1
        if watched.broken_reads >= _MOST_BROKEN_READS:
            self._notice(
                f"results of {batch.provider_id} are incomplete: {error}; what is missing is asked again"
            )
            await self._store.end(batch, BatchState.COMPLETED)

    async def _count_failure(self, batch: Batch, watched: _Watched, error: ProviderError) -> None:
        """Wait after a failure that may pass; give up a batch that the provider does not take."""
        is_submitted = batch.state is BatchState.SUBMITTED
        if is_submitted and error.status == HTTPStatus.NOT_FOUND and isinstance(error, ProviderRequestError):
            # It may be too young to be known everywhere.
            watched.not_found += 1
            if watched.not_found >= _MOST_NOT_FOUND:
                await self._give_up(batch, BatchState.FAILED, "the provider does not know it any more")
            return
        if error.is_retryable:
            self._retry_after_s = max(self._retry_after_s, getattr(error, "retry_after_s", None) or 0.0)
            self._say_once(watched, f"{error.message}; the batch is looked at again later")
            return
        if is_submitted:
            raise error  # its answers are paid for, and must not be lost
        self._take_back(batch, watched)
        await self._give_up(batch, BatchState.FAILED, error.message)

    def _take_back(self, batch: Batch, watched: _Watched) -> None:
        """Take requests that were never asked off the budget, if this process has put them there."""
        if watched.group is not None:
            self._budget.requests -= batch.requests

    def _say_once(self, watched: _Watched, text: str) -> None:
        if not watched.has_told:
            watched.has_told = True
            self._notice(text)

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


def _are_handed_in(batches: Sequence[Batch]) -> bool:
    return all(batch.state is BatchState.SUBMITTED for batch in batches)


def _is_key(custom_id: str) -> bool:
    return len(custom_id) == _KEY_DIGITS and _HEX.issuperset(custom_id)


def _cut(requests: Sequence[FreeRequest], most: int, most_bytes: int) -> list[FreeRequest]:
    """Return the first of `requests` that fit into one batch, at least one."""
    taken: list[FreeRequest] = []
    room = most_bytes
    for request in requests[:most]:
        room -= request.size
        if room < 0 and taken:
            break
        taken.append(request)
    return taken
