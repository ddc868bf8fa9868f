"""`geval models check`: what a model can do, as it is seen on the wire."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.calls import run
from support.loopback import LoopbackServer, Reply, chat_reply

from geval_cli.errors import ProviderAuthError
from geval_cli.extras.local.check import ModelCheck, check_model
from geval_cli.gateway.budget import Budget
from geval_cli.gateway.gateway import CallPolicy
from geval_cli.runs.session import open_session
from geval_cli.specs.base import ProviderSpec


def check(server: LoopbackServer, provider_id: str, config: Mapping[str, Any] | None = None) -> ModelCheck:
    address = server.base_url if provider_id.startswith("openai") else server.url

    settings = {"base_url": address, "apiKey": "k-0123456789", "max_retries": 0} if config is None else config

    async def asked() -> ModelCheck:
        budget = Budget()
        async with open_session(env={}, base_dir=Path(), policy=CallPolicy(budget)) as session:
            model = session.model_for(ProviderSpec(id=provider_id, config=dict(settings)))
            return await check_model(model, budget)

    return run(asked())


def can(found: ModelCheck) -> dict[str, bool | None]:
    return {one.feature: one.can for one in found.findings}


CALL = {"type": "function", "id": "c", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}


def able(body: Any, headers: Mapping[str, str]) -> Any:
    if "tools" in body:
        reply = chat_reply(None, finish_reason="tool_calls")
        reply.body["choices"][0]["message"]["tool_calls"] = [CALL]
        return reply
    if "image_url" in json.dumps(body["messages"]):
        return chat_reply("Red.")
    if "input_audio" in json.dumps(body["messages"]):
        return chat_reply("Three.")
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["score"]
    return chat_reply('{"score": 5}', n=body.get("n", 1), logprobs=[{"5": -0.1}])


def unable(body: Any, headers: Mapping[str, str]) -> Any:
    def refuse(name: str) -> Reply:
        error = {
            "message": f"Unsupported parameter: '{name}'",
            "param": name,
            "code": "unsupported_parameter",
        }
        return Reply(status=400, body={"error": error})

    if "image_url" in json.dumps(body["messages"]):
        return Reply(status=400, body={"error": {"message": "this model reads no images"}})
    if "input_audio" in json.dumps(body["messages"]):
        return Reply(status=400, body={"error": {"message": "this model hears nothing"}})
    for name in ("tools", "response_format", "logprobs", "n"):
        if body.get(name, 1) not in (1, False):
            return refuse(name)
    return chat_reply("5")


def converse(body: Any, headers: Mapping[str, str]) -> Any:
    said: dict[str, Any] = {"text": '{"score": 5}' if "outputConfig" in body else "Red."}
    if "toolConfig" in body:
        said = {"toolUse": {"toolUseId": "c", "name": "get_weather", "input": {"city": "Paris"}}}
    message = {"role": "assistant", "content": [said]}
    usage = {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10}
    reason = "tool_use" if "toolUse" in said else "end_turn"
    return {"output": {"message": message}, "stopReason": reason, "usage": usage}


def test_a_model_of_bedrock_is_tried_in_its_own_words() -> None:
    with LoopbackServer(respond=converse) as server:
        found = check(server, "bedrock:converse:m")
    assert can(found) == {
        "structured output": True,
        "token probabilities": False,
        "several answers": False,
        "images": True,
        "audio": False,
        "tools": True,
        "batches": False,
    }


def test_a_model_that_can_do_everything() -> None:
    with LoopbackServer(respond=able) as server:
        found = check(server, "openai:m")
    assert can(found) == {
        "structured output": True,
        "token probabilities": True,
        "several answers": True,
        "images": True,
        "audio": True,
        "tools": True,
        "batches": True,
    }
    assert (len(server.requests), found.requests, found.model, found.usage.input_tokens) == (
        5,
        5,
        "loopback-model",
        35,
    )


def test_a_model_that_can_do_nothing_but_answer_says_why() -> None:
    with LoopbackServer(respond=unable) as server:
        found = check(server, "openai:m")
    assert can(found) == {
        "structured output": False,
        "token probabilities": False,
        "several answers": False,
        "images": False,
        "audio": False,
        "tools": False,
        "batches": True,
    }
    said = {one.feature: one.detail for one in found.findings}
    assert "this model reads no images" in said["images"]
    assert "this model hears nothing" in said["audio"]
    assert "tools" in said["tools"]


@pytest.mark.parametrize(
    ("answer", "image", "features"),
    [
        ("four", "Blue.", {"structured output": False, "images": False, "tools": False}),
        ('{"score": "5"}', "I see red", {"structured output": False, "images": True, "tools": False}),
    ],
)
def test_what_is_taken_but_not_done_is_not_counted(
    answer: str, image: str, features: dict[str, bool]
) -> None:
    def respond(body: Any, headers: Mapping[str, str]) -> Any:
        return chat_reply(
            image if "image_url" in json.dumps(body["messages"]) else answer, n=body.get("n", 1)
        )

    with LoopbackServer(respond=respond) as server:
        found = can(check(server, "openai:m"))
    assert {name: found[name] for name in features} == features
    assert found["token probabilities"] is False


def test_anthropic_and_gemini_are_asked_in_their_own_forms() -> None:
    def claude(body: Any, headers: Mapping[str, str]) -> Any:
        text = json.dumps(body["messages"])
        said: list[dict[str, Any]] = [
            {"type": "text", "text": "Red" if '"image"' in text else '{"score": 4}'}
        ]
        if "tools" in body:
            assert body["tools"][0]["input_schema"]["required"] == ["city"]
            said = [{"type": "tool_use", "id": "t", "name": "get_weather", "input": {"city": "Paris"}}]
        reason = "tool_use" if "tools" in body else "end_turn"
        usage = {"input_tokens": 5, "output_tokens": 4}
        return {
            "type": "message",
            "role": "assistant",
            "content": said,
            "stop_reason": reason,
            "usage": usage,
        }

    def gemini(body: Any, headers: Mapping[str, str]) -> Any:
        text = json.dumps(body["contents"])
        part: dict[str, Any] = {
            "text": "red" if "inlineData" in text or "inline_data" in text else '{"score": 4}'
        }
        if "tools" in body:
            assert body["tools"][0]["functionDeclarations"][0]["name"] == "get_weather"
            part = {"functionCall": {"name": "get_weather", "args": {"city": "Paris"}}}
        return {"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}]}

    token = {"headers": {"authorization": "Bearer t-0123456789"}, "project_id": "p", "max_retries": 0}
    for provider_id, respond in (
        ("anthropic:c", claude),
        ("vertex:claude-c", claude),
        ("google:gemini-2.5-flash", gemini),
        ("vertex:gemini-2.5-flash", gemini),
    ):
        with LoopbackServer(respond=respond) as server:
            config = {**token, "base_url": server.url} if provider_id.startswith("vertex") else None
            found = can(check(server, provider_id, config))
        assert [found[name] for name in ("structured output", "images", "tools")] == [True, True, True], found
        assert found["audio"] is ("gemini" in provider_id)
        assert found["several answers"] is False


def test_a_refused_key_is_an_error() -> None:
    refused = Reply(status=401, body={"error": "no"})
    with LoopbackServer(respond=lambda body, headers: refused) as server, pytest.raises(ProviderAuthError):
        check(server, "openai:m")
    assert len(server.requests) == 1


def test_neither_a_key_in_an_id_nor_control_characters_of_an_answer_are_shown() -> None:
    def hostile(body: Any, headers: Mapping[str, str]) -> Any:
        reply = chat_reply("\x1b[31mgreen\nsays it", n=body.get("n", 1))
        reply.body["model"] = "m\x1b[2J\nm"
        return reply

    with LoopbackServer(respond=hostile) as server:
        found = check(server, "openai:m")
    shown = json.dumps([found.model, *(one.detail for one in found.findings)])
    assert found.model is not None
    assert not set(shown) & {"\x1b", "\n"}
    assert "\\u001b" not in shown
    assert "\\n" not in shown
    with LoopbackServer(respond=lambda body, headers: {"output": "hi"}) as server:
        keyed = check(server, f"{server.url}/ask?api_key=s3cr3t-k3y-0123456789", config={})
    assert "s3cr3t-k3y" not in keyed.provider
