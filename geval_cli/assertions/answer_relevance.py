"""answer-relevance: how close questions that the output would answer are to the one that was asked."""

import math

from msgspec.structs import replace

from geval_cli.assertions.asking import Asking, Question, check_own_prompt
from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools
from geval_cli.assertions.retrieval import DEFAULT_THRESHOLD, question_of
from geval_cli.assertions.vectors import cosine, embed
from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.config.graded_schema import AnswerRelevanceSpec
from geval_cli.errors import Problem
from geval_cli.judge.prompt import Block
from geval_cli.judge.verdicts import parse_plain
from geval_cli.numbers import format_score_beside

_QUESTIONS = 3


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Problems of the user's own prompt in one test."""
    assert isinstance(spec, AnswerRelevanceSpec)
    problems: list[Problem] = []
    check_own_prompt(spec, context, ("answer",), problems)
    return problems


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """The mean cosine between the question and three that a judge makes up for the answer.

    Raises:
        JudgeError, ProviderError: no questions, or no embeddings, could be had.
        UnjudgeableError: there is no question to compare with.
    """
    assert isinstance(spec, AnswerRelevanceSpec)
    question = Question("asked_question", (Block("Answer", subject.text),), {"answer": subject.text})
    asking = Asking(spec, subject, tools)
    made_up = await asking.ask_several(question, _QUESTIONS, parse_plain)
    (asked, *vectors), embedding_ms = await embed([question_of(subject), *made_up], spec, subject, tools)
    near = [cosine(asked, vector) for vector in vectors]
    score = min(max(math.fsum(near) / len(near), 0.0), 1.0)
    threshold = DEFAULT_THRESHOLD if spec.threshold is None else spec.threshold
    reason = f"the relevance is {format_score_beside(score, threshold)}; the threshold is {threshold:g}"
    outcome = Outcome.graded(
        score, reason, threshold, is_default=spec.threshold is None, questions=list(made_up)
    )
    return replace(outcome, latency_ms=asking.latency_ms + embedding_ms)
