"""`exec:command args`: runs a program, without a shell, with the prompt as an argument, and reads what it prints.

The prompt replaces `{{ prompt }}` in the command; without that placeholder it becomes the last argument. By
promptfoo's rules the options and the context follow it as JSON.
"""

import asyncio
import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geval_cli.errors import Problem, ProviderRequestError, ProviderUnavailableError
from geval_cli.extras.http_provider.placeholders import (
    PlaceholderValues,
    has_place,
    unknown_placeholder,
    without_spaces,
)
from geval_cli.extras.programs.providers.base import (
    ProgramProvider,
    ProgramSettings,
    check_program,
    dropped_by_programs,
    program_settings,
)
from geval_cli.extras.programs.scripting.processes import MAX_ANSWER_BYTES
from geval_cli.patterns import compile_later
from geval_cli.providers.base import ProviderIdentity, ProviderSource
from geval_cli.records import Choice, ModelRequest, ModelResponse, Usage
from geval_cli.source.command import kill_child
from geval_cli.templating.js_text import js_json

_PART_BYTES = 64 * 1024
_QUIET_S = 2.0
"""How long a program that has ended must print nothing, if others hold its output open: a server that it started."""

_ANSI = compile_later(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its arguments, which may contain placeholders, and the folder in which it runs.

    `options` are passed to the program as JSON; None in dialects that do not pass them.
    """

    words: tuple[str, ...] = field(repr=False)
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, Any] | None = field(default=None, repr=False)


class ExecProvider(ProgramProvider):
    """A provider that answers with what the program prints."""

    def __init__(self, settings: ProgramSettings, command: Command) -> None:
        super().__init__(settings, ProviderIdentity("exec", shlex.join(command.words), str(command.folder)))
        self._command = command

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return one answer, however many samples were requested."""
        started = time.perf_counter()
        child = await self._start(self._arguments(request))
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                output, complaint = await self._all_printed(child)
        except TimeoutError as error:
            raise self.timed_out(f"{self.id} did not answer within {self.limits.timeout_s:g} s") from error
        finally:
            await kill_child(child)
        latency_ms = (time.perf_counter() - started) * 1000
        if child.returncode:
            body = self.settings.secrets.excerpt(complaint.decode("utf-8", "replace").strip())
            message = f"{self.id} exited with status {child.returncode}" + (f": {body}" if body else "")
            # The program chose its exit status; a signal came from outside, perhaps because memory ran out.
            kind = ProviderRequestError if child.returncode > 0 else ProviderUnavailableError
            raise kind(message, provider_id=self.id, body=body)
        text = self._printed(output)
        usage = Usage(1, cost_usd=None if self.price is None else self.price.cost_usd(None))
        return ModelResponse(
            (self.settings.secrets.hide_echo(Choice(text)),),
            usage,
            latency_ms,
            dropped=dropped_by_programs(request),
        )

    async def _all_printed(self, child: asyncio.subprocess.Process) -> tuple[bytearray, bytearray]:
        """Return what the program prints until it has ended, also if processes that it started live on.

        Raises:
            ProviderRequestError: it prints too much to keep.
        """
        printed = bytearray(), bytearray()

        async def read(stream: asyncio.StreamReader | None, into: bytearray) -> None:
            while stream is not None and (part := await stream.read(_PART_BYTES)):
                into += part
                if len(into) > MAX_ANSWER_BYTES:
                    message = f"{self.id} printed more than {MAX_ANSWER_BYTES / 1024 / 1024:.3g} MB, which is too much"
                    raise ProviderRequestError(message, provider_id=self.id)

        reading = asyncio.gather(read(child.stdout, printed[0]), read(child.stderr, printed[1]))
        try:
            before: tuple[int, int] | None = None  # what had been printed after the end
            while not (await asyncio.wait({reading}, timeout=_QUIET_S))[0]:
                now = None if child.returncode is None else (len(printed[0]), len(printed[1]))
                if now is not None and now == before and (printed[0] or child.returncode):
                    return printed
                before = now
            await reading
        finally:
            reading.cancel()
        return printed

    def _printed(self, output: bytes | bytearray) -> str:
        """Return the answer that the program printed, without its last newline.

        By promptfoo's rules colour codes and all surrounding whitespace are removed.
        """
        text = output.decode("utf-8", "replace")
        if self._command.options is not None:
            return _ANSI.sub("", text).strip()
        return text.removesuffix("\n").removesuffix("\r")

    async def aclose(self) -> None:
        """Do nothing: every call ends its own process."""

    def _arguments(self, request: ModelRequest) -> list[str]:
        command = self._command.words
        places = PlaceholderValues(request)
        try:
            arguments = [places.fill_text(argument) for argument in command]
        except LookupError as error:
            hint = "set the variable in every test that uses this provider"
            raise ProviderRequestError(f"{self.id}: {error}", provider_id=self.id, hint=hint) from error
        if has_place(command, "prompt", "messages"):
            return arguments
        extra = (
            ()
            if self._command.options is None
            else (
                self._command.options,
                {"vars": dict(request.variables), "repeatIndex": request.repeat_index, **request.origin},
            )
        )
        return [*arguments, places.prompt, *map(js_json, extra)]

    async def _start(self, arguments: list[str]) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=self._command.folder,
                env=dict(self._command.env) or None,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            message = f"{self.id} cannot be started: {reason}"
            hint = (
                "check that the program exists and is executable; the prompt may be too long for an argument"
            )
            raise ProviderRequestError(message, provider_id=self.id, hint=hint) from error


def check(source: ProviderSource) -> list[Problem]:
    """Return the problems of the command and the config of an exec provider."""
    problems = check_program(source)
    try:
        command = _split_command(source)
    except ValueError as error:
        return [*problems, source.problem(f"the command cannot be read: {error}", hint="check its quotes")]
    if not command:
        hint = "write it after the colon: `exec:./answer.sh --short`"
        problems.append(source.problem("the exec provider has no command", hint=hint))
    unknown = None if source.rules.tells_programs else unknown_placeholder(source.name, is_name=True)
    if unknown is not None:
        message = f"`{unknown[0]}` would be passed as it is written"
        problems.append(source.problem(message, hint=unknown[1]))
    return problems


def check_ready(source: ProviderSource) -> list[Problem]:
    """Return a problem if the program cannot be found."""
    program = _split_command(source)[0]
    here = source.base_dir / program
    if ("/" in program and here.exists()) or shutil.which(program, path=source.env.get("PATH")):
        return []
    hint = f"paths are relative to {source.base_dir}"
    return [source.problem(f"the program `{program}` was not found", hint=hint)]


def build(source: ProviderSource) -> ExecProvider:
    """Return the provider that a checked `source` describes."""
    settings = program_settings(source)
    options = {"id": source.spec.id, "config": settings.told_config} if source.rules.tells_programs else None
    command = Command(_split_command(source), source.base_dir.resolve(), source.env, options)
    return ExecProvider(settings, command)


def _split_command(source: ProviderSource) -> tuple[str, ...]:
    return tuple(shlex.split(without_spaces(source.name)))
