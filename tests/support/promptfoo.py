"""Small promptfoo configs in a folder, and what geval makes of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from geval_cli.assertions.base import MergedTest
from geval_cli.engine.plan import Plan
from geval_cli.engine.prompt import render_prompt, seen_by_templates
from geval_cli.errors import ConfigError
from geval_cli.runs.prepare import templates_for
from geval_cli.specs.dialect import Dialect
from geval_cli.suite.load import open_suite
from geval_cli.suite.suite import LoadedSuite, OpenedSuite

NAME = "promptfooconfig.yaml"


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write texts to files below `folder`."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def open_config(
    folder: Path,
    content: Mapping[str, Any] | str,
    *,
    files: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    joined: tuple[Path, ...] = (),
) -> OpenedSuite:
    """Return the suite of a config (text, or data to be written as JSON), with its problems if it has any."""
    write_files(folder, files or {})
    path = folder / NAME
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return open_suite(
        path, env=env or {}, variables=variables or {}, dialect=Dialect.PROMPTFOO, joined=joined
    )


def load(folder: Path, content: Mapping[str, Any] | str, **options: Any) -> LoadedSuite:
    """Return the suite of a config without errors."""
    opened = open_config(folder, content, **options)
    assert not opened.problems, [problem.message for problem in opened.problems]
    return opened.suite


def errors_of(folder: Path, content: Mapping[str, Any] | str, **options: Any) -> list[str]:
    """Return the messages of all errors in a config."""
    return [problem.message for problem in open_config(folder, content, **options).problems]


def warnings_of(folder: Path, content: Mapping[str, Any] | str, **options: Any) -> list[str]:
    """Return the messages of all warnings about a config."""
    return [problem.message for problem in open_config(folder, content, **options).suite.warnings]


def cases(folder: Path, content: Mapping[str, Any] | str, **options: Any) -> list[MergedTest]:
    """Return the test cases of a config without errors."""
    return list(load(folder, content, **options).tests)


def prompts_sent(folder: Path, content: Mapping[str, Any] | str, **options: Any) -> list[str]:
    """Return the prompts of a config as sent, in the order of the run."""
    suite = load(folder, content, **options)
    templates = templates_for(suite)
    try:
        return [
            render_prompt(job.prompt, seen_by_templates(job.test, templates), templates).whole
            for queue in Plan(suite).queues
            for job in queue
        ]
    except ConfigError as error:
        raise AssertionError([problem.message for problem in error.problems]) from error
