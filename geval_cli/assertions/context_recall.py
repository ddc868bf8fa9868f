"""context-recall: how much of what is known to be true the retrieved context says."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from geval_cli.assertions.asking import Asking, Question, check_own_prompt
from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools
from geval_cli.assertions.retrieval import DEFAULT_THRESHOLD, context_of
from geval_cli.assertions.values import check_texts
from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.config.graded_schema import ContextRecallSpec
from geval_cli.errors import Problem
from geval_cli.judge.prompt import Block
from geval_cli.judge.verdicts import parse_attributions

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


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Problems of the known truth and of the user's own prompt in one test."""
    assert isinstance(spec, ContextRecallSpec)
    problems: list[Problem] = []
    check_texts(spec.value, spec.place.child("value"), context, problems)
    check_own_prompt(spec, context, ("context", "groundTruth"), problems)
    return problems


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """The share of sentences that can be attributed to the context, which is the prompt when the test has none.

    Raises:
        JudgeError, ProviderError: no verdict could be had.
    """
    assert isinstance(spec, ContextRecallSpec)
    truth = tools.templates.render(spec.value, subject.test.variables)
    context = "\n".join(context_of(subject.test)) or subject.rendered_prompt
    question = Question(
        "recall",
        (Block("Context", context), Block("Known Truth", truth)),
        {"context": context, "groundTruth": truth},
        _SCHEMA,
    )
    asking = Asking(spec, subject, tools)
    claims = await asking.ask(question, parse_attributions)
    score = sum(claims) / len(claims)
    threshold = DEFAULT_THRESHOLD if spec.threshold is None else spec.threshold
    reason = (
        f"{sum(claims)} of {len(claims)} sentences are found in the context; the threshold is {threshold:g}"
    )
    outcome = Outcome.graded(
        score, reason, threshold, is_default=spec.threshold is None, attributed=list(claims)
    )
    return replace(outcome, latency_ms=asking.latency_ms)
