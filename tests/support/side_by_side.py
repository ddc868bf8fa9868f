"""Run tests in several processes that are forked off one which has loaded and collected them all.

pytest-xdist has each of its processes load and collect every test, which for ours takes 17 seconds of a processor. Here
they begin with what the first process has, take whole groups of tests from a pipe, and send it their reports.
"""

import atexit
import os
import pickle
import random
import selectors
import struct
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

_TURN = struct.Struct("<H")
_LENGTH = struct.Struct("<Q")


class SideBySide:
    """The loop of a session in `processes` processes.

    Attributes:
        crashed: tests during which a process ended.
    """

    def __init__(self, processes: int, group_of: Callable[[str], str]) -> None:
        self._processes = processes
        self._group_of = group_of
        self.crashed: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        if session.config.option.collectonly:
            return None
        groups: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            groups.setdefault(self._group_of(item.nodeid), []).append(item)
        queue, turns = os.pipe()
        # The numbers of all groups, in a pipe that holds 64 kB: who reads two bytes has the next group.
        os.write(turns, b"".join(map(_TURN.pack, range(len(groups)))))
        os.close(turns)
        readers = dict(
            _forked(session, queue, list(groups.values()), number) for number in range(self._processes)
        )
        os.close(queue)
        self._listen(session, readers)
        return True

    def _listen(self, session: pytest.Session, readers: dict[int, int]) -> None:
        """Tell pytest what the processes send, until all have ended."""
        hook, running = session.config.hook, dict.fromkeys(readers, "")
        try:
            with selectors.DefaultSelector() as selector:
                for reader in readers:
                    selector.register(reader, selectors.EVENT_READ)
                while selector.get_map():
                    for key, _ in selector.select():
                        reader = key.fd
                        said = _received(reader)
                        if said is None:
                            selector.unregister(reader)
                            if running[reader]:
                                self.crashed.append(running[reader])
                                _tell_crash(session, running[reader])
                            continue
                        kind, content = said
                        if kind == "begin":
                            running[reader] = content
                        elif kind == "stop":
                            running[reader] = ""
                            session.shouldstop = content
                        elif kind == "broken":
                            raise RuntimeError(content)
                        else:
                            report = hook.pytest_report_from_serializable(config=session.config, data=content)
                            hook.pytest_runtest_logreport(report=report)
                            if report.when == "teardown":
                                running[reader] = ""
                    if session.shouldfail:
                        raise session.Failed(session.shouldfail)
                    if session.shouldstop:
                        raise session.Interrupted(session.shouldstop)
        finally:
            for reader, pid in readers.items():
                os.close(reader)  # one that still runs ends when it next reports
                os.waitpid(pid, 0)


def _tell_crash(session: pytest.Session, nodeid: str) -> None:
    longrepr = "the process ended while it ran"
    report = pytest.TestReport(nodeid, (nodeid.partition("::")[0], None, ""), {}, "failed", longrepr, "call")
    session.config.hook.pytest_runtest_logreport(report=report)


def _received(reader: int) -> tuple[str, Any] | None:
    """Return a message; None once the process has ended."""
    head = _read(reader, _LENGTH.size)
    content = head and _read(reader, _LENGTH.unpack(head)[0])
    return pickle.loads(content) if content else None


def _read(reader: int, size: int) -> bytes:
    found = b""
    while len(found) < size and (part := os.read(reader, size - len(found))):
        found += part
    return found if len(found) == size else b""


def _forked(
    session: pytest.Session, queue: int, groups: Sequence[Sequence[pytest.Item]], number: int
) -> tuple[int, int]:
    """Return the pipe of a new process and its id."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return reader, pid
    os.close(reader)
    reporter = _Reporter(session.config, writer)
    try:
        _work(session, _taken(queue, groups), reporter, number)
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001 - the other process raises it
        reporter.send("broken", traceback.format_exc())
    finally:
        os._exit(0)


class _Reporter:
    """In a process that runs tests: sends what pytest says of them."""

    def __init__(self, config: pytest.Config, writer: int) -> None:
        self._config = config
        self._writer = writer

    def send(self, kind: str, content: Any) -> None:
        message = pickle.dumps((kind, content))
        message = _LENGTH.pack(len(message)) + message
        while message:
            message = message[os.write(self._writer, message) :]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.send("begin", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self.send("report", data)


def _work(session: pytest.Session, items: Iterator[pytest.Item], reporter: _Reporter, number: int) -> None:
    config: Any = session.config
    random.seed()
    terminal, capture = map(config.pluginmanager.getplugin, ("terminalreporter", "capturemanager"))
    terminal._tw._file = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process lives
    # Files of its own for what tests print, and a folder of its own.
    capture.stop_global_capturing()
    capture.start_global_capturing()
    factory = config._tmp_path_factory
    factory._basetemp = factory.getbasetemp() / f"process-{number}"
    factory._basetemp.mkdir(mode=0o700)
    config.pluginmanager.register(reporter)
    item = next(items, None)
    try:
        while item is not None and not (session.shouldfail or session.shouldstop):
            following = next(items, None)
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
    except (KeyboardInterrupt, pytest.exit.Exception) as error:
        reporter.send("stop", str(error) or "interrupted")
    capture.stop_global_capturing()


def _taken(queue: int, groups: Sequence[Sequence[pytest.Item]]) -> Iterator[pytest.Item]:
    while turn := os.read(queue, _TURN.size):
        yield from groups[_TURN.unpack(turn)[0]]
