"""The folders of geval's state: the home folder, found and made, and temporary ones that their processes hold.

Whoever uses a temporary folder locks a file in it, which the system unlocks when that process ends, kill -9 included;
what a killed one left is removed by the next that needs one.
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
        """Return whether this open file now holds the lock."""
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def try_lock_byte(descriptor: int, place: int) -> bool:
        """Return whether this process now holds the lock of one byte, which need not be in the file."""
        os.lseek(descriptor, place, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def share_byte(descriptor: int, place: int) -> None:
        """Nothing: there are no shared locks here."""

    def unlock_byte(descriptor: int, place: int) -> None:
        """Unlock a byte."""
        os.lseek(descriptor, place, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def try_lock(file: BinaryIO) -> bool:
        """Return whether this open file now holds the lock. Raises OSError where the file system knows no locks."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def try_lock_byte(descriptor: int, place: int) -> bool:
        """Return whether this process now holds the lock of one byte, which need not be in the file.

        Raises:
            OSError: the file system knows no locks.
        """
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def share_byte(descriptor: int, place: int) -> None:
        """Hold the lock of a byte together with other processes that share it, waiting for one that has it alone.

        Raises:
            OSError: the file system knows no locks.
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
    """Return a new temporary folder that this process holds; those that no process holds any more are removed."""
    remove_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    hold_folder(folder)
    return folder


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a temporary folder as `make_temporary_folder` does, and remove it at the end of the block."""
    folder = make_temporary_folder()
    try:
        yield folder
    finally:
        remove_folder(folder)


def hold_folder(folder: Path) -> None:
    """Keep a folder from being removed as long as this process lives; several processes may hold one."""
    if folder in _LOCKS:
        return
    unlocked = folder / f".{os.getpid()}"
    # Without a mark it is nobody's to remove.
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        file = stack.enter_context(unlocked.open("ab"))
        try_lock(file)
        unlocked.replace(folder / f"{_HELD}{os.getpid()}")  # nobody sees it before it is locked
        _LOCKS[folder] = file
        stack.pop_all()


def remove_abandoned() -> None:
    """Remove the temporary folders of this user that processes held which have all ended."""
    for folder in abandoned_folders():
        remove_folder(folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder, as far as it can be; what holds it comes last, so that the next process tries again."""
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
    """Yield the temporary folders of this user that no process holds any more, of `kinds` or all of geval's."""
    for kind in kinds or _KINDS:
        for folder in Path(tempfile.gettempdir()).glob(kind):
            with contextlib.suppress(OSError):  # someone else's, or removed meanwhile
                marks = list(folder.glob(f"{_HELD}*")) if _is_own(folder) else []
                if marks and all(map(_is_unlocked, marks)):
                    yield folder


def _is_own(folder: Path) -> bool:
    """Return whether geval may have made a folder: a clone at /tmp/geval-pull-7 could hold marks, too."""
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
    """Return the folder that the process works in.

    Raises:
        UsageError: it was removed, or may not be entered any more.
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

    The nearest `.geval` is looked for in `cwd` and upwards, as far as the folder that has `.git`; outside a repository
    only in `cwd`. Without any, it is the one that `cwd` would have.
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
    """Return the home folder that the user named, by `--home` or by GEVAL_HOME; None without one."""
    return explicit or (Path(env[HOME_VARIABLE]) if env.get(HOME_VARIABLE) else None)


def repository_of(folder: Path) -> Path | None:
    """Return the nearest of `folder` and the folders above it that has `.git`, a folder or a file; None without one."""
    # Unlike `Path.exists`, this finds links that lead nowhere, and may be asked of folders that may not be entered.
    return next((place for place in (folder, *folder.parents) if os.path.lexists(place / ".git")), None)


def checkout_of(folder: Path) -> Path:
    """Return the outermost repository around `folder`, the folder itself without one.

    A submodule has a `.git` of its own, and whoever wrote it may have written what is around it.
    """
    return next((place for place in reversed(folder.parents) if os.path.lexists(place / ".git")), folder)


def _is_own_folder(home: Path) -> bool:
    """Return whether `home` is a folder of this user's.

    State above the current folder is used only then: in a folder that everybody may write to, someone else's `.geval`
    would collect prompts and answers. A link counts as its owner's, too.
    """
    try:
        followed, link = home.stat(), home.lstat()
    except OSError:
        return False
    is_own = not hasattr(os, "geteuid") or {followed.st_uid, link.st_uid} == {os.geteuid()}
    return is_own and stat.S_ISDIR(followed.st_mode)


def make_shared_folder(folder: Path) -> None:
    """Create `folder` if it is not there, to be committed if its owner likes.

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
    """Create `folder` if it is not there, with a .gitignore so that no state is committed by accident.

    Only its owner may look into it: prompts and answers are private. A folder that was there before is left as it is,
    unless it has that file: a cache that a team commits has no .gitignore on purpose.

    Raises:
        StoreError: it cannot be created, or something else has its name.
    """
    if folder.is_dir():
        if _is_ours(folder):
            close_to_others(folder)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(_OWNER_FOLDER)
        path = folder / ".gitignore"
        try:
            path.write_text(_IGNORED, encoding="utf-8")
        except OSError:
            # On a full disk; a folder that stays without it would be taken for one that was there before
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
    """Create `path` empty for its owner alone; take from others what they may do with one that is there.

    What stands in the way is told by whoever opens it then.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_FILE))
    except FileExistsError:
        close_to_others(path)
    except OSError:
        return


def close_to_others(path: Path) -> None:
    """Take from everybody but the owner what they may do with a file or folder of the user's own, where possible.

    In a folder with the setgid bit it is left as it is: that is how people share one with a group.
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
