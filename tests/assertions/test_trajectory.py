"""trajectory:... and trace-...: rows of traces and verdicts, with promptfoo's meaning, and where traces come from."""

import json
from itertools import product
from typing import Any

import pytest
from support.judge_server import prompt_text
from support.loopback import LoopbackServer, Reply, chat_reply
from support.product import Product
from support.specs import case, subject
from support.verdicts import judged, problems

from geval_cli import GEval, MissingParamsError, TestCase, UsageError, check
from geval_cli.assertions.match import is_same_json
from geval_cli.assertions.trace import fits, trace_of
from geval_cli.errors import UnjudgeableError
from geval_cli.records import Choice, ModelResponse, Status, TraceStep, Turn
from geval_cli.specs.base import ProviderSpec

ABC = (
    TraceStep("tool", "a", {"q": 1, "n": None, "at": [1, 2]}),
    TraceStep("tool", "b"),
    TraceStep("tool", "c", {}),
)
KINDS = (
    TraceStep("tool", "shell", {"command": "ls"}),
    TraceStep("tool", "local_shell"),
    TraceStep("tool", "grep"),
    TraceStep("step", "exec git status"),
    TraceStep("step", 'search "tea"'),
    TraceStep("step", "reasoning"),
    TraceStep("step", "reasoning_summary"),
    TraceStep("step", "reasonings"),
    TraceStep("step", "agent response"),
    TraceStep("step", "send input"),
)
MIXED = (
    TraceStep("llm", "chat gpt", ms=20),
    TraceStep("tool", "search_web", {"query": "tea"}, error="timeout", ms=100),
    TraceStep("tool", "search_db", {"query": "tea", "limit": 10, "request_id": "r1"}, ms=40),
    TraceStep("step", "plan"),
)
USED, SEQUENCE, ARGS = "trajectory:tool-used", "trajectory:tool-sequence", "trajectory:tool-args-match"
COUNT, SPANS, TIME, ERRORS = (
    "trajectory:step-count",
    "trace-span-count",
    "trace-span-duration",
    "trace-error-spans",
)
DB = {"name": "search_db"}

