"""A program that is run once: arguments in, what it prints out. No shell."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from geval_cli.config.access import Access
from geval_cli.scripting.child import kill_child
from geval_cli.scripting.script_errors import ScriptCrashError, ScriptError, ScriptTimeoutError

_SHOWN = 2_000  # characters of what a program complains about


async def run_command(
    arguments: Sequence[str],
    access: Access,
    *,
    folder: Path,
    env: Mapping[str, str] | None,
    timeout_s: float,
) -> str:
    """What the program prints, without the space around it.

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
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ScriptError(f"`{name}` cannot be started: {reason}") from error
    try:
        async with asyncio.timeout(timeout_s):
            output, complaint = await child.communicate()
    except TimeoutError as error:
        raise ScriptTimeoutError(f"`{name}` did not end within {timeout_s:g} s") from error
    finally:
        await kill_child(child)
    text, said = (part.decode("utf-8", "replace").strip() for part in (output, complaint))
    if child.returncode:
        raise ScriptCrashError(f"`{name}` ended with status {child.returncode}", detail=said[-_SHOWN:])
    if said and not text:
        raise ScriptError(f"`{name}` printed nothing, and complained", detail=said[-_SHOWN:])
    return text
