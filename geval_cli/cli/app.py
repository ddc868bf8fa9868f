"""The commands with their options. Bodies import what they need when they run, so that `--help` is quick."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from geval_cli.errors import ExitCode
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
    list[Path] | None,
    typer.Argument(
        metavar="[CONFIG]...",
        help="Config files, run one after another. [default: gevalconfig.yaml or promptfooconfig.yaml here]",
        show_default=False,
    ),
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
CacheFolder = Annotated[
    Path | None,
    typer.Option("--cache-dir", metavar="FOLDER", help="Where the cache is. [default: the home folder]"),
]
DialectName = Annotated[
    str | None,
    typer.Option(
        "--dialect", metavar="NAME", help="geval or promptfoo. [default: as the config says itself]"
    ),
]
Merge = Annotated[bool, typer.Option("--merge", help="Join the configs into one suite, as promptfoo does.")]
Variables = Annotated[
    list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help="Set a variable in every test.")
]
Grader = Annotated[
    str | None, typer.Option("--grader", metavar="PROVIDER", help="Who judges, for example openai:gpt-4.1.")
]
Untrusted = Annotated[
    bool,
    typer.Option(
        "--untrusted",
        help="For a stranger's config: no code, no environment values, no files elsewhere, known vendors only.",
    ),
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
    configs: Configs = None,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write results: .json, .jsonl, .csv, .html, .md, .junit.xml; repeatable.",
        ),
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
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the latest unfinished run of this config.")
    ] = False,
    resume_from: Annotated[
        str | None, typer.Option("--resume-from", metavar="RUN", help="Go on with this run.")
    ] = None,
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="Do the errored cases of the latest run again.")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Only the cache answers; nothing is sent, no key is needed.")
    ] = False,
    cache_dir: CacheFolder = None,
    cache_ttl: Annotated[
        str | None,
        typer.Option("--cache-ttl", metavar="AGE", help="Use answers up to this age: 12h, 30d, never. [14d]"),
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option("--max-cost", metavar="USD", help="Stop when so much is spent.")
    ] = None,
    max_requests: Annotated[
        int | None, typer.Option("--max-requests", min=0, help="Stop after so many requests.")
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what a run would ask and cost; send nothing.")
    ] = False,
    log_file: Annotated[
        Path | None,
        typer.Option("--log-file", metavar="FILE", help="Add a line of JSON for every request."),
    ] = None,
    dialect: DialectName = None,
    merge: Merge = False,
    repeat: Annotated[
        int | None, typer.Option("--repeat", min=1, max=1000, help="Run every test this many times.")
    ] = None,
    fail_under: Annotated[
        float | None,
        typer.Option(
            "--fail-under", metavar="SHARE", min=0, max=1, help="Pass when so many of all cases pass: 0.9."
        ),
    ] = None,
    max_errors: Annotated[
        int | None, typer.Option("--max-errors", min=0, help="With gates: how many cases may error. [0]")
    ] = None,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="It is fine when no test is selected.")
    ] = False,
    filter_first_n: Annotated[
        int | None, typer.Option("--filter-first-n", metavar="N", min=0, help="Only the first tests.")
    ] = None,
    filter_pattern: Annotated[
        str | None, typer.Option("--filter-pattern", metavar="REGEX", help="Only tests described like this.")
    ] = None,
    filter_providers: Annotated[
        str | None,
        typer.Option("--filter-providers", metavar="REGEX", help="Only providers with such an id or label."),
    ] = None,
    filter_prompts: Annotated[
        str | None,
        typer.Option("--filter-prompts", metavar="REGEX", help="Only prompts with such an id or label."),
    ] = None,
    filter_metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--filter-metadata", metavar="NAME=VALUE", help="Only tests with this metadata; repeatable."
        ),
    ] = None,
    filter_failing: Annotated[
        str | None,
        typer.Option(
            "--filter-failing", metavar="RUN", help="Only tests that failed or errored in a run or file."
        ),
    ] = None,
    filter_sample: Annotated[
        int | None,
        typer.Option("--filter-sample", metavar="N", min=0, help="Only so many tests, drawn at random."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Another seed draws another sample.")] = 0,
    watch: Annotated[
        bool, typer.Option("--watch", help="Run again when a file in the config's folder changes.")
    ] = False,
    untrusted: Untrusted = False,
) -> None:
    """Send prompts x providers x tests to models and check every answer."""
    from geval_cli.cli.arguments import (
        config_groups,
        named_or_found,
        parse_budget,
        parse_cache_choice,
        parse_dialect,
        parse_resumption,
        parse_scoring,
        parse_variables,
    )
    from geval_cli.cli.run import RunDisplay, run_configs
    from geval_cli.cli.selection import FilterOptions, parse_selection
    from geval_cli.service import RunRequest

    filters = FilterOptions(
        providers=filter_providers,
        prompts=filter_prompts,
        pattern=filter_pattern,
        metadata=tuple(filter_metadata or ()),
        failing=filter_failing,
        first=filter_first_n,
        sample=filter_sample,
        seed=seed,
    )
    named = named_or_found(configs)
    selection = parse_selection(filters, home)
    budget = parse_budget(max_cost, max_requests)
    resumption = parse_resumption(resume, resume_from, retry_errors)
    cache = parse_cache_choice(cache_dir, cache_ttl, is_offline=offline, reads_cache=not no_cache)
    requests = [
        RunRequest(
            config=group[0],
            joined=group[1:],
            dialect=parse_dialect(dialect),
            environ=os.environ,
            env_file=env_file,
            variables=parse_variables(var or ()),
            grader=grader,
            scoring=parse_scoring(scoring, samples),
            samples=samples,
            max_concurrency=max_concurrency,
            reads_cache=not no_cache,
            fail_fast=fail_fast,
            budget=budget,
            traces_requests=verbose or log_file is not None,
            is_offline=offline,
            resume=resumption,
            repeats=repeat,
            selection=selection,
            fail_under=fail_under,
            max_errors=max_errors,
            allows_empty=allow_empty,
            untrusted=untrusted,
        )
        for group in config_groups(named, merge=merge)
    ]
    if plan:
        from geval_cli.cli.plan import show_plans

        _exit(show_plans(requests, tuple(output or ()), home=home, cache_dir=cache_dir))
    written: set[Path] = set()
    display = RunDisplay(
        tuple(output or ()),
        shows_progress=not no_progress,
        is_verbose=verbose,
        log_file=log_file,
        note_written=written.update,
    )

    def run_all() -> ExitCode:
        return run_configs(requests, display, home=home, cache=cache)

    if not watch:
        _exit(run_all())
    from geval_cli.cli.watch import watch as watch_files

    _exit(watch_files(run_all, named, own=lambda: written))


@app.command()
def validate(  # noqa: PLR0913, PLR0917 - one parameter per option of the command
    configs: Configs = None,
    grader: Grader = None,
    var: Variables = None,
    env_file: EnvFile = None,
    dialect: DialectName = None,
    merge: Merge = False,
    promptfoo: Annotated[
        bool,
        typer.Option("--promptfoo", help="Read it as promptfoo's, and say what would differ from promptfoo."),
    ] = False,
    untrusted: Untrusted = False,
) -> None:
    """Report every problem of a config; nothing is sent."""
    from geval_cli.cli.arguments import config_groups, named_or_found, parse_dialect, parse_variables
    from geval_cli.cli.configs import validate_configs
    from geval_cli.service import RunRequest

    variables = parse_variables(var or ())
    rules = parse_dialect("promptfoo" if promptfoo else dialect)
    requests = [
        RunRequest(
            group[0],
            os.environ,
            env_file,
            variables,
            grader=grader,
            dialect=rules,
            joined=group[1:],
            untrusted=untrusted,
        )
        for group in config_groups(named_or_found(configs), merge=merge)
    ]
    _exit(validate_configs(requests, lists_differences=promptfoo))


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
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write it to a file: .json, .jsonl, .csv, .html, .md, .junit.xml.",
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show passed assertions too.")] = False,
    home: Home = None,
) -> None:
    """Show a stored run again."""
    from geval_cli.cli.runs import show_run

    show_run(home, run, outputs=tuple(output or ()), verbose=verbose)


cache_commands = typer.Typer(
    help="Look after the cache of answers.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(cache_commands, name="cache")


@cache_commands.command("stats")
def cache_stats(cache_dir: CacheFolder = None, home: Home = None) -> None:
    """Say how many answers are in the cache, how old they are and how much room they take."""
    from geval_cli.cli.cache import print_stats

    print_stats(home, cache_dir)


@cache_commands.command("clear")
def cache_clear(cache_dir: CacheFolder = None, home: Home = None) -> None:
    """Remove all answers."""
    from geval_cli.cli.cache import clear

    clear(home, cache_dir)


@cache_commands.command("prune")
def cache_prune(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="For example 12h, 30d or 8w.")
    ] = "14d",
    cache_dir: CacheFolder = None,
    home: Home = None,
) -> None:
    """Remove old answers."""
    from geval_cli.cli.arguments import parse_age
    from geval_cli.cli.cache import prune

    prune(home, cache_dir, older_than_s=parse_age("--older-than", older_than))


Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where your configs are.")]
Host = Annotated[
    str, typer.Option("--host", help="Address to listen on; others than this machine's own need a token.")
]
Port = Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="Port; 0 takes a free one.")]
AllowCode = Annotated[bool, typer.Option("--allow-code", help="Also run configs that run code of their own.")]
Origins = Annotated[
    list[str] | None,
    typer.Option("--cors", metavar="ORIGIN", help="Let pages of this origin use the API; repeatable."),
]
Names = Annotated[
    list[str] | None,
    typer.Option("--allowed-host", metavar="NAME", help="A further name of this server; repeatable."),
]
ServerScoring = Annotated[
    str | None, typer.Option("--scoring", metavar="HOW", help="auto, logprobs, samples or single.")
]
ServerSamples = Annotated[
    int | None, typer.Option("--samples", min=1, max=1000, help="Judge each output this many times.")
]


@app.command()
def serve(  # noqa: PLR0913, PLR0917 - one parameter per option of the command
    folder: Folder = Path(),
    host: Host = "127.0.0.1",
    port: Port = 3001,
    grader: Grader = None,
    scoring: ServerScoring = None,
    samples: ServerSamples = None,
    env_file: EnvFile = None,
    home: Home = None,
    allow_code: AllowCode = False,
    cors: Origins = None,
    allowed_host: Names = None,
) -> None:
    """Serve the HTTP API and the web page."""
    from geval_cli.cli.serve import ServeOptions
    from geval_cli.cli.serve import serve as serve_until_stopped

    options = ServeOptions(
        folder,
        host,
        port,
        grader,
        scoring,
        samples,
        env_file,
        home,
        allow_code,
        cors or (),
        allowed_host or (),
    )
    serve_until_stopped(options)


@app.command()
def view(  # noqa: PLR0913, PLR0917 - one parameter per option of the command
    folder: Folder = Path(),
    host: Host = "127.0.0.1",
    port: Port = 3001,
    grader: Grader = None,
    scoring: ServerScoring = None,
    samples: ServerSamples = None,
    env_file: EnvFile = None,
    home: Home = None,
    allow_code: AllowCode = False,
    cors: Origins = None,
    allowed_host: Names = None,
) -> None:
    """Show runs in the browser: `geval serve`, and the browser opened."""
    from geval_cli.cli.serve import ServeOptions
    from geval_cli.cli.serve import serve as serve_until_stopped

    options = ServeOptions(
        folder,
        host,
        port,
        grader,
        scoring,
        samples,
        env_file,
        home,
        allow_code,
        cors or (),
        allowed_host or (),
    )
    serve_until_stopped(replace(options, opens_browser=True))


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
