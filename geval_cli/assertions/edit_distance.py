"""levenshtein: how many characters must be changed to get from the output to the expected text."""

import asyncio

from rapidfuzz.distance import Levenshtein

from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools
from geval_cli.assertions.values import as_text
from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.config.assertion_schema import LevenshteinAssertionSpec
from geval_cli.errors import Problem


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Problems of the template in `value`."""
    assert isinstance(spec, LevenshteinAssertionSpec)
    problems: list[Problem] = []
    context.render(as_text(spec.value), spec.place.value("value"), problems)
    return problems


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """Score 1 up to the threshold, else 0: a distance has no upper end that would make a share of it."""
    assert isinstance(spec, LevenshteinAssertionSpec)
    expected = tools.templates.render(as_text(spec.value), subject.test.variables)
    distance = await asyncio.to_thread(Levenshtein.distance, subject.text, expected)
    passed = distance <= spec.threshold
    relation = "at most" if passed else "more than"
    reason = f"the edit distance is {distance}, {relation} {spec.threshold:g}"
    return Outcome.of(passed, reason, distance=distance, limit=spec.threshold)
