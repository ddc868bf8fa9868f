"""A run as the reports read it: its record, its counts, its results and their names; and the files of `-o`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from msgspec import Struct

from geval_cli.errors import ConfigError, GevalError, OutputError, Problem, UsageError
from geval_cli.events import RunEvent
from geval_cli.numbers import errors_failed, format_share
from geval_cli.plugins import REPORTS, extra, find_plugin, plugin_names, source_of_bug
from geval_cli.records import AskedTest, CaseResult, Column, MetricSummary, RunRecord, RunSummary
from geval_cli.report import FORMATS
from geval_cli.report.safe_file import obstacle_to, output_error
from geval_cli.report.sanitize import one_line, sanitize
from geval_cli.source.files import PARQUET_SUFFIX

_TITLE_WIDTH = 200


class HumanLabels(Protocol):
    """Human labels of a run's outputs, beside what its judges said of them."""

    def means(self) -> Mapping[str, Mapping[str, float]]:
        """Return the mean label of each output, 0..1, by metric and the output's id."""

    def charts(self, links: Callable[[Any], str]) -> Iterator[Any]:
        """Yield the drawings of labels beside scores, for pages; `links` are addresses of the outputs of a dot."""


class RunReport(Struct, frozen=True):
    """Everything that a report of a run, under way or stored, may draw on.

    Attributes:
        tests: yields what the tests bring beside their variables, in their order; None finds it in the results.
        results: yields every stored result in the order (test, repeat, column); may be called again and again, and
            must not hold all results at once.
        planned: how many cases the run was to have, where that is known; an interrupted run has fewer results.
        bugs: how many results a bug in geval spoilt.
        is_stored: whether all of it can be shown again by its id.
        is_partly_stored: whether its id shows some of it, as after a disk that filled up.
        file: the results file that it was read from; empty for a run of the store.
        labels: returns what people said of its outputs; None where nobody did.
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
    tests: Callable[[], Iterator[AskedTest]] | None = None

    def asked(self) -> Iterator[AskedTest]:
        """Yield what the tests bring beside their variables, each once and none kept."""
        if self.tests is not None:
            yield from self.tests()
            return
        last = -1
        for result in self.results():
            if result.asked is not None and result.test_index != last:
                last = result.test_index
                yield result.asked

    @property
    def way_to_everything(self) -> str:
        """Return the hint that says how to get all of it in a file."""
        if not self.is_stored and not self.file:
            return "run with -o results.json"
        return f"geval show {sanitize(self.file or self.run.id)} --all"

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.run.columns


def run_title(run: RunRecord) -> str:
    """Return what a run is called on every page and in every report: its name, else the file of its config."""
    return one_line(run.title or Path(run.config_path).name or run.config_path or "results", _TITLE_WIDTH)


def worst_case(summary: RunSummary) -> str:
    """Return what follows a pass rate: `, at least 50 % if all 20 errors failed`; nothing without errors or passes."""
    if not summary.passed or not summary.errored:
        return ""
    least = summary.passed / (summary.passed + summary.failed + summary.errored)
    return f", at least {format_share(least)} {errors_failed(summary.errored)}"


def telling_metrics(summary: RunSummary) -> dict[str, MetricSummary]:
    """Return the metrics of a run but for comparisons of all columns with each other, whose mean is always a half."""
    return {
        name: metric
        for name, metric in summary.metrics.items()
        if name not in summary.rankings or not metric.is_half
    }


class ResultsFile(Protocol):
    """One results file of a run under way. It hears every event and is finished with the whole report."""

    def listen(self, event: RunEvent) -> None:
        """Take note of an event. Never raises: no paid run stops because a file cannot be written."""
        ...

    def finish(self, report: RunReport) -> None:
        """Complete the file, whatever way the run ended.

        Raises:
            OutputError: the file could not be written.
        """
        ...


def file_of_tests(path: Path) -> Path:
    """Return the file with the tests of the results in `path`: `r.tests.parquet` beside `r.parquet`."""
    return path.with_name(f"{path.stem}.tests{path.suffix}")


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the files that results written to `path` take: Parquet has one more, for the tests."""
    return (path, file_of_tests(path)) if path.suffix.lower() == PARQUET_SUFFIX else (path,)


def check_output_path(path: Path) -> Problem | None:
    """Return the problem of writing results to `path`, if any; to be called before a run starts."""
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
            obstacle = obstacle_to(file)
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
    """Check the results files that were asked for, before anything is paid for.

    Raises:
        ConfigError: with a problem for each that cannot be written.
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
    """Return a listener that writes `path` in the format of its ending; call `check_output_path` first.

    Raises:
        ValueError: no format has this ending.
    """
    found = _format_of(path)
    if found is None:
        raise ValueError(f"no results format for {path}")
    file: ResultsFile = found(path)
    return file


def write_results_file(path: Path, report: RunReport) -> None:
    """Write a stored run to `path` in the format of its ending.

    Raises:
        OutputError: the file cannot be written.
        ValueError: no format has this ending.
    """
    open_results_file(path).finish(report)


def _format_of(path: Path) -> Callable[[Path], Any] | None:
    """Return the class of the longest ending that the name has; that of a package only where geval has none."""
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
    """A results file of an installed package: what its code raises stops no run and loses no other file."""

    def __init__(self, made: Callable[[Path], ResultsFile], path: Path) -> None:
        self._path = path
        self._error: Exception | None = None
        try:
            self._file = made(path)
        except Exception as error:
            raise self._problem_of(error) from error

    def listen(self, event: RunEvent) -> None:
        """Pass an event on, until one fails."""
        if self._error is None:
            try:
                self._file.listen(event)
            except Exception as error:  # noqa: BLE001 - whatever the code of a package raises
                self._error = error

    def finish(self, report: RunReport) -> None:
        """Complete the file.

        Raises:
            OutputError: the code of the package failed, now or while it was listening.
        """
        if self._error is None:
            try:
                self._file.finish(report)
            except Exception as error:  # noqa: BLE001 - whatever the code of a package raises
                self._error = error
        if self._error is not None:
            raise self._problem_of(self._error) from self._error

    def _problem_of(self, error: Exception) -> Exception:
        if isinstance(error, GevalError):
            return error
        if isinstance(error, OSError):
            return output_error(self._path, error)
        said = f"{type(error).__name__}: {error}"
        return OutputError(
            f"cannot write {self._path}: a bug in {source_of_bug(error)}: {said}",
            path=str(self._path),
            hint="report it to its authors; `geval show RUN -o FILE` with --debug shows the traceback",
        )
