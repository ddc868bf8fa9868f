"""Tests of a support bot, judged by geval: `pytest examples/pytest`. They need no key and no network."""

from pathlib import Path

import pytest

from geval_cli import GEval, TestCase

# This judge reads its replies from a file. In real tests, use a model: grader="openai:gpt-4.1".
JUDGE = f"scripted:{Path(__file__).with_name('judge.yaml')}"
pytestmark = pytest.mark.geval(grader=JUDGE)

ANSWERS = {
    "How long do refunds take?": "With pleasure: your money is back within 14 days.",
    "Can I pay by card?": "Yes, of course. We take every common card.",
}


def answer(question: str) -> str:
    """Stand in for your own application."""
    return ANSWERS[question]


def test_the_deadline_is_named(geval):
    geval.check(answer("How long do refunds take?"), {"type": "contains", "value": "14 days"})


@pytest.mark.parametrize("question", ANSWERS)
def test_answers_are_polite(geval, question):
    geval.check(answer(question), input=question, criteria="The answer is polite.", threshold=0.7)


def test_the_answer_helps(geval):
    question = "Can I pay by card?"
    case = TestCase(input=question, actual_output=answer(question))
    result = geval.judge(case, GEval("Helpfulness", "The answer answers the question."))
    assert result.success, result.reason
