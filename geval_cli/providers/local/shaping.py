"""Hold a small model to the requested form of answer by a grammar; larger ones keep to it by themselves.

A grammar restricts which tokens may be written; the reported log-probabilities stay the model's own.
"""

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from geval_cli.records import JsonValue, Message, ModelRequest, ModelResponse, Role

RATING_PREFIX = "Rating:"
"""Begun for the model: measured on SmolLM2, over half of the probability then falls on ratings, else a twentieth."""

LONGEST_STRING = 160
LONGEST_LIST = 3
"""Bounds for what a schema leaves open: a small model that repeats itself would else never close a text or a list."""


LONGEST_ANSWER = 300
"""Tokens, unless a limit is set: a small model may repeat itself until its context is full, minutes later."""

_LIMITS = ("max_tokens", "max_completion_tokens")


def shape_request(request: ModelRequest, wire: Mapping[str, JsonValue]) -> ModelRequest:
    """`request` as llama.cpp can enforce it: ratings become a grammar, open ends are bounded.

    Args:
        request: what is asked for.
        wire: the parameters of the provider's config, which this leaves alone.
    """
    if not any(name in params for params in (wire, request.params) for name in _LIMITS):
        request = replace(request, params={**request.params, "max_tokens": LONGEST_ANSWER})
    if request.response_schema is not None:
        # Only what a judge is asked for: the schema of a prompt is the user's word.
        is_ours = request.role is Role.JUDGE
        return replace(request, response_schema=_held(request)) if is_ours else request
    if request.ratings and not any("grammar" in params for params in (wire, request.params)):
        begun = (*request.messages, Message("assistant", RATING_PREFIX))
        return replace(
            request, messages=begun, params={**request.params, "grammar": _grammar(request.ratings)}
        )
    return request


def shape_response(request: ModelRequest, response: ModelResponse) -> ModelResponse:
    """`response` without the prefix that llama.cpp repeats; the tokens that it reports have none."""
    if not request.ratings or request.response_schema is not None:
        return response
    choices = tuple(
        replace(choice, text=choice.text.removeprefix(RATING_PREFIX)) for choice in response.choices
    )
    return replace(response, choices=choices)


def _grammar(ratings: tuple[str, ...]) -> str:
    alternatives = " | ".join(f'"{rating}"' for rating in ratings)
    return f'root ::= " "? ({alternatives})'


def _held(request: ModelRequest) -> dict[str, Any]:
    """Return the schema with its open ends bounded, and its number restricted to the ratings, where there are any."""
    schema = _bounded(request.response_schema or {})
    properties = schema.get("properties", {})
    if request.ratings and "score" in properties:
        allowed = [json.loads(rating) for rating in request.ratings]
        schema["properties"] = {**properties, "score": {"enum": allowed}}
    return schema


def _bounded(schema: Mapping[str, JsonValue]) -> dict[str, Any]:
    bounded: dict[str, Any] = dict(schema)
    if schema.get("type") == "string" and not schema.keys() & {"enum", "const", "pattern", "format"}:
        bounded.setdefault("maxLength", LONGEST_STRING)
    if schema.get("type") == "array":
        bounded.setdefault("maxItems", LONGEST_LIST)
    if isinstance(schema.get("items"), Mapping):
        bounded["items"] = _bounded(schema["items"])
    if isinstance(schema.get("properties"), Mapping):
        bounded["properties"] = {name: _bounded(item) for name, item in schema["properties"].items()}
    return bounded
