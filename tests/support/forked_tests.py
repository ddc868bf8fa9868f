"""Runs tests in processes forked from one that has collected them, since collecting takes longer than most tests.

On Linux, `pytest -n N --dist loadgroup` uses this instead of xdist, whose processes each collect all tests. The tests
of a group run one after another in one process; a process that has finished its group gets the next.
"""

import atexit
import io
import multiprocessing.util
import os
import signal
import sys
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import pytest


@dataclass
class Worker:
    """A process, its connection, the tests assigned to it, and the test that it is running, with its start time."""

    number: int
    pid: int
    line: Connection
    given: deque[int]
    doing: int | None = None
    since: float = 0.0


def run_in_forks(
    session: pytest.Session, count: int, group_of: Callable[[str], str], on_crash: Callable[[str], None]
) -> None:
    """Run the tests of a session and report them as they finish; `on_crash` gets the test that crashed its process."""
    groups: dict[str, list[int]] = {}
    for place, item in enumerate(session.items):
        groups.setdefault(group_of(item.nodeid), []).append(place)
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    # A time limit raises an exception from a signal, which uvloop survives, so the process has to exit.
    most_s = 2 * float(session.config.getini("timeout") or 180)
    waiting = deque(groups.values())
    workers: dict[Connection, Worker] = {}
    try:
        for number in range(min(count, len(waiting))):
            _start(session, workers, number)
        while workers:
            for worker in workers.values():
                if worker.doing is not None and time.monotonic() - worker.since > most_s:
                    os.kill(worker.pid, signal.SIGKILL)
            for line in wait(list(workers), timeout=most_s / 10):
                _listen(session, workers, workers[line], waiting, on_crash)  # type: ignore[index]
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
    finally:
        for worker in workers.values():
            os.kill(worker.pid, 15)
            os.waitpid(worker.pid, 0)


def _start(session: pytest.Session, workers: dict[Connection, Worker], number: int) -> Worker:
    ours, theirs = Pipe()
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # the threads of OpenBLAS, which expects to be forked
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for line in (ours, *workers):
                line.close()
            _be_worker(session, number, theirs)
            code = 0
        except BaseException:  # noqa: BLE001 - this process has no other way to say it
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)
    theirs.close()
    workers[ours] = Worker(number, pid, ours, deque())
    return workers[ours]


def _listen(
    session: pytest.Session,
    workers: dict[Connection, Worker],
    worker: Worker,
    waiting: deque[list[int]],
    on_crash: Callable[[str], None],
) -> None:
    """Handle one message from a worker."""
    kind, value = _message_from(worker.line)
    if kind == "ended":
        del workers[worker.line]
        worker.line.close()
        _, status = os.waitpid(worker.pid, 0)
        if worker.doing is not None:
            item = session.items[worker.doing]
            why = f"its process ended with {os.waitstatus_to_exitcode(status)}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")
            session.config.hook.pytest_runtest_logreport(report=report)
            on_crash(item.nodeid)
            if worker.given:
                waiting.appendleft(list(worker.given))
            _start(session, workers, worker.number)
    elif kind == "asks":
        group = waiting.popleft() if waiting else None
        worker.given.extend(group or ())
        worker.line.send(group)
    elif kind == "begins":
        worker.doing, worker.since = value, time.monotonic()
        worker.given.remove(value)
    else:
        hook, item = session.config.hook, session.items[worker.doing or 0]
        for data in value:
            report = hook.pytest_report_from_serializable(config=session.config, data=data)
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        worker.doing = None


def _message_from(line: Connection) -> tuple[str, Any]:
    try:
        kind, value = line.recv()
    except (EOFError, ConnectionError):
        return "ended", None
    return kind, value


class _Reports:
    """Collects the reports of a test, in a worker."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.gathered: list[Any] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self.gathered.append(data)


def _be_worker(session: pytest.Session, number: int, line: Connection) -> None:
    """Run groups of tests until none are left."""
    config = session.config
    _have_own_parts(config, number)
    reports = _Reports(config)
    config.pluginmanager.register(reports)
    group = _next_group(line)
    while group:
        after: list[int] | None = None
        for place, index in enumerate(group):
            if index == group[-1]:
                after = _next_group(line)
            following = group[place + 1] if index != group[-1] else after[0] if after else None
            line.send(("begins", index))
            config.hook.pytest_runtest_protocol(
                item=session.items[index], nextitem=None if following is None else session.items[following]
            )
            line.send(("did", reports.gathered[:]))
            reports.gathered.clear()
        group = after
    atexit._run_exitfuncs()


def _next_group(line: Connection) -> list[int] | None:
    line.send(("asks", None))
    group: list[int] | None = line.recv()
    return group


def _have_own_parts(config: pytest.Config, number: int) -> None:
    """Set up what processes cannot share: captured output, temporary folders, and cleanup at the end."""
    config.pluginmanager.getplugin("terminalreporter")._tw._file = io.StringIO()
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    folders = config._tmp_path_factory  # type: ignore[attr-defined]
    folders._basetemp = folders.getbasetemp() / f"process-{number}"
    folders._basetemp.mkdir(mode=0o700, exist_ok=True)
    atexit._clear()
    atexit.register(multiprocessing.util._exit_function)
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
