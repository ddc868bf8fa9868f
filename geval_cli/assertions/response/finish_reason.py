"""finish-reason: why the model ended its answer."""

from pydantic import Field

from geval_cli.assertions.base import Assertion, CheckContext, Subject, Tools
from geval_cli.assertions.outcome import Outcome, shortened
from geval_cli.errors import Problem


class FinishReasonAssertion(Assertion):
    """finish-reason: why the model stopped: stop, length, content_filter, tool_calls."""

    value_form = "text"

    value: str = Field(description="The reason that passes, in any case; a template.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the template in `value`."""
        problems: list[Problem] = []
        context.render(self.value, self.place.value("value"), problems)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Compare in any case. A provider that gives no reason has not given the right one."""
        expected = tools.templates.render(self.value, subject.test.variables).strip()
        found = None if subject.response is None else subject.response.choices[0].finish_reason
        if found is None:
            return Outcome.of(False, "the provider gave no finish reason")
        passed = found.lower() == expected.lower()
        reason = f'the model stopped because of "{shortened(found)}"'
        return Outcome.of(passed, reason if passed else f'{reason}, not "{shortened(expected)}"')
