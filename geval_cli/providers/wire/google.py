"""Google's Gemini API (`google:MODEL`)."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from geval_cli.providers.base import ProviderSource
from geval_cli.providers.presets import endpoint_of
from geval_cli.providers.wire.chat import FILTERED, content_text
from geval_cli.providers.wire.endpoint import Endpoint
from geval_cli.providers.wire.endpoint_provider import EndpointProvider, Received
from geval_cli.providers.wire.token_usage import TokenUsage, read_chat_usage, whole_count
from geval_cli.providers.wire.vertex import vertex_endpoint
from geval_cli.records import Choice, Message, ModelRequest, Role
from geval_cli.source.images import with_parts_of

_INSTRUCTION_ROLES = frozenset({"system", "developer"})
_MODEL_ROLES = ("assistant", "model")
_BODY_KEYS = frozenset(
    {"safetySettings", "tools", "toolConfig", "tool_config", "cachedContent", "labels", "generationConfig"}
)
_GENERATION_NAMES = {
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
    "max_output_tokens": "maxOutputTokens",
    "top_p": "topP",
    "top_k": "topK",
    "stop": "stopSequences",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
"""Parameters as other APIs call them, and as this one does."""
_FINISH_REASONS = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(("SAFETY", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII"), FILTERED),
}


class GoogleProvider(EndpointProvider):
    """A Gemini model. It gives one choice a request and no token probabilities: `dropped` says so."""

    sees_images = True
    model_key = "modelVersion"
    id_key = "responseId"

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        return _payload(self._endpoint, request)

    def choices(self, received: Received, request: ModelRequest) -> tuple[Choice, ...]:
        return (_choice(received, is_judge=request.role is Role.JUDGE),)

    def tokens(self, body: Mapping[str, Any]) -> TokenUsage | None:
        return _usage(body)


def build(source: ProviderSource) -> GoogleProvider:
    """Return the provider that a checked `source` describes."""
    return GoogleProvider(vertex_endpoint(source) if source.kind == "vertex" else endpoint_of(source))


def _payload(endpoint: Endpoint, request: ModelRequest) -> dict[str, Any]:
    settings = {**endpoint.wire, **request.params}
    instruction = settings.pop("systemInstruction", None) or settings.pop("system_instruction", None)
    format_ = settings.pop("response_format", None)
    for name in ("logprobs", "top_logprobs"):
        settings.pop(name, None)
    body = {name: settings.pop(name) for name in _BODY_KEYS & settings.keys()}
    generation = {
        _GENERATION_NAMES.get(name, name): value for name, value in settings.items() if value is not None
    }
    if isinstance(generation.get("stopSequences"), str):
        generation["stopSequences"] = [generation["stopSequences"]]
    generation |= _shape(request, format_)
    generation |= body.pop("generationConfig", None) or {}
    system, contents = _contents(with_parts_of(request, _inline_data), instruction)
    payload = {**body, "contents": contents}
    if system:
        payload["systemInstruction"] = {"parts": [{"text": system}]}
    if generation:
        payload["generationConfig"] = generation
    return payload


def _shape(request: ModelRequest, format_: Any) -> dict[str, Any]:
    """Return the parameters that make the answer JSON, if requested."""
    if request.response_schema is not None:
        return {"responseMimeType": "application/json", "responseJsonSchema": request.response_schema}
    kind = format_.get("type") if isinstance(format_, dict) else None
    return {"responseMimeType": "application/json"} if kind in ("json_object", "json_schema") else {}


def _inline_data(media_type: str, data: str, part: Mapping[str, Any]) -> dict[str, Any]:
    del part
    return {"inlineData": {"mimeType": media_type, "data": data}}


def _contents(messages: tuple[Message, ...], instruction: Any) -> tuple[str, list[dict[str, Any]]]:
    """Return the system text, and the other messages; a conversation of system messages only is asked as the user."""
    system = [_instruction_text(instruction)] if instruction else []
    instructions = [content_text(_written(item)) for item in messages if item.role in _INSTRUCTION_ROLES]
    names = dict(_names_of_calls(messages))
    others = [
        {"role": "model" if item.role in _MODEL_ROLES else "user", "parts": _parts_of(item, names)}
        for item in messages
        if item.role not in _INSTRUCTION_ROLES
    ]
    if not others:
        return "\n\n".join(system), [{"role": "user", "parts": [{"text": "\n\n".join(instructions)}]}]
    return "\n\n".join([*system, *instructions]), others


def _names_of_calls(messages: tuple[Message, ...]) -> Iterator[tuple[str, str]]:
    """Yield id and name of each call of a tool: a result names the tool here, and not the call."""
    for message in messages:
        for call in message.further.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                yield str(call.get("id")), str(function.get("name"))


def _parts_of(message: Message, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the parts of a message; calls of tools and their results are parts here."""
    calls = message.further.get("tool_calls")
    if message.role == "tool" and message.content is not None:
        name = names.get(str(message.further.get("tool_call_id")), "tool")
        return [{"functionResponse": {"name": name, "response": {"result": message.content}}}]
    if message.role not in _MODEL_ROLES or not isinstance(calls, list):
        return _parts(_written(message))
    said = _parts(message.content) if message.content else []
    return [*said, *map(_function_call, calls)]


