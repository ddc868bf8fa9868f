"""The event loop of a command."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, on uvloop where there is one: a large run takes an eighth less of the processor's time."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # there is none for Windows
    except ImportError:
        return None
    return uvloop.new_event_loop
