"""Run a program once, and the errors of a user's code."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from geval_cli.source.access import Access

_LAST_BYTES_S = 1.0
_SHOWN = 2_000  # characters of a program's stderr


class ScriptError(Exception):
    """The user's code raised an exception, or returned something other than JSON. `detail` is its traceback."""

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class ScriptCrashError(ScriptError):
    """The process ended instead of answering. `detail` is the end of its stderr."""


class ScriptTimeoutError(ScriptError):
    """The call took longer than allowed, and was stopped."""


async def kill_child(child: asyncio.subprocess.Process) -> None:
    """Kill `child` and, where sessions exist and it leads one, its own children; then wait for it to end."""
    if sys.platform == "win32":
        with suppress(ProcessLookupError):
            child.kill()
    else:
        # Also after it has ended: its children may still hold the pipes.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    # communicate() reads the pipes to the end, so that their transports are closed with the process. Processes started
    # in another session may hold them open forever, so they are finally closed from this side.
    with suppress(ConnectionError, ValueError, RuntimeError, TimeoutError):
        await asyncio.wait_for(child.communicate(), _LAST_BYTES_S)
    child._transport.close()  # type: ignore[attr-defined]  # there is no public way
    await child.wait()


async def run_command(
    arguments: Sequence[str],
    access: Access,
    *,
    folder: Path,
    env: Mapping[str, str] | None,
    timeout_s: float,
) -> str:
    """Run the program and return its output, without surrounding white space.

    Raises:
        CodeFailedError: programs may not be run.
        ScriptError: it cannot be started, or printed only to stderr.
        ScriptCrashError: it exited with a status other than 0.
        ScriptTimeoutError: it did not finish within `timeout_s`.
    """
    name = arguments[0]
    access.require_code(f"`{name}`")
    try:
        child = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env=None if env is None else dict(env),
            # A session of its own, so that its children can be killed with it, and Ctrl-C reaches only geval.
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ScriptError(f"`{name}` cannot be started: {reason}") from error
    try:
        async with asyncio.timeout(timeout_s):
            output, complaint = await child.communicate()
    except TimeoutError as error:
        raise ScriptTimeoutError(f"`{name}` did not finish within {timeout_s:g} s") from error
    finally:
        # After success too: the program may have left children that hold its output open.
        await kill_child(child)
    text, said = (part.decode("utf-8", "replace").strip() for part in (output, complaint))
    if child.returncode:
        raise ScriptCrashError(f"`{name}` exited with status {child.returncode}", detail=said[-_SHOWN:])
    if said and not text:
        raise ScriptError(f"`{name}` printed nothing but an error", detail=said[-_SHOWN:])
    return text
