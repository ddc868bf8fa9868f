"""Token prices: the config's own price, otherwise the vendor's list price in geval's table.

The table is the installed version of the package genai-prices: nothing is fetched. An unknown price is None, never 0.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from geval_cli.providers.network.addresses import split_url
from geval_cli.providers.preset_table import PRESETS
from geval_cli.providers.wire.token_usage import TokenUsage

LIST_PRICE = "list"
"""The `price` of a provider that means the vendor's list price, even behind a gateway or a test server."""

# Vendors list US dollars per million tokens.
_TOKENS_PER_PRICE = 1_000_000

_AZURE = "azure"
_VENDOR_OF_HOST = {
    "api.together.ai": "together",
    **{
        str(split_url(preset.base_url).hostname): preset.price_vendor
        for preset in PRESETS.values()
        if preset.price_vendor
    },
}
_HALF_IN_BATCHES = frozenset({"azure", "google", "mistral"})
"""Vendors that list half the price for every model in batches, where the table has no batch price of its own.

ai.google.dev/gemini-api/docs/batch-api, docs.mistral.ai/studio-api/batch-processing and
learn.microsoft.com/azure/foundry/openai/how-to/batch, as of November 2026.
"""
_WITH_TIERS = frozenset({"aws", "azure", "fireworks", "google", "openai"})
"""Vendors that charge more or less for other service tiers, few of which are in the table."""
_TIERS = ("fast", "flex", "offpeak", "priority", "provisioned_throughput", "reserved", "scale", "ultrafast")
"""Tiers, and the speed of Claude, that never cost what the usual tier does."""
_HALF_TIER = ("google", "flex")
"""The vendor and tier with half the usual price for every model: ai.google.dev/gemini-api/docs/flex-inference."""
_OF_US_ALONE = 1.1
"""The price factor for Claude within the United States only: platform.claude.com/docs/manage-claude/data-residency."""
_TELLS_ITS_BILL = frozenset({"openrouter", "perplexity", "x-ai"})
"""Vendors whose answers report their total cost, searches included."""
_VERTEX_HOST = "aiplatform.googleapis.com"
_VERTEX_REGIONS = (f"-{_VERTEX_HOST}", ".rep.googleapis.com")
"""Regional hosts: Gemini costs the same there as everywhere, Claude costs more."""
AZURE_URL = "https://any.openai.azure.com"
_AZURE_DOMAINS = (".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com")


class Price(Protocol):
    """A provider's price for tokens; equal objects are the same price."""

    def __hash__(self) -> int: ...

    def prepare(self) -> None:
        """Do slow preparation in advance, so that it does not delay an answer that is being received."""
        ...

    def cost_usd(self, tokens: TokenUsage | None) -> float | None:
        """Return US dollars for `tokens`; None when they or their price are unknown."""
        ...


class FixedPrice(Struct, frozen=True):
    """US dollars per million tokens. Input from the vendor's prompt cache costs `cached_input_usd`, if set."""

    input_usd: float
    output_usd: float
    cached_input_usd: float | None = None

    def prepare(self) -> None:
        """Do nothing: no preparation is needed."""

    def cost_usd(self, tokens: TokenUsage | None) -> float | None:
        if not self.input_usd and not self.output_usd and not self.cached_input_usd:
            return 0.0
        if tokens is None:
            return None
        cached_usd = self.input_usd if self.cached_input_usd is None else self.cached_input_usd
        cached = min(tokens.cache_read_tokens, tokens.input_tokens)
        input_cost = (tokens.input_tokens - cached) * self.input_usd + cached * cached_usd
        return (input_cost + tokens.output_tokens * self.output_usd) / _TOKENS_PER_PRICE


FREE = FixedPrice(0.0, 0.0)

FREE_KINDS = frozenset({"echo", "scripted", "local"})
"""Kinds of providers, as ids begin, that cost nothing; the cost of other programs and servers is unknown."""

_SOME_TOKENS = TokenUsage(input_tokens=1_000, output_tokens=1_000)


@runtime_checkable
class Priced(Protocol):
    """A provider that knows its price."""

    @property
    def price(self) -> Price | None: ...


@runtime_checkable
class BatchPriced(Protocol):
    """A provider that knows its price for answers in batches."""

    @property
    def batch_price(self) -> Price | None: ...


def known_price(provider: object, *, is_batched: bool = False) -> Price | None:
    """Return the price of `provider` if it is known before an answer arrives; otherwise None.

    It is not known for a deployment whose model only the answers name. `is_batched` selects the price in batches.
    """
    if is_batched:
        price = provider.batch_price if isinstance(provider, BatchPriced) else None
    else:
        price = provider.price if isinstance(provider, Priced) else None
    return None if price is None else _as_known(price)


@lru_cache(maxsize=64)  # a plan needs it for each request
def _as_known(price: Price) -> Price | None:
    price.prepare()
    cost_usd = price.cost_usd(_SOME_TOKENS)
    return FREE if cost_usd == 0 else None if cost_usd is None else price


