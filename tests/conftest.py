"""Options, fixtures and hooks for the whole test suite."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from geval_cli.report import safe_file

GROUPS = {
    "local_model": (
        "assertions/test_services_in_a_run",
        "cli/test_first_hour",
        "library/test_session",
        "providers/test_local",
        "test_examples",
    ),
    "browser": (
        "html/test_html_file",
        "web/browser/test_accessibility_in_browser",
        "web/browser/test_charts_in_browser",
        "web/browser/test_labels_in_browser",
        "web/browser/test_live_runs_in_browser",
        "web/browser/test_print_in_browser",
        "web/browser/test_runs_in_browser",
        "web/editor/test_editor_in_browser",
        "web/editor/test_changes_in_browser",
    ),
    "statistics": (
        "trust/statistics/test_agreement",
        "statistics/test_calibration",
        "trust/statistics/test_correlation",
        "statistics/test_paired",
    ),
    "own code": (
        "test_access_is_given",
        "test_architecture",
        "test_developer_pages",
        "test_judge_requests_name_purposes",
        "test_wording",
    ),
}
"""Modules whose tests run one after another in one process, by what they load: it takes many seconds or much memory."""

LONG = (
    "compat/test_promptfoo_rows",
    "faults/test_plan_of_assertions",
    "cli/test_killed_runs",
    "judge/test_parse",
)
"""Modules that take many seconds: they are begun early, so that at the end no process works alone for long."""

# The time of an example depends on the machine's load, not on geval. `make soak PARTS=examples` tries many examples.
_ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("any machine", _ANY_MACHINE, max_examples=50)
settings.register_profile("many", _ANY_MACHINE, max_examples=2000)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-expected",
        action="store_true",
        help="rewrite the files with expected output from what the program prints now; read the difference",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the process: restore Ctrl-C, which shells ignore in background jobs, and remove API keys.

    Temporary folders go into memory if there is room.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    _forget_keys_of_the_developer()
    if config.getoption("hypothesis_profile", None) != "many":
        # Constants from geval's own code as examples: collecting them takes longer than most properties, and hardly any
        # would be among a few dozen examples.
        providers._get_local_constants = lambda: providers._local_constants
    if _has_room_for_files(_MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


_MEMORY = Path("/dev/shm")
_MOST_BYTES = 4 * 2**30
"""Several times what all folders of tests hold together."""


def _has_room_for_files(folder: Path) -> bool:
    """Return whether a folder has room for temporary folders; on a disk, tests take longer and wait more."""
    try:
        system = os.statvfs(folder)
    except (OSError, AttributeError):
        return False
    is_open = os.access(folder, os.W_OK) and not system.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
    return is_open and system.f_bavail * system.f_frsize >= _MOST_BYTES


def _forget_keys_of_the_developer() -> None:
    """Remove API keys from the environment, so that no test can reach a paid service."""
    for name in [name for name in os.environ if name.endswith("_API_KEY")]:
        del os.environ[name]


@pytest.fixture
def update_expected(request: pytest.FixtureRequest) -> bool:
    """Return whether files with expected output are to be rewritten."""
    return bool(request.config.getoption("--update-expected"))


_PROCESSES = pytest.StashKey[int]()
_COLLECTED_AT = (20_000, 20, 50)
_opened = ExitStack()
"""What the tests of a group share, until its end."""
_browsers: list[Any] = []


@pytest.fixture(scope="module")
def browser() -> Any:
    """Return a headless Chromium that all tests share; they must not call `asyncio.run` in their own thread."""
    from support.browser import open_browser

    if not _browsers:
        _browsers.append(_opened.enter_context(open_browser()))
        _opened.callback(_browsers.clear)
    return _browsers[0]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Disable garbage collection while tests are loaded, and make it rare later: it took a tenth of the tests' time.

    Objects loaded so far are kept for good, and later collections skip them.
    """
    gc.set_threshold(*_COLLECTED_AT)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Handle `-n N --dist loadgroup` without xdist if processes can be forked."""
    option = config.option
    if getattr(option, "dist", "") != "loadgroup" or not option.numprocesses:
        return
    if sys.platform == "linux" and not getattr(option, "cov_source", None):
        config.stash[_PROCESSES] = option.numprocesses
        option.numprocesses, option.dist = None, "no"
    else:
        option.dist = "loadfile"


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    processes = session.config.stash.get(_PROCESSES, 0)
    if not processes or session.config.option.collectonly or session.testsfailed or not session.items:
        return None
    from support.forked_tests import run_in_forks

    if any("hypothesis" in item.keywords for item in session.items):
        _draw_a_text()
    if "geval_cli.cli.run" in sys.modules:  # otherwise each process would load these lazily
        for name in ("aiohttp", "jsonschema", "ssl", "uvloop"):
            import_module(name)
    run_in_forks(session, processes, _group_of, _beyond_tests.append)
    return True


@settings(max_examples=1, database=None)
@given(st.text())
def _draw_a_text(text: str) -> None:
    """Make Hypothesis load or build its character tables now, instead of in each process."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slowest tests first, so that no process finishes long after the others."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)
        for name in GROUPS:
            if item.get_closest_marker(name) is not None and _group_of(item.nodeid) != name:
                raise pytest.UsageError(f"{item.nodeid}: name its module in GROUPS of tests/conftest.py")
    first = [*GROUPS, *LONG]
    turns = {name: turn for turn, name in enumerate(first)}
    items.sort(key=lambda item: turns.get(_group_of(item.nodeid), len(first)))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Restore global state: the command makes garbage collection rare and remembers distrusted folders.

    At the end of a group, the shared browser is closed and geval's syntax trees are dropped, since every later garbage
    collection would have to scan them.
    """
    gc.set_threshold(*_COLLECTED_AT)
    safe_file._distrusted.clear()
    group = _group_of(item.nodeid)
    if nextitem is not None and group == _group_of(nextitem.nodeid):
        return
    _opened.close()
    if group == "own code":
        from support.own_code import nodes_of

        nodes_of.cache_clear()


def _group_of(nodeid: str) -> str:
    """Return a test's group, which runs in one process to share fixtures: its module, or one of `GROUPS`."""
    module = nodeid.partition(".py")[0].removeprefix("tests/")
    return next((name for name, modules in GROUPS.items() if module in modules), module)


_beyond_tests: list[object] = []
"""What went wrong besides tests: modules that cannot be loaded, processes that crashed."""


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _beyond_tests.append(report)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Reserve exit code 1 for failed tests alone, since `make test` then runs them again."""
    if _beyond_tests and exitstatus == pytest.ExitCode.TESTS_FAILED:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a prominent warning if the web page was not tested because no browser was available."""
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    reasons = [text for text in skipped if "NO BROWSER" in text]
    if reasons:
        terminalreporter.section("THE WEB PAGE WAS NOT TESTED", red=True, bold=True)
        terminalreporter.line(f"{len(reasons)} tests: {reasons[0]}", red=True)
