"""Temporary folders that their processes hold: what a killed one left is removed by the next that needs one.

Whoever uses a folder locks a file in it, which the system unlocks when that process ends, kill -9 included.
"""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from geval_cli.patterns import compile_later
from geval_cli.providers.file_lock import try_lock
from geval_cli.source.access import TRUSTED, open_regular

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
