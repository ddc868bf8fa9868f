"""Tools that a model calls, through the whole command: on every API, in conversations, from every source of answers."""

import contextlib
import json
import os
import re
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.geval_command import Finished, clean_environment, run_geval, start_geval
from support.loopback import LoopbackServer, Reply

KEYS = {f"{name}_API_KEY": "key-0123456789" for name in ("OPENAI", "ANTHROPIC", "GOOGLE")}
SHOP = '''
from typing import Annotated, Literal
from pydantic import Field

ORDERS = {7: "sent", 8: "packed"}

def find_order(order: int) -> dict:
    """Find an order by its number."""
    if order not in ORDERS:
        raise LookupError(f"there is no order {order}")
    return {"order": order, "state": ORDERS[order]}

async def cancel_order(order: Annotated[int, Field(ge=1)], why: Literal["late", "wrong"] = "late", context=None) -> str:
    """Cancel an order."""
    ORDERS[order] = "cancelled"
    return f"cancelled for {context['vars']['name']}"

def _helper(): ...
'''
FIND = {
    "name": "find_order",
    "description": "Find an order by its number.",
    "parameters": {
        "type": "object",
        "properties": {"order": {"type": "integer"}},
        "required": ["order"],
        "additionalProperties": False,
    },
}
Calls = Sequence[tuple[str, Mapping[str, Any]]]


