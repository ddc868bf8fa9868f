"""What holds for every wire: a null in the place of an answer is an error, and counts that cannot be are unknown."""

import copy
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from msgspec import structs
from support.calls import answer, ask, provider, run
from support.loopback import LoopbackServer, Reply
from support.specs import case
from support.verdicts import judged

from geval_cli.assertions.base import Subject
from geval_cli.errors import ProviderError, ProviderResponseError
from geval_cli.gateway.call import align
from geval_cli.providers.base import Provider
from geval_cli.providers.preset_table import WIRE_FORMATS
from geval_cli.providers.wire.endpoint_provider import EndpointProvider
from geval_cli.records import Choice, ModelResponse, Role, Status, ToolDefinition

PRICE = {"price": {"input": 1, "output": 1}}
ODD_JSON = ["-3", "7.5", '"7"', "true", "[7]", '{"n": 7}', "1e300", "900000000000"]


class Wire(NamedTuple):
    """How a provider is named, and where its server puts the answer, why it ended, and the counts."""

    name: str
    body: Mapping[str, Any]
    counts: tuple[str, ...]


CHAT = {
    "choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 3},
}
WIRES = {
    "openai": Wire("openai:m", CHAT, ("usage.prompt_tokens", "usage.completion_tokens")),
    "http": Wire("", CHAT, ("usage.prompt_tokens", "usage.completion_tokens")),
    "responses": Wire(
        "openai:responses:m",
        {
            "output": [{"type": "message", "content": [{"type": "output_text", "text": "hi"}]}],
            "usage": {"input_tokens": 7, "output_tokens": 3},
        },
        ("usage.input_tokens", "usage.output_tokens"),
    ),
    "anthropic": Wire(
        "anthropic:m",
        {
            "content": [{"type": "text", "text": "hi"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 7, "output_tokens": 3},
        },
        ("usage.input_tokens", "usage.output_tokens", "usage.cache_read_input_tokens"),
    ),
    "google": Wire(
        "google:m",
        {
            "candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 3, "thoughtsTokenCount": 1},
        },
        (
            "usageMetadata.promptTokenCount",
            "usageMetadata.candidatesTokenCount",
            "usageMetadata.thoughtsTokenCount",
        ),
    ),
    "converse": Wire(
        "bedrock:converse:m",
        {
            "output": {"message": {"role": "assistant", "content": [{"text": "hi"}]}},
            "stopReason": "end_turn",
            "usage": {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10},
        },
        ("usage.inputTokens", "usage.outputTokens", "usage.cacheReadInputTokens"),
    ),
    "embedding": Wire(
        "openai:embedding:m",
        {"data": [{"embedding": [1.0, 2.0]}], "usage": {"prompt_tokens": 7}},
        ("usage.prompt_tokens",),
    ),
}
COUNTS = [(name, place) for name, wire in WIRES.items() for place in wire.counts]


def test_every_api_is_among_them() -> None:
    apis = {rules.module for rules in WIRE_FORMATS.values()}
    assert apis - WIRES.keys() == set(), "add a reply of these APIs to WIRES"
    rich = {name.partition(":")[0] for name in RICH}
    assert apis - rich == set(), "add a reply of these APIs with all parts that are read to RICH"


@pytest.mark.parametrize(
    "name", [name for name, rules in WIRE_FORMATS.items() if rules.path and name in WIRES]
)
@pytest.mark.parametrize("end", ["", "/", "?team=1"])
def test_an_address_may_end_with_the_version_of_the_api(name: str, end: str) -> None:
    with LoopbackServer(respond=lambda *_: Reply(body=WIRES[name].body)) as server:
        for version in ("", WIRE_FORMATS[name].path):
            base_url = server.url + "/".join(version.split("/")[:2]) + end
            run(answer(provider(WIRES[name].name, {"base_url": base_url, "apiKey": "key-123"})))
    without, with_version = (request.path for request in server.requests)
    assert with_version == without


def exchange(name: str, body: Any, status: int = 200, **fields: Any) -> ModelResponse:
    with LoopbackServer(Reply(status, body=body)) as server:
        [response] = run(answer(model_of(name, server.url), ask(**fields)))
    return response


def model_of(name: str, url: str) -> Provider:
    """A model of a wire, which a server answers for."""
    wire = WIRES[name]
    base_url = url if wire.name.startswith(("anthropic", "google", "bedrock")) else f"{url}/v1"
    config = {"base_url": base_url, "apiKey": "key-123", **PRICE}
    if name == "http":
        config = {"response_path": "choices[0].message.content", "body": {"q": "{{ prompt }}"}, **PRICE}
    return provider(wire.name or f"{url}/answer", config)


def with_value(body: Mapping[str, Any], place: str, written: str) -> str:
    """The JSON text of `body` with `written` in a place of it, as no JSON library would write it."""
    changed = copy.deepcopy(dict(body))
    inner = changed
    *way, last = place.split(".")
    for key in way:
        inner = inner[key]
    inner[last] = "HERE"
    return json.dumps(changed).replace('"HERE"', written)


@pytest.mark.parametrize("name", WIRES)
def test_an_answer_that_is_whole_costs_what_its_tokens_do(name: str) -> None:
    usage = exchange(name, WIRES[name].body).usage
    assert usage.cost_usd == pytest.approx((usage.input_tokens + usage.output_tokens) / 1_000_000)
    assert usage.input_tokens == 7


@pytest.mark.parametrize("written", ODD_JSON)
@pytest.mark.parametrize(("name", "place"), COUNTS)
def test_a_count_that_cannot_be_is_unknown_and_costs_nobody_knows_what(
    name: str, place: str, written: str
) -> None:
    reply = exchange(name, with_value(WIRES[name].body, place, written))
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cost_usd) == (0, 0, None)


def chat(message: Any, reason: str | None = "stop") -> dict[str, Any]:
    return {**CHAT, "choices": [{"message": message, "finish_reason": reason}]}


