"""The config's own code in a job: makes prompts and variables before the request, and transforms outputs after it.

`engine.transforms` calls these functions when a config has code for the step.
"""

import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from geval_cli.assertions.base import Assertion, CheckContext, CodeRunner, MergedTest, Subject, Tools, Verdict
from geval_cli.assertions.judges import ContextAssertion
from geval_cli.assertions.sets import AssertSet
from geval_cli.engine.conversation import ANSWER, uses_conversation
from geval_cli.engine.plan import Job
from geval_cli.engine.prompt import shown_prompt
from geval_cli.engine.transforms import assertion_code
from geval_cli.errors import CodeFailedError, GevalError, Problem, TemplateError
from geval_cli.extras.programs.assertions import (
    CodeAssertion,
    call_code,
    code_problems,
    script_context,
    script_output,
    test_shown,
    written_assertion,
)
from geval_cli.extras.programs.scripting.code import CodeError, Language, find_code
from geval_cli.metrics import named_scores
from geval_cli.records import AssertionResult, JsonValue, Status, Usage
from geval_cli.source.access import Access
from geval_cli.source.command import ScriptError, run_command
from geval_cli.specs.base import PromptSpec, ProviderSpec, describe_value
from geval_cli.specs.promptfoo import EXEC_PREFIX, FilteredProviderSpec, NamedPromptSpec
from geval_cli.suite.suite import LoadedSuite
from geval_cli.templating.js_text import js_json, js_string

__all__ = (
    "check_suite_code",
    "check_test_code",
    "own_verdict",
    "seen_by_assertion",
    "test_shown",
    "with_made_parts",
    "with_transformed_output",
)

SCORING_FUNCTION = "get_score"
UNTRANSFORMED = "providerTransformedOutput"
"""The key under which a result keeps the output from before the test's own transform."""
_FROM_CODE = "named-score"
"""The type of a result that is not a verdict but a named score that code returned."""
_VARS_ARGUMENTS = ("vars", "context")
_OUTPUT_FUNCTION = "get_transform"
_VARIABLE_FUNCTION = "get_var"
_TIME_LIMIT_S = 60.0
_PROMPT_FORMS = "return the text, or a list of chat messages"


async def with_made_parts(job: Job, tools: Tools, earlier: Mapping[str, JsonValue]) -> Job:
    """Return the job with the variables and the prompt that programs make; the same job if there are none.

    The prompt's program runs last, so it sees the result of `transformVars`.

    Args:
        job: the job as planned.
        tools: must have `scripts`.
        earlier: values stored by earlier jobs, which the prompt's program sees among the variables.

    Raises:
        CodeFailedError: a program failed, or did not return a variable or a prompt.
    """
    if job.test.promptfoo.made_vars:
        made = await _made_variables(job, tools)
        job = replace(job, test=replace(job.test, vars={**job.test.vars, **made}))
    transformed = await with_transformed_variables(job.test, tools)
    if transformed is not job.test:
        job = replace(job, test=transformed)
    if isinstance(job.prompt, NamedPromptSpec) and job.prompt.made_by:
        job = replace(job, prompt=await _made_prompt(job.prompt, job, tools, earlier))
    return job


async def _made_variables(job: Job, tools: Tools) -> dict[str, JsonValue]:
    test = job.test
    found: dict[str, JsonValue] = {}
    for name, written in test.promptfoo.made_vars.items():
        # Variables are made in order: each program sees the values made before it, and never its own text.
        others = {key: value for key, value in test.vars.items() if key != name}
        prompt = job.prompt
        is_made = isinstance(prompt, NamedPromptSpec) and bool(prompt.made_by)
        arguments: dict[str, JsonValue] = {
            "name": name,
            "prompt": "" if is_made else job.prompt.raw or "",
            "vars": {**others, **found},
            "provider": _provider_of(job),
        }
        try:
            made = await call_code(written, arguments, tools, default_function=_VARIABLE_FUNCTION)
        except GevalError as error:
            error.message = f"cannot make the variable `{name}`: {error.message}"
            raise
        if not isinstance(made, Mapping) or (made.get("error") is None and made.get("output") is None):
            hint = "return {'output': value}, or {'error': text}"
            raise CodeFailedError(f"the program for the variable `{name}` returned no `output`", hint=hint)
        if made.get("error") is not None:
            hint = "see its program's error"
            raise CodeFailedError(f"cannot make the variable `{name}`: {js_string(made['error'])}", hint=hint)
        found[name] = made["output"]
    return found


