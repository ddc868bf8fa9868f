"""Google's Gemini API (`google:MODEL`)."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import structs

from geval_cli.errors import ProviderRequestError
from geval_cli.providers.base import ProviderSource
from geval_cli.providers.presets import Endpoint, endpoint_of
from geval_cli.providers.wire.chat import (
    TOOL_ERROR,
    NotAnAnswer,
    called_function,
    content_text,
    error_in,
    error_part,
    made_call_id,
    may_be_empty,
    parse_token_logprobs,
    place_of,
    refuse_lost_calls,
    refuse_other_speaker,
    refuse_other_status,
    tool_call,
    whole_end,
)
from geval_cli.providers.wire.endpoint_provider import EndpointProvider, JsonAnswer
from geval_cli.providers.wire.finish_reasons import GEMINI, FinishReason
from geval_cli.providers.wire.parameters import GOOGLE_API, gemini_effort_mistake, gemini_thinking, schema_of
from geval_cli.providers.wire.token_usage import (
    TokenUsage,
    entries_in,
    part_in,
    read_chat_usage,
    text_in,
    whole_count,
)
from geval_cli.records import Choice, JsonValue, Message, ModelRequest, TokenLogprob
from geval_cli.source.media import with_parts_of

_INSTRUCTION_ROLES = frozenset({"system", "developer"})
_MODEL_ROLES = ("assistant", "model")
_BODY_KEYS = frozenset(
    {
        "cachedContent",
        "generationConfig",
        "labels",
        "modelArmorConfig",
        "safetySettings",
        "serviceTier",
        "service_tier",
        "store",
        "toolConfig",
        "tool_config",
        "tools",
    }
)


class GoogleProvider(EndpointProvider):
    """A Gemini model. It gives one choice per request; `dropped` reports this."""

    sees_images = True
    has_batches = True
    hears = frozenset({"audio/wav", "audio/mpeg", "audio/flac", "audio/ogg"})
    parameters = GOOGLE_API
    answer_key = "candidates"
    model_key = "modelVersion"
    id_key = "responseId"

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        return _payload(self._endpoint, request, self.caps["top_logprobs"])

    def choices(self, received: JsonAnswer, request: ModelRequest) -> tuple[Choice, ...]:
        choice = _choice(received)
        if request.tools:  # all parts are sent back in order, including thoughts and their signatures
            first = min(_candidates(received.body), key=lambda item: place_of(item.get("index")), default={})
            content = first.get("content")
            parts = content.get("parts") if isinstance(content, dict) else None
            said_message = Message("model", None, {"parts": parts}) if parts else None
            choice = structs.replace(choice, message=said_message)
        return (choice,)

    def dropped(self, request: ModelRequest) -> tuple[str, ...]:
        return ("n",) if len(request.sample_indexes) > 1 else ()

    def tokens(self, body: Mapping[str, Any]) -> TokenUsage | None:
        counted = body.get("usageMetadata")
        if not isinstance(counted, dict):
            return None
        written = [counted.get(name) for name in ("candidatesTokenCount", "thoughtsTokenCount")]
        # The results of Google's own tools count as input, too.
        asked = [counted.get(name) for name in ("promptTokenCount", "toolUsePromptTokenCount")]
        heard, cached = (
            _counts(counted, name, _SPEECH) for name in ("promptTokensDetails", "cacheTokensDetails")
        )
        details = {"cached_tokens": counted.get("cachedContentTokenCount"), "audio_tokens": _sum(heard)}
        usage = {"prompt_tokens": _sum(asked), "completion_tokens": _sum(written)}
        # Gemini's API reports the tier, Vertex the type of traffic.
        tier = (text_in(counted, "serviceTier") or text_in(counted, "trafficType") or "").lower()
        answered = {"model": body.get("modelVersion"), "service_tier": tier.removeprefix("on_demand_")}
        tokens = read_chat_usage({"usage": {**usage, "prompt_tokens_details": details}, **answered})
        if tokens is None:
            return None
        # Pictures and speech cost more than text, and places on Google's maps cost per answer.
        drawn = _counts(counted, "candidatesTokensDetails", (*_SPEECH, "IMAGE", "VIDEO"))
        grounded = [part_in(item, "groundingMetadata") for item in _candidates(body)]
        return structs.replace(
            tokens,
            web_searches=_searches(grounded, self._endpoint.model),
            is_partial=any(drawn)
            or any("maps" in chunk for part in grounded for chunk in entries_in(part, "groundingChunks")),
            cached_audio_tokens=whole_count(_sum(cached)) if counted.get("cacheTokensDetails") else None,
        )


_SPEECH = ("AUDIO",)


def _counts(counted: Mapping[str, Any], name: str, modalities: tuple[str, ...]) -> list[Any]:
    """Return the token counts of some modalities in one of the lists of details."""
    return [
        item.get("tokenCount") for item in entries_in(counted, name) if item.get("modality") in modalities
    ]


def _searches(grounded: list[Mapping[str, Any]], model: str) -> int:
    """Return how many web searches are charged: each query, or up to Gemini 2.5 each answer with at least one.

    See ai.google.dev/gemini-api/docs/google-search, "Pricing", as of November 2026.
    """
    queries = 0
    for grounding in grounded:
        listed = grounding.get("webSearchQueries")
        queries += sum(bool(query) for query in listed) if isinstance(listed, list) else 0
    return min(queries, 1) if model.startswith(("gemini-1", "gemini-2")) else queries


def build(source: ProviderSource) -> GoogleProvider:
    """Return the provider that a checked `source` describes."""
    return GoogleProvider(endpoint_of(source))


def _payload(endpoint: Endpoint, request: ModelRequest, most_alternatives: int) -> dict[str, Any]:
    settings = {
        name: value for name, value in {**endpoint.wire, **request.params}.items() if value is not None
    }
    instruction = settings.pop("systemInstruction", None) or settings.pop("system_instruction", None)
    written = settings.pop("response_format", None)
    schema = request.response_schema if written is None else schema_of(written)
    if schema is not None:
        shape = {"responseMimeType": "application/json", "responseJsonSchema": schema}
    else:
        kind = written.get("type") if isinstance(written, dict) else None
        shape = {"responseMimeType": "application/json"} if kind in ("json_object", "json_schema") else {}
    # The parameters that request token probabilities, in the form of this API or of others.
    asked, alternatives = settings.pop("logprobs", None), settings.pop("top_logprobs", None)
    if isinstance(asked, int) and not isinstance(asked, bool):
        alternatives = asked
    if request.want_logprobs:
        asked, alternatives = True, most_alternatives
    number = {} if alternatives is None else {"logprobs": alternatives}
    logprobs = {"responseLogprobs": True, **number} if asked or number else {}
    effort = settings.pop("reasoning_effort", None)
    thinking = {} if effort is None else {"thinkingConfig": _thinking(endpoint, effort)}
    body = {name: settings.pop(name) for name in _BODY_KEYS & settings.keys()}
    generation = {GOOGLE_API.names.get(name, (name,))[0]: value for name, value in settings.items()}
    if isinstance(generation.get("stopSequences"), str):
        generation["stopSequences"] = [generation["stopSequences"]]
    generation |= {**shape, **logprobs, **thinking, **(body.pop("generationConfig", None) or {})}
    system, contents = _contents(with_parts_of(request, _inline_data), instruction)
    if request.tools:
        own = [
            {
                "name": tool.name,
                "description": tool.description or tool.name,
                **({"parametersJsonSchema": tool.parameters} if tool.parameters.get("properties") else {}),
            }
            for tool in request.tools
        ]
        body["tools"] = [*(body.get("tools") or ()), {"functionDeclarations": own}]
    payload = {**body, "contents": contents}
    if system:
        payload["systemInstruction"] = {"parts": [{"text": system}]}
    if generation:
        payload["generationConfig"] = generation
    return payload


def _thinking(endpoint: Endpoint, effort: Any) -> dict[str, Any]:
    mistake = gemini_effort_mistake(effort, endpoint.model)
    if mistake:
        what, _, hint = mistake.partition("; ")
        place = f" ({endpoint.places['reasoning_effort']})" if "reasoning_effort" in endpoint.places else ""
        message = f"`reasoning_effort`{place}: {what}; nothing was sent"
        raise ProviderRequestError(message, provider_id=endpoint.id, hint=hint)
    return gemini_thinking(effort, endpoint.model)


def _inline_data(media_type: str, data: str, part: Mapping[str, Any]) -> dict[str, Any]:
    del part
    kind = "audio/mp3" if media_type == "audio/mpeg" else media_type  # Google's name for it
    return {"inlineData": {"mimeType": kind, "data": data}}


def _contents(messages: tuple[Message, ...], instruction: Any) -> tuple[str, list[dict[str, Any]]]:
    """Return the system text, and the other messages; system messages without others are sent as the user's."""
    system = [_instruction_text(instruction)] if instruction else []
    instructions = [content_text(_written(item)) for item in messages if item.role in _INSTRUCTION_ROLES]
    called: dict[str, tuple[str, bool]] = {}
    others: list[dict[str, Any]] = []
    answers_call = False
    for item in messages:
        if item.role in _INSTRUCTION_ROLES:
            continue
        called.update(_calls_of(item))
        # Write the parts of a message; tool calls and their results are parts in this API.
        calls = item.further.get("tool_calls")
        if item.role == "tool" and item.content is not None:
            call_id = item.further.get("tool_call_id")
            name, has_id = called.get(str(call_id), ("tool", False))
            key = "error" if item.further.get(TOOL_ERROR) else "result"
            known = {"id": call_id} if has_id else {}
            parts = [{"functionResponse": {**known, "name": name, "response": {key: item.content}}}]
        elif item.role not in _MODEL_ROLES or not isinstance(calls, list):
            parts = _parts(_written(item))
        else:
            said = _parts(item.content) if item.content else []
            parts = [*said, *map(_function_call, calls)]
        if item.role == "tool" and answers_call:  # the results of one answer's calls belong in one message
            others[-1]["parts"] += parts
        else:
            others.append({"role": "model" if item.role in _MODEL_ROLES else "user", "parts": parts})
        answers_call = item.role == "tool"
    if not others:
        return "\n\n".join(system), [{"role": "user", "parts": [{"text": "\n\n".join(instructions)}]}]
    return "\n\n".join([*system, *instructions]), others


