"""The fixture `geval` of pytest and the items of `*.geval.yaml`; loaded by the first test that uses them."""

import asyncio
import contextlib
import dataclasses
import hashlib
import io
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

from geval_cli.engine.case import error_info
from geval_cli.errors import ConfigError, GevalError, UsageError
from geval_cli.gateway.budget import Budget
from geval_cli.library.check import CheckKeywords, CheckResult, judging_work, prepare_check, to_check_result
from geval_cli.library.evaluation import evaluate_case
from geval_cli.library.metric import GEval
from geval_cli.library.records import JudgingOptions, Result, TestCase
from geval_cli.library.run import make_request, run_blocking
from geval_cli.library.session import Session
from geval_cli.numbers import fixed, format_cost, format_score_beside
from geval_cli.record_reading import case_result_from_json
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    ProviderRef,
    RenderedPrompt,
    Role,
    Status,
    Usage,
    to_json,
)
from geval_cli.report.assertion_view import AssertionView
from geval_cli.report.console import make_console
from geval_cli.report.sanitize import clipped_lines, one_line, sanitize, value_text
from geval_cli.report.verdict import signs_of
from geval_cli.runs.requests import PreparedRun
from geval_cli.runs.sessions import ListedTest, SessionRun, list_tests
from geval_cli.source.problems import render_problems
from geval_cli.store.home import current_folder, home_folder
from geval_cli.store.run_locks import SharedRuns
from geval_cli.store.state import open_runs

_MARKER = "geval"
_MARKER_KEYS = frozenset({"grader", "samples"})
_LIMITS = frozenset({"threshold", "metric", "weight"})
_NAME_WIDTH = 80
_LABEL_WIDTH = 10
_REASON_LINES, _REASON_CHARACTERS = 20, 4_000
_OUTPUT_LINES, _OUTPUT_CHARACTERS = 6, 1_200
_POLL_S = 0.05

_budget_key: pytest.StashKey[Budget] = pytest.StashKey()
_SIGNS = signs_of(make_console(io.StringIO(), environ={}))


class Notes(Protocol):
    """Takes down what is judged in the test that runs, which is `item`."""

    @property
    def item(self) -> pytest.Item | None: ...

    def add(self, result: str) -> None:
        """Take down a result, as JSON."""
        ...

    def add_error(self, error: BaseException) -> None:
        """Take down why an output could not be judged."""
        ...


class FellShortError(AssertionError):
    """An output was judged and does not pass. Its text is the report that pytest shows."""


class NotJudgedError(GevalError):
    """A test of a suite has no verdict; the text says why."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The options of a session of pytest.

    Attributes:
        home: the state folder; None for GEVAL_HOME, or `.geval` in the current folder.
        is_offline: whether only the cache answers.
        max_cost_usd: what this process may spend: with xdist its share, so that the session keeps to the bound.
        grader: who judges where nothing nearer says so.
    """

    home: Path | None
    is_offline: bool
    max_cost_usd: float | None
    grader: str | None

    @classmethod
    def of(cls, config: pytest.Config) -> "SessionOptions":
        """Return the options that were given.

        Raises:
            pytest.UsageError: an amount is none.
        """
        home, amount = config.getoption("--geval-home"), config.getoption("--geval-max-cost")
        if amount is not None and not (math.isfinite(amount) and amount >= 0):
            raise pytest.UsageError(f"--geval-max-cost takes US dollars from 0, not {amount:g}")
        if amount is not None:
            amount /= getattr(config, "workerinput", {}).get("workercount", 1)
        return cls(
            None if home is None else Path(home),
            config.getoption("--geval-offline"),
            amount,
            config.getoption("--geval-grader"),
        )

    @property
    def folder(self) -> Path:
        return home_folder(self.home, env=os.environ, cwd=current_folder())


def _budget_of(config: pytest.Config) -> Budget:
    """Return the budget that everything in this process shares."""
    if _budget_key not in config.stash:
        config.stash[_budget_key] = Budget(SessionOptions.of(config).max_cost_usd)
    return config.stash[_budget_key]


