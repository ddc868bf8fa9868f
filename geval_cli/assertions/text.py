"""contains, icontains, starts-with, ends-with, regex: the output's text against one expected text."""

import asyncio
from collections.abc import Callable

import regex
from msgspec import Struct

from geval_cli.assertions.javascript_pattern import is_javascript_pattern, python_pattern
from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools, shortened
from geval_cli.assertions.patterns import is_found
from geval_cli.assertions.values import as_text
from geval_cli.config.dialect import Dialect
from geval_cli.config.schema import AssertionSpec, TextAssertionSpec
from geval_cli.errors import Problem, Severity
from geval_cli.templating import Templates


class Comparison(Struct, frozen=True):
    """How a type compares (output, expected), and how its reason says that it holds or not."""

    holds: Callable[[str, str], bool]
    does: str
    does_not: str


COMPARISONS: dict[str, Comparison] = {
    "contains": Comparison(lambda text, value: value in text, "contains", "does not contain"),
    "icontains": Comparison(
        lambda text, value: value.casefold() in text.casefold(),
        "contains, in any case,",
        "does not contain, in any case,",
    ),
    "starts-with": Comparison(str.startswith, "starts with", "does not start with"),
    "ends-with": Comparison(str.endswith, "ends with", "does not end with"),
    "regex": Comparison(lambda text, value: is_found(value, text), "matches", "does not match"),
}


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Problems of one text assertion in one test: broken templates, a pattern that does not compile."""
    assert isinstance(spec, TextAssertionSpec)
    location = spec.place.value("value")
    problems: list[Problem] = []
    value = context.render(as_text(spec.value), location, problems)
    if value is not None and spec.base_type == "regex":
        if not _is_known(value, context.templates):
            hint = "JavaScript has no such group: write (?i:...) or [Aa] instead of (?i), (?<name>...) for a name"
            message = "this pattern is none in JavaScript, so that the assertion fails"
            problems.append(Problem(message, location, hint, severity=Severity.WARNING))
            return problems
        try:
            regex.compile(_pattern(value, context.templates))
        except regex.error as error:
            problems.append(Problem(f"broken regular expression: {error}", location, "this does not compile"))
    return problems


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """Compare the output with the rendered `value`."""
    assert isinstance(spec, TextAssertionSpec)
    value = tools.templates.render(as_text(spec.value), subject.test.variables)
    comparison = COMPARISONS[spec.base_type]
    if spec.base_type == "regex":  # in a thread: it may take long on an output that nobody foresaw
        if not _is_known(value, tools.templates):  # it fails under `not-` too
            return Outcome.of(spec.is_negated, f'"{shortened(value)}" is no pattern in JavaScript')
        pattern = _pattern(value, tools.templates)
        passed = await asyncio.to_thread(comparison.holds, subject.text, pattern)
    else:
        passed = comparison.holds(subject.text, value)
    does = comparison.does if passed else comparison.does_not
    return Outcome.of(passed, f'the output {does} "{shortened(value)}"')


def _is_known(value: str, templates: Templates) -> bool:
    return templates.dialect is not Dialect.PROMPTFOO or is_javascript_pattern(value)


def _pattern(value: str, templates: Templates) -> str:
    return python_pattern(value) if templates.dialect is Dialect.PROMPTFOO else value
