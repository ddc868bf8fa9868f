"""Calls of the code that a config names: what it sees, and what its failures mean."""

import json
import math
from collections.abc import Mapping

from geval_cli.assertions.assert_set import AssertSet
from geval_cli.assertions.base import Assertion, CheckContext, Subject, TestCase, Tools
from geval_cli.assertions.serialize import serialize
from geval_cli.errors import CodeFailedError, Location, Problem, TemplateError
from geval_cli.records import JsonValue
from geval_cli.scripting.code import (
    FILE_PREFIX,
    CodeError,
    Language,
    ScriptCrashError,
    ScriptError,
    ScriptLimitError,
    ScriptTimeoutError,
    check_python,
    find_code,
)
from geval_cli.scripting.javascript import INSTALL_HINT, check_javascript, is_installed
from geval_cli.specs.base import JurySpec, ProviderSpec
from geval_cli.templating import TEMPLATE_MARKS, Templates

OUTPUT_ARGUMENTS = ("output", "context")
_TOOL_CALLS = frozenset({"tool_calls", "function_call"})
_CHECKED_TESTS = 100
"""Number of tests for which code with variables is compiled beforehand: each test makes another text."""


class CodeRaisedError(CodeFailedError):
    """The code itself raised; what is wrong may be the output that it looked at."""


async def call_code(
    written: str,
    arguments: Mapping[str, JsonValue],
    tools: Tools,
    *,
    language: Language = Language.JAVASCRIPT,
    default_function: str = "get_transform",
) -> JsonValue:
    """Call the code of a config and return its result.

    Args:
        written: a snippet, variables already in it, or `file://` with a path.
        arguments: what a snippet sees by name, and a function gets in this order.
        tools: with `scripts`.
        language: of snippets.
        default_function: which function of a Python file is meant when none is named.

    Raises:
        CodeRaisedError: the code raised, or gave back what is no JSON.
        CodeFailedError: it could not be run, or took more than it may.
    """
    if tools.scripts is None:
        raise CodeFailedError("no code is run here", hint="start a run of the config")
    try:
        code = find_code(written, tools.scripts.base_dir, language, tools.scripts.access)
        result = await tools.scripts.call(code, arguments, default_function=default_function)
    except CodeError as error:
        raise CodeFailedError(error.message, hint=error.hint) from error
    except ScriptTimeoutError as error:
        raise CodeFailedError(f"the code took too long: {error}", hint="make it do less") from error
    except ScriptCrashError as error:
        hint = "run it by itself to see why"
        raise CodeFailedError(
            f"the code ended its process: {error}", detail=error.detail, hint=hint
        ) from error
    except ScriptLimitError as error:
        hint = "write it without, or in Python"
        raise CodeFailedError(f"the code cannot be run: {error}", detail=error.detail, hint=hint) from error
    except ScriptError as error:
        hint = "see what it says, and fix the code"
        raise CodeRaisedError(f"the code raised: {error}", detail=error.detail, hint=hint) from error
    if isinstance(result, float) and not math.isfinite(result):
        raise CodeRaisedError("the code gave a number that is none", hint="look for a division by zero")
    return result


def code_text(written: str, variables: Mapping[str, JsonValue], templates: Templates) -> str:
    """Return the code as it is run: rendered where the dialect makes code a template, else what is written."""
    if not templates.rules.code_is_template or written.startswith(FILE_PREFIX):
        return written
    try:
        return templates.render(written, variables)
    except TemplateError:
        return written  # braces of the language's own


def code_problems(
    written: str,
    location: Location | None,
    context: CheckContext,
    *,
    names: tuple[str, ...] = OUTPUT_ARGUMENTS,
    language: Language = Language.JAVASCRIPT,
    default_function: str = "get_transform",
) -> list[Problem]:
    """Return the problems of code before it is run: no such file, a syntax error, an engine that is not installed."""
    is_template = any(mark in written for mark in TEMPLATE_MARKS)
    if is_template and context.test.index >= _CHECKED_TESTS:
        return []
    text = code_text(written, context.test.variables, context.templates)
    try:
        code = find_code(text, context.base_dir, language, context.access)
        if code.language is Language.PYTHON:
            check_python(code, default_function, context.access)
        elif not is_installed():
            return [Problem("JavaScript needs an engine that is not installed", location, INSTALL_HINT)]
        else:
            check_javascript(code, names)
    except CodeError as error:
        line = f" in line {error.line} of the code" if error.line and "\n" in text else ""
        said = f"{error.message}{line if 'line' not in error.message else ''}"
        return [Problem(said, location, error.hint or "fix the code")]
    return []


def visible_variables(subject: Subject) -> dict[str, JsonValue]:
    """Return the variables that may become part of code: none that a model made."""
    return {name: value for name, value in subject.test.variables.items() if name not in subject.opaque}


def script_output(subject: Subject) -> JsonValue:
    """Return the output as code sees it: calls of tools as data, anything else as it is."""
    response, output = subject.response, subject.output
    if response is None or not isinstance(output, str):
        return output
    if response.choices[0].finish_reason in _TOOL_CALLS and output.startswith(("[", "{")):
        try:
            return json.loads(output)
        except (ValueError, RecursionError):
            return output
    return output


def script_context(subject: Subject, spec: Assertion | None = None) -> dict[str, JsonValue]:
    """Return the `context` argument of code, under promptfoo's names."""
    test, response, provider = subject.test, subject.response, subject.provider
    context: dict[str, JsonValue] = {
        "vars": test.variables,
        "prompt": subject.rendered_prompt,
        "test": test_shown(test),
        "metadata": {},
        "provider": None if provider is None else {"id": provider.public_id, "label": provider.title},
        "providerResponse": {"output": subject.output},
    }
    if response is not None:
        usage, choice = response.usage, response.choices[0]
        context["providerResponse"] = {
            "output": subject.output,
            "cached": response.is_from_cache,
            "latencyMs": response.latency_ms,
            "cost": usage.cost_usd,
            "finishReason": choice.finish_reason,
            "tokenUsage": {
                "prompt": usage.input_tokens,
                "completion": usage.output_tokens,
                "total": usage.input_tokens + usage.output_tokens,
            },
        }
        if choice.token_logprobs is not None:
            context["logProbs"] = [token.logprob for token in choice.token_logprobs]
    config = getattr(spec, "config", None)
    if config is not None:
        context["config"] = config
    return context


def test_shown(test: TestCase) -> dict[str, JsonValue]:
    """Return a test as code sees it."""
    return {
        "description": test.description,
        "vars": test.variables,
        "metadata": dict(test.metadata),
        "threshold": test.threshold,
        "assert": [written_assertion(item) for item in test.assertions],
        "options": {},
    }


def written_assertion(spec: Assertion) -> dict[str, JsonValue]:
    """An assertion as the config has it, for code to see; of a provider only its id, since its config may hold keys."""
    shown = serialize(spec)
    if "criteria" in shown:
        shown["value"] = shown.pop("criteria")
    provider = getattr(spec, "provider", None)
    if isinstance(provider, JurySpec):
        shown["provider"] = [judge.public_id for judge in provider.members]
    elif isinstance(provider, ProviderSpec):
        shown["provider"] = provider.public_id
    if isinstance(spec, AssertSet):
        shown["assert"] = [written_assertion(member) for member in spec.assertions]
    return shown
