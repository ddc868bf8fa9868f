"""`run` and `Suite`: what a Python program gives, and what it gets."""

import asyncio
import datetime
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from support.loopback import LoopbackServer, chat_reply

import geval_cli
from geval_cli import ConfigError, GEval, RunResult, Suite, TestCase, UsageError, arun, run
from geval_cli.errors import OutputError
from geval_cli.library.run import RunKeywords
from geval_cli.library.suite import build_suite
from geval_cli.records import RunStatus

CONTAINS = {"type": "contains", "value": "14"}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-test")
    return tmp_path


def bot(prompt: str) -> str:
    return f"14 days, {prompt}"


async def slow_bot(prompt: str, context: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"output": f"{context['vars']['input']}?", "cost": 0.25}


def outputs(result: RunResult) -> list[Any]:
    return [case.output for case in result]


def test_functions_answer_in_this_process_and_in_any_kind() -> None:
    class Bot:
        def __call__(self, prompt: str) -> str:
            return "an object"

    providers = [
        bot,
        slow_bot,
        Bot(),
        lambda prompt: "one",
        lambda prompt: "two",
        "echo",
        {"id": bot, "label": "named"},
    ]
    result = run(Suite(tests=[{"input": "Refund"}], providers=providers, assertions=[CONTAINS]))
    assert outputs(result) == [
        "14 days, Refund",
        "Refund?",
        "an object",
        "one",
        "two",
        "Refund",
        "14 days, Refund",
    ]
    labels = [case.provider.label for case in result]
    assert labels == ["bot", "slow_bot", "Bot", "lambda", "lambda#2", "echo", "named"]
    assert (result.passed, len(result.failures), result.errors, len(result)) == (False, 5, (), 7)
    assert result.summary.usage["generation"].cost_usd is None  # what the others cost, nobody knows
    assert result.results[0].assertions[0].location == "defaultTest.assert[0]"


@pytest.mark.parametrize(
    "tests",
    [
        [{"input": "a", "vars": {"n": 1}}, {"input": "b", "vars": {"n": 2}}],
        ({"input": name, "vars": {"n": number}} for number, name in enumerate("ab", 1)),
        iter([TestCase("a", None), TestCase("b", None)]),
    ],
    ids=["list", "generator", "cases"],
)
def test_tests_are_rows_of_any_kind(tests: Any) -> None:
    suite = Suite(tests=tests, providers=bot)
    assert outputs(run(suite)) == outputs(run(suite)) == ["14 days, a", "14 days, b"]


@pytest.mark.parametrize(
    "columns",
    [{"expected_output": ["x", float("nan")], "context": [None, "c"]}, {"metadata": [{"n": 1}, {"n": 2}]}],
    ids=["values", "mappings"],
)
def test_tests_are_the_rows_of_a_table(columns: dict[str, list[Any]]) -> None:
    import pandas as pd

    suite = Suite(tests=pd.DataFrame({"input": ["a", "b"], **columns}), providers=bot)
    assert outputs(run(suite)) == outputs(run(suite)) == ["14 days, a", "14 days, b"]


def test_texts_of_rows_are_data_and_name_no_files_and_no_keys(own_folder: Path) -> None:
    (own_folder / "secret.txt").write_text("the secret", encoding="utf-8")
    rows = [{"input": "file://secret.txt", "output": "{{ env.OPENAI_API_KEY }} file://secret.txt"}]
    result = run(Suite(tests=rows, assertions=[{"type": "contains", "value": "env.OPENAI"}]))
    assert (result.passed, outputs(result)) == (True, ["{{ env.OPENAI_API_KEY }} file://secret.txt"])
    assert "the secret" not in json.dumps(result.to_json())


def test_its_json_is_that_of_the_file(own_folder: Path) -> None:
    tests = [{"input": "q", "expected_output": "e", "output": "a"}, {"input": "q2", "output": "b"}]
    result = run(
        Suite(tests=tests, assertions=[{"type": "contains", "value": "a"}]), output=own_folder / "r.json"
    )
    written = json.loads((own_folder / "r.json").read_text(encoding="utf-8"))
    assert result.to_json() == written
    assert [item["input"] for item in written["tests"]] == ["q", "q2"]


