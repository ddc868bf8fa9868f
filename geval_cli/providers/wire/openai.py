"""OpenAI's two APIs: chat, as many other servers speak it, and Responses (`openai:responses:MODEL`)."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from geval_cli.errors import UnsupportedParameterError
from geval_cli.providers.base import ProviderSource
from geval_cli.providers.judge_kinds import CLASSIFICATION, EMBEDDING, MODERATION, kind_of
from geval_cli.providers.network.messages import HttpResponse
from geval_cli.providers.network.transport import Transport
from geval_cli.providers.presets import endpoint_of, speaks_responses
from geval_cli.providers.unsupported import find_cap
from geval_cli.providers.wire.batch_api import BatchApi
from geval_cli.providers.wire.chat import content_text, last_user_text, message_list, parse_choices
from geval_cli.providers.wire.endpoint import Endpoint
from geval_cli.providers.wire.endpoint_provider import EndpointProvider, Received
from geval_cli.providers.wire.openai_batches import OpenAIBatches
from geval_cli.providers.wire.refusals import refusal_error
from geval_cli.providers.wire.token_usage import TokenUsage, read_chat_usage
from geval_cli.records import Choice, ModelRequest, ModelResponse
from geval_cli.source.images import with_parts_of


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
_LIMIT_SPELLINGS = ("max_output_tokens", "max_completion_tokens", "max_tokens")


class ResponsesProvider(EndpointProvider):
    """A model behind the Responses API. It gives one answer a request; `dropped` lists unsupported parameters."""

    sees_images = True

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        return _payload(self._endpoint, request)

    def choices(self, received: Received, request: ModelRequest) -> tuple[Choice, ...]:
        return (_choice(received),)

    def tokens(self, body: Mapping[str, Any]) -> TokenUsage | None:
        return _usage(body)

    def _new_batches(self) -> BatchApi | None:
        return OpenAIBatches(self._endpoint) if self._endpoint.batch else None


def _payload(endpoint: Endpoint, request: ModelRequest) -> dict[str, Any]:
    payload: dict[str, Any] = {"model": endpoint.model, "input": _input(request)}
    payload.update(endpoint.wire)
    payload.update(request.params)
    limits = [payload.pop(name, None) for name in _LIMIT_SPELLINGS]
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
    if not request.images:
        return message_list(messages)
    return [_with_input_parts(message) for message in message_list(with_parts_of(request, _input_image))]


def _input_image(media_type: str, data: str, part: Mapping[str, Any]) -> dict[str, Any]:
    detail = {"detail": part["detail"]} if "detail" in part else {}
    return {"type": "input_image", "image_url": f"data:{media_type};base64,{data}", **detail}


def _with_input_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message in which the texts beside images are called as this API calls them."""
    content = message["content"]
    if not isinstance(content, list) or not any(part.get("type") == "input_image" for part in content):
        return message
    return {
        **message,
        "content": [
            {**part, "type": "input_text"} if part.get("type") == "text" else part for part in content
        ],
    }


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


class EmbeddingProvider(EndpointProvider):
    """A model that turns the last user message into a vector."""

    writes = False

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        text = last_user_text(request.messages)
        return {"model": self._endpoint.model, "input": text, **self._endpoint.wire}

    def choices(self, received: Received, request: ModelRequest) -> tuple[Choice, ...]:
        return (Choice(json.dumps(_vector(received), separators=(",", ":"))),)


def _vector(received: Received) -> list[float]:
    body = received.body
    entries = body.get("data") if isinstance(body, dict) else None
    first = entries[0] if isinstance(entries, list) and entries else None
    vector = first.get("embedding") if isinstance(first, dict) else None
    if not isinstance(vector, list) or not vector or not all(_is_number(item) for item in vector):
        raise received.refuse("an answer without an embedding")
    return [float(item) for item in vector]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


class ModerationProvider(EndpointProvider):
    """A moderator: it answers with the categories that it flags in the last user message, and how sure it is."""

    writes = False

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        text = last_user_text(request.messages)
        return {"model": self._endpoint.model, "input": text, **self._endpoint.wire}

    def choices(self, received: Received, request: ModelRequest) -> tuple[Choice, ...]:
        return (Choice(json.dumps(_flagged(received))),)


def _flagged(received: Received) -> dict[str, float | None]:
    body = received.body
    results = body.get("results") if isinstance(body, dict) else None
    first = results[0] if isinstance(results, list) and results else None
    categories = first.get("categories") if isinstance(first, dict) else None
    if not isinstance(first, dict) or not isinstance(categories, dict):
        raise received.refuse("an answer without a verdict on the text")
    scores = first.get("category_scores")
    flagged = [str(name) for name, is_flagged in categories.items() if is_flagged is True]
    if first.get("flagged") is True and not flagged:
        raise received.refuse("a verdict that flags the text and no category")
    return {name: _score(scores, name) for name in flagged}


def _score(scores: Any, name: str) -> float | None:
    score = scores.get(name) if isinstance(scores, Mapping) else None
    return float(score) if isinstance(score, int | float) and not isinstance(score, bool) else None


class ClassificationProvider(EndpointProvider):
    """A classifier of the last user message."""

    writes = False

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        payload: dict[str, Any] = {"inputs": last_user_text(request.messages)}
        if self._endpoint.wire:
            payload["parameters"] = dict(self._endpoint.wire)
        return payload

    def choices(self, received: Received, request: ModelRequest) -> tuple[Choice, ...]:
        return (Choice(json.dumps(_scores(received), ensure_ascii=False)),)

    def tokens(self, body: Mapping[str, Any]) -> TokenUsage | None:
        return None  # such servers count none


