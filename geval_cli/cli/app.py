"""The commands. Their bodies import what they need when they run, so that `--help` is fast."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from geval_cli.cli import options
from geval_cli.cli.options import (
    EXIT_CODES,
    CommandTable,
    CompareOptions,
    ProblemFormat,
    RemoveOptions,
    ShowOptions,
    TracesOptions,
    bold,
    declared,
    exit_with,
)
from geval_cli.errors import ExitCode, GevalError, UsageError
from geval_cli.patterns import compile_later
from geval_cli.plugins import COMMANDS, find_plugin, plugin_names
from geval_cli.runs.options import RunOptions, options_of_command, values_of
from geval_cli.version import __version__

if TYPE_CHECKING:
    from geval_cli.cli.untrusted import KernelSandbox
    from geval_cli.runs.requests import RunRequest

_TRUST = "geval_cli.extras.trust.commands"
_WEB = "geval_cli.extras.web.command"
_GENERATION = "geval_cli.extras.generation.commands"

EXTRA_COMMANDS: Mapping[str, tuple[str, str]] = {
    "agree": (_TRUST, "Measure how well a judge agrees with human labels."),
    "calibrate": (_TRUST, "Calibrate a judge on human labels."),
    "drift": (_TRUST, "Check whether a judge has drifted since an earlier run."),
    "estimate": (_TRUST, "Estimate the true pass rate from a few human labels."),
    "improve": (_TRUST, "Improve a judge with labels; accept only proven gains."),
    "label": (_TRUST, "Rate outputs with single keystrokes; verdicts hidden."),
    "probe": (_TRUST, "Test a judge: rewrite outputs and see if it is fooled."),
    "serve": (_WEB, "Serve the HTTP API and the web pages."),
    "view": (_WEB, "Open runs in the browser."),
    "generate": (_GENERATION, "Generate tests, or profiles of users, with a model."),
    "review": (_GENERATION, "Accept, edit or drop tests with single keys."),
    "realism": ("geval_cli.extras.conversations.command", "Compare simulated users with real ones."),
    "mcp": ("geval_cli.extras.mcp.command", "Serve geval's tools to an assistant over MCP."),
    "comment": (
        "geval_cli.extras.pull_requests.command",
        "Comment on a pull request with what it changes.",
    ),
    "batches": ("geval_cli.extras.batches.cli", "List, fetch or cancel submitted batches."),
    "models": ("geval_cli.extras.local.command", "List, fetch or check models."),
}
"""The commands of extras: the module whose `commands` holds each, imported when it is called, and its summary.

