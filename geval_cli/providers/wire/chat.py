"""Conversations in the form of chat APIs: messages as text, replies as choices, and the reports of content filters."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from geval_cli.json_codec import decode_json
from geval_cli.patterns import compile_later
from geval_cli.providers.unsupported import error_words
from geval_cli.providers.wire.finish_reasons import CHAT, FinishReason, end_of, known_end
from geval_cli.providers.wire.token_usage import entries_in
from geval_cli.records import Choice, JsonValue, Message, ModelRequest, TokenAlternative, TokenLogprob

# The codes of Azure and OpenAI, and the keys of OpenRouter and MiniMax, for a prompt refused because of its content.
_CODE = compile_later(
    r'"code"\s*:\s*"(?:content_filter|invalid_prompt|content_policy_violation|ResponsibleAIPolicyViolation'
    r'|bio_policy|misalignment_policy_violation|image_content_policy_violation|data_inspection_failed)"'
    r'|"flagged_input"\s*:|"(?:input|output)_sensitive"\s*:\s*true'
)
# Anthropic and DeepSeek have a sentence for it, but no specific code.
_SENTENCE = compile_later(
    r"(?:output|input|prompt) blocked by content filtering policy|content exists risk\b", re.I
)


def filtered_choice(body: str) -> Choice | None:
    """Return the server's message as the answer if a content filter refused the request; otherwise None."""
    _, words = error_words(body)
    if not _CODE.search(body) and not _SENTENCE.match(words):
        return None
    return Choice(
        words or "the prompt was stopped by the provider's content filter", FinishReason.FILTERED.value
    )


def is_filtered(results: Any) -> bool:
    """Return whether one of Azure's filters, according to its results for a prompt or an answer, withheld something."""
    found = results.values() if isinstance(results, dict) else ()
    return any(
        isinstance(result, dict) and result.get("filtered") is True
        for named in found
        for result in (named if isinstance(named, list) else [named])  # a result for each blocklist
    )


def reported_finish_reason(result: Any) -> str | None:
    """Return the finish reason that a program reports next to its `output`; a `guardrails` verdict takes precedence."""
    if not isinstance(result, dict):
        return None
    verdict = result.get("guardrails")
    if isinstance(verdict, dict) and verdict.get("flagged") is True:
        return FinishReason.FILTERED.value
    reason = result.get("finish_reason") or result.get("finishReason")
    return reason if isinstance(reason, str) else None


def reported_logprobs(result: Any) -> tuple[TokenLogprob, ...] | None:
    """Return the token probabilities that a program reports as a list of logarithms, without their tokens."""
    values = result.get("logProbs", result.get("log_probs")) if isinstance(result, dict) else None
    return tuple(TokenLogprob("", _logprob(value)) for value in values) if isinstance(values, list) else None


IMPOSSIBLE_LOGPROB = -9999.0
"""OpenAI's value for a probability of zero; missing and infinite values are read as this, too."""

# The types of content parts that belong to the answer. Parts of other types or marked as thoughts do not, even if they
# have a text.
_SPOKEN = (None, "text", "output_text")
_UNSPOKEN_KEYS = (
    "reasoning_content", "reasoning", "reasoning_details", "thinking", "thinking_blocks", "images", "audio", "video"
)  # fmt: skip
_OTHER_SPEAKERS = frozenset({"user", "system", "developer", "tool", "function"})


class NotAnAnswer(Exception):
    """A choice that is not an answer; the text says what it is instead."""


def parse_choices(body: Mapping[str, Any]) -> tuple[tuple[Choice, ...], str]:
    """Return the answers of a completion in the order of their `index`, and what the first unusable choice is instead.

    An empty text in place of something missing or unreadable would be judged, and fail, as if it were the answer. So
    `""` is an empty answer, while null, thoughts or an interrupted text are not answers.
    """
    entries = entries_in(body, "choices")
    entries.sort(key=lambda entry: place_of(entry.get("index")))
    of_prompt = entries_in(body, "prompt_filter_results") or entries_in(body, "prompt_annotations")
    is_stopped = body.get("input_sensitive") is True or body.get("output_sensitive") is True
    is_stopped = is_stopped or any(is_filtered(item.get("content_filter_results")) for item in of_prompt)
    choices, wrong = [], ""
    for entry in entries:
        try:
            choices.append(_choice(entry, is_stopped=is_stopped))
        except NotAnAnswer as error:
            wrong = wrong or str(error)
    return tuple(choices), wrong or "an answer without choices"


