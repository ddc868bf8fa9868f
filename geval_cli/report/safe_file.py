"""Write a file so that no reader sees half of it, and through no link in an untrusted folder; errors say what to do."""

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
_NO_LINKS = getattr(os, "O_NOFOLLOW_ANY", 0)  # of macOS, where each folder above may be closed to readers
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
"""Untrusted folders. Like the kernel's sandbox and the variables that are taken away, it holds for the process."""


def distrust_links(folders: Iterable[Path]) -> None:
    """From here on, write through no link that is in these folders, in repositories around them, or below.

    The current folder counts, too, where it holds one of them.
    """
    here = Path.cwd()
    for folder in map(Path.resolve, folders):
        _distrusted.add(checkout_of(folder))
        if folder.is_relative_to(here):
            _distrusted.add(here)


class LinkedError(OSError):
    """A name leads through a link that someone else may have planted."""


class IrregularError(OSError):
    """A name means a pipe, a socket or a device."""


def real_path(path: Path) -> Path:
    """Return `path` with its links followed, also where it leads nowhere yet.

    Raises:
        LinkedError: a link is in an untrusted folder, or someone else's in a folder that all may write to.
        OSError: the links go in circles.
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
        except OSError:  # no link, or nothing
            real = here
            continue
        if any(real.is_relative_to(folder) for folder in _distrusted):
            raise LinkedError(errno.ELOOP, f"{here} is a link, which may come from the untrusted config")
        # Whether Linux itself would not follow the link, where it protects links.
        if not hasattr(os, "geteuid"):
            is_somebody_elses = False
        else:
            folder = here.parent.stat()
            owner = here.lstat().st_uid
            is_open = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
            is_somebody_elses = bool(is_open) and owner not in {os.geteuid(), folder.st_uid}
        if is_somebody_elses:
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
    """A name in a folder that is open: whatever becomes of the folder's own name, the folder is the same.

    Attributes:
        path: of the file, without links.
        descriptor: of the folder; None where the system has none (Windows).
    """

    path: Path
    descriptor: int | None

    def beside(self, name: str) -> str:
        """Return what a file of this folder is called in calls that get `descriptor`."""
        return name if self.descriptor is not None else str(self.path.parent / name)

    def replaced(self) -> os.stat_result | None:
        """Return what is there, a link not followed; None for nothing.

        Raises:
            OSError: it is a folder, a pipe or a device.
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
        """Return a descriptor of a file in the folder, which is no link."""
        return os.open(self.beside(name), flags | _NO_LINK, mode, dir_fd=self.descriptor)


@contextmanager
def opened_place(path: Path) -> Iterator[FolderEntry]:
    """Open the folder of `path`, its links followed, until the end of the block.

    Raises:
        OSError: there is none, or a link must not be followed.
    """
    real = real_path(path)
    if not _HAS_FOLDERS:
        yield FolderEntry(real, None)
        return
    # No part of it is a link, and none that becomes one meanwhile is followed.
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
    """Return a descriptor for writing into the file at `path` itself, under the rules of `SafeFile` about links.

    Raises:
        OSError: it cannot be opened, or is untrusted link, pipe, device, or second name of another file.
    """
    if not _distrusted:
        return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), mode)
    with opened_place(path) as place:
        # A pipe that no one reads is not waited for.
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


def obstacle_to(path: Path) -> tuple[str, str] | None:
    """Return why nothing can be written to `path`, and what to do; None if it can.

    Raises:
        OSError: the system refuses it.
    """
    try:
        with opened_place(path) as place:
            name = place.beside(place.path.name)
            if place.replaced() is not None and not os.access(name, os.W_OK, dir_fd=place.descriptor):
                return "the file is read-only", "choose another name"
            # Permission bits know nothing of read-only mounts and quotas: only making a file shows that it can be done.
            name = f".{secrets.token_hex(8)}.tmp"
            os.close(place.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY))
            os.unlink(place.beside(name), dir_fd=place.descriptor)
    except (IsADirectoryError, IrregularError) as error:
        return str(error.strerror), "choose another name"
    except (FileNotFoundError, NotADirectoryError):
        return f"there is no folder {path.parent}", f"mkdir -p {path.parent}"
    return None


def output_error(path: Path, error: OSError, *, advice: str = _ADVICE) -> OutputError:
    """Return the `OutputError` for an operating system's refusal; `advice` is the hint where none fits better."""
    if isinstance(error, LinkedError):
        hint = "remove it, or choose a file elsewhere"
        return OutputError(f"cannot write {path}: {error.strerror}", path=str(path), hint=hint)
    reason = (error.strerror or str(error)).lower()
    hint = _HINTS.get(error.errno or 0, advice)
    return OutputError(f"cannot write {path}: {reason}", path=str(path), hint=hint)


def _remove_left_over(place: FolderEntry) -> None:
    """Remove the unfinished files for this name whose writers were killed, as far as they are the user's own.

    A writer holds the lock of its file. One that is empty may be about to be locked, so it has to be some time old.
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
    """A UTF-8 text file, or by `binary` a file of bytes, that appears, or replaces one, once all of it is on disk.

    It is written under another name in the same folder. When the block raises, or the disk is full, that file is
    removed and what was there before stays; what a killed process left, the next one that writes it removes.
    Through a symbolic link of the user's, the file that it points to is replaced, not the link; what comes of links
    of others, `distrust_links` says.

    Args:
        path: of the file.
        is_private: whether no one but its owner may read it; else as the umask and the file that was there say.

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
                # For the owner alone where a file is replaced, which may be one: it gets that one's mode at the end.
                mode = _OWNER_ONLY if self._is_private or before is not None else _BY_UMASK
                # A name that no one can have taken before, by a link for example.
                self._temporary = f".{place.path.name[:200]}.{secrets.token_hex(8)}.tmp"
                descriptor = place.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            except OSError as error:
                raise output_error(self._path, error) from error
            self._file = os.fdopen(descriptor, "w", encoding="utf-8", newline="\n")
            if place.descriptor is not None:
                buffer: Any = self._file.buffer
                with suppress(OSError):  # where no file can be locked, age alone tells what was left over
                    try_lock(buffer)
                    _remove_left_over(place)
            self._folder = stack.pop_all()
        return self

    def write(self, text: str) -> None:
        """Add text."""
        try:
            self._file.write(text)
        except OSError as error:
            raise output_error(self._path, error) from error

    @property
    def binary(self) -> Any:
        """Return the file as bytes, for formats that are no text; they are written in place of `write`.

        An OSError that leaves the block is taken for one of theirs.
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
            # A full disk was reported by the write before; closing says it a second time.
            with suppress(OSError):
                self._file.close()
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=place.descriptor)
            self._folder.close()
