"""Anthropic's Messages API."""

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from geval_cli.errors import ProviderRequestError
from geval_cli.providers.base import ProviderSource
from geval_cli.providers.presets import Endpoint, endpoint_of
from geval_cli.providers.wire.chat import (
    TOOL_ERROR,
    called_function,
    content_text,
    error_part,
    is_all_text,
    may_be_empty,
    refuse_lost_calls,
    refuse_other_speaker,
    reply_text,
    tool_call,
    whole_end,
)
from geval_cli.providers.wire.endpoint_provider import EndpointProvider, JsonAnswer
from geval_cli.providers.wire.finish_reasons import MESSAGES
from geval_cli.providers.wire.parameters import (
    ANTHROPIC_API,
    effort_mistake,
    format_mistake,
    schema_of,
    takes_sampling,
    takes_schema,
    thinking_budget,
)
from geval_cli.providers.wire.token_usage import LIMITS, TokenUsage, read_messages_usage
from geval_cli.records import Choice, Message, ModelRequest, Role
from geval_cli.source.media import with_parts_of

DEFAULT_MAX_TOKENS = 4096
"""The API requires `max_tokens`; this is used when neither the config nor the request sets it."""

THINKING_TOKENS = 12_288
"""Added to the limit when Claude decides itself how long it thinks: thinking counts towards the limit."""

_SAMPLING = ("temperature", "top_p", "top_k")

_INSTRUCTION_ROLES = frozenset({"system", "developer"})
# The tool calls in these blocks ran at the vendor. Those in any other `..._tool_use` have to be run by the caller.
_RAN = frozenset({"server_tool_use", "mcp_tool_use"})
_CALL = "tool_use"


class AnthropicProvider(EndpointProvider):
    """A Claude model. It gives one choice per request and no token probabilities; `dropped` reports this."""

    sees_images = True
    has_batches = True
    parameters = ANTHROPIC_API
    answer_key = "content"

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        return _payload(self._endpoint, request)

    def choices(self, received: JsonAnswer, request: ModelRequest) -> tuple[Choice, ...]:
        choice = _choice(received)
        if request.tools:  # all blocks are sent back, including thoughts with their signatures
            choice = replace(choice, message=Message("assistant", received.body["content"]))
        return (choice,)

    def tokens(self, body: Mapping[str, Any]) -> TokenUsage | None:
        return read_messages_usage(body)

    def dropped(self, request: ModelRequest) -> tuple[str, ...]:
        settings = {
            name: value
            for name, value in {**self._endpoint.wire, **request.params}.items()
            if value is not None
        }
        wished = {
            "logprobs": request.want_logprobs,
            "n": len(request.sample_indexes) > 1,
            "response_format": request.response_schema is not None and not takes_schema(self._endpoint.model),
            **dict.fromkeys(_left_out(self._endpoint, request, settings), True),
        }
        return tuple(name for name, is_wished in wished.items() if is_wished)


def build(source: ProviderSource) -> AnthropicProvider:
    """Return the provider that a checked `source` describes."""
    return AnthropicProvider(endpoint_of(source))


