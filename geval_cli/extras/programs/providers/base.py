"""The settings and the answers that all programs of the user have in common, whatever their language."""

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geval_cli.errors import (
    Problem,
    ProviderError,
    ProviderRequestError,
    ProviderShapeError,
    ProviderTimeoutError,
)
from geval_cli.extras.programs.scripting.processes import DEFAULT_PARALLEL
from geval_cli.providers.base import ProviderIdentity, ProviderLimits, ProviderSource
from geval_cli.providers.options import LIMIT_KEYS, OtherKeys, check_settings, limits_of, own_settings
from geval_cli.providers.prices import Price, price_of
from geval_cli.providers.redaction import Secrets
from geval_cli.providers.wire.chat import (
    read_tool_call,
    reported_finish_reason,
    reported_logprobs,
    request_text,
)
from geval_cli.providers.wire.finish_reasons import known_end
from geval_cli.providers.wire.token_usage import (
    Exchange,
    TokenUsage,
    finite_amount,
    plausible_tokens,
    reported_cost_usd,
    reported_usage,
)
from geval_cli.records import Choice, JsonValue, ModelRequest, ModelResponse, Role, Usage
from geval_cli.specs.dialect import DialectRules

_DEEPEST = 64
"""Maximum depth of the data returned with an answer; anything deeper, such as a cycle, is kept as text."""


@dataclass(frozen=True, slots=True)
class ProgramSettings:
    """The settings that every program has: its name in messages, secrets, config, limits and price."""

    id: str
    label: str = ""
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    secrets: Secrets = field(default_factory=Secrets)
    limits: ProviderLimits = field(default_factory=ProviderLimits)
    price: Price | None = None
    folder: str = ""

    @property
    def told_config(self) -> dict[str, Any]:
        """Return the config to pass to the program; by promptfoo's rules it includes the config file's folder."""
        return {**self.config, "basePath": self.folder} if self.by_promptfoo else dict(self.config)

    @property
    def by_promptfoo(self) -> bool:
        """Return whether promptfoo's rules hold."""
        return bool(self.folder)

    @property
    def processes(self) -> int:
        """Return how many processes may run the program at once."""
        return self.limits.max_concurrency or DEFAULT_PARALLEL


def check_program(source: ProviderSource) -> list[Problem]:
    """Return the problems of the settings that all programs share; other keys are passed on to the program."""
    return check_settings(source, LIMIT_KEYS, OtherKeys.HANDED_OVER)


def program_settings(source: ProviderSource) -> ProgramSettings:
    """Return the settings of a checked `source`."""
    config = source.spec.config
    settings = own_settings(config, LIMIT_KEYS)
    return ProgramSettings(
        id=source.id,
        label=source.label,
        config=handed_over(config, source.rules),
        secrets=Secrets(source.secret_values),
        limits=limits_of(settings, max_concurrency=DEFAULT_PARALLEL),
        price=price_of(settings),
        folder=str(source.base_dir.resolve()) if source.rules.tells_programs else "",
    )


def handed_over(config: Mapping[str, Any], rules: DialectRules) -> dict[str, Any]:
    """Return the part of a config that its program receives: everything except geval's own keys.

    By promptfoo's rules a program receives the whole config. Only `delay_ms` is left out, which geval derives from the
    provider's `delay`.
    """
    if rules.tells_programs:
        return {name: value for name, value in config.items() if name != "delay_ms"}
    ours = {spelling for key in LIMIT_KEYS for spelling in key.spellings}
    return {name: value for name, value in config.items() if name not in ours and value is not None}


class ProgramProvider:
    """A provider whose answers come from a program. They are not cached, since the program may change unnoticed."""

    is_cacheable = False

    def __init__(self, settings: ProgramSettings, identity: ProviderIdentity) -> None:
        self.settings = settings
        self.identity = identity

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @property
    def id(self) -> str:
        return self.settings.id

    @property
    def label(self) -> str:
        return self.settings.label

    @property
    def limits(self) -> ProviderLimits:
        return self.settings.limits

    @property
    def price(self) -> Price | None:
        return self.settings.price

    def timed_out(self, message: str) -> ProviderTimeoutError:
        """Return the error for a call that took too long."""
        hint = "raise `timeout_s` in the provider's config if it needs longer"
        return ProviderTimeoutError(message, provider_id=self.id, hint=hint)


async def called_in_thread(threads: Executor, call: Callable[[], Any]) -> Any:
    """Run `call` in a thread and return its result.

    StopIteration, SystemExit and the like are raised as a RuntimeError instead. The event loop cannot pass on
    StopIteration, so the caller would wait forever, and SystemExit would end geval. Ctrl-C is passed on.
    """

    def guarded() -> Any:
        try:
            return call()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) or (
                isinstance(error, Exception) and not isinstance(error, StopIteration)
            ):
                raise
            raise RuntimeError(f"the call raised {error!r}") from error

    return await asyncio.get_running_loop().run_in_executor(threads, guarded)


def program_response(
    result: Any, request: ModelRequest, settings: ProgramSettings, latency_ms: float
) -> ModelResponse:
    """Return the response for what a function returned: one answer, however many samples were requested.

    Raises the same errors as `read_program_reply`.
    """
    text, usage = read_program_reply(result, settings, prompt=request_text(request))
    # Log-probabilities without tokens show how sure an answer is, but not which rating a judge was sure of.
    logprobs = reported_logprobs(result) if request.role is Role.GENERATION else None
    reported = settings.secrets.hide_in(reported_beside(result))
    calls = _reported_tool_calls(result)
    is_data = isinstance(result, dict) and not isinstance(result.get("output"), str | None)
    choice = Choice(text, reported_finish_reason(result), logprobs, is_data, reported, calls)
    own_latency_ms = finite_amount(reported.get("latencyMs", reported.get("latency_ms")))
    return ModelResponse(
        (settings.secrets.hide_echo(choice),),
        usage,
        latency_ms if own_latency_ms is None else float(own_latency_ms),
        dropped=() if logprobs else dropped_by_programs(request),
    )


