import json

import pytest
from support.specs import case
from support.verdicts import judged

from geval_cli.assertions.outcome import Subject
from geval_cli.config.schema import ProviderSpec
from geval_cli.errors import UnjudgeableError
from geval_cli.records import JsonValue, Status

WEATHER = {
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
BARE = {"name": "now"}
TOOLS = {"tools": [{"type": "function", "function": WEATHER}, {"type": "function", "function": BARE}]}
FUNCTIONS = {"functions": [WEATHER]}


def call(name: str, arguments: JsonValue) -> dict[str, JsonValue]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"name": name, "arguments": text}


def tool(name: str, arguments: JsonValue) -> dict[str, JsonValue]:
    return {"id": "1", "type": "function", "function": call(name, arguments)}


FLAT_TOOLS = {"tools": [{"type": "function", **WEATHER}]}


def response_call(arguments: JsonValue) -> str:
    """A call as the Responses API has it, and as its output is written."""
    written = call("get_weather", arguments)
    return json.dumps({"type": "function_call", "call_id": "c", "status": "completed", **written})


ZURICH = call("get_weather", {"city": "Zürich"})


def seen(output: JsonValue, config: dict[str, JsonValue]) -> Subject:
    return Subject(case(), output, "p", provider=ProviderSpec(id="openai:x", config=config))


@pytest.mark.parametrize(
    ("kind", "config", "output", "status"),
    [
        ("is-valid-openai-tools-call", TOOLS, [tool("get_weather", {"city": "Zürich"})], Status.PASSED),
        ("is-valid-openai-tools-call", TOOLS, json.dumps([tool("now", {})]), Status.PASSED),
        ("is-valid-openai-tools-call", TOOLS, {"tool_calls": [tool("now", {})]}, Status.PASSED),
        ("is-valid-openai-tools-call", TOOLS, [tool("now", {}), tool("get_weather", {})], Status.FAILED),
        ("is-valid-openai-tools-call", TOOLS, [tool("get_weather", {"city": 1})], Status.FAILED),
        ("is-valid-openai-tools-call", TOOLS, [tool("get_weather", "{broken")], Status.FAILED),
        ("is-valid-openai-tools-call", TOOLS, [tool("other", {})], Status.FAILED),
        ("is-valid-openai-tools-call", TOOLS, [], Status.FAILED),
        ("is-valid-openai-tools-call", TOOLS, "It is sunny.", Status.FAILED),
        ("is-valid-openai-tools-call", TOOLS, "", Status.FAILED),
        ("is-valid-openai-tools-call", TOOLS, [{"function": {"name": 1}}], Status.FAILED),
        ("is-valid-openai-tools-call", TOOLS, ["x"], Status.FAILED),
        ("is-valid-openai-tools-call", FLAT_TOOLS, response_call({"city": "Bern"}), Status.PASSED),
        (
            "is-valid-openai-tools-call",
            FLAT_TOOLS,
            f"{response_call({'city': 'Bern'})}\n{response_call({'city': 'Basel'})}",
            Status.PASSED,
        ),
        (
            "is-valid-openai-tools-call",
            FLAT_TOOLS,
            f"{response_call({'city': 'Bern'})}\n{response_call({'city': 3})}",
            Status.FAILED,
        ),
        ("is-valid-openai-tools-call", FLAT_TOOLS, f"So:\n{response_call({'city': 'Bern'})}", Status.FAILED),
        ("is-valid-function-call", FLAT_TOOLS, response_call({"city": "Bern"}), Status.PASSED),
        ("is-valid-openai-tools-call", TOOLS, None, Status.FAILED),
        ("not-is-valid-openai-tools-call", TOOLS, "It is sunny.", Status.PASSED),
        ("is-valid-openai-function-call", FUNCTIONS, call("get_weather", {"city": "x"}), Status.PASSED),
        (
            "is-valid-openai-function-call",
            FUNCTIONS,
            {"function_call": call("get_weather", {"city": "x"})},
            Status.PASSED,
        ),
        ("is-valid-openai-function-call", FUNCTIONS, call("get_weather", {}), Status.FAILED),
        ("is-valid-function-call", FUNCTIONS, json.dumps(call("get_weather", {"city": "x"})), Status.PASSED),
        ("is-valid-function-call", TOOLS, [tool("now", {})], Status.PASSED),
    ],
)
def test_verdicts(kind: str, config: dict[str, JsonValue], output: JsonValue, status: Status) -> None:
    result = judged(kind, output, seen=seen(output, config))
    assert result.status is status, result.reason


def test_the_reason_says_what_does_not_fit() -> None:
    output = [tool("get_weather", {"town": "x"})]
    reason = judged("is-valid-openai-tools-call", output, seen=seen(output, TOOLS)).reason or ""
    assert reason.startswith("the arguments of `get_weather` do not fit: $: ")


@pytest.mark.parametrize("config", [{}, {"tools": "file://tools.json"}, FUNCTIONS])
def test_a_provider_without_tools_cannot_be_checked_against(config: dict[str, JsonValue]) -> None:
    with pytest.raises(UnjudgeableError, match="names no functions") as caught:
        judged("is-valid-openai-tools-call", "x", seen=seen([tool("now", {})], config))
    assert "`tools`" in caught.value.hint


def test_a_broken_schema_of_a_function_is_an_error_and_no_verdict() -> None:
    config = {"functions": [{"name": "f", "parameters": {"type": "no-type"}}]}
    with pytest.raises(UnjudgeableError, match="broken JSON Schema"):
        judged("is-valid-function-call", "x", seen=seen(call("f", {}), config))
