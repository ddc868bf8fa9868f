from collections.abc import Mapping
from typing import Any

import pytest
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, Reply

from geval_cli.errors import ProviderResponseError
from geval_cli.records import Message, ModelRequest, ModelResponse, TokenAlternative

GOOD: dict[str, Any] = {
    "candidates": [{"content": {"parts": [{"text": "hi"}], "role": "model"}, "finishReason": "STOP"}],
    "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 3, "thoughtsTokenCount": 4},
    "modelVersion": "gemini-2.5-flash-001",
}


def exchange(
    request: ModelRequest, body: Mapping[str, Any] = GOOD, **config: Any
) -> tuple[ModelResponse, dict[str, Any]]:
    with LoopbackServer(Reply(body=body)) as server:
        model = provider("google:gemini-2.5-flash", {"base_url": server.url, "apiKey": "key-123", **config})
        [response] = run(answer(model, request))
    assert server.requests[0].path == "/v1beta/models/gemini-2.5-flash:generateContent"
    assert server.requests[0].headers["x-goog-api-key"] == "key-123"
    return response, server.requests[0].json


def test_a_question_and_its_answer() -> None:
    response, sent = exchange(ask())
    assert sent == {"contents": [{"role": "user", "parts": [{"text": "Say hi."}]}]}
    assert (response.text, response.choices[0].finish_reason) == ("hi", "stop")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (7, 7)


@pytest.mark.parametrize(
    ("reported", "share"),
    [
        ({"serviceTier": "flex"}, 0.5),
        ({"trafficType": "ON_DEMAND_FLEX"}, 0.5),
        ({"trafficType": "ON_DEMAND_PRIORITY"}, None),
        ({"serviceTier": "standard", "trafficType": "ON_DEMAND"}, 1.0),
        ({"serviceTier": None}, 1.0),
    ],
)
def test_the_tier_that_answered_decides_the_price(reported: dict[str, Any], share: float | None) -> None:
    tokens = GOOD["usageMetadata"] | reported
    response, sent = exchange(ask(), {**GOOD, "usageMetadata": tokens}, price="list", service_tier="flex")
    usual, _ = exchange(ask(), price="list")
    assert usual.usage.cost_usd
    expected = None if share is None else pytest.approx(usual.usage.cost_usd * share)
    assert response.usage.cost_usd == expected
    assert sent["service_tier"] == "flex"


@pytest.mark.parametrize("details", [5, "x", True, {"modality": "AUDIO"}, [None], None])
def test_odd_details_of_tokens_lose_no_answer(details: Any) -> None:
    tokens = GOOD["usageMetadata"] | {"promptTokensDetails": details, "candidatesTokensDetails": details}
    assert exchange(ask(), {**GOOD, "usageMetadata": tokens})[0].text == "hi"


def test_a_conversation_with_instructions() -> None:
    messages = (
        Message("system", "Be kind."),
        Message("user", "?"),
        Message("assistant", "!"),
        Message("user", "."),
    )
    _, sent = exchange(ModelRequest(messages), systemInstruction={"parts": [{"text": "Be brief."}]})
    assert sent["systemInstruction"] == {"parts": [{"text": "Be brief.\n\nBe kind."}]}
    assert [item["role"] for item in sent["contents"]] == ["user", "model", "user"]


def test_calls_of_tools_and_their_results_are_parts() -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]
    odd = [{"id": "c2", "function": {"name": "f", "arguments": "?"}}]
    messages = (
        Message("user", "Add."),
        Message("assistant", "Well,", {"tool_calls": calls}),
        Message("tool", "2", {"tool_call_id": "c1"}),
        Message("assistant", "", {"tool_calls": odd}),
    )
    _, sent = exchange(ModelRequest(messages))
    assert sent["contents"][1:] == [
        {"role": "model", "parts": [{"text": "Well,"}, {"functionCall": {"name": "add", "args": {"a": 1}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "add", "response": {"result": "2"}}}]},
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"arguments": "?"}}}]},
    ]


