"""Run in waves: each pass over the jobs submits its requests as batches, and the next pass finds their answers.

Every step is committed before the next one is taken. Before creating a batch that may already exist, geval asks the
provider for it, so that nothing is paid for twice.
"""

import asyncio
import os
import secrets
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from enum import Enum, auto
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct, field

from geval_cli.assertions.base import each_assertion
from geval_cli.engine.check import Checked
from geval_cli.engine.conversation import is_order_bound, uses_conversation
from geval_cli.engine.plan import NO_PROVIDER
from geval_cli.engine.runner import EventStream, StopReason, StopSignal
from geval_cli.errors import (
    BudgetError,
    ConfigError,
    Location,
    Problem,
    ProviderError,
    ProviderRateLimitError,
    ProviderRequestError,
    ProviderResponseError,
    Severity,
    StoppedError,
    StoreError,
    UsageError,
)
from geval_cli.events import BatchesAdvanced, Noticed, RunEvent
from geval_cli.extras.batches.api import (
    LOGPROBS_PER_BATCH,
    BatchApi,
    BrokenResultsError,
    FileNotReadyError,
    RemoteBatch,
    RemoteState,
    could_have_batches,
    way_to_batches,
)
from geval_cli.extras.batches.layer import (
    BatchGroup,
    BatchLayer,
    BatchPolicy,
    BatchQueue,
    ScoutLayer,
    server_text,
)
from geval_cli.extras.batches.store import Batch, BatchReply, BatchState, FreeRequest
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.call import Layer, Notice, Runtime, Wire
from geval_cli.gateway.gateway import BatchStart
from geval_cli.numbers import UNIT_S, plural
from geval_cli.providers.base import Provider, batch_api
from geval_cli.providers.registry import build_provider, check_provider
from geval_cli.records import STOPPED, Role, RunBatch, RunRecord
from geval_cli.report.sanitize import folder_options
from geval_cli.runs.baseline import gates_of
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.specs.base import DURATION, BatchSpec, ProviderSpec
from geval_cli.store.cache import ResponseCache
from geval_cli.store.locks import RunLocks
from geval_cli.store.state import State
from geval_cli.suite.suite import LoadedSuite

_LINES_PER_COMMIT = 50
_MOST_BROKEN_READS = 3
_MOST_NOT_FOUND = 5
_MOST_ODD_ANSWERS = 5
_MOST_LIMITED = 5
_GRACE_AFTER_CANCEL_S = 3600.0
_KEY_DIGITS = 64
_HEX = frozenset("0123456789abcdef")

_ENDS = {
    RemoteState.COMPLETED: BatchState.COMPLETED,
    RemoteState.EXPIRED: BatchState.EXPIRED,
    RemoteState.CANCELLED: BatchState.CANCELLED,
    RemoteState.FAILED: BatchState.FAILED,
}


class WatchedBatch(Struct):
    """The state of a batch that this process waits for.

    Attributes:
        provider: the provider that runs it.
        group: the group of its requests; None for a batch that another process created.
        remote: the provider's latest description of it.
        is_fresh: whether it was never submitted, so the provider cannot know it yet.
        broken_reads, not_found: how often its results were incomplete, and how often the provider did not know it.
        odd_answers: how many answers in a row did not match the provider's API.
        limited: how often the provider refused to create it because its queue was full.
        is_late: whether it was cancelled because it took too long.
        has_told: whether the user has been told about its problems.
        refused: the keys of its requests, which the provider accepts only in smaller batches.
    """

    provider: Provider
    group: BatchGroup | None = None
    remote: RemoteBatch | None = None
    is_fresh: bool = False
    broken_reads: int = 0
    not_found: int = 0
    odd_answers: int = 0
    limited: int = 0
    is_late: bool = False
    has_told: bool = False
    refused: list[str] = []


