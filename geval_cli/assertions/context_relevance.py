"""context-relevance: the share of the retrieved context that the question needs."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from geval_cli.assertions.asking import Asking, Question, check_own_prompt, own_prompt
from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools
from geval_cli.assertions.retrieval import (
    DEFAULT_THRESHOLD,
    check_context_is_there,
    needed_context,
    question_of,
    sentences_of,
)
from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.config.graded_schema import ContextSpec
from geval_cli.errors import JudgeParseError, Problem
from geval_cli.judge.prompt import Block, numbered
from geval_cli.judge.verdicts import parse_numbers, parse_plain, parse_texts

_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"relevant": {"type": "array", "items": {"type": "integer"}}},
    "required": ["relevant"],
    "additionalProperties": False,
}
_NOTHING = "insufficient information"


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Problems of the context and of the user's own prompt in one test."""
    assert isinstance(spec, ContextSpec)
    problems: list[Problem] = []
    if spec.context_transform is None:
        check_context_is_there(spec, context, problems)
    check_own_prompt(spec, context, ("context", "query"), problems)
    return problems


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """Needed passages of all passages: those of a list, or the lines of a text.

    Raises:
        JudgeError, ProviderError: no verdict could be had.
        UnjudgeableError: the test has no context.
    """
    assert isinstance(spec, ContextSpec)
    passages = sentences_of(needed_context(subject))
    query, context = question_of(subject), "\n".join(passages)
    question = Question(
        "relevance",
        (Block("Question", query), Block("Context", numbered(passages))),
        {"query": query, "question": query, "context": context},
        _SCHEMA,
    )
    is_own = own_prompt(spec, subject.test) is not None
    read = partial(_quoted, passages) if is_own else partial(_numbered, len(passages))
    asking = Asking(spec, subject, tools)
    needed = await asking.ask(question, read)
    threshold = DEFAULT_THRESHOLD if spec.threshold is None else spec.threshold
    reason = f"{needed} of {len(passages)} passages are needed; the threshold is {threshold:g}"
    outcome = Outcome.graded(needed / len(passages), reason, threshold, is_default=spec.threshold is None)
    return replace(outcome, latency_ms=asking.latency_ms)


def _numbered(count: int, text: str) -> int:
    return len(parse_numbers(text, "relevant", count))


def _quoted(passages: tuple[str, ...], text: str) -> int:
    """How many passages a reply in the words of the user's own prompt quotes, one a line."""
    if _NOTHING in parse_plain(text).lower():
        return 0
    lines = set(parse_texts(text, "relevant"))
    quoted = sum(any(line in passage or passage in line for line in lines) for passage in passages)
    if not quoted:
        raise JudgeParseError("the judge quotes nothing of the context", raw_text=text)
    return quoted
