"""The pytest plugin: the `geval` fixture and marker, and `*.geval.yaml` files whose tests become pytest items.

It is loaded in every pytest session if geval is installed, so it imports nothing until a session uses it.
"""

import os
import re
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from geval_cli.library.suite_items import GevalFile
    from geval_cli.library.testing import GevalFixture, SessionRun

ENDINGS = (".geval.yaml", ".geval.yml")
_USED = "geval_cli.library.testing"  # imported when something is judged

_BUILD_SERVERS = ("GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION")
"""Variables of build servers that take lines in a log for commands, as in `cli.streams`."""

_item_key: pytest.StashKey[pytest.Item] = pytest.StashKey()
_results_key: pytest.StashKey[list[str]] = pytest.StashKey()
_broken_key: pytest.StashKey[BaseException] = pytest.StashKey()
_session_key: pytest.StashKey[str] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options; they are read when something is judged."""
    group = parser.getgroup("geval", "language model answers (geval)")
    group.addoption(
        "--geval-home", metavar="FOLDER", help="where runs and cache are kept [$GEVAL_HOME or .geval]"
    )
    group.addoption("--geval-offline", action="store_true", help="only the cache answers; nothing is sent")
    group.addoption(
        "--geval-max-cost", type=_amount, metavar="USD", help="stop sending requests when this much is spent"
    )
    group.addoption("--geval-grader", metavar="PROVIDER", help="the judge, for example openai:gpt-4.1")
    parser.addini(
        "geval_files",
        "also collect *.geval.yaml files that are not on the command line",
        type="bool",
        default=False,
    )


def _amount(text: str) -> float:
    """Return an amount of money; raises pytest.UsageError if `text` is none."""
    with suppress(ValueError):
        if 0 <= (amount := float(text)) < float("inf"):
            return amount
    raise pytest.UsageError(f"--geval-max-cost must be an amount in USD of at least 0, not {text}")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        "geval(grader=None, samples=None): the judge for this test, and how many times it judges an output",
    )
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_SessionStore(config), "geval-session")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "GevalFile | None":
    """Collect a suite if it is named on the command line, or if the ini setting includes all suites."""
    if not file_path.name.endswith(ENDINGS):
        return None
    # Whether the file is named on the command line, even together with a folder that contains it.
    config = parent.config
    named = (Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args)
    is_named = parent.session.isinitpath(file_path) or str(file_path) in map(os.path.abspath, named)
    if not (is_named or parent.config.getini("geval_files")):
        return None
    from geval_cli.library.suite_items import GevalFile

    return GevalFile.from_parent(parent, path=file_path)


@pytest.fixture(scope="session")
def geval(request: pytest.FixtureRequest) -> "Iterator[GevalFixture]":
    """Judge outputs: `geval.check(output, criteria=...)`, `await geval.ajudge(case, metric)`."""
    from geval_cli.library.testing import GevalFixture

    fixture = GevalFixture(request.config, _Notes(request.config))
    yield fixture
    fixture.close()


class _Notes:
    """Records the judgements of the running test for its report. The fixture lives as long as the session."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @property
    def item(self) -> pytest.Item | None:
        return self._config.stash.get(_item_key, None)

    def add(self, result: str) -> None:
        """Record a result, as JSON."""
        if self.item is not None:
            self.item.stash.setdefault(_results_key, []).append(result)

    def add_error(self, error: BaseException) -> None:
        """Record why an output could not be judged."""
        if self.item is not None:
            self.item.stash[_broken_key] = error


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember which test is running."""
    item.config.stash[_item_key] = item


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the judgements of a test to its report; with xdist, another process stores them."""
    report = yield
    found = item.stash.get(_results_key, None)
    if found:
        vars(report)["geval_results"] = found
        del item.stash[_results_key]
    broken = item.stash.get(_broken_key, None)
    if broken is not None and call.excinfo is not None and call.excinfo.value is broken:
        vars(report)["geval_broken"] = True
    if found or broken is not None or item.path.name.endswith(ENDINGS):
        _escape_commands(report)
    return report


def _escape_commands(report: pytest.TestReport) -> None:
    """Escape commands to a build server, such as `::error::`, in a report: they are a model's words."""
    if not any(map(os.environ.get, _BUILD_SERVERS)):
        return
    told: Any = report.longrepr
    if isinstance(told, str):
        report.longrepr = without_commands(told)
        return
    alone = getattr(told, "reprtraceback", None), getattr(told, "reprcrash", None)
    for traceback, crash, *_ in (alone, *getattr(told, "chain", ())):
        if crash is not None:
            crash.message = without_commands(crash.message)
        for entry in getattr(traceback, "reprentries", ()):
            for part in (entry, getattr(entry, "reprlocals", None)):
                if part is not None:
                    part.lines = [without_commands(line) for line in part.lines]
            if arguments := getattr(entry, "reprfuncargs", None):
                arguments.args = [(name, without_commands(value)) for name, value in arguments.args]


def without_commands(text: str) -> str:
    """Return `text` with commands to a build server escaped as in JSON, as `cli.streams` writes them."""
    text = re.sub(r"((?:^|[\r\n])[^\S\r\n]*):(?=:)", r"\1\\u003a", text)
    return re.sub(r"##(?=(?:vso|teamcity)?\[)", r"#\\u0023", text, flags=re.IGNORECASE)


def pytest_report_teststatus(report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
    """Report an output that could not be judged as an error: a broken judge says nothing about the output."""
    if report.failed and getattr(report, "geval_broken", False):
        return "error", "E", "ERROR"
    return None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With xdist, tell the main process whether this one judged anything."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None and _USED in sys.modules:
        output[_USED] = True


class _SessionStore:
    """Stores the judgements of a session's tests as one run, in the process that receives all reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._run: SessionRun | None = None
        self._has_notes = False

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and getattr(report, "geval_broken", False):
            self._show_as_error(report)
        found = getattr(report, "geval_results", None)
        if not found:
            return
        from geval_cli.library.testing import begin_session, read_result

        if self._run is None:
            self._run = begin_session(self._config)
        for text in found:
            self._run.add(read_result(text))

    def _show_as_error(self, report: pytest.TestReport) -> None:
        """Turn the failure that --junitxml has just noted into an error, as the terminal shows it."""
        with suppress(ImportError, AttributeError, KeyError):  # pytest has no public way to do it
            from _pytest.junitxml import xml_key

            xml: Any = self._config.stash[xml_key]
            for node in xml.node_reporter(report).nodes:
                if node.tag == "failure":
                    node.tag = "error"
                    xml.stats["failure"] -= 1
                    xml.stats["error"] += 1

    @pytest.hookimpl
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if self._run is not None:
            self._run.finish(is_interrupted=exitstatus == pytest.ExitCode.INTERRUPTED)

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._run is not None:
            from geval_cli.library.testing import SessionOptions, session_line

            home = SessionOptions.of(self._config).home
            terminalreporter.write_line(session_line(self._run, home))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Note whether an xdist process judged something; assume so if it crashed."""
        self._has_notes = self._has_notes or bool(error) or bool(getattr(node, "workeroutput", {}).get(_USED))

    @pytest.hookimpl
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        name = config.stash.get(_session_key, None)
        if name is not None and self._has_notes:
            from geval_cli.library.testing import forget_session

            forget_session(config, name)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give the xdist processes of this session a common name that is unique to it."""
    stash = node.config.stash
    if _session_key not in stash:
        stash[_session_key] = f"pytest-{os.urandom(8).hex()}"
    node.workerinput["geval_session"] = stash[_session_key]
