"""Functions, clients and judges that a Python program passes to geval, as providers in the same process."""

import asyncio
import inspect
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as with_limits

from geval_cli.errors import GevalError, Problem, ProviderRequestError
from geval_cli.extras.programs.providers.base import (
    ProgramProvider,
    ProgramSettings,
    called_in_thread,
    check_program,
    program_response,
    program_settings,
)
from geval_cli.providers.base import (
    AdoptedJudge,
    ClientModel,
    Provider,
    ProviderIdentity,
    ProviderSource,
    is_being_cancelled,
)
from geval_cli.providers.registry import build_client_provider
from geval_cli.providers.wire.chat import message_list, request_text
from geval_cli.records import ModelRequest, ModelResponse
from geval_cli.specs.base import FunctionSpec

_THREADS = 32
"""How many calls of a synchronous function may run at once, each in a thread."""

_TRACE_LINES = 20


class FunctionProvider(ProgramProvider):
    """A provider that answers with what a function returns, read in the same way as a Python provider's answer.

    The function receives the prompt and, if it requires a second argument, a mapping with `vars`, `messages`, `params`,
    `sample_index` and `repeat_index`. A coroutine function runs in the event loop of the run, any other in a thread.
    """

    def __init__(self, settings: ProgramSettings, function: Callable[..., Any]) -> None:
        # Two functions may have the same name, but must not share an identity.
        super().__init__(settings, ProviderIdentity("function", settings.id, str(id(function))))
        self._function = function
        self._takes_context = _takes_two(function)
        self._threads: ThreadPoolExecutor | None = None

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return one answer, however many samples were requested."""
        arguments: list[Any] = [request_text(request)]
        if self._takes_context:
            context = {
                "vars": dict(request.variables),
                "messages": message_list(request.messages),
                "params": dict(request.params),
                "sample_index": request.sample_indexes[0],
                "repeat_index": request.repeat_index,
            }
            arguments.append(context)
        started = time.perf_counter()
        result = await self._call(arguments)
        return program_response(result, request, self.settings, (time.perf_counter() - started) * 1000)

    async def aclose(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, arguments: list[Any]) -> Any:
        limit = asyncio.timeout(self.limits.timeout_s)
        try:
            async with limit:
                return await self._called(arguments)
        except (GevalError, GeneratorExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise
            if isinstance(error, TimeoutError) and limit.expired():
                raise self.timed_out(
                    f"{self.id} did not answer within {self.limits.timeout_s:g} s"
                ) from error
            hide = self.settings.secrets.excerpt
            trace = "".join(traceback.format_exception(error)[-_TRACE_LINES:])
            message = hide(f"{self.id} raised {type(error).__name__}: {error}")
            raise ProviderRequestError(message, provider_id=self.id, body=hide(trace)) from error

    async def _called(self, arguments: list[Any]) -> Any:
        if inspect.iscoroutinefunction(self._function) or inspect.iscoroutinefunction(
            getattr(self._function, "__call__", None)  # noqa: B004 - checks its kind, not whether it exists
        ):
            return await self._function(*arguments)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="geval-function")
        result = await called_in_thread(self._threads, lambda: self._function(*arguments))
        return await result if inspect.isawaitable(result) else result


def check(source: ProviderSource) -> list[Problem]:
    """Return the problems of the settings that accompany a function."""
    return check_program(source)


def build(source: ProviderSource) -> Provider:
    """Return the provider for the function, client or judge in a checked `source`."""
    spec = source.spec
    assert isinstance(spec, FunctionSpec)
    function = spec.function
    if isinstance(function, ClientModel):
        return build_client_provider(function, id(function.client))
    if hasattr(function, "complete"):
        return AdoptedJudge(function, id(function))
    settings = program_settings(source)
    if "max_concurrency" not in spec.config:  # the default is meant for processes
        settings = replace(settings, limits=with_limits(settings.limits, max_concurrency=None))
    return FunctionProvider(settings, function)


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of a built-in
        return False
    places = [item for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    return sum(item.default is item.empty for item in places) > 1
