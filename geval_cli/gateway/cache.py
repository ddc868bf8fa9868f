"""The cache layers: `CacheRead` returns stored answers, `CacheWrite` stores new ones, `Offline` refuses the rest.

Equal requests under way at the same time are sent once, and the answer goes to all callers: `SingleFlight` does this
for the calls of one gateway, `Claimed` for all processes that share a cache.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from geval_cli.errors import OfflineError, ProviderError, ProviderSettledError, StoreError
from geval_cli.gateway.call import (
    KEYS_OF_CASE,
    Handler,
    ModelCall,
    Notice,
    Runtime,
    Wire,
    join,
    longest,
    without_cost,
)
from geval_cli.json_codec import encode_json
from geval_cli.providers.base import ProviderIdentity
from geval_cli.records import JsonValue, Message, ModelRequest, ModelResponse, Usage
from geval_cli.store.cache import KeyFilter, StoredChoice
from geval_cli.store.locks import Claims

_Task = asyncio.Task[ModelResponse]


class _Flight(Struct):
    task: _Task
    waiters: list[asyncio.Future[ModelResponse]] = field(default_factory=list)

    def land(self, *, is_counted: bool) -> None:
        """Pass the outcome to all waiting callers; the first of them bears its cost, whoever started the call."""
        if self.task.cancelled():
            for waiter in self.waiters:
                waiter.cancel()
            return
        error = self.task.exception()
        waiting = [waiter for waiter in self.waiters if not waiter.done()]
        for number, waiter in enumerate(waiting):
            if error is not None:
                waiter.set_exception(error)
            elif number == 0:
                waiter.set_result(self.task.result())
            else:
                waiter.set_result(without_cost(self.task.result(), is_counted=is_counted))


_FIRST_LOOK_S = 0.01
_LONGEST_LOOK_S = 0.25


class Claimed:
    """A layer that holds a call back while another process sends the same, so that the cache has the answer afterwards.

    It comes before the cache lookup: a process that gets the claim later finds the answer stored under it. Equal calls
    with different numbers of samples share the first sample, so one claim per call is enough.

    The holder of a claim may be alive and still take long, because of retries and a server's limits; but one that hangs
    must not stop the others. So a call waits as long as claims are being released, plus one request timeout.
    """

    def __init__(self, claims: Claims, *, runtime: Runtime, wire: Wire) -> None:
        self._claims = claims
        self._runtime = runtime
        self._wire = wire
        self._progress_at = 0.0

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        if not call.keys or not call.outlives_run:
            return await send_next(call)
        key = call.keys[0]
        if not self._claims.take(key) and not await self._wait(key, call.provider.limits.timeout_s):
            return await send_next(call)
        try:
            return await send_next(call)
        finally:
            self._claims.release_claim(key)

    async def _wait(self, key: str, most_s: float) -> bool:
        """Wait for a claim; return False when its holder seems to hang.

        Raises:
            StoppedError: the run is to stop.
        """
        began = self._runtime.clock()
        pause_s = _FIRST_LOOK_S
        while self._runtime.clock() - max(began, self._progress_at) < most_s:
            self._wire.check()
            await self._runtime.sleep(pause_s)
            if self._claims.take(key):
                self._progress_at = self._runtime.clock()
                return True
            pause_s = min(2 * pause_s, _LONGEST_LOOK_S)
        return False


class SingleFlight:
    """A layer that joins equal calls: one task does the work, so that cancelling one caller does not affect the others.

    Each caller has its own future, which is settled when the task is done: `asyncio.shield` would do the same, but
    needs twice as many turns of the event loop for every request of a run.
    """

    def __init__(self, *, is_for_one_run: bool) -> None:
        self._is_counted = not is_for_one_run
        self._flights: dict[tuple[str, ...], _Flight] = {}
        self._tasks: set[_Task] = set()

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        if not call.keys:
            return await send_next(call)
        if call.keys not in self._flights:
            flight = self._flights[call.keys] = _Flight(asyncio.create_task(send_next(call)))
            self._tasks.add(flight.task)
            flight.task.add_done_callback(partial(self._landed, flight, call.keys))
            del flight  # as in `_wait`
        return await self._wait(call.keys)

    async def aclose(self) -> None:
        """Cancel the calls under way and all callers that wait for them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _landed(self, flight: _Flight, keys: tuple[str, ...], task: _Task) -> None:
        self._tasks.discard(task)
        self._take_from_table(flight, keys)
        flight.land(is_counted=self._is_counted)

    async def _wait(self, keys: tuple[str, ...]) -> ModelResponse:
        flight = self._flights[keys]
        waiter: asyncio.Future[ModelResponse] = asyncio.get_running_loop().create_future()
        flight.waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            flight.waiters.remove(waiter)
            if not flight.waiters and not flight.task.done():
                # Out of the table at once: a new caller must not join a flight that is being cancelled.
                self._take_from_table(flight, keys)
                flight.task.cancel()
            raise
        finally:
            # Both hold the error, whose traceback holds this frame: a reference cycle for each call that fails.
            del flight, waiter

    def _take_from_table(self, flight: _Flight, keys: tuple[str, ...]) -> None:
        if self._flights.get(keys) is flight:
            del self._flights[keys]


