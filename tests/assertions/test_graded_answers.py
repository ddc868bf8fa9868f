"""factuality, model-graded-closedqa, conversation-relevance: what the judge decides about an answer."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from support.graded import SpeakingJudge, graded, graded_tools
from support.specs import assertion, case, check_context

from geval_cli.assertions.registry import check_assertion
from geval_cli.errors import JudgeError, Problem, Severity, UnjudgeableError
from geval_cli.records import Status, Turn
from geval_cli.specs.base import FactualityWeightsSpec, TestOptionsSpec
from geval_cli.specs.dialect import DEFAULT_RULES, PROMPTFOO_RULES, DialectRules
from geval_cli.templating.templates import templates_of


@pytest.mark.parametrize(
    ("category", "score", "status"),
    [
        ("A", 1, Status.PASSED),
        ("B", 1, Status.PASSED),
        ("C", 1, Status.PASSED),
        ("D", 0, Status.FAILED),
        ("E", 1, Status.PASSED),
    ],
)
@pytest.mark.parametrize("kind", ["factuality", "model-graded-factuality"])
def test_each_case_of_factuality_is_worth_something(
    kind: str, category: str, score: float, status: Status
) -> None:
    result = graded(kind, graded_tools(json.dumps({"category": category, "reason": "so"})), value="Paris")
    assert (result.status, result.score, result.reason) == (status, score, "so")
    assert result.detail["category"] == category


def test_the_worth_of_a_case_can_be_changed_and_what_is_above_nothing_passes() -> None:
    weights = FactualityWeightsSpec.model_validate({"disagree": 0.5, "agree": 0})
    test = {"options": TestOptionsSpec(factuality=weights)}
    disagreeing = graded("factuality", graded_tools("(D) It contradicts."), value="x", test=test)
    assert (disagreeing.status, disagreeing.score) == (Status.PASSED, 0.5)
    assert disagreeing.reason == "It contradicts."
    assert graded("factuality", graded_tools("C"), value="x", test=test).status is Status.FAILED
    strict = graded("factuality", graded_tools("D"), value="x", threshold=0.6, test=test)
    assert strict.status is Status.FAILED


def test_the_judge_sees_question_reference_and_answer() -> None:
    judge = SpeakingJudge(["C"])
    test = {"vars": {"city": "Paris"}}
    graded("factuality", graded_tools(judge=judge), output="Lyon", value="{{ city }}", test=test)
    for text in ("the prompt", "Paris", "Lyon"):
        assert text in judge.prompts[0]


_ASKED = [
    {"vars": {"query": "Which month is it?"}},
    {"input": "Which month is it?"},
    {"vars": {"input": "Which month is it?"}},
    {"turns": (Turn("user", "Which month is it?"), Turn("assistant", "May"))},
]


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        ("factuality", "C"),
        ("model-graded-closedqa", "Y"),
        ("choice", "good"),
        ("conversation-relevance", "yes"),
        ("context-relevance", '{"relevant": []}'),
    ],
)
@pytest.mark.parametrize("asked", _ASKED, ids=lambda asked: next(iter(asked.get("vars", asked))))
def test_the_judge_of_a_recorded_answer_sees_what_it_answers(
    kind: str, reply: str, asked: dict[str, Any]
) -> None:
    judge = SpeakingJudge([reply])
    fields = {"value": "It is May."} if kind not in ("conversation-relevance", "context-relevance") else {}
    fields |= {"choices": {"good": 1, "bad": 0}} if kind == "choice" else {}
    test = {"context": ("It is May.",), **asked}
    graded(kind, graded_tools(judge=judge), output="May", prompt="", test=test, **fields)
    assert "Which month is it?" in judge.prompts[0]


def test_a_prompt_that_was_sent_is_what_an_answer_answers() -> None:
    judge = SpeakingJudge(["C"])
    test = {"vars": {"query": "only the query"}, "input": "only the input"}
    graded("factuality", graded_tools(judge=judge), value="x", prompt="the whole prompt", test=test)
    assert "the whole prompt" in judge.prompts[0]
    assert "only the" not in judge.prompts[0]


@pytest.mark.parametrize("kind", ["context-relevance", "answer-relevance"])
def test_relevance_to_no_question_is_an_error_before_anyone_is_paid(kind: str) -> None:
    judge = SpeakingJudge(['{"relevant": [1]}'])
    with pytest.raises(UnjudgeableError, match="no question"):
        graded(kind, graded_tools(judge=judge), prompt=" ", test={"vars": {"question": "?", "context": "c"}})
    assert judge.requests == []


def test_a_prompt_of_your_own_may_ask_its_own_question() -> None:
    own = "What of {{ context }} answers {{ question }}?"
    test = {"vars": {"question": "How much?", "context": "It costs 5."}}
    found = graded("context-relevance", graded_tools("It costs 5."), prompt="", test=test, rubricPrompt=own)
    assert found.score == 1


_TAKES_LISTS = ("llm-rubric", "search-rubric", "similar", "rouge-n", "bleu", "gleu", "meteor")
_TAKES_A_TEXT = (
    *("factuality", "model-graded-closedqa", "choice", "select-best", "trajectory:goal-success"),
    *("context-recall", "context-precision", "noise-sensitivity"),
)


@pytest.mark.parametrize("kind", [*_TAKES_LISTS, *_TAKES_A_TEXT])
def test_a_value_that_is_blank_in_a_test_is_a_problem_before_anyone_is_paid(kind: str) -> None:
    test = case(vars={"nothing": " ", "context": "c"})

    def found(value: Any, rules: DialectRules = DEFAULT_RULES, **more: Any) -> list[Problem]:
        choices = {"choices": {"a": 1, "b": 0}} if kind == "choice" else {}
        spec = assertion(f"not-{kind}", value=value, **choices, **more)
        context = replace(check_context(test), templates=templates_of(rules, {}))
        return [problem for problem in check_assertion(spec, context) if " has no " in problem.message]

    lists = ([], ["{{ nothing }}", ""]) if kind in _TAKES_LISTS else ()
    for blank in ("", " \n", "{{ nothing }}", *lists):
        assert [problem.severity for problem in found(blank)] == [Severity.ERROR], blank
    for text in ("x", "{{ nothing }}x", *([["", "x"]] if kind in _TAKES_LISTS else ())):
        assert found(text) == []
    if kind != "trajectory:goal-success":  # promptfoo asks the judge all the same
        assert [problem.severity for problem in found("{{ nothing }}", PROMPTFOO_RULES)] == [Severity.WARNING]
    if kind in ("llm-rubric", "factuality", "choice", "context-recall"):
        assert found("{{ nothing }}", rubricPrompt="Is {{ output }} polite?") == []


def test_a_category_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(JudgeError):
        graded("factuality", graded_tools('{"category": "Z"}'), value="x")


@pytest.mark.parametrize(
    ("reply", "status"), [("Because of this.\nY", Status.PASSED), ('{"verdict": "N"}', Status.FAILED)]
)
def test_a_closed_question_is_yes_or_no(reply: str, status: Status) -> None:
    result = graded("model-graded-closedqa", graded_tools(reply), value="is polite")
    assert (result.status, result.score) == (status, float(status is Status.PASSED))
    assert result.reason


_NAMES = ("A", "A*", "U.S.", "U.K", "*", "+", "'90s", "no.", "not at all")


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize(
    "form", ["{}", ' "{}"\n', "**{}**", "{}.", '{{"choice": "{}"}}', '{{"reason": "r", "choice": " {} "}}']
)
def test_a_choice_is_the_one_that_is_named_whatever_marks_its_name_has(name: str, form: str) -> None:
    choices = {one: float(one == name) for one in _NAMES}
    result = graded("choice", graded_tools(form.format(name)), value="which?", choices=choices)
    assert (result.score, result.detail["choice"]) == (1.0, name)


def turns(count: int) -> dict[str, Any]:
    talk = [{"input": f"question {number}", "output": f"answer {number}"} for number in range(count)]
    return {"vars": {"_conversation": talk}}


def test_each_turn_is_judged_within_its_window() -> None:
    judge = SpeakingJudge([lambda prompt: "no" if prompt.rstrip().count("answer") == 1 else "yes"])
    result = graded(
        "conversation-relevance",
        graded_tools(judge=judge),
        test=turns(4),
        config={"windowSize": 2},
        threshold=0.75,
    )
    assert (result.status, result.score) == (Status.PASSED, 0.75)
    assert [prompt.count("question ") for prompt in judge.prompts] == [1, 2, 2, 2]
    assert "1 of 4 answers are not relevant" in result.reason


@pytest.mark.parametrize(
    ("turns", "is_read"),
    [
        ([{"input": "a", "output": "b"}], True),
        ([{"output": "Hello!"}, {"input": "a", "output": "b"}], True),
        ([], True),
        (None, True),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], False),
        ([{"input": "a", "output": "b"}, "c"], False),
        ('[{"input": "a", "output": "b"}]', False),
        ({"input": "a", "output": "b"}, False),
    ],
)
def test_turns_that_cannot_be_read_are_a_problem(turns: Any, is_read: bool) -> None:
    for rules, severity in ((DEFAULT_RULES, Severity.ERROR), (PROMPTFOO_RULES, Severity.WARNING)):
        context = check_context(case(vars={"_conversation": turns}))
        context = replace(context, templates=templates_of(rules, {}))
        found = check_assertion(assertion("conversation-relevance"), context)
        told = [problem.severity for problem in found if "_conversation" in problem.message]
        assert told == ([] if is_read else [severity])


def test_without_turns_prompt_and_output_are_the_conversation() -> None:
    judge = SpeakingJudge(["yes"])
    assert graded("conversation-relevance", graded_tools(judge=judge), output="hi there").score == 1
    assert "the prompt" in judge.prompts[0]
    assert "hi there" in judge.prompts[0]


def test_a_turn_that_cannot_be_judged_is_an_error() -> None:
    with pytest.raises(JudgeError):
        graded("conversation-relevance", graded_tools("hm"), test=turns(2))
