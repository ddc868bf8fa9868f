"""Text views of a conversation, for providers that take one text instead of messages."""

import json
from collections.abc import Sequence

from geval_cli.providers.wire.chat_reply import content_text
from geval_cli.records import Message, ModelRequest


def last_user_text(messages: Sequence[Message]) -> str:
    """Return the text of the last user message, else of the last message, else ""."""
    for message in reversed(messages):
        if message.role == "user":
            return content_text(message.content)
    return content_text(messages[-1].content) if messages else ""


def whole_text(messages: Sequence[Message]) -> str:
    """Return the texts of all messages, a blank line between them."""
    return "\n\n".join(content_text(message.content) for message in messages)


def prompt_text(messages: Sequence[Message]) -> str:
    """Return the text of a prompt that is one user message; longer conversations as the JSON text of their messages."""
    if len(messages) == 1 and messages[0].role == "user" and isinstance(messages[0].content, str):
        return messages[0].content
    return json.dumps(message_list(messages), ensure_ascii=False)


def request_text(request: ModelRequest) -> str:
    """Return the prompt of a request as one text: as its config spells it, else made of the messages."""
    return prompt_text(request.messages) if request.text is None else request.text


def message_list(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Return the messages as chat APIs write them."""
    return [{"role": item.role, "content": item.content, **item.further} for item in messages]