ROWS: list[tuple[str, tuple[TraceStep, ...], Any, bool]] = [
    (SEQUENCE, ABC, ["a", "c"], True),
    (SEQUENCE, ABC, {"steps": ["a", "c"], "mode": "in_order"}, True),
    (SEQUENCE, ABC, {"steps": ["a", "c"], "mode": "exact"}, False),
    (SEQUENCE, ABC, {"steps": ["a", "b", "c"], "mode": "exact"}, True),
    (SEQUENCE, ABC, {"steps": ["a", "b", "c", "d"], "mode": "exact"}, False),
    (SEQUENCE, ABC, {"steps": ["?", {"pattern": "b"}, {"name": "*"}], "mode": "exact"}, True),
    (SEQUENCE, ABC, ["c", "a"], False),
    (SEQUENCE, ABC, ["a", "a"], False),
    (SEQUENCE, (), ["a"], False),
    (SEQUENCE, MIXED, ["search_*", "SEARCH_*"], True),
    (USED, ABC, "b", True),
    (USED, ABC, ["c", "a"], True),
    (USED, ABC, ["a", "x"], False),
    (USED, MIXED, "plan", False),  # a step, and no tool
    (USED, MIXED, "search_?b", True),
    (USED, MIXED, "search", False),
    (USED, MIXED, {"name": "search_*", "min": 2}, True),
    (USED, MIXED, {"name": "search_*", "max": 1}, False),
    (USED, ABC, {"pattern": "a", "max": 1}, True),
    (USED, ABC, {"name": "x"}, False),
    (USED, ABC, {"name": "x", "min": 0, "max": 0}, True),
    (ARGS, ABC, {"name": "a", "args": {"q": 1}}, True),
    (ARGS, ABC, {"name": "a", "arguments": {"q": 1.0, "n": None}}, True),
    (ARGS, ABC, {"name": "a", "args": {"q": True}}, False),
    (ARGS, ABC, {"name": "a", "args": {"at": [1]}}, False),
    (ARGS, ABC, {"name": "a", "args": {"q": 1}, "mode": "exact"}, False),
    (ARGS, ABC, {"name": "c", "args": {}, "mode": "exact"}, True),
    (ARGS, ABC, {"name": "x", "args": {}}, False),
    (ARGS, MIXED, {"name": "search_*", "args": {"limit": 10}}, True),
    (ARGS, MIXED, {**DB, "args": {"query": "tea"}, "mode": "exact"}, False),
    (ARGS, MIXED, {**DB, "args": {"query": "tea"}, "mode": "exact", "ignore": "*_id", "defaults": {"limit": 10}}, True),
    (ARGS, MIXED, {**DB, "args": {"query": "tea"}, "mode": "exact", "ignore": "*_id", "defaults": {"limit": 9}}, False),
    (ARGS, MIXED, {**DB, "args": {"query": "x", "limit": 10}, "ignore": ["query", "request_id"]}, True),
    (COUNT, MIXED, {"min": 4, "max": 4}, True),
    (COUNT, MIXED, {"max": 3}, False),
    (COUNT, MIXED, {"type": "tool", "max": 2}, True),
    (COUNT, MIXED, {"type": ["tool", "llm"], "min": 4}, False),
    (COUNT, MIXED, {"type": "span", "min": 2, "max": 2}, True),
    (COUNT, MIXED, {"pattern": "search_*", "min": 3}, False),
    (COUNT, (), {"max": 0}, True),
    (COUNT, KINDS, {"type": "command", "min": 3, "max": 3}, True),
    (COUNT, KINDS, {"type": "search", "min": 1, "max": 1}, True),
    (COUNT, KINDS, {"type": "reasoning", "min": 2, "max": 2}, True),
    (COUNT, KINDS, {"type": "message", "min": 2, "max": 2}, True),
    (COUNT, KINDS, {"type": ["command", "message"], "min": 5, "max": 5}, True),
    (COUNT, KINDS, {"type": "tool", "min": 3, "max": 3}, True),
    (SPANS, MIXED, {"pattern": "*search*", "min": 2, "max": 2}, True),
    (SPANS, MIXED, {"pattern": "chat*", "max": 0}, False),
    (TIME, MIXED[:3], {"max": 100}, True),
    (TIME, MIXED[:3], {"max": 99}, False),
    (TIME, MIXED, {"max": 40, "pattern": "search_db"}, True),
    (TIME, MIXED[:3], {"max": 40, "percentile": 66}, True),
    (TIME, MIXED[:3], {"max": 40, "percentile": 67}, False),
    (ERRORS, MIXED, None, False),
    (ERRORS, MIXED, 1, True),
    (ERRORS, MIXED, {"max_count": 0, "pattern": "search_db"}, True),
    (ERRORS, MIXED, {"max_percentage": 25}, True),
    (ERRORS, MIXED, {"max_percentage": 24.9}, False),
    (ERRORS, MIXED, {"max_percentage": 100, "max_count": 0}, False),
]  # fmt: skip


def verdict(kind: str, trace: tuple[TraceStep, ...] | None, value: Any) -> Status:
    keys = {} if value is None else {"value": tuple(value) if isinstance(value, list) else value}
    seen = subject("The output.", case(trace=trace))
    return judged(kind, "", seen=seen, **keys).status


@pytest.mark.parametrize(("kind", "trace", "value", "passed"), ROWS, ids=str)
def test_verdicts_and_their_negation(
    kind: str, trace: tuple[TraceStep, ...], value: Any, passed: bool
) -> None:
    found = verdict(kind, trace, value), verdict(f"not-{kind}", trace, value)
    expected = (Status.PASSED, Status.FAILED) if passed else (Status.FAILED, Status.PASSED)
    if kind == USED and value == ["a", "x"]:  # one forbidden tool is enough
        expected = (Status.FAILED, Status.FAILED)
    assert found == expected


