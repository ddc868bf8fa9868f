"""`geval import traces`: what becomes of the lines of traces and logs, and of those that mean harm."""

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.geval_command import clean_environment, run_geval

from geval_cli.cli.app import as_typed
from geval_cli.extras.traces.importing import (
    ModelAnswer,
    TracedTurn,
    TraceReading,
    chosen_answers,
    line_of,
    read_traces,
)


def attributes(**values: Any) -> list[dict[str, Any]]:
    """Attributes as OTLP writes them; two underscores stand for a dot."""
    kinds = {str: "stringValue", int: "intValue", bool: "boolValue"}
    return [
        {
            "key": name.replace("__", "."),
            "value": {kinds[type(value)]: str(value) if type(value) is int else value},
        }
        for name, value in values.items()
    ]


def otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    resource = {"attributes": attributes(service__name="shop")}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": list(spans)}]}]}


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


ASKED = [said("system", "Be brief."), said("user", "Hi?"), said("assistant", "Yes?"), said("user", "Refund?")]
OTLP = otlp(
    {"name": "GET /", "traceId": "t1", "spanId": "s0", "attributes": attributes(http__method="GET")},
    {
        "name": "chat gpt-4.1",
        "traceId": "t1",
        "spanId": "s1",
        "attributes": attributes(
            gen_ai__operation__name="chat",
            gen_ai__request__model="gpt-4.1",
            gen_ai__response__id="r1",
            gen_ai__usage__input_tokens=7,
            gen_ai__input__messages=json.dumps(ASKED),
            gen_ai__output__messages=json.dumps([said("assistant", "14 days.")]),
        ),
    },
)
OTLP_EVENTS = otlp(
    {
        "traceId": "t2",
        "spanId": "s2",
        "attributes": attributes(gen_ai__operation__name="chat"),
        "events": [
            {"name": "gen_ai.user.message", "attributes": attributes(content="Refund?")},
            {
                "name": "gen_ai.choice",
                "attributes": attributes(message=json.dumps({"content": "14 days."})),
            },
        ],
    }
)
OPENLLMETRY = otlp(
    {
        "traceId": "t3",
        "spanId": "s3",
        "attributes": attributes(
            gen_ai__prompt__0__role="user",
            gen_ai__prompt__0__content="Refund?",
            gen_ai__completion__0__content="14 days.",
        ),
    }
)
OPENINFERENCE = {
    "name": "llm",
    "context": {"trace_id": "0xt4", "span_id": "0xs4"},
    "attributes": {
        "openinference.span.kind": "LLM",
        "llm.model_name": "m",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.contents.0.message_content.type": "text",
        "llm.input_messages.0.message.contents.0.message_content.text": "Refund?",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.tool_calls.0.tool_call.id": "c1",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "policy",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": '{"of": "refund"}',
    },
}
NESTED = {
    "trace_id": "t5",
    "attributes": {
        "openinference": {"span": {"kind": "LLM"}},
        "input": {"value": "Refund?"},
        "output": {"value": "14 days."},
    },
}
DOTTED = {
    "context.trace_id": "t6",
    "attributes.openinference.span.kind": "LLM",
    "attributes.input.value": '{"messages": [{"role": "user", "content": "Refund?"}]}',
    "attributes.output.value": '{"choices": [{"message": {"content": "14 days."}}]}',
}
CHAT = {"id": "x1", "model": "m", "choices": [{"message": {"role": "assistant", "content": "14 days."}}]}
MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "Refund?"}]}]
LOG = {"request": {"model": "m", "messages": MESSAGES}, "response": CHAT}
RESPONSES = {
    "request": {"input": "Refund?"},
    "response": {
        "id": "x1",
        "output": [
            {"type": "reasoning", "summary": []},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "14 days."}],
            },
        ],
    },
}
BATCH = {"custom_id": "q1", "response": {"status_code": 200, "body": CHAT}, "error": None}
BATCH_ANTHROPIC = {
    "custom_id": "q1",
    "result": {
        "type": "succeeded",
        "message": {"id": "m1", "role": "assistant", "content": [{"type": "text", "text": "14 days."}]},
    },
}
CONVERSATION = {"messages": [*MESSAGES, {"role": "assistant", "content": "14 days."}]}


def rows(line: Any) -> list[dict[str, Any]]:
    text = line if isinstance(line, bytes) else json.dumps(line).encode()
    reading = TraceReading()
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        log.write_bytes(text)
        found = [json.loads(line_of(answer.row())) for answer in read_traces(log, reading, joins=False)]
    assert reading.bad == 0
    return found


