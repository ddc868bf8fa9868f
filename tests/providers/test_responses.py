import json
from collections.abc import Mapping
from typing import Any

import pytest
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, Reply

from geval_cli.errors import ProviderResponseError
from geval_cli.records import Message, ModelRequest, ModelResponse, TokenAlternative


def said(*items: Mapping[str, Any], **body: Any) -> dict[str, Any]:
    usage = {"input_tokens": 7, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 2}}
    return {
        "id": "resp_1",
        "model": "gpt-5",
        "status": "completed",
        "output": list(items),
        "usage": usage,
        **body,
    }


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def exchange(request: ModelRequest, body: Any = None, **config: Any) -> tuple[ModelResponse, dict[str, Any]]:
    with LoopbackServer(Reply(body=said(message("hi")) if body is None else body)) as server:
        model = provider("openai:responses:gpt-5", {"base_url": server.base_url, "apiKey": "k-123", **config})
        [response] = run(answer(model, request))
    assert server.requests[0].path == "/v1/responses"
    return response, server.requests[0].json


def test_a_question_and_its_answer() -> None:
    response, sent = exchange(ask())
    assert sent == {"model": "gpt-5", "input": "Say hi."}
    assert (response.text, response.choices[0].finish_reason, response.model) == ("hi", "stop", "gpt-5")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (7, 3)


def test_a_conversation_is_sent_as_messages() -> None:
    _, sent = exchange(ModelRequest((Message("system", "Be kind."), Message("user", "?"))))
    assert [item["role"] for item in sent["input"]] == ["system", "user"]


def test_parameters_are_written_as_the_api_has_them() -> None:
    request = ask(params={"max_tokens": 9, "temperature": 0}, sample_indexes=(0, 1))
    response, sent = exchange(request, reasoning_effort="low", verbosity="high", instructions="Be kind.")
    assert sent["max_output_tokens"] == 9
    assert sent["reasoning"] == {"effort": "low"}
    assert sent["text"] == {"verbosity": "high"}
    assert sent["instructions"] == "Be kind."
    assert response.dropped == ("n",)


def test_token_probabilities_are_requested_and_read() -> None:
    entry = {"token": "8", "logprob": -0.2, "top_logprobs": [{"token": "9", "logprob": -1.8}]}
    part = {"type": "output_text", "text": "8", "logprobs": [entry]}
    body = said({"type": "message", "role": "assistant", "content": [part]})
    response, sent = exchange(ask(want_logprobs=True), body, include=["reasoning.encrypted_content"])
    assert sent["include"] == ["reasoning.encrypted_content", "message.output_text.logprobs"]
    assert sent["top_logprobs"] == 20
    [token] = response.choices[0].token_logprobs or ()
    assert token.alternatives == (TokenAlternative("8", -0.2), TokenAlternative("9", -1.8))


@pytest.mark.parametrize("config", [{"logprobs": True, "top_logprobs": 3}, {"top_logprobs": 3}])
def test_token_probabilities_of_a_config_are_requested(config: dict[str, Any]) -> None:
    _, sent = exchange(ask(), **config)
    assert (sent["include"], sent["top_logprobs"]) == (["message.output_text.logprobs"], 3)
    assert "logprobs" not in sent


def test_a_schema_shapes_the_answer() -> None:
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    _, sent = exchange(ask(response_schema=schema))
    assert sent["text"]["format"] == {
        "type": "json_schema",
        "name": "answer",
        "strict": True,
        "schema": schema,
    }
    written = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    _, sent = exchange(ask(), response_format=written)
    assert sent["text"]["format"] == {"type": "json_schema", "name": "x", "schema": schema}


@pytest.mark.parametrize(
    ("item", "arguments"),
    [
        ({"type": "code_interpreter_call", "code": "1 + 1", "container_id": "c"}, {"code": "1 + 1"}),
        ({"type": "code_interpreter_call", "code": None, "container_id": "c"}, {}),
        (
            {"type": "web_search_call", "action": {"type": "search", "query": "x"}},
            {"type": "search", "query": "x"},
        ),
        ({"type": "file_search_call", "queries": ["x"]}, ["x"]),
        ({"type": "mcp_call", "name": "f", "arguments": '{"a": 1}'}, {"a": 1}),
    ],
)
def test_calls_that_ran_have_their_arguments(item: dict[str, Any], arguments: Any) -> None:
    text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "2"}]}
    response, _ = exchange(ask(), said(item, text))
    [call] = response.choices[0].tool_calls
    assert json.loads(call["function"]["arguments"]) == arguments


def test_calls_are_the_answer_when_nothing_is_said() -> None:
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    response, _ = exchange(ask(), said({"type": "reasoning", "summary": []}, call))
    assert response.text == '{"type":"function_call","name":"f","arguments":"{}"}'
    assert response.choices[0].finish_reason == "tool_calls"


def test_an_answer_that_was_cut_off_and_a_refusal_are_answers() -> None:
    cut = said(message("so"), status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    assert exchange(ask(), cut)[0].choices[0].finish_reason == "length"
    refused = {"type": "message", "content": [{"type": "refusal", "refusal": "I will not."}]}
    assert exchange(ask(), said(refused))[0].text == "I will not."


@pytest.mark.parametrize(
    "body", [{}, [], {"output": "x"}, said(), said(message("x"), error={"message": "no"}), {"output": [3]}]
)
def test_what_is_no_answer_is_an_error(body: Any) -> None:
    with pytest.raises(ProviderResponseError):
        exchange(ask(), body)
