"""Locks between processes, of a file or of one byte of it: one process at a time holds one. They end with it."""

import os
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