@pytest.mark.parametrize(
    ("line", "metadata"),
    [
        (OTLP_EVENTS, {"trace_id": "t2", "span_id": "s2"}),
        (OPENLLMETRY, {"trace_id": "t3", "span_id": "s3"}),
        (NESTED, {"trace_id": "t5"}),
        (DOTTED, {"trace_id": "t6"}),
        (LOG, {"response_id": "x1", "model": "m"}),
        (RESPONSES, {"response_id": "x1"}),
        (CONVERSATION, {}),
    ],
)
def test_each_kind_of_line_is_a_question_with_its_answer(line: Any, metadata: dict[str, str]) -> None:
    assert rows(line) == [{"input": "Refund?", "output": "14 days.", "metadata": metadata}]


@pytest.mark.parametrize(
    ("line", "metadata"),
    [
        (BATCH, {"response_id": "x1", "custom_id": "q1", "model": "m"}),
        (BATCH_ANTHROPIC, {"response_id": "m1", "custom_id": "q1"}),
    ],
)
def test_the_output_of_a_batch_has_no_question(line: Any, metadata: dict[str, str]) -> None:
    assert rows(line) == [{"output": "14 days.", "metadata": metadata}]


def test_a_conversation_keeps_its_turns_and_the_last_question_is_the_input() -> None:
    [row] = rows(OTLP)
    assert (row["input"], row["output"]) == ("Refund?", "14 days.")
    turns = [(turn["role"], turn["content"]) for turn in row["turns"]]
    assert turns == [("system", "Be brief."), ("user", "Hi?"), ("assistant", "Yes?"), ("user", "Refund?")]
    assert row["metadata"] == {
        "trace_id": "t1",
        "span_id": "s1",
        "response_id": "r1",
        "model": "gpt-4.1",
    }


def test_tools_that_were_called_are_the_trace_and_an_output_of_calls_alone_is_their_json() -> None:
    [row] = rows(OPENINFERENCE)
    assert row["trace"] == [{"type": "tool", "name": "policy", "args": {"of": "refund"}}]
    assert row["metadata"]["trace_id"] == "t4"
    [call] = json.loads(row["output"])
    assert (call["id"], call["type"]) == ("c1", "function")
    assert call["function"] == {"name": "policy", "arguments": '{"of": "refund"}'}
    asked = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": {"name": "policy"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "14 days"},
    ]
    [told] = rows({"request": {"messages": asked}, "response": CHAT})
    assert told["trace"] == [{"type": "tool", "name": "policy", "args": None, "output": "14 days"}]
    assert [turn["role"] for turn in told["turns"]] == ["user", "assistant", "tool"]
    assert told["turns"][2]["tool_call_id"] == "c1"


SECOND = 1_000_000_000


def span(number: int, kind: str, trace: str = "t9", **values: Any) -> dict[str, Any]:
    """A span that begins in second `number` and takes 250 ms."""
    about = {"gen_ai__operation__name": kind, **values}
    start = 1_790_000_000 * SECOND + number * SECOND
    return {
        "name": f"{kind} span",
        "traceId": trace,
        "spanId": f"s{number}",
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + SECOND // 4),
        "attributes": attributes(**about),
    }


def chat(number: int, answer: str, trace: str = "t9", **values: Any) -> dict[str, Any]:
    asked = json.dumps([said("user", f"Question {trace}?")])
    given = json.dumps([said("assistant", answer)])
    return span(
        number, "chat", trace, gen_ai__input__messages=asked, gen_ai__output__messages=given,
        gen_ai__request__model="gpt-4.1", **values,
    )  # fmt: skip


TOOL_SPAN = span(
    2, "execute_tool", gen_ai__tool__name="policy", gen_ai__tool__call__arguments='{"of": "refund"}',
    gen_ai__tool__call__result="14 days",
)  # fmt: skip
FAILED_SPAN = {
    **span(3, "execute_tool", gen_ai__tool__name="mail"),
    "status": {"code": 2, "message": "no such server"},
}
RETRIEVER = {
    "name": "find",
    "context": {"trace_id": "t9", "span_id": "s4"},
    "start_time": "2026-09-21T14:13:24+00:00",
    "end_time": "2026-09-21T14:13:25+00:00",
    "attributes": {"openinference.span.kind": "RETRIEVER", "input.value": "refund"},
}
AGENT = span(0, "invoke_agent")


