"""`geval validate`, `geval init`, `geval schema`."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from geval_cli.cli.run import parse_variables, prepare_all
from geval_cli.config.json_schema import config_json_schema
from geval_cli.config.starter import STARTER_CONFIG
from geval_cli.errors import ExitCode, UsageError
from geval_cli.service import PreparedRun, RunRequest


def validate_configs(
    configs: Sequence[Path], *, grader: str | None, variables: Sequence[str], env_file: Path | None
) -> ExitCode:
    """Say for each config that it is valid, and what a run of it would do.

    Raises:
        ConfigError: with every problem of every config.
    """
    requests = [
        RunRequest(
            config=config,
            environ=os.environ,
            env_file=env_file,
            variables=parse_variables(variables),
            grader=grader,
        )
        for config in configs
    ]
    for prepared in prepare_all(requests, is_going_to_run=False):
        sys.stdout.write(_described(prepared) + "\n")
    return ExitCode.OK


def write_starter(path: Path) -> None:
    """Write the starter config.

    Raises:
        UsageError: the file exists already, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(STARTER_CONFIG)
    except FileExistsError as error:
        raise UsageError(
            f"{path} exists already, and is left as it is", hint="name another file: geval init FILE"
        ) from error
    except OSError as error:
        raise _cannot_write(path, error) from error
    sys.stdout.write(f"wrote {path}; try: geval run {path}\n")


def write_schema(path: Path | None) -> None:
    """The JSON Schema of a config, to `path` or to stdout.

    Raises:
        UsageError: the file cannot be written.
    """
    text = json.dumps(config_json_schema(), indent=2) + "\n"
    if path is None:
        sys.stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _cannot_write(path, error) from error
    sys.stdout.write(f"wrote {path}\n")


def _cannot_write(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path} cannot be written: {error.strerror}", hint="name a file in a folder that exists"
    )


def _described(prepared: PreparedRun) -> str:
    columns = len(prepared.plan.columns)
    return (
        f"{prepared.suite.path}: valid. {_count(prepared.tests, 'test')} x {_count(columns, 'prompt-provider pair')}"
        f" = {_count(prepared.total, 'case')}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
