"""context-recall, context-relevance, context-faithfulness, answer-relevance: numbers worked by hand."""

import json
from typing import Any

import pytest
from support.graded import SpeakingJudge, graded, graded_tools
from support.verdicts import problems

from geval_cli.errors import JudgeError, UnjudgeableError
from geval_cli.records import Status

CONTEXT = {"vars": {"query": "How much?", "context": "It costs 5.\n\nIt is red.\nIt is old."}}


def recalled(*attributed: bool) -> str:
    return json.dumps({"sentences": [{"sentence": "s", "attributed": claim} for claim in attributed]})


@pytest.mark.parametrize(
    ("attributed", "score", "status"),
    [
        ((True, True, False, False), 0.5, Status.PASSED),
        ((True, False, False), 1 / 3, Status.FAILED),
        ((True,), 1.0, Status.PASSED),
    ],
)
def test_recall_is_the_share_of_attributed_sentences(
    attributed: tuple[bool, ...], score: float, status: Status
) -> None:
    result = graded("context-recall", graded_tools(recalled(*attributed)), value="A. B.", test=CONTEXT)
    assert result.score == pytest.approx(score)
    assert (result.status, result.threshold) == (status, 0.5)


def test_recall_takes_the_prompt_where_there_is_no_context() -> None:
    judge = SpeakingJudge([recalled(True)])
    graded("context-recall", graded_tools(judge=judge), value="A.", prompt="It says A.")
    assert "It says A." in judge.prompts[0]


@pytest.mark.parametrize(("relevant", "score"), [([1], 1 / 3), ([1, 3, 3], 2 / 3), ([], 0.0)])
def test_relevance_is_the_share_of_needed_lines(relevant: list[int], score: float) -> None:
    reply = json.dumps({"relevant": relevant})
    result = graded("context-relevance", graded_tools(reply), test=CONTEXT)
    assert result.score == pytest.approx(score)


def test_relevance_counts_the_passages_of_a_list() -> None:
    test = {"vars": {"query": "q"}, "retrieval_context": ("one\ntwo", "three")}
    assert graded("context-relevance", graded_tools('{"relevant": [2]}'), test=test).score == 0.5


def test_relevance_of_the_users_own_prompt_counts_quoted_lines() -> None:
    own = "Quote what of {{ context }} answers {{ query }}."
    quoting = graded("context-relevance", graded_tools("It costs 5."), test=CONTEXT, rubricPrompt=own)
    assert quoting.score == pytest.approx(1 / 3)
    nothing = graded(
        "context-relevance", graded_tools("Insufficient Information"), test=CONTEXT, rubricPrompt=own
    )
    assert nothing.score == 0
    with pytest.raises(JudgeError, match="quoted nothing"):
        graded("context-relevance", graded_tools("Hello."), test=CONTEXT, rubricPrompt=own)


def said(statements: list[str], verdicts: list[str]) -> list[str]:
    return [
        json.dumps({"statements": statements}),
        json.dumps({"verdicts": [{"reason": "r", "verdict": item} for item in verdicts]}),
    ]


def test_faithfulness_is_the_share_of_supported_claims() -> None:
    judge = SpeakingJudge(said(["a", "b", "c", "d"], ["yes", "no", "yes", "yes"]))
    result = graded("context-faithfulness", graded_tools(judge=judge), test=CONTEXT, threshold=0.8)
    assert (result.status, result.score) == (Status.FAILED, 0.75)
    assert "1 of 4 claims" in result.reason
    assert "How much?" in judge.prompts[0]
    assert "It costs 5." in judge.prompts[1]


def test_an_answer_without_claims_is_faithful_and_asks_no_further() -> None:
    judge = SpeakingJudge(said([], []))
    assert graded("context-faithfulness", graded_tools(judge=judge), test=CONTEXT).score == 1
    assert len(judge.requests) == 1


def test_verdicts_that_do_not_fit_the_claims_are_an_error() -> None:
    with pytest.raises(JudgeError, match="1 verdicts on 2 statements"):
        graded("context-faithfulness", graded_tools(*said(["a", "b"], ["yes"])), test=CONTEXT)


@pytest.mark.parametrize("kind", ["context-faithfulness", "context-relevance"])
def test_a_test_without_a_context_is_a_problem(kind: str) -> None:
    assert "needs a context" in problems(kind)[0].message
    assert problems(kind, vars={"context": "x"}) == []
    with pytest.raises(UnjudgeableError):
        graded(kind, graded_tools("x"))


VECTORS = {"How much?": [1, 0], "Q?": [3, 4]}


@pytest.mark.parametrize(
    ("test", "prompt"),
    [(CONTEXT, "x"), ({"input": "How much?"}, "x"), ({}, "How much?")],
)
def test_answer_relevance_is_the_mean_nearness_of_made_up_questions(
    test: dict[str, Any], prompt: str
) -> None:
    judge = SpeakingJudge(["Q?"])
    tools = graded_tools(judge=judge, vectors=VECTORS)
    result = graded("answer-relevance", tools, test=test, prompt=prompt, threshold=0.7)
    assert (result.status, result.score) == (Status.FAILED, pytest.approx(0.6))
    assert judge.requests[0].sample_indexes == (0, 1, 2)
    assert result.detail["questions"] == ["Q?", "Q?", "Q?"]


def test_an_empty_question_is_an_error() -> None:
    with pytest.raises(JudgeError):
        graded("answer-relevance", graded_tools(" ", vectors=VECTORS), test=CONTEXT)