def test_a_function_judges_and_so_does_a_metric(server: LoopbackServer) -> None:
    def judge(prompt: str) -> str:
        return '{"reason": "It is so.", "score": 4}' if '"score"' in prompt else '{"steps": ["Read."]}'

    metric = GEval("Tone", "It is kind.", threshold=0.3, model=judge_object(judge))
    assertions = [{"type": "g-eval", "criteria": "It is right.", "provider": judge}, metric]
    result = run(Suite(tests=[{"input": "q", "output": "a"}], assertions=assertions))
    assert [(item.metric, item.score) for item in result.results[0].assertions] == [
        ("it-is-right", 0.4),
        ("Tone", 0.4),
    ]
    assert (server.requests, result.passed) == ([], False)


def judge_object(answer: Callable[[str], str]) -> Any:
    class Judge:
        label = "mine"
        provider_params: Mapping[str, Any] = MappingProxyType({})

        async def complete(self, request: Any) -> Any:
            from geval_cli.records import Choice, ModelResponse

            return ModelResponse((Choice(answer(request.messages[-1].content)),))

    return Judge()


def raises(prompt: str) -> str:
    raise ValueError("no \x1b[31mway")


def ends(error: BaseException) -> Callable[[str], str]:
    def bot(prompt: str) -> str:
        raise error

    return bot


def ends_async(error: BaseException) -> Callable[[str], Any]:
    async def bot(prompt: str) -> str:
        raise error

    return bot


@pytest.mark.parametrize(
    "answer", [{"error": "out of tea"}, {"output": None}, {}], ids=["error", "null", "none"]
)
def test_what_a_function_took_is_counted_where_it_gives_no_answer(answer: dict[str, Any]) -> None:
    def bot(prompt: str) -> Any:
        return {**answer, "cost": 2.0, "token_usage": {"prompt": 7, "completion": 3}}

    tests = [{"input": "a"}, {"input": "b"}, {"input": "c"}]
    result = run(Suite(tests=tests, providers=[bot], assertions=[{"type": "contains", "value": "x"}]))
    usage = result.summary.usage["generation"]  # type: ignore[index]
    assert (len(result.errors), usage.cost_usd, usage.input_tokens, usage.output_tokens) == (3, 6.0, 21, 9)
    gated = run(Suite(tests=tests, providers=[bot], gates=["cost <= 5.5", "cost <= 6"]), max_errors=3)
    assert [(gate.status, gate.actual) for gate in gated.summary.gates][:2] == [
        ("failed", 6.0),
        ("passed", 6.0),
    ]


async def never(prompt: str) -> str:
    await asyncio.Event().wait()
    return ""


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        (raises, "function:raises raised ValueError: no"),
        (ends(StopIteration()), "raised RuntimeError: the call raised StopIteration()"),
        (ends(SystemExit(0)), "raised RuntimeError: the call raised SystemExit(0)"),
        (ends(asyncio.CancelledError()), "raised RuntimeError: the call raised CancelledError()"),
        (ends_async(SystemExit(0)), "raised SystemExit: 0"),
        (ends_async(asyncio.CancelledError()), "raised CancelledError"),
        (
            lambda prompt: {"output": [prompt, object()]},
            "cannot be JSON: an object of the class object is no data",
        ),
        (lambda prompt: None, "returned NoneType, not text"),
        (lambda prompt: 3, "returned int, not text"),
        (lambda prompt: {"error": "quota"}, "reported an error: quota"),
        ({"id": never, "config": {"timeout_s": 0.01, "max_retries": 0}}, "did not answer within 0.01 s"),
    ],
)
def test_a_function_that_breaks_is_an_error_and_no_low_score(provider: Any, message: str) -> None:
    result = run(Suite(tests=[{"input": "q"}], providers=[provider], assertions=[CONTAINS]))
    [case] = result.errors
    assert (case.score, result.failures, result.exit_code) == (None, (), 3)
    assert case.error is not None
    assert message in case.error.message


class _PolarsFrame:
    """What this suite needs of polars, which is not installed for tests."""

    columns = ("input", "output", "expected_output")

    def to_dict(self, *, as_series: bool = True) -> None:
        raise AssertionError("columns are no tests")

    def to_dicts(self) -> list[dict[str, Any]]:
        return ROWS


ROWS = [
    {"input": "q", "output": "14", "expected_output": "14"},
    {"input": None, "output": "15", "expected_output": None},
]


