"""Find what extends the core: geval's own extras through a table, installed packages through entry points.

The core imports no extra. It asks for what it needs by a name in `EXTRAS`, and the module is loaded at that moment: a
run that needs no extra loads none.

Packages add assertions, providers, report formats and commands. geval looks up a name in its own tables first, and
among plugins only if it is unknown there: a run without plugins never reads what is installed.
docs/reference/plugins.md says what each group expects.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from inspect import iscoroutinefunction
from pathlib import Path
from traceback import walk_tb
from typing import Any

from geval_cli.errors import UsageError

ASSERTIONS = "geval.assertions"
"""Name of an assertion type -> a subclass of `geval_cli.assertions.base.Assertion`."""
PROVIDERS = "geval.providers"
"""First word of a provider's id -> a module, or another object, with `build(source)`."""
REPORTS = "geval.reports"
"""File extension without its first dot -> a class, constructed as `ResultsFile(path)`."""
COMMANDS = "geval.commands"
"""Name of a command -> a `typer.Typer`."""

EXTRAS: Mapping[str, str] = {
    # Reads a config's calibration file, applies its thresholds, and compares its judges with the current ones.
    "calibration": "geval_cli.extras.trust.calibrated",
    # Reads the labels that a config names, and evaluates its gates on true figures with them.
    "true figures": "geval_cli.extras.trust.true_figures",
    # Corrects the difference between two runs with labels of their outputs.
    "true differences": "geval_cli.extras.trust.true_differences",
    # Reads the anchors: outputs that a config's judges re-rate before each run.
    "anchors": "geval_cli.extras.trust.anchors",
    # Has the anchors rated, and says whether a judge has drifted between two runs.
    "drift": "geval_cli.extras.trust.drift",
    # Shows human labels of stored outputs next to the judge's verdicts, for pages and files.
    "human labels": "geval_cli.extras.trust.labelling",
    # Reads a judge if the dialect allows one per kind of judgement: `read_judge`.
    "judges by kind": "geval_cli.extras.promptfoo.providers",
    # Reads configs of a dialect: `open_suite`.
    "dialect: promptfoo": "geval_cli.extras.promptfoo.load",
    # Renders templates in the language of a dialect: `NunjucksTemplates`.
    "templates: nunjucks": "geval_cli.extras.promptfoo.nunjucks",
    # Turns prompts into requests, and answers into outputs, by promptfoo's rules.
    "requests of promptfoo": "geval_cli.extras.promptfoo.requests",
    # Reads results written by another program: `read_results(document, place)`.
    "results: promptfoo": "geval_cli.extras.promptfoo.results",
    # Runs and checks a config's code between the steps of a job.
    "code of a config": "geval_cli.extras.programs.steps",
    # Calls functions of a config while it is read, and builds its template filters.
    "code while reading": "geval_cli.extras.programs.loading",
    # Manages the processes and engines that run code: `Scripts`.
    "code runner": "geval_cli.extras.programs.scripting.scripts",
    # Warns about likely mistakes: `LikelyMistakes`.
    "likely mistakes": "geval_cli.extras.likely_mistakes",
    # Reads the tools of a test, and checks them: `read_tools`, `check_tools`.
    "tools of a config": "geval_cli.extras.tools.calling",
    # Says what prevents a run from stopping early, and when it is decided: `stop_problems`, `Decisions`.
    "early stopping": "geval_cli.extras.stopping",
    # Reads and writes Parquet files: `open_tests`, `results_head`, `read_result_texts`, `refuse_parquet`, ...
    "Parquet files": "geval_cli.extras.parquet",
    # Reads tests from .xlsx files: `sheet_rows`.
    "sheets": "geval_cli.extras.xlsx",
    # Fetches tests from addresses in a config: `SourceCopies`.
    "remote tests": "geval_cli.extras.remote",
    # Builds providers for OpenAI's APIs other than chat: `build(source)`.
    "APIs beside chat": "geval_cli.extras.openai_apis",
    # Says whether code of the config reads the answers of an HTTP API: `has_response_code`.
    "HTTP provider": "geval_cli.extras.http_provider.placeholders",
    # Answers a model's tool calls: `ToolCaller`.
    "tools": "geval_cli.extras.tools.calling",
    # Says what prevents a run from using batches, starts them, and runs its jobs in waves.
    "batches": "geval_cli.extras.batches.driver",
    # Stores the batches of a cache: `BatchStore`.
    "stored batches": "geval_cli.extras.batches.store",
    # Implements the batch API of an endpoint: `batches_of(endpoint, transport)`.
    "batches: openai": "geval_cli.extras.batches.openai",
    "batches: azure": "geval_cli.extras.batches.openai",
    "batches: mistral": "geval_cli.extras.batches.openai",
    "batches: together": "geval_cli.extras.batches.openai",
    "batches: anthropic": "geval_cli.extras.batches.anthropic",
    "batches: google": "geval_cli.extras.batches.google",
    # Reads and checks a config's simulated users: `read_simulation`, `read_profiles`, `check_user`.
    "simulated users": "geval_cli.extras.conversations.users",
    # Checks and plays conversations: `check_turns`, `check_prompt_of_turns`, `hold_conversation`, `carry`, ...
    "conversations": "geval_cli.extras.conversations.holding",
    # Reads the evaluation steps in the lock file next to a config: `read_lock`.
    "lock": "geval_cli.extras.lock",
    # Signs requests with AWS credentials: `signer_of`, `check_sign`, `missing_for_sign`, `uses_credentials`.
    "signatures of AWS": "geval_cli.extras.aws.signing",
    # Locates and names the models in a Google Cloud project.
    "vertex": "geval_cli.extras.clouds",
    # Gets a provider's key from a program: `check_key_command`, `missing_program`, `key_command_of`.
    "programs that print keys": "geval_cli.extras.credentials",
    # Finds the credentials of Google Cloud and Azure: `check_cloud_login`, `cloud_login`.
    "cloud credentials": "geval_cli.extras.clouds",
    # Compares a run with an earlier one: `open_baseline`, `compared_with`, `judge_differences`.
    "comparison of runs": "geval_cli.extras.compare.comparison",
    # Reads results files as runs, or imports them: `named_file`.
    "results files": "geval_cli.extras.results_files",
    # Calls several judges, and combines their verdicts: `ask_jury`, `verdict_of_jury`, `majority_again`.
    "juries": "geval_cli.extras.juries",
    # Has a judge answer the items of a checklist, and grades the answers: `grade_checklist`.
    "checklists": "geval_cli.extras.graded.checklists",
    # Reads the nodes of a decision tree: `read_tree`.
    "decision trees": "geval_cli.extras.decision_trees",
    # Ranks columns by pairwise comparisons of their outputs: `RankingSums`.
    "rankings": "geval_cli.extras.rankings",
    # Shows the evidence behind a run's verdict: `Failures`, `print_evidence`.
    "evidence": "geval_cli.extras.evidence",
    # Shows the comparison of two runs: `print_baseline`, `print_baseline_in_short`, `baseline_markdown`.
    "comparison in words": "geval_cli.extras.compare.text",
    # Uses the outputs of an earlier run as those of a suite's tests: `JudgedTests`, `match_outputs`.
    "judging again": "geval_cli.extras.judge_again",
    # Judges the outputs of a test that are compared with each other, once all are available: `finish_row`.
    "comparisons": "geval_cli.extras.comparisons",
    # Checks what installed packages give: `answer_of` a provider, `outcome_of` an assertion, `check_parts`.
    "packages": "geval_cli.extras.packages",
    # Distributes the jobs of a run to other processes.
    "workers": "geval_cli.extras.workers.coordinator",
}
"""The name under which the core asks for an extra -> its module."""