def written(tmp_path: Path, lines: Sequence[Any], **options: Any) -> list[dict[str, Any]]:
    path = tmp_path / "traces.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return [json.loads(line_of(answer.row())) for answer in read_traces(path, TraceReading(), **options)]


def test_the_spans_of_a_trace_are_joined_to_its_last_answer_in_their_order(tmp_path: Path) -> None:
    # Out of order and mixed with another trace, as collectors write them when spans end.
    lines = [otlp(FAILED_SPAN), otlp(chat(5, "14 days.")), otlp(chat(1, "Other.", "t8")), otlp(TOOL_SPAN)]
    lines += [RETRIEVER, otlp(chat(1, "Let me see.")), otlp(AGENT)]
    other, joined = written(tmp_path, lines)
    assert (other["output"], "trace" in other) == ("Other.", False)
    assert (joined["input"], joined["output"]) == ("Question t9?", "14 days.")
    assert joined["metadata"]["span_id"] == "s5"
    assert joined["trace"] == [
        {"type": "llm", "name": "gpt-4.1", "ms": 250.0},
        {"type": "tool", "name": "policy", "args": {"of": "refund"}, "output": "14 days", "ms": 250.0},
        {"type": "tool", "name": "mail", "error": "no such server", "ms": 250.0},
        {"type": "step", "name": "find", "args": "refund", "ms": 1000.0},
        {"type": "llm", "name": "gpt-4.1", "ms": 250.0},
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_a_span_that_was_sent_again_counts_once(tmp_path: Path, order: int) -> None:
    begun = {**span(1, "chat"), "endTimeUnixNano": None}  # sent when it began, without its answer
    spans = [begun, chat(1, "Let me see."), TOOL_SPAN, TOOL_SPAN, chat(5, "14 days."), chat(5, "14 days.")]
    lines = [otlp(item) for item in spans][::order]
    [joined] = written(tmp_path, lines)
    assert joined["output"] == "14 days."
    assert [(step["type"], step.get("ms")) for step in joined["trace"]] == [
        ("llm", 250.0),
        ("tool", 250.0),
        ("llm", 250.0),
    ]
    apart = written(tmp_path, lines, joins=False)
    assert [row["output"] for row in apart] == ["Let me see.", "14 days."][::order]
    others = [otlp({**chat(1, "A.", name), "spanId": "s1"}) for name in ("t1", "t2")]
    assert len(written(tmp_path, others, joins=False)) == 2


def test_each_call_may_be_a_test_of_its_own(tmp_path: Path) -> None:
    lines = [otlp(chat(1, "Let me see."), TOOL_SPAN), otlp(chat(5, "14 days."))]
    found = written(tmp_path, lines, joins=False)
    assert [(row["output"], "trace" in row) for row in found] == [("Let me see.", False), ("14 days.", False)]


@pytest.mark.parametrize(
    "time", [10**400, -(10**400), -1, "9" * 400, 1e308, True, [], "9999-99-99T00:00:00Z"]
)
def test_a_span_may_name_any_time(tmp_path: Path, time: Any) -> None:
    odd = {**TOOL_SPAN, "endTimeUnixNano": time}
    [row] = written(tmp_path, [otlp(odd, chat(5, "14 days.")), otlp({**AGENT, "startTimeUnixNano": time})])
    assert [(step["type"], step.get("ms")) for step in row["trace"]] == [("tool", None), ("llm", 250.0)]


UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@pytest.mark.parametrize("form", [int, str, float])
@pytest.mark.parametrize("unit", UNITS)
def test_times_are_read_in_each_unit(tmp_path: Path, unit: str, form: type) -> None:
    start = 1_790_000_000 * SECOND
    timed = {name: item for name, item in TOOL_SPAN.items() if not name.endswith("UnixNano")}
    ends = {"start_time": form(start // UNITS[unit]), "end_time": form((start + 2 * SECOND) // UNITS[unit])}
    if form is str:
        assert ends["start_time"].isdigit()
    [row] = written(tmp_path, [{**timed, **ends}, otlp(chat(5, "14 days."))])
    assert row["trace"][0]["ms"] == 2000


@pytest.mark.parametrize(
    "status",
    [
        "ERROR",
        "error",
        {"code": 2},
        {"status_code": "error"},
        {"status_code": "StatusCode.ERROR"},
        {"code": "2"},
    ],
)
def test_a_failure_is_read_in_each_form(tmp_path: Path, status: Any) -> None:
    [row] = written(tmp_path, [otlp({**TOOL_SPAN, "status": status}, chat(5, "14 days."))])
    assert row["trace"][0]["error"] == "failed"


@pytest.mark.parametrize("status", ["OK", "unset", {"code": 0}, {"status_code": "StatusCode.OK"}, None, {}])
def test_what_did_not_fail_has_no_error(tmp_path: Path, status: Any) -> None:
    [row] = written(tmp_path, [otlp({**TOOL_SPAN, "status": status}, chat(5, "14 days."))])
    assert "error" not in row["trace"][0]


@pytest.mark.parametrize("is_run", [True, False])
def test_a_call_in_the_last_answer_that_no_span_ran_is_a_step(tmp_path: Path, is_run: bool) -> None:
    call = {"type": "tool_call", "id": "c1", "name": "delete_all", "arguments": {}}
    given = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "Deleting."}, call]}])
    last = span(5, "chat", gen_ai__output__messages=given, gen_ai__request__model="gpt-4.1")
    ran = span(6, "execute_tool", gen_ai__tool__name="delete_all")
    [row] = written(tmp_path, [otlp(TOOL_SPAN, last, *([ran] if is_run else []))])
    assert [step["name"] for step in row["trace"]] == ["policy", "gpt-4.1", "delete_all"]