class BatchSteps:
    """Advances batches, one step per call.

    Attributes:
        retry_after_s: how many seconds a provider asked geval to wait.
        reads_files: whether a provider is still processing an uploaded file.
    """

    def __init__(self, queue: BatchQueue, folder: Path | None, notice: Notice) -> None:
        """Create the steps; `folder` is the cache's folder, None for a cache in memory."""
        self._store = queue.store
        self._policy = queue.policy
        self._budget = queue.budget
        self._wire = queue.wire
        self._folder = folder
        self._notice = notice
        self.retry_after_s = 0.0
        self.reads_files = False

    async def take(self, batch: Batch, watched: WatchedBatch) -> Batch:
        """Take the next step for a batch, and return the batch in its new state.

        Raises:
            ProviderError: the provider no longer reports on the batch.
            StoppedError: the run should stop, and the batch was not submitted.
        """
        api = batch_api(watched.provider)
        assert api is not None  # else its requests were not here
        try:
            if batch.state in {BatchState.INTENT, BatchState.UPLOADED}:
                batch = await self._submit(batch, watched, api)
            elif batch.state is BatchState.SUBMITTED:
                batch = await self._follow(batch, watched, api)
            watched.odd_answers = 0
        except FileNotReadyError:
            self.reads_files = True
            watched.is_fresh = True  # nothing was created
            if self._is_over_time(batch):
                self._take_back(batch, watched)
                batch = await self._give_up(batch, BatchState.FAILED, "its file was not read in time")
        except BrokenResultsError as error:
            await self._count_broken_read(batch, watched, error)
        except ProviderError as error:
            await self._count_failure(batch, watched, error)
        return batch

    async def _submit(self, batch: Batch, watched: WatchedBatch, api: BatchApi) -> Batch:
        if not watched.is_fresh:
            found = await self._adopted(batch, watched, api)
            if found is not None:
                return found
        self._wire.check()
        file: BinaryIO | None = None
        with ExitStack() as stack:
            if batch.state is BatchState.INTENT:
                # Next to the cache, which holds prompts anyway; readable by its owner only.
                file = stack.enter_context(tempfile.TemporaryFile(dir=self._folder))
                await asyncio.to_thread(self._write_lines, file, batch, api)
                file_id = await api.upload(batch.id, file)
                if file_id is not None:
                    batch = await self._store.update(batch, state=BatchState.UPLOADED, file_id=file_id)
                    file = None
            self._wire.check()
            watched.is_fresh = False
            try:
                remote = await api.create(batch.id, batch.file_id, file)
            except ProviderRateLimitError:
                # The provider may limit its queue: then a smaller batch fits.
                watched.limited += 1
                if watched.limited < _MOST_LIMITED or batch.requests == 1:
                    raise
                return await self._take_apart(batch, watched)
        return await self._note_submitted(batch, remote)

    def _write_lines(self, file: BinaryIO, batch: Batch, api: BatchApi) -> None:
        file.writelines(api.line(key, body) for key, body in self._store.bodies(batch.id))
        file.flush()
        file.seek(os.SEEK_SET)

    async def _note_submitted(self, batch: Batch, remote: RemoteBatch) -> Batch:
        return await self._store.update(
            batch, state=BatchState.SUBMITTED, remote_id=remote.id, expires_at=remote.expires_at
        )

    async def _adopted(self, batch: Batch, watched: WatchedBatch, api: BatchApi) -> Batch | None:
        """Return the batch if the provider already has it; unchanged while a running batch may be it; else None."""
        taken = {other.remote_id for other in await self._store.all()}
        found = await api.find(
            batch.id, since=batch.created_at, requests=batch.requests, file_id=batch.file_id
        )
        for remote in found:
            if remote.id in taken:
                continue
            if remote.label == batch.id:
                return await self._note_submitted(batch, remote)
            if remote.label is not None:
                continue
            if remote.state is RemoteState.RUNNING:
                self._say_once(
                    watched,
                    f"{batch.provider_id} has a batch that may belong to this run; geval waits for it",
                )
                return batch
            results = api.results(remote)
            first = await anext(results, None)
            has_result = first is not None and first.custom_id in set(await self._store.keys(batch.id))
            if has_result:
                return await self._note_submitted(batch, remote)
        return None

    async def _follow(self, batch: Batch, watched: WatchedBatch, api: BatchApi) -> Batch:
        """Poll a batch, and fetch its answers once it has finished."""
        remote = watched.remote = await api.get(batch.remote_id or "")
        watched.not_found = 0
        if remote.state is RemoteState.RUNNING:
            # Cancel a batch that takes too long; if cancelling takes too long as well, give it up.
            if not self._is_over_time(batch):
                return batch
            if not watched.is_late:
                with suppress(ProviderRequestError):  # it may have ended meanwhile
                    await api.cancel(batch.remote_id or "")
                watched.is_late = True
            elif self._is_over_time(batch, _GRACE_AFTER_CANCEL_S):
                return await self._give_up(batch, BatchState.FAILED, "it took longer than `max_wait` allows")
            return batch
        if remote.state is RemoteState.FAILED and not remote.results:
            # The provider rejected the batch: nothing was paid for.
            if not remote.is_token_limit or batch.requests == 1:
                self._take_back(batch, watched)
                reason = remote.message or remote.code or "no reason was given"
                return await self._give_up(batch, BatchState.FAILED, reason)
            return await self._take_apart(batch, watched)
        try:
            async for replies in replies_in(remote, api):
                await self._store.answer(batch.id, replies)
        except BrokenResultsError:
            if await self._store.waiting(batch.id):
                raise  # else what cannot be read is an answer to nothing
        missing = await self._store.waiting(batch.id)
        if missing and remote.state is RemoteState.COMPLETED:
            raise BrokenResultsError(f"{missing:,} results are missing")
        if watched.is_late:
            return await self._give_up(batch, BatchState.CANCELLED, "it took longer than `max_wait` allows")
        tries = 0 if remote.state is RemoteState.CANCELLED else 1
        return await self._store.end(batch, _ENDS[remote.state], tries=tries)

    def _is_over_time(self, batch: Batch, grace_s: float = 0.0) -> bool:
        return self._store.now() - batch.created_at > self._policy.max_wait_s + grace_s

    async def _take_apart(self, batch: Batch, watched: WatchedBatch) -> Batch:
        """End a batch that is too large; its requests are submitted again in smaller ones."""
        self._take_back(batch, watched)
        watched.refused = await self._store.keys(batch.id)
        ended = await self._store.end(batch, BatchState.FAILED, tries=0)
        watched.has_told = False
        self._say_once(
            watched, f"{batch.provider_id} accepts no more tokens at once; geval submits smaller batches"
        )
        return ended

    async def _give_up(self, batch: Batch, state: BatchState, reason: str) -> Batch:
        """End a batch that will bring no more answers; unanswered requests are sent directly or become errors."""
        what = f"a batch at {batch.provider_id} failed: {reason}"
        if self._policy.falls_back:
            self._notice(f"{what}; unanswered requests are sent directly")
            return await self._store.end(batch, state, tries=2)
        return await self._store.end(batch, state, refusal=BatchReply(problem=what))

    async def _count_broken_read(
        self, batch: Batch, watched: WatchedBatch, error: BrokenResultsError
    ) -> None:
        """Fetch the results again; requests whose results stay unreadable are sent again, unless that is all of them.

        Raises:
            ProviderResponseError: none of the results can be read.
        """
        watched.broken_reads += 1
        if watched.broken_reads < _MOST_BROKEN_READS:
            self._say_once(
                watched, f"results from {batch.provider_id} are incomplete: {error}; they are fetched again"
            )
            return
        missing = await self._store.waiting(batch.id)
        if batch.state is not BatchState.SUBMITTED or missing == batch.requests:
            raise ProviderResponseError(
                f"no result of batch {batch.remote_id or batch.id} of {batch.provider_id} can be read: {error}",
                provider_id=batch.provider_id,
                hint=f"its answers are paid for: {self._policy.way_on} fetches them again",
            )
        self._notice(
            f"results from {batch.provider_id} are incomplete: {error}; {missing:,} of {batch.requests:,} "
            "requests are sent again"
        )
        await self._store.end(batch, BatchState.COMPLETED)

    async def _count_failure(self, batch: Batch, watched: WatchedBatch, error: ProviderError) -> None:
        """Wait after a temporary failure; give up a batch that the provider refuses."""
        is_submitted = batch.state is BatchState.SUBMITTED
        if is_submitted and error.status == HTTPStatus.NOT_FOUND and isinstance(error, ProviderRequestError):
            # A new batch may not be visible on all of the provider's servers yet.
            watched.not_found += 1
            if watched.not_found >= _MOST_NOT_FOUND:
                await self._give_up(batch, BatchState.FAILED, "the provider no longer has it")
            return
        if isinstance(error, ProviderResponseError):
            watched.odd_answers += 1
        is_given_up = watched.odd_answers >= _MOST_ODD_ANSWERS
        if is_given_up and not watched.is_fresh:
            # The provider may have created it, and its answers would be paid for.
            error.remark(f"the batch was checked {watched.odd_answers} times")
            error.hint = f"submitted batches continue; {self._policy.way_on} checks them again"
            raise error
        if error.is_retryable and not is_given_up:
            self.retry_after_s = max(self.retry_after_s, getattr(error, "retry_after_s", None) or 0.0)
            self._say_once(watched, f"{error.message}; the batch is checked again later")
            return
        if is_submitted:
            raise error  # its answers are paid for, and must not be lost
        self._take_back(batch, watched)
        await self._give_up(batch, BatchState.FAILED, error.message)

    def _take_back(self, batch: Batch, watched: WatchedBatch) -> None:
        """Refund the budget for requests that were never sent, if this process charged it for them."""
        if watched.group is not None:
            self._budget.requests -= batch.requests

    def _say_once(self, watched: WatchedBatch, text: str) -> None:
        if not watched.has_told:
            watched.has_told = True
            self._notice(text)


