"""Bedrock's Converse API (`bedrock:converse:MODEL`): one request format for all models."""

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from geval_cli.errors import (
    ProviderAuthError,
    ProviderError,
    ProviderRequestError,
    ProviderUnavailableError,
    UnknownModelError,
)
from geval_cli.extras.aws.batches import BedrockBatches, JobPlace
from geval_cli.extras.aws.signing import permission_hint
from geval_cli.extras.batches.api import BatchApi
from geval_cli.json_codec import decode_json
from geval_cli.providers.presets import Endpoint
from geval_cli.providers.wire.chat import (
    TOOL_ERROR,
    NotAnAnswer,
    called_function,
    content_text,
    may_be_empty,
    refuse_lost_calls,
    refuse_other_speaker,
    tool_call,
    whole_end,
)
from geval_cli.providers.wire.endpoint_provider import EndpointProvider, JsonAnswer
from geval_cli.providers.wire.finish_reasons import CONVERSE, FinishReason
from geval_cli.providers.wire.parameters import (
    CONVERSE_API,
    converse_format_mistake,
    schema_of,
    takes_sampling,
    takes_schema,
)
from geval_cli.providers.wire.token_usage import (
    LIMITS,
    InvalidCountError,
    TokenUsage,
    consistent,
    count_in,
    part_in,
    reports,
    text_in,
)
from geval_cli.records import Choice, Message, ModelRequest, ModelResponse, Role
from geval_cli.source.media import with_parts_of

_INSTRUCTION_ROLES = frozenset({"system", "developer"})
_SAMPLING = ("temperature", "top_p", "top_k")
_BODY_KEYS = (
    "additionalModelResponseFieldPaths",
    "guardrailConfig",
    "performanceConfig",
    "promptVariables",
    "requestMetadata",
    "serviceTier",
)
"""Parameters that go into a request unchanged, besides the parts that geval writes."""

_GUARDRAIL_KEYS = ("guardrailIdentifier", "guardrailVersion")
_GUARDRAILS = frozenset({"guardrailConfig", *_GUARDRAIL_KEYS})
WRITTEN_KEYS = (
    *_BODY_KEYS,
    *_GUARDRAIL_KEYS,
    "additionalModelRequestFields",
    "inferenceConfig",
    "maxTokens",
    "outputConfig",
    "toolChoice",
)
"""Parameters that only this API's configs have."""

_FAILED_MODEL = 424
_SERVER_ERRORS_FROM = 500
_ON_DEMAND = "on-demand throughput"


class ConverseProvider(EndpointProvider):
    """A Bedrock model: one choice per request and no token probabilities. `dropped` lists what it cannot do."""

    sees_images = True
    parameters = CONVERSE_API
    answer_key = "output"

    def __init__(self, endpoint: Endpoint, place: JobPlace | None = None) -> None:
        super().__init__(endpoint)
        self._place = place

    def payload(self, request: ModelRequest) -> dict[str, Any]:
        return _payload(self._endpoint, request)

    def choices(self, received: JsonAnswer, request: ModelRequest) -> tuple[Choice, ...]:
        choice = _choice(received)
        if request.tools:  # all blocks are sent back, including reasoning with its signatures
            content = received.body["output"]["message"]["content"]
            choice = replace(choice, message=Message("assistant", content))
        return (choice,)

    def tokens(self, body: Mapping[str, Any]) -> TokenUsage | None:
        tokens = _usage_of(body)
        # A guardrail is charged by the texts that it checks, and the answer does not say how much.
        is_guarded = not self._endpoint.wire.keys().isdisjoint(_GUARDRAILS)
        return replace(tokens, is_partial=True) if tokens is not None and is_guarded else tokens

    def dropped(self, request: ModelRequest) -> tuple[str, ...]:
        settings = _settings(self._endpoint, request)
        wished = {
            "logprobs": request.want_logprobs,
            "n": len(request.sample_indexes) > 1,
            "response_format": request.response_schema is not None and not takes_schema(self._endpoint.model),
            **dict.fromkeys(_left_out(self._endpoint, request, settings), True),
        }
        return tuple(name for name, is_wished in wished.items() if is_wished)

    def _new_batches(self) -> BatchApi | None:
        return None if self._place is None else BedrockBatches(self._endpoint, self._transport, self._place)

    async def _ask(self, payload: Mapping[str, Any], request: ModelRequest) -> ModelResponse:
        try:
            return await super()._ask(payload, request)
        except ProviderError as error:
            raise _explained(error, self._endpoint) from error.__cause__


