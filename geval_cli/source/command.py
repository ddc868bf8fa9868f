"""A program that is run once, and what goes wrong with a user's code."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from geval_cli.source.access import Access

_LAST_BYTES_S = 1.0
_SHOWN = 2_000  # characters of what a program complains about


class ScriptError(Exception):
    """The user's code raised, or gave back what is no JSON. `detail` is its traceback."""

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class ScriptCrashError(ScriptError):
    """The process ended instead of answering. `detail` is the end of what it wrote to stderr."""


class ScriptTimeoutError(ScriptError):
    """The call took longer than it may, and was stopped."""


async def kill_child(child: asyncio.subprocess.Process) -> None:
    """Kill `child` and, where sessions exist and it leads one, its own children; then wait for its end."""
    if sys.platform == "win32":
        with suppress(ProcessLookupError):
            child.kill()
    else:
        # Also after its end: what it started may still hold the pipes.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    # communicate() reads the pipes to their end, so that their transports are closed with the process. What it started
    # in another session may hold them open for ever, so they are closed from this side at last.
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
    """Run the program and return its output, without the space around it.

    Raises:
        CodeFailedError: no program may be run.
        ScriptError: it cannot be started, or complains and prints nothing.
        ScriptCrashError: it ended with another status than 0.
        ScriptTimeoutError: it did not end within `timeout_s`.
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
            # A session of its own, so that its children can be ended with it, and Ctrl-C reaches only geval.
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
