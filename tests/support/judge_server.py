"""The replies of a loopback server that acts as a judge, in both wire formats."""

from collections.abc import Mapping
from typing import Any

from support.loopback import Reply, chat_reply, choices_reply

STEPS = ("Read the question.", "Look for each thing that it asks for.", "Lower the rating for each gap.")
STEPS_TEXT = '{"steps": ["' + '", "'.join(STEPS) + '"]}'
VERDICT_TEXT = '{"reason": "Every step is there, in order.", "score": 9}'
FORM_TEXT = "4"


def judge_sensibly(body: Any, headers: Mapping[str, str]) -> Reply:
    """Return steps for a steps request, 9 for an evaluation, 4 for the form of a dimension."""
    text = _judge_text(prompt_text(body))
    if "anthropic-version" in headers:
        return Reply(
            body={
                "id": "msg_loopback",
                "model": body["model"],
                "content": [{"type": "text", "text": text}],
                "stop_reason": "end_turn",
                "usage": {"input_tokens": 7, "output_tokens": 3},
            }
        )
    count = body.get("n", 1)
    return chat_reply(text) if count == 1 else choices_reply([text] * count)


def prompt_text(body: Any) -> str:
    return "\n".join(str(message["content"]) for message in body["messages"])


def is_steps_request(body: Any) -> bool:
    return _judge_text(prompt_text(body)) == STEPS_TEXT


def _judge_text(prompt: str) -> str:
    if '"score"' in prompt:
        return VERDICT_TEXT
    return STEPS_TEXT if '"steps"' in prompt else FORM_TEXT
