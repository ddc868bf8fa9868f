"""One batch at a provider, a step at a time: hand it in, or find it again; look at it; fetch its answers; give it up.

Every step is committed before the next one is taken. Whoever takes up a batch that may have been created already asks
the provider for it first, so that nothing is paid for twice.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from geval_cli.errors import (
    ProviderError,
    ProviderRateLimitError,
    ProviderRequestError,
    ProviderResponseError,
)
from geval_cli.extras.batches.api import (
    BatchApi,
    BrokenResultsError,
    FileNotReadyError,
    RemoteBatch,
    RemoteState,
)
from geval_cli.extras.batches.layer import BatchGroup, BatchQueue
from geval_cli.extras.batches.store import Batch, BatchReply, BatchState
from geval_cli.gateway.call import Notice
from geval_cli.providers.base import Provider, batch_api

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
        provider: that has it.
        group: of its requests; None for a batch that another process has made.
        remote: as the provider described it last.
        is_fresh: whether the provider cannot know it yet.
        broken_reads, not_found: how often its results were incomplete, and the provider did not know it.
        odd_answers: how often in a row the provider answered with something else than its API promises.
        limited: how often the provider refused to create it, as it takes no more for now.
        is_late: whether it was cancelled as it took too long.
        has_told: whether the user was told about its troubles.
        refused: the keys of its requests, which the provider takes only in smaller batches.
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
    """Takes batches further, one step at each call.

    Attributes:
        retry_after_s: how long a provider wants to be left alone.
        reads_files: whether one is still reading the file of a batch.
    """

    def __init__(self, queue: BatchQueue, folder: Path | None, notice: Notice) -> None:
        """Build it; `folder` is that of the cache, None for one in memory."""
        self._store = queue.store
        self._policy = queue.policy
        self._budget = queue.budget
        self._wire = queue.wire
        self._folder = folder
        self._notice = notice
        self.retry_after_s = 0.0
        self.reads_files = False

    async def take(self, batch: Batch, watched: WatchedBatch) -> Batch:
        """Take the next step, and return the batch as it is then.

        Raises:
            ProviderError: the provider does not let it be looked at any more.
            StoppedError: the run is to stop, and the batch is not submitted.
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
                # Beside the cache, where prompts are kept anyway; nobody else may read it.
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
                # It may limit what waits in its queue: then a smaller batch fits.
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
        """Return the batch if the provider has it already; as it was, if that shows only when another one has ended."""
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
        """Look at a batch, and fetch its answers once it has ended."""
        remote = watched.remote = await api.get(batch.remote_id or "")
        watched.not_found = 0
        if remote.state is RemoteState.RUNNING:
            # Cancel a batch that takes too long, and give it up when even that takes too long.
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
            # End a batch that the provider did not take; nothing of it was paid for.
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
        """End a batch that is too much at once; what it asks is submitted again in smaller ones."""
        self._take_back(batch, watched)
        watched.refused = await self._store.keys(batch.id)
        ended = await self._store.end(batch, BatchState.FAILED, tries=0)
        watched.has_told = False
        self._say_once(
            watched, f"{batch.provider_id} accepts no more tokens at once; geval submits smaller batches"
        )
        return ended

    async def _give_up(self, batch: Batch, state: BatchState, reason: str) -> Batch:
        """End a batch that answers nothing more: what it left is sent directly, or is an error."""
        what = f"a batch at {batch.provider_id} failed: {reason}"
        if self._policy.falls_back:
            self._notice(f"{what}; unanswered requests are sent directly")
            return await self._store.end(batch, state, tries=2)
        return await self._store.end(batch, state, refusal=BatchReply(problem=what))

    async def _count_broken_read(
        self, batch: Batch, watched: WatchedBatch, error: BrokenResultsError
    ) -> None:
        """Have the results fetched again; what stays unreadable is asked again, unless that is all of them.

        Raises:
            ProviderResponseError: nothing of the results can be read.
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
        """Wait after a failure that may pass; give up a batch that the provider does not take."""
        is_submitted = batch.state is BatchState.SUBMITTED
        if is_submitted and error.status == HTTPStatus.NOT_FOUND and isinstance(error, ProviderRequestError):
            # It may be too young to be known everywhere.
            watched.not_found += 1
            if watched.not_found >= _MOST_NOT_FOUND:
                await self._give_up(batch, BatchState.FAILED, "the provider no longer has it")
            return
        if isinstance(error, ProviderResponseError):
            watched.odd_answers += 1
        is_given_up = watched.odd_answers >= _MOST_ODD_ANSWERS
        if is_given_up and not watched.is_fresh:
            # It may be at the provider, and then its answers are paid for.
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
        """Take requests that were never asked off the budget, if this process has put them there."""
        if watched.group is not None:
            self._budget.requests -= batch.requests

    def _say_once(self, watched: WatchedBatch, text: str) -> None:
        if not watched.has_told:
            watched.has_told = True
            self._notice(text)


async def replies_in(remote: RemoteBatch, api: BatchApi) -> AsyncIterator[dict[str, BatchReply]]:
    """Yield the answers of a batch by the keys of its requests, in lots that are to be committed one by one.

    Raises:
        BrokenResultsError, ProviderError: not all can be read; it comes after those that can.
    """
    replies: dict[str, BatchReply] = {}
    failure: BrokenResultsError | ProviderError | None = None
    try:
        async for line in api.results(remote):
            if line.is_left_out or not (
                len(line.custom_id) == _KEY_DIGITS and _HEX.issuperset(line.custom_id)
            ):
                continue
            replies.setdefault(line.custom_id, BatchReply(line.status, line.body))
            if len(replies) >= _LINES_PER_COMMIT:
                yield replies
                replies = {}
    except (BrokenResultsError, ProviderError) as error:
        failure = error
    yield replies
    if failure is not None:
        raise failure
