"""`geval run`: check every config, then run them one after another."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from geval_cli.cli.problems import print_problems
from geval_cli.config.schema import Scoring
from geval_cli.engine.runner import StopSignal
from geval_cli.errors import ConfigError, ExitCode, OutputError, Problem, Severity, UsageError
from geval_cli.events import Noticed, RunEvent
from geval_cli.report.console import make_console
from geval_cli.report.output import ResultsFile, check_output_path, open_results_file
from geval_cli.report.progress import Progress, make_progress
from geval_cli.report.report import RunReport
from geval_cli.report.terminal import print_report
from geval_cli.service import PreparedRun, RunRequest, exit_code, prepare, run_evaluation
from geval_cli.store.state import State, open_state

SCORINGS = ("auto", "logprobs", "samples", "single")

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
class RunOptions:
    """The options of `geval run` as they were typed."""

    outputs: tuple[Path, ...] = ()
    max_concurrency: int | None = None
    grader: str | None = None
    scoring: str | None = None
    samples: int | None = None
    variables: tuple[str, ...] = ()
    env_file: Path | None = None
    home: Path | None = None
    reads_cache: bool = True
    shows_progress: bool = True
    verbose: bool = False
    fail_fast: bool = False


def run_configs(configs: Sequence[Path], options: RunOptions) -> ExitCode:
    """Run every config and show what came out; nothing is sent unless all of them are valid.

    Raises:
        ConfigError: with every problem of every config.
        UsageError: the options do not make sense.
    """
    if len(configs) > 1 and options.outputs:
        raise UsageError("-o takes the results of one config", hint="run the configs one by one")
    _check_outputs(options.outputs)
    prepared = prepare_all([_request(config, options) for config in configs])
    codes = []
    with open_state(options.home, os.environ) as state:
        print_problems([Problem(text, severity=Severity.WARNING) for text in state.warnings])
        for run in prepared:
            codes.append(_run_one(run, state, options))
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


def parse_variables(texts: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping.

    Raises:
        UsageError: a text has no `=`, or nothing before it.
    """
    variables = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise UsageError(f"--var takes NAME=VALUE, not `{text}`", hint="for example --var city=Paris")
        variables[name] = value
    return variables


def _request(config: Path, options: RunOptions) -> RunRequest:
    if options.scoring is not None and options.scoring not in SCORINGS:
        raise UsageError(
            f"--scoring takes {', '.join(SCORINGS)}, not `{options.scoring}`", hint="`auto` is the default"
        )
    return RunRequest(
        config=config,
        environ=os.environ,
        env_file=options.env_file,
        variables=parse_variables(options.variables),
        grader=options.grader,
        scoring=cast("Scoring | None", options.scoring),
        samples=options.samples,
        max_concurrency=options.max_concurrency,
        reads_cache=options.reads_cache,
        fail_fast=options.fail_fast,
    )


def _check_outputs(outputs: Sequence[Path]) -> None:
    problems = [problem for path in outputs if (problem := check_output_path(path)) is not None]
    if problems:
        raise ConfigError(problems)


def _run_one(prepared: PreparedRun, state: State, options: RunOptions) -> ExitCode:
    files = [open_results_file(path) for path in options.outputs]
    report, stop = asyncio.run(_run_with_display(prepared, state, files, options))
    problems = list(_finish(files, report))
    written = [] if problems else options.outputs
    print_report(
        report, make_console(sys.stdout, environ=os.environ), verbose=options.verbose, written=written
    )
    print_problems(problems)
    code = exit_code(report, stop.reason)
    return max(code, ExitCode.NOT_JUDGED, key=_RANK.index) if problems else code


async def _run_with_display(
    prepared: PreparedRun, state: State, files: Sequence[ResultsFile], options: RunOptions
) -> tuple[RunReport, StopSignal]:
    stop = StopSignal()
    console = make_console(sys.stderr, environ=os.environ)
    with ExitStack() as stack:
        progress = stack.enter_context(make_progress(console, is_shown=options.shows_progress))
        stack.enter_context(_stop_on_signals(stop, progress))

        def listen(event: RunEvent) -> None:
            progress.listen(event)
            for file in files:
                file.listen(event)

        return await run_evaluation(prepared, state, listen=listen, stop=stop), stop


def _finish(files: Sequence[ResultsFile], report: RunReport) -> Iterator[Problem]:
    """Complete the results files; what cannot be written is said, and the terminal still shows the results."""
    for file in files:
        try:
            file.finish(report)
        except OutputError as error:
            yield Problem(error.message, None, error.hint, severity=Severity.ERROR)


@contextmanager
def _stop_on_signals(stop: StopSignal, progress: Progress) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks the run to stop, the second to do it at once; a third ends the process."""

    def request_stop(name: str) -> Callable[[], None]:
        def on_signal() -> None:
            if stop.is_urgent:
                progress.__exit__(None, None, None)
                os._exit(128 + signal.Signals[name].value)
            if not stop.is_requested:
                text = f"{name}: stopping; what is finished is kept. Once more to stop at once."
                progress.listen(Noticed(text))
            stop.request(name)

        return on_signal

    loop = asyncio.get_running_loop()
    names = [name for name in ("SIGINT", "SIGTERM") if hasattr(signal, name)]
    try:
        for name in names:
            loop.add_signal_handler(signal.Signals[name], request_stop(name))
    except NotImplementedError:  # Windows: Ctrl-C then cancels the run, which is stored as far as it came
        names = []
    try:
        yield
    finally:
        for name in names:
            loop.remove_signal_handler(signal.Signals[name])
