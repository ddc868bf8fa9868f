"""context-recall: how much of what is known to be true the retrieved context says."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from pydantic import Field

from geval_cli.assertions.base import CheckContext, Subject, Tools
from geval_cli.assertions.graded.judge_client import JudgeClient, Question, check_own_prompt
from geval_cli.assertions.graded.retrieval import DEFAULT_THRESHOLD, ContextAssertion, context_of
from geval_cli.assertions.outcome import Outcome, threshold_in_words
from geval_cli.assertions.values import check_texts
from geval_cli.errors import Problem
from geval_cli.judge.prompt import Block
from geval_cli.judge.replies.verdicts import parse_attributions

_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "sentences": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"sentence": {"type": "string"}, "attributed": {"type": "boolean"}},
                "required": ["sentence", "attributed"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["sentences"],
    "additionalProperties": False,
}


class ContextRecallAssertion(ContextAssertion):
    """context-recall: how much of what is known to be true the retrieved context says."""

    value_form = "text"

    value: str = Field(description="What is known to be true; a template. May be file://.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the known truth and of the user's own prompt in one test."""
        problems: list[Problem] = []
        check_texts(self.value, self.place.child("value"), context, problems)
        check_own_prompt(self, context, ("context", "groundTruth"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """The share of sentences that can be attributed to the context, which is the prompt when the test has none.

        Raises:
            JudgeError, ProviderError: no verdict could be had.
        """
        truth = tools.templates.render(self.value, subject.test.variables)
        context = "\n".join(context_of(subject.test)) or subject.rendered_prompt
        question = Question(
            "recall",
            (Block("Context", context), Block("Known Truth", truth)),
            {"context": context, "groundTruth": truth},
            _SCHEMA,
        )
        judge = JudgeClient(self, subject, tools)
        claims = await judge.ask(question, parse_attributions)
        score = sum(claims) / len(claims)
        threshold = DEFAULT_THRESHOLD if self.threshold is None else self.threshold
        reason = f"{sum(claims)} of {len(claims)} sentences are found in the context; {threshold_in_words(threshold)}"
        outcome = Outcome.graded(
            score, reason, threshold, is_default=self.threshold is None, attributed=list(claims)
        )
        return replace(outcome, latency_ms=judge.latency_ms)
