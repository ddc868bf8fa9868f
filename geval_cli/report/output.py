"""Results files (`-o`): which format a name asks for, whether it can be written, and writing it."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from geval_cli.errors import ConfigError, Problem
from geval_cli.events import RunEvent
from geval_cli.plugins import REPORTS, extra, find_plugin, plugin_names
from geval_cli.report import FORMATS
from geval_cli.report.report import RunReport
from geval_cli.report.safe_file import obstacle_to, output_error
from geval_cli.source.files import PARQUET_SUFFIX


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
    return None if added is None else cast("Callable[[Path], Any]", find_plugin(REPORTS, added))
