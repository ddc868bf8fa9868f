"""Which texts of a test case the judge sees: the input, the source, the knowledge, the evaluation parameters."""

import json
from collections.abc import Mapping, Sequence

from msgspec import Struct

from geval_cli.errors import MissingParamsError
from geval_cli.judge.metric import JudgedCase
from geval_cli.records import JsonValue

PARAM_LABELS: Mapping[str, str] = {
    "prompt": "Prompt",
    "input": "Input",
    "actual_output": "Actual Output",
    "expected_output": "Expected Output",
    "context": "Context",
    "retrieval_context": "Retrieval Context",
}
"""The evaluation parameters in the order in which a judge sees them, with the names that it sees."""

_SOURCE_VARS = ("Document", "document", "source", "article", "conversation", "text")
_QUESTION_VARS = ("query", "prompt")
_KNOWLEDGE_VARS = ("context", "knowledge", "retrieval_context")


class Source(Struct, frozen=True):
    """What the output of a dimension is held against.

    `found_in` says where the text comes from (`vars.article`); `knowledge` is a context text that exists besides.
    """

    text: str
    found_in: str
    knowledge: str | None = None


def as_text(value: JsonValue) -> str:
    """A value as a judge is shown it: text as it is, several texts numbered, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
        return (
            value[0]
            if len(value) == 1
            else "\n".join(f"[{number}] {item}" for number, item in enumerate(value, 1))
        )
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def resolve_input(case: JudgedCase) -> str:
    """The test's input, else vars.input, else the rendered prompt; empty when there is none."""
    return _first((case.input, case.vars.get("input"), case.rendered_prompt))


def resolve_source(case: JudgedCase) -> Source:
    """The source of a dimension, by the order of GEVAL.md, section 1, and the knowledge besides it."""
    texts = [(name, as_text(value)) for name, value in _source_candidates(case) if not _is_blank(value)]
    found_in, text = texts[0] if texts else ("prompt", "")
    context = [
        ("retrieval_context", case.retrieval_context),
        ("context", case.context),
        *((f"vars.{name}", case.vars.get(name)) for name in _KNOWLEDGE_VARS),
    ]
    besides = (as_text(value) for name, value in context if name != found_in and not _is_blank(value))
    knowledge = next((item for item in besides if item != text), None)
    return Source(text, found_in, knowledge)


def present_params(case: JudgedCase) -> tuple[str, ...]:
    """The evaluation parameters that the case has, in the judge's order; the output is always there."""
    return tuple(name for name in PARAM_LABELS if name == "actual_output" or param_text(name, case))


def missing_params(params: Sequence[str] | None, case: JudgedCase) -> tuple[str, ...]:
    """Those of the named parameters that the case lacks; none when None is named."""
    present = present_params(case)
    return tuple(name for name in params or () if name not in present)


def chosen_params(params: Sequence[str] | None, case: JudgedCase) -> tuple[str, ...]:
    """The parameters to show, in the judge's order: the named ones, else all that the case has.

    Raises:
        MissingParamsError: the case lacks a named one.
    """
    if missing := missing_params(params, case):
        raise MissingParamsError(missing)
    present = present_params(case)
    return present if params is None else tuple(name for name in present if name in params)


def param_text(name: str, case: JudgedCase) -> str:
    """The text of an evaluation parameter; empty when the case lacks it."""
    if name == "input":
        return resolve_input(case)
    value = getattr(case, name)
    return as_text(value) if name == "actual_output" or not _is_blank(value) else ""


def _source_candidates(case: JudgedCase) -> list[tuple[str, JsonValue]]:
    return [
        ("source", case.source),
        *((f"vars.{name}", case.vars.get(name)) for name in _SOURCE_VARS),
        ("retrieval_context", case.retrieval_context),
        ("context", case.context),
        *((f"vars.{name}", case.vars.get(name)) for name in _QUESTION_VARS),
        ("prompt", case.rendered_prompt),
    ]


def _first(values: Sequence[JsonValue]) -> str:
    return next((as_text(value) for value in values if not _is_blank(value)), "")


def _is_blank(value: JsonValue) -> bool:
    return value is None or (isinstance(value, str) and not value.strip()) or value in ([], (), {})
