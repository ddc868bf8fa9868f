"""`run` a config file or a suite made in Python like `geval run`; `compare` two runs like `geval compare`.

In a notebook, the progress of a run is a line in the cell, redrawn while it runs.
"""

import os
import sys
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict

from geval_cli.library.records import exits_as_errors
from geval_cli.library.suite import Suite, build_suite
from geval_cli.library.table import results_html

if TYPE_CHECKING:
    from contextlib import AbstractContextManager, ExitStack
    from typing import Unpack

    from geval_cli.engine.runner import StopSignal
    from geval_cli.events import RunEvent
    from geval_cli.extras.compare.comparison import ComparedRow, RunComparison
    from geval_cli.gateway.budget import Budget
    from geval_cli.records import CaseResult, RunRecord, RunSummary
    from geval_cli.report.report import RunReport
    from geval_cli.runs.requests import RunRequest
    from geval_cli.store.state import CacheChoice

_REDRAWN_EVERY_S = 0.25


def in_notebook() -> bool:
    """Return whether this program runs in a Jupyter kernel."""
    found = sys.modules.get("IPython")
    shell = None if found is None else found.get_ipython()
    return hasattr(shell, "kernel")


class NotebookProgress:
    """A listener to a run's events that shows its progress in a notebook; the last line stays above the result."""

    def __init__(self) -> None:
        from geval_cli.report.progress import RunState

        self._state = RunState(time.monotonic())
        self._drawn_s = 0.0
        self._notes: dict[str, None] = {}
        self._handle: Any = None

    def __enter__(self) -> Self:
        from IPython import display

        show: Any = display.display
        self._handle = show(self._content(), raw=True, display_id=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._draw()

    def listen(self, event: "RunEvent") -> None:
        """Record an event, and redraw the line if it is older than a quarter of a second."""
        from geval_cli.events import Noticed

        self._state.add(event)
        if isinstance(event, Noticed):
            self._notes[event.message] = None
        if time.monotonic() - self._drawn_s >= _REDRAWN_EVERY_S:
            self._draw()

    def _draw(self) -> None:
        self._drawn_s = time.monotonic()
        self._handle.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        from geval_cli.report.sanitize import html_text, sanitize

        state, now_s = self._state, time.monotonic()
        parts = [f"{state.done:,}/{state.total:,}", state.counts_text(), state.elapsed_text(now_s)]
        parts += [text for text in (state.eta_text(now_s), state.calls_text()) if text]
        lines = [" · ".join(parts), *(f"note: {sanitize(text)}" for text in self._notes)]
        bar = f'<progress max="{max(state.total, 1)}" value="{state.done}"></progress> '
        return {"text/plain": "\n".join(lines), "text/html": bar + "<br>".join(map(html_text, lines))}


class RunKeywords(TypedDict, total=False):
    """The options of `run`: those of `geval run`, with Python names.

    Attributes:
        grader: the judge if the suite names none: "openai:gpt-4.1".
        scoring: how ratings become a score: auto, logprobs, samples or single.
        samples: number of ratings of each output.
        repeats: how often each test is run.
        vars: variables for every test; they override its own.
        max_concurrency: maximum number of concurrent requests.
        fail_fast: whether to stop at the first failure or error.
        filter_pattern, filter_providers, filter_prompts: regular expressions; only what matches is run.
        filter_metadata: metadata that a test must have, by name.
        filter_first: maximum number of tests.
        filter_sample, seed: maximum number of tests, drawn at random, and the random seed.
        allow_empty: whether it is fine if no test is selected.
        fail_under: the minimum pass rate, 0..1; without it, all cases must pass.
        max_errors: how many cases may error if there are gates.
        stop_when: "decided" ends the run as soon as its gates are decided.
        max_cost: cost limit in US dollars.
        max_requests: maximum number of requests.
        cache: whether answers of earlier runs are used.
        cache_ttl: their maximum age: "12h", "30d" or "never"; by default 14 days.
        cache_dir: the folder of the cache; by default the state folder.
        offline: whether only the cache answers.
        resume: True resumes the latest unfinished run of this suite; a run's id resumes that run.
        retry_errors: whether to re-run the errored cases of the latest run.
        home: the state folder; by default GEVAL_HOME, or `.geval` in the current folder.
        env_file: a file with environment values.
        output: result files to write; the file extension determines the format.
        progress: whether to show progress, on stderr or in the notebook; None: if stderr is a terminal or this is a
            notebook.
    """

    grader: str | None
    scoring: Literal["auto", "logprobs", "samples", "single"] | None
    samples: int | None
    repeats: int | None
    vars: Mapping[str, Any] | None
    max_concurrency: int | None
    fail_fast: bool
    filter_pattern: str | None
    filter_providers: str | None
    filter_prompts: str | None
    filter_metadata: Mapping[str, str] | None
    filter_first: int | None
    filter_sample: int | None
    seed: int
    allow_empty: bool
    fail_under: float | None
    max_errors: int | None
    stop_when: Literal["decided"] | None
    max_cost: float | None
    max_requests: int | None
    cache: bool
    cache_ttl: str | None
    cache_dir: str | Path | None
    offline: bool
    resume: bool | str
    retry_errors: bool
    home: str | Path | None
    env_file: str | Path | None
    output: str | Path | Sequence[str | Path]
    progress: bool | None


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run: its record, its summary and its results. Iterating yields the results.

    Attributes:
        run: id, status, times, config; `run.status` is `completed`, or says that the run ended early.
        summary: counts, pass rate, metrics, usage.
        results: the results of all cases, by test, repeat and column; they are all in memory.
        exit_code: the exit code that `geval run` would have had.
    """

    run: "RunRecord"
    summary: "RunSummary"
    results: "tuple[CaseResult, ...]" = field(repr=False)
    exit_code: int

    @property
    def passed(self) -> bool:
        """Return whether the run completed without failures and errors, or its gates hold."""
        return self.exit_code == 0

    @property
    def failures(self) -> "tuple[CaseResult, ...]":
        """Return the results that failed."""
        return tuple(result for result in self.results if result.status.value == "failed")

    @property
    def errors(self) -> "tuple[CaseResult, ...]":
        """Return the results of cases that could not be judged."""
        return tuple(result for result in self.results if result.status.value == "error")

    def to_json(self) -> dict[str, Any]:
        """Return the content of `-o results.json`."""
        import json

        from geval_cli.report.json_file import json_document
        from geval_cli.report.report import RunReport

        report = RunReport(self.run, self.summary, lambda: iter(self.results))
        document: dict[str, Any] = json.loads("".join(json_document(report)))
        return document

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with one row per case and the columns of `-o results.parquet`.

        Raises:
            UsageError: pandas is not installed.
        """
        from geval_cli.errors import UsageError

        try:
            import pandas
        except ImportError as error:
            raise UsageError("`to_pandas` needs pandas", hint="install the package pandas") from error
        rows, columns = self._table()
        return pandas.DataFrame(rows, columns=list(columns))

    def to_polars(self) -> Any:
        """Return a polars DataFrame with the same rows and columns as `to_pandas`.

        Raises:
            UsageError: polars is not installed.
        """
        from geval_cli.errors import UsageError

        try:
            import polars
        except ImportError as error:
            raise UsageError("`to_polars` needs polars", hint="install the package polars") from error
        rows, columns = self._table()
        return polars.DataFrame(rows, schema=columns)

    def _table(self) -> tuple[list[dict[str, Any]], dict[str, type]]:
        """Return the rows of a data frame, and its columns with their types."""
        from geval_cli.extras.parquet import case_columns, case_row

        metrics = dict.fromkeys(name for result in self.results for name in result.named_scores)
        variables = dict.fromkeys(name for result in self.results for name in result.vars)
        rows = [case_row(result, metrics, variables) for result in self.results]
        return rows, case_columns(metrics, variables)

    def __iter__(self) -> "Iterator[CaseResult]":
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __bool__(self) -> bool:
        """Return True, even for a run without results; `passed` says how it went."""
        return True

    def __repr__(self) -> str:
        return f"<RunResult {self.run.id}: {self._counts}>"

    def _repr_html_(self) -> str:
        return results_html(f"run {self.run.id}: {self._counts}", self.results, len(self.results))

    @property
    def _counts(self) -> str:
        sums = self.summary
        return f"{self.run.status.value}, {sums.passed} passed, {sums.failed} failed, {sums.errored} errors"


def run(suite: "Suite | str | Path", **options: "Unpack[RunKeywords]") -> RunResult:
    """Run a suite and return its results. Blocks, even inside a running event loop.

    Inside one, the run has its own thread and event loop; `await arun(...)` runs coroutine functions in yours. Ctrl-C
    ends the run like `geval run`: requests in flight are awaited (a second Ctrl-C ends it at once), finished cases are
    stored, and `resume=True` does the rest.

    Args:
        suite: a `Suite`, or the path of a config file.
        **options: see `RunKeywords`.

    Raises:
        ConfigError: the suite is not valid; has every problem, and no request was sent.
        UsageError: the options are not valid, or there is no run to resume.
        StoreError: results could not be stored, and might have cost money; no request was sent.
        OutputError: a result file cannot be written; the run is stored.
    """
    request, cache = make_request(suite, options)
    return run_blocking(request, cache, progress=options.get("progress"))


async def arun(suite: "Suite | str | Path", **options: "Unpack[RunKeywords]") -> RunResult:
    """Do the same as `run` in this event loop, without blocking it. Cancelling it ends the run."""
    request, cache = make_request(suite, options)
    return await run_request(request, cache, options.get("progress"))


def run_blocking(request: "RunRequest", cache: "CacheChoice", *, progress: bool | None) -> RunResult:
    """Run in a new event loop; if one is already running, in a thread."""
    import asyncio

    from geval_cli.engine.runner import StopSignal
    from geval_cli.runs.event_loop import run_async

    stop = StopSignal()
    work = run_request(request, cache, progress, stop)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_async(_stopped_first(work, stop))
    return _run_in_thread(work, stop)


def _stop(stop: "StopSignal") -> None:
    import logging

    from geval_cli.engine.runner import StopReason

    logging.getLogger("geval_cli").warning(
        "stopping: waiting for requests in flight; interrupt again to end at once"
    )
    stop.request(StopReason.SIGINT)


async def _stopped_first(work: "Coroutine[Any, Any, RunResult]", stop: "StopSignal") -> RunResult:
    """Return the result of a run; if cancelled, by Ctrl-C, first keep the answers under way, which may be paid for."""
    import asyncio

    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        _stop(stop)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            await asyncio.wait({task})
        raise


def _run_in_thread(run: "Coroutine[Any, Any, RunResult]", stop: "StopSignal") -> RunResult:
    """Run in an event loop in a new thread; Ctrl-C, which reaches the main thread, stops the run there."""
    import asyncio
    import threading

    loop = asyncio.new_event_loop()
    has_ended = False

    def live() -> None:
        # The loop stops if code of a package raises one of these, and `run` waits for its result.
        while not has_ended:
            with suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()

    thread = threading.Thread(target=live, name="geval-run", daemon=True)
    thread.start()
    ended = threading.Event()

    async def work() -> RunResult:
        try:
            return await run
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(work(), loop)
    try:
        return future.result()
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(_stop, stop)
        ended.wait()
        raise
    finally:
        future.cancel()
        ended.wait()
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result()
        has_ended = True
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def run_request(
    request: "RunRequest", cache: "CacheChoice", progress: bool | None, stop: "StopSignal | None" = None
) -> RunResult:
    """Check a suite, run it, and return its results."""
    import asyncio
    import logging

    from geval_cli.engine.runner import StopSignal
    from geval_cli.errors import ConfigError
    from geval_cli.report.report import open_results_file
    from geval_cli.runs.evaluate import exit_code, run_evaluation
    from geval_cli.runs.prepare import prepare
    from geval_cli.runs.resume import resume_run
    from geval_cli.store.state import open_state

    log = logging.getLogger("geval_cli")
    try:
        with exits_as_errors():
            prepared = await asyncio.to_thread(prepare, request)
    except ConfigError as error:
        raise explained(error) from None
    for problem in prepared.warnings:
        log.warning(problem_line(problem))
    files = [open_results_file(path) for path in request.outputs]
    with open_state(request.home, request.environ, cache) as state, _display(progress) as listener:
        for warning in state.warnings:
            log.warning(warning)
        resumed = await asyncio.to_thread(resume_run, prepared, state.runs) if request.resumes else None
        listeners = [listener.listen, *(file.listen for file in files)]
        stop = stop or StopSignal()

        def listen(event: "RunEvent") -> None:
            for listen in listeners:
                listen(event)

        report = await run_evaluation(
            prepared,
            state,
            listen=listen,
            stop=stop,
            resumed=resumed,
        )
        for file in files:
            await asyncio.to_thread(file.finish, report)
        results = await asyncio.to_thread(lambda: tuple(report.results()))
        return RunResult(report.run, report.summary, results, int(exit_code(report, stop.reason)))


def explained(error: Any) -> Any:
    """Return the ConfigError with a note for each error in it, so that a traceback shows them."""
    for problem in error.problems:
        if problem.severity.value == "error":
            error.add_note(problem_line(problem))
    return error


def problem_line(problem: Any) -> str:
    """Return a problem on one line: where, what, and what to do about it."""
    where = "" if problem.location is None else f"{problem.location}: "
    return f"{where}{problem.message}" + (f" ({problem.hint})" if problem.hint else "")


def _display(progress: bool | None) -> "AbstractContextManager[Any]":
    import sys

    from geval_cli.report.console import make_console
    from geval_cli.report.progress import make_progress

    if progress is not False and in_notebook():
        return NotebookProgress()
    is_shown = sys.stderr.isatty() if progress is None else progress
    if is_shown:
        return make_progress(make_console(sys.stderr, environ=os.environ))
    from contextlib import nullcontext

    return nullcontext(_Logged())


class _Logged:
    """A stand-in for the progress display that sends notices for the user to the logger."""

    def listen(self, event: Any) -> None:
        import logging

        from geval_cli.events import Noticed

        if isinstance(event, Noticed):
            logging.getLogger("geval_cli").warning(event.message)


_RENAMED = {
    "vars": "variables",
    "cache": "reads_cache",
    "cache_dir": "cache_folder",
    "offline": "is_offline",
    "allow_empty": "allows_empty",
}
_PATHS = frozenset({"cache_dir", "home", "env_file"})
_NOT_OPTIONS = frozenset({"resume", "output", "progress"})


def make_request(
    suite: Any,
    options: Mapping[str, Any],
    *,
    only: frozenset[int] | None = None,
    budget: "Budget | None" = None,
) -> "tuple[RunRequest, CacheChoice]":
    """Return the request for a run, and the cache that it uses.

    Args:
        suite: a `Suite`, or a path.
        options: as for `run`.
        only: the indexes of the tests to run; None for all.
        budget: a budget shared by several runs; None for a budget of its own, from `options`.

    Raises:
        UsageError: the options are not valid; names every problem.
        ConfigError: a result file cannot be written.
    """
    from geval_cli.errors import ConfigError, UsageError
    from geval_cli.gateway.budget import Budget
    from geval_cli.library.run_options import check_is_own, check_options, run_cache
    from geval_cli.report.report import check_output_paths
    from geval_cli.runs.requests import RunRequest

    check_is_own(os.environ)
    check_options(options)
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name not in _NOT_OPTIONS and value is not None:
            values[_RENAMED.get(name, name)] = Path(value) if name in _PATHS else value
    values["filter_metadata"] = tuple(dict(options.get("filter_metadata") or {}).items())
    resume = options.get("resume", False)
    values["resume_latest"], values["resume_from"] = (
        resume is True,
        resume if isinstance(resume, str) else None,
    )
    values["outputs"] = tuple(map(Path, _listed(options.get("output") or ())))
    try:
        check_output_paths(values["outputs"])
    except ConfigError as error:
        raise explained(error) from None
    bounds = values.get("max_cost"), values.get("max_requests")
    if budget is None and bounds != (None, None):
        budget = Budget(*bounds, hint="finished cases are kept, and `resume=True` continues the run")
    values["only"], values["budget"] = only, budget
    if isinstance(suite, Suite):
        request = RunRequest(suite.path, os.environ, built=build_suite(suite), **values)
    elif isinstance(suite, str | Path):
        request = RunRequest(Path(suite), os.environ, **values)
    else:
        hint = 'run("suite.yaml"), or run(Suite(tests=[...]))'
        raise UsageError(f"a suite is a Suite or the path of a config, not {type(suite).__name__}", hint=hint)
    return request, run_cache(request)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference between two runs, decided with the statistics of `geval compare`.

    Attributes:
        verdict: better, worse, mixed, equivalent, identical or undecided.
        headline: the decision in one sentence.
        rows: the pass rate, the score and the metrics of each pair of columns, one per row, with the difference, its
            95 % confidence interval and its verdict.
        warnings: why the runs may not be comparable.
    """

    verdict: str
    headline: str
    rows: "tuple[ComparedRow, ...]" = field(repr=False)
    warnings: tuple[str, ...]
    _found: "RunComparison" = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the output of `geval compare --json`."""
        from geval_cli.extras.compare.comparison import comparison_to_json

        return comparison_to_json(self._found)

    def __str__(self) -> str:
        return self.headline

    def _repr_html_(self) -> str:
        from geval_cli.library.table import comparison_html

        return comparison_html(self._found)


def compare(
    a: "RunResult | str | Path",
    b: "RunResult | str | Path",
    *,
    columns: str | Sequence[str] = (),
    cluster: str | None = None,
    margins: float | str | Sequence[str] | Mapping[str, float] = (),
    home: "str | Path | None" = None,
) -> Comparison:
    """Compare the run `a` with the later run `b`; a notebook shows the decision and its figures.

    Args:
        a: a result of `run`, the id of a stored run, `latest~1`, or a results file.
        b: the same.
        columns: the pairs of columns to compare, "OLD=NEW"; by default those with the same name.
        cluster: a key of the tests' metadata; tests with equal values count as one.
        margins: differences that do not matter, 0.02, {"tone": 0.05} or "tone=0.05"; smaller ones are equivalent.
        home: the state folder; by default GEVAL_HOME, or `.geval` in the current folder.

    Raises:
        UsageError: there is no such run, or the two have too few tests in common.
    """
    from contextlib import ExitStack

    from geval_cli.extras.compare.comparison import ComparisonOptions, NamedRun
    from geval_cli.extras.compare.comparison import compare as compare_runs

    options = ComparisonOptions(
        columns=(columns,) if isinstance(columns, str) else tuple(columns),
        cluster=cluster,
        given_margins=_margin_texts(margins),
    )
    with ExitStack() as stack:
        before, after = (
            NamedRun(name, _report_of(name, side, home, stack)) for name, side in (("A", a), ("B", b))
        )
        found = compare_runs(before, after, options)
    return Comparison(found.verdict, found.headline, found.rows, found.warnings, found)


def _margin_texts(margins: Any) -> tuple[str, ...]:
    from geval_cli.errors import UsageError
    from geval_cli.statistics.paired import NO_MARGINS

    if isinstance(margins, Mapping):
        margins = [f"{name}={margin}" for name, margin in margins.items()]
    listed = margins if isinstance(margins, list | tuple | set) else [margins]
    texts = tuple(map(str, listed))
    try:
        NO_MARGINS.with_given(texts)
    except ValueError as error:
        hint = 'give a number between 0 and 1, such as 0.05, {"tone": 0.05}, or a list such as ["0.02", "tone=0.05"]'
        raise UsageError(f"`margins` has {str(error)!r}, which is no margin", hint=hint) from None
    return texts


def _report_of(name: str, side: Any, home: "str | Path | None", stack: "ExitStack") -> "RunReport":
    from geval_cli.errors import UsageError
    from geval_cli.report.report import RunReport
    from geval_cli.runs.stored import open_report

    if isinstance(side, RunResult):
        return RunReport(side.run, side.summary, lambda: iter(side.results))
    if not isinstance(side, str | Path):
        hint = "pass what `run` returned, a run's id, or a results file"
        found = "None" if side is None else f"an object of the class {type(side).__name__}"
        raise UsageError(f"`{name.lower()}` must be a run, found {found}", hint=hint)
    folder = None if home is None else Path(home)
    report, _ = stack.enter_context(open_report(str(side), folder, os.environ))
    return report
