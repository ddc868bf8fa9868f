"""OpenAI's Responses API, and models that return embeddings, classes or moderation results.

The latter are OpenAI's, Cohere's, and those of servers with compatible APIs.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from geval_cli.providers.base import CLASSIFICATION, EMBEDDING, MODERATION, ProviderSource, kind_of
from geval_cli.providers.presets import Endpoint, endpoint_of
from geval_cli.providers.wire.chat import (
    NotAnAnswer,
    content_text,
    error_in,
    error_part,
    finite_number,
    is_filtered,
    last_user_text,
    may_be_empty,
    parse_token_logprobs,
    place_of,
    refuse_broken_arguments,
    reply_text,
    tool_call,
    whole_end,
)
from geval_cli.providers.wire.endpoint_provider import EndpointProvider, JsonAnswer
from geval_cli.providers.wire.finish_reasons import RESPONSES, FinishReason
from geval_cli.providers.wire.openai import function_of, is_strict_safe
from geval_cli.providers.wire.parameters import RESPONSES_API
from geval_cli.providers.wire.token_usage import LIMITS, TokenUsage, read_chat_usage
from geval_cli.records import Choice, Message, ModelRequest, TokenLogprob
from geval_cli.source.media import with_parts_of

# Calls for the API's client to run, unless their output is already there; all others ran at OpenAI.
_OURS_TO_RUN = {
    "function_call": "function",
    "custom_tool_call": "custom",
    **{
        name: name
        for name in (
            "computer_call",
            "local_shell_call",
            "shell_call",
            "apply_patch_call",
            "mcp_approval_request",
        )
    },
}
_CALL = "_call"
_COMMENTARY = "commentary"
_LOGPROBS = "message.output_text.logprobs"


class ResponsesProvider(EndpointProvider):
    """A model behind the Responses API. It gives one answer per request; `dropped` lists unsupported parameters."""

    sees_images = True
    has_batches = True
    parameters = RESPONSES_API
    answer_key = "output"
    status_keys = ("state",)  # here, the status says why the answer ended

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        return _payload(self._endpoint, request, self.caps["top_logprobs"])

    def choices(self, received: JsonAnswer, request: ModelRequest) -> tuple[Choice, ...]:
        choice = _choice(received)
        if request.tools:  # all items are sent back, including reasoning
            back = Message("assistant", "", {"tool_calls": received.body["output"]})
            choice = replace(choice, message=back)
        return (choice,)

    def dropped(self, request: ModelRequest) -> tuple[str, ...]:
        return ("n",) if len(request.sample_indexes) > 1 else ()

    def tokens(self, body: Mapping[str, Any]) -> TokenUsage | None:
        # This API counts tokens like the chat API, under other names.
        counted = body.get("usage")
        if not isinstance(counted, dict):
            return None
        usage = {
            **counted,
            "prompt_tokens": counted.get("input_tokens"),
            "completion_tokens": counted.get("output_tokens"),
            "prompt_tokens_details": counted.get("input_tokens_details"),
        }
        tokens = read_chat_usage({**body, "usage": usage})
        listed = body.get("output")
        items = list(filter(_is_item, listed if isinstance(listed, list) else ()))
        if tokens is None:
            return None
        return replace(
            tokens,
            web_searches=sum(map(_is_search, items)),
            is_partial=any(item.get("type") in _PAID_APART for item in items),
        )


_PAID_APART = frozenset({"file_search_call", "code_interpreter_call", "image_generation_call", "shell_call"})
"""Calls that run at OpenAI and are not priced by tokens; how long a container lived is not reported."""


def _is_search(item: Mapping[str, Any]) -> bool:
    """Return whether an item is a web search; opening a page or searching in it costs nothing."""
    if item.get("type") != "web_search_call":
        return False
    action = item.get("action")
    return not isinstance(action, dict) or action.get("type", "search") == "search"


def _payload(endpoint: Endpoint, request: ModelRequest, most_alternatives: int) -> dict[str, Any]:
    payload: dict[str, Any] = {"model": endpoint.model, "input": _input(request)}
    payload.update(endpoint.wire)
    payload.update(request.params)
    if request.tools:
        own = [{"type": "function", "strict": False, **function_of(tool)} for tool in request.tools]
        payload["tools"] = [*(payload.get("tools") or ()), *own]
    if payload.get("store") is False and isinstance(payload["input"], list):
        # Reasoning that the server has not stored can be sent back only if it is encrypted.
        payload["input"] = [
            item
            for item in payload["input"]
            if item.get("type") != "reasoning" or item.get("encrypted_content")
        ]
    wants_logprobs = payload.pop("logprobs", None) or request.want_logprobs
    if request.want_logprobs:
        payload["top_logprobs"] = most_alternatives
    if wants_logprobs or payload.get("top_logprobs") is not None:
        payload["include"] = list(dict.fromkeys([*(payload.get("include") or ()), _LOGPROBS]))
    limits = [payload.pop(name, None) for name in LIMITS]
    payload["max_output_tokens"] = next((limit for limit in limits if limit is not None), None)
    written = payload.pop("response_format", None)
    if written is None and request.response_schema is not None:
        schema = request.response_schema
        written = {
            "type": "json_schema",
            "name": "answer",
            "strict": is_strict_safe(schema),
            "schema": schema,
        }
    if isinstance(written, dict):
        # This API has the schema's keys next to the type.
        inner = written.get("json_schema")
        text_format = {"type": written.get("type"), **inner} if isinstance(inner, dict) else dict(written)
        payload["text"] = {"format": text_format, **(payload.get("text") or {})}
    effort = payload.pop("reasoning_effort", None)
    if effort is not None:
        payload["reasoning"] = {"effort": effort, **(payload.get("reasoning") or {})}
    verbosity = payload.pop("verbosity", None)
    if verbosity is not None:
        payload["text"] = {"verbosity": verbosity, **(payload.get("text") or {})}
    return {name: value for name, value in payload.items() if value is not None}


def _input(request: ModelRequest) -> Any:
    """Return a single user text as a plain string, which the API accepts; otherwise a list of items."""
    messages = request.messages
    if len(messages) == 1 and messages[0].role == "user" and isinstance(messages[0].content, str):
        return messages[0].content
    return [item for message in with_parts_of(request, _input_image) for item in _items(message)]


def _input_image(media_type: str, data: str, part: Mapping[str, Any]) -> dict[str, Any]:
    url = f"data:{media_type};base64,{data}"
    return {"type": "input_image", "image_url": url, "detail": part.get("detail", "auto")}


def _items(message: Message) -> Iterator[dict[str, Any]]:
    """Yield a chat message as items of this API, in which tool calls and their results are separate items."""
    content = message.content
    further = dict(message.further)
    if message.role == "tool" and "tool_call_id" in further:
        output = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        yield {"type": "function_call_output", "call_id": further["tool_call_id"], "output": output}
        return
    calls = further.pop("tool_calls", None)
    calls = calls if isinstance(calls, list) else []
    if isinstance(content, list) and message.role == "assistant":
        content = content_text(content)
    elif isinstance(content, list):
        content = [_input_part(part) for part in content]
    if content or not calls:
        yield {"role": message.role, "content": content, **further}
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            named = {"name": function.get("name"), "arguments": function.get("arguments")}
            yield {"type": "function_call", "call_id": call.get("id"), **named}
        else:
            yield call  # already in this API's format


def _input_part(part: Any) -> Any:
    """Return a part of a message in this API's format."""
    if not isinstance(part, dict):
        return part
    if part.get("type") == "text":
        return {**part, "type": "input_text"}
    image = part.get("image_url")
    if part.get("type") == "image_url" and isinstance(image, dict):
        return {"type": "input_image", "image_url": image.get("url"), "detail": image.get("detail", "auto")}
    return part


