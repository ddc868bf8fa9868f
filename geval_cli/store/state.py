"""What geval keeps between runs, opened together: the stored runs and the response cache."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from geval_cli.errors import StoreError, UsageError
from geval_cli.store.cache import ResponseCache
from geval_cli.store.home import home_folder
from geval_cli.store.runs import RunStore


@dataclass(frozen=True, slots=True)
class State:
    """What geval keeps between runs. `warnings` say what went wrong while opening it."""

    runs: RunStore
    cache: ResponseCache
    warnings: tuple[str, ...] = ()


@contextmanager
def open_state(home: Path | None, environ: Mapping[str, str]) -> Iterator[State]:
    """The runs and the cache of a home folder, for running.

    A folder that cannot be used does not stop a run: state then lives in a temporary folder, with a warning.
    """
    folder = home_folder(home, env=environ, cwd=Path.cwd())
    with ExitStack() as stack:
        try:
            state = _opened(folder, stack)
        except StoreError as error:
            temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="geval-")))
            warning = f"{error.message}; this run is kept in memory only ({error.hint})"
            state = replace(_opened(temporary, stack), warnings=(warning,))
        yield state


@contextmanager
def open_runs(home: Path | None, environ: Mapping[str, str]) -> Iterator[RunStore]:
    """The stored runs of a home folder, for reading.

    Raises:
        UsageError: nothing was ever stored there.
        StoreError: the database cannot be read.
    """
    folder = home_folder(home, env=environ, cwd=Path.cwd())
    if not RunStore.exists(folder):
        raise UsageError(
            f"no run is stored in {folder}", hint="`geval run CONFIG` makes one; --home names another folder"
        )
    runs = RunStore.open(folder)
    try:
        yield runs
    finally:
        runs.close()


def _opened(folder: Path, stack: ExitStack) -> State:
    runs = RunStore.open(folder)
    stack.callback(runs.close)
    cache = ResponseCache.open(folder)
    stack.callback(cache.close)
    return State(runs, cache, (*runs.warnings, *cache.warnings))
