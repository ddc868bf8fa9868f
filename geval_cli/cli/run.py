"""`geval run`: check every config, then run them one after another."""

import asyncio
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec import Struct, structs

from geval_cli.cli.main import restore_keyboard_interrupt
from geval_cli.cli.problems import keep_runs, print_note, print_problems, print_warnings
from geval_cli.engine.runner import StopReason, StopSignal
from geval_cli.errors import (
    ConfigError,
    ExitCode,
    OutputError,
    Problem,
    Severity,
    StoppedError,
    StoreError,
    TerminatedError,
    UsageError,
)
from geval_cli.events import Noticed, RunEvent
from geval_cli.extras.run_pages import RunPages
from geval_cli.gateway.budget import MORE_HINT
from geval_cli.gateway.call import Wire
from geval_cli.gateway.gateway import TraceDetail
from geval_cli.numbers import plural
from geval_cli.report.report import (
    ResultsFile,
    RunReport,
    check_output_path,
    check_output_paths,
    open_results_file,
)
from geval_cli.runs.evaluate import exit_code, run_evaluation
from geval_cli.runs.event_loop import run_async
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import PreparedRun, RunRequest
from geval_cli.runs.resume import ResumedRun, resume_run
from geval_cli.specs.promptfoo import PromptfooOptions
from geval_cli.store.cache import ResponseCache
from geval_cli.store.home import (
    DEFAULT_HOME,
    current_folder,
    home_folder,
    make_folder,
    make_shared_folder,
    named_home,
)
from geval_cli.store.state import CacheChoice, State, open_state
from geval_cli.version import install_hint

if TYPE_CHECKING:
    from geval_cli.cli.untrusted import KernelSandbox
    from geval_cli.extras.request_log import RequestLines
    from geval_cli.extras.traces.otel import OtelTraces
    from geval_cli.report.progress import Progress

T = TypeVar("T")

TERM_GRACE_S = 6.0
"""How long requests under way may take after SIGTERM: service managers kill a process 10 s after it, or later."""
_RANK = (
    ExitCode.OK,
    ExitCode.PENDING,
    ExitCode.NOT_JUDGED,
    ExitCode.FAILED,
    ExitCode.USAGE,
    ExitCode.BUG,
    ExitCode.INTERRUPTED,
    ExitCode.TERMINATED,
)
"""Which exit code wins when several configs run: the last one in this order."""


_STUCK_S = 8.0

_NOT_STORED = "this run is not stored either: fix that or choose another file, and run again"


_OPENS_AFTER_S = 0.05


class Screen:
    """Progress on stderr and, if wanted, a line per request; events that come before it opens are kept for it.

    It must be used within an event loop. A terminal that is gone does not end a run, which is paid for.
    """

    def __init__(
        self, *, shows_progress: bool, lists_requests: bool, stopping: Callable[[], str] = str
    ) -> None:
        self._shows_progress = shows_progress
        self._stopping = stopping
        self._lists_requests = lists_requests
        self._early: list[RunEvent] | None = []
        self._progress: Progress | None = None
        self._lines: RequestLines | None = None

    def __enter__(self) -> Self:
        self._timer = asyncio.get_running_loop().call_later(_OPENS_AFTER_S, self._open)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def listen(self, event: RunEvent) -> None:
        """Show an event, or keep it until the screen opens."""
        if self._early is not None:
            self._early.append(event)
            return
        with suppress(OSError, ValueError):
            if self._progress is not None:
                self._progress.listen(event)
            if self._lines is not None:
                self._lines.listen(event)

    def close(self) -> None:
        """Show what was not shown yet, and restore the terminal."""
        self._open()
        if self._progress is not None:
            self._progress.__exit__(None, None, None)

    def _open(self) -> None:
        if self._early is None:
            return
        self._timer.cancel()
        early, self._early = self._early, None
        with suppress(OSError, ValueError):
            from geval_cli.extras.request_log import RequestLines
            from geval_cli.report.console import make_console
            from geval_cli.report.progress import make_progress

            console = make_console(sys.stderr, environ=os.environ)
            if self._lists_requests:
                self._lines = RequestLines(console)
            self._progress = make_progress(console, is_shown=self._shows_progress, stopping=self._stopping)
            self._progress.__enter__()
        for event in early:
            self.listen(event)