async def replies_in(remote: RemoteBatch, api: BatchApi) -> AsyncIterator[dict[str, BatchReply]]:
    """Yield the answers of a batch by request key, in groups to be committed one by one.

    Raises:
        BrokenResultsError, ProviderError: some answers cannot be read; raised after all readable ones.
    """
    replies: dict[str, BatchReply] = {}
    failure: BrokenResultsError | ProviderError | None = None
    try:
        async for line in api.results(remote):
            if line.is_left_out or not (
                len(line.custom_id) == _KEY_DIGITS and _HEX.issuperset(line.custom_id)
            ):
                continue
            reply = BatchReply(line.status, line.body)
            known = replies.setdefault(line.custom_id, reply)
            if reply.is_success and not known.is_success:  # an answer is paid for, an error is not
                replies[line.custom_id] = reply
            if len(replies) >= _LINES_PER_COMMIT:
                yield replies
                replies = {}
    except (BrokenResultsError, ProviderError) as error:
        failure = error
    yield replies
    if failure is not None:
        raise failure


FEWEST_IN_A_BATCH = 20
"""Fewer requests than this are sent directly: that takes seconds, a batch takes hours."""

_SLOWER = 1.5
_LONGEST_POLL_S = 300.0
# For a process that must not wait, when a provider does not answer at once.
_MOST_ROUNDS = 3
_MOST_ROUNDS_OF_FILES = 8  # some minutes: Azure reads a file before a batch can be created


