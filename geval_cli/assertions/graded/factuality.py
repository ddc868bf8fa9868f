"""factuality: how the facts of the output relate to those of a reference answer, in five cases."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from pydantic import Field

from geval_cli.assertions.base import CheckContext, ModelGradedAssertion, Subject, TestCase, Tools
from geval_cli.assertions.graded.judge_client import JudgeClient, Question, check_own_prompt
from geval_cli.assertions.outcome import Outcome
from geval_cli.assertions.values import as_text, check_texts
from geval_cli.errors import Problem
from geval_cli.judge.prompt import Block
from geval_cli.judge.replies.verdicts import parse_category
from geval_cli.judge.scoring import passes
from geval_cli.records import Status
from geval_cli.specs.base import FactualityWeightsSpec

_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "category": {"type": "string", "enum": list("ABCDE")}},
    "required": ["reason", "category"],
    "additionalProperties": False,
}
_MEANINGS = {
    "A": "the output says less than the reference, and nothing against it",
    "B": "the output says more than the reference, and nothing against it",
    "C": "the output and the reference say the same",
    "D": "the output and the reference contradict each other",
    "E": "the output and the reference differ in what does not matter for the facts",
}


class FactualityAssertion(ModelGradedAssertion):
    """factuality: how the facts of the output relate to those of a reference answer."""

    value_form = "text"

    value: str | int | float = Field(description="The reference answer; a template. May be file://.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the reference and of the user's own prompt in one test."""
        problems: list[Problem] = []
        check_texts(self.value, self.place.child("value"), context, problems)
        check_own_prompt(self, context, ("input", "ideal", "completion", "output"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Return the score is what the case is worth; it passes above 0 or, with a threshold, from that on.

        Raises:
            JudgeError, ProviderError: no verdict could be had.
        """
        ideal = tools.templates.render(as_text(self.value), subject.test.variables)
        question = Question(
            "factuality",
            (
                Block("Question", subject.rendered_prompt),
                Block("Expert Answer", ideal),
                Block("Submitted Answer", subject.text),
            ),
            {
                "input": subject.rendered_prompt,
                "ideal": ideal,
                "completion": subject.text,
                "output": subject.text,
            },
            _SCHEMA,
        )
        judge = JudgeClient(self, subject, tools)
        category, reason = await judge.ask(question, parse_category)
        return replace(self._verdict(category, reason, subject.test), latency_ms=judge.latency_ms)

    def decide_again(self, rated: Outcome, test: TestCase, tools: Tools) -> Outcome | None:
        """Return what the relation that the judge saw is worth today."""
        category = rated.detail.get("category")
        if category not in _MEANINGS:
            return None
        verdict = self._verdict(category, rated.reason, test)
        return replace(verdict, detail=rated.detail, latency_ms=rated.latency_ms)

    def _verdict(self, category: str, reason: str | None, test: TestCase) -> Outcome:
        score = _worth(category, weights_of(test))
        passed = score > 0 if self.threshold is None else passes(score, self.threshold)
        return Outcome(
            Status.PASSED if passed else Status.FAILED,
            score,
            reason or _MEANINGS[category],
            self.threshold,
            detail={"category": category, "meaning": _MEANINGS[category]},
        )


def weights_of(test: TestCase) -> FactualityWeightsSpec:
    """Return the score of each relation in a test."""
    return test.options.factuality or test.default_options.factuality or FactualityWeightsSpec()


def _worth(category: str, weights: FactualityWeightsSpec) -> float:
    return {
        "A": weights.subset,
        "B": weights.superset,
        "C": weights.agree,
        "D": weights.disagree,
        "E": weights.differ_but_factual,
    }[category]
