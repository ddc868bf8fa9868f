"""Child processes that call the functions of a user's Python file."""

import asyncio
import json
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from geval_cli.source.command import ScriptCrashError, ScriptError, ScriptTimeoutError, kill_child

DEFAULT_PARALLEL = 4
"""How many processes run a user's code at once by default; low, since the machine has other work too."""

_WORKER = Path(__file__).with_name("python_worker.py")
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""The longest answer. It is one line; asyncio's default limit of 64 kB would reject long ones."""

_STDERR_LINES = 20
_LONGEST_LINE = 8192
# A process that closed its output may not have ended yet, and its traceback may still arrive.
_LAST_WORDS_S = 0.5
_SHOWN_BYTES = 500


class PythonProcess:
    """Calls functions of one Python file, one call at a time. Belongs to the event loop of its first call.

    `home` is the working directory and the first folder for imports; by default the file's own folder.
    """

    def __init__(self, path: Path, *, env: Mapping[str, str] | None = None, home: Path | None = None) -> None:
        self._path = path
        self._env = env
        self._home = home or path.parent
        self._name = path.name if home is None else "the Python code"
        self._child: asyncio.subprocess.Process | None = None
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._listening: asyncio.Task[None] | None = None
        self._calls = 0
        self._busy = asyncio.Lock()

    async def call(
        self, function: str, arguments: list[Any], *, timeout_s: float, rows_into: Path | None = None
    ) -> Any:
        """Call `function`, which may be async, with as many of `arguments` as it takes, and return its result.

        `timeout_s` does not include the wait for earlier calls. With `rows_into`, the function returns or yields rows,
        which the process writes to that file as JSON Lines, one by one; the result is their number.

        Raises:
            ScriptError: the function raised or does not exist, its result is not JSON, or it wrote into the answer
            channel.
            ScriptCrashError: the process ended.
            ScriptTimeoutError: there was no answer within `timeout_s`.
        """
        request: dict[str, Any] = {"function": function, "arguments": arguments}
        if rows_into is not None:
            request["rows_into"] = str(rows_into)
        async with self._busy:
            try:
                async with asyncio.timeout(timeout_s):
                    answer = await self._exchange(request)
            except TimeoutError as error:
                await self._stop()
                raise ScriptTimeoutError(f"{self._name} took longer than {timeout_s:g} s") from error
            except BaseException:
                # After a crash or a cancelled call the process is in an unknown state: the next call gets a new one.
                await self._stop()
                raise
        if "error" in answer:
            raise ScriptError(answer["error"], detail=answer.get("traceback", ""))
        return answer["result"]

    async def aclose(self) -> None:
        """End the process. Safe to call twice."""
        await self._stop()

    async def _exchange(self, request: Mapping[str, Any]) -> dict[str, Any]:
        child = self._child or await self._start()
        self._calls += 1
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(ConnectionError):
            child.stdin.write(json.dumps({**request, "id": self._calls}).encode() + b"\n")
            await child.stdin.drain()
        line = b""
        try:
            with suppress(ConnectionError):
                line = await child.stdout.readline()
        except ValueError as error:  # how asyncio reports a line above the limit
            size = f"{MAX_ANSWER_BYTES / 1024 / 1024:.3g} MB"
            raise ScriptError(f"{self._name} returned more than {size}, which is too much") from error
        if not line.endswith(b"\n"):
            status: int | None = None
            with suppress(TimeoutError):
                status = await asyncio.wait_for(child.wait(), _LAST_WORDS_S)
            if self._listening is not None:
                await asyncio.wait([self._listening], timeout=_LAST_WORDS_S)
            how = "" if status is None else f" with status {status}"
            raise ScriptCrashError(
                f"{self._name} ended{how} instead of answering", detail="".join(self._stderr)
            )
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        is_ours = isinstance(answer, dict) and answer.get("id") == self._calls
        if is_ours and ("result" in answer or isinstance(answer.get("error"), str)):
            return dict(answer)
        message = f"{self._name} wrote to the channel for its answer, so the answer cannot be read"
        raise ScriptError(message, detail=line[:_SHOWN_BYTES].decode("utf-8", "replace"))

    async def _start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        self._child = child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-X",
            "utf8",
            str(_WORKER),
            str(self._path),
            str(self._home),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            env=None if self._env is None else dict(self._env),
            cwd=self._home,
            limit=MAX_ANSWER_BYTES,
            start_new_session=True,
        )
        self._stderr.clear()
        assert child.stderr is not None
        self._listening = asyncio.create_task(self._listen(child.stderr))
        return child

    async def _listen(self, stream: asyncio.StreamReader) -> None:
        while part := await stream.read(4096):
            lines = part.decode("utf-8", "replace").splitlines(keepends=True)
            if self._stderr and not self._stderr[-1].endswith("\n"):
                # Only the end of a line is kept: a program may print megabytes without a line break.
                lines[0] = (self._stderr.pop() + lines[0])[-_LONGEST_LINE:]
            self._stderr.extend(lines)

    async def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await kill_child(child)
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening


class PythonPool:
    """Calls functions of one Python file, up to `size` at a time. Belongs to the event loop of its first call.

    A new process is started only when all others are busy, so consecutive calls share one process.
    """

    def __init__(
        self, path: Path, *, size: int, env: Mapping[str, str] | None = None, home: Path | None = None
    ) -> None:
        self._path = path
        self._env = env
        self._home = home
        self._turns = asyncio.Semaphore(size)
        self._processes: list[PythonProcess] = []
        self._idle: list[PythonProcess] = []

    async def call(
        self,
        function: str,
        arguments: list[Any],
        *,
        timeout_s: float,
        begin: Callable[[], Awaitable[None]] | None = None,
    ) -> Any:
        """Call `function` and return its result; raises the same errors as `PythonProcess.call`.

        When the call's turn comes, `begin` is awaited first, and its exceptions are passed on. `timeout_s` starts after
        that.
        """
        async with self._turns:
            if begin is not None:
                await begin()
            process = self._idle.pop() if self._idle else self._add()
            try:
                return await process.call(function, arguments, timeout_s=timeout_s)
            finally:
                self._idle.append(process)

    async def aclose(self) -> None:
        """End the processes. Safe to call twice."""
        await asyncio.gather(*(process.aclose() for process in self._processes))

    def _add(self) -> PythonProcess:
        process = PythonProcess(self._path, env=self._env, home=self._home)
        self._processes.append(process)
        return process
