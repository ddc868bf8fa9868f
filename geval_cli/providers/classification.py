"""Hugging Face's text classification: how much a text belongs to each of a model's classes.

The scores are the answer, as JSON of label to score, so that they are cached, counted and limited like any other.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from geval_cli.providers.conversation import last_user_text
from geval_cli.providers.endpoint_provider import EndpointProvider, Received
from geval_cli.providers.token_usage import TokenUsage
from geval_cli.records import Choice, ModelRequest


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
    """The scores by label; servers send a list of them, or a list for each text."""
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
