"""context-relevance: the share of the retrieved context that the question needs."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from geval_cli.assertions.base import CheckContext, Subject, Tools
from geval_cli.assertions.graded.judge_client import JudgeClient, Question, check_own_prompt, own_prompt
from geval_cli.assertions.graded.retrieval import (
    DEFAULT_THRESHOLD,
    ContextAssertion,
    check_context_is_there,
    needed_context,
    question_of,
    sentences_of,
)
from geval_cli.assertions.outcome import Outcome, threshold_in_words
from geval_cli.errors import JudgeParseError, Problem
from geval_cli.judge.prompt import Block, numbered
from geval_cli.judge.replies.verdicts import parse_numbers, parse_plain, parse_texts

_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"relevant": {"type": "array", "items": {"type": "integer"}}},
    "required": ["relevant"],
    "additionalProperties": False,
}
_NOTHING = "insufficient information"


class ContextRelevanceAssertion(ContextAssertion):
    """context-relevance: how much of the retrieved context the question needs."""

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the context and of the user's own prompt in one test."""
        problems: list[Problem] = []
        if self.context_transform is None:
            check_context_is_there(self, context, problems)
        check_own_prompt(self, context, ("context", "query"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Needed passages of all passages: those of a list, or the lines of a text.

        Raises:
            JudgeError, ProviderError: no verdict could be had.
            UnjudgeableError: the test has no context.
        """
        passages = sentences_of(needed_context(subject))
        query, context = question_of(subject), "\n".join(passages)
        question = Question(
            "relevance",
            (Block("Question", query), Block("Context", numbered(passages))),
            {"query": query, "question": query, "context": context},
            _SCHEMA,
        )
        is_own = own_prompt(self, subject.test) is not None
        read = partial(_quoted, passages) if is_own else partial(_numbered, len(passages))
        judge = JudgeClient(self, subject, tools)
        needed = await judge.ask(question, read)
        threshold = DEFAULT_THRESHOLD if self.threshold is None else self.threshold
        reason = f"{needed} of {len(passages)} passages are needed; {threshold_in_words(threshold)}"
        outcome = Outcome.graded(needed / len(passages), reason, threshold, is_default=self.threshold is None)
        return replace(outcome, latency_ms=judge.latency_ms)


def _numbered(count: int, text: str) -> int:
    return len(parse_numbers(text, "relevant", count))


def _quoted(passages: tuple[str, ...], text: str) -> int:
    """Return the number of passages that a reply to the user's own prompt quotes, one a line."""
    if _NOTHING in parse_plain(text).lower():
        return 0
    lines = set(parse_texts(text, "relevant"))
    quoted = sum(any(line in passage or passage in line for line in lines) for passage in passages)
    if not quoted:
        raise JudgeParseError("the judge quotes nothing of the context", raw_text=text)
    return quoted
