"""Requests of every wire for a wide table of settings, checked against the official SDKs' own types."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from conformance.strict_types import problems_of
from msgspec import Struct
from support.calls import provider
from support.pictures import data_url, png

from geval_cli.providers.network.messages import json_bytes
from geval_cli.providers.registry import check_provider
from geval_cli.records import Message, ModelRequest, Role
from geval_cli.source.media import with_media
from geval_cli.specs.base import ProviderSpec

SCHEMA = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "score": {"type": "number"}},
    "required": ["reason", "score"],
    "additionalProperties": False,
}
CHAT_TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA}}
CALL = {"id": "call12345", "type": "function", "function": {"name": "look", "arguments": '{"city": "Rome"}'}}
OLDER_CLAUDES = frozenset({"temperature", "top_p", "top_k"})
"""Claude models of up to 2025 take these, and the SDK's types know them no more."""


NOT_OF = {("mistral", "developer")}
"""Roles that a vendor does not have; who writes one gets the vendor's refusal."""


class Checked(Struct, frozen=True):
    """One body or reply, and what is wrong with it."""

    vendor: str
    name: str
    problems: list[str]


def asked() -> dict[str, ModelRequest]:
    """What geval asks: prompts of all forms, and what judges are asked."""
    hello = Message("user", "Say hi.")
    image = {"type": "image_url", "image_url": {"url": data_url(png())}}
    tools = (
        hello,
        Message("assistant", "I look.", {"tool_calls": [CALL]}),
        Message("tool", "sunny", {"tool_call_id": CALL["id"]}),
    )
    judge: dict[str, Any] = {"role": Role.JUDGE, "response_schema": SCHEMA}
    return {
        "plain": ModelRequest((hello,)),
        "system": ModelRequest((Message("system", "Be brief."), hello)),
        "developer": ModelRequest((Message("developer", "Be brief."), hello)),
        "turns": ModelRequest((hello, Message("assistant", "Hi."), Message("user", "Again."))),
        "parts": ModelRequest((Message("user", [{"type": "text", "text": "Say hi."}]),)),
        "parts of an answer": ModelRequest(
            (hello, Message("assistant", [{"type": "text", "text": "Hi."}]), Message("user", "Again."))
        ),
        "image": with_media(ModelRequest((Message("user", [{"type": "text", "text": "See:"}, image]),))),
        "tools used": ModelRequest(tools),
        "tools used silently": ModelRequest((hello, Message("assistant", None, tools[1].further), tools[2])),
        "samples": ModelRequest((hello,), sample_indexes=tuple(range(4))),
        "params of the request": ModelRequest((hello,), params={"temperature": 0.5, "max_tokens": 50}),
        "judge": ModelRequest((hello,), **judge, params={"temperature": 0}),
        "judge, samples": ModelRequest(
            (hello,), **judge, sample_indexes=(0, 1, 2), params={"temperature": 1}
        ),
        "judge, logprobs": ModelRequest(
            (hello,), role=Role.JUDGE, want_logprobs=True, params={"temperature": 0, "max_tokens": 16}
        ),
        "judge, text": ModelRequest(
            (hello,), role=Role.JUDGE, params={"temperature": None, "max_tokens": None}
        ),
    }