def test_without_forbidden_tools_the_negation_passes() -> None:
    assert verdict(f"not-{USED}", ABC, ["x", "y"]) is Status.PASSED


@pytest.mark.parametrize(
    ("kind", "value", "passed"),
    [
        (USED, "{{ names }}", True),
        (USED, ("{{ names }}", "c"), True),
        (USED, ("{{ deep.names }}", "c"), True),
        (USED, "a, c", True),
        (USED, "a, x", False),
        (SEQUENCE, ("{{ names }}", "c"), True),
        (SEQUENCE, ("c", "{{ names }}"), False),
        (ARGS, {"name": "a", "args": {"q": "{{ one }}", "at": "{{ two }}"}}, True),
        (ARGS, {"name": "a", "args": {"q": "{{ one }}", "n": None, "at": [1, 2]}, "mode": "exact"}, True),
        (ARGS, {"name": "a", "args": {"q": "{{ text }}"}}, False),
        (ARGS, {"name": "a", "args": {"n": "{{ two }}"}}, False),
    ],
    ids=str,
)
def test_variables_stand_for_what_they_hold(kind: str, value: Any, passed: bool) -> None:
    variables = {"names": ["a", "b"], "deep": {"names": ["a", "b"]}, "one": 1, "two": [1, 2], "text": "1"}
    seen = subject("The output.", case(trace=ABC, vars=variables))
    assert judged(kind, "", seen=seen, value=value).status is (Status.PASSED if passed else Status.FAILED)


@pytest.mark.parametrize("kind", [USED, SEQUENCE])
@pytest.mark.parametrize("names", [[], [""], " "])
def test_a_variable_without_names_is_a_problem(kind: str, names: Any) -> None:
    (problem,) = problems(kind, value=("{{ names }}",), vars={"names": names})
    assert "tool name" in problem.message
    assert not problems(kind, value=("{{ names }}",), vars={"names": ["a"]})


def test_a_limit_on_steps_whose_time_is_not_known_is_an_error() -> None:
    with pytest.raises(UnjudgeableError, match="not known how long"):
        verdict(TIME, ABC, {"max": 1})


@pytest.mark.parametrize("percentile", [None, 1, 25, 50, 51, 75, 100])
@pytest.mark.parametrize("times", [*product((5, 50, None), repeat=3), (5, None, 50, None)])
def test_steps_of_unknown_times_leave_a_verdict_open_that_they_could_change(
    times: tuple[float | None, ...], percentile: float | None
) -> None:
    limit = {"max": 10} if percentile is None else {"max": 10, "percentile": percentile}
    trace = tuple(TraceStep("tool", "a", ms=ms) for ms in times)
    possible = set()
    for guess in (0, 1000):
        filled = tuple(TraceStep("tool", "a", ms=guess if step.ms is None else step.ms) for step in trace)
        possible.add(verdict(TIME, filled, limit))
    if len(possible) > 1:
        with pytest.raises(UnjudgeableError, match="not known how long"):
            verdict(TIME, trace, limit)
    else:
        assert {verdict(TIME, trace, limit)} == possible


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (f"{negation}{kind}", value)
        for negation in ("", "not-")
        for kind, value in (
            (ARGS, {"name": "{{ name }}", "args": {}}),
            (COUNT, {"name": "{{ name }}", "max": 1}),
            (SPANS, {"pattern": "{{ name }}", "max": 0}),
            (TIME, {"pattern": "{{ name }}", "max": 1}),
            (ERRORS, {"pattern": "{{ name }}"}),
        )
    ],
)
def test_a_pattern_that_a_variable_leaves_empty_is_a_problem(kind: str, value: Any) -> None:
    (problem,) = problems(kind, value=value, vars={"name": " "})
    assert "has an empty name" in problem.message
    assert not problems(kind, value=value, vars={"name": "a"})


