"""`geval run --watch`: run again whenever the config, or a file that it names, changes."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from geval_cli.cli.problems import print_error
from geval_cli.errors import ExitCode, GevalError
from geval_cli.numbers import plural
from geval_cli.report.sanitize import sanitize
from geval_cli.store.cache import CACHE_FILE
from geval_cli.store.locks import CLAIMS_FILE
from geval_cli.store.runs import RUNS_FILE

_POLL_S = 0.3
_QUIET_S = 0.2
"""Editors write a file in several steps, so it is read once nothing has changed for this long."""

_SKIPPED = frozenset({".git", ".geval", ".venv", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache"})
_FILES_MAX = 5_000

Stamps = dict[Path, tuple[int, int]]
"""Each file with its modification time in nanoseconds and its size in bytes."""


def watch(
    run: Callable[[], ExitCode],
    configs: Sequence[Path],
    *,
    own: Callable[[], Iterable[Path]] = tuple,
    files_max: int = _FILES_MAX,
) -> ExitCode:
    """Call `run` now and after each change in the configs' folders, until Ctrl-C; return the last exit code.

    A config that cannot be read does not end it: its problems are shown, and the next change tries again. At most
    `files_max` files in the folders are watched, but not what the runs themselves write, or each run would trigger
    another: `own` returns these files and folders, and is called after each run. Anything else that changes during two
    consecutive runs (the output file of a `tee`, a log of the user's own code) is not watched from then on.
    """
    folders = sorted({config.resolve().parent for config in configs})
    never_ignored = {config.resolve() for config in configs}
    code = ExitCode.OK
    ignored: set[Path] = set()
    written_before: set[Path] = set()
    try:
        while True:
            before = stamps_of(folders, ignored, files_max)
            try:
                code = run()
            except GevalError as error:
                print_error(error)
                code = ExitCode(error.exit_code)
            if code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
                return code
            names = ", ".join(sanitize(str(folder)) for folder in folders)
            sys.stderr.write(f"\nwatching {names}; stop with Ctrl-C\n")
            ignored |= {path.resolve() for path in own()}
            written = _differing(before, stamps_of(folders, ignored, files_max)) - never_ignored - ignored
            again = written & written_before
            written_before = written
            if again:
                sys.stderr.write(f"{_described(sorted(again))} changes with each run and is not watched\n")
                ignored |= again
            before = {path: stamp for path, stamp in before.items() if path not in ignored}
            changed = _wait_for_change(before, partial(stamps_of, folders, ignored, files_max))
            sys.stderr.write(f"{_described(changed)} changed\n\n")
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return code


def stamps_of(folders: Iterable[Path], ignored: Iterable[Path], files_max: int) -> Stamps:
    """Return the stamps of all files below `folders`, leaving out folders such as `.git` and `.geval`."""
    found: Stamps = {}
    pending = list(folders)
    skipped = set(ignored)
    streams = _own_streams()
    while pending and len(found) < files_max:
        try:
            entries = sorted(pending.pop().iterdir())
        except OSError:
            continue
        for path in entries:
            if path.is_dir() and not path.is_symlink():
                if path.name not in _SKIPPED and path not in skipped:
                    pending.append(path)
            elif path not in skipped and not _is_passing(path.name):
                stamp = _stamp(path, streams)
                if stamp is not None:
                    found[path] = stamp
    return found


def _is_passing(name: str) -> bool:
    """Return whether a file is temporary or one of geval's own databases, which are not edited by hand."""
    return name.endswith((".tmp", "~", ".swp")) or name.startswith((RUNS_FILE, CACHE_FILE, CLAIMS_FILE))


def _own_streams() -> set[tuple[int, int]]:
    """Return the files that stdout and stderr are written to (`geval run --watch > FILE`), by device and inode."""
    found = set()
    for number in (1, 2):
        with suppress(OSError):
            status = os.fstat(number)
            found.add((status.st_dev, status.st_ino))
    return found


def _stamp(path: Path, streams: set[tuple[int, int]]) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    if (status.st_dev, status.st_ino) in streams:
        return None
    return status.st_mtime_ns, status.st_size


def _differing(before: Stamps, now: Stamps) -> set[Path]:
    return {path for path in {*before, *now} if before.get(path) != now.get(path)}


def _wait_for_change(before: Stamps, look: Callable[[], Stamps]) -> list[Path]:
    """Block until files differ from `before` and have settled; return those that differ."""
    while True:
        now = look()
        if now != before:
            time.sleep(_QUIET_S)
            settled = look()
            if settled == now:
                return sorted(_differing(before, now))
        time.sleep(_POLL_S)


def _described(changed: Sequence[Path]) -> str:
    if len(changed) == 1:
        return sanitize(changed[0].name)
    return f"{sanitize(changed[0].name)} and {plural(len(changed) - 1, 'more file')}"
