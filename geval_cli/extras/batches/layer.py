"""The gateway layer for batches: a request without an answer yet raises PendingError, and the job runs again later.

A wave works like a resume. The first pass over a run's jobs stores their requests and leaves the jobs undone; the
requests go to the provider as batches (`driver`); the next pass runs the jobs again and finds the answers. No job is
held open for hours, and a process that is killed loses nothing.
"""

import asyncio
import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import cast

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.errors import PendingError, ProviderError, ProviderRequestError, ProviderResponseError
from geval_cli.extras.batches.api import BatchingProvider
from geval_cli.extras.batches.store import BatchReply, BatchStore
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.call import Handler, ModelCall, Notice, ServerKey, Wire, align
from geval_cli.gateway.capabilities import features_of
from geval_cli.providers.base import Provider, batch_api
from geval_cli.providers.network.messages import json_bytes
from geval_cli.providers.prices import Price
from geval_cli.providers.wire.token_usage import TokenUsage, token_limit
from geval_cli.records import ModelResponse, Purpose, Role
from geval_cli.report.sanitize import resume_command

LAST_PASS = 12
"""From this pass on, new requests are sent directly: some judges ask follow-up questions without end."""

MOST_TRIES = 2
"""A request that this many batches left unanswered is sent directly."""

_MOST_SCOUTS = 3
_ASSUMED_WRITTEN_TOKENS = 1024
_CHARACTERS_PER_TOKEN = 4
_READ_KEPT = 5_000


class BatchPolicy(Struct, frozen=True):
    """How a run uses batches.

    Attributes:
        roles: the roles whose requests go into batches.
        run_id: the run.
        joins_others: whether the run also waits for requests that other runs submitted.
        size: the most requests in one batch; None for the provider's limit.
        poll_s: the initial interval between polls of a batch, in seconds.
        max_wait_s: how many seconds a batch may take before it is given up.
        falls_back: whether requests that are not answered in that time, or that a provider does not accept in a batch,
            are sent directly; otherwise they are errors.
        waits: whether the process stays until every request is answered.
        config_path: the config of the run; "" for a Python program.
        folder_options: the result of `folder_options` in `report.sanitize`.
    """

    roles: frozenset[Role]
    run_id: str | None = None
    joins_others: bool = True
    size: int | None = None
    poll_s: float = 15.0
    max_wait_s: float = 26 * 3600.0
    falls_back: bool = True
    waits: bool = True
    config_path: str = ""
    folder_options: str = ""

    @property
    def way_on(self) -> str:
        """Return the command that fetches the answers of submitted batches, for messages."""
        if not self.config_path:
            return "the same call"
        return f"`{resume_command(self.config_path, self.folder_options)}` with the same options"


def server_text(server: ServerKey) -> str:
    """Return the model and its address as one text, as it is stored with batches."""
    return f"{server.kind} {server.model} at {server.endpoint}"


class BatchGroup(Struct, frozen=True):
    """Requests that can share a batch: same model, key and role. Those with log-probabilities are kept apart."""

    server: ServerKey
    role: Role
    wants_logprobs: bool
    provider_key: int


class Pending(Struct):
    """The requests of one pass that have no answer yet.

    Attributes:
        free: the keys of requests that are in no batch yet, by group.
        providers: the provider of each group; `joined` has the provider of each batch that is waited for, by batch id.
        new: the roles of requests that no pass has made before.
        known: the roles of requests that are in a batch or were answered by one.
    """

    free: dict[BatchGroup, dict[str, None]] = field(default_factory=dict)
    providers: dict[BatchGroup, Provider] = field(default_factory=dict)
    joined: dict[str, Provider] = field(default_factory=dict)
    new: set[Role] = field(default_factory=set)
    known: set[Role] = field(default_factory=set)