class WaitOutcome(Enum):
    """How a wait ended."""

    PASS = auto()  # something was answered, or is to be sent directly: the jobs are to be done again
    SUBMITTED = auto()  # the run does not wait; its batches are with the providers
    STOPPED = auto()  # the run is to stop; its batches go on
    CANCELLED = auto()  # a batch was cancelled: the run is to stop


Pause = Callable[[float], Awaitable[bool]]
"""Sleeps for a number of seconds; returns True as soon as the run should stop."""


class _Waiting(Struct):
    """Requests of a group that are not in a batch yet.

    Attributes:
        size: the largest batch the provider was found to accept, if it limits its queue.
        one_by_one: whether it accepts a second batch only after the first has ended.
    """

    provider: Provider
    keys: list[str] = field(default_factory=list)
    size: int | None = None
    one_by_one: bool = False


class BatchDriver:
    """Drives the batches of one run. Batches that other processes submitted and still drive are only waited for."""

    def __init__(
        self,
        queue: BatchQueue,
        folder: Path | None,
        *,
        notice: Notice,
        on_event: Callable[[RunEvent], None],
        runtime: Runtime,
    ) -> None:
        """Create the driver; `folder` is the cache's folder, None for a cache in memory."""
        self._queue = queue
        self._store = queue.store
        self.policy = queue.policy
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
        self._warned: set[str] = set()

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
        """Return the driver for a new run (with a policy, a `gateway.BatchStart`)."""
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
        """Return the ids of the batches that the run has waited for."""
        return tuple(self._watched)

    async def open_batches(self) -> list[Batch]:
        """Return the run's batches that may still bring answers."""
        return [batch for batch in await self._store.find(self._watched) if batch.state.is_open]

    async def wait_for(self, batches: Mapping[str, Provider], pause: Pause) -> WaitOutcome:
        """Wait until these batches, given by id with their provider, have ended, and store their answers.

        Raises:
            ProviderError, StoreError: as in `between_passes`.
        """
        for batch_id, provider in batches.items():
            self._watched.setdefault(batch_id, WatchedBatch(provider))
        return await self._wait(pause, set(batches), sends_directly=False)

    async def finish(self) -> None:
        """Delete the answers that the last pass has read."""
        await self._queue.sweep()

    def release(self) -> None:
        """Release the batches to other processes."""
        self._locks.release_all()

    async def between_passes(self, pause: Pause) -> WaitOutcome:
        """Submit the requests of the last pass, and wait until all batches have ended.

        Raises:
            BudgetError: no batch is open, and the budget allows no further ones.
            ProviderError: a provider no longer reports on its batches; they keep running.
            StoreError: the cache cannot be read or written.
        """
        await self._queue.sweep()
        left = self._queue.begin_pass()
        for batch_id, provider in left.joined.items():
            self._watched.setdefault(batch_id, WatchedBatch(provider))
        for item in self._waiting.values():
            item.keys = []
        if (all_new := left.new - left.known) and not self._queue.sends_all:
            await self._find_changes(all_new)
        sends_directly = self._queue.sends_all
        for group, keys in () if sends_directly else left.free.items():
            provider = left.providers[group]
            if len(keys) < FEWEST_IN_A_BATCH or len(keys) < _fewest(provider):
                self._send_directly(keys, provider)
                sends_directly = True
            else:
                self._waiting.setdefault(group, _Waiting(provider)).keys = list(keys)
        under_way = await self.open_batches()
        self._reserve(under_way)
        return await self._wait(pause, {batch.id for batch in under_way}, sends_directly=sends_directly)

    async def _find_changes(self, roles: Collection[Role]) -> None:
        """Send the rest directly if this run's batches hold requests of these roles, all of whose requests are new."""
        unread = await self._store.unread(self.policy.run_id)
        for role in [role for role in roles if role in unread]:
            self._queue.sends_all = True
            whose = "the judge" if role is Role.JUDGE else "the model"
            self._notice(
                f"code or random choices in the config change the requests to {whose} each time: "
                f"{plural(unread[role], 'request')} in batches are paid for in vain, and the rest is sent directly"
            )

    async def _wait(self, pause: Pause, before: set[str], *, sends_directly: bool) -> WaitOutcome:
        delay_s, cancelled, rounds = self.policy.poll_s, False, 0
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
            if not self.policy.waits and (
                rounds >= most_rounds or all(batch.state is BatchState.SUBMITTED for batch in still_open)
            ):
                return self._after(
                    WaitOutcome.PASS if has_news else WaitOutcome.SUBMITTED, cancelled=cancelled
                )
            delay_s = self.policy.poll_s if has_made else delay_s
            jitter = 0.75 + 0.5 * self._runtime.random()
            if await pause(max(delay_s * jitter, self._steps.retry_after_s)):
                return WaitOutcome.STOPPED
            delay_s = min(delay_s * _SLOWER, max(_LONGEST_POLL_S, self.policy.poll_s))
        if not has_news and self._starved is not None:
            raise self._starved
        return self._after(WaitOutcome.PASS, cancelled=cancelled)

    def _send_directly(self, keys: Collection[str], provider: Provider) -> None:
        """Mark requests to be sent directly, because they are too few for a batch."""
        self._queue.direct.update(keys)
        fewest = _fewest(provider)
        if FEWEST_IN_A_BATCH <= len(keys) < fewest and provider.id not in self._warned:
            self._warned.add(provider.id)
            self._notice(
                f"{provider.id} takes batches of at least {fewest} requests; {len(keys)} are sent directly"
            )

    def _after(self, outcome: WaitOutcome, *, cancelled: bool) -> WaitOutcome:
        if outcome is WaitOutcome.PASS:
            self._queue.passes += 1
        return WaitOutcome.CANCELLED if cancelled else outcome

    def _reserve(self, batches: Sequence[Batch]) -> None:
        """Reserve the expected cost of batches in the budget, for the answers of finished ones until they are read."""
        self._budget.reserved_usd = sum(
            batch.reserved_usd * (1.0 if batch.state.is_open else batch.answered / batch.requests)
            for batch in batches
        )

    async def _make_batches(self) -> bool:
        """Make batches of the waiting requests, as far as provider and budget allow; return whether any was made."""
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
        """Record one batch to be submitted; None if there are no requests for it or the budget is used up."""
        api = batch_api(item.provider)
        assert api is not None  # else its requests were not here
        free = await self._store.free_requests(item.keys)
        if not free:
            item.keys = []  # another process has taken them: the next pass joins it
            return None
        most = min(api.most_requests, self.policy.size or api.most_requests, item.size or api.most_requests)
        most_requests = min(most, LOGPROBS_PER_BATCH) if group.wants_logprobs else most
        # As many of the first `requests` as fit into one batch, at least one.
        taken: list[FreeRequest] = []
        room = api.most_bytes
        for request in free[:most_requests]:
            room -= request.size
            if room < 0 and taken:
                break
            taken.append(request)
        fitting = taken[: self._budget.affordable_count([request.reserved_usd for request in taken])]
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
            run_id=self.policy.run_id,
            server=server_text(group.server),
            provider_id=item.provider.id,
            role=group.role,
            state=BatchState.INTENT,
            requests=len(fitting),
            reserved_usd=expected_usd,
            created_at=self._store.now(),
        )
        keys = [request.key for request in fitting]
        # Before others can see it: another process could submit it as well.
        self._locks.acquire(_lock_of(wanted))
        batch = await self._store.add(wanted, keys)
        named = set(keys)
        item.keys = [request.key for request in free if request.key not in named]
        if batch is None:
            self._locks.release(_lock_of(wanted))
            return None
        self._watched[batch.id] = WatchedBatch(item.provider, group, is_fresh=True)
        self._budget.reserve_batch(batch.requests, expected_usd)
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
        """Advance a batch by one step, unless another process drives it.

        Raises:
            ProviderError: the provider no longer reports on the batch.
        """
        name = _lock_of(batch)
        if not self._locks.holds(name):
            if self._locks.is_run_active(name) or not self._locks.acquire(name):
                return
            batch = (await self._store.find([batch.id]))[0]  # as it is now that no one else changes it
        watched = self._watched[batch.id]
        batch = await self._steps.take(batch, watched)
        if watched.refused:
            # Requests refused as too many at once are submitted again, one batch at a time or in smaller batches.
            refused, watched.refused = watched.refused, []
            if watched.group is not None:
                item = self._waiting.setdefault(watched.group, _Waiting(watched.provider))
                item.keys.extend(refused)
                item.one_by_one = True
                item.size = (
                    item.size if await self._is_busy(watched.provider) else max(1, batch.requests // 2)
                )
        if not batch.state.is_open:
            self._locks.release(name)

    def _tell(self, batches: Sequence[Batch]) -> None:
        """Emit the progress of the batches of each role."""
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
    """Return the smallest number of requests this provider accepts in a batch."""
    api = batch_api(provider)
    return 1 if api is None else api.fewest_requests


def _lock_of(batch: Batch) -> str:
    return f"batch-{batch.id}"


BOTH_ROLES = frozenset(Role)


async def batch_start(
    prepared: PreparedRun, state: State, run: RunRecord, *, is_resumed: bool
) -> BatchStart | None:
    """Return what starts the batches of a run; None for a run without any. A resumed run continues with its own.

    Raises:
        UsageError: batches could not be found again after a crash, or submitted ones cannot be found.
    """
    cache, roles = state.cache, prepared.request.batched_roles
    if cache.is_read_only:
        return None
    begun = await cache.batches.of_run(run.id, [batch.id for batch in run.batches]) if is_resumed else ()
    # If the cache does not know the batches that a resumed run waits for, they would be paid for again.
    known = {batch.id for batch in begun}
    if lost := [
        batch.id for batch in run.batches if BatchState(batch.state).is_open and batch.id not in known
    ]:
        raise UsageError(
            f"run {run.id} is waiting for batch {lost[0]}, which is not in this cache",
            hint="set --cache-dir to the folder of its cache, or start a new run without --resume",
        )
    if not roles:
        begun_roles = {batch.role for batch in begun}
        roles = BOTH_ROLES if Role.GENERATION in begun_roles else frozenset(begun_roles)
    if not roles:
        return None
    if cache.is_temporary or not state.keeps_runs:
        raise UsageError(
            "batches outlive this process, but there is nowhere to record them: nothing was submitted",
            hint="see the warning; choose other folders with --home and --cache-dir",
        )
    if prepared.request.is_shared:
        message = f"run {run.id} is waiting for batches, which cannot be combined with --workers or --ray"
        raise UsageError(message, hint="resume it in one process")
    policy = policy_of(
        prepared.suite,
        roles,
        run_id=run.id,
        joins_others=prepared.reads_cache,
        waits=prepared.request.waits,
        folder_options=folder_options(prepared.request.home, prepared.request.cache_folder),
    )
    return partial(BatchDriver.begin, policy)


def policy_of(suite: LoadedSuite, roles: frozenset[Role], **facts: Any) -> BatchPolicy:
    """Return the batch policy of a suite; `facts` are the fields that the suite does not set."""
    options = suite.options.batch or BatchSpec()
    return BatchPolicy(
        roles,
        size=options.size,
        poll_s=options.poll_s,
        max_wait_s=seconds_of(options.max_wait),
        falls_back=options.fallback == "direct",
        config_path=str(suite.path),
        **facts,
    )


async def run_in_waves(
    driver: BatchDriver,
    run_pass: Callable[[], Awaitable[bool]],
    *,
    stop: StopSignal,
    events: EventStream,
) -> None:
    """Call `run_pass` until it reports that no answer is pending, waiting for batches in between.

    If the wait ends early, a notice says why and how to continue.
    """

    async def pause(delay_s: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), delay_s)
        return stop.is_requested

    while await run_pass() and not stop.is_requested:
        try:
            outcome = await driver.between_passes(pause)
        except BudgetError as error:
            events.emit(Noticed(f"{STOPPED}{error.message} ({error.hint})"))
            stop.request(StopReason.BUDGET)
        except (ProviderError, StoreError) as error:
            events.emit(Noticed(f"{STOPPED}{error.message} ({error.hint or 'submitted batches continue'})"))
            stop.request(StopReason.BATCHES)
        else:
            if outcome is WaitOutcome.CANCELLED:
                hint = f"{driver.policy.way_on} sends its unanswered requests again"
                events.emit(Noticed(f"{STOPPED}a batch was cancelled ({hint})"))
                stop.request(StopReason.BATCHES)
            elif outcome is WaitOutcome.SUBMITTED:
                stop.request(StopReason.SUBMITTED)
    with suppress(StoreError):  # it is told where results are stored
        await driver.finish()
        if stop.is_requested and (open_batches := await driver.open_batches()):
            events.emit(Noticed(_ways_on(open_batches, driver.policy)))