def chat(calls: Calls, text: str) -> Any:
    made = [
        {
            "id": f"{name}-{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(args)},
        }
        for number, (name, args) in enumerate(calls)
    ]
    message = {
        "role": "assistant",
        "content": None if calls else text,
        **({"tool_calls": made} if made else {}),
    }
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return {
        "choices": [{"message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": usage,
    }


def responses(calls: Calls, text: str) -> Any:
    items: list[Any] = [
        {"type": "function_call", "call_id": f"{name}-{number}", "name": name, "arguments": json.dumps(args)}
        for number, (name, args) in enumerate(calls)
    ]
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return {
        "status": "completed",
        "output": items or [said],
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }


def anthropic(calls: Calls, text: str) -> Any:
    blocks: list[Any] = [
        {"type": "tool_use", "id": f"{name}-{number}", "name": name, "input": args}
        for number, (name, args) in enumerate(calls)
    ]
    return {
        "role": "assistant",
        "content": blocks or [{"type": "text", "text": text}],
        "stop_reason": "tool_use" if calls else "end_turn",
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }


def google(calls: Calls, text: str) -> Any:
    parts: list[Any] = [{"functionCall": {"name": name, "args": args}} for name, args in calls]
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5}
    content = {"role": "model", "parts": parts or [{"text": text}]}
    return {"candidates": [{"content": content, "finishReason": "STOP"}], "usageMetadata": usage}


WIRES: Mapping[str, tuple[Callable[[Calls, str], Any], str]] = {
    "openai:m": (chat, "messages"),
    "openai:responses:m": (responses, "input"),
    "anthropic:m": (anthropic, "messages"),
    "google:m": (google, "contents"),
}
"""How each API writes an answer, and the key of its requests that holds what was said."""


def model_with(rounds: Sequence[Calls], model: str = "openai:m", text: str = "It is done.") -> LoopbackServer:
    """A model that calls these tools, a round after another since the user spoke, then says `text`."""
    written, key = WIRES[model]

    def respond(body: Any, headers: Mapping[str, str]) -> Reply:
        said = body[key] if isinstance(body[key], list) else []
        place = max((index for index, item in enumerate(said) if is_by_user(item)), default=0)
        done = len(round_marks(said[place:]))
        return Reply(body=written(rounds[done] if done < len(rounds) else (), text))

    return LoopbackServer(respond=respond)


def is_by_user(item: Any) -> bool:
    content = item.get("content") or item.get("parts")
    is_result = isinstance(content, list) and (
        "functionResponse" in content[0] or content[0].get("type") == "tool_result"
    )
    return item.get("role") == "user" and not is_result


def round_marks(said: Sequence[Any]) -> list[Any]:
    """What tells how often tools were called: answers of the model, or where calls are items, the first of each row."""
    rows = [item.get("type") == "function_call" for item in said]
    by_items = [index for index, is_call in enumerate(rows) if is_call and not (index and rows[index - 1])]
    return by_items or [item for item in said if item.get("role") in ("assistant", "model")]


def provider_at(server: LoopbackServer, model: str) -> dict[str, Any]:
    base_url = server.url if model.startswith(("anthropic", "google")) else server.base_url
    config = {"base_url": base_url, "max_retries": 0, "price": {"input": 1, "output": 1}}
    return {"id": model, "config": config}


def write(folder: Path, server: LoopbackServer, model: str = "openai:m", **suite: Any) -> None:
    (folder / "tools.py").write_text(SHOP, encoding="utf-8")
    whole = {
        "prompts": [{"system": "You are the clerk."}],
        "providers": [provider_at(server, model)],
        "tools": "file://tools.py",
        "tests": [{"input": "Cancel order 8.", "vars": {"name": "Ann"}}],
        "defaultTest": {"assert": [{"type": "contains", "value": "done"}]},
        **suite,
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(whole, sort_keys=False), encoding="utf-8")


def geval(folder: Path, *words: str) -> Finished:
    return run_geval(*words, cwd=folder, env=clean_environment(**KEYS))


def run_of(folder: Path, *words: str, code: int = 0) -> list[Any]:
    """Run the config and return its results."""
    done = geval(folder, "run", "c.yaml", "-o", "r.json", *words)
    assert done.code == code, done.stdout + done.stderr
    results: list[Any] = json.loads((folder / "r.json").read_text(encoding="utf-8"))["results"]
    return results


def calls_of(result: Any) -> list[tuple[Any, ...]]:
    return [(step["name"], step["args"], step["output"], step["error"]) for step in result["trace"]]


ROUNDS: list[Calls] = [
    [("find_order", {"order": 8}), ("find_order", {"order": 9})],
    [("cancel_order", {"order": 8}), ("cancel_order", {"order": 0, "why": "x"})],
    [("find_order", {"order": 8}), ("open_door", {})],
]
REFUSED = (
    "the arguments are not valid: order: Input should be greater than or equal to 1; "
    "why: Input should be 'late' or 'wrong'"
)
FOUND = [
    ("find_order", {"order": 8}, {"order": 8, "state": "packed"}, None),
    ("find_order", {"order": 9}, None, "LookupError: there is no order 9"),
    ("cancel_order", {"order": 8}, "cancelled for Ann", None),
    ("cancel_order", {"order": 0, "why": "x"}, None, REFUSED),
    ("find_order", {"order": 8}, {"order": 8, "state": "cancelled"}, None),
    ("open_door", {}, None, "there is no tool `open_door`; the tools are: find_order, cancel_order"),
]


def run_on_every_api(folder: Path, rounds: Sequence[Calls], **suite: Any) -> list[tuple[str, Any, list[Any]]]:
    """For each API its name, the result there, and the requests that it got."""
    with contextlib.ExitStack() as stack:
        servers = {model: stack.enter_context(model_with(rounds, model)) for model in WIRES}
        providers = [provider_at(server, model) for model, server in servers.items()]
        write(folder, servers["openai:m"], providers=providers, **suite)
        results = run_of(folder)
    assert [result["provider"]["id"] for result in results] == [*WIRES]
    return [
        (model, result, [request.json for request in server.requests])
        for (model, server), result in zip(servers.items(), results, strict=True)
    ]


def test_functions_answer_a_model_and_their_calls_are_the_trace_on_every_api(tmp_path: Path) -> None:
    assertions = [
        {"type": "equals", "value": "It is done."},
        {"type": "trajectory:tool-sequence", "value": ["find_order", "cancel_order", "find_order"]},
        {"type": "trajectory:tool-args-match", "value": {"name": "cancel_order", "args": {"order": 8}}},
        {"type": "trajectory:step-count", "value": {"min": 6, "max": 6}},
        {"type": "trace-error-spans", "value": 3},
    ]
    tests = [{"input": "Cancel order 8.", "vars": {"name": "Ann"}, "assert": assertions}]
    for model, result, requests in run_on_every_api(tmp_path, ROUNDS, tests=tests):
        assert calls_of(result) == FOUND, model
        assert len(requests) == 4
        usage = result["usage"]["generation"]
        assert (usage["requests"], usage["input_tokens"], usage["output_tokens"]) == (4, 40, 20), model
        assert usage["cost_usd"] == pytest.approx(60e-6)
        assert '"find_order"' in json.dumps(requests[0]["tools"])
        last = json.dumps(requests[-1])
        assert all(
            text in last
            for text in ("packed", "there is no order 9", "cancelled for Ann", "greater than or equal")
        )


FINDS, WRONG, UNKNOWN = ("find_order", {"order": 8}), ("find_order", {"order": "x"}), ("find", {})


@pytest.mark.parametrize(
    ("calls", "f1", "is_valid"),
    [
        ([], 0, False),
        ([FINDS], 2 / 3, True),
        ([FINDS, ("cancel_order", {"order": 8})], 1, True),
        ([FINDS, WRONG], 2 / 3, False),
        ([UNKNOWN], 0, False),
        ([FINDS, UNKNOWN], 0.5, False),
    ],
)
def test_calls_that_geval_has_answered_count_as_calls_in_every_assertion(
    calls: list[tuple[str, dict[str, Any]]], f1: float, is_valid: bool, tmp_path: Path
) -> None:
    checks = [
        {"type": "tool-call-f1", "value": ["find_order", "cancel_order"], "threshold": 0.6},
        {"type": "is-valid-openai-tools-call"},
        {"type": "is-valid-function-call"},
    ]
    opposites = [{**item, "type": f"not-{item['type']}"} for item in checks]
    with model_with([[call] for call in calls]) as server:
        test = {"input": "Cancel order 8.", "vars": {"name": "Ann"}, "assert": [*checks, *opposites]}
        write(tmp_path, server, tests=[test])
        [result] = run_of(tmp_path, code=1)
    _, *judged = result["assertions"]
    scores = [item["score"] for item in judged]
    valid = float(is_valid)
    assert scores == pytest.approx([f1, valid, valid, 1 - f1, 1 - valid, 1 - valid])
    passed = [item["status"] == "passed" for item in judged]
    assert passed == [f1 >= 0.6, is_valid, is_valid, f1 < 0.6, not is_valid, not is_valid]


def test_called_tools_are_shown_and_judged_again_without_a_call(tmp_path: Path) -> None:
    with model_with(ROUNDS) as server:
        write(
            tmp_path,
            server,
            defaultTest={"assert": [{"type": "trajectory:tool-used", "value": "cancel_order"}]},
        )
        run_of(tmp_path)
    shown = geval(tmp_path, "show", "--case", "1").stdout
    assert 'trace   find_order {"order": 8} -> {"order": 8, "state": "packed"}' in shown
    assert 'find_order {"order": 9} failed: LookupError: there is no order 9' in shown
    again = geval(
        tmp_path, "judge", "latest", "-o", "r.json"
    )  # the stored trace is judged, and nothing is called
    assert again.code == 0, again.stdout + again.stderr
    [judged] = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["results"]
    assert calls_of(judged) == FOUND
    assert len(server.requests) == 4


def test_a_conversation_goes_on_with_all_that_tools_have_answered(tmp_path: Path) -> None:
    rounds: list[Calls] = [[("cancel_order", {"order": 8})], [("find_order", {"order": 8})]]
    tests = [{"turns": [{"user": "Cancel 8."}, {"user": "Once more."}], "vars": {"name": "Ann"}}]
    for model, result, requests in run_on_every_api(tmp_path, rounds, tests=tests):
        assert [name for name, *_ in calls_of(result)] == ["cancel_order", "find_order"] * 2, model
        outputs = [step["output"] for step in result["trace"]]
        assert outputs[1::2] == [{"order": 8, "state": "cancelled"}] * 2
        roles = ["user", "assistant", "tool", "assistant", "tool", "assistant"]
        assert [turn["role"] for turn in result["turns"]] == roles * 2, model
        before, after = (requests[index][WIRES[model][1]] for index in (2, 3))
        assert after[: len(before)] == before  # every request says again what was said
        assert "It is done." in json.dumps(after)


def test_no_case_sees_what_another_one_has_changed(tmp_path: Path) -> None:
    with model_with([[("find_order", {"order": 8})], [("cancel_order", {"order": 8})]]) as server:
        write(
            tmp_path,
            server,
            tests=[{"input": f"Case {number}", "vars": {"name": "Ann"}} for number in range(6)],
        )
        results = run_of(tmp_path, "-j", "4")
    assert {json.dumps(result["trace"][0]["output"]) for result in results} == {
        '{"order": 8, "state": "packed"}'
    }


def test_files_with_variables_of_one_name_keep_their_own(tmp_path: Path) -> None:
    with model_with([[("add_a", {})], [("add_b", {})], [("add_a", {})], [("add_b", {})]]) as server:
        write(tmp_path, server, tools=["file://a.py", "file://b.py"])
        for name, first in (("a", 0), ("b", 100)):
            code = f'SEEN = [{first}]\ndef add_{name}() -> int:\n    "Add."\n    SEEN.append(SEEN[-1] + 1)\n'
            (tmp_path / f"{name}.py").write_text(f"{code}    return SEEN[-1]\n", encoding="utf-8")
        [result] = run_of(tmp_path)
    assert [step["output"] for step in result["trace"]] == [1, 101, 2, 102]


def test_a_new_run_calls_again_though_the_model_is_not_asked_again(tmp_path: Path) -> None:
    with model_with([[("note", {"text": "x"})]]) as server:
        write(tmp_path, server)
        code = 'def note(text: str) -> str:\n    "Note."\n    open("world", "a").write(text)\n    return "noted"\n'
        (tmp_path / "tools.py").write_text(code, encoding="utf-8")
        for count in (1, 2):
            run_of(tmp_path)
            assert (tmp_path / "world").read_text() == "x" * count
    assert len(server.requests) == 2


DEFINED = [{"type": "function", "function": FIND}]


def test_recorded_answers_are_used_in_order_and_a_call_that_none_fits_is_an_error(tmp_path: Path) -> None:
    rounds = [[("find_order", {"order": 8})], [("find_order", {"order": 8})], [("find_order", {"order": 9})]]
    recorded = [
        {"name": "find_order", "args": {"order": 8}, "result": "packed"},
        {"name": "find_order", "args": {"order": 8}, "error": "busy"},
        {"name": "find_order", "args": {"order": 8}, "result": "sent"},
    ]
    with model_with(rounds) as server:
        write(tmp_path, server, tools={"definitions": DEFINED, "recorded": recorded})
        [result] = run_of(tmp_path, code=3)
        assert result["error"]["message"] == 'no recorded answer fits the call find_order({"order": 9})'
        assert [(output, error) for _, _, output, error in calls_of(result)] == [
            ("packed", None),
            (None, "busy"),
        ]
        assert result["usage"]["generation"]["requests"] == 3
        write(
            tmp_path,
            server,
            tools={"definitions": DEFINED, "recorded": [{"name": "find_order", "result": None}]},
        )
        [result] = run_of(tmp_path)
    assert len(result["trace"]) == 3


@pytest.mark.parametrize(
    ("order", "is_found"), [(1, True), (1.0, True), (True, False), ("1", False), ([1], False)]
)
def test_a_recorded_answer_fits_the_same_json_alone(order: Any, is_found: bool, tmp_path: Path) -> None:
    recorded = [{"name": "find_order", "args": {"order": 1}, "result": "packed"}]
    with model_with([[("find_order", {"order": order})]]) as server:
        write(tmp_path, server, tools={"definitions": DEFINED, "recorded": recorded})
        [result] = run_of(tmp_path)
    [(_, _, output, error)] = calls_of(result)
    assert (output, error is None) == ("packed" if is_found else None, is_found)


def test_a_model_in_place_of_tools_sees_the_world_and_the_calls_and_nothing_else(tmp_path: Path) -> None:
    rounds = [[("find_order", {"order": 8}), ("find_order", {"number": 8})], [("find_order", {"order": 9})]]
    answers = [
        '```json\n{"result": {"state": "packed"}}\n```',
        "Well.",
        '<think>{9}?</think>\n{"error": "no such order"}',
    ]

    def respond(body: Any, headers: Mapping[str, str]) -> Reply:
        asked.append(body)
        return Reply(body=chat((), answers[len(asked) - 1]))

    asked: list[Any] = []
    with model_with(rounds) as server, LoopbackServer(respond=respond) as world:
        simulator = {
            "id": "openai:w",
            "config": {"base_url": world.base_url, "price": {"input": 1, "output": 1}},
        }
        simulate = {"provider": simulator, "world": "Order 8 is {{ state }}."}
        tests = [{"input": "A secret wish.", "expected_output": "hidden", "vars": {"state": "packed"}}]
        write(tmp_path, server, tools={"definitions": DEFINED, "simulate": simulate}, tests=tests)
        [result] = run_of(tmp_path)
        assert [(output, error) for _, _, output, error in calls_of(result)] == [
            ({"state": "packed"}, None),
            (
                None,
                "the arguments are not valid: $: 'order' is a required property; "
                "$: Additional properties are not allowed ('number' was unexpected)",
            ),
            (None, "no such order"),
        ]
        assert result["usage"]["judge"]["requests"] == 3
        assert result["usage"]["generation"]["cost_usd"] == pytest.approx(45e-6)
        assert result["usage"]["judge"]["cost_usd"] == pytest.approx(45e-6)
        texts = [json.dumps(body["messages"]) for body in asked]
        assert all("Order 8 is packed." in text for text in texts)
        assert not any(word in text for text in texts for word in ("secret wish", "hidden", "clerk", "done"))
        assert '\\"result\\": {\\"state\\": \\"packed\\"}' in texts[1]
        run_of(tmp_path)
    assert (len(server.requests), len(asked)) == (3, 3)  # then all of it came from the cache


def test_a_reply_in_place_of_a_tool_is_a_result_or_an_error_or_asked_for_again(tmp_path: Path) -> None:
    replies = {
        '{"result": 5, "error": null}': (5, None),
        '{"result": [], "error": ""}': ([], None),
        '{"result": null, "error": "no such order"}': (None, "no such order"),
        '{"error": {"code": 5}}': (None, '{"code": 5}'),
        'It gives: ```json\n{"result": null}\n```': (None, None),
        '{"error": null}': ("again", None),
        '{"error": ""}': ("again", None),
        '{"result": 5, "error": "no such order"}': ("again", None),
        '{"state": "packed"}': ("again", None),
        "packed": ("again", None),
    }
    asked: list[str] = []

    def respond(body: Any, headers: Mapping[str, str]) -> Reply:
        call = re.findall(r'"order": (\d+)', json.dumps(body["messages"][1]["content"]).replace("\\", ""))[-1]
        asked.append(call)
        text = [*replies][int(call)] if asked.count(call) == 1 else '{"result": "again"}'
        return Reply(body=chat((), text))

    calls = [("find_order", {"order": number}) for number in range(len(replies))]
    with model_with([calls]) as server, LoopbackServer(respond=respond) as world:
        simulator = {"id": "openai:w", "config": {"base_url": world.base_url}}
        simulate = {"provider": simulator, "world": "A shop."}
        write(tmp_path, server, tools={"definitions": DEFINED, "simulate": simulate})
        [result] = run_of(tmp_path)
    assert [(output, error) for _, _, output, error in calls_of(result)] == [*replies.values()]


def test_a_plan_counts_rounds_and_simulated_answers_and_calls_nothing(tmp_path: Path) -> None:
    simulator = {"id": "openai:w", "config": {"price": {"input": 1, "output": 1}}}
    tools = {
        "functions": "file://tools.py",
        "definitions": [{**FIND, "name": "look"}],
        "simulate": {"provider": simulator, "world": "A shop."},
        "max_calls": 5,
    }
    with model_with([[("note", {})]]) as server:
        write(tmp_path, server, tools=tools)
        code = 'def note() -> None:\n    "Note."\n    open("world", "w")\n'
        (tmp_path / "tools.py").write_text(code, encoding="utf-8")
        shown = []
        for _ in range(2):  # then with the first answer in the cache
            done = geval(tmp_path, "run", "c.yaml", "--plan")
            assert done.code == 0, done.stdout + done.stderr
            shown.append(re.sub(r"\s+", " ", done.stdout))
            assert not (tmp_path / "world").exists()
            if len(shown) == 1:
                run_of(tmp_path)
                (tmp_path / "world").unlink()
    assert "would make 1-11 calls for 1 case" in shown[0]
    assert "would make 0-10 calls for 1 case" in shown[1]
    for text in shown:
        assert "openai:m answers 0-5" in text
        assert "openai:w judge's tool answers 0-5" in text
        assert "one per answer that calls tools" in text
        assert "one per call of a simulated tool" in text


def test_keys_that_tools_give_back_are_in_no_result(tmp_path: Path) -> None:
    with model_with([[("read", {}), ("fail", {})]]) as server:
        write(tmp_path, server, tests=[{"turns": [{"user": "Go on."}]}])
        code = (
            'import os\ndef read() -> str:\n    "Read."\n    return os.environ["OPENAI_API_KEY"]\n'
            'def fail() -> str:\n    "Fail."\n    raise ValueError(os.environ["OPENAI_API_KEY"])\n'
        )
        (tmp_path / "tools.py").write_text(code, encoding="utf-8")
        [result] = run_of(tmp_path)
    assert [step["name"] for step in result["trace"]] == ["read", "fail"]
    assert "***" in json.dumps(result["trace"])
    assert KEYS["OPENAI_API_KEY"] not in json.dumps(result)


def test_calls_are_bounded(tmp_path: Path) -> None:
    with model_with([[("find_order", {"order": 8})] * 2] * 50) as server:
        write(tmp_path, server, tools={"functions": "file://tools.py", "max_calls": 5})
        [result] = run_of(tmp_path, code=3)
    assert result["error"]["message"] == "the model calls more than 5 tools (`max_calls`)"
    assert len(result["trace"]) == 5
    assert len(server.requests) == 3
    assert result["usage"]["generation"]["requests"] == 3


BROKEN = {
    "import os; os._exit(3)": "tools.py ended with status 3",
    "raise SystemExit(0)": "SystemExit: 0",
    "return object()": "Unable to serialize",
    "BOX.append(object())": "the variable `BOX` cannot be kept",
}
if sys.platform == "linux":  # the only one that bounds it
    BROKEN["return len(bytearray(3 << 30))"] = "it needs more than 2 GB of memory"


def test_code_that_breaks_is_an_error_of_the_case(tmp_path: Path) -> None:
    def respond(body: Any, headers: Mapping[str, str]) -> Reply:
        return Reply(body=chat([(body["messages"][-1]["content"], {})], ""))

    with LoopbackServer(respond=respond) as server:
        write(tmp_path, server, tests=[{"input": f"do_{number}"} for number in range(len(BROKEN))])
        code = [f'def do_{number}():\n    "Do it."\n    {body}\n' for number, body in enumerate(BROKEN)]
        (tmp_path / "tools.py").write_text("BOX = []\n" + "".join(code), encoding="utf-8")
        results = run_of(tmp_path, code=3)
    for number, (result, said) in enumerate(zip(results, BROKEN.values(), strict=True)):
        assert f"the call of `do_{number}` failed" in result["error"]["message"]
        assert said in result["error"]["message"]
    assert len(server.requests) == len(BROKEN)


@pytest.mark.parametrize(
    ("model", "arguments", "end"),
    [
        ("openai:m", '{"order": 8', "length"),
        ("openai:m", "", "length"),
        ("openai:m", '{"order": 8}', "content_filter"),
        ("anthropic:m", "{}", "max_tokens"),
    ],
)
def test_calls_of_an_answer_that_was_cut_off_are_not_made(
    model: str, arguments: str, end: str, tmp_path: Path
) -> None:
    answer = WIRES[model][0]([("find_order", {})], "")
    if model == "openai:m":
        answer["choices"][0]["finish_reason"] = end
        answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] = arguments
    else:
        answer["stop_reason"] = end
    with LoopbackServer(respond=lambda body, headers: Reply(body=answer)) as server:
        write(tmp_path, server, model)
        [result] = run_of(tmp_path, code=3)
    assert "in a call of `find_order`, so it was not made" in result["error"]["message"]
    assert (result["trace"], len(server.requests)) == ([], 1)
    assert result["usage"]["generation"]["requests"] == 1


