"""Turn a prompt's evaluation mode into an assertion beside those of the test."""

from collections.abc import Iterable, Iterator, Mapping

from geval_cli.assertions.base import Assertion, MergedTest
from geval_cli.assertions.registry import EVALUATION_TYPES, check_schema
from geval_cli.assertions.structured.json_text import parse_schema, unless_empty
from geval_cli.errors import Problem, Severity
from geval_cli.records import JsonValue
from geval_cli.specs.base import PromptSpec


def assertions_of(prompt: PromptSpec, test: MergedTest) -> tuple[Assertion, ...]:
    """Everything that an answer to `prompt` in `test` is checked for, the evaluation of the prompt's mode first."""
    evaluation = evaluation_of(prompt, test)
    return test.assertions if evaluation is None else (evaluation, *test.assertions)


def evaluation_of(prompt: PromptSpec, test: MergedTest) -> Assertion | None:
    """Return the assertion of the prompt's mode; None when the prompt has no mode."""
    mode = prompt.effective_mode
    if mode == "llm":
        is_written = "evaluation_criteria" in prompt.model_fields_set
        return EVALUATION_TYPES["evaluation-llm"](  # type: ignore[call-arg] # the keys of that type
            type="evaluation-llm",
            criteria=prompt.evaluation_criteria or "",
            place=prompt.place.child("evaluation_criteria" if is_written else "evaluation_mode"),
        )
    if mode == "schema":
        return EVALUATION_TYPES["evaluation-schema"](  # type: ignore[call-arg] # the keys of that type
            type="evaluation-schema",
            value=test.evaluation_schema,
            parsing=test.evaluation_parsing or prompt.evaluation_parsing or "strict",
            place=test.schema_place,
        )
    return None


def answer_schema(prompt: PromptSpec) -> Mapping[str, JsonValue] | None:
    """Return the schema that shapes the answer to a checked prompt, where the provider can; None when there is none."""
    if prompt.expected_schema is None:
        return None
    written = unless_empty(prompt.expected_schema)
    schema = None if written is None else parse_schema(written)
    return schema if isinstance(schema, dict) else None


def check_prompts(prompts: Iterable[PromptSpec]) -> Iterator[Problem]:
    """Yield the problems of the evaluation keys of prompts, whatever the test."""
    for prompt in prompts:
        yield from _check_expected_schema(prompt)
        if prompt.effective_mode == "schema" and (prompt.evaluation_criteria or "").strip():
            yield _unused(prompt, "evaluation_criteria", "the evaluation mode is schema")
        if prompt.effective_mode != "schema" and prompt.evaluation_parsing is not None:
            yield _unused(prompt, "evaluation_parsing", "the evaluation mode is not schema")


def check_unused_schema(test: MergedTest, prompts: Iterable[PromptSpec]) -> Iterator[Problem]:
    """Yield a warning about a schema that no prompt has a use for."""
    if unless_empty(test.evaluation_schema) is None:
        return
    modes = {prompt.effective_mode for prompt in prompts}
    if "schema" in modes:
        return
    why = (
        "the evaluation mode of the prompts is llm"
        if modes == {"llm"}
        else "no prompt has the evaluation mode schema"
    )
    yield Problem(
        f"`evaluation_schema` is not used: {why}",
        test.schema_place.value(),
        "write `evaluation_mode: schema` in a prompt",
        severity=Severity.WARNING,
    )


def _check_expected_schema(prompt: PromptSpec) -> list[Problem]:
    written = unless_empty(prompt.expected_schema)
    if written is None:
        return []
    place = prompt.place.child("expected_schema")
    problems = check_schema(written, "`expected_schema`", place)
    if not problems and answer_schema(prompt) is None:
        problems.append(Problem("`expected_schema` must be an object, not a boolean", place.value()))
    return problems


def _unused(prompt: PromptSpec, key: str, why: str) -> Problem:
    return Problem(
        f"`{key}` of prompt `{prompt.label or prompt.id}` is not used: {why}",
        prompt.place.value(key),
        "remove it, or change `evaluation_mode`",
        severity=Severity.WARNING,
    )
