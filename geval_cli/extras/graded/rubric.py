"""llm-rubric and trajectory:goal-success: a judge decides whether a rubric is met, or an agent's goal reached."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from msgspec.structs import replace
from pydantic import Field

from geval_cli.assertions.base import (
    CheckContext,
    MergedTest,
    ModelGradedAssertion,
    Outcome,
    Subject,
    Tools,
    ValueForm,
    ValueRules,
    render_deep,
)
from geval_cli.assertions.trace import known_trace, trace_of
from geval_cli.errors import Problem
from geval_cli.extras.graded.asking import JudgeClient, Question, check_own_prompt, check_value, own_prompt
from geval_cli.extras.graded.verdicts import JudgeDecision, parse_rubric_verdict
from geval_cli.judge.calls import reply_schema
from geval_cli.judge.estimate import passes
from geval_cli.judge.prompt import Block, prompt_digest
from geval_cli.judge.source import trace_text
from geval_cli.providers.base import can_search
from geval_cli.records import JsonValue, Status, to_json
from geval_cli.specs.promptfoo import JudgesSpec

RUBRIC_SCHEMA: Mapping[str, Any] = reply_schema(
    {"reason": {"type": "string"}, "pass": {"type": "boolean"}, "score": {"type": "number"}}
)


_PASSED = "judge_passed"
"""The detail's key for the judge's own yes or no, whatever the threshold."""


class LlmRubricAssertion(ModelGradedAssertion):
    """llm-rubric: a judge decides whether, and how well, the output meets your rubric."""

    value_form: ClassVar[ValueForm | None] = "data"

    value: Any = Field(None, description="The rubric: a template, a list or a mapping; may be file://.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the rubric and of the user's own prompt in one test."""
        problems: list[Problem] = []
        place = self.place.value("value")
        if self.value is None and own_prompt(self, context.test) is None:
            message = f"{self.base_type} has no rubric"
            problems.append(Problem(message, place, "say in `value` what the output must do"))
        else:
            check_value(self, self.value, "rubric", context, problems)
        check_own_prompt(self, context, ("rubric", "output", "prompt"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Pass if the judge says so and, with a threshold, the score reaches it.

        Raises:
            JudgeError, ProviderError: there is no verdict.
        """
        return await judged_by_rubric(self, subject, tools)

    def decide_again(self, rated: Outcome, test: MergedTest, tools: Tools) -> Outcome | None:
        """Return the outcome of the judge's earlier yes or no and score, with the current threshold."""
        passed = rated.detail.get(_PASSED)
        if passed is None or rated.score is None:
            return None
        again = rubric_outcome(
            JudgeDecision(passed, rated.reason, rated.score), self.threshold, rated.latency_ms
        )
        return replace(again, detail=rated.detail)


async def judged_by_rubric(
    spec: LlmRubricAssertion,
    subject: Subject,
    tools: Tools,
    *,
    name: str = "rubric",
    schema: Mapping[str, Any] | None = RUBRIC_SCHEMA,
) -> Outcome:
    """Return the outcome as in `judge`, with the prompt `name`; without a `schema`, only the prompt asks for JSON."""
    rubric = text_or_json(
        render_deep(spec.value, lambda text: tools.templates.render(text, subject.test.variables))
    )
    question = Question(
        name,
        (Block("Output", subject.text), Block("Rubric", rubric)),
        {"rubric": rubric, "output": subject.text, "prompt": subject.rendered_prompt},
        schema,
    )
    return await ask_rubric(question, spec, subject, tools)


async def ask_rubric(question: Question, spec: LlmRubricAssertion, subject: Subject, tools: Tools) -> Outcome:
    """Return the outcome of a question that asks for `pass` and `score`.

    Raises:
        JudgeError, ProviderError: there is no verdict.
    """
    judge = JudgeClient(spec, subject, tools)
    read = partial(
        parse_rubric_verdict,
        # A prompt of the user's own may ask for a yes or no alone.
        needs_score=own_prompt(spec, subject.test) is None,
        assumes_pass=tools.rules.assumes_rubric_pass,
    )
    decision = await judge.ask(question, read)
    return rubric_outcome(decision, spec.threshold, judge.latency_ms)


def rubric_outcome(decision: JudgeDecision, threshold: float | None, latency_ms: float) -> Outcome:
    """Return the outcome of a judge's yes or no and score, compared with the threshold if there is one."""
    score = float(decision.passed) if decision.score is None else decision.score
    reaches = threshold is None or passes(score, threshold)
    status = Status.PASSED if decision.passed and reaches else Status.FAILED
    return Outcome(
        status,
        score,
        decision.reason or f"the judge says it {'passes' if decision.passed else 'fails'}",
        threshold,
        detail={_PASSED: decision.passed},
        latency_ms=latency_ms,
    )


def text_or_json(value: JsonValue) -> str:
    """Return a text unchanged, None as "", and anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class SearchRubricAssertion(LlmRubricAssertion):
    """search-rubric: like llm-rubric, with a judge that searches the web first."""

    judge_kinds: ClassVar[tuple[str, ...]] = ("search",)

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the rubric, and of a provider that cannot search."""
        problems = super().check(context)
        own = self.provider
        if own is not None and not isinstance(own, JudgesSpec) and not can_search(own):
            message = f"`{own.public_id}` cannot search the web, which search-rubric needs"
            hint = "use perplexity:sonar, or give openai:responses:MODEL the tool `{type: web_search}`"
            problems.append(Problem(message, self.place.value("provider"), hint))
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Judge as llm-rubric does.

        Raises:
            JudgeError, ProviderError: there is no verdict.
        """
        # Gemini, for one, takes no schema beside a search.
        return await judged_by_rubric(self, subject, tools, name="search_rubric", schema=None)


_PROMPT = "agents/goal"


class Goal(ValueRules):
    """The goal that an agent should reach."""

    goal: str = Field(description="The goal; a template.")


class GoalSuccessAssertion(LlmRubricAssertion):
    """trajectory:goal-success: a judge decides from steps and answer whether the agent reached its goal."""

    value_form = (Goal, "a goal")

    value: str | Goal = Field(description="The goal (a template), or {goal}.")

    @property
    def _goal(self) -> str:
        return self.value.goal if isinstance(self.value, Goal) else self.value

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the goal and of the user's own prompt in one test."""
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
        """Return everything that a judge may see, including the steps."""
        return [super().judged_texts(subject, tools), to_json(trace_of(subject, timed=False) or ())]

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Ask the judge whether the goal was reached, and how well.

        Raises:
            UnjudgeableError: the steps are unknown; nothing was sent.
            JudgeError, ProviderError: there is no verdict.
        """
        known_trace(subject, self.base_type)
        steps = trace_of(subject, timed=False) or ()
        goal = tools.templates.render(self._goal, subject.test.variables)
        trajectory = trace_text(steps)
        question = Question(
            _PROMPT,
            (Block("Goal", goal), Block("Trajectory", trajectory), Block("Output", subject.text)),
            {"goal": goal, "trajectory": json.dumps(to_json(steps)), "output": subject.text},
            RUBRIC_SCHEMA,
        )
        return await ask_rubric(question, self, subject, tools)
