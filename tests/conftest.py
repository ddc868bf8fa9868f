"""Options of the whole test suite."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing about geval.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-expected",
        action="store_true",
        help="rewrite the files with expected output from what the program prints now; read the difference",
    )


def pytest_configure() -> None:
    """A shell starts what runs in the background with SIGINT ignored, and every process inherits that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def update_expected(request: pytest.FixtureRequest) -> bool:
    """Whether files with expected output are to be written anew."""
    return bool(request.config.getoption("--update-expected"))


@pytest.fixture(autouse=True)
def no_keys_of_the_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may reach a paid service with a key that happens to be set."""
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def garbage_collection_as_it_was() -> Iterator[None]:
    """The command makes collections rare for its process; a test that runs it in ours must not leave that behind."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium. While it is open, `asyncio.run` must not be called in the test's own thread."""
    from support.browser import open_browser

    with open_browser() as found:
        yield found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run one after another what loads the local model, and what uses a browser: each takes all cores and much memory.

    And first, since it takes longest: at the end one process would have to wait for it.
    """
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)
        for name in ("local_model", "browser"):
            if item.get_closest_marker(name) is not None:
                item.add_marker(pytest.mark.xdist_group(name))
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly that the web page was not tested, where no browser could be had."""
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    reasons = [text for text in skipped if "NO BROWSER" in text]
    if reasons:
        terminalreporter.section("THE WEB PAGE WAS NOT TESTED", red=True, bold=True)
        terminalreporter.line(f"{len(reasons)} tests: {reasons[0]}", red=True)