def _is_item(item: Any) -> bool:
    return isinstance(item, dict) and all(
        isinstance(item.get(name), str | None) for name in ("type", "call_id")
    )


def _choice(received: JsonAnswer) -> Choice:
    body = received.body
    items = body.get("output") if isinstance(body, dict) else None
    if not isinstance(items, list) or not all(map(_is_item, items)):
        raise received.refuse("an answer without output")
    details = body.get("incomplete_details")
    cut = details.get("reason") if isinstance(details, dict) else None
    try:
        messages = [item for item in items if item.get("type") == "message"]
        errors = (error_in(item) or error_part(item.get("content")) for item in messages)
        end = whole_end(RESPONSES, cut or body.get("status"), next(filter(None, errors), None))
        given = [call for call in _tool_calls(items) if call["type"] == "function"]
        refuse_broken_arguments(end, given)
    except NotAnAnswer as error:
        raise received.refuse(str(error)) from error
    if any(
        item.get("type") in ("function_call", "custom_tool_call") and not item.get("name") for item in items
    ):
        raise received.refuse("a tool call that cannot be read")
    ran = {(item.get("type"), item.get("call_id")) for item in items}
    open_calls = [
        item
        for item in items
        if item.get("type") in _OURS_TO_RUN and (f"{item['type']}_output", item.get("call_id")) not in ran
    ]
    texts, refusal = _said(items)
    of_filters = body.get("content_filters")  # Azure's
    if any(
        isinstance(item, dict)
        and (item.get("blocked") is True or is_filtered(item.get("content_filter_results")))
        for item in (of_filters if isinstance(of_filters, list) else ())
    ):
        end = FinishReason.FILTERED
    elif refusal and end in (FinishReason.STOP, None):
        end = FinishReason.REFUSED
    elif end in (FinishReason.STOP, None) and any(
        item.get("status") not in (None, "completed")
        for item in items
        if item.get("type") == "message" or item in open_calls
    ):
        raise received.refuse("no whole answer (an item of its output is not completed)")
    elif open_calls and end in (FinishReason.STOP, None):
        end = FinishReason.TOOL_CALLS
    if not texts and refusal:
        texts = [refusal]
    elif not texts:
        texts = [json.dumps(item, ensure_ascii=False, separators=(",", ":")) for item in open_calls]
    is_silence = any(texts) or all(item.get("type") == "message" for item in items)
    if not (texts and is_silence) and not may_be_empty(end):
        raise received.refuse("an answer without text")
    return Choice(
        "\n".join(texts),
        "stop" if end is None else end.value,
        _token_logprobs(items),
        tool_calls=tuple(_tool_calls(items)),
    )


