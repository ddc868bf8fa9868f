from typing import Any

import pytest

from geval_cli.providers.token_usage import TokenUsage, read_chat_usage, read_messages_usage


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


def test_deepseeks_own_name_for_cached_input_is_understood() -> None:
    found = chat({"prompt_tokens": 100, "completion_tokens": 1, "prompt_cache_hit_tokens": 64})
    assert found is not None
    assert found.cache_read_tokens == 64


@pytest.mark.parametrize(
    "usage", [None, {}, [], "12", {"prompt_tokens": None}, {"prompt_tokens": "7"}, {"prompt_tokens": True}]
)
def test_tokens_that_are_not_counted_are_unknown_and_not_0(usage: Any) -> None:
    assert chat(usage) is None
    assert read_messages_usage({"usage": usage}) is None


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -3, "5", None, True])
def test_an_odd_count_is_0(odd: Any) -> None:
    found = chat(
        {"prompt_tokens": 7, "completion_tokens": odd, "prompt_tokens_details": {"cached_tokens": odd}}
    )
    assert found == TokenUsage(7)


@pytest.mark.parametrize(
    ("usage", "charged"),
    [
        ({"cost": 0.95, "cost_details": {"upstream_inference_cost": None}}, 0.95),
        ({"cost": 0.05, "is_byok": True, "cost_details": {"upstream_inference_cost": 1.0}}, 1.05),
        ({"cost": 0.05, "is_byok": True}, None),
        ({"cost": 0}, 0),
        ({"cost": "free"}, None),
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
