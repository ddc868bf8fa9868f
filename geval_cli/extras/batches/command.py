"""`geval batches`: work with the batches that runs have submitted to providers."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from rich.text import Text

from geval_cli.cli.problems import print_note, print_warnings
from geval_cli.errors import UsageError
from geval_cli.extras.batches.care import BatchKeeper
from geval_cli.extras.batches.driver import recorded_batch
from geval_cli.extras.batches.store import Batch
from geval_cli.numbers import format_time, plural
from geval_cli.records import SCHEMA_VERSION, to_json
from geval_cli.report.console import make_console, print_rows
from geval_cli.report.sanitize import folder_options, one_line
from geval_cli.source.access import TRUSTED
from geval_cli.source.env import gather_env
from geval_cli.store.cache import ResponseCache
from geval_cli.store.runs import RunStore
from geval_cli.store.state import open_cache, open_runs

_ID_WIDTH = 30
_WIDTH_WITH_TIMES = 100

T = TypeVar("T")


def print_batches(home: Path | None, folder: Path | None, *, as_json: bool) -> None:
    """Print all batches as a table or as JSON.

    Raises:
        UsageError: there is no cache.
        StoreError: the cache cannot be read.
    """
    with _opened(home, folder) as (cache, _):
        batches = asyncio.run(cache.batches.all())
    if as_json:
        rows = [{**to_json(recorded_batch(batch)), "run_id": batch.run_id} for batch in batches]
        document = {"schema_version": SCHEMA_VERSION, "kind": "batches", "batches": rows}
        sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")
        return
    if not batches:
        sys.stdout.write("no batches have been submitted here; submit one with `geval run --batch`\n")
        return
    console = make_console(sys.stdout, environ=os.environ)
    waiting = [batch for batch in batches if batch.state.is_open]
    told = f"{len(batches) - len(waiting):,} of {plural(len(batches), 'batch', 'batches')} ended"
    if waiting:
        come, asked = sum(batch.answered for batch in waiting), sum(batch.requests for batch in waiting)
        told += f"; {come:,} of {plural(asked, 'request')} in the others answered"
    console.print(Text(f"{told}\n", style="bold"))
    has_times = console.width >= _WIDTH_WITH_TIMES
    shown = []
    for batch in batches:
        answered = f"{batch.answered:,} of {batch.requests:,}"
        names = (batch.id, batch.state.value, one_line(batch.provider_id, _ID_WIDTH), batch.role.value)
        since = [format_time(batch.created_at)] if has_times else []
        shown.append((*names, answered, f"{batch.failed:,}", *since))
    header = ("batch", "state", "provider", "role", "answered", "failed", *(["since"] * has_times))
    print_rows(console, f"LLlLRR{'L' * has_times}", header, shown)


def wait_for_batches(home: Path | None, folder: Path | None, run: str | None) -> None:
    """Wait for the batches of a run, or of all runs, and print what came back.

    Raises:
        UsageError: there is no such run, or its config no longer exists.
        ProviderError: a provider does not report on its batch.
        StoreError: the cache cannot be read or written.
    """

    async def wait(keeper: BatchKeeper) -> tuple[Sequence[Batch], dict[str, None]]:
        batches = await keeper.wait(run, print_note)
        return batches, dict.fromkeys(map(keeper.way_on, batches))

    batches, ways_on = _with_keeper(home, folder, wait)
    for batch in batches:
        failed = f", {batch.failed:,} of them errors" if batch.failed else ""
        answered = f"{batch.answered:,} of {batch.requests:,} answered{failed}"
        sys.stdout.write(f"{batch.id}: {batch.state}, {answered}\n")
    if not batches:
        sys.stdout.write("no batches are in progress\n")
    else:
        sys.stdout.write(f"the answers are here; use them with {' and '.join(ways_on)}\n")


def cancel_batches(home: Path | None, folder: Path | None, names: Sequence[str]) -> None:
    """Cancel batches one by one; raises the same errors as `wait_for_batches`."""

    async def cancel(keeper: BatchKeeper) -> None:
        for name in names:
            batch = await keeper.cancel(name)
            what = "the provider is stopping it" if batch.state.is_open else "it was not submitted yet"
            sys.stdout.write(f"{batch.id}: cancelled; {what}\n")

    _with_keeper(home, folder, cancel)


def adopt_batch(home: Path | None, folder: Path | None, remote_id: str, *, provider: str) -> None:
    """Store the answers of a batch that this cache does not know; raises the same errors as `wait_for_batches`."""
    count = _with_keeper(home, folder, lambda keeper: keeper.adopt(remote_id, provider))
    sys.stdout.write(
        f"{plural(count, 'answer')} adopted; a --batch run that sends the same requests uses them\n"
    )


def _with_keeper(home: Path | None, folder: Path | None, work: Callable[[BatchKeeper], Awaitable[T]]) -> T:
    environ = gather_env(os.environ, base_dir=Path.cwd(), env_file=None, access=TRUSTED)

    async def run(cache: ResponseCache, runs: RunStore | None) -> T:
        async with BatchKeeper.opened(cache, runs, environ, folder_options(home, folder)) as keeper:
            return await work(keeper)

    with _opened(home, folder) as (cache, runs):
        return asyncio.run(run(cache, runs))


@contextmanager
def _opened(home: Path | None, folder: Path | None) -> Iterator[tuple[ResponseCache, RunStore | None]]:
    """Open the cache, and the run store if there is one."""
    with ExitStack() as stack:
        cache = stack.enter_context(open_cache(home, os.environ, folder))
        print_warnings(cache.warnings)
        runs = None
        with suppress(UsageError):
            runs = stack.enter_context(open_runs(home, os.environ))
        yield cache, runs
