"""The tokens that an answer took, as servers and programs report them: one record for all, and a plausibility check."""

import sys
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

_LARGEST = sys.float_info.max

# The most that an answer can have taken; beyond it the server counts wrongly, or means something else.
_LARGEST_COST_USD = 10_000.0
_UNSEEN_INPUT = 2_000_000  # prompts that a server adds, documents that it searches or stores, pictures
# A character without a token of its own is encoded byte by byte, and UTF-8 has at most four bytes per character.
_TOKENS_PER_CHARACTER = 4
_UNBOUNDED_OUTPUT = 2_000_000
_UNSEEN_OUTPUT = 200_000  # thoughts, which some servers do not count towards `max_tokens`
_PAST_LIMIT = 4

_TICKS_PER_USD = 10_000_000_000  # xAI's unit of money

LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")
"""The names that configs may use for the limit on new tokens."""
_LIMIT_NAMES = (*LIMITS, "max_new_tokens", "maxTokens")
_INPUT_NAMES = ("prompt", "input", "prompt_tokens", "input_tokens")
_MESSAGE_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_CONDITIONS = ("service_tier", "speed", "inference_geo")
_OUTPUT_NAMES = ("completion", "output", "completion_tokens", "output_tokens")


class TokenUsage(Struct, frozen=True):
    """The tokens of one answer, over all of its choices.

    Attributes:
        input_tokens: all tokens read, including those from the vendor's prompt cache.
        output_tokens: all tokens written, including reasoning.
        cache_read_tokens, cache_write_tokens: the part of the input that was read from, or written to, the vendor's
            prompt cache.
        long_cache_write_tokens: the part of `cache_write_tokens` that is kept for an hour.
        input_audio_tokens, output_audio_tokens: the part that was audio.
        model: the model that answered, by its own name; None when the server does not say.
        conditions: other facts that determine the price, for example {"service_tier": "flex"}.
        charged_usd: what the server says it charged; None when it does not say.
        web_searches: how often the vendor searched the web for the answer, which it charges for as well.
        is_partial: whether the vendor also did something else that it charges an unknown amount for.
        cached_audio_tokens: the part of `cache_read_tokens` that was audio; None when the server does not say.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    long_cache_write_tokens: int = 0
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    model: str | None = None
    conditions: Mapping[str, str] = field(default_factory=dict)
    charged_usd: float | None = None
    web_searches: int = 0
    is_partial: bool = False
    cached_audio_tokens: int | None = None


class Exchange(Struct, frozen=True):
    """The texts sent and received with one request, against which its token counts are checked.

    Attributes:
        sent: the request, or its text.
        texts: the answers that a model wrote; empty if none was to be written (an embedding).
        answers: the number of answers requested.
        max_tokens: the limit for each answer; None for no limit.
    """

    sent: object
    texts: tuple[str, ...] = ()
    answers: int = 1
    max_tokens: int | None = None


def plausible_tokens(tokens: TokenUsage | None, exchange: Exchange) -> TokenUsage | None:
    """Return `tokens` if they are possible for `exchange`, else None: wrong counts would make a wrong cost.

    The bounds are wide: servers add their own prompts and search results, and models produce hidden reasoning.
    """
    if tokens is None:
        return None
    limit = exchange.max_tokens
    each = _UNBOUNDED_OUTPUT if limit is None else _UNSEEN_OUTPUT + _PAST_LIMIT * limit
    is_possible = tokens.output_tokens <= each * max(1, exchange.answers)
    is_possible = is_possible and _can_be_read(tokens.input_tokens, exchange.sent)
    if any(exchange.texts):
        is_possible = is_possible and tokens.input_tokens > 0 and tokens.output_tokens > 0
    return tokens if is_possible else None


def _can_be_read(count: int, sent: object) -> bool:
    # Serializing the request is slow, and hardly any answer comes near the bound.
    return count <= _UNSEEN_INPUT or count <= _UNSEEN_INPUT + _TOKENS_PER_CHARACTER * len(str(sent))


def token_limit(params: Mapping[str, Any]) -> int | None:
    """Return the limit on new tokens that a request sends, under any of its names; the largest if there are several."""
    places = (params, part_in(params, "generationConfig"), part_in(params, "inferenceConfig"))
    given = [finite_amount(place[name]) for place in places for name in _LIMIT_NAMES if name in place]
    limits = [int(limit) for limit in given if limit]
    return max(limits, default=None)


class InvalidCountError(ValueError):
    """A reported count or amount is impossible."""


def read_chat_usage(body: Mapping[str, Any]) -> TokenUsage | None:
    """Return the tokens of a chat completion; None when the server reports none, or impossible ones."""
    usage = body.get("usage")
    if not isinstance(usage, dict) or not reports(usage, "prompt_tokens", "completion_tokens"):
        return None
    try:
        return consistent(_chat_usage(usage, body))
    except InvalidCountError:
        return None


def read_messages_usage(body: Mapping[str, Any]) -> TokenUsage | None:
    """Return the tokens of an answer in Anthropic's form, which counts cached input separately; None if unknown."""
    usage = body.get("usage")
    if not isinstance(usage, dict) or not reports(usage, "input_tokens", "output_tokens"):
        return None
    try:
        steps = entries_in(usage, "iterations")
        # The totals leave out summaries of the conversation, and a model that advises, which has its own price.
        parts = (usage, *(step for step in steps if step.get("type") == "compaction"))
        plain, output, cache_read, cache_write = (
            sum(count_in(part, name) for part in parts) for name in _MESSAGE_COUNTS
        )
        kept = [count_in(part_in(part, "cache_creation"), "ephemeral_1h_input_tokens") for part in parts]
        messages_usage = TokenUsage(
            plain + cache_read + cache_write,
            output,
            cache_read_tokens=cache_read,
            cache_write_tokens=cache_write,
            long_cache_write_tokens=sum(kept),
            model=text_in(body, "model"),
            conditions=_conditions(usage),
            web_searches=count_in(part_in(usage, "server_tool_use"), "web_search_requests"),
            is_partial=any(step.get("type") == "advisor_message" for step in steps),
        )
        return consistent(messages_usage)
    except InvalidCountError:
        return None


