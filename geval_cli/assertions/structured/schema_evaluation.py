"""evaluation-schema: the evaluation mode `schema`, in which an output must fit the JSON Schema of its test."""

from geval_cli.assertions.base import Assertion, CheckContext, Subject, Tools
from geval_cli.assertions.outcome import Outcome
from geval_cli.assertions.structured.json_schemas import schema_problems, schema_verdict
from geval_cli.assertions.structured.json_text import FoundJson, find_json, parse_strict_json
from geval_cli.assertions.structured.written_schema import parse_schema, unless_empty
from geval_cli.errors import Problem
from geval_cli.specs.base import EvaluationParsing, WrittenSchema


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
