"""is-json, contains-json: the output is JSON, or there is JSON in it, and it fits the schema where one is given."""

import asyncio
from collections.abc import Iterator

from geval_cli.assertions.json_schemas import schema_errors, schema_problems, schema_verdict
from geval_cli.assertions.json_text import every_json, parse_strict_json
from geval_cli.assertions.loose_json import loose_objects
from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools, shortened
from geval_cli.assertions.written_schema import Schema, parse_schema, unless_empty
from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.config.assertion_schema import IsJsonAssertionSpec
from geval_cli.config.dialect import Dialect
from geval_cli.errors import Problem
from geval_cli.records import JsonValue


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Problems of the schema itself: it must be one, and refer only to itself."""
    assert isinstance(spec, IsJsonAssertionSpec)
    problems: list[Problem] = []
    written = _schema_of(spec)
    if isinstance(written, str) and context.templates.dialect is Dialect.PROMPTFOO:
        written = context.render(written, spec.place.value("value"), problems)
    if written is None:
        return problems
    return schema_problems(written, f"the `value` of {spec.base_type}", spec.place.child("value"))


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """Find the JSON and validate it; the reason lists the errors with their JSON paths.

    Raises:
        CheckTimeoutError: a `pattern` of the schema takes too long on the output.
    """
    assert isinstance(spec, IsJsonAssertionSpec)
    is_promptfoo = tools.templates.dialect is Dialect.PROMPTFOO
    written = _schema_of(spec)
    if isinstance(written, str) and is_promptfoo:
        written = tools.templates.render(written, subject.test.variables)
    schema = None if written is None else parse_schema(written)
    if spec.base_type == "contains-json":
        find = loose_objects if is_promptfoo else every_json
        return await asyncio.to_thread(_some_json, find(subject.text), schema)
    try:
        value = parse_strict_json(subject.text)
    except ValueError as error:
        return Outcome.of(False, f"the output is not JSON: {error}")
    return Outcome.of(True, "the output is JSON") if schema is None else await schema_verdict(value, schema)


def _some_json(values: Iterator[JsonValue], schema: Schema | None) -> Outcome:
    """Whether any JSON of an output will do; of those that will not, the reason is about the one that comes nearest."""
    nearest: list[str] | None = None
    count = 0
    for value in values:
        count += 1
        errors = [] if schema is None else schema_errors(value, schema)
        if not errors:
            return Outcome.of(True, _found_reason(value, schema))
        if nearest is None or len(errors) < len(nearest):
            nearest = errors
    if nearest is None:
        return Outcome.of(False, "there is no JSON object or list in the output")
    which = "the JSON in the output" if count == 1 else f"none of the {count} JSON values in the output"
    is_not = "is not valid" if count == 1 else "is valid"
    reason = f"{which} {is_not} against the schema: {'; '.join(nearest[:5])}"
    return Outcome.of(False, reason, errors=list(nearest))


def _found_reason(value: JsonValue, schema: Schema | None) -> str:
    kind = "list" if isinstance(value, list) else "object"
    fits = "" if schema is None else " that is valid against the schema"
    return shortened(f"the output contains a JSON {kind}{fits}")


def _schema_of(spec: IsJsonAssertionSpec) -> dict[str, JsonValue] | bool | str | None:
    """The schema as written; blank text is none."""
    return unless_empty(spec.value) if isinstance(spec.value, str) else spec.value