def test_parameters_are_written_as_the_api_has_them() -> None:
    config = {"generationConfig": {"topK": 3, "temperature": 0.5}, "safetySettings": [{"category": "x"}]}
    request = ask(params={"temperature": 0, "max_tokens": 9, "stop": "END"})
    _, sent = exchange(request, **config)
    assert sent["generationConfig"] == {
        "temperature": 0.5,
        "maxOutputTokens": 9,
        "stopSequences": ["END"],
        "topK": 3,
    }
    assert sent["safetySettings"] == [{"category": "x"}]


def test_a_schema_shapes_the_answer_and_what_is_unknown_is_reported() -> None:
    request = ask(response_schema={"type": "object"}, sample_indexes=(0, 1))
    response, sent = exchange(request)
    assert sent["generationConfig"]["responseJsonSchema"] == {"type": "object"}
    assert response.dropped == ("n",)
    written = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array"}}}
    _, sent = exchange(ask(), response_format=written)
    assert sent["generationConfig"]["responseJsonSchema"] == {"type": "array"}


def test_token_probabilities_are_requested_and_read() -> None:
    result = {
        "chosenCandidates": [{"token": "8", "logProbability": -0.2}, {"token": "!"}],
        "topCandidates": [
            {
                "candidates": [
                    {"token": "8", "logProbability": -0.2},
                    {"token": "9", "logProbability": -1.8},
                ]
            }
        ],
    }
    body = {
        "candidates": [
            {"content": {"parts": [{"text": "8!"}]}, "finishReason": "STOP", "logprobsResult": result}
        ]
    }
    response, sent = exchange(ask(want_logprobs=True), body)
    assert sent["generationConfig"] == {"responseLogprobs": True, "logprobs": 20}
    first, second = response.choices[0].token_logprobs or ()
    assert first.alternatives == (TokenAlternative("8", -0.2), TokenAlternative("9", -1.8))
    assert (second.text, second.logprob) == ("!", 0.0)


@pytest.mark.parametrize(
    ("config", "sent"),
    [
        ({"logprobs": True, "top_logprobs": 3}, {"responseLogprobs": True, "logprobs": 3}),
        ({"responseLogprobs": True, "logprobs": 3}, {"responseLogprobs": True, "logprobs": 3}),
        ({"logprobs": True}, {"responseLogprobs": True}),
        ({"logprobs": False}, {}),
    ],
)
def test_token_probabilities_of_a_config_are_requested(config: dict[str, Any], sent: dict[str, Any]) -> None:
    assert exchange(ask(), **config)[1].get("generationConfig", {}) == sent


def test_thoughts_are_no_answer_and_calls_are() -> None:
    parts = [{"text": "hm", "thought": True}, {"functionCall": {"name": "f", "args": {}}}]
    body = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}
    response, _ = exchange(ask(), body)
    assert response.text == '{"functionCall": {"name": "f", "args": {}}}'


def test_an_answer_that_was_cut_off_says_so() -> None:
    response, _ = exchange(ask(), {"candidates": [{"content": {}, "finishReason": "MAX_TOKENS"}]})
    assert (response.text, response.choices[0].finish_reason) == ("", "length")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "without candidates"),
        ({"candidates": [{"finishReason": "STOP"}]}, "without content"),
        ({"candidates": "x"}, "without candidates"),
        ([], "without candidates"),
    ],
)
def test_what_is_no_answer_is_an_error(body: Any, words: str) -> None:
    with pytest.raises(ProviderResponseError, match=words):
        exchange(ask(), body)


def test_messages_in_this_api_s_own_words_keep_their_roles_and_parts() -> None:
    messages = (
        Message("system", None, {"parts": [{"text": "Be kind."}]}),
        Message("user", None, {"parts": [{"text": "Q"}, {"inlineData": {"data": "x"}}]}),
        Message("model", None, {"parts": [{"text": "A"}]}),
        Message("model", "B"),
    )
    _, sent = exchange(ModelRequest(messages))
    assert sent["systemInstruction"] == {"parts": [{"text": "Be kind."}]}
    assert sent["contents"] == [
        {"role": "user", "parts": [{"text": "Q"}, {"inlineData": {"data": "x"}}]},
        {"role": "model", "parts": [{"text": "A"}]},
        {"role": "model", "parts": [{"text": "B"}]},
    ]
