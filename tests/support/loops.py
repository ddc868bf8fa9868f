"""The event loops that geval runs in: uvloop for `geval run`, if it is installed, and asyncio for the library."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

try:
    import uvloop
except ImportError:  # Windows
    uvloop = None  # type: ignore[assignment]


Result = TypeVar("Result")


@pytest.fixture(scope="module", autouse=True, params=["asyncio", "uvloop"])
def event_loop_kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run every test of a module that imports this fixture in both loops."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "uvloop":
            if uvloop is None:
                pytest.skip("there is no uvloop")
            patch.setattr(asyncio, "run", _run_in_uvloop)
        yield request.param


def _run_in_uvloop(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` as `uvloop.run` does, which from Python 3.12 on calls the `asyncio.run` that this replaces."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
