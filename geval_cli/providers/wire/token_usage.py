"""How many tokens an answer took, as servers and programs report it: one record for all, and what can be believed."""

import sys
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

_LARGEST = sys.float_info.max

# What an answer can have taken at most; beyond it the server counts wrongly, or speaks of something else.
_LARGEST_COST_USD = 10_000.0
_UNSEEN_INPUT = 2_000_000  # prompts that a server adds, documents that it searches or has in store, pictures
# A character that no token stands for is spelt byte by byte, and UTF-8 has four bytes at most.
_TOKENS_PER_CHARACTER = 4
_UNBOUNDED_OUTPUT = 2_000_000
_UNSEEN_OUTPUT = 200_000  # thoughts, which some servers count beside `max_tokens`
_PAST_LIMIT = 4

_TICKS_PER_USD = 10_000_000_000  # xAI's unit of money

LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")
"""The limit on new tokens under each of the names that configs may use."""
_LIMIT_NAMES = (*LIMITS, "max_new_tokens", "maxTokens")
_INPUT_NAMES = ("prompt", "input", "prompt_tokens", "input_tokens")
_CONDITIONS = ("service_tier", "speed", "inference_geo")
_OUTPUT_NAMES = ("completion", "output", "completion_tokens", "output_tokens")


class TokenUsage(Struct, frozen=True):
    """Tokens of one answer, all of its choices together.

    Attributes:
        input_tokens: all that was read, from the vendor's prompt cache too.
        output_tokens: all that was written, reasoning too.
        cache_read_tokens, cache_write_tokens: which part of the input came from the vendor's prompt cache, or was
            put there.
        long_cache_write_tokens: which part of `cache_write_tokens` is kept for an hour.
        input_audio_tokens, output_audio_tokens: which part was sound.
        model: the model that answered, by its own name; None when the server does not say.
        conditions: what else decides the price, for example {"service_tier": "flex"}.
        charged_usd: what the server says it charged; None when it does not say.
        web_searches: how often the vendor searched the web for the answer, for which it takes money, too.
        is_partial: whether the vendor did something else, too, for which it takes an amount that nobody knows here.
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


class Exchange(Struct, frozen=True):
    """The texts that one request sent and got, by which its token counts are checked.

    Attributes:
        sent: the request, or its text.
        texts: the answers that a model wrote; empty where none was to be written (an embedding).
        answers: how many were asked for.
        max_tokens: what each was limited to; None for no limit.
    """

    sent: object
    texts: tuple[str, ...] = ()
    answers: int = 1
    max_tokens: int | None = None


def believed(tokens: TokenUsage | None, exchange: Exchange) -> TokenUsage | None:
    """`tokens` if `exchange` can have taken them, else None: counts that are wrong would make a cost that is.

    The bounds are wide: servers add prompts of their own and what they searched for, and models think unseen.
    """
    if tokens is None:
        return None
    each = (
        _UNBOUNDED_OUTPUT
        if exchange.max_tokens is None
        else _UNSEEN_OUTPUT + _PAST_LIMIT * exchange.max_tokens
    )
    is_possible = _can_be_read(tokens.input_tokens, exchange.sent) and tokens.output_tokens <= each * max(
        1, exchange.answers
    )
    if any(exchange.texts):
        is_possible = is_possible and tokens.input_tokens > 0 and tokens.output_tokens > 0
    return tokens if is_possible else None


def _can_be_read(count: int, sent: object) -> bool:
    # Writing the request out takes long, and hardly any answer comes near the bound.
    return count <= _UNSEEN_INPUT or count <= _UNSEEN_INPUT + _TOKENS_PER_CHARACTER * len(str(sent))


def token_limit(params: Mapping[str, Any]) -> int | None:
    """The limit on written tokens that a request sends, under any of its names; the largest if there are several."""
    places = (params, part_in(params, "generationConfig"), part_in(params, "inferenceConfig"))
    given = [finite_amount(place[name]) for place in places for name in _LIMIT_NAMES if name in place]
    limits = [int(limit) for limit in given if limit]
    return max(limits, default=None)


class InvalidCountError(ValueError):
    """A count or an amount is there, and cannot be one."""


def read_chat_usage(body: Mapping[str, Any]) -> TokenUsage | None:
    """Return the tokens of a chat completion; None when the server counts none, or what it says cannot be."""
    usage = body.get("usage")
    if not isinstance(usage, dict) or not reports(usage, "prompt_tokens", "completion_tokens"):
        return None
    try:
        return consistent(_chat_usage(usage, body))
    except InvalidCountError:
        return None


def read_messages_usage(body: Mapping[str, Any]) -> TokenUsage | None:
    """The tokens of an answer in Anthropic's form, which counts cached input apart; None as for a chat completion."""
    usage = body.get("usage")
    if not isinstance(usage, dict) or not reports(usage, "input_tokens", "output_tokens"):
        return None
    try:
        cache_read = count_in(usage, "cache_read_input_tokens")
        cache_write = count_in(usage, "cache_creation_input_tokens")
        messages_usage = TokenUsage(
            count_in(usage, "input_tokens") + cache_read + cache_write,
            count_in(usage, "output_tokens"),
            cache_read_tokens=cache_read,
            cache_write_tokens=cache_write,
            long_cache_write_tokens=count_in(part_in(usage, "cache_creation"), "ephemeral_1h_input_tokens"),
            model=text_in(body, "model"),
            conditions=_conditions(usage),
            web_searches=count_in(part_in(usage, "server_tool_use"), "web_search_requests"),
        )
        return consistent(messages_usage)
    except InvalidCountError:
        return None


