"""Decide what a config may read, run and reach: one object, passed to everything that reads, runs or sends.

There is no global setting: whatever opens a file, runs code or sends a request for a config is passed the config's
`Access`, from the first byte that is read of it to the last request of its run.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Protocol

from msgspec import Struct

from geval_cli.errors import CodeFailedError, Location, Problem, UnjudgeableError
from geval_cli.source.source_map import SourcePath

TRUST_HINT = "leave it out, or run the config without --untrusted once you trust it"


class NamedProvider(Protocol):
    """A provider as a config or the user names it."""

    @property
    def place(self) -> SourcePath: ...

    @property
    def fingerprint(self) -> bytes: ...


class Access(Struct, frozen=True):
    """The permissions of a config.

    Attributes:
        folders: files may be read only in these and below, after links are resolved; None for anywhere.
        runs_code: whether the code and programs that it names may run.
        reads_environment: whether it may use environment values.
        reaches_any_host: whether it may name its own addresses; else only vendors are called, at their own addresses.
        vouched: fingerprints of the providers that the user named beside the config, and so vouches for.
    """

    folders: tuple[Path, ...] | None = None
    runs_code: bool = True
    reads_environment: bool = True
    reaches_any_host: bool = True
    vouched: frozenset[bytes] = frozenset()

    @property
    def is_untrusted(self) -> bool:
        """Return whether the config is untrusted, as with `--untrusted`."""
        return not self.reads_environment

    def is_trusted_provider(self, spec: NamedProvider) -> bool:
        """Return whether the user vouches for a provider: it is in no config, and the user named it."""
        return spec.place.value() is None and spec.fingerprint in self.vouched

    def require_code(self, what: str) -> None:
        """Raise CodeFailedError if code may not be run; `what` names the code in the message."""
        if not self.runs_code:
            raise CodeFailedError(f"{what} runs code, which {self.refused_by} not allow", hint=TRUST_HINT)

    def require_host(self, what: str) -> None:
        """Raise UnjudgeableError if the config may not name its own addresses; `what` names what would send to one."""
        if not self.reaches_any_host:
            message = f"{what} sends outputs to another server, which {self.refused_by} not allow"
            raise UnjudgeableError(message, hint=TRUST_HINT)

    @property
    def refused_by(self) -> str:
        """Return who refuses, with the verb of the sentence: `--untrusted does`."""
        return "--untrusted does" if self.is_untrusted else "this server does"

    def is_outside(self, path: Path) -> bool:
        """Return whether `path`, with all its links resolved, may not be read, or cannot be resolved."""
        if self.folders is None:
            return False
        try:
            target = path.resolve()
        except (OSError, RuntimeError, ValueError):
            return True
        return not any(target.is_relative_to(folder) for folder in self.folders)

    def require_inside(self, path: Path) -> None:
        """Raise OutsideError if `path` may not be read."""
        if self.is_outside(path):
            raise OutsideError(path, self)

    def require_same(self, stream: BinaryIO, path: Path) -> None:
        """Raise OutsideError if `stream`, opened as `path`, is not the file that `path` names, or may not be read.

        A name may be made to point to another file between the check and the opening.
        """
        if self.folders is None:
            return
        try:
            is_same = os.path.samestat(os.fstat(stream.fileno()), path.resolve().stat())
        except (OSError, RuntimeError, ValueError):
            is_same = False
        if not is_same or self.is_outside(path):
            raise OutsideError(path, self)

    def outside_problem(self, path: Path, asked_at: Location | None) -> Problem:
        """Return the problem of a file that may not be read, without revealing whether it exists."""
        if not self.is_untrusted:
            hint = "serve a folder that holds both, or start the server with --allow-code if you trust every config"
            return Problem(f"`{path}` is outside the served folder", asked_at, hint)
        message = f"`{path}` is outside the config's folder, which --untrusted does not allow"
        return Problem(message, asked_at, "put the file next to the config")


TRUSTED = Access()
"""Everything is allowed: for the user's own config, and for what the user names on the command line."""


class OutsideError(OSError):
    """A file is outside the folders that its config may read."""

    def __init__(self, path: Path, access: Access) -> None:
        super().__init__(f"{path} may not be read")
        self.path = path
        self.access = access

    def problem(self, asked_at: Location | None) -> Problem:
        """Return the error as a problem, located at `asked_at`."""
        return self.access.outside_problem(self.path, asked_at)


def untrusted_access(folders: Iterable[Path], vouched: frozenset[bytes] = frozenset()) -> Access:
    """Return the access of an untrusted config: it may read in `folders` and below, and call known vendors."""
    return Access(
        _resolved(folders),
        runs_code=False,
        reads_environment=False,
        reaches_any_host=False,
        vouched=vouched,
    )


def access_in(folder: Path, vouched: frozenset[bytes] = frozenset()) -> Access:
    """Return the access of a config that is served from `folder`: it may read in it and below, but run no code."""
    return Access(_resolved([folder]), runs_code=False, vouched=vouched)


def environment_problem(name: str, location: Location | None) -> Problem:
    """Return the problem of an untrusted config that uses an environment value."""
    message = f"the environment variable `{name}` is read, which --untrusted does not allow"
    return Problem(
        message, location, "write the value itself; providers read their keys from their own variables"
    )


def _resolved(folders: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(folder.resolve() for folder in folders)


_STREAMS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""How a shell passes the output of another command: `--env-file <(...)`."""


class SpecialFileError(OSError):
    """The path names a pipe, a socket or a device instead of a file."""


def open_regular(path: Path, access: Access) -> BinaryIO:
    """Return the file at `path`, open for reading. Raises OSError if it is not a regular file or may not be read."""
    access.require_inside(path)
    stream = open(path, "rb", opener=regular_only)  # noqa: SIM115 - the caller closes it
    try:
        access.require_same(stream, path)
    except OSError:
        stream.close()
        raise
    return stream


def regular_only(name: str, flags: int) -> int:
    """Open a regular file, or a pipe that a shell passed, and return its descriptor; an opener for `open`."""
    if name.startswith(_STREAMS):
        return os.open(name, flags)
    # Without the flag, opening a pipe waits until another process writes to it.
    descriptor = os.open(name, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(f"{name} is a folder")
        raise SpecialFileError(f"{name} is a pipe or a device")
    return descriptor