def _choice(entry: Mapping[str, Any], *, is_stopped: bool) -> Choice:
    message = entry.get("message")
    if not isinstance(message, dict):
        message = {"content": entry.get("text")}
    refuse_other_speaker(message.get("role"))
    content = message.get("content")
    for place in (entry, message):
        refuse_other_status(place)
    end = whole_end(CHAT, entry.get("finish_reason"), error_in(entry, message) or error_part(content))
    # OpenRouter puts the vendor's own finish reason there, next to one that may be less specific.
    native = entry.get("native_finish_reason")
    behind = known_end(native) if isinstance(native, str) else None
    if behind is not None and (
        behind.is_refusal or (end in (FinishReason.STOP, None) and behind in _TOLD_BEHIND)
    ):
        end = whole_end(CHAT, native)
    found = tuple(map(read_tool_call, _listed_calls(message)))
    calls = tuple(call for call in found if call is not None)
    refuse_lost_calls(end, calls, listed=len(found))
    refuse_broken_arguments(end, calls)
    refusal = message.get("refusal") or _refusal_part(content)
    said = reply_text(content)
    text = said or _transcript(message.get("audio"))
    if not text and calls:
        text = json.dumps(message.get("tool_calls") or message.get("function_call"), ensure_ascii=False)
    elif not text and isinstance(refusal, str) and refusal:
        text = refusal
    if is_stopped or is_filtered(entry.get("content_filter_results")):
        end = FinishReason.FILTERED
    elif refusal and end in (FinishReason.STOP, None):
        end = FinishReason.REFUSED
    # A model may answer with an empty text, but only explicitly, not by stopping in the middle of its thoughts.
    is_silence = said == "" and end is FinishReason.STOP and is_all_text(content)
    is_silence = is_silence and not any(message.get(name) for name in _UNSPOKEN_KEYS)
    if not text and not is_silence and not may_be_empty(end):
        raise NotAnAnswer("an answer without text" if said is None else "an empty answer")
    return Choice(text, end and end.value, parse_token_logprobs(entry.get("logprobs")), tool_calls=calls)


_TOLD_BEHIND = (FinishReason.LENGTH, FinishReason.PAUSED, FinishReason.BROKEN)


def refuse_other_speaker(role: Any) -> None:
    """Raise NotAnAnswer for a message that is not from the model, such as a request that the server sends back."""
    if isinstance(role, str) and role in _OTHER_SPEAKERS:
        raise NotAnAnswer(f"a message with the role `{role}` instead of an answer")


def refuse_lost_calls(end: FinishReason | None, calls: Sequence[Any], *, listed: int) -> None:
    """Raise NotAnAnswer for unreadable tool calls, and for an answer that ends with tool calls but has none."""
    if len(calls) < listed:
        raise NotAnAnswer("a tool call that cannot be read")
    if end is FinishReason.TOOL_CALLS and not calls:
        raise NotAnAnswer("an answer that ends with tool calls but has none")


def refuse_broken_arguments(end: FinishReason | None, calls: Sequence[Mapping[str, Any]]) -> None:
    """Raise NotAnAnswer for a tool call, in the form of results, whose arguments are not a JSON object.

    An answer that a limit or a filter cut off is accepted, as its finish reason says so.
    """
    if not may_be_empty(end) and not all(map(_has_arguments, calls)):
        raise NotAnAnswer("a tool call whose arguments cannot be read")


def _has_arguments(call: Mapping[str, Any]) -> bool:
    written = call["function"]["arguments"]
    if call["type"] != "function" or not written.strip():  # some servers send "" for no arguments
        return True
    try:
        return isinstance(decode_json(written), dict)
    except ValueError:
        return False


def _transcript(audio: Any) -> str:
    said = audio.get("transcript") if isinstance(audio, dict) else None
    return said if isinstance(said, str) else ""


def whole_end(wire: str, reason: Any, error: Any = None) -> FinishReason | None:
    """Return why a choice ended; None if the server does not say.

    Raises:
        NotAnAnswer: the choice has not ended, or was interrupted.
    """
    if is_error(error):
        _, words = error_words(json.dumps({"error": error}))
        raise NotAnAnswer("an error instead of an answer" + (f": {words}" if words else ""))
    end = end_of(wire, reason)
    if end is not None and not end.is_answer:
        written = reason if isinstance(reason, str) else json.dumps(reason, default=str)
        raise NotAnAnswer(f"no whole answer (finish reason: {written})")
    return end


