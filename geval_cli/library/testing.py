"""The pytest fixture `geval`, and what a pytest session shares; loaded by the first test that uses it."""

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest
from msgspec.structs import replace

from geval_cli.engine.aggregate import Tally
from geval_cli.engine.judge_output import error_info
from geval_cli.engine.plan import content_key
from geval_cli.errors import GevalError, StoreError, UsageError
from geval_cli.gateway.budget import Budget
from geval_cli.judge.metric import DEFAULT_SAMPLES
from geval_cli.judge.prompt import prompt_version
from geval_cli.library.check import CheckKeywords, CheckResult, judging_work, prepare_check, to_check_result
from geval_cli.library.evaluation import Evaluation, check_prices, evaluate_case
from geval_cli.library.metric import GEval
from geval_cli.library.records import NO_OUTPUT, JudgingOptions, Result, TestCase
from geval_cli.library.session import LibrarySession
from geval_cli.metrics import named_scores
from geval_cli.numbers import fixed, format_cost, format_score_beside, plural
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    Column,
    JsonValue,
    ProviderRef,
    RenderedPrompt,
    Role,
    RunStatus,
    RunSummary,
    Status,
    Usage,
    case_result_from_json,
    to_json,
)
from geval_cli.report.case_view import AssertionView
from geval_cli.report.sanitize import clipped_lines, home_option, one_line, sanitize, value_text
from geval_cli.runs.record import ended_run
from geval_cli.runs.requests import PreparedRun
from geval_cli.runs.session import Session
from geval_cli.store.home import current_folder, home_folder
from geval_cli.store.locks import SharedRuns
from geval_cli.store.runs import RunOrigin, RunStore, new_run

_MARKER = "geval"
_MARKER_KEYS = frozenset({"grader", "samples"})
_LIMITS = frozenset({"threshold", "metric", "weight"})
POLL_S = 0.05
"""The interval at which a process checks whether another one is done, in seconds."""

_budget_key: pytest.StashKey[Budget] = pytest.StashKey()