_VERSION = 1
"""Increased when the meaning of a stored answer changes, so that older answers are requested again."""


def choice_keys(identity: ProviderIdentity, request: ModelRequest) -> tuple[str, ...]:
    """Return the keys of all samples of `request`, in the order of its `sample_indexes`.

    Each key is 64 hexadecimal digits, the same on every machine and in every process. It depends neither on how many
    samples are requested together nor on the case they are requested for.
    """
    question = hashlib.sha256(_question_bytes(identity, request))
    return tuple([_sample_key(question.copy(), index) for index in request.sample_indexes])


def _question_bytes(identity: ProviderIdentity, request: ModelRequest) -> bytes:
    params = {**identity.params, **request.params}
    question = [
        _VERSION,
        identity.kind,
        identity.model,
        identity.endpoint,
        # Sorted at this level only: inside a value, such as a JSON Schema, order can change what a model writes.
        sorted((name, value) for name, value in params.items() if name != "n" and value is not None),
        [_said(message) for message in request.messages],
        request.want_logprobs,
        request.response_schema,
        request.repeat_index,
        *request.ratings,
    ]
    if request.tools:
        question.append([[tool.name, tool.description, tool.parameters] for tool in request.tools])
    if identity.variables:
        seen = request.variables  # templates may name `vars` itself, all of them
        question.append({name: seen if name == "vars" else seen.get(name) for name in identity.variables})
    return encode_json(question)


def _said(message: Message) -> list[JsonValue]:
    if not message.further:  # as with most messages; this keeps their keys unchanged
        return [message.role, message.content]
    return [message.role, message.content, dict(message.further)]


def _sample_key(question: "hashlib._Hash", sample_index: int) -> str:
    question.update(b"#%d" % sample_index)
    return question.hexdigest()


_MEMORY_WEIGHT = 400_000  # about 64 MB: a token probability takes 150 bytes, and a reply may have thousands
_MEMORY_BESIDE_A_STORE = 40_000
# The key, the records and the dict entry of a choice: 40 times the 150 bytes of one token probability.
_ENTRY_WEIGHT = 40
_CHARACTERS_PER_WEIGHT = 150

_SELF_CONTAINED = frozenset({"echo", "scripted"})
"""Kinds of providers whose answers are written in the config: they send no request, to this machine or any other."""


class ChoiceStore(Protocol):
    """A store that keeps choices between runs, such as `store.cache.CacheOfRun`."""

    async def get_many(
        self, keys: Sequence[str], *, since: float | None = None
    ) -> Mapping[str, StoredChoice]: ...

    async def put_many(self, choices: Mapping[str, StoredChoice]) -> None: ...

    async def remove_many(self, keys: Sequence[str]) -> None: ...


class Memory:
    """An in-memory LRU cache of choices. `weight` is its capacity, in units of about 150 bytes."""

    def __init__(self, weight: int = _MEMORY_WEIGHT) -> None:
        self.most = weight
        self._choices: dict[str, StoredChoice] = {}
        self._weight = 0

    def get(self, keys: Sequence[str]) -> dict[str, StoredChoice]:
        """Return the choices stored under `keys`; missing keys are left out."""
        found = {key: self._choices.pop(key) for key in keys if key in self._choices}
        self._choices.update(found)
        return found

    def put(self, choices: Mapping[str, StoredChoice]) -> None:
        """Store `choices`, and evict the least recently used ones when there is no room."""
        for key, stored in choices.items():
            older = self._choices.pop(key, None)
            self._choices[key] = stored
            self._weight += _weight(stored) - (0 if older is None else _weight(older))
        while self._weight > self.most:
            self.remove([next(iter(self._choices))])

    def remove(self, keys: Iterable[str]) -> None:
        """Remove the choices stored under `keys`; missing keys are ignored."""
        for key in keys:
            stored = self._choices.pop(key, None)
            if stored is not None:
                self._weight -= _weight(stored)


