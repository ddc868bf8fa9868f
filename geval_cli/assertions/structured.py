"""is-json: the whole output is JSON and, where a schema is given, valid against it."""

from geval_cli.assertions.json_schemas import schema_problems, schema_verdict
from geval_cli.assertions.json_text import parse_strict_json
from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools
from geval_cli.assertions.written_schema import parse_schema
from geval_cli.config.schema import AssertionSpec, IsJsonAssertionSpec
from geval_cli.errors import Problem


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Problems of the schema itself: it must be one, and refer only to itself."""
    assert isinstance(spec, IsJsonAssertionSpec)
    if spec.value is None:
        return []
    return schema_problems(spec.value, "the `value` of is-json", spec.place.child("value"))


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """Parse the output strictly and validate it; the reason lists the errors with their JSON paths."""
    assert isinstance(spec, IsJsonAssertionSpec)
    try:
        value = parse_strict_json(subject.text)
    except ValueError as error:
        return Outcome.of(False, f"the output is not JSON: {error}")
    if spec.value is None:
        return Outcome.of(True, "the output is JSON")
    return await schema_verdict(value, parse_schema(spec.value))
