"""equals: the output is the expected text or, where data is expected, the same JSON value."""

from collections.abc import Callable
from typing import Any

from pydantic import Field

from geval_cli.assertions.base import Assertion, CheckContext, Subject, Tools
from geval_cli.assertions.outcome import Outcome, shortened
from geval_cli.assertions.structured.json_text import parse_strict_json
from geval_cli.assertions.values import as_text, compact_json, render_deep
from geval_cli.errors import Problem
from geval_cli.records import JsonValue
from geval_cli.specs.dialect import DialectRules


class EqualsAssertion(Assertion):
    """equals: the whole output is this text or, with a list or a mapping, this JSON value."""

    value_form = "data"
    value_may_be_null = True

    value: Any = Field(description="What the output must be; texts are templates. May be file://.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return problems of the templates in `value`, in one test."""
        problems: list[Problem] = []
        where = self.place.value("value")
        expected_data(self.value, lambda text: context.render(text, where, problems) or "", context.rules)
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Compare with the rendered `value`: texts letter by letter, lists and mappings as JSON."""
        variables = subject.test.variables
        if not isinstance(self.value, dict | list) and self.value is not None:
            expected = tools.templates.render(as_text(self.value), variables)
            return _outcome(subject.text == expected, expected)
        value = expected_data(self.value, lambda text: tools.templates.render(text, variables), tools.rules)
        try:
            found = parse_strict_json(subject.text)
        except ValueError:
            return _outcome(False, compact_json(value))
        return _outcome(is_same_json(found, value), compact_json(value))


def expected_data(value: JsonValue, render: Callable[[str], str], rules: DialectRules) -> JsonValue:
    """Return `value` rendered: all texts in it, or only those of a list, as the dialect has it."""
    if rules.renders_mappings:
        return render_deep(value, render)
    if isinstance(value, list):
        return [render(item) if isinstance(item, str) else item for item in value]
    return render(value) if isinstance(value, str) else value


def is_same_json(one: JsonValue, other: JsonValue) -> bool:
    """Return whether two values are equal as JSON: 1 equals 1.0, true equals no number, keys have no order."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same_json, one, other))
    return bool(one == other)


def _outcome(passed: bool, expected: str) -> Outcome:
    does = "equals" if passed else "is not equal to"
    return Outcome.of(passed, f'the output {does} "{shortened(expected)}"')
