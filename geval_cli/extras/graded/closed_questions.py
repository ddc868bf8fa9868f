"""model-graded-closedqa, factuality, choice: a judge picks one of a few given verdicts."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from pydantic import Field

from geval_cli.assertions.base import (
    CheckContext,
    MergedTest,
    ModelGradedAssertion,
    Outcome,
    Subject,
    Tools,
    as_text,
)
from geval_cli.assertions.judges import DEFAULT_THRESHOLD
from geval_cli.errors import Problem
from geval_cli.extras.graded.asking import JudgeClient, Question, check_own_prompt, check_value, task_of
from geval_cli.extras.graded.verdicts import parse_category, parse_named_choice, parse_yes_or_no
from geval_cli.judge.calls import reply_schema
from geval_cli.judge.estimate import passes
from geval_cli.judge.prompt import Block
from geval_cli.records import Status
from geval_cli.specs.base import FactualityWeightsSpec, Score

_CLOSED_QA_SCHEMA: Mapping[str, Any] = reply_schema(
    {"reason": {"type": "string"}, "verdict": {"type": "string", "enum": ["Y", "N"]}}
)
_FACTUALITY_SCHEMA: Mapping[str, Any] = reply_schema(
    {"reason": {"type": "string"}, "category": {"type": "string", "enum": list("ABCDE")}}
)
_MEANINGS = {
    "A": "the output says less than the reference and does not contradict it",
    "B": "the output says more than the reference and does not contradict it",
    "C": "the output and the reference say the same",
    "D": "the output and the reference contradict each other",
    "E": "the output and the reference differ only in ways that do not affect the facts",
}


class ClosedQaAssertion(ModelGradedAssertion):
    """model-graded-closedqa: a judge decides whether the output meets the criterion, yes or no."""

    value_form = "text"

    value: str = Field(description="The criterion; a template, may be file://.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the criterion and of the user's own prompt in one test."""
        problems: list[Problem] = []
        check_value(self, self.value, "criterion", context, problems)
        check_own_prompt(self, context, ("input", "criteria", "completion", "output"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Score 1 for yes and 0 for no.

        Raises:
            JudgeError, ProviderError: there is no verdict.
        """
        criterion = tools.templates.render(self.value, subject.test.variables)
        question = Question(
            "closed_question",
            (
                Block("Task", task_of(subject)),
                Block("Submission", subject.text),
                Block("Criterion", criterion),
            ),
            {
                "input": task_of(subject),
                "criteria": criterion,
                "completion": subject.text,
                "output": subject.text,
            },
            _CLOSED_QA_SCHEMA,
        )
        judge = JudgeClient(self, subject, tools)
        decision = await judge.ask(question, parse_yes_or_no)
        reason = decision.reason or f"the criterion is {'met' if decision.passed else 'not met'}: {criterion}"
        return replace(Outcome.of(decision.passed, reason), latency_ms=judge.latency_ms)


class FactualityAssertion(ModelGradedAssertion):
    """factuality: a judge compares the facts of the output with a reference answer."""

    value_form = "text"

    value: str | int | float = Field(description="The reference answer; a template, may be file://.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the reference and of the user's own prompt in one test."""
        problems: list[Problem] = []
        check_value(self, self.value, "reference answer", context, problems)
        check_own_prompt(self, context, ("input", "ideal", "completion", "output"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Score the relation by its weight; the output passes above 0, or from the threshold on if there is one.

        Raises:
            JudgeError, ProviderError: there is no verdict.
        """
        ideal = tools.templates.render(as_text(self.value), subject.test.variables)
        question = Question(
            "factuality",
            (
                Block("Question", task_of(subject)),
                Block("Expert Answer", ideal),
                Block("Submitted Answer", subject.text),
            ),
            {
                "input": task_of(subject),
                "ideal": ideal,
                "completion": subject.text,
                "output": subject.text,
            },
            _FACTUALITY_SCHEMA,
        )
        judge = JudgeClient(self, subject, tools)
        category, reason = await judge.ask(question, parse_category)
        return replace(self._verdict(category, reason, subject.test), latency_ms=judge.latency_ms)

    def decide_again(self, rated: Outcome, test: MergedTest, tools: Tools) -> Outcome | None:
        """Return the outcome of the relation found earlier, with the current weights and threshold."""
        category = rated.detail.get("category")
        if category not in _MEANINGS:
            return None
        verdict = self._verdict(category, rated.reason, test)
        return replace(verdict, detail=rated.detail, latency_ms=rated.latency_ms)

    def _verdict(self, category: str, reason: str | None, test: MergedTest) -> Outcome:
        weights = weights_of(test)
        score = {
            "A": weights.subset,
            "B": weights.superset,
            "C": weights.agree,
            "D": weights.disagree,
            "E": weights.differ_but_factual,
        }[category]
        passed = score > 0 if self.threshold is None else passes(score, self.threshold)
        return Outcome(
            Status.PASSED if passed else Status.FAILED,
            score,
            reason or _MEANINGS[category],
            self.threshold,
            detail={"category": category, "meaning": _MEANINGS[category]},
        )


class ChoiceAssertion(ModelGradedAssertion):
    """choice: a judge answers a question with one of the given choices, each worth a score."""

    default_threshold = DEFAULT_THRESHOLD
    value_form = "text"

    value: str = Field(description="The question; a template, may be file://.")
    choices: dict[str, Score] = Field(description="The choices, each with its score from 0 to 1.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the question, the choices and the user's own prompt in one test."""
        problems: list[Problem] = []
        check_value(self, self.value, "question", context, problems)
        if len({_plain(name) for name in self.choices}) != len(self.choices) or len(self.choices) < 2:  # noqa: PLR2004
            message = "`choices` needs at least two choices that differ in more than case and spaces"
            problems.append(Problem(message, self.place.key("choices"), "for example {short: 1, long: 0}"))
        check_own_prompt(self, context, ("question", "choices", "output"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Score the choice by its weight.

        Raises:
            JudgeError, ProviderError: there is no verdict.
        """
        asked = tools.templates.render(self.value, subject.test.variables)
        question = Question(
            "choice",
            (
                Block("Task", task_of(subject)),
                Block("Output", subject.text),
                Block("Question", asked),
                Block("Choices", "\n".join(f"- {name}" for name in self.choices)),
            ),
            {"question": asked, "choices": list(self.choices), "output": subject.text},
            reply_schema(
                {"reason": {"type": "string"}, "choice": {"type": "string", "enum": list(self.choices)}}
            ),
        )
        names = {_plain(name): name for name in self.choices}
        judge = JudgeClient(self, subject, tools)
        chosen, reason = await judge.ask(question, lambda text: parse_named_choice(text, names))
        said = f"{chosen}: {reason}" if reason else chosen
        return self.scored(self.choices[chosen], said, judge.latency_ms, choice=chosen)

    def decide_again(self, rated: Outcome, test: MergedTest, tools: Tools) -> Outcome | None:
        """Return the outcome of the choice made earlier, with the current weights and threshold."""
        score = self.choices.get(str(rated.detail.get("choice")))
        return None if score is None else super().decide_again(replace(rated, score=score), test, tools)


def _plain(name: str) -> str:
    return " ".join(name.split()).casefold()


def weights_of(test: MergedTest) -> FactualityWeightsSpec:
    """Return the score of each relation in a test."""
    return test.options.factuality or test.default_options.factuality or FactualityWeightsSpec()
