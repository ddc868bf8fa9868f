"""OpenAI's moderation API: which categories of harm a text falls into.

The verdict is the answer, as JSON of category to score, so that it is cached, counted and limited like any other.
"""

import json
from collections.abc import Mapping
from typing import Any

from geval_cli.providers.conversation import last_user_text
from geval_cli.providers.endpoint_provider import EndpointProvider, Received
from geval_cli.records import Choice, ModelRequest


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
