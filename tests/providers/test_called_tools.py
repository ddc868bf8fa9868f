"""Tools in requests, and the results of their calls, as each API wants them back: walked in the requests themselves."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, Reply

from geval_cli.extras.local.check import _TOOLS
from geval_cli.providers.preset_table import WIRE_FORMATS
from geval_cli.providers.wire.chat import TOOL_ERROR, made_call_id
from geval_cli.records import Message, ModelRequest, ToolDefinition

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NOW = ToolDefinition("now", "", {"type": "object", "properties": {}})
WEATHER = ToolDefinition("weather", "The weather of a city.", SCHEMA)
DESCRIBED = {"description": "The weather of a city."}
FUNCTION = {"name": "weather", **DESCRIBED, "parameters": SCHEMA}
OWN_FUNCTION = {"name": "own", "parameters": {"type": "object"}}


def call(number: int, city: str) -> dict[str, Any]:
    return {
        "id": f"c{number}",
        "type": "function",
        "function": {"name": "weather", "arguments": json.dumps({"city": city})},
    }


IDS = {
    "openai": "openai:m",
    "responses": "openai:responses:m",
    "anthropic": "anthropic:m",
    "google": "google:m",
    "converse": "bedrock:converse:m",
}
SAID: Mapping[str, Any] = {
    "openai": {
        "choices": [
            {
                "message": {
                    "role": "assistant",
                    "content": "Let me look.",
                    "refusal": None,
                    "annotations": [],
                    "reasoning_details": [{"type": "reasoning.encrypted", "data": "abc"}],
                    "tool_calls": [call(1, "Rome"), call(2, "Oslo")],
                },
                "finish_reason": "tool_calls",
            }
        ]
    },
    "responses": {
        "status": "completed",
        "output": [
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Let me look."}],
            },
            {
                "type": "function_call",
                "id": "f1",
                "call_id": "c1",
                "name": "weather",
                "arguments": '{"city": "Rome"}',
            },
            {
                "type": "function_call",
                "id": "f2",
                "call_id": "c2",
                "name": "weather",
                "arguments": '{"city": "Oslo"}',
            },
        ],
    },
    "anthropic": {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "abc"},
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}},
            {"type": "tool_use", "id": "c2", "name": "weather", "input": {"city": "Oslo"}},
        ],
        "stop_reason": "tool_use",
    },
    "google": {
        "candidates": [
            {
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": "Hm.", "thought": True},
                        {"text": "Let me look."},
                        {
                            "functionCall": {"id": "c1", "name": "weather", "args": {"city": "Rome"}},
                            "thoughtSignature": "abc",
                        },
                        {"functionCall": {"id": "c2", "name": "weather", "args": {"city": "Oslo"}}},
                    ],
                },
                "finishReason": "STOP",
            }
        ]
    },
    "converse": {
        "output": {
            "message": {
                "role": "assistant",
                "content": [
                    {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "abc"}}},
                    {"text": "Let me look."},
                    {"toolUse": {"toolUseId": "c1", "name": "weather", "input": {"city": "Rome"}}},
                    {"toolUse": {"toolUseId": "c2", "name": "weather", "input": {"city": "Oslo"}}},
                ],
            }
        },
        "stopReason": "tool_use",
    },
}


def test_every_api_is_among_them() -> None:
    apis = {rules.module for rules in WIRE_FORMATS.values()}
    assert apis - IDS.keys() == set(), "add these APIs to IDS and SAID, and test what they are sent"
    assert apis - _TOOLS.keys() == set(), "add the form of a tool to _TOOLS of extras/local/check.py"


def exchanged(wire: str, said: Any, **request: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both requests of an exchange in which the first of two calls is answered, and the second fails."""

    async def converse(url: str) -> None:
        model = provider(IDS[wire], {"base_url": url, "apiKey": "key-123"})
        first = ask(tools=(WEATHER, NOW), **request)
        response = await model.complete(first)
        choice = response.choices[0]
        assert [item["function"]["name"] for item in choice.tool_calls] == ["weather"] * 2
        assert choice.message is not None
        ids = [item.get("id") or made_call_id(number) for number, item in enumerate(choice.tool_calls)]
        results = (
            Message("tool", "sunny", {"tool_call_id": ids[0]}),
            Message("tool", "no such city", {"tool_call_id": ids[1], TOOL_ERROR: True}),
        )
        [_] = await answer(
            model,
            ModelRequest((*first.messages, choice.message, *results), tools=first.tools, params=first.params),
        )

    with LoopbackServer(Reply(body=said), Reply(body=said)) as server:
        run(converse(server.url))
    first, second = (request.json for request in server.requests)
    return first, second


