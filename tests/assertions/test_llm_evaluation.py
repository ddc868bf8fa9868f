import asyncio
from typing import Any

import pytest
from support.scripted_judge import ScriptedJudge, is_steps_request, prompt_of
from support.specs import TEMPLATES, case, check_context, tools

from geval_cli.assertions.base import MergedTest, Subject
from geval_cli.assertions.geval import LlmEvaluation
from geval_cli.assertions.registry import check_assertion, judge_assertion
from geval_cli.errors import JudgeParseError
from geval_cli.records import AssertionResult, Status
from geval_cli.specs.base import TestOptionsSpec

CRITERIA = "The answer is friendly."
SYSTEM = "You work in a bakery."


def spec(criteria: str = CRITERIA) -> LlmEvaluation:
    return LlmEvaluation(type="evaluation-llm", criteria=criteria)


def likes_it(request: Any) -> str:
    return '{"reason": "It greets.", "score": 8}'


def judged(
    test: MergedTest,
    criteria: str = CRITERIA,
    *,
    system: str | None = SYSTEM,
    prompt: str = "the whole prompt",
    judge: ScriptedJudge | None = None,
) -> tuple[AssertionResult, ScriptedJudge]:
    judge = judge or ScriptedJudge(likes_it)
    subject = Subject(test, "Good morning!", prompt, system=system)
    return asyncio.run(judge_assertion(spec(criteria), subject, tools(judge))), judge


def test_the_judge_sees_prompt_input_output_and_criteria() -> None:
    result, judge = judged(case(input="Hello."))
    [asked] = [prompt_of(request) for request in judge.ratings_asked]
    blocks = [asked.index(text) for text in ("Prompt:", SYSTEM, "Hello.", "Good morning!")]
    assert blocks == sorted(blocks)
    assert CRITERIA in asked
    assert (result.status, result.score, result.reason) == (Status.PASSED, 0.8, "It greets.")


def test_the_artefacts_of_the_judgement_are_kept() -> None:
    result, _ = judged(case(input="Hello."))
    kept = {name: result.detail[name] for name in ("criteria", "rating", "estimator", "judge")}
    assert kept == {
        "criteria": CRITERIA,
        "rating": 8,
        "estimator": "single",
        "judge": "scripted:judge",
    }
    assert result.detail["evaluation_steps"]


def test_the_steps_are_asked_for_once_the_prompt_is_known_to_be_shown() -> None:
    _, judge = judged(case(input="Hello."))
    [steps] = [prompt_of(request) for request in judge.requests if is_steps_request(request)]
    assert "Prompt, Input and Actual Output" in steps
    assert SYSTEM not in steps


def test_a_prompt_that_is_all_of_the_input_is_shown_once() -> None:
    _, judge = judged(case(), system=None, prompt="Say hello.")
    asked = prompt_of(judge.ratings_asked[0])
    assert asked.count("Say hello.") == 1
    assert "Prompt:" not in asked


def test_a_text_prompt_stands_beside_the_tests_input() -> None:
    _, judge = judged(case(input="Hello."), system=None, prompt="Answer kindly: Hello.")
    assert "Prompt:" in prompt_of(judge.ratings_asked[0])


@pytest.mark.parametrize("criteria", ["", "  \n ", "{{ wishes }}"])
def test_without_criteria_no_judge_is_asked_and_nothing_is_evaluated(criteria: str) -> None:
    test = case(input="Hello.", vars={"wishes": " "})
    assert check_assertion(spec(criteria), check_context(test)) == []
    result, judge = judged(test, criteria)
    assert (result.status, result.score, judge.requests) == (Status.NOT_EVALUATED, None, [])
    assert result.reason == "the prompt has no `evaluation_criteria`"


def test_criteria_are_templates_and_what_is_undefined_in_them_is_found_beforehand() -> None:
    _, judge = judged(case(input="Hello.", vars={"tone": "formal"}), "The answer is {{ tone }}.")
    assert "The answer is formal." in prompt_of(judge.ratings_asked[0])
    [problem] = check_assertion(spec("{{ tnoe }}"), check_context(case(vars={"tone": "x"})))
    assert (problem.message, problem.hint) == (
        "undefined variable `tnoe` (in test 1)",
        "did you mean `tone`?",
    )


def test_a_low_rating_fails_at_the_default_threshold() -> None:
    judge = ScriptedJudge(lambda request: '{"reason": "Rude.", "score": 4}')
    result, _ = judged(case(input="Hello."), judge=judge)
    assert (result.status, result.score, result.threshold) == (Status.FAILED, 0.4, 0.5)
    assert result.threshold_is_default


def test_a_judge_that_cannot_be_understood_is_an_error_and_no_verdict() -> None:
    with pytest.raises(JudgeParseError):
        judged(case(input="Hello."), judge=ScriptedJudge(lambda request: "Well..."))


def test_the_options_of_the_test_say_how_it_is_judged() -> None:
    options = TestOptionsSpec.model_validate({"samples": 3, "rubricPrompt": 'Rate {{ output }}: "score"'})
    test = case(input="Hello.", options=options)
    assert check_assertion(spec(), check_context(test)) == []
    result, judge = judged(test)
    assert result.detail["estimator"] == "samples"
    assert prompt_of(judge.ratings_asked[0]) == TEMPLATES.render('Rate Good morning!: "score"', {})
