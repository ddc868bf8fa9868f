"""The process that runs JavaScript: reads one JSON request per line, writes one JSON answer per line.

It does not import geval. Native code of the engine (a search in a huge text, a sort) cannot be interrupted from
within, so the process may be killed: by a system timer once the code has used up its processor time, or by the parent
process.
"""

import json
import re
import signal
import sys
import time
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

_STACK_BYTES = 256 * 1024  # fits in 512 kB, the smallest thread stack on common systems
_PLATFORM = re.compile(
    r"\b(?:Buffer|Intl|TextDecoder|TextEncoder|URL|URLSearchParams|structuredClone|localeCompare"
    r"|toLocale(?:Date|Time)?String)\b"
)
"""Names of platform.js, which is loaded only for code that contains one of them."""

_OUTCOME = "geval outcome"  # the global in which runtime.js puts the result
_GRACE_S = 0.25  # for the engine itself to notice that the time is over and report it


class CallLimits(NamedTuple):
    """The limits of one call, as in `JavaScriptLimits`."""

    memory_bytes: int
    time_s: float
    wall_s: float


def evaluate(function: str, job: str, limits: CallLimits) -> dict[str, str | None]:
    """Call `function` of the runtime with `job` in a new engine.

    Returns:
        A mapping with `outcome` (None: the promise is never settled), `failure` (the engine's error) or `late`.
    """
    engine: Any = import_module("_quickjs")
    context = engine.Context()
    context.set_memory_limit(limits.memory_bytes)
    context.set_time_limit(limits.time_s)
    context.set_max_stack_size(_STACK_BYTES)
    ends = time.monotonic() + limits.wall_s
    try:
        context.eval(_own_code("runtime.js"))
        context.eval(_own_code("platform.js") if _PLATFORM.search(job) else "delete globalThis.refuse")
        context.set("job", job)
        context.eval(f"{function}(job)")
        while context.get(_OUTCOME) is None and context.execute_pending_job():
            if time.monotonic() > ends:
                return {"late": ""}
        return {"outcome": context.get(_OUTCOME)}
    except engine.JSException as error:
        return {"failure": str(error)}


def main() -> None:
    """Answer requests until stdin ends. The first command-line argument is the folder of the engine's package."""
    sys.path.append(sys.argv[1])
    for line in sys.stdin.buffer:
        request = json.loads(line)
        limits = CallLimits(*request["limits"])
        _die_after(limits.time_s + _GRACE_S)
        try:
            answer = evaluate("run", request["job"], limits)
        except (ValueError, RecursionError, MemoryError) as error:
            answer = {"unreadable": str(error)}
        _die_after(0)
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def _die_after(seconds: float) -> None:
    """Have the system end this process after that much processor time (never if 0). Does nothing on Windows."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, seconds)


@cache
def _own_code(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


if __name__ == "__main__":
    main()