def test_a_retry_that_was_killed_during_a_call_says_so_before_it_is_made_again(tmp_path: Path) -> None:
    down = iter([True])

    def respond(body: Any, headers: Mapping[str, str]) -> Any:
        if next(down, False):
            return Reply(status=400, body={"error": {"message": "no"}})
        done = body["messages"][-1]["role"] == "tool"
        return Reply(body=chat((), "It is done.") if done else chat([("send", {})], ""))

    with LoopbackServer(respond=respond) as server:
        write(tmp_path, server)
        world = tmp_path / "world"
        code = (
            'import os, signal, time\ndef send() -> str:\n    "Send."\n'
            f"    with open({str(world)!r}, 'a') as world:\n        world.write('sent\\n')\n"
            f"    if not os.path.exists({str(tmp_path / 'safe')!r}):\n"
            "        os.kill(os.getppid(), signal.SIGKILL)\n        time.sleep(9)\n"
        )
        (tmp_path / "tools.py").write_text(code, encoding="utf-8")
        [result] = run_of(tmp_path, code=3)
        assert result["error"]["type"] == "ProviderRequestError"
        again = ("--retry-errors", "--resume-from", "latest")
        assert geval(tmp_path, "run", "c.yaml", *again).code == -signal.SIGKILL
        (tmp_path / "safe").touch()
        [result] = run_of(tmp_path, *again, code=3)
        assert "which may have happened" in result["error"]["message"]
        assert world_of(tmp_path) == ["sent"]
        [result] = run_of(tmp_path, *again)
        assert world_of(tmp_path) == ["sent"] * 2