def test_tools_that_the_vendor_ran_are_steps_and_a_refusal_is_an_answer() -> None:
    items = [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "thoughts"}]},
        {"type": "mcp_call", "name": "delete", "arguments": '{"all": true}'},
        {"type": "web_search_call", "action": {"query": "tea"}},
        {"type": "custom_tool_call", "name": "shell", "input": "ls"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
    ]
    [row] = rows({"request": {"input": "x"}, "response": {"output": items}})
    assert [(step["name"], step["args"]) for step in row["trace"]] == [
        ("delete", {"all": True}),
        ("web_search", {"query": "tea"}),
        ("shell", "ls"),
    ]
    assert row["output"] == "Done."
    blocks = [
        {"type": f"{who}tool_use", "id": who, "name": who, "input": {}} for who in ("", "server_", "mcp_")
    ]
    said_by_claude = {"role": "assistant", "content": [{"type": "text", "text": "Done."}, *blocks]}
    [row] = rows({"request": {"messages": [{"role": "user", "content": "x"}]}, "response": said_by_claude})
    assert len(row["trace"]) == 3
    for message in (
        {"role": "assistant", "content": None, "refusal": "I can't."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "I can't."}]},
    ):
        [row] = rows({"request": {"messages": MESSAGES}, "response": {"choices": [{"message": message}]}})
        assert row["output"] == "I can't."


def test_traces_without_an_answer_and_spans_without_a_trace(tmp_path: Path) -> None:
    lone = {**chat(1, "Alone."), "traceId": ""}
    silent = span(1, "chat", "t7")
    reading = TraceReading()
    path = tmp_path / "traces.jsonl"
    lines = [
        otlp(lone),
        otlp({**lone, "spanId": "x"}),
        otlp(silent, {**TOOL_SPAN, "traceId": "t7"}),
        otlp(TOOL_SPAN),
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert [answer.answer.content for answer in read_traces(path, reading)] == ["Alone.", "Alone."]
    assert (reading.answers, reading.silent) == (2, 1)


def test_an_imported_trace_is_judged_by_its_steps(tmp_path: Path) -> None:
    lines = [otlp(chat(1, "Let me see."), TOOL_SPAN, FAILED_SPAN, chat(5, "14 days."))]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    asserted = [
        {"type": "trajectory:tool-sequence", "value": ["policy", "mail"]},
        {"type": "trajectory:tool-args-match", "value": {"name": "policy", "args": {"of": "refund"}}},
        {"type": "trace-error-spans", "value": 1},
        {"type": "trace-span-duration", "value": {"max": 250}},
        {"type": "trajectory:step-count", "value": {"type": "llm", "max": 2}},
    ]
    config = {"defaultTest": {"assert": asserted}, "tests": "file://tests.jsonl"}
    (tmp_path / "c.json").write_text(json.dumps(config), encoding="utf-8")
    assert run_geval("import", "traces", "log.jsonl", "-o", "tests.jsonl", cwd=tmp_path).code == 0
    ended = run_geval("run", "c.json", cwd=tmp_path)
    assert (ended.code, "1 passed" in ended.stdout) == (0, True), ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"\xff{}", "not JSON"),
        (b"{}", "none of the expected keys"),
        (b'{"messages": 3}', "none of the expected keys"),
        (b'{"custom_id": "x", "method": "POST", "body": {"messages": []}}', "none of the expected keys"),
        (b'{"a":' * 100_000, "JSON"),
        (b'{"request": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply|not JSON"),
    ],
)
def test_an_unknown_line_is_told_with_its_place(tmp_path: Path, line: bytes, why: str) -> None:
    file = tmp_path / "traces.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(LOG).encode() + b"\n\n" + line + b"\n")
    reading = TraceReading()
    assert len(list(read_traces(file, reading))) == 1
    [problem] = reading.problems
    assert str(problem.location) == f"{file}:3:1"
    assert any(part in problem.message for part in why.split("|"))


