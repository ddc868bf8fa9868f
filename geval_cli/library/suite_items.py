"""`*.geval.yaml` files in pytest: each test of a config is an item, and so are its gates; all run together."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from geval_cli.errors import ConfigError, GevalError, Location, Severity
from geval_cli.library.run import make_request, run_blocking
from geval_cli.library.testing import (
    POLL_S,
    FailedVerdictError,
    NotJudgedError,
    SessionOptions,
    broken_lines,
    budget_of,
    digest,
    failed_lines,
    shared_runs,
)
from geval_cli.records import CaseResult, GateResult, JsonValue, RunStatus, Status
from geval_cli.report.sanitize import one_line, sanitize
from geval_cli.report.verdict import gate_value
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest, open_config
from geval_cli.source.problems import render_problems, sort_problems
from geval_cli.store.state import CacheChoice, open_runs

_NAME_WIDTH = 80


class ListedTest(Struct, frozen=True):
    """A test of a config, as shown in a list."""

    index: int
    description: str | None
    location: Location | None


class _CodeNeededError(Exception):
    """The tests are produced by a program, which is not run just to list them."""


class _RefusedCode:
    """A stand-in for the runner of a config's code that runs nothing."""

    def __call__(
        self, path: Path, function: str, arguments: list[JsonValue], asked_at: Location | None
    ) -> JsonValue:
        raise _CodeNeededError

    def provider_name(
        self, path: Path, export: str, options: Mapping[str, JsonValue], asked_at: Location | None
    ) -> JsonValue:
        """Return None: the tests do not depend on the provider."""
        return None

    def rows(self, path: Path, function: str, asked_at: Location | None) -> Path:
        raise _CodeNeededError


def list_tests(config: Path, environ: Mapping[str, str]) -> tuple[tuple[ListedTest, ...], bool] | None:
    """Return the tests of a config in order, and whether it has gates. Nothing is run or sent.

    Return None if they are known only by running code of the config.

    Raises:
        ConfigError: the config is not valid; has every problem that reading it finds.
    """
    found: list[ListedTest] = []
    try:
        opened = open_config(RunRequest(config, environ), needs_keys=False, scripts=_RefusedCode)
        problems = [item for item in opened.problems if item.severity is Severity.ERROR]
        try:
            for test in opened.suite.tests:
                found.append(ListedTest(test.index, test.description, test.place.value()))
        except ConfigError as error:
            problems += error.problems
    except _CodeNeededError:
        return None
    if problems:
        raise ConfigError(sort_problems(problems))
    return tuple(found), bool(opened.suite.gates)


class GevalFile(pytest.File):
    """A config whose tests are items. Collecting it only reads it: no request is sent, and none of its code runs."""

    _results: "dict[int, list[CaseResult]] | None" = None
    # The number of cases per test, if the run ended before all were done
    _planned: Mapping[int, int] | None = None
    _gates: Sequence[GateResult] = ()
    _failure: GevalError | None = None
    _missing = "the run ended before this test"

    def collect(self) -> Iterable["SuiteItem"]:
        """Yield an item per test and one for the gates, or a single item if only code of the config knows the tests."""
        try:
            listed = list_tests(self.path, os.environ)
        except ConfigError as error:
            raise self.CollectError(render_problems(error.problems)) from error
        if listed is None:
            yield SuiteItem.from_parent(self, name="all tests", test=None)
            return
        tests, has_gates = listed
        names = _names(
            [*((test.description or "").strip() or f"test {test.index + 1}" for test in tests), "gates"]
        )
        for test in tests:
            yield SuiteItem.from_parent(self, name=next(names), test=test)
        if has_gates:
            yield GatesItem.from_parent(self, name=next(names), test=None)

    def results_of(self, index: int | None) -> "list[CaseResult]":
        """Return the results of a test, or of all; the first call runs all selected tests.

        Raises:
            GevalError: the suite could not be run, or nothing has failed and a case of the test has no result.
        """
        if self._results is None and self._failure is None:
            try:
                self._results = self._by_test(self._run())
            except ConfigError as error:
                self._failure = NotJudgedError(render_problems(error.problems))
            except GevalError as error:
                self._failure = error
        if self._failure is not None:
            raise self._failure
        results = self._results or {}
        found = [item for test, items in results.items() if index in (None, test) for item in items]
        planned = sum(count for test, count in (self._planned or {}).items() if index in (None, test))
        has_failed = any(item.status is Status.FAILED for item in found)
        if not found or (len(found) < planned and not has_failed):
            raise NotJudgedError(self._missing)
        return found

    def gates(self) -> Sequence[GateResult]:
        """Return the gates of the run of all tests.

        Raises:
            GevalError: the suite could not be run, or the run ended before all tests were done.
        """
        self.results_of(None)
        if self._planned is not None:
            raise NotJudgedError(self._missing)
        return self._gates

    def _by_test(self, ran: "_SelectedRun") -> "dict[int, list[CaseResult]]":
        found: dict[int, list[CaseResult]] = {}
        for result in ran.results:
            found.setdefault(result.test_index, []).append(result)
        if ran.warnings:
            self._missing = "; ".join(map(sanitize, ran.warnings))
        self._gates = ran.gates
        if ran.status is not RunStatus.COMPLETED:
            plan = prepare(self._request()[0], is_going_to_run=False).plan
            self._planned = {test.index: plan.cases_of(test) * plan.repeats for test in plan.suite.tests}
        return found

    def _run(self) -> "_SelectedRun":
        """Return the run of the selected tests; with xdist, one process runs them and the others read the results."""
        shared = shared_runs(self.config)
        name = digest(self.nodeid)
        if shared is None:
            return self._run_here()
        while True:
            known = shared.find(name)
            if known is not None:
                with open_runs(SessionOptions.of(self.config).folder, os.environ) as runs:
                    run, summary = runs.find(known)
                    gates = () if summary is None else summary.gates
                    return _SelectedRun(known, tuple(runs.results(known)), run.warnings, run.status, gates)
            if shared.acquire(name):
                try:
                    if shared.find(name) is None:
                        ran = self._run_here()
                        shared.record(name, ran.run_id)
                        return ran
                finally:
                    shared.release(name)
            time.sleep(POLL_S)

    def _request(self) -> tuple[RunRequest, CacheChoice]:
        """Return the request for a run of the selected tests."""
        items = [
            item for item in self.session.items if isinstance(item, SuiteItem) and item.path == self.path
        ]
        # Gates concern the whole run, so they need all tests, whichever are selected.
        is_whole = any(item.test is None for item in items)
        indexes = [] if is_whole else [item.test.index for item in items if item.test is not None]
        options = SessionOptions.of(self.config)
        given = {"grader": options.grader, "offline": options.is_offline, "home": options.home}
        return make_request(
            self.path,
            {**given, "max_cost": options.max_cost_usd, "progress": False},
            only=frozenset(indexes) if indexes else None,
            budget=budget_of(self.config),
        )

    def _run_here(self) -> "_SelectedRun":
        result = run_blocking(*self._request(), progress=False)
        run, gates = result.run, result.summary.gates
        return _SelectedRun(run.id, result.results, run.warnings, run.status, gates)