class CachedAnswers:
    """The answers of a run and, unless `since` excludes them, of earlier runs.

    Answers that are not to outlive the run are kept in memory only. The run's most recently used answers are in memory
    as well, since every test needs the same steps. A broken cache does not end the run: the user is told once, and
    answers are kept in memory from then on. A cache that can be read but not written to continues to be read.
    """

    def __init__(
        self,
        store: ChoiceStore | None,
        *,
        since: float | None,
        notice: Notice,
        is_written: bool = True,
        is_for_one_run: bool = False,
        is_in_passes: bool = False,
    ) -> None:
        """Hold answers; `is_in_passes` says that cases may be given up and redone, and count only when done."""
        self._store = store
        self._is_written = is_written
        self._memory = Memory(_MEMORY_WEIGHT if store is None else _MEMORY_BESIDE_A_STORE)
        self._since = since
        self._notice = notice
        self._used = KeyFilter() if is_for_one_run else None
        self._bought = KeyFilter() if is_in_passes else None
        self._used_in_pass: set[int] = set()

    def answer_in_memory(self, call: ModelCall) -> ModelResponse | None:
        """Return the answer to `call` if all of it is in memory, otherwise None."""
        # Most tests need steps that are known already: the stack, with its task for each call, would be wasted on them.
        found = self._memory.get(call.keys)
        if not found or len(found) < len(call.keys):
            return None
        return self.recalled(dict(zip(call.request.sample_indexes, found.items(), strict=True)))

    def recalled(self, known: Mapping[int, tuple[str, StoredChoice]]) -> ModelResponse:
        """Return the known choices, given by sample, as a response; those that the run has used do not count again."""
        new = [key for key, _ in known.values() if not self._is_used(key)]
        self._note_used(new)
        stored = {index: choice for index, (_, choice) in known.items()}
        bought = self._bought
        if bought is None or not any(map(bought.may_hold, new)):
            return recalled(stored, new=len(new))
        # An earlier pass paid for these, for cases that were not done then: the cost still belongs to those cases.
        again = [choice for key, choice in known.values() if key in set(new) and bought.may_hold(key)]
        found = recalled(stored, new=len(new) - len(again))
        repeated_usage = sum(map(_usage_of, again), Usage())
        return replace(
            found,
            usage=found.usage + repeated_usage,
            repeated_usage=repeated_usage,
            cached=len(again) < len(new),
        )

    def begin_pass(self) -> None:
        """Start another pass over the cases: answers used for cases that were not done then count again."""
        self._used_in_pass.clear()

    def settle(self, keys: Iterable[str]) -> None:
        """Note that the answers with these keys have counted for a case that is done."""
        if self._used is not None:
            for key in keys:
                self._used.add(key)

    def _is_used(self, key: str) -> bool:
        if self._used is None:
            return False
        return self._used.may_hold(key) or (bool(self._used_in_pass) and _short(key) in self._used_in_pass)

    def _note_used(self, keys: Iterable[str]) -> None:
        of_case = None if self._bought is None else KEYS_OF_CASE.get()
        if of_case is None:
            self.settle(keys)
            return
        for key in keys:
            of_case.append(key)
            self._used_in_pass.add(_short(key))

    async def find(self, call: ModelCall) -> Mapping[str, StoredChoice]:
        """Return the known choices for the samples of `call`, by key."""
        found = self._memory.get(call.keys)
        missing = [key for key in call.keys if key not in found]
        if missing and call.outlives_run and self._store is not None:
            try:
                older = await self._store.get_many(missing, since=self._since)
            except StoreError as error:
                self._store = None
                self._stop_writing(error)
                return found
            self._memory.put(older)
            found.update(older)
        return found

    async def keep(self, call: ModelCall, choices: Mapping[str, StoredChoice]) -> None:
        """Store the `choices` of `call`, given by key."""
        self._note_used(choices)
        if self._bought is not None:
            for key in choices:
                self._bought.add(key)
        if call.outlives_run and self._store is not None and self._is_written:
            try:
                await self._store.put_many(choices)
            except StoreError as error:
                self._stop_writing(error)
        self._memory.put(choices)

    async def forget(self, call: ModelCall) -> None:
        """Remove the samples of `call`, so that they are requested again when needed.

        In passes they stay in memory: a case that waits for other answers would pay for them again in each pass.
        """
        if self._bought is None:
            self._memory.remove(call.keys)
        if call.outlives_run and self._store is not None and self._is_written:
            try:
                await self._store.remove_many(call.keys)
            except StoreError as error:
                self._stop_writing(error)

    def _stop_writing(self, error: StoreError) -> None:
        if self._is_written:
            self._is_written = False
            self._memory.most = _MEMORY_WEIGHT
            self._notice(
                f"{error.message}; answers are kept in memory until the end of this run ({error.hint})"
            )


