"""Text and tool calls of one answer through the whole command, and answers that the model did not end."""

import csv
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.geval_command import Finished, clean_environment, run_geval
from support.loopback import LoopbackServer, Reply

SAID = "Let me look."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
ARGUMENTS = {"city": "Zürich"}
CHAT_CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": json.dumps(ARGUMENTS, ensure_ascii=False)},
}
BODIES = {
    "openai:m": {
        "choices": [
            {"message": {"content": SAID, "tool_calls": [CHAT_CALL]}, "finish_reason": "tool_calls"},
        ]
    },
    "openai:responses:m": {
        "status": "completed",
        "output": [
            {"type": "message", "content": [{"type": "output_text", "text": SAID}]},
            {"type": "function_call", "call_id": "c1", **CHAT_CALL["function"]},
        ],
    },
    "anthropic:m": {
        "content": [
            {"type": "text", "text": SAID},
            {"type": "tool_use", "id": "c1", "name": "weather", "input": ARGUMENTS},
        ],
        "stop_reason": "tool_use",
    },
    "google:m": {
        "candidates": [
            {
                "content": {
                    "parts": [
                        {"text": SAID},
                        {"functionCall": {"id": "c1", "name": "weather", "args": ARGUMENTS}},
                    ]
                },
                "finishReason": "STOP",
            }
        ]
    },
}
ASSERTIONS = [
    {"type": "equals", "value": SAID},
    {"type": "is-valid-openai-tools-call"},
    {"type": "is-valid-function-call"},
    {"type": "tool-call-f1", "value": ["weather"]},
    {"type": "trajectory:tool-used", "value": "weather"},
    {"type": "trajectory:tool-args-match", "value": {"name": "weather", "args": ARGUMENTS}},
    {"type": "finish-reason", "value": "tool_calls"},
    {"type": "python", "value": "context['tool_calls'][0]['function']['name'] == 'weather'"},
    {"type": "javascript", "value": "context.tool_calls[0].id === 'c1'"},
]


def geval(folder: Path, *words: str) -> Finished:
    keys = {f"{name}_API_KEY": "key-0123456789" for name in ("OPENAI", "ANTHROPIC", "GOOGLE")}
    return run_geval(*words, cwd=folder, env=clean_environment(**keys))


def write(
    folder: Path, servers: Mapping[str, LoopbackServer], assertions: Sequence[Mapping[str, Any]]
) -> None:
    """Write a config that calls models at these servers."""
    providers = []
    for model, server in servers.items():
        base_url = server.url if model.startswith(("anthropic", "google")) else server.base_url
        config = {"base_url": base_url, "tools": TOOLS, "max_retries": 0}
        providers.append({"id": model, "config": config})
    suite = {
        "prompts": ["Weather in {{ city }}?"],
        "providers": providers,
        "tests": [{"vars": {"city": "Zürich"}, "assert": assertions}],
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(suite, allow_unicode=True), encoding="utf-8")


def test_an_answer_of_text_and_tool_calls_is_judged_by_both_and_shown_with_both(tmp_path: Path) -> None:
    with ExitStack() as stack:
        servers = {
            model: stack.enter_context(LoopbackServer(respond=lambda *_, body=body: Reply(body=body)))
            for model, body in BODIES.items()
        }
        write(tmp_path, servers, ASSERTIONS)
        for _ in range(2):  # the second time from the cache
            done = geval(tmp_path, "run", "c.yaml", "-o", "r.json", "-o", "r.csv", "-o", "r.md")
            assert done.code == 0, done.stdout + done.stderr
            results = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["results"]
            found = {result["provider"]["id"]: (result["output"], result["tool_calls"]) for result in results}
            assert found == dict.fromkeys(BODIES, (SAID, [CHAT_CALL]))
        assert all(result["cached"] for result in results)
        assert [len(server.requests) for server in servers.values()] == [1] * len(BODIES)
        rows = [*csv.DictReader((tmp_path / "r.csv").read_text(encoding="utf-8-sig").splitlines())]
        assert len(rows) == len(BODIES)
        for row in rows:
            assert (row["output"], json.loads(row["tool_calls"])) == (SAID, [CHAT_CALL])
        shown = geval(tmp_path, "show", "latest", "--case", "1", "-v").stdout
        assert SAID in shown
        assert shown.count('calls weather {"city": "Zürich"}') == len(BODIES)
        again = geval(tmp_path, "judge", "latest", "-o", "again.json")
        assert again.code == 0, again.stdout + again.stderr
        results = json.loads((tmp_path / "again.json").read_text(encoding="utf-8"))["results"]
        assert [result["tool_calls"] for result in results] == [[CHAT_CALL]] * len(BODIES)


