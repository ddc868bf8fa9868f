"""Arguments of the commands, as typer reads them from a signature, and their options, declared in records.

`declared` turns the fields of a record (`runs/options`) into parameters of a command, so that no command repeats them.
"""

import inspect
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field, dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer
from typer.core import TyperCommand

from geval_cli.errors import UsageError
from geval_cli.patterns import compile_later
from geval_cli.runs.options import (
    RESULTS_ENDINGS,
    CacheFolderOption,
    EnvFileOption,
    ForceOption,
    GraderOption,
    HomeOption,
    JsonOption,
    Option,
    OptionGroup,
    SamplesOption,
    ScoringOption,
    declared_options,
    default_of,
)


class ProblemFormat(StrEnum):
    """The formats of problems: for people in full or one line each, and for programs."""

    FULL = "full"
    CONCISE = "concise"
    GITHUB = "github"
    GITLAB = "gitlab"
    SARIF = "sarif"
    JSON = "json"


Record = TypeVar("Record")

EXIT_CODES = """\
Exit codes: 0 all passed or not evaluated; 1 something failed; 2 usage or config; 3 nothing failed, but something
could not be judged; 4 a bug in geval; 75 submitted batches are not done yet; 130 stopped by Ctrl-C;
143 terminated."""


def complete_run(incomplete: str) -> list[str]:
    """Return the stored runs whose ids begin with `incomplete`, newest first; none if they cannot be read."""
    from geval_cli.store.state import open_runs

    known = ["latest", "latest~1"]
    with suppress(Exception), open_runs(None, os.environ) as runs:  # completion must not print errors
        known += [stored[0].id for stored in runs.runs(limit=_COMPLETED_MAX)]
    return [name for name in known if name.startswith(incomplete)]


_COMPLETED_MAX = 50