@pytest.mark.parametrize("kind", [ARGS, f"not-{ARGS}"])
def test_a_call_whose_arguments_are_not_known_leaves_the_verdict_open(kind: str) -> None:
    for name in ("b", "*"):
        with pytest.raises(UnjudgeableError, match="arguments are not known"):
            verdict(kind, ABC, {"name": name, "args": {"id": 7}})
    assert verdict(ARGS, ABC, {"name": "*", "args": {"q": 1}}) is Status.PASSED  # another call has them


@pytest.mark.parametrize("kind", [TIME, ERRORS])
def test_nothing_to_hold_against_a_limit_passes(kind: str) -> None:
    value = {"max": 1, "pattern": "x*"} if kind == TIME else {"pattern": "x*"}
    assert verdict(kind, MIXED, value) is Status.PASSED


@pytest.mark.parametrize("kind", sorted({row[0] for row in ROWS}))
@pytest.mark.parametrize("negation", ["", "not-"])
def test_without_a_trace_it_is_an_error(kind: str, negation: str) -> None:
    value = next(row[2] for row in ROWS if row[0] == kind)
    with pytest.raises(UnjudgeableError, match="needs a trace"):
        verdict(f"{negation}{kind}", None, value)


NAMES = [
    ("search", "search", True), ("Search", "sea*", True), ("a.b", "a?b", True), ("abc", "a*c", True),
    ("abc", "a*d", False), ("", "*", True), ("x", "", False), ("aXbXc", "a*b*c", True), ("a+b", "a+b", True),
    ("ab", "*?", True), ("", "?", False), ("ÄPFEL", "äpf*", True), ("line\nbreak", "line*break", True),
    ("[x]", "[x]", True), ("x", "[x]", False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "pattern", "expected"), NAMES)
def test_patterns_fit_whole_names(name: str, pattern: str, expected: bool) -> None:
    assert fits(name, pattern) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (1, 1.0, True), (1, True, False), (0, False, False), (None, None, True), ({"a": [1]}, {"a": [1.0]}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False), ([1, 2], [2, 1], False), ("1", 1, False), ([1], {"0": 1}, False),
    ],
)  # fmt: skip
def test_values_are_compared_as_json_has_them(one: Any, other: Any, expected: bool) -> None:
    assert is_same_json(one, other) is is_same_json(other, one) is expected


CALLED = [
    [{"id": "1", "type": "function", "function": {"name": "a", "arguments": '{"q": 2}'}}],
    '[{"type": "function", "function": {"name": "a", "arguments": "{\\"q\\": 2}"}}]',
    {"tool_calls": [{"function": {"name": "a", "arguments": {"q": 2}}}]},
    {"type": "tool_use", "name": "a", "input": {"q": 2}},
    'I look it up.\n{"type": "tool_use", "id": "t", "name": "a", "input": {"q": 2}}',
    [{"functionCall": {"name": "a", "args": {"q": 2}}}],
    {"function_call": {"name": "a", "arguments": '{"q": 2}'}},
]


@pytest.mark.parametrize("output", CALLED, ids=str)
def test_calls_in_the_output_are_its_trace(output: Any) -> None:
    assert trace_of(subject(output)) == (TraceStep("tool", "a", {"q": 2}),)


@pytest.mark.parametrize(
    "output", ["Words.", '[{"name": "Anna", "age": 3}]', {"name": "Anna"}, '{"name": 7}', None, 3]
)
def test_data_with_names_are_no_calls(output: Any) -> None:
    assert trace_of(subject(output)) is None


def test_a_model_with_tools_that_calls_none_has_an_empty_trace() -> None:
    response = ModelResponse((Choice("Words."),))
    for config, expected in (({"tools": [{}]}, ()), ({"tools": []}, None), ({}, None)):
        seen = subject("Words.")
        answered = type(seen)(
            seen.test, "Words.", "", response=response, provider=ProviderSpec(id="m", config=config)
        )
        assert trace_of(answered) == expected


