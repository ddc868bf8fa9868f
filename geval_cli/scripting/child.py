"""Ends child processes together with what they started."""

import asyncio
import os
import signal
import sys
from contextlib import suppress

DEFAULT_PARALLEL = 4
"""How many processes run a user's code at once unless the config says otherwise: their machine has other work too."""

_LAST_BYTES_S = 1.0


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
