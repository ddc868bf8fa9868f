"""The options and arguments of the commands, each with its help, as typer reads them off a signature."""

from pathlib import Path
from typing import Annotated

import typer

_ENDINGS = ".json, .jsonl, .csv, .html, .md, .junit.xml"
"""The endings in `report.output.FORMATS`, which would take long to import here; a test compares them."""

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
        help="For a stranger's config: no code, no environment values, no files elsewhere, known vendors only."
        " With =strict also refused where the kernel cannot confine it.",
    ),
]
StrictlyUntrusted = Annotated[bool, typer.Option("--untrusted-strict", hidden=True)]
ResultsFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help=f"Write results: {_ENDINGS}; repeatable.",
    ),
]
MaxConcurrency = Annotated[
    int | None, typer.Option("-j", "--max-concurrency", min=1, help="Most requests under way at once.")
]
ScoringName = Annotated[
    str | None, typer.Option("--scoring", metavar="HOW", help="auto, logprobs, samples or single.")
]
Samples = Annotated[
    int | None, typer.Option("--samples", min=1, max=1000, help="Judge each output this many times.")
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Use no answers from earlier runs.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="No progress display.")]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", help="Show passed assertions too, with the judge's steps.")
]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Stop at the first failure or error.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the latest unfinished run of this config.")]
ResumeFrom = Annotated[str | None, typer.Option("--resume-from", metavar="RUN", help="Resume this run.")]
RetryErrors = Annotated[
    bool, typer.Option("--retry-errors", help="Do the errored cases of the latest run again.")
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Only the cache answers; nothing is sent, no key is needed.")
]
CacheTtl = Annotated[
    str | None,
    typer.Option("--cache-ttl", metavar="AGE", help="Use answers up to this age: 12h, 30d, never. [14d]"),
]
MaxCost = Annotated[
    float | None, typer.Option("--max-cost", metavar="USD", help="Stop when this much is spent.")
]
MaxRequests = Annotated[
    int | None, typer.Option("--max-requests", min=0, help="Stop after this many requests.")
]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Say what a run would ask and cost; send nothing.")]
LogFile = Annotated[
    Path | None,
    typer.Option("--log-file", metavar="FILE", help="Add a line of JSON for every request."),
]
Repeat = Annotated[
    int | None, typer.Option("--repeat", min=1, max=1000, help="Run every test this many times.")
]
FailUnder = Annotated[
    str | None,
    typer.Option(
        "--fail-under", metavar="SHARE", help="Pass when at least this share of all cases passes: 0.9 or 90%."
    ),
]
MaxErrors = Annotated[
    int | None, typer.Option("--max-errors", min=0, help="With gates: how many cases may error. [0]")
]
AllowEmpty = Annotated[bool, typer.Option("--allow-empty", help="It is fine when no test is selected.")]
FilterFirst = Annotated[
    int | None, typer.Option("--filter-first-n", metavar="N", min=0, help="Only the first tests.")
]
FilterPattern = Annotated[
    str | None, typer.Option("--filter-pattern", metavar="REGEX", help="Only tests described like this.")
]
FilterProviders = Annotated[
    str | None,
    typer.Option("--filter-providers", metavar="REGEX", help="Only providers with such an id or label."),
]
FilterPrompts = Annotated[
    str | None,
    typer.Option("--filter-prompts", metavar="REGEX", help="Only prompts with such an id or label."),
]
FilterMetadata = Annotated[
    list[str] | None,
    typer.Option(
        "--filter-metadata", metavar="NAME=VALUE", help="Only tests with this metadata; repeatable."
    ),
]
FilterFailing = Annotated[
    str | None,
    typer.Option(
        "--filter-failing", metavar="RUN", help="Only tests that failed or errored in a run or file."
    ),
]
FilterSample = Annotated[
    int | None,
    typer.Option("--filter-sample", metavar="N", min=0, help="Only this many tests, drawn at random."),
]
Seed = Annotated[int, typer.Option("--seed", help="Another seed draws another sample.")]
Watch = Annotated[bool, typer.Option("--watch", help="Run again when a file in the config's folder changes.")]
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
NoToken = Annotated[
    bool, typer.Option("--no-token", help="Let every user of this machine use pages and runs.")
]
Version = Annotated[bool, typer.Option("--version", "-V", help="Show the version.")]
AsPromptfoo = Annotated[
    bool,
    typer.Option("--promptfoo", help="Read it as promptfoo's, and say what would differ from promptfoo."),
]
StarterFile = Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")]
SchemaFile = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write it to a file instead.")
]
SuiteFile = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Where to, as JSON. [default: stdout]"),
]
ExportedSuite = Annotated[Path, typer.Argument(metavar="FILE", help="What `geval export suite` wrote.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Where to, as YAML. [default: stdout]"),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")]
Limit = Annotated[int, typer.Option("-n", "--limit", min=1, help="How many runs.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, its beginning, or `latest`.")]
ReportFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help=f"Write it to a file: {_ENDINGS}.",
    ),
]
ShowPassed = Annotated[bool, typer.Option("-v", "--verbose", help="Show passed assertions too.")]
OlderThan = Annotated[str, typer.Option("--older-than", metavar="AGE", help="For example 12h, 30d or 8w.")]
ListProviders = Annotated[
    bool, typer.Option("--providers", help="List providers with their base URLs and keys.")
]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="For example smollm2.")]
