"""What holds for every wire: a null in the place of an answer is an error, and counts that cannot be are unknown."""

import copy
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, Reply

from geval_cli.errors import ProviderError, ProviderResponseError
from geval_cli.records import ModelResponse, Role

PRICE = {"price": {"input": 1, "output": 1}}
ODD_JSON = ["-3", "7.5", '"7"', "true", "[7]", '{"n": 7}', "1e300", "900000000000"]


class Wire(NamedTuple):
    """How a provider is named, and where its server puts the answer, why it ended, and the counts."""

    name: str
    body: Mapping[str, Any]
    counts: tuple[str, ...]


CHAT = {
    "choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 3},
}
WIRES = {
    "openai": Wire("openai:m", CHAT, ("usage.prompt_tokens", "usage.completion_tokens")),
    "http": Wire("", CHAT, ("usage.prompt_tokens", "usage.completion_tokens")),
    "responses": Wire(
        "openai:responses:m",
        {
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "hi"}]}],
            "usage": {"input_tokens": 7, "output_tokens": 3},
        },
        ("usage.input_tokens", "usage.output_tokens"),
    ),
    "anthropic": Wire(
        "anthropic:m",
        {
            "content": [{"type": "text", "text": "hi"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 7, "output_tokens": 3},
        },
        ("usage.input_tokens", "usage.output_tokens", "usage.cache_read_input_tokens"),
    ),
    "google": Wire(
        "google:m",
        {
            "candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 3, "thoughtsTokenCount": 1},
        },
        (
            "usageMetadata.promptTokenCount",
            "usageMetadata.candidatesTokenCount",
            "usageMetadata.thoughtsTokenCount",
        ),
    ),
    "embedding": Wire(
        "openai:embedding:m",
        {"data": [{"embedding": [1.0, 2.0]}], "usage": {"prompt_tokens": 7}},
        ("usage.prompt_tokens",),
    ),
}
COUNTS = [(name, place) for name, wire in WIRES.items() for place in wire.counts]


def exchange(name: str, body: Any, **fields: Any) -> ModelResponse:
    wire = WIRES[name]
    with LoopbackServer(Reply(body=body)) as server:
        base_url = server.url if wire.name.startswith(("anthropic", "google")) else server.base_url
        config = {"base_url": base_url, "apiKey": "key-123", **PRICE}
        if name == "http":
            config = {"response_path": "choices[0].message.content", "body": {"q": "{{ prompt }}"}, **PRICE}
        [response] = run(answer(provider(wire.name or f"{server.url}/answer", config), ask(**fields)))
    return response


def with_value(body: Mapping[str, Any], place: str, written: str) -> str:
    """The JSON text of `body` with `written` in a place of it, as no JSON library would write it."""
    changed = copy.deepcopy(dict(body))
    inner = changed
    *way, last = place.split(".")
    for key in way:
        inner = inner[key]
    inner[last] = "HERE"
    return json.dumps(changed).replace('"HERE"', written)


@pytest.mark.parametrize("name", WIRES)
def test_an_answer_that_is_whole_costs_what_its_tokens_do(name: str) -> None:
    usage = exchange(name, WIRES[name].body).usage
    assert usage.cost_usd == pytest.approx((usage.input_tokens + usage.output_tokens) / 1_000_000)
    assert usage.input_tokens == 7


@pytest.mark.parametrize("written", ODD_JSON)
@pytest.mark.parametrize(("name", "place"), COUNTS)
def test_a_count_that_cannot_be_is_unknown_and_costs_nobody_knows_what(
    name: str, place: str, written: str
) -> None:
    reply = exchange(name, with_value(WIRES[name].body, place, written))
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cost_usd) == (0, 0, None)


def chat(message: Any, reason: str | None = "stop") -> dict[str, Any]:
    return {**CHAT, "choices": [{"message": message, "finish_reason": reason}]}


def response(*items: Any, **body: Any) -> dict[str, Any]:
    return {"output": list(items), "usage": {"input_tokens": 7, "output_tokens": 3}, **body}


def said(content: Any) -> dict[str, Any]:
    return {"type": "message", "content": content}


def messages(content: Any, reason: str = "end_turn") -> dict[str, Any]:
    usage = {"input_tokens": 7, "output_tokens": 3}
    return {"content": content, "stop_reason": reason, "usage": usage}


def gemini(content: Any, reason: str = "STOP") -> dict[str, Any]:
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 3}
    return {"candidates": [{"content": content, "finishReason": reason}], "usageMetadata": usage}


