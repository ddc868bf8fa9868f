"""`python:file.py:function`: a user's function, called with (prompt, options, context) in another process."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geval_cli.errors import (
    Problem,
    ProviderRequestError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from geval_cli.providers.base import ProviderIdentity, ProviderLimits, ProviderSource
from geval_cli.providers.options import (
    LIMIT_KEYS,
    Others,
    check_settings,
    limits_of,
    own_settings,
    wire_parameters,
)
from geval_cli.providers.prices import Price, price_of
from geval_cli.providers.programs.reply import ProgramCaller, is_data, read_program_reply, split_target
from geval_cli.providers.redaction import Secrets
from geval_cli.providers.wire.chat import message_list, reported_finish_reason, request_text
from geval_cli.records import Choice, ModelRequest, ModelResponse
from geval_cli.scripting.code import ScriptCrashError, ScriptError, ScriptTimeoutError
from geval_cli.scripting.processes import DEFAULT_PARALLEL, PythonPool

DEFAULT_FUNCTION = "call_api"


@dataclass(frozen=True, slots=True)
class PythonTarget:
    """The function to call, and the config that it gets as `options["config"]`."""

    id: str
    label: str
    path: Path
    function: str = DEFAULT_FUNCTION
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    secrets: Secrets = field(default_factory=Secrets)
    limits: ProviderLimits = field(default_factory=ProviderLimits)
    price: Price | None = None


class PythonProvider:
    """Answers with what the function returns: a text, or a mapping with `output`, `token_usage`, `cost` and `error`.

    Up to `max_concurrency` calls run at a time, each in a process of its own. Answers are not cached: the function
    may use code that nobody sees change.
    """

    is_cacheable = False

    def __init__(self, target: PythonTarget, *, env: Mapping[str, str] | None = None) -> None:
        self.id = target.id
        self.label = target.label
        self.limits = target.limits
        self.identity = ProviderIdentity("python", target.function, str(target.path), target.config)
        self._target = target
        self._pool = PythonPool(target.path, size=target.limits.max_concurrency or DEFAULT_PARALLEL, env=env)

    def __repr__(self) -> str:
        return f"PythonProvider({self.id!r})"

    @property
    def price(self) -> Price | None:
        return self._target.price

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return one answer, whatever number is asked for."""
        target = self._target
        options = {"id": self.id, "config": dict(target.config)}
        context = {
            "messages": message_list(request.messages),
            "params": dict(request.params),
            "sample_index": request.sample_indexes[0],
            "repeat_index": request.repeat_index,
            "vars": dict(request.variables),
            **request.origin,
        }
        prompt = request_text(request)
        arguments = [prompt, options, context]
        started = time.perf_counter()
        result = await self._call(arguments)
        latency_ms = (time.perf_counter() - started) * 1000
        caller = ProgramCaller(self.id, target.secrets, target.price)
        text, usage = read_program_reply(result, caller, prompt=prompt)
        dropped = ("logprobs",) if request.want_logprobs else ()
        choice = Choice(text, reported_finish_reason(result), is_data=is_data(result))
        return ModelResponse((choice,), usage, latency_ms, dropped=dropped)

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def _call(self, arguments: list[Any]) -> Any:
        limit_s = self.limits.timeout_s
        try:
            return await self._pool.call(self._target.function, arguments, timeout_s=limit_s)
        except ScriptTimeoutError as error:
            hint = "raise `timeout_s` in the provider's config if it needs longer"
            raise ProviderTimeoutError(f"{self.id}: {error}", provider_id=self.id, hint=hint) from error
        except ScriptCrashError as error:
            body = self._target.secrets.excerpt(error.detail)
            message = f"{self.id}: {error}" + (f"; its last words:\n{body}" if body else "")
            raise ProviderUnavailableError(message, provider_id=self.id, body=body) from error
        except ScriptError as error:
            message = self._target.secrets.excerpt(f"{self.id} raised {error}")
            body = self._target.secrets.excerpt(error.detail)
            raise ProviderRequestError(message, provider_id=self.id, body=body) from error


def check(source: ProviderSource) -> list[Problem]:
    """Return the problems of the id and the config of a Python provider."""
    problems = check_settings(source, LIMIT_KEYS, Others.HANDED_OVER)
    path, _ = split_target(source)
    if path.suffix != ".py":
        hint = "write `python:FILE.py` or `python:FILE.py:FUNCTION`"
        problems.append(source.problem(f"`{source.id}` names no Python file", hint=hint))
    elif not path.is_file():
        problems.append(source.problem(f"the file {path} does not exist", hint="check the path"))
    return problems


def build(source: ProviderSource) -> PythonProvider:
    """Return the provider that a checked `source` describes; the process starts with the first request."""
    path, function = split_target(source)
    config = source.spec.config
    settings = own_settings(config, LIMIT_KEYS)
    target = PythonTarget(
        id=source.id,
        label=source.label,
        path=path,
        function=function or DEFAULT_FUNCTION,
        config=wire_parameters(config, LIMIT_KEYS),
        secrets=Secrets(source.secret_values),
        limits=limits_of(settings, max_concurrency=DEFAULT_PARALLEL),
        price=price_of(settings),
    )
    return PythonProvider(target, env=source.env or None)
