"""A provider with a function as its server: whatever a model endpoint could do, without a network."""

from collections.abc import Callable
from inspect import isawaitable
from typing import Any

from geval_cli.providers.base import ProviderIdentity, ProviderLimits
from geval_cli.records import Choice, Message, ModelRequest, ModelResponse, Usage

Server = Callable[[ModelRequest], Any]


class FakeProvider:
    """Answers with the result of `server`: a response, text(s), an error to raise, or an awaitable of these.

    Attributes:
        requests: every request sent, in order.
        on_the_wire: the number of requests in flight; `most_on_the_wire` is its maximum so far.
    """

    def __init__(
        self,
        server: Server | None = None,
        *,
        model: str = "fake-1",
        limits: ProviderLimits | None = None,
        is_cacheable: bool = True,
        params: dict[str, Any] | None = None,
    ) -> None:
        self.id = f"fake:{model}"
        self.label = self.id
        self.identity = ProviderIdentity("fake", model, "http://127.0.0.1", params or {})
        self.limits = limits or ProviderLimits()
        self.is_cacheable = is_cacheable
        self.requests: list[ModelRequest] = []
        self.on_the_wire = 0
        self.most_on_the_wire = 0
        self._server = server or (lambda request: [f"answer {index}" for index in request.sample_indexes])

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        self.on_the_wire += 1
        self.most_on_the_wire = max(self.most_on_the_wire, self.on_the_wire)
        try:
            answer = self._server(request)
            if isawaitable(answer):
                answer = await answer
        finally:
            self.on_the_wire -= 1
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, ModelResponse):
            return answer
        texts = [answer] if isinstance(answer, str) else answer
        usage = Usage(requests=1, input_tokens=10, output_tokens=len(texts), cost_usd=0.01)
        return ModelResponse(tuple(Choice(text, "stop") for text in texts), usage=usage, latency_ms=5.0)

    async def aclose(self) -> None:
        pass


def ask(text: str = "hello", *, samples: int = 1, **fields: Any) -> ModelRequest:
    """Return a request with one user message for the first `samples` samples."""
    indexes = fields.pop("sample_indexes", tuple(range(samples)))
    return ModelRequest((Message("user", text),), sample_indexes=indexes, **fields)
