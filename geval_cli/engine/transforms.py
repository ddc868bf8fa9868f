"""The user's code between the steps of a job: variables before the prompt, outputs and verdicts after the model."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from geval_cli.assertions.assert_set import AssertSet
from geval_cli.assertions.base import Assertion, CheckContext, MergedTest, Subject, Tools
from geval_cli.assertions.graded.retrieval import ContextAssertion
from geval_cli.assertions.outcome import Verdict
from geval_cli.assertions.structured.json_text import parse_strict_json
from geval_cli.engine.prompt import param_levels, shown_prompt
from geval_cli.errors import CodeFailedError, Problem, TemplateError
from geval_cli.extras.programs.assertions.code import (
    CodeAssertion,
    call_code,
    code_problems,
    code_text,
    script_context,
    script_output,
    visible_variables,
    written_assertion,
)
from geval_cli.metrics import named_scores
from geval_cli.providers.judge_kinds import overlooks_schema_files, structured_output_key
from geval_cli.records import AssertionResult, JsonValue, Status, Usage
from geval_cli.specs.base import PromptSpec, ProviderSpec
from geval_cli.specs.promptfoo import FilteredProviderSpec
from geval_cli.suite.suite import LoadedSuite

SCORING_FUNCTION = "get_score"
UNTRANSFORMED = "providerTransformedOutput"
"""Where a result keeps the output as it was before the test's own transform."""
_FROM_CODE = "named-score"
"""The type of a result that is no verdict: a score that code gave a name."""


_VARS_ARGUMENTS = ("vars", "context")
_OUTPUT_FUNCTION = "get_transform"


