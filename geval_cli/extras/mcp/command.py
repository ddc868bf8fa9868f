"""`geval mcp`: serve tools to an assistant until the client disconnects or a signal arrives."""

import importlib.util
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from geval_cli.cli.options import CommandTable, declared
from geval_cli.errors import StoreError, UsageError
from geval_cli.runs.options import GraderOption, HomeOption, Option
from geval_cli.version import install_hint

commands = CommandTable()


@dataclass(frozen=True, kw_only=True)
class McpOptions:
    """Options of `geval mcp`. The server gets `root` and `home` with symbolic links resolved."""

    root: Annotated[
        Path,
        Option("--root", "Folder with the configs.", syntax="FOLDER"),
    ] = Path()
    grader: GraderOption = None
    max_cost: Annotated[
        float, Option("--max-cost", "Limit the total cost of all runs and judgements.", syntax="USD")
    ] = 1.0
    max_requests: Annotated[int, Option("--max-requests", "Limit the requests of one run.", minimum=1)] = 200
    allow_code: Annotated[
        bool, Option("--allow-code", "Trust the configs: they may run code and read files.")
    ] = False
    home: HomeOption = None


@commands.command()
@declared(McpOptions)
def mcp(given: McpOptions) -> None:
    """Serve geval's tools to an assistant over MCP.

    Tools to check, plan and run configs, over stdin and stdout.
    """
    serve_assistant(given)


def serve_assistant(options: McpOptions) -> None:
    """Serve one client over standard input and output.

    Raises:
        UsageError: the extra is missing, the folder is not a folder, or the options are invalid or contradictory.
    """
    from geval_cli.runs.event_loop import run_async
    from geval_cli.runs.requests import UNTRUSTED_VARIABLE, is_untrusted

    if importlib.util.find_spec("mcp") is None:
        raise UsageError("`geval mcp` needs the package mcp", hint=f"install it {install_hint('mcp')}")
    if options.allow_code and is_untrusted(os.environ):
        hint = f"start it without --allow-code, or unset {UNTRUSTED_VARIABLE}"
        raise UsageError(
            f"--allow-code cannot be combined with {UNTRUSTED_VARIABLE}, which forbids code", hint=hint
        )
    if not options.root.is_dir():
        raise UsageError(f"{options.root} is not a folder", hint="use the folder that contains your configs")
    if options.max_cost < 0:
        raise UsageError(f"--max-cost must not be negative, found {options.max_cost:g}")
    root = options.root.resolve()
    home = options.home if options.allow_code else _behind_wall(root, options)
    from geval_cli.extras.mcp.server import serve

    run_async(serve(replace(options, root=root, home=home)))


def _behind_wall(root: Path, options: McpOptions) -> Path | None:
    """Confine this process with the kernel sandbox, before it reads any config; return the state folder to use."""
    from geval_cli.cli.untrusted import KernelSandbox
    from geval_cli.runs.requests import RunRequest
    from geval_cli.store.home import current_folder, home_folder, make_folder

    sandbox = KernelSandbox()
    anything = root / "any config"
    home = sandbox.state_folder(options.home, [anything], os.environ)
    state = home_folder(home, env=os.environ, cwd=current_folder())
    with suppress(StoreError):  # opening it later reports what is wrong
        make_folder(state)
    sandbox.confine([RunRequest(anything, os.environ, untrusted=True, grader=options.grader)], [state])
    sandbox.tell()
    sys.stderr.flush()
    return home
