"""OpenAI's chat API, which many other servers support, too."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from geval_cli.plugins import extra
from geval_cli.providers.base import TEXT, ProviderSource, kind_of
from geval_cli.providers.presets import endpoint_of, speaks_responses
from geval_cli.providers.wire.chat import answer_message, chat_messages, parse_choices, place_of
from geval_cli.providers.wire.endpoint_provider import EndpointProvider, JsonAnswer
from geval_cli.records import Choice, ModelRequest, ToolDefinition
from geval_cli.source.media import with_parts_of


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


_TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")


class OpenAICompatibleProvider(EndpointProvider):
    """A model behind the chat API.

    `request.params` take precedence over the config; a value of None leaves the parameter out, even if the config sets
    it. A limit on new tokens is sent under the name that it was given: when a server refuses `max_tokens` in favour of
    `max_completion_tokens`, the error names `max_tokens`, and the caller sends the request again with the other name in
    `request.params`, which then replaces it.
    """

    sees_images = True
    has_batches = True
    hears = frozenset({"audio/wav", "audio/mpeg"})

    def choices(self, received: JsonAnswer, request: ModelRequest) -> tuple[Choice, ...]:
        body = received.body
        if not isinstance(body, dict):
            raise received.refuse("JSON that is not an object")
        choices, wrong = parse_choices(body)
        if not choices:
            raise received.refuse(wrong)
        choices = choices[: len(request.sample_indexes)]
        if request.tools and len(choices) == 1:
            entry = min(filter(_is_mapping, body["choices"]), key=lambda item: place_of(item.get("index")))
            choices = (replace(choices[0], message=answer_message(entry)),)
        return choices

    def sent_choices(self, body: Any) -> int:
        return sum(map(_is_mapping, body["choices"]))

    def dropped(self, request: ModelRequest) -> tuple[str, ...]:
        return ()  # a server refuses what it does not support, and the gateway retries without it

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        payload: dict[str, Any] = {
            "model": self._endpoint.model,
            "messages": chat_messages(with_parts_of(request, _media_part)),
        }
        if request.response_schema is not None:
            schema = request.response_schema
            named = {"name": "answer", "strict": is_strict_safe(schema), "schema": schema}
            payload["response_format"] = {"type": "json_schema", "json_schema": named}
        payload.update(self._endpoint.wire)
        for name in _TOKEN_LIMITS:
            if request.params.get(name) is not None:
                for other in _TOKEN_LIMITS:
                    payload.pop(other, None)
        payload.update(request.params)
        if request.tools:
            own = [{"type": "function", "function": function_of(tool)} for tool in request.tools]
            payload["tools"] = [*(payload.get("tools") or ()), *own]
        requested = len(request.sample_indexes)
        if requested > 1:
            payload["n"] = min(requested, self.caps.get("n", requested))
        if request.want_logprobs:
            payload["logprobs"] = True
            payload["top_logprobs"] = self.caps["top_logprobs"]
        return {name: value for name, value in payload.items() if value is not None}


def build(source: ProviderSource) -> EndpointProvider:
    """Return the provider for a checked `source`, according to the kind of answer and the API that its id names."""
    if kind_of(source.spec.id) != TEXT or speaks_responses(source):
        other: EndpointProvider = extra("APIs beside chat").build(source)
        return other
    return OpenAICompatibleProvider(endpoint_of(source))


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def function_of(tool: ToolDefinition) -> dict[str, Any]:
    """Return the definition of a function that the model may call, in the form that both of OpenAI's APIs use."""
    described = {"description": tool.description} if tool.description else {}
    return {"name": tool.name, **described, "parameters": tool.parameters}


def _media_part(media_type: str, data: str, part: Mapping[str, Any]) -> dict[str, Any]:
    if media_type.startswith("audio/"):
        kind = "mp3" if media_type == "audio/mpeg" else media_type.partition("/")[2]
        return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}
    detail = {"detail": part["detail"]} if "detail" in part else {}
    return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{data}", **detail}}