Configs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[CONFIG]...",
        help="Config files, taken one after another. [default: gevalconfig.yaml or promptfooconfig.yaml here]",
        show_default=False,
    ),
]
Config = Annotated[Path, typer.Argument(metavar="CONFIG", help="The config file.")]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where your configs are.")]
Version = Annotated[bool, typer.Option("--version", "-V", help="Show the version.")]
AsPromptfoo = Annotated[
    bool,
    typer.Option("--promptfoo", help="Read it by promptfoo's rules and list possible differences."),
]
ProblemForm = Annotated[
    ProblemFormat,
    typer.Option("--format", metavar="|".join(ProblemFormat), help="Format of the problems."),
]
ProblemsFile = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Also write problems to a .sarif, .codequality.json or .json file.",
    ),
]
StarterFile = Annotated[Path, typer.Argument(metavar="FILE", help="Output file.")]
SchemaFile = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Output file. [default: stdout]")
]
SuiteFile = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Output file, JSON. [default: stdout]"),
]
ExportedSuite = Annotated[
    Path, typer.Argument(metavar="FILE", help="A file that `geval export suite` wrote.")
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Output file, YAML. [default: stdout]"),
]
TracesFile = Annotated[Path, typer.Argument(metavar="FILE", help="Traces or logs, one JSON object per line.")]
TestsFile = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Output file, .jsonl.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")]
Limit = Annotated[int, typer.Option("-n", "--limit", min=1, help="Number of runs.")]
JudgedRun = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run id or its first characters, `latest`, `latest~1`, or a results file.",
        show_default=False,
    ),
]
JudgingConfig = Annotated[
    Path | None,
    typer.Argument(
        metavar="CONFIG",
        help="Use the assertions of this config. [default: the run's own]",
        show_default=False,
    ),
]
_METRICS = "Metrics"
OnlyMetrics = Annotated[
    list[str] | None,
    typer.Option(
        "--only", metavar="METRIC", help="Judge only this metric; repeatable.", rich_help_panel=_METRICS
    ),
]
Thresholds = Annotated[
    list[str] | None,
    typer.Option(
        "--threshold",
        metavar="METRIC=SCORE",
        help="Use another threshold for a metric; repeatable.",
        rich_help_panel=_METRICS,
    ),
]
UpdateLock = Annotated[bool, typer.Option("--update", help="Also remove unused entries.")]
ResultsFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="Results from geval (.json, .jsonl, .parquet) or promptfoo (.json)."),
]
RunFiles = Annotated[
    list[Path],
    typer.Option("-o", "--output", metavar="FILE", help=f"Output file: {RESULTS_ENDINGS}; repeatable."),
]
ConfigOfRuns = Annotated[
    Path | None,
    typer.Argument(metavar="[CONFIG]", help="Only runs of this config.", show_default=False),
]
EarlierRunName = Annotated[
    str | None,
    typer.Argument(
        metavar="A",
        help="The earlier run: its id, or a .json, .jsonl or .parquet file of -o. [default: latest~1]",
    ),
]
LaterRunName = Annotated[
    str | None,
    typer.Argument(metavar="B", help="The later run, likewise. [default: latest]"),
]
WithTags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="NAME=VALUE", help="Only runs with this tag; repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run id or its first characters, `latest`, `latest~1`, or a results file.",
        autocompletion=complete_run,
    ),
]
RatedRuns = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run, or A,B to rate the outputs of two runs. Ids, `latest`, results files.",
        autocompletion=complete_run,
    ),
]
WaitedRun = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]", help="A run id or its first characters, `latest` or `latest~1`; default: all runs."
    ),
]
BatchIds = Annotated[list[str], typer.Argument(metavar="ID...", help="Batch ids, geval's or the provider's.")]
RemoteBatchId = Annotated[str, typer.Argument(metavar="REMOTE_ID", help="The provider's batch id.")]
BatchProvider = Annotated[
    str, typer.Option("--provider", metavar="PROVIDER", help="The provider, for example openai:gpt-4.1.")
]
RunNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUN]...", help="Run ids or their first characters, `latest` or `latest~1`."),
]
GivenLabels = Annotated[Path, typer.Argument(metavar="LABELS", help="Human labels: .jsonl or .csv.")]
LabelsFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="[LABELS]",
        help="Human labels: .jsonl or .csv. [default: labels kept by `geval label`]",
        show_default=False,
    ),
]
OlderThan = Annotated[str, typer.Option("--older-than", metavar="AGE", help="For example 12h, 30d or 8w.")]
ListProviders = Annotated[
    bool, typer.Option("--providers", help="List providers with their base URLs and keys.")
]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="For example smollm2.")]
PrintsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ProviderId = Annotated[str, typer.Argument(metavar="PROVIDER", help="For example openai:gpt-4.1.")]


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Options of `geval serve` and `geval view`."""

    folder: Path = Path()
    host: Annotated[
        str,
        Option(
            "--host",
            "Address to listen on; any but this machine's own needs a token.",
            OptionGroup.SERVER,
            syntax="ADDRESS",
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, Option("--port -p", "Port; 0 picks a free one.", OptionGroup.SERVER, minimum=0, maximum=65535)
    ] = 3001
    grader: GraderOption = None
    scoring: ScoringOption = None
    samples: SamplesOption = None
    env_file: EnvFileOption = None
    home: HomeOption = None
    allow_code: Annotated[
        bool, Option("--allow-code", "Also run configs that contain code.", OptionGroup.SAFETY)
    ] = False
    origins: Annotated[
        tuple[str, ...],
        Option(
            "--cors",
            "Allow pages from this origin to use the API; repeatable.",
            OptionGroup.SAFETY,
            syntax="ORIGIN",
        ),
    ] = ()
    hosts: Annotated[
        tuple[str, ...],
        Option(
            "--allowed-host", "Another name of this server; repeatable.", OptionGroup.SAFETY, syntax="NAME"
        ),
    ] = ()
    has_no_token: Annotated[
        bool, Option("--no-token", "Open pages and runs to every user of this machine.", OptionGroup.SAFETY)
    ] = False
    opens_browser: bool = False


@dataclass(frozen=True, kw_only=True)
class TracesOptions:
    """Options of `geval import traces`."""

    where: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "--where",
            "Only calls with this attribute; repeatable.",
            OptionGroup.SELECTION,
            syntax="NAME=VALUE",
            example="gen_ai.request.model=gpt-4.1",
            is_text=True,
        ),
    ] = ()
    sample: Annotated[
        int | None,
        Option("--sample", "Only this many, chosen at random.", OptionGroup.SELECTION, syntax="N", minimum=1),
    ] = None
    seed: Annotated[int, Option("--seed", "Random seed of --sample.", OptionGroup.SELECTION)] = 0
    each_call: Annotated[
        bool,
        Option(
            "--each-call", "Make one test per model call instead of one per trace.", OptionGroup.SELECTION
        ),
    ] = False
    skips_bad: Annotated[
        bool, Option("--skip-bad", "Skip lines that cannot be read.", OptionGroup.SELECTION)
    ] = False
    may_replace: ForceOption = False


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Options of `geval show`."""

    outputs: Annotated[
        tuple[Path, ...],
        Option("-o --output", f"Output file: {RESULTS_ENDINGS}.", OptionGroup.RESULTS, syntax="FILE"),
    ] = ()
    case: Annotated[
        str | None, Option("--case", "Show one case in full: 3, or 3.2 for its second repeat.", syntax="N")
    ] = None
    failed: Annotated[bool, Option("--failed", "Only failed cases.")] = False
    errors: Annotated[bool, Option("--errors", "Only cases that could not be judged.")] = False
    everything: Annotated[bool, Option("--all", "Every case, nothing shortened.")] = False
    by: Annotated[str, Option("--by", "How to group failures.", syntax="assertion|reason")] = "assertion"
    is_verbose: Annotated[bool, Option("-v --verbose", "Show passed assertions too.")] = False
    as_json: Annotated[bool, Option("--json", "Print the JSON of -o results.json.")] = False
    home: HomeOption = None