def reported_usage(counts: Any) -> TokenUsage | None:
    """Return the tokens that a user's program reports with its answer; None when it reports none or impossible ones."""
    if not isinstance(counts, dict):
        return None
    try:
        return TokenUsage(_named(counts, _INPUT_NAMES), _named(counts, _OUTPUT_NAMES))
    except InvalidCountError:
        return None


def reported_cost_usd(cost: Any) -> float | None:
    """Return `cost` as US dollars for one answer; None when it cannot be that."""
    amount = finite_amount(cost)
    return float(amount) if amount is not None and amount <= _LARGEST_COST_USD else None


def _chat_usage(usage: Mapping[str, Any], body: Mapping[str, Any]) -> TokenUsage:
    input_tokens, output_tokens = count_in(usage, "prompt_tokens"), count_in(usage, "completion_tokens")
    asked, written = part_in(usage, "prompt_tokens_details"), part_in(usage, "completion_tokens_details")
    # xAI and Gemini count reasoning in addition to the completion, all others within it; the total shows which it is.
    # Mistral counts speech in the total alone, and charges for it by the minute.
    heard = usage.get("prompt_audio_seconds")
    if heard:
        input_tokens = max(input_tokens, count_in(usage, "total_tokens") - output_tokens)
    if input_tokens:
        output_tokens = max(output_tokens, count_in(usage, "total_tokens") - input_tokens)
    # The cost at OpenRouter or Perplexity; with the user's own key for the vendor, the vendor's cost is added.
    cost = usage.get("cost")
    charged_usd = _amount_usd(cost.get("total_cost") if isinstance(cost, dict) else cost)
    if charged_usd is not None and usage.get("is_byok"):
        upstream = _amount_usd(part_in(usage, "cost_details").get("upstream_inference_cost"))
        charged_usd = None if upstream is None else charged_usd + upstream
    if (ticks := finite_amount(usage.get("cost_in_usd_ticks"))) is not None:
        charged_usd = ticks / _TICKS_PER_USD
    return TokenUsage(
        input_tokens,
        output_tokens,
        cache_read_tokens=count_in(asked, "cached_tokens")
        or count_in(usage, "prompt_cache_hit_tokens")  # DeepSeek
        or count_in(usage, "cached_tokens"),  # Moonshot
        cache_write_tokens=count_in(asked, "cache_write_tokens"),
        input_audio_tokens=count_in(asked, "audio_tokens"),
        output_audio_tokens=count_in(written, "audio_tokens"),
        model=text_in(body, "model"),
        conditions=_conditions(body),
        charged_usd=charged_usd,
        is_partial=bool(heard),
    )


def consistent(tokens: TokenUsage) -> TokenUsage:
    """Return `tokens`. Raises InvalidCountError if a part is larger than the whole."""
    read = (tokens.cache_read_tokens, tokens.cache_write_tokens, tokens.input_audio_tokens)
    if max(read) > tokens.input_tokens or tokens.output_audio_tokens > tokens.output_tokens:
        raise InvalidCountError
    return tokens


def reports(usage: Mapping[str, Any], *names: str) -> bool:
    """Return whether a usage contains one of `names`."""
    return any(usage.get(name) is not None for name in names)


def part_in(usage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a mapping inside a usage; an empty one when it is missing."""
    part = usage.get(name)
    return part if isinstance(part, dict) else {}


def entries_in(place: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the mappings in a list inside a part of a reply; none when the list is missing."""
    listed = place.get(name)
    return [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []


def count_in(usage: Mapping[str, Any], name: str) -> int:
    """Return a whole number of at least 0, possibly written as 7.0; 0 when it is missing."""
    value = usage.get(name)
    if value is None:
        return 0
    if type(value) is int and 0 <= value <= _LARGEST:  # nearly all
        return value
    count = whole_count(value)
    if count is None:
        raise InvalidCountError(name)
    return count


def _named(counts: Mapping[str, Any], names: tuple[str, ...]) -> int:
    return next((count_in(counts, name) for name in names if counts.get(name) is not None), 0)


def whole_count(value: Any) -> int | None:
    """Return `value` if it is a whole number of at least 0, else None."""
    amount = finite_amount(value)
    return None if amount is None or amount != int(amount) else int(amount)


def finite_amount(value: Any) -> float | None:
    """Return `value` if it is a number of at least 0 that fits into a float, else None."""
    is_other = type(value) is not int  # most values are int, and the tests below are slower
    if is_other and (value is None or isinstance(value, bool) or not isinstance(value, (int, float))):
        return None
    return value if 0 <= value <= _LARGEST else None


def text_in(body: Mapping[str, Any], name: str) -> str | None:
    """Return a text; None when it is missing or empty."""
    value = body.get(name)
    return value if isinstance(value, str) and value else None


def _conditions(reported: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name in _CONDITIONS if (value := text_in(reported, name)) is not None}


def _amount_usd(value: Any) -> float | None:
    """Return US dollars; None if the value is not a number, as other servers use this name for other things."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    amount = reported_cost_usd(value)
    if amount is None:
        raise InvalidCountError
    return amount