async def _made_prompt(
    prompt: NamedPromptSpec, job: Job, tools: Tools, earlier: Mapping[str, JsonValue]
) -> NamedPromptSpec:
    assert tools.scripts is not None
    scripts = tools.scripts()
    context = {
        "vars": {**job.test.variables, **earlier},
        "provider": _provider_of(job),
        "config": dict(prompt.params),
    }
    try:
        if prompt.made_by.startswith(EXEC_PREFIX) or _is_whole_file(prompt.made_by, scripts.access):
            made: JsonValue = await _printed(prompt, context, scripts)
        else:
            made = await call_code(prompt.made_by, {"context": context}, tools)
    except GevalError as error:
        error.message = f"cannot make the prompt `{prompt.label}`: {error.message}"
        raise
    params = dict(prompt.params)
    files = prompt.file_params
    if isinstance(made, Mapping) and "prompt" in made:
        own = made.get("config")
        own = own if isinstance(own, Mapping) else {}
        params = {**params, **own}
        files = files - own.keys()
        made = made["prompt"]
    elif isinstance(made, bool | int | float):
        message = f"the program for the prompt `{prompt.label}` returned {describe_value(made)}"
        raise CodeFailedError(message, hint=_PROMPT_FORMS)
    if made is None or made in ("", [], {}):
        raise CodeFailedError(
            f"the program for the prompt `{prompt.label}` returned nothing", hint=_PROMPT_FORMS
        )
    text = js_json(made) if isinstance(made, dict | list) else js_string(made)
    return prompt.model_copy(update={"raw": text, "params": params, "file_params": files})


async def _printed(prompt: NamedPromptSpec, context: JsonValue, scripts: CodeRunner) -> str:
    arguments = [*_command(prompt, scripts.access), json.dumps(context, ensure_ascii=False)]
    try:
        return await run_command(
            arguments, scripts.access, folder=Path(prompt.folder), env=scripts.env, timeout_s=_TIME_LIMIT_S
        )
    except ScriptError as error:
        hint = "run it by itself to see why; its last argument is the context as JSON"
        said = f": {error.detail}" if error.detail else ""
        raise CodeFailedError(f"{error}{said}", detail=error.detail, hint=hint) from error


def _command(prompt: NamedPromptSpec, access: Access) -> list[str]:
    """Return the program and its arguments. A Python file without a function name is run as a program.

    Raises:
        ValueError: the command has an unclosed quote.
    """
    if not prompt.made_by.startswith(EXEC_PREFIX):
        return [
            sys.executable,
            "-X",
            "utf8",
            str(find_code(prompt.made_by, Path(), Language.PYTHON, access).path),
        ]
    return shlex.split(prompt.made_by.removeprefix(EXEC_PREFIX))


def _command_problems(prompt: NamedPromptSpec, suite: LoadedSuite) -> Iterator[Problem]:
    location = prompt.place.value()
    try:
        program = _command(prompt, suite.access)[0]
    except ValueError as error:
        yield Problem(f"the command cannot be read: {error}", location, "check its quotes")
        return
    here = Path(prompt.folder) / program
    if not ("/" in program and here.exists()) and not shutil.which(program, path=suite.env.get("PATH")):
        hint = f"paths are relative to {prompt.folder}"
        yield Problem(f"the program `{program}` was not found", location, hint)


def _is_whole_file(made_by: str, access: Access) -> bool:
    """Return whether a Python file is to be run as a program, instead of calling one of its functions."""
    try:
        code = find_code(made_by, Path(), Language.PYTHON, access)
    except CodeError:
        return False
    return code.language is Language.PYTHON and not code.function


def _provider_of(job: Job) -> JsonValue:
    return {"id": job.provider.public_id, "label": job.provider.title}


async def with_transformed_output(
    subject: Subject, provider: ProviderSpec, prompt: PromptSpec, tools: Tools
) -> Subject:
    """Apply the provider's `transform`, then the test's, and return the subject with the new output."""
    shown = shown_prompt(prompt, subject.test)
    of_test = subject.test.transform
    answer = subject.output
    if isinstance(provider, FilteredProviderSpec) and provider.transform is not None:
        subject = replace(subject, output=await _transformed(provider.transform, subject, tools, shown))
    reported = dict(subject.reported)
    if of_test is not None:
        output = await _transformed(of_test[0], subject, tools, shown)
        reported[UNTRANSFORMED] = subject.output
        subject = replace(subject, output=output)
    if not tools.rules.context_from_answer:
        return subject
    # Kept with the result: assertion code sees both, also when the output is judged again.
    if uses_conversation(prompt) and subject.output is not answer:
        reported[ANSWER] = answer
    return replace(subject, reported=reported)


async def with_transformed_variables(test: MergedTest, tools: Tools) -> MergedTest:
    """Return the test with the variables that its `transformVars` returns added to its own.

    Raises:
        CodeFailedError: the code failed, or did not return a mapping.
    """
    if test.transform_vars is None:
        return test
    context: JsonValue = {"vars": test.variables, "prompt": {}, "uuid": f"test-{test.index}"}
    arguments = {"vars": test.variables, "context": context}
    found = await call_code(test.transform_vars[0], arguments, tools)
    if not isinstance(found, Mapping):
        hint = "return an object: ({ ...vars, name: value })"
        raise CodeFailedError("`transformVars` must return a mapping of variables", hint=hint)
    if tools.rules.template_language == "nunjucks" and not test.promptfoo.disable_var_expansion:
        for name, value in found.items():
            if (
                isinstance(value, list)
                and value
                and isinstance(value[0], str)
                and value != test.vars.get(name)
            ):
                message = (
                    f"`transformVars` returned a list of texts for `{name}`, which makes tests in promptfoo"
                )
                hint = "write the list in `vars`, or set `disableVarExpansion: true` in the test's options"
                raise CodeFailedError(message, hint=hint)
    return replace(test, vars={**test.vars, **found})


