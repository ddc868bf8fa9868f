"""A scripted judge that takes the place of a vendor's model behind the gateway."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from geval_cli.records import (
    Choice,
    JsonValue,
    ModelRequest,
    ModelResponse,
    TokenAlternative,
    TokenLogprob,
    Usage,
)

Answer = str | Exception | ModelResponse

STEPS_REPLY = '{"steps": ["Read both texts.", "Compare them.", "Rate the match."]}'


@dataclass(eq=False)
class ScriptedJudge:
    """Answers steps requests with `steps` and every other request with `answer(request)`; records all requests."""

    answer: Callable[[ModelRequest], Answer]
    steps: Answer = STEPS_REPLY
    label: str = "scripted:judge"
    provider_params: Mapping[str, JsonValue] = field(default_factory=dict)
    requests: list[ModelRequest] = field(default_factory=list)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        answer = self.steps if is_steps_request(request) else self.answer(request)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, ModelResponse) else reply(*[answer] * len(request.sample_indexes))

    @property
    def ratings_asked(self) -> list[ModelRequest]:
        return [request for request in self.requests if not is_steps_request(request)]


def is_steps_request(request: ModelRequest) -> bool:
    text = prompt_of(request)
    return '"steps"' in text and '"score"' not in text


def prompt_of(request: ModelRequest) -> str:
    return "\n".join(str(message.content) for message in request.messages)


def reply(*texts: str, finish_reason: str = "stop") -> ModelResponse:
    """Return a response with one choice for each text."""
    choices = tuple(Choice(text, finish_reason) for text in texts)
    usage = Usage(requests=len(texts), input_tokens=100, output_tokens=10, cost_usd=0.001)
    return ModelResponse(choices, usage, latency_ms=5.0)


def weighed_reply(before: str, shares: Mapping[str, float], after: str = "") -> ModelResponse:
    """Return a reply whose token in the middle has these probabilities; the first of them is the chosen token."""
    chosen = next(iter(shares))
    alternatives = tuple(TokenAlternative(text, math.log(share)) for text, share in shares.items())
    tokens = [
        TokenLogprob(before, 0.0),
        TokenLogprob(chosen, math.log(shares[chosen]), alternatives),
        *([TokenLogprob(after, 0.0)] if after else []),
    ]
    choice = Choice(before + chosen + after, "stop", tuple(tokens))
    return ModelResponse((choice,), Usage(requests=1, input_tokens=100, output_tokens=3, cost_usd=0.001), 5.0)
