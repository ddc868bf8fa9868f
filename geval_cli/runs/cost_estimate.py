"""What a plan counts: every answer that would be asked for, once, apart from those that the cache has."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from geval_cli.engine.forecast import ForecastTally, Tokens
from geval_cli.errors import StoreError
from geval_cli.gateway.identity import choice_keys
from geval_cli.judge.calls import EXPLANATION_MAX_TOKENS, FORM_MAX_TOKENS
from geval_cli.judge.forecast import FurtherAnswers, Purpose
from geval_cli.providers.base import Provider
from geval_cli.providers.prices import Price, known_price
from geval_cli.providers.wire.anthropic import DEFAULT_MAX_TOKENS
from geval_cli.records import JsonValue, ModelRequest, ModelResponse, Role, Usage
from geval_cli.runs.judging import ProviderPool
from geval_cli.runs.preparation import resolved
from geval_cli.specs.base import ProviderSpec
from geval_cli.store.cache import ResponseCache, StoredChoice
from geval_cli.suite.suite import Suite

_CHARACTERS_PER_TOKEN = 4
_WRITTEN = {Purpose.FALLBACK_SAMPLES: FORM_MAX_TOKENS, Purpose.EXPLANATION: EXPLANATION_MAX_TOKENS}
_LENGTH_KEYS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")


class Assumption(Struct, frozen=True):
    """Why it is not sure that something is asked for at all, as the assumption that a plan shows."""

    assumption: str


class Ledger(Struct):
    """Counts questions as single flight and the cache would let them through: equal ones once.

    Attributes:
        cache: None where no answers are kept, or none may be read.
        since: answers that were kept before this time (seconds since 1970) do not count; None for no such bound.
    """

    suite: Suite
    pool: ProviderPool
    cache: ResponseCache | None
    since: float | None = None
    tally: ForecastTally = field(default_factory=ForecastTally)
    _failure: StoreError | None = None
    _seen: dict[int, int] = field(default_factory=dict)
    _prices: dict[int, tuple[Price | None]] = field(default_factory=dict)

    def provider(self, spec: ProviderSpec) -> Provider:
        """Return the provider that `spec` names."""
        return self.pool.get(resolved(spec, self.suite))

    async def note(
        self,
        provider: Provider,
        request: ModelRequest,
        purpose: Purpose,
        assumption: Assumption | None = None,
    ) -> ModelResponse | None:
        """Count the answers to `request`; those of the cache if it has all of them, else None."""
        keys = choice_keys(provider.identity, request)
        known = await self._known(provider, keys)
        # Single flight and the cache see to it that equal requests are sent once.
        is_shared = provider.is_cacheable or request.role is Role.JUDGE
        seen = self._seen_before(keys) if is_shared else 0
        is_new = seen < len(keys)
        missing = [position for position, key in enumerate(keys) if key not in known] if is_new else []
        least = sum(position >= seen for position in missing) if assumption is None else 0
        self.tally.add(
            (request.role, provider.label, purpose),
            self._price(provider),
            counts=(least, len(missing), len(keys) - len(missing) if is_new else 0),
            tokens=_tokens(provider, request, least=least, most=len(missing)),
            assumption=assumption.assumption if assumption is not None and missing else "",
        )
        return _recalled([known[key] for key in keys]) if len(known) == len(keys) else None

    def note_further(self, judge: Provider, further: FurtherAnswers, read: int) -> None:
        """Count answers that `judge` may have to give after those that it was asked for; each reads `read` tokens."""
        written = _bound(judge.identity.params) or _WRITTEN[further.purpose]
        self.tally.add(
            (Role.JUDGE, judge.label, further.purpose),
            self._price(judge),
            counts=(further.least, further.most, 0),
            tokens=Tokens(further.least * read, further.most * read, further.most * written),
            assumption=further.assumption,
        )

    def check(self) -> None:
        """See to it that nothing was miscounted so far.

        Raises:
            StoreError: the cache could not be read.
        """
        if self._failure is not None:
            raise self._failure

    def _price(self, provider: Provider) -> Price | None:
        """Asked once for each provider: a list price is looked up in a large table."""
        found = self._prices.get(id(provider))
        if found is None:
            found = self._prices[id(provider)] = (known_price(provider),)
        return found[0]

    async def _known(self, provider: Provider, keys: tuple[str, ...]) -> Mapping[str, StoredChoice]:
        if self.cache is None or not provider.is_cacheable:
            return {}
        try:
            return await self.cache.get_many(keys, since=self.since)
        except StoreError as error:  # whoever asks makes a result of it, which nobody reads
            self._failure = error
            raise

    def _seen_before(self, keys: tuple[str, ...]) -> int:
        """Return how many samples of this question were asked for before; they may be under way when it is asked again.

        A part of a key tells which question it is, and takes little room.
        """
        question = int(keys[0][:16], 16)
        before = self._seen.get(question, 0)
        self._seen[question] = max(before, len(keys))
        return before


def input_tokens(request: ModelRequest) -> int:
    """About how many tokens a request has."""
    characters = sum(len(str(message.content)) for message in request.messages)
    return -(-characters // _CHARACTERS_PER_TOKEN)


def most_written(provider: Provider, request: ModelRequest) -> int | None:
    """Return the most tokens that one answer may have, if anything says so."""
    named = _bound(request.params) or _bound(provider.identity.params)
    if named is None and provider.identity.kind == "anthropic":
        return DEFAULT_MAX_TOKENS
    return named


def _recalled(stored: Sequence[StoredChoice]) -> ModelResponse:
    dropped = tuple(dict.fromkeys(name for item in stored for name in item.dropped))
    usage = Usage(len(stored), cached_requests=len(stored))
    return ModelResponse(tuple(item.choice for item in stored), usage, cached=True, dropped=dropped)


def _tokens(provider: Provider, request: ModelRequest, *, least: int, most: int) -> Tokens:
    """Of so many answers: one request may read the prompt once for all of them, or each its own."""
    if not most:
        return Tokens()
    read, written = input_tokens(request), most_written(provider, request)
    return Tokens(read if least else 0, most * read, None if written is None else most * written)


def _bound(params: Mapping[str, JsonValue]) -> int | None:
    limits = (params.get(name) for name in _LENGTH_KEYS)
    return next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)