class RunDisplay(Struct, frozen=True):
    """The output of a run besides the store: results files, a log of requests, how much is shown.

    `note_written` is called with every file and folder that is written to. The commands that are suggested as next
    steps depend on the rest: `home` and `cache_folder` are the values of --home and --cache-dir, `is_one_of_many` is
    whether further runs follow, so that `latest` will be another one, and `repeated` is what `repeated_options`
    returns.
    """

    outputs: tuple[Path, ...] = ()
    shows_progress: bool = True
    is_verbose: bool = False
    log_file: Path | None = None
    note_written: Callable[[Iterable[Path]], None] = lambda _: None
    home: Path | None = None
    cache_folder: Path | None = None
    is_one_of_many: bool = False
    repeated: str | None = None


def run_configs(
    requests: Sequence[RunRequest],
    display: RunDisplay,
    *,
    home: Path | None,
    cache: CacheChoice,
    sandbox: "KernelSandbox | None" = None,
) -> ExitCode:
    """Run every config and show the results; nothing is sent unless all of them are valid.

    Raises:
        ConfigError: with every problem of every config.
        UsageError: the options are invalid.
    """
    check_one_config(requests, display.outputs, "run")
    check_output_paths(display.outputs)
    outputs = [*display.outputs, *([display.log_file] if display.log_file else [])]
    keep_inputs(outputs, requests)
    is_new_home = named_home(home, os.environ) is None and not _home(None).exists()
    if sandbox is not None:
        sandbox.confine(requests, _made(state_folders(home, cache), is_offline=cache.is_offline), outputs)
    codes = []
    display = structs.replace(display, home=home, cache_folder=cache.folder, is_one_of_many=len(requests) > 1)
    with ExitStack() as stack:
        traces = _open_traces(requests, stack)  # before the variables that it reads are removed
        if traces is not None:
            requests = [replace(request, has_collector=traces.is_heard) for request in requests]
        prepared = prepare_all(requests)
        keep_inputs(outputs, requests, prepared)
        if sandbox is not None:
            sandbox.narrow(prepared, frozenset() if traces is None else traces.ports)
        restore_keyboard_interrupt()
        log = _open_log(display.log_file, stack)
        log += [] if traces is None else [traces]
        state = stack.enter_context(open_state(home, os.environ, cache))
        folder = _home(home)
        if is_new_home and folder.is_dir():  # the next run in another folder may look for it elsewhere
            sys.stderr.write(f"note: created {DEFAULT_HOME} here for runs and cached answers\n")
        display.note_written([folder / "running", folder / ".gitignore", *outputs[len(display.outputs) :]])
        print_warnings(state.warnings)
        _check_workers(prepared, state.cache)
        for run, resumed in [(run, _taken_up(run, state)) for run in prepared]:
            codes.append(_run_one(run, resumed, state, display, log))
            if codes[-1] in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
                break
    return max(codes, key=_RANK.index)


def _check_workers(prepared: Iterable[PreparedRun], cache: ResponseCache) -> None:
    for run in prepared:
        if run.request.is_shared:
            from geval_cli.extras.workers.coordinator import check_workers

            check_workers(run, cache)


def _home(home: Path | None) -> Path:
    return home_folder(home, env=os.environ, cwd=current_folder())


def state_folders(home: Path | None, cache: CacheChoice) -> list[Path]:
    """Return the folders of stored runs and of the cache."""
    return [_home(home), *([cache.folder] if cache.folder else [])]