def _ways_on(batches: Sequence[Batch], policy: BatchPolicy) -> str:
    requests = sum(batch.requests for batch in batches)
    names = " ".join(batch.id for batch in batches[:3]) + (" ..." if len(batches) > 3 else "")  # noqa: PLR2004
    counted = "1 batch" if len(batches) == 1 else f"{len(batches):,} batches"
    goes = "continues" if len(batches) == 1 else "continue"
    return (
        f"{STOPPED}{counted} with {requests:,} requests {goes} at the provider: {policy.way_on} fetches the answers,"
        f" `geval batches cancel {names}{policy.folder_options}` ends {'it' if len(batches) == 1 else 'them'}"
    )


async def run_batches(
    cache: ResponseCache, run_id: str, earlier: Sequence[RunBatch], driver: BatchDriver | None
) -> tuple[RunBatch, ...]:
    """Return the batches of a run for its record, as far as they can be read."""
    ids = [*(batch.id for batch in earlier), *(() if driver is None else driver.batch_ids)]
    try:
        return tuple(map(recorded_batch, await cache.batches.of_run(run_id, ids)))
    except StoreError:
        return tuple(earlier)


def recorded_batch(batch: Batch) -> RunBatch:
    """Convert a batch to the form stored in run records."""
    return RunBatch(
        id=batch.id,
        remote_id=batch.remote_id,
        provider_id=batch.provider_id,
        role=batch.role,
        state=batch.state,
        requests=batch.requests,
        answered=batch.answered,
        failed=batch.failed,
        created_at=_iso(batch.created_at),
        ended_at=None if batch.ended_at is None else _iso(batch.ended_at),
    )


