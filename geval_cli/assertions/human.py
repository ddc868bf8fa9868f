"""human: an assertion that waits for a person. It is kept with the result, and nothing is evaluated."""

from pydantic import Field

from geval_cli.assertions.base import Assertion, Outcome, Subject, Tools


class HumanAssertion(Assertion):
    """human: a note for a human reviewer; stored with the result, not evaluated."""

    value: str | None = Field(None, description="What the reviewer should look at.")

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Not evaluated."""
        return Outcome.not_evaluated("a person has to judge this")
