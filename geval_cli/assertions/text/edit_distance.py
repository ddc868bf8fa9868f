"""levenshtein: how many characters must be changed to get from the output to the expected text."""

import asyncio
from importlib import import_module

from pydantic import Field

from geval_cli.assertions.base import Amount, Assertion, CheckContext, Subject, Tools
from geval_cli.assertions.outcome import Outcome
from geval_cli.assertions.values import as_text
from geval_cli.errors import Problem


class LevenshteinAssertion(Assertion):
    """levenshtein: at most `threshold` characters must be changed to get from the output to the text."""

    value_form = "text"
    threshold_is_score = False
    libraries = ("rapidfuzz",)
    extra = "text-metrics"

    value: str | int | float = Field(description="The text to compare with; a template.")
    threshold: Amount = Field(5, description="The most changes that pass; 5 when left out.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the template in `value`."""
        problems: list[Problem] = []
        context.render(as_text(self.value), self.place.value("value"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Score 1 up to the threshold, else 0: a distance has no upper end that would make a share of it."""
        expected = tools.templates.render(as_text(self.value), subject.test.variables)
        levenshtein = import_module("rapidfuzz.distance.Levenshtein")
        distance = await asyncio.to_thread(levenshtein.distance, subject.text, expected)
        passed = distance <= self.threshold
        relation = "at most" if passed else "more than"
        reason = f"the edit distance is {distance}, {relation} {self.threshold:g}"
        return Outcome.of(passed, reason, distance=distance, limit=self.threshold)
