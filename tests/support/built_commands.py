"""Builds the command line once per test process: Typer would build all commands anew for every call."""

import functools

import typer.main
from typer.core import TyperGroup

from geval_cli.cli.app import app


def keep_built_commands() -> None:
    """Use the same built `geval` command for every call in this process from now on."""
    if not hasattr(typer.main.get_command, "cache_info"):
        typer.main.get_command = functools.cache(typer.main.get_command)


def build_commands() -> None:
    """Build all commands now, including the parsers of their options."""
    keep_built_commands()
    groups = [typer.main.get_command(app)]
    for group in groups:
        commands = [group.get_command(None, name) for name in group.list_commands(None)]
        groups += [item for item in commands if isinstance(item, TyperGroup)]
        for command in (group, *commands):
            for parameter in command.params:
                parameter.get_runtime_param()
