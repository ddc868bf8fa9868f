"""Ends child processes together with what they started."""

import asyncio
import os
import signal
import sys
from contextlib import suppress

DEFAULT_PARALLEL = 4
"""How many processes run a user's code at once unless the config says otherwise: their machine has other work too."""


async def kill_child(child: asyncio.subprocess.Process) -> None:
    """Kill `child` and, where sessions exist and it leads one, its own children; then wait for its end."""
    if sys.platform == "win32":
        with suppress(ProcessLookupError):
            child.kill()
    else:
        # Also after its end: what it started may still hold the pipes.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    # communicate() reads the pipes to their end, so that their transports are closed with the process.
    with suppress(ConnectionError, ValueError, RuntimeError):
        await child.communicate()
    await child.wait()