def _made(folders: list[Path], *, is_offline: bool) -> list[Path]:
    """Create the folders as far as possible and return them; opening them later reports any error."""
    own, *shared = folders
    with suppress(StoreError):
        make_folder(own)
        for folder in () if is_offline else shared:
            make_shared_folder(folder)
    return folders


def check_one_config(requests: Sequence[RunRequest], outputs: Sequence[Path], verb: str) -> None:
    """Check that options for one config only, results files and a run to resume, are not used with several.

    `verb` is what is done with the configs: run, plan.

    Raises:
        UsageError: there are several configs.
    """
    if len(requests) > 1 and outputs:
        what = "results" if verb == "run" else verb
        raise UsageError(f"-o can write the {what} of only one config", hint=f"{verb} the configs one by one")
    if len(requests) > 1 and any(request.resume_from is not None for request in requests):
        raise UsageError(
            "--resume-from is for one run, but there are several configs", hint="pass only its config"
        )


def describe_progress(resumed: ResumedRun, prepared: PreparedRun) -> str:
    """Describe a resumed run: its id, and how many of its cases are done."""
    return f"run {resumed.run.id}: {len(resumed.done):,} of {plural(prepared.total, 'case')} are done"


def prepare_all(requests: Sequence[RunRequest], *, is_going_to_run: bool = True) -> list[PreparedRun]:
    """Check several configs and print their warnings.

    Raises:
        ConfigError: with the problems of all of them together.
    """
    prepared, problems = check_all(requests, is_going_to_run=is_going_to_run)
    if len(prepared) < len(requests):
        raise ConfigError(problems)
    print_problems(problems)
    return prepared


def keep_inputs(
    outputs: Sequence[Path], requests: Sequence[RunRequest], prepared: Sequence[PreparedRun] = ()
) -> None:
    """Refuse to overwrite what is read: the configs, the files that they name, and results of earlier runs.

    Raises:
        ConfigError: one of the outputs is such a file.
    """
    keep_runs(outputs, (name for run in requests for name in (run.baseline, run.filter_failing)))
    configs = {path.resolve() for request in requests for path in (request.config, *request.joined)}
    named = {path for run in (prepared if outputs else ()) for path in run.suite.files}
    for path in outputs:
        if path.resolve() in configs:
            hint = "choose another file, or the config would be overwritten"
            raise ConfigError([Problem(f"cannot write to {path}: it is the config", hint=hint)])
        if path.resolve() in named and path.is_file():
            hint = "choose another file, or it would be overwritten"
            raise ConfigError([Problem(f"cannot write to {path}: the config reads it", hint=hint)])


def check_all(
    requests: Sequence[RunRequest], *, is_going_to_run: bool
) -> tuple[list[PreparedRun], list[Problem]]:
    """Check several configs; return the valid ones, and the problems and warnings of all."""
    prepared: list[PreparedRun] = []
    problems: list[Problem] = []
    for request in requests:
        try:
            run = prepare(request, is_going_to_run=is_going_to_run)
        except ConfigError as error:
            problems.extend(error.problems)
        else:
            prepared.append(run)
            problems.extend(run.warnings)
    return prepared, problems


def _configured_outputs(prepared: PreparedRun) -> tuple[Path, ...]:
    """Return the results files that a promptfoo config itself names; warn about those that cannot be written."""
    options = prepared.suite.options
    named = options.outputs if isinstance(options, PromptfooOptions) else ()
    found = [(Path(name), check_output_path(Path(name))) for name in named]
    print_problems([replace(problem, severity=Severity.WARNING) for _, problem in found if problem])
    return tuple(path for path, problem in found if problem is None)


def _open_log(path: Path | None, stack: ExitStack) -> list[ResultsFile]:
    """Return the log of requests, open until the end of the block; an empty list if there is none."""
    if path is None:
        return []
    from geval_cli.extras.request_log import RequestLogFile

    try:
        return [stack.enter_context(RequestLogFile(path))]
    except OutputError as error:
        raise ConfigError([Problem(error.message, hint=error.hint)]) from error