def is_installed(module: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def extra(name: str) -> Any:
    """Return the module with this name in `EXTRAS`, importing it on first use."""
    return import_module(EXTRAS[name])


def extras_of(kind: str) -> Iterator[Any]:
    """Yield the modules with names of the form `KIND: ...` in `EXTRAS`."""
    yield from (extra(name) for name in EXTRAS if name.startswith(f"{kind}: "))


def find_plugin(group: str, name: str) -> Any:
    """Return what an installed package adds to a group under a name; None if no package does.

    Raises:
        UsageError: it cannot be imported, or several packages add the same name.
    """
    found = _entry_points(group).get(name, ())
    if not found:
        return None
    if len(found) > 1:
        packages = " and ".join(sorted(map(_package_of, found)))
        raise UsageError(
            f"{packages} both add `{name}` to geval", hint="keep one of them and uninstall the others"
        )
    [point] = found
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # whatever the code of a package raises
        what = (
            f"`{name}` of the package {_package_of(point)} cannot be loaded: {type(error).__name__}: {error}"
        )
        raise UsageError(what, hint="update the package, or uninstall it") from error


def plugin_names(group: str) -> list[str]:
    """Return the names that installed packages add to a group."""
    return sorted(_entry_points(group))


def is_own(part: object) -> bool:
    """Return whether the class of an assertion or a provider is geval's own."""
    return type(part).__module__.startswith("geval_cli.")


def source_of_bug(error: BaseException) -> str:
    """Return whose bug an error shows: `the package geval-haiku` if its code was running, else `geval`."""
    groups = map(_entry_points, (ASSERTIONS, PROVIDERS, REPORTS, COMMANDS))
    points = [point for group in groups for same in group.values() for point in same]
    packages = {point.module.partition(".")[0]: _package_of(point) for point in points}
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]
    for module in (*modules, getattr(error, "module_with_bug", "")):
        if package := packages.get(module.partition(".")[0]):
            return f"the package {package}"
    return "geval"


@cache
def _entry_points(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """Return the entry points of a group by name.

    Packages in the current folder do not count: with `python -m`, that folder may be someone else's checkout.
    """
    here = Path.cwd()
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=group):
        if point.dist is not None and Path(str(point.dist.locate_file(""))).resolve() != here:
            found[point.name] = (*found.get(point.name, ()), point)
    return found


def _package_of(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.module


def refuse_blocking(part: Any, methods: tuple[str, ...], what: str) -> None:
    """Raise UsageError if one of a plugin's methods is not a coroutine function; `what` begins the message."""
    for method in methods:
        if not iscoroutinefunction(getattr(part, method)):
            raise UsageError(f"{what} whose `{method}` cannot be awaited", hint=f"write `async def {method}`")