class BatchQueue:
    """The requests of a run that go into batches. Belongs to one event loop.

    Attributes:
        pending: the unanswered requests of the current pass, or of the last one.
        direct: the keys of requests that are sent directly because too few are left for a batch.
        sends_all: whether all requests are sent directly, because those of this run differ in each pass.
        passes: the number of waves answered so far.
    """

    def __init__(
        self,
        store: BatchStore,
        policy: BatchPolicy,
        budget: Budget,
        *,
        check_provider: Callable[[Provider], None],
        notice: Notice,
        wire: Wire | None = None,
    ) -> None:
        self.store = store
        self.policy = policy
        self.budget = budget
        self.wire = wire or Wire()
        self.pending = Pending()
        self.direct: set[str] = set()
        self.sends_all = False
        self.passes = 0
        self._check_provider = check_provider
        self._notice = notice
        self._has_told = False
        self._read: list[tuple[str, str]] = []

    def takes(self, call: ModelCall) -> bool:
        """Return whether a call goes into a batch. Evaluation steps (all tests wait for them) and retries do not."""
        request = call.request
        return (
            request.role in self.policy.roles
            and request.purpose is not Purpose.STEPS
            and call.attempt == 1
            and not call.is_direct
            and call.outlives_run
            and bool(call.keys)
            and batch_api(call.provider) is not None
        )

    def key_of(self, call: ModelCall) -> str:
        """Return the id of a request in batches: the cache key of its first sample, so any process can match it."""
        key = call.keys[0]
        if self.policy.joins_others:
            return key
        return hashlib.sha256(f"{self.policy.run_id} {key}".encode()).hexdigest()

    async def ask(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        """Return the answer from a batch, or record the request for the next one.

        Raises:
            PendingError: there is no answer yet.
            ProviderError: the answer is an error.
        """
        provider, key = cast(BatchingProvider, call.provider), self.key_of(call)  # `takes` says so
        payload = provider.payload(call.request)
        body = json_bytes(payload)
        # The most a request is expected to cost; 0 without a cost limit.
        price = provider.batch_price
        if price is None or self.budget.max_cost_usd is None:
            expected_usd = 0.0
        else:
            limit = token_limit(payload) if isinstance(payload, dict) else None
            written = (limit or _ASSUMED_WRITTEN_TOKENS) * len(call.request.sample_indexes)
            read = call.request.characters if call.request.media else len(body)
            expected_usd = _usd(price, -(-read // _CHARACTERS_PER_TOKEN), written)
        claim = await self.store.claim(key, body, self.policy.run_id, expected_usd)
        role = call.request.role
        if claim.is_new:
            self.pending.new.add(role)
        elif claim.reply is not None or claim.batch_id is not None:
            self.pending.known.add(role)
        if claim.reply is not None:
            self.budget.reserved_usd = max(0.0, self.budget.reserved_usd - expected_usd)
            return await self._answer(provider, call, key, claim.reply)
        if claim.batch_id is not None:
            self.pending.joined[claim.batch_id] = call.provider
            raise PendingError("the answer comes from a batch")
        # Only now: existing answers can be read even with a refused key or a used-up budget.
        self._check_provider(call.provider)
        self.wire.check()
        self.budget.check()
        tries = claim.tries
        is_last = self.passes + 1 >= LAST_PASS
        if is_last and not self._has_told:
            self._has_told = True
            self._notice(
                f"requests that first appear after {LAST_PASS - 1} rounds of batches are sent directly"
            )
        goes_directly = is_last or self.sends_all or tries >= MOST_TRIES or key in self.direct
        if goes_directly and await self.store.take(key):
            return await send_next(call)
        wants_logprobs = call.request.want_logprobs
        group = BatchGroup(call.server, role, wants_logprobs, id(call.provider))
        self.pending.providers[group] = call.provider
        self.pending.free.setdefault(group, {})[key] = None
        raise PendingError("the request goes into the next batch")

    async def is_known(self, call: ModelCall) -> bool:
        """Return whether a call is already in a batch or was answered by one."""
        return await self.store.is_known(self.key_of(call))

    async def take(self, call: ModelCall) -> bool:
        """Remove a call from batching, to send it directly; False if a batch holds it or has answered it."""
        return await self.store.take(self.key_of(call))

    def begin_pass(self) -> Pending:
        """Start a new pass, and return the unanswered requests of the last one."""
        left, self.pending = self.pending, Pending()
        return left

    async def sweep(self) -> None:
        """Delete batch answers that are in the response cache by now."""
        read, self._read = self._read, []
        if read:
            await self.store.forget_read(read)

    async def _answer(
        self, provider: BatchingProvider, call: ModelCall, key: str, reply: BatchReply
    ) -> ModelResponse:
        if reply.problem:
            raise ProviderRequestError(
                reply.problem, provider_id=call.provider.id, hint="run again without --batch"
            )
        try:
            found = provider.batched_response(call.request, reply.status, reply.body)
            response = align(found, call.request, call.provider.id)
        except ProviderError as error:
            if isinstance(error, ProviderResponseError) and error.cost_usd is not None:
                self.budget.pay(error.cost_usd)
            if reply.is_success:
                await self.store.forget(key)  # nobody can read it; a repetition is sent directly
            raise
        usage = replace(response.usage, batched_requests=len(response.choices))
        if usage.cost_usd is not None:
            self.budget.pay(usage.cost_usd)
        elif self.budget.max_cost_usd is not None:
            self.budget.give_up(call.provider.label)
        self._read.append((key, call.keys[0]))
        if len(self._read) >= _READ_KEPT:
            await self.sweep()
        return replace(response, usage=usage)


@lru_cache(maxsize=1024)  # a list price is computed from a large table
def _usd(price: Price, read: int, written: int) -> float:
    return price.cost_usd(TokenUsage(read, written)) or 0.0


class BatchLayer:
    """The layer that has requests answered by batches; all others pass through."""

    def __init__(self, queue: BatchQueue) -> None:
        self._queue = queue

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        if not self._queue.takes(call):
            return await send_next(call)
        return await self._queue.ask(call, send_next)


class _Scouting(Struct):
    """The state of the first direct request of one kind; `under_way` completes when that request ends."""

    under_way: asyncio.Future[None] | None = None
    failures: int = 0
    is_done: bool = False


class ScoutLayer:
    """A layer that sends the first request of each kind directly, while the others of its kind wait for it.

    A refused key or an unsupported parameter then shows within seconds instead of with the batch. This layer sits above
    the one that adapts requests, so the others are built with what the first one learned.
    """

    def __init__(self, queue: BatchQueue) -> None:
        self._queue = queue
        self._kinds: dict[tuple[ServerKey, Role, int, frozenset[str]], _Scouting] = {}

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        if not self._queue.takes(call):
            return await send_next(call)
        features = features_of(call)
        if len(call.request.sample_indexes) > 1:
            features.add("n")
        kind = call.server, call.request.role, id(call.provider), frozenset(features)
        scouting = self._kinds.setdefault(kind, _Scouting())
        if not scouting.is_done and await self._queue.is_known(call):
            return await send_next(call)
        while not scouting.is_done:
            if scouting.under_way is not None:
                await asyncio.wait({scouting.under_way})
                continue
            scouting.under_way = asyncio.get_running_loop().create_future()
            try:
                # Another process sharing the cache may put it into a batch meanwhile: only the one that removes it
                # from the waiting requests sends it.
                if not await self._queue.take(call):
                    break
                try:
                    response = await send_next(replace(call, is_direct=True))
                except ProviderError:
                    # Requests of a kind that always fails must not be sent one by one.
                    scouting.failures += 1
                    scouting.is_done = scouting.failures >= _MOST_SCOUTS
                    raise
                scouting.is_done = True
                return response
            finally:
                under_way, scouting.under_way = scouting.under_way, None
                under_way.set_result(None)
        return await send_next(call)