def _open_traces(requests: Sequence[RunRequest], stack: ExitStack) -> "OtelTraces | None":
    """Return the traces of `--otel`, sent by the end of the block, which warns about any that could not be sent."""
    if not any(request.otel for request in requests):
        return None
    try:
        from geval_cli.extras.traces.otel import OtelTraces
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--otel needs the package {error.name}", hint=f"install it {install_hint('otel')}"
        ) from error
    sends_content = any(request.trace_detail is TraceDetail.CONTENT for request in requests)
    traces = OtelTraces(os.environ, sends_content=sends_content)
    stack.callback(lambda: print_warnings([traces.warning] if traces.warning else []))
    return stack.enter_context(traces)


def _taken_up(prepared: PreparedRun, state: State) -> ResumedRun | None:
    """Return the earlier run to resume, if any, and report it on stderr."""
    if not prepared.request.resumes:
        return None
    if not state.keeps_runs:
        hint = "fix that first; without this option a new run starts and is not stored"
        message = "an earlier run cannot be resumed because its results cannot be stored"
        raise UsageError(message, hint=hint)
    resumed = resume_run(prepared, state.runs)
    sys.stderr.write(f"resuming {describe_progress(resumed, prepared)}\n")
    return resumed


_USED_UP = " is used up"
_LIMIT = re.compile(r"(--max-(?:cost|requests)) \S+")


def _run_one(
    prepared: PreparedRun,
    resumed: ResumedRun | None,
    state: State,
    display: RunDisplay,
    log: Sequence[ResultsFile],
) -> ExitCode:
    outputs = display.outputs or _configured_outputs(prepared)
    display.note_written(outputs)
    files = [*(open_results_file(path) for path in outputs), *log]
    done_before = 0 if resumed is None else len(resumed.done)
    report, stop = run_async(_run_with_display(prepared, resumed, state, files, display))
    problems = list(_finish(files, report))
    is_too_little = (
        stop.reason is StopReason.BUDGET
        and report.summary.total <= done_before
        and not prepared.request.batched_roles  # whose answers are kept, and finish no case before the last ones
        and not display.is_one_of_many
        and any(_USED_UP in text for text in report.run.warnings)
    )
    if is_too_little and display.repeated:
        # With the same limit, a resumed run may end as early, and pay again for answers that are not cached.
        display = structs.replace(display, repeated=_LIMIT.sub(r"\1 MORE", display.repeated))
    problems += _print_results(report, [] if problems else outputs, display, state)
    if "GITHUB_ACTIONS" in os.environ:
        from geval_cli.cli.streams import write_commands
        from geval_cli.extras.pull_requests.problem_formats import Origin, annotations, run_problems

        write_commands(annotations(run_problems(report), os.environ, origin=Origin.RUN), sys.stdout)
    if is_too_little:
        print_problems([Problem("no case could be finished within the limit", hint=MORE_HINT)])
    print_problems(problems)
    code = exit_code(report, stop.reason)
    return max(code, ExitCode.NOT_JUDGED, key=_RANK.index) if problems else code


def _print_results(
    report: RunReport, written: Sequence[Path], display: RunDisplay, state: State
) -> list[Problem]:
    """Print the results; if the store cannot be read, print only the summary and return a problem."""
    from geval_cli.report.console import make_console
    from geval_cli.report.terminal import print_answer, print_report

    console = make_console(sys.stdout, environ=os.environ)
    name = report.run.id if display.is_one_of_many else ""
    try:
        print_report(
            report,
            console,
            verbose=display.is_verbose,
            written=written,
            name=name,
            home=display.home,
            cache_folder=display.cache_folder,
            repeated=display.repeated,
            before=_run_before(report, state),
        )
    except StoreError as error:
        print_answer(
            report,
            console,
            written=written,
            name=name,
            home=display.home,
            cache_folder=display.cache_folder,
            repeated=display.repeated,
        )
        return [Problem(error.message, None, error.hint)]
    return []


