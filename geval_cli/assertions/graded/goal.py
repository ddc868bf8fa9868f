"""trajectory:goal-success: a judge says whether an agent reached its goal, by its steps and its answer."""

import json

from pydantic import Field

from geval_cli.assertions.base import CheckContext, MergedTest, Subject, Tools, ValueRules
from geval_cli.assertions.graded.judge_client import Question, check_own_prompt
from geval_cli.assertions.graded.rubric import RUBRIC_SCHEMA, LlmRubricAssertion, ask_rubric
from geval_cli.assertions.outcome import Outcome
from geval_cli.assertions.trace import known_trace, trace_of
from geval_cli.errors import Problem
from geval_cli.judge.prompt import Block, prompt_digest
from geval_cli.judge.trace import trace_text
from geval_cli.records import JsonValue, to_json

_PROMPT = "agents/goal"


class Goal(ValueRules):
    """The goal that an agent was to reach."""

    goal: str = Field(description="The goal; a template.")


class GoalSuccessAssertion(LlmRubricAssertion):
    """trajectory:goal-success: a judge decides from steps and answer whether the agent reached its goal."""

    value_form = (Goal, "a goal")

    value: str | Goal = Field(description="The goal (a template), or {goal}.")

    @property
    def _goal(self) -> str:
        return self.value.goal if isinstance(self.value, Goal) else self.value

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the goal and of the user's own prompt in one test."""
        problems: list[Problem] = []
        place = self.place.value("value")
        text = context.render(self._goal, place, problems)
        if text is not None and not text.strip():
            problems.append(
                Problem(f"{self.base_type} has no goal", place, "say what the agent was meant to achieve")
            )
        check_own_prompt(self, context, ("goal", "trajectory", "output"), problems)
        return problems

    def criterion(self, test: MergedTest, tools: Tools) -> JsonValue:
        """Return the keys that decide a rating, and a digest of the prompt, which no other type uses."""
        return [super().criterion(test, tools), prompt_digest(_PROMPT)]

    def judged_texts(self, subject: Subject, tools: Tools) -> JsonValue:
        """Return everything that a judge may be shown, the steps among it."""
        return [super().judged_texts(subject, tools), to_json(trace_of(subject) or ())]

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Ask whether the goal was reached, and how well.

        Raises:
            UnjudgeableError: nothing is known of the steps; nobody was asked.
            JudgeError, ProviderError: no verdict could be had.
        """
        steps = known_trace(subject, self.base_type)
        goal = tools.templates.render(self._goal, subject.test.variables)
        trajectory = trace_text(steps)
        question = Question(
            _PROMPT,
            (Block("Goal", goal), Block("Trajectory", trajectory), Block("Output", subject.text)),
            {"goal": goal, "trajectory": json.dumps(to_json(steps)), "output": subject.text},
            RUBRIC_SCHEMA,
        )
        return await ask_rubric(question, self, subject, tools)