def reported_beside(result: Any) -> dict[str, JsonValue]:
    """Return what a program returned in addition to its `output`, as JSON values; NaN and infinity become null."""
    if not isinstance(result, Mapping):
        return {}
    return {str(key): _as_json(value) for key, value in result.items() if key not in ("output", "error")}


def _as_json(value: Any, depth: int = 0) -> JsonValue:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth < _DEEPEST and isinstance(value, Mapping):
        return {_whole(str(key)): _as_json(item, depth + 1) for key, item in value.items()}
    if depth < _DEEPEST and isinstance(value, list | tuple):
        return [_as_json(item, depth + 1) for item in value]
    return _whole(str(value))


def _whole(text: str) -> str:
    """Replace lone surrogates, which cannot be stored, and return the text."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def dropped_by_programs(request: ModelRequest) -> tuple[str, ...]:
    """Return the names of the requested features that no program can provide."""
    return ("logprobs",) if request.want_logprobs else ()


def read_program_reply(result: Any, caller: ProgramSettings, *, prompt: str) -> tuple[str, Usage]:
    """Return the answer and its usage from text, or from a mapping with `output`, `token_usage` and `cost`.

    A reported `cost` overrides the price in the config.

    Args:
        result: what the program returned.
        caller: the settings of the program.
        prompt: the prompt that was sent; token counts that are impossible for its length are ignored.

    Raises:
        ProviderRequestError: the mapping has an `error`, or a finish reason that says that the answer is not complete
            (promptfoo's rules know no such reasons).
        ProviderShapeError: the result is neither, or its `output` is null or cannot be written as JSON.
    """
    if isinstance(result, str):
        return result, _usage(None, None, caller)
    output = result.get("output") if isinstance(result, dict) else None
    unwritten: Exception | None = None
    try:
        text = "" if output is None else output
        text = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False, default=_data_of)
    except (TypeError, ValueError, RecursionError) as failure:
        text, unwritten = "", failure
    usage = Usage()
    if isinstance(result, dict):
        tokens = reported_usage(result.get("token_usage") or result.get("tokenUsage"))
        usage = _usage(plausible_tokens(tokens, Exchange(prompt, (text,))), result.get("cost"), caller)
    error: ProviderError
    if isinstance(result, dict) and result.get("error"):
        message = caller.secrets.excerpt(f"{caller.id} reported an error: {result['error']}")
        error = ProviderRequestError(message, provider_id=caller.id)
    elif (reason := _unfinished(result, caller)) is not None:
        message = caller.secrets.excerpt(f"{caller.id} returned no whole answer (finish reason: {reason})")
        error = ProviderRequestError(message, provider_id=caller.id)
    elif unwritten is not None:
        message = caller.secrets.excerpt(f"{caller.id} returned an `output` that cannot be JSON: {unwritten}")
        error = ProviderShapeError(message, provider_id=caller.id)
    elif output is not None:
        return text, usage
    else:
        found = f"{type(result).__name__}, not text or a mapping with `output`"
        if isinstance(result, dict) and "output" in result:
            found = "no answer: its `output` is null"
        body = caller.secrets.excerpt(str(result))
        error = ProviderShapeError(f"{caller.id} returned {found}", provider_id=caller.id, body=body)
    error.cost_usd = usage.cost_usd
    error.input_tokens, error.output_tokens = usage.input_tokens, usage.output_tokens
    raise error


def _unfinished(result: Any, caller: ProgramSettings) -> str | None:
    reason = reported_finish_reason(result)
    end = None if reason is None or caller.by_promptfoo else known_end(reason)
    return None if end is None or end.is_answer else reason


def _data_of(value: Any) -> Any:
    """Return a numpy number or array, or a date, as a value that JSON can represent."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"an object of the class {type(value).__name__} is no data")


def split_target(source: ProviderSource) -> tuple[Path, str]:
    """Return the file of an id such as `python:FILE` or `file://FILE:FUNCTION`, and its function ("" if none)."""
    named = source.name.removeprefix("file:").removeprefix("//")
    file, separator, function = named.rpartition(":")
    if separator and function.isidentifier():
        return (source.base_dir / file).resolve(), function
    return (source.base_dir / named).resolve(), ""


def _usage(tokens: TokenUsage | None, cost: Any, caller: ProgramSettings) -> Usage:
    """Return the usage of the answer. If the reported `cost` is invalid, the cost is unknown even with a price."""
    priced = None if caller.price is None else caller.price.cost_usd(tokens)
    counted = tokens or TokenUsage()
    cost_usd = priced if cost is None else reported_cost_usd(cost)
    return Usage(1, counted.input_tokens, counted.output_tokens, cost_usd=cost_usd)


def _reported_tool_calls(result: Any) -> tuple[dict[str, JsonValue], ...]:
    """Return the tool calls that a program reported, either in the chat API's form or as {name, args}."""
    listed = result.get("tool_calls") if isinstance(result, dict) else None
    calls = [call for call in listed if isinstance(call, dict)] if isinstance(listed, list) else []
    found = (
        read_tool_call(call if "function" in call else {**call, "type": "function", "function": call})
        for call in calls
    )
    return tuple(call for call in found if call is not None)
