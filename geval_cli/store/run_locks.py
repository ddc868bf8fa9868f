"""Locks of runs under way: each locks a file of its own, which the system unlocks when the process dies."""

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import BinaryIO

from geval_cli.errors import StoreError
from geval_cli.providers.file_lock import try_lock

LOCKS_FOLDER = "running"

_ATTEMPTS = 50  # whoever asks whether a run is going on holds its lock for a moment
_PAUSE_S = 0.01


class RunLocks:
    """The locks of the runs in one home folder. A lock is never waited for: its holder works for hours.

    Without a folder no other process knows the runs, and nothing is made.
    """

    def __init__(self, home: Path | None) -> None:
        self._folder = None if home is None else home / LOCKS_FOLDER
        self._held: dict[str, BinaryIO | None] = {}

    def acquire(self, run_id: str) -> bool:
        """Lock a run until `release`; return False if anybody, this process included, has locked it already.

        Raises:
            StoreError: the lock's file cannot be made.
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
                # Unbuffered: what a full disk does not take must not come up again when the file is closed.
                file = path.open("a+b", buffering=0)
                if self._is_mine(file, path):
                    self._held[run_id] = file
                    _sign(file)
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

    def is_going_on(self, run_id: str) -> bool:
        """Return whether a process works on the run; if the file system cannot tell, True is the safe answer."""
        if self._folder is None or run_id in self._held:
            return run_id in self._held
        try:
            with (self._folder / run_id).open("rb") as file:
                return not try_lock(file)
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def is_any_going_on(self) -> bool:
        """Return whether a process works on any run; if the file system cannot tell, True is the safe answer."""
        try:
            return bool(self._held) or any(map(self.is_going_on, self._names()))
        except OSError:
            return True

    def going_on(self) -> list[str]:
        """Return the locked names, of runs and of whatever else processes share; none if the folder cannot be read."""
        try:
            return [name for name in {*self._held, *self._names()} if self.is_going_on(name)]
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
        """Release the lock of a run, if it is held here."""
        file = self._held.pop(run_id, None)
        if file is not None and self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / run_id).unlink(missing_ok=True)
            file.close()

    def release_all(self) -> None:
        """Release every lock that is held here."""
        for run_id in list(self._held):
            self.release(run_id)

    @staticmethod
    def _is_mine(file: BinaryIO, path: Path) -> bool:
        """Lock `file`, and return whether others see that lock: its last holder may have removed the file."""
        if not try_lock(file):
            return False
        try:
            return os.path.samestat(os.fstat(file.fileno()), path.stat())
        except FileNotFoundError:
            return False


class SharedRuns:
    """Runs that one process of a session makes and the others read: who has the lock of a name makes it.

    Args:
        home: the state folder.
        session: a name that no other session has.
    """

    def __init__(self, home: Path, session: str) -> None:
        self._folder = home / LOCKS_FOLDER
        self._session = session
        self._locks = RunLocks(home)

    def acquire(self, name: str) -> bool:
        """Lock a name, as `RunLocks.acquire` does."""
        return self._locks.acquire(f"{self._session}-{name}")

    def release(self, name: str) -> None:
        """Release a name."""
        self._locks.release(f"{self._session}-{name}")

    def find(self, name: str) -> str | None:
        """Return the id of the run of a name; None when nobody has made it yet."""
        try:
            return self._note(name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def note(self, name: str, run_id: str) -> None:
        """Tell the other processes the id of the run of a name."""
        unfinished = self._note(name).with_suffix(".new")
        unfinished.write_text(run_id, encoding="utf-8")
        unfinished.replace(self._note(name))  # whoever waits sees all of it or nothing

    def forget(self) -> None:
        """Remove what the session left here."""
        for path in self._folder.glob(f"{self._session}-*"):
            with contextlib.suppress(OSError):
                path.unlink()

    def _note(self, name: str) -> Path:
        return self._folder / f"{self._session}-{name}.run"


def _sign(file: BinaryIO) -> None:
    """Write the holder into the locked file if possible: the lock holds without it, as on a full disk."""
    with contextlib.suppress(OSError):
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        file.flush()