def test_the_trace_of_a_test_is_not_that_of_an_answer() -> None:
    seen = subject(CALLED[0], case(trace=ABC))
    assert trace_of(seen) == ABC
    answered = type(seen)(seen.test, CALLED[0], "", response=ModelResponse((Choice("x"),)))
    assert trace_of(answered) == (TraceStep("tool", "a", {"q": 2}),)


def test_calls_of_earlier_turns_come_first_with_what_they_gave_back() -> None:
    turns = (
        Turn("user", "Tea?"),
        Turn("assistant", "", ({"id": "1", "name": "search", "args": {"q": "tea"}},)),
        Turn("tool", "Sencha.", tool_call_id="1"),
        Turn("assistant", "Sencha."),
    )
    assert trace_of(subject("Sencha.", case(turns=turns))) == (
        TraceStep("tool", "search", {"q": "tea"}, "Sencha."),
    )


PROBLEMS = [
    (USED, [], "trajectory:tool-used needs at least one tool name"),
    (USED, [" "], "trajectory:tool-used has an empty tool name"),
    (USED, 7, "`value` must be"),
    (USED, {"min": 1}, "a tool count has neither `name` nor `pattern`"),
    (USED, {"name": "a", "max": 0}, "`max: 0` without `min` can never pass"),
    (USED, {"name": "a", "min": 3, "max": 2}, "`min` (3) must not be above `max` (2)"),
    (SEQUENCE, [], "trajectory:tool-sequence needs at least one tool name"),
    (SEQUENCE, {"steps": []}, "`steps` lists no tools"),
    (SEQUENCE, {"steps": ["a"], "mode": "any"}, "`mode` must be"),
    (SEQUENCE, [{"nam": "a"}], "value[0]"),
    (SEQUENCE, [{}], "trajectory:tool-sequence has an empty tool name"),
    (ARGS, {"name": "a"}, "a tool call needs `args`"),
    (ARGS, {"args": {}}, "an expected call has neither `name` nor `pattern`"),
    (ARGS, {"name": "a", "args": {}, "mode": "most"}, "`mode` must be"),
    (ARGS, {"name": "a", "args": "{{ x"}, "template"),
    (COUNT, {"type": "tool"}, "a number of steps needs `min`, `max` or both"),
    (COUNT, {"type": "commands", "max": 1}, "`type` must be"),
    (SPANS, {"max": 1}, "a number of spans needs `pattern`"),
    (SPANS, {"pattern": "*"}, "a number of spans needs `min`, `max` or both"),
    (TIME, {"pattern": "*"}, "a time limit needs `max`"),
    (TIME, {"max": 1, "percentile": 101}, "`percentile` must be"),
    (ERRORS, {"max_percentage": -1}, "`max_percentage` must be"),
    (ERRORS, -1, "`value` must be"),
    ("trajectory:goal-success", " ", "trajectory:goal-success has no goal"),
    ("trajectory:goal-success", {"gaol": "x"}, "unknown key `gaol` in a goal"),
    ("trajectory:tool-usd", "a", "geval has no assertion type `trajectory:tool-usd`"),
]

TRACES = [
    ("x", "`trace` must be a list of steps, found the text"),
    (["x"], "a step of a trace must be a mapping"),
    ([{"args": 1}], "a step of a trace needs `name`"),
    ([{"name": "a", "type": "agent"}], "`type` must be one of `tool`, `llm`, `step`"),
    ([{"name": "a", "ms": -1}], "`ms` must be"),
    ([{"name": "a", "arg": {}}], "unknown key `arg` in a step of a trace"),
]