class GevalFixture:
    """The fixture `geval`: judges outputs, with the cache of the state folder. All of a session is one stored run.

    A verdict below its threshold fails the test. An output that cannot be judged is an error of the test, never a low
    score: a `GevalError` is raised.
    """

    def __init__(self, config: pytest.Config, notes: "Notes") -> None:
        self._notes = notes
        self._options = options = SessionOptions.of(config)
        self._session = Session(
            JudgingOptions(
                uses_cache=True,
                home=options.home,
                is_offline=options.is_offline,
                budget=_budget_of(config),
            )
        )
        self._turns = _Turns(config)

    def close(self) -> None:
        """End connections and threads."""
        self._session.close()

    def check(self, output: Any, assertion: Any = None, **given: Any) -> CheckResult:
        """Judge an output, and fail the test if it falls short.

        Args:
            output: text, or data as JSON would have it.
            assertion: as in a config, `{"type": "contains", "value": "x"}`, or a `GEval`. None: a g-eval.
            **given: of the test case: input, expected_output, context, retrieval_context, vars; who judges: grader,
                samples; and keys of the assertion: criteria, dimension, evaluation_steps, rubric, threshold, ...

        Raises:
            FellShortError: it does not pass.
            GevalError: it could not be judged.
        """
        __tracebackhide__ = True
        with self._recorded(output, given) as record:
            prepared, asked = self._prepare(output, assertion, given)
            with self._turns.taken(asked):
                record.found = self._session.run(judging_work(prepared))
        return _passed(record.found, output)

    async def acheck(self, output: Any, assertion: Any = None, **given: Any) -> CheckResult:
        """Check as `check` does, without blocking the event loop."""
        __tracebackhide__ = True
        with self._recorded(output, given) as record:
            prepared, asked = self._prepare(output, assertion, given)
            with await asyncio.to_thread(self._turns.taken, asked):
                record.found = await self._session.arun(judging_work(prepared))
        return _passed(record.found, output)

    def judge(self, case: TestCase, metric: GEval) -> Result:
        """Return the verdict of a metric on a test case; whether it passes is for the test to say.

        Raises:
            GevalError: it could not be judged.
        """
        with self._recorded_case(case) as record:
            evaluation = self._evaluation(metric)
            with self._turns.taken(evaluation):
                result = self._session.run(lambda judges: evaluate_case(judges, evaluation, case))
            record.found = _as_assertion(result, metric)
        return result

    async def ajudge(self, case: TestCase, metric: GEval) -> Result:
        """Judge as `judge` does, without blocking the event loop."""
        with self._recorded_case(case) as record:
            evaluation = self._evaluation(metric)
            with await asyncio.to_thread(self._turns.taken, evaluation):
                result = await self._session.arun(lambda judges: evaluate_case(judges, evaluation, case))
            record.found = _as_assertion(result, metric)
        return result

    def _prepare(
        self, output: Any, assertion: Any, given: Mapping[str, Any]
    ) -> tuple[PreparedRun, tuple[Any, ...]]:
        """Return the checked test, and what a judge is asked about any output."""
        known = CheckKeywords.__annotations__.keys()
        marked = self._marked()
        about = {**marked, **{name: value for name, value in given.items() if name in known}}
        about.setdefault("grader", self._options.grader)
        keys = {name: value for name, value in given.items() if name not in known}
        if assertion is None:
            assertion = {"type": "g-eval", **keys}
        elif isinstance(assertion, Mapping):
            assertion = {**assertion, **keys}
        elif keys:
            hint = "say it where the metric is made"
            raise UsageError(f"`{next(iter(keys))}` cannot be given beside a GEval", hint=hint)
        max_cost = self._options.max_cost_usd
        prepared = prepare_check(
            output, assertion, about, is_offline=self._options.is_offline, max_cost_usd=max_cost
        )
        return prepared, (assertion, about.get("grader"))

    def _evaluation(self, metric: Any) -> Any:
        if not isinstance(metric, GEval):
            hint = "judge(TestCase(...), GEval(...)); `check` takes other assertions"
            raise UsageError(f"a metric is a GEval, not {type(metric).__name__}", hint=hint)
        grader = self._marked().get("grader") or self._options.grader
        samples = self._marked().get("samples")
        if samples is not None and metric.scoring in ("auto", "samples"):
            metric = dataclasses.replace(metric, scoring="samples", samples=samples)
        return metric._evaluation(None if metric.model is not None else grader, None)

    def _marked(self) -> dict[str, Any]:
        """Return what the marker of the test says.

        Raises:
            UsageError: it says something else than it may.
        """
        item = self._notes.item
        marker = None if item is None else item.get_closest_marker(_MARKER)
        if marker is None:
            return {}
        if marker.args or marker.kwargs.keys() - _MARKER_KEYS:
            hint = 'for example @pytest.mark.geval(grader="openai:gpt-4.1", samples=5)'
            raise UsageError("the marker `geval` takes grader=... and samples=...", hint=hint)
        return dict(marker.kwargs)

    def _recorded_case(self, case: Any) -> "contextlib.AbstractContextManager[_Record]":
        if not isinstance(case, TestCase):
            return self._recorded(None, {})
        return self._recorded(
            case.actual_output, {"input": case.input, "expected_output": case.expected_output}
        )

    @contextlib.contextmanager
    def _recorded(self, output: Any, given: Mapping[str, Any]) -> Iterator["_Record"]:
        """Note what comes out of a block, to be stored; an error of judging is marked as such for the report."""
        record, item = _Record(), self._notes.item
        name = "" if item is None else item.nodeid
        try:
            yield record
        except GevalError as error:
            self._notes.add_error(error)
            self._notes.add(_written(_case_of(name, output, given, None, error)))
            raise
        self._notes.add(_written(_case_of(name, output, given, record.found, None)))


