"""A lock between processes: an empty file that one process at a time may hold. It ends with the process."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

if sys.platform == "win32":
    import msvcrt

    def try_lock(file: BinaryIO) -> bool:
        """Return whether this open file now holds the lock."""
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def try_lock(file: BinaryIO) -> bool:
        """Return whether this open file now holds the lock. Raises OSError where the file system knows no locks."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextmanager
def hold_lock(path: Path, *, wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock at `path` inside the block, calling `wait` again and again while another process has it.

    Raises:
        OSError: the file cannot be made, or the file system knows no locks.
    """
    with path.open("ab") as file:
        while not try_lock(file):
            wait()
        yield
