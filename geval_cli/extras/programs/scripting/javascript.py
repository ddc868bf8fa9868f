"""Runs JavaScript in an engine (QuickJS) in a separate process, with limits and without access to anything.

Each call gets its own engine; a thread waits for the process that runs it. The package is the extra `js`.
"""

import asyncio
import atexit
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from geval_cli.extras.programs.scripting.code import Code, CodeError, ScriptLimitError
from geval_cli.extras.programs.scripting.javascript_worker import CallLimits, evaluate
from geval_cli.patterns import compile_later
from geval_cli.records import JsonValue
from geval_cli.source.command import ScriptCrashError, ScriptError, ScriptTimeoutError
from geval_cli.version import install_hint

_WORKER = Path(__file__).with_name("javascript_worker.py")
# The exit status of a process whose timer (`_die_after` in the worker) ran out; Windows has no such signal.
_OUT_OF_TIME = -getattr(signal, "SIGPROF", 0)


class JavaScriptProcess:
    """A process that runs one call at a time.

    `ask` blocks its thread; `kill` may be called from any thread and unblocks it. After that, `is_ended` is true and
    the object cannot be used again.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self.is_ended = False

    def ask(self, job: str, limits: CallLimits) -> dict[str, str | None]:
        """Send `job` to the worker and return its answer; see `javascript_worker.evaluate`.

        Raises:
            ScriptTimeoutError: the code used up its processor time.
            ScriptCrashError: the process ended for another reason, or was killed.
        """
        child = self._child or self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        request = {"job": job, "limits": limits}
        line = b""
        with suppress(OSError, ValueError):
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
            line = child.stdout.readline()
        # A line that is cut off means that the worker died while it wrote.
        if line.endswith(b"\n"):
            answer: dict[str, str | None] = json.loads(line)
            return answer
        self._child = None
        status = _end(child)
        if status == _OUT_OF_TIME:
            raise ScriptTimeoutError(f"it took more than {limits.time_s:g} s of processor time")
        raise ScriptCrashError(f"the JavaScript engine exited with status {status} instead of answering")

    def kill(self) -> None:
        """End the process for good; a pending call raises. Safe to call twice."""
        self.is_ended = True
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """End the process and forget it. Call this only from the thread that calls `ask`."""
        child, self._child = self._child, None
        if child is not None:
            _end(child)

    def _start(self) -> "subprocess.Popen[bytes]":
        spec = find_spec("_quickjs")
        assert spec is not None
        assert spec.origin is not None
        # Without the environment, so that code sees no keys, and in a new session, so that only geval gets Ctrl-C.
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_WORKER), str(Path(spec.origin).parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            start_new_session=True,
        )
        # `kill` may have come from another thread while the process was being started.
        if self.is_ended:
            self._child.kill()
        return self._child


def _end(child: "subprocess.Popen[bytes]") -> int:
    child.kill()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with suppress(OSError):  # data that the process never read
                stream.close()
    return child.wait()


INSTALL_HINT = f"install it {install_hint('js')}"

_LONE_SURROGATE = compile_later("[\ud800-\udfff]")
# `require(...)` in a string or a comment loads nothing, so these are removed first.
_STRINGS_AND_COMMENTS = compile_later(
    r"//[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"|`(?:\\.|[^`\\])*`", re.DOTALL
)
_EXPORTS = re.compile(r"\bexports?\b")
_MODULES = compile_later(
    r"(?<![\w$.])(?:require\s*\(|import\s*\(|process\s*\.\s*mainModule)|^[^\S\n]*import\s+[\w{*'\"]",
    re.MULTILINE,
)


class JavaScriptLimits(Struct, frozen=True):
    """The limits of one call. `time_s` is processor time; `wall_s` is the longest that a caller waits."""

    memory_bytes: int = 128 * 1024 * 1024
    time_s: float = 10.0
    wall_s: float = 60.0


_LIMITS = JavaScriptLimits()
_NOW = threading.Lock()


class Entry(StrEnum):
    """The part of a file to call: its function, its test generator, or a provider's `callApi` or `id`."""

    FUNCTION = "function"
    TESTS = "tests"
    PROVIDER = "provider"
    PROVIDER_NAME = "provider-name"


def is_installed() -> bool:
    """Return whether the engine's package is installed."""
    return find_spec("_quickjs") is not None