class _Turns:
    """Lets only one process of a session ask a question for the first time: the judge's steps are then bought once.

    The others wait and find them in the cache. Without xdist nobody waits.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._shared = _shared_runs(config)
        self._taken: set[str] = set()

    def taken(self, asked: Any) -> contextlib.AbstractContextManager[object]:
        """Return the turn of this process, for the time of a block; waits until it comes."""
        shared, name = self._shared, _digest(_without_limits(asked))
        if shared is None or name in self._taken:
            return contextlib.nullcontext()
        self._taken.add(name)
        while not shared.acquire(name):
            time.sleep(_POLL_S)
        stack = contextlib.ExitStack()
        stack.callback(shared.release, name)
        return stack


def _without_limits(asked: Any) -> str:
    """Return a question as text, without what decides only whether its score passes."""
    if isinstance(asked, tuple) and isinstance(asked[0], Mapping):
        asked = ({key: value for key, value in asked[0].items() if key not in _LIMITS}, *asked[1:])
    return repr(asked)


class _Record:
    """The result that a block found."""

    found: AssertionResult


def _passed(found: AssertionResult, output: Any) -> CheckResult:
    __tracebackhide__ = True
    if found.status is Status.FAILED:
        raise FellShortError("\n".join([*assertion_lines(found), *_output_lines(output)]))
    return to_check_result(found)


def _as_assertion(result: Result, metric: GEval) -> AssertionResult:
    detail = {"rating": result.metadata.get("raw_score"), **result.metadata}
    return AssertionResult(
        type="g-eval",
        metric=metric.name,
        status=Status.PASSED if result.success else Status.FAILED,
        score=result.score,
        threshold=result.threshold,
        reason=result.reason,
        latency_ms=result.latency_ms,
        usage=msgspec.convert(result.metadata.get("usage", {}), Usage),
        detail=detail,
    )


def _written(result: CaseResult) -> str:
    return json.dumps(to_json(result), default=str)


def _case_of(
    name: str, output: Any, given: Mapping[str, Any], found: AssertionResult | None, error: GevalError | None
) -> CaseResult:
    """Return the result as a run stores it; its number comes with its place in the run."""
    asked = given.get("input")
    return CaseResult(
        id="0.0.0",
        test_index=0,
        repeat_index=0,
        column=0,
        description=name,
        prompt=RenderedPrompt("none", "", asked if isinstance(asked, str) else ""),
        provider=ProviderRef("pytest", "pytest"),
        vars={key: given[key] for key in ("input", "expected_output") if given.get(key) is not None},
        output=output,
        status=Status.ERROR if found is None else found.status,
        score=None if found is None else found.score,
        error=None if error is None else error_info(error),
        usage={Role.GENERATION: Usage(), Role.JUDGE: Usage() if found is None else found.usage},
        assertions=() if found is None else (found,),
    )


def begin_session(config: pytest.Config) -> SessionRun:
    """Return the run of a session, stored as it begins."""
    options = SessionOptions.of(config)
    return SessionRun("pytest", {"description": "a session of pytest"}, options.home, os.environ)


def read_result(text: str) -> CaseResult:
    """Return a result that a report brought."""
    return case_result_from_json(json.loads(text))


def session_line(run: SessionRun) -> str:
    """Return what the end of a session says: the run's id, what was judged, what it cost."""
    sums = run.summary
    usage = sums.usage[Role.JUDGE]
    cost = "" if not usage.cost_usd else f", {format_cost(usage.cost_usd)}"
    counts = f"{sums.passed} passed, {sums.failed} failed, {sums.errored} errors{cost}"
    where = f"geval show {run.id}" if run.failure is None else f"not stored: {sanitize(run.failure.message)}"
    return f"geval: {counts} ({where})"


