"""select-best: of all outputs of a test, a judge chooses the one that meets a criterion best."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace
from pydantic import Field

from geval_cli.assertions.base import (
    CheckContext,
    ModelGradedAssertion,
    RowMember,
    Subject,
    Tools,
    check_is_comparable,
)
from geval_cli.assertions.graded.judge_client import JudgeClient, Question, check_own_prompt, own_prompt
from geval_cli.assertions.outcome import Outcome
from geval_cli.assertions.values import check_texts
from geval_cli.errors import Problem
from geval_cli.judge.prompt import Block
from geval_cli.judge.replies.verdicts import parse_choice
from geval_cli.records import Purpose

_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "best": {"type": "integer"}},
    "required": ["reason", "best"],
    "additionalProperties": False,
}


class SelectBestAssertion(ModelGradedAssertion):
    """select-best: of all outputs of a test, a judge chooses the one that meets the criterion best."""

    value_form = "text"
    compares_outputs = True

    value: str = Field(description="By what to choose; a template. May be file://.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the criterion and of the user's own prompt in one test."""
        problems: list[Problem] = []
        check_texts(self.value, self.place.child("value"), context, problems)
        check_own_prompt(self, context, ("criteria", "outputs"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Return a single output has nothing to be compared with.

        Raises:
            UnjudgeableError: always.
        """
        [outcome] = await self.judge_row([RowMember(subject)], tools)
        return outcome

    async def judge_row(self, members: Sequence[RowMember], tools: Tools) -> Sequence[Outcome]:
        """Passes for the output that the judge chose, in the order of `members`.

        Raises:
            JudgeError, ProviderError: no choice could be had.
            UnjudgeableError: there are fewer than two outputs.
        """
        check_is_comparable(members)
        subject = members[0].subject
        criterion = tools.templates.render(self.value, subject.test.variables)
        outputs = [member.subject.text for member in members]
        blocks = [Block(f"Output {number}", text) for number, text in enumerate(outputs, 1)]
        question = Question(
            "best",
            (Block("Criterion", criterion), *blocks),
            {"criteria": criterion, "outputs": outputs},
            _SCHEMA,
            purpose=Purpose.CHOICE,
        )
        # Prompts in promptfoo's manner count outputs from 0.
        first = 0 if own_prompt(self, subject.test) is not None else 1
        judge = JudgeClient(self, subject, tools)
        read = partial(parse_choice, count=len(outputs), first=first)
        best, reason = await judge.ask(question, read)
        why = f": {reason}" if reason else ""
        outcomes = [
            Outcome.of(place == best, f"{'chosen' if place == best else 'not chosen'} for {criterion!r}{why}")
            for place in range(len(outputs))
        ]
        return [replace(outcome, latency_ms=judge.latency_ms) for outcome in outcomes]