def _explained(error: ProviderError, endpoint: Endpoint) -> ProviderError:
    """Return the error with a hint for Bedrock, or as a retryable error if the model behind it failed."""
    if isinstance(error, ProviderAuthError) and (hint := permission_hint(error)):
        error.hint = hint
    elif isinstance(error, ProviderAuthError) and "access to the model" in str(error):
        error.hint = "request access to the model in Bedrock's console, in the region that is called"
    elif isinstance(error, UnknownModelError):
        error.hint = "check the model's id, and whether the region has the model; no further request was sent"
    elif (
        isinstance(error, ProviderUnavailableError)
        and error.status is None
        and ".amazonaws.com" in endpoint.url
    ):
        error.hint = "check the network, and whether Bedrock has the region that the address names"
    elif isinstance(error, ProviderRequestError) and _ON_DEMAND in str(error):
        error.hint = f"call it by an inference profile, for example `bedrock:converse:us.{endpoint.model}`"
    elif isinstance(error, ProviderRequestError) and error.status == _FAILED_MODEL:
        try:
            behind = decode_json(error.body).get("originalStatusCode")
        except (ValueError, AttributeError):
            behind = None
        if isinstance(behind, int) and behind >= _SERVER_ERRORS_FROM:
            return ProviderUnavailableError(
                str(error), provider_id=endpoint.id, status=error.status, body=error.body
            )
    return error


def _settings(endpoint: Endpoint, request: ModelRequest) -> dict[str, Any]:
    return {name: value for name, value in {**endpoint.wire, **request.params}.items() if value is not None}


def _payload(endpoint: Endpoint, request: ModelRequest) -> dict[str, Any]:
    settings = _settings(endpoint, request)
    for name in _left_out(endpoint, request, settings):
        del settings[name]
    instruction = [settings.pop(name, None) for name in ("system", "systemInstruction", "system_instruction")]
    system, messages = _conversation(with_parts_of(request, _image_block), instruction)
    payload: dict[str, Any] = {"messages": messages}
    if system:
        payload["system"] = system
    found: dict[str, Any] = {}
    for target, names in (
        ("maxTokens", (*LIMITS, "maxTokens")),
        ("temperature", ("temperature",)),
        ("topP", ("top_p", "topP")),
        ("stopSequences", ("stop", "stop_sequences", "stopSequences")),
    ):
        given = [settings.pop(name, None) for name in names]
        value = next((value for value in given if value is not None), None)
        if value is not None:
            found[target] = value
    if isinstance(found.get("stopSequences"), str):
        found["stopSequences"] = [found["stopSequences"]]
    own = settings.pop("inferenceConfig", None)
    inference = found if own is None else {**found, **own} if isinstance(own, dict) else own
    if inference:
        payload["inferenceConfig"] = inference
    tools = _tool_config(request, settings)
    if tools:
        payload["toolConfig"] = tools
    output = _output_config(endpoint, request, settings)
    if output:
        payload["outputConfig"] = output
    guardrail = {name: settings.pop(name) for name in _GUARDRAIL_KEYS if name in settings}
    if guardrail:
        payload["guardrailConfig"] = guardrail
    tier = settings.pop("service_tier", None)
    if tier is not None:
        payload["serviceTier"] = {"type": tier}
    payload |= {name: settings.pop(name) for name in _BODY_KEYS if name in settings}
    # The model's own parameters go here.
    own = settings.pop("additionalModelRequestFields", None)
    further = {**settings, **own} if isinstance(own, dict) else settings if own is None else own
    if further:
        payload["additionalModelRequestFields"] = further
    return payload


def _left_out(endpoint: Endpoint, request: ModelRequest, settings: Mapping[str, Any]) -> list[str]:
    """Return the parameters added by a judge or a dialect that this model would reject.

    Parameters that the user set are always sent.
    """
    added = request.params.keys() if request.role is Role.JUDGE else request.added
    further = settings.get("additionalModelRequestFields")
    thinking = settings.get("thinking", further.get("thinking") if isinstance(further, dict) else None)
    thinks = isinstance(thinking, dict) and thinking.get("type") not in (None, "disabled")
    left_out = [
        name
        for name in _SAMPLING
        if name in settings and name in added and (thinks or not takes_sampling(endpoint.model))
    ]
    has_top_p = any(settings.get(name) is not None for name in ("top_p", "topP"))
    if "temperature" in added & settings.keys() and has_top_p and "claude" in endpoint.model:
        left_out.append("temperature")
    if "response_format" in added & settings.keys() and schema_of(settings["response_format"]) is None:
        left_out.append("response_format")  # plain JSON, which this API has no parameter for
    return list(dict.fromkeys(left_out))


