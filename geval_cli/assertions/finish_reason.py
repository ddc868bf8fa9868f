"""finish-reason: why the model ended its answer."""

from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools, shortened
from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.config.assertion_schema import FinishReasonAssertionSpec
from geval_cli.errors import Problem


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Problems of the template in `value`."""
    assert isinstance(spec, FinishReasonAssertionSpec)
    problems: list[Problem] = []
    context.render(spec.value, spec.place.value("value"), problems)
    return problems


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """Compare in any case. A provider that gives no reason has not given the right one."""
    assert isinstance(spec, FinishReasonAssertionSpec)
    expected = tools.templates.render(spec.value, subject.test.variables).strip()
    found = None if subject.response is None else subject.response.choices[0].finish_reason
    if found is None:
        return Outcome.of(False, "the provider gave no finish reason")
    passed = found.lower() == expected.lower()
    reason = f'the model stopped because of "{shortened(found)}"'
    return Outcome.of(passed, reason if passed else f'{reason}, not "{shortened(expected)}"')
