"""`geval models`: list and download local models, list the kinds of providers, and check what a model supports."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from geval_cli.cli.options import CommandTable, ListProviders, ModelName, PrintsJson, ProviderId
from geval_cli.numbers import format_bytes, format_cost, format_duration, plural

if TYPE_CHECKING:
    from geval_cli.extras.local.check import ModelCheck

commands = CommandTable()
models = CommandTable(help="List, fetch or check models.", invoke_without_command=True)
commands.add_typer(models, name="models")


@models.callback()
def list_models(context: typer.Context, providers: ListProviders = False) -> None:
    """List, fetch or check models."""
    if context.invoked_subcommand is None:
        print_providers() if providers else print_models()


@models.command("pull")
def pull_model(model: ModelName = "smollm2") -> None:
    """Fetch a local model once, for later runs."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from geval_cli.extras.local.models import find_model, is_intact, models_dir, pull
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


@models.command("check")
def check(provider: ProviderId, as_json: PrintsJson = False) -> None:
    """Ask a model a few short questions and show what it can do."""
    from geval_cli.errors import UsageError
    from geval_cli.extras.local.check import ModelCheck, check_model
    from geval_cli.gateway.budget import Budget
    from geval_cli.gateway.gateway import CallPolicy
    from geval_cli.json_codec import encode_json
    from geval_cli.records import SCHEMA_VERSION, to_json
    from geval_cli.runs.event_loop import run_async
    from geval_cli.runs.session import judge_problems, open_session
    from geval_cli.specs.base import ProviderSpec

    async def ask() -> ModelCheck:
        budget = Budget()
        policy = CallPolicy(budget)
        async with open_session(env=os.environ, base_dir=Path.cwd(), policy=policy) as session:
            return await check_model(session.model_for(spec), budget)

    spec = ProviderSpec(id=provider)
    if problems := [*judge_problems(spec, env=os.environ, base_dir=Path.cwd())]:
        raise UsageError.of(f"{spec.public_id} cannot be checked", problems)
    found = run_async(ask())
    if as_json:
        document = {"schema_version": SCHEMA_VERSION, "kind": "model_check", **to_json(found)}
        sys.stdout.write(f"{encode_json(document).decode()}\n")
        return
    print_check(found)


def print_check(found: "ModelCheck") -> None:
    """Print what a model supports: one sentence, then a row for each feature."""
    from rich.text import Text

    from geval_cli.report.console import is_unicode, make_console, print_rows

    console = make_console(sys.stdout, environ=os.environ)
    cost = "cost unknown" if found.usage.cost_usd is None else format_cost(found.usage.cost_usd)
    latency = "" if found.latency_ms is None else f" in {format_duration(found.latency_ms)}"
    model = f" ({found.model})" if found.model and not found.provider.endswith(found.model) else ""
    took = f"this check took {plural(found.requests, 'request')} ({cost})"
    console.print(Text(f" {found.provider}{model} answers{latency}; {took}\n"))
    marks = (
        {True: "✓", False: "✗", None: "?"} if is_unicode(console) else {True: "yes", False: "no", None: "?"}
    )
    rows = ((marks[one.can], one.feature, one.detail) for one in found.findings)
    print_rows(console, "lll", ("", "feature", "what was seen"), rows)


def print_models() -> None:
    """Print the known local models, with the paths of those that are installed."""
    from rich.text import Text

    from geval_cli.extras.local.models import KNOWN_MODELS, installed_models
    from geval_cli.report.console import make_console, print_hanging, print_rows

    here = {item.model.name: item for item in installed_models(env=os.environ)}
    console = make_console(sys.stdout, environ=os.environ)
    intact = sum(item.is_intact for item in here.values())
    console.print(
        Text(f" {intact:,} of {plural(len(KNOWN_MODELS), 'known local model')} installed\n", style="bold")
    )
    rows = []
    for model in KNOWN_MODELS.values():
        item = here.get(model.name)
        if item is None:
            state = f"not installed: geval models pull {model.name}"
        elif item.is_intact:
            state = str(item.path)
        else:
            state = f"damaged: {item.path}; fetch it again: geval models pull {model.name}"
        rows.append((f"local:{model.name}", format_bytes(model.size_bytes), model.license, state))
    print_rows(console, "llll", ("model", "size", "licence", "file"), rows)
    for model in KNOWN_MODELS.values():
        print_hanging(Text(), Text(f"{model.name}: {model.title}", style="dim"), console, indent=1)
    console.print(" any other GGUF file: local:/path/to/model.gguf", style="dim")


def print_providers() -> None:
    """Print every kind of provider with an example, its API key variable and its default base URL."""
    from geval_cli.plugins import PROVIDERS, plugin_names
    from geval_cli.providers.registry import provider_kinds
    from geval_cli.report.console import make_console, print_rows

    console = make_console(sys.stdout, environ=os.environ)
    kinds = provider_kinds()
    rows = [
        (f"{name}:", kind.example, kind.key_env or "-", kind.base_url or "-") for name, kind in kinds.items()
    ]
    added = [name for name in plugin_names(PROVIDERS) if name not in kinds]
    rows += [(f"{name}:", f"{name}:...", "-", "of a plugin") for name in added]
    print_rows(console, "llll", ("provider", "example", "key", "base URL"), rows)