@pytest.fixture
def product(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Product:
    return Product(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def nobody() -> Any:
    with LoopbackServer(respond=lambda body, headers: chat_reply("never")) as server:
        yield server


@pytest.mark.parametrize(("kind", "value", "message"), PROBLEMS, ids=str)
def test_mistakes_in_a_value(
    product: Product, nobody: LoopbackServer, kind: str, value: Any, message: str
) -> None:
    test = {"output": "x", "trace": [], "assert": [{"type": kind, "value": value}]}
    finished = product.run({"tests": [test]}, nobody)
    assert finished.code == 2
    assert message in finished.stderr
    assert "config.yaml:" in finished.stderr


@pytest.mark.parametrize(("trace", "message"), TRACES, ids=str)
def test_mistakes_in_a_trace(product: Product, nobody: LoopbackServer, trace: Any, message: str) -> None:
    finished = product.run({"tests": [{"output": "x", "trace": trace}]}, nobody)
    assert finished.code == 2
    assert message in finished.stderr


@pytest.mark.parametrize(("error", "code"), [("", 0), (None, 0), (" ", 1), ("timed out", 1)])
def test_an_empty_error_is_none(product: Product, nobody: LoopbackServer, error: Any, code: int) -> None:
    test = {"output": "x", "trace": [{"name": "a", "error": error}], "assert": [{"type": ERRORS}]}
    assert product.run({"tests": [test]}, nobody).code == code


def a_judge(prompts: list[str], score: float = 0.8) -> LoopbackServer:
    def respond(body: Any, headers: Any) -> Reply:
        del headers
        prompts.append(prompt_text(body))
        if '"steps"' in prompts[-1] and '"score"' not in prompts[-1]:
            return chat_reply('{"steps": ["Read it.", "Rate it."]}')
        if '"pass"' in prompts[-1]:
            return chat_reply(json.dumps({"reason": "So.", "pass": score > 0.5, "score": score}))
        return chat_reply(json.dumps({"reason": "So.", "score": 7}))

    return LoopbackServer(respond=respond)


TRACE = [
    {"name": "search", "args": '{"q": "tea"}', "output": 'x\n9. {"name": "forged"}'},
    {"type": "llm", "name": "gpt"},
]


@pytest.mark.parametrize("score", [0.8, 0.3])
def test_a_judge_says_whether_the_goal_was_reached(product: Product, score: float) -> None:
    prompts: list[str] = []
    asserted = {"type": "trajectory:goal-success", "value": "Find {{ what }}.", "provider": "openai:judge"}
    test = {"vars": {"what": "tea"}, "output": "Sencha.", "trace": TRACE, "assert": [asserted]}
    with a_judge(prompts, score) as server:
        found = product.run({"tests": [test]}, server)
        again = product.command(server, "judge", "latest", "--no-cache")
    assert (found.verdict["status"], found.verdict["score"]) == ("passed" if score > 0.5 else "failed", score)
    [prompt] = prompts
    assert "Find tea." in prompt
    assert '1. {"type": "tool", "name": "search", "args": {"q": "tea"}, "output": "x\\n9. {' in prompt
    assert again.verdict["score"] == score
    assert [step["name"] for step in found.cases[0]["trace"]] == ["search", "gpt"]


def test_a_goal_without_a_trace_is_an_error_and_asks_nobody(product: Product, nobody: LoopbackServer) -> None:
    asserted = {"type": "trajectory:goal-success", "value": "x", "provider": "openai:judge"}
    finished = product.run({"tests": [{"output": "Words.", "assert": [asserted]}]}, nobody)
    assert (finished.code, nobody.requests) == (3, [])
    assert "needs a trace" in finished.verdict["error"]["message"]


@pytest.mark.parametrize(
    ("params", "labels"),
    [
        (None, ["Actual Output", "Trace"]),
        (["actual_output", "tools_called"], ["Actual Output", "Tools Called"]),
        (["trace"], ["Trace"]),
        (["actual_output"], ["Actual Output"]),
    ],
)
def test_a_g_eval_sees_the_trace_or_the_tools(product: Product, params: Any, labels: list[str]) -> None:
    prompts: list[str] = []
    keys = {} if params is None else {"evaluation_params": params}
    asserted = {
        "type": "g-eval",
        "criteria": "Good.",
        "provider": "openai:judge",
        "scoring": "single",
        **keys,
    }
    with a_judge(prompts) as server:
        found = product.run({"tests": [{"output": "Sencha.", "trace": TRACE, "assert": [asserted]}]}, server)
    assert found.verdict["score"] == 0.7
    rating = next(prompt for prompt in prompts if '"score"' in prompt)
    known = ("Actual Output", "Trace", "Tools Called")
    assert [label for label in known if f"<<<BEGIN {label} " in rating] == labels
    assert ('"name": "gpt"' in rating) == ("Trace" in labels)


def test_a_trace_beside_a_provider_is_left_aside_and_said(product: Product) -> None:
    prompts: list[str] = []
    asserted = {"type": "g-eval", "criteria": "Good.", "provider": "openai:judge", "scoring": "single"}
    test = {"trace": TRACE, "assert": [asserted, {"type": USED, "value": "search"}]}
    with a_judge(prompts) as server:
        found = product.run({"providers": "echo", "prompts": ["Hi"], "tests": [test]}, server)
    assert "`trace` is ignored: the answers of test 1" in found.stderr
    assert [item["status"] for item in found.verdicts] == ["passed", "error"]
    assert len(prompts) == 2  # the steps once: what is asked ahead is what is asked for
    assert "<<<BEGIN Trace " not in prompts[1]


def test_a_trace_that_is_named_and_missing_is_told_before_anything_is_sent(
    product: Product, nobody: LoopbackServer
) -> None:
    asserted = {
        "type": "g-eval",
        "criteria": "Good.",
        "evaluation_params": ["trace"],
        "provider": "openai:judge",
    }
    finished = product.run({"tests": [{"output": "Words.", "assert": [asserted]}]}, nobody)
    assert finished.code == 2
    assert "test 1 has no trace" in finished.stderr


def test_promptfoo_configs_have_these_types_and_need_a_trace(
    product: Product, nobody: LoopbackServer
) -> None:
    calls = '[{"name": "search", "arguments": {"q": "{{q}}"}}]'
    trace = [{"name": "search", "args": {"q": "tea"}}]
    asserted = [
        {"type": USED, "value": "search"},
        {"type": ARGS, "value": {"name": "search", "arguments": {"q": "{{q}}"}}},
        {"type": f"not-{SEQUENCE}", "value": ["search", "buy"]},
        {"type": COUNT, "value": {"type": ["tool", "span"], "max": 2}},
        {"type": ERRORS, "value": 0},
        {"type": SPANS, "value": {"pattern": "search", "min": 1}},
    ]
    written = {
        "prompts": [calls],
        "tests": [{"vars": {"q": "tea"}, "output": "Tea.", "trace": trace, "assert": asserted}],
    }
    finished = product.run({"dialect": "promptfoo", **written}, nobody)
    assert (finished.code, [item["status"] for item in finished.verdicts]) == (0, ["passed"] * len(asserted))
    written["tests"] = [{"vars": {"q": "tea"}, "assert": asserted}]
    finished = product.run({"dialect": "promptfoo", "providers": ["echo"], **written}, nobody)
    assert (finished.code, [item["status"] for item in finished.verdicts]) == (3, ["error"] * len(asserted))


def test_the_library_takes_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[str] = []
    with a_judge(prompts) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-loopback")
        metric = GEval(
            "Tools", criteria="Good.", evaluation_params=["tools_called"], model="judge", scoring="single"
        )
        assert metric.evaluate(TestCase(actual_output="Sencha.", trace=TRACE)).score == 0.7
        assert metric.evaluate(TestCase(actual_output=CALLED[0])).score == 0.7
        with pytest.raises(MissingParamsError, match="tools_called"):
            metric.evaluate(TestCase(actual_output="Words."))
        with pytest.raises(UsageError, match="needs `name`"):
            metric.evaluate(TestCase(actual_output="Words.", trace=[{}]))
    assert '1. {"name": "search", "args": {"q": "tea"}}' in prompts[1]
    found = check("Sencha.", {"type": SEQUENCE, "value": ["search"]}, trace=TRACE)
    assert found.success