def test_the_chat_api_gets_its_message_back_and_a_message_for_each_result() -> None:
    said = SAID["openai"]
    own = {"type": "function", "function": OWN_FUNCTION}
    first, second = exchanged("openai", said, params={"tools": [own]})
    now = {"name": "now", "parameters": NOW.parameters}
    tools = [own, {"type": "function", "function": FUNCTION}, {"type": "function", "function": now}]
    assert first["tools"] == second["tools"] == tools
    assert second["messages"] == [
        *first["messages"],
        {
            "role": "assistant",
            "content": "Let me look.",
            "reasoning_details": [{"type": "reasoning.encrypted", "data": "abc"}],
            "tool_calls": [call(1, "Rome"), call(2, "Oslo")],
        },
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
        {"role": "tool", "content": "no such city", "tool_call_id": "c2"},
    ]


def test_the_responses_api_gets_all_items_back_and_an_item_for_each_result() -> None:
    said = SAID["responses"]
    first, second = exchanged("responses", said)
    assert first["tools"][0] == {"type": "function", "strict": False, **FUNCTION}
    assert second["input"] == [
        {"role": "user", "content": first["input"]},
        *said["output"],
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c2", "output": "no such city"},
    ]


@pytest.mark.parametrize(
    ("store", "encrypted", "kept"), [(False, None, 0), (False, "abc", 1), (True, None, 1)]
)
def test_thoughts_that_the_server_can_not_find_again_are_not_sent_back(
    store: bool, encrypted: str | None, kept: int
) -> None:
    said = json.loads(json.dumps(SAID["responses"]))
    said["output"][0]["encrypted_content"] = encrypted
    _, second = exchanged("responses", said, params={"store": store})
    assert sum(item.get("type") == "reasoning" for item in second["input"]) == kept


def test_anthropic_gets_all_blocks_back_and_the_results_in_one_message() -> None:
    said = SAID["anthropic"]
    own = {"type": "web_search_20250305", "name": "web_search"}
    first, second = exchanged("anthropic", said, params={"tools": [own]})
    assert first["tools"] == [
        own,
        {"name": "weather", **DESCRIBED, "input_schema": SCHEMA},
        {"name": "now", "input_schema": NOW.parameters},
    ]
    assert second["messages"] == [
        *first["messages"],
        {"role": "assistant", "content": said["content"]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "no such city", "is_error": True},
            ],
        },
    ]


def test_converse_gets_all_blocks_back_and_the_results_in_one_message() -> None:
    said = SAID["converse"]
    own = {"type": "function", "function": OWN_FUNCTION}
    first, second = exchanged("converse", said, params={"tools": [own], "tool_choice": "required"})
    weather = {"name": "weather", **DESCRIBED, "inputSchema": {"json": SCHEMA}}
    assert first["toolConfig"] == {
        "tools": [
            {"toolSpec": {"name": "own", "inputSchema": {"json": {"type": "object"}}}},
            {"toolSpec": weather},
            {"toolSpec": {"name": "now", "inputSchema": {"json": NOW.parameters}}},
        ],
        "toolChoice": {"any": {}},
    }
    sunny = {"toolUseId": "c1", "content": [{"text": "sunny"}]}
    failed = {"toolUseId": "c2", "content": [{"text": "no such city"}], "status": "error"}
    assert second["messages"] == [
        *first["messages"],
        said["output"]["message"],
        {"role": "user", "content": [{"toolResult": sunny}, {"toolResult": failed}]},
    ]


@pytest.mark.parametrize("has_ids", [True, False])
def test_google_gets_all_parts_back_and_the_results_in_one_message(has_ids: bool) -> None:
    said = json.loads(json.dumps(SAID["google"]))
    parts = said["candidates"][0]["content"]["parts"]
    if not has_ids:
        for part in parts[2:]:
            del part["functionCall"]["id"]
    first, second = exchanged("google", said)
    assert first["tools"] == [
        {
            "functionDeclarations": [
                {"name": "weather", **DESCRIBED, "parametersJsonSchema": SCHEMA},
                {"name": "now", "description": "now"},
            ]
        }
    ]
    ids = [{"id": "c1"}, {"id": "c2"}] if has_ids else [{}, {}]
    assert second["contents"] == [
        *first["contents"],
        {"role": "model", "parts": parts},
        {
            "role": "user",
            "parts": [
                {"functionResponse": {**ids[0], "name": "weather", "response": {"result": "sunny"}}},
                {"functionResponse": {**ids[1], "name": "weather", "response": {"error": "no such city"}}},
            ],
        },
    ]


def test_a_server_that_gives_calls_no_ids_gets_made_ones() -> None:
    said = json.loads(json.dumps(SAID["openai"]))
    for item in said["choices"][0]["message"]["tool_calls"]:
        del item["id"]
    _, second = exchanged("openai", said)
    _, answered, *results = second["messages"]
    assert [item["id"] for item in answered["tool_calls"]] == ["call_1", "call_2"]
    assert [item["tool_call_id"] for item in results] == ["call_1", "call_2"]