@pytest.mark.parametrize("library", ["polars", "pandas", "pyarrow"])
def test_a_table_of_each_library_is_its_rows(library: str) -> None:
    """Of polars it was a TypeError; what is missing in a row is missing in its test."""
    if library == "polars":
        table: Any = _PolarsFrame()
    elif library == "pandas":
        table = pytest.importorskip("pandas").DataFrame(ROWS)
    else:
        table = pytest.importorskip("pyarrow").Table.from_pylist(ROWS)
    result = run(Suite(tests=table, assertions=[CONTAINS]))
    assert [case.status.value for case in result] == ["passed", "failed"]
    rows = build_suite(Suite(tests=table)).document.value["tests"]
    assert [row.get("expected_output") for row in rows] == ["14", None]


def test_a_column_is_no_table() -> None:
    column = pytest.importorskip("pandas").DataFrame(ROWS)["input"]
    with pytest.raises(UsageError, match="must be an iterable of tests, found Series"):
        Suite(tests=column)


def test_none_as_an_option_is_as_good_as_left_out() -> None:
    suite = Suite(tests=[{"input": "q", "output": "14"}], assertions=[CONTAINS])
    assert run(suite, **dict.fromkeys(RunKeywords.__annotations__)).passed


EMPTY = {
    **dict.fromkeys(
        ("filter_pattern", "filter_providers", "filter_prompts"), "a regular expression that is not empty"
    ),
    **dict.fromkeys(
        ("home", "cache_dir", "env_file", "output", "grader", "resume"), "left out, or not empty"
    ),
}
"""An empty pattern, as of a variable that is not set, selected and paid for everything."""


def test_an_output_may_hold_what_numpy_counts_with_and_dates() -> None:
    numpy = pytest.importorskip("numpy")
    output = {"day": datetime.date(2026, 11, 27), "n": numpy.int64(3), "l": numpy.array([1, 2])}
    result = run(Suite(tests=[{"input": "q"}], providers=[lambda prompt: {"output": output}]))
    assert result.results[0].output == '{"day": "2026-11-27", "n": 3, "l": [1, 2]}'


