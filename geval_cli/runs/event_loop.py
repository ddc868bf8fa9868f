"""The event loop of a run whose caller has none."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run as `asyncio.run` does, on uvloop where it is installed: a large run takes an eighth less CPU time."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


async def all_or_first_error(tasks: Sequence[Awaitable[T]]) -> list[T]:
    """Return what all of `tasks` return; raise the first error only once all of them have ended."""
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes event loops; None for asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415 - there is none for Windows
    except ImportError:
        return None
    return uvloop.new_event_loop