DECLARED = {
    "openai:m": TOOLS,
    "openai:responses:m": [{"type": "function", **TOOLS[0]["function"]}],
    "anthropic:m": [{"name": "weather", "input_schema": TOOLS[0]["function"]["parameters"]}],
    "google:m": [
        {
            "functionDeclarations": [
                {
                    "name": "weather",
                    "parameters": {
                        "type": "OBJECT",
                        "properties": {"city": {"type": "STRING"}},
                        "required": ["city"],
                    },
                }
            ]
        }
    ],
}


@pytest.mark.parametrize("city", ["Zürich", 5])
@pytest.mark.parametrize("model", BODIES)
def test_calls_alone_are_checked_against_the_tools_as_their_api_declares_them(
    model: str, city: Any, tmp_path: Path
) -> None:
    body = json.loads(json.dumps(BODIES[model]))
    if model == "openai:m":
        message = body["choices"][0]["message"]
        message["content"] = None
        message["tool_calls"][0]["function"]["arguments"] = {"city": city}  # data, as Mistral may send it
    elif model == "openai:responses:m":
        body["output"] = [{**body["output"][1], "arguments": json.dumps({"city": city})}]
    elif model == "anthropic:m":
        body["content"] = [{**body["content"][1], "input": {"city": city}}]
    else:
        call = {"functionCall": {"name": "weather", "args": {"city": city}}}
        body["candidates"][0]["content"]["parts"] = [call]
    with LoopbackServer(respond=lambda *_: Reply(body=body)) as server:
        write(tmp_path, {model: server}, [{"type": "is-valid-openai-tools-call"}])
        suite = yaml.safe_load((tmp_path / "c.yaml").read_text(encoding="utf-8"))
        suite["providers"][0]["config"]["tools"] = DECLARED[model]
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(suite, allow_unicode=True), encoding="utf-8")
        done = geval(tmp_path, "run", "c.yaml", "-o", "r.json")
    [result] = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["results"]
    reason = result["assertions"][0]["reason"]
    assert reason.startswith(
        "valid call of weather"
        if city == "Zürich"
        else "the arguments of `weather` do not match its parameters"
    )
    assert done.code == (0 if city == "Zürich" else 1)


def test_a_call_that_does_not_fit_fails_although_the_text_is_right(tmp_path: Path) -> None:
    body = json.loads(json.dumps(BODIES["openai:m"]))
    body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = '{"town": 1}'
    with LoopbackServer(respond=lambda *_: Reply(body=body)) as server:
        write(tmp_path, {"openai:m": server}, [{"type": "is-valid-openai-tools-call"}])
        done = geval(tmp_path, "run", "c.yaml", "-o", "r.json")
        assert done.code == 1
        [result] = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["results"]
        assert "the arguments of `weather` do not match its parameters" in result["assertions"][0]["reason"]


def test_an_answer_that_broke_off_is_an_error_and_not_kept(tmp_path: Path) -> None:
    broken = {"choices": [{"message": {"content": "It is"}, "finish_reason": "insufficient_system_resource"}]}
    with LoopbackServer(respond=lambda *_: Reply(body=broken)) as server:
        write(tmp_path, {"openai:m": server}, [{"type": "not-contains", "value": "sunny"}])
        for asked in (1, 2):
            done = geval(tmp_path, "run", "c.yaml", "-o", "r.json")
            assert done.code == 3, done.stdout
            assert len(server.requests) == asked
        [result] = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["results"]
        assert "insufficient_system_resource" in result["error"]["message"]
