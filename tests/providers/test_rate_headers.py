import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loopback import LoopbackServer, chat_reply

from geval_cli.providers.network.messages import HttpResponse
from geval_cli.providers.registry import build_provider
from geval_cli.providers.wire.refusals import exhausted_for_s, longest_reset_s, retry_after_s
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
        ({"x-ratelimit-remaining-requests": "-1", "x-ratelimit-reset-requests": "30"}, 0),
        ({"x-ratelimit-remaining-tokens": "-1", "x-ratelimit-reset-tokens": "30"}, 0),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "soon"}, 0),
        ({"x-ratelimit-reset-requests": "30s"}, 0),
    ],
)
def test_how_long_a_limit_without_anything_left_lasts(headers, wait_s):
    assert exhausted_for_s(headers, now_s=NOW_S, tokens=100) == pytest.approx(wait_s)


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

    with LoopbackServer(respond=lambda *_: (200, headers, body)) as server:
        assert asyncio.run(asked(provider_id, server.base_url, tmp_path)).exhausted_s == 17


async def asked(provider_id, base_url, folder):
    spec = ProviderSpec(id=provider_id, config={"base_url": base_url, "api_key": "k"})
    provider = build_provider(spec, env={}, base_dir=folder)
    try:
        return await provider.complete(ModelRequest((Message("user", "hi"),)))
    finally:
        await provider.aclose()


HUGE = "9" * 400
ODD = [
    HUGE,
    f"-{HUGE}",
    f"{HUGE}.5",
    f"{HUGE}s",
    f"{HUGE}h1m",
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "[" * 5000,
]
ODD += [
    "9" * 5000,
    "true",
    "null",
    "{}",
    "Wed, 99 Foo 9999 99:99:99 GMT",
    "Fri, 31 Dec 9999 23:59:59 +9999",
    "1,2",
]
ODD += ["9999-12-31T23:59:59+00:01", "0001-01-01T00:00:00+23:59", "\u0663", "", " ", "\x00"]
NAMES = ["retry-after", "retry-after-ms", "x-ratelimit-reset-requests", "x-ratelimit-remaining-requests"]
NAMES += ["anthropic-ratelimit-tokens-reset", "anthropic-ratelimit-tokens-remaining", "ratelimit-reset"]


def written() -> st.SearchStrategy[str]:
    numbers = st.one_of(st.integers(), st.floats(), st.integers(10**300, 10**500)).map(str)
    dates = st.datetimes().map(lambda moment: f"{moment:%a, %d %b %Y %H:%M:%S} GMT")
    units = st.builds(
        lambda number, unit: f"{number}{unit}", numbers, st.sampled_from(["ms", "s", "m", "h", "d"])
    )
    return st.one_of(
        st.sampled_from(ODD), numbers, units, dates, st.datetimes().map(str), st.text(max_size=40)
    )


@given(st.dictionaries(st.sampled_from(NAMES), written()), st.sampled_from([200, 429, 503]), written())
def test_whatever_a_server_writes_is_a_wait_or_none(headers, status, body):
    reply = HttpResponse(status, headers, f"try again in {body}".encode("utf-8", "replace"))
    for wait_s in (
        retry_after_s(reply, now_s=NOW_S),
        longest_reset_s(headers, NOW_S),
        exhausted_for_s(headers, now_s=NOW_S, tokens=100),
    ):
        assert wait_s is None or (wait_s >= 0 and math.isfinite(wait_s))


@pytest.mark.parametrize("value", [value for value in ODD if value.isprintable() and value.isascii()])
def test_a_good_answer_with_odd_headers_is_kept(value, tmp_path):
    headers = dict.fromkeys([name.title() for name in NAMES], value)
    with LoopbackServer(chat_reply("x", headers=headers)) as server:
        assert asyncio.run(asked("openai:m", server.base_url, tmp_path)).text == "x"