def test_killed_runs_call_no_tool_twice_and_pay_nothing_twice(tmp_path: Path) -> None:
    """Kill a run three times; resumed runs do the rest, and a call that may have happened is told, not repeated."""
    cases = 9
    with model_with([[("send", {"text": "a"})], [("send", {"text": "b"})], [("total", {})]]) as server:
        tests = [{"input": f"Case {number}", "vars": {"name": str(number)}} for number in range(cases)]
        write(tmp_path, server, tests=tests)
        code = (
            'import time\nSENT = []\ndef send(text: str, context) -> int:\n    "Send."\n'
            f'    with open({str(tmp_path / "world")!r}, "a") as world:\n'
            "        world.write(f\"{context['vars']['name']}{text}\\n\")\n"
            "    SENT.append(text)\n    time.sleep(0.1)\n    return len(SENT)\n"
            'def total() -> str:\n    "All."\n    return "".join(SENT)\n'
        )
        (tmp_path / "tools.py").write_text(code, encoding="utf-8")
        lost = 0
        for kill in range(3):
            words = ["run", "c.yaml", "-j", "4", "--no-progress", *(["--resume"] if kill else [])]
            process = start_geval(*words, cwd=tmp_path, env=clean_environment(**KEYS))
            wanted = len(world_of(tmp_path)) + 4
            while len(world_of(tmp_path)) < wanted and process.poll() is None:
                time.sleep(0.005)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            time.sleep(0.2)  # what the tools' own processes had begun
            lost = len(server.requests) - count(tmp_path / ".geval/cache.db", "choices")
        interrupted = count(
            tmp_path / ".geval/geval.db", "tool_calls WHERE coalesce(answer, 'null') = 'null'"
        )
        assert interrupted
        results = run_of(tmp_path, "--resume", "-j", "4", code=3)
        sent = Counter(world_of(tmp_path))
        assert max(sent.values()) == 1
        errors = [result for result in results if result["error"] is not None]
        assert len(errors) == interrupted
        assert all("which may have happened" in result["error"]["message"] for result in errors)
        for result in results:
            if result["error"] is None:
                assert (
                    result["trace"][-1]["output"] == "ab"
                )  # what the module knew before a kill, it knows after it
        assert len(server.requests) == count(tmp_path / ".geval/cache.db", "choices") + lost
        results = run_of(tmp_path, "--retry-errors", "--resume-from", "latest", "-j", "4")
        assert all(result["trace"][-1]["output"] == "ab" for result in results)
        sent = Counter(world_of(tmp_path))
        assert set(sent) == {f"{number}{text}" for number in range(cases) for text in "ab"}
        assert sum(sent.values()) <= 2 * cases + interrupted