class CacheRead:
    """A layer that returns the known samples from the cache and passes on only the missing ones."""

    def __init__(self, answers: CachedAnswers) -> None:
        self._answers = answers

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        if not call.keys:
            return await send_next(call)
        wanted = call.request.sample_indexes
        found = await self._answers.find(call)
        pairs = zip(wanted, call.keys, strict=True)
        known = {index: (key, found[key]) for index, key in pairs if key in found}
        missing = tuple(index for index in wanted if index not in known)
        if not known:
            return await send_next(call)
        recalled = self._answers.recalled(known)
        if not missing:
            return recalled
        try:
            asked = await send_next(call.for_samples(missing))
        except ProviderSettledError:
            raise
        except ProviderError:
            return recalled  # fewer samples are better than none; a response says which ones it contains
        return join([recalled, asked], wanted)


class Offline:
    """A layer that refuses every call, except to providers whose answers are written in the config."""

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        provider = call.provider
        if provider.identity.kind in _SELF_CONTAINED:
            return await send_next(call)
        if call.outlives_run:
            message = f"the cache has no answer from {provider.label} to this, and --offline sends nothing"
            hint = "run once without --offline; a changed config, prompt or base URL needs new answers"
        else:
            message = f"answers from {provider.label} are never cached, and --offline sends nothing"
            hint = "put its output into the tests (`output:`), or leave --offline out"
        raise OfflineError(message, provider_id=provider.id, hint=hint)


class CacheWrite:
    """A layer that stores an answer before it is used, so that a crash loses no answer that was paid for."""

    def __init__(self, answers: CachedAnswers) -> None:
        self._answers = answers

    async def __call__(self, call: ModelCall, send_next: Handler) -> ModelResponse:
        response = await send_next(call)
        if call.keys:
            await self._answers.keep(call, _stored(call, response))
        return response


def _short(key: str) -> int:
    """Return enough of a key to tell it from others, in less memory."""
    return int(key[:16], 16)


def _usage_of(stored: StoredChoice) -> Usage:
    """Return the usage of a choice at the time it was paid for."""
    is_batched = stored.latency_ms is None
    return replace(stored.usage, requests=1, cached_requests=0, batched_requests=int(is_batched))


def _weight(stored: StoredChoice) -> int:
    """Return the memory that a choice takes, in units of one token probability."""
    tokens = stored.choice.token_logprobs
    weight = _ENTRY_WEIGHT + len(stored.choice.text) // _CHARACTERS_PER_WEIGHT
    return weight if tokens is None else weight + sum(1 + len(token.alternatives) for token in tokens)


def recalled(known: Mapping[int, StoredChoice], *, new: int) -> ModelResponse:
    """Return the choices in `known`, given by sample, as a response; `new` of them count as cache hits."""
    stored = list(known.values())
    return ModelResponse(
        choices=tuple(item.choice for item in stored),
        usage=Usage(requests=new, cached_requests=new),
        latency_ms=longest([item.latency_ms for item in stored]),
        cached=True,
        dropped=tuple(dict.fromkeys(name for item in stored for name in item.dropped)),
        model=stored[0].model,
        fingerprint=stored[0].fingerprint,
        sample_indexes=tuple(known),
        original_usage=sum((item.usage for item in stored), Usage()),
        shared=not new,
    )


def _stored(call: ModelCall, response: ModelResponse) -> dict[str, StoredChoice]:
    key_of = dict(zip(call.request.sample_indexes, call.keys, strict=True))
    shares = _shares(response.usage, len(response.choices))
    return {
        key_of[index]: StoredChoice(
            choice, share, response.latency_ms, response.model, response.dropped, response.fingerprint
        )
        for index, choice, share in zip(response.sample_indexes, response.choices, shares, strict=True)
    }


def _shares(usage: Usage, count: int) -> list[Usage]:
    """Split the usage of one request over its choices; the first ones take the remainder."""
    if count == 1:
        return [Usage(1, usage.input_tokens, usage.output_tokens, cost_usd=usage.cost_usd)]
    cost_usd = None if usage.cost_usd is None else usage.cost_usd / count
    return [
        Usage(
            requests=1,
            input_tokens=usage.input_tokens // count + (position < usage.input_tokens % count),
            output_tokens=usage.output_tokens // count + (position < usage.output_tokens % count),
            cost_usd=cost_usd,
        )
        for position in range(count)
    ]