def _calls_of(message: Message) -> Iterator[tuple[str, tuple[str, bool]]]:
    """Yield the id of each tool call in a message with the tool's name, which a result has to repeat in this API.

    The second item of the pair says whether the API gave the id: then a result has to repeat the id, too.
    """
    for call in message.further.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield str(call.get("id")), (str(function.get("name")), False)
    parts = message.further.get("parts")
    calls = filter(_is_call, parts if isinstance(parts, list) else ())
    for number, part in enumerate(calls):
        call = part["functionCall"]
        yield call.get("id") or made_call_id(number), (call["name"], bool(call.get("id")))


def _function_call(call: Any) -> dict[str, Any]:
    found = called_function(call)
    if found is None:
        return call if isinstance(call, dict) else {"text": str(call)}
    return {"functionCall": {"name": found[0], "args": found[1]}}


def _written(message: Message) -> Any:
    """Return the content of a message, in the form of chat APIs or of this API."""
    return message.further.get("parts") if message.content is None else message.content


def _instruction_text(written: Any) -> str:
    parts = written.get("parts") if isinstance(written, dict) else written
    return content_text([parts] if isinstance(parts, dict) else parts)


def _parts(content: Any) -> list[dict[str, Any]]:
    """Return the parts of a message; all parts but texts are passed on unchanged."""
    if isinstance(content, str):
        return [{"text": content}]
    parts = content if isinstance(content, list) else [content]
    return [
        {"text": part["text"]} if isinstance(part, dict) and part.get("type") == "text" else part
        for part in parts
    ]


