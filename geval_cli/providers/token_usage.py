"""How many tokens an answer took, as servers report it: one record for the two wire formats."""

import sys
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

_LARGEST = sys.float_info.max


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


def read_chat_usage(body: Mapping[str, Any]) -> TokenUsage | None:
    """The tokens of a chat completion; None when the server counts none."""
    usage = body.get("usage")
    if not isinstance(usage, dict) or not _reports(usage, "prompt_tokens", "completion_tokens"):
        return None
    input_tokens, output_tokens = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    asked, written = _part(usage, "prompt_tokens_details"), _part(usage, "completion_tokens_details")
    reasoning = _count(written, "reasoning_tokens")
    if reasoning and _count(usage, "total_tokens") == input_tokens + output_tokens + reasoning:
        # xAI counts reasoning beside the completion, all others within it; the total tells which it is.
        output_tokens += reasoning
    return TokenUsage(
        input_tokens,
        output_tokens,
        cache_read_tokens=_count(asked, "cached_tokens") or _count(usage, "prompt_cache_hit_tokens"),
        cache_write_tokens=_count(asked, "cache_write_tokens"),
        input_audio_tokens=_count(asked, "audio_tokens"),
        output_audio_tokens=_count(written, "audio_tokens"),
        model=_text(body, "model"),
        conditions=_conditions(body),
        charged_usd=_charged_usd(usage),
    )


def read_messages_usage(body: Mapping[str, Any]) -> TokenUsage | None:
    """The tokens of an answer in Anthropic's form, which counts cached input apart; None when there are none."""
    usage = body.get("usage")
    if not isinstance(usage, dict) or not _reports(usage, "input_tokens", "output_tokens"):
        return None
    cache_read, cache_write = (
        _count(usage, "cache_read_input_tokens"),
        _count(usage, "cache_creation_input_tokens"),
    )
    return TokenUsage(
        _count(usage, "input_tokens") + cache_read + cache_write,
        _count(usage, "output_tokens"),
        cache_read_tokens=cache_read,
        cache_write_tokens=cache_write,
        long_cache_write_tokens=_count(_part(usage, "cache_creation"), "ephemeral_1h_input_tokens"),
        model=_text(body, "model"),
        conditions=_conditions(usage),
    )


def _reports(usage: Mapping[str, Any], *names: str) -> bool:
    return any(finite_amount(usage.get(name)) is not None for name in names)


def _part(usage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = usage.get(name)
    return part if isinstance(part, dict) else {}


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return 0 if value is None else int(finite_amount(value) or 0)


def finite_amount(value: Any) -> float | None:
    """`value` if it is a number from 0 to what a float can hold, else None."""
    is_other = type(value) is not int  # which most are: the tests below take longer
    if is_other and (value is None or isinstance(value, bool) or not isinstance(value, (int, float))):
        return None
    return value if 0 <= value <= _LARGEST else None


def _text(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    return value if isinstance(value, str) and value else None


def _conditions(reported: Mapping[str, Any]) -> dict[str, str]:
    named = {name: _text(reported, name) for name in ("service_tier", "speed")}
    return {name: value for name, value in named.items() if value is not None}


def _charged_usd(usage: Mapping[str, Any]) -> float | None:
    """OpenRouter's own bill; with a key of the user's own at the vendor, the vendor's bill comes on top."""
    charged = finite_amount(usage.get("cost"))
    if charged is None or not usage.get("is_byok"):
        return charged
    upstream = finite_amount(_part(usage, "cost_details").get("upstream_inference_cost"))
    return None if upstream is None else charged + upstream