The summaries are here so that `geval --help` imports none of these modules, which would take longer than all else.
"""

_IN_HELP: Mapping[str, Sequence[str]] = {
    "Evaluate": ("run", "show", "compare", "list", "judge", "comment", "view", "demo"),
    "Write a suite": ("init", "generate", "review", "validate", "lock", "import", "export", "schema"),
    "Trust the judge": ("agree", "calibrate", "drift", "estimate", "improve", "label", "probe", "realism"),
    "Serve": ("serve", "mcp"),
    "Maintain": ("cache", "batches", "models", "rm"),
}
"""The commands under the headings of the help; those of plugins get a heading of their own."""


@contextmanager
def _click_errors_as_ours(group: Any = None) -> Iterator[None]:
    """Turn a usage error of click into one of ours, which suggests the nearest name.

    Click's classes are recognized by name: depending on its version, typer uses the installed click or its own copy.
    `group` is the context of the group whose command is called, as click does not say where an option lacks its value.
    """
    try:
        yield
    except Exception as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if isinstance(error, GevalError) or "UsageError" not in kinds or "NoArgsIsHelpError" in kinds:
            raise
        raise _usage_error(error, kinds, group) from error


def _usage_error(error: Any, kinds: Set[str], group: Any) -> UsageError:
    from geval_cli.source.problems import did_you_mean

    context = error.ctx
    where = "geval" if context is None else context.command_path
    if context is None and group is not None and group.invoked_subcommand:
        where, command = group.command_path, group.command
        for word in group.meta[_WORDS]:
            found = command.get_command(group, word) if hasattr(command, "commands") else None
            if found is not None:
                command, where = found, f"{where} {word}"
    hint = f"`{where} --help` lists its options and arguments"
    if "NoSuchOption" in kinds:
        known = [] if context is None else [name for param in context.command.params for name in param.opts]
        near = did_you_mean(error.option_name, known)
        return UsageError(
            f"there is no option `{error.option_name}`", hint=f"did you mean `{near}`?" if near else hint
        )
    if (
        "BadParameter" in kinds
        and "MissingParameter" not in kinds
        and getattr(error, "param", None) is not None
    ):
        why = error.message.removeprefix("Value error, ").rstrip(".")
        if why.startswith(_PYDANTIC):
            why = f"it should be{why.removeprefix(_PYDANTIC).partition(',')[0]}"
            why = why.replace("a valid integer", "a whole number").replace("a valid number", "a number")
            why = why.replace("greater than or equal to", "at least").replace(
                "less than or equal to", "at most"
            )
        return UsageError(f"invalid value for `{max(error.param.opts, key=len)}`: {why}", hint=hint)
    text = error.format_message()
    missing = _NO_COMMAND.match(text)
    if missing is not None and isinstance(getattr(context, "command", None), TyperGroup):
        near = did_you_mean(missing[1], list(context.command.commands))
        message = f"there is no command `{where} {missing[1]}`"
        return UsageError(message, hint=f"did you mean `{where} {near}`?" if near else hint)
    text = text[:1].lower() + text[1:].rstrip(".")
    if "BadOptionUsage" in kinds:
        text = text.replace(repr(error.option_name), f"`{error.option_name}`").replace(
            "an argument", "a value"
        )
    if extra := _TOO_MANY.match(text):
        text = f"too many arguments: `{extra[1]}`"
    return UsageError(text, hint=hint)


_WORDS = "geval.words"
"""The key under which a context keeps the words after `geval`."""
_PYDANTIC = "Input should be"
_TOO_MANY = compile_later(r"got unexpected extra arguments?(?:\(s\))? \((.*)\)")
_NO_COMMAND = compile_later(r"No such command '([^']*)'")


class Commands(TyperGroup):
    """The commands of geval, of its extras and of plugins."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of a call; a usage error is reported like any other error."""
        words = tuple(args)  # parsing removes them from the list
        with _click_errors_as_ours():
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_WORDS] = words
        return context

    def invoke(self, ctx: Any) -> Any:
        """Call the command that was named."""
        with _click_errors_as_ours(ctx):
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        own = names_of_commands()
        return [*own, *(name for name in plugin_names(COMMANDS) if name not in own)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands under their headings, each with its whole summary."""
        added = self.list_commands(ctx)[len(names_of_commands()) :]
        for heading, names in {**_IN_HELP, **({"Plugins": added} if added else {})}.items():
            rows = [(name.ljust(_NAME_WIDTH), self._summary(ctx, name)) for name in names]
            with formatter.section(bold(heading)):
                formatter.write_dl(rows)

    def _summary(self, ctx: Any, name: str) -> str:
        if name in EXTRA_COMMANDS:
            return EXTRA_COMMANDS[name][1]
        try:
            summary: str = self.get_command(ctx, name).get_short_help_str(limit=_SUMMARY_MAX)
        except UsageError:  # the package cannot be loaded; the command itself says why
            return "(cannot be loaded)"
        return summary

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name, or None if there is none."""
        found = super().get_command(ctx, cmd_name)
        if found is None and cmd_name in EXTRA_COMMANDS:
            found = get_group(import_module(EXTRA_COMMANDS[cmd_name][0]).commands).commands[cmd_name]
        elif found is None and (plugin := find_plugin(COMMANDS, cmd_name)) is not None:
            if not isinstance(plugin, typer.Typer):
                hint = "its entry point must name a `typer.Typer`"
                raise UsageError(f"the plugin `{cmd_name}` is not a command", hint=hint)
            found = get_command(plugin)
            found.name = cmd_name
        return found


_SUMMARY_MAX = 60
_MOST_RUNS = 1_000_000_000  # SQLite knows no larger numbers than 64 bits
_NAME_WIDTH = len("calibrate")
_WIDTH_MAX = 120

app = CommandTable(
    name="geval",
    cls=Commands,
    help="Run prompts against models and check every answer, above all with G-Eval.",
    epilog=f"{EXIT_CODES}\n\nWith --debug, any command shows the tracebacks of errors.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _WIDTH_MAX},
)


@app.callback(invoke_without_command=True)
def root(
    version: options.Version = False,
) -> None:
    """Run prompts against models and check every answer, above all with G-Eval."""
    if version:
        typer.echo(f"geval {__version__}")
        raise typer.Exit


@app.command(epilog=EXIT_CODES)
@declared(RunOptions)
def run(given: RunOptions, configs: options.Configs = None) -> None:
    """Run prompts against models and check every answer.

    `geval eval -c CONFIG` is the same.
    """
    from geval_cli.cli.arguments import named_or_found

    _run(named_or_found(configs), given)


@app.command()
@declared(RunOptions, *options_of_command("demo"))
def demo(given: RunOptions) -> None:
    """Try geval with a small local model; no config, no key."""
    from geval_cli.cli.configs import demo_config

    try:
        _run([demo_config()], given)
    except typer.Exit as end:
        if end.exit_code == ExitCode.OK:
            typer.echo(" for your own suite: write a config with `geval init`, then run it with `geval run`")
        raise


def _run(named: Sequence[Path], given: RunOptions) -> None:
    """Run configs and exit with the exit code."""
    from geval_cli.cli.arguments import cache_choice, check_options, config_groups, repeated_options
    from geval_cli.cli.run import RunDisplay, run_configs

    sandbox, home = _sandbox_for(named, given)
    if sandbox is not None and given.watch:
        hint = "run it once, and look at any change in an untrusted folder before you run it again"
        raise UsageError("--watch cannot be combined with --untrusted", hint=hint)
    cache = cache_choice(given)
    groups = config_groups(named, merge=given.merge)
    check_options(given)
    given = replace(given, home=home, untrusted=sandbox is not None)
    requests = _requests(groups, given, can_resume=True)
    if given.plan:
        from geval_cli.cli.plan import show_plans

        exit_with(show_plans(requests, given.outputs, home=home, cache=cache, sandbox=sandbox))
    written: set[Path] = set()
    display = RunDisplay(
        given.outputs,
        shows_progress=given.shows_progress,
        is_verbose=given.is_verbose,
        log_file=given.log_file,
        note_written=written.update,
        repeated=repeated_options(given),
    )

    def run_all() -> ExitCode:
        return run_configs(requests, display, home=home, cache=cache, sandbox=sandbox)

    if not given.watch:
        exit_with(run_all())
    from geval_cli.cli.watch import watch as watch_files

    exit_with(watch_files(run_all, named, own=lambda: written))


@app.command(epilog=EXIT_CODES)
@declared(RunOptions, *options_of_command("judge"))
def judge(
    given: RunOptions,
    source: options.JudgedRun,
    config: options.JudgingConfig = None,
    only: options.OnlyMetrics = None,
    threshold: options.Thresholds = None,
) -> None:
    """Judge a run's outputs again: other judges or criteria.

    No model under test is called. Unchanged judgements are reused and cost nothing.
    """
    from geval_cli.cli.arguments import cache_choice, check_options
    from geval_cli.cli.judge import judge_again, parse_threshold
    from geval_cli.runs.requests import JudgedMetrics

    check_options(given)
    changes = JudgedMetrics(tuple(only or ()), dict(map(parse_threshold, threshold or ())))
    # Without a config, the run's own is used, and the current folder may be untrusted too.
    sandbox, home = _sandbox_for([config or Path("gevalconfig.yaml")], given)
    given = replace(given, home=home, untrusted=sandbox is not None)
    exit_with(
        judge_again(
            source,
            config,
            given,
            changes=changes,
            cache=cache_choice(given),
            sandbox=sandbox,
        )
    )


@app.command()
@declared(RunOptions, *options_of_command("lock"))
def lock(given: RunOptions, configs: options.Configs = None, update: options.UpdateLock = False) -> None:
    """Pin the evaluation steps of every criterion in geval.lock.

    All runs then judge by the same steps.
    """
    from geval_cli.cli.arguments import cache_choice, config_groups, named_or_found
    from geval_cli.cli.lock import lock_configs

    named = named_or_found(configs)
    sandbox, home = _sandbox_for(named, given)
    given = replace(given, home=home, untrusted=sandbox is not None)
    requests = [
        replace(request, asks_judges_only=True)
        for request in _requests(config_groups(named, merge=False), given)
    ]
    exit_with(lock_configs(requests, home=home, cache=cache_choice(given), updates=update, sandbox=sandbox))


def _requests(
    groups: "Iterable[tuple[Path, ...]]", given: RunOptions, *, can_resume: bool = False
) -> "list[RunRequest]":
    """Return a request for each group of configs. All share one budget, which limits the command as a whole."""
    from geval_cli.cli.arguments import budget_of, failing_in
    from geval_cli.runs.requests import RunRequest

    failing = failing_in(given.filter_failing, given.home)
    budget = budget_of(given, can_resume=can_resume)
    return [
        RunRequest(
            config, os.environ, joined=tuple(joined), failing=failing, budget=budget, **values_of(given)
        )
        for config, *joined in groups
    ]


def _sandbox_for(
    named: Iterable[Path], given: RunOptions, *, keeps_state: bool = True
) -> "tuple[KernelSandbox | None, Path | None]":
    """Return the sandbox for untrusted configs, None for the user's own, and the folder for state."""
    from geval_cli.runs.requests import UNTRUSTED_VARIABLE, is_untrusted

    if not (given.untrusted or given.untrusted_strict or is_untrusted(os.environ)):
        return None, given.home
    from geval_cli.cli.untrusted import STRICT, KernelSandbox, refuse_links_in
    from geval_cli.report.safe_file import distrust_links

    asks_strictness = os.environ.get(UNTRUSTED_VARIABLE, "").strip().lower() == STRICT
    sandbox = KernelSandbox(is_strict=given.untrusted_strict or asks_strictness)
    distrust_links(config.parent for config in named)
    if given.cache_folder is not None:
        refuse_links_in(given.cache_folder)
    return sandbox, sandbox.state_folder(given.home, named, os.environ) if keeps_state else given.home


@app.command()
@declared(RunOptions, *options_of_command("validate"))
def validate(
    given: RunOptions,
    configs: options.Configs = None,
    promptfoo: options.AsPromptfoo = False,
    form: options.ProblemForm = ProblemFormat.FULL,
    output: options.ProblemsFile = None,
) -> None:
    """Report every problem in a config; send nothing."""
    from geval_cli.cli.arguments import asked_dialect, config_groups, named_or_found
    from geval_cli.cli.configs import validate_configs

    named = named_or_found(configs)
    sandbox, _ = _sandbox_for(named, given, keeps_state=False)
    given = replace(
        given,
        untrusted=sandbox is not None,
        dialect=asked_dialect(given.dialect, as_promptfoo=promptfoo),
    )
    requests = _requests(config_groups(named, merge=given.merge), given)
    exit_with(validate_configs(requests, sandbox, lists_differences=promptfoo, form=form, output=output))


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


export = CommandTable(help="Write a suite or a stored run to a file.", no_args_is_help=True)
app.add_typer(export, name="export")


@export.callback()
def export_what() -> None:
    """Write a suite or a stored run to a file."""


@export.command("suite")
@declared(RunOptions, "env_file")
def export_suite(given: RunOptions, config: options.Config, output: options.SuiteFile = None) -> None:
    """Write a config and the texts of its files as one JSON file."""
    from geval_cli.cli.configs import export_suite as write_suite

    write_suite(config, output, env_file=given.env_file)


@export.command("run")
@declared(RunOptions, "home")
def export_run(given: RunOptions, run: options.RunName, output: options.RunFiles) -> None:
    """Write a stored run to files, to be imported elsewhere."""
    from geval_cli.cli.runs import export_run as write_run

    write_run(given.home, run, outputs=tuple(output))


import_commands = CommandTable(
    help="Read a suite, results or traces from a file.",
    no_args_is_help=True,
)
app.add_typer(import_commands, name="import")


@import_commands.callback()
def import_what() -> None:
    """Read a suite, results or traces from a file; `geval import FILE` reads a suite."""


@import_commands.command("run")
@declared(RunOptions, "home")
def import_run(given: RunOptions, results: options.ResultsFile) -> None:
    """Store results from geval or promptfoo as a run.

    Takes geval's .json, .jsonl and .parquet, and promptfoo's JSON (version 3).
    """
    from geval_cli.cli.runs import import_run as store_run

    store_run(given.home, results)


@import_commands.command("traces")
@declared(TracesOptions)
def import_traces(given: TracesOptions, traces: options.TracesFile, output: options.TestsFile) -> None:
    """Write the model calls of traces or logs as tests.

    Takes OTLP JSON lines, spans, OpenAI's logs and batches.
    """
    from geval_cli.extras.traces.command import import_traces as write_tests

    write_tests(traces, output, given)


@import_commands.command("suite")
@declared(RunOptions, "env_file")
def import_suite(
    given: RunOptions,
    suite: options.ExportedSuite,
    output: options.ConfigFile = None,
    force: options.Force = False,
) -> None:
    """Write an exported suite as a YAML config."""
    from geval_cli.cli.configs import import_suite as write_config

    write_config(suite, output, env_file=given.env_file, may_replace=force)


@app.command("list")
@declared(RunOptions, "home")
def list_runs(
    given: RunOptions,
    config: options.ConfigOfRuns = None,
    tags: options.WithTags = None,
    limit: options.Limit = 20,
    as_json: options.AsJson = False,
) -> None:
    """List stored runs, newest first."""
    from geval_cli.cli.arguments import config_groups, parse_tags
    from geval_cli.cli.runs import print_runs

    if config is not None:
        config = config_groups([config], merge=False)[0][0]  # a folder stands for the config in it
    print_runs(
        given.home, config=config, tags=parse_tags(tags or ()), limit=min(limit, _MOST_RUNS), as_json=as_json
    )


@app.command()
@declared(ShowOptions)
def show(given: ShowOptions, run: options.RunName = "latest") -> None:
    """Show a stored run, its failures or one of its cases."""
    from geval_cli.cli.arguments import parse_case, parse_grouping
    from geval_cli.cli.runs import ShowChoice, show_run
    from geval_cli.records import Status

    wanted = ((Status.FAILED, given.failed), (Status.ERROR, given.errors))
    choice = ShowChoice(
        case=parse_case(given.case),
        wanted=frozenset(status for status, is_wanted in wanted if is_wanted),
        is_whole=given.everything,
        is_verbose=given.is_verbose,
        by=parse_grouping(given.by),
    )
    show_run(given.home, run, choice, outputs=given.outputs, as_json=given.as_json)


@app.command()
@declared(RemoveOptions)
def rm(given: RemoveOptions, runs: options.RunNames = None) -> None:
    """Remove stored runs and the cached answers only they used.

    Human labels of their outputs stay, unless --labels is given.
    """
    from geval_cli.cli.arguments import parse_age
    from geval_cli.cli.remove import remove_runs

    age_s = None if given.older_than is None else parse_age("--older-than", given.older_than)
    remove_runs(runs or (), given, older_than_s=age_s)


@app.command()
@declared(CompareOptions)
def compare(
    given: CompareOptions,
    earlier: options.EarlierRunName = None,
    later: options.LaterRunName = None,
) -> None:
    """Compare two runs: what got better, what got worse."""
    from geval_cli.cli.compare import compare_runs

    if earlier is None:
        earlier, later = "latest~1", "latest"
    if later is None:
        raise UsageError(
            "missing argument 'B'", hint="`geval compare --help` lists its options and arguments"
        )
    compare_runs(earlier, later, given)


cache_commands = CommandTable(help="Show or clear the cache of answers.", no_args_is_help=True)
app.add_typer(cache_commands, name="cache")


@cache_commands.command("stats")
@declared(RunOptions, "cache_folder", "home")
def cache_stats(given: RunOptions) -> None:
    """Show how many answers are cached, their age and size."""
    from geval_cli.cli.remove import print_stats

    print_stats(given.home, given.cache_folder)


@cache_commands.command("clear")
@declared(RunOptions, "cache_folder", "home")
def cache_clear(given: RunOptions) -> None:
    """Remove all answers."""
    from geval_cli.cli.remove import clear

    clear(given.home, given.cache_folder)


@cache_commands.command("prune")
@declared(RunOptions, "cache_folder", "home")
def cache_prune(given: RunOptions, older_than: options.OlderThan = "14d") -> None:
    """Remove old answers."""
    from geval_cli.cli.arguments import parse_age
    from geval_cli.cli.remove import prune

    prune(given.home, given.cache_folder, older_than_s=parse_age("--older-than", older_than))


def names_of_commands() -> tuple[str, ...]:
    """Return the names of geval's own commands and command groups, including those of extras."""
    return tuple(name for names in _IN_HELP.values() for name in names)


_ALIASES = {"eval": "run", "evaluate": "run", "test": "run"}
_IMPORTED = ("suite", "run", "traces")
_CONFIG_OPTIONS = ("-c", "--config")
_INSTEAD = {
    "share": "write a page that you can send with `geval run -o results.html`",
    "retry": "re-run the errored cases with `geval run --retry-errors`",
    "resume": "resume the latest unfinished run with `geval run --resume`",
    "check": "check a config with `geval validate`",
    "results": "show the latest run with `geval show`, or list all with `geval list`",
    "history": "list the stored runs with `geval list`",
    "ui": "open runs in the browser with `geval view`",
    "clear-cache": "remove all cached answers with `geval cache clear`",
    "delete": "remove a stored run with `geval rm RUN`",
    "remove": "remove a stored run with `geval rm RUN`",
    "redteam": "geval has no red teaming",
}


def as_typed(words: Sequence[str], commands: Sequence[str]) -> list[str]:
    """Return the words after `geval` with an alias replaced.

    `eval -c FILE` becomes `run FILE`, and `help run` becomes `run --help`.

    Raises:
        UsageError: there is no such command, or an argument is empty.
    """
    if any(word == "" and not before.startswith("-") for before, word in pairwise(words)):
        # As a path, it would be the current folder and the config there
        raise UsageError("an argument is empty", hint="leave it out, or set the variable of your shell")
    if words and words[0] == "import" and "import" in commands:
        # `geval import FILE` means `geval import suite FILE`.
        verb, *rest = words
        is_written = bool(rest) and rest[0] in (*_IMPORTED, "-h", "--help")
        return list(words) if is_written else [verb, "suite", *rest]
    if not words or words[0].startswith("-") or words[0] in commands:
        return list(words)
    verb, *rest = words
    if verb == "help":
        return [*as_typed(rest, commands), "--help"]
    if verb in _ALIASES:
        return [_ALIASES[verb], *_without_config_option(rest)]
    from geval_cli.plugins import COMMANDS, plugin_names
    from geval_cli.source.problems import did_you_mean

    added = plugin_names(COMMANDS)
    if verb in added:
        return list(words)
    near = did_you_mean(verb, [*commands, *added, *_ALIASES])
    hint = _INSTEAD.get(verb) or (
        f"did you mean `geval {near}`?" if near else "`geval --help` lists the commands"
    )
    raise UsageError(f"there is no command `{verb}`", hint=hint)


def _without_config_option(words: Sequence[str]) -> Iterator[str]:
    """Yield the words without `-c` and `--config`, whose values `geval run` takes as arguments."""
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name in _CONFIG_OPTIONS:
            yield value
        elif word not in _CONFIG_OPTIONS:
            yield word