def reported_usage(counts: Any) -> TokenUsage | None:
    """Return the tokens that a program of the user's names beside its answer; None as for a chat completion."""
    if not isinstance(counts, dict):
        return None
    try:
        return TokenUsage(_named(counts, _INPUT_NAMES), _named(counts, _OUTPUT_NAMES))
    except InvalidCountError:
        return None


def reported_cost_usd(cost: Any) -> float | None:
    """US dollars for one answer; None when `cost` cannot be that."""
    amount = finite_amount(cost)
    return float(amount) if amount is not None and amount <= _LARGEST_COST_USD else None


def _chat_usage(usage: Mapping[str, Any], body: Mapping[str, Any]) -> TokenUsage:
    input_tokens, output_tokens = count_in(usage, "prompt_tokens"), count_in(usage, "completion_tokens")
    asked, written = part_in(usage, "prompt_tokens_details"), part_in(usage, "completion_tokens_details")
    # xAI and Gemini count reasoning beside the completion, all others within it; the total tells which it is.
    if input_tokens:
        output_tokens = max(output_tokens, count_in(usage, "total_tokens") - input_tokens)
    # The bill of OpenRouter or Perplexity; with a key of the user's own at the vendor, the vendor's bill comes on top.
    cost = usage.get("cost")
    charged = _amount_usd(cost.get("total_cost") if isinstance(cost, dict) else cost)
    if charged is None or not usage.get("is_byok"):
        charged_usd = charged
    else:
        upstream = _amount_usd(part_in(usage, "cost_details").get("upstream_inference_cost"))
        charged_usd = None if upstream is None else charged + upstream
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
    )


def consistent(tokens: TokenUsage) -> TokenUsage:
    """Return `tokens`. Raises InvalidCountError where a part is larger than the whole."""
    read = (tokens.cache_read_tokens, tokens.cache_write_tokens, tokens.input_audio_tokens)
    if max(read) > tokens.input_tokens or tokens.output_audio_tokens > tokens.output_tokens:
        raise InvalidCountError
    return tokens


def reports(usage: Mapping[str, Any], *names: str) -> bool:
    """Return whether a usage says one of `names`."""
    return any(usage.get(name) is not None for name in names)


def part_in(usage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a mapping inside a usage; an empty one when it is not there."""
    part = usage.get(name)
    return part if isinstance(part, dict) else {}


def count_in(usage: Mapping[str, Any], name: str) -> int:
    """Return a whole number from 0, also one that is written as 7.0; 0 when nothing is said."""
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
    """`value` if it is a whole number from 0, else None."""
    amount = finite_amount(value)
    return None if amount is None or amount != int(amount) else int(amount)


def finite_amount(value: Any) -> float | None:
    """`value` if it is a number from 0 to what a float can hold, else None."""
    is_other = type(value) is not int  # which most are: the tests below take longer
    if is_other and (value is None or isinstance(value, bool) or not isinstance(value, (int, float))):
        return None
    return value if 0 <= value <= _LARGEST else None


def text_in(body: Mapping[str, Any], name: str) -> str | None:
    """Return a text; None when there is none, or an empty one."""
    value = body.get(name)
    return value if isinstance(value, str) and value else None


def _conditions(reported: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name in _CONDITIONS if (value := text_in(reported, name)) is not None}


def _amount_usd(value: Any) -> float | None:
    """US dollars; None of what is no number, as other servers put other things under this name."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    amount = reported_cost_usd(value)
    if amount is None:
        raise InvalidCountError
    return amount