async def seen_by_assertion(spec: Assertion, subject: Subject, tools: Tools) -> Subject:
    """Apply the assertion's own `transform` and `contextTransform`, and return what the assertion is to judge.

    Raises:
        CodeFailedError: the code failed or returned nothing.
    """
    of_output, of_context = assertion_code(spec)
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


def check_suite_code(suite: LoadedSuite, context: CheckContext) -> Iterator[Problem]:
    """Yield the problems of code that belongs to no test: providers' transforms, and programs that make prompts."""
    for provider in suite.providers:
        if isinstance(provider, FilteredProviderSpec) and provider.transform is not None:
            yield from code_problems(provider.transform, provider.place.value("transform"), context)
    for prompt in suite.prompts:
        if not isinstance(prompt, NamedPromptSpec) or not prompt.made_by:
            continue
        if prompt.made_by.startswith(EXEC_PREFIX):
            yield from _command_problems(prompt, suite)
        elif not _is_whole_file(prompt.made_by, suite.access):
            yield from code_problems(prompt.made_by, prompt.place.value(), context, names=("context",))


def check_test_code(test: MergedTest, context: CheckContext) -> Iterator[Problem]:
    """Yield the problems of a test's code: transforms, scoring function, and the programs that make its variables."""
    promptfoo = test.promptfoo
    for name, written in promptfoo.made_vars.items():
        location = test.place.value("vars", name)
        yield from code_problems(written, location, context, default_function=_VARIABLE_FUNCTION)
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
    context = {**script_context(subject), "prompt": dict(shown_prompt)}
    arguments = {"output": script_output(subject), "context": context}
    found = await call_code(written, arguments, tools, default_function=_OUTPUT_FUNCTION)
    if found is None:
        raise CodeFailedError("`transform` returned nothing", hint="return a value for every output")
    return found


async def own_verdict(
    judged: Sequence[tuple[Assertion, AssertionResult]], subject: Subject, tools: Tools
) -> Verdict:
    """Return the verdict of the test's `assertScoringFunction`.

    Raises:
        CodeFailedError: the function failed, or did not return a verdict.
    """
    written = subject.test.promptfoo.assert_scoring_function
    assert written is not None
    results = [result for _, result in judged]
    usage = sum((result.usage for result in results), Usage())
    tokens = {
        "total": usage.input_tokens + usage.output_tokens,
        "prompt": usage.input_tokens,
        "completion": usage.output_tokens,
        "cached": 0,
        "numRequests": usage.requests,
    }
    context: dict[str, JsonValue] = {
        "componentResults": [
            part for spec, result in judged for part in _parts(spec, result, subject, tools)
        ],
        "tokensUsed": tokens,
    }
    if subject.test.threshold is not None:
        context["threshold"] = subject.test.threshold
    arguments: dict[str, JsonValue] = {"namedScores": named_scores(results), "context": context}
    found = await call_code(written, arguments, tools, default_function=SCORING_FUNCTION)
    # A Python dataclass spells it `pass_`, since `pass` is a keyword.
    passed = found.get("pass", found.get("pass_")) if isinstance(found, Mapping) else None
    score = found.get("score") if isinstance(found, Mapping) else None
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    if not isinstance(passed, bool) or not is_number or score is None or not abs(score) <= sys.float_info.max:
        hint = "return {pass: true or false, score: a finite number, reason: a text}"
        raise CodeFailedError("`assertScoringFunction` returned no verdict", hint=hint)
    return Verdict(Status.PASSED if passed else Status.FAILED, float(score))


def _parts(
    spec: Assertion, result: AssertionResult, subject: Subject, tools: Tools
) -> Iterator[dict[str, JsonValue]]:
    """Yield the result of an assertion, then those of its members: the assertions of a set, or the parts from code."""
    whole: dict[str, JsonValue] = {
        "pass": result.status is Status.PASSED,
        "score": result.score,
        "reason": result.reason or "",
    }
    members = list(_members(spec, result, subject, tools))
    if isinstance(spec, AssertSet):
        shown: dict[str, JsonValue] = {"type": spec.type, "assertionCount": len(spec.assertions)}
        for name in ("metric", "threshold", "weight"):
            if name in spec.model_fields_set:
                shown[name] = getattr(spec, name)
        whole["metadata"] = {"assertionSet": shown}
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


def _rendered_value(spec: Assertion, subject: Subject, tools: Tools) -> str | None:
    """Return the value rendered with the test's variables; None for code, or if rendering changes nothing."""
    value = getattr(spec, "value", None)
    if not isinstance(value, str) or isinstance(spec, CodeAssertion):
        return None
    try:
        rendered = tools.templates.render(value, subject.test.variables)
    except TemplateError:
        return None
    return rendered if rendered != value else None
