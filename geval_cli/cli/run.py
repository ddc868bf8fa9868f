"""`geval run`: check every config, then run them one after another."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from geval_cli.cli.problems import print_problems
from geval_cli.engine.runner import StopReason, StopSignal
from geval_cli.errors import ConfigError, ExitCode, OutputError, Problem, Severity, StoreError, UsageError
from geval_cli.events import Noticed, RunEvent
from geval_cli.report.console import make_console
from geval_cli.report.output import ResultsFile, check_output_path, open_results_file
from geval_cli.report.progress import Progress, make_progress
from geval_cli.report.report import RunReport
from geval_cli.report.summary import print_summary
from geval_cli.report.terminal import print_report
from geval_cli.service import PreparedRun, RunRequest, exit_code, prepare, run_evaluation
from geval_cli.store.state import State, open_state

_RANK = (
    ExitCode.OK,
    ExitCode.NOT_JUDGED,
    ExitCode.FAILED,
    ExitCode.USAGE,
    ExitCode.BUG,
    ExitCode.INTERRUPTED,
    ExitCode.TERMINATED,
)
"""Which exit code wins when several configs run: the last in this order."""


@dataclass(frozen=True, slots=True)
class RunDisplay:
    """What becomes of the results, besides being stored: results files, and how much is shown."""

    outputs: tuple[Path, ...] = ()
    shows_progress: bool = True
    is_verbose: bool = False


def run_configs(requests: Sequence[RunRequest], display: RunDisplay, *, home: Path | None) -> ExitCode:
    """Run every config and show what came out; nothing is sent unless all of them are valid.

    Raises:
        ConfigError: with every problem of every config.
        UsageError: the options do not make sense.
    """
    if len(requests) > 1 and display.outputs:
        raise UsageError("-o takes the results of one config", hint="run the configs one by one")
    _check_outputs(display.outputs, [request.config for request in requests])
    prepared = prepare_all(requests)
    codes = []
    with open_state(home, os.environ) as state:
        print_problems([Problem(text, severity=Severity.WARNING) for text in state.warnings])
        for run in prepared:
            codes.append(_run_one(run, state, display))
            if codes[-1] in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
                break
    return max(codes, key=_RANK.index)


def prepare_all(requests: Sequence[RunRequest], *, is_going_to_run: bool = True) -> list[PreparedRun]:
    """Check several configs and report the problems of all of them together."""
    prepared: list[PreparedRun] = []
    problems: list[Problem] = []
    for request in requests:
        try:
            prepared.append(prepare(request, is_going_to_run=is_going_to_run))
        except ConfigError as error:
            problems.extend(error.problems)
    if problems:
        raise ConfigError(problems)
    print_problems([problem for run in prepared for problem in run.warnings])
    return prepared


def _check_outputs(outputs: Sequence[Path], configs: Sequence[Path]) -> None:
    problems = [problem for path in outputs if (problem := check_output_path(path)) is not None]
    for path in {path.resolve() for path in outputs} & {config.resolve() for config in configs}:
        hint = "name another file: the config would be lost"
        problems.append(Problem(f"cannot write results to {path}: it is the config", hint=hint))
    if problems:
        raise ConfigError(problems)


def _run_one(prepared: PreparedRun, state: State, display: RunDisplay) -> ExitCode:
    files = [open_results_file(path) for path in display.outputs]
    report, stop = asyncio.run(_run_with_display(prepared, state, files, display))
    problems = list(_finish(files, report))
    written = [] if problems else display.outputs
    console = make_console(sys.stdout, environ=os.environ)
    try:
        print_report(report, console, verbose=display.is_verbose, written=written)
    except StoreError as error:
        print_summary(report, console, written=written)
        problems.append(Problem(error.message, None, error.hint))
    print_problems(problems)
    code = exit_code(report, stop.reason)
    return max(code, ExitCode.NOT_JUDGED, key=_RANK.index) if problems else code


async def _run_with_display(
    prepared: PreparedRun, state: State, files: Sequence[ResultsFile], display: RunDisplay
) -> tuple[RunReport, StopSignal]:
    stop = StopSignal()
    console = make_console(sys.stderr, environ=os.environ)
    with ExitStack() as stack:
        progress = stack.enter_context(make_progress(console, is_shown=display.shows_progress))
        stack.enter_context(_stop_on_signals(stop, progress))

        def listen(event: RunEvent) -> None:
            with suppress(OSError, ValueError):  # a terminal that is gone must not end a paid run
                progress.listen(event)
            for file in files:
                file.listen(event)

        return await run_evaluation(prepared, state, listen=listen, stop=stop), stop


def _finish(files: Sequence[ResultsFile], report: RunReport) -> Iterator[Problem]:
    """Complete the results files; what cannot be written is said, and the terminal still shows the results."""
    for file in files:
        try:
            file.finish(report)
        except (OutputError, StoreError) as error:
            yield Problem(error.message, None, error.hint, severity=Severity.ERROR)


@contextmanager
def _stop_on_signals(stop: StopSignal, progress: Progress) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks the run to stop, the second to do it at once; a third ends the process."""

    def request_stop(reason: StopReason) -> None:
        if stop.is_urgent:
            progress.__exit__(None, None, None)
            os._exit(128 + signal.Signals[reason].value)
        if stop.reason is not None and stop.reason.is_signal:
            stop.hurry()
            return
        stop.request(reason)
        with suppress(OSError, ValueError):
            text = f"{reason}: stopping; what is finished is kept. Once more to stop at once."
            progress.listen(Noticed(text))

    loop = asyncio.get_running_loop()
    reasons = [reason for reason in StopReason if reason.is_signal and hasattr(signal, reason)]
    try:
        for reason in reasons:
            loop.add_signal_handler(signal.Signals[reason], request_stop, reason)
    except NotImplementedError:  # Windows: Ctrl-C then cancels the run, which is stored as far as it came
        reasons = []
    try:
        yield
    finally:
        for reason in reasons:
            loop.remove_signal_handler(signal.Signals[reason])