def assertion_lines(found: AssertionResult) -> list[str]:
    """Return a verdict that fell short as lines, what was asked against what came: `- at least 0.70`, `+ 0.42`."""
    view = AssertionView(found, _SIGNS)
    name = f"{sanitize(found.type)} {sanitize(found.metric)}" if found.metric else sanitize(found.type)
    where = f"  {sanitize(found.location)}" if found.location else ""
    lines = [f"{name} fell short{where}"]
    is_compared = (
        found.threshold is not None and found.score is not None and not found.type.startswith("not-")
    )
    if is_compared and found.score is not None and found.threshold is not None:
        short = fixed(found.threshold - found.score, 2)
        lines += [f"- at least {format_score_beside(found.threshold, found.score)}"]
        lines += [f"+ {format_score_beside(found.score, found.threshold)}  ({short} short)"]
    elif found.score is not None and view.score_text():
        lines.append(f"+ {view.score_text()}")
    for verdict in view.verdicts():
        if verdict.title():
            lines += _labelled("criteria", [verdict.title()])
        for label, text in verdict.facts():
            lines += _labelled(label, [text])
    clip = clipped_lines(found.reason or "", line_count=_REASON_LINES, character_count=_REASON_CHARACTERS)
    lines += _labelled("reason", clip)
    for member in found.assertions:
        if member.status in (Status.FAILED, Status.ERROR):
            inner = assertion_lines(member) if member.status is Status.FAILED else _error_lines(member)
            lines += [f"  {line}" for line in inner]
    return lines


def _error_lines(found: AssertionResult) -> list[str]:
    name = sanitize(found.metric or found.type)
    if found.error is None:
        return [f"{name} could not be judged"]
    hint = f" ({one_line(found.error.hint, 300)})" if found.error.hint else ""
    return [f"{name} could not be judged: {one_line(found.error.message, 1000)}{hint}"]


def _output_lines(output: Any) -> list[str]:
    text = value_text(output)
    return _labelled(
        "output", clipped_lines(text, line_count=_OUTPUT_LINES, character_count=_OUTPUT_CHARACTERS)
    )


def _labelled(label: str, lines: Sequence[str]) -> list[str]:
    heads = [label, *[""] * (len(lines) - 1)]
    return (
        [f"  {head:<{_LABEL_WIDTH}}{line}" for head, line in zip(heads, lines, strict=True)] if lines else []
    )


class SuiteFile(pytest.File):
    """A config whose tests are items. Collecting it reads it; nothing is sent, and none of its code runs."""

    _results: "dict[int, list[CaseResult]] | None" = None
    _failure: GevalError | None = None
    _missing = "the run ended before this test"

    def collect(self) -> Iterable["SuiteItem"]:
        """Yield an item for each test; one for all where only code of the config knows them."""
        try:
            tests = list_tests(self.path, os.environ)
        except ConfigError as error:
            raise self.CollectError(render_problems(error.problems)) from error
        if tests is None:
            yield SuiteItem.from_parent(self, name="all tests", test=None)
            return
        for name, test in zip(_names(tests), tests, strict=True):
            yield SuiteItem.from_parent(self, name=name, test=test)

    def results_of(self, index: int | None) -> "list[CaseResult]":
        """Return the results of a test, or of all; the first to ask has all selected tests run.

        Raises:
            GevalError: the suite could not be run, or the test has no result.
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
        found = (
            [item for items in results.values() for item in items] if index is None else results.get(index)
        )
        if not found:
            raise NotJudgedError(self._missing)
        return found

    def _by_test(self, ran: "_Ran") -> "dict[int, list[CaseResult]]":
        found: dict[int, list[CaseResult]] = {}
        for result in ran.results:
            found.setdefault(result.test_index, []).append(result)
        if ran.warnings:
            self._missing = "; ".join(map(sanitize, ran.warnings))
        return found

    def _run(self) -> "_Ran":
        """Return the run of the selected tests: with xdist one process runs, and the others read what it stored."""
        shared, name = _shared_runs(self.config), _digest(self.nodeid)
        if shared is None:
            return self._run_here()
        while True:
            known = shared.find(name)
            if known is not None:
                return _read_run(SessionOptions.of(self.config).folder, known)
            if shared.acquire(name):
                try:
                    if shared.find(name) is None:
                        ran = self._run_here()
                        shared.note(name, ran.run_id)
                        return ran
                finally:
                    shared.release(name)
            time.sleep(_POLL_S)

    def _run_here(self) -> "_Ran":
        items = [
            item for item in self.session.items if isinstance(item, SuiteItem) and item.path == self.path
        ]
        indexes = [item.test.index for item in items if item.test is not None]
        options = SessionOptions.of(self.config)
        given = {"grader": options.grader, "offline": options.is_offline, "home": options.home}
        request, cache = make_request(
            self.path,
            {**given, "max_cost": options.max_cost_usd, "progress": False},
            only=frozenset(indexes) if indexes else None,
            budget=_budget_of(self.config),
        )
        result = run_blocking(request, cache, progress=False)
        return _Ran(result.run.id, result.results, result.run.warnings)


@dataclass(frozen=True, slots=True)
class _Ran:
    """A run of a suite's selected tests."""

    run_id: str
    results: Sequence[CaseResult]
    warnings: Sequence[str]