# The first value of the enum, which some servers send when there is no reason.
_NO_REASON = ("BLOCK_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED")


def _candidates(body: Any) -> list[dict[str, Any]]:
    return entries_in(body, "candidates") if isinstance(body, dict) else []


def _choice(received: JsonAnswer) -> Choice:
    body = received.body
    feedback = body.get("promptFeedback") if isinstance(body, dict) else None
    blocked = feedback.get("blockReason") if isinstance(feedback, dict) else None
    if blocked in _NO_REASON:
        blocked = None
    found = _candidates(body)
    if found:
        choice = _candidate(min(found, key=lambda item: place_of(item.get("index"))), received)
        return structs.replace(choice, finish_reason=FinishReason.FILTERED.value) if blocked else choice
    if blocked:
        return Choice(f"no answer, because the prompt was blocked ({blocked})", FinishReason.FILTERED.value)
    raise received.refuse("an answer without candidates")


def _candidate(candidate: Mapping[str, Any], received: JsonAnswer) -> Choice:
    content = candidate.get("content")
    content = content if isinstance(content, dict) else {}
    parts = entries_in(content, "parts")
    said = [part for part in parts if not part.get("thought")]
    texts = [part["text"] for part in said if isinstance(part.get("text"), str)]
    calls = [part for part in said if _is_call(part)]
    try:
        refuse_other_speaker(content.get("role"))
        for place in (candidate, content):
            refuse_other_status(place)
        wrong = error_in(candidate, content) or error_part(parts)
        end = whole_end(GEMINI, candidate.get("finishReason"), wrong)
        refuse_lost_calls(end, calls, listed=sum("functionCall" in part for part in said))
    except NotAnAnswer as error:
        words = candidate.get("finishMessage")
        raise received.refuse(f"{error}: {words}" if isinstance(words, str) else str(error)) from error
    text = "".join(texts) or "".join(json.dumps(part, ensure_ascii=False) for part in calls)
    is_silence = bool(texts) and len(texts) == len(parts) and end is FinishReason.STOP
    if not text and not is_silence and not may_be_empty(end):
        raise received.refuse("an answer without content")
    if any(item.get("blocked") is True for item in entries_in(candidate, "safetyRatings")):
        end = FinishReason.FILTERED
    elif calls and end is FinishReason.STOP:
        end = FinishReason.TOOL_CALLS
    return Choice(
        text,
        end and end.value,
        _token_logprobs(candidate.get("logprobsResult")),
        tool_calls=tuple(call for part in said if (call := _tool_call(part)) is not None),
    )