class JudgementRecorder(Protocol):
    """A recorder of what is judged in the running test, `item`."""

    @property
    def item(self) -> pytest.Item | None: ...

    def add(self, result: str) -> None:
        """Record a result, given as JSON."""
        ...

    def add_error(self, error: BaseException) -> None:
        """Record why an output could not be judged."""
        ...


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The options of a pytest session.

    Attributes:
        home: the state folder; None for GEVAL_HOME, or `.geval` in the current folder.
        is_offline: whether only the cache answers.
        max_cost_usd: the cost limit of this process; with xdist its share, so that the session stays below the limit.
        grader: the judge if no nearer level names one.
    """

    home: Path | None
    is_offline: bool
    max_cost_usd: float | None
    grader: str | None

    @classmethod
    def of(cls, config: pytest.Config) -> "SessionOptions":
        """Return the options given on the command line."""
        home, amount = config.getoption("--geval-home"), config.getoption("--geval-max-cost")
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


def budget_of(config: pytest.Config) -> Budget:
    """Return the budget that everything in this process shares."""
    if _budget_key not in config.stash:
        config.stash[_budget_key] = Budget(
            SessionOptions.of(config).max_cost_usd, hint="allow more with --geval-max-cost"
        )
    return config.stash[_budget_key]


class GevalFixture:
    """The fixture `geval`: judges outputs, with the cache in the state folder. A session is stored as one run.

    A verdict below its threshold fails the test. An output that cannot be judged is an error of the test, never a low
    score: a `GevalError` is raised.
    """

    def __init__(self, config: pytest.Config, notes: "JudgementRecorder") -> None:
        self._notes = notes
        self._options = options = SessionOptions.of(config)
        self._session = LibrarySession(
            JudgingOptions(
                uses_cache=True,
                home=options.home,
                is_offline=options.is_offline,
                budget=budget_of(config),
            )
        )
        self._turns = _Turns(config)

    def close(self) -> None:
        """Close connections and stop threads."""
        self._session.close()

    def check(self, output: Any, assertion: Any = None, **given: Any) -> CheckResult:
        """Judge an output, and fail the test if the output fails.

        Args:
            output: text, or JSON data.
            assertion: as in a config, `{"type": "contains", "value": "x"}`, or a `GEval`; None for a g-eval.
            **given: keys of the test case: input, expected_output, context, retrieval_context, turns, vars; the judge:
                grader, samples; and keys of the assertion: criteria, dimension, evaluation_steps, rubric, ...

        Raises:
            FailedVerdictError: the output does not pass.
            GevalError: the output could not be judged.
        """
        __tracebackhide__ = True
        with self._recorded(output, given) as record:
            prepared, asked = self._prepare(output, assertion, given)
            with self._turns.taken(asked):
                record.found = self._session.run(judging_work(prepared))
        return _passed(record.found, output)

    async def acheck(self, output: Any, assertion: Any = None, **given: Any) -> CheckResult:
        """Do the same as `check`, without blocking the event loop."""
        __tracebackhide__ = True
        with self._recorded(output, given) as record:
            prepared, asked = self._prepare(output, assertion, given)
            with await asyncio.to_thread(self._turns.taken, asked):
                record.found = await self._session.arun(judging_work(prepared))
        return _passed(record.found, output)

    def judge(self, case: TestCase, metric: GEval) -> Result:
        """Return the verdict of a metric on a test case; the test itself decides whether it passes.

        Raises:
            GevalError: the case could not be judged.
        """
        with self._recorded_case(case) as record:
            evaluation = self._evaluation(metric)
            with self._turns.taken(evaluation):
                result = self._session.run(lambda judges: self._judged(judges, evaluation, case))
            record.found = _as_assertion(result, metric)
        return result

    async def ajudge(self, case: TestCase, metric: GEval) -> Result:
        """Do the same as `judge`, without blocking the event loop."""
        with self._recorded_case(case) as record:
            evaluation = self._evaluation(metric)
            with await asyncio.to_thread(self._turns.taken, evaluation):
                result = await self._session.arun(lambda judges: self._judged(judges, evaluation, case))
            record.found = _as_assertion(result, metric)
        return result

    async def _judged(self, judges: Session, evaluation: Evaluation, case: TestCase) -> Result:
        if self._options.max_cost_usd is not None:
            check_prices(judges, evaluation)
        return await evaluate_case(judges, evaluation, case)

    def _prepare(
        self, output: Any, assertion: Any, given: Mapping[str, Any]
    ) -> tuple[PreparedRun, tuple[Any, ...]]:
        """Return the checked test, and what identifies its judge requests whatever the output: assertion and grader."""
        known = CheckKeywords.__annotations__.keys()
        marked = self._marked()
        about = {
            **marked,
            **{name: value for name, value in given.items() if name in known and value is not None},
        }
        about.setdefault("grader", self._options.grader)
        keys = {name: value for name, value in given.items() if name not in known}
        if assertion is None:
            assertion = {"type": "g-eval", **keys}
        elif isinstance(assertion, Mapping):
            assertion = {**assertion, **keys}
        elif keys:
            hint = "pass it to the GEval itself"
            raise UsageError(f"`{next(iter(keys))}` cannot be combined with a GEval", hint=hint)
        max_cost = self._options.max_cost_usd
        prepared = prepare_check(
            output, assertion, about, is_offline=self._options.is_offline, max_cost_usd=max_cost
        )
        return prepared, (assertion, about.get("grader"))

    def _evaluation(self, metric: Any) -> Any:
        if not isinstance(metric, GEval):
            hint = "judge(TestCase(...), GEval(...)); for other assertions use `check`"
            raise UsageError(f"a metric is a GEval, not {type(metric).__name__}", hint=hint)
        grader = self._marked().get("grader") or self._options.grader
        samples = self._marked().get("samples")
        is_open = metric.samples == DEFAULT_SAMPLES and metric.scoring in ("auto", "samples")
        if samples is not None and is_open:
            metric = dataclasses.replace(metric, scoring="samples", samples=samples)
        has_judge = metric.model is not None or len(metric.judges) > 0
        return metric._evaluation(None if has_judge else grader, None)

    def _marked(self) -> dict[str, Any]:
        """Return the arguments of the test's `geval` markers, of which the nearest counts; None is no argument.

        Raises:
            UsageError: a marker has other arguments than it may have.
        """
        item = self._notes.item
        found: dict[str, Any] = {}
        for marker in () if item is None else item.iter_markers(_MARKER):
            if marker.args or marker.kwargs.keys() - _MARKER_KEYS:
                hint = 'for example @pytest.mark.geval(grader="openai:gpt-4.1", samples=5)'
                raise UsageError("the marker `geval` takes grader=... and samples=...", hint=hint)
            found = {**{name: value for name, value in marker.kwargs.items() if value is not None}, **found}
        return found

    def _recorded_case(self, case: Any) -> "contextlib.AbstractContextManager[_Record]":
        if not isinstance(case, TestCase):
            return self._recorded(None, {})
        output = None if case.actual_output is NO_OUTPUT else case.actual_output
        return self._recorded(output, {"input": case.input, "expected_output": case.expected_output})

    @contextlib.contextmanager
    def _recorded(self, output: Any, given: Mapping[str, Any]) -> Iterator["_Record"]:
        """Record the result of a block, to be stored; an error in judging is marked as such for the report."""
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
    """Turns that let one process of a session at a time send a new judge request, so that steps are paid for once.

    The others wait and find the answer in the cache. Without xdist there is no waiting.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._shared = shared_runs(config)
        self._taken: set[str] = set()

    def taken(self, asked: Any) -> contextlib.AbstractContextManager[object]:
        """Return a context manager that holds this process's turn; waits until the turn comes."""
        # Identify the request by its text, without the keys that only affect whether its score passes.
        if isinstance(asked, tuple) and isinstance(asked[0], Mapping):
            asked = ({key: value for key, value in asked[0].items() if key not in _LIMITS}, *asked[1:])
        shared = self._shared
        name = digest(repr(asked))
        if shared is None or name in self._taken:
            return contextlib.nullcontext()
        self._taken.add(name)
        while not shared.acquire(name):
            time.sleep(POLL_S)
        stack = contextlib.ExitStack()
        stack.callback(shared.release, name)
        return stack