def _token_logprobs(items: list[Mapping[str, Any]]) -> tuple[TokenLogprob, ...] | None:
    """Return the tokens of the answer; None if the server returns none."""
    messages = [item for item in items if item.get("type") == "message"]
    final = [item for item in messages if item.get("phase") != _COMMENTARY]
    tokens: list[TokenLogprob] = []
    for item in final or messages:
        content = item.get("content")
        for part in content if isinstance(content, list) else ():
            given = part.get("logprobs") if isinstance(part, dict) else None
            tokens += parse_token_logprobs({"content": given}) or ()
    return tuple(tokens) or None


def _said(items: list[Mapping[str, Any]]) -> tuple[list[str], str]:
    """Return the texts of the answer, and the text of a refusal.

    Commentary that the model writes before its answer is left out, unless there is nothing else.
    """
    final: list[str] = []
    on_the_way: list[str] = []
    refusals: list[str] = []
    for item in items:
        if item.get("type") != "message" or item.get("role") not in (None, "assistant"):
            continue  # some servers echo the input
        content = item.get("content")
        text = reply_text(content)
        if text is not None:
            (on_the_way if item.get("phase") == _COMMENTARY else final).append(text)
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and isinstance(part.get("refusal"), str):
                refusals.append(part["refusal"])
    return final or on_the_way, "".join(refusals)