def may_be_empty(end: FinishReason | None) -> bool:
    """Return whether an answer with this finish reason may be empty: a limit or a filter came before the first word."""
    return end is not None and (end is FinishReason.LENGTH or end.is_refusal)


def is_error(error: Any) -> bool:
    """Return whether the `error` of a reply has any content; some servers always send the key."""
    return any(error.values() if isinstance(error, dict) else error if isinstance(error, list) else [error])


def error_in(*places: Mapping[str, Any]) -> Any:
    """Return the first error in these parts of a reply, however they spell the key; None if there is none."""
    for place in places:
        for key, value in place.items():
            if key.lower() in ("error", "errors") and is_error(value):
                return value
    return None


def error_part(content: Any) -> Any:
    """Return the error among the parts of a content, or within a text part; None if there is none."""
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict):
            continue
        found = error_in(part) if part.get("type") in _SPOKEN else None
        if part.get("type") == "error":
            found = error_in(part) or part
        if found is not None:
            return found
    return None


_FULFILLED = (
    "", "completed", "complete", "success", "succeeded", "successful", "ok", "finished", "done", "stop", "true", "200"
)  # fmt: skip


def refuse_other_status(place: Mapping[str, Any]) -> None:
    """Raise NotAnAnswer for a part of a reply whose status is not that of a complete answer.

    Vendors have too many words for failure to list, so the words for success are listed.
    """
    for key in ("status", "state"):
        if (status := place.get(key)) is not None:
            written = status if isinstance(status, str) else json.dumps(status, default=str)
            if written.strip().lower() not in _FULFILLED:
                raise NotAnAnswer(f"no whole answer ({key}: {written})")


def _is_false(value: Any) -> bool:
    return value in (False, 0) or (isinstance(value, str) and value.strip().lower() in ("false", "0"))


def reports_trouble(body: Mapping[str, Any]) -> bool:
    """Return whether a 2xx reply reports that something went wrong, whatever else it contains."""
    own = body.get("base_resp")  # MiniMax
    codes = (body.get("error_code"), own.get("status_code") if isinstance(own, dict) else None)
    code = body.get("code")
    return (
        error_in(body) is not None
        or any(named and not _is_false(named) for named in codes)
        or any(_is_false(body[key]) for key in ("success", "ok") if key in body)
        or (isinstance(code, int) and 400 <= code < 600)  # noqa: PLR2004 - the range of HTTP error statuses
        or any(str(body[key]).lower() == "error" for key in ("type", "object", "status") if key in body)
        or str(body.get("status")).lower() in ("failed", "failure")
    )


def tool_call(name: Any, arguments: Any, call_id: Any = None, kind: str = "function") -> dict[str, JsonValue]:
    """Return a tool call in the form that results use for every API: that of the chat API.

    `kind` is `function` if the caller of the API has to run it, otherwise the vendor's name for it.
    """
    written = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    call = {"type": kind, "function": {"name": name, "arguments": written}}
    return {"id": call_id, **call} if isinstance(call_id, str) else call


def _listed_calls(message: Mapping[str, Any]) -> list[Any]:
    listed, older = message.get("tool_calls"), message.get("function_call")
    calls = listed if isinstance(listed, list) else [listed] if listed else []
    return [*calls, {"function": older}] if isinstance(older, dict) and any(older.values()) else calls


# Other servers' types for a tool call that the caller has to run, like `function`.
_TO_RUN = ("function_call", "tool_call", "tool_use")


def read_tool_call(call: Any) -> dict[str, JsonValue] | None:
    """Return a tool call of a chat message in the form that answers keep; None if it is not a tool call."""
    kind = call.get("type") if isinstance(call, dict) else None
    inner = call.get("custom" if kind == "custom" else "function") if isinstance(call, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str) or not inner["name"]:
        return None
    given = next((inner[key] for key in ("arguments", "input", "args") if key in inner), None)
    own_kind = kind if isinstance(kind, str) and kind not in _TO_RUN else "function"
    return tool_call(inner["name"], given, call.get("id"), own_kind)


def _refusal_part(content: Any) -> str:
    parts = content if isinstance(content, list) else ()
    said = [part.get("refusal") for part in parts if isinstance(part, dict)]
    return "".join(text for text in said if isinstance(text, str))


