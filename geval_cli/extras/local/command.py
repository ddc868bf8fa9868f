"""`geval models`: local models, how to fetch them, and the table of providers."""

import os
import sys

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from geval_cli.extras.local.fetch import pull
from geval_cli.extras.local.models import KNOWN_MODELS, find_model, installed_models, is_intact, models_dir
from geval_cli.providers.registry import provider_kinds
from geval_cli.report.console import indented, make_console, plain_table, print_trimmed

_MEGABYTE = 1_000_000


def print_models() -> None:
    """Print the known local models, and the paths of the downloaded ones."""
    here = {item.model.name: item for item in installed_models(env=os.environ)}
    console = make_console(sys.stdout, environ=os.environ)
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
        table.add_row(f"local:{model.name}", f"{model.size_bytes / _MEGABYTE:.0f} MB", model.license, state)
    print_trimmed(indented(table), console)
    for model in KNOWN_MODELS.values():
        console.print(f" {model.name}: {model.title}", style="dim")
    console.print(" any other GGUF file: local:/path/to/model.gguf", style="dim")


def print_providers() -> None:
    """Print every kind of provider with an example, its default base URL and the variable of its key."""
    console = make_console(sys.stdout, environ=os.environ)
    table = plain_table(console)
    for heading in ("provider", "example", "key", "base URL"):
        table.add_column(heading, overflow="fold")
    for name, kind in provider_kinds().items():
        table.add_row(f"{name}:", kind.example, kind.key_env or "-", kind.base_url or "-")
    print_trimmed(indented(table), console)


def pull_model(name: str) -> None:
    """Fetch a model, with progress on stderr.

    Raises:
        ModelFetchError: it cannot be had.
    """
    model = find_model(name)
    path = models_dir(os.environ) / model.file_name
    if is_intact(path, model):
        sys.stdout.write(f"{name} is here already: {path}\n")
        return
    console = make_console(sys.stderr, environ=os.environ)
    console.print(f"fetching {name} ({model.size_bytes / _MEGABYTE:.0f} MB, {model.license}), once")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as display:
        task = display.add_task(name, total=model.size_bytes)
        path = pull(name, progress=lambda done, total: display.update(task, completed=done, total=total))
    sys.stdout.write(f"{name} is ready: {path}\n")