@lru_cache(4096)
def check_javascript(code: Code, names: tuple[str, ...]) -> None:
    """Compile the code without running it; `names` are the arguments that a snippet sees.

    Raises:
        CodeError: the code has a syntax error, loads modules, which is not supported, or exports no such function.
    """
    bare = _STRINGS_AND_COMMENTS.sub("''", code.text)
    if _MODULES.search(bare):
        hint = "write it without modules, or in Python"
        raise CodeError(f"{code.name} loads a module, which is not supported", hint=hint)
    try:
        # Nothing runs, so this cannot take long and needs no process.
        _value_in(evaluate("check", _job(code, dict.fromkeys(names)), _of(_LIMITS)), _LIMITS)
    except ScriptError as error:
        line = error.line if isinstance(error, _JavaScriptError) else None
        raise CodeError(f"{code.name} cannot be compiled: {error}", line=line) from error
    wanted = code.function.rpartition(".")[2]
    is_named = wanted in re.findall(r"[\w$]+", code.text) or "exports[" in bare
    if code.path is not None and not (_EXPORTS.search(bare) and (is_named or not wanted)):
        what = f"`{code.function}`" if wanted else ""
        hint = (
            f"write `module.exports = {f'{{ {code.function} }}' if wanted else '(output, context) => ...'}`"
        )
        raise CodeError(f"{code.path.name} exports no function {what}".rstrip(), hint=hint)


def call_javascript_now(
    code: Code,
    arguments: Mapping[str, JsonValue],
    limits: JavaScriptLimits = _LIMITS,
    *,
    entry: Entry = Entry.FUNCTION,
) -> JsonValue:
    """Call the code and return its result, as `JavaScriptEngine.call` does, but blocking."""
    job = _job(code, arguments, entry)
    with _NOW:
        process = _process_for_now(os.getpid())
        alarm = threading.Timer(limits.wall_s, process.kill)
        alarm.daemon = True
        alarm.start()
        try:
            result = _outcome(process, job, limits)
        finally:
            alarm.cancel()
            if process.is_ended:
                process.close()
                _process_for_now.cache_clear()
    if process.is_ended and isinstance(result, ScriptCrashError):
        raise ScriptTimeoutError(f"{code.name} took longer than {limits.wall_s:g} s")
    if isinstance(result, ScriptError):
        raise result
    return result


@lru_cache(1)
def _process_for_now(owner: int) -> JavaScriptProcess:
    """Return the process of `call_javascript_now`.

    `owner` is the process id: a forked process gets its own, so that it does not write into its parent's pipe.
    """
    del owner
    process = JavaScriptProcess()
    atexit.register(process.close)
    return process


class JavaScriptEngine(Struct):
    """Runs code, up to `size` calls at a time, each in a process of its own. Belongs to one event loop."""

    limits: JavaScriptLimits = _LIMITS
    size: int = 2
    _idle: list["_Thread"] = field(default_factory=list)
    _turns: asyncio.Semaphore | None = None

    async def call(
        self, code: Code, arguments: Mapping[str, JsonValue], *, entry: Entry = Entry.FUNCTION
    ) -> JsonValue:
        """Return the result of the code, with promises awaited; undefined and null are None.

        Args:
            code: a snippet sees `arguments` by name; a function receives them in order.
            arguments: JSON values.
            entry: the part of a file to call. Each call makes a new instance of a provider's class, from the last
            argument.

        Raises:
            ScriptError: the code threw an error, or its result cannot be written as JSON.
            ScriptTimeoutError: the code took too long.
            ScriptLimitError: the code needs too much memory, or something that the engine does not have.
        """
        if self._turns is None:
            self._turns = asyncio.Semaphore(self.size)
        job = _job(code, arguments, entry)
        async with self._turns:
            thread = self._idle.pop() if self._idle else _Thread()
            try:
                async with asyncio.timeout(self.limits.wall_s):
                    result = await thread.run(lambda process: _outcome(process, job, self.limits))
            # The engine's own clock counts processor time only; a process that hangs otherwise must be killed.
            except TimeoutError as error:
                thread.kill()
                raise ScriptTimeoutError(f"{code.name} took longer than {self.limits.wall_s:g} s") from error
            except BaseException:
                thread.kill()
                raise
            # Only after a clean end: a process that was interrupted may be in any state.
            self._idle.append(thread)
        if isinstance(result, ScriptError):
            raise result
        return result

    def close(self) -> None:
        """End the processes and the threads that wait for them. Safe to call twice."""
        while self._idle:
            self._idle.pop().end()