class ListPrice(Struct, frozen=True):
    """The price that a vendor lists for a model.

    Attributes:
        vendor: the vendor's name in the table.
        model: the model's name in the config; the name in an answer is more exact and is tried first. Empty if the
            config's name says nothing (a deployment at Azure).
        is_batch: whether this is the price in batches; unknown if the table lists none.
    """

    vendor: str
    model: str
    is_batch: bool = False

    def prepare(self) -> None:
        """Import the table, which takes 80 ms."""
        import_module("genai_prices.data")

    def cost_usd(self, tokens: TokenUsage | None) -> float | None:
        if tokens is None:
            return None
        if self.vendor in _TELLS_ITS_BILL and tokens.charged_usd is not None:
            return tokens.charged_usd
        if tokens.is_partial:
            return None
        costs = (self._listed_usd(name, tokens) for name in (tokens.model, self.model) if name)
        return next((cost for cost in costs if cost is not None), None)

    def _listed_usd(self, model: str, tokens: TokenUsage) -> float | None:
        table = import_module("genai_prices")
        counts = {
            "input_tokens": tokens.input_tokens,
            "output_tokens": tokens.output_tokens,
            "cache_read_tokens": tokens.cache_read_tokens,
            "cache_write_tokens": tokens.cache_write_tokens,
            "cache_write_1h_tokens": tokens.long_cache_write_tokens,
            "input_audio_tokens": tokens.input_audio_tokens,
            "output_audio_tokens": tokens.output_audio_tokens,
            "cache_audio_read_tokens": tokens.cached_audio_tokens,
            # OpenAI's models that search for each answer do not report it.
            "web_searches": tokens.web_searches or int("-search-" in model),
        }
        usage = table.Usage(**{name: count for name, count in counts.items() if count is not None})
        conditions = dict(tokens.conditions)
        # The table has no prices by region.
        share = _OF_US_ALONE if conditions.pop("inference_geo", "") == "us" else 1.0
        special = {**conditions, "processing": "batch"} if self.is_batch else conditions
        tier = conditions.get("service_tier" if self.vendor in _WITH_TIERS else "speed")
        try:
            found = table.calc_price(usage, model, provider_id=self.vendor, price_context=special)
            if (self.is_batch or tier in _TIERS) and found.total_price:
                usual = {} if tier else conditions
                is_half = (
                    self.vendor in _HALF_IN_BATCHES if self.is_batch else (self.vendor, tier) == _HALF_TIER
                )
                direct = table.calc_price(usage, model, provider_id=self.vendor, price_context=usual)
                if direct.total_price == found.total_price:
                    # The table has no price for the batch or tier, and fell back to the usual one.
                    if not is_half:
                        return None
                    share *= 0.5
        except (LookupError, ValueError):
            # Unknown to the table, or counts that contradict each other (more cached tokens than there are).
            return None
        # Embedding models have no output, and no price for it.
        needed = ["input_mtok", "output_mtok"] if tokens.output_tokens else ["input_mtok"]
        # Without a price for audio the table would count it as text, which costs a fraction of it.
        needed += ["input_audio_mtok"] if tokens.input_audio_tokens else []
        needed += ["output_audio_mtok"] if tokens.output_audio_tokens else []
        needed += ["web_searches_kcount"] if counts["web_searches"] else []
        is_listed = all(getattr(found.model_price, name) is not None for name in needed)
        return float(found.total_price) * share if is_listed else None


def similar_model(provider_id: str, model: str) -> str | None:
    """Return the listed model of a vendor whose name is closest to `model`; None if none is similar."""
    vendor = provider_id.partition(":")[0]
    listed = [entry for entry in import_module("genai_prices.data").providers if entry.id == vendor]
    names = [item.id for entry in listed for item in entry.models if ":" not in item.id]
    return next(iter(get_close_matches(model, [name for name in names if name != model], 1, 0.75)), None)


def price_of(settings: Mapping[str, Any], *, url: str = "", model: str = "") -> Price | None:
    """Return the `price` in the config's own `settings`, else the list price at the host of `url`; None when unknown.

    The owner of the host sends the bill: a gateway in front of a vendor has its own prices. For `price: list` the
    caller passes the vendor's own `url`, whichever host is called.
    """
    named = settings.get("price")
    if named is not None and named != LIST_PRICE:
        return _fixed_price(named)
    host = (split_url(url).hostname or "").lower()
    if host.endswith(_AZURE_DOMAINS):
        return ListPrice(_AZURE, "")
    if host == _VERTEX_HOST or (host.endswith(_VERTEX_REGIONS) and not model.startswith("claude")):
        return ListPrice("google", model)
    vendor = _VENDOR_OF_HOST.get(host)
    return None if vendor is None else ListPrice(vendor, model)


def batch_price_of(settings: Mapping[str, Any], *, url: str = "", model: str = "") -> Price | None:
    """Return the price of answers in batches, from the same sources as `price_of`; None when unknown."""
    named = settings.get("price")
    if named is not None and named != LIST_PRICE:
        if "batch" in named:
            return _fixed_price(named["batch"])
        price = _fixed_price(named)
        return price if price.cost_usd(None) == 0 else None  # a free provider is free in batches, too
    listed = price_of(settings, url=url, model=model)
    return ListPrice(listed.vendor, listed.model, is_batch=True) if isinstance(listed, ListPrice) else None


def _fixed_price(named: Mapping[str, Any]) -> FixedPrice:
    cached = named.get("cached_input")
    return FixedPrice(
        float(named["input"]), float(named["output"]), None if cached is None else float(cached)
    )