def _run_before(report: RunReport, state: State) -> str:
    """Return the name of the config's finished run before this one; "" if there is nothing to compare with."""
    if not report.is_stored or report.summary.baseline is not None:
        # The comparison with the baseline is already shown.
        return ""
    earlier = RunPages(state.runs).previous(report.run.id, finished=True)
    if earlier is None:
        return ""
    names = [stored.run.id for stored in state.runs.runs(limit=2)]
    return "latest~1" if names == [report.run.id, earlier] else earlier


async def _run_with_display(
    prepared: PreparedRun,
    resumed: ResumedRun | None,
    state: State,
    files: Sequence[ResultsFile],
    display: RunDisplay,
) -> tuple[RunReport, StopSignal]:
    stop = StopSignal()
    screen = Screen(
        shows_progress=display.shows_progress, lists_requests=display.is_verbose, stopping=lambda: stop.text
    )
    with screen, _stop_on_signals(stop, screen, is_shared=prepared.request.is_shared):

        def listen(event: RunEvent) -> None:
            screen.listen(event)
            for file in files:
                file.listen(event)

        report = await run_evaluation(prepared, state, listen=listen, stop=stop, resumed=resumed)
        return report, stop


def _finish(files: Sequence[ResultsFile], report: RunReport) -> Iterator[Problem]:
    """Complete the results files; yield a problem for each that fails, as the terminal still shows results."""
    for file in files:
        try:
            file.finish(report)
        except (OutputError, StoreError) as error:
            cannot_reach_minimum = isinstance(error, OutputError) and not report.is_stored
            yield Problem(
                error.message,
                None,
                _NOT_STORED if cannot_reach_minimum else error.hint,
                severity=Severity.ERROR,
            )


@contextmanager
def _stop_on_signals(stop: StopSignal, screen: Screen, *, is_shared: bool) -> Iterator[None]:
    """Stop the run on the first signal (Ctrl-C, SIGTERM, SIGHUP), at once on the second; end the process on the third.

    The process also ends if, after the first signal, a computation blocks the event loop for long.
    """

    def request_stop(reason: StopReason) -> None:
        if stop.is_urgent:
            screen.close()
            os._exit(128 + signal.Signals[reason].value)
        if stop.reason is not None and stop.reason.is_signal:
            stop.hurry()
            return
        stop.request(reason)
        screen.listen(
            Noticed(
                _stopping(reason, *((None, None) if is_shared else (stop.wire.under_way, stop.wire.paid)))
            )
        )
        if reason is StopReason.SIGTERM:
            loop.call_later(TERM_GRACE_S, stop.hurry)

    def on_signal(number: int, _: object) -> None:
        # The loop may be blocked, so a thread makes sure that the process ends all the same.
        reason = StopReason(signal.Signals(number).name)
        if not is_watched.is_set():
            is_watched.set()
            threading.Thread(
                target=_end_when_stuck, args=(loop, has_ended, 128 + number), daemon=True
            ).start()
        loop.call_soon_threadsafe(request_stop, reason)

    loop = asyncio.get_running_loop()
    is_watched = threading.Event()
    has_ended = threading.Event()
    # Under nohup, SIGHUP is ignored, because the run should outlive its terminal.
    reasons = [
        reason
        for reason in StopReason
        if reason.is_signal
        and threading.current_thread() is threading.main_thread()  # no other thread can handle signals
        and hasattr(signal, reason)
        and signal.getsignal(signal.Signals[reason]) is not signal.SIG_IGN
    ]
    # Not the loop's own handlers, which wait until the loop is free.
    before = {signal.Signals[reason]: signal.signal(signal.Signals[reason], on_signal) for reason in reasons}
    try:
        yield
    finally:
        has_ended.set()
        for number, handler in before.items():
            signal.signal(number, handler)