def _scores(received: Received) -> dict[str, float]:
    """Return the scores by label; servers send a list of them, or a list for each text."""
    entries = received.body
    if isinstance(entries, list) and entries and isinstance(entries[0], list):
        entries = entries[0]
    if not isinstance(entries, list) or not entries or not all(map(_is_score, entries)):
        raise received.refuse("an answer without scores of labels")
    return {entry["label"]: float(entry["score"]) for entry in entries}


def _is_score(entry: Any) -> bool:
    score = entry.get("score") if isinstance(entry, dict) else None
    is_number = isinstance(score, int | float) and not isinstance(score, bool) and math.isfinite(score)
    return is_number and isinstance(entry.get("label"), str)


MAX_TOP_LOGPROBS = 20
"""The most alternatives a token that OpenAI gives; servers that give fewer say so, then are asked for those."""

_OTHER_KINDS: Mapping[str, type[EndpointProvider]] = {
    EMBEDDING: EmbeddingProvider,
    MODERATION: ModerationProvider,
    CLASSIFICATION: ClassificationProvider,
}
_CAPPED = ("n", "top_logprobs")
_TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")


class OpenAICompatibleProvider(EndpointProvider):
    """A model behind the chat API.

    `request.params` win over the config; a value of None leaves the parameter out, also when the config has it.
    A limit on new tokens is sent under the name that it was given: when a server refuses `max_tokens` in favour
    of `max_completion_tokens`, the error names `max_tokens`, and the caller asks again with the other name in
    `request.params`, which then replaces it.
    """

    sees_images = True

    def __init__(self, endpoint: Endpoint, transport: Transport | None = None) -> None:
        super().__init__(endpoint, transport)
        # Learnt from refusals such as "n must be between 1 and 4"; kept for the life of the provider.
        self._caps: dict[str, int] = {"top_logprobs": MAX_TOP_LOGPROBS}
        if endpoint.max_choices is not None:
            self._caps["n"] = endpoint.max_choices

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self._endpoint.prepare()
        payload = self.payload(request)
        try:
            return await self._ask(payload, request)
        except UnsupportedParameterError as error:
            if not self._learn_cap(error, payload):
                raise
        return await self._ask(self.payload(request), request)

    def choices(self, received: Received, request: ModelRequest) -> tuple[Choice, ...]:
        body = received.body
        _refuse_error_body(received)
        choices = parse_choices(body)[: len(request.sample_indexes)]
        if not choices:
            raise received.refuse("an answer without choices")
        return choices

    def dropped(self, request: ModelRequest) -> tuple[str, ...]:
        return ()  # what a server will not take it refuses, and the gateway asks without it

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        payload: dict[str, Any] = {
            "model": self._endpoint.model,
            "messages": message_list(with_parts_of(request, _image_url)),
        }
        if request.response_schema is not None:
            payload["response_format"] = _response_format(request.response_schema)
        payload.update(self._endpoint.wire)
        for name in _TOKEN_LIMITS:
            if request.params.get(name) is not None:
                for other in _TOKEN_LIMITS:
                    payload.pop(other, None)
        payload.update(request.params)
        requested = len(request.sample_indexes)
        if requested > 1:
            payload["n"] = min(requested, self._caps.get("n", requested))
        if request.want_logprobs:
            payload["logprobs"] = True
            payload["top_logprobs"] = self._caps["top_logprobs"]
        return {name: value for name, value in payload.items() if value is not None}

    def _new_batches(self) -> BatchApi | None:
        return OpenAIBatches(self._endpoint) if self._endpoint.batch else None

    def _learn_cap(self, error: UnsupportedParameterError, payload: Mapping[str, Any]) -> bool:
        """Return whether the refusal names the accepted maximum, so that a request for that many may succeed."""
        name = "top_logprobs" if error.parameter == "logprobs" else error.parameter
        if name not in _CAPPED or name not in payload:
            return False
        cap = find_cap(error.body)
        if cap is None or not 1 <= cap < payload[name]:
            return False
        self._caps[name] = cap
        return True


def build(source: ProviderSource) -> EndpointProvider:
    """The provider that a checked `source` describes, by what its model answers with and the API that it names."""
    endpoint = endpoint_of(source)
    special = _OTHER_KINDS.get(kind_of(source.spec.id))
    if special is not None:
        return special(endpoint)
    if speaks_responses(source):
        return ResponsesProvider(endpoint)
    return OpenAICompatibleProvider(endpoint)


def _image_url(media_type: str, data: str, part: Mapping[str, Any]) -> dict[str, Any]:
    detail = {"detail": part["detail"]} if "detail" in part else {}
    return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{data}", **detail}}


def _response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    named = {"name": "answer", "strict": is_strict_safe(schema), "schema": schema}
    return {"type": "json_schema", "json_schema": named}


def _refuse_error_body(received: Received) -> None:
    """Raise for a 2xx that is no JSON object, or that holds an error (some gateways send those with a 200)."""
    body = received.body
    if not isinstance(body, dict):
        raise received.refuse("JSON that is not an object")
    error = body.get("error")
    if not error or body.get("choices"):
        return
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 600:  # noqa: PLR2004 - the range of HTTP error statuses
        reply = HttpResponse(code, received.reply.headers, received.reply.body)
        raise refusal_error(reply, received.context, now_s=0.0)
    raise received.refuse("an error instead of an answer")
