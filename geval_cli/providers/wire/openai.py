"""OpenAI's chat API, as spoken by OpenAI, Azure, vLLM, llama.cpp, Ollama, OpenRouter and many others."""

import json
import math
from collections.abc import Mapping
from typing import Any

from geval_cli.errors import UnsupportedParameterError
from geval_cli.providers.conversation import last_user_text, message_list
from geval_cli.providers.judge_kinds import CLASSIFICATION, EMBEDDING, MODERATION, kind_of
from geval_cli.providers.network.messages import HttpResponse
from geval_cli.providers.network.transport import Transport
from geval_cli.providers.presets import endpoint_of, speaks_responses
from geval_cli.providers.source import ProviderSource
from geval_cli.providers.unsupported import find_cap
from geval_cli.providers.wire.chat_reply import parse_choices
from geval_cli.providers.wire.endpoint import Endpoint
from geval_cli.providers.wire.endpoint_provider import EndpointProvider, Received
from geval_cli.providers.wire.refusals import refusal_error
from geval_cli.providers.wire.responses import ResponsesProvider, is_strict_safe
from geval_cli.providers.wire.token_usage import TokenUsage
from geval_cli.records import Choice, ModelRequest, ModelResponse


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
            "messages": message_list(request.messages),
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
