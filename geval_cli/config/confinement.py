"""Keeps the reading of configs within folders: a stranger's within its own, a server's within the one it serves."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from msgspec import Struct

from geval_cli.errors import Location, Problem


class _Confinement(Struct, frozen=True):
    folders: tuple[Path, ...]
    is_strangers: bool


_CONFINEMENT: ContextVar[_Confinement | None] = ContextVar("confinement", default=None)

TRUST_HINT = "leave it out, or run the config without --untrusted once you trust it"


@contextmanager
def confined_to(folders: Iterable[Path] | None) -> Iterator[None]:
    """Until the end of the block, strangers' configs may name no file outside `folders`; None lifts every limit."""
    with _confined(None if folders is None else _Confinement(_resolved(folders), is_strangers=True)):
        yield


@contextmanager
def served_from(folder: Path | None) -> Iterator[None]:
    """Until the end of the block, configs may name no file outside `folder`, which a server serves; None for any."""
    with _confined(None if folder is None else _Confinement(_resolved([folder]), is_strangers=False)):
        yield


def is_confined() -> bool:
    """Whether what is being read is a stranger's config."""
    confinement = _CONFINEMENT.get()
    return confinement is not None and confinement.is_strangers


def is_outside(path: Path) -> bool:
    """Whether `path`, with every link on its way followed, may not be read."""
    confinement = _CONFINEMENT.get()
    if confinement is None:
        return False
    try:
        target = path.resolve()
    except (OSError, RuntimeError, ValueError):
        return True
    return not any(target.is_relative_to(folder) for folder in confinement.folders)


def outside_problem(path: Path, asked_at: Location | None) -> Problem:
    """What to say about a file that may not be read. It says nothing of whether there is one."""
    if not is_confined():
        hint = (
            "serve a folder that holds both, or start the server with --allow-code if you trust every config"
        )
        return Problem(f"`{path}` lies outside the folder that is served", asked_at, hint)
    message = f"`{path}` lies outside the folder of the config, which --untrusted does not allow"
    return Problem(message, asked_at, "keep the file beside the config")


def environment_problem(name: str, location: Location | None) -> Problem:
    """What to say about a stranger's config that asks for an environment value."""
    message = f"the environment variable `{name}` is read, which --untrusted does not allow"
    return Problem(message, location, "write the value itself; keys come from the providers' own variables")


@contextmanager
def _confined(confinement: _Confinement | None) -> Iterator[None]:
    token = _CONFINEMENT.set(confinement)
    try:
        yield
    finally:
        _CONFINEMENT.reset(token)


def _resolved(folders: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(folder.resolve() for folder in folders)
