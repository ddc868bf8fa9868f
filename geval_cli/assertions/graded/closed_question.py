"""model-graded-closedqa: a judge decides whether the output meets one criterion, yes or no."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from pydantic import Field

from geval_cli.assertions.base import CheckContext, ModelGradedAssertion, Subject, Tools
from geval_cli.assertions.graded.judge_client import JudgeClient, Question, check_own_prompt
from geval_cli.assertions.outcome import Outcome
from geval_cli.assertions.values import check_texts
from geval_cli.errors import Problem
from geval_cli.judge.prompt import Block
from geval_cli.judge.replies.verdicts import parse_yes_or_no

_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "verdict": {"type": "string", "enum": ["Y", "N"]}},
    "required": ["reason", "verdict"],
    "additionalProperties": False,
}


class ClosedQaAssertion(ModelGradedAssertion):
    """model-graded-closedqa: whether the output meets one criterion, yes or no."""

    value_form = "text"

    value: str = Field(description="The criterion; a template. May be file://.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the criterion and of the user's own prompt in one test."""
        problems: list[Problem] = []
        check_texts(self.value, self.place.child("value"), context, problems)
        check_own_prompt(self, context, ("input", "criteria", "completion", "output"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Score 1 for yes and 0 for no.

        Raises:
            JudgeError, ProviderError: no verdict could be had.
        """
        criterion = tools.templates.render(self.value, subject.test.variables)
        question = Question(
            "closed_question",
            (
                Block("Task", subject.rendered_prompt),
                Block("Submission", subject.text),
                Block("Criterion", criterion),
            ),
            {
                "input": subject.rendered_prompt,
                "criteria": criterion,
                "completion": subject.text,
                "output": subject.text,
            },
            _SCHEMA,
        )
        judge = JudgeClient(self, subject, tools)
        decision = await judge.ask(question, parse_yes_or_no)
        reason = decision.reason or f"the criterion is {'met' if decision.passed else 'not met'}: {criterion}"
        return replace(Outcome.of(decision.passed, reason), latency_ms=judge.latency_ms)