ABSENT = [
    ("openai", chat({"content": None})),
    ("openai", chat({"content": None}, None)),
    ("openai", chat({"content": None}, "tool_calls")),
    ("openai", chat({"content": []})),
    ("openai", chat({"content": None, "tool_calls": []})),
    ("openai", chat({"content": None, "refusal": None})),
    ("openai", chat({"content": None, "reasoning_content": "Let me think."})),
    ("openai", chat({"role": "assistant"})),
    ("http", chat({"content": None})),
    ("responses", response(said([]))),
    ("responses", response(said(None))),
    ("responses", response(said([{"type": "output_text", "text": None}]))),
    ("responses", response({"type": "reasoning", "summary": []})),
    ("responses", response()),
    ("anthropic", messages([])),
    ("anthropic", messages([], "stop_sequence")),
    ("anthropic", messages(None)),
    ("anthropic", messages([{"type": "thinking", "thinking": "Let me think."}])),
    ("google", gemini({"parts": []})),
    ("google", gemini({"role": "model"})),
    ("google", gemini(None)),
    ("google", gemini({"parts": [{"text": "Let me think.", "thought": True}]})),
    ("embedding", {"data": [{"embedding": None}]}),
    ("embedding", {"data": []}),
]


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(("name", "body"), ABSENT)
def test_an_answer_that_is_absent_is_an_error_for_models_and_judges(name: str, body: Any, role: Role) -> None:
    with pytest.raises(ProviderResponseError) as caught:
        exchange(name, body, role=role)
    assert caught.value.is_retryable


def test_an_absent_answer_says_what_it_cost_all_the_same() -> None:
    for name, body in [("openai", chat({"content": None})), ("anthropic", messages([]))]:
        with pytest.raises(ProviderResponseError) as caught:
            exchange(name, body)
        assert caught.value.cost_usd == pytest.approx(10 / 1_000_000)


CHAT_OF_NULL = chat({"content": None})

EMPTY = [
    ("openai", chat({"content": ""}), "stop"),
    ("openai", chat({"content": "", "reasoning_content": "hm"}), "stop"),
    ("openai", chat({"content": None}, "length"), "length"),
    ("openai", chat({"content": None}, "content_filter"), "content_filter"),
    ("http", chat({"content": ""}), None),
    ("responses", response(said([{"type": "output_text", "text": ""}])), "stop"),
    (
        "responses",
        response(said([]), incomplete_details={"reason": "max_output_tokens"}, status="incomplete"),
        "length",
    ),
    ("anthropic", messages([{"type": "text", "text": ""}]), "stop"),
    ("anthropic", messages([], "max_tokens"), "length"),
    ("anthropic", messages([], "refusal"), "content_filter"),
    ("google", gemini({"parts": [{"text": ""}]}), "stop"),
    ("google", gemini({"parts": []}, "MAX_TOKENS"), "length"),
    ("google", gemini(None, "SAFETY"), "content_filter"),
]


@pytest.mark.parametrize(("name", "body", "reason"), EMPTY)
def test_an_empty_answer_and_one_that_was_cut_off_are_answers(
    name: str, body: Any, reason: str | None
) -> None:
    choice = exchange(name, body).choices[0]
    assert (choice.text, choice.finish_reason) == ("", reason)


SAID = [
    ("openai", chat({"content": None, "tool_calls": [{"id": "1"}]}, "tool_calls"), "tool_calls"),
    ("openai", chat({"content": None, "function_call": {"name": "f"}}, "function_call"), "function_call"),
    ("openai", chat({"content": None, "refusal": "No."}), "refusal"),
    ("responses", response(said([{"type": "refusal", "refusal": "No."}])), "stop"),
    ("anthropic", messages([{"type": "tool_use", "name": "f"}], "tool_use"), "tool_calls"),
    ("google", gemini({"parts": [{"functionCall": {"name": "f"}}]}), "stop"),
]


@pytest.mark.parametrize(("name", "body", "reason"), SAID)
def test_calls_of_tools_and_refusals_are_answers_without_content(name: str, body: Any, reason: str) -> None:
    choice = exchange(name, body).choices[0]
    assert choice.text
    assert choice.finish_reason == reason


@pytest.mark.parametrize(
    ("path", "body"),
    [("", b"null"), ("a.b", {"a": {"b": None}}), ("", {"id": 1, "answer": None}), ("", CHAT_OF_NULL)],
)
def test_an_api_that_answers_null_has_not_answered(path: str, body: Any) -> None:
    with LoopbackServer(Reply(body=body)) as server:
        config = {"body": {"q": "{{ prompt }}"}, **({"response_path": path} if path else {})}
        with pytest.raises(ProviderError, match="an answer that is null"):
            run(answer(provider(f"{server.url}/answer", config)))
