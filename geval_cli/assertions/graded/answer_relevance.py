"""answer-relevance: how close questions that the output would answer are to the one that was asked."""

import math
from typing import ClassVar

from msgspec.structs import replace

from geval_cli.assertions.base import CheckContext, ModelGradedAssertion, Subject, Tools
from geval_cli.assertions.graded.judge_client import JudgeClient, Question, check_own_prompt
from geval_cli.assertions.graded.retrieval import DEFAULT_THRESHOLD, question_of
from geval_cli.assertions.graded.vectors import cosine, embed
from geval_cli.assertions.outcome import Outcome, threshold_in_words
from geval_cli.errors import Problem
from geval_cli.judge.prompt import Block
from geval_cli.judge.replies.verdicts import parse_plain
from geval_cli.numbers import format_score_beside
from geval_cli.records import Purpose

_QUESTIONS = 3


class AnswerRelevanceAssertion(ModelGradedAssertion):
    """answer-relevance: how close questions that the output would answer are to the one that was asked."""

    judge_kinds: ClassVar[tuple[str, ...]] = ("text", "embedding")
    default_threshold = DEFAULT_THRESHOLD

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the user's own prompt in one test."""
        problems: list[Problem] = []
        check_own_prompt(self, context, ("answer",), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Return the mean cosine between the question and three that a judge makes up for the answer.

        Raises:
            JudgeError, ProviderError: no questions, or no embeddings, could be had.
            UnjudgeableError: there is no question to compare with.
        """
        question = Question(
            "asked_question",
            (Block("Answer", subject.text),),
            {"answer": subject.text},
            purpose=Purpose.QUESTIONS,
        )
        judge = JudgeClient(self, subject, tools)
        made_up = await judge.ask_several(question, _QUESTIONS, parse_plain)
        (asked, *vectors), embedding_ms = await embed([question_of(subject), *made_up], self, subject, tools)
        near = [cosine(asked, vector) for vector in vectors]
        score = min(max(math.fsum(near) / len(near), 0.0), 1.0)
        threshold = DEFAULT_THRESHOLD if self.threshold is None else self.threshold
        reason = f"the relevance is {format_score_beside(score, threshold)}; {threshold_in_words(threshold)}"
        outcome = Outcome.graded(
            score, reason, threshold, is_default=self.threshold is None, questions=list(made_up)
        )
        return replace(outcome, latency_ms=judge.latency_ms + embedding_ms)
