"""OpenAI's embeddings API, as spoken by OpenAI, Azure, Ollama, vLLM, Mistral and others: a text becomes a vector.

The vector is the answer, as a JSON list of numbers, so that it is cached, counted and limited like any other.
"""

import json
import math
from typing import Any

from geval_cli.providers.conversation import last_user_text
from geval_cli.providers.wire.endpoint_provider import EndpointProvider, Received
from geval_cli.records import Choice, ModelRequest


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
