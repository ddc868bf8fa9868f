import json
from collections.abc import Mapping
from typing import Any

import pytest
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, Reply

from geval_cli.errors import ProviderRequestError
from geval_cli.providers.wire.anthropic import DEFAULT_MAX_TOKENS, THINKING_TOKENS
from geval_cli.records import Message, ModelRequest, ModelResponse, Role


def exchange(
    request: ModelRequest, body: Mapping[str, Any] | None = None, *, model: str = "claude", **config: Any
) -> tuple[ModelResponse, dict[str, Any], Mapping[str, str]]:
    reply = Reply(body=body or {"content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn"})
    with LoopbackServer(reply) as server:
        asked = provider(f"anthropic:{model}", {"base_url": server.url, "apiKey": "key-123", **config})
        [response] = run(answer(asked, request))
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


@pytest.mark.parametrize(
    ("written", "told", "sent_as"),
    [
        ("Be brief.", "Be kind.", "Be brief.\n\nBe kind."),
        (
            [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "Be kind.",
            [
                {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "Be kind."},
            ],
        ),
        ("Be brief.", None, "Be brief."),
        ([{"type": "text", "text": "Be brief."}], None, [{"type": "text", "text": "Be brief."}]),
        (None, "Be kind.", "Be kind."),
    ],
)
def test_instructions_of_the_config_stand_before_those_of_the_prompt(
    written: Any, told: str | None, sent_as: Any
) -> None:
    instructions = () if told is None else (Message("system", told),)
    _, sent, _ = exchange(ModelRequest((*instructions, Message("user", "?"))), system=written)
    assert sent["system"] == sent_as
    assert sent["messages"] == [{"role": "user", "content": "?"}]


def test_instructions_alone_are_asked_as_the_user() -> None:
    _, sent, _ = exchange(ModelRequest((Message("system", "Hello"),)))
    assert "system" not in sent
    assert sent["messages"] == [{"role": "user", "content": "Hello"}]


def judge_request(**fields: Any) -> ModelRequest:
    return ask(role=Role.JUDGE, **{"params": {"temperature": 0}, **fields})


def test_what_the_api_does_not_know_is_left_out_and_reported() -> None:
    request = ask(
        want_logprobs=True,
        sample_indexes=(0, 1, 2),
        params={"temperature": 0, "max_completion_tokens": 9, "stop": "END"},
    )
    response, sent, _ = exchange(request, max_tokens=None)
    assert response.dropped == ("logprobs", "n")
    assert len(response.choices) == 1
    assert sent["max_tokens"] == 9
    assert sent["stop_sequences"] == ["END"]
    assert sent.keys() == {"model", "messages", "temperature", "max_tokens", "stop_sequences"}


THINKS = {"type": "enabled", "budget_tokens": 8000}
MODELS = [
    ("claude-2.1", True, False),
    ("claude-instant-1.2", True, False),
    ("claude-3-5-sonnet-20241022", True, False),
    ("claude-3-opus-latest", True, False),
    ("claude-sonnet-4-20250514", True, False),
    ("claude-opus-4-0", True, False),
    ("claude-opus-4-1-20250805", True, True),
    ("claude-haiku-4-5", True, True),
    ("claude-opus-4-6", True, True),
    ("anthropic/claude-opus-4.7", False, True),
    ("claude-opus-4-7", False, True),
    ("claude-opus-4-8-20260601", False, True),
    ("claude-sonnet-5", False, True),
    ("claude-haiku-5-5", False, True),
    ("claude-fable-5-1", False, True),
    ("claude-mythos-preview", False, True),
    ("a-model-of-mine", True, True),
]


@pytest.mark.parametrize(("model", "samples", "schemas"), MODELS)
def test_what_a_claude_model_refuses_is_known_by_its_name(
    model: str, *, samples: bool, schemas: bool
) -> None:
    schema = {"type": "object"}
    response, sent, _ = exchange(judge_request(response_schema=schema), model=model)
    assert ("temperature" in sent, "temperature" in response.dropped) == (samples, not samples)
    assert ("output_config" in sent, "response_format" in response.dropped) == (schemas, not schemas)
    if schemas:
        assert sent["output_config"] == {"format": {"type": "json_schema", "schema": schema}}


@pytest.mark.parametrize(
    ("config", "is_left_out"),
    [
        ({}, False),
        ({"thinking": THINKS}, True),
        ({"thinking": {"type": "adaptive"}}, True),
        ({"thinking": {"type": "between_tools"}}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"top_p": 0.9}, True),
        ({"top_k": 3}, False),
    ],
)
def test_a_judge_s_temperature_is_not_sent_beside_what_excludes_it(
    config: dict[str, Any], *, is_left_out: bool
) -> None:
    response, sent, _ = exchange(judge_request(), **config)
    assert ("temperature" in sent, "temperature" in response.dropped) == (not is_left_out, is_left_out)


def test_what_the_user_wrote_is_sent_whatever_the_model() -> None:
    config = {"thinking": THINKS, "temperature": 0.3, "top_p": 0.9, "top_k": 3}
    for request in (judge_request(params={}), ask(params={"temperature": 0.3})):
        response, sent, _ = exchange(request, model="claude-opus-5", **config)
        assert config.items() <= sent.items()
        assert response.dropped == ()


@pytest.mark.parametrize(
    ("model", "config", "limit"),
    [
        ("claude-opus-4-6", {}, DEFAULT_MAX_TOKENS),
        ("claude-opus-4-6", {"thinking": THINKS}, 8000 + DEFAULT_MAX_TOKENS),
        ("claude-opus-4-6", {"thinking": THINKS, "max_tokens": 9000}, 9000),
        ("claude-opus-4-6", {"thinking": {"type": "adaptive"}}, DEFAULT_MAX_TOKENS + THINKING_TOKENS),
        ("claude-opus-5", {}, DEFAULT_MAX_TOKENS + THINKING_TOKENS),
        ("claude-opus-5", {"thinking": {"type": "disabled"}}, DEFAULT_MAX_TOKENS),
    ],
)
def test_the_default_limit_leaves_room_for_thinking(model: str, config: dict[str, Any], limit: int) -> None:
    assert exchange(ask(), model=model, **config)[1]["max_tokens"] == limit


@pytest.mark.parametrize("name", ["reasoning_effort", "effort"])
def test_an_effort_and_a_format_are_written_as_the_api_has_them(name: str) -> None:
    schema = {"type": "object"}
    written = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    _, sent, _ = exchange(ask(), response_format=written, **{name: "xhigh"})
    assert sent["output_config"] == {"effort": "xhigh", "format": {"type": "json_schema", "schema": schema}}
    assert not {name, "response_format"} & sent.keys()


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"response_format": {"type": "json_object"}}, "no plain JSON mode"),
        ({"response_format": {"type": "json_schema"}}, "no JSON Schema"),
        ({"reasoning_effort": "minimal"}, "no effort `minimal`"),
        ({"reasoning_effort": "none"}, "no effort `none`"),
    ],
)
def test_what_the_api_has_no_form_of_is_an_error_and_not_sent(params: dict[str, Any], words: str) -> None:
    with pytest.raises(ProviderRequestError, match=words) as caught:
        exchange(ask(params=params))
    assert "nothing was sent" in caught.value.message
    assert caught.value.hint


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