def response(*items: Any, **body: Any) -> dict[str, Any]:
    return {"output": list(items), "usage": {"input_tokens": 7, "output_tokens": 3}, **body}


def said(content: Any) -> dict[str, Any]:
    return {"type": "message", "content": content}


def messages(content: Any, reason: str = "end_turn") -> dict[str, Any]:
    usage = {"input_tokens": 7, "output_tokens": 3}
    return {"content": content, "stop_reason": reason, "usage": usage}


def gemini(content: Any, reason: str = "STOP") -> dict[str, Any]:
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 3}
    return {"candidates": [{"content": content, "finishReason": reason}], "usageMetadata": usage}


ABSENT = [
    ("openai", chat({"content": None})),
    ("openai", chat({"content": None}, None)),
    ("openai", chat({"content": None}, "tool_calls")),
    ("openai", chat({"content": []})),
    ("openai", chat({"content": None, "tool_calls": []})),
    ("openai", chat({"content": None, "refusal": None})),
    ("openai", chat({"content": None, "reasoning_content": "Let me think."})),
    ("openai", chat({"role": "assistant"})),
    ("http", chat({"content": None})),
    ("responses", response(said([]))),
    ("responses", response(said(None))),
    ("responses", response(said([{"type": "output_text", "text": None}]))),
    ("responses", response({"type": "reasoning", "summary": []})),
    ("responses", response()),
    ("anthropic", messages([])),
    ("anthropic", messages([], "stop_sequence")),
    ("anthropic", messages(None)),
    ("anthropic", messages([{"type": "thinking", "thinking": "Let me think."}])),
    ("google", gemini({"parts": []})),
    ("google", gemini({"role": "model"})),
    ("google", gemini(None)),
    ("google", gemini({"parts": [{"text": "Let me think.", "thought": True}]})),
    ("embedding", {"data": [{"embedding": None}]}),
    ("embedding", {"data": []}),
    ("embedding", {"data": [{"embedding": [10**400, 1.0]}]}),
]

THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "Let me think."}]}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ERROR = {"message": "the upstream broke", "code": "upstream"}
FINISHED = response(said([{"type": "output_text", "text": "hi"}]))
PART = {"text": "so far"}
NOT_DONE = (
    "failed", "incomplete", "cancelled", "in_progress", "queued", "expired", "FAILED", "Error", "timeout", "rejected",
    500, 0, False, {"code": 500},
)  # fmt: skip