def _tool_config(request: ModelRequest, settings: dict[str, Any]) -> Any:
    """Return the config's tools, converted from the format of any API, together with those of the test."""
    written = settings.pop("tools", None)
    listed = written if isinstance(written, list) else [written] if written else []
    own = [_tool_spec(tool.name, tool.description, tool.parameters) for tool in request.tools]
    tools = [*map(_tool, listed), *own]
    choice = settings.pop("tool_choice", None)
    choice = settings.pop("toolChoice", None) if choice is None else choice
    written_config = settings.pop("toolConfig", None) or {}
    if not isinstance(written_config, dict):
        return written_config
    config = dict(written_config)
    if tools:
        config["tools"] = [*(config.get("tools") or ()), *tools]
    if choice is not None and choice != "none":
        config["toolChoice"] = _tool_choice(choice)
    return {} if choice == "none" and not request.tools else config


def _tool(tool: Any) -> Any:
    """Convert a tool from the format of the chat, Responses or Anthropic API; return anything else unchanged."""
    if not isinstance(tool, dict) or tool.keys() & {"toolSpec", "cachePoint", "systemTool"}:
        return tool
    function = tool.get("function", tool)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return tool
    schema = function.get("parameters") or function.get("input_schema") or {"type": "object"}
    return _tool_spec(function["name"], function.get("description"), schema)


def _tool_spec(name: str, description: Any, schema: Any) -> dict[str, Any]:
    described = {"description": description} if description else {}
    return {"toolSpec": {"name": name, **described, "inputSchema": {"json": schema}}}


def _tool_choice(choice: Any) -> Any:
    """Convert a tool choice from the format of other APIs; return anything else unchanged."""
    if choice in ("auto", "any", "required"):
        return {"auto" if choice == "auto" else "any": {}}
    if isinstance(choice, dict) and isinstance(choice.get("type"), str):
        function = choice.get("function", choice)
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            return {"tool": {"name": function["name"]}}
        return {"auto" if choice["type"] == "auto" else "any": {}}
    return choice


def _output_config(endpoint: Endpoint, request: ModelRequest, settings: dict[str, Any]) -> Any:
    """Return the output format and the effort, which other APIs request by other names.

    Raises:
        ProviderRequestError: this API has no such format.
    """
    found: dict[str, Any] = {}
    written = settings.pop("response_format", None)
    for name in ("reasoning_effort", "effort"):
        effort = settings.pop(name, None)
        if effort is not None:
            found["effort"] = effort
    if written is not None and (mistake := converse_format_mistake(written)):
        what, _, hint = mistake.partition("; ")
        place = f" ({endpoint.places['response_format']})" if "response_format" in endpoint.places else ""
        message = f"`response_format`{place}: {what}; nothing was sent"
        raise ProviderRequestError(message, provider_id=endpoint.id, hint=hint)
    schema = schema_of(written)
    named: Mapping[str, Any] = written if isinstance(written, dict) else {}
    inner = named.get("json_schema")
    named = inner if isinstance(inner, dict) else named
    if schema is None and written is None and takes_schema(endpoint.model):
        schema = request.response_schema
    if schema is not None:
        given = {name: named[name] for name in ("name", "description") if isinstance(named.get(name), str)}
        text = json.dumps(schema, ensure_ascii=False)
        structure = {"jsonSchema": {"schema": text, **given}}
        found["textFormat"] = {"type": "json_schema", "structure": structure}
    own = settings.pop("outputConfig", None)
    return found if own is None else {**found, **own} if isinstance(own, dict) else own


def _image_block(media_type: str, data: str, part: Mapping[str, Any]) -> dict[str, Any]:
    del part
    return {"image": {"format": media_type.partition("/")[2], "source": {"bytes": data}}}


