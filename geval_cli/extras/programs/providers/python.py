"""`python:file.py:function`: calls a user's function with (prompt, options, context) in another process."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from geval_cli.errors import Problem, ProviderRequestError, ProviderUnavailableError
from geval_cli.extras.programs.providers.base import (
    ProgramProvider,
    ProgramSettings,
    check_program,
    program_response,
    program_settings,
    split_target,
)
from geval_cli.extras.programs.scripting.processes import PythonPool
from geval_cli.providers.base import ProviderIdentity, ProviderSource
from geval_cli.providers.wire.chat import message_list, request_text
from geval_cli.records import ModelRequest, ModelResponse
from geval_cli.source.command import ScriptCrashError, ScriptError, ScriptTimeoutError

DEFAULT_FUNCTION = "call_api"


class PythonProvider(ProgramProvider):
    """A provider that answers with what a function returns.

    That is text, or a mapping with `output`, `token_usage`, `cost` and `error`. Up to `max_concurrency` calls run at
    once, each in its own process.
    """

    def __init__(
        self, settings: ProgramSettings, path: Path, function: str, *, env: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(settings, ProviderIdentity("python", function, str(path), settings.config))
        self._function = function
        self._pool = PythonPool(path, size=settings.processes, env=env)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return one answer, however many samples were requested."""
        options = {"id": self.id, "config": self.settings.told_config}
        context = {
            "messages": message_list(request.messages),
            "params": dict(request.params),
            "sample_index": request.sample_indexes[0],
            "repeat_index": request.repeat_index,
            "vars": dict(request.variables),
            **request.origin,
        }
        arguments = [request_text(request), options, context]
        started = time.perf_counter()
        result = await self._call(arguments)
        latency_ms = (time.perf_counter() - started) * 1000
        return program_response(result, request, self.settings, latency_ms)

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def _call(self, arguments: list[Any]) -> Any:
        limit_s = self.limits.timeout_s
        try:
            return await self._pool.call(self._function, arguments, timeout_s=limit_s)
        except ScriptTimeoutError as error:
            raise self.timed_out(f"{self.id}: {error}") from error
        except ScriptCrashError as error:
            body = self.settings.secrets.excerpt(error.detail)
            message = f"{self.id}: {error}" + (f"; its last output:\n{body}" if body else "")
            raise ProviderUnavailableError(message, provider_id=self.id, body=body) from error
        except ScriptError as error:
            message = self.settings.secrets.excerpt(f"{self.id} raised {error}")
            body = self.settings.secrets.excerpt(error.detail)
            raise ProviderRequestError(message, provider_id=self.id, body=body) from error


def check(source: ProviderSource) -> list[Problem]:
    """Return the problems of the id and the config of a Python provider."""
    problems = check_program(source)
    path, _ = split_target(source)
    if path.suffix != ".py":
        hint = "write `python:FILE.py` or `python:FILE.py:FUNCTION`"
        problems.append(source.problem(f"`{source.id}` has no Python file", hint=hint))
    elif not path.is_file():
        problems.append(source.problem(f"the file {path} does not exist", hint="check the path"))
    return problems


def build(source: ProviderSource) -> PythonProvider:
    """Return the provider that a checked `source` describes; the process starts with the first request."""
    path, function = split_target(source)
    settings = program_settings(source)
    return PythonProvider(settings, path, function or DEFAULT_FUNCTION, env=source.env or None)
