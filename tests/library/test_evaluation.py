"""What an evaluation gives back, and which error it raises."""

import asyncio
import copy
import dataclasses
import math
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import Any, ClassVar

import pytest
from support.judge_server import STEPS, judge_sensibly, prompt_text
from support.loopback import LoopbackServer, Reply, chat_reply, choices_reply, error_reply
from support.scripted_judge import ScriptedJudge

from geval_cli import (
    ApiError,
    GEval,
    GevalError,
    JudgeError,
    MissingParamsError,
    Result,
    Suite,
    TestCase,
    UsageError,
    evaluate_batch,
    run,
)
from geval_cli.errors import ProviderUnavailableError
from geval_cli.judge.prompt import COMPARED
from geval_cli.library.check import prepare_check
from geval_cli.records import Choice, ModelRequest, ModelResponse, Usage

CASE = TestCase("How do I make pasta?", "Boil water, add pasta, drain, serve.")


def helpfulness(**arguments: Any) -> GEval:
    return GEval("Helpfulness", "Does the response help?", **arguments)


def last_prompt(server: LoopbackServer) -> str:
    return prompt_text(server.requests[-1].json)


def test_the_result_of_a_criteria_metric(server: LoopbackServer) -> None:
    result = helpfulness().evaluate(CASE)
    assert result == Result(
        metric="Helpfulness [GEval]",
        score=0.9,
        success=True,
        threshold=0.5,
        reason="Every step is there, in order.",
        latency_ms=result.latency_ms,
        metadata=result.metadata,
    )
    assert result.metadata["raw_score"] == 9
    assert result.metadata["evaluation_steps"] == list(STEPS)


async def not_awaited() -> str:
    return "fine"


NO_DATA: dict[str, Callable[[], Any]] = {
    "coroutine": not_awaited,
    "function": lambda: len,
    "object": object,
    "generator": lambda: (sign for sign in "ab"),
    "bytes": lambda: b"fine",
    "infinite": lambda: float("inf"),
    "nested": lambda: {"answer": [object()]},
}
CARRIERS: dict[str, Callable[[Any], TestCase]] = {
    "actual_output": lambda value: TestCase("q", value),
    "input": lambda value: TestCase(value, "fine"),
    "expected_output": lambda value: TestCase("q", "fine", expected_output=value),
    "context": lambda value: TestCase("q", "fine", context=[value]),
    "trace": lambda value: TestCase("q", "fine", trace=[{"name": "search", "args": {"a": value}}]),
}


@pytest.mark.parametrize("kind", NO_DATA)
@pytest.mark.parametrize("field", CARRIERS)
def test_what_is_no_data_is_refused_and_not_judged_by_its_name_in_python(
    field: str, kind: str, server: LoopbackServer
) -> None:
    value = NO_DATA[kind]()
    with pytest.raises(UsageError, match=rf"{field}\b") as caught:
        helpfulness().evaluate(CARRIERS[field](value))
    assert server.requests == []
    if kind == "coroutine":
        assert "add `await`" in str(caught.value)
        value.close()


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (5, "5"),
        ({(1, 2): 3}, '"(1, 2)": 3'),
        ({"a": (1, 2)}, '"a": ['),
        ({7}, "7"),
        (date(2026, 1, 2), "2026-01-02"),
    ],
)
def test_an_output_that_is_data_is_shown_as_json(output: Any, shown: str, server: LoopbackServer) -> None:
    helpfulness().evaluate(TestCase("q", output))
    assert shown in last_prompt(server)


def all_errors(kind: type[GevalError] = GevalError) -> list[type[GevalError]]:
    return [kind, *(below for item in kind.__subclasses__() for below in all_errors(item))]


def test_every_error_comes_whole_out_of_another_process() -> None:
    for kind in all_errors():
        error = kind.__new__(kind, "out of order")
        GevalError.__init__(error, "out of order", hint="try again")
        vars(error).update(status=503, body="{}", raw_text="Hm.", usage={"requests": 1}, params=("input",))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            found = pickle.loads(pickle.dumps(error, protocol))
            assert (type(found), str(found), vars(found)) == (kind, "out of order", vars(error))
        assert vars(copy.copy(error)) == vars(error)


def test_a_score_below_the_threshold_is_no_success(server: LoopbackServer) -> None:
    assert not helpfulness(threshold=0.91).evaluate(CASE).success
    assert helpfulness(threshold=0.9).evaluate(CASE).success


