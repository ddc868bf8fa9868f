"""What geval keeps between runs, opened together: the stored runs and the response cache."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, TypeVar

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

    What cannot be used does not stop a run, and takes nothing else with it: it is then in a temporary folder until
    the end of the block, with a warning.
    """
    folder = home_folder(home, env=environ, cwd=Path.cwd())
    with ExitStack() as stack:
        runs, runs_warnings = _opened(RunStore, folder, stack, "the results of this run")
        cache, cache_warnings = _opened(ResponseCache, folder, stack, "the answers of this run")
        yield State(runs, cache, (*runs_warnings, *cache_warnings))


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


class _Part(Protocol):
    """One of the databases in a home folder."""

    warnings: tuple[str, ...]

    @classmethod
    def open(cls, folder: Path, /) -> Self: ...

    def close(self) -> None: ...


PartT = TypeVar("PartT", bound=_Part)


def _opened(kind: type[PartT], folder: Path, stack: ExitStack, content: str) -> tuple[PartT, tuple[str, ...]]:
    """The database and what to say about it; in a folder for this block only when `folder` cannot be used."""
    try:
        part = kind.open(folder)
        warnings = part.warnings
    except StoreError as error:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="geval-")))
        part = kind.open(temporary)
        warnings = (
            f"{error.message}; {content} are kept in a temporary folder until it ends ({error.hint})",
        )
    stack.callback(part.close)
    return part, warnings
