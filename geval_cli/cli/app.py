"""The commands with their options. Bodies import what they need when they run, so that `--help` is quick."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from geval_cli.cli import options
from geval_cli.errors import ExitCode, UsageError
from geval_cli.version import __version__

if TYPE_CHECKING:
    from geval_cli.cli.stranger import Wall

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


@app.callback(invoke_without_command=True)
def root(
    version: options.Version = False,
) -> None:
    """Run prompts against models and have every answer checked, first of all by G-Eval."""
    if version:
        typer.echo(f"geval {__version__}")
        raise typer.Exit


@app.command(epilog=EXIT_CODES)
def run(  # noqa: PLR0913, PLR0917 - one parameter per option of the command
    configs: options.Configs = None,
    output: options.ResultsFiles = None,
    max_concurrency: options.MaxConcurrency = None,
    grader: options.Grader = None,
    scoring: options.ScoringName = None,
    samples: options.Samples = None,
    var: options.Variables = None,
    env_file: options.EnvFile = None,
    home: options.Home = None,
    no_cache: options.NoCache = False,
    no_progress: options.NoProgress = False,
    verbose: options.Verbose = False,
    fail_fast: options.FailFast = False,
    resume: options.Resume = False,
    resume_from: options.ResumeFrom = None,
    retry_errors: options.RetryErrors = False,
    offline: options.Offline = False,
    cache_dir: options.CacheFolder = None,
    cache_ttl: options.CacheTtl = None,
    max_cost: options.MaxCost = None,
    max_requests: options.MaxRequests = None,
    plan: options.PlanOnly = False,
    log_file: options.LogFile = None,
    dialect: options.DialectName = None,
    merge: options.Merge = False,
    repeat: options.Repeat = None,
    fail_under: options.FailUnder = None,
    max_errors: options.MaxErrors = None,
    allow_empty: options.AllowEmpty = False,
    filter_first_n: options.FilterFirst = None,
    filter_pattern: options.FilterPattern = None,
    filter_providers: options.FilterProviders = None,
    filter_prompts: options.FilterPrompts = None,
    filter_metadata: options.FilterMetadata = None,
    filter_failing: options.FilterFailing = None,
    filter_sample: options.FilterSample = None,
    seed: options.Seed = 0,
    watch: options.Watch = False,
    untrusted: options.Untrusted = False,
    untrusted_strict: options.StrictlyUntrusted = False,
) -> None:
    """Send prompts x providers x tests to models and check every answer. `geval eval -c CONFIG` is the same."""
    from geval_cli.cli.arguments import (
        config_groups,
        named_or_found,
        parse_budget,
        parse_cache_choice,
        parse_dialect,
        parse_resumption,
        parse_scoring,
        parse_share,
        parse_variables,
    )
    from geval_cli.cli.run import RunDisplay, run_configs
    from geval_cli.cli.selection import FilterOptions, parse_selection
    from geval_cli.runs.requests import RunRequest

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
    wall, home = _against_strangers(named, home, is_untrusted=untrusted, is_strict=untrusted_strict)
    if wall is not None and watch:
        hint = "run it once; what changes in a stranger's folder is to be looked at first"
        raise UsageError("--watch does not go together with --untrusted", hint=hint)
    cache = parse_cache_choice(cache_dir, cache_ttl, is_offline=offline, reads_cache=not no_cache)
    groups = config_groups(named, merge=merge)
    request = RunRequest(
        config=groups[0][0],
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
        budget=parse_budget(max_cost, max_requests),
        traces_requests=verbose or log_file is not None,
        is_offline=offline,
        resume=parse_resumption(resume, resume_from, retry_errors),
        repeats=repeat,
        selection=parse_selection(filters, home),
        fail_under=parse_share("--fail-under", fail_under),
        max_errors=max_errors,
        allows_empty=allow_empty,
        untrusted=wall is not None,
    )
    requests = [replace(request, config=config, joined=tuple(joined)) for config, *joined in groups]
    if plan:
        from geval_cli.cli.plan import show_plans

        _exit(show_plans(requests, tuple(output or ()), home=home, cache=cache, wall=wall))
    written: set[Path] = set()
    display = RunDisplay(
        tuple(output or ()),
        shows_progress=not no_progress,
        is_verbose=verbose,
        log_file=log_file,
        note_written=written.update,
    )

    def run_all() -> ExitCode:
        return run_configs(requests, display, home=home, cache=cache, wall=wall)

    if not watch:
        _exit(run_all())
    from geval_cli.cli.watch import watch as watch_files

    _exit(watch_files(run_all, named, own=lambda: written))


def _against_strangers(
    named: Iterable[Path],
    home: Path | None,
    *,
    is_untrusted: bool,
    is_strict: bool,
    keeps_state: bool = True,
) -> "tuple[Wall | None, Path | None]":
    """Return the wall around a stranger's configs, None for the user's own, and where state goes."""
    from geval_cli.runs.requests import UNTRUSTED_VARIABLE
    from geval_cli.runs.requests import is_untrusted as says_untrusted

    if not (is_untrusted or is_strict or says_untrusted(os.environ)):
        return None, home
    from geval_cli.cli.stranger import STRICT, Wall

    asks_strictness = os.environ.get(UNTRUSTED_VARIABLE, "").strip().lower() == STRICT
    wall = Wall(is_strict=is_strict or asks_strictness)
    return wall, wall.state_folder(home, named, os.environ) if keeps_state else home


@app.command()
def validate(  # noqa: PLR0913, PLR0917 - one parameter per option of the command
    configs: options.Configs = None,
    grader: options.Grader = None,
    var: options.Variables = None,
    env_file: options.EnvFile = None,
    dialect: options.DialectName = None,
    merge: options.Merge = False,
    promptfoo: options.AsPromptfoo = False,
    untrusted: options.Untrusted = False,
    untrusted_strict: options.StrictlyUntrusted = False,
) -> None:
    """Report every problem of a config; nothing is sent."""
    from geval_cli.cli.arguments import config_groups, named_or_found, parse_dialect, parse_variables
    from geval_cli.cli.configs import validate_configs
    from geval_cli.runs.requests import RunRequest

    named = named_or_found(configs)
    wall, _ = _against_strangers(
        named, None, is_untrusted=untrusted, is_strict=untrusted_strict, keeps_state=False
    )
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
            untrusted=wall is not None,
        )
        for group in config_groups(named, merge=merge)
    ]
    _exit(validate_configs(requests, wall, lists_differences=promptfoo))


@app.command()
def init(
    path: options.StarterFile = Path("gevalconfig.yaml"),
) -> None:
    """Write a small commented config that runs."""
    from geval_cli.cli.configs import write_starter

    write_starter(path)


@app.command()
def schema(
    output: options.SchemaFile = None,
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
    config: options.Config,
    output: options.SuiteFile = None,
    env_file: options.EnvFile = None,
) -> None:
    """Write a config as one JSON file, the texts of its files in it."""
    from geval_cli.cli.configs import export_suite as write_suite

    write_suite(config, output, env_file=env_file)


@app.command("import")
def import_suite(
    suite: options.ExportedSuite,
    output: options.ConfigFile = None,
    force: options.Force = False,
    env_file: options.EnvFile = None,
) -> None:
    """Write an exported suite as a YAML config."""
    from geval_cli.cli.configs import import_suite as write_config

    write_config(suite, output, env_file=env_file, may_replace=force)


@app.command("list")
def list_runs(
    limit: options.Limit = 20,
    home: options.Home = None,
) -> None:
    """List stored runs, newest first."""
    from geval_cli.cli.runs import print_runs

    print_runs(home, limit=limit)


@app.command()
def show(
    run: options.RunName = "latest",
    output: options.ReportFiles = None,
    verbose: options.ShowPassed = False,
    home: options.Home = None,
) -> None:
    """Show a stored run again."""
    from geval_cli.cli.runs import show_run

    show_run(home, run, outputs=tuple(output or ()), verbose=verbose)


cache_commands = typer.Typer(
    help="Look after the cache of answers.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(cache_commands, name="cache")


@cache_commands.command("stats")
def cache_stats(cache_dir: options.CacheFolder = None, home: options.Home = None) -> None:
    """Say how many answers are in the cache, how old they are and how much room they take."""
    from geval_cli.cli.cache import print_stats

    print_stats(home, cache_dir)


@cache_commands.command("clear")
def cache_clear(cache_dir: options.CacheFolder = None, home: options.Home = None) -> None:
    """Remove all answers."""
    from geval_cli.cli.cache import clear

    clear(home, cache_dir)


@cache_commands.command("prune")
def cache_prune(
    older_than: options.OlderThan = "14d",
    cache_dir: options.CacheFolder = None,
    home: options.Home = None,
) -> None:
    """Remove old answers."""
    from geval_cli.cli.arguments import parse_age
    from geval_cli.cli.cache import prune

    prune(home, cache_dir, older_than_s=parse_age("--older-than", older_than))


def _add_server_command(name: str, summary: str, *, opens_browser: bool) -> None:
    @app.command(name, help=summary)
    def command(  # noqa: PLR0913, PLR0917 - one parameter per option of the command
        folder: options.Folder = Path(),
        host: options.Host = "127.0.0.1",
        port: options.Port = 3001,
        grader: options.Grader = None,
        scoring: options.ScoringName = None,
        samples: options.Samples = None,
        env_file: options.EnvFile = None,
        home: options.Home = None,
        allow_code: options.AllowCode = False,
        cors: options.Origins = None,
        allowed_host: options.Names = None,
        no_token: options.NoToken = False,
    ) -> None:
        from geval_cli.cli.serve import ServeOptions, serve

        serve(
            ServeOptions(
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
                opens_browser,
                no_token,
            )
        )


_add_server_command("serve", "Serve the HTTP API and the web page.", opens_browser=False)
_add_server_command(
    "view", "Show runs in the browser: `geval serve`, and the browser opened.", opens_browser=True
)


models = typer.Typer(
    help="Local models, and which providers there are.", invoke_without_command=True, rich_markup_mode=None
)
app.add_typer(models, name="models")


@models.callback()
def list_models(
    context: typer.Context,
    providers: options.ListProviders = False,
) -> None:
    """List the local models that geval knows, and which of them are here."""
    if context.invoked_subcommand is None:
        from geval_cli.cli.models import print_models, print_providers

        print_providers() if providers else print_models()


@models.command()
def pull(
    model: options.ModelName = "smollm2",
) -> None:
    """Fetch a local model, once; later calls find it."""
    from geval_cli.cli.models import pull_model

    pull_model(model)


def names_of_commands() -> list[str]:
    """Return what may stand after `geval`."""
    names = [info.name or getattr(info.callback, "__name__", "") for info in app.registered_commands]
    return [*names, *(str(group.name) for group in app.registered_groups)]


def _exit(code: Any) -> None:
    raise typer.Exit(int(code))
