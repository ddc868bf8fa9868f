"""Prompts and variables that programs of the config make, just before they are needed."""

import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from geval_cli.assertions.base import CheckContext, Tools
from geval_cli.engine.plan import Job
from geval_cli.engine.transforms import with_transformed_variables
from geval_cli.errors import CodeFailedError, GevalError, Problem
from geval_cli.extras.programs.assertions.code import call_code, code_problems
from geval_cli.extras.programs.scripting.code import CodeError, Language, find_code
from geval_cli.extras.programs.scripting.scripts import Scripts
from geval_cli.records import JsonValue
from geval_cli.source.access import Access
from geval_cli.source.command import ScriptError, run_command
from geval_cli.specs.base import PromptSpec
from geval_cli.specs.promptfoo import EXEC_PREFIX, NamedPromptSpec
from geval_cli.specs.type_messages import describe_value
from geval_cli.suite.suite import LoadedSuite
from geval_cli.templating.js_text import js_json, js_string

_VARIABLE_FUNCTION = "get_var"
_TIME_LIMIT_S = 60.0
_PROMPT_FORMS = "return the text, or a list of chat messages"


async def with_made_parts(job: Job, tools: Tools, earlier: Mapping[str, JsonValue]) -> Job:
    """Return the job with the variables and the prompt that programs make; the job itself where none does.

    The prompt's program comes last: it sees what `transformVars` gives.

    Args:
        job: as it is planned.
        tools: nothing is run without `tools.scripts`.
        earlier: what earlier jobs left, which the prompt's program sees among the variables.

    Raises:
        CodeFailedError: a program fails, or gives back what is no variable and no prompt.
    """
    if tools.scripts is None or not is_made_by_code(job):
        return job
    if job.test.promptfoo.made_vars:
        made = await _made_variables(job, tools)
        job = replace(job, test=replace(job.test, vars={**job.test.vars, **made}))
    transformed = await with_transformed_variables(job.test, tools)
    if transformed is not job.test:
        job = replace(job, test=transformed)
    if isinstance(job.prompt, NamedPromptSpec) and job.prompt.made_by:
        job = replace(job, prompt=await _made_prompt(job.prompt, job, tools, earlier))
    return job


def is_made_by_code(job: Job) -> bool:
    """Return whether code of the config makes the prompt or a variable of a job."""
    is_program = isinstance(job.prompt, NamedPromptSpec) and bool(job.prompt.made_by)
    return is_program or bool(job.test.promptfoo.made_vars) or job.test.transform_vars is not None


def check_made_prompts(suite: LoadedSuite, context: CheckContext) -> Iterator[Problem]:
    """Yield the problems of the programs of prompts: no such program or function, a syntax error."""
    for prompt in suite.prompts:
        if not isinstance(prompt, NamedPromptSpec) or not prompt.made_by:
            continue
        if prompt.made_by.startswith(EXEC_PREFIX):
            yield from _command_problems(prompt, suite)
        elif not _is_whole_file(prompt.made_by, suite.access):
            yield from code_problems(prompt.made_by, prompt.place.value(), context, names=("context",))


def check_made_variables(context: CheckContext) -> Iterator[Problem]:
    """Yield the same for the programs of a test's variables."""
    for name, written in context.test.promptfoo.made_vars.items():
        location = context.test.place.value("vars", name)
        yield from code_problems(written, location, context, default_function=_VARIABLE_FUNCTION)


async def _made_variables(job: Job, tools: Tools) -> dict[str, JsonValue]:
    test = job.test
    found: dict[str, JsonValue] = {}
    for name, written in test.promptfoo.made_vars.items():
        # Variables are made in order: each program sees the values made before it, and never its own text.
        others = {key: value for key, value in test.vars.items() if key != name}
        arguments: dict[str, JsonValue] = {
            "name": name,
            "prompt": "" if _is_made(job.prompt) else job.prompt.raw or "",
            "vars": {**others, **found},
            "provider": _provider_of(job),
        }
        try:
            made = await call_code(written, arguments, tools, default_function=_VARIABLE_FUNCTION)
        except GevalError as error:
            error.message = f"the variable `{name}` could not be made: {error.message}"
            raise
        if not isinstance(made, Mapping) or (made.get("error") is None and made.get("output") is None):
            hint = "return {'output': value}, or {'error': text}"
            raise CodeFailedError(f"the program of the variable `{name}` gave no `output`", hint=hint)
        if made.get("error") is not None:
            hint = "its program says so itself"
            raise CodeFailedError(
                f"the variable `{name}` could not be made: {js_string(made['error'])}", hint=hint
            )
        found[name] = made["output"]
    return found


async def _made_prompt(
    prompt: NamedPromptSpec, job: Job, tools: Tools, earlier: Mapping[str, JsonValue]
) -> NamedPromptSpec:
    assert tools.scripts is not None
    context = {
        "vars": {**job.test.variables, **earlier},
        "provider": _provider_of(job),
        "config": dict(prompt.params),
    }
    try:
        if prompt.made_by.startswith(EXEC_PREFIX) or _is_whole_file(prompt.made_by, tools.scripts.access):
            made: JsonValue = await _printed(prompt, context, tools.scripts)
        else:
            made = await call_code(prompt.made_by, {"context": context}, tools)
    except GevalError as error:
        error.message = f"the prompt `{prompt.label}` could not be made: {error.message}"
        raise
    params, files = dict(prompt.params), prompt.file_params
    if isinstance(made, Mapping) and "prompt" in made:
        own = made.get("config")
        own = own if isinstance(own, Mapping) else {}
        params, files = {**params, **own}, files - own.keys()
        made = made["prompt"]
    elif isinstance(made, bool | int | float):
        message = f"the program of the prompt `{prompt.label}` gave {describe_value(made)}"
        raise CodeFailedError(message, hint=_PROMPT_FORMS)
    if made is None or made in ("", [], {}):
        raise CodeFailedError(f"the program of the prompt `{prompt.label}` gave nothing", hint=_PROMPT_FORMS)
    text = js_json(made) if isinstance(made, dict | list) else js_string(made)
    return prompt.model_copy(update={"raw": text, "params": params, "file_params": files})


async def _printed(prompt: NamedPromptSpec, context: JsonValue, scripts: Scripts) -> str:
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
    """Return the program and its arguments. A Python file is a program too when no function of it is named.

    Raises:
        ValueError: quotes in the command do not match.
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
    """Return whether a Python file is to be run as it is, instead of one of its functions."""
    try:
        code = find_code(made_by, Path(), Language.PYTHON, access)
    except CodeError:
        return False
    return code.language is Language.PYTHON and not code.function


def _is_made(prompt: PromptSpec) -> bool:
    return isinstance(prompt, NamedPromptSpec) and bool(prompt.made_by)


def _provider_of(job: Job) -> JsonValue:
    return {"id": job.provider.public_id, "label": job.provider.title}
