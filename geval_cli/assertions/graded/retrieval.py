"""Find the question and the retrieved context that an output is judged by."""

from pydantic import AliasChoices, Field

from geval_cli.assertions.base import Assertion, CheckContext, MergedTest, ModelGradedAssertion, Subject
from geval_cli.errors import Problem, UnjudgeableError
from geval_cli.records import JsonValue

DEFAULT_THRESHOLD = 0.5
"""The lowest score that passes where an assertion about retrieval names none."""


class ContextAssertion(ModelGradedAssertion):
    """Base of the assertions about retrieved context."""

    default_threshold = DEFAULT_THRESHOLD

    context_transform: str | None = Field(
        None,
        validation_alias=AliasChoices("contextTransform", "context_transform"),
        description="Code that extracts the context from the output.",
    )


def question_of(subject: Subject) -> str:
    """Return the question: the variable `query`, else the test's input, else the whole prompt."""
    query = subject.test.variables.get("query")
    return query if isinstance(query, str) and query else subject.test.input or subject.rendered_prompt


def context_of(test: MergedTest) -> tuple[str, ...]:
    """Return the passages of the context: from the variable, else from the test itself; empty without either."""
    for value in (test.vars.get("context"), test.retrieval_context, test.context):
        passages = _passages(value)
        if passages:
            return passages
    return ()


def needed_context(subject: Subject) -> tuple[str, ...]:
    """Return the passages of the context.

    Raises:
        UnjudgeableError: there are none.
    """
    found = context_of(subject.test)
    if not found:
        raise UnjudgeableError("the test has no `context`", hint="put the retrieved text into `vars.context`")
    return found


def sentences_of(passages: tuple[str, ...]) -> tuple[str, ...]:
    """Return the countable units of a context: the passages of a list, or the lines of a single text."""
    if len(passages) != 1:
        return passages
    return tuple(line.strip() for line in passages[0].splitlines() if line.strip())


def check_context_is_there(spec: Assertion, context: CheckContext, problems: list[Problem]) -> None:
    """Report a test that has no context."""
    if not context_of(context.test):
        where = context.where.removeprefix("in ")
        message = f"{spec.base_type} needs a context, but {where} has none"
        hint = "put the retrieved text into `vars.context`"
        problems.append(Problem(message, spec.place.value("type"), hint))


def _passages(value: JsonValue) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,) if value.strip() else ()
    if isinstance(value, list | tuple):
        return tuple(str(item) for item in value if str(item).strip())
    return ()
