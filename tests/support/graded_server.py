"""A loopback server that answers every question that an assertion can ask, in the expected format."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from support.judge_server import STEPS_TEXT, prompt_text
from support.loopback import Reply, chat_reply, choices_reply

_BY_SCHEMA = {
    "steps": STEPS_TEXT,
    "statements": {"statements": ["It is one.", "It is two."]},
    "verdicts": {"verdicts": [{"reason": "it says so", "verdict": "yes"}] * 2},
    "relevant": {"relevant": [1]},
    "sentences": {"sentences": [{"sentence": "It is one.", "attributed": True}]},
    "winner": {"reason": "it is better", "winner": "1"},
    "best": {"reason": "it is better", "best": 1},
    "category": {"reason": "all of it agrees", "category": "C"},
    "verdict": {"reason": "it fits", "verdict": "yes"},
    "pass": {"reason": "it is fine", "pass": True, "score": 1},
    "score": {"reason": "it is fine", "score": 9},
}
_FORM = "4"


def answer_anything(body: Any, headers: Mapping[str, str]) -> Reply:
    """Return a suitable answer: a vector, an unflagged moderation result, a judge's reply, or a model's answer."""
    del headers
    if "moderation" in str(body["model"]):
        flags = {"flagged": False, "categories": {"hate": False}, "category_scores": {"hate": 0.1}}
        return Reply(body={"results": [flags]})
    if "input" in body:
        return Reply(
            body={
                "data": [{"embedding": _vector(body["input"])}],
                "usage": {"prompt_tokens": 3, "total_tokens": 3},
            }
        )
    if not str(body["model"]).startswith("judge"):
        return chat_reply(f"said by {body['model']}: {prompt_text(body)}")
    count = body.get("n", 1)
    texts = [_judgement(body, number) for number in range(count)]
    return chat_reply(texts[0]) if count == 1 else choices_reply(texts)


def _judgement(body: Any, number: int) -> str:
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema", {})
    names = schema.get("properties", {})
    for name, answer in _BY_SCHEMA.items():
        if name in names:
            return answer if isinstance(answer, str) else json.dumps(answer)
    if "Write the question" in prompt_text(body):
        digest = hashlib.sha256(prompt_text(body).encode()).hexdigest()[:8]
        return f"What is {digest} number {number}?"
    return json.dumps(_BY_SCHEMA["pass"]) if "Rubric" in prompt_text(body) else _FORM


def _vector(text: Any) -> list[float]:
    digest = hashlib.sha256(str(text).encode()).digest()
    return [byte / 255 for byte in digest[:4]]
