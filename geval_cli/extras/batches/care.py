"""Manage batches outside a run: list, wait, cancel, and adopt batches created elsewhere."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

from geval_cli.errors import ConfigError, Problem, ProviderRequestError, ProviderResponseError, UsageError
from geval_cli.extras.batches.api import BrokenResultsError, RemoteState
from geval_cli.extras.batches.driver import BOTH_ROLES, BatchDriver, policy_of, replies_in
from geval_cli.extras.batches.layer import BatchPolicy, BatchQueue, server_text
from geval_cli.extras.batches.store import Batch, BatchState, BatchStore
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.call import Notice, Runtime, ServerKey
from geval_cli.providers.base import Provider, batch_api
from geval_cli.providers.registry import check_provider, check_ready
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.session import ProviderPool
from geval_cli.source.access import TRUSTED
from geval_cli.specs.base import ProviderSpec
from geval_cli.store.cache import ResponseCache
from geval_cli.store.runs import RunStore


class BatchKeeper:
    """The batches of a cache, and the providers they were sent to, resolved through the configs of their runs."""

    def __init__(
        self, cache: ResponseCache, runs: RunStore | None, environ: Mapping[str, str], folder_options: str
    ) -> None:
        self._cache = cache
        self._runs = runs
        self._environ = environ
        self._folder_options = folder_options
        self._pools: list[ProviderPool] = []
        self._by_run: dict[str, dict[str, Provider]] = {}
        self._policies: dict[str, BatchPolicy] = {}

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, cache: ResponseCache, runs: RunStore | None, environ: Mapping[str, str], folder_options: str = ""
    ) -> "AsyncIterator[BatchKeeper]":
        """Open a keeper for the length of the block; `folder_options` are those of `BatchPolicy`."""
        keeper = cls(cache, runs, environ, folder_options)
        try:
            yield keeper
        finally:
            await asyncio.gather(*(pool.aclose() for pool in keeper._pools))

    @property
    def _store(self) -> BatchStore:
        store: BatchStore = self._cache.batches
        return store

    async def wait(self, run: str | None, notice: Notice) -> list[Batch]:
        """Wait until the open batches of a run, or of all runs, have finished, and store their answers.

        Returns:
            The batches in their final state.

        Raises:
            UsageError: there is no such run, or its providers are no longer known.
            ProviderError: a provider does not report on its batch.
        """
        store = self._store
        if run is None:
            found = await store.all()
        elif self._runs is None:
            raise UsageError(f"run {run} is not stored here", hint="`geval list` shows the stored runs")
        else:
            found = await store.of_run(self._runs.find(run).run.id)
        wanted = [batch for batch in found if batch.state.is_open]
        if not wanted:
            return []
        by_run: defaultdict[str, dict[str, Provider]] = defaultdict(dict)
        for batch in wanted:  # all of them, before anything is waited for
            by_run[batch.run_id or ""][batch.id] = self.provider_of(batch)
        waits = [
            self._wait_for(batches, self._policies[run_id], notice) for run_id, batches in by_run.items()
        ]
        # A provider that refuses must not prevent fetching the answers of other runs.
        ends = await asyncio.gather(*waits, return_exceptions=True)
        for failure in filter(None, ends):
            raise failure
        return await self._store.find(batch.id for batch in wanted)

    def way_on(self, batch: Batch) -> str:
        """Return the command that uses the answers of a finished batch."""
        return self._policies[batch.run_id or ""].way_on

    async def _wait_for(self, batches: Mapping[str, Provider], policy: BatchPolicy, notice: Notice) -> None:
        """Wait for the batches of one run, under the limits of its config."""
        queue = BatchQueue(self._store, policy, Budget(), check_provider=_allow, notice=notice)
        driver = BatchDriver(
            queue, self._cache.folder, notice=notice, on_event=lambda _: None, runtime=Runtime()
        )
        try:
            await driver.wait_for(batches, _sleep)
        finally:
            driver.release()

    async def cancel(self, name: str) -> Batch:
        """Cancel a batch at its provider and return it. One that never reached a provider ends at once.

        Raises:
            UsageError: no batch has this id, or it has already ended.
            ProviderError: the provider refuses.
        """
        found = [batch for batch in await self._store.all() if name in {batch.id, batch.remote_id}]
        if not found:
            raise UsageError(f"there is no batch `{name}`", hint="`geval batches` lists them")
        batch = found[0]
        if not batch.state.is_open:
            raise UsageError(
                f"batch {batch.id} has already ended: {batch.state}", hint="there is nothing to cancel"
            )
        api = batch_api(self.provider_of(batch))
        assert api is not None  # only such providers are known
        remote_id = batch.remote_id
        if remote_id is None:
            ours = await api.find(
                batch.id, since=batch.created_at, requests=batch.requests, file_id=batch.file_id
            )
            remote_id = next((remote.id for remote in ours if remote.label == batch.id), None)
        if remote_id is None:
            return await self._store.end(batch, BatchState.CANCELLED, tries=0)
        await api.cancel(remote_id)
        return batch

    async def adopt(self, remote_id: str, provider: str) -> int:
        """Store the answers of a batch that geval submitted elsewhere, and return how many there were.

        Raises:
            UsageError: the provider has no batch API or is incompletely configured, or the batch is still running.
            ProviderError: the provider does not know the batch, or some results are unreadable (the others are kept).
        """
        api = batch_api(self._named(provider))
        if api is None:
            raise UsageError(
                f"{ProviderSpec(id=provider).public_id} has no batch API",
                hint="for example --provider openai:gpt-4.1",
            )
        try:
            remote = await api.get(remote_id)
        except ProviderRequestError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            message = f"{provider} has no batch `{remote_id}`"
            raise UsageError(message, hint="check the id, and the account that the key belongs to") from error
        if remote.state is RemoteState.RUNNING:
            raise UsageError(f"batch {remote_id} has not ended yet", hint="try again later")
        count = 0
        try:
            async for replies in replies_in(remote, api):
                kept = {key: reply for key, reply in replies.items() if reply.is_success}
                await self._store.adopt(remote_id, kept)
                count += len(kept)
        except BrokenResultsError as error:
            raise ProviderResponseError(
                f"some results of batch {remote_id} cannot be read: {error}; {count:,} answers were adopted",
                provider_id=provider,
                hint="adopt it again to fetch the rest",
            ) from error
        return count

    def provider_of(self, batch: Batch) -> Provider:
        """Return the provider a batch was sent to, read from the config of the run that created it.

        Raises:
            UsageError: the config is missing or no longer names that provider.
        """
        run_id = batch.run_id or ""
        if run_id not in self._by_run:
            origin = None if self._runs is None else self._runs.origin(run_id)
            if origin is None:
                raise UsageError(
                    f"run {run_id} is not stored here, so its config is unknown",
                    hint="set --home to the folder that has its run",
                )
            try:
                prepared = prepare(RunRequest(Path(origin.config_file), self._environ), is_going_to_run=False)
            except ConfigError as error:
                raise UsageError.of(f"the config of run {run_id} cannot be read", error.problems) from error
            suite = prepared.suite
            self._policies[run_id] = policy_of(suite, BOTH_ROLES, folder_options=self._folder_options)
            pool = ProviderPool.of(suite)
            self._pools.append(pool)
            built = [pool.get(spec) for spec in prepared.asked]
            self._by_run[run_id] = {
                server_text(_server_of(provider)): provider for provider in built if batch_api(provider)
            }
        provider = self._by_run[run_id].get(batch.server) or self._of_command_line(batch)
        if provider is None:
            raise UsageError(
                f"the config of run {run_id} does not have {batch.provider_id}, which has batch {batch.id}",
                hint="undo changes to the config, or resume the run with its original options",
            )
        return provider

    def _of_command_line(self, batch: Batch) -> Provider | None:
        """Return the provider that the batch's own id names, as with --grader; None if its server differs."""
        try:
            provider = self._named(batch.provider_id)
        except UsageError:
            return None
        is_same = batch_api(provider) is not None and server_text(_server_of(provider)) == batch.server
        return provider if is_same else None

    def _named(self, name: str) -> Provider:
        """Build the provider with this id, using the keys in the environment.

        Raises:
            UsageError: its configuration is incomplete.
        """
        spec = ProviderSpec(id=name)
        pool = ProviderPool(self._environ, Path(), TRUSTED)
        self._pools.append(pool)
        options = {"env": self._environ, "base_dir": Path(), "access": TRUSTED}
        problems: list[Problem] = check_provider(spec, **options)  # type: ignore[arg-type]
        problems = problems or check_ready(spec, **options)  # type: ignore[arg-type]
        if problems:
            raise UsageError.of(f"{spec.public_id} cannot be called", problems)
        return pool.get(spec)


def _server_of(provider: Provider) -> ServerKey:
    identity = provider.identity
    return ServerKey(identity.kind, identity.endpoint, identity.model)


def _allow(_: Provider) -> None:
    """Allow every provider: what is waited for has already been submitted."""


async def _sleep(delay_s: float) -> bool:
    await asyncio.sleep(delay_s)
    return False