def _iso(moment_s: float) -> str:
    return datetime.fromtimestamp(moment_s, UTC).isoformat(timespec="milliseconds")


def batch_problems(
    suite: LoadedSuite, checked: Checked, request: RunRequest, by_role: dict[Role, list[ProviderSpec]]
) -> Iterator[Problem]:
    """Yield the reasons why a run cannot use batches although the command line asks for them.

    Args:
        suite: the suite to run.
        checked: the result of checking its tests.
        request: the options of the command line.
        by_role: the providers that would be called.
    """
    roles = request.batched_roles
    if not roles:
        return
    if checked.is_serial:
        yield Problem(
            "tests that use the outputs of earlier ones cannot be sent in batches",
            _first_serial_place(suite),
            "run without --batch and --batch-judge",
        )
    if checked.users:
        yield Problem(
            "conversations with simulated users cannot be sent in batches: each turn waits for the one before it",
            checked.users[0].place.value(),
            "run without --batch and --batch-judge",
        )
    specs = [(role, spec) for role in sorted(roles) for spec in by_role.get(role, ())]
    apis = [(spec, api) for _, spec in specs if (api := _api_of(spec, suite)) is not None]
    if specs and not apis and all(_is_sound(spec, suite) for _, spec in specs):
        names = ", ".join(dict.fromkeys(f"`{spec.public_id}`" for _, spec in specs))
        yield Problem(
            f"none of these providers has a batch API: {names}",
            specs[0][1].place.value("id"),
            way_to_batches(specs[0][1].id, specs[0][1].config),
        )
    batched = {id(spec) for spec, _ in apis}
    direct = {
        spec.public_id: spec
        for _, spec in specs
        if id(spec) not in batched and could_have_batches(spec.id) and spec.config.get("batch") is not False
    }
    for spec in direct.values() if apis else ():
        yield Problem(
            f"{spec.public_id} is called directly, at the usual price",
            spec.place.value("id"),
            way_to_batches(spec.id),
            severity=Severity.WARNING,
        )
    options = suite.options.batch
    most = max((api.most_requests for _, api in apis), default=None)
    if options is not None and options.size is not None and most is not None and options.size > most:
        yield Problem(
            f"`size` is {options.size:,}, but a batch can have at most {most:,} requests",
            suite.options.place.value("batch", "size"),
            f"set it to at most {most}, or leave it out",
        )
    fewest = max((api.fewest_requests for _, api in apis), default=1)
    if options is not None and options.size is not None and options.size < fewest:
        yield Problem(
            f"`size` is {options.size:,}, but a batch must have at least {fewest:,} requests",
            suite.options.place.value("batch", "size"),
            f"set it to at least {fewest}, or leave it out",
        )
    if Role.GENERATION in roles and any(_api_of(spec, suite) for spec in by_role.get(Role.GENERATION, ())):
        yield from _latency_problems(suite)
        for gate in gates_of(request, suite)[0]:
            if gate.statistic.startswith("latency"):
                message = f"answers from a batch have no latency, which the gate `{gate.text}` limits"
                yield Problem(message, gate.place.value(), "leave it out, or use --batch-judge")


