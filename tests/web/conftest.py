"""A window for the pages of a module: whoever has a `site` with an `address` gets one that forgets between tests."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.browser import Visit, open_window, visit_in


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    """One for all tests of a module: a fresh one takes longer than most of them."""
    with open_window(browser) as found:
        yield found


@pytest.fixture
def window(site: Any, page: Any) -> Iterator[Visit]:
    """The page of a module before the server of its `site`; afterwards nothing is left in the browser."""
    with visit_in(page, site.address) as found:
        yield found
