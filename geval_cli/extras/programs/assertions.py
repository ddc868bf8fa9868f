"""The `javascript` and `python` assertions: the user's code returns a verdict, a score, or both."""

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace
from pydantic import Field

from geval_cli.assertions.base import (
    Assertion,
    CheckContext,
    MergedTest,
    Outcome,
    Subject,
    Tools,
    shortened,
    unrendered,
)
from geval_cli.assertions.sets import AssertSet
from geval_cli.errors import CodeFailedError, Location, Problem, TemplateError, UnjudgeableError
from geval_cli.extras.export import as_config
from geval_cli.extras.programs.scripting.code import (
    FILE_PREFIX,
    CodeError,
    Language,
    ScriptLimitError,
    check_python,
    find_code,
)
from geval_cli.extras.programs.scripting.javascript import INSTALL_HINT, check_javascript, is_installed
from geval_cli.judge.estimate import passes
from geval_cli.numbers import format_score, format_score_beside, format_threshold
from geval_cli.patterns import compile_later
from geval_cli.providers.wire.finish_reasons import FinishReason, known_end
from geval_cli.records import AssertionResult, JsonValue, Status
from geval_cli.source.command import ScriptCrashError, ScriptError, ScriptTimeoutError
from geval_cli.source.secrets import mask_config
from geval_cli.specs.base import JurySpec, ProviderSpec
from geval_cli.templating import Templates, is_template

OUTPUT_ARGUMENTS = ("output", "context")
_CHECKED_TESTS = 100
"""How many tests are checked if the code contains variables, since its text differs from test to test."""

_DEFAULT_FUNCTION = "get_assert"
_WANTED = "return true or false, a number, or a mapping with pass, score and reason"
_NAMES = ("output", "context")
_MEASURES = ("cost", "latencyMs")
_WORDS = {"true": True, "false": False}
_NOT_PASS = compile_later(r"_?(?:is_?)?(?:pass(?:ed|es)?|success)_?", re.IGNORECASE)
_NOT_SCORE = compile_later(r"_?scores?_?", re.IGNORECASE)


class CodeRaisedError(CodeFailedError):
    """The code itself raised an exception, possibly because of the output that it examined."""


async def call_code(
    written: str,
    arguments: Mapping[str, JsonValue],
    tools: Tools,
    *,
    language: Language = Language.JAVASCRIPT,
    default_function: str = "get_transform",
    calls_result: bool = True,
) -> JsonValue:
    """Call the code of a config and return its result.

    Args:
        written: a snippet whose variables are already filled in, or `file://` and a path.
        arguments: variables for a snippet, by name; positional arguments for a function, in this order.
        tools: must have `scripts`.
        language: the language of snippets; files are recognized by their suffix.
        default_function: the function to call in a Python file when the config names none.
        calls_result: whether to call the value of a JavaScript snippet when it is a function.

    Raises:
        CodeRaisedError: the code raised an exception, or its result cannot be written as JSON.
        CodeFailedError: the code could not be run, or exceeded a limit.
    """
    if tools.scripts is None:
        raise CodeFailedError("code cannot run here", hint="run the config instead")
    try:
        scripts = tools.scripts()
        code = find_code(written, scripts.base_dir, language, scripts.access)
        code = code if calls_result else replace(code, calls_result=False)
        result = await scripts.call(code, arguments, default_function=default_function)
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
        hint = "write it without that, or in Python"
        raise CodeFailedError(f"the code cannot be run: {error}", detail=error.detail, hint=hint) from error
    except ScriptError as error:
        hint = "fix the code"
        raise CodeRaisedError(f"the code raised: {error}", detail=error.detail, hint=hint) from error
    if isinstance(result, float) and not math.isfinite(result):
        returned = "NaN" if math.isnan(result) else "an infinite number"
        raise CodeRaisedError(f"the code returned {returned}", hint="look for a division by zero")
    return result


def code_text(written: str, variables: Mapping[str, JsonValue], templates: Templates) -> str:
    """Return an assertion's code to run: rendered if the dialect treats it as a template, otherwise as written.

    A file is never rendered, and neither is code that cannot be parsed as a template.
    """
    if not templates.rules.code_is_template or written.startswith(FILE_PREFIX):
        return written
    try:
        return templates.render(written, variables)
    except TemplateError:
        return written  # braces that belong to the language


