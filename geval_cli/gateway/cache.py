"""The cache layers: `Recall` answers what was answered before, `Keep` commits every answer as it comes."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from geval_cli.errors import ProviderAuthError, ProviderError, StoreError
from geval_cli.gateway.call import Handler, ModelCall, Notice
from geval_cli.gateway.responses import join
from geval_cli.records import ModelResponse, Usage
from geval_cli.store.cache import StoredChoice

_MEMORY_ENTRIES = 10_000


class ChoiceStore(Protocol):
    """Where choices are kept; `store.cache.ResponseCache` is one."""

    async def get_many(
        self, keys: Sequence[str], *, since: float | None = None
    ) -> Mapping[str, StoredChoice]: ...

    async def put_many(self, choices: Mapping[str, StoredChoice]) -> None: ...


class MemoryStore:
    """Choices of this process only: the last 10,000 that were put or read."""

    def __init__(self) -> None:
        self._choices: dict[str, StoredChoice] = {}

    async def get_many(self, keys: Sequence[str], *, since: float | None = None) -> dict[str, StoredChoice]:
        """Those of `keys` that are there; everything here is of this run, so `since` has nothing to leave out."""
        del since
        found = {key: self._choices.pop(key) for key in keys if key in self._choices}
        self._choices.update(found)
        return found

    async def put_many(self, choices: Mapping[str, StoredChoice]) -> None:
        self._choices.update(choices)
        while len(self._choices) > _MEMORY_ENTRIES:
            del self._choices[next(iter(self._choices))]


class Answers:
    """The answers of a run and, unless `since` forbids it, of runs before it.

    A cache that breaks ends no run: the user is told once, and the answers are kept in memory from then on.
    """

    def __init__(self, store: ChoiceStore | None, *, since: float | None, notice: Notice) -> None:
        self._store: ChoiceStore = MemoryStore() if store is None else store
        self._since = since
        self._notice = notice

    async def find(self, keys: Sequence[str]) -> Mapping[str, StoredChoice]:
        store = self._store
        try:
            return await store.get_many(keys, since=self._since)
        except StoreError as error:
            self._give_up(store, error)
            return {}

    async def keep(self, choices: Mapping[str, StoredChoice]) -> None:
        store = self._store
        try:
            await store.put_many(choices)
        except StoreError as error:
            self._give_up(store, error)
            await self._store.put_many(choices)

    def _give_up(self, store: ChoiceStore, error: StoreError) -> None:
        if self._store is store:
            self._store = MemoryStore()
            self._notice(
                f"{error.message}; answers are kept in memory until the end of this run ({error.hint})"
            )


class Recall:
    """A layer: gives what is known and asks only for the samples that are missing."""

    def __init__(self, following: Handler, answers: Answers) -> None:
        self._following = following
        self._answers = answers

    async def __call__(self, call: ModelCall) -> ModelResponse:
        if not call.keys:
            return await self._following(call)
        wanted = call.request.sample_indexes
        found = await self._answers.find(call.keys)
        known = {index: found[key] for index, key in zip(wanted, call.keys, strict=True) if key in found}
        missing = tuple(index for index in wanted if index not in known)
        if not known:
            return await self._following(call)
        recalled = _recalled(known)
        if not missing:
            return recalled
        try:
            asked = await self._following(call.for_samples(missing))
        except ProviderAuthError:
            raise
        except ProviderError:
            return recalled
        return join([recalled, asked], wanted)


class Keep:
    """A layer: an answer is committed before anybody uses it."""

    def __init__(self, following: Handler, answers: Answers) -> None:
        self._following = following
        self._answers = answers

    async def __call__(self, call: ModelCall) -> ModelResponse:
        response = await self._following(call)
        if call.keys:
            await self._answers.keep(_stored(call, response))
        return response


def _recalled(known: Mapping[int, StoredChoice]) -> ModelResponse:
    stored = list(known.values())
    return ModelResponse(
        choices=tuple(item.choice for item in stored),
        usage=Usage(requests=len(stored), cached_requests=len(stored)),
        latency_ms=max(item.latency_ms for item in stored),
        cached=True,
        dropped=tuple(dict.fromkeys(name for item in stored for name in item.dropped)),
        model=stored[0].model,
        sample_indexes=tuple(known),
    )


def _stored(call: ModelCall, response: ModelResponse) -> dict[str, StoredChoice]:
    key_of = dict(zip(call.request.sample_indexes, call.keys, strict=True))
    shares = _shares(response.usage, len(response.choices))
    return {
        key_of[index]: StoredChoice(choice, share, response.latency_ms, response.model, response.dropped)
        for index, choice, share in zip(response.sample_indexes, response.choices, shares, strict=True)
    }


def _shares(usage: Usage, count: int) -> list[Usage]:
    """`usage` of one request split over its choices; the first ones take what does not divide evenly."""
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
