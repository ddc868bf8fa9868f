"""A run as reports read it: its record, counts, results and their names; and the results files of `-o`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from msgspec import Struct

from geval_cli.errors import ConfigError, GevalError, OutputError, Problem, UsageError
from geval_cli.events import RunEvent
from geval_cli.numbers import errors_failed, format_share
from geval_cli.plugins import REPORTS, extra, find_plugin, plugin_names, source_of_bug
from geval_cli.records import CaseResult, Column, MetricSummary, RecordedTest, RunRecord, RunSummary
from geval_cli.report import FORMATS
from geval_cli.report.safe_file import output_error, why_unwritable
from geval_cli.report.sanitize import one_line, sanitize
from geval_cli.source.files import PARQUET_SUFFIX

_TITLE_WIDTH = 200


class HumanLabels(Protocol):
    """Human labels of a run's outputs, to be compared with what its judges said."""

    def means(self) -> Mapping[str, Mapping[str, float]]:
        """Return the mean label of each output, 0..1, by metric and output id."""

    def charts(self, links: Callable[[Any], str]) -> Iterator[Any]:
        """Yield the drawings of labels beside scores, for pages; `links` are addresses of the outputs of a dot."""


class RunReport(Struct, frozen=True):
    """Everything that a report can draw on, for a run that is under way or stored.

    Attributes:
        tests: yields what the tests contain besides their variables, in test order; None takes it from the results.
        results: yields every stored result in the order (test, repeat, column); may be called repeatedly, and must not
            hold all results in memory at once.
        planned: how many cases the run was meant to have, if known; an interrupted run has fewer results.
        bugs: how many results were spoilt by a bug in geval.
        is_stored: whether the whole run can be shown again by its id.
        is_partly_stored: whether its id shows only part of it, for example after the disk filled up.
        file: the results file that it was read from; empty for a run from the store.
        labels: returns the human labels of its outputs; None if there are none.
    """

    run: RunRecord
    summary: RunSummary
    results: Callable[[], Iterator[CaseResult]]
    planned: int | None = None
    bugs: int = 0
    is_stored: bool = True
    is_partly_stored: bool = False
    file: str = ""
    labels: Callable[[], HumanLabels | None] = lambda: None
    tests: Callable[[], Iterator[RecordedTest]] | None = None

    def asked(self) -> Iterator[RecordedTest]:
        """Yield what the tests contain besides their variables, each test once, without keeping any in memory."""
        if self.tests is not None:
            yield from self.tests()
            return
        last = -1
        for result in self.results():
            if result.asked is not None and result.test_index != last:
                last = result.test_index
                yield result.asked

    @property
    def hint_for_all(self) -> str:
        """The hint that says how to get all of the run."""
        if not self.is_stored and not self.file:
            return "run with -o results.json"
        return f"geval show {sanitize(self.file or self.run.id)} --all"

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.run.columns


def run_title(run: RunRecord) -> str:
    """Return the title of a run on every page and in every report: its name, else the file name of its config."""
    return one_line(run.title or Path(run.config_path).name or run.config_path or "results", _TITLE_WIDTH)


def worst_case(summary: RunSummary) -> str:
    """Return what follows a pass rate, `, at least 50 % if all 20 errors failed`; "" without errors or passes."""
    if not summary.passed or not summary.errored:
        return ""
    least = summary.passed / (summary.passed + summary.failed + summary.errored)
    return f", at least {format_share(least)} {errors_failed(summary.errored)}"


def informative_metrics(summary: RunSummary) -> dict[str, MetricSummary]:
    """Return the metrics of a run, except comparisons of all columns with each other, whose mean is always a half."""
    return {
        name: metric
        for name, metric in summary.metrics.items()
        if name not in summary.rankings or not metric.is_half
    }


class ResultsFile(Protocol):
    """A results file of a run under way; it receives every event and is completed with the whole report."""

    def listen(self, event: RunEvent) -> None:
        """Handle an event. Never raises: a paid run must not stop because a file cannot be written."""
        ...

    def finish(self, report: RunReport) -> None:
        """Complete the file, however the run ended.

        Raises:
            OutputError: the file could not be written.
        """
        ...