class _JavaScriptError(ScriptError):
    """An error that the code threw; `line` counts the code's lines from 1."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message if line is None else f"{message} (line {line})")
        self.line = line


class _Thread:
    """Waits for one process outside the event loop. A daemon, so that code that hangs does not keep geval running."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._process = JavaScriptProcess()
        threading.Thread(target=self._serve, name="javascript", daemon=True).start()

    async def run(self, work: Callable[[JavaScriptProcess], Any]) -> Any:
        """Run `work`, which must not raise, and return its result."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def tell(result: Any) -> None:
            if not done.done():
                done.set_result(result)

        def do() -> None:
            result = work(self._process)
            try:
                loop.call_soon_threadsafe(tell, result)
            except RuntimeError:
                return  # the loop is closed, so nothing waits for the result

        self._work.put(do)
        return await done

    def end(self) -> None:
        """Accept no more work, and end the process when the current call is done."""
        self._work.put(None)

    def kill(self) -> None:
        """End the process at once, even during a call."""
        self._process.kill()
        self.end()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
        self._process.close()


def _job(code: Code, arguments: Mapping[str, JsonValue], entry: Entry = Entry.FUNCTION) -> str:
    job = {
        "source": code.text,
        "names": list(arguments),
        "values": list(arguments.values()),
        "isFile": code.path is not None,
        "wanted": code.function,
        "callsResult": code.calls_result,
        "entry": entry.value,
    }
    return json.dumps(job)


def _outcome(process: JavaScriptProcess, job: str, limits: JavaScriptLimits) -> JsonValue | ScriptError:
    """Return the result, or the error as a value, since a raised one would carry this thread's frames into another."""
    try:
        return _value_in(process.ask(job, _of(limits)), limits)
    except ScriptError as error:
        return error.with_traceback(None)
    except (ValueError, TypeError, LookupError, RecursionError, MemoryError) as error:
        return ScriptError(f"its result cannot be read: {error}")


def _of(limits: JavaScriptLimits) -> CallLimits:
    return CallLimits(limits.memory_bytes, limits.time_s, limits.wall_s)


def _value_in(answer: Mapping[str, str | None], limits: JavaScriptLimits) -> JsonValue:
    """Return the value in the engine's answer.

    Raises:
        ScriptError: the answer is an error.
    """
    if "late" in answer:
        raise ScriptTimeoutError(f"it took longer than {limits.wall_s:g} s")
    if "unreadable" in answer:
        raise ScriptError(f"its result cannot be read: {answer['unreadable']}")
    if "failure" in answer:
        first = (answer["failure"] or "").partition("\n")[0]
        if "interrupted" in first:
            raise ScriptTimeoutError(f"it took more than {limits.time_s:g} s of processor time")
        if "out of memory" in first:
            raise ScriptLimitError(f"it needs more than {limits.memory_bytes // (1024 * 1024)} MB of memory")
        raise ScriptError(first)
    text = answer["outcome"]
    if text is None:
        raise ScriptError("it returned a promise that is never settled")
    return _read(json.loads(text))


def _read(reply: dict[str, Any]) -> JsonValue:
    if "error" in reply:
        message = _LONE_SURROGATE.sub("\ufffd", reply["error"])
        if "out of memory" in message:
            raise ScriptLimitError("it needs more memory than allowed")
        if reply["isUnavailable"]:
            raise ScriptLimitError(message)
        raise _JavaScriptError(message, reply["line"])
    if "number" in reply:
        return float(reply["number"].replace("Infinity", "inf"))
    if reply["type"] in {"undefined", "null"}:
        return None
    if reply.get("json") is None:
        raise ScriptError(f"it returned a {reply['type']}, which is not a JSON value")
    # Other programs reject lone surrogates.
    text = reply["json"]
    if "\\u" not in text and not _LONE_SURROGATE.search(text):
        without_halves = text
    else:
        value = json.loads(text)
        written = json.dumps(value, ensure_ascii=False)
        without_halves = _LONE_SURROGATE.sub("\ufffd", written)
    return json.loads(without_halves)
