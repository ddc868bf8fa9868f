"""word-count: how many words the output has."""

from typing import Annotated

from pydantic import Field

from geval_cli.assertions.base import Assertion, CheckContext, Outcome, Subject, Tools, ValueRules
from geval_cli.errors import Problem


class WordRange(ValueRules):
    """How many words there may be."""

    min: Annotated[int, Field(ge=0)] | None = Field(None, description="The smallest passing number of words.")
    max: Annotated[int, Field(ge=0)] | None = Field(None, description="The largest passing number of words.")

    def problems(self) -> list[Problem]:
        if self.min is None and self.max is None:
            return [
                Problem("a range of words needs `min`, `max` or both", self.place.value(), "add one of them")
            ]
        if self.min is not None and self.max is not None and self.min > self.max:
            message = f"`min` ({self.min}) must not be above `max` ({self.max})"
            return [Problem(message, self.place.value("min"), "exchange them")]
        return []


class WordCountAssertion(Assertion):
    """word-count: the number of words is exactly this, or within a range."""

    value_form = (WordRange, "a range of words")

    value: Annotated[int, Field(ge=0)] | str | WordRange = Field(
        description="The number of words, or {min, max}."
    )

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of a number that is written as text: a broken template, or no whole number."""
        problems: list[Problem] = []
        if isinstance(self.value, str):
            place = self.place.value("value")
            text = context.render(self.value, place, problems)
            if text is not None and not text.strip().isdecimal():
                hint = "write a whole number, or a mapping with `min` and `max`"
                problems.append(
                    Problem(f'the `value` of word-count must be a whole number, found "{text}"', place, hint)
                )
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Compare the number of words, split at white space, with the bounds."""
        count = len(subject.text.split())
        if isinstance(self.value, WordRange):
            low, high = self.value.min, self.value.max
        else:
            exactly = int(tools.templates.render(str(self.value), subject.test.variables))
            low, high = exactly, exactly
        passed = (low is None or count >= low) and (high is None or count <= high)
        words = "1 word" if count == 1 else f"{count} words"
        if low == high:
            range_text = f"exactly {low}"
        elif low is None:
            range_text = f"at most {high}"
        else:
            range_text = f"at least {low}" if high is None else f"from {low} to {high}"
        return Outcome.of(passed, f"the output has {words}; expected {range_text}", words=count)
