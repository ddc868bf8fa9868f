import asyncio

import pytest
from support.loopback import LoopbackServer, chat_reply

from geval_cli.providers.registry import build_provider
from geval_cli.providers.wire.refusals import longest_reset_s, used_up_for_s
from geval_cli.records import Message, ModelRequest
from geval_cli.specs.base import ProviderSpec

NOW_S = 1_800_000_000.0


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, 0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 360),
        ({"x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "6m0s"}, 0),
        ({"x-ratelimit-remaining-tokens": "99", "x-ratelimit-reset-tokens": "120ms"}, 0.12),
        ({"x-ratelimit-remaining-tokens": "100", "x-ratelimit-reset-tokens": "120ms"}, 0),
        (
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2027-01-15T08:00:20Z",
            },
            20,
        ),
        (
            {
                "anthropic-ratelimit-output-tokens-remaining": "5",
                "anthropic-ratelimit-output-tokens-reset": "2027-01-15T08:00:09Z",
            },
            9,
        ),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1800000004"}, 4),
        ({"x-ratelimit-remaining": "unlimited", "x-ratelimit-reset": "30"}, 0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "soon"}, 0),
        ({"x-ratelimit-reset-requests": "30s"}, 0),
    ],
)
def test_how_long_a_limit_without_anything_left_lasts(headers, wait_s):
    assert used_up_for_s(headers, now_s=NOW_S, tokens=100) == pytest.approx(wait_s)


def test_of_a_refusal_that_does_not_say_what_is_left_every_limit_counts():
    headers = {"x-ratelimit-reset-requests": "30s", "x-ratelimit-reset-tokens": "2s"}
    assert longest_reset_s(headers, NOW_S) == 30


@pytest.mark.parametrize(
    ("provider_id", "headers", "reply"),
    [
        (
            "openai:m",
            {"X-RateLimit-Remaining-Requests": "0", "X-RateLimit-Reset-Requests": "17s"},
            chat_reply("x"),
        ),
        (
            "anthropic:m",
            {"anthropic-ratelimit-tokens-remaining": "0", "anthropic-ratelimit-tokens-reset": "17"},
            chat_reply("x"),
        ),
    ],
)
def test_a_provider_hands_up_what_the_headers_say(provider_id, headers, reply, tmp_path):
    body = reply.body
    if provider_id.startswith("anthropic"):
        body = {"content": [{"type": "text", "text": "x"}], "usage": {"input_tokens": 1, "output_tokens": 1}}

    async def main(base_url):
        spec = ProviderSpec(id=provider_id, config={"base_url": base_url, "api_key": "k"})
        provider = build_provider(spec, env={}, base_dir=tmp_path)
        try:
            return await provider.complete(ModelRequest((Message("user", "hi"),)))
        finally:
            await provider.aclose()

    with LoopbackServer(respond=lambda *_: (200, headers, body)) as server:
        assert asyncio.run(main(server.base_url)).exhausted_s == 17
