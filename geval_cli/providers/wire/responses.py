"""OpenAI's Responses API (`openai:responses:MODEL`)."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from geval_cli.providers.conversation import message_list
from geval_cli.providers.wire.chat_reply import content_text
from geval_cli.providers.wire.endpoint import Endpoint
from geval_cli.providers.wire.endpoint_provider import EndpointProvider, Received
from geval_cli.providers.wire.token_usage import TokenUsage, read_chat_usage
from geval_cli.records import Choice, ModelRequest


def is_strict_safe(schema: Any) -> bool:
    """Return whether `schema`, and every schema in it, lists all its properties as required and allows no others."""
    if isinstance(schema, list):
        return all(is_strict_safe(item) for item in schema)
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is not False:
            return False
        if set(schema.get("required", ())) != set(properties):
            return False
        return all(is_strict_safe(item) for item in properties.values())
    return all(is_strict_safe(schema[key]) for key in ("items", "anyOf", "$defs") if key in schema)


_SPOKEN = frozenset({"message", "reasoning"})
_UNFINISHED = {"max_output_tokens": "length", "content_filter": "content_filter"}
_TOKEN_LIMITS = ("max_output_tokens", "max_completion_tokens", "max_tokens")


class ResponsesProvider(EndpointProvider):
    """A model behind the Responses API. It gives one answer a request; `dropped` lists unsupported parameters."""

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        return _payload(self._endpoint, request)

    def choices(self, received: Received, request: ModelRequest) -> tuple[Choice, ...]:
        return (_choice(received),)

    def tokens(self, body: Mapping[str, Any]) -> TokenUsage | None:
        return _usage(body)


def _payload(endpoint: Endpoint, request: ModelRequest) -> dict[str, Any]:
    payload: dict[str, Any] = {"model": endpoint.model, "input": _input(request)}
    payload.update(endpoint.wire)
    payload.update(request.params)
    limits = [payload.pop(name, None) for name in _TOKEN_LIMITS]
    payload["max_output_tokens"] = next((limit for limit in limits if limit is not None), None)
    written = payload.pop("response_format", None)
    if written is None and request.response_schema is not None:
        schema = request.response_schema
        written = {
            "type": "json_schema",
            "name": "answer",
            "strict": is_strict_safe(schema),
            "schema": schema,
        }
    if isinstance(written, dict):
        payload["text"] = {"format": _text_format(written), **(payload.get("text") or {})}
    effort = payload.pop("reasoning_effort", None)
    if effort is not None:
        payload["reasoning"] = {"effort": effort, **(payload.get("reasoning") or {})}
    verbosity = payload.pop("verbosity", None)
    if verbosity is not None:
        payload["text"] = {"verbosity": verbosity, **(payload.get("text") or {})}
    return {name: value for name, value in payload.items() if value is not None}


def _input(request: ModelRequest) -> Any:
    """Return one text as it is, which the API takes for the user's; else the messages."""
    messages = request.messages
    if len(messages) == 1 and messages[0].role == "user" and isinstance(messages[0].content, str):
        return messages[0].content
    return message_list(messages)


def _text_format(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `response_format` as this API writes it, with the schema's own keys beside the type."""
    inner = written.get("json_schema")
    return {"type": written.get("type"), **inner} if isinstance(inner, dict) else dict(written)


def _choice(received: Received) -> Choice:
    body = received.body
    items = body.get("output") if isinstance(body, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise received.refuse("an answer without output")
    if body.get("error"):
        raise received.refuse("an error instead of an answer")
    parts = list(_parts(items))
    if not parts and body.get("status") != "incomplete":
        raise received.refuse("an answer without text")
    return Choice("\n".join(parts), _finish_reason(body, items))


def _parts(items: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the texts, and the model's tool calls as JSON."""
    for item in items:
        if item.get("type") == "message":
            yield from _message_text(item.get("content"))
        elif item.get("type") not in _SPOKEN and "name" in item:
            yield json.dumps(item, ensure_ascii=False, separators=(",", ":"))


def _message_text(content: Any) -> Iterator[str]:
    """The text of a message, or in what words the model refuses; nothing when there is no part that says anything."""
    if isinstance(content, str):
        yield content
        return
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    refusals = [part["refusal"] for part in parts if isinstance(part.get("refusal"), str)]
    if refusals or any(isinstance(part.get("text"), str) for part in parts):
        yield content_text(content) or "".join(refusals)


def _finish_reason(body: Mapping[str, Any], items: list[Mapping[str, Any]]) -> str:
    details = body.get("incomplete_details")
    if isinstance(details, dict):
        reason = str(details.get("reason"))
        return _UNFINISHED.get(reason, reason)
    return "tool_calls" if any(item.get("type") == "function_call" for item in items) else "stop"


def _usage(body: Mapping[str, Any]) -> TokenUsage | None:
    """Tokens, which this API counts as the chat API does, under other names."""
    counted = body.get("usage")
    if not isinstance(counted, dict):
        return None
    usage = {
        "prompt_tokens": counted.get("input_tokens"),
        "completion_tokens": counted.get("output_tokens"),
        "prompt_tokens_details": counted.get("input_tokens_details"),
    }
    return read_chat_usage({**body, "usage": usage})