@dataclass(frozen=True, slots=True)
class _SelectedRun:
    """A run of a suite's selected tests."""

    run_id: str
    results: Sequence[CaseResult]
    warnings: Sequence[str]
    status: RunStatus
    gates: Sequence[GateResult]


class SuiteItem(pytest.Item):
    """One test of a config, with all of its cases: prompts, providers and repeats."""

    def __init__(self, *, test: ListedTest | None, **given: Any) -> None:
        super().__init__(**given)
        self.test = test
        self._results: list[CaseResult] = []

    def setup(self) -> None:
        """Run the suite unless that is done, and fail if one of the test's cases, or a gate, has no verdict."""
        try:
            self._prepare()
        except GevalError as error:  # for errors of `setup`, pytest does not call `repr_failure`
            raise pytest.fail.Exception(_report(error), pytrace=False) from None

    def _prepare(self) -> None:
        parent = self.parent
        assert isinstance(parent, GevalFile)
        self._results = parent.results_of(None if self.test is None else self.test.index)
        broken = [result for result in self._results if result.status is Status.ERROR]
        if broken:
            raise NotJudgedError("\n\n".join("\n".join(broken_lines(result)) for result in broken))
        if self.test is None:
            self._check_gates(is_setup=True)

    def runtest(self) -> None:
        """Raise if a case of the test failed.

        Raises:
            FailedVerdictError: a case of the test does not pass.
        """
        failed = [result for result in self._results if result.status is Status.FAILED]
        if failed:
            raise FailedVerdictError("\n\n".join("\n".join(failed_lines(result)) for result in failed))
        if all(result.status is Status.NOT_EVALUATED for result in self._results):
            pytest.skip("nothing in it is evaluated")
        if self.test is None:
            self._check_gates()

    def _check_gates(self, *, is_setup: bool = False) -> None:
        """Raise if a gate does not hold; a gate without a value is an error only if no other gate failed."""
        assert isinstance(self.parent, GevalFile)
        unmet = [gate for gate in self.parent.gates() if gate.status is not Status.PASSED]
        lines = "\n".join(map(_gate_line, unmet))
        if any(gate.status is Status.FAILED for gate in unmet):
            if not is_setup:
                raise FailedVerdictError(lines)
        elif unmet:
            raise NotJudgedError(lines)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the report of a verdict without a traceback, which would only show geval's code."""
        error = excinfo.value
        if isinstance(error, FailedVerdictError):
            return str(error)
        if isinstance(error, GevalError):
            return _report(error)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the position of the test."""
        location = None if self.test is None else self.test.location
        return self.path, None if location is None else max(location.line - 1, 0), self.name


class GatesItem(SuiteItem):
    """The gates of a config, on all of its tests."""

    def _prepare(self) -> None:
        self._check_gates(is_setup=True)

    def runtest(self) -> None:
        """Raise if a gate does not hold.

        Raises:
            FailedVerdictError: a gate is not met.
        """
        self._check_gates()


def _report(error: GevalError) -> str:
    return f"{error.message}\n  = {error.hint}" if error.hint else error.message


def _gate_line(gate: GateResult) -> str:
    note = f" ({one_line(gate.note, 300)})" if gate.note else ""
    return f"{one_line(gate.gate, _NAME_WIDTH)} not met: {gate_value(gate)}{note}"


def _names(wanted: Iterable[str]) -> Iterator[str]:
    """Yield a name for each of the `wanted` ones, made unique within the file."""
    taken: dict[str, int] = {}
    for text in wanted:
        name = one_line(text, _NAME_WIDTH).replace("::", ":")
        taken[name] = taken.get(name, 0) + 1
        yield name if taken[name] == 1 else f"{name} #{taken[name]}"