@pytest.mark.parametrize(
    "line",
    [
        {"attributes": {"gen_ai.operation.name": "chat"}},
        {"attributes": {"gen_ai.operation.name": "chat", "gen_ai.output.messages": [3, None, {}]}},
        {"attributes": [3, {"key": 4}, {"key": "gen_ai.x", "value": 3}]},
        {"attributes": {"llm.output_messages.999999999999.message.content": "x"}},
        {"custom_id": "x", "response": None, "error": {"code": "batch_expired"}},
        {"custom_id": "x", "result": {"type": "expired"}},
        {"request": {"messages": [1, [2]]}, "response": {"choices": [None]}},
        {"request": {"messages": "x"}, "response": {"choices": [{"message": {"content": 3.5, "role": 7}}]}},
        {"resourceSpans": [3, {"scopeSpans": {"spans": 4}}]},
    ],
)
def test_odd_lines_of_a_known_kind_break_nothing(line: Any) -> None:
    assert all(rows(line))


HOSTILE = ("{{ env.OPENAI_API_KEY }}", "{{ 7 * 7 }}", "file:///etc/passwd", "\ud800 \u202e \x00", "env.X {{")


@pytest.mark.parametrize("options", [(), ("--untrusted",)])
def test_what_was_logged_stays_a_text_in_the_file_of_tests(tmp_path: Path, options: Sequence[str]) -> None:
    lines = [
        {"request": {"messages": [{"role": "user", "content": text}]}, "response": {"output": text}}
        for text in HOSTILE
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (tmp_path / "c.yaml").write_text("tests: file://t.jsonl\n", encoding="utf-8")
    assert run_geval("import", "traces", "log.jsonl", "-o", "t.jsonl", cwd=tmp_path).code == 0
    env = clean_environment(OPENAI_API_KEY="sk-secret")
    ended = run_geval("run", "c.yaml", "-o", "r.json", *options, cwd=tmp_path, env=env)
    assert ended.code == 0, ended.stderr
    results = json.loads((tmp_path / "r.json").read_text("utf-8"))["results"]
    # A results file holds no half of a surrogate pair, and a text is not to begin like the name of a file.
    expected = [text.replace("\ud800", "\ufffd").replace("file://", " file://") for text in HOSTILE]
    assert [result["output"] for result in results] == expected


def test_half_of_a_surrogate_pair_keeps_no_imported_test_from_running(tmp_path: Path) -> None:
    half = "x\ud83d"
    call = {"id": "1", "type": "function", "function": {"name": half, "arguments": json.dumps({half: half})}}
    message = {"role": "assistant", "content": half, "tool_calls": [call]}
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": half,
        "gen_ai.conversation.id": half,
        "error.type": half,
        "gen_ai.input.messages": json.dumps(
            [
                {"role": "user", "content": half},
                message,
                {"role": "tool", "tool_call_id": "1", "content": half},
            ]
        ),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "content": half}]),
    }
    (tmp_path / "log.jsonl").write_text(
        json.dumps({"name": half, "attributes": attributes}), encoding="utf-8"
    )
    assert run_geval("import", "traces", "log.jsonl", "-o", "t.jsonl", cwd=tmp_path).code == 0
    written = (tmp_path / "t.jsonl").read_text("utf-8")
    assert '"name": "x\ufffd"' in written
    assert "\\ud83d" not in written
    check = "{tests: 'file://t.jsonl', defaultTest: {assert: [{type: contains, value: x}]}}"
    (tmp_path / "c.yaml").write_text(check, encoding="utf-8")
    ended = run_geval("run", "c.yaml", cwd=tmp_path)
    assert ended.code == 0, ended.stderr


def answers(count: int) -> list[ModelAnswer]:
    return [
        ModelAnswer((), TracedTurn("assistant", str(index)), {}, {"n": index % 2}) for index in range(count)
    ]