def _read_run(home: Path, run_id: str) -> _Ran:
    with open_runs(home, os.environ) as runs:
        run = runs.find(run_id).run
        return _Ran(run_id, tuple(runs.results(run_id)), run.warnings)


class SuiteItem(pytest.Item):
    """One test of a config, with all of its cases: prompts, providers and repeats."""

    def __init__(self, *, test: ListedTest | None, **given: Any) -> None:
        super().__init__(**given)
        self.test = test
        self._results: list[CaseResult] = []

    def setup(self) -> None:
        """Have the suite run, if nobody did; raise if one of the cases has no verdict.

        Raises:
            NotJudgedError: a model or a judge broke.
        """
        parent = self.parent
        assert isinstance(parent, SuiteFile)
        self._results = parent.results_of(None if self.test is None else self.test.index)
        broken = [result for result in self._results if result.status is Status.ERROR]
        if broken:
            raise NotJudgedError("\n\n".join("\n".join(_broken_lines(result)) for result in broken))

    def runtest(self) -> None:
        """Raise what fell short.

        Raises:
            FellShortError: a case of the test does not pass.
        """
        failed = [result for result in self._results if result.status is Status.FAILED]
        if failed:
            raise FellShortError("\n\n".join("\n".join(_failed_lines(result)) for result in failed))
        if all(result.status is Status.NOT_EVALUATED for result in self._results):
            pytest.skip("nothing of it is evaluated")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the report of a verdict without a traceback, which would lead into geval."""
        error = excinfo.value
        if isinstance(error, FellShortError):
            return str(error)
        if isinstance(error, GevalError):
            return f"{error.message}\n  = {error.hint}" if error.hint else error.message
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return where the test stands."""
        location = None if self.test is None else self.test.location
        return self.path, None if location is None else max(location.line - 1, 0), self.name


def _column_of(result: CaseResult) -> str:
    parts = [item for item in (result.provider.label, result.prompt.label) if item and item != "none"]
    return one_line(" · ".join(parts), 120)


def _failed_lines(result: CaseResult) -> list[str]:
    lines = [
        line for item in result.assertions if item.status is Status.FAILED for line in assertion_lines(item)
    ]
    if not lines:
        lines = [f"the score of all assertions, {result.score}, fell short"]
    for item in result.assertions:
        if item.status is Status.ERROR:
            lines += _error_lines(item)
    column = _column_of(result)
    return [*lines, *(_labelled("answer by", [column]) if column else []), *_output_lines(result.output)]


def _broken_lines(result: CaseResult) -> list[str]:
    column = _column_of(result)
    lines = [column] if column else []
    if result.error is not None:
        hint = f" ({one_line(result.error.hint, 300)})" if result.error.hint else ""
        lines.append(f"{one_line(result.error.message, 1000)}{hint}")
    for item in result.assertions:
        if item.status is Status.ERROR:
            lines += _error_lines(item)
    return lines


def _names(tests: Sequence[ListedTest]) -> Iterator[str]:
    """Yield a name for each test that no other test of the file has: its description, or its number."""
    taken: dict[str, int] = {}
    for test in tests:
        name = one_line(test.description or f"test {test.index + 1}", _NAME_WIDTH).replace("::", ":")
        taken[name] = taken.get(name, 0) + 1
        yield name if taken[name] == 1 else f"{name} #{taken[name]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _shared_runs(config: pytest.Config) -> SharedRuns | None:
    """Return what the processes of xdist share; None in a session of one process."""
    session = getattr(config, "workerinput", {}).get("geval_session")
    return None if session is None else SharedRuns(SessionOptions.of(config).folder, session)


def forget_session(config: pytest.Config, session: str) -> None:
    """Remove the notes by which the processes of a session found each other's runs."""
    SharedRuns(SessionOptions.of(config).folder, session).forget()