def _payload(endpoint: Endpoint, request: ModelRequest) -> dict[str, Any]:
    system, messages = _split_instructions(with_parts_of(request, _image_block))
    payload: dict[str, Any] = {"model": endpoint.model, "messages": messages}
    settings = {
        name: value for name, value in {**endpoint.wire, **request.params}.items() if value is not None
    }
    written = settings.pop("system", None)
    if isinstance(written, list) and system:
        payload["system"] = [*written, {"type": "text", "text": system}]
    elif written or system:
        payload["system"] = "\n\n".join(filter(None, (written, system))) if system else written
    for name in _left_out(endpoint, request, settings):
        del settings[name]
    # This API requires a limit, under a single name.
    limits = [settings.pop(name, None) for name in LIMITS]
    limit = next((limit for limit in limits if limit is not None), None)
    if limit is None:
        budget = thinking_budget(settings)
        thinking = settings.get("thinking")
        if budget is not None:
            payload["max_tokens"] = budget + DEFAULT_MAX_TOKENS
        else:
            kind = thinking.get("type") if isinstance(thinking, dict) else None
            thinks = kind == "adaptive" or (kind != "disabled" and not takes_sampling(endpoint.model))
            payload["max_tokens"] = DEFAULT_MAX_TOKENS + (THINKING_TOKENS if thinks else 0)
    else:
        payload["max_tokens"] = limit
    stop = settings.pop("stop", None)
    if stop is not None:
        payload["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    # The format and the effort of the answer, which have other names in other APIs.
    found: dict[str, Any] = {}
    written = settings.pop("response_format", None)
    for name in ("reasoning_effort", "effort"):
        effort = settings.pop(name, None)
        if effort is not None:
            _refuse(endpoint, name, effort_mistake(effort))
            found["effort"] = effort
    if written is not None:
        _refuse(endpoint, "response_format", format_mistake(written))
    schema = schema_of(written)
    if schema is None and written is None and takes_schema(endpoint.model):
        schema = request.response_schema
    if schema is not None:
        found["format"] = {"type": "json_schema", "schema": schema}
    own = settings.pop("output_config", None)
    output = found if own is None else {**found, **own} if isinstance(own, dict) else own
    if output:
        payload["output_config"] = output
    if request.tools:
        own = [
            {
                "name": tool.name,
                **({"description": tool.description} if tool.description else {}),
                "input_schema": tool.parameters,
            }
            for tool in request.tools
        ]
        settings["tools"] = [*(settings.get("tools") or ()), *own]
    return {**payload, **settings}


def _left_out(endpoint: Endpoint, request: ModelRequest, settings: Mapping[str, Any]) -> list[str]:
    """Return the parameters added by a judge or a dialect that this model would refuse in combination with the others.

    Parameters that the user wrote are always sent.
    """
    added = request.params.keys() if request.role is Role.JUDGE else request.added
    thinking = settings.get("thinking")
    thinks = isinstance(thinking, dict) and thinking.get("type") not in (None, "disabled")
    left_out = [
        name
        for name in _SAMPLING
        if name in settings and name in added and (thinks or not takes_sampling(endpoint.model))
    ]
    if "temperature" in added & settings.keys() and settings.get("top_p") is not None:
        left_out.append("temperature")
    if "response_format" in added & settings.keys():
        left_out.append("response_format")  # plain JSON, for which this API has no parameter
    return list(dict.fromkeys(left_out))


def _refuse(endpoint: Endpoint, name: str, mistake: str) -> None:
    if mistake:
        what, _, hint = mistake.partition("; ")
        place = f" ({endpoint.places[name]})" if name in endpoint.places else ""
        message = f"`{name}`{place}: {what}; nothing was sent"
        raise ProviderRequestError(message, provider_id=endpoint.id, hint=hint)


def _image_block(media_type: str, data: str, part: Mapping[str, Any]) -> dict[str, Any]:
    del part
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def _split_instructions(messages: tuple[Message, ...]) -> tuple[str, list[dict[str, Any]]]:
    """Return the system text, and the other messages; system messages without others are sent as the user's."""
    instructions = [content_text(item.content) for item in messages if item.role in _INSTRUCTION_ROLES]
    others: list[dict[str, Any]] = []
    answers_call = False
    for item in messages:
        if item.role in _INSTRUCTION_ROLES:
            continue
        # Write a message in this API's form, where tool calls and their results are content blocks.
        calls = item.further.get("tool_calls")
        if item.role == "assistant" and isinstance(calls, list):
            said = content_text(item.content)
            blocks: list[Any] = [{"type": "text", "text": said}] if said else []
            written = {"role": "assistant", "content": [*blocks, *map(_tool_use, calls)]}
        elif item.role == "tool":
            result = {
                "type": "tool_result",
                "tool_use_id": item.further.get("tool_call_id"),
                "content": item.content,
            }
            if item.further.get(TOOL_ERROR):
                result["is_error"] = True
            written = {"role": "user", "content": [result]}
        else:
            written = {"role": item.role, "content": item.content}
        if item.role == "tool" and answers_call:  # the results of one answer's calls belong in one message
            others[-1]["content"] += written["content"]
        else:
            others.append(written)
        answers_call = item.role == "tool"
    if not others:
        return "", [{"role": "user", "content": "\n\n".join(instructions)}]
    return "\n\n".join(instructions), others


def _tool_use(call: Any) -> dict[str, Any]:
    found = called_function(call)
    if found is None:
        return call if isinstance(call, dict) else {"type": "text", "text": str(call)}
    return {"type": "tool_use", "id": call.get("id"), "name": found[0], "input": found[1]}


def _is_call(block: Mapping[str, Any]) -> bool:
    kind = block.get("type")
    return isinstance(kind, str) and kind.endswith(_CALL)


def _choice(received: JsonAnswer) -> Choice:
    body = received.body
    blocks = body.get("content") if isinstance(body, dict) else None
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise received.refuse("an answer without content")
    if any(block.get("type") == "text" and not isinstance(block.get("text"), str) for block in blocks):
        raise received.refuse("an answer whose text is not a string")
    listed = [block for block in blocks if _is_call(block)]
    calls = tuple(
        tool_call(
            block["name"],
            block.get("input"),
            block.get("id"),
            block["type"] if block["type"] in _RAN else "function",
        )
        for block in listed
        if isinstance(block.get("name"), str) and block["name"] and isinstance(block.get("input", {}), dict)
    )
    to_run = [block for block in listed if block["type"] not in _RAN]
    refuse_other_speaker(body.get("role"))
    end = whole_end(MESSAGES, body.get("stop_reason"), error_part(blocks))
    refuse_lost_calls(end, calls, listed=len(listed))
    said = reply_text(blocks)
    text = said or (json.dumps(to_run, ensure_ascii=False) if to_run else "")
    if not text and (said is None or not is_all_text(blocks)) and not may_be_empty(end):
        raise received.refuse("an answer without content")
    return Choice(text, end and end.value, tool_calls=calls)