def reply_text(content: Any) -> str | None:
    """Return the text in the content of a model's message, without its thoughts; None if there is no text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts if _is_spoken(part)]
    said = [text for text in texts if isinstance(text, str)]
    return "".join(said) if said else None


def is_all_text(content: Any) -> bool:
    """Return whether a content consists of text only, without thoughts or pictures."""
    return not isinstance(content, list) or all(map(_is_spoken, content))


def _is_spoken(part: Any) -> bool:
    return not isinstance(part, dict) or (part.get("type") in _SPOKEN and not part.get("thought"))


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
    named = entry.get("top_logprobs")
    alternatives = [
        TokenAlternative(item["token"], _logprob(item.get("logprob")))
        for item in (named if isinstance(named, list) else ())
        if _is_token(item)
    ]
    return _with_chosen(entry["token"], _logprob(entry.get("logprob")), alternatives)


def _parallel_tokens(raw: Mapping[str, Any]) -> tuple[TokenLogprob, ...]:
    values, tops = (
        listed if isinstance(listed := raw.get(name), list) else []
        for name in ("token_logprobs", "top_logprobs")
    )
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
    number = finite_number(value)
    # A probability above one is a rounding error, or not a probability.
    return IMPOSSIBLE_LOGPROB if number is None else min(number, 0.0)


def finite_number(value: Any) -> float | None:
    """Return a number in a server's JSON as a float; None if it is not a number, or too large for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON has integers of any length
        return None
    return number if math.isfinite(number) else None


def place_of(index: Any) -> float:
    """Return the position of a choice among the others, from its `index`; 0 if it has none."""
    return finite_number(index) or 0.0


def last_user_text(messages: Sequence[Message]) -> str:
    """Return the text of the last user message, else of the last message, else ""."""
    for message in reversed(messages):
        if message.role == "user":
            return content_text(message.content)
    return content_text(messages[-1].content) if messages else ""


def whole_text(messages: Sequence[Message]) -> str:
    """Return the texts of all messages, separated by blank lines."""
    return "\n\n".join(content_text(message.content) for message in messages)


def prompt_text(messages: Sequence[Message]) -> str:
    """Return the text of a prompt that is a single user message; for other prompts, their messages as JSON text."""
    if len(messages) == 1 and messages[0].role == "user" and isinstance(messages[0].content, str):
        return messages[0].content
    return json.dumps(message_list(messages), ensure_ascii=False)


def request_text(request: ModelRequest) -> str:
    """Return the prompt of a request as one text: as the config spells it, or made from the messages."""
    return prompt_text(request.messages) if request.text is None else request.text


# What servers need back with the tool calls of an answer, besides its text: thoughts and their signatures.
_SENT_BACK = ("reasoning_content", "reasoning_details", "thinking_blocks", "extra_content")


def answer_message(entry: Any) -> Message | None:
    """Return the message of a choice in the form in which it is sent back with the results of its tool calls."""
    written = entry.get("message") if isinstance(entry, dict) else None
    if not isinstance(written, dict):
        return None
    further = {name: written[name] for name in _SENT_BACK if written.get(name)}
    listed = _listed_calls(written)
    calls = [
        {**call, "type": call.get("type") or "function", "id": call.get("id") or made_call_id(number)}
        for number, call in enumerate(listed)
        if isinstance(call, dict)
    ]
    return Message(
        "assistant", written.get("content"), {**further, **({"tool_calls": calls} if calls else {})}
    )


def made_call_id(number: int) -> str:
    """Return an id for a tool call without one from the server; ids only need to differ within an answer."""
    return f"call_{number + 1}"


TOOL_ERROR = "is_error"
"""The key of a tool message that says that the tool failed; only some APIs have an equivalent."""


def chat_messages(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Return the messages as the chat API itself accepts them, without keys that only other APIs have."""
    written = message_list(messages)
    for message in written:
        if message["role"] == "tool":
            message.pop(TOOL_ERROR, None)
    return written


def message_list(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Return the messages in the form of chat APIs."""
    return [{"role": item.role, "content": item.content, **item.further} for item in messages]


def called_function(call: Any) -> tuple[Any, Any] | None:
    """Return the name and the arguments of a tool call in the form of chat APIs; None if it is not a tool call."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return None
    arguments = function.get("arguments")
    try:
        given = decode_json(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        given = {"arguments": arguments}
    return function.get("name"), given or {}
