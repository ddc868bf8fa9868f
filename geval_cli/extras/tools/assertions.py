"""Assertions about tool calls in the output: `is-valid-function-call` and its variants, and `tool-call-f1`."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace
from pydantic import Field

from geval_cli.assertions.base import (
    Assertion,
    CheckContext,
    MergedTest,
    Outcome,
    Subject,
    Tools,
    check_texts,
    rendered_texts,
    shortened,
)
from geval_cli.assertions.json_output import schema_errors, schema_problems
from geval_cli.assertions.json_text import calls_in, parse_strict_json
from geval_cli.errors import Problem, UnjudgeableError
from geval_cli.judge.source import TOOL
from geval_cli.numbers import format_score, format_score_beside, format_threshold
from geval_cli.providers.wire.chat import tool_call
from geval_cli.records import JsonValue
from geval_cli.source.source_map import SourcePath, split_lines
from geval_cli.specs.base import Score
from geval_cli.templating import Templates

DEFAULT_THRESHOLD = 1.0
_CUSTOM = "custom"

_FUNCTIONS_KEY = {
    "is-valid-openai-tools-call": ("tools",),
    "is-valid-openai-function-call": ("functions",),
    "is-valid-function-call": ("functions", "tools"),
}


_GEMINI_KEYS = ("functionDeclarations", "function_declarations")
_SCHEMA_KEYS = ("parameters", "input_schema", "parametersJsonSchema", "parameters_json_schema")


class ToolCallF1Assertion(Assertion):
    """tool-call-f1: the F1 score of called and expected tools."""

    value_form = "texts"

    value: str | tuple[str, ...] = Field(
        description="The expected tools: a list of templates, or comma-separated text."
    )
    threshold: Score | None = Field(None, description="The lowest passing F1; 1 by default.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the expected names: there are none, or a template is broken."""
        problems: list[Problem] = []
        check_texts(self.value, self.place.child("value"), context, problems)
        if not problems and not _expected(self, context.test, context.templates):
            message = f"tool-call-f1 has no expected tools ({context.where})"
            problems.append(Problem(message, self.place.value("value"), "list at least one name in `value`"))
        return problems

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Score the harmonic mean of precision and recall of the called tools.

        Precision is the share of called tools that were expected, recall the share of expected tools that were called.

        Raises:
            UnjudgeableError: the output has too much broken JSON to be searched for calls.
        """
        expected = _expected(self, subject.test, tools.templates)
        calls = subject.tool_calls
        called = {call.name for call in calls_in(list(calls) if calls else subject.output)}
        called |= {step.name for step in subject.called or () if step.type == TOOL}
        hits = len(expected & called)
        precision = hits / len(called) if called else 0.0
        recall = hits / len(expected)
        score = 2 * precision * recall / (precision + recall) if hits else 0.0
        threshold = DEFAULT_THRESHOLD if self.threshold is None else self.threshold
        shown = shortened(", ".join(sorted(called))) or "nothing"
        reason = (
            f"F1 is {format_score_beside(score, threshold)} (precision {format_score(precision)}, "
            f"recall {format_score(recall)}); the threshold is {format_threshold(threshold)}. "
            f"Expected: {shortened(', '.join(sorted(expected)))}. Called: {shown}"
        )
        is_default = self.threshold is None
        outcome = Outcome.graded(
            score, reason, threshold, is_default=is_default, precision=precision, recall=recall
        )
        if self.is_negated and not tools.rules.negates_scores:
            return replace(outcome, score=1 - score)  # `not-` will invert it again
        return outcome


def _expected(spec: ToolCallF1Assertion, test: MergedTest, templates: Templates) -> set[str]:
    return {name.strip() for name in rendered_texts(spec.value, test, templates, split=True) if name.strip()}


class ToolCallAssertion(Assertion):
    """is-valid-function-call and its variants: the calls in the output match the tools in the provider's config."""

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Pass if every call names a known function and its arguments match that function's JSON Schema.

        Raises:
            UnjudgeableError: the provider's config has no functions, or a schema in it is broken.
        """
        keys = _FUNCTIONS_KEY[self.base_type]
        known: dict[str, JsonValue]
        if subject.called is not None and subject.test.tools is not None:
            known = {tool.name: tool.parameters for tool in subject.test.tools.definitions}
            # What ran at the vendor has no time.
            made = [step for step in subject.called if step.type == TOOL and step.ms is not None]
            return await _checked(
                [{"name": it.name, "arguments": json.dumps(it.args)} for it in made], known, subject
            )
        known = await asyncio.to_thread(_functions, subject, keys)
        try:
            # The calls that came with the answer, since its text has them in the API's own format. Calls that ran
            # at the vendor are left out, since the config does not define their functions.
            response = subject.response
            if response is not None and subject.output == response.text:
                told_calls = response.tool_calls
            else:
                told_calls = subject.tool_calls
            beside = [call["function"] for call in map(_wire_call, told_calls) if _is_to_run(call)]
            calls = beside or list(
                _calls(_as_data(subject.output), is_tools="tools" in keys, is_function="functions" in keys)
            )
        except ValueError as error:
            return Outcome.of(False, f"the output is not a function call: {error}")
        return await _checked(calls, known, subject)


async def _checked(
    calls: Sequence[Mapping[str, JsonValue]], known: Mapping[str, JsonValue], subject: Subject
) -> Outcome:
    if not calls:
        return Outcome.of(False, f"the output is not a function call: {shortened(subject.text)}")
    for call in calls:
        problem = await asyncio.to_thread(_problem, call, known)
        if problem:
            return Outcome.of(False, problem)
    names = ", ".join(str(call["name"]) for call in calls)
    return Outcome.of(True, f"valid call of {shortened(names)}")


def _wire_call(call: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """Return a call, which a test's turn may have in a short form, in the chat API's form."""
    if "function" in call:
        return call
    return tool_call(call.get("name"), call.get("args", call.get("arguments")), call.get("id"))


def _is_to_run(call: Mapping[str, JsonValue]) -> bool:
    return call.get("type", "function") in ("function", _CUSTOM) and _is_call(call["function"])


def _as_data(output: JsonValue) -> JsonValue:
    """Return the output as data; text is parsed as JSON, or as calls of the Responses API, one per line.

    Raises:
        ValueError: the text is neither.
    """
    if not isinstance(output, str):
        return output
    try:
        return parse_strict_json(output)
    except ValueError:
        lines = [_line(line) for line in split_lines(output) if line.strip()]
        if lines and all(map(_is_response_call, lines)):
            return lines
        raise


def _line(text: str) -> JsonValue:
    try:
        return parse_strict_json(text)
    except ValueError:
        return None


def _is_response_call(value: JsonValue) -> bool:
    """Return whether this is a call of the Responses API: name and arguments without an enclosing `function`."""
    return isinstance(value, dict) and value.get("type") == "function_call"


def _calls(data: JsonValue, *, is_tools: bool, is_function: bool) -> Iterator[Mapping[str, JsonValue]]:
    """Yield the calls in an answer, each with `name` and `arguments`.

    Raises:
        ValueError: an item in the list of calls is not a call.
    """
    if is_tools and isinstance(data, dict) and "tool_calls" in data:
        data = data["tool_calls"]
    if is_function and isinstance(data, dict) and isinstance(data.get("function_call"), dict):
        data = data["function_call"]
    if is_tools and _is_response_call(data):
        data = [data]
    if is_tools and isinstance(data, list):
        for item in data:
            function = item if _is_response_call(item) else _function_of(item)
            if function is None or not _is_call(function):
                raise ValueError(f"{shortened(json.dumps(item))} does not call anything")
            yield function
    elif is_function and _is_call(data):
        yield data


def _function_of(item: JsonValue) -> JsonValue:
    return item.get("function") if isinstance(item, dict) else None


def _is_call(value: JsonValue) -> bool:
    is_named = isinstance(value, dict) and isinstance(value.get("name"), str)
    return is_named and isinstance(value.get("arguments"), str)


def _functions(subject: Subject, keys: tuple[str, ...]) -> dict[str, JsonValue]:
    """Return the JSON Schema of each known function, by name; None for custom tools, which take free text.

    Raises:
        UnjudgeableError: there are no functions, or a schema is broken.
    """
    config = {} if subject.provider is None else subject.provider.config
    entries = [entry for key in keys if isinstance(config.get(key), list) for entry in config[key]]
    found: dict[str, JsonValue] = {}
    for entry in entries:
        for function in _declared(entry):
            if isinstance(function, dict) and isinstance(function.get("name"), str):
                schemas = (function[key] for key in _SCHEMA_KEYS if function.get(key) is not None)
                found[function["name"]] = None if entry.get("type") == _CUSTOM else next(schemas, True)
    if not found:
        named = " or ".join(f"`{key}`" for key in keys)
        raise UnjudgeableError(
            "the provider's config has no functions to check a call against",
            hint=f"list them under {named} in the provider's config",
        )
    for name, schema in found.items():
        problems = (
            ()
            if schema is None
            else schema_problems(schema, f"the `parameters` of `{name}`", SourcePath.nowhere())
        )
        if problems:
            raise UnjudgeableError(problems[0].message, hint="fix the function in the provider's config")
    return found


def _declared(tool: JsonValue) -> Sequence[JsonValue]:
    """Return the functions of a tool, in any API's format; Gemini's is a list, with upper-case types."""
    if not isinstance(tool, dict):
        return ()
    listed = next((tool[key] for key in _GEMINI_KEYS if isinstance(tool.get(key), list)), None)
    named = tool.get(_CUSTOM if tool.get("type") == _CUSTOM else "function", tool)
    return [named] if listed is None else [_with_small_types(item) for item in listed]


def _with_small_types(schema: JsonValue) -> JsonValue:
    if isinstance(schema, list):
        return [_with_small_types(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value.lower() if key == "type" and isinstance(value, str) else _with_small_types(value)
        for key, value in schema.items()
    }


def _problem(call: Mapping[str, JsonValue], known: Mapping[str, JsonValue]) -> str:
    """Return what is wrong with a call; empty if nothing is."""
    name = call["name"]
    if name not in known:
        return (
            f"`{shortened(str(name))}` is called, but the known functions are {shortened(', '.join(known))}"
        )
    if known[name] is None:
        return ""
    try:
        arguments = parse_strict_json(call["arguments"])
    except ValueError as error:
        return f"the arguments of `{name}` are not JSON: {error}"
    errors = schema_errors(arguments, known[name])
    return f"the arguments of `{name}` do not match its parameters: {'; '.join(errors[:5])}" if errors else ""