def _tool_calls(items: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for item in items:
        kind = item.get("type")
        if not isinstance(kind, str) or not (kind in _OURS_TO_RUN or kind.endswith(_CALL)):
            continue
        name = item.get("name")
        given: Any = next(
            (item[key] for key in ("arguments", "input", "action", "queries") if item.get(key)),
            {"code": item["code"]} if item.get("code") else {},
        )
        call_id = item.get("call_id") or item.get("id")
        name = name if isinstance(name, str) else kind.removesuffix(_CALL)
        yield tool_call(name, given, call_id, _OURS_TO_RUN.get(kind, kind))


class EmbeddingProvider(EndpointProvider):
    """A model that turns the last user message into a vector."""

    writes = False

    def tokens(self, body: Mapping[str, Any]) -> TokenUsage | None:
        # There are no output tokens, Voyage reports only the total, and a server that reports 0 does not count.
        counted = body.get("usage")
        named = counted if isinstance(counted, dict) else {}
        read = named.get("prompt_tokens") or named.get("total_tokens") or None
        return read_chat_usage({**body, "usage": {**named, "prompt_tokens": read, "total_tokens": None}})

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        text = last_user_text(request.messages)
        return {"model": self._endpoint.model, "input": text, **self._endpoint.wire}

    def choices(self, received: JsonAnswer, request: ModelRequest) -> tuple[Choice, ...]:
        body = received.body
        entries = body.get("data") if isinstance(body, dict) else None
        found = [item for item in entries if isinstance(item, dict)] if isinstance(entries, list) else []
        first = min(found, key=lambda item: place_of(item.get("index")), default=None)
        vector = _numbers(first.get("embedding") if first is not None else None, received)
        return (Choice(json.dumps(vector, separators=(",", ":"))),)


def _numbers(vector: Any, received: JsonAnswer) -> list[float]:
    numbers = [finite_number(item) for item in vector] if isinstance(vector, list) else []
    if not any(numbers) or None in numbers:
        raise received.refuse("an answer without an embedding")
    return [number for number in numbers if number is not None]


class CohereEmbeddingProvider(EmbeddingProvider):
    """A model behind Cohere's own embedding API."""

    answer_key = "embeddings"

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        settings = dict(self._endpoint.wire)
        if "dimensions" in settings:
            settings["output_dimension"] = settings.pop("dimensions")
        return {
            "model": self._endpoint.model,
            "texts": [last_user_text(request.messages)],
            "input_type": "classification",  # one of the purposes that treat both texts of a comparison alike
            "embedding_types": ["float"],
            **settings,
        }

    def choices(self, received: JsonAnswer, request: ModelRequest) -> tuple[Choice, ...]:
        body = received.body
        by_type = body.get("embeddings") if isinstance(body, dict) else None
        vectors = by_type.get("float") if isinstance(by_type, dict) else None
        vector = vectors[0] if isinstance(vectors, list) and vectors else None
        found = _numbers(vector, received)
        return (Choice(json.dumps(found, separators=(",", ":"))),)

    def tokens(self, body: Mapping[str, Any]) -> TokenUsage | None:
        meta = body.get("meta")
        billed = meta.get("billed_units") if isinstance(meta, dict) else None
        return (
            read_chat_usage({"usage": {"prompt_tokens": billed.get("input_tokens") or None}})
            if isinstance(billed, dict)
            else None
        )


class ModerationProvider(EndpointProvider):
    """A moderation model: it returns its categories, and the scores of those that it flags in the last user message."""

    writes = False

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        text = last_user_text(request.messages)
        return {"model": self._endpoint.model, "input": text, **self._endpoint.wire}

    def choices(self, received: JsonAnswer, request: ModelRequest) -> tuple[Choice, ...]:
        body = received.body
        results = body.get("results") if isinstance(body, dict) else None
        # Of several, each is about a part of the text.
        first = results[0] if isinstance(results, list) and len(results) == 1 else None
        categories = first.get("categories") if isinstance(first, dict) else None
        if not isinstance(first, dict) or not isinstance(categories, dict):
            raise received.refuse("an answer without a moderation verdict")
        scores = first.get("category_scores")
        flagged = [str(name) for name, is_flagged in categories.items() if is_flagged is True]
        verdicts = [found for found in (first.get("flagged"), *categories.values()) if found is not None]
        if not verdicts or not all(isinstance(verdict, bool) for verdict in verdicts):
            raise received.refuse("a verdict that is neither true nor false")
        if first.get("flagged") is True and not flagged:
            raise received.refuse("a verdict that flags the text but no category")
        scores = scores if isinstance(scores, Mapping) else {}
        found = {name: finite_number(scores.get(name)) for name in flagged}
        return (Choice(json.dumps({"flagged": found, "categories": list(map(str, categories))})),)


class ClassificationProvider(EndpointProvider):
    """A classifier that scores labels for the last user message."""

    writes = False

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        payload: dict[str, Any] = {"inputs": last_user_text(request.messages)}
        if self._endpoint.wire:
            payload["parameters"] = dict(self._endpoint.wire)
        return payload

    def choices(self, received: JsonAnswer, request: ModelRequest) -> tuple[Choice, ...]:
        # The scores by label; servers return one list, or a list per text.
        entries = received.body
        if isinstance(entries, list) and len(entries) == 1 and isinstance(entries[0], list):
            entries = entries[0]
        if not isinstance(entries, list) or not entries or not all(map(_is_score, entries)):
            raise received.refuse("an answer without label scores")
        scores = {entry["label"]: float(entry["score"]) for entry in entries}
        return (Choice(json.dumps(scores, ensure_ascii=False)),)

    def tokens(self, body: Mapping[str, Any]) -> TokenUsage | None:
        return None  # such servers report none


def _is_score(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and finite_number(entry.get("score")) is not None
        and isinstance(entry.get("label"), str)
    )


_OTHER_KINDS: Mapping[str, type[EndpointProvider]] = {
    EMBEDDING: EmbeddingProvider,
    MODERATION: ModerationProvider,
    CLASSIFICATION: ClassificationProvider,
}


def build(source: ProviderSource) -> EndpointProvider:
    """Return the provider that a checked `source` describes, depending on what its model returns."""
    endpoint = endpoint_of(source)
    special = _OTHER_KINDS.get(kind_of(source.spec.id))
    if special is None:
        return ResponsesProvider(endpoint)
    if special is EmbeddingProvider and source.kind == "cohere":
        return CohereEmbeddingProvider(endpoint)
    return special(endpoint)