@pytest.mark.parametrize(
    ("suite", "expected"),
    [
        ({"tests": []}, "`tests` has no entries"),
        (
            {"tests": [{"inputt": "q", "output": "a"}]},
            "tests[0].inputt: unknown key `inputt` in a test (did you mean",
        ),
        ({"tests": ["q"]}, "tests[0]: a test must be a mapping, found"),
        (
            {"tests": [{"output": "a", "assert": [{"type": "contain"}]}]},
            "tests[0].assert[0].type: unknown assertion",
        ),
        (
            {"tests": [{"input": "a"}], "providers": ["opnai:x"]},
            "providers[0]: unknown provider `opnai:x`",
        ),
        ({"tests": [{"vars": {}}], "providers": [bot]}, "input"),
        ({"tests": [{"output": "a"}], "gates": ["nonsense"]}, "gates[0]"),
        ({"tests": [{"input": "a"}], "providers": ["function:bot"]}, "unknown provider `function:bot`"),
    ],
)
def test_a_suite_that_is_wrong_says_where_before_anything_is_asked(
    suite: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        run(Suite(**suite))
    assert any(expected in note for note in caught.value.__notes__), caught.value.__notes__


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Suite(tests="suite.yaml"), "`tests` must be an iterable of tests, found str"),
        (lambda: Suite(tests=3), "found int"),
        (lambda: Suite(tests={"input": "q"}), "found dict"),
        (lambda: Suite(tests=[], name=" "), "`name` of a Suite"),
        (
            lambda: run(Suite(tests=[{"vars": {"x": object()}}])),
            "tests[0].vars.x: an object of the class object",
        ),
        (
            lambda: run(Suite(tests=[{"vars": {"x": float("inf")}}])),
            "tests[0].vars.x: JSON has no number inf",
        ),
        (
            lambda: run(Suite(tests=[{"output": "a", "assert": [bot]}])),
            "assert[0]: a function is not allowed here",
        ),
        (lambda: run(Suite(tests=[deep(100)])), "this is nested too deeply"),
        (lambda: run(3), "a suite is a Suite or the path of a config, not int"),  # type: ignore[arg-type]
        (lambda: run("s.yaml", offlin=True), "has no option `offlin` (did you mean `offline`?)"),  # type: ignore[call-arg]
        (lambda: run("s.yaml", samples=0), "`samples` must be a whole number from 1 to 1000, found 0"),
        (lambda: run("s.yaml", samples=True), "`samples` must be a whole number"),
        (lambda: run("s.yaml", max_cost=float("nan")), "`max_cost` must be an amount in USD of at least 0"),
        (lambda: run("s.yaml", fail_under=90), "`fail_under` must be a share between 0 and 1"),
        (lambda: run("s.yaml", stop_when="bored"), "`stop_when` must be decided, found 'bored'"),  # type: ignore[arg-type]
        (lambda: run("s.yaml", scoring="mean"), "`scoring` must be one of auto, logprobs"),  # type: ignore[arg-type]
        *(
            (partial(run, "s.yaml", filter_metadata=found), "`filter_metadata` must be a mapping of texts")
            for found in ({"topic": 1}, {"topic": True}, {"topic": ["a"]}, {1: "a"}, "topic=a", ["topic"])
        ),
        (lambda: run("s.yaml", filter_pattern="("), "`filter_pattern` must be a regular expression"),
        *(
            (lambda name=name: run("s.yaml", **{name: ""}), f"`{name}` must be {words}")
            for name, words in EMPTY.items()
        ),
        (lambda: run("s.yaml", cache_ttl="soon"), "`cache_ttl` must be an age"),
        (lambda: run("s.yaml", offline=True, cache=False), "only the cache answers"),
        (lambda: run("s.yaml", vars=["x"]), "`vars` must be a mapping"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_is_a_usage_error(make: Callable[[], Any], expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert expected in str(caught.value)


def test_a_strangers_suite_is_not_run_in_a_program_that_nothing_confines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GEVAL_UNTRUSTED", "1")
    for ask in (
        lambda: run(Suite(tests=[{"output": "14"}])),
        lambda: run("suite.yaml"),
        lambda: geval_cli.check("14", CONTAINS),
    ):
        with pytest.raises(UsageError, match="GEVAL_UNTRUSTED is set"):
            ask()


def test_progress_is_shown_where_it_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    suite = Suite(tests=[{"output": "14"}], assertions=[CONTAINS])
    run(suite)
    assert capfd.readouterr().err == ""
    run(suite, progress=True)
    assert "1 passed" in capfd.readouterr().err


def deep(levels: int) -> Any:
    return {"vars": deep(levels - 1)} if levels else {}


def test_files_run_like_suites_and_their_mistakes_have_lines(own_folder: Path) -> None:
    (own_folder / "s.yaml").write_text(
        "prompts: ['{{ x }}']\nproviders: [echo]\ntests: [{ vars: { x: a } }]\n"
    )
    assert outputs(run("s.yaml", vars={"x": "b"}, output="results.json", repeats=2)) == ["b", "b"]
    written = json.loads((own_folder / "results.json").read_text(encoding="utf-8"))
    assert written["summary"]["total"] == 2
    (own_folder / "bad.yaml").write_text("tests:\n  - { outputt: a }\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        run(own_folder / "bad.yaml")
    assert any("bad.yaml:2:7: unknown key `outputt`" in note for note in caught.value.__notes__)
    with pytest.raises(ConfigError):
        run("none.yaml")
    with pytest.raises((ConfigError, OutputError)):
        run("s.yaml", output="results.txt")


def judged(count: int, **more: Any) -> Suite:
    rows = [{"input": f"q{number}", "output": f"a{number}"} for number in range(count)]
    return Suite(
        tests=rows, assertions=[{"type": "g-eval", "criteria": "It is right."}], name="judged", **more
    )


def test_a_budget_ends_a_run_and_resuming_it_pays_for_the_rest_alone(server: LoopbackServer) -> None:
    stopped = run(judged(4), grader="openai:m", max_requests=3, max_concurrency=1)
    assert (stopped.run.status, stopped.passed, len(server.requests)) == (RunStatus.ABORTED, False, 3)
    assert [text for text in stopped.run.warnings if text.endswith("`resume=True` continues the run)")]
    whole = run(judged(4), grader="openai:m", resume=True)
    assert (whole.run.id, whole.passed, len(whole)) == (stopped.run.id, True, 4)
    asked = len(server.requests)
    assert run(judged(4), grader="openai:m").passed
    assert run(judged(4), grader="openai:m", offline=True).passed
    assert len(server.requests) == asked  # a second run is answered by the cache
    with pytest.raises(UsageError, match="no unfinished run"):
        run(judged(4), grader="openai:m", resume=True)


def _module(code: str) -> Any:
    """The function `bot` of a cell or file with this code."""
    names: dict[str, Any] = {}
    exec(code, names)
    return names["bot"]


def _enclosed(name: str) -> Any:
    def inner(prompt: str) -> str:
        return name + prompt

    return inner


class _Bot:
    def __init__(self, model: str) -> None:
        self.model, self.calls = model, 0

    def __call__(self, prompt: str) -> str:
        self.calls += 1
        return self.model + prompt


FUNCTIONS: dict[str, Callable[[str], Any]] = {
    "what partial gives it": lambda model: partial(_Bot.__call__, model),
    "a keyword of partial": lambda model: partial(bot, prompt=model),
    "a default value": lambda model: _module(f"def bot(prompt, model={model!r}): return model"),
    "a default value by keyword": lambda model: _module(f"def bot(prompt, *, model={model!r}): return model"),
    "a text of its cell": lambda model: _module(f"MODEL = {model!r}\ndef bot(prompt): return MODEL"),
    "a text of its cell, deep in it": lambda model: _module(
        f"MODEL = {model!r}\ndef bot(prompt): return [(lambda: MODEL)() for _ in prompt]"
    ),
    "a function of its cell": lambda model: _module(
        f"def ask(prompt): return {model!r} + prompt\ndef bot(prompt): return ask(prompt)"
    ),
    "a text around it": _enclosed,
    "what a decorator wraps": lambda model: _module(
        "import functools\ndef again(f):\n  @functools.wraps(f)\n  def g(p): return f(p)\n  return g\n"
        f"@again\ndef bot(prompt): return {model!r}"
    ),
    "what a decorator without wraps wraps": lambda model: _module(
        f"def again(f): return lambda p: f(p)\n@again\ndef bot(prompt): return {model!r}"
    ),
    "what is cached": lambda model: _module(
        f"import functools\n@functools.cache\ndef bot(prompt): return {model!r}"
    ),
    "an object that is called": _Bot,
    "a method": lambda model: _Bot(model).__call__,
}


@pytest.mark.parametrize("make", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_function_has_changed_if_what_decides_its_answers_has(make: Callable[[str], Any]) -> None:
    """A resumed run was answered half by one model and half by another."""

    def identity(function: Any) -> Mapping[str, str]:
        return build_suite(Suite(tests=[{"input": "q"}], providers=[function])).parts

    first = make("gpt-4.1")
    assert identity(first) == identity(make("gpt-4.1"))
    assert identity(first) != identity(make("gpt-4.1-mini"))


def test_a_function_that_counts_its_calls_has_not_changed() -> None:
    counting, called = _module("n = 0\ndef bot(prompt):\n  global n\n  n += 1"), _Bot("m")
    before = [build_suite(Suite(tests=[], providers=[item])).parts for item in (counting, called)]
    counting("q"), called("q")
    assert before == [build_suite(Suite(tests=[], providers=[item])).parts for item in (counting, called)]


def test_a_run_whose_function_changed_is_not_resumed() -> None:
    first = run(Suite(tests=[{"input": "q"}], providers=[{"id": lambda prompt: "one"}]))
    with pytest.raises(UsageError, match="because its inputs have changed"):
        run(Suite(tests=[{"input": "q"}], providers=[{"id": lambda prompt: "two"}]), resume=first.run.id)


def test_in_a_running_loop_run_blocks_and_arun_does_not() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        seen = []

        async def here(prompt: str) -> str:
            seen.append(asyncio.get_running_loop())
            return "14"

        suite = Suite(tests=[{"input": "q"}], providers=[here], assertions=[CONTAINS])
        assert run(suite).passed
        assert (await arun(suite)).passed
        assert (seen[0] is loop, seen[1] is loop) == (False, True)

    asyncio.run(main())


def test_a_cancelled_run_is_stored_as_interrupted(server: LoopbackServer, own_folder: Path) -> None:
    async def main() -> None:
        task = asyncio.create_task(arun(judged(2), grader="openai:m"))
        await asyncio.to_thread(server.wait_for_requests, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    server.hold()
    try:
        asyncio.run(main())
    finally:
        server.release()
    result = run(judged(2), grader="openai:m", resume=True)
    assert (result.passed, len(result)) == (True, 2)


def test_a_result_shows_itself_and_no_markup_of_a_model() -> None:
    hostile = "<script>alert(1)</script>\x1b[31m\u202e"
    result = run(
        Suite(tests=[{"description": "<b>", "input": "q", "output": hostile}], assertions=[CONTAINS])
    )
    shown = result._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m\\u202e" in shown
    assert ("<script" in shown, "<b>" in shown, "\x1b" in shown) == (False, False, False)
    assert "contains: the output does not contain" in shown
    assert repr(result) == f"<RunResult {result.run.id}: completed, 0 passed, 1 failed, 0 errors>"
    many = run(Suite(tests=({"output": "14"} for _ in range(120)), assertions=[CONTAINS]))._repr_html_()
    assert (many.count("<tr>"), "and 20 more" in many) == (101, True)


TOOLS = 'def find_order(order: int) -> str:\n    """Find an order."""\n    return f"order {order} is sent"\n'
RECORDED = {
    "definitions": [{"name": "find_order", "description": "Find it.", "parameters": {"type": "object"}}],
    "recorded": [{"name": "find_order", "result": "order 7 is sent"}],
}


@pytest.mark.parametrize("of_test", [False, True])
@pytest.mark.parametrize("tools", ["file://tools.py", ["file://tools.py:find_order"], RECORDED])
def test_tools_are_answered_as_in_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tools: Any, of_test: bool
) -> None:
    (tmp_path / "tools.py").write_text(TOOLS, encoding="utf-8")

    def respond(body: Any, headers: Any) -> Any:
        last = body["messages"][-1]
        if last["role"] == "tool":
            return chat_reply(f"It says: {last['content']}")
        function = {"name": body["tools"][0]["function"]["name"], "arguments": '{"order": 7}'}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        }
        return {"choices": [{"message": message, "finish_reason": "tool_calls"}]}

    test = {"input": "Where is order 7?", **({"tools": tools} if of_test else {})}
    suite = Suite(tests=[test], providers="openai:m", tools=None if of_test else tools, folder=tmp_path)
    with LoopbackServer(respond=respond) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-loopback")
        result = run(suite)
    assert outputs(result) == ["It says: order 7 is sent"]
    with pytest.raises(
        UsageError, match=r"a function is not allowed here \(name it by its file: file://tools"
    ):
        run(Suite(tests=[{"input": "x"}], providers="echo", tools=[respond]))


def test_results_become_data_frames_with_the_scores_and_reasons_of_each_metric() -> None:
    assertion = {"type": "contains", "value": "14", "metric": "days"}
    result = run(Suite(tests=[{"output": "14"}, {"output": "no \ud800"}], assertions=[assertion]))
    frame = result.to_pandas()
    assert list(frame["status"]) == ["passed", "failed"]
    assert list(frame["metric.days"]) == [1.0, 0.0]
    assert 'does not contain "14"' in frame["reason.days"][1]
    assert list(frame["output"]) == ["14", "no \ufffd"]


def test_a_polars_frame_has_its_types_also_where_all_is_null_or_the_library_is_named() -> None:
    result = run(Suite(tests=[{"output": "14", "vars": {"q": "Why?"}}]))
    if find_spec("polars") is None:
        with pytest.raises(UsageError, match="`to_polars` needs polars"):
            result.to_polars()
        return
    frame = result.to_polars()
    assert [str(frame.schema[name]) for name in ("test_index", "score", "error")] == [
        "Int64",
        "Float64",
        "String",
    ]
    assert list(frame["var.q"]) == ["Why?"]


@pytest.fixture
def notebook() -> Iterator[Any]:
    nbformat = pytest.importorskip("nbformat")
    return nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(
                "import geval_cli\n"
                "rows = [{'output': '<i>14</i>', 'assert': [{'type': 'contains', 'value': '14'}]}]\n"
                "suite = geval_cli.Suite(tests=rows)\n"
                "geval_cli.run(suite)"
            ),
            nbformat.v4.new_code_cell("(await geval_cli.arun(suite)).passed"),
            nbformat.v4.new_code_cell("geval_cli.check('14', {'type': 'equals', 'value': '<b>'})"),
        ]
    )


@pytest.mark.filterwarnings("ignore")  # of the kernel's libraries
def test_a_notebook_shows_tables(notebook: Any, own_folder: Path) -> None:
    from nbclient import NotebookClient

    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(own_folder)}}).execute()
    table, passed, verdict = (cell["outputs"][-1]["data"] for cell in notebook["cells"])
    for cell in notebook["cells"][:2]:  # run has a thread of its own, arun the notebook's loop
        progress = cell["outputs"][0]["data"]
        assert progress["text/plain"].startswith("1/1 · 1 passed · ")
        assert '<progress max="1" value="1">' in progress["text/html"]
    assert "&lt;i&gt;14&lt;/i&gt;" in table["text/html"]
    assert passed["text/plain"] == "True"
    assert "<th>status</th>" in verdict["text/html"]
    assert "&lt;b&gt;" in verdict["text/html"]


def test_the_library_and_its_modules_have_one_name_each() -> None:
    assert geval_cli.run is run