def _first_serial_place(suite: LoadedSuite) -> Location | None:
    """Return the place of the first prompt or test that depends on earlier ones."""
    prompt = next((prompt for prompt in suite.prompts if uses_conversation(prompt)), None)
    if prompt is not None:
        return prompt.place.value()
    with suppress(ConfigError):
        return next((test.place.value() for test in suite.tests if is_order_bound(test)), None)
    return None


def _latency_problems(suite: LoadedSuite) -> Iterator[Problem]:
    """Yield a problem for each assertion on latency."""
    told: set[object] = set()
    with suppress(ConfigError):  # it is told where the tests are checked
        for test in suite.tests:
            for spec in each_assertion(test.assertions):
                place = spec.place.value("type")
                if spec.base_type == "latency" and str(place) not in told:
                    told.add(str(place))
                    yield Problem(
                        "`latency` cannot be checked for answers from a batch",
                        place,
                        "leave it out, or use --batch-judge",
                    )


def _is_sound(spec: ProviderSpec, suite: LoadedSuite) -> bool:
    """Return whether a provider is free of problems; those are reported elsewhere."""
    return not check_provider(spec, env=suite.env, base_dir=suite.base_dir, access=suite.access)


def _api_of(spec: ProviderSpec, suite: LoadedSuite) -> BatchApi | None:
    """Return the batch API of a provider; None if it has none or has problems."""
    if spec.id == NO_PROVIDER.id or not _is_sound(spec, suite):
        return None
    provider = build_provider(spec, env=suite.env, base_dir=suite.base_dir, access=suite.access)
    api: BatchApi | None = batch_api(provider)
    return api


def seconds_of(duration: str) -> float:
    """Convert a validated `Duration` to seconds."""
    found = DURATION.fullmatch(duration)
    assert found is not None
    return float(found[1]) * UNIT_S[found[2]]
