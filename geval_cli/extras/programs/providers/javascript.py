"""`javascript:provider.js`, `file://provider.js`: a class with `callApi`, or a function, run in QuickJS."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from geval_cli.errors import ConfigError, Problem, ProviderRequestError
from geval_cli.extras.programs.providers.base import (
    ProgramProvider,
    ProgramSettings,
    check_program,
    program_response,
    program_settings,
    split_target,
)
from geval_cli.extras.programs.scripting.code import (
    FILE_PREFIX,
    Code,
    CodeError,
    Language,
    ScriptLimitError,
    find_code,
)
from geval_cli.extras.programs.scripting.javascript import (
    INSTALL_HINT,
    Entry,
    JavaScriptEngine,
    JavaScriptLimits,
    check_javascript,
    is_installed,
)
from geval_cli.providers.base import ProviderIdentity, ProviderSource
from geval_cli.providers.wire.chat import message_list, request_text
from geval_cli.records import ModelRequest, ModelResponse
from geval_cli.source.command import ScriptError, ScriptTimeoutError

_ELSEWHERE = "run it with Node (`exec: node FILE.js`), serve it over HTTP, or write it in Python"


class JavaScriptProvider(ProgramProvider):
    """A provider that answers with what `callApi(prompt, context)` returns.

    That is text, or `{output, tokenUsage, cost, error}`. Each call gets a new engine and a new instance, so no state is
    kept between calls.
    """

    def __init__(self, settings: ProgramSettings, code: Code) -> None:
        super().__init__(
            settings, ProviderIdentity("javascript", code.function, str(code.path), settings.config)
        )
        self._code = code
        limits = JavaScriptLimits(time_s=settings.limits.timeout_s, wall_s=settings.limits.timeout_s)
        self._engine = JavaScriptEngine(limits, size=settings.processes)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return one answer, however many samples were requested."""
        prompt = request_text(request)
        context = {
            "vars": dict(request.variables),
            "prompt": {"raw": prompt, "label": prompt},
            "messages": message_list(request.messages),
            "params": dict(request.params),
            "repeatIndex": request.repeat_index,
            "sampleIndex": request.sample_indexes[0],
            **request.origin,
        }
        options = {"id": self.id, "label": self.label, "config": self.settings.told_config}
        started = time.perf_counter()
        result = await self._call({"prompt": prompt, "context": context, "options": options})
        latency_ms = (time.perf_counter() - started) * 1000
        return program_response(result, request, self.settings, latency_ms)

    async def aclose(self) -> None:
        self._engine.close()

    async def _call(self, arguments: Mapping[str, Any]) -> Any:
        try:
            return await self._engine.call(self._code, arguments, entry=Entry.PROVIDER)
        except ScriptTimeoutError as error:
            raise self.timed_out(f"{self.id}: {error}") from error
        except ScriptError as error:
            message = self.settings.secrets.excerpt(f"{self.id} raised {error}")
            hint = _ELSEWHERE if isinstance(error, ScriptLimitError) else "fix its code"
            raise ProviderRequestError(message, provider_id=self.id, hint=hint) from error


def check(source: ProviderSource) -> list[Problem]:
    """Return the problems of the id, the config and the code of a JavaScript provider."""
    problems = check_program(source)
    try:
        code = _code(source)
    except CodeError as error:
        return [*problems, source.problem(error.message, hint=error.hint)]
    if code.language is not Language.JAVASCRIPT:
        hint = "write `javascript:FILE.js`, or `python:FILE.py` for Python"
        return [*problems, source.problem(f"`{source.id}` has no JavaScript file", hint=hint)]
    if not is_installed():
        problem = source.problem("the JavaScript engine is not installed", hint=INSTALL_HINT)
        return [*problems, problem]
    try:
        check_javascript(code, ())
    except CodeError as error:
        problems.append(source.problem(error.message, hint=_ELSEWHERE if error.hint else "fix its code"))
    return problems


def build(source: ProviderSource) -> JavaScriptProvider:
    """Return the provider that a checked `source` describes; nothing runs before the first request.

    Raises:
        ConfigError: the file no longer exists.
    """
    try:
        code = _code(source)
    except CodeError as error:
        raise ConfigError([source.problem(error.message, hint=error.hint)]) from error
    return JavaScriptProvider(program_settings(source), code)


def _code(source: ProviderSource) -> Code:
    path, name = split_target(source)
    return find_code(
        f"{FILE_PREFIX}{path}" + (f":{name}" if name else ""), Path(), Language.JAVASCRIPT, source.access
    )