def _stopping(reason: StopReason, under_way: int | None, paid: int | None) -> str:
    """Return the message after the first signal; `under_way` and `paid` are None if only workers know them."""
    said = "Ctrl-C" if reason is StopReason.SIGINT else str(reason)
    again = "press Ctrl-C again" if reason is StopReason.SIGINT else "send a second signal"
    if under_way == 0:
        return f"{said}: stopping; finished cases are kept; {again} to stop at once"
    bound = f" at most {TERM_GRACE_S:g} s" if reason is StopReason.SIGTERM else ""
    counted = "requests" if under_way is None else plural(under_way, "request")
    dropped = "it" if under_way == 1 else "them"
    billed = f" ({'it is' if under_way == 1 else 'they are'} paid for)"
    if paid is None:
        billed = " (any that cost money are still charged)"
    elif paid != under_way:
        billed = f" ({paid:,} of them paid for)" if paid else ""
    return f"{said}: stopping; waiting{bound} for {counted} under way; {again} to drop {dropped}{billed}"


def _end_when_stuck(loop: asyncio.AbstractEventLoop, has_ended: threading.Event, code: int) -> None:
    """End the process with `code` if its event loop is blocked for long; results are stored as they come."""
    while not has_ended.is_set():
        has_moved = threading.Event()
        loop.call_soon_threadsafe(has_moved.set)
        if not has_moved.wait(_STUCK_S) and not has_ended.is_set():
            sys.stderr.write(
                f"error: something has been computing for {_STUCK_S:g} s without end; finished cases "
                "are kept\n"
            )
            os._exit(code)
        has_ended.wait(1.0)


def run_stoppable(main: Coroutine[Any, Any, T], wire: Wire) -> T:
    """Run like `run_async`, but on Ctrl-C let the requests under way on `wire`, which are paid for, be answered.

    SIGTERM and SIGHUP do the same, for `TERM_GRACE_S` seconds. A second signal drops them.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed.
        TerminatedError: SIGTERM or SIGHUP came.
    """
    stopped_by: signal.Signals | None = None

    async def supervised() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(main)

        def stop(number: signal.Signals) -> None:
            nonlocal stopped_by
            if stopped_by is not None:
                task.cancel()
                return
            stopped_by = number
            wire.close()
            is_term = number is not signal.SIGINT
            if is_term:
                loop.call_later(TERM_GRACE_S, task.cancel)
            if count := wire.under_way:
                dropped = "it" if count == 1 else "them"
                bound = f" at most {TERM_GRACE_S:g} s" if is_term else ""
                again = "send a second signal" if is_term else "press Ctrl-C again"
                said = f"waiting{bound} for {plural(count, 'request')} under way; {again} to drop {dropped}"
                print_note(f"{number.name if is_term else 'Ctrl-C'}: {said}")

        # Under nohup, SIGHUP is ignored; Windows has none.
        heard = [
            signal.Signals[name]
            for name in ("SIGINT", "SIGTERM", "SIGHUP")
            if name in signal.Signals.__members__
            and signal.getsignal(signal.Signals[name]) is not signal.SIG_IGN
        ]
        # On Windows, or in a thread that cannot handle signals, Ctrl-C drops what is under way.
        with suppress(NotImplementedError, RuntimeError, ValueError):
            for number in heard:
                loop.add_signal_handler(number, stop, number)
        try:
            return await task
        finally:
            with suppress(NotImplementedError, RuntimeError, ValueError):
                for number in heard:
                    loop.remove_signal_handler(number)

    try:
        found = run_async(supervised())
    except (StoppedError, asyncio.CancelledError):
        if stopped_by is None:
            raise
    if stopped_by is not None:
        raise KeyboardInterrupt if stopped_by is signal.SIGINT else TerminatedError(stopped_by.name)
    return found