def code_problems(
    written: str,
    location: Location | None,
    context: CheckContext,
    *,
    names: tuple[str, ...] = OUTPUT_ARGUMENTS,
    language: Language = Language.JAVASCRIPT,
    default_function: str = "get_transform",
    is_rendered: bool = False,
) -> list[Problem]:
    """Return the problems that can be found without running the code.

    They are a missing file, a syntax error, or a JavaScript engine that is not installed. `is_rendered`: the code is a
    template with the test's variables.
    """
    if is_template(written) and context.test.index >= _CHECKED_TESTS:
        return []
    text = code_text(written, context.test.variables, context.templates) if is_rendered else written
    try:
        code = find_code(text, context.base_dir, language, context.access)
        if code.language is Language.PYTHON:
            check_python(code, default_function, context.access)
        elif not is_installed():
            return [Problem("the JavaScript engine is not installed", location, INSTALL_HINT)]
        else:
            check_javascript(code, names)
    except CodeError as error:
        line = f" in line {error.line} of the code" if error.line and "\n" in text else ""
        said = f"{error.message}{line if 'line' not in error.message else ''}"
        return [Problem(said, location, error.hint or "fix the code")]
    if is_rendered or "output" not in names:
        return []
    hint = _WAYS_TO_VARIABLES[code.language]
    return list(unrendered(text, "the code", hint, context, location))


_WAYS_TO_VARIABLES = {
    Language.PYTHON: "write context['vars']['NAME']",
    Language.JAVASCRIPT: "write context.vars.NAME",
}


def visible_variables(subject: Subject) -> dict[str, JsonValue]:
    """Return the variables that may be inserted into code: all except those that a model produced."""
    return {name: value for name, value in subject.test.variables.items() if name not in subject.opaque}


def script_output(subject: Subject) -> JsonValue:
    """Return the output as code receives it: parsed if it is the JSON of tool calls, otherwise unchanged."""
    response, output = subject.response, subject.output
    if response is None or not isinstance(output, str) or subject.rules.keeps_data:
        return output
    if known_end(response.choices[0].finish_reason or "") is FinishReason.TOOL_CALLS and output.startswith(
        ("[", "{")
    ):
        try:
            return json.loads(output)
        except (ValueError, RecursionError):
            return output
    return output


def script_context(subject: Subject, spec: Assertion | None = None) -> dict[str, JsonValue]:
    """Return the `context` argument of code, with promptfoo's names."""
    test, response, provider = subject.test, subject.response, subject.provider
    reported = dict(subject.reported)
    shown = test_shown(test)
    if subject.rules.metadata_as_given:  # in promptfoo, what a test does not have is undefined
        shown = {name: value for name, value in shown.items() if value is not None}
    context: dict[str, JsonValue] = {
        "vars": test.variables,
        "prompt": subject.rendered_prompt,
        "test": shown,
        "provider": None if provider is None else {"id": provider.public_id, "label": provider.title},
        "providerResponse": {"output": subject.output, **reported},
    }
    if reported.get("metadata") is not None:
        context["metadata"] = reported["metadata"]
    elif not subject.rules.metadata_as_given:
        context["metadata"] = {}
    if response is not None:
        usage = response.usage_generated
        choice = response.choices[0]
        counted = reported.pop("tokenUsage", None)
        tokens = {"prompt": usage.input_tokens, "completion": usage.output_tokens}
        if total := sum(tokens.values()):
            tokens["total"] = total
        else:  # they are unknown
            tokens = {}
        answer = {
            "output": subject.output,
            "cached": response.is_from_cache,
            "latencyMs": response.latency_ms,
            "cost": response.cost_usd_generated,
            "finishReason": choice.finish_reason,
            "tokenUsage": {**tokens, **(counted if isinstance(counted, Mapping) else {})},
            **reported,
        }
        # What is unknown has no key: in JavaScript `null <= 0.01` is true.
        context["providerResponse"] = {
            name: value for name, value in answer.items() if value is not None or name not in _MEASURES
        }
        if choice.tool_calls:
            context["tool_calls"] = list(choice.tool_calls)
        if choice.token_logprobs is not None:
            context["logProbs"] = [token.logprob for token in choice.token_logprobs]
    if "logProbs" in reported:
        context["logProbs"] = reported["logProbs"]
    if subject.ended_by is not None:
        context["ended_by"] = subject.ended_by
    config = getattr(spec, "config", None)
    if config is not None:
        context["config"] = config
    return context


