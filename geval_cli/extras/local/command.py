"""`geval models`: local models, how to fetch them, and the table of providers."""

import os
import sys

import typer

from geval_cli.cli.options import CommandTable, ListProviders, ModelName
from geval_cli.numbers import format_bytes, plural

commands = CommandTable()
models = CommandTable(help="List or fetch local models.", invoke_without_command=True)
commands.add_typer(models, name="models")


@models.callback()
def list_models(context: typer.Context, providers: ListProviders = False) -> None:
    """List or fetch local models."""
    if context.invoked_subcommand is None:
        print_providers() if providers else print_models()


@models.command("pull")
def pull_model(model: ModelName = "smollm2") -> None:
    """Fetch a local model once, for later runs."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from geval_cli.extras.local.fetch import pull
    from geval_cli.extras.local.models import find_model, is_intact, models_dir
    from geval_cli.report.console import make_console

    known = find_model(model)
    path = models_dir(os.environ) / known.file_name
    if is_intact(path, known):
        sys.stdout.write(f"{model} is already on this machine: {path}\n")
        return
    console = make_console(sys.stderr, environ=os.environ)
    console.print(f"fetching {model} ({format_bytes(known.size_bytes)}, {known.license}), once")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as display:
        task = display.add_task(model, total=known.size_bytes)
        path = pull(model, progress=lambda done, total: display.update(task, completed=done, total=total))
    sys.stdout.write(f"{model} is ready: {path}\n")


def print_models() -> None:
    """Print the known local models, and the paths of the downloaded ones."""
    from rich.text import Text

    from geval_cli.extras.local.models import KNOWN_MODELS, installed_models
    from geval_cli.report.console import indented, make_console, plain_table, print_hanging, print_trimmed

    here = {item.model.name: item for item in installed_models(env=os.environ)}
    console = make_console(sys.stdout, environ=os.environ)
    intact = sum(item.is_intact for item in here.values())
    console.print(
        Text(
            f" {intact:,} of {plural(len(KNOWN_MODELS), 'known local model')} on this machine\n", style="bold"
        )
    )
    table = plain_table(console)
    for heading in ("model", "size", "licence", "state"):
        table.add_column(heading, overflow="fold")
    for model in KNOWN_MODELS.values():
        item = here.get(model.name)
        if item is None:
            state = f"not here; `geval models pull {model.name}` fetches it"
        elif item.is_intact:
            state = f"here: {item.path}"
        else:
            state = f"damaged: {item.path}; `geval models pull {model.name}` fetches it again"
        table.add_row(f"local:{model.name}", format_bytes(model.size_bytes), model.license, state)
    print_trimmed(indented(table), console)
    for model in KNOWN_MODELS.values():
        print_hanging(Text(), Text(f"{model.name}: {model.title}", style="dim"), console, indent=1)
    console.print(" any other GGUF file: local:/path/to/model.gguf", style="dim")


def print_providers() -> None:
    """Print every kind of provider with an example, its default base URL and the variable of its key."""
    from geval_cli.providers.registry import provider_kinds
    from geval_cli.report.console import indented, make_console, plain_table, print_trimmed

    console = make_console(sys.stdout, environ=os.environ)
    table = plain_table(console)
    for heading in ("provider", "example", "key", "base URL"):
        table.add_column(heading, overflow="fold")
    for name, kind in provider_kinds().items():
        table.add_row(f"{name}:", kind.example, kind.key_env or "-", kind.base_url or "-")
    print_trimmed(indented(table), console)