class _Record:
    """The result that a block found."""

    found: AssertionResult


def _passed(found: AssertionResult, output: Any) -> CheckResult:
    __tracebackhide__ = True
    if found.status is Status.FAILED:
        raise FailedVerdictError("\n".join([*assertion_lines(found), *output_lines(output)]))
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
    """Return the result as a run stores it; `SessionRun.add` numbers it."""
    asked = given.get("input")
    usage = Usage() if found is None else found.usage
    if error is not None and error.usage is not None:
        usage = msgspec.convert(error.usage, Usage)
    variables = {key: given[key] for key in ("input", "expected_output") if given.get(key) is not None}
    return CaseResult(
        id="0.0.0",
        test_index=0,
        repeat_index=0,
        column=0,
        description=name,
        prompt=RenderedPrompt("none", "", asked if isinstance(asked, str) else ""),
        provider=ProviderRef("pytest", "pytest"),
        vars=variables,
        output=output,
        status=Status.ERROR if found is None else found.status,
        score=None if found is None else found.score,
        error=None if error is None else error_info(error),
        usage={Role.GENERATION: Usage(), Role.JUDGE: usage},
        assertions=() if found is None else (found,),
        named_scores={} if found is None else named_scores((found,)),
        test_key=content_key(name, variables),
    )


class SessionRun:
    """A run whose results are not known in advance, but stored as they come.

    If the store fails, the session keeps its results in memory, and `failure` says what happened.

    Args:
        name: shown in lists of runs instead of a config.
        config: how the run was started, for its record.
        home: the state folder; None for the default.
        environ: the environment with GEVAL_HOME.
    """

    def __init__(self, name: str, config: JsonValue, home: Path | None, environ: Mapping[str, str]) -> None:
        self.failure: StoreError | None = None
        self._tally = Tally()
        self._began_s = time.monotonic()
        self._run = new_run(name, config, (Column(0, "", name),), prompt_version=prompt_version())
        self._runs: RunStore | None = None
        try:
            self._runs = RunStore.open(home_folder(home, env=environ, cwd=current_folder()))
            self._runs.begin(self._run, RunOrigin(name, 0, {}))
        except StoreError as error:
            self.failure = error

    @property
    def id(self) -> str:
        return self._run.id

    @property
    def summary(self) -> RunSummary:
        """Return the summary so far."""
        return self._tally.summary()

    def add(self, result: CaseResult) -> None:
        """Count a result and store it under the next number."""
        index = sum(self._tally.counts.values())
        numbered = replace(result, test_index=index, id=f"{index}.0.0")
        self._tally.add(numbered)
        if self._runs is not None and self.failure is None:
            self._runs.add(self._run.id, numbered)

    def finish(self, *, is_interrupted: bool) -> None:
        """Store how the run ended."""
        if self._runs is None:
            return
        status = RunStatus.INTERRUPTED if is_interrupted else RunStatus.COMPLETED
        ended = ended_run(self._run, status, lasted_s=time.monotonic() - self._began_s, notices=())
        try:
            self._runs.finish(ended, self.summary)
        except StoreError as error:
            self.failure = self.failure or error
        finally:
            self._runs.close()
            self._runs = None


def begin_session(config: pytest.Config) -> SessionRun:
    """Start the run of a pytest session, store it, and return it."""
    options = SessionOptions.of(config)
    return SessionRun("pytest", {"description": "a session of pytest"}, options.home, os.environ)


