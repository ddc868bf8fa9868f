"""javascript, python: the user's code looks at the output and gives a verdict, a score, or both."""

import json
import math
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from geval_cli.assertions.code_calls import (
    CodeRaisedError,
    call_code,
    code_problems,
    code_text,
    script_context,
    script_output,
    visible_variables,
)
from geval_cli.assertions.outcome import CheckContext, Outcome, Subject, Tools, shortened
from geval_cli.config.assertion_base import AssertionSpec
from geval_cli.config.assertion_schema import CodeAssertionSpec
from geval_cli.config.dialect import Dialect
from geval_cli.errors import Problem, UnjudgeableError
from geval_cli.judge.scoring import passes
from geval_cli.records import AssertionResult, JsonValue, Status
from geval_cli.scripting.code import Language

_DEFAULT_FUNCTION = "get_assert"
_WANTED = "return true or false, a number, or a mapping of pass, score and reason"
_NAMES = ("output", "context")
_WORDS = {"true": True, "false": False}


def check(spec: AssertionSpec, context: CheckContext) -> list[Problem]:
    """Problems of the code, with the test's variables in it where the dialect puts them there."""
    assert isinstance(spec, CodeAssertionSpec)
    return code_problems(
        spec.value,
        spec.place.value("value"),
        context,
        names=_NAMES,
        language=Language(spec.base_type),
        default_function=_DEFAULT_FUNCTION,
    )


async def judge(spec: AssertionSpec, subject: Subject, tools: Tools) -> Outcome:
    """What the code says.

    Raises:
        CodeFailedError: it could not be run; in geval's own dialect also when it raises.
        UnjudgeableError: it says nothing that is a verdict.
    """
    assert isinstance(spec, CodeAssertionSpec)
    is_promptfoo = tools.templates.dialect is Dialect.PROMPTFOO
    written = code_text(spec.value, visible_variables(subject), tools.templates)
    arguments = {"output": script_output(subject), "context": script_context(subject, spec)}
    try:
        value = await call_code(
            written,
            arguments,
            tools,
            language=Language(spec.base_type),
            default_function=_DEFAULT_FUNCTION,
        )
    except CodeRaisedError as error:
        # An assert statement that does not hold is a verdict; other exceptions are one by promptfoo's rules only.
        if is_promptfoo or "raised: AssertionError" in error.message:
            return replace(Outcome.of(False, shortened(error.message, 400)), detail={"trace": error.detail})
        raise
    if isinstance(value, str):
        value = _spelled(value)
    try:
        outcome = _outcome(value, spec.threshold)
    except UnjudgeableError as error:
        if is_promptfoo:
            return Outcome.of(False, error.message)
        raise
    if not is_promptfoo and outcome.score is not None and not 0 <= outcome.score <= 1:
        hint = "scale it, or compare it with what you expect"
        raise UnjudgeableError(f"the code's score is {outcome.score:g}, not within 0 and 1", hint=hint)
    return outcome


def _spelled(text: str) -> JsonValue:
    """What Python code may have printed into a text: a number, a truth value, a JSON object."""
    word = text.strip()
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        found = json.loads(word)
    except (ValueError, RecursionError):
        return text
    is_number = isinstance(found, int | float) and math.isfinite(found)
    return found if is_number or isinstance(found, dict) else text


def _outcome(value: JsonValue, threshold: float | None) -> Outcome:
    if isinstance(value, bool):
        return Outcome.of(value, f"the code says {'true' if value else 'false'}")
    if isinstance(value, int | float):
        return _scored(float(value), threshold)
    if isinstance(value, Mapping):
        return _graded(value, threshold)
    found = "nothing" if value is None else "a text" if isinstance(value, str) else "a list"
    raise UnjudgeableError(f"the code gave {found}, which is no verdict", hint=_WANTED)


def _scored(score: float, threshold: float | None) -> Outcome:
    if threshold is None:
        passed = score > 0
        reason = f"the code's score is {score:.6g}{'' if passed else ', which is not above 0'}"
    else:
        passed = passes(score, threshold)
        reason = f"the code's score is {score:.6g}; the threshold is {threshold:g}"
    return Outcome(Status.PASSED if passed else Status.FAILED, score, reason, threshold)


def _graded(value: Mapping[str, JsonValue], threshold: float | None) -> Outcome:
    passed, score = _first(value, "pass", "pass_"), value.get("score")
    if not isinstance(passed, bool | None) or (score is not None and not _is_number(score)):
        raise UnjudgeableError("the code's `pass` or `score` is of the wrong kind", hint=_WANTED)
    if passed is None and score is None:
        raise UnjudgeableError("the code gave a mapping without `pass` and `score`", hint=_WANTED)
    outcome = Outcome.of(bool(passed), "") if score is None else _scored(float(score), threshold)
    if passed is not None and not (threshold is not None and score is not None and passed):
        outcome = replace(outcome, status=Status.PASSED if passed else Status.FAILED)
    reason = value.get("reason")
    if isinstance(reason, str) and reason:
        outcome = replace(outcome, reason=reason)
    elif score is None:
        outcome = replace(outcome, reason=f"the code says {'pass' if passed else 'fail'}")
    return replace(outcome, assertions=tuple(_parts(value)))


def _parts(value: Mapping[str, JsonValue]) -> Iterator[AssertionResult]:
    """What the code says apart: named scores, and the results of its own parts."""
    named = _first(value, "namedScores", "named_scores")
    for name, score in named.items() if isinstance(named, dict) else ():
        if _is_number(score):
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
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