def file_of_tests(path: Path) -> Path:
    """Return the path of the file with the tests of the results in `path`: `r.tests.parquet` beside `r.parquet`."""
    return path.with_name(f"{path.stem}.tests{path.suffix}")


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the files that are written for results at `path`: Parquet has a second one, for the tests."""
    return (path, file_of_tests(path)) if path.suffix.lower() == PARQUET_SUFFIX else (path,)


def check_output_path(path: Path) -> Problem | None:
    """Return the problem that prevents writing results to `path`, if any; call this before a run starts."""
    if _format_of(path) is None:
        known = ", ".join(sorted((*FORMATS, *(f".{name}" for name in plugin_names(REPORTS)))))
        what = f"`{path.suffix}` is not a known format" if path.suffix else "the file name has no extension"
        return Problem(
            f"cannot write results to {path}: {what}", hint=f"use a name that ends in one of: {known}"
        )
    files = files_of(path)
    if len(files) > 1 and (problem := extra("Parquet files").write_problem(path)) is not None:
        return cast("Problem", problem)
    for what, file in zip(("results", "tests"), files, strict=False):
        try:
            obstacle = why_unwritable(file)
        except OSError as trouble:
            error = output_error(file, trouble)
            return Problem(error.message, hint=error.hint)
        if obstacle is not None:
            reason, hint = obstacle
            return Problem(f"cannot write {what} to {file}: {reason}", hint=hint)
    if files[-1].exists() and not path.exists():
        message = f"{files[-1]} would be overwritten: the tests of {path} are written to it"
        return Problem(message, hint="choose another name, or move that file")
    return None


def check_output_paths(paths: Sequence[Path]) -> None:
    """Check the requested results files before anything is paid for.

    Raises:
        ConfigError: with one problem for each file that cannot be written.
    """
    problems = [problem for path in paths if (problem := check_output_path(path)) is not None]
    for path in paths:
        for tests in files_of(path)[1:]:
            if tests in paths:
                message = f"the tests of {path} are written to {tests} too"
                problems.append(Problem(message, hint="choose another name for one of the files"))
    if problems:
        raise ConfigError(problems)


def open_results_file(path: Path) -> ResultsFile:
    """Return a listener that writes `path` in the format of its extension; call `check_output_path` first.

    Raises:
        ValueError: no format has this extension.
    """
    found = _format_of(path)
    if found is None:
        raise ValueError(f"no results format for {path}")
    file: ResultsFile = found(path)
    return file


def write_results_file(path: Path, report: RunReport) -> None:
    """Write a stored run to `path` in the format of its extension.

    Raises:
        OutputError: the file cannot be written.
        ValueError: no format has this extension.
    """
    open_results_file(path).finish(report)


def _format_of(path: Path) -> Callable[[Path], Any] | None:
    """Return the class for the longest known ending of the file name; a plugin's only if geval has no format for it."""
    name = path.name.lower()
    if ending := max(filter(name.endswith, FORMATS), key=len, default=""):
        module, class_name = FORMATS[ending]
        return cast("Callable[[Path], Any]", getattr(import_module(f"geval_cli.{module}"), class_name))
    added = next((plugin for plugin in plugin_names(REPORTS) if name.endswith(f".{plugin}")), None)
    if added is None:
        return None
    made = find_plugin(REPORTS, added)
    if not (isinstance(made, type) and hasattr(made, "listen") and hasattr(made, "finish")):
        raise UsageError(
            f"the plugin `{added}` is not a report format",
            hint="its entry point must name a class with `listen` and `finish`",
        )
    return lambda path: _PluginFile(made, path)


class _PluginFile:
    """A results file of a plugin: an exception in the plugin's code neither stops the run nor loses another file."""

    def __init__(self, made: Callable[[Path], ResultsFile], path: Path) -> None:
        self._path = path
        self._error: BaseException | None = None
        try:
            self._file = made(path)
        except (Exception, SystemExit) as error:
            raise self._problem_of(error) from error

    def listen(self, event: RunEvent) -> None:
        """Pass an event on, unless one has already failed."""
        if self._error is None:
            try:
                self._file.listen(event)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the code of a package raises
                self._error = error

    def finish(self, report: RunReport) -> None:
        """Complete the file.

        Raises:
            OutputError: the plugin's code failed, here or while listening.
        """
        if self._error is None:
            try:
                self._file.finish(report)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the code of a package raises
                self._error = error
        if self._error is not None:
            raise self._problem_of(self._error) from self._error

    def _problem_of(self, error: BaseException) -> Exception:
        if isinstance(error, GevalError):
            return error
        if isinstance(error, OSError):
            return output_error(self._path, error)
        return OutputError(
            f"cannot write {self._path}: a bug in {source_of_bug(error)}: {type(error).__name__}: {error}",
            path=str(self._path),
            hint="report it to its authors; `geval show RUN -o FILE` with --debug shows the traceback",
        )