def world_of(folder: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return (folder / "world").read_text(encoding="utf-8").split()
    return []


def count(path: Path, rows: str) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        found: int = connection.execute(f"SELECT count(*) FROM {rows}").fetchone()[0]
    return found


def test_judges_see_the_calls_with_their_results(tmp_path: Path) -> None:
    asked: list[str] = []

    def respond(body: Any, headers: Mapping[str, str]) -> Reply:
        asked.append(json.dumps(body))
        said = {"score": 9} if "THIRD" not in asked[-1] else {"pass": True, "score": 1}
        return Reply(body=chat((), json.dumps({"reason": "fine", **said})))

    geval_check = {"type": "g-eval", "criteria": "Good.", "threshold": 0.5}
    assertions = [
        {**geval_check, "evaluation_steps": ["Read it FIRST."]},
        {**geval_check, "evaluation_steps": ["Read it SECOND."], "evaluation_params": ["tools_called"]},
        {"type": "trajectory:goal-success", "value": "The order is cancelled THIRD."},
    ]
    with model_with([[("cancel_order", {"order": 8})]]) as server, LoopbackServer(respond=respond) as judge:
        options = {
            "provider": {"id": "openai:j", "config": {"base_url": judge.base_url}},
            "scoring": "single",
        }
        tests = [{"input": "Cancel.", "vars": {"name": "Ann"}, "options": options, "assert": assertions}]
        write(tmp_path, server, tests=tests)
        geval(tmp_path, "run", "c.yaml")
        paid = len(asked)
        geval(tmp_path, "run", "c.yaml")  # the tool is called again, and takes another time
    assert len(asked) == paid
    first, second, third = (
        next(text for text in asked if word in text) for word in ("FIRST", "SECOND", "THIRD")
    )
    assert all("cancel_order" in text for text in (first, second, third))
    assert ["cancelled for Ann" in text for text in (first, second, third)] == [True, False, True]


def test_tools_are_called_in_a_conversation_with_a_simulated_user_who_does_not_see_them(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    def respond(body: Any, headers: Mapping[str, str]) -> Reply:
        asked.append(json.dumps(body))
        return Reply(body=chat((), f"Message {len(asked)}."))

    with model_with([[("cancel_order", {"order": 8})]]) as server, LoopbackServer(respond=respond) as user:
        player = {"id": "openai:u", "config": {"base_url": user.base_url}}
        simulate = {"goal": "Have it cancelled.", "user": player, "max_turns": 2}
        write(tmp_path, server, tests=[{"turns": {"simulate": simulate}, "vars": {"name": "Ann"}}])
        [result] = run_of(tmp_path)
    roles = ["user", "assistant", "tool", "assistant"]
    assert [turn["role"] for turn in result["turns"]] == roles * 2
    assert [name for name, *_ in calls_of(result)] == ["cancel_order"] * 2
    assert (result["usage"]["generation"]["requests"], result["usage"]["user"]["requests"]) == (4, len(asked))
    assert "It is done." in asked[1]
    assert not any("cancel_order" in text or "cancelled for" in text for text in asked)


def test_a_tool_that_was_called_can_end_a_simulated_conversation(tmp_path: Path) -> None:
    def respond(body: Any, headers: Mapping[str, str]) -> Reply:
        said = body["messages"]
        calls = sum(item["role"] == "user" for item in said) == 2 and said[-1]["role"] == "user"
        answer = chat([("cancel_order", {"order": 8})] if calls else (), "Which one?")
        answer["choices"][0]["message"]["content"] = "[A moment]"
        return Reply(body=answer)

    with (
        LoopbackServer(respond=respond) as server,
        LoopbackServer(respond=lambda *_: Reply(body=chat((), "No. 8."))) as user,
    ):
        player = {"id": "openai:u", "config": {"base_url": user.base_url}}
        cancelled = {"type": "trajectory:tool-used", "value": "cancel_order"}
        simulate = {"goal": "Have it cancelled.", "user": player, "max_turns": 4, "done_when": cancelled}
        test = {"turns": {"simulate": simulate}, "vars": {"name": "Ann"}, "assert": [cancelled]}
        write(tmp_path, server, defaultTest={}, tests=[test])
        [result] = run_of(tmp_path)
    assert (result["ended_by"], len(server.requests), len(user.requests)) == ("goal", 3, 2)
    asked = [turn["content"] for turn in result["turns"] if turn["tool_calls"]]
    assert asked == ["[A moment]"]  # words beside calls are kept, whatever they begin with
