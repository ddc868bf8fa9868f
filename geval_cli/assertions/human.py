"""human: an assertion that waits for a person. It is kept with the result, and nothing is evaluated."""

from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools
from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.errors import Problem


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Nothing can be wrong with it."""
    return []


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """Not evaluated."""
    return Outcome.not_evaluated("a person is to judge this")