async def with_transformed_variables(test: MergedTest, tools: Tools) -> MergedTest:
    """Return the test with what its `transformVars` gives among its variables. Nothing is run without `tools.scripts`.

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


async def with_transformed_output(
    subject: Subject, provider: ProviderSpec, prompt: PromptSpec, tools: Tools
) -> Subject:
    """Return the output after the provider's `transform`, then the test's. Nothing is run without `tools.scripts`.

    In some dialects an answer that was asked for by a JSON Schema is data, before any transform sees it.

    Raises:
        CodeFailedError: the code fails, or gives nothing.
    """
    if tools.rules.parses_schema_answers and _asks_for_data(provider, prompt, subject.test):
        subject = _with_structured_output(subject)
    if tools.scripts is None:
        return subject
    shown = shown_prompt(prompt, subject.test)
    own, of_test = _provider_code(provider), subject.test.transform
    if own is not None:
        subject = replace(subject, output=await _transformed(own, subject, tools, shown))
    if of_test is None:
        return subject
    output = await _transformed(of_test[0], subject, tools, shown)
    if not tools.rules.context_from_answer:
        return replace(subject, output=output)
    # Kept with the result, since code of assertions sees both, also when the output is judged again.
    reported = {**subject.reported, UNTRANSFORMED: subject.output}
    return replace(subject, output=output, reported=reported)


def output_code(provider: ProviderSpec, test: MergedTest) -> list[str]:
    """Return the code that makes the output of an answer, in its order: the provider's own, then the test's."""
    of_test = None if test.transform is None else test.transform[0]
    return [written for written in (_provider_code(provider), of_test) if written is not None]


def _provider_code(provider: ProviderSpec) -> str | None:
    return provider.transform if isinstance(provider, FilteredProviderSpec) else None


def _asks_for_data(provider: ProviderSpec, prompt: PromptSpec, test: MergedTest) -> bool:
    """Return whether promptfoo makes data of the answer: where it looks for a JSON Schema of it, there is one.

    The test's word counts before the prompt's, and that before the provider's. In a file the schema is found for the
    Responses API and Anthropic's, and overlooked for chat APIs.
    """
    key = structured_output_key(provider.id)
    if key is None:
        return False
    for params, file_params in param_levels(provider, prompt, test):
        if key in params:
            asked = params[key]
            is_seen = key not in file_params or not overlooks_schema_files(provider.id)
            return is_seen and isinstance(asked, Mapping) and asked.get("type") == "json_schema"
    return False


def _with_structured_output(subject: Subject) -> Subject:
    if subject.response is None or not isinstance(subject.output, str):
        return subject
    try:
        return replace(subject, output=parse_strict_json(subject.output))
    except ValueError:
        return subject


async def seen_by_assertion(spec: Assertion, subject: Subject, tools: Tools) -> Subject:
    """Return the subject with the output as the assertion's own `transform` gives it, and its context from the output.

    Raises:
        CodeFailedError: the code fails, or gives nothing.
    """
    of_output, of_context = assertion_code(spec)
    if tools.scripts is None:
        return subject
    shown = {"label": subject.rendered_prompt, "raw": subject.rendered_prompt}
    answer = replace(subject, output=subject.reported.get(UNTRANSFORMED, subject.output))
    if of_output is not None:
        output = await _transformed(of_output, subject, tools, shown)
        subject = replace(subject, output=output, reported={**subject.reported, "output": subject.output})
    if of_context is not None:
        seen = answer if tools.rules.context_from_answer else subject
        context = await _transformed(of_context, seen, tools, shown)
        subject = replace(subject, test=replace(subject.test, vars={**subject.test.vars, "context": context}))
    return subject


def assertion_code(spec: Assertion) -> tuple[str | None, str | None]:
    """Return the code by which an assertion sees another output, and another context, than the test has."""
    return spec.transform, spec.context_transform if isinstance(spec, ContextAssertion) else None


def check_suite_code(suite: LoadedSuite, context: CheckContext) -> Iterator[Problem]:
    """Yield problems of the code that belongs to no test: transforms of providers."""
    for provider in suite.providers:
        if isinstance(provider, FilteredProviderSpec) and provider.transform is not None:
            yield from code_problems(provider.transform, provider.place.value("transform"), context)


def check_test_code(test: MergedTest, context: CheckContext) -> Iterator[Problem]:
    """Yield problems of a test's transforms and of those of its assertions."""
    promptfoo = test.promptfoo
    if isinstance(test.provider, FilteredProviderSpec) and test.provider.transform is not None:
        yield from code_problems(test.provider.transform, test.provider.place.value("transform"), context)
    if test.transform is not None:
        yield from code_problems(*test.transform, context)
    if test.transform_vars is not None:
        yield from code_problems(*test.transform_vars, context, names=_VARS_ARGUMENTS)
    if promptfoo.assert_scoring_function is not None:
        yield from code_problems(
            promptfoo.assert_scoring_function,
            test.place.value("assertScoringFunction"),
            context,
            default_function=SCORING_FUNCTION,
        )
    for spec in test.assertions:
        yield from _check_assertion_code(spec, context)


def _check_assertion_code(spec: Assertion, context: CheckContext) -> Iterator[Problem]:
    if spec.transform is not None:
        yield from code_problems(spec.transform, spec.place.value("transform"), context)
    if isinstance(spec, ContextAssertion) and spec.context_transform is not None:
        where = spec.place.spelled("contextTransform", "context_transform")
        yield from code_problems(spec.context_transform, where, context)
    for member in spec.members:
        yield from _check_assertion_code(member, context)


async def _transformed(
    written: str, subject: Subject, tools: Tools, shown_prompt: Mapping[str, JsonValue]
) -> JsonValue:
    text = code_text(written, visible_variables(subject), tools.templates)
    context = {**script_context(subject), "prompt": dict(shown_prompt)}
    arguments = {"output": script_output(subject), "context": context}
    found = await call_code(text, arguments, tools, default_function=_OUTPUT_FUNCTION)
    if found is None:
        raise CodeFailedError("`transform` gave nothing", hint="let it return a value for every output")
    return found


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
    # `pass` is a keyword in Python, where a dataclass cannot have a field of this name.
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
