"""The options of a run, each declared once, with everything that other modules need to know about it.

A field of `RunOptions` is the whole definition of an option. From the fields, the command line makes its parameters
(`cli/options`) and the HTTP API its request model (`extras/web/api/runs`); `runs/resume` takes the options that
decide results. `geval --help` loads this module, so it imports nothing slow.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from geval_cli.report import FORMATS

if TYPE_CHECKING:
    from geval_cli.specs.base import Scoring
    from geval_cli.specs.dialect import Dialect


class OptionGroup(StrEnum):
    """The headings in `geval run --help`."""

    RESULTS = "Results"
    JUDGING = "Judging"
    RUNNING = "Running"
    CONFIG = "Config"
    SELECTION = "Selection"
    COMPARING = "Comparing"
    GATES = "Gates"
    RESUMING = "Resuming"
    BUDGET = "Budget"
    CACHE = "Cache"
    SAFETY = "Safety"
    SERVER = "Server"
    OPTIONS = "Options"


@dataclass(frozen=True, slots=True)
class InApi:
    """The form of an option in the body of `POST /api/runs`, under the name of its field.

    Attributes:
        maximum: the largest number that a client may request, if it differs from the command line's.
        default: the value when a client leaves it out, if it differs from the field's default.
    """

    description: str
    maximum: int | None = None
    default: int | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of an option, apart from its type and its default.

    Attributes:
        flags: its flags on the command line, separated by a space; the long form comes last.
        syntax: the form of its value, as help shows it; it also chooses the parser (`cli/arguments.PARSERS`).
        is_text: whether the command line takes a text that is parsed, rather than a value of the field's type.
        is_negated: whether giving the flag makes the field false.
        decides_results: whether it is part of a run's fingerprint, so that `--resume` refuses a changed value.
        is_always_written: whether the fingerprint contains it even if it is not given, as stored runs have it. Leave it
            false for a new option, so that the fingerprints of earlier runs do not change.
        only_with: fields of which at least one must be set for this one to have an effect.
        also_in: other commands that take it.
        in_api: how clients of the HTTP API set it; None if they cannot.
    """

    flags: str
    help: str = ""
    group: OptionGroup = OptionGroup.OPTIONS
    syntax: str | None = None
    example: str | None = None
    minimum: int | None = None
    maximum: int | None = None
    is_text: bool = False
    is_negated: bool = False
    is_hidden: bool = False
    decides_results: bool = False
    is_always_written: bool = False
    only_with: tuple[str, ...] = ()
    also_in: tuple[str, ...] = ()
    in_api: InApi | None = None

    @property
    def name(self) -> str:
        """Return the long form, such as `--max-cost`."""
        return self.flags.split()[-1]


AUTO = "auto"
"""The number of workers that means one per processor of the machine."""

DECIDED = "decided"
"""The value of `--stop-when`: a run may stop as soon as its gates, or comparisons of columns, are decided."""

LOCAL = "local"
"""The address that means a cluster on this machine, for this run alone."""

GraderOption = Annotated[
    str | None,
    Option(
        "--grader",
        "The judge, for example openai:gpt-4.1.",
        OptionGroup.JUDGING,
        syntax="PROVIDER",
        decides_results=True,
        is_always_written=True,
        in_api=InApi("The judge, as `--grader`."),
        also_in=("judge", "lock", "validate"),
    ),
]
OfflineOption = Annotated[
    bool,
    Option(
        "--offline",
        "Answer only from the cache; nothing is sent, no key is needed.",
        OptionGroup.CACHE,
        also_in=("judge", "lock"),
    ),
]
ScoringOption = Annotated[
    "Scoring | None",
    Option(
        "--scoring",
        "auto, logprobs, samples or single.",
        OptionGroup.JUDGING,
        syntax="HOW",
        is_text=True,
        decides_results=True,
        is_always_written=True,
        in_api=InApi("How ratings become a score, as `--scoring`."),
        also_in=("judge",),
    ),
]
SamplesOption = Annotated[
    int | str | None,
    Option(
        "--samples",
        "Judge each output this many times; upto:20 stops when the verdict is settled.",
        OptionGroup.JUDGING,
        syntax="N|upto:N",
        is_text=True,
        minimum=1,
        maximum=1000,
        decides_results=True,
        is_always_written=True,
        in_api=InApi("Judge each output this many times."),
        also_in=("judge",),
    ),
]
EnvFileOption = Annotated[
    Path | None,
    Option(
        "--env-file",
        "Read environment variables from this file.",
        OptionGroup.CONFIG,
        also_in=("judge", "lock", "validate"),
    ),
]
CacheFolderOption = Annotated[
    Path | None,
    Option(
        "--cache-dir",
        "Folder of the cache. [default: the home folder]",
        OptionGroup.CACHE,
        syntax="FOLDER",
        also_in=("judge", "lock"),
    ),
]
JsonOption = Annotated[bool, Option("--json", "Print JSON.", OptionGroup.RESULTS)]
ForceOption = Annotated[bool, Option("--force", "Replace the file if it exists.", OptionGroup.RESULTS)]
ConcurrencyOption = Annotated[
    int | None,
    Option("-j --max-concurrency", "Maximum number of requests in flight.", OptionGroup.RUNNING, minimum=1),
]
MaxCostOption = Annotated[
    float | None,
    Option("--max-cost", "Stop when this much is spent.", OptionGroup.BUDGET, syntax="USD", example="2.50"),
]
MaxRequestsOption = Annotated[
    int | None, Option("--max-requests", "Stop after this many requests.", OptionGroup.BUDGET, minimum=0)
]
HomeOption = Annotated[
    Path | None,
    Option(
        "--home",
        "Folder for runs and cache. [default: $GEVAL_HOME or the nearest .geval]",
        OptionGroup.OPTIONS,
        syntax="FOLDER",
        also_in=("judge", "lock", "demo"),
    ),
]
"""The options above are declared here because several commands share them."""