@dataclass(frozen=True, kw_only=True)
class RemoveOptions:
    """Options of `geval rm`."""

    older_than: Annotated[
        str | None, Option("--older-than", "Remove runs older than this: 12h, 30d or 8w.", syntax="AGE")
    ] = None
    keep: Annotated[
        int | None, Option("--keep", "Remove all but the newest N runs.", syntax="N", minimum=0)
    ] = None
    removes_labels: Annotated[bool, Option("--labels", "Also remove the human labels of these runs.")] = False
    keeps_answers: Annotated[bool, Option("--keep-answers", "Keep all cached answers.")] = False
    is_sure: Annotated[bool, Option("-y --yes", "Skip the confirmation.")] = False
    as_json: Annotated[bool, Option("--json", "Print JSON.")] = False
    cache_folder: CacheFolderOption = None
    home: HomeOption = None


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `geval compare`."""

    outputs: Annotated[
        tuple[Path, ...],
        Option("-o --output", "Output file: .json, .md; repeatable.", OptionGroup.RESULTS, syntax="FILE"),
    ] = ()
    prints_json: JsonOption = False
    is_verbose: Annotated[bool, Option("-v --verbose", "Show every figure and flipped test.")] = False
    columns: Annotated[
        tuple[str, ...],
        Option("--column", "Compare these two columns; repeatable.", OptionGroup.COMPARING, syntax="OLD=NEW"),
    ] = ()
    cluster: Annotated[
        str | None,
        Option(
            "--cluster", "Tests with equal metadata KEY count as one.", OptionGroup.COMPARING, syntax="KEY"
        ),
    ] = None
    detect: Annotated[
        float,
        Option(
            "--detect",
            "Show how many tests would detect this difference.",
            OptionGroup.COMPARING,
            syntax="DELTA",
        ),
    ] = 0.05
    margins: Annotated[
        tuple[str, ...],
        Option(
            "--margin",
            "Call smaller differences equivalent; repeatable.",
            OptionGroup.COMPARING,
            syntax="[METRIC=]MARGIN",
        ),
    ] = ()
    adjust: Annotated[
        str,
        Option(
            "--adjust",
            "Adjust p-values for multiple rows: holm or bh.",
            OptionGroup.COMPARING,
            syntax="METHOD",
        ),
    ] = "holm"
    labels: Annotated[
        Path | None,
        Option(
            "--labels",
            "Correct the judge with human labels; `kept`: from `geval label`.",
            OptionGroup.COMPARING,
            syntax="FILE",
        ),
    ] = None
    allow_unmatched: Annotated[
        bool,
        Option("--allow-unmatched", "Skip labels whose output is in neither run.", OptionGroup.COMPARING),
    ] = False
    home: HomeOption = None


def declared(record: type[Record], *names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that a record declares, and call it with the record as its first argument.

    With `names`, only these fields become options; the rest of the record keeps its defaults.
    """
    known = {field.name: (field, option) for field, option in declared_options(record)}
    taken = [known[name] for name in names or known]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**words: Any) -> None:
            written = {field.name: words.pop(field.name) for field, _ in taken}
            command(_read(record, taken, written), **words)

        _, *own = inspect.signature(command).parameters.values()
        parameters = [*own, *(_parameter(field, option) for field, option in taken)]
        # typer reads both, and does not follow __wrapped__ if they are set.
        run.__dict__["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {item.name: item.annotation for item in parameters}
        return run

    return decorate


def _read(
    record: type[Record], taken: Sequence[tuple[Field[Any], Option]], written: Mapping[str, Any]
) -> Record:
    from geval_cli.cli.arguments import parse_option

    values = {}
    for field, option in taken:
        value = written[field.name]
        if option.is_negated:
            values[field.name] = not value
        elif value not in (None, []):
            values[field.name] = parse_option(option, default_of(field), value)
    return record(**values)


def _parameter(field: Field[Any], option: Option) -> inspect.Parameter:
    default = default_of(field)
    info = typer.Option(
        *option.flags.split(),
        metavar=option.syntax,
        help=option.help or None,
        min=option.minimum,
        max=option.maximum,
        hidden=option.is_hidden,
        rich_help_panel=option.group,
        autocompletion=_completion(option.syntax),
    )
    kind: Any = str if option.is_text else get_args(field.type)[0]
    if option.is_negated:
        default = False
    elif isinstance(default, tuple | Mapping):
        item = str if option.is_text else get_args(kind)[0]
        kind, default = list[item] | None, None  # type: ignore[valid-type]
    elif default is None and option.is_text:
        kind = str | None
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def _completion(syntax: str | None) -> Callable[[str], list[str]] | None:
    """Return what completes a value: the words of a syntax such as `assertion|reason`, run ids, or None."""
    if syntax == "RUN":
        return complete_run
    words = [word for word in (syntax or "").split("|") if word.islower()]

    def complete(incomplete: str) -> list[str]:
        from geval_cli.specs.base import Scoring
        from geval_cli.specs.dialect import Dialect
        from geval_cli.statistics.paired import ADJUSTMENTS

        known = {"HOW": get_args(Scoring), "DIALECT": list(Dialect), "METHOD": list(ADJUSTMENTS)}
        return [word for word in known.get(syntax or "", words) if word.startswith(incomplete)]

    return complete if words or syntax in {"HOW", "DIALECT", "METHOD"} else None


class GroupedCommand(TyperCommand):
    """A command whose help lists its options by group, and shows values as N, FILE or TEXT.

    typer itself groups options only with rich, which takes too long to import.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line, without the second brackets that typer puts around optional arguments."""
        return [_BRACKETS.sub(r"[\1]\2", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then the options, group by group."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                written, text = record
                rows = sections.setdefault(_heading(param), [])
                # `N`, `FILE` or `TEXT` in place of the name of a Python type.
                found = _TYPE.search(written)
                if found is None:
                    without_type = written
                else:
                    kind = next((word for part, word in _VALUES.items() if part in found[1]), "TEXT")
                    without_type = _TYPE.sub(f" {kind}" if written.startswith("-") else "", written)
                rows.append((without_type, _in_words(text)))
        for heading in sorted(sections, key=lambda name: name == OptionGroup.OPTIONS):
            with formatter.section(bold(heading)):
                formatter.write_dl(sections[heading])


class CommandTable(typer.Typer):
    """A group of commands, all of which show their help in the same format."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(rich_markup_mode=None, **settings)  # rich costs 0.2 s of every start

    def command(  # type: ignore[override]
        self, name: str | None = None, **settings: Any
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Return the decorator that adds a command."""
        return super().command(name, **{"cls": GroupedCommand, **settings})


def bold(text: str) -> str:
    """Return a heading of the help, in bold on a terminal with colours."""
    is_plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if is_plain else f"\x1b[1m{text}\x1b[0m"


_BRACKETS = compile_later(r"\[\[(\w+)\](\.\.\.)?\](?:\.\.\.)?")
_TYPE = compile_later(r" ?<([^<>]*)>")
_RANGE = compile_later(r"(\d+)<=x<=(\d+)")
_AT_LEAST = compile_later(r"\[x>=(\d+)\]|x>=(\d+)")


_VALUES = {"int": "N", "float": "X", "path": "FILE", "Path": "FILE"}


def _in_words(text: str) -> str:
    """Return an option's help with its bounds in words: `[1 to 64]`.

    A lower bound of 0 or 1 alone is left out.
    """
    text = _RANGE.sub(r"\1 to \2", text)
    found = _AT_LEAST.search(text)
    if found is None:
        return text
    least = int(found[1] or found[2])
    said = f"at least {least}" if least > 1 else ""
    text = _AT_LEAST.sub(f"[{said}]" if said and found[1] else said, text)
    return text.replace("; ]", "]").rstrip()


def _heading(param: Any) -> str:
    if param.param_type_name == "argument":
        return "Arguments"
    return str(getattr(param, "rich_help_panel", None) or "Options")


def exit_with(code: Any) -> None:
    """End a command with an exit code."""
    raise typer.Exit(int(code))


def check_idle(
    given: Any, names: Collection[str], *, beside: str | None = None, without: str | None = None
) -> None:
    """Check that no option was given that would have no effect; `names` are names of fields.

    Args:
        given: the options of a command.
        names: the fields that have no effect here.
        beside: the option that makes them ineffective.
        without: otherwise, the option that they need.

    Raises:
        UsageError: such an option was given.
    """
    for declared, option in declared_options(type(given)):
        if declared.name not in names or getattr(given, declared.name) == default_of(declared):
            continue
        if without is not None:
            raise UsageError(f"{option.name} needs {without}", hint=f"add {without}, or remove {option.name}")
        raise UsageError(f"{option.name} cannot be combined with {beside}", hint="remove one of the two")
