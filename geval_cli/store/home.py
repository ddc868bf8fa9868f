"""The folders of geval's state: the home folder, found and created, and temporary ones that their processes hold.

A process that uses a temporary folder locks a file in it, which the system unlocks when the process ends, even by
kill -9; what a killed process left is removed by the next one that needs a temporary folder.
"""

import contextlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from geval_cli.errors import StoreError, UsageError
from geval_cli.patterns import compile_later
from geval_cli.source.access import TRUSTED, open_regular

if sys.platform == "win32":
    import msvcrt

    def try_lock(file: BinaryIO) -> bool:
        """Try to lock an open file; return whether it worked."""
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def try_lock_byte(descriptor: int, place: int) -> bool:
        """Try to lock one byte for this process, which need not be in the file; return whether it worked."""
        os.lseek(descriptor, place, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def share_byte(descriptor: int, place: int) -> None:
        """Do nothing: there are no shared locks here."""

    def unlock_byte(descriptor: int, place: int) -> None:
        """Unlock a byte."""
        os.lseek(descriptor, place, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def try_lock(file: BinaryIO) -> bool:
        """Try to lock an open file; return whether it worked. Raises OSError if the file system has no locks."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def try_lock_byte(descriptor: int, place: int) -> bool:
        """Try to lock one byte for this process, which need not be in the file; return whether it worked.

        Raises:
            OSError: the file system has no locks.
        """
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def share_byte(descriptor: int, place: int) -> None:
        """Share the lock of a byte with other processes; waits for a process that holds it exclusively.

        Raises:
            OSError: the file system has no locks.
        """
        fcntl.lockf(descriptor, fcntl.LOCK_SH, 1, place)

    def unlock_byte(descriptor: int, place: int) -> None:
        """Unlock a byte."""
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, place)


_HELD = ".held-by-"
_KINDS = ("geval-*", "pymp-*")  # the second is how multiprocessing names its folders for sockets
_MADE_WITH, _MADE_NAME = 0o700, compile_later(r".*-[a-z0-9_]{8}")  # by `mkdtemp`
_LOCKS: dict[Path, BinaryIO] = {}


def make_temporary_folder(prefix: str = "geval-") -> Path:
    """Return a new temporary folder that this process holds; first, folders that no process holds are removed."""
    remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    hold_folder(folder)
    return folder


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a temporary folder like `make_temporary_folder`, and remove it at the end of the block."""
    folder = make_temporary_folder()
    try:
        yield folder
    finally:
        remove_folder(folder)


def hold_folder(folder: Path) -> None:
    """Keep a folder from being removed while this process lives; several processes may hold the same folder."""
    if folder in _LOCKS:
        return
    unlocked = folder / f".{os.getpid()}"
    # If this fails, the folder has no mark, and no process will remove it.
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        file = stack.enter_context(unlocked.open("ab"))
        try_lock(file)
        unlocked.replace(folder / f"{_HELD}{os.getpid()}")  # the mark is visible only once it is locked
        _LOCKS[folder] = file
        stack.pop_all()


def remove_abandoned() -> None:
    """Remove this user's temporary folders whose processes have all ended."""
    for folder in abandoned_folders():
        remove_folder(folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder, as far as possible; its marks are removed last, so that the next process tries again."""
    with contextlib.suppress(OSError):
        if file := _LOCKS.pop(folder, None):
            file.close()
        content = [path for path in folder.iterdir() if not path.name.startswith(_HELD)]
        for path in content:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
        if not any(path.exists() for path in content):
            shutil.rmtree(folder, ignore_errors=True)


def abandoned_folders(*kinds: str) -> Iterator[Path]:
    """Yield this user's temporary folders that no process holds, of the given `kinds` or all of geval's."""
    for kind in kinds or _KINDS:
        for folder in Path(tempfile.gettempdir()).glob(kind):
            with contextlib.suppress(OSError):  # another user's, or removed meanwhile
                marks = list(folder.glob(f"{_HELD}*")) if _is_own(folder) else []
                if marks and all(map(_is_unlocked, marks)):
                    yield folder


def _is_own(folder: Path) -> bool:
    """Return whether geval may have made a folder: a clone at /tmp/geval-pull-7 could contain marks, too."""
    status = folder.lstat()
    is_mine = not hasattr(os, "getuid") or (
        status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == _MADE_WITH
    )
    is_like_ours = _MADE_NAME.fullmatch(folder.name) is not None and not os.path.lexists(folder / ".git")
    return stat.S_ISDIR(status.st_mode) and is_mine and is_like_ours


def _is_unlocked(mark: Path) -> bool:
    with open_regular(mark, TRUSTED) as file:
        return try_lock(file)


HOME_VARIABLE = "GEVAL_HOME"
DEFAULT_HOME = ".geval"

_OWNER_FILE, _OWNER_FOLDER, _OTHERS = 0o600, 0o700, 0o077
_IGNORED = "*\n"


def current_folder() -> Path:
    """Return the current working folder.

    Raises:
        UsageError: it was removed, or may not be entered.
    """
    try:
        return Path.cwd()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"the current folder is gone: {reason}", hint="change into a folder that exists, then try again"
        ) from error


def home_folder(explicit: Path | None, *, env: Mapping[str, str], cwd: Path) -> Path:
    """Return the home folder: `explicit` (`--home`), else GEVAL_HOME, else the nearest `.geval`. Nothing is created.

    The nearest `.geval` is searched for in `cwd` and upwards, up to the folder that has `.git`; outside a repository
    only in `cwd`. If there is none, it is the one that `cwd` would have.
    """
    named = named_home(explicit, env)
    if named is not None:
        return cwd / named.expanduser()
    own = cwd / DEFAULT_HOME
    repository = repository_of(cwd)
    if repository is None or own.is_dir():
        return own
    above = (place for place in cwd.parents if place.is_relative_to(repository))
    return next((home for place in above if _is_own_folder(home := place / DEFAULT_HOME)), own)


def named_home(explicit: Path | None, env: Mapping[str, str]) -> Path | None:
    """Return the home folder that the user named, by `--home` or by GEVAL_HOME; None if there is none."""
    return explicit or (Path(env[HOME_VARIABLE]) if env.get(HOME_VARIABLE) else None)


def repository_of(folder: Path) -> Path | None:
    """Return the nearest of `folder` and the folders above it that has `.git`, a folder or a file; None without one."""
    # Unlike `Path.exists`, this finds broken links, and works in folders that may not be entered.
    return next((place for place in (folder, *folder.parents) if os.path.lexists(place / ".git")), None)


def checkout_of(folder: Path) -> Path:
    """Return the outermost repository around `folder`, or the folder itself if there is none.

    A submodule has a `.git` of its own, and its author may also have written what is around it.
    """
    return next((place for place in reversed(folder.parents) if os.path.lexists(place / ".git")), folder)


def _is_own_folder(home: Path) -> bool:
    """Return whether `home` is a folder that belongs to this user.

    Only such state is used from above the current folder: in a folder that everyone may write to, another user's
    `.geval` would collect prompts and answers. If it is a link, the link must belong to the user as well.
    """
    try:
        followed, link = home.stat(), home.lstat()
    except OSError:
        return False
    is_own = not hasattr(os, "geteuid") or {followed.st_uid, link.st_uid} == {os.geteuid()}
    return is_own and stat.S_ISDIR(followed.st_mode)


def make_shared_folder(folder: Path) -> None:
    """Create `folder` if it is missing, without a .gitignore, so that its owner may commit it.

    Raises:
        StoreError: it cannot be created, or something else has its name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the folder {folder} cannot be created: {error.strerror or error}",
            path=str(folder),
            hint="use a writable folder",
        ) from error


def make_folder(folder: Path) -> None:
    """Create `folder` if it is missing, with a .gitignore so that no state is committed by accident.

    Only its owner may look into it: prompts and answers are private. An existing folder is left unchanged, unless it
    has that file: a cache that a team commits has no .gitignore on purpose.

    Raises:
        StoreError: it cannot be created, or something else has its name.
    """
    if folder.is_dir():
        if _is_ours(folder):
            restrict_to_owner(folder)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(_OWNER_FOLDER)
        path = folder / ".gitignore"
        try:
            path.write_text(_IGNORED, encoding="utf-8")
        except OSError:
            # The disk is full; without this file, the folder would later be taken for one that already existed
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                folder.rmdir()
            raise
    except OSError as error:
        raise StoreError(
            f"the folder {folder} cannot be created: {error.strerror or error}",
            path=str(folder),
            hint="set --home or GEVAL_HOME to a writable folder",
        ) from error


def make_private_file(path: Path) -> None:
    """Create `path` as an empty file for its owner alone; if it exists, take away the permissions of others.

    Errors are left to the code that opens the file next.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_FILE))
    except FileExistsError:
        restrict_to_owner(path)
    except OSError:
        return


def restrict_to_owner(path: Path) -> None:
    """Take all permissions on the user's own file or folder away from others, where possible.

    In a folder with the setgid bit, it is left unchanged: that is how people share one with a group.
    """
    if not hasattr(os, "geteuid"):
        return
    with contextlib.suppress(OSError):
        status = path.stat()
        mode = stat.S_IMODE(status.st_mode)
        is_shared = (status.st_mode | path.parent.stat().st_mode) & stat.S_ISGID
        if mode & _OTHERS and status.st_uid == os.geteuid() and not is_shared:
            path.chmod(mode & ~_OTHERS)


def _is_ours(folder: Path) -> bool:
    try:
        return (folder / ".gitignore").read_text(encoding="utf-8") == _IGNORED
    except (OSError, ValueError):
        return False
