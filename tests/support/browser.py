"""A real browser with a real server: the content of pages, their requests and the browser's complaints."""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

from geval_cli.extras.web.server import Server, bind
from geval_cli.extras.web.settings import ServerSettings

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""What a Chromium may be called; the first takes half of the processor time of the others."""
_NOT_INSTALLED = ("Executable doesn't exist", "loading shared libraries", "missing dependencies")
"""What Playwright says of a browser that is not there, or for which the system lacks libraries."""
_NO_DRIVER = "Connection closed while reading from the driver"
SCREEN, PHONE = (1440, 900), (390, 844)
_PATIENCE_MS = 60_000
_TOKEN = "token-of-the-pages-0123456789"


def skip_without_browser(reason: str) -> NoReturn:
    """Skip a browser test; the end of the test run reports it prominently (`tests/conftest.py`)."""
    pytest.skip(f"NO BROWSER: {reason}")


@contextmanager
def open_browser() -> Iterator[Any]:
    """Start a headless Chromium, Playwright's own or the system's; skip the test if there is none.

    While it is open, `asyncio.run` must not be called in the same thread.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        skip_without_browser("Playwright is not installed (pip install playwright)")
    with ExitStack() as stack:
        try:
            playwright = stack.enter_context(sync_playwright())
        except Exception as error:  # it has no class of its own
            if _NO_DRIVER not in str(error):
                raise
            skip_without_browser("Playwright's own program does not start; the system may lack a library")
        browser = _launched(playwright.chromium)
        stack.callback(browser.close)
        yield browser


def _launched(chromium: Any) -> Any:
    """Return the first browser available: Playwright's own, or the system's."""
    from playwright.sync_api import Error

    for path in (None, *filter(None, map(shutil.which, _NAMES))):
        try:
            return chromium.launch(executable_path=path, args=list(FLAGS))
        except Error as error:
            if not any(words in error.message for words in _NOT_INSTALLED):
                raise
    skip_without_browser(
        "there is no Chromium (apt-get install chromium-headless-shell, or playwright install chromium-headless-shell)"
    )


@contextmanager
def serve(folder: Path, **settings: Any) -> Iterator[str]:
    """Run a server for `folder`, with a token and its state in `folder/.geval`; yields its URL."""
    options = {"environ": {}, "home": folder / ".geval", "port": 0, "token": _TOKEN, **settings}
    listening, bound = bind(ServerSettings(folder.resolve(), **options))
    with listening:
        server = Server(bound)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        thread.start()
        try:
            yield bound.url
        finally:
            server.should_exit = True
            thread.join(timeout=60)


@dataclass
class Visit:
    """A browser window on one server, with everything that it requested or complained about."""

    page: Any
    address: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def go(self, path: str = "/") -> None:
        """Open a page of the server."""
        self.page.goto(self.address + path)

    def check(self) -> None:
        """Check that no other server was contacted, and that the browser had no complaints."""
        strangers = [url for url in self.requests if not url.startswith((self.address, "data:", "blob:"))]
        assert strangers == []
        assert self.complaints == []


@contextmanager
def open_window(browser: Any, **context: Any) -> Iterator[Any]:
    """Open a fresh window: a Playwright page that shares nothing with any other."""
    window = browser.new_context(
        **{
            "viewport": {"width": SCREEN[0], "height": SCREEN[1]},
            "locale": "en-GB",
            "reduced_motion": "reduce",
            **context,
        }
    )
    window.set_default_timeout(_PATIENCE_MS)
    try:
        yield window.new_page()
    finally:
        window.close()


@contextmanager
def watch(page: Any, address: str) -> Iterator[Visit]:
    """Visit a server in an open window; at the end, do the checks of `Visit.check`."""
    port = address.rpartition(":")[2]
    if address.startswith("http") and not any(
        cookie["name"] == f"geval-{port}" for cookie in page.context.cookies(address)
    ):
        page.goto(f"{address}/?token={_TOKEN}")
        assert "token" not in page.url, "the token stays in the address"
    found = Visit(page, address)
    listeners = {
        "request": lambda request: found.requests.append(request.url),
        "console": lambda message: _note(found, message),
        "pageerror": lambda error: found.complaints.append(str(error)),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    try:
        yield found
        found.check()
    finally:
        for event, listener in listeners.items():
            page.remove_listener(event, listener)


@contextmanager
def visit(browser: Any, address: str, **context: Any) -> Iterator[Visit]:
    """Visit a server in a new window."""
    with open_window(browser, **context) as page, watch(page, address) as found:
        yield found


@contextmanager
def visit_in(
    page: Any, address: str, *, viewport: tuple[int, int] = SCREEN, color_scheme: str = "light"
) -> Iterator[Visit]:
    """Visit a server in a window that others use as well, at half the cost of a new one."""
    page.set_viewport_size({"width": viewport[0], "height": viewport[1]})
    page.emulate_media(color_scheme=color_scheme)
    with watch(page, address) as found:
        yield found
        forget(found)


def forget(visited: Visit) -> None:
    """Leave the page, and delete everything that it stored in the browser."""
    visited.go("/healthz")  # the smallest page
    visited.page.evaluate("localStorage.clear(); sessionStorage.clear()")


def press_tab_until(page: Any, selector: str) -> None:
    """Move to the first element that matches, using only the Tab key."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab leads to no {selector}")


def _note(found: Visit, message: Any) -> None:
    if message.type in ("error", "warning"):
        found.complaints.append(message.text)
