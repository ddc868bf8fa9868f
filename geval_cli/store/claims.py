"""Claims on answers: of all processes that share a cache, one at a time asks for an answer.

A claim is a locked byte of an empty file beside the cache. The system unlocks it when its process ends, kill -9
included, so that no claim is ever left over; and it takes two system calls, no write and no wait. The last process that
uses the file removes it: each user shares the lock of one more byte, and only the last can have that for itself.
"""

import contextlib
import os
import stat
import threading
from pathlib import Path

from msgspec import Struct, field

from geval_cli.providers.file_lock import share_byte, try_lock_byte, unlock_byte

CLAIMS_FILE = "cache.claims"

_PLACE_DIGITS = 15  # of a key: below 2**60, as the offset of a byte has to be
_USERS_PLACE = 1 << 60
_OWNER_FILE = 0o600


class _OpenFile(Struct):
    """The file as this process has it open, once: the system drops all its locks when any descriptor is closed."""

    descriptor: int
    users: int = 0
    places: set[int] = field(default_factory=set)


_OPEN: dict[str, _OpenFile] = {}
_MUTEX = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_OPEN.clear)  # a child holds none of its parent's locks


class Claims:
    """The claims of a cache's users, in this process and in others.

    Where the file cannot be made or the file system knows no locks, every claim is granted.
    """

    def __init__(self, folder: Path) -> None:
        self._name = os.path.realpath(folder / CLAIMS_FILE)
        self._file: _OpenFile | None = None
        with _MUTEX, contextlib.suppress(OSError):
            if self._name not in _OPEN:
                _OPEN[self._name] = _OpenFile(_opened(folder / CLAIMS_FILE))
            self._file = _OPEN[self._name]
            self._file.users += 1

    def take(self, key: str) -> bool:
        """Claim the answer of `key` until `give_back`; False when someone else has claimed it."""
        if self._file is None:
            return True
        place = int(key[:_PLACE_DIGITS], 16)
        with _MUTEX:
            if place in self._file.places:
                return False
            try:
                is_taken = try_lock_byte(self._file.descriptor, place)
            except OSError:
                is_taken = True
            if is_taken:
                self._file.places.add(place)
        return is_taken

    def give_back(self, key: str) -> None:
        """Give up a claim that `take` granted."""
        if self._file is None:
            return
        place = int(key[:_PLACE_DIGITS], 16)
        with _MUTEX:
            self._file.places.discard(place)
            with contextlib.suppress(OSError):
                unlock_byte(self._file.descriptor, place)

    def close(self) -> None:
        """Close the file when nobody in this process uses it any more. Safe to call twice."""
        file, self._file = self._file, None
        if file is None:
            return
        with _MUTEX:
            file.users -= 1
            if not file.users and _OPEN.get(self._name) is file:
                del _OPEN[self._name]
                with contextlib.suppress(OSError):
                    if os.name == "posix" and try_lock_byte(file.descriptor, _USERS_PLACE):
                        Path(self._name).unlink()
                os.close(file.descriptor)


def _opened(path: Path) -> int:
    """Return a descriptor of the file, as one of its users."""
    while True:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), _OWNER_FILE)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(f"{path} is not a file")
        with contextlib.suppress(OSError):
            share_byte(descriptor, _USERS_PLACE)
        try:
            if os.path.samestat(os.fstat(descriptor), path.lstat()):
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)  # its last user has removed it meanwhile