def _conversation(
    messages: tuple[Message, ...], instruction: list[Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the system blocks and the other messages; system messages alone become a user message."""
    written = [item for item in instruction if item]
    system = [
        block
        for item in written
        for block in _blocks(item.get("parts", item) if isinstance(item, dict) else item)
    ]
    told = [block for item in messages if item.role in _INSTRUCTION_ROLES for block in _blocks(item.content)]
    others: list[dict[str, Any]] = []
    answers_call = False
    for item in messages:
        if item.role in _INSTRUCTION_ROLES:
            continue
        # The blocks of a message; here, tool calls and their results are blocks as well.
        calls = item.further.get("tool_calls")
        if item.role == "assistant" and isinstance(calls, list):
            said = content_text(item.content)
            blocks = [*([{"text": said}] if said else []), *map(_tool_use, calls)]
        elif item.role == "tool":
            result = {
                "toolUseId": item.further.get("tool_call_id"),
                "content": [{"text": content_text(item.content)}],
            }
            if item.further.get(TOOL_ERROR):
                result["status"] = "error"
            blocks = [{"toolResult": result}]
        else:
            blocks = _blocks(item.content)
        if item.role == "tool" and answers_call:  # the results of one answer's calls belong in one message
            others[-1]["content"] += blocks
        else:
            others.append({"role": "assistant" if item.role == "assistant" else "user", "content": blocks})
        answers_call = item.role == "tool"
    if not others:
        return system, [{"role": "user", "content": told}]
    return [*system, *told], others


def _blocks(content: Any) -> list[Any]:
    """Return the content blocks of a message; only text is converted, other blocks are passed through."""
    if isinstance(content, str):
        return [{"text": content}]
    parts = content if isinstance(content, list) else [content]
    return [
        {"text": part}
        if isinstance(part, str)
        else {"text": part["text"]}
        if isinstance(part, dict) and part.get("type") == "text"
        else part
        for part in parts
    ]


def _tool_use(call: Any) -> dict[str, Any]:
    found = called_function(call)
    if found is None:
        return call if isinstance(call, dict) else {"text": str(call)}
    return {"toolUse": {"toolUseId": call.get("id"), "name": found[0], "input": found[1]}}


def _choice(received: JsonAnswer) -> Choice:
    body = received.body
    output = body.get("output") if isinstance(body, dict) else None
    message = output.get("message") if isinstance(output, dict) else None
    blocks = message.get("content") if isinstance(message, dict) else None
    if (
        not isinstance(message, dict)
        or not isinstance(blocks, list)
        or not all(isinstance(block, dict) for block in blocks)
    ):
        raise received.refuse("an answer without content")
    listed = [block["toolUse"] for block in blocks if "toolUse" in block]
    calls = tuple(
        tool_call(call["name"], call.get("input"), call.get("toolUseId"), call.get("type") or "function")
        for call in listed
        if isinstance(call, dict)
        and isinstance(call.get("name"), str)
        and isinstance(call.get("input", {}), dict)
    )
    try:
        refuse_other_speaker(message.get("role"))
        end = whole_end(CONVERSE, body.get("stopReason"))
        refuse_lost_calls(end, calls, listed=len(listed))
    except NotAnAnswer as error:
        raise received.refuse(str(error)) from error
    said = [text for block in blocks for text in _texts(block)]
    if not all(isinstance(text, str) for text in said):
        raise received.refuse("an answer whose text is not a string")
    to_run = [
        block
        for block in blocks
        if isinstance(block.get("toolUse"), dict) and not block["toolUse"].get("type")
    ]
    text = "".join(said) or (json.dumps(to_run, ensure_ascii=False) if to_run else "")
    is_silence = bool(said) and len(said) == len(blocks) and end is FinishReason.STOP
    if not text and not is_silence and not may_be_empty(end):
        raise received.refuse("an answer without content")
    return Choice(text, end and end.value, tool_calls=calls)


def _texts(block: Mapping[str, Any]) -> list[Any]:
    """Return the text in a block, or the text that its citations support; reasoning blocks have none."""
    if "text" in block:
        return [block["text"]]
    cited = block.get("citationsContent")
    parts = cited.get("content") if isinstance(cited, dict) else None
    return [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _usage_of(body: Mapping[str, Any]) -> TokenUsage | None:
    """Return the token usage in a Converse response; None if it is missing or invalid."""
    usage = body.get("usage")
    if not isinstance(usage, dict) or not reports(usage, "inputTokens", "outputTokens"):
        return None
    try:
        read, written = count_in(usage, "cacheReadInputTokens"), count_in(usage, "cacheWriteInputTokens")
        input_tokens, output_tokens = count_in(usage, "inputTokens"), count_in(usage, "outputTokens")
        if count_in(usage, "totalTokens") != input_tokens + output_tokens:
            # Some models include cached tokens in the input; the total shows which count it is.
            input_tokens += read + written
        details = usage.get("cacheDetails")
        listed = [item for item in (details if isinstance(details, list) else ()) if isinstance(item, dict)]
        long = [item for item in listed if text_in(item, "ttl") == "1h"]
        tier = text_in(part_in(body, "serviceTier"), "type")
        return consistent(
            TokenUsage(
                input_tokens,
                output_tokens,
                cache_read_tokens=read,
                cache_write_tokens=written,
                long_cache_write_tokens=sum(count_in(item, "inputTokens") for item in long),
                conditions={} if tier is None else {"service_tier": tier},
                # It costs more, and is not in the table of prices.
                is_partial=part_in(body, "performanceConfig").get("latency") == "optimized",
            )
        )
    except InvalidCountError:
        return None
