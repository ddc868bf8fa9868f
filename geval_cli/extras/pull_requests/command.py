"""`geval comment`. The command imports what it needs when it runs."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from geval_cli.cli.options import CommandTable, check_idle, declared
from geval_cli.runs.options import HomeOption, Option, OptionGroup

commands = CommandTable()

CommentedRun = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run id or its first characters, `latest`, `latest~1`, or a results file.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class CommentOptions:
    """Options of `geval comment`."""

    baseline: Annotated[
        str | None,
        Option(
            "--baseline",
            "Compare with this run or results file; `none`: don't.",
            OptionGroup.COMPARING,
            syntax="RUN",
        ),
    ] = None
    posts: Annotated[bool, Option("--post", "Post it, or update what was posted.", OptionGroup.RESULTS)] = (
        False
    )
    number: Annotated[
        int | None,
        Option("--pr", "The pull request. [default: the one that CI names]", OptionGroup.RESULTS, minimum=1),
    ] = None
    name: Annotated[
        str,
        Option(
            "--name",
            "Tells several comments on a pull request apart. [default: the config's path]",
            OptionGroup.RESULTS,
            syntax="NAME",
        ),
    ] = ""
    failed: Annotated[
        bool, Option("--failed", "Say that nothing was run; needs --name.", OptionGroup.RESULTS)
    ] = False
    output: Annotated[
        Path | None, Option("-o --output", "Write it to this .md file.", OptionGroup.RESULTS, syntax="FILE")
    ] = None
    home: HomeOption = None


@commands.command()
@declared(CommentOptions)
def comment(given: CommentOptions, run: CommentedRun = "latest") -> None:
    """Comment on a pull request with what it changes.

    Prints the comment as Markdown. With --post, in the CI of a pull request, it is posted, and updated by later runs.
    """
    from geval_cli.cli.problems import print_warnings
    from geval_cli.errors import UsageError
    from geval_cli.extras.pull_requests.comment import comment_text, marker, not_run_text
    from geval_cli.extras.pull_requests.hosts import host_in_ci, report_link
    from geval_cli.report.safe_file import SafeFile
    from geval_cli.report.sanitize import sanitize
    from geval_cli.runs.event_loop import run_async
    from geval_cli.runs.stored import open_reports

    named = str(Path(given.name)) if given.name else ""  # as runs name their config
    if not given.posts:
        check_idle(given, {"number"}, without="--post")
    if given.output is not None and given.output.suffix.lower() != ".md":
        raise UsageError(f"cannot write a comment to {given.output}", hint="use a name that ends in .md")
    if given.failed:
        if not named:
            raise UsageError("--failed needs a name", hint="name the config: --name evals.yaml")
        check_idle(given, {"baseline"}, beside="--failed")
        name = named
        text = not_run_text(name, link=report_link(os.environ))
    else:
        names = [run] if given.baseline in (None, "none") else [run, str(given.baseline)]
        base = os.environ.get("GITHUB_BASE_REF") or os.environ.get("CI_MERGE_REQUEST_TARGET_BRANCH_NAME", "")
        with open_reports(names, given.home, os.environ) as (reports, warnings):
            print_warnings(warnings)
            report = reports[0]
            baseline = reports[1] if len(reports) > 1 else None
            name = named or report.run.config_path
            text = comment_text(report, baseline, name=name, base=base, link=report_link(os.environ))
    if given.output is not None:
        with SafeFile(given.output) as file:
            file.write(text)
    if not given.posts:
        if given.output is None:
            sys.stdout.write(text)
        return

    async def post() -> str:
        host = await host_in_ci(os.environ, given.number)
        return f"commented on {host.shown} {await host.post(text, marker(name))}".rstrip()

    sys.stdout.write(f"{sanitize(run_async(post()))}\n")
