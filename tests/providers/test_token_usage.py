import math
from typing import Any

import pytest

from geval_cli.providers.wire.token_usage import (
    Exchange,
    TokenUsage,
    plausible_tokens,
    read_chat_usage,
    read_messages_usage,
    token_limit,
)


def chat(usage: Any, **body: Any) -> TokenUsage | None:
    return read_chat_usage({"usage": usage, **body})


def test_cached_input_and_sound_are_parts_of_what_was_read() -> None:
    usage = {
        "prompt_tokens": 2006,
        "completion_tokens": 300,
        "total_tokens": 2306,
        "prompt_tokens_details": {"cached_tokens": 1920, "audio_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 200, "audio_tokens": 7},
    }
    assert chat(usage, model="gpt-4o-2024-11-20", service_tier="flex") == TokenUsage(
        2006,
        300,
        cache_read_tokens=1920,
        input_audio_tokens=5,
        output_audio_tokens=7,
        model="gpt-4o-2024-11-20",
        conditions={"service_tier": "flex"},
    )


def test_reasoning_that_is_counted_beside_the_completion_is_output_too() -> None:
    usage = {
        "prompt_tokens": 32,
        "completion_tokens": 9,
        "total_tokens": 135,
        "completion_tokens_details": {"reasoning_tokens": 94},
    }
    found = chat(usage)
    assert found is not None
    assert (found.input_tokens, found.output_tokens) == (32, 103)


@pytest.mark.parametrize(
    ("usage", "output_tokens"),
    [
        ({"prompt_tokens": 20, "completion_tokens": 424, "total_tokens": 1016}, 996),  # Gemini
        ({"prompt_tokens": 20, "completion_tokens": 424, "total_tokens": 444}, 424),
        ({"prompt_tokens": 20, "completion_tokens": 424, "total_tokens": 0}, 424),
        ({"prompt_tokens": 20, "completion_tokens": 424}, 424),
        ({"completion_tokens": 424, "total_tokens": 444}, 424),
    ],
)
def test_a_total_tells_of_thoughts_that_are_counted_nowhere_else(
    usage: dict[str, int], output_tokens: int
) -> None:
    found = chat(usage)
    assert found is not None
    assert found.output_tokens == output_tokens


@pytest.mark.parametrize("seconds", [203, None, 0])
def test_speech_that_mistral_charges_for_by_the_minute_has_no_price_by_tokens(seconds: int | None) -> None:
    counts = {"prompt_tokens": 4, "completion_tokens": 635, "total_tokens": 3264}
    found = chat({**counts, "prompt_audio_seconds": seconds})
    assert found is not None
    expected = (2629, 635, True) if seconds else (4, 3260, False)
    assert (found.input_tokens, found.output_tokens, found.is_partial) == expected


@pytest.mark.parametrize(
    "cached",
    [
        {"prompt_tokens_details": {"cached_tokens": 64}},
        {"prompt_cache_hit_tokens": 64},
        {"cached_tokens": 64},
    ],
    ids=["OpenAI", "DeepSeek", "Moonshot"],
)
def test_cached_input_is_read_wherever_a_vendor_counts_it(cached: dict[str, Any]) -> None:
    found = chat({"prompt_tokens": 100, "completion_tokens": 1, **cached})
    assert found is not None
    assert found.cache_read_tokens == 64


@pytest.mark.parametrize(
    "usage", [None, {}, [], "12", {"prompt_tokens": None}, {"prompt_tokens": "7"}, {"prompt_tokens": True}]
)
def test_tokens_that_are_not_counted_are_unknown_and_not_0(usage: Any) -> None:
    assert chat(usage) is None
    assert read_messages_usage({"usage": usage}) is None


SENSELESS = [math.nan, math.inf, -3, 7.5, "5", True, [5], {"count": 5}, 10**400]


@pytest.mark.parametrize("odd", SENSELESS)
@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens", "total_tokens"])
def test_one_count_that_cannot_be_makes_all_of_a_chat_completion_unknown(name: str, odd: Any) -> None:
    thought = {"completion_tokens_details": {"reasoning_tokens": 1}}  # for which the total is looked at
    assert (
        chat({"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, **thought, name: odd}) is None
    )


@pytest.mark.parametrize("odd", [*SENSELESS, 8])
def test_a_part_that_cannot_be_or_is_larger_than_the_whole_makes_it_unknown(odd: Any) -> None:
    for name in ("cached_tokens", "audio_tokens", "cache_write_tokens"):
        whole = {"prompt_tokens": 7, "completion_tokens": 3}
        assert chat({**whole, "prompt_tokens_details": {name: odd}}) is None
    assert chat({**whole, "completion_tokens_details": {"audio_tokens": odd}}) is None


@pytest.mark.parametrize("odd", SENSELESS)
@pytest.mark.parametrize(
    "name", ["input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"]
)
def test_one_count_that_cannot_be_makes_all_of_a_message_unknown(name: str, odd: Any) -> None:
    assert read_messages_usage({"usage": {"input_tokens": 7, "output_tokens": 3, name: odd}}) is None


def step(kind: str, *counts: Any) -> dict[str, Any]:
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return {"type": kind, **dict(zip(names, counts, strict=False))}


@pytest.mark.parametrize(
    ("steps", "counts"),
    [
        (None, (7, 3, 0, 0)),
        ([], (7, 3, 0, 0)),
        ("x", (7, 3, 0, 0)),
        ([None, 5, {}], (7, 3, 0, 0)),
        ([step("message", 7, 3)], (7, 3, 0, 0)),
        ([step("compaction", 100, 10), step("message", 7, 3)], (107, 13, 0, 0)),
        ([step("compaction", 100, 10, 20, 30), step("compaction", 1, 1, 2, 3)], (163, 14, 22, 33)),
        ([step("compaction", "100", 10)], None),
        ([step("compaction", -1, 10)], None),
    ],
)
def test_the_summaries_of_a_long_conversation_count_which_the_totals_leave_out(
    steps: Any, counts: tuple[int, ...] | None
) -> None:
    found = read_messages_usage({"usage": {"input_tokens": 7, "output_tokens": 3, "iterations": steps}})
    assert (found and (found.input_tokens, found.output_tokens)) == (counts and counts[:2])
    assert (found and (found.cache_read_tokens, found.cache_write_tokens)) == (counts and counts[2:])


def test_a_whole_number_may_be_written_with_a_point_and_what_is_null_is_not_said() -> None:
    usage = {"prompt_tokens": 7.0, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": None}}
    assert chat(usage) == TokenUsage(7, 3)


LONGEST_INPUT, LONGEST_OUTPUT = 2_000_000, 2_000_000


@pytest.mark.parametrize(
    ("tokens", "exchange", "is_plausible"),
    [
        (TokenUsage(7, 3), Exchange("hello", ("hi",)), True),
        (TokenUsage(7, 0), Exchange("hello", ("",)), True),
        (TokenUsage(7, 0), Exchange("hello"), True),
        (TokenUsage(7, 0), Exchange("hello", ("hi",)), False),
        (TokenUsage(0, 3), Exchange("hello", ("hi",)), False),
        (TokenUsage(LONGEST_INPUT, 3), Exchange("hello", ("hi",)), True),
        (TokenUsage(LONGEST_INPUT + 21, 3), Exchange("hello", ("hi",)), False),
        (TokenUsage(LONGEST_INPUT + 21, 3), Exchange("hello there", ("hi",)), True),
        (TokenUsage(7, LONGEST_OUTPUT), Exchange("hello", ("hi",)), True),
        (TokenUsage(7, LONGEST_OUTPUT + 1), Exchange("hello", ("hi",)), False),
        (TokenUsage(7, LONGEST_OUTPUT + 1), Exchange("hello", ("hi", "ho"), answers=2), True),
        (TokenUsage(7, 200_040), Exchange("hello", ("hi",), max_tokens=10), True),
        (TokenUsage(7, 200_041), Exchange("hello", ("hi",), max_tokens=10), False),
    ],
)
def test_counts_are_believed_as_far_as_the_texts_can_have_taken_them(
    tokens: TokenUsage, exchange: Exchange, is_plausible: bool
) -> None:
    assert plausible_tokens(tokens, exchange) == (tokens if is_plausible else None)


@pytest.mark.parametrize(
    ("params", "limit"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5, "max_tokens": None}, 5),
        ({"max_output_tokens": 6}, 6),
        ({"generationConfig": {"maxOutputTokens": 7}}, 7),
        ({"max_tokens": "many"}, None),
    ],
)
def test_a_limit_is_found_under_each_of_its_names(params: dict[str, Any], limit: int | None) -> None:
    assert token_limit(params) == limit


@pytest.mark.parametrize("cost", [-1, math.nan, math.inf, 10_001, 10**400])
def test_a_charge_that_cannot_be_makes_the_usage_unknown(cost: float) -> None:
    assert chat({"prompt_tokens": 7, "completion_tokens": 3, "cost": cost}) is None


@pytest.mark.parametrize(
    ("usage", "charged"),
    [
        ({"cost": 0.95, "cost_details": {"upstream_inference_cost": None}}, 0.95),
        ({"cost": 0.05, "is_byok": True, "cost_details": {"upstream_inference_cost": 1.0}}, 1.05),
        ({"cost": 0.05, "is_byok": True}, None),
        ({"cost": 0}, 0),
        ({"cost": "free"}, None),
        ({"cost_in_usd_ticks": 127_344_000}, 0.0127344),
        ({"cost_in_usd_ticks": None}, None),
    ],
)
def test_what_a_server_charged_is_the_whole_bill_or_unknown(
    usage: dict[str, Any], charged: float | None
) -> None:
    found = chat({"prompt_tokens": 194, "completion_tokens": 2, **usage})
    assert found is not None
    assert found.charged_usd == charged


def test_anthropic_counts_cached_input_apart_and_it_is_input_all_the_same() -> None:
    body = {
        "model": "claude-sonnet-4-5-20250929",
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 300,
            "cache_read_input_tokens": 2000,
            "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200},
            "output_tokens": 5,
            "service_tier": "standard",
        },
    }
    assert read_messages_usage(body) == TokenUsage(
        2310,
        5,
        cache_read_tokens=2000,
        cache_write_tokens=300,
        long_cache_write_tokens=200,
        model="claude-sonnet-4-5-20250929",
        conditions={"service_tier": "standard"},
    )
