"""The commands with their options. Bodies import what they need when they run, so that `--help` is quick."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from geval_cli.version import __version__

EXIT_CODES = """\
Exit codes: 0 all passed or not evaluated; 1 something failed; 2 usage or config; 3 nothing failed, but something
could not be judged; 4 a bug in geval; 130 stopped by Ctrl-C; 143 terminated."""

app = typer.Typer(
    name="geval",
    help="Run prompts against models and have every answer checked, first of all by G-Eval.",
    epilog=f"{EXIT_CODES}\n\nWith --debug, any command shows the tracebacks of errors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich costs 0.2 s of every start
    context_settings={"help_option_names": ["-h", "--help"]},
)

Configs = Annotated[
    list[Path], typer.Argument(metavar="CONFIG...", help="Config files, run one after another.")
]
Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="The config file.")]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home", metavar="FOLDER", help="Where runs and cache are kept. [default: $GEVAL_HOME or .geval]"
    ),
]
EnvFile = Annotated[
    Path | None, typer.Option("--env-file", help="Read environment variables from this file.")
]
Variables = Annotated[
    list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help="Set a variable in every test.")
]
Grader = Annotated[
    str | None, typer.Option("--grader", metavar="PROVIDER", help="Who judges, for example openai:gpt-4.1.")
]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", "-V", help="Show the version.")] = False,
) -> None:
    """Run prompts against models and have every answer checked, first of all by G-Eval."""
    if version:
        typer.echo(f"geval {__version__}")
        raise typer.Exit


@app.command(epilog=EXIT_CODES)
def run(  # noqa: PLR0913, PLR0917 - one parameter per option of the command
    configs: Configs,
    output: Annotated[
        list[Path] | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write results: .json or .jsonl; repeatable."),
    ] = None,
    max_concurrency: Annotated[
        int | None, typer.Option("-j", "--max-concurrency", min=1, help="Most requests under way at once.")
    ] = None,
    grader: Grader = None,
    scoring: Annotated[
        str | None, typer.Option("--scoring", metavar="HOW", help="auto, logprobs, samples or single.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", min=1, max=1000, help="Judge each output this many times.")
    ] = None,
    var: Variables = None,
    env_file: EnvFile = None,
    home: Home = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Use no answers from earlier runs.")] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No progress display.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show passed assertions too, with the judge's steps.")
    ] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first failure or error.")
    ] = False,
) -> None:
    """Send prompts x providers x tests to models and check every answer."""
    from geval_cli.cli.arguments import parse_scoring, parse_variables
    from geval_cli.cli.run import RunDisplay, run_configs
    from geval_cli.service import RunRequest

    requests = [
        RunRequest(
            config=config,
            environ=os.environ,
            env_file=env_file,
            variables=parse_variables(var or ()),
            grader=grader,
            scoring=parse_scoring(scoring, samples),
            samples=samples,
            max_concurrency=max_concurrency,
            reads_cache=not no_cache,
            fail_fast=fail_fast,
        )
        for config in configs
    ]
    display = RunDisplay(tuple(output or ()), shows_progress=not no_progress, is_verbose=verbose)
    _exit(run_configs(requests, display, home=home))


@app.command()
def validate(
    configs: Configs,
    grader: Grader = None,
    var: Variables = None,
    env_file: EnvFile = None,
) -> None:
    """Report every problem of a config; nothing is sent."""
    from geval_cli.cli.arguments import parse_variables
    from geval_cli.cli.configs import validate_configs
    from geval_cli.service import RunRequest

    variables = parse_variables(var or ())
    _exit(
        validate_configs(
            [RunRequest(config, os.environ, env_file, variables, grader=grader) for config in configs]
        )
    )


@app.command()
def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")] = Path(
        "gevalconfig.yaml"
    ),
) -> None:
    """Write a small commented config that runs."""
    from geval_cli.cli.configs import write_starter

    write_starter(path)


@app.command()
def schema(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write it to a file instead.")
    ] = None,
) -> None:
    """Print the JSON Schema of a config, for editors."""
    from geval_cli.cli.configs import write_schema

    write_schema(output)


export = typer.Typer(help="Write what geval holds to a file.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(export, name="export")


@export.callback()
def export_what() -> None:
    """Write what geval holds to a file."""


@export.command("suite")
def export_suite(
    config: Config,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Where to, as JSON. [default: stdout]"),
    ] = None,
    env_file: EnvFile = None,
) -> None:
    """Write a config as one JSON file, the texts of its files in it."""
    from geval_cli.cli.configs import export_suite as write_suite

    write_suite(config, output, env_file=env_file)


@app.command("import")
def import_suite(
    suite: Annotated[Path, typer.Argument(metavar="FILE", help="What `geval export suite` wrote.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Where to, as YAML. [default: stdout]"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    env_file: EnvFile = None,
) -> None:
    """Write an exported suite as a YAML config."""
    from geval_cli.cli.configs import import_suite as write_config

    write_config(suite, output, env_file=env_file, may_replace=force)


@app.command("list")
def list_runs(
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="How many runs.")] = 20, home: Home = None
) -> None:
    """List stored runs, newest first."""
    from geval_cli.cli.runs import print_runs

    print_runs(home, limit=limit)


@app.command()
def show(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's id, its beginning, or `latest`.")
    ] = "latest",
    output: Annotated[
        list[Path] | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write it to a file: .json or .jsonl."),
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show passed assertions too.")] = False,
    home: Home = None,
) -> None:
    """Show a stored run again."""
    from geval_cli.cli.runs import show_run

    show_run(home, run, outputs=tuple(output or ()), verbose=verbose)


models = typer.Typer(
    help="Local models, and which providers there are.", invoke_without_command=True, rich_markup_mode=None
)
app.add_typer(models, name="models")


@models.callback()
def list_models(
    context: typer.Context,
    providers: Annotated[
        bool, typer.Option("--providers", help="List providers with their base URLs and keys.")
    ] = False,
) -> None:
    """List the local models that geval knows, and which of them are here."""
    if context.invoked_subcommand is None:
        from geval_cli.cli.models import print_models, print_providers

        print_providers() if providers else print_models()


@models.command()
def pull(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="For example smollm2.")] = "smollm2",
) -> None:
    """Fetch a local model, once; later calls find it."""
    from geval_cli.cli.models import pull_model

    pull_model(model)


def _exit(code: Any) -> None:
    raise typer.Exit(int(code))
