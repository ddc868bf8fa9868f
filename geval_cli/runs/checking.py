"""Judge one output by one assertion, without a run: for the library and the pytest plugin."""

from msgspec.structs import replace

from geval_cli.assertions.base import Tools
from geval_cli.engine.judge_output import judge_given
from geval_cli.records import AssertionResult
from geval_cli.runs.judging import Judges, safe_assertion
from geval_cli.runs.preparation import resolved
from geval_cli.runs.requests import PreparedRun


async def check_output(judges: Judges, prepared: PreparedRun) -> AssertionResult:
    """Return the result of the only assertion of the only test of a suite, whose output the test brings.

    Raises:
        GevalError: it could not be judged.
    """
    suite = prepared.suite
    [test] = suite.tests
    [spec] = test.assertions
    tools = Tools(
        prepared.templates,
        lambda asked: judges.model_for(resolved(asked, suite)),
        judges.memory,
        prepared.defaults,
        scripts=judges.scripts,
        access=suite.access,
    )
    found = safe_assertion(await judge_given(spec, test, tools), judges.secrets)
    return replace(found, location=None)  # it stands in no file