_SHARED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "sampling": {"temperature": 0.2, "top_p": 0.9},
    "limit": {"max_tokens": 100},
    "stop": {"stop": ["x", "y"]},
    "passthrough": {"passthrough": {}},
}
_FORMATS: dict[str, dict[str, Any]] = {
    "json": {"response_format": {"type": "json_object"}},
    "schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": SCHEMA, "strict": True},
        }
    },
}
_CHAT: dict[str, dict[str, Any]] = {
    **_SHARED,
    **_FORMATS,
    "tools": {"tools": [CHAT_TOOL], "tool_choice": "auto", "parallel_tool_calls": False},
    "tool": {"tools": [CHAT_TOOL], "tool_choice": {"type": "function", "function": {"name": "look"}}},
    "penalties": {"frequency_penalty": 0.1, "presence_penalty": 0.1},
    "effort": {"reasoning_effort": "low"},
}
SETTINGS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "openai chat": (
        "openai:gpt-4.1",
        {
            **_CHAT,
            "seed": {"seed": 7},
            "stop alone": {"stop": "x"},
            "new limit": {"max_completion_tokens": 100},
            "bias": {"logit_bias": {"50256": -100}},
            "logprobs": {"logprobs": True, "top_logprobs": 5},
            "verbosity": {"verbosity": "low", "reasoning_effort": "minimal"},
            "kept": {"store": True, "metadata": {"team": "a"}, "service_tier": "flex", "user": "u"},
            "search": {"web_search_options": {"search_context_size": "low"}},
            "cache": {"prompt_cache_key": "k", "safety_identifier": "s"},
            "prediction": {"prediction": {"type": "content", "content": "x"}},
        },
    ),
    "openai responses": (
        "openai:responses:gpt-5",
        {
            **_SHARED,
            **_FORMATS,
            "stop": {},
            "effort": {"reasoning_effort": "low", "verbosity": "low"},
            "reasoning": {"reasoning": {"effort": "low", "summary": "auto"}},
            "tools": {
                "tools": [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": True}],
                "tool_choice": "auto",
            },
            "search": {"tools": [{"type": "web_search"}], "include": ["web_search_call.action.sources"]},
            "instructions": {"instructions": "Be brief.", "truncation": "auto", "store": False},
            "limit": {"max_output_tokens": 100},
            "new limit": {"max_completion_tokens": 100},
        },
    ),
    "anthropic": (
        "anthropic:claude-opus-5",
        {
            **{name: item for name, item in _SHARED.items() if name != "sampling"},
            "sampling": {"temperature": 0.2},
            "system": {"system": "Be brief."},
            "system in parts": {
                "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
            },
            "tools": {
                "tools": [{"name": "look", "description": "Looks.", "input_schema": SCHEMA}],
                "tool_choice": {"type": "auto"},
            },
            "thinking": {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 4000},
            "thinking much": {"thinking": {"type": "enabled", "budget_tokens": 6000}},
            "adaptive": {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
            "metadata": {"metadata": {"user_id": "u"}, "service_tier": "auto"},
        },
    ),
    "google": (
        "google:gemini-2.5-flash",
        {
            **_SHARED,
            **_FORMATS,
            "seed": {"seed": 7, "top_k": 20},
            "generationConfig": {
                "generationConfig": {"temperature": 0.1, "thinkingConfig": {"thinkingBudget": 0}}
            },
            "penalties": {"frequency_penalty": 0.1, "presence_penalty": 0.1},
            "system": {"systemInstruction": {"parts": [{"text": "Be brief."}]}},
            "safety": {
                "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
            },
            "tools": {
                "tools": [{"functionDeclarations": [{"name": "look", "parametersJsonSchema": SCHEMA}]}],
                "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
            },
            "search": {"tools": [{"googleSearch": {}}]},
        },
    ),
    "mistral": (
        "mistral:mistral-large-latest",
        {
            **_CHAT,
            "effort": {"reasoning_effort": "high"},
            "seed": {"random_seed": 7},
            "safe": {"safe_prompt": True, "prompt_mode": "reasoning"},
        },
    ),
}
"""By vendor: a model of it, and settings that its users write."""


def kind_of_body(vendor: str) -> Any:
    """The SDK's type of a vendor's requests."""
    return _kinds()[vendor]


@cache
def _kinds() -> Mapping[str, Any]:
    import mistralai.client.models as mistral
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming as Claude
    from google.genai import types as google
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as Chat
    from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming as Responses
    from pydantic import BaseModel, ConfigDict, create_model

    class Strict(BaseModel):
        model_config = ConfigDict(extra="forbid")

    # The SDK writes these keys of the REST API itself, and has types for what is in them.
    gemini = create_model(
        "Gemini",
        __base__=Strict,
        contents=(list[google.Content], ...),
        systemInstruction=(google.Content | None, None),
        generationConfig=(google.GenerationConfig | None, None),
        tools=(list[google.Tool] | None, None),
        toolConfig=(google.ToolConfig | None, None),
        safetySettings=(list[google.SafetySetting] | None, None),
    )
    return {
        "openai chat": Chat,
        "openai responses": Responses,
        "anthropic": Claude,
        "google": gemini,
        "mistral": mistral.ChatCompletionRequest,
    }


def check_bodies() -> Iterator[Checked]:
    """Yield each body that geval writes for each setting and each question, and what its vendor's types say."""
    for vendor, (model_id, table) in SETTINGS.items():
        for name, config in table.items():
            spec = ProviderSpec(id=model_id, config=config)
            refused = [
                p for p in check_provider(spec, env={}, base_dir=Path()) if p.severity.value == "error"
            ]
            assert refused == [], f"{model_id} does not take {config}"
            one: Any = provider(model_id, {**config, "apiKey": "sk-1"})
            for question, request in asked().items():
                if (vendor, question) in NOT_OF:
                    continue
                body = json.loads(json_bytes(one.payload(request)))
                kind = kind_of_body(vendor)
                checked = body
                if vendor == "anthropic":
                    checked = {key: item for key, item in body.items() if key not in OLDER_CLAUDES}
                yield Checked(vendor, f"{name}: {question}", problems_of(checked, kind))
                if one.batches is not None:
                    yield Checked(
                        f"{vendor} batches", f"{name}: {question}", _line_problems(vendor, one, body)
                    )
    yield from _of_other_models()


def _line_problems(vendor: str, one: Any, body: Any) -> list[str]:
    """What is wrong with the line of a batch; its request is the one that was checked."""
    line = json.loads(one.batches.line("custom-1", json_bytes(body)))
    url = "/v1/responses" if vendor == "openai responses" else "/v1/chat/completions"
    forms = {
        "anthropic": {"custom_id": "custom-1", "params": body},
        "google": {"key": "custom-1", "request": body},
        "mistral": {"custom_id": "custom-1", "body": body},
    }
    wanted = forms.get(vendor, {"custom_id": "custom-1", "method": "POST", "url": url, "body": body})
    return [] if line == wanted else [f"{line}"]


def _of_other_models() -> Iterator[Checked]:
    import mistralai.client.models as mistral
    from openai.types import EmbeddingCreateParams, ModerationCreateParams

    table = [
        ("openai embeddings", "openai:embedding:e", {}, EmbeddingCreateParams),
        ("openai embeddings", "openai:embedding:e", {"dimensions": 9, "user": "u"}, EmbeddingCreateParams),
        ("openai embeddings", "openai:embedding:e", {"encoding_format": "float"}, EmbeddingCreateParams),
        ("openai moderation", "openai:moderation", {}, ModerationCreateParams),
        ("mistral embeddings", "mistral:embedding:e", {}, mistral.EmbeddingRequest),
    ]
    for vendor, model_id, config, kind in table:
        one: Any = provider(model_id, {**config, "apiKey": "sk-1"})
        body = json.loads(json_bytes(one.payload(ModelRequest((Message("user", "Say hi."),)))))
        yield Checked(vendor, str(config), problems_of(body, kind))