def test_shown(test: MergedTest) -> dict[str, JsonValue]:
    """Return a test as code receives it."""
    return {
        "description": test.description,
        "vars": test.variables,
        "metadata": dict(test.metadata),
        "threshold": test.threshold,
        "assert": [written_assertion(item) for item in test.assertions],
        "options": {},
    }


def written_assertion(spec: Assertion) -> dict[str, JsonValue]:
    """Return an assertion as the config has it, for code to read.

    A provider is reduced to its id, since its config may hold keys.
    """
    shown = as_config(spec)
    if spec.calls_server:
        shown = dict(mask_config(shown))
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


class CodeAssertion(Assertion):
    """javascript, python: your own code decides. It gets `output` and `context` and returns a verdict or a score."""

    runs_code = True

    value: str = Field(
        description="An expression, several lines with `return`, or file://checks.js:function."
    )
    threshold: float | None = Field(None, description="The lowest passing score; by default any above 0.")
    config: Any = Field(None, description="Any data; the code reads it as `context.config`.")

    def check(self, context: CheckContext) -> list[Problem]:
        """Return the problems of the code, rendered with the test's variables if the dialect makes code a template."""
        return code_problems(
            self.value,
            self.place.value("value"),
            context,
            names=_NAMES,
            language=Language(self.base_type),
            default_function=_DEFAULT_FUNCTION,
            is_rendered=context.rules.code_is_template,
        )

    async def judge(self, subject: Subject, tools: Tools) -> Outcome:
        """Run the code and return its verdict.

        Raises:
            CodeFailedError: the code could not be run, or it raised in a dialect where that is an error, not a failure.
            UnjudgeableError: the result is not a verdict.
        """
        written = code_text(self.value, visible_variables(subject), tools.templates)
        arguments = {"output": script_output(subject), "context": script_context(subject, self)}
        try:
            value = await call_code(
                written,
                arguments,
                tools,
                language=Language(self.base_type),
                default_function=_DEFAULT_FUNCTION,
                calls_result=tools.rules.calls_given_functions,
            )
        except CodeRaisedError as error:
            # A failed assert statement is a verdict; other exceptions are verdicts only in some dialects.
            reason = shortened(error.message, 400)
            if tools.rules.code_failures_fail:
                return replace(_failed(self, reason), detail={"trace": error.detail})
            if "raised: AssertionError" in error.message:
                return replace(Outcome.of(False, reason), detail={"trace": error.detail})
            raise
        if tools.rules.code_failures_fail:
            # In this dialect a result that is not a verdict fails, also under `not-`. A mapping needs pass, score
            # and reason, and its score is compared with the threshold for Python only.
            is_python = self.base_type == Language.PYTHON
            found = _spelled(value) if is_python else value
            if isinstance(found, Mapping) and not _is_complete(found):
                return _failed(self, f"the code returned a mapping without pass, score and reason; {_WANTED}")
            try:
                # promptfoo ignores the threshold for a mapping from JavaScript.
                takes_threshold = is_python or not isinstance(found, Mapping)
                outcome = _outcome(found, self.threshold if takes_threshold else None)
            except UnjudgeableError as error:
                return _failed(self, error.message)
            if (
                tools.rules.negates_scores
                or not self.is_negated
                or outcome.score is None
                or isinstance(found, bool)
            ):
                return outcome
            return replace(outcome, score=1 - outcome.score)  # `not-` will invert it again
        found = _spelled(value)
        if isinstance(found, Mapping) and found.get("error"):
            message = f"the code reported an error: {shortened(str(found['error']), 400)}"
            raise UnjudgeableError(message, hint="leave `error` out where there is a verdict")
        outcome = _outcome(found, self.threshold)
        for name, score in _named_in(found).items():
            if score is not None and not isinstance(score, bool) and not _is_number(score):
                hint = "return a number, or null where there is no score"
                raise UnjudgeableError(f"the code's named score `{name}` is not a number", hint=hint)
        if outcome.score is not None and not 0 <= outcome.score <= 1:
            hint = "scale it to 0 to 1, or return a comparison with the expected value"
            raise UnjudgeableError(f"the code's score is {outcome.score:g}, not between 0 and 1", hint=hint)
        return outcome


def _failed(spec: CodeAssertion, reason: str) -> Outcome:
    """Return an outcome that is a failure even after `not-` has inverted it."""
    return Outcome.of(spec.is_negated, reason)


