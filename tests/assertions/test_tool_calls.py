import asyncio
import json

import pytest
from msgspec.structs import replace
from support.specs import assertion, case, subject, tools
from support.verdicts import judged, problems

from geval_cli.assertions.base import Subject
from geval_cli.assertions.registry import judge_assertion
from geval_cli.errors import UnjudgeableError
from geval_cli.extras.promptfoo.nunjucks import NunjucksTemplates
from geval_cli.providers.wire.chat import read_tool_call
from geval_cli.records import Choice, JsonValue, ModelResponse, Status, Usage
from geval_cli.specs.base import ProviderSpec
from geval_cli.specs.dialect import PROMPTFOO_RULES
from geval_cli.templating import Templates

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
            f"{response_call({'city': 'Bern'})}\n{response_call({'city': 'Basel'})}\n".replace(
                "Be", "B\u2028"
            ),
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


@pytest.mark.parametrize("text", ["SELECT 1", "", "{broken", '{"city": 1}'])
@pytest.mark.parametrize(
    "declared",
    [
        {"type": "custom", "custom": {"name": "run_sql", "description": "Runs SQL."}},
        {"type": "custom", "name": "run_sql", "format": {"type": "text"}},
    ],
    ids=["chat", "responses"],
)
def test_a_custom_tool_takes_any_text(declared: JsonValue, text: str) -> None:
    config = {"tools": [declared, *TOOLS["tools"]]}
    for name, valid in (("run_sql", True), ("drop_all", False), ("get_weather", False)):
        call = read_tool_call({"type": "custom", "id": "c", "custom": {"name": name, "input": text}})
        assert call is not None
        response = ModelResponse((Choice("", tool_calls=(call,)),), Usage())
        found = replace(seen("", config), response=response)
        status = judged("is-valid-openai-tools-call", "", seen=found).status
        assert status is (Status.PASSED if valid else Status.FAILED), name


def test_the_reason_says_what_does_not_fit() -> None:
    output = [tool("get_weather", {"town": "x"})]
    reason = judged("is-valid-openai-tools-call", output, seen=seen(output, TOOLS)).reason or ""
    assert reason.startswith("the arguments of `get_weather` do not match its parameters: $: ")


@pytest.mark.parametrize("config", [{}, {"tools": "file://tools.json"}, FUNCTIONS])
def test_a_provider_without_tools_cannot_be_checked_against(config: dict[str, JsonValue]) -> None:
    with pytest.raises(UnjudgeableError, match="has no functions") as caught:
        judged("is-valid-openai-tools-call", "x", seen=seen([tool("now", {})], config))
    assert "`tools`" in caught.value.hint


def test_a_broken_schema_of_a_function_is_an_error_and_no_verdict() -> None:
    config = {"functions": [{"name": "f", "parameters": {"type": "no-type"}}]}
    with pytest.raises(UnjudgeableError, match="broken JSON Schema"):
        judged("is-valid-function-call", "x", seen=seen(call("f", {}), config))


ANTHROPIC = {"type": "tool_use", "id": "1", "name": "get_weather", "input": {}}
GOOGLE = {"functionCall": {"name": "get_weather", "args": {}}}


@pytest.mark.parametrize(
    "output",
    [
        {"tool_calls": [tool("get_weather", {})]},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "get_weather"}]},
        [tool("get_weather", {})],
        [tool("get_weather", {}), tool("get_weather", {"city": "x"})],
        [{"name": "get_weather"}],
        ANTHROPIC,
        [{"type": "text", "text": "I look."}, ANTHROPIC],
        GOOGLE,
        [{"text": "I look."}, GOOGLE],
        {"toolCall": {"functionCalls": [{"name": "get_weather", "args": {}}]}},
        {"function_call": call("get_weather", {})},
        call("get_weather", {}),
        {"name": "get_weather", "args": {"city": "x"}},
        {"type": "function_call", **call("get_weather", {})},
    ],
)
def test_calls_are_found_however_a_vendor_writes_them(output: JsonValue) -> None:
    for written in (
        output,
        json.dumps(output),
        json.dumps(output, indent=2),
        f"I look.\n\n{json.dumps(output)}\n",
        f"  {json.dumps(output, indent=2)}  \nDone: {{]\n[broken",
    ):
        result = judged("tool-call-f1", written, value="get_weather")
        assert (result.status, result.score) == (Status.PASSED, 1.0), result.reason


