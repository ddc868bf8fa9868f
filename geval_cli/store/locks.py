"""Locks between processes that share a home folder: of runs in progress, and of answers that one of them requests.

A run locks a file of its own, which the system unlocks when the process dies.

A claim on an answer is a locked byte of an empty file beside the cache: of all processes that share it, only one at a
time requests the answer. The system unlocks the byte when its process ends, even by kill -9, so no claim is ever left
over; and a claim takes two system calls, without a write or a wait. The last process that uses the file removes it:
each user shares the lock of one more byte, and only the last one can lock that byte exclusively.
"""

import contextlib
import json
import os
import socket
import stat
import threading
import time
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct, field

from geval_cli.errors import StoreError
from geval_cli.store.home import share_byte, try_lock, try_lock_byte, unlock_byte

CLAIMS_FILE = "cache.claims"

_PLACE_DIGITS = 15  # digits of a key: below 2**60, as the offset of a byte has to be
_USERS_PLACE = 1 << 60
_OWNER_FILE = 0o600


class _OpenFile(Struct):
    """The file as this process has it open, once: closing any descriptor of it makes the system drop all its locks."""

    descriptor: int
    users: int = 0
    places: set[int] = field(default_factory=set)


_OPEN: dict[str, _OpenFile] = {}
_MUTEX = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_OPEN.clear)  # a child holds none of its parent's locks


class Claims:
    """The claims of a cache's users, in this process and in others.

    If the file cannot be created or the file system has no locks, every claim is granted.
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
        """Claim the answer of `key` until `release_claim`; False if it is already claimed."""
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

    def release_claim(self, key: str) -> None:
        """Give up a claim that `take` granted."""
        if self._file is None:
            return
        place = int(key[:_PLACE_DIGITS], 16)
        with _MUTEX:
            self._file.places.discard(place)
            with contextlib.suppress(OSError):
                unlock_byte(self._file.descriptor, place)

    def close(self) -> None:
        """Close the file if this process has no other users of it. Safe to call twice."""
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
    """Return a descriptor of the file, registered as one of its users."""
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
        os.close(descriptor)  # the file's last user has removed it meanwhile


LOCKS_FOLDER = "running"

_ATTEMPTS = 50  # a process that checks whether a run is in progress holds its lock for a moment
_PAUSE_S = 0.01


class RunLocks:
    """The locks of the runs in one home folder. They are never waited for: a holder works for hours.

    Without a folder, no other process knows the runs, and nothing is created.
    """

    def __init__(self, home: Path | None) -> None:
        self._folder = None if home is None else home / LOCKS_FOLDER
        self._held: dict[str, BinaryIO | None] = {}

    def acquire(self, run_id: str) -> bool:
        """Lock a run until `release`; return False if a process, this one included, has already locked it.

        Raises:
            StoreError: the lock's file cannot be created.
        """
        if run_id in self._held:
            return False
        if self._folder is None:
            self._held[run_id] = None
            return True
        path = self._folder / run_id
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for _ in range(_ATTEMPTS):
                # Unbuffered: what a full disk refuses must not be written again when the file is closed.
                file = path.open("a+b", buffering=0)
                if self._is_mine(file, path):
                    self._held[run_id] = file
                    # Write the holder into the locked file if possible: the lock holds without it, as on a full
                    # disk.
                    with contextlib.suppress(OSError):
                        file.truncate(0)
                        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
                        file.flush()
                    return True
                file.close()
                time.sleep(_PAUSE_S)
        except OSError as error:
            raise StoreError(
                f"the run cannot be marked as in progress in {path}: {error.strerror or error}",
                path=str(path),
                hint="make the folder writable, or choose another folder with --home",
            ) from error
        return False

    def holds(self, run_id: str) -> bool:
        """Return whether the lock of a run is held here."""
        return run_id in self._held

    def is_run_active(self, run_id: str) -> bool:
        """Return whether a process works on the run; if the file system cannot tell, True, to be safe."""
        if self._folder is None or run_id in self._held:
            return run_id in self._held
        try:
            with (self._folder / run_id).open("rb") as file:
                return not try_lock(file)
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def is_any_run_active(self) -> bool:
        """Return whether a process works on any run; if the file system cannot tell, True, to be safe."""
        try:
            return bool(self._held) or any(map(self.is_run_active, self._names()))
        except OSError:
            return True

    def locked_names(self) -> list[str]:
        """Return the locked names, of runs and all else that processes share; our own if the folder is unreadable."""
        try:
            return [name for name in {*self._held, *self._names()} if self.is_run_active(name)]
        except OSError:
            return list(self._held)

    def _names(self) -> list[str]:
        try:
            return [] if self._folder is None else [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []

    def holder(self, run_id: str) -> str:
        """Return who holds the lock, in words for a message."""
        try:
            signed = json.loads((self._folder / run_id).read_bytes()) if self._folder else {}
            return f"process {signed['pid']} on {signed['host']}"
        except (OSError, ValueError, LookupError, TypeError):
            return "another process"

    def release(self, run_id: str) -> None:
        """Release the lock of a run, if this process holds it."""
        file = self._held.pop(run_id, None)
        if file is not None and self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / run_id).unlink(missing_ok=True)
            file.close()

    def release_all(self) -> None:
        """Release every lock that this process holds."""
        for run_id in list(self._held):
            self.release(run_id)

    @staticmethod
    def _is_mine(file: BinaryIO, path: Path) -> bool:
        """Lock `file`, and return whether others see that lock: its previous holder may have removed the file."""
        if not try_lock(file):
            return False
        try:
            return os.path.samestat(os.fstat(file.fileno()), path.stat())
        except FileNotFoundError:
            return False


class SharedRuns:
    """Runs that one process of a session makes and the others read: the holder of a name's lock makes its run.

    Args:
        home: the state folder.
        session: a name that no other session has.
    """

    def __init__(self, home: Path, session: str) -> None:
        self._folder = home / LOCKS_FOLDER
        self._session = session
        self._locks = RunLocks(home)

    def acquire(self, name: str) -> bool:
        """Lock a name like `RunLocks.acquire`."""
        return self._locks.acquire(f"{self._session}-{name}")

    def release(self, name: str) -> None:
        """Release a name."""
        self._locks.release(f"{self._session}-{name}")

    def find(self, name: str) -> str | None:
        """Return the id of the run of a name; None if it has not been made yet."""
        try:
            return self._note(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def record(self, name: str, run_id: str) -> None:
        """Tell the other processes the id of the run of a name."""
        unfinished = self._note(name).with_suffix(".new")
        unfinished.write_text(run_id, encoding="utf-8")
        unfinished.replace(self._note(name))  # a waiting process sees all of it or nothing

    def forget(self) -> None:
        """Remove the files of the session."""
        for path in self._folder.glob(f"{self._session}-*"):
            with contextlib.suppress(OSError):
                path.unlink()

    def _note(self, name: str) -> Path:
        return self._folder / f"{self._session}-{name}.run"
