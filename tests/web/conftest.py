"""One browser for the tests of a module, and one group of such tests: browsers take all cores."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import open_browser

_FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium. While it is open, `asyncio.run` must not be called in the test's own thread."""
    with open_browser() as found:
        yield found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses a browser, and keep it in one worker."""
    for item in items:
        if _FOLDER in item.path.parents and "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.xdist_group("browser"))
