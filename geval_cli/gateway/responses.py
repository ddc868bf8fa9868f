"""Align, join and copy responses: choices to samples, several parts to one, and copies that cost nothing."""

from collections.abc import Sequence

from msgspec.structs import replace

from geval_cli.records import ModelRequest, ModelResponse, Usage


def align(response: ModelResponse, request: ModelRequest) -> ModelResponse:
    """Return `response` with its choices assigned to the first samples of `request`."""
    choices, usage = response.choices[: len(request.sample_indexes)], response.usage
    if (usage.requests, usage.cached_requests) != (len(choices), 0):
        usage = replace(usage, requests=len(choices), cached_requests=0)
    indexes = request.sample_indexes[: len(choices)]
    if (choices, indexes, usage) == (response.choices, response.sample_indexes, response.usage):
        return response
    return replace(response, choices=choices, sample_indexes=indexes, usage=usage)


def join(parts: Sequence[ModelResponse], wanted: Sequence[int]) -> ModelResponse:
    """Join `parts`, each aligned and at least one of them, to one response in the order of `wanted`."""
    choice_of = {
        index: choice
        for part in parts
        for index, choice in zip(part.sample_indexes, part.choices, strict=True)
    }
    indexes = tuple(index for index in wanted if index in choice_of)
    sent = [part for part in parts if not part.cached]
    return ModelResponse(
        choices=tuple(choice_of[index] for index in indexes),
        usage=sum((part.usage for part in parts), Usage()),
        latency_ms=max(part.latency_ms for part in sent or parts),
        cached=not sent,
        dropped=tuple(dict.fromkeys(name for part in parts for name in part.dropped)),
        model=next((part.model for part in parts if part.model is not None), None),
        request_id=next((part.request_id for part in parts if part.request_id is not None), None),
        sample_indexes=indexes,
        bought_usd=_bought_usd(parts),
        shared=all(part.shared for part in parts),
    )


def _bought_usd(parts: Sequence[ModelResponse]) -> float | None:
    costs = [part.bought_usd if part.cached else part.usage.cost_usd for part in parts]
    return sum((Usage(cost_usd=cost) for cost in costs), Usage()).cost_usd


def without_cost(response: ModelResponse, *, is_counted: bool) -> ModelResponse:
    """Return `response` for a caller who sent no request for it; it counts as cached, or not at all."""
    count = len(response.choices) if is_counted else 0
    bought_usd = response.bought_usd if response.cached else response.usage.cost_usd
    usage = Usage(requests=count, cached_requests=count)
    return replace(response, cached=True, usage=usage, bought_usd=bought_usd, shared=not is_counted)
