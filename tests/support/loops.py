"""The event loops that geval runs in: `geval run` in uvloop's where there is one, the library in asyncio's."""

import asyncio
from collections.abc import Iterator

import pytest

try:
    import uvloop
except ImportError:  # Windows
    uvloop = None  # type: ignore[assignment]


@pytest.fixture(scope="module", autouse=True, params=["asyncio", "uvloop"])
def event_loop_kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs every test of a module that imports this in both loops."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "uvloop":
            if uvloop is None:
                pytest.skip("there is no uvloop")
            patch.setattr(asyncio, "run", uvloop.run)
        yield request.param
