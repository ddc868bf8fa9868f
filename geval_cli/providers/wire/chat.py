"""Conversations as chat APIs write them: messages as text, replies as choices, what a filter says of them."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from geval_cli.patterns import compile_later
from geval_cli.providers.unsupported import error_words
from geval_cli.records import Choice, Message, ModelRequest, TokenAlternative, TokenLogprob

FILTERED = "content_filter"
"""The finish reason of an answer that a filter stopped, or kept from being written."""

REFUSED = "refusal"
"""The finish reason of an answer in which the API itself says that the model refuses."""

STOPPED_BY_FILTER = frozenset(
    {FILTERED, REFUSED, "guardrail_intervened", "safety", "prohibited_content", "blocklist", "spii"}
)
"""Every finish reason that means this, in small letters; those of gateways in front of Bedrock and Gemini too."""

# Azure's and OpenAI's codes of a prompt that their filters will not let through.
_CODE = compile_later(
    r'"code"\s*:\s*"(?:content_filter|invalid_prompt|content_policy_violation|ResponsibleAIPolicyViolation)"'
)


def filtered_choice(body: str) -> Choice | None:
    """Return the answer that a refused request stands for, when a filter refused it: what the server says about it."""
    if not _CODE.search(body):
        return None
    _, words = error_words(body)
    return Choice(words or "the prompt was stopped by the provider's content filter", FILTERED)


def is_filtered(results: Any) -> bool:
    """Return whether one of Azure's filters, by its results for a prompt or for an answer, held something back."""
    return isinstance(results, dict) and any(
        isinstance(result, dict) and result.get("filtered") is True for result in results.values()
    )


def reported_finish_reason(result: Any) -> str | None:
    """Why an answer ended, as a program says it beside its `output`; a `guardrails` verdict goes first."""
    if not isinstance(result, dict):
        return None
    verdict = result.get("guardrails")
    if isinstance(verdict, dict) and verdict.get("flagged") is True:
        return FILTERED
    reason = result.get("finish_reason") or result.get("finishReason")
    return reason if isinstance(reason, str) else None


IMPOSSIBLE_LOGPROB = -9999.0
"""OpenAI's value for a probability of zero; absent and infinite values are read as this too."""

WITHOUT_TEXT = frozenset({"length", "max_tokens", *STOPPED_BY_FILTER})
"""Finish reasons of answers that may have no text: a limit or a filter came before the first word."""

# With these a message's content may be null and still be an answer.
_ANSWERS_BESIDE_CONTENT = ("tool_calls", "function_call", "refusal")


def parse_choices(body: Mapping[str, Any]) -> tuple[Choice, ...]:
    """Return the choices of a completion in the order of their `index`; empty when none can be read."""
    raw = body.get("choices")
    if not isinstance(raw, list):
        return ()
    entries = [entry for entry in raw if isinstance(entry, dict) and _has_answer(entry)]
    entries.sort(key=lambda entry: _whole(entry.get("index")))
    return tuple(_choice(entry) for entry in entries)


def parse_token_logprobs(raw: Any) -> tuple[TokenLogprob, ...] | None:
    """Return the tokens of a choice's `logprobs`, in the chat form or the older parallel lists; None if empty."""
    if not isinstance(raw, dict):
        return None
    if isinstance(raw.get("content"), list):
        tokens = tuple(_token(entry) for entry in raw["content"] if _is_token(entry))
    elif isinstance(raw.get("tokens"), list):
        tokens = _parallel_tokens(raw)
    else:
        return None
    return tokens or None


def _has_answer(entry: Mapping[str, Any]) -> bool:
    """Return whether a message has an answer: `""` is an empty answer; null or an empty list of parts is no answer.

    An empty text in the place of something absent or unreadable would be judged, and found wanting, as if it were the
    answer. Where a limit or a filter left nothing of it, the finish reason says so.
    """
    message = entry.get("message")
    if not isinstance(message, dict):
        return isinstance(entry.get("text"), str)
    content = message.get("content")
    if isinstance(content, str) or (content and isinstance(content, list)):
        return True
    if content is not None and content != []:
        return False
    if any(message.get(name) for name in _ANSWERS_BESIDE_CONTENT):
        return True
    return _finish_reason(entry, message) in WITHOUT_TEXT


def _choice(entry: Mapping[str, Any]) -> Choice:
    message = entry.get("message")
    text = _message_text(message) if isinstance(message, dict) else entry["text"]
    return Choice(
        text=text,
        finish_reason=_finish_reason(entry, message),
        token_logprobs=parse_token_logprobs(entry.get("logprobs")),
    )


def _finish_reason(entry: Mapping[str, Any], message: Any) -> str | None:
    """Why the answer ended; a filter and a refusal show although some servers then say `stop`."""
    if "content_filter_results" in entry and is_filtered(entry["content_filter_results"]):
        return FILTERED
    reason = entry.get("finish_reason")
    if reason == "stop" and isinstance(message, dict) and message.get("refusal"):
        return REFUSED
    return reason if isinstance(reason, str) else None


def _message_text(message: Mapping[str, Any]) -> str:
    text = content_text(message.get("content"))
    if text:
        return text
    if message.get("tool_calls"):
        return json.dumps(message["tool_calls"], ensure_ascii=False)
    if message.get("function_call"):
        return json.dumps(message["function_call"], ensure_ascii=False)
    refusal = message.get("refusal")
    return refusal if isinstance(refusal, str) else ""


def content_text(content: Any) -> str:
    """Return the text of a message's content: a string, or the joined text parts of a list."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "".join(part for part in parts if isinstance(part, str))


def _is_token(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("token"), str)


def _token(entry: Mapping[str, Any]) -> TokenLogprob:
    alternatives = [
        TokenAlternative(item["token"], _logprob(item.get("logprob")))
        for item in entry.get("top_logprobs") or ()
        if _is_token(item)
    ]
    return _with_chosen(entry["token"], _logprob(entry.get("logprob")), alternatives)


def _parallel_tokens(raw: Mapping[str, Any]) -> tuple[TokenLogprob, ...]:
    values = raw.get("token_logprobs") or []
    tops = raw.get("top_logprobs") or []
    tokens = []
    for index, token in enumerate(raw["tokens"]):
        top = tops[index] if index < len(tops) else None
        named = top.items() if isinstance(top, dict) else ()
        alternatives = [TokenAlternative(str(text), _logprob(value)) for text, value in named]
        value = values[index] if index < len(values) else None
        tokens.append(_with_chosen(str(token), _logprob(value), alternatives))
    return tuple(tokens)


def _with_chosen(text: str, logprob: float, alternatives: list[TokenAlternative]) -> TokenLogprob:
    if all(item.text != text for item in alternatives):
        alternatives = [TokenAlternative(text, logprob), *alternatives]
    return TokenLogprob(text, logprob, tuple(alternatives))


def _logprob(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return IMPOSSIBLE_LOGPROB
    return float(value)


def _whole(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0


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