def _function_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call if isinstance(call, dict) else {"text": str(call)}
    arguments = function.get("arguments")
    try:
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        given = {"arguments": arguments}
    return {"functionCall": {"name": function.get("name"), "args": given or {}}}


def _written(message: Message) -> Any:
    """Return the content of a message, written as in chat APIs or in this API's own form."""
    return message.further.get("parts") if message.content is None else message.content


def _instruction_text(written: Any) -> str:
    parts = written.get("parts") if isinstance(written, dict) else written
    return content_text([parts] if isinstance(parts, dict) else parts)


def _parts(content: Any) -> list[dict[str, Any]]:
    """Return the parts of a message; those that this API does not spell as others do go as they are."""
    if isinstance(content, str):
        return [{"text": content}]
    parts = content if isinstance(content, list) else [content]
    return [
        {"text": part["text"]} if isinstance(part, dict) and part.get("type") == "text" else part
        for part in parts
    ]


def _choice(received: Received, *, is_judge: bool) -> Choice:
    body = received.body
    candidates = body.get("candidates") if isinstance(body, dict) else None
    if isinstance(candidates, list) and candidates and isinstance(candidates[0], dict):
        return _candidate(candidates[0], received)
    feedback = body.get("promptFeedback") if isinstance(body, dict) else None
    if isinstance(feedback, dict) and feedback.get("blockReason"):
        what = f"no answer, since the prompt was blocked ({feedback['blockReason']})"
        if is_judge:
            raise received.refuse(what)
        return Choice(what, FILTERED)
    raise received.refuse("an answer without candidates")


def _candidate(candidate: Mapping[str, Any], received: Received) -> Choice:
    reason = candidate.get("finishReason")
    content = candidate.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    texts = list(_texts(parts)) if isinstance(parts, list) else []
    # With any other reason (a filter, thoughts that took the whole limit) an empty answer is one: the reason counts.
    if not texts and (not reason or reason == "STOP"):
        raise received.refuse("an answer without content")
    return Choice(
        "".join(texts), _FINISH_REASONS.get(reason, reason.lower()) if isinstance(reason, str) else None
    )


def _texts(parts: list[Any]) -> Iterator[str]:
    """Yield the texts without the thoughts, and the model's tool calls as JSON."""
    for part in parts:
        if not isinstance(part, dict) or part.get("thought"):
            continue
        if isinstance(part.get("text"), str):
            yield part["text"]
        elif "functionCall" in part:
            yield json.dumps(part, ensure_ascii=False)


def _usage(body: Mapping[str, Any]) -> TokenUsage | None:
    """Tokens, thoughts counted as written, under this API's own names."""
    counted = body.get("usageMetadata")
    if not isinstance(counted, dict):
        return None
    named = [counted.get(name) for name in ("candidatesTokenCount", "thoughtsTokenCount")]
    written: list[Any] = [count for count in named if count is not None]
    # A count that is none must not make the sum too low: it is handed on, and makes all of the usage unknown.
    odd = [count for count in written if whole_count(count) is None]
    usage = {
        "prompt_tokens": counted.get("promptTokenCount"),
        "completion_tokens": odd[0] if odd else sum(written),
        "prompt_tokens_details": {"cached_tokens": counted.get("cachedContentTokenCount")},
    }
    return read_chat_usage({"usage": usage, "model": body.get("modelVersion")})
