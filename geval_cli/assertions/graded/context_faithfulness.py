"""context-faithfulness: the share of an answer's claims that the retrieved context bears out."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from geval_cli.assertions.base import CheckContext, Subject, Tools
from geval_cli.assertions.graded.judge_client import JudgeClient, Question, check_own_prompt
from geval_cli.assertions.graded.retrieval import (
    DEFAULT_THRESHOLD,
    ContextAssertion,
    check_context_is_there,
    needed_context,
    question_of,
)
from geval_cli.assertions.outcome import Outcome
from geval_cli.errors import Problem
from geval_cli.judge.prompt import Block, numbered
from geval_cli.judge.replies.verdicts import parse_texts, parse_verdict_list
from geval_cli.records import Purpose

_STATEMENTS_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"statements": {"type": "array", "items": {"type": "string"}}},
    "required": ["statements"],
    "additionalProperties": False,
}
_VERDICTS_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "verdicts": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "reason": {"type": "string"},
                    "verdict": {"type": "string", "enum": ["yes", "no"]},
                },
                "required": ["reason", "verdict"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["verdicts"],
    "additionalProperties": False,
}


class ContextFaithfulnessAssertion(ContextAssertion):
    """context-faithfulness: how much of what the output claims the retrieved context says."""

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the context and of the user's own prompts in one test."""
        problems: list[Problem] = []
        if self.context_transform is None:
            check_context_is_there(self, context, problems)
        check_own_prompt(self, context, ("context", "question", "answer", "statements"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Ask the judge twice: for the claims of the answer, and for those that follow from the context.

        An answer that claims nothing is faithful: there is nothing that the context could fail to say.

        Raises:
            JudgeError, ProviderError: no verdict could be had.
            UnjudgeableError: the test has no context.
        """
        context, asked = "\n".join(needed_context(subject)), question_of(subject)
        judge = JudgeClient(self, subject, tools)
        statements = await judge.ask(_statements_question(asked, subject.text), _parse_statements)
        verdicts: tuple[bool, ...] = ()
        if statements:
            question = Question(
                "faithfulness",
                (Block("Context", context), Block("Statements", numbered(statements))),
                {"context": context, "statements": list(statements)},
                _VERDICTS_SCHEMA,
            )
            verdicts = await judge.ask(question, lambda text: parse_verdict_list(text, len(statements)))
        score = sum(verdicts) / len(verdicts) if verdicts else 1.0
        threshold = DEFAULT_THRESHOLD if self.threshold is None else self.threshold
        outcome = Outcome.graded(
            score,
            _reason(statements, verdicts),
            threshold,
            is_default=self.threshold is None,
            statements=list(statements),
            verdicts=list(verdicts),
        )
        return replace(outcome, latency_ms=judge.latency_ms)


def _statements_question(asked: str, answer: str) -> Question:
    return Question(
        "statements",
        (Block("Question", asked), Block("Answer", answer)),
        {"question": asked, "answer": answer},
        _STATEMENTS_SCHEMA,
        part="steps",
        purpose=Purpose.CLAIMS,
    )


def _parse_statements(text: str) -> tuple[str, ...]:
    return parse_texts(text, "statements")


def _reason(statements: tuple[str, ...], verdicts: tuple[bool, ...]) -> str:
    if not statements:
        return "the answer claims nothing"
    unsupported = [text for text, holds in zip(statements, verdicts, strict=True) if not holds]
    if not unsupported:
        return f"all {len(statements)} claims follow from the context"
    return f"{len(unsupported)} of {len(statements)} claims do not follow from the context: {unsupported[0]}"
