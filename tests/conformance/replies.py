"""Replies made up from the official SDKs' types, read by geval: text, calls of tools, usage, reason of the end.

Each reply has all that its type allows around what is looked at; the types say that it is one before geval reads it.
"""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from conformance.instances import made_up
from conformance.requests import Checked
from support.calls import provider

from geval_cli.errors import ProviderError
from geval_cli.providers.network.messages import HttpResponse
from geval_cli.records import Message, ModelRequest, ModelResponse

TEXT = "The answer is 42."
VARIANTS = 25
ASKED = ModelRequest((Message("user", "How much is it? " * 40),))

Fix = Callable[[dict[str, Any], Random], dict[str, Any]]
"""Puts what is looked at into a reply, and returns what geval must find."""


def check_replies() -> Iterator[Checked]:
    """Yield each reply, and in what geval's reading of it differs."""
    for vendor, (model_id, kind, fixes) in _table().items():
        one: Any = provider(model_id, {"apiKey": "sk-1"})
        for name, fix in fixes.items():
            for seed in range(VARIANTS):
                chance = Random(seed)
                body = made_up(kind, chance)
                wanted = fix(body, chance)
                kind.model_validate_json(json.dumps(body))
                yield Checked(vendor, f"{name} {seed}", _differences(one, body, wanted))


def _differences(one: Any, body: Any, wanted: dict[str, Any]) -> list[str]:
    try:
        found: ModelResponse = one.batched_response(ASKED, HttpResponse(200, {}, b"").status, body)
    except ProviderError as error:
        if wanted.get("error"):
            return []
        return [f"{type(error).__name__}: {error.message}"[:160]]
    if wanted.get("error"):
        return [f"{found.choices[0].finish_reason}, {found.text[:60]!r} where it is no answer"]
    calls = [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in found.choices[0].tool_calls
        if call.get("type") == "function"
    ]
    seen = {
        "text": found.text,
        "calls": calls,
        "finish_reason": found.choices[0].finish_reason,
        "tokens": (found.usage.input_tokens, found.usage.output_tokens),
    }
    return [
        f"{name} {seen[name]!r}, not {value!r}"[:240] for name, value in wanted.items() if seen[name] != value
    ]


_CALL = ("look", {"city": "Rome"})


def _table() -> dict[str, Any]:
    import mistralai.client.models as mistral
    from anthropic.types import Message as Claude
    from google.genai.types import GenerateContentResponse
    from openai.types.chat import ChatCompletion
    from openai.types.responses import Response

    chat = {
        "text": _chat(TEXT, "stop", calls=False),
        "cut": _chat(TEXT, "length", calls=False),
        "text and calls": _chat(TEXT, "tool_calls", calls=True),
        "filtered": _chat("", "content_filter", calls=False),
    }
    return {
        "openai chat": ("openai:gpt-4.1", ChatCompletion, chat),
        "mistral": ("mistral:m", mistral.ChatCompletionResponse, chat),
        "openai responses": (
            "openai:responses:gpt-5",
            Response,
            {
                "text": _responses(["message"], "stop"),
                "thoughts and text": _responses(["reasoning", "message"], "stop"),
                "text and calls": _responses(["message", "function_call"], "tool_calls"),
                "text among other things": _responses(["other", "message", "other"], "stop"),
                "cut": _responses(["message"], "length"),
                "failed": _responses([], "failed"),
            },
        ),
        "anthropic": (
            "anthropic:claude-opus-5",
            Claude,
            {
                "text": _claude(["text"], "end_turn", "stop"),
                "stopped": _claude(["text"], "stop_sequence", "stop"),
                "thoughts and text": _claude(["thinking", "redacted_thinking", "text"], "end_turn", "stop"),
                "text and calls": _claude(["text", "tool_use"], "tool_use", "tool_calls"),
                "cut": _claude(["text"], "max_tokens", "length"),
            },
        ),
        "google": (
            "google:gemini-2.5-flash",
            GenerateContentResponse,
            {
                "text": _gemini("STOP", "stop", calls=False),
                "cut": _gemini("MAX_TOKENS", "length", calls=False),
                "text and calls": _gemini("STOP", "tool_calls", calls=True),
            },
        ),
    }


def _chat(text: str, reason: str, *, calls: bool) -> Fix:
    def fix(body: dict[str, Any], chance: Random) -> dict[str, Any]:
        choice = body["choices"][0]
        body["choices"] = [choice]
        choice.update(index=0, finish_reason=reason)
        message = choice["message"]
        message.update(role="assistant", content=text)
        for name in ("refusal", "audio", "function_call", "tool_calls"):
            if name in message:
                message[name] = None
        if calls:
            function = {"name": _CALL[0], "arguments": json.dumps(_CALL[1])}
            message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
        body["usage"].update(prompt_tokens=150, completion_tokens=20, total_tokens=170)
        wanted = {"text": text, "finish_reason": reason, "tokens": (150, 20)}
        return {**wanted, "calls": [_CALL] if calls else []}

    return fix


