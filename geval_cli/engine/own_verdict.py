"""Run `assertScoringFunction`: the user's code makes one verdict of the results of a test's assertions."""

from collections.abc import Iterator, Mapping, Sequence

from geval_cli.assertions.assert_set import AssertSet
from geval_cli.assertions.base import Assertion, Subject, Tools
from geval_cli.assertions.outcome import Verdict
from geval_cli.assertions.programs.code import CodeAssertion
from geval_cli.assertions.programs.code_calls import call_code, written_assertion
from geval_cli.errors import CodeFailedError, TemplateError
from geval_cli.metrics import named_scores
from geval_cli.records import AssertionResult, JsonValue, Status, Usage

SCORING_FUNCTION = "get_score"
_FROM_CODE = "named-score"
"""The type of a result that is no verdict: a score that code gave a name."""


async def own_verdict(
    verdict: Verdict,
    judged: Sequence[tuple[Assertion, AssertionResult]],
    subject: Subject,
    tools: Tools,
) -> Verdict:
    """Return the verdict of the test's `assertScoringFunction`; `verdict` itself where there is none.

    Raises:
        CodeFailedError: the function fails, or gives no verdict. What could not be judged stays so: it is not asked.
    """
    written = subject.test.promptfoo.assert_scoring_function
    if (
        written is None
        or not tools.rules.scoring_functions
        or tools.scripts is None
        or verdict.status is Status.ERROR
    ):
        return verdict
    results = [result for _, result in judged]
    context: dict[str, JsonValue] = {
        "componentResults": [
            part for spec, result in judged for part in _parts(spec, result, subject, tools)
        ],
        "tokensUsed": _tokens(results),
    }
    if subject.test.threshold is not None:
        context["threshold"] = subject.test.threshold
    arguments: dict[str, JsonValue] = {"namedScores": named_scores(results), "context": context}
    found = await call_code(written, arguments, tools, default_function=SCORING_FUNCTION)
    passed = found.get("pass", found.get("pass_")) if isinstance(found, Mapping) else None
    score = found.get("score") if isinstance(found, Mapping) else None
    if not isinstance(passed, bool) or isinstance(score, bool) or not isinstance(score, int | float):
        hint = "return {pass: true or false, score: a number, reason: a text}"
        raise CodeFailedError("`assertScoringFunction` gave no verdict", hint=hint)
    return Verdict(Status.PASSED if passed else Status.FAILED, float(score))


def _parts(
    spec: Assertion, result: AssertionResult, subject: Subject, tools: Tools
) -> Iterator[dict[str, JsonValue]]:
    """Return the result of an assertion, then those of its members: of a set, or the parts that code returned."""
    whole: dict[str, JsonValue] = {
        "pass": result.status is Status.PASSED,
        "score": result.score,
        "reason": result.reason or "",
    }
    members = list(_members(spec, result, subject, tools))
    if isinstance(spec, AssertSet):
        whole["metadata"] = {"assertionSet": _set_shown(spec)}
    else:
        whole["assertion"] = written_assertion(spec)
        rendered = _rendered_value(spec, subject, tools)
        if rendered is not None:
            whole["metadata"] = {"renderedAssertionValue": rendered}
    if members:
        whole["namedScores"] = named_scores(result.assertions)
        whole["componentResults"] = [*members]
    yield whole
    yield from members


def _members(
    spec: Assertion, result: AssertionResult, subject: Subject, tools: Tools
) -> Iterator[dict[str, JsonValue]]:
    members = [member for member in result.assertions if member.type != _FROM_CODE]
    specs = spec.members or [spec] * len(members)
    for member_spec, member in zip(specs, members, strict=False):
        yield from _parts(member_spec, member, subject, tools)


def _set_shown(spec: AssertSet) -> dict[str, JsonValue]:
    shown: dict[str, JsonValue] = {"type": spec.type, "assertionCount": len(spec.assertions)}
    for name in ("metric", "threshold", "weight"):
        if name in spec.model_fields_set:
            shown[name] = getattr(spec, name)
    return shown


def _rendered_value(spec: Assertion, subject: Subject, tools: Tools) -> str | None:
    """The value with the test's variables in it; None where that changes nothing. Code is not rendered to be shown."""
    value = getattr(spec, "value", None)
    if not isinstance(value, str) or isinstance(spec, CodeAssertion):
        return None
    try:
        rendered = tools.templates.render(value, subject.test.variables)
    except TemplateError:
        return None
    return rendered if rendered != value else None


def _tokens(results: Sequence[AssertionResult]) -> dict[str, JsonValue]:
    usage = sum((result.usage for result in results), Usage())
    return {
        "total": usage.input_tokens + usage.output_tokens,
        "prompt": usage.input_tokens,
        "completion": usage.output_tokens,
        "cached": 0,
        "numRequests": usage.requests,
    }
