import json
from collections.abc import Mapping
from typing import Any

from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, Reply

from geval_cli.providers.wire.anthropic import DEFAULT_MAX_TOKENS
from geval_cli.records import Message, ModelRequest, ModelResponse


def exchange(
    request: ModelRequest, body: Mapping[str, Any] | None = None, **config: Any
) -> tuple[ModelResponse, dict[str, Any], Mapping[str, str]]:
    reply = Reply(body=body or {"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn"})
    with LoopbackServer(reply) as server:
        model = provider("anthropic:claude", {"base_url": server.url, "apiKey": "key-123", **config})
        [response] = run(answer(model, request))
    return response, server.requests[0].json, server.requests[0].headers


def test_the_request_has_version_key_and_a_token_limit() -> None:
    response, sent, headers = exchange(ask())
    assert (headers["x-api-key"], headers["anthropic-version"]) == ("key-123", "2023-06-01")
    assert sent == {
        "model": "claude",
        "messages": [{"role": "user", "content": "Say hi."}],
        "max_tokens": DEFAULT_MAX_TOKENS,
    }
    assert (response.text, response.choices[0].finish_reason) == ("hi", "stop")
    assert response.dropped == ()


def test_instructions_are_lifted_out_of_the_messages() -> None:
    request = ModelRequest(
        (Message("system", "Be kind."), Message("user", "?"), Message("developer", "Now."))
    )
    _, sent, _ = exchange(request)
    assert sent["system"] == "Be kind.\n\nNow."
    assert sent["messages"] == [{"role": "user", "content": "?"}]


def test_instructions_alone_are_asked_as_the_user() -> None:
    _, sent, _ = exchange(ModelRequest((Message("system", "Hello"),)))
    assert "system" not in sent
    assert sent["messages"] == [{"role": "user", "content": "Hello"}]


def test_what_the_api_does_not_know_is_left_out_and_reported() -> None:
    request = ask(
        want_logprobs=True,
        sample_indexes=(0, 1, 2),
        response_schema={"type": "object"},
        params={"seed": 1, "temperature": 0, "max_completion_tokens": 9, "stop": "END"},
    )
    response, sent, _ = exchange(request, seed=7, max_tokens=None)
    assert response.dropped == ("logprobs", "n", "response_format", "seed")
    assert len(response.choices) == 1
    assert sent["max_tokens"] == 9
    assert sent["stop_sequences"] == ["END"]
    assert sent.keys() == {"model", "messages", "temperature", "max_tokens", "stop_sequences"}


def test_cached_input_counts_as_input() -> None:
    usage = {
        "input_tokens": 5,
        "cache_read_input_tokens": 10,
        "cache_creation_input_tokens": 2,
        "output_tokens": 3,
    }
    body = {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "usage": usage}
    response, _, _ = exchange(ask(), body)
    assert response.text == "ab"
    assert (response.usage.input_tokens, response.usage.output_tokens) == (17, 3)
    assert response.usage.cost_usd is None


def test_tool_calls_become_their_json_text() -> None:
    call = {"type": "tool_use", "name": "f", "input": {"a": 1}}
    response, _, _ = exchange(ask(), {"content": [call], "stop_reason": "tool_use"})
    assert json.loads(response.text) == [call]
    assert response.choices[0].finish_reason == "tool_calls"


def test_calls_of_tools_and_their_results_are_blocks_of_content() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]
    request = ModelRequest(
        (
            Message("user", "Add."),
            Message("assistant", "Well,", {"tool_calls": calls}),
            Message("tool", "2", {"tool_call_id": "c1", "name": "add"}),
            Message(
                "assistant", None, {"tool_calls": [{"id": "c2", "function": {"name": "f", "arguments": "?"}}]}
            ),
        )
    )
    _, sent, _ = exchange(request)
    assert sent["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Well,"},
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "2"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c2", "name": "f", "input": {"arguments": "?"}}],
        },
    ]
