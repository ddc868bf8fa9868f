"""The state between runs, opened together: the stored runs and the response cache."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, Self, TypeVar

from msgspec import Struct

from geval_cli.errors import StoreError, UsageError
from geval_cli.store.cache import CACHE_FILE, DEFAULT_TTL_S, ResponseCache
from geval_cli.store.database import is_full, is_unwritable
from geval_cli.store.home import current_folder, home_folder, make_shared_folder, temporary_folder
from geval_cli.store.runs import RunStore


class State(Struct, frozen=True):
    """The opened stores.

    Attributes:
        warnings: sentences about problems while opening them.
        keeps_runs: whether `runs` outlives the block that opened it; False for a temporary store.
        no_room: the error of a full disk, if that is why runs are not kept.
    """

    runs: RunStore
    cache: ResponseCache
    warnings: tuple[str, ...] = ()
    keeps_runs: bool = True
    no_room: StoreError | None = None


class CacheChoice(Struct, frozen=True):
    """The cache to use, and how to use it.

    Attributes:
        folder: its folder; None for the home folder.
        ttl_s: the seconds after which an answer expires; None for never.
        is_offline: whether only the cache answers: it is only read, and its answers do not expire.
        may_be_absent: whether an empty cache will do if there is none.
    """

    folder: Path | None = None
    ttl_s: float | None = DEFAULT_TTL_S
    is_offline: bool = False
    may_be_absent: bool = False


_DEFAULT_CACHE = CacheChoice()


@contextmanager
def open_state(
    home: Path | None, environ: Mapping[str, str], cache: CacheChoice = _DEFAULT_CACHE
) -> Iterator[State]:
    """Open the runs and the cache of a home folder, for running.

    If one of the two cannot be used, it neither stops a run nor affects the other: until the end of the block, it is
    kept in a temporary folder, or in memory if there is no room for that either, with a warning.

    Raises:
        UsageError: only the cache may answer, and there is none.
        StoreError: only the cache may answer, and it cannot be read.
    """
    folder = home_folder(home, env=environ, cwd=current_folder())
    with ExitStack() as stack:
        answers, cache_warnings = _opened_cache(cache, folder, stack)
        runs, runs_warnings, failure = _opened(RunStore, folder, stack, "the results of this run")
        no_room = failure if failure is not None and is_full(failure) else None
        yield State(runs, answers, (*runs_warnings, *cache_warnings), failure is None, no_room)


@contextmanager
def open_answers(
    home: Path | None, environ: Mapping[str, str], choice: CacheChoice = _DEFAULT_CACHE
) -> Iterator[tuple[ResponseCache, tuple[str, ...]]]:
    """Open the cache of a home folder for judging without a run, with the warnings about it.

    As in `open_state`, a cache that cannot be used is replaced by a temporary one.

    Raises:
        UsageError: only the cache may answer, and there is none.
        StoreError: only the cache may answer, and it cannot be read.
    """
    folder = home_folder(home, env=environ, cwd=current_folder())
    with ExitStack() as stack:
        yield _opened_cache(choice, folder, stack)


@contextmanager
def open_cache(
    home: Path | None, environ: Mapping[str, str], folder: Path | None = None
) -> Iterator[ResponseCache]:
    """Open the cache in `folder`, or else in a home folder, for maintenance; on a read-only disk, for reading.

    Raises:
        UsageError: there is none.
        StoreError: it cannot be used.
    """
    where = folder or home_folder(home, env=environ, cwd=current_folder())
    _check_exists(where)
    with ExitStack() as stack:
        try:
            cache = ResponseCache.open(where)
            stack.callback(cache.close)
        except StoreError as error:
            if not is_unwritable(error):
                raise
            cache = stack.enter_context(ResponseCache.open_read_only(where))
        yield cache


@contextmanager
def open_runs(home: Path | None, environ: Mapping[str, str]) -> Iterator[RunStore]:
    """Open the stored runs of a home folder for reading; the disk may be read-only.

    Raises:
        UsageError: nothing was ever stored there.
        StoreError: the database cannot be read.
    """
    folder = home_folder(home, env=environ, cwd=current_folder())
    if not RunStore.exists(folder):
        raise UsageError(
            f"no runs are stored in {folder}",
            hint="start one with `geval run`, or set --home to another folder",
        )
    with ExitStack() as stack:
        try:
            runs = RunStore.open(folder)
        except StoreError as error:
            if not is_unwritable(error):
                raise
            runs = stack.enter_context(RunStore.open_read_only(folder))
        stack.callback(runs.close)
        yield runs


class _Part(Protocol):
    """One of the databases in a home folder."""

    warnings: tuple[str, ...]

    @classmethod
    def open(cls, folder: Path, /) -> Self: ...

    @classmethod
    def open_in_memory(cls) -> AbstractContextManager[Self]: ...

    def close(self) -> None: ...


PartT = TypeVar("PartT", bound=_Part)


def _opened(
    kind: type[PartT], folder: Path, stack: ExitStack, content: str, *, is_shared: bool = False
) -> tuple[PartT, tuple[str, ...], StoreError | None]:
    """Return the database, the warnings about it, and the error if it is not kept beyond the block."""
    failure: StoreError | None = None
    try:
        if is_shared:
            make_shared_folder(folder)
        part = kind.open(folder)
        warnings = part.warnings
    except StoreError as error:
        failure = error
        part, where = _opened_elsewhere(kind, stack)
        warnings = (f"{error.message}; {content} are kept in {where} until it ends ({error.hint})",)
    stack.callback(part.close)
    return part, warnings, failure


def _opened_elsewhere(kind: type[PartT], stack: ExitStack) -> tuple[PartT, str]:
    """Return a database that ends with the block, and where it is. The disk of temporary folders may be full, too."""
    own = ExitStack()
    try:
        part = kind.open(own.enter_context(temporary_folder()))
    except (StoreError, OSError):
        own.close()  # it takes up room that the results may need
        return stack.enter_context(kind.open_in_memory()), "memory"
    stack.enter_context(own)
    return part, "a temporary folder"


def _opened_cache(choice: CacheChoice, home: Path, stack: ExitStack) -> tuple[ResponseCache, tuple[str, ...]]:
    folder = choice.folder or home
    if choice.is_offline and choice.may_be_absent and not ResponseCache.exists(folder):
        return stack.enter_context(ResponseCache.open_in_memory()), ()
    if choice.is_offline:
        _check_exists(folder)
        is_frozen = choice.folder is not None
        return stack.enter_context(ResponseCache.open_read_only(folder, is_frozen=is_frozen)), ()
    is_shared = choice.folder is not None
    cache, warnings, failure = _opened(
        ResponseCache, folder, stack, "the answers of this run", is_shared=is_shared
    )
    cache.ttl_s = choice.ttl_s
    cache.is_temporary = failure is not None
    cache.no_room = failure if failure is not None and is_full(failure) else None
    return cache, warnings


def _check_exists(folder: Path) -> None:
    if not ResponseCache.exists(folder):
        hint = "run without --offline to fill one, or set --cache-dir to its folder"
        raise UsageError(f"there is no response cache {folder / CACHE_FILE}", hint=hint)
