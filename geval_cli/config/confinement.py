"""Keeps the reading of a stranger's config within its own folder: files, links out of it, `.env` files."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from geval_cli.errors import Location, Problem

_FOLDERS: ContextVar[tuple[Path, ...] | None] = ContextVar("folders", default=None)

TRUST_HINT = "leave it out, or run the config without --untrusted once you trust it"


@contextmanager
def confined_to(folders: Iterable[Path] | None) -> Iterator[None]:
    """Until the end of the block, configs may name no file outside `folders`; None lifts that."""
    token = _FOLDERS.set(None if folders is None else tuple(folder.resolve() for folder in folders))
    try:
        yield
    finally:
        _FOLDERS.reset(token)


def is_confined() -> bool:
    """Whether what is being read is a stranger's config."""
    return _FOLDERS.get() is not None


def is_outside(path: Path) -> bool:
    """Whether `path`, with every link on its way followed, may not be read."""
    folders = _FOLDERS.get()
    if folders is None:
        return False
    try:
        target = path.resolve()
    except (OSError, RuntimeError, ValueError):
        return True
    return not any(target.is_relative_to(folder) for folder in folders)


def outside_problem(path: Path, asked_at: Location | None) -> Problem:
    """What to say about a file that may not be read. It says nothing of whether there is one."""
    message = f"`{path}` lies outside the folder of the config, which --untrusted does not allow"
    return Problem(message, asked_at, "keep the file beside the config")


def environment_problem(name: str, location: Location | None) -> Problem:
    """What to say about a stranger's config that asks for an environment value."""
    message = f"the environment variable `{name}` is read, which --untrusted does not allow"
    return Problem(message, location, "write the value itself; keys come from the providers' own variables")