def _tool_call(part: Mapping[str, Any]) -> dict[str, JsonValue] | None:
    """Return the tool call in a part: one to run, or one that ran at Google, under Google's name for it."""
    if _is_call(part):
        call = part["functionCall"]
        return tool_call(call["name"], call.get("args"), call.get("id"))
    ran, code = part.get("toolCall"), part.get("executableCode")
    if isinstance(ran, dict) and isinstance(ran.get("toolType"), str):
        return tool_call(ran["toolType"].lower(), ran.get("args"), ran.get("id"), "toolCall")
    if isinstance(code, dict):
        return tool_call("code_execution", code, code.get("id"), "executableCode")
    return None


def _is_call(part: Any) -> bool:
    call = part.get("functionCall") if isinstance(part, dict) else None
    return (
        isinstance(call, dict)
        and isinstance(call.get("name"), str)
        and isinstance(call.get("args"), dict | None)
        and not call.get("willContinue")
    )


def _token_logprobs(result: Any) -> tuple[TokenLogprob, ...] | None:
    """Return the tokens of an answer; None when the server gives none."""
    chosen = result.get("chosenCandidates") if isinstance(result, dict) else None
    tops = result.get("topCandidates") if isinstance(result, dict) else None
    if not isinstance(chosen, list):
        return None
    steps = tops if isinstance(tops, list) else []
    content = []
    for index, entry in enumerate(chosen):
        step = steps[index] if index < len(steps) else None
        others = step.get("candidates") if isinstance(step, dict) else None
        named = [_as_token(item) for item in others] if isinstance(others, list) else []
        content.append({**_as_token(entry), "top_logprobs": named})
    return parse_token_logprobs({"content": content})


def _as_token(entry: Any) -> dict[str, Any]:
    """Return a candidate token in the form of chat APIs; one of probability 1 has no `logProbability` here."""
    if not isinstance(entry, dict):
        return {}
    return {"token": entry.get("token"), "logprob": entry.get("logProbability", 0)}


def _sum(counts: list[Any]) -> Any:
    """Return the sum of the counts that are given, or else an invalid one, so that all of the usage is unknown."""
    said = [count for count in counts if count is not None]
    odd = [count for count in said if whole_count(count) is None]
    return odd[0] if odd else sum(said)