RESULTS_ENDINGS = ", ".join(FORMATS)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run, apart from its config. Help and fingerprint keep the order of the fields."""

    outputs: Annotated[
        tuple[Path, ...],
        Option(
            "-o --output",
            f"Write results: {RESULTS_ENDINGS}; repeatable.",
            OptionGroup.RESULTS,
            syntax="FILE",
            also_in=("judge", "demo"),
        ),
    ] = ()
    is_verbose: Annotated[
        bool,
        Option(
            "-v --verbose",
            "Show passed assertions too, with the judge's steps.",
            OptionGroup.RESULTS,
            also_in=("judge",),
        ),
    ] = False
    shows_progress: Annotated[
        bool,
        Option(
            "--no-progress",
            "No progress display.",
            OptionGroup.RESULTS,
            is_negated=True,
            also_in=("judge", "demo"),
        ),
    ] = True
    log_file: Annotated[
        Path | None,
        Option(
            "--log-file",
            "Add a line of JSON for every request.",
            OptionGroup.RESULTS,
            syntax="FILE",
            also_in=("judge",),
        ),
    ] = None

    otel: Annotated[
        bool,
        Option("--otel", "Send traces to the collector set by OTEL_* variables.", OptionGroup.RESULTS),
    ] = False

    tags: Annotated[
        Mapping[str, str],
        Option(
            "--tag",
            "Tag the run, for `geval list --tag`; repeatable.",
            OptionGroup.RESULTS,
            syntax="NAME=VALUE",
            example="model=candidate",
            is_text=True,
            in_api=InApi("Tags of the run, as `--tag`."),
            also_in=("judge",),
        ),
    ] = field(default_factory=dict)

    grader: GraderOption = None
    scoring: ScoringOption = None
    samples: SamplesOption = None

    is_locked: Annotated[
        bool,
        Option(
            "--locked",
            "Refuse to run unless geval.lock has the steps of every criterion.",
            OptionGroup.JUDGING,
            also_in=("judge",),
        ),
    ] = False

    repeats: Annotated[
        int | None,
        Option(
            "--repeat",
            "Run every test this many times.",
            minimum=1,
            maximum=1000,
            decides_results=True,
            is_always_written=True,
            in_api=InApi("Ask for each answer this many times.", maximum=100, default=1),
            group=OptionGroup.RUNNING,
        ),
    ] = None
    max_concurrency: Annotated[
        int | None,
        Option(
            "-j --max-concurrency",
            "Maximum number of requests in flight.",
            minimum=1,
            in_api=InApi("Maximum number of requests in flight.", maximum=1000),
            also_in=("judge",),
            group=OptionGroup.RUNNING,
        ),
    ] = None
    workers: Annotated[
        int | str | None,
        Option(
            "--workers",
            "Number of worker processes; auto: one per processor.",
            syntax="N|auto",
            is_text=True,
            minimum=1,
            maximum=64,
            group=OptionGroup.RUNNING,
        ),
    ] = None
    ray: Annotated[
        str | None,
        Option(
            "--ray",
            "Run the cases on a Ray cluster; local: start one here.",
            syntax="ADDRESS|local",
            group=OptionGroup.RUNNING,
        ),
    ] = None
    fail_fast: Annotated[
        bool,
        Option(
            "--fail-fast",
            "Stop at the first failure or error.",
            in_api=InApi("Stop at the first failure or error."),
            also_in=("judge",),
            group=OptionGroup.RUNNING,
        ),
    ] = False
    batch: Annotated[
        bool,
        Option(
            "--batch",
            "Send requests in batches: half the price, answers hours later.",
            group=OptionGroup.RUNNING,
        ),
    ] = False
    batch_judge: Annotated[
        bool,
        Option(
            "--batch-judge",
            "Send only judge requests in batches; models answer directly.",
            group=OptionGroup.RUNNING,
        ),
    ] = False
    waits: Annotated[
        bool,
        Option(
            "--no-wait",
            "Submit the batches and exit with 75; --resume fetches the answers.",
            is_negated=True,
            group=OptionGroup.RUNNING,
        ),
    ] = True
    plan: Annotated[
        bool,
        Option(
            "--plan",
            "Show what a run would send and cost; send nothing.",
            also_in=("judge",),
            group=OptionGroup.RUNNING,
        ),
    ] = False
    watch: Annotated[
        bool,
        Option("--watch", "Run again when a file in the config's folder changes.", group=OptionGroup.RUNNING),
    ] = False

    dialect: Annotated[
        "Dialect | None",
        Option(
            "--dialect",
            "geval or promptfoo. [default: as the config says]",
            OptionGroup.CONFIG,
            syntax="DIALECT",
            is_text=True,
            decides_results=True,
            is_always_written=True,
            also_in=("judge", "lock", "validate"),
        ),
    ] = None
    merge: Annotated[
        bool,
        Option(
            "--merge",
            "Join the configs into one suite, as promptfoo does.",
            OptionGroup.CONFIG,
            also_in=("validate",),
        ),
    ] = False
    variables: Annotated[
        Mapping[str, str],
        Option(
            "--var",
            "Set a variable in every test.",
            OptionGroup.CONFIG,
            syntax="NAME=VALUE",
            example="city=Paris",
            is_text=True,
            decides_results=True,
            in_api=InApi("Variables for every test, as `--var`."),
            also_in=("validate",),
        ),
    ] = field(default_factory=dict)
    env_file: EnvFileOption = None

    filter_providers: Annotated[
        str | None,
        Option(
            "--filter-providers",
            "Only providers whose id or label matches.",
            OptionGroup.SELECTION,
            syntax="REGEX",
            decides_results=True,
        ),
    ] = None
    filter_prompts: Annotated[
        str | None,
        Option(
            "--filter-prompts",
            "Only prompts whose id or label matches.",
            OptionGroup.SELECTION,
            syntax="REGEX",
            decides_results=True,
        ),
    ] = None
    filter_pattern: Annotated[
        str | None,
        Option(
            "--filter-pattern",
            "Only tests whose description matches.",
            OptionGroup.SELECTION,
            syntax="REGEX",
            decides_results=True,
        ),
    ] = None
    filter_metadata: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "--filter-metadata",
            "Only tests with this metadata; repeatable.",
            OptionGroup.SELECTION,
            syntax="NAME=VALUE",
            example="area=billing",
            is_text=True,
            decides_results=True,
        ),
    ] = ()
    filter_failing: Annotated[
        str | None,
        Option(
            "--filter-failing",
            "Only tests that failed or errored in a run or file.",
            OptionGroup.SELECTION,
            syntax="RUN",
            decides_results=True,
        ),
    ] = None
    filter_first: Annotated[
        int | None,
        Option(
            "--filter-first-n",
            "Only the first N tests.",
            OptionGroup.SELECTION,
            syntax="N",
            minimum=0,
            decides_results=True,
        ),
    ] = None
    filter_sample: Annotated[
        int | None,
        Option(
            "--filter-sample",
            "Only this many tests, chosen at random.",
            OptionGroup.SELECTION,
            syntax="N",
            minimum=0,
            decides_results=True,
        ),
    ] = None
    seed: Annotated[
        int,
        Option(
            "--seed",
            "Random seed for --filter-sample and --stop-when.",
            OptionGroup.SELECTION,
            decides_results=True,
            is_always_written=True,
            only_with=("filter_sample", "stop_when"),
        ),
    ] = 0
    allows_empty: Annotated[
        bool, Option("--allow-empty", "Succeed when no test is selected.", OptionGroup.SELECTION)
    ] = False

    fail_under: Annotated[
        float | None,
        Option(
            "--fail-under",
            "Pass when at least this share of all cases passes: 0.9 or 90%.",
            OptionGroup.GATES,
            syntax="SHARE",
            is_text=True,
            also_in=("judge",),
        ),
    ] = None
    baseline: Annotated[
        str | None,
        Option(
            "--baseline",
            "Compare with this run or results file; none: ignore the config's.",
            OptionGroup.GATES,
            syntax="RUN",
            also_in=("judge",),
        ),
    ] = None
    margins: Annotated[
        tuple[str, ...],
        Option(
            "--margin",
            "Call smaller differences equivalent; repeatable.",
            OptionGroup.GATES,
            syntax="[METRIC=]MARGIN",
            also_in=("judge",),
        ),
    ] = ()
    max_errors: Annotated[
        int | None,
        Option(
            "--max-errors",
            "With gates: number of cases that may error. [0]",
            OptionGroup.GATES,
            minimum=0,
            also_in=("judge",),
        ),
    ] = None

    stop_when: Annotated[
        str | None,
        Option(
            "--stop-when",
            "decided: stop once gates or column comparisons are settled.",
            OptionGroup.GATES,
            syntax=DECIDED,
            is_text=True,
            decides_results=True,
        ),
    ] = None

    resume_latest: Annotated[
        bool, Option("--resume", "Resume the latest unfinished run of this config.", OptionGroup.RESUMING)
    ] = False
    resume_from: Annotated[
        str | None, Option("--resume-from", "Resume this run.", OptionGroup.RESUMING, syntax="RUN")
    ] = None
    retry_errors: Annotated[
        bool, Option("--retry-errors", "Run the errored cases of the latest run again.", OptionGroup.RESUMING)
    ] = False

    max_cost: Annotated[
        float | None,
        Option(
            "--max-cost",
            "Stop when this much is spent.",
            OptionGroup.BUDGET,
            syntax="USD",
            example="2.50",
            also_in=("judge", "lock"),
        ),
    ] = None
    max_requests: Annotated[
        int | None,
        Option(
            "--max-requests",
            "Stop after this many requests.",
            OptionGroup.BUDGET,
            minimum=0,
            also_in=("judge", "lock"),
        ),
    ] = None

    reads_cache: Annotated[
        bool,
        Option(
            "--no-cache",
            "Do not use answers from earlier runs.",
            OptionGroup.CACHE,
            is_negated=True,
            in_api=InApi("Whether answers from earlier runs may be used."),
            also_in=("judge", "lock"),
        ),
    ] = True
    is_offline: OfflineOption = False
    cache_folder: CacheFolderOption = None
    cache_ttl: Annotated[
        str | None,
        Option(
            "--cache-ttl",
            "Use answers up to this age: 12h, 30d, never. [14d]",
            OptionGroup.CACHE,
            syntax="AGE",
            also_in=("judge", "lock"),
        ),
    ] = None
    home: HomeOption = None

    untrusted: Annotated[
        bool,
        Option(
            "--untrusted",
            "For an untrusted config: no code, no environment values, no files elsewhere, known vendors "
            "only. =strict: also refuse to run if the kernel cannot confine it.",
            OptionGroup.SAFETY,
            also_in=("judge", "lock", "validate"),
        ),
    ] = False
    # The option parser has no flags with an optional value; `cli/main` rewrites `--untrusted=strict` to this.
    untrusted_strict: Annotated[
        bool,
        Option(
            "--untrusted-strict",
            group=OptionGroup.SAFETY,
            is_hidden=True,
            also_in=("judge", "lock", "validate"),
        ),
    ] = False


def declared_options(record: type) -> Iterator[tuple[Field[Any], Option]]:
    """Yield the options that a dataclass declares, in order."""
    for declared in fields(record):
        found = next((item for item in metadata_of(declared.type) if isinstance(item, Option)), None)
        if found is not None:
            yield declared, found


def options_of_command(command: str) -> list[str]:
    """Return the names of the fields whose options another command takes too."""
    return [declared.name for declared, option in declared_options(RunOptions) if command in option.also_in]


def metadata_of(annotation: Any) -> tuple[Any, ...]:
    """Return the metadata of an annotation. Types stay unevaluated: some are slow to import."""
    return getattr(annotation, "__metadata__", ())


def default_of(declared: Field[Any]) -> Any:
    """Return the default of a field."""
    return declared.default if declared.default_factory is MISSING else declared.default_factory()


def values_of(options: RunOptions) -> dict[str, Any]:
    """Return all options by field name."""
    return {declared.name: getattr(options, declared.name) for declared in fields(RunOptions)}