def _responses(items: list[str], reason: str) -> Fix:
    def fix(body: dict[str, Any], chance: Random) -> dict[str, Any]:
        from openai.types.responses import ResponseOutputMessage, ResponseReasoningItem
        from openai.types.responses.response_output_item import ResponseOutputItem

        union = ResponseOutputItem.__origin__.__args__  # type: ignore[attr-defined]  # Annotated[Union[...], ...]
        spoken = {"ResponseOutputMessage", "ResponseFunctionToolCall", "ResponseCustomToolCall"}
        others = [kind for kind in union if kind.__name__ not in spoken]
        output = []
        for item in items:
            if item == "message":
                found = made_up(ResponseOutputMessage, chance)
                part = {"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}
                found.update(content=[part], status="completed", phase="final_answer")
            elif item == "reasoning":
                found = made_up(ResponseReasoningItem, chance)
            elif item == "function_call":
                found = {
                    "type": "function_call",
                    "id": "fc_1",
                    "call_id": "call_1",
                    "name": _CALL[0],
                    "arguments": json.dumps(_CALL[1]),
                    "status": "completed",
                }
            else:
                found = made_up(chance.choice(others), chance)
                if "status" in found:  # a call that is left open is no whole answer
                    found["status"] = "completed"
            output.append(found)
        body.update(output=output, status="completed", error=None, incomplete_details=None)
        body["usage"].update(input_tokens=150, output_tokens=20, total_tokens=170)
        if reason == "failed":
            error = {"code": "server_error", "message": "made"}
            body.update(status=chance.choice(["failed", "cancelled", "in_progress", "queued"]))
            body["error"] = chance.choice([None, error])
            return {"error": True}
        if reason == "length":
            body.update(status="incomplete", incomplete_details={"reason": "max_output_tokens"})
        calls = [_CALL] if "function_call" in items else []
        wanted = {"text": TEXT, "finish_reason": reason, "tokens": (150, 20), "calls": calls}
        if "other" in items:
            del wanted[
                "finish_reason"
            ]  # some of these items wait for the caller, which is a reason to end as well
        return wanted

    return fix


def _claude(blocks: list[str], reason: str, meant: str) -> Fix:
    def fix(body: dict[str, Any], chance: Random) -> dict[str, Any]:
        made: dict[str, dict[str, Any]] = {
            "text": {"type": "text", "text": TEXT, "citations": None},
            "thinking": {"type": "thinking", "thinking": "Hm.", "signature": "made"},
            "redacted_thinking": {"type": "redacted_thinking", "data": "made"},
            "tool_use": {
                "type": "tool_use",
                "id": "toolu_1",
                "name": _CALL[0],
                "input": _CALL[1],
                "caller": {"type": "direct"},
            },
        }
        body.update(
            content=[made[name] for name in blocks], stop_reason=reason, type="message", role="assistant"
        )
        body["usage"].update(
            input_tokens=100, output_tokens=20, cache_creation_input_tokens=30, cache_read_input_tokens=20
        )
        body["usage"]["cache_creation"] = {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20}
        calls = [_CALL] if "tool_use" in blocks else []
        return {"text": TEXT, "finish_reason": meant, "tokens": (150, 20), "calls": calls}

    return fix


def _gemini(reason: str, meant: str, *, calls: bool) -> Fix:
    def fix(body: dict[str, Any], chance: Random) -> dict[str, Any]:
        candidate = body["candidates"][0]
        body["candidates"] = [candidate]
        parts: list[dict[str, Any]] = [{"text": "Hm.", "thought": True}, {"text": TEXT}]
        if calls:
            parts.append(
                {"functionCall": {"name": _CALL[0], "args": _CALL[1], "id": "1"}, "thoughtSignature": "bQ=="}
            )
        candidate.update(content={"role": "model", "parts": parts}, finishReason=reason, index=0)
        body["promptFeedback"] = None
        for rating in candidate.get("safetyRatings") or ():
            rating["blocked"] = False  # else the filter's verdict is the finish reason
        body["usageMetadata"].update(
            promptTokenCount=140,
            toolUsePromptTokenCount=10,
            cachedContentTokenCount=20,
            candidatesTokenCount=15,
            thoughtsTokenCount=5,
            totalTokenCount=170,
        )
        for name in ("sdkHttpResponse", "automaticFunctionCallingHistory", "parsed"):
            body.pop(name, None)  # filled by the SDK, and not by the server
        wanted = {"text": TEXT, "finish_reason": meant, "tokens": (150, 20)}
        return {**wanted, "calls": [_CALL] if calls else []}

    return fix
