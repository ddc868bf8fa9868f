"""is-json, contains-json, evaluation-schema: the output is JSON or holds some, and fits the schema, if any."""

import asyncio
import json
from collections.abc import Iterator

from pydantic import Field

from geval_cli.assertions.base import Assertion, CheckContext, Subject, Tools
from geval_cli.assertions.outcome import Outcome, shortened
from geval_cli.assertions.structured.json_schemas import raw_schema_errors, schema_problems, schema_verdict
from geval_cli.assertions.structured.json_text import (
    FoundJson,
    Schema,
    every_json,
    find_json,
    parse_schema,
    parse_strict_json,
    unless_empty,
)
from geval_cli.assertions.time_limit import CHECK_TIMEOUT_S, within
from geval_cli.errors import ConfigError, Problem
from geval_cli.records import JsonValue
from geval_cli.source.yaml_source import read_yaml
from geval_cli.specs.base import EvaluationParsing, WrittenSchema

_LONGEST = 100_000  # characters of one object
_MOST_READ = (
    300_000  # characters in all: each opening brace that nothing closes is read to the end of the text
)


class SchemaEvaluationAssertion(Assertion):
    """evaluation-schema: the schema that a test has for an answer in the mode `schema`; located at the schema."""

    value: WrittenSchema | None = None
    parsing: EvaluationParsing = "strict"

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the test's schema; an empty one has none."""
        written = unless_empty(self.value)
        return [] if written is None else schema_problems(written, "`evaluation_schema`", self.place)

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Parse the output, strictly or tolerantly, and validate it; without a schema nothing is evaluated."""
        return await evaluate_text(subject.text, self.value, self.parsing)


async def evaluate_text(text: str, schema: WrittenSchema | None, parsing: EvaluationParsing) -> Outcome:
    """Return the verdict on a text by a schema that has no problems; an empty one evaluates nothing."""
    written = unless_empty(schema)
    if written is None:
        return Outcome.not_evaluated("the test has no `evaluation_schema`")
    try:
        found = _parse(text, parsing)
    except ValueError as error:
        hint = _hint(text, parsing)
        return Outcome.of(False, f"the output is not JSON: {error}{hint}", parsing=parsing)
    return await schema_verdict(found.value, parse_schema(written), parsing=parsing, found_in=found.found_in)


def _parse(text: str, parsing: EvaluationParsing) -> FoundJson:
    if parsing == "tolerant":
        return find_json(text)
    return FoundJson(parse_strict_json(text), "whole output")


def _hint(text: str, parsing: EvaluationParsing) -> str:
    """Return a hint for an answer that has text around its JSON."""
    if parsing == "tolerant":
        return ""
    try:
        found = find_json(text)
    except ValueError:
        return ""
    return f" (there is JSON in it, in a {found.found_in}; `evaluation_parsing: tolerant` reads that)"


def loose_objects(text: str) -> Iterator[JsonValue]:
    """Yield the objects in a text, outermost ones; at the end of the text missing braces are taken as written.

    Keys without quotes, single quotes and commas too many are no mistakes here. A list is no object; those in it are.
    """
    start = text.find("{")
    effort = _MOST_READ
    while start >= 0 and effort > 0:
        end, missing = _end_of(text, start)
        effort -= end - start
        found = _read(text[start:end] + "}" * missing)
        if found is None:
            start = text.find("{", start + 1)
        else:
            yield found
            start = text.find("{", end)


def _end_of(text: str, start: int) -> tuple[int, int]:
    """Where what opens at `start` is closed, or the text or the limit ends, and how many braces are missing there."""
    depth = 0
    last = min(start + _LONGEST, len(text))
    for place in range(start, last):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return place + 1, 0
    return last, depth


def _read(written: str) -> JsonValue:
    """Return the parsed value; None when there is none."""
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        pass
    try:
        found = read_yaml(written, "output").value
    except (ConfigError, RecursionError):
        return None
    return found if isinstance(found, dict | list) else None


class IsJsonAssertion(Assertion):
    """is-json, contains-json: the output is, or contains, JSON that matches the schema in `value`, if set."""

    value_form = "schema"
    value_may_be_null = True

    value: WrittenSchema | None = Field(
        None, description="A JSON Schema for the output, or file:// with one."
    )

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the schema itself: it must be one, and refer only to itself."""
        problems: list[Problem] = []
        written = _schema_of(self)
        if isinstance(written, str) and context.rules.schema_is_template:
            written = context.render(written, self.place.value("value"), problems)
        if written is None:
            return problems
        return schema_problems(written, f"the `value` of {self.base_type}", self.place.child("value"))

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Find the JSON and validate it; the reason lists the errors with their JSON paths.

        Raises:
            CheckTimeoutError: it takes too long to say.
        """
        written = _schema_of(self)
        if isinstance(written, str) and tools.rules.schema_is_template:
            written = tools.templates.render(written, subject.test.variables)
        schema = None if written is None else parse_schema(written)
        if self.base_type == "contains-json":
            find = loose_objects if tools.rules.finds_loose_json else every_json
            what = "looking for JSON in the output"
            return await asyncio.to_thread(
                within, CHECK_TIMEOUT_S, what, _some_json, find(subject.text), schema
            )
        try:
            value = parse_strict_json(subject.text)
        except ValueError as error:
            return Outcome.of(False, f"the output is not JSON: {error}")
        return (
            Outcome.of(True, "the output is JSON") if schema is None else await schema_verdict(value, schema)
        )


def _some_json(values: Iterator[JsonValue], schema: Schema | None) -> Outcome:
    """Check that some JSON of an output matches; if none does, give the reason of the nearest one."""
    nearest: list[str] | None = None
    count = 0
    for value in values:
        count += 1
        errors = [] if schema is None else raw_schema_errors(value, schema)
        if not errors:
            kind = "list" if isinstance(value, list) else "object"
            fits = "" if schema is None else " that is valid against the schema"
            found_reason = shortened(f"the output contains a JSON {kind}{fits}")
            return Outcome.of(True, found_reason)
        if nearest is None or len(errors) < len(nearest):
            nearest = errors
    if nearest is None:
        return Outcome.of(False, "there is no JSON object or list in the output")
    which = "the JSON in the output" if count == 1 else f"none of the {count} JSON values in the output"
    is_not = "is not valid" if count == 1 else "is valid"
    reason = f"{which} {is_not} against the schema: {'; '.join(nearest[:5])}"
    return Outcome.of(False, reason, errors=list(nearest))


def _schema_of(spec: IsJsonAssertion) -> dict[str, JsonValue] | bool | str | None:
    """Return the schema as written; None for blank text."""
    return unless_empty(spec.value) if isinstance(spec.value, str) else spec.value