def read_result(text: str) -> CaseResult:
    """Return the result in a report's JSON text."""
    return case_result_from_json(json.loads(text))


def session_line(run: SessionRun, home: Path | None) -> str:
    """Return the summary line of a session: what was judged, what it cost, and the run's id."""
    sums = run.summary
    usage = sums.usage[Role.JUDGE]
    counts = f"{sums.passed} passed, {sums.failed} failed, {plural(sums.errored, 'error')}"
    if usage.cost_usd != 0:
        counts += ", cost unknown" if usage.cost_usd is None else f", {format_cost(usage.cost_usd)}"
    shown = f"geval show {run.id}{home_option(home)}"
    where = shown if run.failure is None else f"not stored: {sanitize(run.failure.message)}"
    return f"geval: {counts} ({where})"


def digest(text: str) -> str:
    """Return a short hash of a text, for use as a file name."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def shared_runs(config: pytest.Config) -> SharedRuns | None:
    """Return the state that xdist's processes share; None in a session of one process."""
    session = getattr(config, "workerinput", {}).get("geval_session")
    return None if session is None else SharedRuns(SessionOptions.of(config).folder, session)


def forget_session(config: pytest.Config, session: str) -> None:
    """Remove the records by which a session's processes find each other's runs."""
    SharedRuns(SessionOptions.of(config).folder, session).forget()


_LABEL_WIDTH = 10
_REASON_LINES, _REASON_CHARACTERS = 20, 4_000
_OUTPUT_LINES, _OUTPUT_CHARACTERS = 6, 1_200


class FailedVerdictError(AssertionError):
    """An output was judged and does not pass; the message is the report that pytest shows."""


class NotJudgedError(GevalError):
    """A test of a suite has no verdict; the message says why."""


def assertion_lines(found: AssertionResult) -> list[str]:
    """Return a failed verdict as lines, expected against actual: `- at least 0.70`, `+ 0.42`."""
    view = AssertionView(found)
    name = f"{sanitize(found.type)} {sanitize(found.metric)}" if found.metric else sanitize(found.type)
    where = f"  {sanitize(found.location)}" if found.location else ""
    lines = [f"{name} failed{where}"]
    is_compared = (
        found.threshold is not None and found.score is not None and not found.type.startswith("not-")
    )
    if is_compared and found.score is not None and found.threshold is not None:
        short = fixed(found.threshold - found.score, 2)
        lines += [f"- at least {format_score_beside(found.threshold, found.score)}"]
        lines += [f"+ {format_score_beside(found.score, found.threshold)}  ({short} below)"]
    elif found.score is not None and view.scored:
        lines.append(f"+ {view.scored}")
    for verdict in view.verdicts:
        if verdict.title:
            lines += _labelled("criteria", [verdict.title])
        for label, text in verdict.facts:
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


def output_lines(output: Any) -> list[str]:
    """Return the beginning of an output as lines."""
    text = value_text(output)
    return _labelled(
        "output", clipped_lines(text, line_count=_OUTPUT_LINES, character_count=_OUTPUT_CHARACTERS)
    )


def _labelled(label: str, lines: Sequence[str]) -> list[str]:
    heads = [label, *[""] * (len(lines) - 1)]
    return (
        [f"  {head:<{_LABEL_WIDTH}}{line}" for head, line in zip(heads, lines, strict=True)] if lines else []
    )


def _column_of(result: CaseResult) -> str:
    parts = [item for item in (result.provider.label, result.prompt.label) if item and item != "none"]
    return one_line(" · ".join(parts), 120)


def failed_lines(result: CaseResult) -> list[str]:
    """Return the lines for the failures of a case, and for its assertions that could not be judged."""
    lines = [
        line for item in result.assertions if item.status is Status.FAILED for line in assertion_lines(item)
    ]
    if not lines:
        lines = [f"the score of all assertions, {result.score}, is below the threshold"]
    for item in result.assertions:
        if item.status is Status.ERROR:
            lines += _error_lines(item)
    column = _column_of(result)
    return [*lines, *(_labelled("answer by", [column]) if column else []), *output_lines(result.output)]


def broken_lines(result: CaseResult) -> list[str]:
    """Return the lines that say why a case has no verdict."""
    column = _column_of(result)
    lines = [column] if column else []
    if result.error is not None:
        hint = f" ({one_line(result.error.hint, 300)})" if result.error.hint else ""
        lines.append(f"{one_line(result.error.message, 1000)}{hint}")
    for item in result.assertions:
        if item.status is Status.ERROR:
            lines += _error_lines(item)
    return lines
