"""Anthropic's Messages API."""

import json
from collections.abc import Mapping
from typing import Any

from geval_cli.providers.base import ProviderSource
from geval_cli.providers.presets import endpoint_of
from geval_cli.providers.wire.anthropic_batches import AnthropicBatches
from geval_cli.providers.wire.batch_api import BatchApi
from geval_cli.providers.wire.chat import WITHOUT_TEXT, content_text
from geval_cli.providers.wire.endpoint import Endpoint
from geval_cli.providers.wire.endpoint_provider import EndpointProvider, Received
from geval_cli.providers.wire.token_usage import TokenUsage, read_messages_usage
from geval_cli.records import Choice, Message, ModelRequest
from geval_cli.source.images import with_parts_of

DEFAULT_MAX_TOKENS = 4096
"""The API demands `max_tokens`; this is used when neither the config nor the request has it."""

_INSTRUCTION_ROLES = frozenset({"system", "developer"})
_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


class AnthropicProvider(EndpointProvider):
    """A Claude model. It gives one choice a request and no token probabilities: `dropped` says so."""

    sees_images = True

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        return _payload(self._endpoint, request)

    def choices(self, received: Received, request: ModelRequest) -> tuple[Choice, ...]:
        return (_choice(received),)

    def tokens(self, body: Mapping[str, Any]) -> TokenUsage | None:
        return read_messages_usage(body)

    def dropped(self, request: ModelRequest) -> tuple[str, ...]:
        return _dropped(request)

    def _new_batches(self) -> BatchApi | None:
        return AnthropicBatches(self._endpoint, self._transport) if self._endpoint.batch else None


def build(source: ProviderSource) -> AnthropicProvider:
    """Return the provider that a checked `source` describes."""
    return AnthropicProvider(endpoint_of(source))


def _payload(endpoint: Endpoint, request: ModelRequest) -> dict[str, Any]:
    system, messages = _split_instructions(with_parts_of(request, _image_block))
    payload: dict[str, Any] = {"model": endpoint.model, "messages": messages}
    if system:
        payload["system"] = system
    payload.update(endpoint.wire)
    payload.update(request.params)
    # This API demands a limit, and knows it by one name only.
    limit = payload.pop("max_completion_tokens", None)
    if payload.get("max_tokens") is None:
        payload["max_tokens"] = limit or DEFAULT_MAX_TOKENS
    stop = payload.pop("stop", None)
    if stop is not None:
        payload["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    # What judges ask of every model and this API does not know; `dropped` reports it.
    for name in ("logprobs", "top_logprobs", "response_format", "seed"):
        payload.pop(name, None)
    return {name: value for name, value in payload.items() if value is not None}


def _image_block(media_type: str, data: str, part: Mapping[str, Any]) -> dict[str, Any]:
    del part
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def _split_instructions(messages: tuple[Message, ...]) -> tuple[str, list[dict[str, Any]]]:
    """Return the system text, and the other messages; a conversation of system messages only is asked as the user."""
    instructions = [content_text(item.content) for item in messages if item.role in _INSTRUCTION_ROLES]
    others = [_wire_message(item) for item in messages if item.role not in _INSTRUCTION_ROLES]
    if not others:
        return "", [{"role": "user", "content": "\n\n".join(instructions)}]
    return "\n\n".join(instructions), others


def _wire_message(message: Message) -> dict[str, Any]:
    """Return a message in this API's words; calls of tools and their results are blocks of content here."""
    calls = message.further.get("tool_calls")
    if message.role == "assistant" and isinstance(calls, list):
        said = content_text(message.content)
        blocks: list[Any] = [{"type": "text", "text": said}] if said else []
        return {"role": "assistant", "content": [*blocks, *map(_tool_use, calls)]}
    if message.role == "tool":
        result = {
            "type": "tool_result",
            "tool_use_id": message.further.get("tool_call_id"),
            "content": message.content,
        }
        return {"role": "user", "content": [result]}
    return {"role": message.role, "content": message.content}


def _tool_use(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call if isinstance(call, dict) else {"type": "text", "text": str(call)}
    arguments = function.get("arguments")
    try:
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        given = {"arguments": arguments}
    return {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": given or {}}


def _dropped(request: ModelRequest) -> tuple[str, ...]:
    wished = {
        "logprobs": request.want_logprobs,
        "n": len(request.sample_indexes) > 1,
        "response_format": request.response_schema is not None,
        "seed": "seed" in request.params,
    }
    return tuple(name for name, is_wished in wished.items() if is_wished)


def _choice(received: Received) -> Choice:
    body = received.body
    blocks = body.get("content") if isinstance(body, dict) else None
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise received.refuse("an answer without content")
    if any(block.get("type") == "text" and not isinstance(block.get("text"), str) for block in blocks):
        raise received.refuse("an answer whose text is none")
    text = "".join(block["text"] for block in blocks if isinstance(block.get("text"), str))
    calls = [block for block in blocks if block.get("type") == "tool_use"]
    if not text and calls:
        text = json.dumps(calls, ensure_ascii=False)
    stop_reason = body.get("stop_reason")
    reason = _FINISH_REASONS.get(stop_reason, stop_reason) if isinstance(stop_reason, str) else None
    is_said = calls or any(block.get("type") == "text" for block in blocks)
    if not is_said and reason not in WITHOUT_TEXT:
        raise received.refuse("an answer without content")
    return Choice(text, reason)
