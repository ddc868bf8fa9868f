"""Suites loaded from files, completely or not at all."""

from collections.abc import Mapping
from pathlib import Path

from geval_cli.errors import ConfigError
from geval_cli.source.problems import sort_problems
from geval_cli.suite.load import open_suite
from geval_cli.suite.suite import LoadedSuite


def load_suite(
    path: Path, *, env: Mapping[str, str], variables: Mapping[str, str] | None = None
) -> LoadedSuite:
    """Return the suite in a file; ConfigError lists all its problems, including those of tests."""
    opened = open_suite(path, env=env, variables=variables or {})
    if not opened.problems:
        return opened.suite
    problems = list(opened.problems)
    try:
        for _ in opened.suite.tests:
            pass
    except ConfigError as error:
        problems += error.problems
    raise ConfigError(sort_problems(problems))
