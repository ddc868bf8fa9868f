"""`exec:command args`: a program that gets the prompt as an argument and prints the answer. No shell.

The prompt goes where `{{ prompt }}` is in the command, else behind it as the last argument. By promptfoo's rules
the options and the context follow it as JSON.
"""

import asyncio
import shlex
import shutil
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
from geval_cli.patterns import compile_later
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
from geval_cli.providers.redaction import Secrets
from geval_cli.providers.wire.placeholders import Places, has_place, without_spaces
from geval_cli.records import Choice, ModelRequest, ModelResponse, Usage
from geval_cli.scripting.processes import DEFAULT_PARALLEL, kill_child
from geval_cli.templating.js_text import js_json

_ANSI = compile_later(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass(frozen=True, slots=True)
class ExecTarget:
    """The program with its arguments, some of which may be placeholders, and the folder that it runs in.

    `options` are told to the program; None where the dialect tells it nothing.
    """

    id: str
    label: str
    command: tuple[str, ...] = field(repr=False)
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, Any] | None = field(default=None, repr=False)
    secrets: Secrets = field(default_factory=Secrets)
    limits: ProviderLimits = field(default_factory=ProviderLimits)
    price: Price | None = None


class ExecProvider:
    """Answers with what the program prints. Not cached: the program may change without anybody seeing it."""

    is_cacheable = False

    def __init__(self, target: ExecTarget) -> None:
        self.id = target.id
        self.label = target.label
        self.limits = target.limits
        self.identity = ProviderIdentity("exec", shlex.join(target.command), str(target.folder))
        self._target = target

    def __repr__(self) -> str:
        return f"ExecProvider({self.id!r})"

    @property
    def price(self) -> Price | None:
        return self._target.price

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return one answer, whatever number is asked for."""
        started = time.perf_counter()
        child = await self._start(self._arguments(request))
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                output, complaint = await child.communicate()
        except TimeoutError as error:
            message = f"{self.id} gave no answer within {self.limits.timeout_s:g} s"
            hint = "raise `timeout_s` in the provider's config if it needs longer"
            raise ProviderTimeoutError(message, provider_id=self.id, hint=hint) from error
        finally:
            await kill_child(child)
        latency_ms = (time.perf_counter() - started) * 1000
        if child.returncode:
            body = self._target.secrets.excerpt(complaint.decode("utf-8", "replace").strip())
            message = f"{self.id} ended with status {child.returncode}" + (f": {body}" if body else "")
            # A status is the program's own word; a signal came from outside, for lack of memory perhaps.
            kind = ProviderRequestError if child.returncode > 0 else ProviderUnavailableError
            raise kind(message, provider_id=self.id, body=body)
        text = self._printed(output)
        dropped = ("logprobs",) if request.want_logprobs else ()
        price = self._target.price
        usage = Usage(1, cost_usd=None if price is None else price.cost_usd(None))
        return ModelResponse((Choice(text),), usage, latency_ms, dropped=dropped)

    def _printed(self, output: bytes) -> str:
        """Return the answer in what a program prints; promptfoo leaves out colours and all space around it."""
        text = output.decode("utf-8", "replace")
        if self._target.options is not None:
            return _ANSI.sub("", text).strip()
        return text.removesuffix("\n").removesuffix("\r")

    async def aclose(self) -> None:
        """Every call ends its own process."""

    def _arguments(self, request: ModelRequest) -> list[str]:
        command = self._target.command
        places = Places(request)
        try:
            arguments = [places.fill_text(argument) for argument in command]
        except LookupError as error:
            hint = "give every test that uses this provider the variable"
            raise ProviderRequestError(f"{self.id}: {error}", provider_id=self.id, hint=hint) from error
        if has_place(command, "prompt", "messages"):
            return arguments
        extra = () if self._target.options is None else (self._target.options, _context(request))
        return [*arguments, places.prompt, *map(js_json, extra)]

    async def _start(self, arguments: list[str]) -> asyncio.subprocess.Process:
        target = self._target
        try:
            return await asyncio.create_subprocess_exec(
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=target.folder,
                env=dict(target.env) or None,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            message = f"{self.id} cannot be started: {reason}"
            hint = (
                "check that the program exists and may be executed; a prompt can be too long for an argument"
            )
            raise ProviderRequestError(message, provider_id=self.id, hint=hint) from error


def check(source: ProviderSource) -> list[Problem]:
    """Return the problems of the command and the config of an exec provider."""
    problems = check_settings(source, LIMIT_KEYS, Others.HANDED_OVER)
    try:
        command = _split_command(source)
    except ValueError as error:
        return [*problems, source.problem(f"the command cannot be read: {error}", hint="check its quotes")]
    if not command:
        hint = "write it after the colon: `exec:./answer.sh --short`"
        problems.append(source.problem("the exec provider names no command", hint=hint))
    return problems


def check_ready(source: ProviderSource) -> list[Problem]:
    """Return whether the program is there."""
    program = _split_command(source)[0]
    here = source.base_dir / program
    if ("/" in program and here.exists()) or shutil.which(program, path=source.env.get("PATH")):
        return []
    hint = f"paths are relative to {source.base_dir}"
    return [source.problem(f"the program `{program}` was not found", hint=hint)]


def build(source: ProviderSource) -> ExecProvider:
    """Return the provider that a checked `source` describes."""
    settings = own_settings(source.spec.config, LIMIT_KEYS)
    return ExecProvider(
        ExecTarget(
            id=source.id,
            label=source.label,
            command=_split_command(source),
            folder=source.base_dir.resolve(),
            env=source.env,
            options=_options(source) if source.rules.tells_programs else None,
            secrets=Secrets(source.secret_values),
            limits=limits_of(settings, max_concurrency=DEFAULT_PARALLEL),
            price=price_of(settings),
        )
    )


def _options(source: ProviderSource) -> dict[str, Any]:
    return {"id": source.spec.id, "config": wire_parameters(source.spec.config, LIMIT_KEYS)}


def _context(request: ModelRequest) -> dict[str, Any]:
    return {"vars": dict(request.variables), "repeatIndex": request.repeat_index, **request.origin}


def _split_command(source: ProviderSource) -> tuple[str, ...]:
    return tuple(shlex.split(without_spaces(source.name)))
