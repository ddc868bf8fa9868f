"""`javascript:provider.js`, `file://provider.js`: a user's class with `callApi`, or a function, in the engine."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geval_cli.errors import ConfigError, Problem, ProviderRequestError, ProviderTimeoutError
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
from geval_cli.scripting.code import (
    FILE_PREFIX,
    Code,
    CodeError,
    Language,
    ScriptError,
    ScriptLimitError,
    ScriptTimeoutError,
    find_code,
)
from geval_cli.scripting.javascript import (
    INSTALL_HINT,
    Entry,
    JavaScriptEngine,
    JavaScriptLimits,
    check_javascript,
    is_installed,
)
from geval_cli.scripting.processes import DEFAULT_PARALLEL

_ELSEWHERE = "let Node run it (`exec: node FILE.js`), let it answer over HTTP, or write it in Python"


@dataclass(frozen=True, slots=True)
class JavaScriptTarget:
    """The code to call, and the config that its constructor gets as `options.config`."""

    id: str
    label: str
    code: Code
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    secrets: Secrets = field(default_factory=Secrets)
    limits: ProviderLimits = field(default_factory=ProviderLimits)
    price: Price | None = None


class JavaScriptProvider:
    """Answers with what `callApi(prompt, context)` returns: a text, or `{output, tokenUsage, cost, error}`.

    Each call has an engine and an instance of its own, so nothing is kept from one call to the next. Answers are not
    cached, as those of other code.
    """

    is_cacheable = False

    def __init__(self, target: JavaScriptTarget) -> None:
        self.id = target.id
        self.label = target.label
        self.limits = target.limits
        self.identity = ProviderIdentity(
            "javascript", target.code.function, str(target.code.path), target.config
        )
        self._target = target
        limits = JavaScriptLimits(time_s=target.limits.timeout_s, wall_s=target.limits.timeout_s)
        self._engine = JavaScriptEngine(limits, size=target.limits.max_concurrency or DEFAULT_PARALLEL)

    def __repr__(self) -> str:
        return f"JavaScriptProvider({self.id!r})"

    @property
    def price(self) -> Price | None:
        return self._target.price

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return one answer, whatever number is asked for."""
        target = self._target
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
        options = {"id": self.id, "label": self.label, "config": dict(target.config)}
        started = time.perf_counter()
        result = await self._call({"prompt": prompt, "context": context, "options": options})
        latency_ms = (time.perf_counter() - started) * 1000
        caller = ProgramCaller(self.id, target.secrets, target.price)
        text, usage = read_program_reply(result, caller, prompt=prompt)
        dropped = ("logprobs",) if request.want_logprobs else ()
        choice = Choice(text, reported_finish_reason(result), is_data=is_data(result))
        return ModelResponse((choice,), usage, latency_ms, dropped=dropped)

    async def aclose(self) -> None:
        self._engine.close()

    async def _call(self, arguments: Mapping[str, Any]) -> Any:
        try:
            return await self._engine.call(self._target.code, arguments, entry=Entry.PROVIDER)
        except ScriptTimeoutError as error:
            hint = "raise `timeout_s` in the provider's config if it needs longer"
            raise ProviderTimeoutError(f"{self.id}: {error}", provider_id=self.id, hint=hint) from error
        except ScriptError as error:
            message = self._target.secrets.excerpt(f"{self.id} raised {error}")
            hint = _ELSEWHERE if isinstance(error, ScriptLimitError) else "fix its code"
            raise ProviderRequestError(message, provider_id=self.id, hint=hint) from error


def check(source: ProviderSource) -> list[Problem]:
    """Return the problems of the id, the config and the code of a JavaScript provider."""
    problems = check_settings(source, LIMIT_KEYS, Others.HANDED_OVER)
    try:
        code = _code(source)
    except CodeError as error:
        return [*problems, source.problem(error.message, hint=error.hint)]
    if code.language is not Language.JAVASCRIPT:
        hint = "write `javascript:FILE.js`, or `python:FILE.py` for Python"
        return [*problems, source.problem(f"`{source.id}` names no JavaScript file", hint=hint)]
    if not is_installed():
        problem = source.problem("JavaScript needs an engine that is not installed", hint=INSTALL_HINT)
        return [*problems, problem]
    try:
        check_javascript(code, ())
    except CodeError as error:
        problems.append(source.problem(error.message, hint=_ELSEWHERE if error.hint else "fix its code"))
    return problems


def build(source: ProviderSource) -> JavaScriptProvider:
    """Return the provider that a checked `source` describes; nothing runs before the first request.

    Raises:
        ConfigError: the file is no longer there.
    """
    config = source.spec.config
    try:
        code = _code(source)
    except CodeError as error:
        raise ConfigError([source.problem(error.message, hint=error.hint)]) from error
    settings = own_settings(config, LIMIT_KEYS)
    target = JavaScriptTarget(
        id=source.id,
        label=source.label,
        code=code,
        config=wire_parameters(config, LIMIT_KEYS),
        secrets=Secrets(source.secret_values),
        limits=limits_of(settings, max_concurrency=DEFAULT_PARALLEL),
        price=price_of(settings),
    )
    return JavaScriptProvider(target)


def _code(source: ProviderSource) -> Code:
    path, name = split_target(source)
    return find_code(
        f"{FILE_PREFIX}{path}" + (f":{name}" if name else ""), Path(), Language.JAVASCRIPT, source.access
    )
