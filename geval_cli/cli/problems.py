"""Errors, config problems and notes on stderr, in one form."""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from geval_cli.errors import ConfigError, GevalError, Problem, Severity
from geval_cli.source.problems import render_problems


def print_problems(problems: Sequence[Problem]) -> None:
    """Print every problem with its location."""
    if problems:
        sys.stderr.write(render_problems(problems).rstrip("\n") + "\n")


def print_annotations(problems: Sequence[Problem]) -> None:
    """Show problems on the lines of the config in a pull request, if a GitHub workflow reads the output."""
    if "GITHUB_ACTIONS" in os.environ:
        from geval_cli.cli.streams import write_commands
        from geval_cli.extras.pull_requests.problem_formats import Origin, annotations

        write_commands(annotations(problems, os.environ, origin=Origin.CONFIG), sys.stderr)


def print_warnings(texts: Sequence[str]) -> None:
    """Print each text as a warning."""
    print_problems([Problem(text, severity=Severity.WARNING) for text in texts])


def print_note(text: str) -> None:
    """Print useful information at once, in place of the progress line."""
    print_progress("")
    sys.stderr.write(f"note: {text}\n")
    sys.stderr.flush()


def print_progress(text: str) -> None:
    """Show the progress of a command on a terminal, replacing what was shown before; an empty text removes it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def keep_runs(outputs: Sequence[Path], names: Iterable[str | None]) -> None:
    """Refuse to overwrite a results file whose run is read; `names` are of runs, some of which may be files.

    Raises:
        ConfigError: one of the outputs is such a file.
    """
    read = {Path(name).resolve() for name in names if name}
    for path in outputs:
        if path.resolve() in read and path.is_file():
            hint = "choose another file, or it would be overwritten"
            raise ConfigError([Problem(f"cannot write to {path}: it is read as a run", hint=hint)])


def print_error(error: GevalError) -> None:
    """Print an error that ends the command."""
    if isinstance(error, ConfigError):
        print_problems(error.problems)
        print_annotations(error.problems)
        count = sum(1 for problem in error.problems if problem.severity == "error")
        sys.stderr.write(f"\n{count} problem{'' if count == 1 else 's'}; nothing was sent\n")
    else:
        print_problems([Problem(error.message, error.location, error.hint)])
