"""Code that stands between the steps of a job: variables before the prompt, the output before the assertions."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from geval_cli.assertions.code_calls import (
    call_code,
    code_problems,
    code_text,
    script_context,
    script_output,
    visible_variables,
)
from geval_cli.assertions.json_text import parse_strict_json
from geval_cli.assertions.outcome import CheckContext, Subject, Tools
from geval_cli.assertions.registry import members_of
from geval_cli.assertions.verdict import Verdict
from geval_cli.config.dialect import Dialect
from geval_cli.config.graded_schema import ContextSpec
from geval_cli.config.promptfoo.specs import FilteredProviderSpec
from geval_cli.config.schema import AssertionSpec, ProviderSpec
from geval_cli.config.suite import Suite, TestCase
from geval_cli.errors import CodeFailedError, Problem
from geval_cli.metrics import named_scores
from geval_cli.records import AssertionResult, JsonValue, Status

_VARS_ARGUMENTS = ("vars", "context")
_FORMATS = ("response_format", "output_format")
_OUTPUT_FUNCTION = "get_transform"
_SCORING_FUNCTION = "get_score"


async def with_transformed_variables(test: TestCase, tools: Tools) -> TestCase:
    """The test with what its `transformVars` gives among its variables. Nothing is run without `tools.scripts`.

    Raises:
        CodeFailedError: the code fails, or gives no mapping.
    """
    if test.transform_vars is None or tools.scripts is None:
        return test
    text = code_text(test.transform_vars[0], test.variables, tools.templates)
    context: JsonValue = {"vars": test.variables, "prompt": {}, "uuid": f"test-{test.index}"}
    found = await call_code(text, {"vars": test.variables, "context": context}, tools)
    if not isinstance(found, Mapping):
        hint = "return an object: ({ ...vars, name: value })"
        raise CodeFailedError("`transformVars` must give a mapping of variables", hint=hint)
    return replace(test, vars={**test.vars, **found})


async def transformed_output(subject: Subject, provider: ProviderSpec | None, tools: Tools) -> JsonValue:
    """The output after the provider's `transform`, then the test's. Nothing is run without `tools.scripts`.

    By promptfoo's rules an answer that was asked for by a JSON Schema is data, before any transform sees it.

    Raises:
        CodeFailedError: the code fails, or gives nothing.
    """
    if tools.templates.dialect is Dialect.PROMPTFOO and provider is not None:
        subject = _with_structured_output(subject, provider)
    own = provider.transform if isinstance(provider, FilteredProviderSpec) else None
    of_test = subject.test.transform
    for written in (own, None if of_test is None else of_test[0]):
        if written is not None and tools.scripts is not None:
            subject = replace(subject, output=await _transformed(written, subject, tools))
    return subject.output


def _with_structured_output(subject: Subject, provider: ProviderSpec) -> Subject:
    asked = {**provider.config, **subject.test.directions.params}
    formats = (asked.get(key) for key in _FORMATS)
    has_schema = any(isinstance(item, Mapping) and item.get("type") == "json_schema" for item in formats)
    if not has_schema or subject.response is None or not isinstance(subject.output, str):
        return subject
    try:
        return replace(subject, output=parse_strict_json(subject.output))
    except ValueError:
        return subject


async def seen_by_assertion(spec: AssertionSpec, subject: Subject, tools: Tools) -> Subject:
    """The subject with the output as the assertion's own `transform` gives it, and its context from the output.

    Raises:
        CodeFailedError: the code fails, or gives nothing.
    """
    if tools.scripts is None:
        return subject
    if spec.transform is not None:
        subject = replace(subject, output=await _transformed(spec.transform, subject, tools))
    if isinstance(spec, ContextSpec) and spec.context_transform is not None:
        context = await _transformed(spec.context_transform, subject, tools)
        subject = replace(subject, test=replace(subject.test, vars={**subject.test.vars, "context": context}))
    return subject


async def own_verdict(
    verdict: Verdict, assertions: Sequence[AssertionResult], subject: Subject, tools: Tools
) -> Verdict:
    """The verdict as the test's `assertScoringFunction` has it; `verdict` itself where there is none.

    Raises:
        CodeFailedError: the function fails, or gives no verdict. What could not be judged stays so: it is not asked.
    """
    written = subject.test.directions.assert_scoring_function
    if written is None or tools.scripts is None or verdict.status is Status.ERROR:
        return verdict
    parts: JsonValue = [
        {"pass": item.status is Status.PASSED, "score": item.score, "reason": item.reason or ""}
        for item in assertions
    ]
    threshold = subject.test.threshold
    context: JsonValue = {"threshold": threshold, "componentResults": parts, "tokensUsed": {}}
    arguments = {"namedScores": named_scores(assertions), "context": context}
    found = await call_code(written, arguments, tools, default_function=_SCORING_FUNCTION)
    passed = found.get("pass", found.get("pass_")) if isinstance(found, Mapping) else None
    score = found.get("score") if isinstance(found, Mapping) else None
    if not isinstance(passed, bool) or isinstance(score, bool) or not isinstance(score, int | float):
        hint = "return {pass: true or false, score: a number, reason: a text}"
        raise CodeFailedError("`assertScoringFunction` gave no verdict", hint=hint)
    return Verdict(Status.PASSED if passed else Status.FAILED, float(score))


def check_suite_code(suite: Suite, context: CheckContext) -> Iterator[Problem]:
    """Problems of the code that belongs to no test: transforms of providers."""
    for provider in suite.providers:
        if isinstance(provider, FilteredProviderSpec) and provider.transform is not None:
            yield from code_problems(provider.transform, provider.place.value("transform"), context)


def check_test_code(test: TestCase, context: CheckContext) -> Iterator[Problem]:
    """Problems of a test's transforms and of those of its assertions."""
    directions = test.directions
    if isinstance(test.provider, FilteredProviderSpec) and test.provider.transform is not None:
        yield from code_problems(test.provider.transform, test.provider.place.value("transform"), context)
    if test.transform is not None:
        yield from code_problems(*test.transform, context)
    if test.transform_vars is not None:
        yield from code_problems(*test.transform_vars, context, names=_VARS_ARGUMENTS)
    if directions.assert_scoring_function is not None:
        yield from code_problems(
            directions.assert_scoring_function,
            test.place.value("assertScoringFunction"),
            context,
            default_function=_SCORING_FUNCTION,
        )
    for spec in test.assertions:
        yield from _check_assertion_code(spec, context)


def _check_assertion_code(spec: AssertionSpec, context: CheckContext) -> Iterator[Problem]:
    if spec.transform is not None:
        yield from code_problems(spec.transform, spec.place.value("transform"), context)
    if isinstance(spec, ContextSpec) and spec.context_transform is not None:
        where = spec.place.spelled("contextTransform", "context_transform")
        yield from code_problems(spec.context_transform, where, context)
    for member in members_of(spec):
        yield from _check_assertion_code(member, context)


async def _transformed(written: str, subject: Subject, tools: Tools) -> JsonValue:
    text = code_text(written, visible_variables(subject), tools.templates)
    context = script_context(subject)
    context["prompt"] = {"label": subject.rendered_prompt, "raw": subject.rendered_prompt}
    arguments = {"output": script_output(subject), "context": context}
    found = await call_code(text, arguments, tools, default_function=_OUTPUT_FUNCTION)
    if found is None:
        raise CodeFailedError("`transform` gave nothing", hint="let it return a value for every output")
    return found