def picked(found: Sequence[ModelAnswer], sample: int | None, seed: int = 0, **where: str) -> list[int]:
    return [int(item.answer.content) for item in chosen_answers(found, list(where.items()), sample, seed)]


def test_a_sample_is_the_same_for_the_same_seed_in_order_and_even() -> None:
    found = answers(100)
    first = picked(found, 10)
    assert first == picked(found, 10) == sorted(set(first))
    assert len(first) == 10
    assert picked(found, 10, seed=1) != first
    assert picked(found, 200) == list(range(100))
    assert picked(found, None, n="1") == list(range(1, 100, 2))
    drawn = [index for seed in range(400) for index in picked(answers(10), 3, seed=seed)]
    counts = [drawn.count(index) for index in range(10)]
    assert min(counts) > 80  # 120 are expected of each; chance gives 80 once in a hundred thousand
    assert max(counts) < 160


def test_the_tests_validate_and_are_judged(tmp_path: Path) -> None:
    lines = [OTLP, OPENLLMETRY, LOG, BATCH, {"attributes": {"gen_ai.operation.name": "chat"}}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    config = "defaultTest: { assert: [{ type: contains, value: 14 days }] }\ntests: file://tests.jsonl\n"
    (tmp_path / "c.yaml").write_text(config, encoding="utf-8")
    ended = run_geval("import", "traces", "log.jsonl", "-o", "tests.jsonl", cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    assert "wrote 4 tests to tests.jsonl; 1 call without an answer skipped" in ended.stdout
    assert run_geval("validate", "c.yaml", cwd=tmp_path).code == 0
    judged = run_geval("run", "c.yaml", "--filter-metadata", "model=gpt-4.1", cwd=tmp_path)
    assert (judged.code, "1 passed" in judged.stdout) == (0, True)

    again = run_geval("import", "traces", "log.jsonl", "-o", "tests.jsonl", cwd=tmp_path)
    assert (again.code, "already exists" in again.stderr) == (2, True)
    where = ["--where", "service.name=shop", "--where", "gen_ai.request.model=gpt-4.1"]
    chosen = run_geval("import", "traces", "log.jsonl", "-o", "tests.jsonl", "--force", *where, cwd=tmp_path)
    assert "wrote 1 test " in chosen.stdout
    none = run_geval(
        "import", "traces", "log.jsonl", "-o", "tests.jsonl", "--force", "--where", "a=b", cwd=tmp_path
    )
    assert (none.code, "matches" in none.stderr) == (2, True)
    assert len((tmp_path / "tests.jsonl").read_text("utf-8").splitlines()) == 1


def test_bad_lines_end_the_import_unless_they_are_to_be_skipped(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(json.dumps(LOG) + "\nnonsense\n", encoding="utf-8")
    refused = run_geval("import", "traces", "log.jsonl", "-o", "t.jsonl", cwd=tmp_path)
    assert refused.code == 2
    assert "log.jsonl:2:1" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]
    skipped = run_geval("import", "traces", "log.jsonl", "-o", "t.jsonl", "--skip-bad", cwd=tmp_path)
    assert skipped.code == 0
    assert "1 unreadable line skipped" in skipped.stdout
    for arguments in (("missing.jsonl", "-o", "u.jsonl"), ("log.jsonl", "-o", "u.yaml")):
        assert run_geval("import", "traces", *arguments, cwd=tmp_path).code == 2


def test_import_without_a_kind_reads_a_suite() -> None:
    commands = ["import", "run"]
    assert as_typed(["import", "x.json"], commands) == ["import", "suite", "x.json"]
    for words in (["import", "traces", "x"], ["import", "suite", "x"], ["import", "--help"]):
        assert as_typed(words, commands) == words


@pytest.mark.parametrize("odd", [["text"], {"a": 1}, None, 5], ids=["list", "mapping", "null", "number"])
def test_a_kind_of_another_type_is_a_kind_that_is_not_known(odd: Any, tmp_path: Path) -> None:
    parts = [{"type": odd, "text": "no text"}, {"type": "text", "text": "Yes."}]
    lines = [
        {"messages": [{"role": "user", "content": "Well?"}, {"role": "assistant", "content": parts}]},
        {"trace_id": "t", "attributes": {"gen_ai.operation.name": odd, "x": 1}},
    ]
    (tmp_path / "traces.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    [answer] = read_traces(tmp_path / "traces.jsonl", TraceReading())
    assert answer.row()["output"] == "Yes."
