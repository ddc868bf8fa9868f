"""Write files so that no reader sees half of one, and not through links in untrusted folders; errors say what to do."""

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from msgspec import Struct

from geval_cli.errors import OutputError
from geval_cli.store.home import checkout_of, try_lock

_OWNER_ONLY, _BY_UMASK, _OTHERS = 0o600, 0o666, 0o077
_MAX_LINKS = 40
_EMPTY_S, _DAY_S = 60.0, 24 * 3600.0
_HAS_FOLDERS = os.open in os.supports_dir_fd
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_LINKS = getattr(os, "O_NOFOLLOW_ANY", 0)  # only macOS has it; there, a parent folder may be unreadable
_ADVICE = "write the stored results again with `geval show RUN -o FILE`"
_HINTS = {
    errno.ENOSPC: "free some space, then write it again (results of a run: `geval show RUN -o FILE`)",
    errno.EDQUOT: "free some space, then write it again (results of a run: `geval show RUN -o FILE`)",
    errno.EACCES: "choose a writable folder",
    errno.EPERM: "choose a writable folder",
    errno.EROFS: "choose a folder on a writable disk",
    errno.ENOENT: "create the folder first",
    errno.ENAMETOOLONG: "choose a shorter name",
}

_distrusted: set[Path] = set()
"""Untrusted folders. Like the kernel's sandbox and the removed variables, they apply to the whole process."""


def distrust_links(folders: Iterable[Path]) -> None:
    """From this call on, write through no link that is in these folders, in repositories around them, or below.

    The current folder is included if it contains one of them.
    """
    here = Path.cwd()
    for folder in map(Path.resolve, folders):
        _distrusted.add(checkout_of(folder))
        if folder.is_relative_to(here):
            _distrusted.add(here)


class LinkedError(OSError):
    """The path leads through a link that someone else may have planted."""


class IrregularError(OSError):
    """The path names a pipe, a socket or a device."""


def real_path(path: Path) -> Path:
    """Return `path` with its links resolved, even if the target does not exist yet.

    Raises:
        LinkedError: a link is in an untrusted folder, or is another user's in a folder that everyone can write to.
        OSError: the links form a loop.
    """
    absolute = Path.cwd() / path
    real = Path(absolute.anchor)
    pending = list(reversed(absolute.parts[1:]))
    links = 0
    while pending:
        part = pending.pop()
        if part == "..":
            real = real.parent
            continue
        here = real / part
        try:
            target = here.readlink()
        except OSError:  # not a link, or it does not exist
            real = here
            continue
        if any(real.is_relative_to(folder) for folder in _distrusted):
            raise LinkedError(errno.ELOOP, f"{here} is a link, which may come from the untrusted config")
        # Whether Linux itself would refuse to follow the link with its protected_symlinks setting.
        if not hasattr(os, "geteuid"):
            is_foreign_link = False
        else:
            folder = here.parent.stat()
            owner = here.lstat().st_uid
            is_open = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
            is_foreign_link = bool(is_open) and owner not in {os.geteuid(), folder.st_uid}
        if is_foreign_link:
            raise LinkedError(
                errno.ELOOP, f"{here} is another user's link in a folder that everyone can write to"
            )
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if target.is_absolute():
            real = Path(target.anchor)
        pending.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
    return real


class FolderEntry(Struct, frozen=True):
    """A name in an open folder: it stays in the same folder even if that folder is renamed or replaced.

    Attributes:
        path: the path of the file, without links.
        descriptor: of the folder; None if the system has no such descriptors (Windows).
    """

    path: Path
    descriptor: int | None

    def beside(self, name: str) -> str:
        """Return the name of a file in this folder for system calls that are given `descriptor`."""
        return name if self.descriptor is not None else str(self.path.parent / name)

    def replaced(self) -> os.stat_result | None:
        """Return the status of what exists at this name, without following a link; None if nothing does.

        Raises:
            OSError: it is a folder, a link, a pipe or a device.
        """
        try:
            status = os.stat(self.beside(self.path.name), dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if not stat.S_ISREG(status.st_mode):
            raise IrregularError(errno.EINVAL, "it is not a regular file")
        return status

    def open(self, name: str, flags: int, mode: int = _BY_UMASK) -> int:
        """Open a file in the folder and return its descriptor; links are refused."""
        return os.open(self.beside(name), flags | _NO_LINK, mode, dir_fd=self.descriptor)


@contextmanager
def opened_place(path: Path) -> Iterator[FolderEntry]:
    """Open the folder of `path`, with links resolved, until the end of the block.

    Raises:
        OSError: the folder does not exist, or a link must not be followed.
    """
    real = real_path(path)
    if not _HAS_FOLDERS:
        yield FolderEntry(real, None)
        return
    # No part of `real` is a link, and a part that becomes one meanwhile is not followed.
    descriptor = os.open(real.parent if _NO_LINKS else real.anchor, _FOLDER | _NO_LINKS)
    try:
        for part in () if _NO_LINKS else real.parts[1:-1]:
            inner = os.open(part, _FOLDER | _NO_LINK, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield FolderEntry(real, descriptor)
    finally:
        os.close(descriptor)


def open_in_place(path: Path, flags: int, *, mode: int = _BY_UMASK) -> int:
    """Return a descriptor for writing to the file at `path` itself, with the rules of `SafeFile` about links.

    Raises:
        OSError: it cannot be opened, or it is an untrusted link, a pipe, a device, or has other hard links.
    """
    if not _distrusted:
        return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), mode)
    with opened_place(path) as place:
        # Non-blocking, so that a pipe without a reader is not waited for.
        opening = flags & ~os.O_TRUNC | getattr(os, "O_NONBLOCK", 0)
        descriptor = place.open(place.path.name, opening, mode)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
        return descriptor
    os.close(descriptor)
    what = "has other hard links" if stat.S_ISREG(status.st_mode) else "is not a regular file"
    raise LinkedError(errno.ELOOP, f"{path} {what}")