def _is_complete(value: Mapping[str, JsonValue]) -> bool:
    passed = _first(value, "pass", "pass_")
    reason = value.get("reason")
    return isinstance(passed, bool) and _is_number(value.get("score")) and isinstance(reason, str)


def _spelled(value: JsonValue) -> JsonValue:
    """Convert text that spells a boolean, a number or a JSON object to that value; return anything else unchanged."""
    if not isinstance(value, str):
        return value
    word = value.strip()
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        found = json.loads(word)
    except (ValueError, RecursionError):
        return value
    return found if isinstance(found, bool) or _is_number(found) or isinstance(found, dict) else value


def _outcome(value: JsonValue, threshold: float | None) -> Outcome:
    if isinstance(value, bool):
        return Outcome.of(value, f"the code returned {'true' if value else 'false'}")
    if _is_number(value):
        return _scored(float(value), threshold)
    if isinstance(value, Mapping):
        passed = _first(value, "pass", "pass_")
        score = value.get("score")
        if not isinstance(passed, bool | None) or (score is not None and not _is_number(score)):
            raise UnjudgeableError("the code's `pass` or `score` has the wrong type", hint=_WANTED)
        for name, found, odd in (("pass", passed, _NOT_PASS), ("score", score, _NOT_SCORE)):
            wrong = next(
                (key for key in value if found is None and key not in (name, "pass_") and odd.fullmatch(key)),
                None,
            )
            if wrong is not None:
                message = f"the code returned a mapping with `{wrong}`; the key is `{name}`"
                raise UnjudgeableError(message, hint=_WANTED)
        if passed is None and score is None:
            raise UnjudgeableError("the code returned a mapping without `pass` and `score`", hint=_WANTED)
        outcome = Outcome.of(bool(passed), "") if score is None else _scored(float(score), threshold)
        # The code's `pass: false` always counts; its `pass: true` only where no threshold decides by the score.
        if passed is not None and not (threshold is not None and score is not None and passed):
            status = Status.PASSED if passed else Status.FAILED
            if (
                score is None or status is not outcome.status
            ):  # a reason based on the score would contradict it
                beside = "" if score is None else f", with a score of {format_score(float(score))}"
                said = f"the code returned {'pass' if passed else 'fail'}{beside}"
                outcome = replace(outcome, status=status, reason=said)
        reason = value.get("reason")
        if isinstance(reason, str) and reason:
            outcome = replace(outcome, reason=reason)
        return replace(outcome, assertions=tuple(_parts(value)))
    if isinstance(value, int | float):
        raise UnjudgeableError("the code returned an infinite number, which is not a verdict", hint=_WANTED)
    found = "nothing" if value is None else "a text" if isinstance(value, str) else "a list"
    raise UnjudgeableError(f"the code returned {found}, which is not a verdict", hint=_WANTED)


def _scored(score: float, threshold: float | None) -> Outcome:
    if threshold is None:
        passed = score > 0
        reason = f"the code's score is {format_score(score)}{'' if passed else ', which is not above 0'}"
    else:
        passed = passes(score, threshold)
        own = format_score_beside(score, threshold)
        reason = f"the code's score is {own}; the threshold is {format_threshold(threshold)}"
    return Outcome(Status.PASSED if passed else Status.FAILED, score, reason, threshold)


def _named_in(value: JsonValue) -> Mapping[str, JsonValue]:
    named = _first(value, "namedScores", "named_scores") if isinstance(value, Mapping) else None
    return named if isinstance(named, dict) else {}


def _parts(value: Mapping[str, JsonValue]) -> Iterator[AssertionResult]:
    """Yield the named scores and the component results that the code returned in addition to its verdict."""
    for name, score in _named_in(value).items():
        if _is_number(score) or isinstance(score, bool):
            yield AssertionResult("named-score", str(name), Status.NOT_EVALUATED, float(score))
    parts = _first(value, "componentResults", "component_results")
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict):
            passed = bool(_first(part, "pass", "pass_"))
            status = Status.PASSED if passed else Status.FAILED
            shown = float(part["score"]) if _is_number(part.get("score")) else float(passed)
            yield AssertionResult("part", None, status, shown, reason=str(part.get("reason") or ""))


def _first(value: Mapping[str, JsonValue], *names: str) -> JsonValue:
    return next((value[name] for name in names if name in value), None)


def _is_number(value: JsonValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
