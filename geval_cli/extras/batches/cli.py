"""The `geval batches` commands. Their bodies import what they need when they run."""

import typer

from geval_cli.cli.options import (
    AsJson,
    BatchIds,
    BatchProvider,
    CommandTable,
    RemoteBatchId,
    WaitedRun,
    declared,
)
from geval_cli.runs.options import RunOptions

batches_commands = CommandTable(help="List, fetch or cancel submitted batches.")
commands = CommandTable()
commands.add_typer(batches_commands, name="batches")


@batches_commands.callback(invoke_without_command=True)
@declared(RunOptions, "cache_folder", "home")
def list_batches(given: RunOptions, context: typer.Context, as_json: AsJson = False) -> None:
    """List submitted batches, oldest first."""
    from geval_cli.extras.batches.command import print_batches

    if context.invoked_subcommand is None:
        print_batches(given.home, given.cache_folder, as_json=as_json)


@batches_commands.command("wait")
@declared(RunOptions, "cache_folder", "home")
def wait_for_batches(given: RunOptions, run: WaitedRun = None) -> None:
    """Wait for batches to finish and fetch their answers."""
    from geval_cli.extras.batches.command import wait_for_batches as wait

    wait(given.home, given.cache_folder, run)


@batches_commands.command("cancel")
@declared(RunOptions, "cache_folder", "home")
def cancel_batches(given: RunOptions, batches: BatchIds) -> None:
    """Cancel batches; finished answers are paid for and kept."""
    from geval_cli.extras.batches.command import cancel_batches as cancel

    cancel(given.home, given.cache_folder, batches)


@batches_commands.command("adopt")
@declared(RunOptions, "cache_folder", "home")
def adopt_batch(given: RunOptions, remote: RemoteBatchId, provider: BatchProvider) -> None:
    """Fetch a batch that geval submitted elsewhere.

    Runs with --batch then use its answers.
    """
    from geval_cli.extras.batches.command import adopt_batch as adopt

    adopt(given.home, given.cache_folder, remote, provider=provider)