def why_unwritable(path: Path) -> tuple[str, str] | None:
    """Return why nothing can be written to `path`, and what to do about it; None if it can be written.

    Raises:
        OSError: the system refuses to write there.
    """
    try:
        with opened_place(path) as place:
            name = place.beside(place.path.name)
            if place.replaced() is not None and not os.access(name, os.W_OK, dir_fd=place.descriptor):
                return "the file is read-only", "choose another name"
            # Permission bits say nothing about read-only mounts and quotas: only creating a file shows that it works.
            name = f".{secrets.token_hex(8)}.tmp"
            os.close(place.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY))
            os.unlink(place.beside(name), dir_fd=place.descriptor)
    except (IsADirectoryError, IrregularError) as error:
        return str(error.strerror), "choose another name"
    except (FileNotFoundError, NotADirectoryError):
        return f"there is no folder {path.parent}", f"mkdir -p {path.parent}"
    return None


def output_error(path: Path, error: OSError, *, advice: str = _ADVICE) -> OutputError:
    """Return the `OutputError` for an error of the operating system; `advice` is the hint if none fits better."""
    if isinstance(error, LinkedError):
        hint = "remove it, or choose a file elsewhere"
        return OutputError(f"cannot write {path}: {error.strerror}", path=str(path), hint=hint)
    reason = (error.strerror or str(error)).lower()
    hint = _HINTS.get(error.errno or 0, advice)
    return OutputError(f"cannot write {path}: {reason}", path=str(path), hint=hint)


def _remove_left_over(place: FolderEntry) -> None:
    """Remove the user's own unfinished files for this name, left behind by writers that were killed.

    A writer holds a lock on its file. An empty file may be about to be locked, so it must have reached some age.
    """
    shape = re.compile(re.escape(f".{place.path.name[:200]}.") + r"[0-9a-f]{16}\.tmp")
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place.descriptor)
    try:
        names = os.listdir(readable)  # noqa: PTH208 - a path has no descriptor
    finally:
        os.close(readable)
    for name in filter(shape.fullmatch, names):
        with suppress(OSError), os.fdopen(place.open(name, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                continue
            age_s = time.time() - status.st_mtime
            try:
                is_left_over = try_lock(file) and (status.st_size > 0 or age_s > _EMPTY_S)
            except OSError:
                is_left_over = age_s > _DAY_S
            if is_left_over:
                os.unlink(name, dir_fd=place.descriptor)


class SafeFile:
    """A UTF-8 text file (or bytes, see `binary`) that appears, or replaces an existing file, once all of it is on disk.

    It is written under a temporary name in the same folder. If the block raises, or the disk is full, that file is
    removed and the existing one stays; what a killed process left behind is removed by the next one that writes the
    same file. If the path is a symbolic link of the user's, the file that it points to is replaced, not the link; for
    links of others, see `distrust_links`.

    Args:
        path: of the file.
        is_private: whether only its owner may read it; else the umask and the mode of the replaced file apply.

    Raises:
        OutputError: from entering the block, from `write` and from leaving the block.
    """

    def __init__(self, path: Path, *, is_private: bool = False) -> None:
        self._path = path
        self._is_private = is_private
        self._is_binary = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            try:
                self._place = place = stack.enter_context(opened_place(self._path))
                before = place.replaced()
                self._mode = None if before is None else stat.S_IMODE(before.st_mode)
                # A replaced file may be private, so the new one is too until it gets that file's mode at the end.
                mode = _OWNER_ONLY if self._is_private or before is not None else _BY_UMASK
                # A name that no one can have taken in advance, for example with a link.
                self._temporary = f".{place.path.name[:200]}.{secrets.token_hex(8)}.tmp"
                descriptor = place.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            except OSError as error:
                raise output_error(self._path, error) from error
            self._file = os.fdopen(descriptor, "w", encoding="utf-8", newline="\n")
            if place.descriptor is not None:
                buffer: Any = self._file.buffer
                # If files cannot be locked, only their age tells what was left behind.
                with suppress(OSError):
                    try_lock(buffer)
                    _remove_left_over(place)
            self._folder = stack.pop_all()
        return self

    def write(self, text: str) -> None:
        """Append `text` to the file."""
        try:
            self._file.write(text)
        except OSError as error:
            raise output_error(self._path, error) from error

    @property
    def binary(self) -> Any:
        """The file as bytes, for formats that are not text; they write to it instead of calling `write`.

        After it was used, an OSError that leaves the block is taken for a failure to write this file.
        """
        self._is_binary = True
        return self._file.buffer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        place = self._place
        temporary = place.beside(self._temporary)
        try:
            if isinstance(error, OSError) and self._is_binary:
                raise output_error(self._path, error) from error
            if error is None:
                self._file.flush()
                os.fsync(self._file.fileno())
                if self._mode is not None and hasattr(os, "fchmod"):
                    kept = self._mode & ~_OTHERS if self._is_private else self._mode
                    os.fchmod(self._file.fileno(), kept)
                self._file.close()
                os.replace(
                    temporary,
                    place.beside(place.path.name),
                    src_dir_fd=place.descriptor,
                    dst_dir_fd=place.descriptor,
                )
        except OSError as trouble:
            raise output_error(self._path, trouble) from trouble
        finally:
            # The write has already reported a full disk; closing would report it again.
            with suppress(OSError):
                self._file.close()
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=place.descriptor)
            self._folder.close()