def test_the_range_of_the_ratings(server: LoopbackServer) -> None:
    server.add(chat_reply('{"steps": ["Read."]}'), chat_reply('{"reason": "Fine.", "score": 4}'))
    result = helpfulness(score_range=(1, 5)).evaluate(CASE)
    assert (result.score, result.metadata["raw_score"], result.metadata["score_range"]) == (0.75, 4, (1, 5))


def test_strict_mode(server: LoopbackServer) -> None:
    server.add(chat_reply('{"steps": ["Read."]}'), chat_reply('{"reason": "All of it.", "score": 1}'))
    result = helpfulness(strict_mode=True).evaluate(CASE)
    assert (result.score, result.threshold, result.success) == (1, 1, True)


def test_samples(server: LoopbackServer) -> None:
    verdicts = [f'{{"reason": "r{score}", "score": {score}}}' for score in (8, 9, 10)]
    server.add(choices_reply(verdicts))
    metric = helpfulness(evaluation_steps=["Read."], scoring="samples", samples=3)
    result = metric.evaluate(CASE)
    assert (result.score, result.reason) == (0.9, "r9")
    assert (result.metadata["valid"], result.metadata["requested"]) == (3, 3)
    assert server.requests[0].json["n"] == 3


@pytest.mark.parametrize("dimension", sorted(COMPARED))
@pytest.mark.parametrize("nothing", [None, "", " ", math.nan])
def test_a_dimension_without_a_source_is_not_rated(
    server: LoopbackServer, dimension: str, nothing: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The output was rated by itself: an answer that is consistent with nothing was consistent."""
    metric = GEval("m", dimension=dimension, scoring="single")
    with pytest.raises(MissingParamsError, match="lacks input") as caught:
        metric.evaluate(TestCase(nothing, "The summary."))
    assert "compares the output with it" in caught.value.hint
    assert not server.requests
    for number in range(2):
        prepare_check(f"output {number}", {"type": "g-eval", "dimension": dimension}, {})
    assert caplog.text.count(f"`{dimension}` compares outputs with a source") <= 1
    assert metric.evaluate(TestCase(nothing, "The summary.", context="The article.")).score is not None


def test_a_dimension_is_held_against_the_input(server: LoopbackServer) -> None:
    result = GEval("Coherence", dimension="coherence").evaluate(TestCase("The article.", "The summary."))
    assert (result.score, result.metadata["raw_score"]) == (0.75, 4)
    assert result.metadata["dimension"] == "coherence"
    assert result.metadata["source_from"] == "input"
    assert result.reason == "Coherence: 4 on a scale of 1 to 5 (mean of 20 samples: 4 100 %)"
    assert "The article." in last_prompt(server)


def test_a_dimension_is_held_against_the_context_when_there_is_one(server: LoopbackServer) -> None:
    case = TestCase("Vacation?", "20 days.", retrieval_context=["Section 1: 20 days.", "Section 2."])
    result = GEval("Grounded", dimension="groundedness").evaluate(case)
    assert result.metadata["source_from"] == "retrieval_context"
    assert "[1] Section 1: 20 days.\n[2] Section 2." in last_prompt(server)


def test_several_criteria_have_parts(server: LoopbackServer) -> None:
    metric = GEval("Style", ["Be kind.", "Be brief."], evaluation_steps=["Read."])
    result = metric.evaluate(CASE)
    assert result.score == 0.9
    assert [(part["criteria"], part["raw_score"]) for part in result.metadata["parts"]] == [
        ("Be kind.", 9),
        ("Be brief.", 9),
    ]


def test_output_that_is_no_text_is_shown_as_json(server: LoopbackServer) -> None:
    helpfulness().evaluate(TestCase("Book it.", {"tool": "book", "day": 3}))
    assert '{\n  "tool": "book",\n  "day": 3\n}' in last_prompt(server)


def test_what_a_table_lacks_is_missing_and_is_not_shown_to_the_judge(server: LoopbackServer) -> None:
    nothing = float("nan")
    row = TestCase("q", "a", expected_output=nothing, context=nothing, turns=nothing, trace=nothing)  # type: ignore[arg-type]
    metric = helpfulness(evaluation_steps=["Read."])
    metric.evaluate(row)
    metric.evaluate(TestCase("q", "a"))
    assert len(server.requests) == 1, "it is the same case"
    with pytest.raises(MissingParamsError):
        helpfulness(evaluation_params=["actual_output", "expected_output"]).evaluate(row)
    with pytest.raises(UsageError, match="actual_output"):
        metric.evaluate(TestCase("q", nothing))


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("context", 5, "the number 5"),
        ("retrieval_context", {"a": "b"}, "a mapping"),
        ("turns", 5, "the number 5"),
        ("trace", object(), "an object of the class object"),
    ],
)
def test_a_field_of_another_type_is_a_usage_error_of_its_case_alone(
    field: str, value: Any, found: str, server: LoopbackServer
) -> None:
    wrong = dataclasses.replace(CASE, **{field: value})
    metric = helpfulness(evaluation_steps=["Read."])
    before, error, after = evaluate_batch(metric, [CASE, wrong, TestCase("q", "a")])
    assert (isinstance(before, Result), isinstance(after, Result)) == (True, True)
    assert isinstance(error, UsageError)
    assert (field in str(error), found in str(error)) == (True, True), str(error)
    with pytest.raises(GevalError):
        run(Suite(tests=[wrong], assertions=[metric]))


def test_missing_params_are_named_before_anything_is_asked(server: LoopbackServer) -> None:
    metric = helpfulness(evaluation_params=["input", "expected_output", "context"])
    with pytest.raises(MissingParamsError) as caught:
        metric.evaluate(TestCase("q", "a", context=[" "] * 0))
    assert caught.value.params == ("expected_output", "context")
    assert server.requests == []


def test_a_refusal_of_the_api_has_status_and_body(server: LoopbackServer) -> None:
    server.add(error_reply(400, "the model does not exist"))
    with pytest.raises(ApiError, match="does not exist") as caught:
        helpfulness().evaluate(CASE)
    assert caught.value.status == 400
    assert "the model does not exist" in caught.value.body
    assert isinstance(caught.value, GevalError)


def test_a_refused_key_is_not_in_the_error(server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-key")
    server.add(error_reply(401, "Incorrect API key provided: sk-very-secret-key"))
    with pytest.raises(ApiError) as caught:
        helpfulness().evaluate(CASE)
    assert caught.value.status == 401
    assert "very-secret" not in f"{caught.value!r} {caught.value.body} {caught.value.__cause__!r}"


def test_a_server_that_is_not_there_has_no_status(monkeypatch: pytest.MonkeyPatch) -> None:
    model = {"id": "openai:m", "config": {"base_url": "http://127.0.0.1:9/v1", "max_retries": 0}}
    with pytest.raises(ApiError, match="cannot be reached") as caught:
        helpfulness(model=model).evaluate(CASE)
    assert (caught.value.status, caught.value.body) == (None, "")
    assert isinstance(caught.value.__cause__, ProviderUnavailableError)
    assert "is the server running?" in caught.value.__notes__


def test_an_unreadable_judge_is_a_judge_error_and_no_low_score(server: LoopbackServer) -> None:
    server.add(*[chat_reply("I would rather not.")] * 2)
    with pytest.raises(JudgeError, match="even after a retry") as caught:
        helpfulness(evaluation_steps=["Read."]).evaluate(CASE)
    assert caught.value.raw_text == "I would rather not."


PRICE = {"input": 100_000, "output": 100_000}  # each of the server's answers costs a dollar


@pytest.mark.parametrize(
    ("reply", "error", "sent"),
    [
        (chat_reply("I would rather not."), JudgeError, 2),
        (chat_reply("", finish_reason="content_filter"), ApiError, 1),
        (error_reply(400, "out of order"), ApiError, 0),
    ],
    ids=["unreadable", "withheld", "refused"],
)
def test_an_error_says_what_was_paid_for_it(
    reply: Reply, error: type[GevalError], sent: int, server: LoopbackServer
) -> None:
    server.add(*[reply] * max(sent, 1))
    model = {"id": "openai:m", "config": {"price": PRICE}}
    with pytest.raises(error) as caught:
        helpfulness(evaluation_steps=["Read."], model=model).evaluate(CASE)
    assert caught.value.usage is not None
    assert (len(server.requests), caught.value.usage["cost_usd"]) == (max(sent, 1), sent)


def test_the_usage_of_a_jury_has_the_answers_that_gave_no_verdict() -> None:
    def answer(body: Any, headers: Any) -> Reply:
        return chat_reply("Hm.") if body["model"] == "bad" else judge_sensibly(body, headers)

    with LoopbackServer(respond=answer) as server:
        config = {"base_url": server.base_url, "price": PRICE}
        judges = [{"id": f"openai:{name}", "config": config} for name in ("good", "bad", "better")]
        metric = helpfulness(evaluation_steps=["Read."], judges=judges, jury={"min_judges": 2})
        usage = metric.evaluate(CASE).metadata["usage"]
        assert (
            (usage["requests"], usage["cost_usd"]) == (len(server.requests), len(server.requests)) == (4, 4)
        )


def test_a_key_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(UsageError, match="OPENAI_API_KEY is not set"):
        helpfulness().evaluate(CASE)


def test_a_key_may_come_after_the_metric(server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL")
    metric = helpfulness()
    with pytest.raises(UsageError):
        metric.evaluate(CASE)
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    assert metric.evaluate(CASE).score == 0.9


class TestJudges:
    def test_another_model_for_one_call(self, server: LoopbackServer) -> None:
        metric = helpfulness(evaluation_steps=["Read."], model="gpt-4o")
        asked = [metric.evaluate(CASE, model="gpt-4o-mini"), metric.evaluate(CASE)]
        assert [request.json["model"] for request in server.requests] == ["gpt-4o-mini", "gpt-4o"]
        assert [result.metadata["judge"] for result in asked] == ["openai:gpt-4o-mini", "openai:gpt-4o"]

    def test_another_adapter_for_one_call(self, server: LoopbackServer) -> None:
        result = helpfulness().evaluate(CASE, adapter="anthropic", model="claude-sonnet-4-5")
        assert result.score == 0.9
        assert result.metadata["judge"] == "anthropic:claude-sonnet-4-5"
        assert {request.path for request in server.requests} == {"/v1/messages"}

    def test_settings_reach_the_wire(self, server: LoopbackServer) -> None:
        model = {"id": "openai:gpt-4o", "config": {"seed": 7}}
        helpfulness(model=model, evaluation_steps=["Read."]).evaluate(CASE)
        assert server.requests[0].json["seed"] == 7

    def test_an_object_may_judge(self) -> None:
        judge = ScriptedJudge(lambda request: '{"reason": "Good.", "score": 7}')
        metric = helpfulness(model=judge)
        results = [metric.evaluate(CASE), metric.evaluate(TestCase("Another?", "Yes."))]
        assert [result.score for result in results] == [0.7, 0.7]
        assert results[0].metadata["judge"] == "scripted:judge"
        assert len(judge.requests) == 3  # the steps once

    def test_objects_with_one_label_are_told_apart(self) -> None:
        first = ScriptedJudge(lambda request: '{"reason": "Good.", "score": 7}')
        second = ScriptedJudge(lambda request: '{"reason": "Bad.", "score": 2}')
        metric = helpfulness()
        assert [metric.evaluate(CASE, model=judge).score for judge in (first, second)] == [0.7, 0.2]

    def test_what_an_object_gets_wrong_is_not_hidden(self) -> None:
        judge = ScriptedJudge(lambda request: ZeroDivisionError("a bug of the caller"))
        with pytest.raises(ZeroDivisionError, match="a bug of the caller"):
            helpfulness(model=judge, evaluation_steps=["Read."]).evaluate(CASE)


class TestBatch:
    def test_results_come_in_the_order_of_the_cases(self, server: LoopbackServer) -> None:
        def answer(request: Any) -> str:
            number = int(str(request.messages[0].content).split("case number ")[1].split(" ")[0])
            return f'{{"reason": "r", "score": {number}}}'

        metric = helpfulness(model=ScriptedJudge(answer))
        cases = (TestCase("q", f"case number {number} ") for number in range(11))
        results = evaluate_batch(metric, cases, concurrency=4)
        assert [result.score for result in results if isinstance(result, Result)] == [
            number / 10 for number in range(11)
        ]

    def test_an_error_stands_in_the_place_of_its_case(self, server: LoopbackServer) -> None:
        metric = helpfulness(evaluation_params=["input", "actual_output", "expected_output"])
        cases = [
            dataclasses.replace(CASE, expected_output="e"),
            CASE,
            dataclasses.replace(CASE, expected_output="f"),
        ]
        first, second, third = evaluate_batch(metric, cases)
        assert isinstance(first, Result)
        assert isinstance(second, MissingParamsError)
        assert isinstance(third, Result)

    def test_a_failing_api_is_an_error_of_the_case(self, server: LoopbackServer) -> None:
        server.add(Reply(status=400, body={"error": {"message": "too long"}}))
        metric = helpfulness(evaluation_steps=["Read."])
        cases = [TestCase("q", "a"), TestCase("q", "b")]
        outcomes = evaluate_batch(metric, cases, concurrency=1)
        assert [type(outcome) for outcome in outcomes] == [ApiError, Result]

    def test_steps_are_asked_for_once(self, server: LoopbackServer) -> None:
        evaluate_batch(helpfulness(), [TestCase("q", str(number)) for number in range(12)])
        assert len(server.requests) == 13

    def test_concurrency_bounds_what_is_under_way(self, server: LoopbackServer) -> None:
        metric = helpfulness(evaluation_steps=["Read."])
        metric.evaluate(CASE)  # what the server takes is found out by a call of its own
        server.hold()
        cases = [TestCase("q", str(number)) for number in range(12)]
        with ThreadPoolExecutor(1) as pool:
            batch = pool.submit(evaluate_batch, metric, cases, concurrency=3)
            server.wait_for_requests(4)
            server.release()
            assert len(batch.result()) == 12
        assert server.peak_in_flight == 3

    def test_no_cases_cost_nothing(self, server: LoopbackServer) -> None:
        assert evaluate_batch(helpfulness(), []) == []
        assert server.requests == []

    def test_a_judge_that_cannot_be_asked_ends_the_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
        with pytest.raises(UsageError, match="OPENAI_API_KEY"):
            evaluate_batch(helpfulness(), [CASE])

    def test_concurrency_below_one(self, server: LoopbackServer) -> None:
        with pytest.raises(UsageError, match="concurrency must be at least 1"):
            evaluate_batch(helpfulness(), [CASE], concurrency=0)

    @pytest.mark.parametrize("strange", ["text", None, {"input": "a", "actual_output": "b"}])
    def test_what_is_no_test_case_ends_the_batch_before_anything_is_asked(
        self, server: LoopbackServer, strange: Any
    ) -> None:
        with pytest.raises(UsageError, match="must be a TestCase, found"):
            evaluate_batch(helpfulness(), [CASE, strange])
        with pytest.raises(UsageError, match="must be a TestCase, found"):
            helpfulness().evaluate(strange)
        assert server.requests == []

    def test_more_concurrency_than_cases_costs_nothing(self, server: LoopbackServer) -> None:
        judge = ScriptedJudge(lambda request: ZeroDivisionError("asked"))
        assert evaluate_batch(helpfulness(model=judge), [], concurrency=10**15) == []

    def test_what_an_object_gets_wrong_is_raised_as_it_is(self) -> None:
        judge = ScriptedJudge(lambda request: ZeroDivisionError("a bug of the caller"))
        with pytest.raises(ZeroDivisionError):
            evaluate_batch(helpfulness(model=judge, evaluation_steps=["Read."]), [CASE, CASE])


class _Judge:
    """A judge of the caller, whose `complete` returns, or raises, what it is made with."""

    label = "mine"
    provider_params: ClassVar[dict[str, Any]] = {}

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def complete(self, request: ModelRequest) -> Any:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


class _SyncJudge(_Judge):
    def complete(self, request: ModelRequest) -> Any:  # type: ignore[override]
        return self._answer


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        (_Judge("8"), "`complete` of mine returned str, not a ModelResponse"),
        (_Judge(None), "`complete` of mine returned NoneType, not a ModelResponse"),
        (_Judge(ModelResponse(())), "returned an invalid ModelResponse: it has no choices"),
        (_Judge(ModelResponse((Choice(b"8"),))), "Expected `str`, got `bytes`"),  # type: ignore[arg-type]
        (
            _Judge(ModelResponse((Choice("8"),), Usage(cost_usd=-1.0))),
            "`cost_usd` must be a number of at least 0",
        ),
        (_SyncJudge(ModelResponse((Choice("8"),))), "is no coroutine function: write `async def complete`"),
        (_Judge(SystemExit(0)), "mine raised SystemExit(0)"),
        (_Judge(asyncio.CancelledError()), "mine raised CancelledError()"),
    ],
)
def test_an_object_that_gives_no_answer_is_an_error_and_ends_no_program(judge: Any, message: str) -> None:
    with pytest.raises(GevalError) as caught:
        helpfulness(model=judge, evaluation_steps=["Read."]).evaluate(CASE)
    assert message in str(caught.value)
    criterion = {"type": "g-eval", "criteria": "It helps.", "provider": judge}
    (case,) = run(Suite(tests=[{"input": "q", "output": "a"}], assertions=[criterion])).errors
    [judged] = case.assertions
    assert judged.error is not None
    assert message in judged.error.message


def test_an_error_can_be_copied_with_its_words():
    error = MissingParamsError(("context", "input"))
    assert (str(copy.copy(error)), copy.copy(error).params) == (str(error), error.params)


def test_an_expected_output_that_is_no_text_is_shown_as_json(server: LoopbackServer) -> None:
    case = dataclasses.replace(CASE, expected_output={"minutes": 10})  # type: ignore[arg-type]
    helpfulness(evaluation_steps=["Read."]).evaluate(case)
    assert '"minutes": 10' in last_prompt(server)