# What came with a 200 although the model has not answered: reasons that are no end, with and without text.
BROKEN = [
    *[
        (name, chat({"content": text}, reason))
        for name in ("openai", "http")
        for text in ("", "so far")
        for reason in (
            "error", "abort", "insufficient_system_resource", "network_error", "cancelled", "aborted", "failed",
            "load", "timeout", "pause_turn", "malformed_tool_use", "never heard of", "unknown", 7, [], {},
            {"type": "abort"}, {"type": None}, {"reason": "stop"},
            "function_call_filter: MALFORMED_FUNCTION_CALL", "OTHER",
        )
    ],
    *[
        ("openai", chat({"content": content}))
        for content in (
            [THOUGHT], [None], [{"type": "image_url", "image_url": {"url": "data:,"}}], [{}], [[]], {"text": "hi"}, 7,
            [{"type": "reasoning", "text": "Let me think."}],
        )
    ],
    ("openai", chat({"content": ""}, None)),
    ("openai", chat({"content": ""}, "tool_calls")),
    ("openai", chat({"content": "", "reasoning_content": "hm"})),
    ("openai", chat({"content": "", "reasoning": "hm"})),
    ("openai", chat({"content": None, "tool_calls": [None]}, "tool_calls")),
    ("openai", chat({"content": None, "tool_calls": [{"id": "1"}]}, "tool_calls")),
    ("openai", chat({"content": None, "tool_calls": {"id": "1"}}, "tool_calls")),
    ("openai", {**chat({"content": ""}), "usage": {"prompt_tokens": 7, "completion_tokens": 0}}),
    ("openai", {"choices": [{**CHAT["choices"][0], "error": ERROR}]}),
    *[(name, {**WIRES[name].body, "error": error}) for name in WIRES for error in (ERROR, "the upstream broke")],
    *[
        ("responses", {**FINISHED, "status": status, "error": None})
        for status in ("failed", "cancelled", "in_progress", "queued", "incomplete", "odd", 7)
    ],
    ("responses", {**FINISHED, "status": "incomplete", "incomplete_details": {"reason": "odd"}}),
    ("responses", {**FINISHED, "status": "incomplete", "incomplete_details": {"reason": "steered"}}),
    ("responses", response({"type": "image_generation_call", "result": "aGk="}, status="completed")),
    ("responses", response({"type": "mcp_call", "name": "f", "arguments": "{}", "output": "x"})),
    ("responses", response({"type": "web_search_call", "action": {"query": "x"}})),
    *[
        ("anthropic", messages(content, reason))
        for content in ([], [{"type": "text", "text": "so far"}])
        for reason in ("pause_turn", "compaction", "error", "never heard of")
    ],
    *[
        ("responses", response({**item, "status": status}, status="completed"))
        for item in (
            said([{"type": "output_text", "text": "so far"}]),
            {"type": "function_call", "name": "f", "arguments": "{}"},
        )
        for status in ("incomplete", "in_progress")
    ],
    ("anthropic", messages([], "tool_use")),
    ("anthropic", messages([{"type": "server_tool_use", "name": "web_search", "input": {}}])),
    *[
        ("google", gemini(content, reason))
        for content in (None, {"parts": []}, {"parts": [PART]})
        for reason in (
            "FINISH_REASON_UNSPECIFIED", "OTHER", "LANGUAGE", "MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE",
            "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MISSING_THOUGHT_SIGNATURE", "IMAGE_OTHER", "NO_IMAGE",
            "CONTINUATION", "PUP_LIMITED_DISABLED", "NEVER_HEARD_OF",
        )
    ],
    ("google", gemini({"parts": [{"inlineData": {"mimeType": "image/png", "data": "aGk="}}]})),
    ("google", gemini({"parts": [{"executableCode": {"code": "1"}}]})),
    ("google", {**gemini({"parts": [{"text": ""}]}), "usageMetadata": {"promptTokenCount": 7}}),
    # A server that says of itself that something went wrong, whatever is beside it.
    *[
        (name, {**WIRES[name].body, **trouble})
        for name in WIRES
        for trouble in (
            {"success": False}, {"errors": [{"message": "the upstream broke"}]}, {"type": "error"}, {"object": "error"},
            {"status": "error"}, {"code": 503, "msg": "the upstream broke"}, {"error_code": 336003},
            {"base_resp": {"status_code": 1002, "status_msg": "rate limit"}},
        )
    ],
    *[("openai", chat({"content": "hi", "error": error})) for error in (ERROR, "the upstream broke", [ERROR])],
    # The word of the vendor behind a gateway says more than the gateway's own.
    *[
        ("openai", {"choices": [{**CHAT["choices"][0], "native_finish_reason": native}]})
        for native in ("MALFORMED_FUNCTION_CALL", "OTHER", "pause_turn", "insufficient_system_resource")
    ],
    # The end of an answer by calls of tools, of which there is none; and calls that cannot be read.
    ("openai", chat({"content": "I look."}, "tool_calls")),
    ("openai", chat({"content": "I look.", "tool_calls": [CALL, None]})),
    ("openai", chat({"content": "I look.", "tool_calls": [{**CALL, "function": {"arguments": "{}"}}]}, "tool_calls")),
    ("openai", chat({"content": "I look.", "tool_calls": [{**CALL, "function": {"name": ""}}]}, "tool_calls")),
    ("openai", chat({"content": "I look.", "tool_calls": "f()"}, "tool_calls")),
    ("anthropic", messages([{"type": "text", "text": "I look."}], "tool_use")),
    ("anthropic", messages([{"type": "text", "text": "I look."}, {"type": "tool_use", "input": {}}], "tool_use")),
    ("responses", response(said([{"type": "output_text", "text": "I look."}]), {"type": "function_call"})),
    ("google", gemini({"parts": [PART, {"functionCall": {"args": {}}}]})),
    ("google", gemini({"parts": [PART, {"functionCall": {"name": "f", "willContinue": True}}]})),
    # No text beside thoughts, pictures or sound is no silence.
    *[
        ("openai", chat({"content": "", key: value}))
        for key, value in (
            ("reasoning_details", [{"text": "hm"}]), ("thinking_blocks", [{"thinking": "hm"}]),
            ("audio", {"data": "aGk="}), ("images", [{"type": "image_url", "image_url": {"url": "data:,"}}]),
        )
    ],
    ("openai", chat({"content": [THOUGHT, {"type": "text", "text": ""}]})),
    ("openai", {**chat({"content": " \n"}), "usage": {"prompt_tokens": 7, "completion_tokens": 0}}),
    ("anthropic", messages([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": ""}])),
    ("anthropic", messages([{"type": "text_delta", "text": "hi"}])),
    ("responses", response({"type": "reasoning", "summary": []}, said([{"type": "output_text", "text": ""}]))),
    ("google", gemini({"parts": [{"text": "hm", "thought": True}, {"text": ""}]})),
    ("google", gemini({"parts": [{"text": ""}, {"inlineData": {"mimeType": "image/png", "data": "aGk="}}]})),
    # What was asked, given back.
    ("openai", chat({"role": "user", "content": "Say hi."})),
    ("anthropic", {**messages([{"type": "text", "text": "Say hi."}]), "role": "user"}),
    ("responses", response({**said([{"type": "input_text", "text": "Say hi."}]), "role": "user"})),
    ("google", gemini({"role": "user", "parts": [{"text": "Say hi."}]})),
    ("responses", response({**said([{"type": "output_text", "text": "so far"}]), "status": "failed"})),
    ("embedding", {"data": [{"embedding": [0.0, 0.0]}]}),
    # A status other than that of a whole answer, wherever it stands, and whatever the server's word for it is.
    *[
        (name, {**WIRES[name].body, key: status})
        for name in WIRES
        for key, statuses in (("status", NOT_DONE), ("state", NOT_DONE[:2]))
        for status in statuses
    ],
    *[
        (name, {**CHAT, "choices": [{**CHAT["choices"][0], **choice}]})
        for name in ("openai", "http")
        for status in ("FAILED", "expired", 0)
        for choice in ({"status": status}, {"message": {"content": "hi", "status": status}})
    ],
    *[
        ("google", {"candidates": [{**WIRES["google"].body["candidates"][0], **candidate}]})
        for status in ("FAILED", "expired", 0)
        for candidate in ({"status": status}, {"content": {"parts": [PART], "state": status}})
    ],
    # An error anywhere in an answer, however the server spells it.
    *[
        (name, {**WIRES[name].body, **trouble})
        for name in WIRES
        for trouble in (
            {"Error": ERROR}, {"ERRORS": ["the upstream broke"]}, {"ok": False}, {"success": "false"}, {"success": 0},
            {"success": "False"}, {"type": "Error"},
        )
    ],
    *[
        (name, body(parts))
        for part in (
            {"type": "error", "error": ERROR}, {"type": "error"}, {"type": "text", "text": "hi", "error": ERROR},
        )
        for parts in ([{"type": "text", "text": "hi"}, part],)
        for name, body in (
            ("openai", lambda parts: chat({"content": parts})),
            ("http", lambda parts: chat({"content": parts})),
            ("anthropic", messages),
            ("responses", lambda parts: response(said(parts), status="completed")),
            ("google", lambda parts: gemini({"parts": parts})),
        )
    ],
    ("google", {"candidates": [{**WIRES["google"].body["candidates"][0], "error": ERROR}]}),
    ("google", gemini({"parts": [PART], "error": ERROR})),
    ("google", gemini({"parts": [{**PART, "error": "the upstream broke"}]})),
    ("responses", response({**said([{"type": "output_text", "text": "hi"}]), "error": ERROR})),
    # Arguments of a call that are no JSON object, alone, beside a text and beside a call that can be read.
    *[
        (name, chat({"content": text, **calls}, reason))
        for name in ("openai", "http")
        for written in ('{"a":', "[1]", [1], "1", "null", 7, "so far")
        for broken in ({**CALL, "function": {"name": "f", "arguments": written}},)
        for text, calls, reason in (
            (None, {"tool_calls": [broken]}, "tool_calls"),
            ("I look.", {"tool_calls": [broken]}, "stop"),
            ("I look.", {"tool_calls": [CALL, broken]}, "tool_calls"),
            ("I look.", {"function_call": broken["function"]}, "function_call"),
        )
    ],
    *[
        ("responses", response(*beside, {"type": "function_call", "name": "f", "arguments": written}))
        for written in ('{"a":', "[1]", [1], "1")
        for beside in ((), (said([{"type": "output_text", "text": "I look."}]),))
    ],
    *[
        ("anthropic", messages([*beside, {"type": "tool_use", "name": "f", "input": given}], "tool_use"))
        for given in ("so far", '{"a": 1}', None, [1], 7)
        for beside in ((), ({"type": "text", "text": "I look."},), ({"type": "tool_use", "name": "f", "input": {}},))
    ],
    *[
        ("google", gemini({"parts": [*beside, {"functionCall": {"name": "f", "args": given}}]}))
        for given in ("so far", '{"a": 1}', [1], 7)
        for beside in ((), (PART,), ({"functionCall": {"name": "f", "args": {}}},))
    ],
]  # fmt: skip


@pytest.mark.parametrize("name", WIRES)
def test_an_answer_that_the_model_did_not_end_is_an_error_also_with_a_text(name: str) -> None:
    bodies = [body for wire, body in BROKEN if wire == name]
    model, taken = model_of(name, "http://127.0.0.1:9"), []

    async def one_by_one(model: Provider) -> None:
        for body in bodies:
            with suppress(ProviderError):
                taken.append((body, (await model.complete(ask())).text))
        await model.aclose()

    with LoopbackServer(*(Reply(body=body) for body in bodies)) as server:
        run(one_by_one(model_of(name, server.url)))
        assert len(server.requests) == len(bodies)
    for body in bodies if name != "http" else ():
        assert isinstance(model, EndpointProvider)
        with suppress(ProviderError):
            taken.append((body, f"in a batch: {model.batched_response(ask(), 200, body)}"))
    assert bodies
    assert taken == []


OPEN_TEXT = [
    ("content[0].text", messages([{"type": "text", "text": "so far"}], "pause_turn")),
    ("", messages([{"type": "text", "text": "so far"}], "pause_turn")),
    ("candidates[0].content.parts[0].text", gemini({"parts": [PART]}, "MALFORMED_FUNCTION_CALL")),
    ("choices[0].text", {"choices": [{"text": "so far", "finish_reason": "abort"}]}),
    ("choices[0].message", chat({"content": "so far"}, "abort")),
    ("output[0].content[0].text", {**FINISHED, "status": "failed"}),
    ("message.content", {"message": {"content": "so far"}, "done": False}),
    ("message.content", {"message": {"content": ""}, "done": True, "done_reason": "load"}),
    ("message.content[0].text", {"message": {"content": [PART]}, "finish_reason": "ERROR"}),
    ("answer", {"answer": "so far", "error": "the upstream broke"}),
    ("choices[0].text", {"choices": [{"text": "so far", "status": "failed"}]}),
    ("candidates[0].content.parts[0].text", {"candidates": [{"content": {"parts": [PART]}, "error": ERROR}]}),
]


@pytest.mark.parametrize(("path", "body"), OPEN_TEXT)
def test_a_text_that_a_path_leads_to_is_no_answer_where_its_api_says_so(path: str, body: Any) -> None:
    with pytest.raises(ProviderResponseError):
        found_at(path, body)


ENDED_TEXT: list[tuple[str, Any, str | None]] = [
    ("content[0].text", messages([{"type": "text", "text": "so"}], "max_tokens"), "length"),
    ("content[0].text", messages([{"type": "text", "text": "so"}], "refusal"), "refusal"),
    ("candidates[0].content.parts[0].text", gemini({"parts": [{"text": "so"}]}, "SAFETY"), "content_filter"),
    ("response", {"response": "so", "done": True, "done_reason": "length"}, "length"),
    ("output.text", {"output": {"text": "so"}, "stopReason": "guardrail_intervened"}, "content_filter"),
    ("answer", {"answer": "so", "finish_reason": "a word of the app's own", "status": "failed"}, None),
    ("error.message", {"error": {"message": "so"}}, None),
]


@pytest.mark.parametrize(("path", "body", "reason"), ENDED_TEXT)
def test_why_a_text_ended_is_read_where_vendors_say_it(path: str, body: Any, reason: str | None) -> None:
    assert found_at(path, body) == Choice("so", reason)


def found_at(path: str, body: Any) -> Choice:
    with LoopbackServer(Reply(body=body)) as server:
        config = {"body": {"q": "{{ prompt }}"}, **({"response_path": path} if path else {})}
        [found] = run(answer(provider(f"{server.url}/answer", config)))
    return found.choices[0]


def test_an_error_beside_an_answer_says_what_went_wrong() -> None:
    for body in ({**CHAT, "error": ERROR}, {"choices": [{**CHAT["choices"][0], "error": ERROR}]}):
        with pytest.raises(ProviderError, match="the upstream broke"):
            exchange("openai", body)


UNUSUAL_ERRORS = [
    {"detail": "the upstream broke"},
    {"object": "error", "message": "the upstream broke", "code": 404},
    {"type": "error", "code": "x", "message": "the upstream broke"},
    {"errors": [{"message": "the upstream broke"}], "success": False},
    {"code": 429, "msg": "the upstream broke", "data": None},
    {"base_resp": {"status_code": 1004, "status_msg": "the upstream broke"}, "choices": None},
]


@pytest.mark.parametrize("body", UNUSUAL_ERRORS)
@pytest.mark.parametrize("name", ["openai", "responses", "anthropic", "google"])
def test_a_body_without_an_answer_says_in_its_server_s_words_what_went_wrong(name: str, body: Any) -> None:
    with pytest.raises(ProviderError, match="the upstream broke"):
        exchange(name, body)


@pytest.mark.parametrize(
    "status", [None, "", "completed", "COMPLETED", "success", "succeeded", "ok", "finished", 200, True]
)
@pytest.mark.parametrize("name", [name for name in WIRES if name != "responses"])
def test_a_status_that_is_that_of_a_whole_answer_takes_nothing_away(name: str, status: Any) -> None:
    assert exchange(name, {**WIRES[name].body, "status": status, "state": status}).text


@pytest.mark.parametrize("place", [0, 1])
def test_the_first_answer_of_several_is_the_one_with_the_lowest_index(place: int) -> None:
    candidates = [
        {"index": index, "content": {"parts": [{"text": f"answer {index}"}]}, "finishReason": "STOP"}
        for index in (place, 1 - place)
    ]
    assert exchange("google", {"candidates": candidates}).text == "answer 0"


@pytest.mark.parametrize("error", [None, "", {}, [], False, {"message": "", "code": None}])
@pytest.mark.parametrize("name", WIRES)
def test_an_error_that_says_nothing_is_none(name: str, error: Any) -> None:
    assert exchange(name, {**WIRES[name].body, "error": error}).text


def test_of_several_answers_those_that_are_whole_stay() -> None:
    ends = ["stop", "error", "length"]
    choices = [
        {"index": index, "message": {"content": f"answer {index}"}, "finish_reason": reason}
        for index, reason in enumerate(ends)
    ]
    found = exchange("openai", {**CHAT, "choices": choices}, sample_indexes=(0, 1, 2))
    assert [choice.text for choice in found.choices] == ["answer 0", "answer 2"]


NO_REASON = [None, "", "null"]


@pytest.mark.parametrize("reason", NO_REASON)
def test_a_server_need_not_say_why_an_answer_ended(reason: Any) -> None:
    for name in ("openai", "http"):
        assert exchange(name, chat({"content": "hi"}, reason)).choices == (Choice("hi"),)


STOPPED = {"content_filter_results": {"hate": {"filtered": True}}}
WITHHELD = [
    ("openai", chat({"content": "No.", "refusal": "No."})),
    ("openai", chat({"content": [{"type": "refusal", "refusal": "No."}]})),
    ("openai", chat({"content": ""}, "content_filter: PROHIBITED_CONTENT")),
    ("openai", chat({"content": ""}, "guardrail_intervened")),
    ("openai", chat({"content": ""}, "sensitive")),
    ("openai", {**CHAT, "error": {"message": "No.", "code": "content_filter"}}),
    ("responses", response(said([{"type": "refusal", "refusal": "No."}]), status="completed")),
    ("responses", response(status="failed", error={"code": "bio_policy", "message": "No."})),
    ("responses", response(status="incomplete", incomplete_details={"reason": "content_filter"})),
    ("anthropic", messages([], "refusal")),
    ("openai", {**CHAT, "prompt_filter_results": [{"prompt_index": 0, **STOPPED}]}),
    *[
        ("openai", {"choices": [{**CHAT["choices"][0], "finish_reason": reason, "native_finish_reason": native}]})
        for reason, native in (("stop", "SAFETY"), ("length", "SAFETY"), ("tool_calls", "refusal"))
    ],
    ("openai", {**CHAT, "prompt_annotations": [{"prompt_index": 0, **STOPPED}]}),
    ("openai", {"choices": [{**CHAT["choices"][0], "content_filter_results": {"blocklists": [{"filtered": True}]}}]}),
    ("openai", {**CHAT, "output_sensitive": True, "base_resp": {"status_code": 0}}),
    ("openai", {**CHAT, "output_sensitive": True, "base_resp": {"status_code": 1027, "status_msg": "sensitive"}}),
    ("responses", {**WIRES["responses"].body, "content_filters": [{"blocked": True, "source_type": "completion"}]}),
    ("responses", {**WIRES["responses"].body, "content_filters": [STOPPED]}),
    ("google", {**WIRES["google"].body, "promptFeedback": {"blockReason": "SAFETY"}}),
    ("google", {"candidates": [{**WIRES["google"].body["candidates"][0], "safetyRatings": [{"blocked": True}]}]}),
    *[
        ("google", gemini(content, reason))
        for content in (None, {"parts": [PART]})
        for reason in (
            "SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR", "ESCALATION",
            "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION",
        )
    ],
    *[
        ("google", {"promptFeedback": {"blockReason": reason}})
        for reason in ("SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "IMAGE_SAFETY", "MODEL_ARMOR", "JAILBREAK")
    ],
]  # fmt: skip


@pytest.mark.parametrize(("name", "body"), WITHHELD)
def test_what_a_model_refuses_or_a_filter_stops_is_a_refusal_to_every_assertion(name: str, body: Any) -> None:
    seen = Subject(case(), "x", "p", response=exchange(name, body))
    assert judged("guardrails", "x", seen=seen).status is Status.FAILED
    assert judged("is-refusal", "x", seen=seen).status is Status.PASSED
    for word in ("content_filter", "refusal"):
        assert judged("finish-reason", "x", seen=seen, value=word).status is Status.PASSED
    assert judged("finish-reason", "x", seen=seen, value="stop").status is Status.FAILED


@pytest.mark.parametrize(("name", "body"), WITHHELD)
def test_what_a_filter_or_the_model_withholds_is_no_reply_of_a_judge(name: str, body: Any) -> None:
    with pytest.raises(ProviderError):
        align(exchange(name, body, role=Role.JUDGE), ask(role=Role.JUDGE), name)


LATE = [
    ("openai", chat({"content": "so"}, "model_length")),
    ("openai", chat({"content": "so"}, "model_context_window_exceeded")),
    ("openai", chat({"content": "so"}, "max_tokens")),
    ("openai", chat({"content": "so"}, "maxPredictedTokensReached")),
    (
        "openai",
        {
            "choices": [
                {"message": {"content": "so"}, "finish_reason": "stop", "native_finish_reason": "MAX_TOKENS"}
            ]
        },
    ),
    ("anthropic", messages([{"type": "text", "text": "so"}], "model_context_window_exceeded")),
    ("google", gemini({"parts": [{"text": "so"}]}, "MAX_TOKENS")),
]


@pytest.mark.parametrize(("name", "body"), LATE)
def test_an_answer_that_was_cut_off_says_so_in_one_word(name: str, body: Any) -> None:
    assert exchange(name, body).choices == (Choice("so", "length"),)


def wire_call(name: str = "f", arguments: str = '{"x": 1}', kind: str = "function", **more: str) -> Any:
    return {**more, "type": kind, "function": {"name": name, "arguments": arguments}}


TEXT = {"type": "text", "text": "Let me look."}
SPOKEN = said([{"type": "output_text", "text": "Let me look."}])
CALLED = [
    (
        "openai",
        chat({"content": "Let me look.", "tool_calls": [wire_call(id="c1")]}, "tool_calls"),
        [wire_call(id="c1")],
    ),
    (
        "http",
        chat({"content": "Let me look.", "tool_calls": [wire_call(id="c1")]}, "tool_calls"),
        [wire_call(id="c1")],
    ),
    (
        "openai",
        chat({"content": "Let me look.", "function_call": {"name": "f", "arguments": {"x": 1}}}, "function_call"),
        [wire_call()],
    ),
    (
        "openai",
        chat(
            {
                "content": "Let me look.",
                "tool_calls": [{"id": "c1", "type": "custom", "custom": {"name": "f", "input": "x y"}}],
            }
        ),
        [wire_call(arguments="x y", kind="custom", id="c1")],
    ),
    (
        "anthropic",
        messages([TEXT, {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": 1}}], "tool_use"),
        [wire_call(id="c1")],
    ),
    (
        "anthropic",
        messages([{"type": "mcp_tool_use", "id": "c1", "name": "f", "input": {"x": 1}}, TEXT]),
        [wire_call(kind="mcp_tool_use", id="c1")],
    ),
    (
        "google",
        gemini({"parts": [{"text": "Let me look."}, {"functionCall": {"name": "f", "args": {"x": 1}}}]}),
        [wire_call()],
    ),
    (
        "google",
        gemini({"parts": [{"toolCall": {"toolType": "GOOGLE_SEARCH", "args": {"x": 1}}}, {"text": "Let me look."}]}),
        [wire_call("google_search", kind="toolCall")],
    ),
    (
        "google",
        gemini({"parts": [{"executableCode": {"x": 1}}, {"codeExecutionResult": {}}, {"text": "Let me look."}]}),
        [wire_call("code_execution", kind="executableCode")],
    ),
    (
        "responses",
        response(SPOKEN, {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'}),
        [wire_call(id="c1")],
    ),
    (
        "responses",
        response({"type": "mcp_call", "id": "c1", "name": "f", "arguments": '{"x": 1}', "output": "1"}, SPOKEN),
        [wire_call(kind="mcp_call", id="c1")],
    ),
    (
        "responses",
        response({"type": "web_search_call", "id": "c1", "action": {"x": 1}}, SPOKEN),
        [wire_call("web_search", kind="web_search_call", id="c1")],
    ),
]  # fmt: skip


CALLED += [
    ("openai", chat({"content": "Let me look.", "tool_calls": given}), [wire_call(id="c1")])
    for given in (wire_call(id="c1"), [wire_call(kind="function_call", id="c1")])
]


@pytest.mark.parametrize(("name", "body", "calls"), CALLED)
def test_text_and_tool_calls_are_both_kept_in_one_form_for_all_apis(name: str, body: Any, calls: Any) -> None:
    choice = exchange(name, body).choices[0]
    assert (choice.text, list(choice.tool_calls)) == ("Let me look.", calls)


def test_what_a_model_says_on_its_way_to_the_answer_is_no_part_of_it() -> None:
    on_the_way = {**said([{"type": "output_text", "text": "I look."}]), "phase": "commentary"}
    final = {**said([{"type": "output_text", "text": "42"}]), "phase": "final_answer"}
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    assert exchange("responses", response(on_the_way, final)).text == "42"
    assert exchange("responses", response(on_the_way, call)).text == "I look."


PLAIN = [
    (
        "openai",
        chat({"content": [{"type": "reasoning_content", "text": "hm"}, {"type": "text", "text": "42"}]}),
    ),
    (
        "openai",
        chat({"content": [{"type": "text", "text": "hm", "thought": True}, {"type": "text", "text": "42"}]}),
    ),
    ("openai", chat({"content": [{"type": "reference", "reference_ids": [1]}, {"text": "42"}]})),
    ("openai", chat({"content": "", "audio": {"data": "aGk=", "transcript": "42"}})),
    ("openai", chat({"content": None, "audio": {"data": "aGk=", "transcript": "42"}})),
    ("openai", {**chat({"content": "42"}), "code": 0, "message": "Success", "success": True, "errors": []}),
    ("anthropic", messages([{"type": "thinking_text", "text": "hm"}, {"type": "text", "text": "42"}])),
    (
        "responses",
        response(
            {**said([{"type": "input_text", "text": "?"}]), "role": "user"},
            said([{"type": "text", "text": "42"}]),
        ),
    ),
    (
        "responses",
        response(said([{"type": "summary_text", "text": "hm"}, {"type": "output_text", "text": "42"}])),
    ),
    *[
        ("google", {**gemini({"parts": [{"text": "42"}]}), "promptFeedback": {"blockReason": reason}})
        for reason in ("BLOCK_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED")
    ],
    ("google", gemini({"role": "model", "parts": [{"text": "hm", "thought": "true"}, {"text": "42"}]})),
]


@pytest.mark.parametrize(("name", "body"), PLAIN)
def test_an_answer_is_what_the_model_says_and_nothing_else(name: str, body: Any) -> None:
    assert exchange(name, body).choices == (Choice("42", "stop"),)


def test_what_tools_gave_back_counts_as_input_of_gemini() -> None:
    body = copy.deepcopy(dict(WIRES["google"].body))
    body["usageMetadata"]["toolUsePromptTokenCount"] = 5
    assert exchange("google", body).usage.input_tokens == 12
    assert (
        exchange("google", with_value(body, "usageMetadata.toolUsePromptTokenCount", "-5")).usage.input_tokens
        == 0
    )


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(("name", "body"), ABSENT)
def test_an_answer_that_is_absent_is_an_error_for_models_and_judges(name: str, body: Any, role: Role) -> None:
    with pytest.raises(ProviderResponseError) as caught:
        exchange(name, body, role=role)
    assert caught.value.is_retryable


def test_an_absent_answer_says_what_it_cost_all_the_same() -> None:
    for name, body in [("openai", chat({"content": None})), ("anthropic", messages([]))]:
        with pytest.raises(ProviderResponseError) as caught:
            exchange(name, body)
        assert caught.value.cost_usd == pytest.approx(10 / 1_000_000)


EMPTY = [
    ("openai", chat({"content": ""}), "stop"),
    ("openai", chat({"content": None}, "length"), "length"),
    ("openai", chat({"content": None}, "content_filter"), "content_filter"),
    ("http", chat({"content": ""}), "stop"),
    ("responses", response(said([{"type": "output_text", "text": ""}])), "stop"),
    (
        "responses",
        response(said([]), incomplete_details={"reason": "max_output_tokens"}, status="incomplete"),
        "length",
    ),
    ("anthropic", messages([{"type": "text", "text": ""}]), "stop"),
    ("anthropic", messages([], "max_tokens"), "length"),
    ("anthropic", messages([], "refusal"), "content_filter"),
    ("google", gemini({"parts": [{"text": ""}]}), "stop"),
    ("google", gemini({"parts": []}, "MAX_TOKENS"), "length"),
    ("google", gemini(None, "SAFETY"), "content_filter"),
]


@pytest.mark.parametrize(("name", "body", "reason"), EMPTY)
def test_an_empty_answer_and_one_that_was_cut_off_are_answers(
    name: str, body: Any, reason: str | None
) -> None:
    choice = exchange(name, body).choices[0]
    assert (choice.text, choice.finish_reason) == ("", reason)


SAID = [
    ("openai", chat({"content": None, "tool_calls": [CALL]}, "tool_calls"), "tool_calls"),
    ("openai", chat({"content": None, "function_call": {"name": "f"}}, "function_call"), "tool_calls"),
    *[
        (
            "openai",
            chat({"content": None, "tool_calls": [{"function": {"name": "f", "arguments": given}}]}),
            "stop",
        )
        for given in ("", None, {}, [], {"a": 1}, '{"a": 1}')
    ],
    (
        "openai",
        chat({"content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"a":'}}]}, "length"),
        "length",
    ),
    ("openai", chat({"content": None, "refusal": "No."}), "refusal"),
    ("responses", response(said([{"type": "refusal", "refusal": "No."}])), "refusal"),
    ("anthropic", messages([{"type": "tool_use", "name": "f"}], "tool_use"), "tool_calls"),
    ("google", gemini({"parts": [{"functionCall": {"name": "f"}}]}), "tool_calls"),
]


@pytest.mark.parametrize(("name", "body", "reason"), SAID)
def test_calls_of_tools_and_refusals_are_answers_without_content(name: str, body: Any, reason: str) -> None:
    choice = exchange(name, body).choices[0]
    assert choice.text
    assert choice.finish_reason == reason


@pytest.mark.parametrize(
    ("path", "body"),
    [("", b"null"), ("a.b", {"a": {"b": None}}), ("", {"id": 1, "answer": None})],
)
def test_an_api_that_answers_null_has_not_answered(path: str, body: Any) -> None:
    with LoopbackServer(Reply(body=body)) as server:
        config = {"body": {"q": "{{ prompt }}"}, **({"response_path": path} if path else {})}
        with pytest.raises(ProviderError, match="an answer that is null"):
            run(answer(provider(f"{server.url}/answer", config)))


DEEP = [
    "[" * 5_000,
    "[" * 5_000 + "]" * 5_000,
    '{"error":' * 5_000,
    '{"error": {"message": "x", "metadata": {"raw": ' + "[" * 5_000 + "]" * 5_000 + "}}}",
    '{"error": {"message": "x", "code": ' + "9" * 400 + "}}",
]


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("written", DEEP, ids=range(len(DEEP)))
@pytest.mark.parametrize("name", WIRES)
def test_json_that_is_too_deep_or_has_endless_numbers_is_an_error_of_the_server(
    name: str, written: str, status: int
) -> None:
    with pytest.raises(ProviderError):
        exchange(name, written, status=status)


_DRAWN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("google:m", gemini({"parts": [{"inlineData": {"mimeType": "image/png", "data": "AA"}}]}, "STOP")),
        ("openai:responses:m", response({"type": "image_generation_call", "result": "AA"})),
        ("openai:m", chat({"content": "", "images": [_DRAWN]}, "stop")),
        ("openai:m", chat({"content": [_DRAWN]}, "stop")),
    ],
)
def test_a_picture_in_the_place_of_a_text_is_not_bought_again(name: str, body: Any) -> None:
    with LoopbackServer(Reply(body=body)) as server:
        model = provider(name, {"base_url": server.base_url, "apiKey": "k-0123456789"})
        with pytest.raises(ProviderResponseError) as error:
            run(answer(model))
    assert not error.value.is_retryable
    assert "judges texts" in error.value.hint


@pytest.mark.parametrize("reason", ["pause_turn", "compaction"])
@pytest.mark.parametrize("name", ["anthropic", "openai"])
def test_a_turn_that_pauses_is_not_bought_again(name: str, reason: str) -> None:
    body = messages([{"type": "text", "text": "so far"}], reason)
    native = {"choices": [{**CHAT["choices"][0], "native_finish_reason": reason}]}
    with pytest.raises(ProviderResponseError) as error:
        exchange(name, body if name == "anthropic" else native)
    assert not error.value.is_retryable
    assert "server tools" in error.value.hint


RICH: dict[str, Any] = {
    "openai:m": {
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": [{"type": "text", "text": "hi"}],
                    "refusal": None,
                    "tool_calls": [
                        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                    ],
                    "audio": {"transcript": "hi"},
                },
                "finish_reason": "stop",
                "native_finish_reason": "STOP",
                "logprobs": {"content": [{"token": "hi", "logprob": -0.1, "top_logprobs": []}]},
                "content_filter_results": {"hate": {"filtered": False}},
            }
        ],
        "prompt_filter_results": [{"content_filter_results": {"hate": {"filtered": False}}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}},
        "base_resp": {"status_code": 0},
    },
    "openai:responses:m": {
        "status": "completed",
        "incomplete_details": {"reason": None},
        "content_filters": [{"blocked": False, "content_filter_results": {}}],
        "output": [
            {"type": "message", "status": "completed", "content": [{"type": "output_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"},
            {"type": "web_search_call", "action": {"type": "search"}},
        ],
        "usage": {"input_tokens": 7, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 1}},
    },
    "anthropic:m": {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "hi"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 7, "output_tokens": 3, "server_tool_use": {"web_search_requests": 1}},
    },
    "google:m": {
        "candidates": [
            {
                "content": {"parts": [{"text": "hi"}, {"functionCall": {"name": "f", "args": {}}}]},
                "finishReason": "STOP",
                "index": 0,
                "safetyRatings": [{"blocked": False}],
                "groundingMetadata": {"webSearchQueries": ["q"]},
                "logprobsResult": {
                    "chosenCandidates": [{"token": "hi"}],
                    "topCandidates": [{"candidates": []}],
                },
            }
        ],
        "promptFeedback": {"blockReason": "OTHER"},
        "usageMetadata": {
            "promptTokenCount": 7,
            "candidatesTokenCount": 3,
            "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 1}],
        },
    },
    "bedrock:converse:m": {
        "output": {
            "message": {
                "role": "assistant",
                "content": [
                    {"citationsContent": {"content": [{"text": "hi"}]}},
                    {"toolUse": {"toolUseId": "t", "name": "f", "input": {}}},
                ],
            }
        },
        "stopReason": "tool_use",
        "usage": {"inputTokens": 7, "outputTokens": 3, "cacheDetails": [{"ttl": "1h", "inputTokens": 1}]},
        "serviceTier": {"type": "flex"},
    },
    "openai:moderation": {
        "results": [{"flagged": True, "categories": {"a": True}, "category_scores": {"a": 0.5}}]
    },
    "cohere:embed-v4.0": {"embeddings": {"float": [[0.1]]}, "meta": {"billed_units": {"input_tokens": 1}}},
}
"""Replies with about all parts that are read."""


def _with_each_part(value: Any, other: Any) -> list[Any]:
    """Return `value` with each of its parts once replaced by `other`."""
    if not isinstance(value, dict | list):
        return [other]
    places = list(value) if isinstance(value, dict) else range(len(value))
    found = [other]
    for place in places:
        for part in _with_each_part(value[place], other):
            changed: Any = copy.copy(value)
            changed[place] = part
            found.append(changed)
    return found


@pytest.mark.parametrize("odd", [True, 5, "x", [], [None], {"type": "text"}, None], ids=repr)
@pytest.mark.parametrize("name", RICH)
def test_no_odd_part_of_a_reply_is_a_bug(name: str, odd: Any) -> None:
    """Whatever stands anywhere in a reply, it is an answer or an error of the provider."""
    keys = {"apiKey": "k-0123456789", "price": "list", **({"region": "x"} if "bedrock" in name else {})}
    model: Any = provider(name, keys)
    request = ask(tools=(ToolDefinition("f", "", {}),), want_logprobs=True)
    for body in _with_each_part(RICH[name], odd):
        with suppress(ProviderError):
            model.batched_response(request, 200, body)
    run(model.aclose())


@pytest.mark.parametrize("words_before", [190, 240, 290, 340])
@pytest.mark.parametrize("name", RICH)
def test_no_part_of_a_key_is_left_where_a_server_s_words_are_shortened(name: str, words_before: int) -> None:
    """A key that a reply echoes anywhere is masked as a whole, also where a long text is cut in the middle of it."""
    key = "q7ZpXk29LmTt8VbR4cYw6NsDfJh3" * 2
    keys = {"apiKey": key, "price": "list", **({"region": "x"} if "bedrock" in name else {})}
    model: Any = provider(name, keys)
    request = ask(tools=(ToolDefinition("f", "", {}),), want_logprobs=True)
    said = f"{'no ' * (words_before // 3)}{key}"
    bodies = [*_with_each_part(RICH[name], said), {"error": {"message": said}}, {"detail": said}]
    shown = []
    for body in [*bodies, *({**RICH[name], "error": {"message": said}, "code": code} for code in (1, 400))]:
        try:
            found = model.batched_response(request, 200, body)
            choices = tuple(structs.replace(choice, token_logprobs=None) for choice in found.choices)
            shown.append(repr(structs.replace(found, choices=choices)))
        except ProviderError as error:
            shown.append(f"{error} {error.hint} {error.body} {error.request_id}")
    run(model.aclose())
    assert not [text for text in shown if key[:8] in text]
