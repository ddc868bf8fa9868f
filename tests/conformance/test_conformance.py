"""What geval sends and reads, held against the official SDKs' own types. `python -m conformance` prints the counts."""

from typing import Any

import pytest
from conformance.replies import VARIANTS, check_replies
from conformance.requests import SETTINGS, Checked, asked, check_bodies, kind_of_body
from conformance.strict_types import problems_of


def odd_ones(found: list[Checked]) -> list[str]:
    return [f"{item.vendor}, {item.name}: {'; '.join(item.problems)}" for item in found if item.problems]


def test_every_body_is_one_by_its_vendors_types() -> None:
    found = list(check_bodies())
    assert len(found) >= 1_500
    assert {item.vendor for item in found} >= {*SETTINGS, "openai embeddings", "openai moderation"}
    assert odd_ones(found) == []


def test_every_reply_of_a_vendors_types_is_read() -> None:
    found = list(check_replies())
    assert len(found) >= 20 * VARIANTS
    assert {item.vendor for item in found} == set(SETTINGS)
    assert odd_ones(found) == []


MISTAKES: list[tuple[str, dict[str, Any]]] = [
    ("openai chat", {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_token": 3}),
    ("openai chat", {"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": "hot"}),
    (
        "openai chat",
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]},
    ),
    ("openai chat", {"messages": [{"role": "user", "content": "x"}]}),
    ("openai responses", {"model": "m", "input": "x", "seed": 3}),
    ("openai responses", {"model": "m", "input": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}),
    ("anthropic", {"model": "m", "messages": [{"role": "user", "content": "x"}]}),
    (
        "anthropic",
        {"model": "m", "max_tokens": 9, "messages": [{"role": "system", "content": [{"text": "x"}]}]},
    ),
    ("google", {"contents": [{"role": "user", "parts": [{"words": "x"}]}]}),
    ("google", {"contents": [], "generationConfig": {"maxTokens": 9}}),
    ("mistral", {"model": "m", "messages": [{"role": "user", "content": "x"}], "seed": 3}),
    ("mistral", {"model": "m", "messages": [{"role": "developer", "content": "x"}]}),
]


@pytest.mark.parametrize(("vendor", "body"), MISTAKES)
def test_the_types_find_mistakes(vendor: str, body: dict[str, Any]) -> None:
    assert problems_of(body, kind_of_body(vendor)) != []


def test_the_questions_are_all_kinds_of_them() -> None:
    requests = asked().values()
    assert any(request.media for request in requests)
    assert any(request.want_logprobs for request in requests)
    assert any(request.response_schema for request in requests)
    assert any(len(request.sample_indexes) > 1 for request in requests)
    assert any(message.further for request in requests for message in request.messages)
