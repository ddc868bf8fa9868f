"""OpenAI's embeddings API, as spoken by OpenAI, Azure, Ollama, vLLM, Mistral and others: a text becomes a vector.

The vector is the answer, as a JSON list of numbers, so that it is cached, counted and limited like any other.
"""

import json
import math
from typing import Any

from geval_cli.providers.addresses import HttpCall
from geval_cli.providers.conversation import last_user_text
from geval_cli.providers.endpoint_provider import EndpointProvider
from geval_cli.providers.refusals import CallContext, HttpReply, request_id_of
from geval_cli.providers.token_usage import read_chat_usage
from geval_cli.providers.transport import response_error
from geval_cli.records import Choice, ModelRequest, ModelResponse


class EmbeddingProvider(EndpointProvider):
    """A model that turns the last user message into a vector."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        endpoint = self._endpoint
        endpoint.prepare()
        text = last_user_text(request.messages)
        payload = {"model": endpoint.model, "input": text, **endpoint.wire}
        context = CallContext(endpoint.id, endpoint.secrets, endpoint.key_source, frozenset(payload))
        call = HttpCall(endpoint.url, endpoint.headers, timeout_s=endpoint.limits.timeout_s)
        body, reply = await self._transport.post_json(call, payload, context)
        vector = _vector(body, reply, context)
        usage = endpoint.usage(read_chat_usage(body), requests=1)
        return ModelResponse(
            choices=(Choice(json.dumps(vector, separators=(",", ":"))),),
            usage=usage,
            latency_ms=reply.latency_ms,
            model=body.get("model") if isinstance(body.get("model"), str) else None,
            request_id=request_id_of(reply, context),
            exhausted_s=self._transport.exhausted_s(reply, usage),
        )


def _vector(body: Any, reply: HttpReply, context: CallContext) -> list[float]:
    entries = body.get("data") if isinstance(body, dict) else None
    first = entries[0] if isinstance(entries, list) and entries else None
    vector = first.get("embedding") if isinstance(first, dict) else None
    if not isinstance(vector, list) or not vector or not all(_is_number(item) for item in vector):
        raise response_error("an answer without an embedding", reply, context)
    return [float(item) for item in vector]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