@pytest.mark.parametrize(
    ("value", "called", "keys", "score", "status"),
    [
        (["a", "b"], ["b", "a", "b"], {}, 1.0, Status.PASSED),
        ("a, b", ["b", "a"], {}, 1.0, Status.PASSED),
        ("{{ x }}, b", ["b", "a"], {}, 1.0, Status.PASSED),
        (["a", "a", " b "], ["a", "b"], {}, 1.0, Status.PASSED),
        (["a", "b"], ["a"], {}, 2 / 3, Status.FAILED),
        (["a", "b"], ["a"], {"threshold": 0.6}, 2 / 3, Status.PASSED),
        (["a"], ["a", "b", "c"], {"threshold": 0.5}, 0.5, Status.PASSED),
        (["a"], ["b"], {}, 0.0, Status.FAILED),
        (["a"], [], {}, 0.0, Status.FAILED),
        (["a"], ["A"], {}, 0.0, Status.FAILED),
    ],
)
def test_the_f1_of_the_called_tools(
    value: JsonValue, called: list[str], keys: dict[str, float], score: float, status: Status
) -> None:
    output = [tool(name, {}) for name in called]
    result = judged("tool-call-f1", output, vars={"x": "a"}, value=value, **keys)
    assert (result.status, result.score) == (status, pytest.approx(score))
    opposite = judged("not-tool-call-f1", output, vars={"x": "a"}, value=value, **keys)
    assert opposite.status is not status
    assert result.detail.keys() == {"precision", "recall"}


@pytest.mark.parametrize(
    "output",
    [
        "It is sunny in get_weather.",
        "",
        None,
        7,
        ["get_weather"],
        {"name": "get_weather"},
        {"tool_calls": ["get_weather", {"function": "get_weather"}, {"name": 1}]},
        '```json\n{"type": "tool_use", "name": "get_weather"}\n```',
        '~~~\n[{"name": "get_weather"}]\n~~~\nso',
        'I call {"type": "tool_use", "name": "get_weather"}',
        '{"type": "tool_use", "name": "get_weather"} is what I call',
    ],
)
def test_what_calls_nothing_has_0(output: JsonValue) -> None:
    result = judged("tool-call-f1", output, value="get_weather", threshold=0.1)
    assert (result.status, result.score) == (Status.FAILED, 0.0)
    assert result.reason is not None
    assert "Called: nothing" in result.reason


def test_an_output_of_broken_json_is_no_verdict_and_takes_no_time() -> None:
    with pytest.raises(UnjudgeableError, match="too much broken JSON"):
        judged("tool-call-f1", "[\n" * 5000, value="a")


def test_tools_must_be_expected() -> None:
    assert "has no expected tools" in problems("tool-call-f1", value=" , ")[0].message
    assert "has no expected tools" in problems("tool-call-f1", value=[])[0].message
    assert "broken template" in problems("tool-call-f1", value=["{{ a"])[0].message
    assert problems("tool-call-f1", value="{{ a }}", vars={"a": "now"}) == []


def test_by_promptfoo_s_rules_not_tool_call_f1_keeps_the_score() -> None:
    wanted, output = assertion("not-tool-call-f1", value="a, b"), [tool("a", {})]
    own, other = (
        asyncio.run(judge_assertion(wanted, subject(output), replace(tools(), templates=templates)))
        for templates in (Templates(), NunjucksTemplates(PROMPTFOO_RULES))
    )
    assert (own.status, own.score) == (Status.PASSED, pytest.approx(1 / 3))
    assert (other.status, other.score) == (Status.PASSED, pytest.approx(2 / 3))
